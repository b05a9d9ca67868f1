//! Changing a value through a reference, and entries, as those of the standard library's maps.
//!
//! These borrow the map mutably. So the compiler refuses a program that uses the map while it has
//! one of them, and what they show cannot be obsolete: no lock is held between their operations,
//! and a panic of the caller leaves nothing locked. Each change is durable and atomic by itself,
//! like those of [`upsert`](TrancheMap::upsert) and [`remove`](TrancheMap::remove). An owner of a
//! shard is such a borrower: see `examples/shards`.

use std::fmt;
use std::ops::Deref;

use evermap_pm::{Medium, Result};

use super::geometry::Geometry;
use super::map::{TrancheMap, When};
use super::value::Copied;

impl<M: Medium, G: Geometry> TrancheMap<M, G> {
    /// Returns the value of a key, to be changed. Expected O(1).
    pub fn get_mut<'m>(&'m mut self, key: &'m [u8]) -> Result<Option<ValueMut<'m, M, G>>> {
        let value = self.copy_value(key)?;
        Ok(value.map(|value| ValueMut { map: self, key, value }))
    }

    /// Returns what the key has, to be changed or filled. Expected O(1).
    ///
    /// ```
    /// # use evermap_papers::tranche::{Config, TrancheMap};
    /// # use evermap_pm::region::{Identity, RegionConfig};
    /// # use evermap_pm::Pool;
    /// # use evermap_pm::medium::{Dram, Pages};
    /// # let config = RegionConfig { extent_size: 1 << 20, capacity: 16 << 20, seed: None };
    /// # let medium = Dram::reserve(16 << 20, Pages::Base)?;
    /// # let pool = Pool::create(medium, &config, Identity::default())?;
    /// # let cell = pool.root(0);
    /// let mut map: TrancheMap<_> = TrancheMap::create(pool.clone(), cell, Config::default())?;
    /// let mut count = map.entry(b"count")?.or_insert(&[0])?;
    /// let next = [count[0] + 1];
    /// assert!(count.set_same_len(&next)?);
    /// assert_eq!(map.get(b"count")?, Some(vec![1]));
    /// # Ok::<(), evermap_index::Error>(())
    /// ```
    pub fn entry<'m>(&'m mut self, key: &'m [u8]) -> Result<Entry<'m, M, G>> {
        Ok(match self.copy_value(key)? {
            Some(value) => Entry::Occupied(OccupiedEntry(ValueMut { map: self, key, value })),
            None => Entry::Vacant(VacantEntry { map: self, key }),
        })
    }
}

/// A value that can be changed. Dereferences to its bytes.
pub struct ValueMut<'m, M: Medium, G: Geometry> {
    map: &'m mut TrancheMap<M, G>,
    key: &'m [u8],
    /// What the key has.
    value: Copied,
}

impl<M: Medium, G: Geometry> ValueMut<'_, M, G> {
    /// Replaces the value by one of the same length, durably and atomically. Returns `false`, and
    /// changes nothing, if the length differs.
    ///
    /// If at most one word of a short record differs, that word is stored, with one flush.
    /// Otherwise the record is replaced, in the same group: O(length).
    ///
    /// # Errors
    /// `NoSpace`, if more than one word differs; otherwise see [`TrancheMap`].
    pub fn set_same_len(&mut self, value: &[u8]) -> Result<bool> {
        let stored = self.map.store(self.key, value, When::SameLength)?.stored;
        if stored {
            self.value = Copied::new(value);
        }
        Ok(stored)
    }

    /// Replaces the value by one of any length, durably and atomically. O(length).
    pub fn set(&mut self, value: &[u8]) -> Result<()> {
        self.map.store(self.key, value, When::Always)?;
        self.value = Copied::new(value);
        Ok(())
    }

    /// Returns the key.
    pub fn key(&self) -> &[u8] {
        self.key
    }
}

impl<M: Medium, G: Geometry> Deref for ValueMut<'_, M, G> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.value
    }
}

impl<M: Medium, G: Geometry> fmt::Debug for ValueMut<'_, M, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// What a key of a map has: see [`TrancheMap::entry`].
pub enum Entry<'m, M: Medium, G: Geometry> {
    /// The key is present.
    Occupied(OccupiedEntry<'m, M, G>),
    /// The key is absent.
    Vacant(VacantEntry<'m, M, G>),
}

impl<'m, M: Medium, G: Geometry> Entry<'m, M, G> {
    /// Returns the key.
    pub fn key(&self) -> &[u8] {
        match self {
            Entry::Occupied(entry) => entry.0.key,
            Entry::Vacant(entry) => entry.key,
        }
    }

    /// Returns the value, after storing this one if the key is absent.
    pub fn or_insert(self, value: &[u8]) -> Result<ValueMut<'m, M, G>> {
        self.or_insert_with(|| value.to_vec())
    }

    /// Returns the value, after storing the result of `value` if the key is absent.
    pub fn or_insert_with(self, value: impl FnOnce() -> Vec<u8>) -> Result<ValueMut<'m, M, G>> {
        match self {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => entry.insert(&value()),
        }
    }

    /// Calls `change` with the value if the key is present.
    pub fn and_modify(
        mut self,
        change: impl FnOnce(&mut ValueMut<'m, M, G>) -> Result<()>,
    ) -> Result<Self> {
        if let Entry::Occupied(entry) = &mut self {
            change(&mut entry.0)?;
        }
        Ok(self)
    }
}

/// The entry of a key that is present.
pub struct OccupiedEntry<'m, M: Medium, G: Geometry>(ValueMut<'m, M, G>);

impl<'m, M: Medium, G: Geometry> OccupiedEntry<'m, M, G> {
    /// Returns the value.
    pub fn get(&self) -> &[u8] {
        &self.0
    }

    /// Returns the value, to be changed.
    pub fn get_mut(&mut self) -> &mut ValueMut<'m, M, G> {
        &mut self.0
    }

    /// Returns the value, to be changed as long as the map is borrowed.
    pub fn into_mut(self) -> ValueMut<'m, M, G> {
        self.0
    }

    /// Replaces the value, and returns the former one.
    pub fn insert(&mut self, value: &[u8]) -> Result<Vec<u8>> {
        let former = self.0.to_vec();
        self.0.set(value)?;
        Ok(former)
    }

    /// Removes the key, and returns its value.
    pub fn remove(self) -> Result<Vec<u8>> {
        self.0.map.remove(self.0.key)?;
        Ok(self.0.value.into_vec())
    }
}

/// The entry of a key that is absent.
pub struct VacantEntry<'m, M: Medium, G: Geometry> {
    map: &'m mut TrancheMap<M, G>,
    key: &'m [u8],
}

impl<'m, M: Medium, G: Geometry> VacantEntry<'m, M, G> {
    /// Returns the key.
    pub fn key(&self) -> &[u8] {
        self.key
    }

    /// Stores a value for the key.
    pub fn insert(self, value: &[u8]) -> Result<ValueMut<'m, M, G>> {
        self.map.upsert(self.key, value)?;
        Ok(ValueMut { map: self.map, key: self.key, value: Copied::new(value) })
    }
}
