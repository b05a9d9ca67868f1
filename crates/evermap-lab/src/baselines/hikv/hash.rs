//! The partitioned hash index: which item holds a key.
//!
//! ```text
//! hash of the key   | partition | bucket of the partition ...      |   all 64 bits: the signature
//! bucket, 2 lines   next | spare | 7 x (signature, position)           position 0: a free entry
//! ```
//!
//! Lookups take no lock: signature and position are separate words, the position is written last
//! and cleared first, and the item itself holds its key. Changes lock a stripe of their partition.
//! Locks are in ordinary memory, so that they cost no writes of the medium and none survives a
//! crash.
//!
//! A partition has as many buckets as the expected keys need. It does not split; a full bucket gets
//! another one chained to it, up to [`CHAIN_MAX`].

use std::sync::Arc;

use evermap_index::key::BytesRef;
use evermap_pm::sync::{Mutex, MutexGuard};
use evermap_pm::{Error, Medium, PmU64, Pool, Result, pod};

use super::item::Item;

/// The number of partitions, as a power of two.
const PARTITION_BITS: u32 = 6;
/// The number of partitions.
pub(super) const PARTITIONS: usize = 1 << PARTITION_BITS;
/// The number of locks of a partition.
const STRIPES: usize = 64;
/// The number of entries of a bucket.
const ENTRIES: u64 = 7;
/// Keys for each bucket that a table is created for: about one bucket in eight needs another one.
const KEYS_PER_BUCKET: u64 = 5;
/// The least number of keys that a table is created for.
const KEYS_MIN: u64 = 2048;
/// The greatest number of buckets chained to a bucket.
const CHAIN_MAX: usize = 16;
/// The number of chained buckets that are zeroed together, so that chaining one needs no extra
/// persist.
const SPARES: u64 = 64;

pod! {
    /// Where the item of a key is. Never straddles a line.
    struct Entry: 16 {
        /// The hash of the key.
        signature: PmU64,
        /// The position of the item, or 0.
        position: PmU64,
    }
}

pod! {
    struct Bucket: 128 {
        /// The position of the next bucket of the chain, or 0.
        next: PmU64,
        spare: PmU64,
        entries: [Entry; 7],
    }
}
const BUCKET: u64 = size_of::<Bucket>() as u64;

/// Where a key belongs.
#[derive(Clone, Copy)]
pub(super) struct Place {
    signature: u64,
    /// The number of its partition.
    pub(super) partition: usize,
    /// The number of its bucket in the partition.
    bucket: u64,
}

/// The contents of the index, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Census {
    /// The number of keys.
    pub(super) keys: u64,
    /// The number of entries, used or free.
    pub(super) entries: u64,
}

/// Zeroed buckets that are not used yet.
#[derive(Default)]
struct Spares {
    next: u64,
    left: u64,
}

/// The index of the items of a pool.
pub(super) struct Hash<M: Medium> {
    pool: Arc<Pool<M>>,
    /// The position of the buckets, one partition after the other.
    buckets: u64,
    /// The number of buckets of a partition, without chained ones.
    per_partition: u64,
    locks: Box<[Mutex<()>]>,
    spares: Mutex<Spares>,
}

impl<M: Medium> Hash<M> {
    /// Creates an empty index for about `keys` keys. O(keys).
    ///
    /// # Errors
    ///
    /// `NoSpace`.
    pub(super) fn create(pool: Arc<Pool<M>>, keys: u64) -> Result<Self> {
        let per_partition = keys.max(KEYS_MIN).div_ceil(KEYS_PER_BUCKET * PARTITIONS as u64);
        let buckets = zeroed(&pool, per_partition * PARTITIONS as u64)?;
        let locks = (0..PARTITIONS * STRIPES).map(|_| Mutex::new(())).collect();
        Ok(Hash { pool, buckets, per_partition, locks, spares: Mutex::default() })
    }

    /// Returns where `key` belongs.
    #[inline]
    pub(super) fn place(&self, key: &[u8]) -> Place {
        let signature = BytesRef::new(key, self.pool.seed()).hash;
        let partition = (signature >> (u64::BITS - PARTITION_BITS)) as usize;
        // Not the bits that chose the partition.
        let rest = u128::from(signature << PARTITION_BITS);
        let bucket = ((rest * u128::from(self.per_partition)) >> u64::BITS) as u64;
        Place { signature, partition, bucket }
    }

    /// Returns the position of the item of `key`, which belongs to `place`. No lock, no store.
    ///
    /// # Errors
    ///
    /// `Damaged`.
    #[inline]
    pub(super) fn find(&self, place: Place, key: &[u8]) -> Result<Option<u64>> {
        Ok(self.entry(place, key)?.map(|(_, position)| position))
    }

    /// Returns the entry of `key`, and the position in it.
    #[inline]
    fn entry(&self, place: Place, key: &[u8]) -> Result<Option<(&Entry, u64)>> {
        for bucket in self.chain(place.partition, place.bucket) {
            for entry in &bucket?.entries {
                if let Some(position) = self.position(entry, place, key)? {
                    return Ok(Some((entry, position)));
                }
            }
        }
        Ok(None)
    }

    /// Returns the position in `entry`, if that is the entry of `key`.
    ///
    /// Both words may change between the two loads. That causes no wrong answer, because the key in
    /// the item is compared; and an entry that has become another key's is not the entry of a key
    /// that stays.
    #[inline]
    fn position(&self, entry: &Entry, place: Place, key: &[u8]) -> Result<Option<u64>> {
        let m = self.pool.medium();
        if m.load_relaxed(&entry.signature) != place.signature {
            return Ok(None);
        }
        let position = m.load(&entry.position);
        Ok((position != 0 && Item::at(m, position)?.has_key(key)).then_some(position))
    }

    /// Iterates over a bucket and those chained to it.
    fn chain(&self, partition: usize, bucket: u64) -> impl Iterator<Item = Result<&Bucket>> {
        let m = self.pool.medium();
        let number = partition as u64 * self.per_partition + bucket;
        let (mut next, mut left) = (self.buckets + number * BUCKET, CHAIN_MAX + 1);
        std::iter::from_fn(move || {
            if next == 0 {
                return None;
            }
            let here = next;
            let Some(bucket) = m.at::<Bucket>(here).filter(|_| left > 0) else {
                next = 0;
                return Some(Err(Error::damaged(here, "a chain of buckets leads nowhere")));
            };
            left -= 1;
            next = m.load(&bucket.next);
            Some(Ok(bucket))
        })
    }

    /// Locks a place for changes.
    ///
    /// # Errors
    ///
    /// `Poisoned`.
    pub(super) fn lock(&self, place: Place) -> Result<Stripe<'_, M>> {
        let stripe = place.partition * STRIPES + place.bucket as usize % STRIPES;
        let held = self.locks[stripe].lock().map_err(|_| evermap_pm::ErrorKind::Poisoned)?;
        Ok(Stripe { hash: self, place, _held: held })
    }

    /// Counts keys and entries. O(entries). Call without concurrent changes.
    ///
    /// # Errors
    ///
    /// `Damaged`.
    pub(super) fn census(&self) -> Result<Census> {
        let (m, mut census) = (self.pool.medium(), Census::default());
        for partition in 0..PARTITIONS {
            for first in 0..self.per_partition {
                for bucket in self.chain(partition, first) {
                    let taken = bucket?.entries.iter().filter(|one| m.load(&one.position) != 0);
                    census.keys += taken.count() as u64;
                    census.entries += ENTRIES;
                }
            }
        }
        Ok(census)
    }

    /// Returns the size of the locks in bytes.
    pub(super) fn dram_bytes(&self) -> u64 {
        size_of_val(&*self.locks) as u64
    }

    /// Chains a bucket to `last`, the end of a chain of `buckets` buckets.
    ///
    /// It becomes durable by the same fence as the entry that is written to it next. If only one of
    /// the two does, an empty bucket is chained, or an entry that was not acknowledged is in no
    /// chain.
    fn chain_on(&self, last: &Bucket, buckets: usize) -> Result<&Bucket> {
        let m = self.pool.medium();
        if buckets > CHAIN_MAX {
            let keys = self.per_partition * PARTITIONS as u64 * KEYS_PER_BUCKET;
            return Err(Error::no_space(
                format!(
                    "the hash index was made for {keys} keys and does not grow; a bucket has \
                     {CHAIN_MAX} others chained to it"
                ),
                BUCKET,
            ));
        }
        let mut spares = self.spares.lock().map_err(|_| evermap_pm::ErrorKind::Poisoned)?;
        if spares.left == 0 {
            *spares = Spares { next: zeroed(&self.pool, SPARES)?, left: SPARES };
        }
        let position = spares.next;
        spares.next += BUCKET;
        spares.left -= 1;
        m.store(&last.next, position);
        m.flush(&last.next);
        m.at(position).ok_or_else(|| Error::damaged(position, "a spare bucket is outside"))
    }
}

/// A locked place: no other thread changes its keys.
pub(super) struct Stripe<'h, M: Medium> {
    hash: &'h Hash<M>,
    place: Place,
    _held: MutexGuard<'h, ()>,
}

impl<M: Medium> Stripe<'_, M> {
    /// Binds `key` to the item at `new`, which is durable, with one persist. Returns the position
    /// of the previous item.
    ///
    /// # Errors
    ///
    /// `NoSpace` if the chain has its greatest length; nothing has changed then. `Damaged`.
    pub(super) fn bind(&self, key: &[u8], new: u64) -> Result<Option<u64>> {
        let (hash, place, m) = (self.hash, self.place, self.hash.pool.medium());
        let (mut free, mut last, mut buckets) = (None, None, 0);
        for bucket in hash.chain(place.partition, place.bucket) {
            let bucket = bucket?;
            for entry in &bucket.entries {
                if let Some(old) = hash.position(entry, place, key)? {
                    m.store(&entry.position, new);
                    m.persist(&entry.position);
                    return Ok(Some(old));
                }
                if free.is_none() && m.load(&entry.position) == 0 {
                    free = Some(entry);
                }
            }
            (last, buckets) = (Some(bucket), buckets + 1);
        }
        let entry = match free {
            Some(entry) => entry,
            None => &hash.chain_on(last.expect("a chain has a first bucket"), buckets)?.entries[0],
        };
        // The position last, in the same line: a reader that finds a position finds its signature,
        // after a crash too.
        m.store(&entry.signature, place.signature);
        m.store(&entry.position, new);
        m.persist(entry);
        Ok(None)
    }

    /// Removes `key` with one persist. Returns the position of its item.
    ///
    /// # Errors
    ///
    /// `Damaged`.
    pub(super) fn unbind(&self, key: &[u8]) -> Result<Option<u64>> {
        let Some((entry, old)) = self.hash.entry(self.place, key)? else { return Ok(None) };
        let m = self.hash.pool.medium();
        m.store(&entry.position, 0);
        m.persist(&entry.position);
        Ok(Some(old))
    }
}

/// Allocates this many buckets without entries durably. Returns their position.
fn zeroed<M: Medium>(pool: &Pool<M>, buckets: u64) -> Result<u64> {
    let bytes = buckets * BUCKET;
    let m = pool.medium();
    // With space to align them, so that no entry straddles a line.
    let position = pool.allocate_fixed(bytes + BUCKET)?.next_multiple_of(BUCKET);
    let cells = m.slice::<PmU64>(position, bytes / 8).expect("just allocated");
    cells.iter().for_each(|cell| m.store(cell, 0));
    m.persist(cells);
    Ok(position)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baselines::hikv::item;
    use evermap_pm::medium::{Counted, Dram, Pages};
    use evermap_pm::region::{Identity, RegionConfig};

    fn pool() -> Arc<Pool<Counted<Dram>>> {
        let medium = Counted::new(Dram::reserve(1 << 30, Pages::Base).unwrap());
        let config = RegionConfig { capacity: 1 << 30, seed: Some(0), ..Default::default() };
        Pool::create(medium, &config, Identity::default()).unwrap()
    }

    fn put<M: Medium>(hash: &Hash<M>, key: u64) -> Result<Option<u64>> {
        let key = key.to_be_bytes();
        let position = item::write(&hash.pool, &key, b"value")?;
        hash.lock(hash.place(&key))?.bind(&key, position)
    }

    #[test]
    fn entries_are_16_bytes_and_lie_in_one_line() {
        assert_eq!((size_of::<Entry>(), BUCKET), (16, 128));
        assert_eq!(std::mem::offset_of!(Bucket, entries) % 16, 0);
        let hash = Hash::create(pool(), 10).unwrap();
        assert_eq!(hash.buckets % BUCKET, 0);
        assert_eq!(zeroed(&hash.pool, 3).unwrap() % BUCKET, 0);
    }

    /// No two such keys are known, so the test uses the place of one key for all.
    #[test]
    fn keys_with_equal_signatures_are_kept_apart() {
        let hash = Hash::create(pool(), 10).unwrap();
        let place = hash.place(b"ant");
        let item = |key: &[u8]| item::write(&hash.pool, key, b"value").unwrap();
        let (ant, bee, cow) = (item(b"ant"), item(b"bee"), item(b"cow"));
        let stripe = hash.lock(place).unwrap();
        assert_eq!(stripe.bind(b"ant", ant).unwrap(), None);
        assert_eq!(stripe.bind(b"bee", bee).unwrap(), None);
        let found = |key: &[u8]| hash.find(place, key).unwrap();
        assert_eq!((found(b"ant"), found(b"bee"), found(b"cow")), (Some(ant), Some(bee), None));
        assert_eq!(stripe.unbind(b"ant").unwrap(), Some(ant));
        assert_eq!(stripe.bind(b"cow", cow).unwrap(), None);
        assert_eq!((found(b"ant"), found(b"bee"), found(b"cow")), (None, Some(bee), Some(cow)));
        assert_eq!(hash.census().unwrap().keys, 2);
    }

    /// Partition and bucket come from different bits: no partition uses only a few of its buckets.
    #[test]
    fn keys_spread_over_partitions_and_buckets() {
        let hash = Hash::create(pool(), 64_000).unwrap();
        let mut used = std::collections::BTreeSet::new();
        let mut partitions = [0; PARTITIONS];
        for key in 0..64_000u64 {
            let place = hash.place(&key.to_be_bytes());
            assert!(place.bucket < hash.per_partition);
            partitions[place.partition] += 1;
            used.insert((place.partition, place.bucket));
        }
        assert!(partitions.iter().all(|&keys| (800..1200).contains(&keys)), "{partitions:?}");
        // Five keys for each bucket leave one in 150 without any.
        assert!(used.len() as u64 > hash.per_partition * PARTITIONS as u64 * 97 / 100);
    }

    /// Far more keys than expected are kept in chains. Beyond those there is an error that explains
    /// the reason, and the present keys stay.
    #[test]
    fn chains_are_bounded_and_their_end_is_explained() {
        let hash = Hash::create(pool(), 1).unwrap();
        let mut bound = 0;
        let error = loop {
            match put(&hash, bound) {
                Ok(old) => assert_eq!(old, None),
                Err(error) => break error,
            }
            bound += 1;
        };
        assert!(error.is_no_space());
        assert!(error.to_string().contains("does not grow"), "{error}");
        assert!(bound > 10 * KEYS_MIN, "{bound}");
        let census = hash.census().unwrap();
        assert_eq!(census.keys, bound);
        assert!(census.entries >= bound);
        for key in 0..bound {
            let bytes = key.to_be_bytes();
            assert!(hash.find(hash.place(&bytes), &bytes).unwrap().is_some(), "{key}");
        }
        assert!(put(&hash, 0).unwrap().is_some());
    }

    type Change<'c> = &'c dyn Fn(&Stripe<'_, Counted<Dram>>, &[u8], u64) -> Option<u64>;

    /// A freed entry is used again, and chained buckets cost no extra persist.
    #[test]
    fn changes_persist_once() {
        let hash = Hash::create(pool(), 1).unwrap();
        let m = hash.pool.medium();
        let keys = 8 * KEYS_MIN;
        let items: Vec<_> = (0..keys)
            .map(|key| item::write(&hash.pool, &key.to_be_bytes(), b"value").unwrap())
            .collect();
        let fences = |change: Change<'_>| {
            let before = m.counts().fences;
            for (key, &item) in items.iter().enumerate() {
                let key = (key as u64).to_be_bytes();
                change(&hash.lock(hash.place(&key)).unwrap(), &key, item);
            }
            m.counts().fences - before
        };
        let bind = |stripe: &Stripe<'_, _>, key: &[u8], item| stripe.bind(key, item).unwrap();
        let inserting = fences(&bind);
        // One for each 64 chained buckets, two where those open an extent.
        let chained = (hash.census().unwrap().entries / ENTRIES).div_ceil(SPARES);
        assert!((keys..=keys + 2 * chained).contains(&inserting), "{inserting}");
        assert_eq!(fences(&bind), keys);
        let entries = hash.census().unwrap().entries;
        assert_eq!(fences(&|stripe, key, _| stripe.unbind(key).unwrap()), keys);
        assert_eq!(hash.census().unwrap(), Census { keys: 0, entries });
        assert_eq!(fences(&bind), keys);
        assert_eq!(hash.census().unwrap(), Census { keys, entries });
    }
}
