//! Making space where a mutation lacks some.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use evermap_pm::Medium;

use crate::error::Shortage;
use crate::maintenance::evict::shortage_of;
use crate::{Error, Evermap, Map, Result};

/// The number of times that a mutation makes room in a full map and finds that others have taken
/// it.
const ROOM_ATTEMPTS: u32 = 64;
/// How long a mutation that lacks space waits for readers that keep some from being reused.
const READER_WAIT: Duration = Duration::from_millis(500);
/// The number of dead records that a mutation removes at a time, so that later ones find room as
/// well: where a limit is reached, and where space for blocks is short.
const FOR_LIMIT: u64 = 64;
const FOR_SPACE: u64 = 4096;

impl<M: Medium> Evermap<M> {
    /// Calls `attempt`, and again while it fails for lack of space that can be made: by removing
    /// dead records or saved keys, by evicting others in a cache, by waiting for readers or for the
    /// sweep, or by moving records together. Room within its own limit is made in a map that
    /// `is_changed`.
    ///
    /// `attempt` must not hold a guard when it returns.
    #[inline(always)]
    pub(crate) fn with_space<R>(
        &self,
        is_changed: &dyn Fn(&Map<M>) -> bool,
        mut attempt: impl FnMut() -> Result<R>,
    ) -> Result<R> {
        match attempt() {
            answer @ Err(Error::Full { .. } | Error::Storage(_)) => {
                self.make_space_and_retry(is_changed, answer, attempt)
            }
            answer => answer,
        }
    }

    #[cold]
    #[inline(never)]
    fn make_space_and_retry<R>(
        &self,
        is_changed: &dyn Fn(&Map<M>) -> bool,
        mut answer: Result<R>,
        mut attempt: impl FnMut() -> Result<R>,
    ) -> Result<R> {
        let is_short = |answer: &Result<R>| match answer {
            Err(Error::Storage(error)) => error.is_no_space(),
            _ => false,
        };
        for _ in 0..ROOM_ATTEMPTS {
            let Err(Error::Full { needed, .. }) = answer else { break };
            let mut made = false;
            for map in self.open_maps().iter().filter(|map| is_changed(map)) {
                made |= map.make_space(needed);
            }
            // Even if not: other threads may have made some before.
            answer = attempt();
            if !made {
                break;
            }
        }
        if is_short(&answer) && self.evicts() {
            // What has expired first; and until the sweep has ended, nothing that is removed
            // becomes free.
            self.remove_some_dead();
            if !self.file.pool.is_swept() {
                self.file.maintenance.wait_for_space();
            }
            self.drain();
            answer = attempt();
            answer = self.evict_and_retry(answer, &mut attempt);
        }
        let mut drained = true;
        if is_short(&answer) {
            // Records come before keys that were saved for the next opening.
            self.open_maps().iter().for_each(Map::forget_saved);
            self.remove_some_dead();
            if self.file.maintenance.wait_for_space() && self.is_walk_due() {
                self.walk_for_space(|| !self.is_walk_due());
            }
            drained = self.drain();
            answer = attempt();
        }
        // Remove more of what has expired, until a block of the size is free, unless a reader keeps
        // all of it from being reused.
        while is_short(&answer) && drained && self.remove_some_dead() {
            drained = self.drain();
            answer = attempt();
        }
        if is_short(&answer) && self.move_together(1, Duration::ZERO).is_ok_and(|moved| moved > 0) {
            self.drain();
            answer = attempt();
        }
        if let Some(Shortage::Neighbours { needed }) = shortage_of(&answer)
            && !self.evicts()
            && !self.file.pool.epoch().is_pinned()
            && self.make_neighbours(needed).is_ok_and(|made| made)
        {
            answer = attempt();
        }
        answer
    }

    /// Waits for a while for readers that keep space from being reused. Returns `true` if they
    /// ended in time.
    fn drain(&self) -> bool {
        let began = Instant::now();
        self.file.pool.epoch().drain_within(READER_WAIT);
        began.elapsed() < READER_WAIT
    }

    /// Removes some of what has expired in each map. Returns `true` if there was anything.
    fn remove_some_dead(&self) -> bool {
        let removed = |map: &Map<M>| map.remove_expired(FOR_SPACE).unwrap_or(0);
        self.open_maps().iter().map(removed).sum::<u64>() > 0
    }

    /// Waits until a walk in the background has found `enough` dead records, or walks if no other
    /// thread does.
    fn walk_for_space(&self, enough: impl Fn() -> bool) {
        if self.file.maintenance.wait_for_walk(enough) {
            return;
        }
        // Without waiting: the holder of this lock may itself wait for a reader of the calling
        // thread.
        if let Some(sweeping) = self.file.maintenance.try_sweeping() {
            let _ = self.walk_maps(&sweeping);
        }
    }
}

impl<M: Medium> Map<M> {
    /// [`with_space`](Evermap::with_space) for an attempt that changes this map.
    #[inline]
    pub(crate) fn with_space<R>(&self, attempt: impl FnMut() -> Result<R>) -> Result<R> {
        self.db.with_space(&|map| Arc::ptr_eq(&map.inner, &self.inner), attempt)
    }

    /// If this map is full, removes dead records, or waits until another thread has, or until its
    /// records are counted, or evicts some. Returns `true` if there is space for `bytes` now, as
    /// far as that is known, and there was none before, or others can take what is made.
    #[cold]
    fn make_space(&self, bytes: u64) -> bool {
        let has_space = || self.ensure_room(bytes).is_ok();
        if has_space() {
            return self.evicts_own();
        }
        // A failure to remove leaves things as they are.
        let _ = self.remove_expired(FOR_LIMIT);
        let (maintenance, expiries) = (&self.db.file.maintenance, &self.inner.expiries);
        let is_counted = has_space() || self.bytes().exact || maintenance.wait_for_space();
        if self.evicts_own() {
            // What is passed over and has expired goes as well. A walk for it would take longer.
            return self.evict_for_room(bytes).is_ok_and(|made| made);
        }
        if !has_space() && is_counted && expiries.is_walk_due() {
            self.db.walk_for_space(|| has_space() || !expiries.is_walk_due());
        }
        has_space()
    }

    /// Returns an error if blocks of this number of bytes would exceed the limit of the map.
    pub(crate) fn ensure_room(&self, bytes: u64) -> Result<()> {
        let limit = self.inner.max_bytes.load(Relaxed);
        if limit != u64::MAX && self.inner.counters.most_bytes() + bytes > limit {
            return Err(Error::Full { limit, needed: bytes });
        }
        Ok(())
    }
}
