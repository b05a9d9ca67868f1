//! The simplest table that is right: a locked standard map. The driver is tested on it.

use std::collections::HashMap;
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::sync::Mutex;

use evermap_pm::Result;

use crate::LabError;
use crate::hash::BuildFold;
use crate::subject::{Entry, Found, Guards, Measured, Setup, Size, Subject, Table};

type Map = HashMap<u64, u64, BuildFold>;

/// A standard map behind one lock.
pub(crate) struct Reference(Mutex<Map>);

/// The registry's line.
pub(crate) const ENTRY: Entry = Entry {
    name: "reference",
    about: "std HashMap behind a Mutex: right, simple, slow with many threads",
    rival: true,
    build,
};

fn build(setup: &Setup) -> Result<Box<dyn Subject>, LabError> {
    let table = Reference::new(if setup.presize { setup.keys as usize } else { 0 });
    Ok(Box::new(Measured { name: ENTRY.name, table, guards: Guards::PerOperation }))
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
