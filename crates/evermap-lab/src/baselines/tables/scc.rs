//! The crate `scc`: its two hash tables.

use evermap_pm::Result;

use crate::baselines::tables::hash::BuildFold;
use crate::subject::{Found, Size, Table};

pub(super) struct HashMap(scc::HashMap<u64, u64, BuildFold>);

impl HashMap {
    pub(super) fn new(capacity: usize) -> Self {
        HashMap(scc::HashMap::with_capacity_and_hasher(capacity, BuildFold))
    }
}

impl Table for HashMap {
    type Guard<'a> = ();

    #[inline(always)]
    fn guard(&self) {}

    #[inline(always)]
    fn insert(&self, key: u64, word: u64, (): &()) -> Result<Found> {
        Ok(self.0.insert_sync(key, word).map_or(Found::Present, |()| Found::Absent))
    }

    #[inline(always)]
    fn get(&self, key: u64, (): &()) -> Result<Option<u64>> {
        Ok(self.0.read_sync(&key, |_, &word| word))
    }

    #[inline(always)]
    fn update(&self, key: u64, word: u64, (): &()) -> Result<Found> {
        Ok(self.0.update_sync(&key, |_, old| std::mem::replace(old, word)).into())
    }

    #[inline(always)]
    fn remove(&self, key: u64, (): &()) -> Result<Found> {
        Ok(self.0.remove_sync(&key).map(|(_, word)| word).into())
    }

    fn size(&self) -> Result<Size> {
        Ok(Size { len: Some(self.0.len() as u64), ..Size::default() })
    }
}

pub(super) struct HashIndex(scc::HashIndex<u64, u64, BuildFold>);

impl HashIndex {
    pub(super) fn new(capacity: usize) -> Self {
        HashIndex(scc::HashIndex::with_capacity_and_hasher(capacity, BuildFold))
    }
}

impl Table for HashIndex {
    /// Operations take the guard of the crate.
    type Guard<'a> = ();

    #[inline(always)]
    fn guard(&self) {}

    #[inline(always)]
    fn insert(&self, key: u64, word: u64, (): &()) -> Result<Found> {
        Ok(self.0.insert_sync(key, word).map_or(Found::Present, |()| Found::Absent))
    }

    #[inline(always)]
    fn get(&self, key: u64, (): &()) -> Result<Option<u64>> {
        Ok(self.0.peek_with(&key, |_, &word| word))
    }

    #[inline(always)]
    fn update(&self, key: u64, word: u64, (): &()) -> Result<Found> {
        let Some(mut entry) = self.0.get_sync(&key) else {
            return Ok(Found::Absent);
        };
        let old = *entry.get();
        entry.update(word);
        Ok(Found::Word(old))
    }

    #[inline(always)]
    fn remove(&self, key: u64, (): &()) -> Result<Found> {
        Ok(if self.0.remove_sync(&key) { Found::Present } else { Found::Absent })
    }

    fn size(&self) -> Result<Size> {
        Ok(Size { len: Some(self.0.len() as u64), ..Size::default() })
    }
}
