//! Evermap's map for ordinary memory, beside its rivals and as they are used.

use std::cell::Cell;

use evermap_pm::{Guard, Result};
use evermap_volatile::VolatileMap;

use crate::LabError;
use crate::baselines::tables::hash::BuildFold;
use crate::baselines::tables::strings::{InMemory, Owned, Strings};
use crate::subject::{Entry, Found, Guards, Measured, Setup, Size, Stored, Subject, Table};

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

struct Volatile<K, V>(VolatileMap<K, V, BuildFold>);

fn build(
    name: &'static str,
    guards: Guards,
    setup: &Setup,
) -> std::result::Result<Box<dyn Subject>, LabError> {
    let capacity = if setup.presize { setup.keys as usize } else { 0 };
    if let (Some(lengths), Guards::PerOperation) = (setup.lengths, guards) {
        let map = Volatile(VolatileMap::with_capacity_and_hasher(capacity, BuildFold));
        return Ok(Box::new(Stored::new(name, InMemory(map), lengths)));
    }
    setup.words_only(name)?;
    let table = Volatile(VolatileMap::with_capacity_and_hasher(capacity, BuildFold));
    Ok(Box::new(Measured { name, table, guards }))
}

impl Table for Volatile<u64, u64> {
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
            // Measured from outside, as it is for the maps of other authors.
            ..Size::default()
        })
    }
}

impl Strings for Volatile<Owned, Owned> {
    type Reader<'a> = Guard<'a>;

    #[inline(always)]
    fn reader(&self) -> Guard<'_> {
        self.0.domain().pin()
    }

    #[inline(always)]
    fn get(&self, key: &[u8], guard: &Guard<'_>, each: impl FnOnce(&[u8])) -> bool {
        self.0.with_guard(guard).get(key).map(|value| each(value)).is_some()
    }

    #[inline(always)]
    fn put(&self, key: Owned, value: Owned) -> bool {
        self.0.pin().insert(key, value).is_some()
    }

    #[inline(always)]
    fn remove(&self, key: &[u8]) -> bool {
        self.0.pin().remove(key).is_some()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
