//! How full the table is, in ordinary memory.
//!
//! After opening, only the groups that were recovered are known. They are a sample of all groups
//! that the hashes have chosen, so the share of their space that is taken is that of the table.

use std::sync::atomic::{AtomicU64, Ordering};

/// A part of the groups, in a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Part {
    /// Bytes of live records.
    live: AtomicU64,
    groups: AtomicU64,
}

/// Counters of live bytes, in parts so that threads seldom share one.
#[derive(Default)]
pub(super) struct Fill([Part; Fill::PARTS as usize]);

impl Fill {
    const PARTS: u64 = 16;

    fn part(&self, group: u64) -> &Part {
        &self.0[(group % Self::PARTS) as usize]
    }

    /// Adds a group with this number of bytes of live records.
    pub(super) fn add_group(&self, group: u64, live: u64) {
        self.part(group).live.fetch_add(live, Ordering::Relaxed);
        self.part(group).groups.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes out a group without live records.
    pub(super) fn remove_group(&self, group: u64) {
        self.part(group).groups.fetch_sub(1, Ordering::Relaxed);
    }

    /// Adds a record. Returns once for every `pace` bytes how often the caller should look at the
    /// ratio.
    #[inline(always)]
    pub(super) fn add(&self, group: u64, bytes: u64, pace: u64) -> u64 {
        let before = self.part(group).live.fetch_add(bytes, Ordering::Relaxed);
        (before.wrapping_add(bytes) / pace).wrapping_sub(before / pace)
    }

    /// Removes a record. Returns the same.
    #[inline(always)]
    pub(super) fn remove(&self, group: u64, bytes: u64, pace: u64) -> u64 {
        let before = self.part(group).live.fetch_sub(bytes, Ordering::Relaxed);
        (before / pace).wrapping_sub(before.wrapping_sub(bytes) / pace)
    }

    /// Moves records from one group to another.
    pub(super) fn transfer(&self, from: u64, to: u64, bytes: u64) {
        self.part(from).live.fetch_sub(bytes, Ordering::Relaxed);
        self.part(to).live.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the share of the known groups that is taken, if a share `usable` of all groups can
    /// be taken, and each has this capacity.
    pub(super) fn ratio(&self, capacity: u64, usable: f64) -> f64 {
        let sum = |of: fn(&Part) -> &AtomicU64| {
            // Wrapping: a record may be counted in one part before it is removed from another. If
            // what is removed was never counted, because it was damaged then, the sum is negative.
            let sum = self
                .0
                .iter()
                .fold(0u64, |sum, part| sum.wrapping_add(of(part).load(Ordering::Relaxed)));
            sum.cast_signed().max(0) as f64
        };
        let (live, groups) = (sum(|part| &part.live), sum(|part| &part.groups));
        if groups == 0.0 { 0.0 } else { live / (groups * capacity as f64 * usable) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Damage can make a group count as one that joins or leaves more often than it did.
    #[test]
    fn counts_below_zero_have_a_ratio() {
        let fill = Fill::default();
        fill.remove_group(3);
        assert_eq!(fill.ratio(1 << 40, 0.9), 0.0);
        fill.add_group(4, 10);
        fill.add_group(5, 10);
        fill.remove(5, 30, 1);
        assert_eq!(fill.ratio(100, 0.9), 0.0);
        fill.add(5, 100, 1);
        assert_eq!(fill.ratio(100, 0.9), 1.0);
    }
}
