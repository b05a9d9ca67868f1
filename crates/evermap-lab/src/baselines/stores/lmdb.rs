//! LMDB, through the crate `heed`.

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, RoTxn, WithTls};

use super::terms::{Folder, Terms};
use crate::subject::store::{Result, Store};
use crate::subject::{Found, Place, Size, Survives};

pub(super) struct Lmdb {
    env: Env,
    pairs: Database<'static, Bytes, Bytes>,
    folder: Folder,
    survives: Survives,
}

impl Lmdb {
    pub(super) fn open(terms: Terms) -> Result<Self> {
        let Terms { folder, survives, room } = terms;
        let mut options = EnvOpenOptions::new();
        options.map_size(usize::try_from(room)?.next_multiple_of(1 << 20));
        if survives != Survives::Power {
            // Written in place in the mapped file, which the system keeps when the process dies.
            // SAFETY: without syncs a crash of the system may damage the file, which is then
            // discarded, and nothing in this process writes to it by mistake.
            unsafe { options.flags(EnvFlags::NO_SYNC | EnvFlags::WRITE_MAP) };
        }
        // SAFETY: no other process uses the folder, so nothing changes or truncates the file while
        // it is mapped.
        let env = unsafe { options.open(&folder.path) }?;
        let create = env.create_databases_and_commit(env.write_txn()?, |opener, txn| {
            opener.create_database(txn, None).map(CommitOrAbort::<_, ()>::Commit)
        });
        let CommitOrAbort::Commit(pairs) = create? else {
            return Err("the database was not created".into());
        };
        Ok(Lmdb { env, pairs, folder, survives })
    }
}

impl Store for Lmdb {
    type Reader<'a> = RoTxn<'a, WithTls>;

    fn reader(&self) -> Result<Self::Reader<'_>> {
        Ok(self.env.read_txn()?)
    }

    fn get(&self, key: &[u8], reader: &Self::Reader<'_>, value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.pairs.get(reader, key)?;
        found.iter().for_each(|found| value.extend_from_slice(found));
        Ok(found.is_some())
    }

    fn lend(
        &self,
        keys: &[&[u8]],
        reader: &Self::Reader<'_>,
        each: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<()> {
        for (place, key) in keys.iter().enumerate() {
            if let Some(found) = self.pairs.get(reader, key)? {
                each(place, found);
            }
        }
        Ok(())
    }

    fn can_lend(&self) -> bool {
        true
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<Found> {
        let mut txn = self.env.write_txn()?;
        self.pairs.put(&mut txn, key, value)?;
        txn.commit()?;
        Ok(Found::Unsaid)
    }

    fn load(&self, pairs: &[(&[u8], &[u8])]) -> Result<()> {
        let mut txn = self.env.write_txn()?;
        for (key, value) in pairs {
            self.pairs.put(&mut txn, key, value)?;
        }
        Ok(txn.commit()?)
    }

    fn remove(&self, key: &[u8]) -> Result<Found> {
        let mut txn = self.env.write_txn()?;
        let removed = self.pairs.delete(&mut txn, key)?;
        txn.commit()?;
        Ok(if removed { Found::Present } else { Found::Absent })
    }

    fn scan(
        &self,
        from: &[u8],
        count: usize,
        reader: &Self::Reader<'_>,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let bounds = (std::ops::Bound::Included(from), std::ops::Bound::Unbounded);
        for pair in self.pairs.range(reader, &bounds)?.take(count) {
            let (key, value) = pair?;
            each(key, value);
        }
        Ok(())
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn size(&self) -> Result<Size> {
        let txn = self.env.read_txn()?;
        let len = self.pairs.len(&txn)?;
        Ok(Size { len: Some(len), pm_bytes: Some(self.folder.bytes()?), ..Size::default() })
    }

    fn place(&self) -> Place {
        self.folder.place(self.survives)
    }
}
