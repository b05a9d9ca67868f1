//! Blocks of key bytes, for keys that do not fit into their slot.
//!
//! ```text
//! byte 0  skip    bytes of the key that the block does not hold, because the node's prefix implies them
//! byte 4  length  bytes that it does hold
//! byte 8  those bytes
//! ```
//!
//! A block never changes. It is named by one slot of the tree at a time, and freed a grace period after the last slot
//! that named it has changed.

use std::alloc::{Layout, alloc, dealloc};
use std::marker::PhantomData;
use std::ptr::NonNull;

use evermap_pm::{Error, Result};

/// The beginning of a block. Its bytes follow.
#[repr(C)]
pub(super) struct Header {
    skip: u32,
    length: u32,
}

// A pointer to a block has a clear lowest bit, which tells it from what a slot holds otherwise.
const _: () = assert!(align_of::<Header>() >= 2);

/// A block that is there for as long as `'g`.
#[derive(Clone, Copy)]
pub(super) struct Block<'g> {
    header: NonNull<Header>,
    life: PhantomData<&'g Header>,
}

// SAFETY: it is a shared reference to memory that never changes.
unsafe impl Send for Block<'_> {}

impl<'g> Block<'g> {
    /// # Safety
    /// 1. `header` came from [`OwnedBlock::as_ptr`].
    /// 2. The block is not freed during `'g`.
    /// 3. Its making happened before this.
    pub(super) unsafe fn from_ptr(header: NonNull<Header>) -> Self {
        Block { header, life: PhantomData }
    }

    pub(super) fn as_ptr(self) -> *mut Header {
        self.header.as_ptr()
    }

    fn header(self) -> &'g Header {
        // SAFETY: initialised by `OwnedBlock::new`, alive during `'g` and never written again (promises of
        // `from_ptr`).
        unsafe { self.header.as_ref() }
    }

    /// Bytes of the key before those that the block holds.
    #[inline]
    pub(super) fn skip(self) -> usize {
        self.header().skip as usize
    }

    /// The bytes of the key from [`skip`](Self::skip) on.
    #[inline]
    pub(super) fn bytes(self) -> &'g [u8] {
        // SAFETY: `OwnedBlock::new` allocated and initialised so many bytes behind the header; the pointer is the
        // allocation's own, so it may reach them. Alive and unchanged as in `header`.
        unsafe {
            let first = self.header.add(1).cast::<u8>();
            std::slice::from_raw_parts(first.as_ptr(), self.header().length as usize)
        }
    }

    /// Bytes of memory that it takes.
    pub(super) fn size(self) -> usize {
        size_of::<Header>() + self.bytes().len()
    }
}

/// A block that no slot names yet. Freed when dropped.
pub(super) struct OwnedBlock(NonNull<Header>);

// SAFETY: it is memory that nobody else knows.
unsafe impl Send for OwnedBlock {}

impl OwnedBlock {
    /// A block with the bytes of a key from `skip` on.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn new(skip: usize, bytes: &[u8]) -> Result<Self> {
        let layout = layout(bytes.len());
        let fit = |number: usize| u32::try_from(number).expect("keys are short");
        let header = Header { skip: fit(skip), length: fit(bytes.len()) };
        // SAFETY: the layout is never of size zero.
        let block = NonNull::new(unsafe { alloc(layout) }.cast::<Header>());
        let block = block.ok_or_else(|| no_memory(layout.size()))?;
        // SAFETY: just allocated, with room for the header and the bytes, aligned for the header.
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
        // SAFETY: 1. and 3. made by `new`. 2. freed by drop only, which the borrow excludes.
        unsafe { Block::from_ptr(self.0) }
    }

    /// Leaves it to the slot that names it now.
    pub(super) fn give_away(self) {
        // Who takes it back knows its address only.
        self.0.as_ptr().expose_provenance();
        std::mem::forget(self);
    }

    /// Takes back what was [given away](Self::give_away).
    ///
    /// # Safety
    /// 1. A block at `address` was given away and not taken back since.
    /// 2. Nobody uses it any more, nor will.
    pub(super) unsafe fn take_back(address: usize) -> Self {
        let header = NonNull::new(std::ptr::with_exposed_provenance_mut(address));
        OwnedBlock(header.expect("no block is at address 0"))
    }
}

impl Drop for OwnedBlock {
    fn drop(&mut self) {
        let layout = layout(self.get().bytes().len());
        // SAFETY: allocated by `new` with the same layout, and nobody else knows it.
        unsafe { dealloc(self.0.as_ptr().cast(), layout) };
    }
}

fn layout(bytes: usize) -> Layout {
    let size = size_of::<Header>() + bytes;
    Layout::from_size_align(size, align_of::<Header>()).expect("keys are short")
}

/// The system has no `bytes` bytes more.
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
