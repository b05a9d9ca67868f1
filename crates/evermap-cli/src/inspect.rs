//! `evermap stat`, `check` and `recover`: the state of a store.

use std::process::ExitCode;

use evermap::{CheckReport, CostStat, DamageMark, OrderedStat, SpaceStat, Stat};
use serde_json::{Value, json};

use crate::failure::{Failure, advise, warn};
use crate::open::{MapArguments, StoreArguments};
use crate::print::print_line;
use crate::{NEGATIVE, SUCCESS};

/// Print the statistics of a store
///
/// Reads the whole index. Reads records only if the ordered index is requested. Does not change the
/// file.
#[derive(clap::Args)]
pub(crate) struct StatCommand {
    #[command(flatten)]
    pub(crate) store: MapArguments,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    /// Build the ordered index and include its statistics
    #[arg(long)]
    ordered: bool,
}

impl StatCommand {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let map = match self.ordered {
            true => self.store.open_ordered()?,
            false => self.store.open_to_read()?,
        };
        // After an unclean shutdown, this counts the records. A failure is in the statistics.
        let _ = map.db().recover();
        if self.ordered {
            map.build_ordered(1)?;
        }
        let (stat, space, cost) = (map.stat(), map.space()?, map.cost()?);
        map.into_db().close()?;
        match self.json {
            true => print_line(&stat_as_json(&stat, &space, &cost))?,
            false => {
                let text = format!("{stat}{space}{cost}");
                print_line(&advise(text.trim_end(), self.store.path()))?
            }
        }
        Ok(SUCCESS)
    }
}

/// Check the consistency of a store with all its maps, and print the problems found
///
/// Does not change the file. The exit code is 1 if there are problems.
#[derive(clap::Args)]
pub(crate) struct Check {
    #[command(flatten)]
    pub(crate) store: StoreArguments,
    /// Also read every record and verify its checksum
    #[arg(long)]
    deep: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

impl Check {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let db = self.store.open_to_read().inspect_err(|failure| {
            if failure.is_damage() {
                self.point_to_repair();
            }
        })?;
        let report = db.check(self.deep)?;
        db.close()?;
        match self.json {
            true => print_line(&report_as_json(&report))?,
            false => print_line(&report)?,
        }
        if !report.is_sound() {
            self.point_to_repair();
        }
        Ok(if report.is_sound() { SUCCESS } else { NEGATIVE })
    }

    fn point_to_repair(&self) {
        let path = self.store.path().display();
        warn(format_args!(
            "{path}: `evermap repair {path} NEW` makes a new store of what verifies"
        ));
    }
}

/// Recover a store that was not closed, and close it
///
/// The next opening then finds it closed, and so do copies of it. Every command that changes a
/// store recovers it too. With --on-suspect salvage, a store that is suspect can be trusted
/// afterwards. A store that is marked as damaged is checked as by `check --deep`, and has no mark
/// any more if there is no problem. The exit code is 1 if there are problems.
#[derive(clap::Args)]
pub(crate) struct Recover {
    #[command(flatten)]
    pub(crate) store: StoreArguments,
    /// Also read every record and verify its checksum, and mark the store as damaged if there are
    /// problems
    #[arg(long)]
    deep: bool,
}

impl Recover {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let db = self.store.open()?;
        let recovered = db.recover();
        let is_marked = db.stat().damage > DamageMark::None;
        let report = (self.deep || is_marked).then(|| db.check(true)).transpose()?;
        db.close()?;
        recovered?;
        match report {
            None => Ok(SUCCESS),
            Some(report) => {
                print_line(&report)?;
                Ok(if report.is_sound() { SUCCESS } else { NEGATIVE })
            }
        }
    }
}

fn stat_as_json(stat: &Stat, space: &SpaceStat, cost: &CostStat) -> Value {
    json!({
        "path": stat.path.as_ref().map(|path| path.to_string_lossy()),
        "file_system": stat.file_system,
        "map": stat.map,
        "maps": stat.maps,
        "index": stat.index.to_string(),
        "durability": stat.durability.to_string(),
        "medium": stat.medium,
        "records": stat.records.value,
        "record_bytes": stat.record_bytes.value,
        "counts_exact": stat.records.exact,
        "allocated_bytes": space.allocated_bytes,
        "extent_bytes": space.extent_bytes,
        "closed_bytes": space.closed_bytes,
        "file_bytes": stat.file_bytes,
        "extent_size": stat.extent_size,
        "load_factor": space.load_factor,
        "segments": space.segments,
        "depth": space.depth,
        "splits": space.splits,
        "merges": space.merges,
        "recovered": space.recovered,
        "generation": stat.generation,
        "clean_open": stat.clean_open,
        "suspect": stat.suspect,
        "sweep": stat.sweep.to_string(),
        "ordered": stat.ordered.as_ref().map(ordered_as_json),
        "persistent_order": stat.persistent_order.as_ref().map(ToString::to_string),
        "next_cas": stat.next_cas,
        "flush_mark": stat.flush_mark,
        "flush_due": stat.flush_due,
        "damage_met": stat.damage_met,
        "damage": format!("{:?}", stat.damage).to_lowercase(),
        "damaged_places": stat.damaged_places,
        "damage_found": stat.damage_found,
        "heap_faults": space.heap_faults,
        "cost": cost_as_json(cost),
    })
}

fn cost_as_json(cost: &CostStat) -> Value {
    let kinds = cost.kinds.iter().map(|(kind, bytes)| (kind.to_string(), json!(bytes)));
    json!({
        "records": cost.records,
        "sampled": cost.sampled,
        "index_bytes": cost.index_bytes,
        "header_bytes": cost.header_bytes,
        "content_bytes": cost.content_bytes,
        "slack_bytes": cost.slack_bytes,
        "total_bytes": cost.total(),
        "expected_index_bytes": kinds.collect::<serde_json::Map<_, _>>(),
        "smaller_index": cost.smaller().map(|(kind, _)| kind.to_string()),
    })
}

fn ordered_as_json(ordered: &OrderedStat) -> Value {
    json!({
        "state": ordered.state.to_string(),
        "keys": ordered.keys,
        "bytes": ordered.bytes,
        "depth": ordered.depth,
        "keys_read": ordered.keys_read,
        "from_saved": ordered.from_saved,
        "unreadable": ordered.unreadable,
        "notices": ordered.notices,
        "notices_waiting": ordered.notices_waiting,
    })
}

fn report_as_json(report: &CheckReport) -> Value {
    json!({
        "sound": report.is_sound(),
        "deep": report.deep,
        "problems": report.problems,
        "more_problems": report.more_problems,
        "records": report.records,
        "dead": report.dead,
        "bytes": report.bytes,
        "blocks": report.blocks,
    })
}
