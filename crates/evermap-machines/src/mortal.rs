//! A mapped file that ends the machine at a chosen step.

use std::path::Path;

use evermap_pm::medium::{Identity, Mapped, MappedOptions, Note};
use evermap_pm::{Medium, PmU64, Quad, Result, forward_memory};

use crate::moment::{self, step};

/// A mapped file. Each call that changes something is a step of a [moment](moment::Moment).
pub(crate) struct Mortal {
    inner: Mapped,
}

impl Mortal {
    pub(crate) fn open(path: impl AsRef<Path>, options: &MappedOptions) -> Result<Self> {
        Ok(Mortal { inner: Mapped::open(path, options)? })
    }

    pub(crate) fn identity(&self) -> Identity {
        self.inner.identity()
    }

    /// Returns the level that was granted, and the file system.
    pub(crate) fn granted(&self) -> String {
        format!("{} on {}", self.inner.flush_kind(), self.inner.filesystem())
    }

    /// What changes the memory or the file is a step.
    fn changes(&self, grows: bool) {
        if grows {
            moment::grows();
        }
        step();
    }
}

// SAFETY: the file guarantees 1 to 3, and all calls about memory go to it.
unsafe impl Medium for Mortal {
    forward_memory!(before Self::changes);

    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn flush_bytes(&self, addr: *const u8, len: usize) {
        step();
        self.inner.flush_bytes(addr, len);
    }

    fn fence(&self) {
        step();
        self.inner.fence();
    }

    fn note(&self, note: Note) {
        self.inner.note(note);
    }

    fn load_four(&self, cells: &[PmU64; 4]) -> Quad {
        self.inner.load_four(cells)
    }

    fn store(&self, cell: &PmU64, value: u64) {
        step();
        self.inner.store(cell, value);
    }

    fn store_transient(&self, cell: &PmU64, value: u64) {
        step();
        self.inner.store_transient(cell, value);
    }

    fn cas(&self, cell: &PmU64, old: u64, new: u64) -> Result<u64, u64> {
        step();
        self.inner.cas(cell, old, new)
    }

    fn cas_transient(&self, cell: &PmU64, old: u64, new: u64) -> Result<u64, u64> {
        step();
        self.inner.cas_transient(cell, old, new)
    }

    fn write_bytes(&self, cells: &[PmU64], bytes: &[u8]) {
        step();
        self.inner.write_bytes(cells, bytes);
    }
}
