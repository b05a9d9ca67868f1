//! What the server asks of the store underneath.
//!
//! [`Cache`] is the whole of it: one method for each thing that the protocols can do to items. Each of
//! them acts on a key atomically, so that an implementation is one lookup or one read-modify-write of the
//! store. The protocols know nothing else of the store, and the store nothing of protocols.

use std::fmt::Display;

/// Where the items live.
///
/// Keys are 1 to 250 bytes and values any bytes. Times are absolute, in seconds since 1970; an *expiry* of
/// 0 means never, and an item is alive while its expiry is later than now. An item that is not alive is as
/// good as absent everywhere below.
///
/// # Errors
///
/// Every method can answer a [`CacheError`]. Nothing has changed then.
pub trait Cache: Send + Sync + 'static {
    /// Looks up many keys at once, so that their cache misses can overlap.
    ///
    /// Calls `hit` with the position in `keys` and the item, in order of the positions, for those that are
    /// alive. Stops early, without an error, when `hit` answers `false`: the caller has no room for more.
    fn get_many(
        &self,
        keys: &[&[u8]],
        hit: &mut dyn FnMut(usize, Item<'_>) -> bool,
    ) -> Result<(), CacheError>;

    /// Changes the expiry of an item and calls `hit` with it; answers whether the item was alive.
    fn get_and_touch(
        &self,
        key: &[u8],
        expiry: u32,
        hit: &mut dyn FnMut(Item<'_>),
    ) -> Result<bool, CacheError>;

    /// Stores an item with a fresh CAS id if `mode` allows it.
    fn store(
        &self,
        key: &[u8],
        value: &[u8],
        flags: u32,
        expiry: u32,
        mode: StoreMode,
    ) -> Result<StoreOutcome, CacheError>;

    /// Joins `data` to one side of a value, giving the item a fresh CAS id. Its flags and expiry stay.
    ///
    /// Answers `Stored` or `NotStored` (no such item), and fails with `TooLarge` where the value would
    /// become longer than `value_max` bytes.
    fn concat(
        &self,
        key: &[u8],
        data: &[u8],
        side: Side,
        value_max: usize,
    ) -> Result<StoreOutcome, CacheError>;

    /// Adds to or subtracts from a value that is a decimal number, as [`apply_delta`] does, giving the item a
    /// fresh CAS id. Its flags and expiry stay.
    fn arithmetic(&self, key: &[u8], delta: u64, up: bool) -> Result<Arithmetic, CacheError>;

    /// Removes an item; answers whether it was alive.
    fn delete(&self, key: &[u8]) -> Result<bool, CacheError>;

    /// Changes the expiry of an item; answers whether it was alive.
    fn touch(&self, key: &[u8], expiry: u32) -> Result<bool, CacheError>;

    /// Makes every item absent that was stored before `at`, once that time has come; `None` makes every item
    /// absent that was stored before this call. A later call replaces one whose time has not come.
    fn flush_all(&self, at: Option<u32>) -> Result<(), CacheError>;

    /// Shows figures about the items under the names that memcached gives them: `curr_items`, `bytes`,
    /// `limit_maxbytes`, `evictions` and so on.
    fn stats(&self, each: &mut dyn FnMut(&str, &dyn Display));
}

/// What a lookup shows of an item. Valid only during the call that shows it.
#[derive(Clone, Copy)]
pub struct Item<'a> {
    /// The client's own 32 bits.
    pub flags: u32,
    /// Identifies this version of the item; never 0.
    pub cas: u64,
    /// The value.
    pub value: &'a dyn Value,
}

/// The bytes of a value, which may lie in memory that only the store can read.
#[expect(clippy::len_without_is_empty, reason = "nobody asks")]
pub trait Value {
    /// Length, bytes.
    fn len(&self) -> usize;

    /// Appends exactly [`len`](Value::len) bytes to `out`.
    fn append_to(&self, out: &mut Vec<u8>);
}

impl Value for &[u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

/// When [`Cache::store`] may store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreMode {
    /// Always. Answers `Stored`.
    Set,
    /// If there is no such item. Answers `Stored` or `NotStored`.
    Add,
    /// If there is such an item. Answers `Stored` or `NotStored`.
    Replace,
    /// If there is such an item and it has this CAS id. Answers `Stored`, `Exists` or `NotFound`.
    Cas(u64),
}

/// What became of a [`Cache::store`] or [`Cache::concat`].
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

/// The side of the old value to which [`Cache::concat`] joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Old value, then new data.
    Append,
    /// New data, then old value.
    Prepend,
}

/// What became of a [`Cache::arithmetic`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// The number after the change.
    Value(u64),
    /// There is no such item.
    NotFound,
    /// The value does not begin with a decimal number below 2^64.
    NonNumeric,
}

/// Why the store could not do what it was asked. The text is what the client reads after `SERVER_ERROR`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// There is no room for the item.
    #[error("out of memory storing object")]
    OutOfMemory,
    /// The item is larger than the store takes.
    #[error("object too large for cache")]
    TooLarge,
    /// The store was opened for reading.
    #[error("the store is read-only")]
    ReadOnly,
    /// A thread panicked in the middle of a change.
    #[error("the store is poisoned by a failed change; restart the server to recover it")]
    Poisoned,
    /// Anything else, in words.
    #[error("{0}")]
    Other(String),
}

/// The arithmetic of [`Cache::arithmetic`] on a value: writes the new value to `new` and returns
/// its number, or nothing where `old` does not begin with a decimal number below 2^64.
///
/// Up wraps around at 2^64; down stops at 0. White space and a plus sign may stand before the
/// number, and what follows it after white space is ignored. A number shorter than the old value is
/// padded with spaces on the right: so the length never shrinks. All of this is what memcached
/// does.
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
    fn arithmetic_wraps_up_stops_at_zero_and_keeps_the_length() {
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
