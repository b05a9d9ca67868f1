//! Values that are read without a copy, or with one.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use evermap_bindings::Held;
use store::ValueRef;

use crate::status::free;

/// A value that was read. It stays as it was, and keeps its store open, until it is released with
/// evermap_value_release(); then `data` must not be used any more. Any thread may read it, and any
/// one of them release it.
///
/// Values that are `borrowed` keep memory in the file from being used again, so they should be
/// released soon: if more than 64 MiB, or a quarter of the file, waits for them, changes return
/// EVERMAP_ERR_HELD_UP. They are of no use in a forked child.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct evermap_value {
    /// The bytes. NULL if nothing was found, and never NULL otherwise.
    pub data: *const u8,
    /// Their number.
    pub len: usize,
    /// What identifies this version of the record: see evermap_compare_exchange(). Never 0 if
    /// something was found.
    pub cas: u64,
    /// When the record expires, in seconds since 1970; 0 if it does not.
    pub expires_at: u64,
    /// 32 bits that belong to the program: see evermap_put_with().
    pub flags: u32,
    /// Whether `data` is where the value is stored, and not a copy.
    pub borrowed: bool,
    /// What has to be released.
    pub owner: *mut evermap_owner,
}

/// What keeps a value.
pub struct evermap_owner {
    _bytes: Kept,
}

/// What keeps the bytes of values, until it is dropped.
#[allow(dead_code)]
enum Kept {
    Held(Held),
    /// The values of a call, one behind the other.
    Copies(Vec<u8>),
}

impl evermap_value {
    pub(crate) const NONE: evermap_value = evermap_value {
        data: std::ptr::null(),
        len: 0,
        cas: 0,
        expires_at: 0,
        flags: 0,
        borrowed: false,
        owner: std::ptr::null_mut(),
    };

    /// Returns a value that C owns.
    pub(crate) fn held(held: Held) -> Self {
        // The bytes are in the store or on the heap, so they stay where they are when `held` moves.
        let (bytes, value) = (held.bytes(), held.value());
        let found = evermap_value {
            data: bytes.as_ptr(),
            len: bytes.len(),
            borrowed: held.is_borrowed(),
            ..described(value)
        };
        let owner = Arc::new(evermap_owner { _bytes: Kept::Held(held) });
        evermap_value { owner: Arc::into_raw(owner).cast_mut(), ..found }
    }
}

fn described(value: &ValueRef<'_>) -> evermap_value {
    let (cas, flags) = (value.cas(), value.flags());
    evermap_value { cas, flags, expires_at: seconds(value.expires_at()), ..evermap_value::NONE }
}

/// Returns a time in seconds since 1970, and 0 for none.
pub(crate) fn seconds(time: Option<SystemTime>) -> u64 {
    let since = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |since| since.as_secs())
}

/// Values that were copied out of the store together, and are owned together.
pub(crate) struct Copies {
    bytes: Vec<u8>,
    /// For each key: where its value begins, and what is known of it.
    found: Vec<Option<(usize, evermap_value)>>,
}

impl Copies {
    pub(crate) fn new(keys: usize) -> Self {
        Copies { bytes: Vec::new(), found: vec![None; keys] }
    }

    pub(crate) fn add(&mut self, at: usize, item: &store::Item<'_>) {
        let (cas, flags, len) = (item.cas, item.flags, item.value.len());
        let expires_at = seconds(item.expires_at());
        let value = evermap_value { cas, flags, len, expires_at, ..evermap_value::NONE };
        self.found[at] = Some((self.bytes.len(), value));
        self.bytes.extend_from_slice(item.value);
    }

    /// Writes a value for each key to `out`.
    ///
    /// # Safety
    /// `out` must be valid for writes of as many values as there are keys.
    pub(crate) unsafe fn give(mut self, out: *mut evermap_value) {
        // So that no value is at NULL, or at an address that is no allocation.
        self.bytes.reserve(1);
        let start = self.bytes.as_ptr();
        let owner = Arc::new(evermap_owner { _bytes: Kept::Copies(self.bytes) });
        for (at, found) in self.found.iter().enumerate() {
            let value = found.map_or(evermap_value::NONE, |(offset, value)| evermap_value {
                data: start.wrapping_add(offset),
                owner: Arc::into_raw(owner.clone()).cast_mut(),
                ..value
            });
            // SAFETY: as the caller says.
            unsafe { out.add(at).write(value) };
        }
    }
}

/// Releases a value, and makes it one that was not found: releasing it again does nothing.
///
/// # Safety
/// `value` is NULL, or points to a value that a call has stored there, or to zeros. A copy of the
/// structure is the same value: only one of them may be released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_value_release(value: *mut evermap_value) {
    free(|| {
        // SAFETY: as the caller says.
        let Some(value) = (unsafe { value.as_mut() }) else { return };
        let owner = std::mem::replace(value, evermap_value::NONE).owner;
        if !owner.is_null() {
            // SAFETY: it comes from `into_raw`, and was not released before.
            drop(unsafe { Arc::from_raw(owner.cast_const()) });
        }
    });
}

/// Releases `count` values, as evermap_get_many() has stored them.
///
/// # Safety
/// As for [`evermap_value_release`], for each of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_values_release(values: *mut evermap_value, count: usize) {
    if values.is_null() {
        return;
    }
    for at in 0..count {
        // SAFETY: as the caller says.
        unsafe { evermap_value_release(values.add(at)) };
    }
}

/// Bytes with their length.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct evermap_slice {
    /// The bytes; may be NULL if there are none.
    pub data: *const c_void,
    /// Their number.
    pub len: usize,
}

impl evermap_slice {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        evermap_slice { data: bytes.as_ptr().cast(), len: bytes.len() }
    }
}
