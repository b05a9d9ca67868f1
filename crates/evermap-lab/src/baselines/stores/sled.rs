//! The crate `sled`.

use super::terms::{CACHE_BYTES, Folder, Terms};
use crate::subject::store::{Result, Store};
use crate::subject::{Found, Place, Size, Survives};

pub(super) struct Sled {
    pairs: sled::Db,
    folder: Folder,
    survives: Survives,
}

impl Sled {
    pub(super) fn open(terms: Terms) -> Result<Self> {
        let Terms { folder, survives, .. } = terms;
        let pairs = sled::Config::new().path(&folder.path).cache_capacity(CACHE_BYTES).open()?;
        Ok(Sled { pairs, folder, survives })
    }

    /// Makes what was written as durable as required.
    fn persist(&self) -> Result<()> {
        if self.survives == Survives::Power {
            self.pairs.flush()?;
        }
        Ok(())
    }
}

impl Store for Sled {
    /// Lookups take the guard of the crate.
    type Reader<'a> = ();

    fn reader(&self) -> Result<()> {
        Ok(())
    }

    fn get(&self, key: &[u8], (): &(), value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.pairs.get(key)?;
        found.iter().for_each(|found| value.extend_from_slice(found));
        Ok(found.is_some())
    }

    fn lend(&self, keys: &[&[u8]], (): &(), each: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        for (place, key) in keys.iter().enumerate() {
            if let Some(found) = self.pairs.get(key)? {
                each(place, &found);
            }
        }
        Ok(())
    }

    fn can_lend(&self) -> bool {
        true
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<Found> {
        let is_old = self.pairs.insert(key, value)?.is_some();
        self.persist()?;
        Ok(if is_old { Found::Present } else { Found::Absent })
    }

    fn load(&self, pairs: &[(&[u8], &[u8])]) -> Result<()> {
        let mut batch = sled::Batch::default();
        pairs.iter().for_each(|(key, value)| batch.insert(*key, *value));
        Ok(self.pairs.apply_batch(batch)?)
    }

    fn remove(&self, key: &[u8]) -> Result<Found> {
        let was_there = self.pairs.remove(key)?.is_some();
        self.persist()?;
        Ok(if was_there { Found::Present } else { Found::Absent })
    }

    fn scan(
        &self,
        from: &[u8],
        count: usize,
        (): &(),
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        for pair in self.pairs.range(from..).take(count) {
            let (key, value) = pair?;
            each(&key, &value);
        }
        Ok(())
    }

    fn is_ordered(&self) -> bool {
        true
    }

    /// Walks all keys.
    fn size(&self) -> Result<Size> {
        let len = self.pairs.len() as u64;
        Ok(Size { len: Some(len), pm_bytes: Some(self.folder.bytes()?), ..Size::default() })
    }

    fn place(&self) -> Place {
        self.folder.place(self.survives)
    }
}
