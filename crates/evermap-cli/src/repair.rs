//! `evermap repair`: a new store of what is left of a damaged one.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use evermap::{LostPart, Options, Repair as Repairing, RepairReport, RepairedMap};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::print::{print_line, progress_bar};

/// Make a new store of all records of a damaged one that verify
///
/// Does not change the damaged store, which may be one that no other command can open. Prints what
/// could not be read, and how many records of each map are in the new store. The exit code is 1 if
/// anything is lost, or uncertain: such records verify, but may have been removed or replaced
/// before.
#[derive(clap::Args)]
pub(crate) struct Repair {
    /// File of the damaged store
    #[arg(value_name = "STORE")]
    path: PathBuf,
    /// File of the new store; it must not exist
    #[arg(value_name = "NEW", required_unless_present = "dry_run", conflicts_with = "dry_run")]
    new: Option<PathBuf>,
    /// Make another new store of the uncertain records; it must not exist
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    lost_and_found: Option<PathBuf>,
    /// Only print what would be in the new store, and what would not
    #[arg(long)]
    dry_run: bool,
    /// Folder of the log, if the store has one that is not in <STORE>.log
    #[arg(long, value_name = "FOLDER")]
    log_folder: Option<PathBuf>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

impl Repair {
    /// Returns the path of the damaged file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let progress = progress_bar(Some(0));
        let bar = progress.clone();
        let options = Options::new().on_progress(move |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
        let options = match &self.log_folder {
            Some(folder) => options.log_folder(folder),
            None => options,
        };
        let repair = Repairing::of(&self.path, options);
        let repair = match &self.lost_and_found {
            Some(file) => repair.lost_and_found(file),
            None => repair,
        };
        let repaired = match &self.new {
            Some(new) => repair.make(new),
            None => repair.list(),
        };
        progress.finish_and_clear();
        let report = repaired?;
        match self.json {
            true => print_line(&report_as_json(&report))?,
            false => print_line(&report)?,
        }
        Ok(if report.is_complete() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn report_as_json(report: &RepairReport) -> Value {
    json!({
        "complete": report.is_complete(),
        "records": report.records(),
        "maps": report.maps.iter().map(map_as_json).collect::<Vec<_>>(),
        "lost": report.lost.iter().map(part_as_json).collect::<Vec<_>>(),
        "more_lost": report.more_lost,
        "notes": report.notes,
    })
}

fn map_as_json(map: &RepairedMap) -> Value {
    json!({
        "map": map.name,
        "records": map.records,
        "uncertain": map.uncertain,
        "unreadable": map.unreadable,
        "missing": map.missing,
    })
}

fn part_as_json(part: &LostPart) -> Value {
    json!({
        "from": part.bytes.start,
        "to": part.bytes.end,
        "map": part.map,
        "key": part.key,
        "why": part.why,
    })
}
