//! Making space where a mutation lacks some.

use std::time::{Duration, Instant};

use evermap_pm::Medium;

use std::sync::atomic::Ordering::Relaxed;

use crate::{Error, Evermap, Map, Result};

/// How long a mutation that lacks space waits for readers that hold up the reuse of some.
const READER_WAIT: Duration = Duration::from_millis(500);
/// The number of dead records that a mutation removes at a time, so that later ones find room as well: where a
/// limit is reached, and where space for blocks is short.
const FOR_ROOM: u64 = 64;
const FOR_SPACE: u64 = 4096;

impl<M: Medium> Evermap<M> {
    /// Tries again where space was short but some can be had: what dead records take, or saved keys, or waits for readers to
    /// end, or for the sweep, or lies scattered in blocks of other sizes.
    ///
    /// `attempt` must not hold a guard when it returns.
    pub(crate) fn with_space<R>(&self, mut attempt: impl FnMut() -> Result<R>) -> Result<R> {
        let is_short = |answer: &Result<R>| matches!(answer, Err(Error::Storage(error)) if error.is_no_space());
        let mut answer = attempt();
        while let Err(Error::Full { needed, .. }) = answer {
            let made = self.open_maps().iter().any(|map| map.make_room(needed));
            // Even if not: others may have made some before we looked.
            answer = attempt();
            if !made {
                break;
            }
        }
        let mut drained = true;
        if is_short(&answer) {
            // Keys that were saved for opening have no claim to space that records need.
            self.open_maps().iter().for_each(Map::forget_saved);
            self.remove_some_dead();
            if self.file.maintenance.wait_for_space() && self.is_walk_due() {
                self.walk_for_space(|| !self.is_walk_due());
            }
            drained = self.drain();
            answer = attempt();
        }
        // More of what has expired, until enough of one size is free; unless a reader keeps all of it from being reused.
        while is_short(&answer) && drained && self.remove_some_dead() {
            drained = self.drain();
            answer = attempt();
        }
        if is_short(&answer) && self.move_together(1, Duration::ZERO).is_ok_and(|moved| moved > 0) {
            self.drain();
            answer = attempt();
        }
        answer
    }

    /// Waits for readers that hold up the reuse of space, but not for long; returns whether they were gone in time.
    fn drain(&self) -> bool {
        let began = Instant::now();
        self.file.pool.epoch().drain_within(READER_WAIT);
        began.elapsed() < READER_WAIT
    }

    /// Removes some of what has expired in each map; returns whether there was anything.
    fn remove_some_dead(&self) -> bool {
        let removed = |map: &Map<M>| map.remove_expired(FOR_SPACE).unwrap_or(0);
        self.open_maps().iter().map(removed).sum::<u64>() > 0
    }

    /// Waits until a walk in the background has found `enough` dead records, or walks if nobody else does.
    fn walk_for_space(&self, enough: impl Fn() -> bool) {
        if self.file.maintenance.wait_for_walk(enough) {
            return;
        }
        // Not waiting: whoever holds this may himself wait for a reader of the calling thread.
        if let Some(sweeping) = self.file.maintenance.try_sweeping() {
            let _ = self.walk_maps(&sweeping);
        }
    }
}

impl<M: Medium> Map<M> {
    /// If this map is full: removes dead records, or waits until others have, or until it is known how much there is. Returns
    /// whether there is room for `bytes` now, as far as that can be told, where there was none before.
    #[cold]
    fn make_room(&self, bytes: u64) -> bool {
        let has_room = || self.ensure_room(bytes).is_ok();
        if has_room() {
            return false;
        }
        // A failure to remove leaves things as they are.
        let _ = self.remove_expired(FOR_ROOM);
        let (maintenance, expiries) = (&self.db.file.maintenance, &self.inner.expiries);
        let is_counted = has_room() || self.bytes().exact || maintenance.wait_for_space();
        if !has_room() && is_counted && expiries.is_walk_due() {
            self.db.walk_for_space(|| has_room() || !expiries.is_walk_due());
        }
        has_room()
    }

    /// Whether blocks of this many bytes may be added.
    pub(crate) fn ensure_room(&self, bytes: u64) -> Result<()> {
        let limit = self.inner.max_bytes.load(Relaxed);
        if limit != u64::MAX && self.inner.counters.most_bytes() + bytes > limit {
            return Err(Error::Full { limit, needed: bytes });
        }
        Ok(())
    }
}
