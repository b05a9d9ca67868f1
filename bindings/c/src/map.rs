//! Operations on the keys of a map.

use std::ffi::c_void;
use std::ops::ControlFlow;
use std::time::{Duration, SystemTime};

use evermap_bindings::{Fault, Result};
use store::{Expiry, Map, Meta, Outcome};

use crate::pointers::{bytes, object, place, usage, write_if_wanted};
use crate::status::evermap_status::*;
use crate::status::{call, evermap_status};
use crate::store::evermap_map;
use crate::value::{Copies, evermap_slice, evermap_value};

/// The greatest length of a key.
pub const EVERMAP_KEY_MAX: usize = 65536;
/// The greatest length of a value.
pub const EVERMAP_VALUE_MAX: usize = 1073741824;

const _: () = assert!(store::KEY_MAX == EVERMAP_KEY_MAX && store::VALUE_MAX == EVERMAP_VALUE_MAX);

/// Returns the map and the key that C has passed.
///
/// # Safety
/// That of [`object`] and [`bytes`].
unsafe fn map_and_key<'a>(
    map: *const evermap_map,
    key: *const c_void,
    key_len: usize,
) -> Result<(&'a evermap_map, &'a [u8])> {
    // SAFETY: as the caller says.
    unsafe { Ok((object(map, "map")?, bytes(key, key_len, "key")?)) }
}

/// Reads the value of a key, without copying it if the store lends its values (a store in memory,
/// or a file that was opened with the option `exclusive`), and stores it to `*value`: to be
/// released with evermap_value_release(), also if it is a copy. What `*value` was before is not
/// released.
///
/// Returns EVERMAP_ABSENT if there is no such key; then, and after an error, `*value` is all zeros,
/// and need not be released.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_get(
    map: *const evermap_map,
    key: *const c_void,
    key_len: usize,
    value: *mut evermap_value,
) -> evermap_status {
    call(|| {
        let out = place(value, "value")?;
        // SAFETY: not null, and as the caller says.
        unsafe { out.write(evermap_value::NONE) };
        // SAFETY: as the caller says.
        let (map, key) = unsafe { map_and_key(map, key, key_len) }?;
        let Some(held) = map.0.hold(key)? else { return Ok(EVERMAP_ABSENT) };
        // SAFETY: as above.
        unsafe { out.write(evermap_value::held(held)) };
        Ok(EVERMAP_OK)
    })
}

/// Copies the value of a key to `buffer`: as much as fits into `capacity` bytes. Stores its whole
/// length to `*len`, which may be greater. Nothing has to be released.
///
/// Returns EVERMAP_ABSENT if there is no such key.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header; `buffer` may be NULL if
/// `capacity` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_read(
    map: *const evermap_map,
    key: *const c_void,
    key_len: usize,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> evermap_status {
    call(|| {
        let len = place(len, "len")?;
        if buffer.is_null() && capacity > 0 {
            return usage("buffer is NULL, but its capacity is not 0");
        }
        // SAFETY: as the caller says.
        let (map, key) = unsafe { map_and_key(map, key, key_len) }?;
        let Some(value) = map.0.map().get_ref(key).map_err(Fault::from)? else {
            return Ok(EVERMAP_ABSENT);
        };
        let copied = value.len().min(capacity);
        // SAFETY: as the caller says; a buffer of the caller is not in the store.
        unsafe {
            len.write(value.len());
            if copied > 0 {
                buffer.cast::<u8>().copy_from_nonoverlapping(value.as_ptr(), copied);
            }
        }
        Ok(EVERMAP_OK)
    })
}

/// Reads the values of `count` keys together, which is faster than one after the other, and stores
/// them to `values`, which has room for as many: all zeros where the key is absent. They are
/// copies, of one moment each. To be released, each with evermap_value_release(), or all with
/// evermap_values_release().
///
/// After an error nothing has to be released, and `values` are all zeros.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_get_many(
    map: *const evermap_map,
    keys: *const evermap_slice,
    count: usize,
    values: *mut evermap_value,
) -> evermap_status {
    call(|| {
        if count == 0 {
            return Ok(EVERMAP_OK);
        }
        if count > isize::MAX as usize / size_of::<evermap_value>() {
            return usage(format!("{count} keys are more than there can be"));
        }
        let out = place(values, "values")?;
        for at in 0..count {
            // SAFETY: not null, and as the caller says.
            unsafe { out.add(at).write(evermap_value::NONE) };
        }
        let keys = place(keys.cast_mut(), "keys")?.cast_const();
        // SAFETY: as the caller says.
        let (map, keys) = unsafe { (object(map, "map")?, std::slice::from_raw_parts(keys, count)) };
        // SAFETY: as the caller says.
        let keys = keys.iter().map(|key| unsafe { bytes(key.data, key.len, "a key") });
        let keys = keys.collect::<Result<Vec<_>>>()?;
        let (mut copies, mut failed) = (Copies::new(count), None);
        map.0.map().get_many(&keys, |at, item| {
            match item {
                Ok(item) => copies.add(at, &item),
                Err(error) => failed = Some(error),
            }
            if failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        // SAFETY: as the caller says.
        unsafe { copies.give(out) };
        Ok(EVERMAP_OK)
    })
}

/// Returns EVERMAP_OK if the key is present, EVERMAP_ABSENT if it is not.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_contains(
    map: *const evermap_map,
    key: *const c_void,
    key_len: usize,
) -> evermap_status {
    call(|| {
        // SAFETY: as the caller says.
        let (map, key) = unsafe { map_and_key(map, key, key_len) }?;
        Ok(found(map.0.map().contains(key)?))
    })
}

fn found(is_present: bool) -> evermap_status {
    if is_present { EVERMAP_OK } else { EVERMAP_ABSENT }
}

/// Binds a key to a value, whether or not it is present. Durable against kill -9 when it returns.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_put(
    map: *const evermap_map,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
) -> evermap_status {
    call(|| {
        // SAFETY: as the caller says.
        let (map, key) = unsafe { map_and_key(map, key, key_len) }?;
        // SAFETY: as the caller says.
        let value = unsafe { bytes(value, value_len, "value") }?;
        map.0.map().put(key, value)?;
        Ok(EVERMAP_OK)
    })
}

/// When evermap_put_with() stores.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum evermap_when {
    /// Whether or not the key is present.
    EVERMAP_ALWAYS = 0,
    /// If the key is absent.
    EVERMAP_IF_ABSENT = 1,
    /// If the key is present.
    EVERMAP_IF_PRESENT = 2,
}

/// Binds a key to a value, with what can be stored beside it.
///
/// The record expires after `seconds`, at least one, or never if that is 0. `flags` are 32 bits
/// that belong to the program. Stores what identifies the new version to `*cas`, which may be
/// NULL; if nothing was stored, it is that of the record that is there, or 0.
///
/// `when` is an evermap_when. Returns EVERMAP_KEPT if the key is present and had to be absent,
/// EVERMAP_ABSENT if it is absent and had to be present.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_put_with(
    map: *const evermap_map,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    seconds: u64,
    flags: u32,
    when: i32,
    cas: *mut u64,
) -> evermap_status {
    call(|| {
        // SAFETY: as the caller says.
        let (map, key) = unsafe { map_and_key(map, key, key_len) }?;
        // SAFETY: as the caller says.
        let value = unsafe { bytes(value, value_len, "value") }?;
        let set = map.0.map().set(key).meta(meta(map.0.map(), seconds, flags));
        let outcome = match when {
            0 => Outcome::Updated { cas: set.put(value)? },
            1 => set.try_insert(value)?,
            2 => set.replace(value)?,
            _ => return usage(format!("when is {when}, and no evermap_when")),
        };
        // SAFETY: as the caller says.
        unsafe { write_if_wanted(cas, outcome.cas().unwrap_or(0)) };
        Ok(status_of(outcome))
    })
}

fn status_of(outcome: Outcome) -> evermap_status {
    match outcome {
        Outcome::Kept { .. } => EVERMAP_KEPT,
        Outcome::Absent => EVERMAP_ABSENT,
        _ => EVERMAP_OK,
    }
}

/// Returns what is stored beside a value that lives for so long by the clock of the store.
pub(crate) fn meta(map: &Map, seconds: u64, flags: u32) -> Meta {
    Meta::new().with_flags(flags).with_expiry(expiry(map, seconds))
}

fn expiry(map: &Map, seconds: u64) -> Expiry {
    if seconds == 0 {
        return Expiry::NEVER;
    }
    // What is later than the last second that can be stored is refused where it is stored.
    let at = map.now().checked_add(Duration::from_secs(seconds));
    at.unwrap_or(SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 33)).into()
}

/// Binds a key to a value if its record is still the one that `expected` identifies, as
/// evermap_get() has stored it; flags and expiry as for evermap_put_with(). Stores what identifies
/// the record that is there then to `*cas`, which may be NULL; 0 if there is none.
///
/// Returns EVERMAP_KEPT if the key has another record, EVERMAP_ABSENT if it has none.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_compare_exchange(
    map: *const evermap_map,
    key: *const c_void,
    key_len: usize,
    expected: u64,
    value: *const c_void,
    value_len: usize,
    seconds: u64,
    flags: u32,
    cas: *mut u64,
) -> evermap_status {
    call(|| {
        // SAFETY: as the caller says.
        let (map, key) = unsafe { map_and_key(map, key, key_len) }?;
        // SAFETY: as the caller says.
        let value = unsafe { bytes(value, value_len, "value") }?;
        let set = map.0.map().set(key).meta(meta(map.0.map(), seconds, flags));
        let outcome = set.compare_exchange(expected, value)?;
        // SAFETY: as the caller says.
        unsafe { write_if_wanted(cas, outcome.cas().unwrap_or(0)) };
        Ok(status_of(outcome))
    })
}

/// Removes a key. Returns EVERMAP_ABSENT if it was not there.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_delete(
    map: *const evermap_map,
    key: *const c_void,
    key_len: usize,
) -> evermap_status {
    call(|| {
        // SAFETY: as the caller says.
        let (map, key) = unsafe { map_and_key(map, key, key_len) }?;
        Ok(found(map.0.map().delete(key)?))
    })
}

/// Removes a key if its record is the one that `expected` identifies. Returns EVERMAP_KEPT if it
/// has another one, EVERMAP_ABSENT if it has none.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_delete_if(
    map: *const evermap_map,
    key: *const c_void,
    key_len: usize,
    expected: u64,
) -> evermap_status {
    call(|| {
        // SAFETY: as the caller says.
        let (map, key) = unsafe { map_and_key(map, key, key_len) }?;
        Ok(status_of(map.0.map().remove_if(key, expected)?))
    })
}

/// Adds `delta` to the counter of a key, atomically, and stores the sum to `*sum`, which may be
/// NULL. A counter is a value of 8 bytes: an int64_t, little-endian. An absent key counts as 0;
/// flags and expiry stay.
///
/// Returns EVERMAP_ERR_COUNTER for a value of another length, and if the sum does not fit: nothing
/// has changed then.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_add(
    map: *const evermap_map,
    key: *const c_void,
    key_len: usize,
    delta: i64,
    sum: *mut i64,
) -> evermap_status {
    call(|| {
        // SAFETY: as the caller says.
        let (map, key) = unsafe { map_and_key(map, key, key_len) }?;
        let before = map.0.map().fetch_add(key, delta)?;
        // It fits, or there was an error.
        // SAFETY: as the caller says.
        unsafe { write_if_wanted(sum, before.wrapping_add(delta)) };
        Ok(EVERMAP_OK)
    })
}

/// Appends bytes to the value of a key, atomically. An absent key gets them alone; flags and expiry
/// stay. Takes as long as writing the whole value.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_append(
    map: *const evermap_map,
    key: *const c_void,
    key_len: usize,
    data: *const c_void,
    data_len: usize,
) -> evermap_status {
    call(|| {
        // SAFETY: as the caller says.
        let (map, key) = unsafe { map_and_key(map, key, key_len) }?;
        // SAFETY: as the caller says.
        map.0.map().append(key, unsafe { bytes(data, data_len, "data") }?)?;
        Ok(EVERMAP_OK)
    })
}

/// Makes a key expire after `seconds` from now, at least one, or never if that is 0. Its value is
/// not written again. Returns EVERMAP_ABSENT if it is not there.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_expire(
    map: *const evermap_map,
    key: *const c_void,
    key_len: usize,
    seconds: u64,
) -> evermap_status {
    call(|| {
        // SAFETY: as the caller says.
        let (map, key) = unsafe { map_and_key(map, key, key_len) }?;
        Ok(found(map.0.map().touch(key, expiry(map.0.map(), seconds))?))
    })
}

/// Stores how many seconds a key has to live to `*seconds`: -1 if it does not expire. Returns
/// EVERMAP_ABSENT if it is not there.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_ttl(
    map: *const evermap_map,
    key: *const c_void,
    key_len: usize,
    seconds: *mut i64,
) -> evermap_status {
    call(|| {
        let seconds = place(seconds, "seconds")?;
        // SAFETY: as the caller says.
        let (map, key) = unsafe { map_and_key(map, key, key_len) }?;
        let expires_at = map.0.map().get_with(key, |item| item.expires_at())?;
        let Some(expires_at) = expires_at else { return Ok(EVERMAP_ABSENT) };
        let left = expires_at.map_or(-1, |at| {
            at.duration_since(map.0.map().now()).map_or(0, |left| left.as_secs() as i64)
        });
        // SAFETY: not null, and as the caller says.
        unsafe { seconds.write(left) };
        Ok(EVERMAP_OK)
    })
}

/// Removes all records of the map at once.
///
/// # Safety
/// `map` is NULL, or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_clear(map: *const evermap_map) -> evermap_status {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { object(map, "map") }?.0.map().clear()?;
        Ok(EVERMAP_OK)
    })
}

/// Figures of a map and of its store.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct evermap_stat {
    /// Records in the map, with those that have expired and are not removed yet.
    pub records: u64,
    /// Bytes that they take in the file.
    pub record_bytes: u64,
    /// Length of the file.
    pub file_bytes: u64,
    /// Bytes of memory, or of disk, that the file takes.
    pub used_bytes: u64,
    /// What it may take; UINT64_MAX without a limit.
    pub memory_limit: u64,
    /// Records that were evicted since the store was opened.
    pub evictions: u64,
    /// How often the file was opened.
    pub generation: u64,
    /// Whether `records` is exact: not before a file was counted in the background after a kill.
    pub exact: bool,
    /// Whether the store was closed before it was opened.
    pub clean_open: bool,
}

/// Stores figures of the map and of its store to `*stat`. Costs little.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_map_stat(
    map: *const evermap_map,
    stat: *mut evermap_stat,
) -> evermap_status {
    call(|| {
        let out = place(stat, "stat")?;
        // SAFETY: as the caller says.
        let stat = unsafe { object(map, "map") }?.0.map().stat();
        let stat = evermap_stat {
            records: stat.records.value,
            record_bytes: stat.record_bytes.value,
            file_bytes: stat.file_bytes,
            used_bytes: stat.memory_used,
            memory_limit: stat.memory_limit.unwrap_or(u64::MAX),
            evictions: stat.evictions,
            generation: stat.generation,
            exact: stat.records.exact,
            clean_open: stat.clean_open,
        };
        // SAFETY: not null, and as the caller says.
        unsafe { out.write(stat) };
        Ok(EVERMAP_OK)
    })
}
