//! The simplest correct tables: locked standard maps. The driver is tested with them.

use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::collections::{BTreeMap, HashMap, btree_map};
use std::sync::{Mutex, RwLock};

use evermap_pm::Result;

use crate::LabError;
use crate::baselines::tables::hash::BuildFold;
use crate::subject::{Entry, Found, Guards, Measured, Setup, Size, Subject, Table};

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
        factory: |name, setup| build(name, Ordered::default(), setup),
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
struct Ordered(RwLock<BTreeMap<u64, u64>>);

impl Ordered {
    fn read<R>(&self, work: impl FnOnce(&BTreeMap<u64, u64>) -> R) -> Result<R> {
        let map = self.0.read().map_err(|_| evermap_pm::ErrorKind::Poisoned)?;
        Ok(work(&map))
    }

    fn write<R>(&self, work: impl FnOnce(&mut BTreeMap<u64, u64>) -> R) -> Result<R> {
        let mut map = self.0.write().map_err(|_| evermap_pm::ErrorKind::Poisoned)?;
        Ok(work(&mut map))
    }
}

impl Table for Ordered {
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
