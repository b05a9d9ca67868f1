//! The locks of the updaters, and the counts of pairs.

use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use evermap_pm::sync::{Mutex, MutexGuard};

/// Locks that divide the buckets among them by the low bits of the hash.
///
/// There are never more locks than buckets, so all buckets that a resize splits or joins have the
/// same lock, before and after it, and the lock of a key never changes.
pub(super) struct Stripes {
    stripes: Box<[Stripe]>,
}

/// On lines of its own, so that updaters of different stripes do not disturb each other.
#[repr(align(128))]
#[derive(Default)]
struct Stripe {
    lock: Mutex<()>,
    /// The number of pairs. Only changed under the lock.
    pairs: AtomicU64,
}

/// A locked stripe.
pub(super) struct StripeGuard<'s> {
    stripe: &'s Stripe,
    _lock: MutexGuard<'s, ()>,
}

impl Stripes {
    /// Creates `count` locks, a power of two.
    pub(super) fn new(count: u64) -> Self {
        debug_assert!(count.is_power_of_two());
        Stripes { stripes: (0..count).map(|_| Stripe::default()).collect() }
    }

    pub(super) fn count(&self) -> u64 {
        self.stripes.len() as u64
    }

    /// Acquires the lock of all buckets with these low bits.
    #[inline]
    pub(super) fn lock(&self, hash: u64) -> StripeGuard<'_> {
        self.stripes[(hash & (self.count() - 1)) as usize].lock()
    }

    /// Acquires all locks, in their order, so that two threads cannot wait for each other.
    pub(super) fn lock_all(&self) -> Box<[StripeGuard<'_>]> {
        self.stripes.iter().map(Stripe::lock).collect()
    }

    /// Returns the number of pairs. Exact if there are no updates meanwhile.
    pub(super) fn pairs(&self) -> u64 {
        // Relaxed: a caller that knows of no concurrent update has synchronised with the updaters.
        self.stripes.iter().map(|stripe| stripe.pairs.load(Relaxed)).sum()
    }
}

impl Stripe {
    fn lock(&self) -> StripeGuard<'_> {
        // What a key's comparison or a caller's closure panics in has not changed anything yet, so
        // the chains are as they should be.
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        StripeGuard { stripe: self, _lock: lock }
    }
}

impl StripeGuard<'_> {
    /// Counts a pair that was added, or removed.
    #[inline]
    pub(super) fn count(&self, added: bool) {
        let pairs = self.pairs();
        // Relaxed, and no exchange: only the thread with the lock changes it.
        self.stripe.pairs.store(if added { pairs + 1 } else { pairs.wrapping_sub(1) }, Relaxed);
    }

    /// Returns the number of pairs of this stripe.
    #[inline]
    pub(super) fn pairs(&self) -> u64 {
        self.stripe.pairs.load(Relaxed)
    }
}
