//! How to open a store.

use std::ffi::c_char;

use evermap_bindings::Settings;

use crate::pointers::{give, object_mut, take_back, text};
use crate::status::evermap_status::EVERMAP_OK;
use crate::status::{call, evermap_status, free};

/// How to open a store. For one thread at a time.
pub struct evermap_options(pub(crate) Settings);

/// Returns the default options, to be freed with evermap_options_free().
#[unsafe(no_mangle)]
pub extern "C" fn evermap_options_new() -> *mut evermap_options {
    give(evermap_options(Settings::new()))
}

/// Sets an option, by its name and as text:
///
///     create            true (default) or false: a file that is not there is made
///     read_only         true or false: several processes may read a file
///     beside_writers    true (default) or false: read a copy while another process writes
///     offers_copies     true or false: other processes may read copies of this store
///     ordered           false (default), true (order in memory) or persistent (in the file)
///     durability        process (default), log, adr or eadr
///     acknowledge       each (default), group=TIME or async=TIME; with durability=log
///     log_folder        a path; with durability=log
///     log_in_memory     true or false: the folder of the log may be on tmpfs, for tests
///     checkpoint_bytes  a size; with durability=log
///     memory_limit      a size: what the file may take
///     evict             true or false: the default map is a cache within memory_limit
///     max_bytes         a size: what the records of the default map may take
///     capacity          a size: how long a new file may ever become
///     on_suspect        refuse (default), salvage or discard a file that cannot be trusted
///     lock_wait         a time: how long to wait for a process that is dying
///     verify_reads      true (default) or false
///     exclusive         true or false: a promise that no other program writes to the file while
///                       it is open, so that evermap_get() lends values instead of copying them.
///                       Breaking it is undefined behaviour
///     index             dash-eh (default) or another kind, for a new file
///
/// A size is a number of bytes, or has K, M, G or T behind it; a time is a number of seconds, or
/// has ms, s or min behind it.
///
/// Returns EVERMAP_ERR_INVALID for an unknown name, and for a value that it cannot have.
///
/// # Safety
/// The pointers are NULL, or as described at the top of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_options_set(
    options: *mut evermap_options,
    name: *const c_char,
    value: *const c_char,
) -> evermap_status {
    call(|| {
        // SAFETY: as the caller says.
        let (options, name, value) = unsafe {
            (object_mut(options, "options")?, text(name, "name")?, text(value, "value")?)
        };
        options.0.set(name, value)?;
        Ok(EVERMAP_OK)
    })
}

/// Frees options. They may be freed as soon as the store is open.
///
/// # Safety
/// The options are not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evermap_options_free(options: *mut evermap_options) {
    // SAFETY: as the caller says.
    free(|| unsafe { take_back(options) });
}
