//! What C passes in, looked at before it is used.

use std::ffi::{CStr, c_char, c_void};
use std::path::Path;

use evermap_bindings::{Fault, Result};

pub(crate) fn usage<T>(text: impl Into<String>) -> Result<T> {
    Err(Fault::Usage(text.into()))
}

/// Returns the bytes at `data`.
///
/// # Safety
/// Unless it is null, or the length is one that no object has, `data` must be valid for reads of
/// `len` bytes, which nobody changes while they are used.
pub(crate) unsafe fn bytes<'a>(data: *const c_void, len: usize, what: &str) -> Result<&'a [u8]> {
    if isize::try_from(len).is_err() {
        return usage(format!("{what} of {len} bytes is longer than any object can be"));
    }
    match (data.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => usage(format!("{what} is NULL, but its length is {len}")),
        // SAFETY: the caller says so, and the length was looked at.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(data.cast(), len) }),
    }
}

/// Returns the object at `handle`.
///
/// # Safety
/// Unless it is null, `handle` must be one that this library has returned and that was not freed.
pub(crate) unsafe fn object<'a, T>(handle: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: the caller says so.
    match unsafe { handle.as_ref() } {
        Some(object) => Ok(object),
        None => usage(format!("{what} is NULL")),
    }
}

/// Returns the object at `handle`, to be changed.
///
/// # Safety
/// As for [`object`], and no other thread may use it meanwhile.
pub(crate) unsafe fn object_mut<'a, T>(handle: *mut T, what: &str) -> Result<&'a mut T> {
    // SAFETY: the caller says so.
    match unsafe { handle.as_mut() } {
        Some(object) => Ok(object),
        None => usage(format!("{what} is NULL")),
    }
}

/// Returns where a result is to be written: it may be uninitialized.
pub(crate) fn place<T>(out: *mut T, what: &str) -> Result<*mut T> {
    if out.is_null() { usage(format!("{what} is NULL")) } else { Ok(out) }
}

/// Writes a result, unless `out` is null: for results that a caller may not want.
///
/// # Safety
/// Unless it is null, `out` must be valid for a write.
pub(crate) unsafe fn write_if_wanted<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: the caller says so.
        unsafe { out.write(value) };
    }
}

/// Returns the text at `text`.
///
/// # Safety
/// Unless it is null, `text` must end with a zero, and nobody changes it while it is used.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str> {
    if text.is_null() {
        return usage(format!("{what} is NULL"));
    }
    // SAFETY: the caller says so.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().or_else(|_| usage(format!("{what} is not UTF-8")))
}

/// Returns the path at `path`.
///
/// # Safety
/// As for [`text`].
pub(crate) unsafe fn path<'a>(path: *const c_char, what: &str) -> Result<&'a Path> {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    if path.is_null() {
        return usage(format!("{what} is NULL"));
    }
    // SAFETY: the caller says so.
    Ok(Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes())))
}

/// Puts an object where C owns it.
pub(crate) fn give<T>(object: T) -> *mut T {
    Box::into_raw(Box::new(object))
}

/// Takes back what [`give`] has given, and drops it.
///
/// # Safety
/// Unless it is null, `handle` must come from [`give`], and is not used any more.
pub(crate) unsafe fn take_back<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: the caller says so.
        drop(unsafe { Box::from_raw(handle) });
    }
}
