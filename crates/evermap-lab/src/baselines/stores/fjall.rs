//! The crate `fjall`.

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::terms::{CACHE_BYTES, Folder, Terms};
use crate::subject::store::{Result, Store};
use crate::subject::{Found, Place, Size, Survives};

pub(super) struct Fjall {
    database: Database,
    pairs: Keyspace,
    folder: Folder,
    survives: Survives,
}

impl Fjall {
    pub(super) fn open(terms: Terms) -> Result<Self> {
        let Terms { folder, survives, .. } = terms;
        let database = Database::builder(&folder.path).cache_size(CACHE_BYTES).open()?;
        let pairs = database.keyspace("pairs", KeyspaceCreateOptions::default)?;
        Ok(Fjall { database, pairs, folder, survives })
    }

    /// Makes what was written as durable as required. Writes are passed to the system in any case.
    fn persist(&self) -> Result<()> {
        if self.survives == Survives::Power {
            self.database.persist(PersistMode::SyncData)?;
        }
        Ok(())
    }
}

impl Store for Fjall {
    /// Lookups read the newest state, without a snapshot.
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
        self.pairs.insert(key, value)?;
        self.persist()?;
        Ok(Found::Unsaid)
    }

    fn load(&self, pairs: &[(&[u8], &[u8])]) -> Result<()> {
        let mut batch = self.database.batch();
        for (key, value) in pairs {
            batch.insert(&self.pairs, *key, *value);
        }
        Ok(batch.commit()?)
    }

    fn remove(&self, key: &[u8]) -> Result<Found> {
        self.pairs.remove(key)?;
        self.persist()?;
        Ok(Found::Unsaid)
    }

    fn scan(
        &self,
        from: &[u8],
        count: usize,
        (): &(),
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        for pair in self.pairs.range(from..).take(count) {
            let (key, value) = pair.into_inner()?;
            each(&key, &value);
        }
        Ok(())
    }

    fn is_ordered(&self) -> bool {
        true
    }

    /// Walks all keys.
    fn size(&self) -> Result<Size> {
        let len = self.pairs.len()? as u64;
        Ok(Size { len: Some(len), pm_bytes: Some(self.folder.bytes()?), ..Size::default() })
    }

    fn place(&self) -> Place {
        self.folder.place(self.survives)
    }
}
