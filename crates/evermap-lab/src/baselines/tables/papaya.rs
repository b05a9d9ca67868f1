//! The crate `papaya`.

use std::cell::Cell;

use evermap_pm::Result;
use papaya::LocalGuard;

use crate::LabError;
use crate::baselines::tables::hash::BuildFold;
use crate::baselines::tables::strings::{InMemory, Owned, Strings};
use crate::subject::{Found, Guards, Measured, Setup, Size, Stored, Subject, Table};

struct Papaya<K, V>(papaya::HashMap<K, V, BuildFold>);

pub(super) fn build(
    name: &'static str,
    guards: Guards,
    setup: &Setup,
) -> Result<Box<dyn Subject>, LabError> {
    let capacity = super::rivals::capacity(setup);
    if let (Some(lengths), Guards::PerOperation) = (setup.lengths, guards) {
        let map = Papaya(papaya::HashMap::with_capacity_and_hasher(capacity, BuildFold));
        return Ok(Box::new(Stored::new(name, InMemory(map), lengths)));
    }
    setup.words_only(name)?;
    let table = Papaya(papaya::HashMap::with_capacity_and_hasher(capacity, BuildFold));
    Ok(Box::new(Measured { name, table, guards }))
}

impl Table for Papaya<u64, u64> {
    type Guard<'a> = LocalGuard<'a>;

    #[inline(always)]
    fn guard(&self) -> LocalGuard<'_> {
        self.0.guard()
    }

    #[inline(always)]
    fn insert(&self, key: u64, word: u64, guard: &LocalGuard<'_>) -> Result<Found> {
        Ok(match self.0.try_insert(key, word, guard) {
            Ok(_) => Found::Absent,
            Err(occupied) => Found::Word(*occupied.current),
        })
    }

    #[inline(always)]
    fn get(&self, key: u64, guard: &LocalGuard<'_>) -> Result<Option<u64>> {
        Ok(self.0.get(&key, guard).copied())
    }

    #[inline(always)]
    fn update(&self, key: u64, word: u64, guard: &LocalGuard<'_>) -> Result<Found> {
        let old = Cell::new(None);
        let update = |current: &u64| {
            old.set(Some(*current));
            word
        };
        Ok(self.0.update(key, update, guard).and(old.get()).into())
    }

    #[inline(always)]
    fn remove(&self, key: u64, guard: &LocalGuard<'_>) -> Result<Found> {
        Ok(self.0.remove(&key, guard).copied().into())
    }

    fn size(&self) -> Result<Size> {
        Ok(Size { len: Some(self.0.len() as u64), ..Size::default() })
    }
}

impl Strings for Papaya<Owned, Owned> {
    type Reader<'a> = LocalGuard<'a>;

    #[inline(always)]
    fn reader(&self) -> LocalGuard<'_> {
        self.0.guard()
    }

    #[inline(always)]
    fn get(&self, key: &[u8], guard: &LocalGuard<'_>, each: impl FnOnce(&[u8])) -> bool {
        self.0.get(key, guard).map(|value| each(value)).is_some()
    }

    #[inline(always)]
    fn put(&self, key: Owned, value: Owned) -> bool {
        self.0.insert(key, value, &self.0.guard()).is_some()
    }

    #[inline(always)]
    fn remove(&self, key: &[u8]) -> bool {
        self.0.remove(key, &self.0.guard()).is_some()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
