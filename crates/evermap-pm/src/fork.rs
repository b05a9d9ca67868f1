//! Detects that the process was forked.
//!
//! A forked child inherits the shared mapping and the open file that carries the writer's lock, but
//! not the threads that share the work. If it continued to write, two processes would change one
//! structure under locks that each of them believes to hold alone. So mutations check for this
//! first.

use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::{Error, Result};

/// Distinguishes the process that created it from children forked later, at the cost of one load.
///
/// It keeps a non-zero word in a page that the kernel zeroes for children. Unlike a comparison of
/// process ids it needs no system call, and is not fooled by an id that is reused.
pub struct ForkDetector {
    word: NonNull<AtomicU64>,
    bytes: usize,
}

// SAFETY: the page is owned, and its only word is atomic.
unsafe impl Send for ForkDetector {}
// SAFETY: as above.
unsafe impl Sync for ForkDetector {}

impl ForkDetector {
    /// Creates a detector for the calling process.
    ///
    /// # Errors
    ///
    /// `NoSpace` if no page is available, `Io` on kernels before 4.14, which cannot wipe pages on
    /// fork.
    pub fn new() -> Result<Self> {
        let bytes = rustix::param::page_size();
        // SAFETY: a fresh private mapping at an address of the system's choice touches nothing that
        // exists.
        let page = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(|_| Error::no_space("memory for a fork detector", bytes as u64))?;
        let word = NonNull::new(page.cast()).expect("mmap returned null");
        let detector = ForkDetector { word, bytes };
        // SAFETY: our own page, which is still empty.
        unsafe { madvise(page, bytes, Advice::LinuxWipeOnFork) }.map_err(|errno| {
            Error::io("asking the kernel to wipe a page on fork", "memory".as_ref(), errno)
        })?;
        detector.word().store(1, Relaxed);
        Ok(detector)
    }

    /// Returns `true` if the calling process is a forked child of the one that created this
    /// detector.
    #[inline(always)]
    pub fn is_child(&self) -> bool {
        // Relaxed: the word never changes during the life of a process; in a child it is zero from
        // the start.
        self.word().load(Relaxed) == 0
    }

    #[inline(always)]
    fn word(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped until drop, aligned, and only accessed as this atomic.
        unsafe { self.word.as_ref() }
    }
}

impl Drop for ForkDetector {
    fn drop(&mut self) {
        // SAFETY: our own page, and no reference into it can outlive `self`.
        let _ = unsafe { munmap(self.word.as_ptr().cast(), self.bytes) };
    }
}

/// Returns a number that no other process has among this one, its ancestors by `fork`, and their
/// threads. Costs two loads, or a system call on kernels that cannot wipe pages on fork.
pub(crate) fn process_number() -> u64 {
    static DETECTOR: OnceLock<Option<ForkDetector>> = OnceLock::new();
    // A child begins with a copy of its parent's counter, so it gets a number that its ancestors do
    // not have. The first process has the number 1, which the detector stores.
    static LAST: AtomicU64 = AtomicU64::new(1);
    // The interpreter has no fork, and cannot map memory for a detector.
    if cfg!(miri) {
        return 1;
    }
    let Some(detector) = DETECTOR.get_or_init(|| ForkDetector::new().ok()) else {
        return u64::from(std::process::id());
    };
    let word = detector.word();
    // Relaxed, here and below: the word only tells numbers apart.
    match word.load(Relaxed) {
        0 => {
            let number = LAST.fetch_add(1, Relaxed) + 1;
            // Another thread of the child may have been first.
            word.compare_exchange(0, number, Relaxed, Relaxed)
                .map_or_else(|first| first, |_| number)
        }
        number => number,
    }
}
