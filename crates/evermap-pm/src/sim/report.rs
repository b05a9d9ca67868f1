//! The report of a campaign.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::coverage::Pairs;
use super::replay::Replay;
use super::trace::Site;

/// What a campaign did and found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Number of workloads that ran.
    pub seeds: u64,
    /// Number of operations of the workloads.
    pub ops: u64,
    /// Number of stores of the workloads.
    pub stores: u64,
    /// Number of flushes of the workloads.
    pub flushes: u64,
    /// Number of fences of the workloads.
    pub fences: u64,
    /// How often each named part of an operation was begun in the workloads.
    pub work: BTreeMap<&'static str, u64>,
    /// The orders in which the threads of the workloads ran, as numbers.
    pub schedules: BTreeSet<u64>,
    /// Number of crash points in the workloads.
    pub points: u64,
    /// Number of crash points at which every combination of stores that need to persist was
    /// considered.
    pub exhaustive_points: u64,
    /// Number of crash points at which recovery ran on undecided memory.
    pub undecided_points: u64,
    /// Number of images recovered and verified, including nested ones.
    pub images: u64,
    /// Number of images of crashes during or after the recovery from another crash.
    pub nested_images: u64,
    /// Number of recoveries that were chosen for another crash.
    pub nested_chosen: u64,
    /// Number of chosen recoveries that were crashed before the budget of images ran out.
    pub nested_traces: u64,
    /// Number of images skipped because an equal one with the same requirements was verified.
    pub repeated: u64,
    /// Number of images skipped because they differ from a verified one only in parts that it did
    /// not read.
    pub unread: u64,
    /// Whether the budget of images ran out before the last crash point of a workload.
    pub truncated: bool,
    /// The pairs of stores, and whether each was tried in reverse order.
    pub pairs: Pairs,
    /// How often each named part of an operation was begun after a crash: after the first crash,
    /// and after a nested one.
    pub actions: BTreeMap<&'static str, [u64; 2]>,
    /// Sites of flushes, in workloads and in the recoveries that were crashed.
    pub flush_sites: BTreeSet<Site>,
    /// Sites of fences, in workloads and in the recoveries that were crashed.
    pub fence_sites: BTreeSet<Site>,
    /// Sites of single stores that commit, in workloads and in the recoveries that were crashed.
    pub commit_sites: BTreeSet<Site>,
    /// Sites at which a mutation would make no difference, and why.
    pub harmless: BTreeMap<Site, &'static str>,
    /// Number of images that failed verification, and of workloads that failed without a crash.
    pub failed_images: u64,
    /// The violations, one for each kind of crash.
    pub violations: Vec<Violation>,
}

impl Report {
    /// Returns `true` if nothing failed.
    pub fn is_clean(&self) -> bool {
        self.failed_images == 0
    }

    /// Panics with the whole report if anything failed.
    ///
    /// # Panics
    ///
    /// See above.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert!(self.is_clean(), "{self}");
    }

    /// Returns the number of pairs of stores that were tried in reverse order, and the number of
    /// all pairs.
    pub fn pairs(&self) -> (u64, u64) {
        let tried = self.pairs.values().filter(|&&tried| tried).count();
        (tried as u64, self.pairs.len() as u64)
    }

    /// Adds the report of another campaign.
    pub fn merge(&mut self, other: Report) {
        let numbers = [
            (&mut self.seeds, other.seeds),
            (&mut self.ops, other.ops),
            (&mut self.stores, other.stores),
            (&mut self.flushes, other.flushes),
            (&mut self.fences, other.fences),
            (&mut self.points, other.points),
            (&mut self.exhaustive_points, other.exhaustive_points),
            (&mut self.undecided_points, other.undecided_points),
            (&mut self.images, other.images),
            (&mut self.nested_images, other.nested_images),
            (&mut self.nested_chosen, other.nested_chosen),
            (&mut self.nested_traces, other.nested_traces),
            (&mut self.repeated, other.repeated),
            (&mut self.unread, other.unread),
            (&mut self.failed_images, other.failed_images),
        ];
        for (sum, more) in numbers {
            *sum += more;
        }
        self.truncated |= other.truncated;
        for (name, times) in other.work {
            *self.work.entry(name).or_default() += times;
        }
        for (name, times) in other.actions {
            let sum = self.actions.entry(name).or_default();
            *sum = [sum[0] + times[0], sum[1] + times[1]];
        }
        for (pair, tried) in other.pairs {
            *self.pairs.entry(pair).or_default() |= tried;
        }
        self.schedules.extend(other.schedules);
        self.flush_sites.extend(other.flush_sites);
        self.fence_sites.extend(other.fence_sites);
        self.commit_sites.extend(other.commit_sites);
        self.harmless.extend(other.harmless);
        for violation in other.violations {
            if !self.violations.contains(&violation) {
                self.violations.push(violation);
            }
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
        writeln!(
            f,
            "{} workloads: {} operations, {} stores, {} flushes, {} fences",
            self.seeds, self.ops, self.stores, self.flushes, self.fences
        )?;
        writeln!(
            f,
            "{} crash points, {:.1} % of them with every combination of stores, \
             {:.1} % on undecided memory",
            self.points,
            percent(self.exhaustive_points, self.points),
            percent(self.undecided_points, self.points)
        )?;
        let (tried, pairs) = self.pairs();
        writeln!(
            f,
            "{tried} of {pairs} pairs of stores tried in reverse order ({:.1} %)",
            percent(tried, pairs)
        )?;
        writeln!(
            f,
            "{} images verified, {} of them nested (crashes of {} recoveries, of {} chosen); \
             skipped: {} repeated, {} different only in parts that are not read",
            self.images,
            self.nested_images,
            self.nested_traces,
            self.nested_chosen,
            self.repeated,
            self.unread
        )?;
        if !self.actions.is_empty() {
            let counts = self
                .actions
                .iter()
                .map(|(name, [first, nested])| format!("{name} {first}, nested {nested}"));
            writeln!(f, "after crashes: {}", counts.collect::<Vec<_>>().join("; "))?;
        }
        if self.schedules.len() > 1 {
            writeln!(f, "{} orders of threads", self.schedules.len())?;
        }
        if self.truncated {
            writeln!(f, "the budget of images ran out before the last crash point")?;
        }
        writeln!(f, "{} images failed", self.failed_images)?;
        self.violations.iter().try_for_each(|violation| write!(f, "\n{violation}"))
    }
}

/// A crash after which verification failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The failure.
    pub message: String,
    /// The rule that was violated.
    pub oracle: &'static str,
    /// The crashes, each with the stores that were lost in it.
    pub story: String,
    /// For [`replay`](super::campaign::replay).
    pub replay: Replay,
}

impl Violation {
    /// Returns the message without its numbers, which is equal for violations of the same kind with
    /// other keys and words.
    pub(crate) fn kind(&self) -> String {
        let mut kind = String::new();
        for word in self.message.split(' ') {
            if word.starts_with(|c: char| c.is_ascii_digit()) || word == "absent" {
                continue;
            }
            kind.push_str(word);
            kind.push(' ');
        }
        kind
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { message, oracle, story, replay } = self;
        write!(f, "{message} [{oracle}]\n{story}replay:\n{replay}")
    }
}
