//! Iterators.

use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::iter::FusedIterator;

use evermap_pm::Guard;

use crate::hashing::Hashing;
use crate::shard::{Cursor, Entry, Shard};

/// An iterator over the pairs of a map. See [`Pinned::iter`](super::Pinned::iter).
pub struct Iter<'p, K, V, S = RandomState> {
    shards: &'p [Shard<K, V>],
    hashing: &'p Hashing<S>,
    guard: &'p Guard<'p>,
    /// The current shard, and the position in it.
    shard: usize,
    cursor: Option<Cursor<'p>>,
    /// The entries of the current bucket that were not returned yet.
    shown: Vec<&'p Entry<K, V>>,
}

/// An iterator over the keys of a map. See [`Pinned::keys`](super::Pinned::keys).
pub struct Keys<'p, K, V, S = RandomState>(pub(crate) Iter<'p, K, V, S>);

/// An iterator over the values of a map. See [`Pinned::values`](super::Pinned::values).
pub struct Values<'p, K, V, S = RandomState>(pub(crate) Iter<'p, K, V, S>);

impl<'p, K, V, S> Iter<'p, K, V, S> {
    pub(crate) fn new(
        shards: &'p [Shard<K, V>],
        hashing: &'p Hashing<S>,
        guard: &'p Guard<'_>,
    ) -> Self {
        Iter { shards, hashing, guard, shard: 0, cursor: None, shown: Vec::new() }
    }
}

impl<'p, K: Hash + Eq, V, S: BuildHasher> Iterator for Iter<'p, K, V, S> {
    type Item = (&'p K, &'p V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.shown.pop() {
                return Some((&entry.key, &entry.value));
            }
            let shard = self.shards.get(self.shard)?;
            let hashing = self.hashing;
            let cursor = self.cursor.get_or_insert_with(|| shard.cursor(hashing, self.guard));
            if !shard.show(cursor, &mut self.shown, hashing, self.guard) {
                self.cursor = None;
                self.shard += 1;
            }
        }
    }
}

impl<K: Hash + Eq, V, S: BuildHasher> FusedIterator for Iter<'_, K, V, S> {}

impl<'p, K: Hash + Eq, V, S: BuildHasher> Iterator for Keys<'p, K, V, S> {
    type Item = &'p K;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(key, _)| key)
    }
}

impl<K: Hash + Eq, V, S: BuildHasher> FusedIterator for Keys<'_, K, V, S> {}

impl<'p, K: Hash + Eq, V, S: BuildHasher> Iterator for Values<'p, K, V, S> {
    type Item = &'p V;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(_, value)| value)
    }
}

impl<K: Hash + Eq, V, S: BuildHasher> FusedIterator for Values<'_, K, V, S> {}

macro_rules! opaque_debug {
    ($($iterator:ident),+) => {$(
        impl<K, V, S> fmt::Debug for $iterator<'_, K, V, S> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($iterator)).finish_non_exhaustive()
            }
        }
    )+};
}

opaque_debug!(Iter, Keys, Values);

/// An iterator over the pairs of a map that it consumes.
pub struct IntoIter<K, V> {
    shards: std::vec::IntoIter<Shard<K, V>>,
    entries: std::vec::IntoIter<Entry<K, V>>,
}

impl<K, V> IntoIter<K, V> {
    pub(crate) fn new(shards: Box<[Shard<K, V>]>) -> Self {
        IntoIter { shards: shards.into_vec().into_iter(), entries: Vec::new().into_iter() }
    }
}

impl<K, V> Iterator for IntoIter<K, V> {
    type Item = (K, V);

    fn next(&mut self) -> Option<(K, V)> {
        loop {
            if let Some(Entry { key, value }) = self.entries.next() {
                return Some((key, value));
            }
            // One shard at a time, so that the pairs are in memory twice only in part.
            self.entries = self.shards.next()?.take_all().into_iter();
        }
    }
}

impl<K, V> FusedIterator for IntoIter<K, V> {}

impl<K, V> fmt::Debug for IntoIter<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IntoIter").finish_non_exhaustive()
    }
}
