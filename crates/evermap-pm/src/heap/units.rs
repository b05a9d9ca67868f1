//! Taking units for extents, and returning them.

use std::ops::Range;

use super::extents::ExtentState;
use super::{GROWTH_MAX, GROWTH_PART, Heap, LEAST_PART, MEMORY_LIMIT, SharedState, lock};
use crate::medium::Medium;
use crate::region::{Geometry, TableEntry, Usage};
use crate::{Error, ErrorKind, Result};

/// Returns the minimum and the preferred number of units of the next extent of blocks of `size`
/// bytes, if the extents of such blocks have `have` units. `most` is the maximum if there is a
/// limit: then a few more are taken rather than that space is wasted.
pub(super) fn next_extent(
    geometry: &Geometry,
    size: u64,
    have: u64,
    most: Option<u64>,
) -> Range<u64> {
    let least = size.div_ceil(geometry.unit());
    let largest = most.unwrap_or(u64::MAX).clamp(least, geometry.largest);
    let wanted = (have / GROWTH_PART).clamp(least, largest);
    // A few more units are used if that leaves less unused space behind the last block.
    let waste = |units: u64| (units * geometry.unit() % size) * geometry.largest / units;
    let more = (wanted / 4).max(if most.is_some() { LIMITED_MORE } else { 0 });
    let best = (wanted..=(wanted + more).min(geometry.largest)).min_by_key(|&it| waste(it));
    least..best.unwrap_or(wanted)
}

/// As many units are kept for fixed blocks at a time as they have already, but at least and at most
/// one in this many.
const ZONE_MIN_PART: u64 = 20;
const ZONE_MAX_PART: u64 = 10;

/// What is exhausted if an allocation fails although there are enough free units, because too few
/// of them are neighbours.
pub const NEIGHBOURS: &str = "the free space of the file is in pieces that are too small";

/// What is exhausted if an allocation fails because the region cannot become longer.
const CAPACITY: &str = "capacity of the region";

/// The same if the file may have been cut off.
const SALVAGED: &str = "a salvaged file does not grow further: load what is left into a new one";

/// Returns `true` if this is what an allocation lacked.
fn is_lack_of(error: &Error, lacking: &str) -> bool {
    matches!(error.kind(), ErrorKind::NoSpace { what, .. } if what == lacking)
}

/// The number of units that an extent in a limited heap may have in addition.
const LIMITED_MORE: u64 = 6;

impl<M: Medium> Heap<M> {
    /// Takes at least `units.start` and at most `units.end` neighbouring units: free ones,
    /// otherwise new ones. Runs that are much smaller than requested are taken last, so that a
    /// large store does not end up in small extents.
    pub(super) fn take_units(&self, units: Range<u64>, fixed: bool) -> Result<Range<u64>> {
        let shared = &mut *lock(&self.shared);
        let units = self.within_limit(shared, units)?;
        let (goal, len) = (self.goal_end(), self.extents.len);
        if fixed
            && goal < len
            && let Some(taken) = self.take_from_zone(shared, &units, goal)?
        {
            return Ok(taken);
        }
        let worthwhile = units.start.max(units.end / LEAST_PART);
        match self.take_free(shared, worthwhile..units.end) {
            Ok(Some(taken)) => return Ok(taken),
            Ok(None) => {}
            // What is left for them may be at the end of the file, where no unit was used yet.
            Err(error) if is_lack_of(&error, MEMORY_LIMIT) => {}
            Err(error) => return Err(error),
        }
        let error = match self.take_new_below(shared, &units, goal) {
            Ok(taken) => return Ok(taken),
            Err(error) => error,
        };
        if goal < len {
            // The rest of it serves others, and neighbours of it. A failure leaves it as it is.
            let _ = self.absorb(shared, self.region.units_in_file());
            let _ = self.absorb(shared, goal);
        }
        if let Some(taken) = self.take_free(shared, units.clone())? {
            return Ok(taken);
        }
        if fixed && goal < len {
            return self.take_new_below(shared, &units, len);
        }
        if shared.zone.total() > 0 {
            shared.end_zone();
            if let Some(taken) = self.take_free(shared, units.clone())? {
                return Ok(taken);
            }
        }
        if is_lack_of(&error, CAPACITY) && shared.count_free() >= units.start {
            return Err(Error::no_space(NEIGHBOURS, units.start << self.geometry.shift));
        }
        Err(error)
    }

    /// Takes units for fixed blocks from those that are kept for them, so that these are in few
    /// places, and what is between them can be moved to make room for large blocks.
    fn take_from_zone(
        &self,
        shared: &mut SharedState,
        units: &Range<u64>,
        goal: u64,
    ) -> Result<Option<Range<u64>>> {
        if shared.zone.longest().is_none_or(|run| run.end - run.start < units.start) {
            self.begin_zone(shared, units.start, goal);
        }
        let Some(run) = shared.zone.longest().filter(|run| run.end - run.start >= units.start)
        else {
            return Ok(None);
        };
        let taken = run.start..run.end.min(run.start + units.end);
        shared.zone.remove(taken.clone());
        if let Err(error) = self.make_ready(shared, &taken) {
            shared.zone.insert(taken);
            return Err(error);
        }
        shared.fixed += taken.end - taken.start;
        Ok(Some(taken))
    }

    /// Begins to keep other units for fixed blocks, `least` at least, unless there are not as many
    /// neighbours: free ones at the begin of the file, otherwise new ones.
    fn begin_zone(&self, shared: &mut SharedState, least: u64, goal: u64) {
        shared.end_zone();
        let most = (goal / ZONE_MAX_PART).max(1);
        let count = shared.fixed.clamp((goal / ZONE_MIN_PART).clamp(1, most), most).max(least);
        if let Some(run) = shared.free.first_fitting(count) {
            let zone = run.start..run.start + count;
            shared.free.remove(zone.clone());
            shared.zone.insert(zone);
        } else if let Ok(zone) = self.take_new(shared, count, goal) {
            self.mark_free(shared, zone.clone());
            shared.free.remove(zone.clone());
            shared.zone.insert(zone);
        }
    }

    /// Takes new units below unit `end`, as many as there is space for.
    fn take_new_below(
        &self,
        shared: &mut SharedState,
        units: &Range<u64>,
        end: u64,
    ) -> Result<Range<u64>> {
        let mut count = units.end;
        loop {
            match self.take_new(shared, count, end) {
                // The rest of the space may be enough for fewer units.
                Err(_) if count > units.start => count = (count / 2).max(units.start),
                done => return done,
            }
        }
    }

    /// Takes units from the free ones, if enough neighbouring units are free.
    fn take_free(&self, shared: &mut SharedState, units: Range<u64>) -> Result<Option<Range<u64>>> {
        let longest = || shared.free.longest().filter(|run| run.end - run.start >= units.start);
        let Some(run) = shared.free.fitting(units.end).or_else(longest) else { return Ok(None) };
        let aligned = self.align(run.start, units.end);
        let start = if aligned + units.end <= run.end { aligned } else { run.start };
        let taken = start..run.end.min(start + units.end);
        // Not to be discarded for the sake of these units themselves.
        shared.free.remove(taken.clone());
        let ready = self.make_ready(shared, &taken);
        if ready.is_err() {
            shared.free.insert(taken.clone());
        }
        ready.map(|()| Some(taken))
    }

    /// Makes free units usable, which are in no set of free ones at present.
    fn make_ready(&self, shared: &mut SharedState, units: &Range<u64>) -> Result<()> {
        let returned = shared.discarded.count_in(units) << self.geometry.shift;
        self.make_room(shared, returned)?;
        if shared.unclaimed.overlaps(units) {
            if let Err(error) = self.region.medium().claim(self.bytes_of(units)) {
                // They take no memory, whatever an earlier process has left there.
                shared.discarded.insert(units.clone());
                return Err(error);
            }
            shared.unclaimed.remove(units.clone());
            shared.discarded.remove(units.clone());
        }
        Ok(())
    }

    /// Returns unit `start`, or for extents of the largest size the first unit after it at which
    /// huge pages begin.
    fn align(&self, start: u64, count: u64) -> u64 {
        if count != self.geometry.largest {
            return start;
        }
        let before = self.region.unit_offset(0) >> self.geometry.shift;
        (start + before).next_multiple_of(count) - before
    }

    pub(super) fn bytes_of(&self, units: &Range<u64>) -> Range<u64> {
        self.region.unit_offset(units.start)..self.region.unit_offset(units.end)
    }

    /// Takes units that were never used, below unit `end`, and grows the region and its table for
    /// them.
    fn take_new(&self, shared: &mut SharedState, count: u64, end: u64) -> Result<Range<u64>> {
        let mut taken = self.new_units(shared, count, end)?;
        while taken.end > self.region.described() {
            self.grow_table(shared)?;
            taken = self.new_units(shared, count, end)?;
        }
        self.grow_to(shared, self.region.unit_offset(taken.end))?;
        let skipped = std::mem::replace(&mut shared.frontier, taken.end)..taken.start;
        if skipped.start < skipped.end {
            self.release_units(shared, skipped);
        }
        Ok(taken)
    }

    /// Returns the next `count` units that were never used.
    fn new_units(&self, shared: &SharedState, count: u64, end: u64) -> Result<Range<u64>> {
        let aligned = self.align(shared.frontier, count);
        let first = if aligned + count <= end { aligned } else { shared.frontier };
        self.check_end(first..first + count, end)
    }

    fn check_end(&self, units: Range<u64>, end: u64) -> Result<Range<u64>> {
        let missing = units.end.saturating_sub(end) << self.geometry.shift;
        if missing > 0 {
            return Err(Error::no_space(CAPACITY, missing));
        }
        Ok(units)
    }

    /// Makes the units below unit `end` that were never used free ones.
    pub(super) fn absorb(&self, shared: &mut SharedState, end: u64) -> Result<()> {
        let end = end.min(self.extents.len);
        while shared.frontier < end && self.region.described() < end {
            self.grow_table(shared)?;
        }
        if shared.frontier < end {
            self.grow_to(shared, self.region.unit_offset(end))?;
            let units = std::mem::replace(&mut shared.frontier, end)..end;
            self.release_units(shared, units);
        }
        Ok(())
    }

    /// Adds the next part of the table, in units that were never used.
    ///
    /// # Errors
    /// `NoSpace`, also if the file was cut off, and may have had a part that is lost.
    fn grow_table(&self, shared: &mut SharedState) -> Result<()> {
        if self.region.may_lack_parts() {
            return Err(Error::no_space(SALVAGED, self.geometry.unit()));
        }
        let units = self.region.next_part_bytes().div_ceil(self.geometry.unit());
        let part = self.check_end(shared.frontier..shared.frontier + units, self.extents.len)?;
        let at = self.region.unit_offset(part.start);
        self.grow_to(shared, self.region.unit_offset(part.end))?;
        self.region.add_part(at);
        // No other thread has ever locked an extent there.
        let entry = TableEntry { usage: Usage::Table, units };
        self.extents.begin_first(part.start, entry, ExtentState::Open, &self.geometry);
        shared.frontier = part.end;
        Ok(())
    }

    /// Makes `end` usable, and some more ahead of need so that growth is rare.
    fn grow_to(&self, shared: &mut SharedState, end: u64) -> Result<()> {
        let m = self.region.medium();
        if m.len() >= end {
            return Ok(());
        }
        self.make_room(shared, end - m.len())?;
        let ahead = (end / 16).min(GROWTH_MAX).min(self.growth_ahead_max(shared, end));
        let ahead = ahead >> self.geometry.shift << self.geometry.shift;
        let goal = self.region.unit_offset(self.goal_end()).max(end);
        let wanted = (end + ahead).min(self.region.capacity()).min(goal);
        let old = m.len();
        if wanted == end || m.grow(wanted).is_err() {
            m.grow(end)?;
        }
        // Not under a limit: a request that is carried out late could bring memory back that was
        // returned to the system in the meantime.
        if !self.is_limited() {
            m.prefault(old..m.len());
        }
        Ok(())
    }

    /// Makes units an extent as described by `entry`, durably, before anything in it can be
    /// published.
    pub(super) fn assign(&self, first: u64, entry: TableEntry) {
        let m = self.region.medium();
        let mut changed = false;
        for index in first..first + entry.units {
            let wanted = if index == first { entry } else { TableEntry::TAIL }.encode(index);
            let cell = self.region.entry(index);
            if m.load(cell) != wanted {
                m.store(cell, wanted);
                m.flush(cell);
                changed = true;
            }
        }
        self.extents.begin(first, entry, ExtentState::Open, &self.geometry);
        self.count_units(entry);
        if let Usage::Blocks(kind) = entry.usage {
            self.count_free(kind, (entry.units * self.geometry.unit() / kind.size) as i64);
        }
        if changed {
            m.fence();
        }
    }

    /// Adds the units of an open extent to those of its block size.
    pub(super) fn count_units(&self, entry: TableEntry) {
        if let Usage::Blocks(kind) = entry.usage {
            lock(&self.shared).available.entry(kind).or_default().units += entry.units;
        }
    }

    /// Makes units free whose space is known to be allocated in the file. If there are enough of
    /// those, their memory is returned to the system.
    pub(super) fn release_units(&self, shared: &mut SharedState, units: Range<u64>) {
        self.mark_free(shared, units.clone());
        let ready = shared.count_free().saturating_sub(shared.unclaimed.total());
        if ready > self.kept_ready(shared) {
            self.discard(shared, units);
        }
    }

    /// Returns the memory of free units to the system.
    pub(super) fn discard(&self, shared: &mut SharedState, units: Range<u64>) {
        self.region.medium().discard(self.bytes_of(&units));
        shared.unclaimed.insert(units.clone());
        shared.discarded.insert(units);
    }

    /// Makes units free that have to be claimed before use.
    pub(super) fn release_unclaimed(&self, shared: &mut SharedState, units: Range<u64>) {
        self.mark_free(shared, units.clone());
        shared.unclaimed.insert(units);
    }

    fn mark_free(&self, shared: &mut SharedState, units: Range<u64>) {
        let m = self.region.medium();
        for index in units.clone() {
            // Not flushed: if a crash loses it, the sweep finds out.
            let (cell, free) = (self.region.entry(index), TableEntry::FREE.encode(index));
            if m.load(cell) != free {
                m.store_transient(cell, free);
            }
        }
        shared.insert_free(units);
    }
}
