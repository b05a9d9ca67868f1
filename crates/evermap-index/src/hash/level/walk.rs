//! Going over all records while others change them.
//!
//! A walk passes the buckets of the levels that there are when it begins, in the order of their positions: from the
//! smallest level to the largest. A record that moved from before the walk to where it has been would be missed,
//! and one that moved the other way shown twice: so while a walk is under way, no record moves past it. Insertions
//! find other victims, or let the table grow. A level that is added later counts as passed from the beginning: what
//! is there either was in a bucket that the walk had passed, or is new. So the lowest level can be emptied as fast
//! as the walk, which begins there, leaves it.
//!
//! Nobody can be made to finish a walk. So one gives up that protection when [`WALKS`] others have begun after it,
//! or when it rests for [`PATIENCE`](super::PATIENCE) while the table has to grow; what moves then may be missed, or
//! shown twice.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use evermap_pm::{Guard, Medium, Result};

use super::Level;
use super::bucket::{Locks, Record};
use super::layout::Version;
use super::levels::Site;
use crate::Key;
use crate::hash::patience::Patience;

/// Walks that are protected at the same time.
pub(super) const WALKS: usize = 16;

/// How far a walk is.
///
/// ```text
/// bit  0..44  the position that comes next
/// bit 44..50  the largest level that it covers
/// bit 50..64  ticket: tells it from other walks, never 0
/// ```
///
/// All zero where there is no walk: that is as if everything were passed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Cursor(u64);

impl Cursor {
    const POSITION: u64 = (1 << 44) - 1;
    const TICKETS: u64 = (1 << 14) - 1;

    fn new(ticket: u64, level: u32, position: u64) -> Self {
        Cursor((ticket % Self::TICKETS + 1) << 50 | u64::from(level) << 44 | position)
    }

    fn ticket(self) -> u64 {
        self.0 >> 50
    }

    fn level(self) -> u32 {
        (self.0 >> 44) as u32 & 0x3f
    }

    /// The position that comes next.
    fn position(self) -> u64 {
        self.0 & Self::POSITION
    }

    fn at(self, position: u64) -> Self {
        Cursor(self.0 & !Self::POSITION | position)
    }

    fn has_passed(self, site: Site<'_>) -> bool {
        let position = site.position();
        position < self.position() || position.ilog2() > self.level()
    }
}

/// The walks that are under way.
#[derive(Default)]
pub(super) struct Walks {
    cursors: [AtomicU64; WALKS],
    tickets: AtomicU64,
}

impl Walks {
    /// The place of the walk with this cursor.
    fn place(&self, cursor: Cursor) -> &AtomicU64 {
        &self.cursors[cursor.ticket() as usize % WALKS]
    }

    /// Whether a walk has passed one of two buckets and not the other. Asked with the locks of both held, because a
    /// walk passes a bucket under its lock; without them the answer is a guess.
    pub(super) fn are_between(&self, one: Site<'_>, other: Site<'_>) -> bool {
        // SeqCst: see `Walk::begin`.
        fence(Ordering::SeqCst);
        self.cursors.iter().any(|cursor| {
            // Acquire: pairs with the release in `pass`.
            let cursor = Cursor(cursor.load(Ordering::Acquire));
            cursor.has_passed(one) != cursor.has_passed(other)
        })
    }

    /// Where all walks are.
    pub(super) fn cursors(&self) -> [u64; WALKS] {
        std::array::from_fn(|walk| self.cursors[walk].load(Ordering::Relaxed))
    }

    /// Withdraws the protection of those walks that are still where they were.
    pub(super) fn expire(&self, seen: [u64; WALKS]) {
        for (cursor, seen) in self.cursors.iter().zip(seen) {
            let _ = cursor.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Begins a walk at this position, over the levels up to this one.
    fn begin(&self, level: u32, position: u64) -> Walk<'_> {
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        let cursor = Cursor::new(ticket, level, position);
        // Whoever has the place began `WALKS` walks ago.
        self.place(cursor).store(cursor.0, Ordering::Release);
        // SeqCst: whoever adds a level, and then asks whether a walk is in the way, sees this one; or the caller,
        // who looks at the levels next, sees the level.
        fence(Ordering::SeqCst);
        Walk { walks: self, cursor }
    }
}

/// One walk; it ends when this is dropped.
struct Walk<'w> {
    walks: &'w Walks,
    cursor: Cursor,
}

impl Walk<'_> {
    /// Passes all positions below this one.
    fn pass(&mut self, position: u64) {
        let next = self.cursor.at(position);
        let place = self.walks.place(self.cursor);
        // Release: whoever locks the bucket after us knows that it is passed.
        match place.compare_exchange(self.cursor.0, next.0, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => self.cursor = next,
            // Not protected any more: from now on again.
            Err(_) => *self = self.walks.begin(self.cursor.level(), position),
        }
    }

    /// Interrupts the walk.
    fn interrupt(self) -> Cursor {
        let cursor = self.cursor;
        std::mem::forget(self);
        cursor
    }
}

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        let place = self.walks.place(self.cursor);
        let _ = place.compare_exchange(self.cursor.0, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

impl<K: Key, M: Medium, const N: usize, const C: u32> Level<K, M, N, C> {
    /// Begins a walk over all levels.
    fn begin_walk(&self, guard: &Guard<'_>) -> Result<Walk<'_>> {
        loop {
            if self.levels.view().growing {
                // Otherwise the emptying of the lowest level would have to wait for most of the walk.
                self.finish_growth(guard)?;
            }
            let view = self.levels.view();
            let walk = self.walks.begin(view.highest(), 0);
            // A level that was added before the walk was announced may have taken records from those it covers.
            if self.levels.view() == view {
                return Ok(walk);
            }
        }
    }

    /// Calls `each` with the records of every bucket, without locks but under a guard of its own, until it answers
    /// `false`. Buckets that cannot be read are passed over; the first error is answered at the end.
    pub(super) fn walk(&self, mut each: impl FnMut(&[Record]) -> bool) -> Result<()> {
        let mut walk = self.begin_walk(&self.pool.pin())?;
        let (mut result, mut records) = (Ok(()), Vec::new());
        loop {
            // What the records name must stay what it is while `each` looks at it.
            let _guard = self.pool.pin();
            records.clear();
            let (step, more) = self.step(&mut walk, &mut records);
            if step.is_err() {
                self.region.ensure_sound()?;
            }
            result = result.and(step);
            if !each(&records) || !more {
                return result;
            }
        }
    }

    /// One unit of the walk that was interrupted at `from`; 0 begins one. Answers where to go on.
    pub(super) fn walk_unit(
        &self,
        from: u64,
        guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>) {
        let begun = match from {
            0 => self.begin_walk(guard),
            _ => Ok(Walk { walks: &self.walks, cursor: Cursor(from) }),
        };
        let mut walk = match begun {
            Ok(walk) => walk,
            Err(error) => return (Err(error), None),
        };
        let mut records = Vec::new();
        let (result, more) = self.step(&mut walk, &mut records);
        if let Err(poisoned) = self.region.ensure_sound() {
            return (Err(poisoned), None);
        }
        let next = more.then(|| walk.interrupt().0);
        records.iter().for_each(|record| each(record.slot_key, record.word));
        (result, next)
    }

    /// Passes some neighbouring buckets, and copies their records. Answers whether there are more. The caller has a
    /// guard, so that a level that is given up meanwhile stays what it is.
    fn step(&self, walk: &mut Walk<'_>, records: &mut Vec<Record>) -> (Result<()>, bool) {
        const BUCKETS: u64 = 64;
        let view = self.levels.view();
        // The lowest level may have been given up since the last step: the walk had passed all that was in it.
        let first = walk.cursor.position().max(1 << view.lowest());
        let level = first.ilog2();
        if level > walk.cursor.level().min(view.highest()) {
            return (Ok(()), false);
        }
        let mut result = Ok(());
        for position in first..(first + BUCKETS).min(2 << level) {
            let site = self.levels.site(level, position - (1 << level));
            let copied = site.and_then(|site| self.copy_records(walk, site, records));
            // Passed in any case, so that damage does not stop the walk.
            if copied.is_err() {
                walk.pass(position + 1);
            }
            result = result.and(copied);
        }
        (result, true)
    }

    /// Passes a bucket, and copies its records.
    fn copy_records(
        &self,
        walk: &mut Walk<'_>,
        site: Site<'_>,
        records: &mut Vec<Record>,
    ) -> Result<()> {
        let mut locks = self.wait_for(site)?;
        if !self.pool.is_swept() {
            // Copies that a crash left must not be shown; dropping them takes the locks of homes first.
            let met: Vec<Record> = self.records_of(site).map(|(_, record)| record).collect();
            locks.release(self.medium());
            met.into_iter().try_for_each(|record| self.make_unique(record))?;
            locks = self.wait_for(site)?;
        }
        walk.pass(site.position() + 1);
        records.extend(self.records_of(site).map(|(_, record)| record));
        locks.release(self.medium());
        Ok(())
    }

    /// Waits for the lock of a bucket, holding no other.
    fn wait_for<'a>(&self, site: Site<'a>) -> Result<Locks<'a>> {
        let mut patience = Patience::default();
        loop {
            let mut locks = Locks::new();
            if self.take(site, &mut locks)? {
                return Ok(locks);
            }
            self.wait_with(site, &mut patience)?;
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
