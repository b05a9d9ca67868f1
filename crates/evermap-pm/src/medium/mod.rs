//! Where persistent words are stored, and the only way to write them.
//!
//! | medium | memory | flush / fence |
//! |---|---|---|
//! | [`Dram`] | anonymous memory, lost when dropped | nothing / compiler ordering |
//! | [`Mapped`] | a mapped file | chosen when it is opened: see [`FlushKind`] |
//! | `Sim` (feature `sim`) | a buffer with a log of every store, flush and fence | recorded |
//! | [`Counted`], [`Emulated`] | another medium | counted, or delayed |
//!
//! Code that is correct on `Sim` is correct on all of them: the crash states of a mapped file are a
//! subset of those that the simulator produces.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::{PmU64, Pod, Quad, Result};

/// In a [`Medium`] around another one, `inner`: leaves to that what concerns the memory and the
/// file. How words are accessed, and whether access is exclusive, is for the outer one to say.
///
/// With `before f`, `f(self, grows)` is called before each call that changes the memory or the
/// file; `grows` is `true` if the call makes it longer.
#[doc(hidden)]
#[macro_export]
macro_rules! forward_memory {
    ($(before $before:path)?) => {
        fn base(&self) -> std::ptr::NonNull<u8> {
            self.inner.base()
        }

        fn len(&self) -> u64 {
            self.inner.len()
        }

        fn file_len(&self) -> u64 {
            self.inner.file_len()
        }

        fn capacity(&self) -> u64 {
            self.inner.capacity()
        }

        fn is_read_only(&self) -> bool {
            self.inner.is_read_only()
        }

        fn grow(&self, len: u64) -> $crate::Result<()> {
            $($before(self, true);)?
            self.inner.grow(len)
        }

        fn begin(&self, word: u64) -> $crate::Result<()> {
            $($before(self, false);)?
            self.inner.begin(word)
        }

        fn begun_bytes(&self) -> u64 {
            self.inner.begun_bytes()
        }

        fn hole_bytes(&self) -> u64 {
            self.inner.hole_bytes()
        }

        fn discard(&self, range: std::ops::Range<u64>) {
            $($before(self, false);)?
            self.inner.discard(range);
        }

        fn claim(&self, range: std::ops::Range<u64>) -> $crate::Result<()> {
            $($before(self, false);)?
            self.inner.claim(range)
        }

        fn prefault(&self, range: std::ops::Range<u64>) {
            self.inner.prefault(range);
        }

        fn read_ahead(&self, range: std::ops::Range<u64>) {
            self.inner.read_ahead(range);
        }

        fn sync(&self) -> $crate::Result<()> {
            $($before(self, false);)?
            self.inner.sync()
        }
    };
}

mod copy;
mod counted;
mod dram;
mod emulated;
mod flush;
mod identity;
mod mapped;

pub use counted::{Counted, Counter, Counts};
pub use dram::{Dram, Pages, prefer_huge_pages};
pub use emulated::{Delays, Emulated, Speed};
pub use flush::{FlushInstruction, fence, flush_lines, line_flush};
pub use identity::Identity;
pub use mapped::{
    FlushKind, LockedFile, Mapped, MappedOptions, Marks, PageChange, PageReport, describe_address,
    explain_bus_errors, memory_file,
};
#[cfg(any(test, feature = "sim"))]
pub(crate) use mapped::{MarkedStore, Tracker};
pub(crate) use mapped::{filesystem::FileSystem, size_limit};

/// Bytes in a cache line: the unit of a flush, within which stores persist in program order.
pub const LINE: u64 = 64;

/// Bytes in a block: the unit in which some persistent memory reads and writes internally.
pub const BLOCK: u64 = 256;

/// One more than the largest offset. Offsets have 48 bits, so a word has 16 bits to spare.
pub const OFFSET_LIMIT: u64 = 1 << 48;

/// Offset in a region of the process id of its holder, for a process that may not read the rest
/// yet.
pub const HOLDER_PID_OFFSET: u64 = 8192 + 5 * 64;

/// Information for the simulator, which every other medium ignores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// An operation with this number begins on the calling thread.
    Begin(u64),
    /// The operation with this number was acknowledged.
    End(u64),
    /// A named part of an operation begins: a split, a merge, a recovery step.
    Scope(&'static str),
    /// Explains why a mutation of the next store, flush or fence makes no difference, and so why a
    /// mutant that survives there is harmless.
    Harmless(&'static str),
}

/// Memory made of [`PmU64`] words, with the order in which they become durable.
///
/// These rules make a structure crash-safe on every medium:
/// * Stores to one 64-byte line become durable in program order. Across lines, only a
///   [`flush`](Medium::flush) followed by a [`fence`](Medium::fence) orders them.
/// * A word has 8 bytes and never tears.
/// * Any stored line may become durable at any moment, flushed or not.
///
/// # Safety
///
/// An implementation guarantees, for its whole lifetime:
/// 1. `base()` never changes and is aligned to 4096 bytes;
/// 2. bytes `0..len()` from it are mapped, readable and writable, and only accessed as [`PmU64`]
///    words or through this trait;
/// 3. `len()` never shrinks and never exceeds `capacity()`, which is at most [`OFFSET_LIMIT`];
/// 4. if `is_exclusive()` returns `true`, only stores through this value change a byte.
#[allow(clippy::len_without_is_empty)] // an empty medium has no use
pub unsafe trait Medium: Send + Sync + Sized + 'static {
    /// Returns the address of offset 0.
    fn base(&self) -> NonNull<u8>;

    /// Returns the number of usable bytes. A multiple of 4096 that never shrinks.
    fn len(&self) -> u64;

    /// Returns the number of bytes of the file, for messages: with those at its end that are not
    /// usable because they do not fill a page.
    fn file_len(&self) -> u64 {
        self.len()
    }

    /// Returns the maximum size that [`grow`](Medium::grow) can reach, in bytes.
    fn capacity(&self) -> u64;

    /// Returns whether the bytes belong to this value alone, so that nothing outside of it can
    /// change them: not another process, a disk, or another medium over the same memory. `false` if
    /// that is not known.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// Returns whether stores stay in this value and end with it: what is underneath does not
    /// change, and the medium cannot grow.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Makes at least `len` bytes usable. New bytes are zero.
    ///
    /// # Errors
    ///
    /// `NoSpace` if the file system or the capacity is exhausted. Nothing has changed then.
    #[track_caller]
    fn grow(&self, len: u64) -> Result<()>;

    /// Makes `word` the first word, durably. If possible, an empty medium gets its first bytes and
    /// this word atomically, so that no crash leaves the bytes without the word.
    ///
    /// # Errors
    ///
    /// `NoSpace`, `Io`.
    fn begin(&self, word: u64) -> Result<()> {
        self.grow(8)?;
        let first: &PmU64 = self.at(0).expect("just grown");
        self.store(first, word);
        self.persist(first);
        Ok(())
    }

    /// Returns the maximum number of zero bytes that an interrupted [`begin`](Medium::begin) can
    /// leave.
    fn begun_bytes(&self) -> u64 {
        4096
    }

    /// Returns the number of bytes below [`len`](Medium::len) that have no space allocated, so that
    /// storing to them, and on memory file systems even loading them, needs some.
    fn hole_bytes(&self) -> u64 {
        0
    }

    /// Returns the pages wholly inside `range` to the system. Afterwards they are zero or
    /// unchanged.
    #[track_caller]
    fn discard(&self, range: Range<u64>);

    /// Makes discarded pages usable again without the risk of a full disk. Must be called before
    /// storing to a discarded range.
    ///
    /// # Errors
    ///
    /// `NoSpace`; the range stays discarded then.
    fn claim(&self, _range: Range<u64>) -> Result<()> {
        Ok(())
    }

    /// Gives a hint that these bytes will soon be written. Returns without waiting.
    fn prefault(&self, _range: Range<u64>) {}

    /// Reads these bytes from the disk, if the medium has one, so that loading them does not wait.
    /// Returns when they are in memory, or immediately if the medium has no disk.
    fn read_ahead(&self, _range: Range<u64>) {}

    /// Makes everything stored so far durable, as far as this medium can.
    ///
    /// # Errors
    ///
    /// `Io` if the system reports that data could not be written. The data must then be presumed
    /// lost.
    #[track_caller]
    fn sync(&self) -> Result<()>;

    /// Returns a short name for reports: `dram`, `process`, `forced`, `sim`, ...
    fn name(&self) -> &'static str;

    /// Makes all stores to the lines of these bytes durable at the next [`fence`](Medium::fence) of
    /// this thread.
    #[track_caller]
    fn flush_bytes(&self, addr: *const u8, len: usize);

    /// Waits until every line that this thread has flushed is durable.
    #[track_caller]
    fn fence(&self);

    /// Passes information to the simulator. Does nothing on other media.
    #[inline(always)]
    #[track_caller]
    fn note(&self, _note: Note) {}

    /// Returns `true` if the code should make the deliberate mistake `name`, which the structure's
    /// tests must detect. Always `false`, except on a simulator that was configured to make it, so
    /// the compiler removes the code behind it for real media.
    #[inline(always)]
    fn mutant(&self, _name: &'static str) -> bool {
        false
    }

    /// Loads a word. What was stored before the store that this reads is visible afterwards
    /// (acquire).
    #[inline(always)]
    #[track_caller]
    fn load(&self, cell: &PmU64) -> u64 {
        cell.atomic().load(Acquire)
    }

    /// Loads a word without ordering.
    #[inline(always)]
    #[track_caller]
    fn load_relaxed(&self, cell: &PmU64) -> u64 {
        cell.atomic().load(Relaxed)
    }

    /// Loads four neighbouring words (acquire). Each is whole, but they may be from different
    /// moments.
    ///
    /// They are loaded one by one unless a medium overrides this.
    #[inline(always)]
    #[track_caller]
    fn load_four(&self, cells: &[PmU64; 4]) -> Quad {
        // In order, and all with acquire, because callers may rely on any of them.
        Quad::new([0, 1, 2, 3].map(|i| self.load(&cells[i])))
    }

    /// Stores a word. Stores of one thread become visible in program order (release).
    #[inline(always)]
    #[track_caller]
    fn store(&self, cell: &PmU64, value: u64) {
        cell.atomic().store(value, Release);
    }

    /// Stores a word that need not persist: a lock, a version, or a hint that recovery rebuilds.
    #[inline(always)]
    #[track_caller]
    fn store_transient(&self, cell: &PmU64, value: u64) {
        cell.atomic().store(value, Release);
    }

    /// Compares and swaps a word (acquire and release).
    ///
    /// # Errors
    ///
    /// The value found, if it was not `old`.
    #[inline(always)]
    #[track_caller]
    fn cas(&self, cell: &PmU64, old: u64, new: u64) -> Result<u64, u64> {
        cell.atomic().compare_exchange(old, new, AcqRel, Acquire)
    }

    /// Does a [`cas`](Medium::cas) on a word that need not persist.
    ///
    /// # Errors
    ///
    /// The value found, if it was not `old`.
    #[inline(always)]
    #[track_caller]
    fn cas_transient(&self, cell: &PmU64, old: u64, new: u64) -> Result<u64, u64> {
        cell.atomic().compare_exchange(old, new, AcqRel, Acquire)
    }

    /// Fills newly allocated, unpublished words from bytes, little-endian, with the last word
    /// padded with zeros. They may become durable in any order until flushed and fenced.
    ///
    /// # Panics
    ///
    /// If `bytes` is longer than `cells`.
    #[inline]
    #[track_caller]
    fn write_bytes(&self, cells: &[PmU64], bytes: &[u8]) {
        copy::fill(cells, bytes);
    }

    /// Appends bytes of words that other threads may be changing, as
    /// [`read_bytes`](Medium::read_bytes) copies them.
    ///
    /// # Panics
    ///
    /// If `bytes` is more than there are in `cells`.
    #[inline]
    #[track_caller]
    fn append_bytes(&self, cells: &[PmU64], bytes: usize, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + bytes, 0);
        self.read_bytes(cells, &mut out[start..]);
    }

    /// Copies bytes out of words that other threads may be changing. The caller validates the
    /// result.
    ///
    /// # Panics
    ///
    /// If `out` is longer than `cells`.
    #[inline]
    #[track_caller]
    fn read_bytes(&self, cells: &[PmU64], out: &mut [u8]) {
        let mut words = out.chunks_exact_mut(8);
        let mut at = 0;
        for word in &mut words {
            word.copy_from_slice(&self.load_relaxed(&cells[at]).to_le_bytes());
            at += 1;
        }
        let rest = words.into_remainder();
        if !rest.is_empty() {
            let word = self.load_relaxed(&cells[at]).to_le_bytes();
            rest.copy_from_slice(&word[..rest.len()]);
        }
    }

    /// Makes all stores to the lines of `what` durable at the next fence of this thread.
    #[inline(always)]
    #[track_caller]
    fn flush<T: ?Sized>(&self, what: &T) {
        self.flush_bytes(std::ptr::from_ref(what).cast(), size_of_val(what));
    }

    /// Does a [`flush`](Medium::flush) and a [`fence`](Medium::fence): one ordered persist.
    #[inline(always)]
    #[track_caller]
    fn persist<T: ?Sized>(&self, what: &T) {
        self.flush(what);
        self.fence();
    }

    /// Returns the structure at `offset`, or `None` if it would not fit or not be aligned.
    #[inline(always)]
    fn at<T: Pod>(&self, offset: u64) -> Option<&T> {
        if !self.contains(offset, size_of::<T>() as u64, align_of::<T>() as u64) {
            return None;
        }
        // SAFETY: inside `0..len()` and aligned (just checked), so mapped for as long as `self` is
        // borrowed (guarantees 1 to 3 of this trait); `Pod` accepts every bit pattern and every
        // concurrent change.
        Some(unsafe { self.base().add(offset as usize).cast().as_ref() })
    }

    /// Returns the structure at `offset`, without checking that it is inside.
    ///
    /// # Safety
    ///
    /// [`at`](Medium::at), or [`slice`](Medium::slice) for a part of its result, has returned such
    /// a structure at this offset of this medium before.
    #[inline(always)]
    unsafe fn at_unchecked<T: Pod>(&self, offset: u64) -> &T {
        debug_assert!(self.at::<T>(offset).is_some());
        // SAFETY: the caller guarantees that `at` found it inside and aligned, and a medium never
        // shrinks.
        unsafe { self.base().add(offset as usize).cast().as_ref() }
    }

    /// Returns `count` words or structures from `offset`, or `None` if they would not fit or not be
    /// aligned.
    #[inline(always)]
    fn slice<T: Pod>(&self, offset: u64, count: u64) -> Option<&[T]> {
        let bytes = count.checked_mul(size_of::<T>() as u64)?;
        if !self.contains(offset, bytes, align_of::<T>() as u64) {
            return None;
        }
        // SAFETY: as in `at`, for `count` consecutive structures.
        Some(unsafe {
            std::slice::from_raw_parts(
                self.base().add(offset as usize).cast().as_ptr(),
                count as usize,
            )
        })
    }

    /// Returns `true` if `bytes` bytes at `offset` are usable and aligned to `align`, a power of
    /// two that divides both `bytes` and [`len`](Medium::len).
    #[inline(always)]
    fn contains(&self, offset: u64, bytes: u64, align: u64) -> bool {
        // One comparison for both, because every lookup comes here. Rotating moves the bits that
        // alignment forbids to the top, where they make the offset too large; the rest counts in
        // units of `align`.
        let units = |bytes: u64| bytes >> align.trailing_zeros();
        let starts = (units(self.len()) + 1).saturating_sub(units(bytes));
        offset.rotate_right(align.trailing_zeros()) < starts
    }

    /// Returns the offset of something inside this medium.
    #[inline(always)]
    fn offset_of<T: ?Sized>(&self, what: &T) -> u64 {
        let offset = std::ptr::from_ref(what).addr().wrapping_sub(self.base().addr().get()) as u64;
        debug_assert!(offset < self.len(), "not inside this medium");
        offset
    }

    /// Prefetches the line at `offset`. Never faults, whatever the offset.
    #[inline(always)]
    fn prefetch(&self, offset: u64) {
        prefetch(self.base().as_ptr().wrapping_add(offset as usize));
    }

    /// Prefetches `bytes` bytes from `offset` on.
    #[inline(always)]
    fn prefetch_bytes(&self, offset: u64, bytes: u64) {
        (0..bytes).step_by(LINE as usize).for_each(|at| self.prefetch(offset.wrapping_add(at)));
        // Unaligned bytes may extend into one more line.
        self.prefetch(offset.wrapping_add(bytes.saturating_sub(1)));
    }
}

/// Prefetches the line at `addr`. Never faults.
#[inline(always)]
pub fn prefetch(addr: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address has no effect other than on caches.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(addr.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = addr;
}
