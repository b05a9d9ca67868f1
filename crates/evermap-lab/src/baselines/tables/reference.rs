//! The simplest correct tables: locked standard maps. The driver is tested with them.

use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::collections::{BTreeMap, HashMap, btree_map};
use std::ops::Bound;
use std::sync::{Mutex, RwLock};

use evermap_pm::Result;

use crate::LabError;
use crate::baselines::tables::hash::BuildFold;
use crate::baselines::tables::strings::Owned;
use crate::subject::store;
use crate::subject::{
    Entry, Found, Guards, Measured, Place, Setup, Size, Store, Stored, Subject, Table,
};

type Map = HashMap<u64, u64, BuildFold>;

/// A standard map behind one lock.
pub(crate) struct Reference(Mutex<Map>);

/// The entries of the registry.
pub(crate) const ENTRIES: [Entry; 2] = [
    Entry {
        name: "reference",
        about: "std HashMap behind a Mutex: right, simple, slow with many threads",
        rival: true,
        factory: |name, setup| {
            let capacity = if setup.presize { setup.keys as usize } else { 0 };
            build(name, Reference::new(capacity), setup)
        },
    },
    Entry {
        name: "rwlock-btreemap",
        about: "std BTreeMap behind one reader-writer lock: the simplest that can scan",
        rival: true,
        factory: |name, setup| match setup.lengths {
            None => build(name, Ordered::<u64, u64>::default(), setup),
            Some(lengths) => {
                Ok(Box::new(Stored::new(name, Ordered::<Owned, Owned>::default(), lengths)))
            }
        },
    },
];

fn build<T: Table>(
    name: &'static str,
    table: T,
    setup: &Setup,
) -> Result<Box<dyn Subject>, LabError> {
    setup.words_only(name)?;
    Ok(Box::new(Measured { name, table, guards: Guards::PerOperation }))
}

impl Reference {
    pub(crate) fn new(capacity: usize) -> Self {
        Reference(Mutex::new(HashMap::with_capacity_and_hasher(capacity, BuildFold)))
    }

    fn with<R>(&self, work: impl FnOnce(&mut Map) -> R) -> Result<R> {
        let mut map = self.0.lock().map_err(|_| evermap_pm::ErrorKind::Poisoned)?;
        Ok(work(&mut map))
    }
}

impl Table for Reference {
    type Guard<'a> = ();

    fn guard(&self) {}

    fn insert(&self, key: u64, word: u64, (): &()) -> Result<Found> {
        self.with(|map| match map.entry(key) {
            Occupied(old) => Found::Word(*old.get()),
            Vacant(place) => {
                place.insert(word);
                Found::Absent
            }
        })
    }

    fn get(&self, key: u64, (): &()) -> Result<Option<u64>> {
        self.with(|map| map.get(&key).copied())
    }

    fn update(&self, key: u64, word: u64, (): &()) -> Result<Found> {
        self.with(|map| map.get_mut(&key).map(|old| std::mem::replace(old, word)).into())
    }

    fn remove(&self, key: u64, (): &()) -> Result<Found> {
        self.with(|map| map.remove(&key).into())
    }

    fn size(&self) -> Result<Size> {
        self.with(|map| Size { len: Some(map.len() as u64), ..Size::default() })
    }
}

/// A standard tree behind one lock.
#[derive(Default)]
struct Ordered<K, V>(RwLock<BTreeMap<K, V>>);

impl<K, V> Ordered<K, V> {
    fn read<R>(&self, work: impl FnOnce(&BTreeMap<K, V>) -> R) -> Result<R> {
        let map = self.0.read().map_err(|_| evermap_pm::ErrorKind::Poisoned)?;
        Ok(work(&map))
    }

    fn write<R>(&self, work: impl FnOnce(&mut BTreeMap<K, V>) -> R) -> Result<R> {
        let mut map = self.0.write().map_err(|_| evermap_pm::ErrorKind::Poisoned)?;
        Ok(work(&mut map))
    }
}

impl Table for Ordered<u64, u64> {
    type Guard<'a> = ();

    fn guard(&self) {}

    fn insert(&self, key: u64, word: u64, (): &()) -> Result<Found> {
        self.write(|map| match map.entry(key) {
            btree_map::Entry::Occupied(old) => Found::Word(*old.get()),
            btree_map::Entry::Vacant(place) => {
                place.insert(word);
                Found::Absent
            }
        })
    }

    fn get(&self, key: u64, (): &()) -> Result<Option<u64>> {
        self.read(|map| map.get(&key).copied())
    }

    fn update(&self, key: u64, word: u64, (): &()) -> Result<Found> {
        self.write(|map| map.get_mut(&key).map(|old| std::mem::replace(old, word)).into())
    }

    fn remove(&self, key: u64, (): &()) -> Result<Found> {
        self.write(|map| map.remove(&key).into())
    }

    fn scan(
        &self,
        from: u64,
        count: usize,
        (): &(),
        each: &mut dyn FnMut(u64, u64),
    ) -> Result<bool> {
        self.read(|map| map.range(from..).take(count).for_each(|(&key, &word)| each(key, word)))?;
        Ok(true)
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn size(&self) -> Result<Size> {
        self.read(|map| Size { len: Some(map.len() as u64), ..Size::default() })
    }
}

fn present_if(old: Option<Owned>) -> Found {
    if old.is_some() { Found::Present } else { Found::Absent }
}

impl Store for Ordered<Owned, Owned> {
    type Reader<'a> = ();

    fn reader(&self) -> store::Result<()> {
        Ok(())
    }

    fn get(&self, key: &[u8], (): &(), value: &mut Vec<u8>) -> store::Result<bool> {
        value.clear();
        let found = self.read(|map| map.get(key).map(|found| value.extend_from_slice(found)))?;
        Ok(found.is_some())
    }

    fn put(&self, key: &[u8], value: &[u8]) -> store::Result<Found> {
        Ok(present_if(self.write(|map| map.insert(key.into(), value.into()))?))
    }

    fn remove(&self, key: &[u8]) -> store::Result<Found> {
        Ok(present_if(self.write(|map| map.remove(key))?))
    }

    fn scan(
        &self,
        from: &[u8],
        count: usize,
        (): &(),
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> store::Result<()> {
        let range = (Bound::Included(from), Bound::Unbounded);
        Ok(self.read(|map| {
            let pairs = map.range::<[u8], _>(range).take(count);
            pairs.for_each(|(key, value)| each(key, value));
        })?)
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn size(&self) -> store::Result<Size> {
        Ok(self.read(|map| Size { len: Some(map.len() as u64), ..Size::default() })?)
    }

    fn place(&self) -> Place {
        Place::default()
    }
}
