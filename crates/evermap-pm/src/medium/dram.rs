//! Anonymous memory.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::{Medium, OFFSET_LIMIT};
use crate::{Error, ErrorKind, PmU64, Quad, Result};

/// Page size to request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// The base page, 4 KiB on x86-64.
    Base,
    /// Transparent huge pages, 2 MiB on x86-64, if the system grants them.
    Huge,
}

/// Requests huge pages for memory of this process. Affects only speed.
pub fn prefer_huge_pages(memory: NonNull<[u8]>) {
    // SAFETY: this advice changes no byte, whatever the address; it is refused where nothing is
    // mapped.
    let _ = unsafe { madvise(memory.as_ptr().cast(), memory.len(), Advice::LinuxHugepage) };
}

/// Anonymous memory: fast, and lost when it is dropped.
pub struct Dram {
    base: NonNull<u8>,
    capacity: u64,
    len: AtomicU64,
}

// SAFETY: the mapping is owned, and its bytes are only accessed as atomics.
unsafe impl Send for Dram {}
// SAFETY: as above.
unsafe impl Sync for Dram {}

impl Dram {
    /// Reserves `capacity` bytes of address space. Memory is taken from the system when first
    /// touched.
    ///
    /// # Errors
    ///
    /// `Config` if `capacity` is zero or above 48 bits, `NoSpace` if the system refuses the
    /// reservation.
    pub fn reserve(capacity: u64, pages: Pages) -> Result<Self> {
        if capacity == 0 || capacity > OFFSET_LIMIT {
            return Err(ErrorKind::Config(format!("cannot reserve {capacity} bytes")).into());
        }
        let capacity = capacity.next_multiple_of(4096);
        // SAFETY: a fresh private mapping at an address of the system's choice touches nothing that
        // exists.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                capacity as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(|_| Error::no_space("address space", capacity))?;
        let advice = match pages {
            Pages::Base => Advice::LinuxNoHugepage,
            Pages::Huge => Advice::LinuxHugepage,
        };
        // SAFETY: advice on our own mapping. If it is refused, that only costs speed.
        let _ = unsafe { madvise(base, capacity as usize, advice) };
        let base = NonNull::new(base.cast()).expect("mmap returned null");
        Ok(Dram { base, capacity, len: AtomicU64::new(0) })
    }
}

impl Drop for Dram {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and no reference into it can outlive `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.capacity as usize) };
    }
}

// SAFETY: 1. The mapping is page-aligned and exists until drop. 2. All `capacity` bytes are
// readable and writable, and nothing else has the address. 3. `grow` only raises `len`, up to
// `capacity`. 4. The mapping is private, and `base` is only for callers that obey this trait.
unsafe impl Medium for Dram {
    #[inline(always)]
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    #[inline(always)]
    fn len(&self) -> u64 {
        // Relaxed: a thread gets an offset from a word stored after the growth that made it usable.
        self.len.load(Ordering::Relaxed)
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    #[inline]
    fn read_bytes(&self, cells: &[PmU64], out: &mut [u8]) {
        super::copy::copy_out(cells, out);
    }

    fn is_exclusive(&self) -> bool {
        true
    }

    fn grow(&self, len: u64) -> Result<()> {
        if len > self.capacity {
            return Err(Error::no_space("capacity of the memory", len - self.capacity));
        }
        self.len.fetch_max(len.next_multiple_of(4096).min(self.capacity), Ordering::Release);
        Ok(())
    }

    fn discard(&self, range: Range<u64>) {
        let (start, end) = (range.start.next_multiple_of(4096), range.end / 4096 * 4096);
        if start < end && end <= self.len() {
            // SAFETY: whole pages of our own mapping, which read as zero afterwards.
            let _ = unsafe {
                madvise(
                    self.base.as_ptr().add(start as usize).cast(),
                    (end - start) as usize,
                    Advice::LinuxDontNeed,
                )
            };
        }
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn name(&self) -> &'static str {
        "dram"
    }

    #[inline(always)]
    fn load_four(&self, cells: &[PmU64; 4]) -> Quad {
        Quad::load(cells)
    }

    #[inline(always)]
    fn flush_bytes(&self, _addr: *const u8, _len: usize) {}

    #[inline(always)]
    fn fence(&self) {
        compiler_fence(Ordering::Release);
    }
}
