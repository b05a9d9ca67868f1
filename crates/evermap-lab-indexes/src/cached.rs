//! A store with a cache of values in ordinary memory in front of it, as HiKV's paper gives FPTree
//! ("FPTree_C").
//!
//! The cache is written through: a change is made in the store first, and in the cache before it is
//! acknowledged. Scans pass it by.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use evermap_pm::sync::{Mutex, MutexGuard};
use evermap_pm::{ErrorKind, Result as PmResult};
use quick_cache::sync::{Cache, DefaultLifecycle, GuardResult};
use quick_cache::{OptionsBuilder, Weighter};

use evermap_lab_core::subject::store::{Result, Store};
use evermap_lab_core::subject::{Counts, Found, Place, Size};

/// The number of locks that writers of a key share.
const LOCKS: usize = 64;

/// A copy of a value.
type Copied = Arc<[u8]>;

/// Bytes of keys and values.
#[derive(Clone)]
struct Bytes;

impl Weighter<Vec<u8>, Copied> for Bytes {
    fn weight(&self, key: &Vec<u8>, value: &Copied) -> u64 {
        (key.len() + value.len()) as u64
    }
}

/// A store behind a cache.
pub(crate) struct Cached<S> {
    store: S,
    cache: Cache<Vec<u8>, Copied, Bytes>,
    /// A writer of a key holds its lock while it changes the store and then the cache, so that the
    /// cache keeps what was written last.
    writers: Box<[Mutex<()>]>,
    hasher: RandomState,
}

impl<S: Store> Cached<S> {
    /// Puts a cache of `bytes` bytes in front of a store whose pairs have about `pair_bytes`.
    pub(crate) fn new(store: S, bytes: u64, pair_bytes: u64) -> Self {
        let options = OptionsBuilder::new()
            .estimated_items_capacity((bytes / pair_bytes.max(1)) as usize)
            .weight_capacity(bytes)
            .build()
            .expect("both capacities are set");
        Cached {
            store,
            cache: Cache::with_options(
                options,
                Bytes,
                Default::default(),
                DefaultLifecycle::default(),
            ),
            writers: (0..LOCKS).map(|_| Mutex::new(())).collect(),
            hasher: RandomState::new(),
        }
    }

    fn lock(&self, key: &[u8]) -> PmResult<MutexGuard<'_, ()>> {
        let lock = &self.writers[self.hasher.hash_one(key) as usize % LOCKS];
        lock.lock().map_err(|_| ErrorKind::Poisoned.into())
    }
}

impl<S: Store> Store for Cached<S> {
    type Reader<'a> = S::Reader<'a>;

    fn reader(&self) -> Result<S::Reader<'_>> {
        self.store.reader()
    }

    /// A value that is read meanwhile is only cached if nobody has written the key since.
    fn get(&self, key: &[u8], reader: &S::Reader<'_>, value: &mut Vec<u8>) -> Result<bool> {
        let absent = match self.cache.get_value_or_guard(key, None) {
            GuardResult::Value(copied) => {
                value.clear();
                value.extend_from_slice(&copied);
                return Ok(true);
            }
            GuardResult::Guard(absent) => absent,
            GuardResult::Timeout => unreachable!("there is no limit of time"),
        };
        let found = self.store.get(key, reader, value)?;
        if found {
            // It fails if a writer was faster, whose value is cached then.
            let _ = absent.insert(Copied::from(&value[..]));
        }
        Ok(found)
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<Found> {
        let _writer = self.lock(key)?;
        let found = self.store.put(key, value)?;
        self.cache.insert(key.into(), value.into());
        Ok(found)
    }

    fn load(&self, pairs: &[(&[u8], &[u8])]) -> Result<()> {
        self.store.load(pairs)
    }

    fn remove(&self, key: &[u8]) -> Result<Found> {
        let _writer = self.lock(key)?;
        let found = self.store.remove(key)?;
        self.cache.remove(key);
        Ok(found)
    }

    fn scan(
        &self,
        from: &[u8],
        count: usize,
        reader: &S::Reader<'_>,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        self.store.scan(from, count, reader, each)
    }

    fn is_ordered(&self) -> bool {
        self.store.is_ordered()
    }

    /// Returns the size of the store, with that of the cache in ordinary memory.
    fn size(&self) -> Result<Size> {
        let size = self.store.size()?;
        let dram_bytes = size.dram_bytes.map(|bytes| bytes + self.cache.weight());
        Ok(Size { dram_bytes, ..size })
    }

    fn counts(&self) -> Option<Counts> {
        let counts = self.store.counts()?;
        Some(Counts { cache_hits: self.cache.hits(), ..counts })
    }

    fn place(&self) -> Place {
        self.store.place()
    }
}
