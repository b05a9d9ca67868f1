//! The comparison of two runs of the same experiments: what repeats, and what differs.
//!
//! Counts depend on the program and its seed, and repeat exactly if one thread runs. Times depend
//! on the moment too, so a difference only matters if the ranges of the two runs do not overlap.

use std::collections::BTreeMap;
use std::io::BufRead;

use serde::Deserialize;

use crate::LabError;
use crate::report::interval::median;
use crate::report::{Grid, Report, counted};

/// The fields of a [`Record`](crate::report::Record) that are read from JSON.
#[derive(Deserialize)]
struct Line {
    #[serde(flatten)]
    what: What,
    round: Option<usize>,
    at_seconds: Option<f64>,
    mops: Option<f64>,
    mops_low: Option<f64>,
    mops_high: Option<f64>,
    cpu_ns_per_op: Option<f64>,
    cpu_low: Option<f64>,
    cpu_high: Option<f64>,
    cpu_least: Option<f64>,
    flushes_per_op: Option<f64>,
    fences_per_op: Option<f64>,
    lines_read_per_op: Option<f64>,
    lines_written_per_op: Option<f64>,
    load_factor: Option<f64>,
}

/// What two figures must have in common to be compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
struct What {
    experiment: String,
    index: String,
    medium: String,
    threads: usize,
    keys: u64,
    phase: String,
    key_bytes: Option<String>,
    value_bytes: Option<String>,
    distribution: Option<String>,
    persist_ns: Option<u64>,
    read_ns: Option<u64>,
    case: Option<String>,
    readers: Option<usize>,
    hash: Option<String>,
}

impl What {
    fn words(&self) -> String {
        let What { experiment, index, threads, keys, phase, .. } = self;
        let threads = counted(*threads, "thread");
        let mut words = format!("{experiment}: {index}, {phase}, {keys} keys, {threads}");
        if let Some(bytes) = &self.key_bytes {
            words.push_str(&format!(" of {bytes} bytes"));
        }
        if let Some(ns) = self.persist_ns {
            words.push_str(&format!(", persist {ns} ns"));
        }
        if let (Some(case), Some(hash)) = (&self.case, &self.hash) {
            words.push_str(&format!(", {case}, {hash} hash"));
        }
        words
    }
}

/// A median with the range that holds the true one.
#[derive(Clone, Copy)]
struct Median {
    middle: f64,
    range: Option<(f64, f64)>,
}

impl Median {
    fn new(middle: Option<f64>, low: Option<f64>, high: Option<f64>) -> Option<Self> {
        Some(Median { middle: middle?, range: low.zip(high) })
    }

    /// Returns `true` if the two ranges overlap; a median without a range is its own range.
    fn meets(self, other: Median) -> bool {
        let ends = |one: Median| one.range.unwrap_or((one.middle, one.middle));
        let (mine, theirs) = (ends(self), ends(other));
        mine.0 <= theirs.1 && theirs.0 <= mine.1
    }
}

impl Line {
    fn counts(&self) -> [Option<f64>; 5] {
        [
            self.flushes_per_op,
            self.fences_per_op,
            self.lines_read_per_op,
            self.lines_written_per_op,
            self.load_factor,
        ]
    }

    fn cpu(&self) -> Option<Median> {
        Median::new(self.cpu_ns_per_op, self.cpu_low, self.cpu_high)
    }

    fn speed(&self) -> Option<Median> {
        Median::new(self.mops, self.mops_low, self.mops_high)
    }
}

/// Returns the summaries among lines of JSON.
fn summaries(name: &str, lines: impl BufRead) -> Result<BTreeMap<What, Line>, LabError> {
    let mut all = BTreeMap::new();
    for (number, line) in lines.lines().enumerate() {
        let line = line.map_err(|source| LabError::Io {
            action: "read results",
            path: Some(name.into()),
            source,
        })?;
        let line: Line = serde_json::from_str(&line).map_err(|error| {
            let number = number + 1;
            LabError::Config(format!(
                "{name}, line {number}: `--json` does not write this: {error}"
            ))
        })?;
        if line.round.is_none() && line.at_seconds.is_none() {
            all.insert(line.what.clone(), line);
        }
    }
    Ok(all)
}

/// Returns by how much `new` is more than `old`, in percent.
fn percent(old: f64, new: f64) -> f64 {
    if old == new { 0.0 } else { 100.0 * (new - old) / old.abs().max(f64::MIN_POSITIVE) }
}

/// Returns the greatest difference in either direction.
fn farthest(differences: impl Iterator<Item = f64>) -> Option<f64> {
    differences.max_by(|one, other| one.abs().total_cmp(&other.abs()))
}

/// Compares the runs that wrote `old` and `new` with `--json`; each comes with its name.
/// `everything` includes every figure, otherwise only those whose counts differ or whose ranges do
/// not overlap.
///
/// # Errors
///
/// `Io`; `Config` for lines that no run has written, and for runs that have nothing in common.
pub fn compare(
    (old_name, old): (&str, impl BufRead),
    (new_name, new): (&str, impl BufRead),
    everything: bool,
) -> Result<Report, LabError> {
    let (old, new) = (summaries(old_name, old)?, summaries(new_name, new)?);
    let columns = ["counts, %", "processor time, %", "speed, %", "ranges meet"];
    let mut grid = Grid::new("From the old run to the new one", &columns);
    let (mut common, mut counts, mut cpus, mut apart) = (0, Vec::new(), Vec::new(), 0);
    for (what, old, new) in old.iter().filter_map(|(what, old)| Some((what, old, new.get(what)?))) {
        common += 1;
        let pairs = old.counts().into_iter().zip(new.counts());
        let count = farthest(pairs.filter_map(|(old, new)| Some(percent(old?, new?))));
        let cpu = old.cpu().zip(new.cpu());
        let speed = old.speed().zip(new.speed());
        let meet = cpu.or(speed).map(|(old, new)| old.meets(new));
        let cpu = old.cpu_least.zip(new.cpu_least).map(|(old, new)| percent(old, new));
        let speed = speed.map(|(old, new)| percent(old.middle, new.middle));
        counts.extend(count);
        cpus.extend(cpu.map(f64::abs));
        apart += usize::from(meet == Some(false));
        if everything || count.is_some_and(|count| count != 0.0) || meet == Some(false) {
            let cell = |figure: Option<f64>| figure.map_or("-".into(), |one| format!("{one:+.1}"));
            let meet = meet.map_or("-", |meet| if meet { "yes" } else { "no" });
            grid.push(what.words(), vec![cell(count), cell(cpu), cell(speed), meet.into()]);
        }
    }
    if common == 0 {
        let why = format!("{old_name} and {new_name} have no figure in common");
        return Err(LabError::Config(why));
    }
    let equal = counts.iter().filter(|&&count| count == 0.0).count();
    let most = farthest(counts.iter().copied()).unwrap_or(0.0);
    let mut notes = vec![format!(
        "Counts: {equal} of {} equal, the others differ by up to {:.2} %.",
        counts.len(),
        most.abs()
    )];
    if let Some(middle) = median(&cpus) {
        let within = cpus.iter().filter(|&&cpu| cpu <= 2.0).count();
        let most = farthest(cpus.iter().copied()).unwrap_or(0.0);
        notes.push(format!(
            "Processor time of an operation (what a twentieth of the rounds did not exceed): \
             {within} of {} within 2 %, half of them within {middle:.1} %, all within \
             {most:.1} %.",
            cpus.len()
        ));
    }
    notes.push(format!("Ranges: {apart} of {common} do not overlap."));
    let tables = if grid.rows.is_empty() { Vec::new() } else { vec![grid] };
    Ok(Report {
        experiment: "compare",
        title: format!("{old_name}, then {new_name}"),
        about: format!("{common} figures in common"),
        tables,
        notes,
        ..Report::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{JsonLines, Output, Record};

    fn lines(records: &[Record]) -> Vec<u8> {
        let mut out = JsonLines(Vec::new());
        records.iter().for_each(|record| out.record(record).unwrap());
        out.0
    }

    fn record(phase: &str, fences: f64, cpu: (f64, f64, f64)) -> Record {
        Record {
            experiment: "micro",
            index: "some".into(),
            phase: phase.into(),
            fences_per_op: Some(fences),
            cpu_ns_per_op: Some(cpu.0),
            cpu_low: Some(cpu.1),
            cpu_high: Some(cpu.2),
            cpu_least: Some(cpu.1),
            ..Record::default()
        }
    }

    fn text(old: &[Record], new: &[Record], everything: bool) -> String {
        let (old, new) = (lines(old), lines(new));
        compare(("old", &old[..]), ("new", &new[..]), everything).unwrap().text()
    }

    #[test]
    fn what_repeats_is_told_from_what_changed() {
        let old = [
            record("insert", 2.0, (100.0, 90.0, 110.0)),
            record("delete", 1.0, (50.0, 49.0, 51.0)),
        ];
        let new = [
            record("insert", 2.0, (105.0, 91.0, 120.0)),
            record("delete", 1.5, (60.0, 58.8, 61.0)),
        ];
        let short = text(&old, &new, false);
        assert!(
            short.contains("Counts: 1 of 2 equal, the others differ by up to 50.00 %"),
            "{short}"
        );
        assert!(short.contains("1 of 2 within 2 %"), "{short}");
        assert!(short.contains("all within 20.0 %"), "{short}");
        assert!(short.contains("Ranges: 1 of 2 do not overlap"), "{short}");
        assert!(short.contains("delete") && !short.contains("some, insert"), "{short}");
        assert!(text(&old, &new, true).contains("some, insert"));
        assert!(!text(&old, &old, false).contains("From the old run"));
    }

    #[test]
    fn rounds_and_other_circumstances_are_not_mixed_up() {
        let one = record("insert", 2.0, (100.0, 90.0, 110.0));
        let round = Record { round: Some(0), fences_per_op: Some(9.0), ..one.clone() };
        let slow = Record { persist_ns: Some(600), fences_per_op: Some(8.0), ..one.clone() };
        let all = text(&[one.clone(), slow.clone(), round], &[slow, one], true);
        assert!(all.contains("2 figures in common") && all.contains("2 of 2 equal"), "{all}");
    }

    #[test]
    fn other_files_are_refused_with_the_place() {
        let good = lines(&[record("insert", 2.0, (1.0, 1.0, 1.0))]);
        let refused = |old: &[u8], new: &[u8]| {
            compare(("old", old), ("new", new), false).unwrap_err().to_string()
        };
        assert!(refused(&good, b"{}\n").contains("new, line 1: `--json` does not write this"));
        assert!(refused(&good, b"").contains("no figure in common"));
    }
}
