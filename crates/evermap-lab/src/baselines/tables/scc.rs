//! The crate `scc`: its two hash tables.

use evermap_pm::Result;

use crate::baselines::tables::hash::BuildFold;
use crate::baselines::tables::strings::{Owned, Strings};
use crate::subject::{Found, Size, Table};

pub(super) struct HashMap<K, V>(scc::HashMap<K, V, BuildFold>);

impl<K: Eq + std::hash::Hash, V> HashMap<K, V> {
    pub(super) fn new(capacity: usize) -> Self {
        HashMap(scc::HashMap::with_capacity_and_hasher(capacity, BuildFold))
    }
}

impl Table for HashMap<u64, u64> {
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

impl Strings for HashMap<Owned, Owned> {
    type Reader<'a> = ();

    #[inline(always)]
    fn reader(&self) {}

    #[inline(always)]
    fn get(&self, key: &[u8], (): &(), each: impl FnOnce(&[u8])) -> bool {
        self.0.read_sync(key, |_, value| each(value)).is_some()
    }

    #[inline(always)]
    fn put(&self, key: Owned, value: Owned) -> bool {
        self.0.upsert_sync(key, value).is_some()
    }

    #[inline(always)]
    fn remove(&self, key: &[u8]) -> bool {
        self.0.remove_sync(key).is_some()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

pub(super) struct HashIndex<K, V>(scc::HashIndex<K, V, BuildFold>);

impl<K: Eq + std::hash::Hash + 'static, V: 'static> HashIndex<K, V> {
    pub(super) fn new(capacity: usize) -> Self {
        HashIndex(scc::HashIndex::with_capacity_and_hasher(capacity, BuildFold))
    }
}

impl Table for HashIndex<u64, u64> {
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

impl Strings for HashIndex<Owned, Owned> {
    type Reader<'a> = ();

    #[inline(always)]
    fn reader(&self) {}

    #[inline(always)]
    fn get(&self, key: &[u8], (): &(), each: impl FnOnce(&[u8])) -> bool {
        self.0.peek_with(key, |_, value| each(value)).is_some()
    }

    #[inline(always)]
    fn put(&self, key: Owned, value: Owned) -> bool {
        match self.0.entry_sync(key) {
            scc::hash_index::Entry::Occupied(mut entry) => {
                entry.update(value);
                true
            }
            scc::hash_index::Entry::Vacant(entry) => {
                entry.insert_entry(value);
                false
            }
        }
    }

    #[inline(always)]
    fn remove(&self, key: &[u8]) -> bool {
        self.0.remove_sync(key)
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
