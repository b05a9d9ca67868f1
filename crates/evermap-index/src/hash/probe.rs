//! A key to look for, with the values that are computed from it.

use crate::Key;

/// A key, its hash, and its slot key: the word that represents it in slots.
pub(crate) struct Probe<'a, K: Key> {
    pub(super) key: K::Ref<'a>,
    pub(super) hash: u64,
    pub(super) slot_key: u64,
}

impl<'a, K: Key> Probe<'a, K> {
    #[inline(always)]
    pub(super) fn new(key: K::Ref<'a>, seed: u64) -> Self {
        Probe::hashed(key, K::hash(key, seed))
    }

    /// Creates the probe of a key whose hash is known.
    #[inline(always)]
    pub(super) fn hashed(key: K::Ref<'a>, hash: u64) -> Self {
        Probe { key, hash, slot_key: K::slot_key(key, hash) }
    }
}
