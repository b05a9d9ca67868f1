//! Blocks of key bytes, for keys that do not fit into a slot.
//!
//! ```text
//! byte 0  skip    bytes of the key before those in the block: the node's prefix implies them
//! byte 4  length  number of bytes in the block
//! byte 8  the bytes
//! ```
//!
//! A block never changes. One slot of the tree names it at a time, and it is freed a grace period
//! after the last slot that named it was changed.

use std::alloc::{Layout, alloc, dealloc};
use std::marker::PhantomData;
use std::ptr::NonNull;

use evermap_pm::{Error, Result};

/// The header of a block. The bytes of the key follow.
#[repr(C)]
pub(super) struct Header {
    skip: u32,
    length: u32,
}

// A pointer to a block has a clear lowest bit, which distinguishes it from an inline tail.
const _: () = assert!(align_of::<Header>() >= 2);

/// A block that is not freed during `'g`.
#[derive(Clone, Copy)]
pub(super) struct Block<'g> {
    header: NonNull<Header>,
    life: PhantomData<&'g Header>,
}

// SAFETY: it is a shared reference to immutable memory.
unsafe impl Send for Block<'_> {}

impl<'g> Block<'g> {
    /// # Safety
    /// 1. `header` came from [`OwnedBlock::as_ptr`].
    /// 2. The block is not freed during `'g`.
    /// 3. The creation of the block happens before this call.
    pub(super) unsafe fn from_ptr(header: NonNull<Header>) -> Self {
        Block { header, life: PhantomData }
    }

    pub(super) fn as_ptr(self) -> *mut Header {
        self.header.as_ptr()
    }

    fn header(self) -> &'g Header {
        // SAFETY: initialised by `OwnedBlock::new`, not freed during `'g`, and never written again
        // (promised to `from_ptr`).
        unsafe { self.header.as_ref() }
    }

    /// Returns the number of bytes of the key before those in the block.
    #[inline]
    pub(super) fn skip(self) -> usize {
        self.header().skip as usize
    }

    /// Returns the bytes of the key from [`skip`](Self::skip) on.
    #[inline]
    pub(super) fn bytes(self) -> &'g [u8] {
        // SAFETY: `OwnedBlock::new` allocated and initialised `length` bytes after the header. The
        // pointer has the provenance of the whole allocation. Valid and unchanged as in `header`.
        unsafe {
            let first = self.header.add(1).cast::<u8>();
            std::slice::from_raw_parts(first.as_ptr(), self.header().length as usize)
        }
    }

    /// Returns the bytes of memory that the block takes.
    pub(super) fn size(self) -> usize {
        size_of::<Header>() + self.bytes().len()
    }
}

/// A block that is not published. Freed when dropped.
pub(super) struct OwnedBlock(NonNull<Header>);

// SAFETY: it owns memory that no other thread knows.
unsafe impl Send for OwnedBlock {}

impl OwnedBlock {
    /// Creates a block with the bytes of a key from `skip` on.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn new(skip: usize, bytes: &[u8]) -> Result<Self> {
        let layout = layout(bytes.len());
        let fit = |number: usize| u32::try_from(number).expect("keys are short");
        let header = Header { skip: fit(skip), length: fit(bytes.len()) };
        // SAFETY: the size is not zero.
        let block = NonNull::new(unsafe { alloc(layout) }.cast::<Header>());
        let block = block.ok_or_else(|| no_memory(layout.size()))?;
        // SAFETY: just allocated, large enough for the header and the bytes, and aligned for the
        // header.
        unsafe {
            block.write(header);
            block
                .add(1)
                .cast::<u8>()
                .copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
        }
        Ok(OwnedBlock(block))
    }

    pub(super) fn get(&self) -> Block<'_> {
        // SAFETY: 1. and 3. created by `new`. 2. freed only by drop, which the borrow excludes.
        unsafe { Block::from_ptr(self.0) }
    }

    /// Passes the ownership to the slot that names the block now.
    pub(super) fn publish(self) {
        // `reclaim` knows only the address.
        self.0.as_ptr().expose_provenance();
        std::mem::forget(self);
    }

    /// Takes back the ownership of a [published](Self::publish) block.
    ///
    /// # Safety
    /// 1. A block at `address` was published and has not been reclaimed since.
    /// 2. It is not used by others now or later.
    pub(super) unsafe fn reclaim(address: usize) -> Self {
        let header = NonNull::new(std::ptr::with_exposed_provenance_mut(address));
        OwnedBlock(header.expect("no block is at address 0"))
    }
}

impl Drop for OwnedBlock {
    fn drop(&mut self) {
        let layout = layout(self.get().bytes().len());
        // SAFETY: allocated by `new` with the same layout, and owned by this value.
        unsafe { dealloc(self.0.as_ptr().cast(), layout) };
    }
}

fn layout(bytes: usize) -> Layout {
    let size = size_of::<Header>() + bytes;
    Layout::from_size_align(size, align_of::<Header>()).expect("keys are short")
}

/// Creates the error for an allocation of `bytes` bytes that the system refused.
#[cold]
pub(super) fn no_memory(bytes: usize) -> Error {
    Error::no_space("memory of the process", bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_keeps_its_bytes() {
        for length in [0, 1, 7, 8, 9, 65_536] {
            let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let owned = OwnedBlock::new(3, &bytes).unwrap();
            assert_eq!((owned.get().skip(), owned.get().bytes()), (3, &bytes[..]));
            assert_eq!(owned.get().size(), 8 + length);
        }
    }
}
