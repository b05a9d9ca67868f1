//! What clients have done, checked as it happens.
//!
//! Each key has one writer, which counts it up by compare and exchange, and any number of readers.
//! So all versions of a key have one order, and a history is linearizable if every read has a
//! version between the highest one that was acknowledged or read before it began, and the highest
//! one that was requested before it ended.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

#[derive(Default)]
pub(crate) struct Key {
    /// The highest version that a writer has requested.
    requested: AtomicU64,
    /// The highest version that was acknowledged, or returned by a read.
    known: AtomicU64,
}

/// Of all clients.
#[derive(Default)]
pub(crate) struct History {
    pub(crate) keys: [Key; 4],
    pub(crate) writes: AtomicU64,
    pub(crate) reads: AtomicU64,
    /// Additions to a counter: those that were requested, and those that were acknowledged.
    pub(crate) added: AtomicU64,
    pub(crate) sums: AtomicU64,
    /// Odd while no majority is alive.
    pub(crate) outages: AtomicU64,
}

impl Key {
    /// A writer is about to request a version.
    pub(crate) fn request(&self, version: u64) {
        self.requested.fetch_max(version, SeqCst);
    }

    /// A version was acknowledged to its writer.
    pub(crate) fn acknowledge(&self, version: u64) {
        self.known.fetch_max(version, SeqCst);
    }

    /// A read begins: returns the lowest version that it may return.
    pub(crate) fn lowest(&self) -> u64 {
        self.known.load(SeqCst)
    }

    /// A read that may return versions from `lowest` on has returned one.
    pub(crate) fn read(&self, lowest: u64, version: u64) {
        let highest = self.requested.load(SeqCst);
        assert!(version >= lowest, "STALE: read {version}, but {lowest} was known before");
        assert!(version <= highest, "read {version}, but only {highest} was requested");
        self.known.fetch_max(version, SeqCst);
    }
}

impl History {
    /// An operation that began in the outage `before`, if that is odd, has succeeded.
    pub(crate) fn succeed(&self, before: u64) {
        let now = self.outages.load(SeqCst);
        assert!(
            before.is_multiple_of(2) || now != before,
            "an operation succeeded without a majority"
        );
    }
}
