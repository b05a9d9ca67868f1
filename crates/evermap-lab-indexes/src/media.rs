//! The two kinds of media that indexes are compiled for here: plain mapped memory, and mapped
//! memory that is counted or delayed.
//!
//! Every further kind would be another copy of every index. So anonymous memory is a mapping of no
//! file whose flushes do nothing, and the counting and the delayed medium share one type, which
//! decides at each call.

use std::ops::Range;
use std::ptr::NonNull;

use evermap_pm::medium::{Counted, Emulated, Mapped, Note};
use evermap_pm::{Medium, PmU64, Result};

use evermap_lab_core::subject::Counts;

/// A medium of either kind.
pub enum Memory {
    /// Plain mapped memory.
    Plain(Mapped),
    /// Counted or delayed memory.
    Watched(Watched),
}

/// Mapped memory that does more at each access than the access.
pub enum Watched {
    /// It counts lines, flushes and fences.
    Counted(Counted<Mapped>),
    /// It is as slow as another kind of memory.
    Emulated(Emulated<Mapped>),
}

impl Watched {
    /// Returns what was counted, or `None` if nothing is.
    pub fn counts(&self) -> Option<Counts> {
        match self {
            Watched::Counted(medium) => Some(medium.counts().into()),
            Watched::Emulated(_) => None,
        }
    }
}

/// Evaluates an expression for whichever medium it is.
macro_rules! either {
    ($self:ident, $medium:ident => $call:expr) => {
        match $self {
            Watched::Counted($medium) => $call,
            Watched::Emulated($medium) => $call,
        }
    };
}

// SAFETY: every promise is kept by the medium inside, which never changes.
unsafe impl Medium for Watched {
    fn base(&self) -> NonNull<u8> {
        either!(self, medium => medium.base())
    }

    fn len(&self) -> u64 {
        either!(self, medium => medium.len())
    }

    fn file_len(&self) -> u64 {
        either!(self, medium => medium.file_len())
    }

    fn capacity(&self) -> u64 {
        either!(self, medium => medium.capacity())
    }

    fn is_read_only(&self) -> bool {
        either!(self, medium => medium.is_read_only())
    }

    fn grow(&self, len: u64) -> Result<()> {
        either!(self, medium => medium.grow(len))
    }

    fn begin(&self, word: u64) -> Result<()> {
        either!(self, medium => medium.begin(word))
    }

    fn begun_bytes(&self) -> u64 {
        either!(self, medium => medium.begun_bytes())
    }

    fn hole_bytes(&self) -> u64 {
        either!(self, medium => medium.hole_bytes())
    }

    fn read_ahead(&self, range: Range<u64>) {
        either!(self, medium => medium.read_ahead(range));
    }

    fn discard(&self, range: Range<u64>) {
        either!(self, medium => medium.discard(range));
    }

    fn claim(&self, range: Range<u64>) -> Result<()> {
        either!(self, medium => medium.claim(range))
    }

    fn prefault(&self, range: Range<u64>) {
        either!(self, medium => medium.prefault(range));
    }

    fn sync(&self) -> Result<()> {
        either!(self, medium => medium.sync())
    }

    fn name(&self) -> &'static str {
        either!(self, medium => medium.name())
    }

    fn flush_bytes(&self, addr: *const u8, len: usize) {
        either!(self, medium => medium.flush_bytes(addr, len));
    }

    fn fence(&self) {
        either!(self, medium => medium.fence());
    }

    fn note(&self, note: Note) {
        either!(self, medium => medium.note(note));
    }

    fn load(&self, cell: &PmU64) -> u64 {
        either!(self, medium => medium.load(cell))
    }

    fn load_relaxed(&self, cell: &PmU64) -> u64 {
        either!(self, medium => medium.load_relaxed(cell))
    }

    fn store(&self, cell: &PmU64, value: u64) {
        either!(self, medium => medium.store(cell, value));
    }

    fn store_transient(&self, cell: &PmU64, value: u64) {
        either!(self, medium => medium.store_transient(cell, value));
    }

    fn cas(&self, cell: &PmU64, old: u64, new: u64) -> Result<u64, u64> {
        either!(self, medium => medium.cas(cell, old, new))
    }

    fn cas_transient(&self, cell: &PmU64, old: u64, new: u64) -> Result<u64, u64> {
        either!(self, medium => medium.cas_transient(cell, old, new))
    }

    fn write_bytes(&self, cells: &[PmU64], bytes: &[u8]) {
        either!(self, medium => medium.write_bytes(cells, bytes));
    }

    fn read_bytes(&self, cells: &[PmU64], out: &mut [u8]) {
        either!(self, medium => medium.read_bytes(cells, out));
    }

    fn prefetch(&self, offset: u64) {
        either!(self, medium => medium.prefetch(offset));
    }
}
