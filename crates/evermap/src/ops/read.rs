//! Reading.
//!
//! Everything here *copies*: it loads the record's words one by one, and verifies the checksum of
//! the copy. That is safe Rust under no assumption at all, whatever the file contains and whatever
//! writes to it meanwhile. [`reader`](crate::ops::reader) lends the bytes where they are; see there
//! for what has to hold.

use std::collections::HashSet;
use std::iter::FusedIterator;
use std::ops::ControlFlow;

use evermap_index::Guard;
use evermap_index::key::BytesRef;
use evermap_index::record::OFFSET_MASK;
use evermap_pm::Medium;
use evermap_pm::medium::Mapped;

use crate::item::Access;
use crate::ops::pages::Pages;
use crate::record::Record;
use crate::record::control::Control;
use crate::{Error, Item, Map, Result};

pub use evermap_index::BATCH_KEYS;
/// Records that a walk prefetches ahead.
pub(crate) const RECORDS_AHEAD: usize = 8;

/// A live record, with its expiry and its marks.
pub(crate) type LiveRecord<'g, M> = (Record<'g, M>, Control);

pub(crate) const MISMATCH: &str = "its checksum does not match";

/// # More ways to read, and walks through all records
impl<M: Medium> Map<M> {
    /// Calls `read` with the whole record of `key`, copied and verified. Returns what `read`
    /// returns, or `None` if the key is absent.
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.set("key").flags(7).put("value")?;
    /// assert_eq!(map.get_with(b"key", |item| item.flags)?, Some(7));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`].
    pub fn get_with<R>(
        &self,
        key: impl AsRef<[u8]>,
        read: impl FnOnce(Item<'_>) -> R,
    ) -> Result<Option<R>> {
        self.read_with(key.as_ref(), Self::accessed, read)
    }

    pub(crate) fn read_with<R>(
        &self,
        key: &[u8],
        prior: impl FnOnce(&Self, &Record<'_, M>) -> Access,
        read: impl FnOnce(Item<'_>) -> R,
    ) -> Result<Option<R>> {
        let key = self.key(key)?;
        let guard = self.enter()?;
        let Some((record, control)) = self.find_to_read(key, &guard)? else { return Ok(None) };
        let prior = prior(self, &record);
        let mut value = Vec::new();
        self.copy(key.bytes, &record, &mut value)?;
        let item = record.item(key.bytes, &value, control).with_access(prior);
        drop(guard);
        Ok(Some(read(item)))
    }

    /// Counts a read of `record`, which was found under a guard that is still held. Returns how it
    /// was read before.
    #[inline]
    pub(crate) fn accessed(&self, record: &Record<'_, M>) -> Access {
        if self.inner.evicts() { self.count_access(record) } else { Access::default() }
    }

    #[inline(never)]
    fn count_access(&self, record: &Record<'_, M>) -> Access {
        let (now, before) = (self.db.file.clock.coarse(), record.access());
        let after = before.after_read(now);
        // The guard of a forked child keeps no block from being used again.
        if after != before && self.db.file.pool.region().ensure_writable().is_ok() {
            record.set_access(after);
        }
        before.prior(now)
    }

    /// Returns how a record was read, as [`accessed`](Map::accessed) does, without counting a read.
    pub(crate) fn prior_access(&self, record: &Record<'_, M>) -> Access {
        match self.inner.evicts() {
            true => record.access().prior(self.db.file.clock.coarse()),
            false => Access::default(),
        }
    }

    /// Looks up many keys with their cache misses overlapped: faster than one [`get`](Map::get)
    /// after the other as soon as the store is larger than the cache.
    ///
    /// Calls `each` with the position in `keys` and the record for each key that is present, in
    /// order, or with the error if a record is damaged. Stops when `each` returns `Break`. A guard
    /// is held meanwhile, so `each` should be quick.
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put(b"a", b"1")?;
    /// map.put(b"c", b"3")?;
    /// use std::ops::ControlFlow;
    /// let mut found = Vec::new();
    /// map.get_many(&[b"a", b"b", b"c"], |at, item| {
    ///     found.push((at, item.unwrap().value.to_vec()));
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert_eq!(found, [(0, b"1".to_vec()), (2, b"3".to_vec())]);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`]; damaged records are reported to `each` instead.
    pub fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        mut each: impl FnMut(usize, Result<Item<'_>>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut value = Vec::new();
        self.find_many(keys, |at, found| match found {
            Ok(found) => each(at, found.read(&mut value)),
            Err(error) => each(at, Err(error)),
        })
    }

    /// Appends the value of `key` to `out`. Returns `true` if the key is present. After an error
    /// nothing is appended.
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put(b"key", b"value")?;
    /// let mut out = b"> ".to_vec();
    /// assert!(map.get_into(b"key", &mut out)?);
    /// assert_eq!(out, b"> value");
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`].
    pub fn get_into(&self, key: impl AsRef<[u8]>, out: &mut Vec<u8>) -> Result<bool> {
        let key = self.key(key.as_ref())?;
        let guard = self.enter()?;
        let Some((record, _)) = self.find_to_read(key, &guard)? else { return Ok(false) };
        self.accessed(&record);
        self.copy(key.bytes, &record, out)?;
        Ok(true)
    }

    /// Returns the item of a record that was found for `key`, with its value copied to `value`.
    #[inline]
    pub(crate) fn shown<'a>(
        &self,
        key: &'a [u8],
        found: Result<Option<LiveRecord<'_, M>>>,
        value: &'a mut Vec<u8>,
    ) -> Result<Option<Item<'a>>> {
        let Some((record, control)) = found? else { return Ok(None) };
        value.clear();
        self.copy(key, &record, value)?;
        Ok(Some(record.item(key, value, control)))
    }

    /// Calls `each` with every record, copied and verified, in no particular order, or with the
    /// error if a record or a part of the index is damaged. Stops when `each` returns `Break`.
    /// O(n).
    ///
    /// A record that is present throughout is shown exactly once; one that comes or goes meanwhile,
    /// at most once. (A key that is removed and put again meanwhile has two records.) Each is
    /// current at some moment.
    ///
    /// `each` may use the store in any way and take its time: about a thousand records are copied
    /// at a time, and no guard is held while they are shown. That takes memory for their keys, and
    /// for 256 KiB of values or the largest of them.
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put(b"key", b"value")?;
    /// use std::ops::ControlFlow;
    /// let mut bytes = 0;
    /// map.for_each(|item| {
    ///     bytes += item.map_or(0, |item| item.value.len());
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert_eq!(bytes, 5);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// If nothing was stored or removed since the file was opened, and the number of records is
    /// [known](crate::Count::exact), records that are not met are noticed by it: `each` is called
    /// with [`Error::Incomplete`] at the end.
    ///
    /// # Errors
    /// [`Error::Closed`] and [`Error::Dropped`], also if `each` itself is the cause. All other
    /// errors are passed to `each`.
    pub fn for_each(
        &self,
        mut each: impl FnMut(Result<Item<'_>>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut pages = Pages::new(self);
        while let Some(item) = pages.next()? {
            if each(item).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Returns an iterator over all keys and values, with the guarantees of
    /// [`for_each`](Map::for_each).
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put(b"key", b"value")?;
    /// for pair in map.iter() {
    ///     let (key, value) = pair?;
    ///     assert_eq!((&key[..], &value[..]), (&b"key"[..], &b"value"[..]));
    /// }
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn iter(&self) -> Iter<'_, M> {
        Iter { pages: Pages::new(self) }
    }

    /// Returns an iterator over all keys, in no particular order: as [`iter`](Map::iter), without
    /// reading the values. The records are not verified, except that each belongs to its key.
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put(b"key", b"value")?;
    /// let keys = map.keys().collect::<evermap::Result<Vec<_>>>()?;
    /// assert_eq!(keys, [b"key"]);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn keys(&self) -> Keys<'_, M> {
        Keys { pages: Pages::of_keys(self) }
    }

    /// Prefetches a record of the usual length.
    #[inline]
    pub(crate) fn prefetch(&self, word: u64) {
        self.db.file.pool.medium().prefetch_bytes(word & OFFSET_MASK, self.inner.size_hint.bytes());
    }

    /// Finds a record as [`find`](Map::find) does, for a caller that will read the value: it is
    /// prefetched together with the key.
    #[inline]
    pub(crate) fn find_to_read<'g>(
        &'g self,
        key: BytesRef<'_>,
        guard: &'g Guard<'_>,
    ) -> Result<Option<LiveRecord<'g, M>>> {
        if let Some(bytes) = self.inner.size_hint.long() {
            self.inner.index.prefetch_record(key, bytes);
        }
        self.find(key, guard)
    }

    /// Returns the live record of `key`, with its expiry and its marks.
    #[inline]
    pub(crate) fn find<'g>(
        &'g self,
        key: BytesRef<'_>,
        guard: &'g Guard<'_>,
    ) -> Result<Option<LiveRecord<'g, M>>> {
        match self.inner.index.get_inline(key, guard)? {
            None => Ok(None),
            Some(word) => self.readable(key, word, guard),
        }
    }

    /// Returns the live record of `key`, which the index bound to `word` a moment ago, with its
    /// expiry and its marks.
    #[inline]
    pub(crate) fn readable<'g>(
        &'g self,
        key: BytesRef<'_>,
        mut word: u64,
        guard: &Guard<'_>,
    ) -> Result<Option<LiveRecord<'g, M>>> {
        loop {
            let record = Record::at(self.db.file.pool.medium(), word)
                .map_err(|what| self.damaged_at(key, word, what))?;
            if record.cas() < self.inner.flush.mark() {
                return Ok(None);
            }
            if let Some(control) = record.control() {
                let expires_at = control.expires_at;
                let expired = expires_at != 0 && expires_at <= self.db.file.clock.now();
                self.inner.size_hint.read(record.bytes());
                return Ok((!expired).then_some((record, control)));
            }
            match self.bound_since(key, &record, guard)? {
                Some(newer) => word = newer,
                None => return Ok(None),
            }
        }
    }

    /// Returns what `key` is bound to now, if it was bound to a record whose control word does not
    /// say when it expires.
    ///
    /// A tombstone of this opening can have come between reading the index and reading the record.
    /// It comes after the key was bound to something else or unbound, so reading the index again
    /// finds that; each time that the caller comes back with another record, another thread has
    /// changed the key meanwhile. Everything else is damage.
    #[cold]
    fn bound_since(
        &self,
        key: BytesRef<'_>,
        record: &Record<'_, M>,
        guard: &Guard<'_>,
    ) -> Result<Option<u64>> {
        if record.was_unbound_in(self.db.file.pool.generation()) {
            let bound = self.inner.index.get(key, guard)?;
            // The guard keeps the block from being used again, so the same word means the same
            // record.
            if bound != Some(record.word()) {
                return Ok(bound);
            }
        }
        Err(self.damaged_at(key, record.word(), record.why_unreadable()))
    }

    /// Notes this damage, and returns it.
    #[cold]
    pub(crate) fn met(&self, error: Error) -> Error {
        self.note_damage(&error);
        error
    }

    #[cold]
    pub(crate) fn damaged_at(&self, key: BytesRef<'_>, word: u64, what: &'static str) -> Error {
        self.met(Error::damaged(key.bytes, word & OFFSET_MASK, what))
    }

    /// Appends the value to `out`, and verifies the copy if
    /// [`Options::verify_reads`](crate::Options::verify_reads) is set.
    #[inline]
    pub(crate) fn copy(&self, key: &[u8], record: &Record<'_, M>, out: &mut Vec<u8>) -> Result<()> {
        if !self.db.file.verify {
            return record.append_value(out);
        }
        let start = out.len();
        if record.append_verified(self.inner.header.owner(), key, out)? {
            return Ok(());
        }
        out.truncate(start);
        Err(self.met(Error::damaged(key, record.offset(), MISMATCH)))
    }

    /// Copies the value to `out`, which has its length, and verifies the copy as
    /// [`copy`](Map::copy) does.
    #[inline]
    pub(crate) fn copy_to(&self, key: &[u8], record: &Record<'_, M>, out: &mut [u8]) -> Result<()> {
        if !self.db.file.verify {
            record.read_value(0, out);
            return Ok(());
        }
        if record.read_verified(self.inner.header.owner(), key, out) {
            return Ok(());
        }
        Err(self.met(Error::damaged(key, record.offset(), MISMATCH)))
    }
}

/// A walk through the index, one segment at a time.
pub(crate) struct Walk<'s, M: Medium> {
    pub(crate) map: &'s Map<M>,
    /// Where the walk continues: see [`Persistent::scan`](evermap_index::Persistent::scan).
    from: Option<u64>,
    error: Option<Error>,
    /// CAS ids of records that were shown instead of those that they replaced meanwhile. Most
    /// indexes leave a key where it is, so few of them are met again.
    shown_early: HashSet<u64>,
    /// Pairs that were met in a segment with another one of the same hash: different keys, of which
    /// hardly any file has two, or damage.
    twins: HashSet<(u64, u64)>,
}

impl<'s, M: Medium> Walk<'s, M> {
    pub(crate) fn new(map: &'s Map<M>) -> Self {
        Walk::at(map, 0)
    }

    /// Begins where another walk [was](Walk::position).
    pub(crate) fn at(map: &'s Map<M>, position: u64) -> Self {
        Walk {
            map,
            from: Some(position),
            error: None,
            shown_early: HashSet::new(),
            twins: HashSet::new(),
        }
    }

    /// Returns where the walk continues, or `None` at the end.
    pub(crate) fn position(&self) -> Option<u64> {
        self.from
    }

    /// Replaces `pairs` by the slot keys and words of the next segment. Returns the guard that
    /// keeps the records, or `None` at the end. A segment that cannot be read is empty, and its
    /// error is [taken](Walk::take_error) separately.
    pub(crate) fn next(&mut self, pairs: &mut Vec<(u64, u64)>) -> Result<Option<Guard<'s>>> {
        pairs.clear();
        self.append_next(pairs)
    }

    /// Appends the slot keys and words of the next segment to `pairs`, as [`next`](Walk::next)
    /// does.
    pub(crate) fn append_next(&mut self, pairs: &mut Vec<(u64, u64)>) -> Result<Option<Guard<'s>>> {
        let Some(from) = self.from else { return Ok(None) };
        let guard = self.map.enter()?;
        let first = pairs.len();
        let (shown, next) =
            self.map.inner.index.scan(from, &guard, &mut |hash, word| pairs.push((hash, word)));
        self.from = next;
        self.error = shown.err().map(Error::from);
        self.drop_doubles(pairs, first);
        Ok(Some(guard))
    }

    /// Removes pairs that a segment, which begins at `first`, has twice. Only damage leads to that.
    fn drop_doubles(&mut self, pairs: &mut Vec<(u64, u64)>, first: usize) {
        let mut hashes: Vec<u64> = pairs[first..].iter().map(|pair| pair.0).collect();
        hashes.sort_unstable();
        let again: HashSet<u64> =
            hashes.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
        if again.is_empty() {
            return;
        }
        let segment: Vec<_> = pairs.drain(first..).collect();
        let is_new = |pair: &(u64, u64)| !again.contains(&pair.0) || self.twins.insert(*pair);
        pairs.extend(segment.into_iter().filter(is_new));
    }

    /// Returns the error of the last segment, if it had one.
    pub(crate) fn take_error(&mut self) -> Result<()> {
        self.error.take().map_or(Ok(()), Err)
    }

    /// Returns the record of a pair that this walk has met, or the one that has replaced it since,
    /// with its expiry and its marks, or `None` if that is dead. Appends its key to `keys`. `guard`
    /// is the one under which the pair was met.
    pub(crate) fn named(
        &mut self,
        hash: u64,
        word: u64,
        guard: &Guard<'_>,
        keys: &mut Vec<u8>,
    ) -> Result<Option<LiveRecord<'s, M>>> {
        let (map, from) = (self.map, keys.len());
        let record = Record::at(map.db.file.pool.medium(), word)
            // The key of an unreadable record is unknown.
            .map_err(|what| map.damaged_at(BytesRef { bytes: &[], hash }, word, what))?;
        record.append_key(keys)?;
        let key = map.key(&keys[from..])?;
        if key.hash != hash {
            return Err(map.met(record.damaged("it is stored under the hash of another key")));
        }
        let Some((record, control)) = map.readable(key, word, guard)? else { return Ok(None) };
        if record.word() != word {
            // Damage has bound the key twice, and a change has replaced one of the two.
            if self.twins.contains(&(hash, record.word())) {
                return Ok(None);
            }
            // The key can be met again: it was removed and then bound in a part of the index that
            // is still ahead.
            self.shown_early.insert(record.cas());
        } else if !self.shown_early.is_empty() && self.shown_early.remove(&record.cas()) {
            return Ok(None);
        }
        Ok(Some((record, control)))
    }
}

/// An iterator over all keys and values of a map: see [`Map::iter`].
///
/// It holds nothing in the store between two calls, so it may be kept for any time: it keeps no
/// memory from being reused, and [`close`](crate::Evermap::close) does not wait for it.
pub struct Iter<'s, M: Medium = Mapped> {
    pages: Pages<'s, M>,
}

impl<M: Medium> Iterator for Iter<'_, M> {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    /// Returns the error of a damaged record, or of a damaged part of the index, and goes on with
    /// what comes next. If the store was closed, or the map was dropped, returns that error once
    /// and then ends.
    fn next(&mut self) -> Option<Self::Item> {
        match self.pages.next() {
            Ok(Some(shown)) => Some(shown.map(|item| (item.key.to_vec(), item.value.to_vec()))),
            Ok(None) => None,
            Err(error) => Some(Err(error)),
        }
    }
}

impl<M: Medium> FusedIterator for Iter<'_, M> {}

impl<'s, M: Medium> IntoIterator for &'s Map<M> {
    type Item = Result<(Vec<u8>, Vec<u8>)>;
    type IntoIter = Iter<'s, M>;

    fn into_iter(self) -> Iter<'s, M> {
        self.iter()
    }
}

/// An iterator over all keys of a map: see [`Map::keys`]. It holds nothing in the store between two
/// calls.
pub struct Keys<'s, M: Medium = Mapped> {
    pages: Pages<'s, M>,
}

impl<M: Medium> Iterator for Keys<'_, M> {
    type Item = Result<Vec<u8>>;

    /// Returns the error of a damaged record, or of a damaged part of the index, and goes on with
    /// what comes next. If the store was closed, or the map was dropped, returns that error once
    /// and then ends.
    fn next(&mut self) -> Option<Self::Item> {
        match self.pages.next_key() {
            Ok(Some(shown)) => Some(shown.map(<[u8]>::to_vec)),
            Ok(None) => None,
            Err(error) => Some(Err(error)),
        }
    }
}

impl<M: Medium> FusedIterator for Keys<'_, M> {}
