//! Files, and their maps.

use std::ffi::{CStr, c_char};
use std::sync::Arc;

use evermap_bindings::{Fault, Result, Settings, Store, StoreMap};

use crate::options::evermap_options;
use crate::pointers::{give, object, path, place, take_back, text, usage, write_if_wanted};
use crate::status::evermap_status::*;
use crate::status::{call, evermap_status, free, tell};
use ::store::ErrorKind;

/// An open store, or a snapshot of one. For any number of threads.
pub struct evermap_db {
    pub(crate) store: Arc<Store>,
    /// Lent by evermap_default_map().
    default: evermap_map,
}

/// A map of a store, which it keeps open. For any number of threads.
pub struct evermap_map(pub(crate) Arc<StoreMap>);

fn db_of(store: Arc<Store>) -> Result<*mut evermap_db> {
    let default = evermap_map(store.map(None, true)?);
    Ok(give(evermap_db { store, default }))
}

/// Opens the file at `path`, or creates it, and stores a handle of it to `*db`: to be closed with
/// evermap_close(). `options` may be NULL. Takes about a millisecond, whatever the size of the
/// file, and however the process ended that had it open before.
///
/// Errors: IN_USE if a process has the file open, SUSPECT after a crash of the machine,
/// NOT_A_STORE, NOT_FOUND, NO_SPACE, DAMAGED, CONFIG, FILE_SYSTEM, IO. `*db` is NULL then.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_open(
    path: *const c_char,
    options: *const evermap_options,
    db: *mut *mut evermap_db,
) -> evermap_status {
    // SAFETY: as the caller says.
    call(|| unsafe { open(Some(path), options, db) })
}

/// Creates a store in memory, which is gone when it is closed; otherwise as evermap_open().
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_open_memory(
    options: *const evermap_options,
    db: *mut *mut evermap_db,
) -> evermap_status {
    // SAFETY: as the caller says.
    call(|| unsafe { open(None, options, db) })
}

/// # Safety
/// That of [`evermap_open`].
unsafe fn open(
    at: Option<*const c_char>,
    options: *const evermap_options,
    db: *mut *mut evermap_db,
) -> Result<evermap_status> {
    let db = place(db, "db")?;
    // SAFETY: not null, and as the caller says.
    unsafe { db.write(std::ptr::null_mut()) };
    // SAFETY: as the caller says.
    let at = at.map(|at| unsafe { path(at, "path") }).transpose()?;
    // SAFETY: as the caller says.
    let settings = unsafe { options.as_ref() }.map_or_else(Settings::new, |set| set.0.clone());
    let opened = db_of(Store::open(at, &settings)?)?;
    // SAFETY: as above.
    unsafe { db.write(opened) };
    Ok(EVERMAP_OK)
}

/// Closes the store, for all handles of its maps too, and frees `db`: waits for calls of other
/// threads that are running, and leaves the file in order. Maps that were opened by name, cursors
/// and snapshots still have to be freed; what they are used for returns EVERMAP_ERR_CLOSED. The
/// file can be opened again when they are.
///
/// Without it, as after a kill, nothing is lost; the next opening tidies up.
///
/// Returns EVERMAP_ERR_DEADLOCK while values of this store are held: nothing was done then, and
/// `db` can be used as before. Any other error is reported, and `db` is freed nevertheless.
///
/// # Safety
/// `db` is NULL, or was not closed before; no other thread uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_close(db: *mut evermap_db) -> evermap_status {
    call(|| {
        if db.is_null() {
            return Ok(EVERMAP_OK);
        }
        // SAFETY: as the caller says.
        let closed = unsafe { object(db, "db") }?.store.close();
        let kind = closed.as_ref().err().map(Fault::kind);
        if kind != Some(ErrorKind::WouldDeadlock) {
            // SAFETY: as the caller says.
            unsafe { take_back(db) };
        }
        closed.map(|()| EVERMAP_OK)
    })
}

/// Returns the default map, which every store has. It belongs to `db`: it is not to be freed, and
/// valid until `db` is closed. NULL only if `db` is NULL.
///
/// # Safety
/// `db` is NULL, or was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_default_map(db: *const evermap_db) -> *const evermap_map {
    // SAFETY: as the caller says.
    unsafe { db.as_ref() }.map_or(std::ptr::null(), |db| &raw const db.default)
}

/// Opens the map called `name`, or creates it if `create` is set, and stores a handle of it to
/// `*map`: to be freed with evermap_map_free(). It is another map in the same file.
///
/// Errors: NOT_FOUND if there is none and `create` is not set, INVALID for a name that is not 1 to
/// 250 bytes of UTF-8, NO_SPACE, DAMAGED, CLOSED. `*map` is NULL then.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_map_open(
    db: *const evermap_db,
    name: *const c_char,
    create: bool,
    map: *mut *mut evermap_map,
) -> evermap_status {
    call(|| {
        let map = place(map, "map")?;
        // SAFETY: not null, and as the caller says.
        unsafe { map.write(std::ptr::null_mut()) };
        // SAFETY: as the caller says.
        let (db, name) = unsafe { (object(db, "db")?, text(name, "name")?) };
        let opened = db.store.map(Some(name), create)?;
        // SAFETY: as above.
        unsafe { map.write(give(evermap_map(opened))) };
        Ok(EVERMAP_OK)
    })
}

/// Frees a handle of a map. What is in the map stays.
///
/// # Safety
/// `map` is NULL, or was opened with evermap_map_open(), and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_map_free(map: *mut evermap_map) {
    // SAFETY: as the caller says.
    free(|| unsafe { take_back(map) });
}

/// Removes the map called `name` with all that is in it, at once and for good.
///
/// Returns EVERMAP_ABSENT if there is none.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_drop_map(
    db: *const evermap_db,
    name: *const c_char,
) -> evermap_status {
    call(|| {
        // SAFETY: as the caller says.
        let (db, name) = unsafe { (object(db, "db")?, text(name, "name")?) };
        let was_there = db.store.db().drop_map(name)?;
        Ok(if was_there { EVERMAP_OK } else { EVERMAP_ABSENT })
    })
}

/// Copies the name of one of the maps to `name`, with a zero behind it: the one at place `at`, from
/// 0, in the order of their names. The default map has no name. `capacity` is the length of `name`;
/// EVERMAP_MAP_NAME_MAX + 1 is enough for any.
///
/// Returns EVERMAP_END if there are not as many maps, EVERMAP_ERR_INVALID if the name is longer
/// than fits.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_map_name(
    db: *const evermap_db,
    at: usize,
    name: *mut c_char,
    capacity: usize,
) -> evermap_status {
    call(|| {
        let name = place(name, "name")?;
        // SAFETY: as the caller says.
        let db = unsafe { object(db, "db") }?;
        let maps = db.store.db().maps()?;
        let Some(found) = maps.get(at) else { return Ok(EVERMAP_END) };
        if found.len() >= capacity {
            return usage(format!("the name has {} bytes, and one behind it", found.len()));
        }
        // SAFETY: as the caller says, and what is copied and the zero fit.
        unsafe {
            name.copy_from_nonoverlapping(found.as_ptr().cast(), found.len());
            name.add(found.len()).write(0);
        }
        Ok(EVERMAP_OK)
    })
}

/// The greatest length of the name of a map.
pub const EVERMAP_MAP_NAME_MAX: usize = 250;

/// Waits until everything that this thread has changed is durable, if the store has a log;
/// otherwise does nothing.
///
/// # Safety
/// `db` is NULL, or was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_sync(db: *const evermap_db) -> evermap_status {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { object(db, "db") }?.store.db().sync()?;
        Ok(EVERMAP_OK)
    })
}

/// Stores a handle of the store as it is at this moment to `*snapshot`: all maps of one moment, to
/// be read while the store is changed, and to be closed with evermap_close(). Copies nothing, and
/// waits for calls of other threads that are running. Memory grows with what is changed meanwhile,
/// up to `limit` bytes, or without a limit if that is 0; then what is read returns
/// EVERMAP_ERR_TOO_OLD.
///
/// Errors: DEADLOCK while values are held, CONFIG for a store in memory, CLOSED, NO_SPACE, IO.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_snapshot(
    db: *const evermap_db,
    limit: u64,
    snapshot: *mut *mut evermap_db,
) -> evermap_status {
    call(|| {
        let snapshot = place(snapshot, "snapshot")?;
        // SAFETY: not null, and as the caller says.
        unsafe { snapshot.write(std::ptr::null_mut()) };
        // SAFETY: as the caller says.
        let db = unsafe { object(db, "db") }?;
        let taken = db_of(db.store.snapshot((limit > 0).then_some(limit))?)?;
        // SAFETY: as above.
        unsafe { snapshot.write(taken) };
        Ok(EVERMAP_OK)
    })
}

/// Writes a copy of the store as it is at this moment to a new file at `path`, while the store is
/// in use, and makes it durable. A copy that cannot be finished is removed.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_backup(
    db: *const evermap_db,
    path: *const c_char,
) -> evermap_status {
    call(|| {
        // SAFETY: as the caller says.
        let (db, path) = unsafe { (object(db, "db")?, crate::pointers::path(path, "path")?) };
        db.store.backup(path)?;
        Ok(EVERMAP_OK)
    })
}

/// Makes a store at `path`, where there is no file, of a backup at `backup`.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_restore(
    backup: *const c_char,
    path: *const c_char,
) -> evermap_status {
    call(|| {
        // SAFETY: as the caller says.
        let (backup, path) = unsafe {
            (crate::pointers::path(backup, "backup")?, crate::pointers::path(path, "path")?)
        };
        Store::restore(&[backup], path)?;
        Ok(EVERMAP_OK)
    })
}

/// Checks the store while it is in use, and the checksum of every record too if `deep` is set.
/// Stores the number of problems to `*problems`, which may be NULL; evermap_message() has the
/// first one.
///
/// Returns EVERMAP_OK if there are none, and EVERMAP_ERR_DAMAGED otherwise.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_check(
    db: *const evermap_db,
    deep: bool,
    problems: *mut u64,
) -> evermap_status {
    call(|| {
        // SAFETY: as the caller says.
        let report = unsafe { object(db, "db") }?.store.check(deep)?;
        let found = report.problems.len() as u64 + report.more_problems;
        // SAFETY: as the caller says.
        unsafe { write_if_wanted(problems, found) };
        let Some(first) = report.problems.first() else { return Ok(EVERMAP_OK) };
        tell(first);
        Ok(EVERMAP_ERR_DAMAGED)
    })
}

/// Returns free space of sparse parts of the file to the system. Stores the bytes to `*bytes`,
/// which may be NULL.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_compact(db: *const evermap_db, bytes: *mut u64) -> evermap_status {
    call(|| {
        // SAFETY: as the caller says.
        let freed = unsafe { object(db, "db") }?.store.compact()?;
        // SAFETY: as the caller says.
        unsafe { write_if_wanted(bytes, freed) };
        Ok(EVERMAP_OK)
    })
}

/// Returns the version of the library, such as "0.1.0". Not to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn evermap_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version has no zero"),
        };
    VERSION.as_ptr()
}
