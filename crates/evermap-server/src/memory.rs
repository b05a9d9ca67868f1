//! A cache in ordinary memory, over any table.
//!
//! [`MemoryCache`] is what memcached's items and commands mean; a [`Table`] finds and changes one
//! item at a time. What the table does not do, this does not either: nothing is evicted, and items
//! that have expired take their space until they are replaced or removed. So it serves to test the
//! protocols, and to compare tables under them.

use std::fmt::Display;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use crate::cache::{
    Arithmetic, Cache, CacheError, Hit, Item, Marks, Side, StoreMode, StoreOutcome, StoreRequest,
    Stored, Update, apply_delta, seconds_of,
};

/// The number of items that [`Cache::page`] shows at a time.
const PAGE: u64 = 100;
/// No second has this number.
const NEVER: u64 = u64::MAX;

/// A concurrent table from keys to entries.
pub trait Table: Send + Sync + 'static {
    /// Calls `each` with the position in `keys` and the entry for each key that is present, in
    /// this order, until it breaks.
    ///
    /// # Errors
    ///
    /// If the table cannot be read.
    fn read_many(
        &self,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, &Entry) -> ControlFlow<()>,
    ) -> Result<(), CacheError>;

    /// Changes one key atomically: calls `decide` with its entry, and does what it returns.
    /// `decide` may be called again, if another thread was faster; the last call counts.
    ///
    /// # Errors
    ///
    /// If the table cannot be changed. Then nothing was.
    fn change(
        &self,
        key: &[u8],
        decide: &mut dyn FnMut(Option<&Entry>) -> Decision,
    ) -> Result<(), CacheError>;

    /// Calls `each` with every key and entry, until it breaks. `each` does not use the table.
    ///
    /// # Errors
    ///
    /// If the table cannot be read.
    fn for_each(
        &self,
        each: &mut dyn FnMut(&[u8], &Entry) -> ControlFlow<()>,
    ) -> Result<(), CacheError>;

    /// Returns the number of entries.
    fn len(&self) -> u64;

    /// Returns `true` if there is no entry.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Does what [`Table::read_many`] does, with a function that returns the entry of a key.
pub fn each_found<'e>(
    keys: &[&[u8]],
    find: impl Fn(&[u8]) -> Option<&'e Entry>,
    each: &mut dyn FnMut(usize, &Entry) -> ControlFlow<()>,
) {
    for (i, &key) in keys.iter().enumerate() {
        if find(key).is_some_and(|entry| each(i, entry).is_break()) {
            break;
        }
    }
}

/// What the closure of [`Table::change`] decides.
#[derive(Debug)]
pub enum Decision {
    /// Leaves everything as it is.
    Keep,
    /// Binds the key to this entry.
    Put(Entry),
    /// Removes the key.
    Remove,
}

/// The version of an item: only what is noted of accesses changes.
#[derive(Debug)]
pub struct Entry {
    value: Arc<[u8]>,
    flags: u32,
    expiry: u32,
    marks: Marks,
    cas: u64,
    /// Rises with each stored version.
    number: u64,
    fetched: AtomicBool,
    accessed_at: AtomicU32,
}

impl Clone for Entry {
    fn clone(&self) -> Self {
        Entry {
            value: self.value.clone(),
            fetched: AtomicBool::new(self.fetched.load(Relaxed)),
            accessed_at: AtomicU32::new(self.accessed_at.load(Relaxed)),
            ..*self
        }
    }
}

impl Entry {
    fn with_item<R>(&self, now: u32, f: impl FnOnce(Item<'_>) -> R) -> R {
        let &Entry { flags, cas, expiry, marks, .. } = self;
        let fetched = self.fetched.load(Relaxed);
        let idle = now.saturating_sub(self.accessed_at.load(Relaxed));
        f(Item { flags, cas, expiry, marks, fetched, idle, value: &&*self.value })
    }

    /// Calls `f` with the item, and notes the access afterwards. Readers share the entry, so they
    /// store only what is news, at most once a second.
    fn access<R>(&self, now: u32, f: impl FnOnce(Item<'_>) -> R) -> R {
        let result = self.with_item(now, f);
        if !self.fetched.load(Relaxed) {
            self.fetched.store(true, Relaxed);
        }
        if self.accessed_at.load(Relaxed) != now {
            self.accessed_at.store(now, Relaxed);
        }
        result
    }

    fn bytes(&self, key: &[u8]) -> u64 {
        (key.len() + self.value.len()) as u64
    }
}

/// What tells the time.
#[derive(Debug)]
enum Clock {
    System,
    /// Only [`set_now`](MemoryCache::set_now) changes it.
    Set(AtomicU32),
}

/// A cache over a table in ordinary memory.
#[derive(Debug)]
pub struct MemoryCache<T> {
    table: T,
    clock: Clock,
    /// The number of the last version: the number of versions ever stored.
    last: AtomicU64,
    /// Versions up to this number are invalid.
    flushed: AtomicU64,
    /// When everything that was stored before becomes invalid, or `NEVER`.
    flush_at: AtomicU64,
    /// The length of all keys and values.
    bytes: AtomicU64,
    /// 0: there is no limit.
    bytes_max: AtomicU64,
}

impl<T> MemoryCache<T> {
    /// Creates a cache over an empty table.
    pub fn over(table: T) -> Self {
        Self::with_clock(table, Clock::System)
    }

    /// Creates a cache over an empty table whose clock shows `now`, in seconds since 1970, until
    /// [`set_now`](Self::set_now) is called.
    pub fn over_at(table: T, now: u32) -> Self {
        Self::with_clock(table, Clock::Set(AtomicU32::new(now)))
    }

    fn with_clock(table: T, clock: Clock) -> Self {
        let zero = || AtomicU64::new(0);
        let flush_at = AtomicU64::new(NEVER);
        let (last, flushed, bytes, bytes_max) = (zero(), zero(), zero(), zero());
        MemoryCache { table, clock, last, flushed, flush_at, bytes, bytes_max }
    }

    /// Sets the clock. Has no effect if the cache follows the clock of the system.
    pub fn set_now(&self, now: u32) {
        if let Clock::Set(clock) = &self.clock {
            clock.store(now, Relaxed);
        }
    }

    /// Limits the total length of all keys and values. Operations that would exceed it fail with
    /// `OutOfMemory`.
    pub fn limit_bytes(&self, bytes: usize) {
        self.bytes_max.store(bytes as u64, Relaxed);
    }

    /// Returns the table.
    pub fn table(&self) -> &T {
        &self.table
    }

    fn is_live(&self, entry: &Entry, now: u32) -> bool {
        entry.number > self.flushed.load(Relaxed) && (entry.expiry == 0 || entry.expiry > now)
    }

    fn entry(&self, value: Arc<[u8]>, now: u32, request: &StoreRequest) -> Entry {
        let number = self.last.fetch_add(1, Relaxed) + 1;
        Entry {
            value,
            flags: request.flags,
            expiry: request.expiry,
            marks: Marks::default(),
            cas: request.cas.unwrap_or(number),
            number,
            fetched: AtomicBool::new(false),
            accessed_at: AtomicU32::new(now),
        }
    }

    /// Returns a new version of an item with another value.
    fn with_value(&self, old: &Entry, value: &[u8], now: u32) -> Entry {
        let mode = StoreMode::Set;
        let request = StoreRequest { flags: old.flags, expiry: old.expiry, mode, cas: None };
        Entry { marks: old.marks, ..self.entry(value.into(), now, &request) }
    }
}

impl<T: Table> MemoryCache<T> {
    /// Returns the time, after what was to happen until then.
    fn begin(&self) -> Result<u32, CacheError> {
        let now = self.now();
        if u64::from(now) >= self.flush_at.load(Relaxed)
            && self.flush_at.swap(NEVER, Relaxed) != NEVER
        {
            self.invalidate_all()?;
        }
        Ok(now)
    }

    /// Makes every version invalid that was stored so far, and returns the memory.
    fn invalidate_all(&self) -> Result<(), CacheError> {
        let last = self.last.load(Relaxed);
        self.flushed.fetch_max(last, Relaxed);
        let mut keys = Vec::new();
        self.table.for_each(&mut |key, entry| {
            if entry.number <= last {
                keys.push(key.to_vec());
            }
            ControlFlow::Continue(())
        })?;
        keys.iter().try_for_each(|key| {
            self.change(key, |old| match old {
                Some(old) if old.number <= last => Ok(Decision::Remove),
                _ => Ok(Decision::Keep),
            })
        })
    }

    /// As [`Table::change`], within the limit of memory, which may be an error as `decide` may.
    fn change(
        &self,
        key: &[u8],
        mut decide: impl FnMut(Option<&Entry>) -> Result<Decision, CacheError>,
    ) -> Result<(), CacheError> {
        let (mut result, mut before, mut after) = (Ok(()), 0, 0);
        self.table.change(key, &mut |old| {
            let kept = old.map_or(0, |old| old.bytes(key));
            (result, before, after) = (Ok(()), 0, 0);
            let decided = decide(old).and_then(|decision| {
                if let Decision::Put(entry) = &decision {
                    let most = self.bytes_max.load(Relaxed);
                    let bytes = self.bytes.load(Relaxed) + entry.bytes(key);
                    if most > 0 && bytes.saturating_sub(kept) > most {
                        return Err(CacheError::OutOfMemory);
                    }
                    after = entry.bytes(key);
                }
                before = if matches!(decision, Decision::Keep) { 0 } else { kept };
                Ok(decision)
            });
            decided.unwrap_or_else(|error| {
                result = Err(error);
                Decision::Keep
            })
        })?;
        if before != after {
            self.bytes.fetch_add(after.wrapping_sub(before), Relaxed);
        }
        result
    }

    /// Changes an item that is live, or `None`.
    fn change_live(
        &self,
        key: &[u8],
        now: u32,
        mut decide: impl FnMut(Option<&Entry>) -> Result<Decision, CacheError>,
    ) -> Result<(), CacheError> {
        self.change(key, |old| decide(old.filter(|entry| self.is_live(entry, now))))
    }

    /// Reads one item that is live. Returns `true` if there is one.
    fn read(
        &self,
        key: &[u8],
        now: u32,
        hit: &mut dyn FnMut(Item<'_>) -> Result<(), CacheError>,
    ) -> Result<bool, CacheError> {
        let (mut found, mut result) = (false, Ok(()));
        self.table.read_many(&[key], &mut |_, entry| {
            if self.is_live(entry, now) {
                (found, result) = (true, entry.with_item(now, &mut *hit));
            }
            ControlFlow::Continue(())
        })?;
        result.map(|()| found)
    }
}

impl<T: Table> Cache for MemoryCache<T> {
    fn now(&self) -> u32 {
        match &self.clock {
            Clock::Set(now) => now.load(Relaxed),
            Clock::System => seconds_of(evermap::Clock::system().now()),
        }
    }

    fn get_many(
        &self,
        keys: &[&[u8]],
        hit: &mut dyn FnMut(usize, Item<'_>) -> Hit,
    ) -> Result<(), CacheError> {
        let now = self.begin()?;
        let mut result = Ok(());
        self.table.read_many(keys, &mut |i, entry| {
            if !self.is_live(entry, now) {
                return ControlFlow::Continue(());
            }
            entry.access(now, |item| hit(i, item)).unwrap_or_else(|error| {
                result = Err(error);
                ControlFlow::Break(())
            })
        })?;
        result
    }

    fn peek(
        &self,
        key: &[u8],
        hit: &mut dyn FnMut(Item<'_>) -> Result<(), CacheError>,
    ) -> Result<bool, CacheError> {
        let now = self.begin()?;
        self.read(key, now, hit)
    }

    fn get_and_touch(
        &self,
        key: &[u8],
        expiry: u32,
        hit: &mut dyn FnMut(Item<'_>) -> Result<(), CacheError>,
    ) -> Result<bool, CacheError> {
        let now = self.begin()?;
        let mut touched = None;
        self.change_live(key, now, |live| {
            touched = live.map(|old| Entry { expiry, ..old.clone() });
            let noted = touched.clone().inspect(|entry| entry.access(now, |_| ()));
            Ok(noted.map_or(Decision::Keep, Decision::Put))
        })?;
        touched.as_ref().map(|entry| entry.with_item(now, hit)).transpose()?;
        Ok(touched.is_some())
    }

    fn store(
        &self,
        key: &[u8],
        value: &[u8],
        request: &StoreRequest,
    ) -> Result<Stored, CacheError> {
        let now = self.begin()?;
        let mut stored = Stored::from(StoreOutcome::NotStored);
        self.change_live(key, now, |live| {
            stored = match (request.mode, live) {
                (StoreMode::Add, Some(_)) | (StoreMode::Replace, None) => {
                    StoreOutcome::NotStored.into()
                }
                (StoreMode::Cas(_), None) => StoreOutcome::NotFound.into(),
                (StoreMode::Cas(expected), Some(old)) if expected != old.cas => {
                    StoreOutcome::Exists.into()
                }
                _ => {
                    let entry = self.entry(value.into(), now, request);
                    stored = Stored { outcome: StoreOutcome::Stored, cas: entry.cas };
                    return Ok(Decision::Put(entry));
                }
            };
            Ok(Decision::Keep)
        })?;
        Ok(stored)
    }

    fn update(
        &self,
        key: &[u8],
        decide: &mut dyn FnMut(Option<&Item<'_>>) -> Result<Update, CacheError>,
    ) -> Result<Option<u64>, CacheError> {
        let now = self.begin()?;
        let mut cas = None;
        self.change_live(key, now, |live| {
            cas = live.map(|old| old.cas);
            let update = match live {
                None => decide(None)?,
                Some(old) => old.access(now, |item| decide(Some(&item)))?,
            };
            Ok(match (update, live) {
                (Update::Keep, _) | (Update::Mark { .. }, None) => Decision::Keep,
                (Update::Mark { expiry, marks }, Some(old)) => {
                    Decision::Put(Entry { expiry, marks, ..old.clone() })
                }
                (Update::Put { value, flags, expiry, marks, cas: chosen }, _) => {
                    let mode = StoreMode::Set;
                    let request = StoreRequest { flags, expiry, mode, cas: chosen };
                    let entry = Entry { marks, ..self.entry(value.into(), now, &request) };
                    cas = Some(entry.cas);
                    Decision::Put(entry)
                }
                (Update::Remove, _) => {
                    cas = None;
                    Decision::Remove
                }
            })
        })?;
        Ok(cas)
    }

    fn concat(
        &self,
        key: &[u8],
        data: &[u8],
        side: Side,
        value_max: usize,
    ) -> Result<Stored, CacheError> {
        let now = self.begin()?;
        let mut stored = Stored::from(StoreOutcome::NotStored);
        self.change_live(key, now, |live| {
            stored = StoreOutcome::NotStored.into();
            let Some(old) = live else { return Ok(Decision::Keep) };
            if old.value.len() + data.len() > value_max {
                return Err(CacheError::TooLarge);
            }
            let value = match side {
                Side::Append => [&*old.value, data].concat(),
                Side::Prepend => [data, &*old.value].concat(),
            };
            let entry = self.with_value(old, &value, now);
            stored = Stored { outcome: StoreOutcome::Stored, cas: entry.cas };
            Ok(Decision::Put(entry))
        })?;
        Ok(stored)
    }

    fn arithmetic(&self, key: &[u8], delta: u64, up: bool) -> Result<Arithmetic, CacheError> {
        let now = self.begin()?;
        let mut outcome = Arithmetic::NotFound;
        self.change_live(key, now, |live| {
            outcome = Arithmetic::NotFound;
            let Some(old) = live else { return Ok(Decision::Keep) };
            let mut value = Vec::new();
            let Some(number) = apply_delta(&old.value, delta, up, &mut value) else {
                outcome = Arithmetic::NonNumeric;
                return Ok(Decision::Keep);
            };
            let entry = self.with_value(old, &value, now);
            outcome = Arithmetic::Changed { number, cas: entry.cas };
            Ok(Decision::Put(entry))
        })?;
        Ok(outcome)
    }

    fn delete(&self, key: &[u8]) -> Result<bool, CacheError> {
        let now = self.begin()?;
        let mut was_live = false;
        self.change(key, |old| {
            was_live = old.is_some_and(|entry| self.is_live(entry, now));
            Ok(Decision::Remove)
        })?;
        Ok(was_live)
    }

    fn touch(&self, key: &[u8], expiry: u32) -> Result<bool, CacheError> {
        let now = self.begin()?;
        let mut was_live = false;
        self.change_live(key, now, |live| {
            was_live = live.is_some();
            let touched = live.map(|old| Entry { expiry, ..old.clone() });
            Ok(touched.map_or(Decision::Keep, Decision::Put))
        })?;
        Ok(was_live)
    }

    fn flush_all(&self, at: Option<u32>) -> Result<(), CacheError> {
        let now = self.begin()?;
        match at {
            Some(at) if at > now => self.flush_at.store(at.into(), Relaxed),
            _ => {
                self.flush_at.store(NEVER, Relaxed);
                self.invalidate_all()?;
            }
        }
        Ok(())
    }

    /// Shows the items in the order of the table, and positions are numbers of items. So items may
    /// be shown twice or left out if others come or go between two calls, and a page takes time for
    /// the items before it.
    fn page(
        &self,
        position: u64,
        each: &mut dyn FnMut(&[u8], Item<'_>),
    ) -> Result<Option<u64>, CacheError> {
        let now = self.begin()?;
        let (mut at, end) = (0, position.saturating_add(PAGE));
        self.table.for_each(&mut |key, entry| {
            if at >= position && self.is_live(entry, now) {
                entry.with_item(now, |item| each(key, item));
            }
            at += 1;
            if at < end { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok((at == end && end < self.table.len()).then_some(end))
    }

    fn memory_limit(&self) -> u64 {
        self.bytes_max.load(Relaxed)
    }

    fn set_memory_limit(&self, bytes: u64) -> Result<(), CacheError> {
        self.bytes_max.store(bytes, Relaxed);
        Ok(())
    }

    fn stats(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        each("curr_items", &self.table.len());
        each("bytes", &self.bytes.load(Relaxed));
        each("limit_maxbytes", &self.memory_limit());
    }
}
