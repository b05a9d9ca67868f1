//! The crate `hashbrown` behind one lock.

use std::sync::RwLock;

use evermap_pm::{ErrorKind, Result};
use hashbrown::hash_map::Entry::{Occupied, Vacant};

use crate::baselines::tables::hash::BuildFold;
use crate::subject::{Found, Size, Table};

type Map = hashbrown::HashMap<u64, u64, BuildFold>;

pub(super) struct Locked(RwLock<Map>);

impl Locked {
    pub(super) fn new(capacity: usize) -> Self {
        Locked(RwLock::new(Map::with_capacity_and_hasher(capacity, BuildFold)))
    }

    #[inline(always)]
    fn read<R>(&self, work: impl FnOnce(&Map) -> R) -> Result<R> {
        let map = self.0.read().map_err(|_| ErrorKind::Poisoned)?;
        Ok(work(&map))
    }

    #[inline(always)]
    fn write<R>(&self, work: impl FnOnce(&mut Map) -> R) -> Result<R> {
        let mut map = self.0.write().map_err(|_| ErrorKind::Poisoned)?;
        Ok(work(&mut map))
    }
}

impl Table for Locked {
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
