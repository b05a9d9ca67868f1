//! A key to look for, with the values that are computed from it.

use crate::Key;

/// A key, its hash, and its slot key: the word that represents it in slots.
pub struct Probe<'a, K: Key> {
    /// The key.
    pub key: K::Ref<'a>,
    /// Its hash.
    pub hash: u64,
    /// Its slot key.
    pub slot_key: u64,
}

impl<'a, K: Key> Probe<'a, K> {
    /// Creates the probe of a key.
    #[inline(always)]
    pub fn new(key: K::Ref<'a>, seed: u64) -> Self {
        Probe::hashed(key, K::hash(key, seed))
    }

    /// Creates the probe of a key whose hash is known.
    #[inline(always)]
    pub fn hashed(key: K::Ref<'a>, hash: u64) -> Self {
        Probe { key, hash, slot_key: K::slot_key(key, hash) }
    }
}
