//! The hash function that the tables of other authors use here: the one of Evermap's indexes.

use std::hash::{BuildHasher, Hasher};

use evermap_index::Key;

/// Builds hashers that fold multiplications, as Evermap's indexes do for `u64` keys.
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

    /// Not on any measured path: keys are `u64`.
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
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
        assert_ne!(BuildFold.hash_one("a"), BuildFold.hash_one("b"));
    }
}
