//! Storing a record with flags and an expiry.

use std::io::Read;

use evermap_pm::Medium;
use evermap_pm::medium::Mapped;

use crate::item::Marks;
use crate::ops::write::Condition;
use crate::{Expiry, Map, Meta, Outcome, Result, ValueWriter};

/// # Storing with flags and an expiry
impl<M: Medium> Map<M> {
    /// Begins to store a record with flags or an expiry: see [`Set`].
    ///
    /// ```
    /// use std::time::Duration;
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.set("session").expires(Duration::from_secs(3600)).put("alice")?;
    /// let lease = map.set("lease").expires(Duration::from_secs(60)).flags(7);
    /// assert!(lease.try_insert("worker 1")?.changed());
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn set<K: AsRef<[u8]>>(&self, key: K) -> Set<'_, K, M> {
        Set { map: self, key, meta: Meta::new() }
    }
}

/// A record that is to be stored, with its flags and its expiry: see [`Map::set`].
///
/// [`expires`](Set::expires), [`flags`](Set::flags) and [`meta`](Set::meta) say what is stored
/// beside the value. The operation that stores it comes last, and is the one of the [map](Map) of
/// the same name, which stores no flags and no expiry.
///
/// ```
/// use std::time::Duration;
/// use evermap::Outcome;
/// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
/// const HOUR: Duration = Duration::from_secs(3600);
/// let cas = map.set("session").flags(1).expires(HOUR).put("alice")?;
/// let taken = map.set("session").expires(HOUR).try_insert("bob")?;
/// assert_eq!(taken, Outcome::Kept { cas });
/// let renewed = map.set("session").flags(2).expires(HOUR).compare_exchange(cas, "alice")?;
/// assert!(renewed.changed());
/// assert_eq!(map.get_with("session", |item| item.flags)?, Some(2));
/// # Ok::<(), evermap::Error>(())
/// ```
#[must_use = "nothing is stored before the operation that comes last"]
pub struct Set<'m, K, M: Medium = Mapped> {
    map: &'m Map<M>,
    key: K,
    meta: Meta,
}

impl<'m, K: AsRef<[u8]>, M: Medium> Set<'m, K, M> {
    /// Sets when the record expires, for example a [`Duration`](std::time::Duration) from now. It
    /// does not expire unless this is called.
    pub fn expires(mut self, expiry: impl Into<Expiry>) -> Self {
        self.meta = self.meta.with_expiry(expiry);
        self
    }

    /// Sets the flags, 32 bits that belong to the caller. They are 0 unless this is called.
    pub fn flags(mut self, flags: u32) -> Self {
        self.meta = self.meta.with_flags(flags);
        self
    }

    /// Sets everything that is stored beside the value, for example as another record has it.
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.set("key").flags(7).put("value")?;
    /// let copied = map.get_with("key", |item| map.set("copy").meta(item.meta()).put(item.value))?;
    /// copied.transpose()?;
    /// assert_eq!(map.get_with("copy", |item| item.flags)?, Some(7));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn meta(mut self, meta: Meta) -> Self {
        self.meta = meta;
        self
    }

    /// Binds the key to `value`, whether or not it is present, as [`Map::put`] does. Returns the
    /// CAS id of the new record.
    ///
    /// # Errors
    /// See [`Map`].
    pub fn put(self, value: impl AsRef<[u8]>) -> Result<u64> {
        let outcome = self.store(value.as_ref(), Condition::Any)?;
        Ok(outcome.cas().expect("something was stored"))
    }

    /// Binds the key to `value`, and returns the value that it had before: see [`Map::insert`].
    ///
    /// # Errors
    /// See [`Map::insert`].
    pub fn insert(self, value: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.exchange(value.as_ref(), Condition::Any)
    }

    /// Binds the key to `value` if it is absent: see [`Map::try_insert`].
    ///
    /// # Errors
    /// See [`Map`].
    pub fn try_insert(self, value: impl AsRef<[u8]>) -> Result<Outcome> {
        self.store(value.as_ref(), Condition::Absent)
    }

    /// Returns the value of the key; if it is absent, binds it to `value` first: see
    /// [`Map::get_or_insert`].
    ///
    /// # Errors
    /// See [`Map`].
    pub fn get_or_insert(self, value: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let there = self.exchange(value.as_ref(), Condition::Absent)?;
        Ok(there.unwrap_or_else(|| value.as_ref().to_vec()))
    }

    /// Binds the key to `value` if it is present: see [`Map::replace`].
    ///
    /// # Errors
    /// See [`Map`].
    pub fn replace(self, value: impl AsRef<[u8]>) -> Result<Outcome> {
        self.store(value.as_ref(), Condition::Present)
    }

    /// Binds the key to `value` if its record has this CAS id: see [`Map::compare_exchange`].
    ///
    /// # Errors
    /// See [`Map`].
    pub fn compare_exchange(self, cas: u64, value: impl AsRef<[u8]>) -> Result<Outcome> {
        self.store(value.as_ref(), Condition::Version { cas, unmarked: Marks::NONE })
    }

    /// Binds the key to the next `len` bytes of `source`: see [`Map::put_from`]. Returns the CAS id
    /// of the new record.
    ///
    /// # Errors
    /// See [`Map::put_from`].
    pub fn put_from(self, len: usize, source: impl Read) -> Result<u64> {
        let mut writer = self.value_writer(len)?;
        writer.fill_from(source)?;
        writer.finish()
    }

    /// Begins to write a value of `len` bytes: see [`Map::value_writer`].
    ///
    /// # Errors
    /// See [`Map`].
    pub fn value_writer(self, len: usize) -> Result<ValueWriter<'m, M>> {
        ValueWriter::begin(self.map, self.key.as_ref(), len, self.meta)
    }

    /// Returns the key.
    #[cfg(feature = "serde")]
    pub(crate) fn key(&self) -> &[u8] {
        self.key.as_ref()
    }

    fn store(&self, value: &[u8], condition: Condition) -> Result<Outcome> {
        self.map.store(self.key.as_ref(), value, self.meta, condition, None)
    }

    /// Stores the value under this condition. Returns the one that was there before.
    fn exchange(&self, value: &[u8], condition: Condition) -> Result<Option<Vec<u8>>> {
        let mut old = Vec::new();
        let key = self.key.as_ref();
        let stored = self.map.store(key, value, self.meta, condition, Some(&mut old))?;
        Ok((!matches!(stored, Outcome::Inserted { .. } | Outcome::Absent)).then_some(old))
    }
}
