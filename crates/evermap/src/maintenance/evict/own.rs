//! Eviction within one map, which has a limit of its own: see
//! [`MapOptions::evict`](crate::MapOptions::evict).
//!
//! Which records go is decided as by the [hand](super::hand) of the file, but in the order of the
//! map's index. In the order of storage, the records of all other maps would have to be passed
//! over, and the map may be a small part of the file. So what a record makes room for is stored
//! elsewhere, and records are on probation for one round on average, not for one each.
//!
//! A mutation that finds the map full makes the room itself, and a little more than it needs, so
//! that the next ones find some. It takes no space of the file for that, but that of the records
//! that go; so it works whether or not the file is a cache.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

use evermap_index::Guard;
use evermap_pm::Medium;

use super::Manner;
use super::course::OwnHand;
use super::hand::{Event, Judge};
use crate::ops::read::RECORDS_AHEAD;
use crate::record::Record;
use crate::{Map, Result};

/// If less is asked for, room is made for this part of the limit, but at most `STEP_MOST` bytes; if
/// more is, in steps of that.
const STEP_PART: u64 = 48;
const STEP_MOST: u64 = 128 << 10;
/// The bar is raised each time that this part of the map was passed over in one step.
const BAR_PART: u64 = 4;
/// The highest frequency of a record, and so the bar at which every record goes.
const BAR_MAX: u64 = 3;
/// The number of rounds in one step after which there is no use in passing on.
const ROUNDS: u32 = 3;

impl<M: Medium> Map<M> {
    /// Returns `true` if this map evicts its own records when it is full.
    pub(crate) fn evicts_own(&self) -> bool {
        self.inner.name.is_some() && self.inner.evicts()
    }

    /// Evicts records until this map has room for `bytes`, and a little more. Returns `true` if it
    /// had, whether or not others have taken it since.
    pub(crate) fn evict_for_room(&self, bytes: u64) -> Result<bool> {
        let limit = self.inner.max_bytes.load(Relaxed);
        if bytes > limit {
            return Ok(false);
        }
        let step = (limit / STEP_PART).clamp(1, STEP_MOST);
        let (mut events, most) = (Vec::new(), limit - bytes.max(step));
        let done = self.evict_down_to(most, step, &mut events);
        self.db.show_evictions(&events);
        done
    }

    /// Evicts records until those of this map take `most` bytes. Returns `false` if no more can be
    /// evicted before that.
    fn evict_down_to(&self, most: u64, step: u64, events: &mut Vec<Event>) -> Result<bool> {
        let counters = &self.inner.counters;
        let hand =
            &mut *self.inner.own_eviction.hand.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread that had the hand may have made the room.
        while counters.most_bytes() > most {
            let goal = counters.most_bytes().saturating_sub(step).max(most);
            if !self.take_step(hand, goal, events)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Evicts records until those of this map take `goal` bytes. Returns `false` if no more can be
    /// evicted before that.
    fn take_step(&self, hand: &mut OwnHand, goal: u64, events: &mut Vec<Event>) -> Result<bool> {
        let counters = &self.inner.counters;
        let per_bar = (counters.most_bytes() / BAR_PART).max(1);
        let (mut passed, last) = (0, hand.rounds.wrapping_add(ROUNDS));
        while counters.most_bytes() > goal && hand.rounds != last {
            let bar = (passed / per_bar).min(BAR_MAX) as u16;
            passed += self.pass_unit(hand, bar, goal, events)?;
        }
        Ok(counters.most_bytes() <= goal)
    }

    /// Passes over some of the records of this map, of about `step` bytes, because the *file* lacks
    /// space. Returns the bytes that it has passed over.
    pub(super) fn pass_own(&self, step: u64, bar: u16, events: &mut Vec<Event>) -> Result<u64> {
        let hand =
            &mut *self.inner.own_eviction.hand.lock().unwrap_or_else(PoisonError::into_inner);
        let most = self.inner.counters.most_bytes().saturating_sub(step);
        let (mut passed, last) = (0, hand.rounds.wrapping_add(2));
        while passed < step && hand.rounds != last {
            passed += self.pass_unit(hand, bar, most, events)?;
        }
        Ok(passed)
    }

    /// Passes over what is left of a unit of the index, as long as the records of this map take
    /// more than `most` bytes. Returns the bytes of the records that it has passed over.
    fn pass_unit(
        &self,
        hand: &mut OwnHand,
        bar: u16,
        most: u64,
        events: &mut Vec<Event>,
    ) -> Result<u64> {
        let guard = self.enter_writing()?;
        let mut pairs = Vec::new();
        // Nothing can be removed from a part of the index that cannot be read.
        let (_, next) =
            self.inner.index.scan(hand.unit, &guard, &mut |hash, word| pairs.push((hash, word)));
        let mut judge = self.judge(&hand.course, bar, Manner::Own, events);
        while let Some(&(hash, word)) = pairs.get(hand.at)
            && self.inner.counters.most_bytes() > most
        {
            if let Some((_, ahead)) = pairs.get(hand.at + RECORDS_AHEAD) {
                self.prefetch(*ahead);
            }
            hand.at += 1;
            self.pass_record(hash, word, &mut judge, &guard)?;
        }
        let passed = judge.passed;
        hand.course.add(passed, self.inner.counters.most_bytes());
        if hand.at >= pairs.len() {
            (hand.unit, hand.at) = (next.unwrap_or(0), 0);
            if next.is_none() {
                hand.rounds = hand.rounds.wrapping_add(1);
                hand.course.round = self.db.file.cas_counter.next();
            }
        }
        Ok(passed.all)
    }

    /// Passes over the record that the index named under `guard`.
    fn pass_record(
        &self,
        hash: u64,
        word: u64,
        judge: &mut Judge<'_>,
        guard: &Guard<'_>,
    ) -> Result<()> {
        let mut key = Vec::new();
        let Ok(record) = Record::at(self.db.file.pool.medium(), word) else { return Ok(()) };
        if record.append_key(&mut key).is_ok()
            && let Ok(key) = self.key(&key)
            && key.hash == hash
        {
            self.examine_record(key, &record, judge, guard)?;
        }
        Ok(())
    }
}
