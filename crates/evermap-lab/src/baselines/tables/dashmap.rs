//! The crate `dashmap`.

use dashmap::Entry::{Occupied, Vacant};
use evermap_pm::Result;

use crate::baselines::tables::hash::BuildFold;
use crate::subject::{Found, Size, Table};

pub(super) struct DashMap(dashmap::DashMap<u64, u64, BuildFold>);

impl DashMap {
    pub(super) fn new(capacity: usize) -> Self {
        DashMap(dashmap::DashMap::with_capacity_and_hasher(capacity, BuildFold))
    }
}

impl Table for DashMap {
    type Guard<'a> = ();

    #[inline(always)]
    fn guard(&self) {}

    #[inline(always)]
    fn insert(&self, key: u64, word: u64, (): &()) -> Result<Found> {
        Ok(match self.0.entry(key) {
            Occupied(old) => Found::Word(*old.get()),
            Vacant(place) => {
                place.insert(word);
                Found::Absent
            }
        })
    }

    #[inline(always)]
    fn get(&self, key: u64, (): &()) -> Result<Option<u64>> {
        Ok(self.0.get(&key).map(|found| *found))
    }

    #[inline(always)]
    fn update(&self, key: u64, word: u64, (): &()) -> Result<Found> {
        let old = self.0.get_mut(&key).map(|mut found| std::mem::replace(&mut *found, word));
        Ok(old.into())
    }

    #[inline(always)]
    fn remove(&self, key: u64, (): &()) -> Result<Found> {
        Ok(self.0.remove(&key).map(|(_, word)| word).into())
    }

    fn size(&self) -> Result<Size> {
        Ok(Size { len: Some(self.0.len() as u64), ..Size::default() })
    }
}
