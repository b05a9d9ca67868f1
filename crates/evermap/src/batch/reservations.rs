//! The keys that a batch is about to change, and the permit to run a batch.
//!
//! One batch runs at a time. It reserves its keys before it reads any of them. Each mutation asks,
//! while it holds the key's lock, whether the key is reserved; if so, it releases the lock and
//! waits for the batch's permit. Once the batch has itself held a key's lock, no other thread
//! changes that key: an earlier holder of the lock has finished, durably, and a later one sees the
//! reservation, because the lock orders it after.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, fence};

use evermap_index::key::BytesRef;
use evermap_pm::sync::{Mutex, MutexGuard, Rank};

/// A reservation covers all keys whose hashes agree in this many upper bits. False sharing: an
/// unrelated key may wait for the batch, but no longer than a reserved one would.
const BITS: u32 = 16;
const WORDS: usize = (1 << BITS) / 64;

/// Held by the batch that runs, and by a mutation that met a reservation: while it is held, no
/// other thread makes any.
pub(crate) type BatchPermit<'s> = MutexGuard<'s, ()>;

/// The reservations of a file, and the number of batches that have changed it.
pub(crate) struct KeyReservations {
    permit: Mutex<()>,
    /// Whether there are any: the only word that mutations read while no batch runs.
    any: AtomicBool,
    reserved: Box<[AtomicU64]>,
    /// Odd while a batch changes what other threads see.
    changes: AtomicU64,
}

impl KeyReservations {
    pub(crate) fn new() -> Self {
        KeyReservations {
            permit: Mutex::ranked(Rank::Batch, ()),
            any: AtomicBool::new(false),
            reserved: (0..WORDS).map(|_| AtomicU64::new(0)).collect(),
            changes: AtomicU64::new(0),
        }
    }

    /// Waits until no batch runs, and keeps others from running until the permit is dropped.
    pub(crate) fn permit(&self) -> BatchPermit<'_> {
        // A panic under it has poisoned the store.
        self.permit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves `keys` until the returned value is dropped. The caller has the permit.
    pub(crate) fn reserve<'s>(
        &'s self,
        _turn: &BatchPermit<'_>,
        keys: &[BytesRef<'_>],
    ) -> Reservation<'s> {
        for key in keys {
            let (word, bit) = place(key.hash);
            // Relaxed: published by the store below, or by the key's lock.
            self.reserved[word].fetch_or(bit, Relaxed);
        }
        self.any.store(true, Release);
        Reservation {
            reservations: self,
            words: keys.iter().map(|key| place(key.hash).0).collect(),
        }
    }

    /// Returns `true` if a batch has reserved the key with this hash. The caller holds the key's
    /// lock.
    #[inline]
    pub(crate) fn is_reserved(&self, hash: u64) -> bool {
        // Acquire: a thread that finds no reservation any more comes after everything that the
        // batch did, including the end of its intent.
        self.any.load(Acquire) && {
            let (word, bit) = place(hash);
            self.reserved[word].load(Acquire) & bit != 0
        }
    }

    /// Notes that other threads begin to see changes.
    pub(crate) fn begin_changing(&self) {
        self.changes.fetch_add(1, Relaxed);
        // A thread that sees one of the changes sees that they have begun.
        fence(Release);
    }

    /// Notes that other threads see all changes now.
    pub(crate) fn end_changing(&self) {
        // Release: a thread that sees this sees all of them.
        self.changes.fetch_add(1, Release);
    }

    /// Returns the number of times that a batch has begun or ended its changes, or `None` while one
    /// makes changes.
    pub(crate) fn version(&self) -> Option<u64> {
        // Acquire: the changes of the last batch are seen from here on.
        Some(self.changes.load(Acquire)).filter(|changes| changes.is_multiple_of(2))
    }

    /// Returns `true` if no batch has changed anything since [`version`](KeyReservations::version)
    /// returned `changes`.
    pub(crate) fn unchanged_since(&self, changes: u64) -> bool {
        // Reads before this are not moved behind it.
        fence(Acquire);
        self.changes.load(Relaxed) == changes
    }
}

/// Reserved keys. Dropping it releases them.
pub(crate) struct Reservation<'s> {
    reservations: &'s KeyReservations,
    words: Vec<usize>,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        // Release, here and below: see `is_reserved`.
        self.reservations.any.store(false, Release);
        for &word in &self.words {
            self.reservations.reserved[word].store(0, Release);
        }
    }
}

/// Returns the word and the bit of a key.
#[inline]
fn place(hash: u64) -> (usize, u64) {
    let at = (hash >> (64 - BITS)) as usize;
    (at / 64, 1 << (at % 64))
}
