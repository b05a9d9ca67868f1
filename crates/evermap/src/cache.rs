//! What a server of a cache needs of a map beside its usual operations: lookups that leave it to
//! the caller whether a value is copied, walks that can be interrupted, marks, and how records were
//! accessed. [`Map::cache`] has the operations. Other programs need none of it.

use std::ops::ControlFlow;

use evermap_pm::Medium;
use evermap_pm::medium::Mapped;

pub use crate::item::{Access, CacheEdit, Marks};
pub use crate::ops::find_many::UnreadRecord;
pub use crate::ops::put_many::NewRecord;
pub use crate::ops::read::BATCH_KEYS;
use crate::ops::write::Condition;
use crate::{Expiry, Item, Map, Meta, Outcome, Result};

impl<M: Medium> Map<M> {
    /// Returns the operations that a server of a cache needs: see [`cache`](crate::cache).
    pub fn cache(&self) -> CacheMap<'_, M> {
        CacheMap { map: self }
    }
}

/// The operations on a map that a server of a cache needs: see [`Map::cache`].
pub struct CacheMap<'m, M: Medium = Mapped> {
    pub(crate) map: &'m Map<M>,
}

impl<M: Medium> CacheMap<'_, M> {
    /// Looks up a key, as [`get`](Map::get) does, and leaves it to `read` whether and where to copy
    /// the value. Returns what `read` returns, or `None` if the key is absent. A guard is held
    /// meanwhile, so `read` should be quick. Expected O(1).
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put(b"key", b"value")?;
    /// assert_eq!(map.cache().find(b"key", |record| record.value_len())?, Some(5));
    /// assert_eq!(map.cache().find(b"other", |record| record.value_len())?, None);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`].
    #[inline]
    pub fn find<R>(
        &self,
        key: impl AsRef<[u8]>,
        read: impl FnOnce(UnreadRecord<'_, M>) -> R,
    ) -> Result<Option<R>> {
        self.map.find_unread(key.as_ref(), read)
    }

    /// Looks up several keys with their cache misses overlapped, as [`get_many`](Map::get_many)
    /// does, and leaves it to `each` whether and where to copy the values.
    ///
    /// Calls `each` with the position in `keys` and the record for each key that is present, in the
    /// order of `keys`, or with the error if the record is damaged. Stops if `each` returns
    /// [`ControlFlow::Break`]. A guard is held meanwhile, so `each` should be quick.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put(b"a", b"1")?;
    /// map.put(b"c", b"3")?;
    /// let mut reply = Vec::new();
    /// map.cache().find_many(&[b"a", b"b", b"c"], |at, record| {
    ///     let record = record.unwrap();
    ///     reply.extend_from_slice(format!("{at}:").as_bytes());
    ///     record.append_to(&mut reply).unwrap();
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert_eq!(reply, b"0:12:3");
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`]; damaged records are reported to `each` instead.
    pub fn find_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        each: impl FnMut(usize, Result<UnreadRecord<'_, M>>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.map.find_many(keys, each)
    }

    /// Stores several records, as [`put_many`](Map::put_many) does, and leaves it to the caller to
    /// [wait](crate::Evermap::sync) until they are durable in a log. Calls `each` with the position
    /// in `records` and the CAS id of the record, or the error why it is not stored, for each of
    /// them.
    ///
    /// ```
    /// use evermap::Meta;
    /// use evermap::cache::NewRecord;
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// let meta = Meta::new().with_flags(7);
    /// let records = [NewRecord { key: b"a", value: b"1", meta }];
    /// map.cache().set_many(&records, |_, stored| assert!(stored.is_ok()));
    /// assert_eq!(map.get_with("a", |item| item.flags)?, Some(7));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn set_many(&self, records: &[NewRecord<'_>], mut each: impl FnMut(usize, Result<u64>)) {
        self.map.store_many(records, &mut each);
    }

    /// Calls `each` with the records of one page of the map, or with the error of a record or a
    /// part of the index that is damaged. Returns the position of the next page, or `None` if this
    /// was the last one. 0 is the position of the first page.
    ///
    /// A walk over all pages shows each record that is there throughout at least once, and twice
    /// only if the index moves it meanwhile; [`for_each`](Map::for_each) shows it exactly once, but
    /// has to run to its end. Nothing is held between two calls, so the caller may pause for any
    /// time. A guard is held during the call, so `each` should be quick. No access is counted.
    /// Expected O(records of the page), which are a few thousand at most.
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put(b"a", b"1")?;
    /// map.put(b"b", b"22")?;
    /// let (mut bytes, mut next) = (0, Some(0));
    /// while let Some(position) = next {
    ///     next = map.cache().find_page(position, |record| bytes += record.unwrap().value_len())?;
    /// }
    /// assert_eq!(bytes, 3);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`]; damage is reported to `each` instead.
    pub fn find_page(
        &self,
        position: u64,
        each: impl FnMut(Result<UnreadRecord<'_, M>>),
    ) -> Result<Option<u64>> {
        self.map.find_page(position, each)
    }

    /// Calls `read` with the whole record of `key`, as [`get_with`](Map::get_with) does, but does
    /// not count as an access: whether and when the record is [evicted](crate::Options::evict) does
    /// not change.
    ///
    /// ```
    /// use evermap::{Evermap, Options};
    /// let options = Options::new().memory_limit(64 << 20).evict(true);
    /// let map = Evermap::in_memory(options)?.default_map();
    /// map.put("key", "value")?;
    /// assert_eq!(map.cache().peek("key", |item| item.access().fetched)?, Some(false));
    /// assert_eq!(map.get_with("key", |item| item.access().fetched)?, Some(false));
    /// assert_eq!(map.cache().peek("key", |item| item.access().fetched)?, Some(true));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`].
    pub fn peek<R>(
        &self,
        key: impl AsRef<[u8]>,
        read: impl FnOnce(Item<'_>) -> R,
    ) -> Result<Option<R>> {
        self.map.read_with(key.as_ref(), Map::prior_access, read)
    }

    /// Changes when `key` expires, as [`touch`](Map::touch) does, and calls `read` with its record.
    /// Returns what `read` returns, or `None` if the key is absent.
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put("key", "value")?;
    /// let hour = std::time::Duration::from_secs(3600);
    /// let length = map.cache().get_and_touch("key", hour, |item| item.value.len())?;
    /// assert_eq!(length, Some(5));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`].
    pub fn get_and_touch<R>(
        &self,
        key: impl AsRef<[u8]>,
        expiry: impl Into<Expiry>,
        read: impl FnOnce(Item<'_>) -> R,
    ) -> Result<Option<R>> {
        self.map.touch_and_read(key.as_ref(), expiry.into(), read)
    }

    /// Binds `key` to `value` as [`compare_exchange`](Map::compare_exchange) does, unless the
    /// record has any of the marks `unmarked`. It is kept then, whatever its CAS id.
    ///
    /// ```
    /// use evermap::cache::Marks;
    /// use evermap::{Meta, Outcome};
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// let held = Marks::from_bits_truncate(1);
    /// let cas = map.set("key").meta(Meta::new().with_marks(held)).put("value")?;
    /// let kept = map.cache().compare_exchange("key", cas, held, "next", Meta::new())?;
    /// assert_eq!(kept, Outcome::Kept { cas });
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`].
    pub fn compare_exchange(
        &self,
        key: impl AsRef<[u8]>,
        cas: u64,
        unmarked: Marks,
        value: impl AsRef<[u8]>,
        meta: Meta,
    ) -> Result<Outcome> {
        let condition = Condition::Version { cas, unmarked };
        self.map.store(key.as_ref(), value.as_ref(), meta, condition, None)
    }

    /// Changes `key` as [`modify`](Map::modify) does, by an `edit` that decides about marks too, or
    /// that changes them and the expiry in place.
    ///
    /// ```
    /// use evermap::Expiry;
    /// use evermap::cache::{CacheEdit, Marks};
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// let cas = map.set("key").put("value")?;
    /// let stale = Marks::from_bits_truncate(1);
    /// let marked = map.cache().modify("key", |_| {
    ///     CacheEdit::Mark { expiry: Expiry::NEVER, marks: stale }
    /// })?;
    /// assert_eq!(marked, Some(cas), "the same version");
    /// assert_eq!(map.get_with("key", |item| item.meta().marks())?, Some(stale));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`].
    pub fn modify(
        &self,
        key: impl AsRef<[u8]>,
        edit: impl FnMut(Option<Item<'_>>) -> CacheEdit,
    ) -> Result<Option<u64>> {
        self.map.modify_guarded(key.as_ref(), edit)
    }
}
