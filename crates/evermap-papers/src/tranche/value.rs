//! Values as the callers of a map see them.
//!
//! A record in a tranche can be changed where it is, one word at a time, so its value is copied
//! while no change interferes: at most a fifth of a tranche, and no memory is allocated if it is
//! short. The block of a long record is written before it is reachable and never changed; it is
//! given up when the record is replaced or removed, and used again only when no guard is left from
//! before. So its bytes can be lent under a guard, if nothing but this process writes them, which
//! for a file is a promise of the program: [`assume_exclusive_memory`].
//!
//! [`assume_exclusive_memory`]: super::TrancheMap::assume_exclusive_memory

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

use evermap_pm::{Error, Guard, Medium, PmU64, Result};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The most bytes that are copied without allocating memory.
const SHORT: usize = 64;

/// What a lookup has found.
pub(super) enum Found {
    /// A copy of the value.
    Copied(Copied),
    /// A long record that was not read yet.
    Block(Block),
}

/// Key and value of a long record, where they are.
#[derive(Clone, Copy)]
pub(super) struct Block {
    /// The offset of the key.
    pub(super) offset: u64,
    /// The length of the key.
    pub(super) key: usize,
    /// The length of the value.
    pub(super) value: usize,
    pub(super) check: u64,
}

/// A copy of bytes.
pub(super) enum Copied {
    /// Bytes `start..end` of an array.
    Short { bytes: [u8; SHORT], start: u8, end: u8 },
    /// All but the first bytes of a vector.
    Long { bytes: Vec<u8>, start: usize },
}

impl Copied {
    /// Copies `len` bytes from `start` on out of the words of a record, which has that many.
    #[inline(always)]
    pub(super) fn read<M: Medium>(m: &M, cells: &[PmU64], start: usize, len: usize) -> Self {
        let (cells, start) = (&cells[start / 8..], start % 8);
        if start + len <= SHORT {
            let mut bytes = [0; SHORT];
            m.read_bytes(cells, &mut bytes[..start + len]);
            return Copied::Short { bytes, start: start as u8, end: (start + len) as u8 };
        }
        let mut bytes = vec![0; start + len];
        m.read_bytes(cells, &mut bytes);
        Copied::Long { bytes, start }
    }

    /// Copies bytes.
    pub(super) fn new(bytes: &[u8]) -> Self {
        Copied::Long { bytes: bytes.to_vec(), start: 0 }
    }

    /// Returns the bytes.
    pub(super) fn into_vec(self) -> Vec<u8> {
        match self {
            Copied::Long { bytes, start: 0 } => bytes,
            copied => copied.to_vec(),
        }
    }
}

impl Deref for Copied {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        match self {
            Copied::Short { bytes, start, end } => &bytes[usize::from(*start)..usize::from(*end)],
            Copied::Long { bytes, start } => &bytes[*start..],
        }
    }
}

enum Bytes {
    Copied(Copied),
    Lent(NonNull<[u8]>),
}

/// A value of a map: what [`get_ref`](super::TrancheMap::get_ref) returns.
///
/// It is the value that the key had when it was looked up, whatever happens to the key meanwhile. A
/// borrowed one holds a guard, so that memory that is given up meanwhile is not used again.
pub struct ValueRef<'m> {
    bytes: Bytes,
    /// Held while bytes are lent.
    _guard: Option<Guard<'m>>,
}

impl ValueRef<'_> {
    /// Returns `true` if the bytes were not copied.
    pub fn is_borrowed(&self) -> bool {
        matches!(self.bytes, Bytes::Lent(_))
    }
}

impl<'m> ValueRef<'m> {
    pub(super) fn copied(bytes: Copied) -> Self {
        ValueRef { bytes: Bytes::Copied(bytes), _guard: None }
    }

    /// Lends the value of a long record, verified.
    ///
    /// # Safety
    /// The block was reachable while `guard` was held, and nothing but this process writes it.
    pub(super) unsafe fn lent<M: Medium>(m: &'m M, block: Block, guard: Guard<'m>) -> Result<Self> {
        let Block { offset, key, value, check } = block;
        let what = "a record ends outside the region";
        let cells: &[PmU64] = m
            .slice(offset, (key + value).div_ceil(8) as u64)
            .ok_or_else(|| Error::damaged(offset, what))?;
        // SAFETY: the cells have these bytes, and the medium lives as long as the result, whose
        // guard keeps the block from being used again. Blocks are written before they are
        // reachable, and after that by nobody, as the caller promises for other processes.
        let bytes = unsafe { std::slice::from_raw_parts(cells.as_ptr().cast(), key + value) };
        if xxh3_64_with_seed(bytes, key as u64 | (value as u64) << 32) != check {
            return Err(Error::damaged(offset, "the checksum of an indirect record differs"));
        }
        let bytes = Bytes::Lent(NonNull::from(&bytes[key..]));
        Ok(ValueRef { bytes, _guard: Some(guard) })
    }
}

impl Deref for ValueRef<'_> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Copied(bytes) => bytes,
            // SAFETY: they are valid and do not change while the guard is held: see `lent`.
            Bytes::Lent(bytes) => unsafe { bytes.as_ref() },
        }
    }
}

impl fmt::Debug for ValueRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
