//! The first and the last keys, and counting and removing ranges: what is simple with an order.

use evermap_pm::Medium;

use crate::{KeyRange, Map, Result};

/// A key and its value.
type Pair = (Vec<u8>, Vec<u8>);

/// # The ends of the order, and ranges of keys
impl<M: Medium> Map<M> {
    /// Returns the smallest key with its value, or `None` if the map is empty. Needs
    /// [`Options::ordered`](crate::Options::ordered). O(log n).
    ///
    /// ```
    /// use evermap::{Evermap, Options};
    /// let map = Evermap::in_memory(Options::new().ordered(true))?.default_map();
    /// assert_eq!(map.first()?, None);
    /// map.put("b", "2")?;
    /// map.put("a", "1")?;
    /// assert_eq!(map.first()?, Some((b"a".to_vec(), b"1".to_vec())));
    /// assert_eq!(map.last()?, Some((b"b".to_vec(), b"2".to_vec())));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`scan`](Map::scan).
    pub fn first(&self) -> Result<Option<Pair>> {
        self.scan(..)?.limit(1).next().transpose()
    }

    /// Returns the largest key with its value, as [`first`](Map::first) does.
    ///
    /// # Errors
    /// See [`scan`](Map::scan).
    pub fn last(&self) -> Result<Option<Pair>> {
        self.scan(..)?.reverse().limit(1).next().transpose()
    }

    /// Removes the smallest key, and returns it with its value, or `None` if the map is empty.
    /// Needs [`Options::ordered`](crate::Options::ordered). Each key is returned to one caller
    /// only. O(log n) while threads do not compete for the key.
    ///
    /// ```
    /// use evermap::{Evermap, Options};
    /// let jobs = Evermap::in_memory(Options::new().ordered(true))?.default_map();
    /// jobs.put("job 1", "sweep")?;
    /// jobs.put("job 2", "mop")?;
    /// assert_eq!(jobs.pop_first()?, Some((b"job 1".to_vec(), b"sweep".to_vec())));
    /// assert_eq!(jobs.pop_last()?, Some((b"job 2".to_vec(), b"mop".to_vec())));
    /// assert_eq!(jobs.pop_first()?, None);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`scan`](Map::scan) and [`remove`](Map::remove).
    pub fn pop_first(&self) -> Result<Option<Pair>> {
        self.pop(Self::first)
    }

    /// Removes the largest key, as [`pop_first`](Map::pop_first) removes the smallest.
    ///
    /// # Errors
    /// See [`pop_first`](Map::pop_first).
    pub fn pop_last(&self) -> Result<Option<Pair>> {
        self.pop(Self::last)
    }

    fn pop(&self, next: impl Fn(&Self) -> Result<Option<Pair>>) -> Result<Option<Pair>> {
        loop {
            let Some((key, _)) = next(self)? else { return Ok(None) };
            // Another thread may have been faster, or have stored another value.
            if let Some(value) = self.remove(&key)? {
                return Ok(Some((key, value)));
            }
        }
    }

    /// Returns the number of records whose keys are in `range`. Needs
    /// [`Options::ordered`](crate::Options::ordered). O(log n + records in the range), without
    /// reading values: about what [`contains`](Map::contains) costs for each, with cache misses
    /// overlapped.
    ///
    /// Counts what [`scan`](Map::scan) would show at this time: not what has expired or was
    /// [cleared](Map::clear), even if it still takes space, and no snapshot. [`len`](Map::len)
    /// takes O(1) for the whole map, and counts what has expired until that is removed.
    ///
    /// ```
    /// use evermap::{Evermap, Options};
    /// let map = Evermap::in_memory(Options::new().ordered(true))?.default_map();
    /// for day in ["2026-01-30", "2026-01-31", "2026-02-01"] {
    ///     map.put(day, "")?;
    /// }
    /// assert_eq!(map.count_prefix("2026-01")?, 2);
    /// assert_eq!(map.count_range("2026-01-31"..)?, 2);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`scan`](Map::scan): if records are damaged or may be missing, the first error that a
    /// scan would show, and no number. Damage of a value is not noticed, because it is not read.
    pub fn count_range(&self, range: impl Into<KeyRange>) -> Result<u64> {
        self.scan(range)?.count_unread()
    }

    /// Returns the number of records whose keys begin with `prefix`, as
    /// [`count_range`](Map::count_range) does.
    ///
    /// # Errors
    /// See [`count_range`](Map::count_range).
    pub fn count_prefix(&self, prefix: impl AsRef<[u8]>) -> Result<u64> {
        self.count_range(KeyRange::prefix(prefix))
    }

    /// Removes the keys in `range`. Returns the number of those that were removed. Needs
    /// [`Options::ordered`](crate::Options::ordered). O(n log n) in their number.
    ///
    /// Each key is removed by itself: readers and a crash can meet any part of it, and a key that
    /// is inserted meanwhile may stay. A [`Batch`](crate::Batch) removes a few keys all at once,
    /// and [`clear`](Map::clear) all keys of the map.
    ///
    /// ```
    /// use evermap::{Evermap, Options};
    /// let map = Evermap::in_memory(Options::new().ordered(true))?.default_map();
    /// for day in ["2026-01-30", "2026-01-31", "2026-02-01"] {
    ///     map.put(day, "")?;
    /// }
    /// assert_eq!(map.remove_range(.."2026-01-31")?, 1);
    /// assert_eq!(map.remove_prefix("2026-01")?, 1);
    /// assert_eq!(map.len(), 1);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`scan`](Map::scan) and [`delete`](Map::delete). What was removed before stays removed.
    pub fn remove_range(&self, range: impl Into<KeyRange>) -> Result<u64> {
        let mut removed = 0;
        self.scan(range)?.visit_keys(|key| {
            removed += u64::from(self.delete(key)?);
            Ok(())
        })?;
        Ok(removed)
    }

    /// Removes the keys that begin with `prefix`, as [`remove_range`](Map::remove_range) does.
    ///
    /// # Errors
    /// See [`remove_range`](Map::remove_range).
    pub fn remove_prefix(&self, prefix: impl AsRef<[u8]>) -> Result<u64> {
        self.remove_range(KeyRange::prefix(prefix))
    }
}
