//! The sweep after an unclean shutdown.

use std::cell::Cell;
use std::time::{Duration, Instant};

use evermap_index::Visitor;
use evermap_index::record::OFFSET_MASK;
use evermap_pm::region::{DamageMark, WIDESPREAD};
use evermap_pm::{ErrorKind, Medium};

use crate::maintenance::census::{Census, Totals};
use crate::ops::read::MISMATCH;
use crate::record::Record;
use crate::{Error, Evermap, Map, Result, mistakes, trace};

/// A part of an index that is read in less time was in memory.
const SWEEP_NOTICED: Duration = Duration::from_millis(1);

/// The state of the sweep after an unclean shutdown.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
#[non_exhaustive]
pub enum SweepState {
    /// The last shutdown was clean.
    NotNeeded,
    /// It has not begun.
    Pending,
    /// It is running.
    Running,
    /// It took this long.
    Done(Duration),
    /// It could not be completed: space from before stays unused, and counts stay inexact.
    Failed(String),
}

impl SweepState {
    /// Returns whether it is known which blocks are in use.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self, SweepState::NotNeeded | SweepState::Done(_))
    }
}

impl std::fmt::Display for SweepState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SweepState::NotNeeded => f.pad("not needed"),
            SweepState::Pending => f.pad("pending"),
            SweepState::Running => f.pad("running"),
            SweepState::Done(took) => write!(f, "done in {:.1} ms", took.as_secs_f64() * 1e3),
            SweepState::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

impl<M: Medium> Evermap<M> {
    /// [`recover`](Evermap::recover).
    pub(crate) fn sweep_now(&self) -> Result<()> {
        self.ensure_no_guard("recover")?;
        let _sweeping = self.file.maintenance.sweeping();
        if !matches!(self.file.maintenance.sweep_state(), SweepState::Pending) || self.is_closed() {
            return Ok(());
        }
        self.file.pool.region().ensure_writable()?;
        self.file.maintenance.set_sweep_state(SweepState::Running);
        let began = Instant::now();
        let words = Cell::new(0);
        let swept = self.sweep(&words).map_err(|error| match self.file.maintenance.is_stopping() {
            true => Error::Closed,
            false => error,
        });
        self.note_what_was_swept(&swept, words.get());
        let told = swept.as_ref().map_err(|error| error as &dyn std::fmt::Display);
        trace::swept(self.default_map().len(), told, began.elapsed());
        self.file.maintenance.set_sweep_state(match &swept {
            Ok(()) => SweepState::Done(began.elapsed()),
            Err(_) if self.file.maintenance.is_stopping() => SweepState::Pending,
            Err(error) => SweepState::Failed(error.to_string()),
        });
        swept
    }

    /// Marks the file if the sweep has found damage: a part of an index that cannot be read, or
    /// words that lead to no block.
    fn note_what_was_swept(&self, swept: &Result<()>, words: u64) {
        let region = self.file.pool.region();
        if let Err(error) = swept {
            error.note_damage(region);
        }
        let faults = self.file.pool.heap_stats().faults;
        if faults > 0 {
            let what = "impossible entries in its table, or words that lead to no block";
            region.mark_damage(mark_for(faults, words), &format!("sweep: {faults} {what}"));
        }
    }

    /// Adds the number of words of the indexes to `words`.
    fn sweep(&self, words: &Cell<u64>) -> Result<()> {
        // Maps that are created from here on have nothing in old extents.
        let (maps, problem) = match self.file.pool.medium().mutant(mistakes::DROPPED_UNVISITED) {
            false => self.all_maps_and_dropped()?,
            true => self.all_maps()?,
        };
        self.read_parts_ahead();
        let (mut census, mut found) = (Census::default(), vec![Totals::default(); maps.len()]);
        let mut missing = vec![0; maps.len()];
        let mut sample = Sample::default();
        let mut visit = |mark: &mut dyn FnMut(u64)| {
            let mut visited = Ok(());
            for ((map, found), missing) in maps.iter().zip(&mut found).zip(&mut missing) {
                map.inner.header.block().into_iter().for_each(&mut *mark);
                let order = map.sweep_order(mark);
                let (census, sample) = (&mut census, &mut sample);
                let mut sweeper = Sweeper { map, sample, mark, census, found, words };
                // Everything else that can be read is recovered along the way.
                visited = visited.and(map.inner.index.visit(&mut sweeper));
                match order {
                    Ok(None) => {}
                    Ok(Some(balance)) => *missing = map.keys_missing_in_order(balance),
                    Err(error) => visited = visited.and(Err(error)),
                }
            }
            visited?;
            match self.file.maintenance.is_stopping() {
                true => Err(ErrorKind::Interrupted.into()),
                false => Ok(()),
            }
        };
        if let Some(problem) = problem {
            // The blocks of a map that cannot be opened cannot be marked.
            let _ = visit(&mut |_| {});
            return Err(problem);
        }
        if self.file.pool.is_swept() {
            // A clean shutdown, but its counts do not verify: only count.
            visit(&mut |_| {})?;
            self.file.pool.epoch().synchronize().map_err(evermap_pm::Error::from)?;
        } else {
            self.file.pool.sweep(visit)?;
        }
        for ((map, found), missing) in maps.iter().zip(found).zip(missing) {
            map.inner.counters.settle(&mut census, found);
            map.inner.set_bound(&self.file.pool);
            if missing > 0 {
                map.restore_order(missing, found.records);
            }
        }
        Ok(())
    }

    /// Brings the indexes into memory in the order of the file, before the sweep visits them in the
    /// order of the keys' hashes.
    ///
    /// Reads a part at a time, and pauses after each for as long as it took: so at most half of the
    /// bandwidth of the disk is taken from reads that wait for it, and hardly any time if all is in
    /// memory.
    fn read_parts_ahead(&self) {
        for range in self.file.pool.old_fixed_extents() {
            let began = Instant::now();
            self.file.pool.medium().read_ahead(range);
            if self.file.maintenance.is_stopping() {
                return;
            }
            let took = began.elapsed();
            if took >= SWEEP_NOTICED {
                std::thread::sleep(took);
            }
        }
    }
}

/// Returns the mark of a file in which `bad` places were found damaged, `of` all that were looked
/// at. One damaged extent concerns many of them, but not one in 64.
pub(crate) fn mark_for(bad: u64, of: u64) -> DamageMark {
    match bad >= (of / 64).max(WIDESPREAD as u64) {
        true => DamageMark::Widespread,
        false => DamageMark::Found,
    }
}

/// A sweep verifies most of the first records up to this number, and about this number more each
/// time that the number of records is multiplied by e.
const SAMPLED: u64 = 4 << 10;
/// The time that it takes for that at most.
const SAMPLED_FOR: Duration = Duration::from_millis(500);
/// The value of a larger record is not read.
const SAMPLED_BYTES: u64 = 4096;

/// Selects records that are verified: one in ever more, because how many there are is unknown. The
/// index shows them in no order of time, so any part of them has its share of those that do not
/// belong to it.
#[derive(Default)]
struct Sample {
    passed: u64,
    next: u64,
    took: Duration,
}

impl Sample {
    /// Returns `true` if the next record is to be verified.
    fn selects_next(&mut self) -> bool {
        let is_next = self.passed >= self.next;
        if is_next {
            self.next = self.passed + 1 + self.passed / SAMPLED;
        }
        self.passed += 1;
        is_next && self.took < SAMPLED_FOR
    }
}

/// Marks every block that the index names, and counts the records of earlier openings. It reads a
/// limited number of records, because they can be many times as large as the indexes.
struct Sweeper<'s, M: Medium> {
    map: &'s Map<M>,
    sample: &'s mut Sample,
    mark: &'s mut dyn FnMut(u64),
    census: &'s mut Census,
    found: &'s mut Totals,
    words: &'s Cell<u64>,
}

impl<M: Medium> Sweeper<'_, M> {
    /// Returns the bytes of the record that `word` names if it was stored before this opening, 0 if
    /// it cannot be read.
    fn old_bytes(&self, word: u64) -> Option<u64> {
        let (pool, offset) = (&self.map.db.file.pool, word & OFFSET_MASK);
        if !pool.is_swept() {
            // What was stored since is in other extents, and was counted when it was stored.
            return pool.old_block_size(offset);
        }
        // The last shutdown was clean, but counts are missing. Old and new records share extents,
        // so only their CAS ids tell them apart.
        match Record::at(pool.medium(), word) {
            Ok(record) => (record.cas() < self.map.db.file.cas_counter.first())
                .then(|| pool.block_size(record.bytes())),
            Err(_) => (offset < pool.medium().len()).then_some(0),
        }
    }
}

impl<M: Medium> Sweeper<'_, M> {
    /// Notes it as damage if the record that `word` names is not what was stored there. It is of an
    /// earlier opening: until the sweep has ended, its block has no other use.
    fn verify(&mut self, word: u64) {
        let (began, map) = (Instant::now(), self.map);
        let damaged = match Record::at(map.db.file.pool.medium(), word) {
            Err(what) => Some(Error::damaged(&[], word & OFFSET_MASK, what)),
            Ok(record) if record.control().is_some() => {
                let is_read = record.bytes() <= SAMPLED_BYTES;
                let is_wrong = is_read && !record.verify(map.inner.header.owner());
                is_wrong.then(|| record.damaged(MISMATCH))
            }
            // Removed or replaced since the index was read.
            Ok(record) if record.was_unbound_in(map.db.file.pool.generation()) => None,
            Ok(record) => Some(record.damaged(record.why_unreadable())),
        };
        if let Some(error) = damaged {
            map.met(error);
        }
        self.sample.took += began.elapsed();
    }
}

impl<M: Medium> Visitor for Sweeper<'_, M> {
    fn block(&mut self, offset: u64) {
        (self.mark)(offset);
    }

    fn word(&mut self, word: u64) {
        let offset = word & OFFSET_MASK;
        self.words.set(self.words.get() + 1);
        (self.mark)(offset);
        if let Some(bytes) = self.old_bytes(word) {
            self.census.count(self.found, offset, bytes);
            if bytes > 0 && !self.map.db.file.pool.is_swept() && self.sample.selects_next() {
                self.verify(word);
            }
        }
    }

    fn is_done(&self) -> bool {
        self.map.db.file.maintenance.is_stopping()
    }
}
