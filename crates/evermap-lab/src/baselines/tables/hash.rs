//! The hash functions that tables in ordinary memory use here: those of Evermap's indexes.

use std::hash::{BuildHasher, Hasher};

use evermap_index::Key;
use evermap_index::key::BytesRef;

/// Builds hashers that hash `u64` keys and byte strings as Evermap's indexes do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BuildFold;

/// See [`BuildFold`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fold(u64);

impl BuildHasher for BuildFold {
    type Hasher = Fold;

    #[inline(always)]
    fn build_hasher(&self) -> Fold {
        Fold(0)
    }
}

impl Hasher for Fold {
    #[inline(always)]
    fn finish(&self) -> u64 {
        self.0
    }

    #[inline(always)]
    fn write_u64(&mut self, key: u64) {
        self.0 = <u64 as Key>::hash(key, self.0);
    }

    #[inline(always)]
    fn write(&mut self, bytes: &[u8]) {
        self.0 = BytesRef::new(bytes, self.0).hash;
    }

    /// The length that precedes a slice: the hash of the slice covers it.
    #[inline(always)]
    fn write_usize(&mut self, length: usize) {
        self.0 ^= length as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_see_the_hash_of_our_indexes() {
        for key in [0, 1, 42, u64::MAX] {
            assert_eq!(BuildFold.hash_one(key), <u64 as Key>::hash(key, 0));
        }
        assert_eq!(BuildFold.hash_one(&b"key"[..]), BytesRef::new(b"key", 3).hash);
        assert_ne!(BuildFold.hash_one("a"), BuildFold.hash_one("b"));
    }
}
