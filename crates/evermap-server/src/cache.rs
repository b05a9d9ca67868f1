//! The interface between the protocols and the store.
//!
//! [`Cache`] has one method for each operation that the protocols perform on items. Every method
//! acts on its key atomically, so an implementation needs one lookup or one read-modify-write of
//! the store. The protocols know nothing else about the store, and the store knows nothing about
//! protocols.

use std::fmt::Display;
use std::ops::ControlFlow;

/// The maximum number of keys that the protocols pass to [`Cache::get_many`]: the number that the
/// store looks up together.
pub use evermap::BATCH_KEYS;

/// A collection of items that the protocols operate on.
///
/// Keys are 1 to 250 bytes; values are any bytes. Times are absolute, in seconds since 1970. An
/// expiry of 0 means that the item never expires; otherwise the item is live until that second. All
/// methods treat an item that is not live as absent.
///
/// # Errors
///
/// Every method can return a [`CacheError`]. The cache is unchanged in that case.
pub trait Cache: Send + Sync + 'static {
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

    /// Changes the expiry of an item and calls `hit` with the item. Returns `true` if the item was
    /// live.
    fn get_and_touch(
        &self,
        key: &[u8],
        expiry: u32,
        hit: &mut dyn FnMut(Item<'_>) -> Result<(), CacheError>,
    ) -> Result<bool, CacheError>;

    /// Stores an item with a new CAS id if `mode` allows it.
    fn store(
        &self,
        key: &[u8],
        value: &[u8],
        flags: u32,
        expiry: u32,
        mode: StoreMode,
    ) -> Result<StoreOutcome, CacheError>;

    /// Appends or prepends `data` to a value. The item gets a new CAS id and keeps its flags and
    /// expiry.
    ///
    /// Returns `Stored`, or `NotStored` if there is no such item.
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
    ) -> Result<StoreOutcome, CacheError>;

    /// Adds to or subtracts from a value that is a decimal number, as [`apply_delta`] does. The
    /// item gets a new CAS id and keeps its flags and expiry.
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

    /// Calls `each` with the name and value of each statistic about the items. The names are
    /// memcached's where it has them: `curr_items`, `bytes`, `limit_maxbytes`, `evictions` and so
    /// on.
    fn stats(&self, each: &mut dyn FnMut(&str, &dyn Display));
}

/// What a callback of [`Cache::get_many`] returns: whether to continue, or the error that ends the
/// lookup.
pub type Hit = Result<ControlFlow<()>, CacheError>;

/// An item that a lookup found. It is valid only during the call that receives it.
#[derive(Clone, Copy)]
pub struct Item<'a> {
    /// 32 bits that the client chose.
    pub flags: u32,
    /// Identifies this version of the item. Never 0.
    pub cas: u64,
    /// The value.
    pub value: &'a dyn Value,
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
    /// The number after the change.
    Value(u64),
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
