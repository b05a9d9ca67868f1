//! The locks that lookups share, if they take locks: see [`Locking::Striped`](super::Locking).
//!
//! In the published program, 128 buckets have one reader-writer lock, which is in persistent memory
//! beside them, and is void after a restart. Here it is a word of the first of these buckets. What
//! it contains is of one opener: after a crash it can be anything, and counts as free.

use evermap_pm::{Medium, PmU64};

/// The binary logarithm of the number of buckets that share a lock, unless a chunk has fewer.
pub(super) const STRIPE_LOG: u32 = 7;

/// The lock of a stripe.
///
/// ```text
/// bit  0..16  generation  low bits of the generation; with any other the lock is free
/// bit 16..31  readers     how many threads share the lock
/// bit 31      locked      by a writer, which may still be waiting until there are no readers
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stripe(pub(super) u64);

impl Stripe {
    const READER: u64 = 1 << 16;
    const READERS: u64 = 0x7fff << 16;
    const LOCKED: u64 = 1 << 31;

    /// Returns the word of a free lock.
    pub(super) fn free(generation: u64) -> Self {
        Stripe(generation & 0xffff)
    }

    /// Returns the same word, or that of a free lock if another opener has stored it.
    fn of(self, generation: u64) -> Self {
        let free = Stripe::free(generation);
        if self.0 as u16 == free.0 as u16 { self } else { free }
    }

    /// Returns the word with one more reader, unless a writer has locked it or there are too many.
    fn shared(self) -> Option<Self> {
        let may = self.0 & Self::LOCKED == 0 && self.0 & Self::READERS != Self::READERS;
        may.then(|| Stripe(self.0 + Self::READER))
    }

    /// Returns the word locked by a writer, unless another one has locked it.
    fn locked(self) -> Option<Self> {
        (self.0 & Self::LOCKED == 0).then_some(Stripe(self.0 | Self::LOCKED))
    }

    fn has_readers(self) -> bool {
        self.0 & Self::READERS != 0
    }
}

/// Shares the lock. Returns `false` if a writer has it.
pub(super) fn share<M: Medium>(m: &M, cell: &PmU64, generation: u64) -> bool {
    change(m, cell, |word| word.of(generation).shared())
}

/// Ends what [`share`] has begun.
pub(super) fn leave<M: Medium>(m: &M, cell: &PmU64) {
    change(m, cell, |word| Some(Stripe(word.0 - Stripe::READER)));
}

/// Takes the lock for a writer. Returns `false` if another writer has it. There may still be
/// readers, but no further ones can enter.
pub(super) fn try_lock<M: Medium>(m: &M, cell: &PmU64, generation: u64) -> bool {
    change(m, cell, |word| word.of(generation).locked())
}

/// Returns `true` if a lock of this opener is shared.
pub(super) fn has_readers<M: Medium>(m: &M, cell: &PmU64) -> bool {
    Stripe(m.load(cell)).has_readers()
}

/// Releases what [`try_lock`] has taken.
pub(super) fn unlock<M: Medium>(m: &M, cell: &PmU64) {
    change(m, cell, |word| Some(Stripe(word.0 & !Stripe::LOCKED)));
}

/// Replaces the word by what `changed` makes of it. Returns `false` if that is nothing.
fn change<M: Medium>(m: &M, cell: &PmU64, changed: impl Fn(Stripe) -> Option<Stripe>) -> bool {
    let mut word = Stripe(m.load(cell));
    // Each failure means that another thread succeeded.
    while let Some(next) = changed(word) {
        match m.cas_transient(cell, word.0, next.0) {
            Ok(_) => return true,
            Err(now) => word = Stripe(now),
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stripe_has_readers_or_a_writer() {
        let free = Stripe::free(0xffff_1234);
        assert_eq!(Stripe(u64::MAX).of(0x1234), free, "another opener's lock is free");
        let mut shared = free;
        for _ in 0..0x7fff {
            shared = shared.of(0x1234).shared().unwrap();
        }
        assert_eq!(shared.shared(), None, "one more reader would set the lock bit");
        assert!(shared.has_readers() && !free.has_readers());
        let locked = free.locked().unwrap();
        assert_eq!((locked.shared(), locked.locked()), (None, None));
        assert!(shared.locked().unwrap().has_readers());
    }
}
