//! `evermap stat` and `evermap check`: what there is to know about a store.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use evermap::{CheckReport, OrderedStat, SpaceStat, Stat};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::open::{MapArguments, StoreArguments};
use crate::{DONE, NO};

/// Tell the state of a store in figures
///
/// Looks at the whole index, but at no record, unless the ordered index is asked for.
#[derive(clap::Args)]
pub(crate) struct StatCommand {
    #[command(flatten)]
    store: MapArguments,
    /// As a JSON object
    #[arg(long)]
    json: bool,
    /// Build the ordered index, and tell of it too
    #[arg(long)]
    ordered: bool,
}

impl StatCommand {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let map = if self.ordered { self.store.open_ordered()? } else { self.store.open()? };
        if self.ordered {
            map.build_ordered(1)?;
        }
        let (stat, space) = (map.stat(), map.space()?);
        map.into_db().close()?;
        match self.json {
            true => say(&stat_as_json(&stat, &space))?,
            false => say(&format!("{stat}{space}").trim_end())?,
        }
        Ok(DONE)
    }
}

/// Look at everything in a store, in all its maps, and tell what is wrong
///
/// Changes nothing that is stored. Answers 1 if anything is wrong.
#[derive(clap::Args)]
pub(crate) struct Check {
    #[command(flatten)]
    store: StoreArguments,
    /// Read every record too, and verify its checksum
    #[arg(long)]
    deep: bool,
    /// As a JSON object
    #[arg(long)]
    json: bool,
}

impl Check {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let db = self.store.open()?;
        let report = db.check(self.deep)?;
        db.close()?;
        match self.json {
            true => say(&report_as_json(&report))?,
            false => say(&report)?,
        }
        Ok(if report.is_sound() { DONE } else { NO })
    }
}

/// Writes a line to standard output.
pub(crate) fn say(text: &dyn Display) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(Failure::Output)
}

fn stat_as_json(stat: &Stat, space: &SpaceStat) -> Value {
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
        "next_cas": stat.next_cas,
        "flush_mark": stat.flush_mark,
        "flush_due": stat.flush_due,
        "damage_met": stat.damage_met,
        "heap_faults": space.heap_faults,
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
