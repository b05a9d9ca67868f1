//! Snapshots of a mapped file: views of its pages at one instant.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags};

use super::mapping::Mapping;
use super::prefault::Prefaulter;
use super::tracker::{Live, Marks, PAGE, Tracker, View, ViewMapping};
use super::{FlushKind, Mapped};
use crate::medium::Medium;
use crate::{Error, ErrorKind, Result};

/// A view has room for growth of the file while its instant begins.
const ROOM: u64 = 64 << 20;

impl Mapped {
    /// Returns a read-only medium with the bytes of this one at an instant during the call.
    ///
    /// They are a consistent cut of all threads' stores: a state that a kill at that moment could
    /// have left. One store of each thread, which it was about to execute, may appear a little
    /// later; to exclude that, wait for a grace period of the threads that store.
    ///
    /// Takes some microseconds, and no memory but for pages that are changed later: before a page
    /// of the file is stored to for the first time afterwards, the view gets a copy of it, which
    /// takes about a microsecond. What is stored to the view stays in it. It holds the lock of the
    /// file as long as it lives, but not the mapping of this medium.
    ///
    /// # Errors
    ///
    /// `Config` for memory without a file, and for a medium that is a view itself; `FileSystem` on
    /// hugetlbfs; `NoSpace` if there is not enough address space; `Io` if the system has no fence
    /// of all threads (`membarrier`), or no more descriptors.
    pub fn snapshot(&self) -> Result<Mapped> {
        let Some(file) = self.file.as_ref().filter(|file| !file.is_read_only()) else {
            let why = "only a store that is open for writing in a file has snapshots";
            return Err(ErrorKind::Config(why.into()).into());
        };
        let live = self.tracker.begin(|| self.untracked())?;
        loop {
            let bytes = self.len().saturating_add(ROOM).min(self.capacity());
            let file = file.for_view()?;
            let ViewMapping { view, mapping } =
                self.tracker.take_view(live, bytes / PAGE, || {
                    let mut mapping = Mapping::addresses(bytes, ProtFlags::empty())?;
                    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
                    mapping
                        .attach(file.fd(), flags)
                        .map_err(|errno| Error::io("mapping", file.path(), errno))?;
                    Ok((
                        mapping,
                        Mapping::addresses(bytes / PAGE, ProtFlags::READ | ProtFlags::WRITE)?,
                    ))
                })?;
            let view = Mapped {
                prefaulter: Prefaulter::default(),
                _name: None,
                tracker: Tracker::of_view(view),
                mapping,
                file: Some(file),
                // Read after the instant: what is in the cut refers to nothing beyond.
                len: AtomicU64::new(self.len()),
                flush: FlushKind::Process,
                identity: self.identity,
            };
            // Otherwise the file has grown by more than there was room for.
            if view.len() <= bytes {
                return Ok(view);
            }
        }
    }

    /// Begins to note which pages are stored to, for copies that have only what was changed. Stores
    /// of operations that are running may not be noted, so the first copy must wait until those
    /// have ended. Does nothing if it has begun, or the medium is read-only.
    ///
    /// # Errors
    ///
    /// Those of [`snapshot`](Mapped::snapshot).
    pub fn begin_tracking(&self) -> Result<()> {
        if self.tracker.live().is_some() || self.is_read_only() {
            return Ok(());
        }
        let live = self.tracker.begin(|| self.untracked())?;
        self.tracker.begin_instant(live)
    }

    /// Returns the number of bytes of pages that this view of another medium has to itself, or 0 if
    /// it is none.
    pub fn private_bytes(&self) -> u64 {
        self.tracker.view().map_or(0, View::private_bytes)
    }

    /// Limits the bytes of pages that this view has to itself. `on_full` is called by threads that
    /// change a page of the file when there are more: it makes the users of the view stop, and
    /// returns whether they have. Then no more pages are kept, so what the view shows from then on
    /// has no meaning. It must not wait. Does nothing if the medium is no view, or limited already.
    pub fn limit_private_bytes(&self, bytes: u64, on_full: Box<dyn Fn() -> bool + Send + Sync>) {
        if let Some(view) = self.tracker.view() {
            view.set_limit(bytes, on_full);
        }
    }

    /// Returns the instant of this view, by the counter of the medium that it is one of, or 0 if it
    /// is none.
    pub(crate) fn instant(&self) -> u64 {
        self.tracker.view().map_or(0, View::instant)
    }

    /// Returns whether a page may have been stored to after an instant of this medium.
    pub(crate) fn is_changed_since(&self, page: u64, instant: u64) -> bool {
        self.tracker.live().is_some_and(|live| live.is_changed_since(page, instant))
    }

    fn untracked(&self) -> Result<Live> {
        Ok(Live::new(self.base_address(), Marks::in_memory(self.capacity())?))
    }

    /// Returns the address of the mapping, for words that are reached by their address.
    pub(super) fn base_address(&self) -> usize {
        self.base().as_ptr().expose_provenance()
    }
}

/// Creates an empty file in memory, which is gone when it is closed, and returns the path by which
/// this process can open it.
///
/// # Errors
///
/// `Io`.
pub fn memory_file() -> Result<(std::fs::File, PathBuf)> {
    let fd = memfd_create(c"evermap", MemfdFlags::CLOEXEC)
        .map_err(|errno| Error::io("creating a file in memory", "memory".as_ref(), errno))?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    Ok((fd.into(), path))
}
