//! Going over all records while others change them.
//!
//! A walk passes the buckets in the order of their positions, from the smallest level to the largest. A record that
//! moved from before the walk to behind it would be missed, and one that moved the other way shown twice: so while
//! a walk is under way, no record moves past it. Insertions find other victims, or let the table grow; the emptying
//! of the lowest level pauses where it would have to.

use std::sync::atomic::{AtomicU64, Ordering};

use evermap_pm::sync::Backoff;
use evermap_pm::{Medium, Result};

use super::bucket::{Locks, Record};
use super::layout::Version;
use super::levels::Site;
use super::Level;
use crate::Key;

/// Walks that can be under way at the same time.
const WALKS: usize = 8;

/// How far the walks are that are under way: each has passed all positions below its cursor.
#[derive(Default)]
pub(super) struct Walks {
    cursors: [AtomicU64; WALKS],
}

/// Cursor of no walk: nothing is passed.
const IDLE: u64 = 0;
/// Cursor of a walk that has just begun. No bucket has position 0.
const BEGUN: u64 = 1;

impl Walks {
    /// Begins a walk. Waits while many others are under way.
    fn begin(&self) -> Walk<'_> {
        let mut backoff = Backoff::new();
        loop {
            for cursor in &self.cursors {
                // Relaxed: the cursor orders nothing before its first bucket is locked.
                let begun =
                    cursor.compare_exchange(IDLE, BEGUN, Ordering::Relaxed, Ordering::Relaxed);
                if begun.is_ok() {
                    return Walk(cursor);
                }
            }
            backoff.wait();
        }
    }

    /// Whether a walk has passed one of two buckets and not the other. The caller holds the locks of both when the
    /// answer matters: a walk passes a bucket under its lock.
    pub(super) fn are_between(&self, one: Site<'_>, other: Site<'_>) -> bool {
        self.cursors.iter().any(|cursor| {
            let cursor = cursor.load(Ordering::Acquire);
            (one.position() < cursor) != (other.position() < cursor)
        })
    }

    /// Whether any walk is under way.
    pub(super) fn any(&self) -> bool {
        self.cursors.iter().any(|cursor| cursor.load(Ordering::Relaxed) != IDLE)
    }
}

/// One walk; it ends when this is dropped.
struct Walk<'w>(&'w AtomicU64);

impl Walk<'_> {
    /// Passes all positions up to this one.
    fn pass(&self, position: u64) {
        // Release: whoever locks the bucket after us knows that it is passed.
        self.0.store(position + 1, Ordering::Release);
    }
}

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        self.0.store(IDLE, Ordering::Release);
    }
}

impl<K: Key, M: Medium, const N: usize, const C: u32> Level<K, M, N, C> {
    /// Calls `each` with the records of every bucket, without locks but under a guard of its own, until it answers
    /// `false`. Buckets that cannot be read are passed over; the first error is answered at the end.
    pub(super) fn walk(&self, mut each: impl FnMut(&[Record]) -> bool) -> Result<()> {
        let walk = self.walks.begin();
        let (mut result, mut position) = (Ok(()), 0u64);
        let mut records = Vec::with_capacity(N);
        loop {
            // A level that is given up meanwhile must stay what it is.
            let _guard = self.pool.pin();
            let view = self.levels.view();
            // The lowest level may have been given up since the last step: none of its records were left.
            position = position.max(1 << view.lowest());
            let level = position.ilog2();
            if level > view.highest() {
                return result;
            }
            records.clear();
            let site = self.levels.site(level, position - (1 << level));
            let copied = site.and_then(|site| self.copy_records(&walk, site, &mut records));
            if let Err(error) = copied {
                self.region.ensure_sound()?;
                result = result.and(Err(error));
            }
            if !each(&records) {
                return result;
            }
            position += 1;
        }
    }

    /// Passes a bucket, and copies its records.
    fn copy_records(&self, walk: &Walk<'_>, site: Site<'_>, records: &mut Vec<Record>) -> Result<()> {
        let mut locks = self.wait_for(site)?;
        if !self.pool.is_swept() {
            // Copies that a crash left must not be shown; dropping them takes the locks of homes first.
            records.extend(self.records_of(site).map(|(_, record)| record));
            locks.release(self.medium());
            records.drain(..).try_for_each(|record| self.make_unique(record))?;
            locks = self.wait_for(site)?;
        }
        walk.pass(site.position());
        records.extend(self.records_of(site).map(|(_, record)| record));
        locks.release(self.medium());
        Ok(())
    }

    /// Waits for the lock of a bucket, holding no other.
    pub(super) fn wait_for<'a>(&self, site: Site<'a>) -> Result<Locks<'a>> {
        let mut waiting = self.waiting();
        loop {
            let mut locks = Locks::new();
            if self.take(site, &mut locks)? {
                return Ok(locks);
            }
            waiting.wait(site)?;
        }
    }

    /// Makes every version word stale, so that each bucket is recovered before it is used.
    pub(super) fn make_all_stale(&self) -> Result<()> {
        let (m, view) = (self.medium(), self.levels.view());
        let stale = Version::fresh(self.generation.wrapping_sub(1));
        for level in view.lowest()..=view.highest() {
            for index in 0..1 << level {
                let site = self.levels.site(level, index)?;
                self.levels.ensure_named(site)?;
                m.store_transient(&site.bucket.version, stale.0);
            }
        }
        Ok(())
    }
}
