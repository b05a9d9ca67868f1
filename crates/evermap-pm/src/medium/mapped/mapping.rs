//! A range of addresses that this process owns.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap,
};

use crate::{Error, Result};

/// Alignment of mappings, so that the system can use huge pages.
pub(super) const HUGE_PAGE: u64 = 2 << 20;

/// A reserved address range, which neither moves nor changes its size until it is dropped.
pub(super) struct Mapping {
    base: NonNull<u8>,
    bytes: u64,
}

// SAFETY: the addresses are owned, and the memory there is only accessed as atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves `bytes` addresses starting at a multiple of `align`, which must be a power of two.
    /// They hold private, zeroed memory, which is taken from the system when first touched, as far
    /// as `access` permits.
    pub(super) fn reserve(bytes: u64, align: u64, access: ProtFlags) -> Result<Self, Errno> {
        let (bytes, align) = (bytes as usize, align as usize);
        let span = bytes.checked_add(align).ok_or(Errno::NOMEM)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh private mapping at an address of the system's choice touches nothing that
        // exists.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), span, access, flags) }?;
        let before = start.align_offset(align);
        let base = start.wrapping_byte_add(before);
        // The system aligns only to its pages, so the excess at both ends is unmapped. If that is
        // refused, only addresses are wasted. SAFETY: both parts belong to the fresh mapping,
        // outside the part that is kept.
        unsafe {
            if before > 0 {
                let _ = munmap(start, before);
            }
            if before < align {
                let _ = munmap(base.wrapping_byte_add(bytes), align - before);
            }
        }
        let base = NonNull::new(base.cast()).expect("mmap returned null");
        let mapping = Mapping { base, bytes: bytes as u64 };
        Ok(mapping)
    }

    /// Reserves addresses beside those of a medium: whole pages, aligned for huge ones.
    ///
    /// # Errors
    ///
    /// `NoSpace`.
    pub(super) fn addresses(bytes: u64, access: ProtFlags) -> Result<Self> {
        Self::reserve(bytes.next_multiple_of(4096), HUGE_PAGE, access)
            .map_err(|_| Error::no_space("address space", bytes))
    }

    /// Maps a file, from its first byte, over the reserved addresses. `flags` say how it is shared.
    pub(super) fn attach(&mut self, file: impl AsFd, flags: MapFlags) -> Result<(), Errno> {
        let (base, bytes) = (self.base.as_ptr().cast(), self.bytes as usize);
        // Read-only first: hugetlbfs makes a file as long as any writable mapping of it. SAFETY:
        // MAP_FIXED replaces our own addresses, and `&mut self` proves that there are no references
        // into them. Mapping beyond the end of the file is allowed; touching it is not, and does
        // not happen before the file has grown.
        unsafe {
            mmap(base, bytes, ProtFlags::READ, flags | MapFlags::FIXED, file, 0)?;
            mprotect(base, bytes, MprotectFlags::READ | MprotectFlags::WRITE)
        }
    }

    /// Gives advice on the whole range. If the system refuses, that only costs speed, or space in a
    /// core dump.
    pub(super) fn advise(&self, advice: Advice) {
        // SAFETY: our own mapping; the kinds of advice used here change no byte.
        let _ = unsafe { madvise(self.base.as_ptr().cast(), self.bytes as usize, advice) };
    }

    #[inline(always)]
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    #[inline(always)]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the address of `offset`, for system calls.
    pub(super) fn address(&self, offset: u64) -> *mut std::ffi::c_void {
        self.base.as_ptr().wrapping_add(offset as usize).cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own addresses, and no reference into them can outlive `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes as usize) };
    }
}
