//! Zeroed memory for tables and entries.
//!
//! Large pieces are mapped from the system, so that their pages are zeroed when they are first
//! touched, one by one, and never all at once. They are given back in steps too: unmapping a large
//! piece at once would delay the thread that does it by milliseconds.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::{NonNull, null_mut};

use evermap_pm::medium::prefer_huge_pages;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Pieces of at least this many bytes are mapped from the system.
const MAP_FROM: usize = 128 << 10;
/// Pieces of at least this many bytes use huge pages if the system grants them, and are aligned to
/// one.
const HUGE_PAGE: usize = 2 << 20;
/// The smallest page of any system.
const PAGE: usize = 4 << 10;
/// The number of bytes that [`Memory::shrink`] gives back at once, and to a multiple of which it
/// shrinks a piece. A huge page is given back at once, because the kernel would divide it.
const STEP: usize = HUGE_PAGE;
/// The smallest alignment of a piece: a cache line.
const LINE: usize = 64;

/// A piece of memory that was zeroed when it was created.
pub(crate) struct Memory {
    base: NonNull<u8>,
    /// The size, and the alignment, which is at least that of a cache line.
    layout: Layout,
    mapped: bool,
}

// SAFETY: it owns its memory, and has no method that accesses the bytes.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Creates a piece of at least this size and alignment. Returns `None` if the system has no
    /// more memory, or if the size is zero or larger than the address space.
    pub(crate) fn zeroed(bytes: usize, align: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes, align.max(LINE)).ok()?;
        if bytes == 0 {
            return None;
        }
        // The interpreter has no mappings at chosen addresses.
        if bytes >= MAP_FROM && layout.align() <= PAGE && !cfg!(miri) {
            let layout = Layout::from_size_align(bytes.next_multiple_of(PAGE), PAGE).ok()?;
            return Some(Memory { base: map(layout.size())?, layout, mapped: true });
        }
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Memory { base, layout, mapped: false })
    }

    /// Returns the address of the first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the number of bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.layout.size()
    }

    /// Gives some of the last bytes back to the system. Returns `false` if it is better to drop the
    /// whole piece. The caller does not use these bytes any more.
    pub(crate) fn shrink(&mut self) -> bool {
        let bytes = self.bytes();
        if !self.mapped || bytes <= STEP {
            return false;
        }
        let rest = (bytes - 1) / STEP * STEP;
        // SAFETY: these bytes are part of the mapping, which is ours, and nobody uses them.
        unsafe { unmap(self.base.add(rest), bytes - rest) };
        self.layout = Layout::from_size_align(rest, PAGE).expect("smaller than before");
        true
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.mapped {
            // SAFETY: the mapping is ours, and nobody uses it any more.
            unsafe { unmap(self.base, self.bytes()) };
        } else {
            // SAFETY: allocated with this layout, and nobody uses it any more.
            unsafe { dealloc(self.base.as_ptr(), self.layout) };
        }
    }
}

/// Maps zeroed memory. A piece that can use huge pages is aligned to one.
fn map(bytes: usize) -> Option<NonNull<u8>> {
    let spare = if bytes >= HUGE_PAGE { HUGE_PAGE } else { 0 };
    let all = bytes.checked_add(spare)?;
    let (access, flags) =
        (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a new mapping at an address that the system chooses.
    let start = unsafe { mmap_anonymous(null_mut(), all, access, flags) }.ok()?;
    let start = NonNull::new(start.cast::<u8>())?;
    if spare == 0 {
        return Some(start);
    }
    let before = start.as_ptr().align_offset(HUGE_PAGE).min(spare);
    // SAFETY: both parts are of the new mapping, in which `before + bytes <= all`; what is kept is
    // between them.
    let base = unsafe {
        unmap(start, before);
        let base = start.add(before);
        unmap(base.add(bytes), spare - before);
        base
    };
    prefer_huge_pages(NonNull::slice_from_raw_parts(base, bytes));
    Some(base)
}

/// Unmaps a range, if it is not empty.
///
/// # Safety
/// 1. The range is a whole number of pages in a mapping that the caller owns.
/// 2. It is not used any more.
unsafe fn unmap(base: NonNull<u8>, bytes: usize) {
    if bytes > 0 {
        // SAFETY: 1. and 2. are promised by the caller.
        let done = unsafe { munmap(base.as_ptr().cast(), bytes) };
        debug_assert!(done.is_ok(), "a range of a mapping can be unmapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_zero(memory: &Memory) -> bool {
        (0..memory.bytes()).step_by(977).all(|at| {
            // SAFETY: within the piece, which is initialised and not written by anybody else.
            unsafe { memory.base().add(at).read() == 0 }
        })
    }

    #[test]
    fn pieces_are_zeroed_and_aligned() {
        for bytes in [1, 64, 4000, MAP_FROM - 1, MAP_FROM, HUGE_PAGE + 64, 3 * HUGE_PAGE + 1] {
            for align in [1, 8, 64, 256, PAGE, 4 * PAGE] {
                let memory = Memory::zeroed(bytes, align).unwrap();
                let address = memory.base().addr().get();
                assert!(memory.bytes() >= bytes && address.is_multiple_of(align.max(LINE)));
                assert!(!memory.mapped || bytes < HUGE_PAGE || address.is_multiple_of(HUGE_PAGE));
                assert!(is_zero(&memory));
            }
        }
        assert!(Memory::zeroed(0, 8).is_none());
        assert!(Memory::zeroed(isize::MAX as usize - 64, 8).is_none());
    }

    #[test]
    fn pieces_are_given_back_in_steps() {
        let mut memory = Memory::zeroed(5 * STEP + 64, 8).unwrap();
        let mut steps = 0;
        while memory.shrink() {
            steps += 1;
            assert!(is_zero(&memory));
        }
        assert_eq!(
            (steps, memory.bytes()),
            if memory.mapped { (5, STEP) } else { (0, 5 * STEP + 64) }
        );
        assert!(!Memory::zeroed(64, 8).unwrap().shrink());
    }
}
