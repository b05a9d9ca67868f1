//! The crate `papaya`.

use std::cell::Cell;

use evermap_pm::Result;
use papaya::LocalGuard;

use crate::LabError;
use crate::baselines::tables::hash::BuildFold;
use crate::subject::{Found, Guards, Measured, Setup, Size, Subject, Table};

struct Papaya(papaya::HashMap<u64, u64, BuildFold>);

pub(super) fn build(
    name: &'static str,
    guards: Guards,
    setup: &Setup,
) -> Result<Box<dyn Subject>, LabError> {
    setup.words_only(name)?;
    let capacity = super::rivals::capacity(setup);
    let table = Papaya(papaya::HashMap::with_capacity_and_hasher(capacity, BuildFold));
    Ok(Box::new(Measured { name, table, guards }))
}

impl Table for Papaya {
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
