//! The partitioned hash index: which item holds a key.
//!
//! ```text
//! hash of the key   | partition | bucket, as long as there are few |  ...  | doublings |
//! bucket, 2 lines   next | spare | 7 x (signature, position)
//! ```
//!
//! The signature is the whole hash. Lookups take no lock: signature and position are separate
//! words, the position is written last and cleared first, and the item itself holds its key.
//! Changes lock a stripe of their partition. Locks are in ordinary memory, so that they cost no
//! writes of the medium and none survives a crash.
//!
//! A partition begins with a number of buckets that need not be a power of two: the bits after the
//! partition's, times that number, choose one. Further buckets are [added](super::grow) one by one;
//! the low bits of the hash say to which of the buckets that a first one was split into a key
//! belongs. So a key only ever moves between buckets of one stripe.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use evermap_index::fresh::Fresh;
use evermap_index::key::BytesRef;
use evermap_index::recipe::{commit_marked, help};
use evermap_pm::sync::{Mutex, MutexGuard, Rank};
use evermap_pm::{Error, ErrorKind, Medium, PmU64, Pool, Result};

use super::Config;
use super::item::Item;
use super::layout::{BUCKET, Bucket, CHUNKS, Descriptor, ENTRIES, Entry, MARK, PARTITION_BITS_MAX};

/// The greatest number of locks of a partition.
const STRIPES: u64 = 64;
/// The greatest number of buckets chained to a bucket. A split for each key in a chain keeps them
/// far shorter.
pub(super) const CHAIN_MAX: usize = 64;

/// Where a key belongs.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) signature: u64,
    /// The number of its partition.
    pub(super) partition: usize,
}

/// The contents of the index, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// The number of keys.
    pub keys: u64,
    /// The number of entries that there is space for.
    pub entries: u64,
    /// The number of buckets, without chained ones.
    pub buckets: u64,
    /// The number of chained buckets.
    pub chained: u64,
    /// The bytes of all blocks of buckets.
    pub bytes: u64,
}

impl Census {
    fn add(&mut self, other: Census) {
        self.keys += other.keys;
        self.entries += other.entries;
        self.buckets += other.buckets;
        self.chained += other.chained;
        self.bytes += other.bytes;
    }
}

/// A partition, in ordinary memory.
pub(super) struct Partition {
    /// The number of buckets, as it is durable.
    pub(super) count: AtomicU64,
    /// See [`Descriptor::chunks`].
    pub(super) chunks: [AtomicU64; CHUNKS],
    stripes: Box<[Mutex<()>]>,
    /// Held while a bucket is added, and by walks that want none to be.
    pub(super) growing: Mutex<()>,
}

/// The index of the items of a pool.
pub(super) struct Hash<M: Medium> {
    pub(super) pool: Arc<Pool<M>>,
    bits: u32,
    pub(super) base: u64,
    /// The offset of the descriptors.
    descriptors: u64,
    pub(super) partitions: Box<[Partition]>,
    spares: Mutex<Vec<u64>>,
    /// The number of chained buckets that are zeroed together, so that chaining one needs no extra
    /// persist.
    spares_together: u64,
}

/// What a [walk](Hash::walk) shows.
pub(super) enum Shown {
    /// The block of a chunk of buckets: its offset.
    Chunk(u64),
    /// A chained bucket: its offset.
    Chained(u64),
    /// An entry of a key: its signature, and the position of its item.
    Entry(u64, u64),
}

/// The number of buckets of a chunk.
pub(super) fn chunk_buckets(base: u64, chunk: usize) -> u64 {
    base << chunk.saturating_sub(1)
}

impl<M: Medium> Hash<M> {
    /// Writes an empty index, and flushes it. Returns the offset of the descriptors.
    ///
    /// # Errors
    ///
    /// `NoSpace`.
    pub(super) fn write_empty(
        pool: &Pool<M>,
        config: &Config,
        fresh: &mut Fresh<'_, M>,
    ) -> Result<u64> {
        let (m, partitions) = (pool.medium(), 1 << config.partition_bits);
        let all = fresh.allocate_fixed(partitions * size_of::<Descriptor>() as u64)?;
        let descriptors = m.slice::<Descriptor>(all, partitions).expect("just allocated");
        for descriptor in descriptors {
            let chunk = fresh.allocate_fixed(config.base * BUCKET)?;
            zero(m, chunk, config.base);
            m.store(&descriptor.count, config.base);
            m.store(&descriptor.chunks[0], chunk);
            descriptor.chunks[1..].iter().for_each(|cell| m.store(cell, 0));
            m.flush(descriptor);
        }
        Ok(all)
    }

    /// Opens the index whose descriptors are at `descriptors`. O(partitions).
    ///
    /// # Errors
    ///
    /// `Damaged`.
    pub(super) fn open(
        pool: Arc<Pool<M>>,
        (bits, base, descriptors): (u64, u64, u64),
        config: &Config,
    ) -> Result<Self> {
        let m = pool.medium();
        let wrong = |what| Error::damaged(descriptors, what);
        if bits > u64::from(PARTITION_BITS_MAX) || base == 0 || base > u64::from(u32::MAX) {
            return Err(wrong("an impossible number of partitions or buckets"));
        }
        let all = m.slice::<Descriptor>(descriptors, 1 << bits);
        let all = all.ok_or_else(|| wrong("there are no partitions"))?;
        // An earlier process may have stored a number and terminated before it was durable.
        m.persist(all);
        let read = |descriptor| Partition::read(m, descriptor, base);
        let partitions = all.iter().map(read).collect::<Result<_>>()?;
        Ok(Hash {
            bits: bits as u32,
            base,
            descriptors,
            partitions,
            spares: Mutex::ranked(Rank::Shard, Vec::new()),
            spares_together: config.spares.max(1),
            pool,
        })
    }

    /// Returns the offset of the block of descriptors.
    pub(super) fn descriptors(&self) -> u64 {
        self.descriptors
    }

    /// Returns the descriptor of a partition.
    pub(super) fn descriptor(&self, partition: usize) -> Result<&Descriptor> {
        let all = self.pool.medium().slice(self.descriptors, self.partitions.len() as u64);
        let found = all.and_then(|all: &[Descriptor]| all.get(partition));
        found.ok_or_else(|| Error::damaged(self.descriptors, "there are no partitions"))
    }

    /// Returns where `key` belongs.
    #[inline]
    pub(super) fn place(&self, key: &[u8]) -> Place {
        self.place_of(BytesRef::new(key, self.pool.seed()).hash)
    }

    #[inline]
    fn place_of(&self, signature: u64) -> Place {
        let partition = signature.checked_shr(u64::BITS - self.bits).unwrap_or(0) as usize;
        Place { signature, partition }
    }

    /// Returns the number of the first bucket for keys with this signature: less than the number
    /// that a partition begins with.
    #[inline]
    fn first_bucket(&self, signature: u64) -> u64 {
        // Not the bits that chose the partition.
        let rest = u128::from(signature << self.bits);
        ((rest * u128::from(self.base)) >> u64::BITS) as u64
    }

    /// Returns the number of the bucket for keys with this signature, of `count` buckets.
    #[inline]
    pub(super) fn bucket_of(&self, signature: u64, count: u64) -> u64 {
        let (first, level) = (self.first_bucket(signature), (count / self.base).ilog2());
        let split = first + self.base * (signature & ((2 << level) - 1));
        if split < count { split } else { first + self.base * (signature & ((1 << level) - 1)) }
    }

    /// Returns the offset of a bucket.
    #[inline]
    pub(super) fn bucket_at(&self, partition: usize, number: u64) -> u64 {
        let times = number / self.base;
        let (chunk, at) = match times.checked_ilog2() {
            None => (0, number),
            Some(level) => (level as usize + 1, number - (self.base << level)),
        };
        // Relaxed: stored before the number of buckets that includes this one.
        self.partitions[partition].chunks[chunk].load(Relaxed) + at * BUCKET
    }

    /// Returns the position of the item of `key`, which belongs to `place`. No lock, and no store
    /// unless a change is being made durable. The caller holds a guard.
    ///
    /// # Errors
    ///
    /// `Damaged`.
    #[inline]
    pub(super) fn find(&self, place: Place, key: &[u8]) -> Result<Option<u64>> {
        let partition = &self.partitions[place.partition];
        let mut count = partition.count.load(Acquire);
        loop {
            let number = self.bucket_of(place.signature, count);
            if let Some((_, position)) = self.entry(place, number, key)? {
                return Ok(Some(position));
            }
            // Where a moved key was may have become another key's. Acquire: the thread that has
            // stored what was read there had seen the number of buckets with which the key had
            // moved.
            let now = partition.count.load(Acquire);
            if now == count {
                return Ok(None);
            }
            count = now;
        }
    }

    /// Returns the entry of `key` in the chain of a bucket, and the position in it.
    #[inline]
    fn entry(&self, place: Place, number: u64, key: &[u8]) -> Result<Option<(&Entry, u64)>> {
        for bucket in self.chain(place.partition, number) {
            for entry in &bucket?.1.entries {
                if let Some(position) = self.position(entry, place, key)? {
                    return Ok(Some((entry, position)));
                }
            }
        }
        Ok(None)
    }

    /// Returns the position in `entry`, if that is the entry of `key`. Whatever the entry shows is
    /// durable then.
    ///
    /// Both words may change between the two loads. That causes no wrong answer, because the key in
    /// the item is compared; and an entry that has become another key's is not the entry of a key
    /// that stays.
    #[inline]
    fn position(&self, entry: &Entry, place: Place, key: &[u8]) -> Result<Option<u64>> {
        let m = self.pool.medium();
        if m.load(&entry.signature) != place.signature {
            return Ok(None);
        }
        let position = settled(m, &entry.position);
        Ok((position != 0 && Item::at(m, position)?.has_key(key)).then_some(position))
    }

    /// Iterates over a bucket and those chained to it, with their offsets.
    pub(super) fn chain(&self, partition: usize, number: u64) -> Chain<'_, M> {
        let next = self.bucket_at(partition, number);
        Chain { medium: self.pool.medium(), next, left: CHAIN_MAX + 1 }
    }

    /// Returns whether an entry in the bucket with this number, of `count`, is the entry of a key.
    /// Returns its signature and its position then.
    pub(super) fn bound(
        &self,
        entry: &Entry,
        (partition, number, count): (usize, u64, u64),
    ) -> Option<(u64, u64)> {
        let m = self.pool.medium();
        let position = m.load(&entry.position) & !MARK;
        let signature = m.load(&entry.signature);
        let belongs = self.place_of(signature).partition == partition
            && self.bucket_of(signature, count) == number;
        (position != 0 && belongs).then_some((signature, position))
    }

    /// Locks a place for changes.
    ///
    /// # Errors
    ///
    /// `Poisoned`.
    pub(super) fn lock(&self, place: Place) -> Result<Stripe<'_, M>> {
        let held = self.lock_stripe(place.partition, self.first_bucket(place.signature))?;
        // Relaxed: only a thread with this lock splits a bucket of these.
        let count = self.partitions[place.partition].count.load(Relaxed);
        let number = self.bucket_of(place.signature, count);
        Ok(Stripe { hash: self, place, number, count, _held: held })
    }

    /// Locks the bucket with this number, and all that are split from it.
    pub(super) fn lock_stripe(&self, partition: usize, number: u64) -> Result<MutexGuard<'_, ()>> {
        let stripes = &self.partitions[partition].stripes;
        let stripe = number % self.base % stripes.len() as u64;
        stripes[stripe as usize].lock().map_err(|_| ErrorKind::Poisoned.into())
    }

    /// Shows everything in a partition, while no bucket is added to it. Each bucket is locked while
    /// it is shown.
    ///
    /// # Errors
    ///
    /// Those of `show`. `Damaged` if a chain could not be read; the others were shown. `Poisoned`.
    pub(super) fn walk(
        &self,
        partition: usize,
        show: &mut dyn FnMut(Shown) -> Result<()>,
    ) -> Result<()> {
        let state = &self.partitions[partition];
        let _growing = state.growing.lock().map_err(|_| ErrorKind::Poisoned)?;
        let mut damage = Ok(());
        for chunk in &state.chunks {
            match chunk.load(Relaxed) {
                0 => {}
                chunk => show(Shown::Chunk(chunk))?,
            }
        }
        let count = state.count.load(Relaxed);
        for number in 0..count {
            let _held = self.lock_stripe(partition, number)?;
            for (at, bucket) in self.chain(partition, number).enumerate() {
                let (offset, bucket) = match bucket {
                    Ok(found) => found,
                    Err(error) => {
                        damage = damage.and(Err(error));
                        break;
                    }
                };
                if at > 0 {
                    show(Shown::Chained(offset))?;
                }
                self.settle(&bucket.next);
                for entry in &bucket.entries {
                    self.settle(&entry.position);
                    if let Some((signature, position)) =
                        self.bound(entry, (partition, number, count))
                    {
                        show(Shown::Entry(signature, position))?;
                    }
                }
            }
        }
        damage
    }

    /// Makes what an earlier process may have left in a cell of a bucket durable. Its stripe is
    /// locked, so no other thread is changing it.
    fn settle(&self, cell: &PmU64) {
        let m = self.pool.medium();
        let word = m.load(cell);
        if word & MARK != 0 {
            m.persist(cell);
            m.store_transient(cell, word & !MARK);
        }
    }

    /// Returns the offsets of the chained buckets that are not used yet.
    pub(super) fn spares(&self) -> Result<MutexGuard<'_, Vec<u64>>> {
        self.spares.lock().map_err(|_| ErrorKind::Poisoned.into())
    }

    /// Frees the chained buckets that are not used yet.
    pub(super) fn free_spares(&self) -> Result<()> {
        self.spares()?.drain(..).for_each(|spare| self.pool.free_unpublished(spare));
        Ok(())
    }

    /// Takes a chained bucket, which is empty and durable.
    ///
    /// # Errors
    ///
    /// `NoSpace`.
    pub(super) fn spare(&self) -> Result<Spare<'_, M>> {
        let mut spares = self.spares()?;
        if spares.is_empty() {
            let m = self.pool.medium();
            for _ in 0..self.spares_together {
                match self.pool.allocate_fixed(BUCKET) {
                    Ok(spare) => {
                        zero(m, spare, 1);
                        spares.push(spare);
                    }
                    Err(error) if spares.is_empty() => return Err(error),
                    Err(_) => break,
                }
            }
            m.fence();
        }
        let position = spares.pop().expect("there is one");
        Ok(Spare { hash: self, position, used: false })
    }

    /// Counts keys and entries. O(entries).
    ///
    /// # Errors
    ///
    /// `Damaged`.
    pub(super) fn census(&self) -> Result<Census> {
        let mut census = Census::default();
        for (at, partition) in self.partitions.iter().enumerate() {
            let mut here = Census::default();
            self.walk(at, &mut |shown| {
                match shown {
                    Shown::Chunk(_) => {}
                    Shown::Chained(_) => here.chained += 1,
                    Shown::Entry(..) => here.keys += 1,
                }
                Ok(())
            })?;
            here.buckets = partition.count.load(Relaxed);
            here.entries = (here.buckets + here.chained) * ENTRIES;
            let chunks = partition.chunks.iter().enumerate();
            let chunks = chunks.filter(|(_, chunk)| chunk.load(Relaxed) != 0);
            let in_chunks: u64 = chunks.map(|(at, _)| chunk_buckets(self.base, at)).sum();
            here.bytes = (in_chunks + here.chained) * BUCKET;
            census.add(here);
        }
        Ok(census)
    }

    /// Returns the size of what is in ordinary memory, in bytes.
    pub(super) fn dram_bytes(&self) -> u64 {
        let partition = |partition: &Partition| size_of_val(&*partition.stripes);
        let stripes: usize = self.partitions.iter().map(partition).sum();
        (size_of_val(&*self.partitions) + stripes) as u64
    }
}

impl Partition {
    /// Reads a partition whose number of buckets began with `base`.
    fn read<M: Medium>(m: &M, descriptor: &Descriptor, base: u64) -> Result<Self> {
        let wrong = || Error::damaged(m.offset_of(descriptor), "an impossible partition");
        let count = m.load(&descriptor.count);
        let chunks = descriptor.chunks.each_ref().map(|cell| m.load(cell));
        let mut buckets = 0_u64;
        for (at, &chunk) in chunks.iter().enumerate() {
            let here = chunk_buckets(base, at);
            let fits = here.checked_mul(BUCKET).is_some_and(|bytes| m.contains(chunk, bytes, 16));
            // One that is not needed yet may be there.
            if chunk != 0 && !fits || chunk == 0 && buckets < count {
                return Err(wrong());
            }
            buckets = buckets.saturating_add(here);
        }
        if count < base || count > buckets {
            return Err(wrong());
        }
        let stripes = base.min(STRIPES);
        Ok(Partition {
            count: AtomicU64::new(count),
            chunks: chunks.map(AtomicU64::new),
            stripes: (0..stripes).map(|_| Mutex::ranked(Rank::Key, ())).collect(),
            growing: Mutex::ranked(Rank::Walk, ()),
        })
    }

    /// Lets readers use one more bucket, which is durable.
    pub(super) fn publish(&self, count: u64) {
        // Release: its contents and its chunk are visible.
        self.count.store(count, Release);
    }
}

/// A bucket and those chained to it.
pub(super) struct Chain<'m, M> {
    medium: &'m M,
    next: u64,
    left: usize,
}

impl<'m, M: Medium> Iterator for Chain<'m, M> {
    type Item = Result<(u64, &'m Bucket)>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.next == 0 {
            return None;
        }
        let (here, m) = (self.next, self.medium);
        let Some(bucket) = m.at::<Bucket>(here).filter(|_| self.left > 0) else {
            self.next = 0;
            return Some(Err(Error::damaged(here, "a chain of buckets leads nowhere")));
        };
        self.left -= 1;
        self.next = settled(m, &bucket.next);
        Some(Ok((here, bucket)))
    }
}

/// Returns the position in the cell of an entry, or of the next bucket, once that is durable.
#[inline]
fn settled<M: Medium>(m: &M, cell: &PmU64) -> u64 {
    match m.load(cell) {
        // Only the thread that has removed the key, or the bucket, removes the mark. If another one
        // did, the same word could be that of a later removal.
        MARK => {
            m.persist(cell);
            0
        }
        // While the caller has a guard, no other item or bucket has this position.
        word => help(m, cell, word, MARK),
    }
}

/// A chained bucket that no bucket refers to. Dropping it keeps it for later.
pub(super) struct Spare<'h, M: Medium> {
    hash: &'h Hash<M>,
    pub(super) position: u64,
    used: bool,
}

impl<M: Medium> Spare<'_, M> {
    /// Leaves it to the bucket that refers to it.
    pub(super) fn keep(mut self) -> u64 {
        self.used = true;
        self.position
    }
}

impl<M: Medium> Drop for Spare<'_, M> {
    fn drop(&mut self) {
        if !self.used
            && let Ok(mut spares) = self.hash.spares()
        {
            spares.push(self.position);
        }
    }
}

/// A locked place: no other thread changes its keys.
pub(super) struct Stripe<'h, M: Medium> {
    hash: &'h Hash<M>,
    place: Place,
    number: u64,
    count: u64,
    _held: MutexGuard<'h, ()>,
}

/// Where a key is, or where it can be.
pub(super) enum Found<'h, M: Medium> {
    /// Its entry, and the position in it.
    Bound(&'h Entry, u64),
    /// A free entry, and whether it is in a chained bucket.
    Free(&'h Entry, bool),
    /// No entry is free: a bucket has to be chained to the last one of this number of buckets.
    Full(&'h Bucket, usize),
    /// A bucket that can be chained to the last one.
    Chained(&'h Bucket, Spare<'h, M>),
}

impl<M: Medium> Found<'_, M> {
    /// Returns the position of the key's item.
    pub(super) fn old(&self) -> Option<u64> {
        match self {
            Found::Bound(_, position) => Some(*position),
            _ => None,
        }
    }

    /// Returns whether a key that is bound here is in a chained bucket.
    pub(super) fn is_crowded(&self) -> bool {
        matches!(self, Found::Free(_, true) | Found::Chained(..))
    }
}

impl<'h, M: Medium> Stripe<'h, M> {
    /// Finds the entry of `key`, or one that is free. What it finds is durable.
    ///
    /// # Errors
    ///
    /// `Damaged`.
    pub(super) fn search(&self, key: &[u8]) -> Result<Found<'h, M>> {
        let (hash, place) = (self.hash, self.place);
        let (mut free, mut last, mut buckets) = (None, None, 0);
        for bucket in hash.chain(place.partition, self.number) {
            let (_, bucket) = bucket?;
            for entry in &bucket.entries {
                if let Some(position) = hash.position(entry, place, key)? {
                    return Ok(Found::Bound(entry, position));
                }
                let here = (place.partition, self.number, self.count);
                if free.is_none() && hash.bound(entry, here).is_none() {
                    free = Some((entry, buckets > 0));
                }
            }
            (last, buckets) = (Some(bucket), buckets + 1);
        }
        Ok(match free {
            Some((entry, chained)) => Found::Free(entry, chained),
            None => Found::Full(last.expect("a chain has a first bucket"), buckets),
        })
    }

    /// Ensures that the key can be bound.
    ///
    /// # Errors
    ///
    /// `NoSpace`.
    pub(super) fn make_room(&self, found: Found<'h, M>) -> Result<Found<'h, M>> {
        match found {
            Found::Full(_, buckets) if buckets > CHAIN_MAX => Err(Error::no_space(
                format!("a bucket of the hash index has {CHAIN_MAX} others chained to it"),
                BUCKET,
            )),
            Found::Full(last, _) => Ok(Found::Chained(last, self.hash.spare()?)),
            found => Ok(found),
        }
    }

    /// Binds the key that was searched for to the item at `new`, with one persist. There is
    /// [room](Self::make_room) for it.
    ///
    /// # Errors
    ///
    /// `Damaged`; nothing has changed then.
    pub(super) fn bind(&self, found: Found<'h, M>, new: u64) -> Result<()> {
        let m = self.hash.pool.medium();
        match found {
            Found::Bound(entry, _) => commit_marked(m, &entry.position, new, MARK),
            Found::Free(entry, _) => self.fill(entry, new),
            Found::Full(..) => unreachable!("there is room"),
            Found::Chained(last, spare) => {
                let position = spare.position;
                let outside = || Error::damaged(position, "a spare bucket is outside");
                let bucket = m.at::<Bucket>(position).ok_or_else(outside)?;
                let position = spare.keep();
                // It becomes durable by the same fence as the entry. If only one of the two does,
                // an empty bucket is chained, or an entry that was not acknowledged is in no chain.
                m.store(&last.next, position | MARK);
                m.flush(&last.next);
                self.fill(&bucket.entries[0], new);
                m.store_transient(&last.next, position);
            }
        }
        Ok(())
    }

    /// Makes a free entry that of the key.
    fn fill(&self, entry: &Entry, new: u64) {
        let m = self.hash.pool.medium();
        match m.load(&entry.position) {
            0 => {}
            // The removal of another key, by a process that has died: its readers know of it, so it
            // becomes durable before they lose sight of it.
            MARK => m.persist(&entry.position),
            // Of a key that has moved: without its position before it is without its signature.
            _ => m.store(&entry.position, 0),
        }
        // The position last, in the same line: a reader that finds a position finds its signature,
        // after a crash too.
        m.store(&entry.signature, self.place.signature);
        commit_marked(m, &entry.position, new, MARK);
    }

    /// Removes a key that was found, with one persist.
    pub(super) fn unbind(&self, entry: &Entry) {
        commit_marked(self.hash.pool.medium(), &entry.position, 0, MARK);
    }
}

/// Zeroes this many buckets from an offset on, and flushes them.
fn zero<M: Medium>(m: &M, position: u64, buckets: u64) {
    let cells = m.slice::<PmU64>(position, buckets * BUCKET / 8).expect("just allocated");
    cells.iter().for_each(|cell| m.store(cell, 0));
    m.flush(cells);
}
