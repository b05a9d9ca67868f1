//! Tables from `u64` to `u64`, measured.
//!
//! A table implements [`Table`], with its own kind of guard. [`Measured`] turns it into a [`Subject`]: it
//! says how long a guard is kept, runs whole slices of operations in a loop that is compiled together with the
//! table's operation (a call through a pointer for each one would cost as much as part of a look-up), and
//! checks every answer in that loop. The type of the table is erased where such a slice begins.

use evermap_pm::Result;

use crate::LabError;
use crate::subject::{Counts, Found, Guards, Place, Sight, Size, Subject, Truth, Work};
use crate::workload::{Kind, Op, Phase, version_of, word};

/// A concurrent table from `u64` to `u64`, as its author would have it called.
pub trait Table: Send + Sync + 'static {
    /// What an operation needs to hold while it reads. `()` for tables that lock.
    type Guard<'a>;

    /// Takes a guard.
    fn guard(&self) -> Self::Guard<'_>;

    /// Binds `key` to `word` if it is absent. Answers what the key was bound to before.
    ///
    /// # Errors
    /// The table's own.
    fn insert(&self, key: u64, word: u64, guard: &Self::Guard<'_>) -> Result<Found>;

    /// The word bound to `key`.
    ///
    /// # Errors
    /// The table's own.
    fn get(&self, key: u64, guard: &Self::Guard<'_>) -> Result<Option<u64>>;

    /// Looks up many keys; `out[i]` becomes the answer for `keys[i]`. One by one, unless the table knows better.
    ///
    /// # Errors
    /// The table's own.
    ///
    /// # Panics
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

    /// Binds `key` to `word` if it is present. Answers what the key was bound to before.
    ///
    /// # Errors
    /// The table's own.
    fn update(&self, key: u64, word: u64, guard: &Self::Guard<'_>) -> Result<Found>;

    /// Unbinds `key`. Answers what it was bound to before.
    ///
    /// # Errors
    /// The table's own.
    fn remove(&self, key: u64, guard: &Self::Guard<'_>) -> Result<Found>;

    /// Shows `each` up to `count` pairs in ascending order of their keys, from `from` on, and answers whether the
    /// table has such an order at all.
    ///
    /// # Errors
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

    /// Whether [`scan`](Table::scan) works.
    fn is_ordered(&self) -> bool {
        false
    }

    /// Size and shape, as far as the table knows them. May walk the whole table.
    ///
    /// # Errors
    /// The table's own.
    fn size(&self) -> Result<Size>;

    /// What the medium has counted since it was made, if it counts.
    fn counts(&self) -> Option<Counts> {
        None
    }

    /// Where the table lives.
    fn place(&self) -> Place {
        Place::default()
    }
}

/// A table with a name and a guard policy.
pub struct Measured<T> {
    /// The name in errors and reports.
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
    fn wrong(&self, work: &Work<'_>, key: u64, truth: Option<u64>, found: Found) -> LabError {
        work.wrong(self.name, key, truth.into(), found)
    }

    /// Does `op` with each key and compares its answer with `truth` for that key.
    #[inline(always)]
    fn each(
        &self,
        work: &Work<'_>,
        truth: Truth,
        op: impl Fn(u64, &T::Guard<'_>) -> Result<Found>,
    ) -> Result<(), LabError> {
        for keys in work.keys.chunks(self.guards.operations()) {
            let guard = self.table.guard();
            for &key in keys {
                let found = op(key, &guard).map_err(|error| self.failed(error))?;
                if !found.agrees(truth.of(key)) {
                    return Err(self.wrong(work, key, truth.of(key), found));
                }
            }
        }
        Ok(())
    }

    // Each operation of the table is compiled once in a loop of its own, and those of mixes once more in
    // `mix`: every further copy costs seconds for every table.

    #[inline(never)]
    fn get_all(&self, work: &Work<'_>, truth: Truth) -> Result<(), LabError> {
        self.each(work, truth, |key, guard| Ok(self.table.get(key, guard)?.into()))
    }

    #[inline(never)]
    fn insert_all(&self, work: &Work<'_>) -> Result<(), LabError> {
        let version = work.version;
        self.each(work, Truth::Absent, |key, guard| {
            self.table.insert(key, word(key, version), guard)
        })
    }

    #[inline(never)]
    fn update_all(&self, work: &Work<'_>) -> Result<(), LabError> {
        let version = work.version;
        self.each(work, Truth::Bound(version), |key, guard| {
            self.table.update(key, word(key, version + 1), guard)
        })
    }

    #[inline(never)]
    fn remove_all(&self, work: &Work<'_>) -> Result<(), LabError> {
        self.each(work, Truth::Bound(work.version), |key, guard| self.table.remove(key, guard))
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
                    let truth = Some(word(key, work.version));
                    if found != truth {
                        return Err(self.wrong(work, key, truth, found.into()));
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

    /// Does one operation of a mix; it is the `place`-th of `work`.
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

    /// Checks what an operation of a mix has found, which others may have changed meanwhile.
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
        let mut sight = Sight::new(from, work);
        let ordered = self.table.scan(from, count, guard, &mut |key, bound| {
            sight.see(key, Some(bound));
        });
        if !ordered.map_err(|error| self.failed(error))? {
            return Err(LabError::Unordered { index: self.name });
        }
        sight.judge(self.name, count)
    }
}

impl<T: Table> Subject for Measured<T> {
    fn get(&self, key: u64) -> Result<Option<u64>, LabError> {
        self.table.get(key, &self.table.guard()).map_err(|error| self.failed(error))
    }

    fn run(&self, work: Work<'_>) -> Result<(), LabError> {
        match work.phase {
            Phase::Insert => self.insert_all(&work),
            Phase::Positive => self.get_all(&work, Truth::Bound(work.version)),
            Phase::Negative => self.get_all(&work, Truth::Absent),
            Phase::GetMany => self.get_in_batches(&work),
            Phase::Update => self.update_all(&work),
            Phase::Mixed => self.mix(&work),
            Phase::Delete => self.remove_all(&work),
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fault, Faulty, work};
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn guards_are_kept_as_long_as_the_policy_says() {
        let inserts = vec![Op { kind: Kind::Insert, own: 0 }; 1000];
        let keys: Vec<_> = (0..1000).collect();
        let guards = |guards, phase, batch| {
            let subject = Measured { name: "faulty", table: Faulty::new(Fault::None), guards };
            let work = Work { batch, ..work(phase, &keys) };
            if phase == Phase::Mixed {
                subject.run(Work { ops: &inserts, ..work }).unwrap();
                return subject.table.guards.load(Relaxed);
            }
            subject.run(Work { phase: Phase::Insert, ..work }).unwrap();
            let before = subject.table.guards.load(Relaxed);
            if phase == Phase::Insert {
                return before;
            }
            subject.run(work).unwrap();
            subject.table.guards.load(Relaxed) - before
        };
        for phase in [Phase::Insert, Phase::Positive, Phase::Update, Phase::Mixed, Phase::Delete] {
            assert_eq!(guards(Guards::PerOperation, phase, 1), 1000, "{phase}");
            assert_eq!(guards(Guards::PerBatch(64), phase, 1), 16, "{phase}");
        }
        // Batches of 30 are 34 calls; three calls reach the 64 operations of a guard.
        assert_eq!(guards(Guards::PerOperation, Phase::GetMany, 30), 34);
        assert_eq!(guards(Guards::PerBatch(64), Phase::GetMany, 30), 12);
    }
}
