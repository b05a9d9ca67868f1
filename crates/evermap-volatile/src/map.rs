//! The map: its shards, and what can be done without a guard.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Arc, LazyLock};

use evermap_pm::Domain;

use crate::hashing::Hashing;
use crate::shard::Shard;

/// The number of shards for each processor, and its limits.
const SHARDS_PER_PROCESSOR: usize = 4;
const SHARDS_MIN: usize = 16;
const SHARDS_MAX: usize = 128;

/// The domain of all maps that were not created with another one.
static DOMAIN: LazyLock<Arc<Domain>> = LazyLock::new(|| Arc::new(Domain::new(Box::new(|_| ()))));

/// The number of leading bits of a hash that choose the shard of a new map.
static SHARD_BITS: LazyLock<u32> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let shards = processors.saturating_mul(SHARDS_PER_PROCESSOR).clamp(SHARDS_MIN, SHARDS_MAX);
    shards.next_power_of_two().ilog2()
});

/// A concurrent hash map in ordinary memory.
///
/// It is like a [`HashMap`](std::collections::HashMap) whose methods take `&self`. Lookups are
/// wait-free: they execute no locked instruction, write nothing that other threads access, and
/// never retry, whatever other threads do. Everything else takes the lock of one of many shards for
/// a moment. No write waits for the whole table to be resized: each moves a few buckets.
///
/// A [pinned](VolatileMap::pin) map lends references to its entries. An entry never moves and is
/// never changed; replacing or removing it leaves it to those who have it. Values that change in
/// place need interior mutability, like an atomic or a mutex.
///
/// ```
/// use evermap_volatile::VolatileMap;
///
/// let map = VolatileMap::new();
/// std::thread::scope(|threads| {
///     for thread in 0..4 {
///         let map = &map;
///         threads.spawn(move || {
///             let map = map.pin();
///             for number in 0..100 {
///                 map.insert((thread, number), number * number);
///             }
///         });
///     }
/// });
/// let map = map.pin();
/// assert_eq!(map.len(), 400);
/// assert_eq!(map.get(&(3, 9)), Some(&81));
/// assert_eq!(map.iter().filter(|&(_, square)| *square == 49).count(), 4);
/// ```
///
/// # Closures, comparisons and panics
///
/// Closures that are passed to a method, and the `drop` of keys and values, run while no lock is
/// held, so they may use the map. The `Hash` and `Eq` of keys may run under the lock of a shard,
/// and must not use the map. If any of them panics, the map remains consistent and usable: the
/// operation had no effect, or its whole effect.
///
/// # Memory
///
/// What is replaced or removed is dropped when no guard is left that could protect a reader of it,
/// by a later write or [`flush`](VolatileMap::flush), and at the latest with the map. A guard that
/// is held for a long time therefore keeps memory from being reused. A map takes the memory of its
/// pairs, and six to twelve bytes for each. The table shrinks when most entries are removed; the
/// memory of the entries is used for new ones, and is given back to the system when a shard becomes
/// empty.
///
/// # Hash flooding
///
/// By default keys are hashed by a [`RandomState`], so nobody can find keys that collide. With
/// another hasher, a shard in which too many keys collide places its keys anew, by hashes that
/// begin with a random number. That helps unless some keys have the same hash whatever was hashed
/// before them.
pub struct VolatileMap<K, V, S = RandomState> {
    pub(crate) shards: Box<[Shard<K, V>]>,
    pub(crate) hashing: Hashing<S>,
    pub(crate) domain: Arc<Domain>,
}

/// The memory and the state of a [`VolatileMap`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolatileStats {
    /// The number of entries.
    pub len: usize,
    /// The number of slots for entries.
    pub slots: usize,
    /// Bytes of tables and entries, including those that are free or wait for guards, without what
    /// the entries own.
    pub bytes: usize,
    /// The number of entries that were replaced or removed, and are not dropped yet.
    pub entries_waiting: usize,
    /// Bytes of tables that were replaced and are not freed yet.
    pub tables_waiting: usize,
    /// The number of shards whose table is being replaced.
    pub resizing: usize,
    /// The number of tables that were replaced since the map was created.
    pub resizes: usize,
}

impl<K, V> VolatileMap<K, V> {
    /// Creates an empty map. It allocates memory for entries when the first one is inserted.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty map with room for `capacity` entries.
    pub fn with_capacity(capacity: usize) -> Self
    where
        K: Hash + Eq,
    {
        Self::with_capacity_and_hasher(capacity, RandomState::new())
    }
}

impl<K, V, S> VolatileMap<K, V, S> {
    /// Creates an empty map that hashes keys with `hasher`.
    ///
    /// A hasher that is known to an attacker who can choose keys makes the map slow: see
    /// [`VolatileMap`].
    pub fn with_hasher(hasher: S) -> Self {
        Self::with_domain(hasher, DOMAIN.clone())
    }

    /// Creates an empty map with room for `capacity` entries that hashes keys with `hasher`.
    pub fn with_capacity_and_hasher(capacity: usize, hasher: S) -> Self
    where
        K: Hash + Eq,
        S: BuildHasher,
    {
        let map = Self::with_hasher(hasher);
        map.reserve(capacity);
        map
    }

    /// Creates an empty map whose guards are those of `domain`.
    ///
    /// By default, all maps use one domain. With one of its own, a map does not wait for the guards
    /// of others.
    pub fn with_domain(hasher: S, domain: Arc<Domain>) -> Self {
        Self::with_shards(hasher, domain, *SHARD_BITS)
    }

    /// Creates an empty map of `1 << shard_bits` shards.
    pub(crate) fn with_shards(hasher: S, domain: Arc<Domain>, shard_bits: u32) -> Self {
        VolatileMap {
            shards: (0..1 << shard_bits).map(|_| Shard::new()).collect(),
            hashing: Hashing { build: hasher, shard_bits },
            domain,
        }
    }

    /// Returns the domain whose guards protect the entries.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Returns the hasher.
    pub fn hasher(&self) -> &S {
        &self.hashing.build
    }

    /// Returns the number of entries. While other threads write, it is the number of some moments
    /// in the meantime, one for each shard.
    pub fn len(&self) -> usize {
        self.shards.iter().map(Shard::len).sum()
    }

    /// Returns `true` if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.len() == 0)
    }

    /// Returns how much memory the map takes, and what it is doing.
    pub fn stats(&self) -> VolatileStats {
        let mut stats = VolatileStats {
            len: self.len(),
            bytes: size_of_val(&*self.shards),
            ..VolatileStats::default()
        };
        let guard = self.domain.pin();
        for usage in self.shards.iter().map(|shard| shard.usage(&guard)) {
            stats.slots += usage.slots;
            stats.bytes += usage.bytes;
            stats.entries_waiting += usage.entries_waiting;
            stats.tables_waiting += usage.memory_waiting;
            stats.resizing += usize::from(usage.is_resizing);
            stats.resizes += usage.resizes;
        }
        stats
    }

    /// Drops what was replaced or removed, and frees old tables, as far as no guard prevents it.
    pub fn flush(&self) {
        self.shards.iter().for_each(|shard| shard.flush(&self.domain));
    }

    /// Returns the shard for a hash.
    #[inline(always)]
    pub(crate) fn shard(&self, hash: u64) -> &Shard<K, V> {
        let number = self.hashing.shard(hash);
        debug_assert!(number < self.shards.len());
        // SAFETY: a number of `shard_bits` bits, and there is a shard for each of them: see
        // `with_shards`.
        unsafe { self.shards.get_unchecked(number) }
    }
}

impl<K: Hash + Eq, V, S: BuildHasher> VolatileMap<K, V, S> {
    /// Makes room for `additional` more entries, so that inserting them does not resize any table,
    /// as far as hashes are distributed evenly. The room remains until
    /// [`shrink_to_fit`](VolatileMap::shrink_to_fit) is called.
    pub fn reserve(&self, additional: usize) {
        if additional == 0 {
            return;
        }
        let guard = self.domain.pin();
        let mean = (self.len().saturating_add(additional)).div_ceil(self.shards.len());
        // Four standard deviations more, because no shard gets exactly its part.
        let most = mean.saturating_add(4 * mean.isqrt());
        let most = if self.shards.len() == 1 { mean } else { most };
        self.shards.iter().for_each(|shard| shard.reserve(most, &self.hashing, &guard));
    }

    /// Makes the tables as small as the entries allow, and frees what no reader needs any more.
    pub fn shrink_to_fit(&self) {
        let guard = self.domain.pin();
        self.shards.iter().for_each(|shard| shard.shrink_to_fit(&self.hashing, &guard));
        drop(guard);
        self.flush();
    }

    /// Returns the value of a key, which can be changed: nobody else uses the map.
    pub fn get_mut<Q>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hashing.hash(key);
        let number = self.hashing.shard(hash);
        let guard = self.domain.pin();
        let shard = &mut self.shards[number];
        Some(&mut shard.get_mut(key, hash, &self.hashing, &guard)?.value)
    }
}

impl<K, V, S: Default> Default for VolatileMap<K, V, S> {
    fn default() -> Self {
        Self::with_hasher(S::default())
    }
}
