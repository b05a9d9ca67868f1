//! The results of a drive: medians of one table, ratios between tables.

use crate::driver::limits::Limits;
use crate::report::Record;
use crate::report::interval::{Interval, median, median_interval, quantile};

/// The probability with which intervals should hold the true median.
const CONFIDENCE: f64 = 0.9;
/// The share of the rounds that are assumed to be undisturbed. A program that shares the core or
/// the memory makes an operation up to half as long again. The number of such rounds, and therefore
/// the median, depends on that program.
const UNDISTURBED: f64 = 0.05;

/// Everything that was measured in one drive.
#[derive(Clone, Debug)]
pub struct DriveReport {
    /// The tables, in the order of the configuration.
    pub subjects: Vec<SubjectReport>,
    /// The limits of the machine, if they were measured: medians over the rounds.
    pub limits: Option<Limits>,
}

/// The measurements of one table.
#[derive(Clone, Debug)]
pub struct SubjectReport {
    /// The name of the table.
    pub name: &'static str,
    /// Whether it is another project's.
    pub rival: bool,
    /// The number of rounds that were repeated because other programs used the machine.
    pub repeated: usize,
    /// The phases, in the order in which they ran.
    pub phases: Vec<PhaseReport>,
}

impl SubjectReport {
    /// Returns the phase called `name`.
    pub fn phase(&self, name: &str) -> Option<&PhaseReport> {
        self.phases.iter().find(|phase| phase.name == name)
    }
}

/// The measurements of one table in one phase.
#[derive(Clone, Debug)]
pub struct PhaseReport {
    /// The name of the phase or mix.
    pub name: &'static str,
    /// Medians over the rounds that are not void (over all if all are), with latencies and
    /// counters.
    pub summary: Record,
    /// The figures of each round.
    pub rounds: Vec<Record>,
}

/// How much faster one table is than another in one phase.
#[derive(Clone, Debug)]
pub struct Ratio {
    /// The table in question.
    pub of: &'static str,
    /// What it is compared with.
    pub to: &'static str,
    /// The name of the phase or mix.
    pub phase: &'static str,
    /// The median over the rounds of the ratio of operations per second.
    pub median: f64,
    /// The interval that holds the true median.
    pub interval: Interval,
    /// The number of rounds that it is computed from.
    pub rounds: usize,
    /// Whether these rounds were disturbed, because all were.
    pub void: bool,
}

impl DriveReport {
    /// Returns the table called `name`.
    pub fn subject(&self, name: &str) -> Option<&SubjectReport> {
        self.subjects.iter().find(|subject| subject.name == name)
    }

    /// Returns how much faster `of` is than `to` in `phase`, or `None` if either was not measured.
    pub fn ratio(&self, of: &str, to: &str, phase: &str) -> Option<Ratio> {
        let (of, to) = (self.subject(of)?, self.subject(to)?);
        ratio(of.name, to.name, of.phase(phase)?, to.phase(phase)?)
    }

    /// Returns the ratios of our tables to the rivals, phase by phase. If there are only tables of
    /// one kind, the first is compared to the others.
    pub fn ratios(&self) -> Vec<Ratio> {
        let own: Vec<_> = self.subjects.iter().filter(|subject| !subject.rival).collect();
        let rivals: Vec<_> = self.subjects.iter().filter(|subject| subject.rival).collect();
        let (own, others) = match (own.is_empty() || rivals.is_empty(), &self.subjects[..]) {
            (true, [first, rest @ ..]) => (vec![first], rest.iter().collect()),
            _ => (own, rivals),
        };
        let mut ratios = Vec::new();
        for of in own {
            for to in &others {
                for (one, other) in of.phases.iter().zip(&to.phases) {
                    ratios.extend(ratio(of.name, to.name, one, other));
                }
            }
        }
        ratios
    }
}

/// Returns the medians over the rounds that are not void, or over all of them, marked void, if all
/// are.
pub(crate) fn summary(rounds: &[Record]) -> Record {
    let clean: Vec<_> = rounds.iter().filter(|record| !record.void).collect();
    let used = if clean.is_empty() { rounds.iter().collect() } else { clean };
    let all = |figure: fn(&Record) -> Option<f64>| -> Vec<f64> {
        used.iter().filter_map(|record| figure(record)).collect()
    };
    let over = |figure| median(&all(figure));
    let Some(&last) = used.last() else {
        return Record::default();
    };
    let speed = median_interval(&all(|record| record.mops), CONFIDENCE);
    let cpu = median_interval(&all(|record| record.cpu_ns_per_op), CONFIDENCE);
    Record {
        round: None,
        seconds: over(|record| record.seconds),
        mops: over(|record| record.mops),
        mops_low: speed.map(|range| range.low),
        mops_high: speed.map(|range| range.high),
        cpu_ns_per_op: over(|record| record.cpu_ns_per_op),
        cpu_low: cpu.map(|range| range.low),
        cpu_high: cpu.map(|range| range.high),
        serving_ns_per_op: over(|record| record.serving_ns_per_op),
        cpu_least: quantile(&all(|record| record.cpu_ns_per_op), UNDISTURBED),
        foreign_cpu: over(|record| record.foreign_cpu),
        ..last.clone()
    }
}

/// Returns the ratio of two tables, taken within rounds.
fn ratio(
    of: &'static str,
    to: &'static str,
    one: &PhaseReport,
    other: &PhaseReport,
) -> Option<Ratio> {
    let pairs = || one.rounds.iter().zip(&other.rounds);
    let values = |keep: fn(&(&Record, &Record)) -> bool| {
        let kept = pairs().filter(keep);
        kept.filter_map(|(one, other)| Some(one.mops? / other.mops?)).collect::<Vec<_>>()
    };
    let clean = values(|(one, other)| !one.void && !other.void);
    let void = clean.is_empty();
    let values = if void { values(|_| true) } else { clean };
    Some(Ratio {
        of,
        to,
        phase: one.name,
        median: median(&values)?,
        interval: median_interval(&values, CONFIDENCE)?,
        rounds: values.len(),
        void,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(figures: &[(f64, bool)]) -> Vec<Record> {
        let record = |&(mops, void)| Record { mops: Some(mops), void, ..Record::default() };
        figures.iter().map(record).collect()
    }

    #[test]
    fn medians_leave_out_void_rounds() {
        let all = rounds(&[(1.0, false), (100.0, true), (3.0, false), (2.0, false)]);
        let clean = summary(&all);
        assert_eq!((clean.mops, clean.void, clean.round), (Some(2.0), false, None));
        let void = summary(&rounds(&[(1.0, true), (5.0, true)]));
        assert_eq!((void.mops, void.void), (Some(3.0), true));
    }

    #[test]
    fn ratios_are_taken_within_rounds() {
        let phase = |figures: &[(f64, bool)]| PhaseReport {
            name: "insert",
            summary: Record::default(),
            rounds: rounds(figures),
        };
        let one = phase(&[(4.0, false), (9.0, false), (8.0, true), (5.0, false), (2.0, false)]);
        let other = phase(&[(2.0, false), (3.0, false), (1.0, false), (1.0, false), (1.0, true)]);
        // Rounds of both that are clean: 4/2, 9/3, 5/1.
        let clean = ratio("a", "b", &one, &other).unwrap();
        assert_eq!((clean.median, clean.rounds, clean.void), (3.0, 3, false));
        assert_eq!(clean.interval, Interval { low: 2.0, high: 5.0, coverage: 0.75 });
        let void = phase(&[(1.0, true); 5]);
        let marked = ratio("a", "b", &one, &void).unwrap();
        assert_eq!((marked.median, marked.rounds, marked.void), (5.0, 5, true));
    }

    #[test]
    fn ours_are_compared_with_rivals_or_the_first_with_the_others() {
        let subject = |name, rival| SubjectReport {
            name,
            rival,
            repeated: 0,
            phases: vec![PhaseReport {
                name: "insert",
                summary: Record::default(),
                rounds: rounds(&[(1.0, false)]),
            }],
        };
        let pairs = |subjects: &[SubjectReport]| {
            DriveReport { subjects: subjects.to_vec(), limits: None }
                .ratios()
                .iter()
                .map(|ratio| (ratio.of, ratio.to))
                .collect::<Vec<_>>()
        };
        let mixed = [subject("r", true), subject("a", false), subject("b", false)];
        assert_eq!(pairs(&mixed), [("a", "r"), ("b", "r")]);
        assert_eq!(pairs(&[subject("r", true), subject("s", true)]), [("r", "s")]);
        assert_eq!(pairs(&[]), []);
    }
}
