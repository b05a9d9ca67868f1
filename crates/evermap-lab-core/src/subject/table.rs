//! Tables from `u64` to `u64` as subjects.
//!
//! A table implements [`Table`], with its own kind of guard. [`Measured`] turns it into a
//! [`Subject`]: it decides how long a guard is kept, runs slices of operations, and checks every
//! answer. The lookup, the fastest operation, is compiled into its loop, because a call would
//! cost as much as part of it, and once more for all other uses: each further copy costs seconds
//! of compile time for every table. The operations that change Evermap's indexes are functions of
//! the index, which the loops call.

use evermap_pm::Result;

use super::facts::{Counts, Place, Size};
use super::view::Subject;
use super::work::{Expected, Guards, ScanCheck, Work};
use crate::LabError;
use crate::error::Found;
use crate::workload::op::{Kind, Op};
use crate::workload::{Phase, version_of, word};

/// A concurrent table from `u64` to `u64`, called as its author intends.
pub trait Table: Send + Sync + 'static {
    /// What an operation needs to hold while it reads. `()` for tables that lock.
    type Guard<'a>;

    /// Takes a guard.
    fn guard(&self) -> Self::Guard<'_>;

    /// Binds `key` to `word` if it is absent. Returns what the key was bound to before.
    ///
    /// # Errors
    ///
    /// The table's own.
    fn insert(&self, key: u64, word: u64, guard: &Self::Guard<'_>) -> Result<Found>;

    /// Returns the word bound to `key`.
    ///
    /// # Errors
    ///
    /// The table's own.
    fn get(&self, key: u64, guard: &Self::Guard<'_>) -> Result<Option<u64>>;

    /// Looks up many keys and stores the result for `keys[i]` in `out[i]`. The default looks them
    /// up one by one.
    ///
    /// # Errors
    ///
    /// The table's own.
    ///
    /// # Panics
    ///
    /// If `out` is shorter than `keys`.
    fn get_many(
        &self,
        keys: &[u64],
        out: &mut [Option<u64>],
        guard: &Self::Guard<'_>,
    ) -> Result<()> {
        for (key, out) in keys.iter().zip(&mut out[..keys.len()]) {
            *out = self.get(*key, guard)?;
        }
        Ok(())
    }

    /// Binds each of `keys` to its word if it is absent, and stores what `keys[i]` was bound to
    /// before in `out[i]`. The default does it one by one.
    ///
    /// # Errors
    ///
    /// The table's own.
    ///
    /// # Panics
    ///
    /// If `words` or `out` is shorter than `keys`.
    fn insert_many(
        &self,
        keys: &[u64],
        words: &[u64],
        out: &mut [Found],
        guard: &Self::Guard<'_>,
    ) -> Result<()> {
        for ((key, word), out) in keys.iter().zip(&words[..keys.len()]).zip(out) {
            *out = self.insert(*key, *word, guard)?;
        }
        Ok(())
    }

    /// Binds `key` to `word` if it is present. Returns what the key was bound to before.
    ///
    /// # Errors
    ///
    /// The table's own.
    fn update(&self, key: u64, word: u64, guard: &Self::Guard<'_>) -> Result<Found>;

    /// Removes `key`. Returns what it was bound to before.
    ///
    /// # Errors
    ///
    /// The table's own.
    fn remove(&self, key: u64, guard: &Self::Guard<'_>) -> Result<Found>;

    /// Calls `each` with up to `count` pairs in ascending order of their keys, starting at `from`.
    /// Returns `false` if the table keeps no such order.
    ///
    /// # Errors
    ///
    /// The table's own.
    fn scan(
        &self,
        _from: u64,
        _count: usize,
        _guard: &Self::Guard<'_>,
        _each: &mut dyn FnMut(u64, u64),
    ) -> Result<bool> {
        Ok(false)
    }

    /// Returns `true` if [`scan`](Table::scan) is supported.
    fn is_ordered(&self) -> bool {
        false
    }

    /// Returns size and load, as far as the table knows them. May walk the whole table.
    ///
    /// # Errors
    ///
    /// The table's own.
    fn size(&self) -> Result<Size>;

    /// Does up to `pieces` pieces of growth that insertions would have to do soon. Returns how many
    /// it did, or `None` if the table does not grow piece by piece.
    ///
    /// # Errors
    ///
    /// The table's own.
    fn grow_ahead(&self, _pieces: u64) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Returns what the medium has counted since it was created, or `None` if it does not count.
    fn counts(&self) -> Option<Counts> {
        None
    }

    /// Returns where the table is stored.
    fn place(&self) -> Place {
        Place::default()
    }
}

/// A table with a name and a guard policy.
pub struct Measured<T> {
    /// The name used in errors and reports.
    pub name: &'static str,
    /// The table.
    pub table: T,
    /// How long guards are kept in [`run`](Subject::run).
    pub guards: Guards,
}

impl<T: Table> Measured<T> {
    #[cold]
    fn failed(&self, source: evermap_pm::Error) -> LabError {
        LabError::index(self.name, source)
    }

    #[cold]
    fn wrong(&self, work: &Work<'_>, key: u64, expected: Option<u64>, found: Found) -> LabError {
        work.wrong(self.name, key, expected.into(), found)
    }

    /// Calls `op` with each key and compares the result with what the key is expected to be bound
    /// to.
    #[inline(always)]
    fn each(
        &self,
        work: &Work<'_>,
        expected: Expected,
        op: impl Fn(u64, &T::Guard<'_>) -> Result<Found>,
    ) -> Result<(), LabError> {
        for keys in work.keys.chunks(self.guards.operations()) {
            let guard = self.table.guard();
            for &key in keys {
                let found = op(key, &guard).map_err(|error| self.failed(error))?;
                if !found.agrees(expected.of(key)) {
                    return Err(self.wrong(work, key, expected.of(key), found));
                }
            }
        }
        Ok(())
    }

    // Each loop below is a function of its own, because together in one they would compete for
    // registers, which costs an operation a nanosecond, or more where cache misses overlap.

    /// Looks up every key. The lookup is compiled into this loop, once for absent and present keys
    /// together.
    #[inline(never)]
    fn get_all(&self, work: &Work<'_>, expected: Expected) -> Result<(), LabError> {
        self.each(work, expected, |key, guard| Ok(self.table.get(key, guard)?.into()))
    }

    #[inline(never)]
    fn insert_all(&self, work: &Work<'_>) -> Result<(), LabError> {
        let version = work.version;
        self.each(work, Expected::Absent, |key, guard| {
            self.table.insert(key, word(key, version), guard)
        })
    }

    #[inline(never)]
    fn update_all(&self, work: &Work<'_>) -> Result<(), LabError> {
        let version = work.version;
        self.each(work, Expected::Bound(version), |key, guard| {
            self.table.update(key, word(key, version + 1), guard)
        })
    }

    #[inline(never)]
    fn remove_all(&self, work: &Work<'_>) -> Result<(), LabError> {
        self.each(work, Expected::Bound(work.version), |key, guard| self.table.remove(key, guard))
    }

    #[inline(never)]
    fn get_in_batches(&self, work: &Work<'_>) -> Result<(), LabError> {
        let batch = work.batch.max(1);
        let mut out = vec![None; batch];
        let calls_per_guard = self.guards.operations().div_ceil(batch);
        for calls in work.keys.chunks(batch.saturating_mul(calls_per_guard)) {
            let guard = self.table.guard();
            for keys in calls.chunks(batch) {
                self.table.get_many(keys, &mut out, &guard).map_err(|error| self.failed(error))?;
                for (&key, &found) in keys.iter().zip(&out) {
                    let expected = Some(word(key, work.version));
                    if found != expected {
                        return Err(self.wrong(work, key, expected, found.into()));
                    }
                }
            }
        }
        Ok(())
    }

    #[inline(never)]
    fn insert_in_batches(&self, work: &Work<'_>) -> Result<(), LabError> {
        let batch = work.batch.max(1);
        let (mut words, mut out) = (Vec::with_capacity(batch), vec![Found::Unsaid; batch]);
        let calls_per_guard = self.guards.operations().div_ceil(batch);
        for calls in work.keys.chunks(batch.saturating_mul(calls_per_guard)) {
            let guard = self.table.guard();
            for keys in calls.chunks(batch) {
                words.clear();
                words.extend(keys.iter().map(|&key| word(key, work.version)));
                let inserted = self.table.insert_many(keys, &words, &mut out, &guard);
                inserted.map_err(|error| self.failed(error))?;
                for (&key, found) in keys.iter().zip(&out) {
                    if !found.agrees(None) {
                        return Err(self.wrong(work, key, None, *found));
                    }
                }
            }
        }
        Ok(())
    }

    #[inline(never)]
    fn mix(&self, work: &Work<'_>) -> Result<(), LabError> {
        let operations = self.guards.operations();
        let all = work.keys.chunks(operations).zip(work.ops.chunks(operations));
        let mut place = 0;
        for (keys, ops) in all {
            let guard = self.table.guard();
            for (&key, &op) in keys.iter().zip(ops) {
                place += 1;
                self.operate(work, key, op, place, &guard)?;
            }
        }
        Ok(())
    }

    /// Does one operation of a mix, the `place`-th of `work`, counted from 1.
    #[inline(always)]
    fn operate(
        &self,
        work: &Work<'_>,
        key: u64,
        op: Op,
        place: usize,
        guard: &T::Guard<'_>,
    ) -> Result<(), LabError> {
        let failed = |error| self.failed(error);
        match op.kind {
            Kind::Insert => {
                match self.table.insert(key, word(key, work.version), guard).map_err(failed)? {
                    Found::Absent | Found::Unsaid => Ok(()),
                    found => Err(self.wrong(work, key, None, found)),
                }
            }
            Kind::Scan(count) => self.scan(work, key, usize::from(count), guard),
            Kind::Read | Kind::Update | Kind::ReadModifyWrite => {
                if op.kind != Kind::Update {
                    let found = self.table.get(key, guard).map_err(failed)?.into();
                    self.check_in_mix(work, key, op, found)?;
                }
                if op.kind != Kind::Read {
                    let bound = word(key, work.version + work.writes(place));
                    let found = self.table.update(key, bound, guard).map_err(failed)?;
                    self.check_in_mix(work, key, op, found)?;
                }
                Ok(())
            }
        }
    }

    /// Checks what an operation of a mix has found, which other threads may have changed before.
    #[inline(always)]
    fn check_in_mix(
        &self,
        work: &Work<'_>,
        key: u64,
        op: Op,
        found: Found,
    ) -> Result<(), LabError> {
        let is_wrong = match found {
            Found::Absent => true,
            Found::Word(bound) => !work.may_find(version_of(key, bound), op),
            _ => false,
        };
        if !is_wrong {
            return Ok(());
        }
        let expected = work.version + work.writer.version(u64::from(op.own));
        Err(self.wrong(work, key, Some(word(key, expected)), found))
    }

    fn scan(
        &self,
        work: &Work<'_>,
        from: u64,
        count: usize,
        guard: &T::Guard<'_>,
    ) -> Result<(), LabError> {
        let mut check = ScanCheck::new(from, work);
        let ordered = self.table.scan(from, count, guard, &mut |key, bound| {
            check.pair(key, Some(bound));
        });
        if !ordered.map_err(|error| self.failed(error))? {
            return Err(LabError::Unordered { index: self.name });
        }
        check.finish(self.name, count)
    }
}

impl<T: Table> Subject for Measured<T> {
    fn get(&self, key: u64) -> Result<Option<u64>, LabError> {
        self.table.get(key, &self.table.guard()).map_err(|error| self.failed(error))
    }

    fn run(&self, work: Work<'_>) -> Result<(), LabError> {
        match work.phase {
            Phase::Insert => self.insert_all(&work),
            Phase::Positive => self.get_all(&work, Expected::Bound(work.version)),
            Phase::Negative => self.get_all(&work, Expected::Absent),
            Phase::GetMany => self.get_in_batches(&work),
            Phase::Update => self.update_all(&work),
            Phase::Mixed => self.mix(&work),
            Phase::Delete => self.remove_all(&work),
            Phase::InsertMany => self.insert_in_batches(&work),
        }
    }

    fn grow_ahead(&self, pieces: u64) -> Result<Option<u64>, LabError> {
        self.table.grow_ahead(pieces).map_err(|error| self.failed(error))
    }

    fn is_ordered(&self) -> bool {
        self.table.is_ordered()
    }

    fn size(&self) -> Result<Size, LabError> {
        self.table.size().map_err(|error| self.failed(error))
    }

    fn counts(&self) -> Option<Counts> {
        self.table.counts()
    }

    fn place(&self) -> Place {
        self.table.place()
    }
}
