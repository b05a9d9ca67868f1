//! Which keys a batch is about to change, and whose permit it is.
//!
//! One batch runs at a time. It reserves its keys, and from then on leaves alone whatever it has not looked at yet: each
//! mutation asks, while it holds the key's lock, whether the key is reserved, and if so lets go of it and waits for the
//! batch's permit to end. Once the batch has itself held a key's lock, nobody else changes that key: who locked it before
//! is done, durably, and who locks it later sees the reserve, because the lock handed it on.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, fence};

use evermap_index::key::BytesRef;
use evermap_pm::sync::{Mutex, MutexGuard};

/// A reservation covers all keys whose hashes agree in this many upper bits. A stranger among them waits in vain, but for no
/// longer than the owner would.
const BITS: u32 = 16;
const WORDS: usize = (1 << BITS) / 64;

/// Held by the batch that runs, and by mutations that came upon a reserve: nobody else has any then.
pub(crate) type BatchPermit<'s> = MutexGuard<'s, ()>;

/// The reservations of a store, and how many batches have changed it.
pub(crate) struct KeyReservations {
    permit: Mutex<()>,
    /// Whether there are any: all that mutations look at while no batch runs.
    any: AtomicBool,
    reserved: Box<[AtomicU64]>,
    /// Odd while a batch changes what others see.
    changes: AtomicU64,
}

impl KeyReservations {
    pub(crate) fn new() -> Self {
        KeyReservations {
            permit: Mutex::new(()),
            any: AtomicBool::new(false),
            reserved: (0..WORDS).map(|_| AtomicU64::new(0)).collect(),
            changes: AtomicU64::new(0),
        }
    }

    /// Waits until no batch runs, and keeps it so.
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

    /// Whether a batch reserves the key with this hash. Asked under the key's lock.
    #[inline]
    pub(crate) fn is_reserved(&self, hash: u64) -> bool {
        // Acquire: who finds no reserve any more comes after all that the batch did, the end of its intent included.
        self.any.load(Acquire) && {
            let (word, bit) = place(hash);
            self.reserved[word].load(Acquire) & bit != 0
        }
    }

    /// Others begin to see changes.
    pub(crate) fn begin_changing(&self) {
        self.changes.fetch_add(1, Relaxed);
        // Whoever sees one of the changes sees that they have begun.
        fence(Release);
    }

    /// Others see all changes now.
    pub(crate) fn end_changing(&self) {
        // Release: whoever sees this sees all of them.
        self.changes.fetch_add(1, Release);
    }

    /// How many batches have begun and ended to change things; nothing while one does.
    pub(crate) fn version(&self) -> Option<u64> {
        // Acquire: what the last batch did is seen from here on.
        Some(self.changes.load(Acquire)).filter(|changes| changes.is_multiple_of(2))
    }

    /// Whether no batch has changed anything since [`version`](KeyReservations::version) answered `changes`.
    pub(crate) fn unchanged_since(&self, changes: u64) -> bool {
        // What was read before is not read later.
        fence(Acquire);
        self.changes.load(Relaxed) == changes
    }
}

/// Claimed keys. Dropping it gives them up.
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

/// Which bit stands for a key.
#[inline]
fn place(hash: u64) -> (usize, u64) {
    let at = (hash >> (64 - BITS)) as usize;
    (at / 64, 1 << (at % 64))
}
