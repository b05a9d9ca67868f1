//! Evermap's map for ordinary memory, beside its rivals and as they are used.

use std::cell::Cell;

use evermap_index::VolatileMap;
use evermap_pm::{Guard, Result};

use crate::LabError;
use crate::baselines::tables::hash::BuildFold;
use crate::subject::{Entry, Found, Guards, Measured, Setup, Size, Subject, Table};

/// The entries of the registry.
pub(crate) const ENTRIES: [Entry; 2] = [
    Entry {
        name: "volatile-map",
        about: "Evermap's map for ordinary memory; a guard for each operation",
        rival: false,
        factory: |name, setup| build(name, Guards::PerOperation, setup),
    },
    Entry {
        name: "volatile-map-batch",
        about: "the same with one guard for 1024 operations",
        rival: false,
        factory: |name, setup| build(name, Guards::PerBatch(1024), setup),
    },
];

struct Volatile(VolatileMap<u64, u64, BuildFold>);

fn build(
    name: &'static str,
    guards: Guards,
    setup: &Setup,
) -> std::result::Result<Box<dyn Subject>, LabError> {
    setup.words_only(name)?;
    let capacity = if setup.presize { setup.keys as usize } else { 0 };
    let table = Volatile(VolatileMap::with_capacity_and_hasher(capacity, BuildFold));
    Ok(Box::new(Measured { name, table, guards }))
}

impl Table for Volatile {
    type Guard<'a> = Guard<'a>;

    #[inline(always)]
    fn guard(&self) -> Guard<'_> {
        self.0.domain().pin()
    }

    #[inline(always)]
    fn insert(&self, key: u64, word: u64, guard: &Guard<'_>) -> Result<Found> {
        Ok(match self.0.with_guard(guard).try_insert(key, word) {
            Ok(_) => Found::Absent,
            Err(occupied) => Found::Word(*occupied.current),
        })
    }

    #[inline(always)]
    fn get(&self, key: u64, guard: &Guard<'_>) -> Result<Option<u64>> {
        Ok(self.0.with_guard(guard).get(&key).copied())
    }

    #[inline(always)]
    fn get_many(&self, keys: &[u64], out: &mut [Option<u64>], guard: &Guard<'_>) -> Result<()> {
        let map = self.0.with_guard(guard);
        keys.iter().for_each(|key| map.prefetch(key));
        for (key, out) in keys.iter().zip(out) {
            *out = map.get(key).copied();
        }
        Ok(())
    }

    #[inline(always)]
    fn update(&self, key: u64, word: u64, guard: &Guard<'_>) -> Result<Found> {
        let old = Cell::new(None);
        let update = |current: &u64| {
            old.set(Some(*current));
            word
        };
        Ok(self.0.with_guard(guard).update(key, update).and(old.get()).into())
    }

    #[inline(always)]
    fn remove(&self, key: u64, guard: &Guard<'_>) -> Result<Found> {
        Ok(self.0.with_guard(guard).remove(&key).copied().into())
    }

    fn size(&self) -> Result<Size> {
        let stats = self.0.stats();
        Ok(Size {
            len: Some(self.0.len() as u64),
            load_factor: Some(stats.len as f64 / stats.slots.max(1) as f64),
            dram_bytes: Some(stats.bytes as u64),
            pm_bytes: Some(0),
        })
    }
}
