//! Hashes of keys, and which part of them is used for what.

use std::hash::{BuildHasher, Hash, Hasher};

use super::bucket::MARKS;

/// A multiplier with about as many ones as zeros, from the digits of pi.
const SPREAD: u64 = 0x243f_6a88_85a3_08d3;

/// Computes hashes.
pub(super) struct Hashing<S> {
    pub(super) build: S,
    /// The number of leading bits of a hash that choose the shard.
    pub(super) shard_bits: u32,
}

/// Where a key belongs within a shard: its hash, rotated so that the bits that choose the shard are
/// the last ones. The leading bits choose the bucket.
#[derive(Clone, Copy, Default)]
pub(super) struct Place(u64);

/// The position of the tag in a place, and of the mark: between the bits for the bucket and those
/// for the shard, where the hashes of all hashers that return the number itself are good.
const TAG_SHIFT: u32 = 24;
const MARK_SHIFT: u32 = 20;

impl Place {
    /// Returns the bits of which the leading ones choose the bucket.
    #[inline(always)]
    pub(super) fn prefix(self) -> u64 {
        self.0
    }

    /// Returns what distinguishes most entries of a bucket. Not zero.
    #[inline(always)]
    pub(super) fn tag(self) -> u8 {
        ((self.0 >> TAG_SHIFT) as u8).max(1)
    }

    /// Returns the number of the mark for overflow buckets.
    #[inline(always)]
    pub(super) fn mark(self) -> u64 {
        self.0 >> MARK_SHIFT & (MARKS - 1)
    }
}

impl<S> Hashing<S> {
    /// Returns the hash that chooses the shard, and also the place in tables without a seed.
    #[inline(always)]
    pub(super) fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64
    where
        S: BuildHasher,
    {
        spread(self.build.hash_one(key))
    }

    /// Returns the place for a hash in a table.
    #[inline(always)]
    pub(super) fn place(&self, hash: u64) -> Place {
        Place(hash.rotate_left(self.shard_bits))
    }

    /// Returns the hash of a key that determines its place in a table with this seed.
    pub(super) fn seeded_hash<Q: Hash + ?Sized>(&self, key: &Q, seed: Option<u64>) -> u64
    where
        S: BuildHasher,
    {
        let Some(seed) = seed else { return self.hash(key) };
        // Before the key: so the seed determines which keys have equal hashes, unless the hasher is
        // so weak that some keys have equal hashes whatever precedes them.
        let mut hasher = self.build.build_hasher();
        hasher.write_u64(seed);
        key.hash(&mut hasher);
        spread(hasher.finish())
    }

    /// Returns the place of a key in a table with this seed.
    pub(super) fn place_of<Q: Hash + ?Sized>(&self, key: &Q, seed: Option<u64>) -> Place
    where
        S: BuildHasher,
    {
        self.place(self.seeded_hash(key, seed))
    }

    /// Returns the number of the shard for a hash.
    #[inline(always)]
    pub(super) fn shard(&self, hash: u64) -> usize {
        self.place(hash).0 as usize & ((1 << self.shard_bits) - 1)
    }
}

/// Distributes what a hasher returned over all bits. Hashers for numbers are often weak in the
/// leading bits or in the last ones; both matter here.
#[inline(always)]
fn spread(hash: u64) -> u64 {
    let product = u128::from(hash) * u128::from(SPREAD);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::BuildHasherDefault;

    use super::*;

    /// Returns the last number that was written.
    #[derive(Default)]
    struct Identity(u64);

    impl Hasher for Identity {
        fn finish(&self) -> u64 {
            self.0
        }
        fn write(&mut self, _: &[u8]) {}
        fn write_u64(&mut self, number: u64) {
            self.0 = number;
        }
    }

    #[test]
    fn a_hasher_that_returns_the_number_is_enough() {
        let hashing = Hashing { build: BuildHasherDefault::<Identity>::default(), shard_bits: 4 };
        for factor in [1, 2, 1 << 12, 1 << 32, 1 << 50] {
            let hashes: Vec<u64> = (0..4096_u64).map(|key| hashing.hash(&(key * factor))).collect();
            let shards = hashes.iter().map(|&hash| hashing.shard(hash));
            assert_eq!(shards.collect::<HashSet<_>>().len(), 16, "factor {factor}");
            let buckets = hashes.iter().map(|&hash| hashing.place(hash).prefix() >> 56);
            assert!(buckets.collect::<HashSet<_>>().len() > 200, "factor {factor}");
            let tags = hashes.iter().map(|&hash| hashing.place(hash).tag());
            assert!(tags.collect::<HashSet<_>>().len() > 200, "factor {factor}");
        }
    }

    #[test]
    fn a_seed_changes_the_place() {
        let hashing = Hashing { build: std::hash::RandomState::new(), shard_bits: 0 };
        let places = |seed| (0..100).map(move |key| (key, seed));
        let prefix = |(key, seed): (u64, Option<u64>)| hashing.place_of(&key, seed).prefix();
        let of = |seed| places(seed).map(prefix).collect::<Vec<u64>>();
        assert!(of(None) == of(None) && of(Some(1)) == of(Some(1)));
        assert!(of(None) != of(Some(0)) && of(Some(0)) != of(Some(1)));
        assert_eq!(hashing.shard(u64::MAX), 0);
    }
}
