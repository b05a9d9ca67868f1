//! A table of mappings by address, which can be read inside a signal handler.
//!
//! A mapped page that cannot be read raises SIGBUS: the disk has a bad sector, or another program
//! truncated the file. Only the address is known in the handler, and the handler must not take
//! locks or allocate.
//!
//! The table also says where in the program a file was opened, for a thread that opens it again.

use std::panic::Location;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, fence};

use crate::fork::process_number;
use crate::sync::{Mutex, Rank};

/// Number of mappings that can be in the table at a time. Later ones are not named.
const ENTRIES: usize = 64;
/// `base` of an entry that is not in use.
const FREE: usize = 0;
/// `base` of an entry that is being filled in.
const TAKEN: usize = 1;

struct Entry {
    base: AtomicUsize,
    bytes: AtomicUsize,
    path: AtomicPtr<PathBuf>,
    /// The number of the process that opened the file; a forked child inherits the table.
    process: AtomicU64,
    device: AtomicU64,
    inode: AtomicU64,
    /// The call that opened the file.
    place: AtomicPtr<Location<'static>>,
}

/// A file that is being mapped.
pub(super) struct Opened<'a> {
    pub(super) path: &'a Path,
    /// Its device and inode, if they are known.
    pub(super) identity: Option<(u64, u64)>,
    pub(super) place: &'static Location<'static>,
}

static TABLE: [Entry; ENTRIES] = [const {
    Entry {
        base: AtomicUsize::new(FREE),
        bytes: AtomicUsize::new(0),
        path: AtomicPtr::new(ptr::null_mut()),
        process: AtomicU64::new(0),
        device: AtomicU64::new(0),
        inode: AtomicU64::new(0),
        place: AtomicPtr::new(ptr::null_mut()),
    }
}; ENTRIES];

/// Returns the file mapped at `addr` and the offset in it. Async-signal-safe.
///
/// Returns `None` if no open store contains the address, or if the store was opened while 64 others
/// were already open.
pub fn describe_address(addr: usize) -> Option<(&'static Path, u64)> {
    TABLE.iter().find_map(|entry| {
        // Acquire: pairs with the release in `Named::new`, so that the fields belong to this base.
        let base = entry.base.load(Acquire);
        if base <= TAKEN || addr < base || addr - base >= entry.bytes.load(Relaxed) {
            return None;
        }
        let path = entry.path.load(Relaxed);
        fence(Acquire);
        // The mapping was removed in the meantime, and the entry may be used for another one.
        if entry.base.load(Relaxed) != base {
            return None;
        }
        // SAFETY: an entry with a base has a path, and paths are never freed.
        let path = unsafe { path.as_ref() }?;
        Some((path.as_path(), (addr - base) as u64))
    })
}

/// Returns where this process has opened the file with this device and inode, if it is mapped.
pub(super) fn opened_at(identity: (u64, u64)) -> Option<&'static Location<'static>> {
    let process = process_number();
    TABLE.iter().find_map(|entry| {
        // As in `describe_address`.
        let base = entry.base.load(Acquire);
        let file = (entry.device.load(Relaxed), entry.inode.load(Relaxed));
        if base <= TAKEN || file != identity || entry.process.load(Relaxed) != process {
            return None;
        }
        let place = entry.place.load(Relaxed);
        fence(Acquire);
        if entry.base.load(Relaxed) != base {
            return None;
        }
        // SAFETY: an entry with a base has a place, and places are never freed.
        unsafe { place.as_ref() }
    })
}

/// An entry of the table, which is removed on drop.
pub(super) struct Named(Option<&'static Entry>);

impl Named {
    /// Adds an entry for `bytes` bytes of `file` at `base`, if one is free.
    pub(super) fn new(base: usize, bytes: usize, file: &Opened<'_>) -> Self {
        let free = |entry: &&Entry| {
            // Acquire: the previous owner's stores come before ours.
            entry.base.compare_exchange(FREE, TAKEN, Acquire, Relaxed).is_ok()
        };
        let entry = TABLE.iter().find(free);
        if let Some(entry) = entry {
            entry.bytes.store(bytes, Relaxed);
            entry.path.store(leaked(file.path), Relaxed);
            let (device, inode) = file.identity.unwrap_or_default();
            entry.process.store(process_number(), Relaxed);
            entry.device.store(device, Relaxed);
            entry.inode.store(inode, Relaxed);
            entry.place.store(ptr::from_ref(file.place).cast_mut(), Relaxed);
            entry.base.store(base, Release);
        }
        Named(entry)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        if let Some(entry) = self.0 {
            entry.base.store(FREE, Release);
        }
    }
}

/// Returns a copy of `path` that is never freed. The same path always returns the same copy.
fn leaked(path: &Path) -> *mut PathBuf {
    static PATHS: Mutex<Vec<AtomicPtr<PathBuf>>> = Mutex::ranked(Rank::Leaf, Vec::new());
    let mut paths = PATHS.lock().expect("no panics while held");
    for known in paths.iter_mut() {
        let known = *known.get_mut();
        // SAFETY: created below and never freed or changed.
        if unsafe { &*known } == path {
            return known;
        }
    }
    let new = Box::into_raw(Box::new(path.to_owned()));
    paths.push(AtomicPtr::new(new));
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_names_while_they_are_mapped() {
        let (one, two) = (Path::new("/one"), Path::new("/two"));
        let place = Location::caller();
        let opened = |path, inode| Opened { path, identity: Some((u64::MAX, inode)), place };
        let first = Named::new(0x1000_0000, 0x2000, &opened(one, 1));
        let _second = Named::new(0x1000_2000, 0x1000, &opened(two, 2));
        assert_eq!(opened_at((u64::MAX, 1)), Some(place));
        assert_eq!(describe_address(0x1000_1fff), Some((one, 0x1fff)));
        assert_eq!(describe_address(0x1000_2000), Some((two, 0)));
        assert_eq!(describe_address(0x1000_3000), None);
        assert_eq!(describe_address(0x0fff_ffff), None);
        assert_eq!(describe_address(0), None);
        drop(first);
        assert_eq!(describe_address(0x1000_0000), None);
        let places = [1, 2, 3].map(|inode| opened_at((u64::MAX, inode)));
        assert_eq!(places, [None, Some(place), None]);
        assert_eq!(describe_address(0x1000_2fff), Some((two, 0xfff)));
    }

    #[test]
    fn one_path_is_kept_once() {
        assert_eq!(leaked(Path::new("/again")), leaked(Path::new("/again")));
        assert_ne!(leaked(Path::new("/again")), leaked(Path::new("/other")));
    }
}
