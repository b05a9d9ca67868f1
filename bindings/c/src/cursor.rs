//! Walks and scans.

use std::ffi::c_void;
use std::ops::Bound;

use evermap_bindings::{Page, Pairs, Result, Walk};
use store::KeyRange;

use crate::pointers::{bytes, give, object, object_mut, place, take_back, write_if_wanted};
use crate::status::evermap_status::*;
use crate::status::{call, evermap_status, free};
use crate::store::evermap_map;
use crate::value::evermap_slice;

/// Pairs that are copied out of the store at a time, and bytes.
const PAGE: (usize, usize) = (256, 64 << 10);

/// A walk over pairs. For one thread at a time. Between two calls it holds nothing in the store, so
/// it may be kept for any time.
pub struct evermap_cursor {
    pairs: Pairs,
    page: Page,
    /// The next pair of the page.
    at: usize,
}

/// # Safety
/// `cursor` must be valid for a write.
unsafe fn begin(
    map: &evermap_map,
    walk: Walk,
    cursor: *mut *mut evermap_cursor,
) -> Result<evermap_status> {
    let pairs = map.0.pairs(walk)?;
    // SAFETY: as the caller says.
    unsafe { cursor.write(give(evermap_cursor { pairs, page: Page::new(), at: 0 })) };
    Ok(EVERMAP_OK)
}

/// Begins to walk over all pairs of a map, in no order, and stores a cursor before the first one to
/// `*cursor`: to be freed with evermap_cursor_free(). A pair that is there all the time is shown
/// once, one that comes or goes meanwhile at most once.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_walk(
    map: *const evermap_map,
    cursor: *mut *mut evermap_cursor,
) -> evermap_status {
    call(|| {
        let cursor = place(cursor, "cursor")?;
        // SAFETY: not null, and as the caller says.
        unsafe {
            cursor.write(std::ptr::null_mut());
            begin(object(map, "map")?, Walk::All, cursor)
        }
    })
}

/// Begins to walk over the pairs with keys from `from` to before `to`, in the order of their bytes,
/// and stores a cursor before the first one to `*cursor`: to be freed with evermap_cursor_free().
/// NULL is no bound. If `reverse` is set, the last one comes first. Shows at most `limit` pairs, or
/// all if that is 0. Needs the option `ordered`.
///
/// Sees every change that was made before this call; pairs are of different moments (for one
/// moment, scan a snapshot).
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_scan(
    map: *const evermap_map,
    from: *const c_void,
    from_len: usize,
    to: *const c_void,
    to_len: usize,
    reverse: bool,
    limit: u64,
    cursor: *mut *mut evermap_cursor,
) -> evermap_status {
    call(|| {
        let cursor = place(cursor, "cursor")?;
        // SAFETY: not null, and as the caller says.
        unsafe {
            cursor.write(std::ptr::null_mut());
            let (map, to_key) = (object(map, "map")?, bytes(to, to_len, "to")?);
            let from_key = bytes(from, from_len, "from")?;
            let lower = if from.is_null() { Bound::Unbounded } else { Bound::Included(from_key) };
            let upper = if to.is_null() { Bound::Unbounded } else { Bound::Excluded(to_key) };
            let range = KeyRange::new(lower, upper);
            begin(map, Walk::Scan { range, reverse, limit: limit_of(limit) }, cursor)
        }
    })
}

fn limit_of(limit: u64) -> u64 {
    if limit == 0 { u64::MAX } else { limit }
}

/// Begins to walk over the pairs whose keys begin with `prefix`; otherwise as evermap_scan().
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_scan_prefix(
    map: *const evermap_map,
    prefix: *const c_void,
    prefix_len: usize,
    reverse: bool,
    limit: u64,
    cursor: *mut *mut evermap_cursor,
) -> evermap_status {
    call(|| {
        let cursor = place(cursor, "cursor")?;
        // SAFETY: not null, and as the caller says.
        unsafe {
            cursor.write(std::ptr::null_mut());
            let map = object(map, "map")?;
            let range = KeyRange::prefix(bytes(prefix, prefix_len, "prefix")?);
            begin(map, Walk::Scan { range, reverse, limit: limit_of(limit) }, cursor)
        }
    })
}

/// Moves to the next pair, and stores its key and its value to `*key` and `*value`, which may be
/// NULL. They belong to the cursor: they are valid until it is moved again or freed.
///
/// Returns EVERMAP_END behind the last pair, and EVERMAP_ERR_DAMAGED for a record that does not
/// verify, behind which the cursor can be moved on.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_cursor_next(
    cursor: *mut evermap_cursor,
    key: *mut evermap_slice,
    value: *mut evermap_slice,
) -> evermap_status {
    call(|| {
        // SAFETY: as the caller says.
        let cursor = unsafe { object_mut(cursor, "cursor") }?;
        if cursor.at == cursor.page.len() {
            cursor.page.take_fault()?;
            cursor.at = 0;
            cursor.pairs.next_page(&mut cursor.page, PAGE.0, PAGE.1)?;
            if cursor.page.is_empty() {
                cursor.page.take_fault()?;
                return Ok(EVERMAP_END);
            }
        }
        let (found_key, found_value) = cursor.page.pair(cursor.at);
        // SAFETY: as the caller says.
        unsafe {
            write_if_wanted(key, evermap_slice::of(found_key));
            write_if_wanted(value, evermap_slice::of(found_value));
        }
        cursor.at += 1;
        Ok(EVERMAP_OK)
    })
}

/// Frees a cursor.
///
/// # Safety
/// `cursor` is NULL, or is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_cursor_free(cursor: *mut evermap_cursor) {
    // SAFETY: as the caller says.
    free(|| unsafe { take_back(cursor) });
}
