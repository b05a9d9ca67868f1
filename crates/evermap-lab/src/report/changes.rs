//! The comparison of two runs of the same experiments: what repeats, and what differs.
//!
//! Counts depend on the program and its seed, and repeat exactly if one thread runs. Times depend
//! on the moment too, so a difference only matters if the ranges of the two runs do not overlap,
//! and if both are from enough rounds that other programs have not disturbed.

use std::collections::BTreeMap;
use std::io::BufRead;

use serde::Deserialize;

use crate::LabError;
use crate::report::interval::median;
use crate::report::{Grid, Report, counted, grouped};

/// The number of undisturbed rounds below which no range holds the true median with 90 %.
const ENOUGH: usize = 5;

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
    blocks_read_per_op: Option<f64>,
    blocks_written_per_op: Option<f64>,
    load_factor: Option<f64>,
    #[serde(default)]
    void: bool,
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
    near_read_ns: Option<u64>,
    read_mb_s: Option<u64>,
    write_mb_s: Option<u64>,
    case: Option<String>,
    readers: Option<usize>,
    hash: Option<String>,
}

impl What {
    fn words(&self) -> String {
        let What { experiment, index, threads, keys, phase, .. } = self;
        let threads = counted(*threads, "thread");
        let keys = counted(*keys as usize, "key");
        let bytes = self.key_bytes.as_ref().map(|bytes| format!(" of {bytes} bytes"));
        let bytes = bytes.unwrap_or_default();
        let mut words = format!("{experiment}: {index}, {phase}, {keys}{bytes}, {threads}");
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
    fn counts(&self) -> [Option<f64>; 7] {
        [
            self.flushes_per_op,
            self.fences_per_op,
            self.lines_read_per_op,
            self.lines_written_per_op,
            self.blocks_read_per_op,
            self.blocks_written_per_op,
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

/// The rounds of a figure: those that were not disturbed, and all.
#[derive(Clone, Copy, Default)]
struct Rounds {
    valid: usize,
    all: usize,
}

/// A summary, and the rounds that it is from, if they are among the lines.
#[derive(Default)]
struct Summary {
    line: Option<Line>,
    rounds: Rounds,
}

impl Summary {
    /// Returns `true` if other programs have disturbed every round.
    fn is_void(&self) -> bool {
        self.line.as_ref().is_some_and(|line| line.void)
    }

    /// Returns `true` if its range means something.
    fn is_trusted(&self) -> bool {
        let few = self.rounds.all > 0 && self.rounds.valid < ENOUGH;
        !self.is_void() && !few
    }
}

/// Returns the summaries among lines of JSON.
fn summaries(name: &str, lines: impl BufRead) -> Result<BTreeMap<What, Summary>, LabError> {
    let mut all: BTreeMap<What, Summary> = BTreeMap::new();
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
        if line.at_seconds.is_some() {
            continue;
        }
        let summary = all.entry(line.what.clone()).or_default();
        if line.round.is_some() {
            summary.rounds.all += 1;
            summary.rounds.valid += usize::from(!line.void);
        } else {
            summary.line = Some(line);
        }
    }
    all.retain(|_, summary| summary.line.is_some());
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
    let columns =
        ["counts, %", "processor time, %", "speed, %", "ranges meet", "undisturbed rounds"];
    let mut grid = Grid::new("From the old run to the new one", &columns);
    let (mut common, mut counts, mut cpus) = (0, Vec::new(), Vec::new());
    let (mut trusted, mut apart, mut void) = (0, 0, 0);
    for (what, one, two) in old.iter().filter_map(|(what, old)| Some((what, old, new.get(what)?))) {
        let (Some(old), Some(new)) = (&one.line, &two.line) else { continue };
        common += 1;
        let is_void = one.is_void() || two.is_void();
        let is_trusted = one.is_trusted() && two.is_trusted();
        void += usize::from(is_void);
        trusted += usize::from(is_trusted);
        let pairs = old.counts().into_iter().zip(new.counts());
        let count = farthest(pairs.filter_map(|(old, new)| Some(percent(old?, new?))));
        let cpu = old.cpu().zip(new.cpu());
        let speed = old.speed().zip(new.speed());
        let meet = cpu.or(speed).map(|(old, new)| old.meets(new));
        let cpu = old.cpu_least.zip(new.cpu_least).map(|(old, new)| percent(old, new));
        let speed = speed.map(|(old, new)| percent(old.middle, new.middle));
        counts.extend(count);
        cpus.extend(cpu.filter(|_| !is_void).map(f64::abs));
        apart += usize::from(is_trusted && meet == Some(false));
        if everything || count.is_some_and(|count| count != 0.0) || meet == Some(false) {
            let plain = |figure: Option<f64>| figure.map_or("-".into(), |one| format!("{one:+.1}"));
            let star = if is_void { "*" } else { "" };
            let timed = |figure: Option<f64>| {
                figure.map_or("-".into(), |figure| format!("{figure:+.1}{star}"))
            };
            let meet = match meet {
                None => "-",
                Some(_) if !is_trusted => "too few rounds",
                Some(true) => "yes",
                Some(false) => "no",
            };
            let rounds = match (one.rounds, two.rounds) {
                (Rounds { all: 0, .. }, _) | (_, Rounds { all: 0, .. }) => "-".to_owned(),
                (old, new) => format!(
                    "{} of {}, {} of {}",
                    grouped(old.valid as u64),
                    grouped(old.all as u64),
                    grouped(new.valid as u64),
                    grouped(new.all as u64)
                ),
            };
            let cells = vec![plain(count), timed(cpu), timed(speed), meet.into(), rounds];
            grid.push(what.words(), cells);
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
    notes.push(format!("Ranges: {apart} of {trusted} do not overlap."));
    if void > 0 {
        notes.push(format!(
            "* {void} of {common}: other programs used the processors in every round of a run. Do \
             not trust these times; the lines above leave them out."
        ));
    }
    if trusted + void < common {
        notes.push(format!(
            "Warning: {} of {common} have fewer than {ENOUGH} undisturbed rounds in a run. Their \
             ranges do not hold the true median with 90 %, and are not compared.",
            common - trusted - void
        ));
    }
    let tables = if grid.rows.is_empty() { Vec::new() } else { vec![grid] };
    Ok(Report {
        experiment: "compare",
        title: format!("{old_name}, then {new_name}"),
        about: format!("{} in common", counted(common, "figure")),
        tables,
        notes,
        ..Report::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Format, Lines, Origin, Output, Record};

    fn lines(records: &[Record]) -> Vec<u8> {
        let mut text = Vec::new();
        let mut out = Lines::new(&mut text, Format::Json, Origin::default());
        records.iter().for_each(|record| out.record(record).unwrap());
        text
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

    /// Two runs of one program, of which other programs have disturbed most.
    #[test]
    fn disturbed_rounds_do_not_count() {
        let run = |void: bool, valid: usize, cpu: (f64, f64, f64)| {
            let summary = Record { void, ..record("insert", 2.0, cpu) };
            let round = |at| Record { round: Some(at), void: at >= valid, ..summary.clone() };
            (0..7).map(round).chain([summary.clone()]).collect::<Vec<_>>()
        };
        let (low, high) = ((100.0, 90.0, 110.0), (200.0, 190.0, 210.0));
        let good = text(&run(false, 7, low), &run(false, 5, high), false);
        assert!(good.contains("Ranges: 1 of 1 do not overlap"), "{good}");
        assert!(good.contains("7 of 7, 5 of 7") && !good.contains("Warning"), "{good}");
        let few = text(&run(false, 7, low), &run(false, 4, high), false);
        assert!(few.contains("Ranges: 0 of 0 do not overlap"), "{few}");
        assert!(few.contains("too few rounds") && few.contains("7 of 7, 4 of 7"), "{few}");
        assert!(few.contains("Warning: 1 of 1 have fewer than 5 undisturbed rounds"), "{few}");
        let void = text(&run(false, 7, low), &run(true, 0, high), false);
        assert!(void.contains("+111.1*") && void.contains("* 1 of 1: other programs"), "{void}");
        assert!(!void.contains("Warning") && !void.contains("within 2 %"), "{void}");
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
