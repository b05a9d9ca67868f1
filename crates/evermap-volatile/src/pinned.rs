//! A pinned map: everything that needs a guard.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash, RandomState};
use std::ptr;

use evermap_pm::Guard;

use crate::iter::{Iter, Keys, Values};
use crate::map::VolatileMap;
use crate::shard::{Change, Decision, Entry, Subject};

/// A handle of a [`VolatileMap`], for one thread, that keeps what it lends valid.
///
/// While it exists, memory that others stop using cannot be reused, so a thread should not keep it
/// while it waits for something.
pub struct Pinned<'m, K, V, S = RandomState, G = Guard<'m>> {
    pub(crate) map: &'m VolatileMap<K, V, S>,
    pub(crate) guard: G,
}

/// A guard, or a reference to one.
pub trait Protect: sealed::Sealed {
    /// Returns the guard.
    fn guard(&self) -> &Guard<'_>;
}

impl Protect for Guard<'_> {
    #[inline(always)]
    fn guard(&self) -> &Guard<'_> {
        self
    }
}

impl Protect for &Guard<'_> {
    #[inline(always)]
    fn guard(&self) -> &Guard<'_> {
        self
    }
}

mod sealed {
    /// Keeps others from implementing [`Protect`](super::Protect): a guard of another domain
    /// protects nothing.
    pub trait Sealed {}
    impl Sealed for evermap_pm::Guard<'_> {}
    impl Sealed for &evermap_pm::Guard<'_> {}
}

/// The error when an entry was not inserted, because the key was present.
#[derive(Debug, PartialEq, Eq)]
pub struct Occupied<'g, V> {
    /// The value that the key is bound to.
    pub current: &'g V,
    /// The value that was not inserted.
    pub rejected: V,
}

/// What [`Pinned::compute`] should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<V, T> {
    /// Bind the key to this value.
    Insert(V),
    /// Unbind the key.
    Remove,
    /// Leave the key as it is, and return this.
    Abort(T),
}

/// What [`Pinned::compute`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compute<'g, K, V, T> {
    /// The key was absent.
    Inserted(&'g K, &'g V),
    /// The key was bound to another value.
    Updated {
        /// The pair before.
        old: (&'g K, &'g V),
        /// The pair after.
        new: (&'g K, &'g V),
    },
    /// The key was present and was removed.
    Removed(&'g K, &'g V),
    /// The key was absent and was to be removed.
    Absent,
    /// The closure returned [`Operation::Abort`].
    Aborted(T),
}

impl<K, V, S> VolatileMap<K, V, S> {
    /// Pins the map: the returned handle has the methods to use it, and everything that they lend
    /// stays valid as long as the handle.
    ///
    /// Costs two stores to memory of the calling thread. Pinning once for several operations is
    /// cheaper; memory that is not needed any more cannot be reused in the meantime.
    #[inline(always)]
    pub fn pin(&self) -> Pinned<'_, K, V, S> {
        Pinned { map: self, guard: self.domain.pin() }
    }

    /// Returns a handle like [`pin`](VolatileMap::pin), with a guard that the caller has.
    ///
    /// # Panics
    /// If the guard is not one of the map's [domain](VolatileMap::domain).
    #[inline]
    pub fn with_guard<'g>(&'g self, guard: &'g Guard<'_>) -> Pinned<'g, K, V, S, &'g Guard<'g>> {
        assert!(std::ptr::eq(guard.domain(), &*self.domain), "a guard of another domain");
        Pinned { map: self, guard }
    }
}

impl<'m, K, V, S, G: Protect> Pinned<'m, K, V, S, G> {
    /// Returns the map.
    pub fn map(&self) -> &'m VolatileMap<K, V, S> {
        self.map
    }

    /// Returns the guard.
    pub fn guard(&self) -> &Guard<'_> {
        self.guard.guard()
    }

    /// Returns the number of entries; see [`VolatileMap::len`].
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Returns `true` if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }
}

impl<K: Hash + Eq, V, S: BuildHasher, G: Protect> Pinned<'_, K, V, S, G> {
    /// Returns the value of a key. Wait-free.
    ///
    /// ```
    /// let map = evermap_volatile::VolatileMap::from([("a", 1)]);
    /// let map = map.pin();
    /// assert_eq!((map.get("a"), map.get("b")), (Some(&1), None));
    /// ```
    #[inline]
    pub fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        Some(&self.entry(key)?.value)
    }

    /// Returns the stored key and the value of a key. Wait-free.
    #[inline]
    pub fn get_key_value<Q>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.entry(key).map(pair)
    }

    /// Returns `true` if a key is present. Wait-free.
    #[inline]
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.entry(key).is_some()
    }

    /// Begins to load what a lookup of this key will read first. A hint, for a caller that has
    /// other work to do before it uses the key.
    #[inline]
    pub fn prefetch<Q>(&self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.map.hashing.hash(key);
        self.map.shard(hash).prefetch(hash, &self.map.hashing, self.guard());
    }

    /// Binds a key to a value. Returns the value before. If the key was present, the new key is
    /// stored too.
    ///
    /// ```
    /// let map = evermap_volatile::VolatileMap::new();
    /// let map = map.pin();
    /// assert_eq!(map.insert("a", 1), None);
    /// assert_eq!(map.insert("a", 2), Some(&1));
    /// ```
    ///
    /// # Panics
    /// If a shard has 2^28 - 16 entries.
    pub fn insert(&self, key: K, value: V) -> Option<&V> {
        let hash = self.map.hashing.hash(&key);
        let change = self.modify::<K>(Subject::Owned(key), hash, |_| Decision::Put(value));
        change.old.map(|entry| &entry.value)
    }

    /// Binds a key to a value if it is absent. Returns the value that it is bound to then.
    ///
    /// # Errors
    /// The current value and the rejected one, if the key was present.
    pub fn try_insert(&self, key: K, value: V) -> Result<&V, Occupied<'_, V>> {
        let hash = self.map.hashing.hash(&key);
        self.try_insert_hashed(key, hash, value).map_err(|(occupied, _)| occupied)
    }

    /// Returns the value of a key, which is bound to `value` if it was absent.
    pub fn get_or_insert(&self, key: K, value: V) -> &V {
        self.get_or_insert_with(key, || value)
    }

    /// Returns the value of a key, which is bound to the value that `make` returns if it was
    /// absent.
    ///
    /// `make` is called without a lock. If another thread inserts the key meanwhile, its value is
    /// returned, and the one that was made is dropped.
    pub fn get_or_insert_with(&self, key: K, make: impl FnOnce() -> V) -> &V {
        let hash = self.map.hashing.hash(&key);
        if let Some(entry) = self.entry_hashed(&key, hash) {
            return &entry.value;
        }
        match self.try_insert_hashed(key, hash, make()) {
            Ok(value) => value,
            Err((occupied, _)) => occupied.current,
        }
    }

    /// Binds a key that is present to the value that `change` returns for the current one. Returns
    /// the new value.
    ///
    /// `change` is called without a lock, again if another thread changes the key meanwhile.
    ///
    /// ```
    /// let map = evermap_volatile::VolatileMap::from([("a", 1)]);
    /// let map = map.pin();
    /// assert_eq!(map.update("a", |count| count + 1), Some(&2));
    /// assert_eq!(map.update("b", |count| count + 1), None);
    /// ```
    pub fn update(&self, key: K, mut change: impl FnMut(&V) -> V) -> Option<&V> {
        let computed = self.compute(key, |current| match current {
            Some((_, value)) => Operation::Insert(change(value)),
            None => Operation::Abort(()),
        });
        match computed {
            Compute::Updated { new: (_, value), .. } => Some(value),
            _ => None,
        }
    }

    /// Binds a key to the value that `change` returns for the current one, or to `value` if it is
    /// absent. Returns the new value. Otherwise like [`update`](Pinned::update).
    pub fn update_or_insert(&self, key: K, change: impl FnMut(&V) -> V, value: V) -> &V {
        self.update_or_insert_with(key, change, || value)
    }

    /// Binds a key to the value that `change` returns for the current one, or to the one that
    /// `make` returns if it is absent. Returns the new value. Otherwise like
    /// [`update`](Pinned::update).
    ///
    /// ```
    /// let map = evermap_volatile::VolatileMap::new();
    /// for word in "to be or not to be".split(' ') {
    ///     map.pin().update_or_insert_with(word, |count| count + 1, || 1);
    /// }
    /// assert_eq!(map.pin().get("be"), Some(&2));
    /// ```
    pub fn update_or_insert_with(
        &self,
        key: K,
        mut change: impl FnMut(&V) -> V,
        make: impl FnOnce() -> V,
    ) -> &V {
        let hash = self.map.hashing.hash(&key);
        let (mut key, mut make, mut made) = (key, Some(make), None);
        loop {
            if let Some(seen) = self.entry_hashed(&key, hash) {
                match self.replace(key, hash, seen, change(&seen.value)) {
                    Ok(new) => return &new.value,
                    Err(back) => key = back,
                }
            } else {
                let value = made.take().or_else(|| make.take().map(|make| make()));
                let value = value.expect("made once, and kept");
                match self.try_insert_hashed(key, hash, value) {
                    Ok(value) => return value,
                    Err((occupied, back)) => (key, made) = (back, Some(occupied.rejected)),
                }
            }
        }
    }

    /// Does with a key what `decide` says, which is passed the current pair if the key is present.
    ///
    /// `decide` is called without a lock, again if another thread changes the key meanwhile; the
    /// operation that is carried out is the one for the pair that it is applied to.
    ///
    /// ```
    /// use evermap_volatile::{Compute, Operation};
    /// let map = evermap_volatile::VolatileMap::from([("stock", 1)]);
    /// let take = |current: Option<(&&str, &u32)>| match current {
    ///     Some((_, 1)) => Operation::Remove,
    ///     Some((_, count)) => Operation::Insert(count - 1),
    ///     None => Operation::Abort("sold out"),
    /// };
    /// let map = map.pin();
    /// assert_eq!(map.compute("stock", take), Compute::Removed(&"stock", &1));
    /// assert_eq!(map.compute("stock", take), Compute::Aborted("sold out"));
    /// ```
    pub fn compute<'g, T>(
        &'g self,
        key: K,
        mut decide: impl FnMut(Option<(&'g K, &'g V)>) -> Operation<V, T>,
    ) -> Compute<'g, K, V, T> {
        let hash = self.map.hashing.hash(&key);
        let mut key = key;
        loop {
            let seen = self.entry_hashed(&key, hash);
            match (decide(seen.map(pair)), seen) {
                (Operation::Abort(answer), _) => return Compute::Aborted(answer),
                (Operation::Remove, None) => return Compute::Absent,
                (Operation::Remove, Some(seen)) => {
                    if self.remove_seen(&key, hash, seen) {
                        return Compute::Removed(&seen.key, &seen.value);
                    }
                }
                (Operation::Insert(value), Some(seen)) => {
                    match self.replace(key, hash, seen, value) {
                        Ok(new) => return Compute::Updated { old: pair(seen), new: pair(new) },
                        Err(back) => key = back,
                    }
                }
                (Operation::Insert(value), None) => {
                    let mut value = Some(value);
                    let insert = |current: Option<_>| match (current, value.take()) {
                        (None, Some(value)) => Decision::Put(value),
                        _ => Decision::Keep,
                    };
                    let change = self.modify::<K>(Subject::Owned(key), hash, insert);
                    match (change.key, change.new) {
                        (Some(back), _) => key = back,
                        (None, new) => {
                            let (key, value) = pair(new.expect("just inserted"));
                            return Compute::Inserted(key, value);
                        }
                    }
                }
            }
        }
    }

    /// Unbinds a key. Returns its value.
    pub fn remove<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.remove_entry(key).map(|(_, value)| value)
    }

    /// Unbinds a key. Returns the stored key and its value.
    pub fn remove_entry<Q>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.map.hashing.hash(key);
        let change = self.modify(Subject::Borrowed(key), hash, |_| Decision::Remove);
        change.old.map(pair)
    }

    /// Unbinds a key if it is present and `wanted` returns `true` for its pair. Returns the pair
    /// that was removed.
    ///
    /// `wanted` is called without a lock, again if another thread changes the key meanwhile.
    ///
    /// # Errors
    /// The current pair, if `wanted` returned `false` for it.
    pub fn remove_if<Q>(
        &self,
        key: &Q,
        mut wanted: impl FnMut(&K, &V) -> bool,
    ) -> Result<Option<(&K, &V)>, (&K, &V)>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.map.hashing.hash(key);
        loop {
            let Some(seen) = self.entry_hashed(key, hash) else { return Ok(None) };
            if !wanted(&seen.key, &seen.value) {
                return Err(pair(seen));
            }
            if self.remove_seen(key, hash, seen) {
                return Ok(Some(pair(seen)));
            }
        }
    }

    /// Removes the pairs for which `wanted` returns `false`. Pairs that are inserted meanwhile may
    /// be passed over.
    pub fn retain(&self, mut wanted: impl FnMut(&K, &V) -> bool) {
        for (key, _) in self {
            // Whatever else happens to it, the pair that `wanted` sees is the one that is removed.
            let _ = self.remove_if(key, |key, value| !wanted(key, value));
        }
    }

    /// Removes all pairs that are present at the call. Pairs that are inserted meanwhile may be
    /// removed too.
    pub fn clear(&self) {
        self.retain(|_, _| false);
    }

    /// Iterates over all pairs, in an order that suits insertions into another map.
    ///
    /// A key that is present all the time is shown exactly once, whatever other threads do, and
    /// however often tables are resized; any other key at most once. Each pair was current at some
    /// moment during the iteration.
    pub fn iter(&self) -> Iter<'_, K, V, S> {
        Iter::new(&self.map.shards, &self.map.hashing, self.guard())
    }

    /// Iterates over all keys, like [`iter`](Pinned::iter).
    pub fn keys(&self) -> Keys<'_, K, V, S> {
        Keys(self.iter())
    }

    /// Iterates over all values, like [`iter`](Pinned::iter).
    pub fn values(&self) -> Values<'_, K, V, S> {
        Values(self.iter())
    }

    #[inline(always)]
    fn entry<Q>(&self, key: &Q) -> Option<&Entry<K, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.entry_hashed(key, self.map.hashing.hash(key))
    }

    #[inline(always)]
    fn entry_hashed<Q>(&self, key: &Q, hash: u64) -> Option<&Entry<K, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.map.shard(hash).get(key, hash, &self.map.hashing, self.guard())
    }

    pub(crate) fn modify<'g, Q>(
        &'g self,
        subject: Subject<'_, K, Q>,
        hash: u64,
        decide: impl FnOnce(Option<&'g Entry<K, V>>) -> Decision<V>,
    ) -> Change<'g, K, V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let shard = self.map.shard(hash);
        shard.modify(subject, hash, &self.map.hashing, self.guard(), decide)
    }

    /// Inserts a pair. If the key is present, returns what was to be inserted, and the current
    /// value.
    fn try_insert_hashed(&self, key: K, hash: u64, value: V) -> Result<&V, (Occupied<'_, V>, K)> {
        let mut value = Some(value);
        let insert = |current: Option<_>| match current {
            None => Decision::Put(value.take().expect("called once")),
            Some(_) => Decision::Keep,
        };
        let change = self.modify::<K>(Subject::Owned(key), hash, insert);
        let current = &change.new.expect("present now").value;
        match (value, change.key) {
            (Some(rejected), Some(key)) => Err((Occupied { current, rejected }, key)),
            _ => Ok(current),
        }
    }

    /// Replaces the entry `seen` by one with another value. If it is not current any more, returns
    /// the key.
    fn replace<'g>(
        &'g self,
        key: K,
        hash: u64,
        seen: &'g Entry<K, V>,
        value: V,
    ) -> Result<&'g Entry<K, V>, K> {
        let mut value = Some(value);
        let replace = |current: Option<_>| match value.take_if(|_| is_same(current, seen)) {
            Some(value) => Decision::Put(value),
            None => Decision::Keep,
        };
        let change = self.modify::<K>(Subject::Owned(key), hash, replace);
        match change.key {
            Some(key) => Err(key),
            None => Ok(change.new.expect("just stored")),
        }
    }

    /// Removes the entry `seen`. Returns `false` if it is not current any more.
    fn remove_seen<Q>(&self, key: &Q, hash: u64, seen: &Entry<K, V>) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let change = self.modify(Subject::Borrowed(key), hash, |current| {
            if is_same(current, seen) { Decision::Remove } else { Decision::Keep }
        });
        is_same(change.old, seen)
    }
}

/// Returns `true` if the current entry is `seen`. Its place is not used again under the guard under
/// which it was seen, so no other entry has the same address.
fn is_same<K, V>(current: Option<&Entry<K, V>>, seen: &Entry<K, V>) -> bool {
    current.is_some_and(|current| ptr::eq(current, seen))
}

#[inline(always)]
fn pair<K, V>(entry: &Entry<K, V>) -> (&K, &V) {
    (&entry.key, &entry.value)
}

impl<'p, K, V, S, G> IntoIterator for &'p Pinned<'_, K, V, S, G>
where
    K: Hash + Eq,
    S: BuildHasher,
    G: Protect,
{
    type Item = (&'p K, &'p V);
    type IntoIter = Iter<'p, K, V, S>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
