//! What most programs need: reading, storing and removing by key.

use evermap_pm::Medium;

use crate::{Map, Outcome, Result};

/// # Reading, storing and removing
impl<M: Medium> Map<M> {
    /// Returns the value of `key`, copied and verified, or `None` if the key is absent. Expected
    /// O(1); takes no lock, and stores to no shared memory but the cache line of its guard.
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put(b"key", b"value")?;
    /// assert_eq!(map.get(b"key")?, Some(b"value".to_vec()));
    /// assert_eq!(map.get(b"other")?, None);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.then_some(value))
    }

    /// Returns `true` if `key` is present. Does not verify the value.
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// assert!(!map.contains(b"key")?);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`].
    pub fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let key = self.key(key.as_ref())?;
        let guard = self.enter()?;
        Ok(self.find(key, &guard)?.is_some())
    }

    /// Binds `key` to `value`, whether or not it is present. Expected O(1).
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put("key", "value")?;
    /// assert_eq!(map.get("key")?.as_deref(), Some(&b"value"[..]));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// [`set`](Map::set) does so with flags or an expiry, and returns the CAS id of the new record.
    ///
    /// # Errors
    /// See [`Map`].
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.set(key).put(value).map(drop)
    }

    /// Binds `key` to `value`, and returns the value that it had before, or `None` if it was
    /// absent. Expected O(1).
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// assert_eq!(map.insert("key", "value")?, None);
    /// assert_eq!(map.insert("key", "other")?, Some(b"value".to_vec()));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`]. If the old value is damaged, this returns
    /// [`Error::Damaged`](crate::Error::Damaged), and the key is bound to the new value
    /// nevertheless.
    pub fn insert(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<Option<Vec<u8>>> {
        self.set(key).insert(value)
    }

    /// Removes `key`, and returns the value that it had, or `None` if it was absent. Expected O(1).
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put(b"key", b"value")?;
    /// assert_eq!(map.remove(b"key")?, Some(b"value".to_vec()));
    /// assert_eq!(map.remove(b"key")?, None);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`]. If the value is damaged, this returns
    /// [`Error::Damaged`](crate::Error::Damaged), and the key is removed nevertheless.
    pub fn remove(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let (key, mut old) = (self.begin_change(key.as_ref())?, Vec::new());
        let outcome = self.unbind(key, Some(&mut old), None)?;
        Ok((outcome == Outcome::Removed).then_some(old))
    }

    /// Removes `key`, and does not look at its value. Returns `true` if it was present. Expected
    /// O(1).
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put(b"key", b"value")?;
    /// assert!(map.delete(b"key")?);
    /// assert!(!map.delete(b"key")?);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`]. A damaged record is removed too.
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let key = self.begin_change(key.as_ref())?;
        Ok(self.unbind(key, None, None)? == Outcome::Removed)
    }

    /// Removes all records at once. Survives a crash like any other mutation. O(1); the space is
    /// reclaimed in the background.
    ///
    /// An [`expire_all_at`](Map::expire_all_at) that is pending is called off.
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put("key", "value")?;
    /// map.clear()?;
    /// assert_eq!(map.get("key")?, None);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`].
    pub fn clear(&self) -> Result<()> {
        self.flush(None)
    }
}
