//! Hashes of keys, and which part of them is used for what.

use std::hash::{BuildHasher, Hash, Hasher};

use crate::bucket::{MARKS, SPLIT_BITS};
use crate::table::BITS_MAX;

/// A multiplier with about as many ones as zeros, from the digits of pi.
const SPREAD: u64 = 0x243f_6a88_85a3_08d3;

/// Computes hashes.
pub(crate) struct Hashing<S> {
    pub(crate) build: S,
    /// The number of leading bits of a hash that choose the shard.
    pub(crate) shard_bits: u32,
}

/// Where a key belongs within a shard: its hash, rotated so that the bits that choose the shard are
/// the last ones. The leading bits choose the bucket.
#[derive(Clone, Copy)]
pub(crate) struct Place(u64);

/// The position of the tag in a place: between the bits for the bucket and those for the shard,
/// where the hashes of all hashers that return the number itself are good.
const TAG_SHIFT: u32 = 24;

/// The bits that choose the bucket, and [split bits](Place::split) after them, are before the tag.
const _: () = assert!(first_split_bit(BITS_MAX) + SPLIT_BITS + u8::BITS + TAG_SHIFT <= u64::BITS);

/// Returns the position of the first split bit in tables with this number of bits: tables of
/// `SPLIT_BITS` sizes have the same split bits.
const fn first_split_bit(bits: u32) -> u32 {
    bits / SPLIT_BITS * SPLIT_BITS
}

/// Returns `true` if tables with these numbers of bits have the same split bits, so that entries
/// can be moved from one to the other without their hashes.
pub(crate) fn have_same_split_bits(bits: u32, others: u32) -> bool {
    first_split_bit(bits) == first_split_bit(others)
}

impl Place {
    /// Returns a place that begins like that of an entry in bucket `index` of a table with this
    /// number of bits, as far as is known there: it suffices in tables with the same split bits.
    #[inline(always)]
    pub(crate) fn in_bucket(index: usize, bits: u32, split: u32, tag: u8) -> Self {
        let first = first_split_bit(bits);
        let known = index as u64 >> (bits - first) << SPLIT_BITS | u64::from(split);
        Place(known << (u64::BITS - first - SPLIT_BITS) | u64::from(tag) << TAG_SHIFT)
    }

    /// Returns the bits of a place that are stored beside the entry in a table with this number of
    /// bits: those from which the buckets of some larger tables follow.
    #[inline(always)]
    pub(crate) fn split(self, bits: u32) -> u32 {
        (self.0 << first_split_bit(bits) >> (u64::BITS - SPLIT_BITS)) as u32
    }

    /// Returns the bits of which the leading ones choose the bucket.
    #[inline(always)]
    pub(crate) fn prefix(self) -> u64 {
        self.0
    }

    /// Returns what distinguishes most entries of a bucket. Not zero.
    #[inline(always)]
    pub(crate) fn tag(self) -> u8 {
        ((self.0 >> TAG_SHIFT) as u8).max(1)
    }

    /// Returns the number of the mark for overflow buckets.
    #[inline(always)]
    pub(crate) fn mark(self) -> u64 {
        u64::from(self.tag()) % MARKS
    }
}

impl<S> Hashing<S> {
    /// Returns the hash that chooses the shard, and also the place in tables without a seed.
    #[inline(always)]
    pub(crate) fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64
    where
        S: BuildHasher,
    {
        spread(self.build.hash_one(key))
    }

    /// Returns the place for a hash in a table.
    #[inline(always)]
    pub(crate) fn place(&self, hash: u64) -> Place {
        Place(hash.rotate_left(self.shard_bits))
    }

    /// Returns the hash of a key that determines its place in a table with this seed.
    pub(crate) fn seeded_hash<Q: Hash + ?Sized>(&self, key: &Q, seed: Option<u64>) -> u64
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
    pub(crate) fn place_of<Q: Hash + ?Sized>(&self, key: &Q, seed: Option<u64>) -> Place
    where
        S: BuildHasher,
    {
        self.place(self.seeded_hash(key, seed))
    }

    /// Returns the number of the shard for a hash.
    #[inline(always)]
    pub(crate) fn shard(&self, hash: u64) -> usize {
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

    use evermap_pm::sim::rng::Rng;

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

    /// A place of which a bucket knows a part is as good as the whole in all tables for which that
    /// is enough.
    #[test]
    fn split_bits_choose_the_buckets_of_other_tables() {
        let mut random = Rng::new(9);
        let index = |place: Place, bits| (place.prefix() >> (u64::BITS - bits)) as usize;
        let all =
            |place: Place, bits| (index(place, bits), place.split(bits), place.tag(), place.mark());
        for _ in 0..200 {
            let place = Place(random.draw());
            for bits in 1..=BITS_MAX {
                let (index, split, tag, _) = all(place, bits);
                let known = Place::in_bucket(index, bits, split, tag);
                let same = (1..=BITS_MAX).filter(|&others| have_same_split_bits(bits, others));
                let same = Vec::from_iter(same);
                assert!(same.len() >= 3 && same.contains(&bits));
                assert!(same.iter().all(|&others| all(known, others) == all(place, others)));
            }
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
