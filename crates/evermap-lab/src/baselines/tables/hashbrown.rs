//! The crate `hashbrown` behind one lock.

use std::sync::RwLock;

use evermap_pm::{ErrorKind, Result};
use hashbrown::hash_map::Entry::{Occupied, Vacant};

use crate::baselines::tables::hash::BuildFold;
use crate::baselines::tables::strings::{Owned, Strings};
use crate::subject::{Found, Size, Table};

type Map<K, V> = hashbrown::HashMap<K, V, BuildFold>;

pub(super) struct Locked<K, V>(RwLock<Map<K, V>>);

impl<K, V> Locked<K, V> {
    pub(super) fn new(capacity: usize) -> Self {
        Locked(RwLock::new(Map::with_capacity_and_hasher(capacity, BuildFold)))
    }

    #[inline(always)]
    fn read<R>(&self, work: impl FnOnce(&Map<K, V>) -> R) -> Result<R> {
        let map = self.0.read().map_err(|_| ErrorKind::Poisoned)?;
        Ok(work(&map))
    }

    #[inline(always)]
    fn write<R>(&self, work: impl FnOnce(&mut Map<K, V>) -> R) -> Result<R> {
        let mut map = self.0.write().map_err(|_| ErrorKind::Poisoned)?;
        Ok(work(&mut map))
    }
}

impl Table for Locked<u64, u64> {
    type Guard<'a> = ();

    #[inline(always)]
    fn guard(&self) {}

    #[inline(always)]
    fn insert(&self, key: u64, word: u64, (): &()) -> Result<Found> {
        self.write(|map| match map.entry(key) {
            Occupied(old) => Found::Word(*old.get()),
            Vacant(place) => {
                place.insert(word);
                Found::Absent
            }
        })
    }

    #[inline(always)]
    fn get(&self, key: u64, (): &()) -> Result<Option<u64>> {
        self.read(|map| map.get(&key).copied())
    }

    #[inline(always)]
    fn update(&self, key: u64, word: u64, (): &()) -> Result<Found> {
        self.write(|map| map.get_mut(&key).map(|old| std::mem::replace(old, word)).into())
    }

    #[inline(always)]
    fn remove(&self, key: u64, (): &()) -> Result<Found> {
        self.write(|map| map.remove(&key).into())
    }

    fn size(&self) -> Result<Size> {
        self.read(|map| Size { len: Some(map.len() as u64), ..Size::default() })
    }
}

impl Strings for Locked<Owned, Owned> {
    type Reader<'a> = ();

    #[inline(always)]
    fn reader(&self) {}

    #[inline(always)]
    fn get(&self, key: &[u8], (): &(), each: impl FnOnce(&[u8])) -> bool {
        self.read(|map| map.get(key).map(|value| each(value)).is_some()).expect("no panic")
    }

    #[inline(always)]
    fn put(&self, key: Owned, value: Owned) -> bool {
        self.write(|map| map.insert(key, value).is_some()).expect("no panic")
    }

    #[inline(always)]
    fn remove(&self, key: &[u8]) -> bool {
        self.write(|map| map.remove(key).is_some()).expect("no panic")
    }

    fn len(&self) -> usize {
        self.read(|map| map.len()).expect("no panic")
    }
}
