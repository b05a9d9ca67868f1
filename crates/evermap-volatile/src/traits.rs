//! Traits of the standard library.

use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};

use crate::iter::IntoIter;
use crate::map::VolatileMap;
use crate::pinned::{Pinned, Protect};

impl<K: Hash + Eq, V, S: BuildHasher> Extend<(K, V)> for VolatileMap<K, V, S> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, pairs: I) {
        (&*self).extend(pairs);
    }
}

impl<K: Hash + Eq, V, S: BuildHasher> Extend<(K, V)> for &VolatileMap<K, V, S> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, pairs: I) {
        let pairs = pairs.into_iter();
        // As the standard library does: a part of the keys may be present.
        let lower = pairs.size_hint().0;
        self.reserve(if self.is_empty() { lower } else { lower.div_ceil(2) });
        for (key, value) in pairs {
            // A guard each, because the pairs may come from something that waits.
            self.pin().insert(key, value);
        }
    }
}

impl<'a, K, V, S> Extend<(&'a K, &'a V)> for VolatileMap<K, V, S>
where
    K: Hash + Eq + Copy,
    V: Copy,
    S: BuildHasher,
{
    fn extend<I: IntoIterator<Item = (&'a K, &'a V)>>(&mut self, pairs: I) {
        (&*self).extend(pairs.into_iter().map(|(&key, &value)| (key, value)));
    }
}

impl<K: Hash + Eq, V, S: BuildHasher + Default> FromIterator<(K, V)> for VolatileMap<K, V, S> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut map = Self::default();
        map.extend(pairs);
        map
    }
}

impl<K, V, S> IntoIterator for VolatileMap<K, V, S> {
    type Item = (K, V);
    type IntoIter = IntoIter<K, V>;

    fn into_iter(self) -> IntoIter<K, V> {
        IntoIter::new(self.shards)
    }
}

impl<K: Hash + Eq, V, const N: usize> From<[(K, V); N]> for VolatileMap<K, V, RandomState> {
    fn from(pairs: [(K, V); N]) -> Self {
        pairs.into_iter().collect()
    }
}

impl<K, V, S> Clone for VolatileMap<K, V, S>
where
    K: Hash + Eq + Clone,
    V: Clone,
    S: BuildHasher + Clone,
{
    /// Clones the pairs that [`Pinned::iter`] shows.
    fn clone(&self) -> Self {
        let clone = Self::with_domain(self.hasher().clone(), self.domain().clone());
        clone.reserve(self.len());
        let pinned = self.pin();
        for (key, value) in &pinned {
            // A guard each: with two guards at a time one of them would be a slower one.
            clone.with_guard(pinned.guard()).insert(key.clone(), value.clone());
        }
        clone
    }
}

impl<K: Hash + Eq, V: PartialEq, S: BuildHasher> PartialEq for VolatileMap<K, V, S> {
    /// While other threads write, it is not defined which of their changes are considered.
    fn eq(&self, other: &Self) -> bool {
        let (left, right) = (self.pin(), other.pin());
        left.len() == right.len()
            && left.iter().all(|(key, value)| right.get(key).is_some_and(|found| found == value))
    }
}

impl<K: Hash + Eq, V: Eq, S: BuildHasher> Eq for VolatileMap<K, V, S> {}

impl<K, V, S> fmt::Debug for VolatileMap<K, V, S>
where
    K: Hash + Eq + fmt::Debug,
    V: fmt::Debug,
    S: BuildHasher,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.pin(), f)
    }
}

impl<K, V, S, G> fmt::Debug for Pinned<'_, K, V, S, G>
where
    K: Hash + Eq + fmt::Debug,
    V: fmt::Debug,
    S: BuildHasher,
    G: Protect,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}
