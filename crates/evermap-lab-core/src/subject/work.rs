//! A run of operations, and the answers that are right.

use crate::LabError;
use crate::error::Found;
use crate::workload::bytes::SpelledPart;
use crate::workload::op::{Op, Writer};
use crate::workload::{Phase, version_of, word};

/// How long a guard is kept. Guards cost each table a different amount, so figures compare only at
/// the same policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guards {
    /// Each operation takes a guard; a batch of `get_many` is one operation.
    PerOperation,
    /// This many operations share a guard. Memory freed by other threads waits as long.
    PerBatch(usize),
}

impl Guards {
    /// Returns the number of operations under one guard, at least 1.
    pub fn operations(self) -> usize {
        match self {
            Guards::PerOperation => 1,
            Guards::PerBatch(operations) => operations.max(1),
        }
    }
}

/// How a store hands out the values that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Each value is copied into a buffer, which is used again.
    Copied,
    /// Each value is lent by the store. This many lookups share a reader.
    Lent(usize),
}

/// What all keys of a run of operations are bound to before it.
#[derive(Clone, Copy)]
pub enum Expected {
    /// The keys are absent.
    Absent,
    /// Each key is bound to its word of this version.
    Bound(u64),
}

impl Expected {
    /// Returns the word that `key` is bound to.
    #[inline(always)]
    pub fn of(self, key: u64) -> Option<u64> {
        match self {
            Expected::Absent => None,
            Expected::Bound(version) => Some(word(key, version)),
        }
    }
}

/// A run of operations.
#[derive(Clone, Copy)]
pub struct Work<'a> {
    /// The name used in errors.
    pub name: &'static str,
    /// What to do.
    pub phase: Phase,
    /// The keys to do it with.
    pub keys: &'a [u64],
    /// The same keys as byte strings, for stores.
    pub spelled: SpelledPart<'a>,
    /// In `Mixed`, what to do with each key. Empty in other phases.
    pub ops: &'a [Op],
    /// The version of the words that the keys are bound to before this work: see [`word`].
    pub version: u64,
    /// The number of keys in one call of `get_many`.
    pub batch: usize,
    /// The thread whose work it is.
    pub writer: Writer,
    /// In `Insert` and `Update`, whether a store may take the keys in batches and need not make
    /// each of them durable.
    pub bulk: bool,
}

impl Work<'_> {
    /// Returns the operations `from..to` of this work.
    pub fn part(&self, from: usize, to: usize) -> Self {
        let ops = if self.ops.is_empty() { self.ops } else { &self.ops[from..to] };
        let writer = Writer { first: self.writer.first + from, ..self.writer };
        Work { keys: &self.keys[from..to], spelled: self.spelled.after(from), ops, writer, ..*self }
    }

    /// Returns the version that the `place`-th operation writes, counted from 1, relative to
    /// [`version`](Work::version).
    #[inline(always)]
    pub fn writes(&self, place: usize) -> u64 {
        self.writer.version((self.writer.first + place) as u64)
    }

    /// Returns `true` if `op` may find its key in this version.
    #[inline(always)]
    pub fn may_find(&self, version: u64, op: Op) -> bool {
        self.writer.may_find(version.wrapping_sub(self.version), op.own)
    }

    /// Returns the error for a wrong answer.
    #[cold]
    pub fn wrong(&self, index: &'static str, key: u64, expected: Found, found: Found) -> LabError {
        LabError::WrongAnswer { index, phase: self.name, key, expected, found }
    }
}

/// Checks the pairs of a scan: keys ascend, and each is bound to its own word.
pub struct ScanCheck<'w> {
    work: &'w Work<'w>,
    last: Option<u64>,
    from: u64,
    seen: usize,
    wrong: Option<(u64, Found)>,
}

impl<'w> ScanCheck<'w> {
    /// Creates the check of a scan that starts at `from`.
    pub fn new(from: u64, work: &'w Work<'w>) -> Self {
        ScanCheck { work, last: None, from, seen: 0, wrong: None }
    }

    /// Takes the next pair. `bound` is `None` if the value stands for no word.
    pub fn pair(&mut self, key: u64, bound: Option<u64>) {
        let in_order = self.last.map_or(key >= self.from, |last| key > last);
        let is_own = bound.is_some_and(|bound| {
            version_of(key, bound).wrapping_sub(self.work.version) <= self.work.writer.most
        });
        if !(in_order && is_own) && self.wrong.is_none() {
            self.wrong = Some((key, bound.into()));
        }
        self.last = Some(key);
        self.seen += 1;
    }

    /// Ends the check of a scan of up to `count` pairs. At least one pair must have been seen,
    /// because the first key is never removed.
    pub fn finish(self, index: &'static str, count: usize) -> Result<(), LabError> {
        match self.wrong {
            Some((key, found)) => Err(self.work.wrong(index, key, Found::Present, found)),
            None if self.seen == 0 || self.seen > count => {
                Err(self.work.wrong(index, self.from, Found::Present, Found::Absent))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_compared_as_far_as_they_say_something() {
        assert!(Found::Absent.agrees(None) && !Found::Absent.agrees(Some(1)));
        assert!(Found::Present.agrees(Some(1)) && !Found::Present.agrees(None));
        assert!(Found::Word(1).agrees(Some(1)));
        assert!(!Found::Word(1).agrees(Some(2)) && !Found::Word(1).agrees(None));
        assert!(Found::Unsaid.agrees(None) && !Found::Garbled.agrees(Some(1)));
    }
}
