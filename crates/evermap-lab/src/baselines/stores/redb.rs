//! The crate `redb`.

use redb::{Database, Durability, ReadableDatabase, ReadableTableMetadata, TableDefinition};

use super::terms::{CACHE_BYTES, Folder, Terms};
use crate::subject::store::{Result, Store};
use crate::subject::{Found, Place, Size, Survives};

const PAIRS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("pairs");

pub(super) struct Redb {
    database: Database,
    folder: Folder,
    survives: Survives,
}

impl Redb {
    pub(super) fn open(terms: Terms) -> Result<Self> {
        let Terms { folder, survives, .. } = terms;
        let mut builder = Database::builder();
        builder.set_cache_size(usize::try_from(CACHE_BYTES)?);
        let database = builder.create(folder.path.join("redb"))?;
        let redb = Redb { database, folder, survives };
        // Readers need a table. This first commit is durable whatever the others are.
        redb.commit(Durability::Immediate, |_| Ok(()))?;
        Ok(redb)
    }

    fn durability(&self) -> Durability {
        match self.survives {
            Survives::Power => Durability::Immediate,
            Survives::Process | Survives::Nothing => Durability::None,
        }
    }

    fn commit<R>(
        &self,
        durability: Durability,
        change: impl FnOnce(&mut redb::Table<'_, &'static [u8], &'static [u8]>) -> Result<R>,
    ) -> Result<R> {
        let mut txn = self.database.begin_write()?;
        txn.set_durability(durability)?;
        let result = change(&mut txn.open_table(PAIRS)?)?;
        txn.commit()?;
        Ok(result)
    }
}

impl Store for Redb {
    type Reader<'a> = redb::ReadOnlyTable<&'static [u8], &'static [u8]>;

    fn reader(&self) -> Result<Self::Reader<'_>> {
        Ok(self.database.begin_read()?.open_table(PAIRS)?)
    }

    fn get(&self, key: &[u8], reader: &Self::Reader<'_>, value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = reader.get(key)?;
        found.iter().for_each(|found| value.extend_from_slice(found.value()));
        Ok(found.is_some())
    }

    fn lend(
        &self,
        keys: &[&[u8]],
        reader: &Self::Reader<'_>,
        each: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<()> {
        for (place, key) in keys.iter().enumerate() {
            if let Some(found) = reader.get(*key)? {
                each(place, found.value());
            }
        }
        Ok(())
    }

    fn can_lend(&self) -> bool {
        true
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<Found> {
        self.commit(self.durability(), |pairs| {
            let is_old = pairs.insert(key, value)?.is_some();
            Ok(if is_old { Found::Present } else { Found::Absent })
        })
    }

    fn load(&self, all: &[(&[u8], &[u8])]) -> Result<()> {
        self.commit(self.durability(), |pairs| {
            for (key, value) in all {
                pairs.insert(*key, *value)?;
            }
            Ok(())
        })
    }

    fn remove(&self, key: &[u8]) -> Result<Found> {
        self.commit(self.durability(), |pairs| {
            let was_there = pairs.remove(key)?.is_some();
            Ok(if was_there { Found::Present } else { Found::Absent })
        })
    }

    fn scan(
        &self,
        from: &[u8],
        count: usize,
        reader: &Self::Reader<'_>,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        for pair in reader.range(from..)?.take(count) {
            let (key, value) = pair?;
            each(key.value(), value.value());
        }
        Ok(())
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn size(&self) -> Result<Size> {
        let len = self.reader()?.len()?;
        Ok(Size { len: Some(len), pm_bytes: Some(self.folder.bytes()?), ..Size::default() })
    }

    fn place(&self) -> Place {
        self.folder.place(self.survives)
    }
}
