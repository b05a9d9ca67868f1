//! Changes of several keys that happen together or not at all.

use std::ffi::{c_char, c_void};
use std::time::Duration;

use evermap_bindings::Result;
use store::{Applied, Batch, Meta};

use crate::pointers::{bytes, give, object, object_mut, take_back, text};
use crate::status::evermap_status::*;
use crate::status::{call, evermap_status, free, tell};
use crate::store::evermap_db;

/// Changes and conditions that take effect together or not at all. For one thread at a time.
pub struct evermap_batch(Batch);

/// Returns an empty batch, to be freed with evermap_batch_free().
#[unsafe(no_mangle)]
pub extern "C" fn evermap_batch_new() -> *mut evermap_batch {
    give(evermap_batch(Batch::new()))
}

/// Frees a batch.
///
/// # Safety
/// `batch` is NULL, or is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_batch_free(batch: *mut evermap_batch) {
    // SAFETY: as the caller says.
    free(|| unsafe { take_back(batch) });
}

/// # Safety
/// That of [`object_mut`] and [`bytes`].
unsafe fn batch_and_key<'a>(
    batch: *mut evermap_batch,
    key: *const c_void,
    key_len: usize,
) -> Result<(&'a mut Batch, &'a [u8])> {
    // SAFETY: as the caller says.
    unsafe { Ok((&mut object_mut(batch, "batch")?.0, bytes(key, key_len, "key")?)) }
}

/// Makes what is added next concern the map called `name`, which must exist when the batch is
/// applied; NULL is the default map, as in the beginning.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_batch_in_map(
    batch: *mut evermap_batch,
    name: *const c_char,
) -> evermap_status {
    call(|| {
        // SAFETY: as the caller says.
        let batch = unsafe { object_mut(batch, "batch") }?;
        // SAFETY: as the caller says.
        let name = if name.is_null() { None } else { Some(unsafe { text(name, "name") }?) };
        batch.0.in_map(name);
        Ok(EVERMAP_OK)
    })
}

/// Adds that a key is bound to a value. It expires after `seconds` from now, or never if that is 0.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_batch_put(
    batch: *mut evermap_batch,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    seconds: u64,
) -> evermap_status {
    call(|| {
        // SAFETY: as the caller says.
        let (batch, key) = unsafe { batch_and_key(batch, key, key_len) }?;
        // SAFETY: as the caller says.
        let value = unsafe { bytes(value, value_len, "value") }?;
        let meta = match seconds {
            0 => Meta::new(),
            _ => Meta::expiring(Duration::from_secs(seconds)),
        };
        batch.put_with(key, value, meta);
        Ok(EVERMAP_OK)
    })
}

/// Adds that a key is removed, if it is present.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_batch_delete(
    batch: *mut evermap_batch,
    key: *const c_void,
    key_len: usize,
) -> evermap_status {
    call(|| {
        // SAFETY: as the caller says.
        let (batch, key) = unsafe { batch_and_key(batch, key, key_len) }?;
        batch.remove(key);
        Ok(EVERMAP_OK)
    })
}

/// Adds that `delta` is added to a counter, as by evermap_add().
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_batch_add(
    batch: *mut evermap_batch,
    key: *const c_void,
    key_len: usize,
    delta: i64,
) -> evermap_status {
    call(|| {
        // SAFETY: as the caller says.
        let (batch, key) = unsafe { batch_and_key(batch, key, key_len) }?;
        batch.add(key, delta);
        Ok(EVERMAP_OK)
    })
}

/// Adds the condition that the record of a key is the one that `cas` identifies, or with 0 that the
/// key is absent: before any change of the batch.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_batch_expect(
    batch: *mut evermap_batch,
    key: *const c_void,
    key_len: usize,
    cas: u64,
) -> evermap_status {
    call(|| {
        // SAFETY: as the caller says.
        let (batch, key) = unsafe { batch_and_key(batch, key, key_len) }?;
        batch.expect(key, (cas != 0).then_some(cas));
        Ok(EVERMAP_OK)
    })
}

/// Empties a batch, to be filled again: with changes of the default map.
///
/// # Safety
/// `batch` is NULL, or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_batch_clear(batch: *mut evermap_batch) -> evermap_status {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { object_mut(batch, "batch") }?.0.clear();
        Ok(EVERMAP_OK)
    })
}

/// Makes all changes of a batch, or none of them, also if the process is killed meanwhile. The
/// batch stays as it is, and may be applied again.
///
/// Returns EVERMAP_REFUSED if a condition does not hold, and an error for a map that does not exist
/// or a counter that is none: nothing has changed then.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_apply(
    db: *const evermap_db,
    batch: *const evermap_batch,
) -> evermap_status {
    call(|| {
        // SAFETY: as the caller says.
        let (db, batch) = unsafe { (object(db, "db")?, object(batch, "batch")?) };
        match db.store.db().apply(&batch.0)? {
            Applied::Refused { key, found, .. } => {
                let key = key.escape_ascii();
                tell(&match found {
                    Some(cas) => format!("key \"{key}\" has the record {cas}"),
                    None => format!("key \"{key}\" is absent"),
                });
                Ok(EVERMAP_REFUSED)
            }
            _ => Ok(EVERMAP_OK),
        }
    })
}
