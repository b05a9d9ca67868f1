//! The interface between the protocols and the store.
//!
//! [`Cache`] has one method for each operation that the protocols perform on items. Every method
//! acts on its key atomically, so an implementation needs one lookup or one read-modify-write of
//! the store. The protocols know nothing else about the store, and the store knows nothing about
//! protocols.

use std::fmt::Display;
use std::ops::ControlFlow;
use std::time::{SystemTime, UNIX_EPOCH};

pub mod size_class;

/// The maximum number of keys that the protocols pass to [`Cache::get_many`]: the number that the
/// store looks up together.
pub use evermap::cache::BATCH_KEYS;

/// Returns the seconds since 1970, as the protocols have them.
pub(crate) fn seconds_of(time: SystemTime) -> u32 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
}

/// A collection of items that the protocols operate on.
///
/// Keys are 1 to 250 bytes, or more if [`Config::key_size_max`](crate::Config::key_size_max) says
/// so; values are any bytes. Times are absolute, in seconds since 1970. An expiry of 0 means that
/// the item never expires; otherwise the item is live until that second. All methods treat an item
/// that is not live as absent.
///
/// # Errors
///
/// Every method can return a [`CacheError`]. The cache is unchanged in that case.
pub trait Cache: Send + Sync + 'static {
    /// Returns the time by which items expire, in seconds since 1970. Times that clients give
    /// relative to now begin there.
    ///
    /// By default it is the [time of the process](evermap::Clock), which no step of the wall clock
    /// moves.
    fn now(&self) -> u32 {
        seconds_of(evermap::Clock::system().now())
    }

    /// Looks up several keys together, so that their cache misses can overlap.
    ///
    /// Calls `hit` with the position in `keys` and the item for each live item, in the order of
    /// `keys`. Stops early, without an error, if `hit` returns [`ControlFlow::Break`].
    ///
    /// # Errors
    ///
    /// If a key cannot be looked up, or with the error that `hit` returns. `hit` may have been
    /// called for other keys before.
    fn get_many(
        &self,
        keys: &[&[u8]],
        hit: &mut dyn FnMut(usize, Item<'_>) -> Hit,
    ) -> Result<(), CacheError>;

    /// Looks up one key without recording an access, so that a client that inspects an item does
    /// not change what it inspects. Calls `hit` with the item and returns `true` if it is live.
    fn peek(
        &self,
        key: &[u8],
        hit: &mut dyn FnMut(Item<'_>) -> Result<(), CacheError>,
    ) -> Result<bool, CacheError>;

    /// Changes the expiry of an item and calls `hit` with the item. Returns `true` if the item was
    /// live.
    fn get_and_touch(
        &self,
        key: &[u8],
        expiry: u32,
        hit: &mut dyn FnMut(Item<'_>) -> Result<(), CacheError>,
    ) -> Result<bool, CacheError>;

    /// Stores an item without marks if the mode of `request` allows it.
    fn store(&self, key: &[u8], value: &[u8], request: &StoreRequest)
    -> Result<Stored, CacheError>;

    /// Stores items without marks, each of them as [`store`](Cache::store) does with
    /// [`StoreMode::Set`], in the order of `items`, so that their cache misses can overlap. Calls
    /// `each` with the position of each item and the result.
    fn set_many(
        &self,
        items: &[NewItem<'_>],
        each: &mut dyn FnMut(usize, Result<Stored, CacheError>),
    ) {
        for (at, &NewItem { key, value, flags, expiry }) in items.iter().enumerate() {
            let request = StoreRequest { flags, expiry, ..StoreRequest::new(StoreMode::Set) };
            each(at, self.store(key, value, &request));
        }
    }

    /// Changes an item by an atomic read-modify-write: calls `decide` with the live item, or with
    /// `None`, and does what it decides. Returns the CAS id that the item has then, or `None` if
    /// there is none.
    ///
    /// `decide` is called again if another thread has changed the item in between, and only its
    /// last call counts. So it must not have effects of its own. An access is recorded.
    ///
    /// # Errors
    ///
    /// Also the error that `decide` returns.
    fn update(
        &self,
        key: &[u8],
        decide: &mut dyn FnMut(Option<&Item<'_>>) -> Result<Update, CacheError>,
    ) -> Result<Option<u64>, CacheError>;

    /// Appends or prepends `data` to a value. The item gets a new CAS id and keeps its flags, its
    /// expiry and its marks.
    ///
    /// The outcome is `Stored`, or `NotStored` if there is no such item.
    ///
    /// # Errors
    ///
    /// [`CacheError::TooLarge`] if the value would become longer than `value_max` bytes.
    fn concat(
        &self,
        key: &[u8],
        data: &[u8],
        side: Side,
        value_max: usize,
    ) -> Result<Stored, CacheError>;

    /// Adds to or subtracts from a value that is a decimal number, as [`apply_delta`] does. The
    /// item gets a new CAS id and keeps its flags, its expiry and its marks.
    fn arithmetic(&self, key: &[u8], delta: u64, up: bool) -> Result<Arithmetic, CacheError>;

    /// Removes an item. Returns `true` if it was live.
    fn delete(&self, key: &[u8]) -> Result<bool, CacheError>;

    /// Changes the expiry of an item. Returns `true` if it was live.
    fn touch(&self, key: &[u8], expiry: u32) -> Result<bool, CacheError>;

    /// Invalidates all items that were stored before a point in time.
    ///
    /// With `None`, this is the time of the call. With `Some(at)`, nothing happens until `at`; then
    /// every item that was stored before `at` is invalid. A later call replaces one whose time has
    /// not come.
    fn flush_all(&self, at: Option<u32>) -> Result<(), CacheError>;

    /// Calls `each` with the key and the item of each live item in one page of the cache, in no
    /// particular order. A page has about a thousand items. Returns the position of the next page,
    /// or `None` if this was the last one; 0 is the position of the first page. No access is
    /// recorded.
    ///
    /// Nothing is held between two calls, so a caller may pause between pages for any time. An item
    /// that is there throughout is shown at least once, and twice only if the cache is reorganized
    /// meanwhile. Items that cannot be read are left out, and [counted](Cache::damage_met). `each`
    /// should be quick, and must not use
    /// the cache.
    fn page(
        &self,
        position: u64,
        each: &mut dyn FnMut(&[u8], Item<'_>),
    ) -> Result<Option<u64>, CacheError>;

    /// Returns the number of parts whose pages are listed one part after the other: 1, but with
    /// namespaces.
    fn parts(&self) -> usize {
        1
    }

    /// Does as [`page`](Cache::page) for one of the [parts](Cache::parts).
    fn page_of(
        &self,
        part: usize,
        position: u64,
        each: &mut dyn FnMut(&[u8], Item<'_>),
    ) -> Result<Option<u64>, CacheError> {
        let _ = part;
        self.page(position, each)
    }

    /// Invalidates all items of the namespace with this prefix, as
    /// [`flush_all`](Cache::flush_all) does for all. Returns `false` if there is no such namespace.
    fn flush_namespace(&self, prefix: &[u8]) -> Result<bool, CacheError> {
        let _ = prefix;
        Ok(false)
    }

    /// Calls `each` with the name and value of each line of `stats namespaces`.
    fn namespace_stats(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        each("evermap_namespaces", &0);
    }

    /// Returns whether replies to the calling thread's changes must not be sent before
    /// [`settle`](Cache::settle) was called.
    fn is_unsettled(&self) -> bool {
        false
    }

    /// Waits until the changes of the calling thread are as durable as their replies promise.
    ///
    /// # Errors
    ///
    /// If they cannot become that. Their replies must not be sent.
    fn settle(&self) -> Result<(), CacheError> {
        Ok(())
    }

    /// Returns how often something was met since the cache was opened that cannot be read.
    fn damage_met(&self) -> u64 {
        0
    }

    /// Returns the limit on the memory of the items, in bytes; 0: there is none.
    fn memory_limit(&self) -> u64;

    /// Changes the limit on the memory of the items, in bytes; 0: there is none.
    fn set_memory_limit(&self, bytes: u64) -> Result<(), CacheError>;

    /// Calls `each` with the name and value of each statistic about the items. The names are
    /// memcached's where it has them: `curr_items`, `bytes`, `limit_maxbytes`, `evictions` and so
    /// on.
    fn stats(&self, each: &mut dyn FnMut(&str, &dyn Display));

    /// Calls `each` with the key and the item of each live item, until it returns
    /// [`ControlFlow::Break`], as a walk through all [pages](Cache::page) does. Nothing is held in
    /// the cache meanwhile, so `each` may take its time and use the cache. Memory is needed for the
    /// keys of one page and for one value.
    fn for_each(
        &self,
        each: &mut dyn FnMut(&[u8], Item<'_>) -> ControlFlow<()>,
    ) -> Result<(), CacheError> {
        let (mut keys, mut value, mut next) = (Vec::new(), Vec::new(), Some(0));
        while let Some(position) = next {
            keys.clear();
            next = self.page(position, &mut |key, _| keys.push(key.to_vec()))?;
            for key in &keys {
                let mut found = None;
                value.clear();
                self.peek(key, &mut |item| {
                    item.value.append_to(&mut value)?;
                    let Item { flags, cas, expiry, marks, fetched, idle, .. } = item;
                    found = Some((flags, cas, expiry, marks, fetched, idle));
                    Ok(())
                })?;
                let Some((flags, cas, expiry, marks, fetched, idle)) = found else { continue };
                let value = &value.as_slice();
                let item = Item { flags, cas, expiry, marks, fetched, idle, value };
                if each(key, item).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Calls `each` with the name and value of each line of `stats cost`: what an item takes, in
    /// bytes. Nothing if the cache does not know.
    fn cost_stats(&self, each: &mut dyn FnMut(&str, &dyn Display)) -> Result<(), CacheError> {
        let _ = each;
        Ok(())
    }

    /// Calls `each` with the name and value of each line of `stats items`: see
    /// [`size_class`].
    fn item_stats(&self, each: &mut dyn FnMut(&str, &dyn Display)) -> Result<(), CacheError> {
        size_class::item_stats(self, each)
    }

    /// Calls `each` with the name and value of each line of `stats slabs`: see
    /// [`size_class`].
    fn slab_stats(&self, each: &mut dyn FnMut(&str, &dyn Display)) -> Result<(), CacheError> {
        size_class::slab_stats(self, each)
    }
}

/// What a callback of [`Cache::get_many`] returns: whether to continue, or the error that ends the
/// lookup.
pub type Hit = Result<ControlFlow<()>, CacheError>;

/// An item that a lookup found. It is valid only during the call that receives it.
#[derive(Clone, Copy)]
pub struct Item<'a> {
    /// 32 bits that the client chose.
    pub flags: u32,
    /// Identifies this version of the item. 0 only if a client has chosen that.
    pub cas: u64,
    /// When the item expires, in seconds since 1970; 0: never.
    pub expiry: u32,
    /// What the meta protocol has to tell the next client about the item.
    pub marks: Marks,
    /// Whether the item was read since it was stored, before this access.
    pub fetched: bool,
    /// The time between the last access and this one, in seconds.
    pub idle: u32,
    /// The value.
    pub value: &'a dyn Value,
}

/// The state of an item that was invalidated, or that a client is about to store anew. It is as
/// durable as the item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The value is out of date. Clients may use it until one of them has stored a new one.
    pub stale: bool,
    /// A client was told to store a new value, and has not done so yet.
    pub won: bool,
}

/// The bytes of a value, which may be in memory that only the store can read.
///
/// The reply takes them from there, without a buffer between: a value is copied once.
#[expect(clippy::len_without_is_empty, reason = "not needed")]
pub trait Value {
    /// Returns the length in bytes.
    fn len(&self) -> usize;

    /// Appends exactly [`len`](Value::len) bytes to `out`.
    ///
    /// # Errors
    ///
    /// If the value is damaged. `out` is unchanged in that case.
    fn append_to(&self, out: &mut Vec<u8>) -> Result<(), CacheError>;
}

impl Value for &[u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn append_to(&self, out: &mut Vec<u8>) -> Result<(), CacheError> {
        out.extend_from_slice(self);
        Ok(())
    }
}

/// How [`Cache::store`] stores an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreRequest {
    /// 32 bits that the client chose.
    pub flags: u32,
    /// When the item expires, in seconds since 1970; 0: never.
    pub expiry: u32,
    /// The condition.
    pub mode: StoreMode,
    /// The CAS id that the client chose for the new version; `None`: a new one.
    pub cas: Option<u64>,
}

/// An item that is to be stored whatever there is: see [`Cache::set_many`].
#[derive(Clone, Copy, Debug, Default)]
pub struct NewItem<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// 32 bits that the client chose.
    pub flags: u32,
    /// When the item expires, in seconds since 1970; 0: never.
    pub expiry: u32,
}

impl StoreRequest {
    /// Returns a request to store an item without flags that never expires, with a new CAS id.
    pub fn new(mode: StoreMode) -> Self {
        StoreRequest { flags: 0, expiry: 0, mode, cas: None }
    }
}

/// The result of [`Cache::store`] or [`Cache::concat`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Whether the item is stored.
    pub outcome: StoreOutcome,
    /// The CAS id of the new version; 0 if there is none.
    pub cas: u64,
}

impl From<StoreOutcome> for Stored {
    /// Returns the result of a request that has stored nothing.
    fn from(outcome: StoreOutcome) -> Self {
        Stored { outcome, cas: 0 }
    }
}

/// What the closure of [`Cache::update`] decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// Leaves everything as it is.
    Keep,
    /// Changes expiry and marks in place. Value, flags and CAS id stay.
    Mark {
        /// When the item expires, in seconds since 1970; 0: never.
        expiry: u32,
        /// The new marks.
        marks: Marks,
    },
    /// Stores a new version.
    Put {
        /// The new value.
        value: Vec<u8>,
        /// 32 bits that the client chose.
        flags: u32,
        /// When the item expires, in seconds since 1970; 0: never.
        expiry: u32,
        /// The new marks.
        marks: Marks,
        /// The CAS id that the client chose; `None`: a new one.
        cas: Option<u64>,
    },
    /// Removes the item.
    Remove,
}

/// The condition under which [`Cache::store`] stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreMode {
    /// Always. The outcome is `Stored`.
    Set,
    /// If the item does not exist. The outcome is `Stored` or `NotStored`.
    Add,
    /// If the item exists. The outcome is `Stored` or `NotStored`.
    Replace,
    /// If the item exists and has this CAS id. The outcome is `Stored`, `Exists` or `NotFound`.
    Cas(u64),
}

/// The outcome of [`Cache::store`] or [`Cache::concat`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOutcome {
    /// The item is stored.
    Stored,
    /// The condition of the mode did not hold.
    NotStored,
    /// The item has another CAS id.
    Exists,
    /// There is no item whose CAS id could be compared.
    NotFound,
}

/// The end of the old value to which [`Cache::concat`] adds data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The old value, then the new data.
    Append,
    /// The new data, then the old value.
    Prepend,
}

/// The outcome of [`Cache::arithmetic`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// The item has a new version.
    Changed {
        /// The number after the change.
        number: u64,
        /// The CAS id of the new version.
        cas: u64,
    },
    /// There is no such item.
    NotFound,
    /// The value does not begin with a decimal number below 2^64.
    NonNumeric,
}

/// The reason why an operation failed. Clients receive the text after `SERVER_ERROR`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// There is no memory for the item.
    #[error("out of memory storing object")]
    OutOfMemory,
    /// The item is larger than the store accepts.
    #[error("object too large for cache")]
    TooLarge,
    /// The store was opened for reading only.
    #[error("the store is read-only")]
    ReadOnly,
    /// A thread panicked in the middle of a change.
    #[error("a failed change left the store unusable; restart the server to recover it")]
    Poisoned,
    /// Any other error, as text.
    #[error("{0}")]
    Other(String),
}

/// Performs [`Cache::arithmetic`] on a value: writes the new value to `new` and returns its number.
/// Returns `None` if `old` does not begin with a decimal number below 2^64.
///
/// An increment wraps around at 2^64; a decrement stops at 0. White space and a plus sign may
/// precede the number; white space may follow it, and whatever comes after that is ignored. If the
/// new number has fewer bytes than the old value, it is padded with spaces on the right, so the
/// length never decreases. All of this follows memcached.
pub fn apply_delta(old: &[u8], delta: u64, up: bool, new: &mut Vec<u8>) -> Option<u64> {
    let before = crate::number::parse_u64(old)?;
    let after = if up { before.wrapping_add(delta) } else { before.saturating_sub(delta) };
    new.clear();
    crate::number::append(after, new);
    if new.len() < old.len() {
        new.resize(old.len(), b' ');
    }
    Some(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn increments_wrap_and_decrements_stop_at_zero_and_both_keep_the_length() {
        let mut new = Vec::new();
        for (old, delta, up, number, value) in [
            ("10", 1, true, 11, "11"),
            ("99", 1, true, 100, "100"),
            ("100", 1, false, 99, "99 "),
            ("99 ", 1, false, 98, "98 "),
            ("5", 9, false, 0, "0"),
            ("18446744073709551615", 1, true, 0, "0                   "),
            ("18446744073709551615", u64::MAX, false, 0, "0                   "),
            ("0001", 1, true, 2, "2   "),
            (" 5", 1, true, 6, "6 "),
            ("+5", 1, true, 6, "6 "),
            ("5 abc", 1, true, 6, "6    "),
            ("5\tabc", 1, true, 6, "6    "),
            ("5\0abc", 1, true, 6, "6    "),
            ("9 9", 1, true, 10, "10 "),
        ] {
            assert_eq!(apply_delta(old.as_bytes(), delta, up, &mut new), Some(number), "{old}");
            assert_eq!(std::str::from_utf8(&new).unwrap(), value, "{old}");
        }
        for bad in ["", " ", "x", "-1", "1x", "+", "\0", "18446744073709551616"] {
            assert_eq!(apply_delta(bad.as_bytes(), 1, true, &mut new), None, "{bad}");
        }
    }
}
