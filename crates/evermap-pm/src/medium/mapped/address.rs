//! Naming the file behind an address, from inside a signal handler.
//!
//! A mapped page that cannot be read raises SIGBUS: the disk has a bad sector, or someone cut the file
//! off. Only the address is known then, and only code that takes no lock and allocates nothing may run.

use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicUsize, fence};

use crate::sync::Mutex;

/// Mappings that can be named at once; later ones have no name.
const PLACES: usize = 64;
/// `base` of a place without a mapping.
const FREE: usize = 0;
/// `base` of a place that is being filled.
const TAKEN: usize = 1;

struct Place {
    base: AtomicUsize,
    bytes: AtomicUsize,
    path: AtomicPtr<PathBuf>,
}

static TABLE: [Place; PLACES] = [const {
    Place {
        base: AtomicUsize::new(FREE),
        bytes: AtomicUsize::new(0),
        path: AtomicPtr::new(ptr::null_mut()),
    }
}; PLACES];

/// The file that is mapped at `addr`, and the offset in it. Safe to call from a signal handler.
///
/// Nothing for an address of no open store; also for stores beyond 64 that are open at once.
pub fn describe_address(addr: usize) -> Option<(&'static Path, u64)> {
    TABLE.iter().find_map(|place| {
        // Acquire: pairs with the release in `Named::new`, so that the fields belong to this base.
        let base = place.base.load(Acquire);
        if base <= TAKEN || addr < base || addr - base >= place.bytes.load(Relaxed) {
            return None;
        }
        let path = place.path.load(Relaxed);
        fence(Acquire);
        // The mapping went away meanwhile, and the place may hold another.
        if place.base.load(Relaxed) != base {
            return None;
        }
        // SAFETY: a place with a base has a path, and paths are never freed.
        let path = unsafe { path.as_ref() }?;
        Some((path.as_path(), (addr - base) as u64))
    })
}

/// An entry of the table, removed on drop.
pub(super) struct Named(Option<&'static Place>);

impl Named {
    /// Gives `bytes` at `base` the name `path`, if a place is free.
    pub(super) fn new(base: usize, bytes: usize, path: &Path) -> Self {
        let free = |place: &&Place| {
            // Acquire: the previous owner's stores come before ours.
            place.base.compare_exchange(FREE, TAKEN, Acquire, Relaxed).is_ok()
        };
        let place = TABLE.iter().find(free);
        if let Some(place) = place {
            place.bytes.store(bytes, Relaxed);
            place.path.store(forever(path), Relaxed);
            place.base.store(base, Release);
        }
        Named(place)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            place.base.store(FREE, Release);
        }
    }
}

/// A copy of `path` that is never freed. Opening a file again does not make another.
fn forever(path: &Path) -> *mut PathBuf {
    static PATHS: Mutex<Vec<AtomicPtr<PathBuf>>> = Mutex::new(Vec::new());
    let mut paths = PATHS.lock().expect("no panics while held");
    for known in paths.iter_mut() {
        let known = *known.get_mut();
        // SAFETY: made below and never freed or changed.
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
        let first = Named::new(0x1000_0000, 0x2000, one);
        let _second = Named::new(0x1000_2000, 0x1000, two);
        assert_eq!(describe_address(0x1000_1fff), Some((one, 0x1fff)));
        assert_eq!(describe_address(0x1000_2000), Some((two, 0)));
        assert_eq!(describe_address(0x1000_3000), None);
        assert_eq!(describe_address(0x0fff_ffff), None);
        assert_eq!(describe_address(0), None);
        drop(first);
        assert_eq!(describe_address(0x1000_0000), None);
        assert_eq!(describe_address(0x1000_2fff), Some((two, 0xfff)));
    }

    #[test]
    fn one_path_is_kept_once() {
        assert_eq!(forever(Path::new("/again")), forever(Path::new("/again")));
        assert_ne!(forever(Path::new("/again")), forever(Path::new("/other")));
    }
}
