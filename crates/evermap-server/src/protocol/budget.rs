//! Memory that clients hold, counted over all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// A number of bytes that many clients share.
///
/// All orderings are relaxed: the figures guard no other memory.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    held: AtomicUsize,
    returned: AtomicU64,
}

impl Budget {
    /// Of at most `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Budget { limit, held: AtomicUsize::new(0), returned: AtomicU64::new(0) })
    }

    /// Bytes held now.
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Bytes that were held and given back, since the beginning.
    pub fn returned(&self) -> u64 {
        self.returned.load(Relaxed)
    }
}

/// What one holder has of a [`Budget`]. Given back when dropped.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Share {
    /// An empty share.
    pub fn of(budget: &Arc<Budget>) -> Self {
        Share { budget: budget.clone(), bytes: 0 }
    }

    /// Grows to `bytes`, unless that exceeds the budget. Returns whether the share has that many
    /// now.
    #[must_use]
    pub fn grow_to(&mut self, bytes: usize) -> bool {
        let Some(more) = bytes.checked_sub(self.bytes).filter(|&more| more > 0) else {
            return true;
        };
        let Budget { limit, held, .. } = &*self.budget;
        let grown = held.fetch_update(Relaxed, Relaxed, |held| {
            held.checked_add(more).filter(|held| held <= limit)
        });
        if grown.is_ok() {
            self.bytes = bytes;
        }
        grown.is_ok()
    }

    /// Changes to `bytes`, also beyond the limit.
    pub fn count(&mut self, bytes: usize) {
        let Budget { held, returned, .. } = &*self.budget;
        if bytes >= self.bytes {
            held.fetch_add(bytes - self.bytes, Relaxed);
        } else {
            held.fetch_sub(self.bytes - bytes, Relaxed);
            returned.fetch_add((self.bytes - bytes) as u64, Relaxed);
        }
        self.bytes = bytes;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.count(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_keep_to_the_limit_and_come_back() {
        let budget = Budget::new(100);
        let (mut one, mut two) = (Share::of(&budget), Share::of(&budget));
        assert!(one.grow_to(60) && two.grow_to(40));
        assert!(!two.grow_to(41) && !one.grow_to(usize::MAX));
        assert!(one.grow_to(10), "it has as many already");
        assert_eq!((budget.held(), budget.returned()), (100, 0));
        drop(one);
        assert_eq!((budget.held(), budget.returned()), (40, 60));
        assert!(two.grow_to(100));
        two.count(120);
        assert_eq!(budget.held(), 120);
        two.count(5);
        assert_eq!((budget.held(), budget.returned()), (5, 175));
    }
}
