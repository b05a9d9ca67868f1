//! Evermap's map for ordinary memory.

use std::ops::ControlFlow;

use evermap_server::CacheError;
use evermap_server::memory::{Decision, Entry, Table, each_found};
use evermap_volatile::{Operation, VolatileMap};

use crate::keys::{Hash, OwnedKey};

/// [`VolatileMap`].
#[derive(Debug)]
pub struct Volatile(VolatileMap<OwnedKey, Entry, Hash>);

impl Default for Volatile {
    fn default() -> Self {
        Volatile(VolatileMap::with_hasher(Hash))
    }
}

impl Table for Volatile {
    fn read_many(
        &self,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, &Entry) -> ControlFlow<()>,
    ) -> Result<(), CacheError> {
        let map = self.0.pin();
        if keys.len() > 1 {
            keys.iter().for_each(|&key| map.prefetch(key));
        }
        each_found(keys, |key| map.get(key), each);
        Ok(())
    }

    fn change(
        &self,
        key: &[u8],
        decide: &mut dyn FnMut(Option<&Entry>) -> Decision,
    ) -> Result<(), CacheError> {
        self.0.pin().compute(key.into(), |current| match decide(current.map(|(_, entry)| entry)) {
            Decision::Keep => Operation::Abort(()),
            Decision::Put(entry) => Operation::Insert(entry),
            Decision::Remove => Operation::Remove,
        });
        Ok(())
    }

    fn for_each(
        &self,
        each: &mut dyn FnMut(&[u8], &Entry) -> ControlFlow<()>,
    ) -> Result<(), CacheError> {
        for (key, entry) in self.0.pin().iter() {
            if each(key, entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn len(&self) -> u64 {
        self.0.len() as u64
    }
}
