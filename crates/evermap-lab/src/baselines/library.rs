//! Shared libraries that are loaded when they are used.

use std::ffi::{CStr, CString, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

/// A loaded library. It is never unloaded, because threads may have destructors in it.
#[derive(Clone, Copy)]
pub(crate) struct Library(NonNull<c_void>);

// SAFETY: the handle is only passed to `dlsym`, which any thread may call with it.
unsafe impl Send for Library {}
// SAFETY: the same.
unsafe impl Sync for Library {}

/// The reason why a library or a function in it cannot be used, as the system's loader reports it.
#[derive(Debug)]
pub(crate) struct NotLoaded(String);

impl fmt::Display for NotLoaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotLoaded {}

impl Library {
    /// Loads `path`, or what the loader finds under a name without a slash.
    ///
    /// # Safety
    ///
    /// Loading runs the initialisers of the library: the caller vouches for them.
    pub(crate) unsafe fn open(path: &Path) -> Result<Self, NotLoaded> {
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| NotLoaded("the path contains a zero byte".into()))?;
        // SAFETY: `name` is a terminated string; the caller vouches for the initialisers (above).
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle).map(Library).ok_or_else(last_error)
    }

    /// Returns the address of a function or variable.
    pub(crate) fn address(&self, name: &CStr) -> Result<NonNull<c_void>, NotLoaded> {
        // SAFETY: the handle is one that `dlopen` returned and that is never closed; `name` is a
        // terminated string.
        let address = unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) };
        NonNull::new(address).ok_or_else(last_error)
    }
}

fn last_error() -> NotLoaded {
    // SAFETY: the returned string belongs to the calling thread until its next call of the loader.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return NotLoaded("the loader does not say why".into());
    }
    // SAFETY: not null, so a terminated string; it is copied immediately.
    NotLoaded(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}
