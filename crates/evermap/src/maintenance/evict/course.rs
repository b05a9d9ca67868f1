//! What hands know, without the store: how much they have passed over, and where they are.

use std::sync::atomic::AtomicU64;

use evermap_pm::sync::{Mutex, Rank};

/// Records that were never read are evicted while they take more than one part in this many.
const PROBATION_PART: u64 = 4;
/// Their part is that of the bytes which the hand has passed over lately: the older half of a
/// round counts less and less.
const ROUND_PART: u64 = 2;

/// What a hand knows of the records that it has passed over.
#[derive(Default)]
pub(super) struct Course {
    /// What it has passed over lately.
    pub(super) lately: Share,
    /// The number of live records that it has passed over.
    pub(super) records: u64,
    /// The CAS id that was next when it began its round.
    pub(super) round: u64,
}

impl Course {
    /// Adds what was passed over of a map whose records take `all` bytes.
    pub(super) fn add(&mut self, passed: Share, all: u64) {
        self.records = self.records.wrapping_add(passed.records);
        self.lately.add(passed, all / ROUND_PART);
    }
}

/// Records that were passed over, and the part of those that were never read, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) unread: u64,
    pub(super) all: u64,
    /// The number of all.
    pub(super) records: u64,
}

impl Share {
    /// Adds what was passed over, and forgets half of the past when that exceeds `most` bytes.
    fn add(&mut self, passed: Share, most: u64) {
        self.unread += passed.unread;
        self.all += passed.all;
        self.records += passed.records;
        if self.all > most {
            self.unread /= 2;
            self.all /= 2;
            self.records /= 2;
        }
    }

    /// Returns `true` if there are many of them.
    pub(super) fn is_large(self) -> bool {
        self.unread * PROBATION_PART > self.all
    }
}

/// What a map needs in order to [evict its own records](super::own).
pub(crate) struct OwnEviction {
    pub(super) hand: Mutex<OwnHand>,
    /// The number of records of the map that were evicted since opening, by whichever hand.
    pub(crate) evictions: AtomicU64,
}

impl OwnEviction {
    pub(crate) fn new() -> Self {
        OwnEviction {
            hand: Mutex::ranked(Rank::OwnHand, OwnHand::default()),
            evictions: AtomicU64::new(0),
        }
    }
}

/// Where the hand of a map is.
#[derive(Default)]
pub(super) struct OwnHand {
    /// Where the unit of the index begins that it is in: see
    /// [`scan`](evermap_index::Index::scan).
    pub(super) unit: u64,
    /// The number of pairs of the unit that it has passed over.
    pub(super) at: usize,
    /// How often it has passed the end of the index.
    pub(super) rounds: u32,
    pub(super) course: Course,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_what_was_never_read_is_that_of_lately() {
        let mut share = Share::default();
        assert!(!share.is_large(), "nothing is known");
        (0..10).for_each(|_| share.add(Share { unread: 10, all: 100, records: 1 }, 1_000));
        assert!(!share.is_large());
        (0..10).for_each(|_| share.add(Share { unread: 60, all: 100, records: 1 }, 1_000));
        assert!(share.is_large() && share.all <= 1_000);
        (0..20).for_each(|_| share.add(Share { unread: 10, all: 100, records: 1 }, 1_000));
        assert!(!share.is_large());
    }
}
