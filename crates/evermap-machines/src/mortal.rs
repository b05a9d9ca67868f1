//! A mapped file that ends the machine at a chosen step.

use std::ops::Range;
use std::path::Path;
use std::ptr::NonNull;

use evermap_pm::medium::{Identity, Mapped, MappedOptions, Note};
use evermap_pm::{Medium, PmU64, Quad, Result};

use crate::moment::{self, step};

/// A mapped file. Each call that changes something is a step of a [moment](moment::Moment).
pub(crate) struct Mortal(Mapped);

impl Mortal {
    pub(crate) fn open(path: impl AsRef<Path>, options: &MappedOptions) -> Result<Self> {
        Ok(Mortal(Mapped::open(path, options)?))
    }

    pub(crate) fn identity(&self) -> Identity {
        self.0.identity()
    }

    /// Returns the level that was granted, and the file system.
    pub(crate) fn granted(&self) -> String {
        format!("{} on {}", self.0.flush_kind(), self.0.filesystem())
    }
}

// SAFETY: the file guarantees 1 to 3, and all calls about memory go to it.
unsafe impl Medium for Mortal {
    fn base(&self) -> NonNull<u8> {
        self.0.base()
    }

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn file_len(&self) -> u64 {
        self.0.file_len()
    }

    fn capacity(&self) -> u64 {
        self.0.capacity()
    }

    fn grow(&self, len: u64) -> Result<()> {
        moment::grows();
        step();
        self.0.grow(len)
    }

    fn begin(&self, word: u64) -> Result<()> {
        step();
        self.0.begin(word)
    }

    fn begun_bytes(&self) -> u64 {
        self.0.begun_bytes()
    }

    fn hole_bytes(&self) -> u64 {
        self.0.hole_bytes()
    }

    fn discard(&self, range: Range<u64>) {
        step();
        self.0.discard(range);
    }

    fn claim(&self, range: Range<u64>) -> Result<()> {
        step();
        self.0.claim(range)
    }

    fn prefault(&self, range: Range<u64>) {
        self.0.prefault(range);
    }

    fn read_ahead(&self, range: Range<u64>) {
        self.0.read_ahead(range);
    }

    fn sync(&self) -> Result<()> {
        step();
        self.0.sync()
    }

    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn flush_bytes(&self, addr: *const u8, len: usize) {
        step();
        self.0.flush_bytes(addr, len);
    }

    fn fence(&self) {
        step();
        self.0.fence();
    }

    fn note(&self, note: Note) {
        self.0.note(note);
    }

    fn load_four(&self, cells: &[PmU64; 4]) -> Quad {
        self.0.load_four(cells)
    }

    fn store(&self, cell: &PmU64, value: u64) {
        step();
        self.0.store(cell, value);
    }

    fn store_transient(&self, cell: &PmU64, value: u64) {
        step();
        self.0.store_transient(cell, value);
    }

    fn cas(&self, cell: &PmU64, old: u64, new: u64) -> Result<u64, u64> {
        step();
        self.0.cas(cell, old, new)
    }

    fn cas_transient(&self, cell: &PmU64, old: u64, new: u64) -> Result<u64, u64> {
        step();
        self.0.cas_transient(cell, old, new)
    }

    fn write_bytes(&self, cells: &[PmU64], bytes: &[u8]) {
        step();
        self.0.write_bytes(cells, bytes);
    }
}
