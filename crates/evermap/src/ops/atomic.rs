//! Mutations that compute the new value from the old one, by [`modify`](Map::modify).

use evermap_pm::Medium;

use crate::{Edit, Error, Item, Map, Result};

/// # Counters, and changing parts of a value
impl<M: Medium> Map<M> {
    /// Adds `delta` to the counter under `key`. Returns what it was before. Expected O(1).
    ///
    /// A counter is a value of 8 bytes: an `i64`, little-endian. An absent key counts as 0. Flags
    /// and expiry stay as they are. [`counter`] reads one, and `delta` 0 makes one. (`memcached`'s
    /// counters are decimal text; the server changes those by [`modify`](Map::modify).)
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// assert_eq!(map.fetch_add(b"visits", 2)?, 0);
    /// assert_eq!(map.fetch_add(b"visits", -3)?, 2);
    /// assert_eq!(map.get(b"visits")?, Some((-1i64).to_le_bytes().to_vec()));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`]. [`Error::NotACounter`] for a value of another length, [`Error::Overflow`] if
    /// the sum does not fit an `i64`: nothing has changed then.
    pub fn fetch_add(&self, key: impl AsRef<[u8]>, delta: i64) -> Result<i64> {
        let mut answer = Ok((0, 0));
        let _outcome = self.modify_by(self.begin_change(key.as_ref())?, |current| {
            // Called again if another thread was faster, so the result of an earlier call means
            // nothing.
            answer = sum(key.as_ref(), current.map(|item| item.value), delta.into());
            match answer {
                Ok((_, sum)) => Edit::Value(sum.to_le_bytes().to_vec()).into(),
                Err(_) => Edit::Keep.into(),
            }
        })?;
        answer.map(|(before, _)| before)
    }

    /// Appends `data` to the value under `key`. Flags and expiry stay as they are; an absent key
    /// gets `data` alone. Returns the CAS id of the new record. O(length of the whole value): all
    /// of it is written.
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.append(b"log", b"one ")?;
    /// map.append(b"log", b"two")?;
    /// assert_eq!(map.get(b"log")?.as_deref(), Some(&b"one two"[..]));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`].
    pub fn append(&self, key: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> Result<u64> {
        self.modify_to(key.as_ref(), |current| {
            Edit::Value([current.map_or(&[][..], |item| item.value), data.as_ref()].concat())
        })
    }

    /// Puts `data` before the value under `key`, as [`append`](Map::append) puts it behind.
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.prepend(b"path", b"file")?;
    /// map.prepend(b"path", b"directory/")?;
    /// assert_eq!(map.get(b"path")?.as_deref(), Some(&b"directory/file"[..]));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`].
    pub fn prepend(&self, key: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> Result<u64> {
        self.modify_to(key.as_ref(), |current| {
            Edit::Value([data.as_ref(), current.map_or(&[][..], |item| item.value)].concat())
        })
    }

    /// Changes `key` by an `edit` that always stores something. Returns the CAS id of the new
    /// record.
    fn modify_to(&self, key: &[u8], mut edit: impl FnMut(Option<Item<'_>>) -> Edit) -> Result<u64> {
        let outcome = self.modify_by(self.begin_change(key)?, |item| edit(item).into())?;
        Ok(outcome.cas().expect("something was stored"))
    }
}

/// Returns the number in the value of a counter, or `None` if it does not have 8 bytes.
///
/// ```
/// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
/// map.fetch_add(b"visits", 5)?;
/// assert_eq!(map.get(b"visits")?.as_deref().and_then(evermap::counter), Some(5));
/// assert_eq!(evermap::counter(b"5"), None);
/// # Ok::<(), evermap::Error>(())
/// ```
pub fn counter(value: &[u8]) -> Option<i64> {
    value.try_into().ok().map(i64::from_le_bytes)
}

/// Returns a counter before and after adding `delta`; it is 0 before if there is none.
///
/// # Errors
/// [`Error::NotACounter`], [`Error::Overflow`].
pub(crate) fn sum(key: &[u8], value: Option<&[u8]>, delta: i128) -> Result<(i64, i64)> {
    let before = match value {
        None => 0,
        Some(value) => counter(value).ok_or_else(|| Error::not_a_counter(key, value.len()))?,
    };
    let after = i64::try_from(i128::from(before) + delta);
    Ok((before, after.map_err(|_| Error::overflow(key, before, delta))?))
}
