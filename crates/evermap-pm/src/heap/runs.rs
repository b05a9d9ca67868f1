//! Sets of units, stored as runs of neighbours.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A set of units, stored as maximal runs of neighbours.
#[derive(Default)]
pub(super) struct Runs {
    /// Length of the run that begins at each key.
    starts: BTreeMap<u64, u64>,
    /// Length and start of each run.
    lengths: BTreeSet<(u64, u64)>,
    total: u64,
}

impl Runs {
    /// Returns the number of units in the set.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    fn put(&mut self, run: Range<u64>) {
        if run.start < run.end {
            let length = run.end - run.start;
            self.starts.insert(run.start, length);
            self.lengths.insert((length, run.start));
            self.total += length;
        }
    }

    fn take(&mut self, start: u64) {
        if let Some(length) = self.starts.remove(&start) {
            self.lengths.remove(&(length, start));
            self.total -= length;
        }
    }

    /// Returns the runs that overlap `range` or touch it.
    fn near(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        self.starts
            .range(..=range.end)
            .rev()
            .map(|(&start, &length)| start..start + length)
            .take_while(|run| run.end >= range.start)
            .collect()
    }

    /// Adds units.
    pub(super) fn insert(&mut self, range: Range<u64>) {
        let mut whole = range.clone();
        for run in self.near(&range) {
            self.take(run.start);
            whole = whole.start.min(run.start)..whole.end.max(run.end);
        }
        self.put(whole);
    }

    /// Removes units, whether or not they are in the set.
    pub(super) fn remove(&mut self, range: Range<u64>) {
        for run in self.near(&range).into_iter().filter(|_| !range.is_empty()) {
            self.take(run.start);
            self.put(run.start..run.end.min(range.start));
            self.put(run.start.max(range.end)..run.end);
        }
    }

    /// Returns `true` if any of these units is in the set.
    pub(super) fn overlaps(&self, range: &Range<u64>) -> bool {
        let before = self.starts.range(..range.end).next_back();
        before.is_some_and(|(start, length)| start + length > range.start)
    }

    /// Returns the number of these units that are in the set.
    pub(super) fn count_in(&self, range: &Range<u64>) -> u64 {
        let overlap =
            |run: &Range<u64>| run.end.min(range.end).saturating_sub(run.start.max(range.start));
        self.near(range).iter().map(overlap).sum()
    }

    /// Returns the run that contains unit `at`, from that unit on, or otherwise the next run.
    fn at_or_after(&self, at: u64) -> Option<Range<u64>> {
        let ends = |(&start, &length): (&u64, &u64)| start..start + length;
        let around = self.starts.range(..=at).next_back().map(ends).filter(|run| run.end > at);
        around.map(|run| at..run.end).or_else(|| self.starts.range(at..).next().map(ends))
    }

    /// Returns the first unit from `at` on that is not in the set.
    pub(super) fn end_of_run(&self, at: u64) -> u64 {
        let before = self.starts.range(..=at).next_back();
        before.map_or(at, |(start, length)| at.max(start + length))
    }

    /// Returns the first run of units from `from` on that are in this set and not in `other`.
    pub(super) fn next_without(&self, other: &Runs, from: u64) -> Option<Range<u64>> {
        let mut run = self.at_or_after(from)?;
        while let Some(skipped) = other.at_or_after(run.start).filter(|it| it.start < run.end) {
            if run.start < skipped.start {
                return Some(run.start..skipped.start);
            }
            run = self.at_or_after(skipped.end)?;
        }
        Some(run)
    }

    /// Returns the shortest run with at least `count` units.
    pub(super) fn fitting(&self, count: u64) -> Option<Range<u64>> {
        let &(length, start) = self.lengths.range((count, 0)..).next()?;
        Some(start..start + length)
    }

    /// Returns the first run with at least `count` units. O(runs).
    pub(super) fn first_fitting(&self, count: u64) -> Option<Range<u64>> {
        let (&start, &length) = self.starts.iter().find(|&(_, &length)| length >= count)?;
        Some(start..start + length)
    }

    /// Returns all runs, in ascending order.
    pub(super) fn all(&self) -> impl Iterator<Item = Range<u64>> {
        self.starts.iter().map(|(&start, &length)| start..start + length)
    }

    /// Moves those of these units that are in the set into a set of their own.
    pub(super) fn split_off(&mut self, units: &Range<u64>) -> Runs {
        let mut taken = Runs::default();
        for run in self.near(units) {
            taken.put(run.start.max(units.start)..run.end.min(units.end));
        }
        self.remove(units.clone());
        taken
    }

    /// Returns the longest run.
    pub(super) fn longest(&self) -> Option<Range<u64>> {
        let &(length, start) = self.lengths.last()?;
        Some(start..start + length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_one_set_and_not_of_another_are_found_in_order() {
        let set = |ranges: &[Range<u64>]| {
            let mut runs = Runs::default();
            ranges.iter().for_each(|range| runs.insert(range.clone()));
            runs
        };
        let free = set(&[2..10, 12..15, 20..21]);
        for (other, wanted) in [
            (set(&[]), vec![2..10, 12..15, 20..21]),
            (set(&[0..3, 5..6, 9..13, 20..30]), vec![3..5, 6..9, 13..15]),
            (set(&[0..30, 30..40]), vec![]),
        ] {
            let (mut found, mut from) = (Vec::new(), 0);
            while let Some(run) = free.next_without(&other, from) {
                from = run.end;
                found.push(run);
            }
            assert_eq!(found, wanted);
        }
    }

    #[test]
    fn runs_agree_with_a_set_of_units() {
        let (mut runs, mut model) = (Runs::default(), BTreeSet::new());
        let mut random = 7u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % below
        };
        for _ in 0..5000 {
            let start = next(200);
            let range = start..start + next(12);
            if next(2) == 0 {
                runs.insert(range.clone());
                model.extend(range);
            } else {
                runs.remove(range.clone());
                model.retain(|unit| !range.contains(unit));
            }
            let mut expected: Vec<Range<u64>> = Vec::new();
            for &unit in &model {
                match expected.last_mut() {
                    Some(run) if run.end == unit => run.end += 1,
                    _ => expected.push(unit..unit + 1),
                }
            }
            let found: Vec<_> = runs.starts.iter().map(|(&at, &len)| at..at + len).collect();
            assert_eq!(found, expected);
            assert_eq!(runs.total(), model.len() as u64);
            let length = |run: &Range<u64>| run.end - run.start;
            assert_eq!(runs.longest().as_ref().map(length), expected.iter().map(length).max());
            let fitting = expected.iter().map(length).filter(|&length| length >= 3).min();
            assert_eq!(runs.fitting(3).as_ref().map(length), fitting);
            let first = expected.iter().find(|run| length(run) >= 3).cloned();
            assert_eq!(runs.first_fitting(3), first);
            assert_eq!(runs.all().collect::<Vec<_>>(), expected);
            let start = next(200);
            let range = start..start + 1 + next(5);
            let overlaps = model.range(range.clone()).next().is_some();
            assert_eq!(runs.overlaps(&range), overlaps);
            let end = (range.start..).find(|unit| !model.contains(unit)).unwrap();
            assert_eq!(runs.end_of_run(range.start), end);
            assert_eq!(runs.count_in(&range), model.range(range.clone()).count() as u64);
            let (before, taken) = (runs.total(), runs.split_off(&range));
            assert!(!runs.overlaps(&range) && taken.total() + runs.total() == before);
            taken.all().for_each(|run| runs.insert(run));
            assert_eq!(runs.all().collect::<Vec<_>>(), expected);
        }
    }
}
