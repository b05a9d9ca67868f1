//! Memory that clients use, limited and counted over all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// A limit on the memory that many clients use together.
///
/// All orderings are relaxed, because the counters do not guard other memory.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    reserved: AtomicUsize,
    released: AtomicU64,
}

impl Budget {
    /// Creates a budget of `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Budget { limit, reserved: AtomicUsize::new(0), released: AtomicU64::new(0) })
    }

    /// Returns the number of bytes that are reserved now.
    pub fn reserved(&self) -> usize {
        self.reserved.load(Relaxed)
    }

    /// Returns the number of bytes that were reserved and have been released, since the creation of
    /// the budget.
    pub fn released(&self) -> u64 {
        self.released.load(Relaxed)
    }
}

/// A part of a [`Budget`]. It is released when dropped.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Reservation {
    /// Creates a reservation of 0 bytes.
    pub fn new(budget: &Arc<Budget>) -> Self {
        Reservation { budget: budget.clone(), bytes: 0 }
    }

    /// Grows the reservation to `bytes`, unless that exceeds the budget. Never shrinks it.
    ///
    /// Returns `true` if the reservation has at least `bytes` now.
    #[must_use]
    pub fn try_grow_to(&mut self, bytes: usize) -> bool {
        let Some(more) = bytes.checked_sub(self.bytes).filter(|&more| more > 0) else {
            return true;
        };
        let Budget { limit, reserved, .. } = &*self.budget;
        let grown = reserved.fetch_update(Relaxed, Relaxed, |reserved| {
            reserved.checked_add(more).filter(|reserved| reserved <= limit)
        });
        if grown.is_ok() {
            self.bytes = bytes;
        }
        grown.is_ok()
    }

    /// Changes the reservation to `bytes`, even if that exceeds the budget.
    pub fn resize(&mut self, bytes: usize) {
        let Budget { reserved, released, .. } = &*self.budget;
        if bytes >= self.bytes {
            reserved.fetch_add(bytes - self.bytes, Relaxed);
        } else {
            reserved.fetch_sub(self.bytes - bytes, Relaxed);
            released.fetch_add((self.bytes - bytes) as u64, Relaxed);
        }
        self.bytes = bytes;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.resize(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_respect_the_limit_and_are_released() {
        let budget = Budget::new(100);
        let (mut one, mut two) = (Reservation::new(&budget), Reservation::new(&budget));
        assert!(one.try_grow_to(60) && two.try_grow_to(40));
        assert!(!two.try_grow_to(41) && !one.try_grow_to(usize::MAX));
        assert!(one.try_grow_to(10), "the reservation is larger already");
        assert_eq!((budget.reserved(), budget.released()), (100, 0));
        drop(one);
        assert_eq!((budget.reserved(), budget.released()), (40, 60));
        assert!(two.try_grow_to(100));
        two.resize(120);
        assert_eq!(budget.reserved(), 120);
        two.resize(5);
        assert_eq!((budget.reserved(), budget.released()), (5, 175));
    }
}
