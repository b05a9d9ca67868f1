//! The crate `dashmap`.

use dashmap::Entry::{Occupied, Vacant};
use evermap_pm::Result;

use crate::baselines::tables::hash::BuildFold;
use crate::baselines::tables::strings::{Owned, Strings};
use crate::subject::{Found, Size, Table};

pub(super) struct DashMap<K, V>(dashmap::DashMap<K, V, BuildFold>);

impl<K: Eq + std::hash::Hash, V> DashMap<K, V> {
    pub(super) fn new(capacity: usize) -> Self {
        DashMap(dashmap::DashMap::with_capacity_and_hasher(capacity, BuildFold))
    }
}

impl Table for DashMap<u64, u64> {
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

impl Strings for DashMap<Owned, Owned> {
    type Reader<'a> = ();

    #[inline(always)]
    fn reader(&self) {}

    #[inline(always)]
    fn get(&self, key: &[u8], (): &(), each: impl FnOnce(&[u8])) -> bool {
        self.0.get(key).map(|found| each(&found)).is_some()
    }

    #[inline(always)]
    fn put(&self, key: Owned, value: Owned) -> bool {
        self.0.insert(key, value).is_some()
    }

    #[inline(always)]
    fn remove(&self, key: &[u8]) -> bool {
        self.0.remove(key).is_some()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
