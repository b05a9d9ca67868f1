//! A limit on the bytes that a region takes.
//!
//! Two sums are kept below it. The units *in use*, with the header and the table, are what the heap
//! has given out. The units that *take memory* are these, the free ones whose memory was not
//! returned to the system, and those at the end of the file that were never used. Units are only
//! taken if the first sum stays below the limit; before they take memory, that of free ones is
//! returned until the second does too. So the memory of the file never exceeds the limit, and
//! neither free units nor growth ahead of need keep anything from being allocated.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

#[cfg(doc)]
use super::NEIGHBOURS;
use super::{Heap, SharedState, lock};
use crate::medium::Medium;
use crate::{Error, Result};

/// An extent takes at most one part in this many of the room that is left, unless a block needs
/// more, so that other block sizes find some too.
const ROOM_PART: u64 = 8;

/// Room is scarce if less than one part in this many of the limit is left.
const SCARCE_PART: u64 = 16;

/// This part of the limit, but at most [`MARGIN_MAX`] bytes, takes no memory: file systems count a
/// few pages more while others are returned to them.
const MARGIN_PART: u64 = 256;
const MARGIN_MAX: u64 = 64 << 10;

/// The file grows ahead of need by at most one part in this many of what is left.
const AHEAD_PART: u64 = 16;

/// How much of a limited region is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The limit in bytes, or `u64::MAX` if there is none.
    pub limit: u64,
    /// Bytes of the units in use, with the header and the table.
    pub used: u64,
    /// Bytes that take memory: `used`, and free units whose memory was not returned to the system.
    pub held: u64,
}

impl Room {
    /// Returns the number of bytes that can still be taken.
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

impl<M: Medium> Heap<M> {
    /// Sets the maximum number of bytes that the units in use may take, with the header and the
    /// table; `u64::MAX` for no limit. Beyond it, allocations fail with `NoSpace`.
    ///
    /// A limit below what is in use frees nothing: until enough is freed, all allocations fail that
    /// need new units.
    pub fn set_limit(&self, bytes: u64) {
        // Relaxed, here and where it is loaded: allocations that run beside this may still see the
        // old limit.
        self.limit.store(bytes, Relaxed);
    }

    /// Sets the length in bytes beyond which the region does not grow for movable blocks:
    /// allocations that find no neighbouring units below it fail with [`NEIGHBOURS`]. `u64::MAX`:
    /// it grows up to its capacity. Fixed blocks may exceed it where they find no free units.
    ///
    /// It should be well above the limit, so that few allocations fail.
    pub fn set_length_goal(&self, bytes: u64) {
        self.length_goal.store(bytes, Relaxed);
    }

    /// Lets the region grow by this number of bytes beyond what is used of it, if it could not
    /// before. Its capacity is the bound all the same.
    pub fn extend_length_goal(&self, bytes: u64) {
        let end = self.region.unit_offset(lock(&self.shared).frontier);
        self.length_goal.fetch_max(end.saturating_add(bytes), Relaxed);
    }

    /// Returns the first unit that the region has no space for at the length that is its
    /// [goal](Heap::set_length_goal).
    pub(super) fn goal_end(&self) -> u64 {
        let goal = self.length_goal.load(Relaxed).saturating_sub(self.region.unit_offset(0));
        (goal >> self.geometry.shift).min(self.extents.len)
    }

    /// Returns `true` if there is a limit.
    pub(super) fn is_limited(&self) -> bool {
        self.limit.load(Relaxed) != u64::MAX
    }

    /// Returns the limit, and how much of it is used. O(1).
    pub fn room(&self) -> Room {
        let shared = &*lock(&self.shared);
        Room {
            limit: self.limit.load(Relaxed),
            used: self.used_bytes(shared),
            held: self.held_bytes(shared),
        }
    }

    /// Returns the memory of free units to the system as far as the limit demands it, up to `most`
    /// bytes. Returns `true` if the limit demands more, and there may be more.
    pub fn return_excess(&self, most: u64) -> bool {
        let shared = &mut *lock(&self.shared);
        let limit = self.limit.load(Relaxed);
        let most_held = limit.saturating_sub(margin(limit).max(2 * self.geometry.unit()));
        let excess = |shared: &_| self.held_bytes(shared).saturating_sub(most_held);
        let before = excess(shared);
        if !self.discard_free(shared, before.min(most)) && excess(shared) > 0 {
            // The memory of what was never used can only be returned as that of free units. A
            // failure leaves things as they are.
            let _ = self.absorb(shared, self.region.units_in_file());
            let more = shared.next_free_without(|shared| &shared.discarded, 0).is_some();
            return excess(shared) > 0 && more;
        }
        before > most
    }

    /// Returns the bytes of the units in use, with the header and the table.
    pub(super) fn used_bytes(&self, shared: &SharedState) -> u64 {
        let used = shared.frontier.saturating_sub(shared.count_free());
        self.region.unit_offset(0) + (used << self.geometry.shift)
    }

    /// Returns the bytes that take memory.
    fn held_bytes(&self, shared: &SharedState) -> u64 {
        let returned = shared.discarded.total() << self.geometry.shift;
        self.region.medium().len().saturating_sub(returned)
    }

    /// Returns the part of a range of numbers of units that the limit allows.
    pub(super) fn within_limit(
        &self,
        shared: &SharedState,
        units: Range<u64>,
    ) -> Result<Range<u64>> {
        let limit = self.limit.load(Relaxed);
        if limit == u64::MAX {
            return Ok(units);
        }
        let left = limit.saturating_sub(self.used_bytes(shared)) >> self.geometry.shift;
        if left < units.start {
            return Err(past_limit((units.start - left) << self.geometry.shift));
        }
        Ok(units.start..units.end.min(left))
    }

    /// Returns the maximum number of units of the next extent of blocks, if there is a limit.
    pub(super) fn extent_units_max(&self, shared: &SharedState) -> Option<u64> {
        let limit = Some(self.limit.load(Relaxed)).filter(|&limit| limit != u64::MAX)?;
        let left = limit.saturating_sub(self.used_bytes(shared));
        Some((left / ROOM_PART) >> self.geometry.shift)
    }

    /// Returns `true` if single free blocks should be used before new units are.
    pub(super) fn is_room_scarce(&self, shared: &SharedState) -> bool {
        let limit = self.limit.load(Relaxed);
        limit != u64::MAX && limit.saturating_sub(self.used_bytes(shared)) < limit / SCARCE_PART
    }

    /// Returns the maximum number of bytes by which the region may grow ahead of need once it has
    /// grown to `end`.
    pub(super) fn growth_ahead_max(&self, shared: &SharedState, end: u64) -> u64 {
        match self.limit.load(Relaxed) {
            u64::MAX => u64::MAX,
            limit => {
                let grown = end.saturating_sub(self.region.medium().len());
                limit.saturating_sub(self.held_bytes(shared) + grown) / AHEAD_PART
            }
        }
    }

    /// Returns the memory of free units to the system until `bytes` more can take memory.
    ///
    /// # Errors
    ///
    /// `NoSpace` if there are too few free units.
    pub(super) fn make_room(&self, shared: &mut SharedState, bytes: u64) -> Result<()> {
        let limit = self.limit.load(Relaxed);
        if limit == u64::MAX || bytes == 0 {
            return Ok(());
        }
        let most = limit - margin(limit);
        let over = |shared: &_| (self.held_bytes(shared) + bytes).saturating_sub(most);
        self.discard_free(shared, over(shared));
        match over(shared) {
            0 => Ok(()),
            missing => Err(past_limit(missing)),
        }
    }

    /// Returns the memory of free units to the system, `bytes` at least. Returns `false` if there
    /// are too few.
    fn discard_free(&self, shared: &mut SharedState, bytes: u64) -> bool {
        let (mut units, mut from) = (bytes.div_ceil(self.geometry.unit()), 0);
        while units > 0 {
            let run = shared.next_free_without(|shared| &shared.discarded, from);
            let Some(run) = run else { return false };
            let run = run.start..run.end.min(run.start + units);
            units -= run.end - run.start;
            from = run.end;
            self.discard(shared, run);
        }
        true
    }
}

/// Returns the number of bytes of the limit that take no memory.
fn margin(limit: u64) -> u64 {
    (limit / MARGIN_PART).min(MARGIN_MAX)
}

/// What is exhausted if an allocation fails because of the [limit](Heap::set_limit).
pub const MEMORY_LIMIT: &str = "the memory limit is reached";

/// Returns the error of an allocation that lacks this number of bytes.
fn past_limit(bytes: u64) -> Error {
    Error::no_space(MEMORY_LIMIT, bytes)
}
