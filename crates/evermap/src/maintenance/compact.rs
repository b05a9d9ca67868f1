//! Moving records out of extents that are sparsely used, so that their space can serve other sizes.
//!
//! A record moves like any other replacement: a copy is made durable, the index is changed, the old
//! block is retired. The copy keeps the CAS id, so that no caller sees a difference. A change of
//! the record meanwhile wins.

use std::time::{Duration, Instant};

use evermap_index::record::OFFSET_MASK;
use evermap_index::{Guard, MutateMode};
use evermap_pm::Medium;
use evermap_pm::heap::Evacuation;

use crate::maintenance::expire::unless_damaged;
use crate::ops::commit::Verdict;
use crate::ops::read::Walk;
use crate::record::control::Control;
use crate::record::{Draft, Record};
use crate::{Error, Evermap, Map, Result, mistakes, trace};

/// Compaction begins if it can free one byte in this number of bytes of extents, and at least a few
/// units.
const WORTHWHILE: u64 = 8;
/// How long compaction waits until no reader uses the old copies, and how often it checks.
pub(crate) const RECLAMATION_WAIT: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(1);
/// The number of epochs after which a block that was retired is certainly free: two for its grace
/// period, and one because other threads may advance the epoch just after this one has collected.
const GRACE: u64 = 3;

impl<M: Medium> Evermap<M> {
    /// Moves records of all maps in the file together if that frees at least an eighth of the space
    /// in use for other sizes, and returns free memory to the system, except for some that will
    /// soon be needed. Returns the number of records that it moved: 0 while another thread
    /// compacts, sweeps or checks.
    ///
    /// Other operations may go on meanwhile. O(1) if there is nothing to gain, O(n) otherwise. On a
    /// file, a thread in the background does this.
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put(b"key", b"value")?;
    /// assert_eq!(map.db().compact()?, 0, "one record cannot be closer together");
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::ReadOnly`], [`Error::GuardHeld`], and [`Error::Storage`] with
    /// `Poisoned` or `Forked`.
    pub fn compact(&self) -> Result<u64> {
        self.ensure_no_guard("compact")?;
        self.file.ensure_writable()?;
        let moved = self.compact_if_worthwhile()?;
        // What became free when readers ended or records moved. Not while another thread closes the
        // store.
        if let Some(_sweeping) = self.file.maintenance.try_sweeping().filter(|_| !self.is_closed())
        {
            self.file.pool.trim();
        }
        Ok(moved)
    }

    fn compact_if_worthwhile(&self) -> Result<u64> {
        if self.file.pool.epoch().is_backed_up() {
            // The old copies would wait for readers too.
            return Ok(0);
        }
        let (stats, unit) = (self.file.pool.heap_stats(), self.file.pool.region().unit());
        let least = (stats.extent_bytes / WORTHWHILE).max(2 * unit);
        if stats.extent_bytes - stats.closed_bytes < stats.allocated_bytes + least {
            return Ok(0);
        }
        self.move_together(least, RECLAMATION_WAIT)
    }

    /// Moves records together if that frees at least `least` bytes, and waits up to `wait` for
    /// readers to leave the old copies.
    pub(crate) fn move_together(&self, least: u64, wait: Duration) -> Result<u64> {
        self.file.ensure_writable()?;
        // Without waiting: the holder of this lock may itself wait for a reader of the calling
        // thread.
        let Some(_sweeping) = self.file.maintenance.try_sweeping() else { return Ok(0) };
        if !self.file.maintenance.sweep_state().is_over() {
            return Ok(0);
        }
        let Some(evacuation) = self.file.pool.evacuation(least) else { return Ok(0) };
        let (mut moved, began) = (0, Instant::now());
        // The records of a map that cannot be opened stay where they are.
        for map in &self.all_maps()?.0 {
            let mut mover = Mover::new(map);
            match mover.run(&evacuation) {
                Ok(()) | Err(Error::Dropped { .. }) => moved += mover.moved,
                Err(error) => return Err(error),
            }
        }
        self.wait_for_reclamation(&evacuation, wait);
        trace::compacted(self.file.origin.path.as_deref(), moved, began);
        Ok(moved)
    }

    /// Waits until the old copies of what has moved are reclaimed. Nothing may be allocated beside
    /// them before, because the extents would never become empty.
    pub(crate) fn wait_for_reclamation(&self, evacuation: &Evacuation<'_, M>, wait: Duration) {
        let (epoch, began) = (self.file.pool.epoch(), Instant::now());
        let settled = epoch.stats().epoch + GRACE;
        loop {
            epoch.drain_within(Duration::ZERO);
            let late = began.elapsed() >= wait || self.file.maintenance.is_stopping();
            if evacuation.remaining() == 0 || epoch.stats().epoch >= settled || late {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Moves records of one map.
pub(crate) struct Mover<'s, M: Medium> {
    map: &'s Map<M>,
    key: Vec<u8>,
    value: Vec<u8>,
    moved: u64,
}

impl<'s, M: Medium> Mover<'s, M> {
    pub(crate) fn new(map: &'s Map<M>) -> Self {
        Mover { map, key: Vec::new(), value: Vec::new(), moved: 0 }
    }

    pub(crate) fn map(&self) -> &'s Map<M> {
        self.map
    }

    fn run(&mut self, evacuation: &Evacuation<'_, M>) -> Result<()> {
        let mut walk = Walk::new(self.map);
        let mut pairs = Vec::new();
        while let Some(guard) = walk.next(&mut pairs)? {
            // What cannot be read stays where it is.
            let _ = walk.take_error();
            pairs.retain(|(_, word)| evacuation.contains(word & OFFSET_MASK));
            pairs.iter().for_each(|(_, word)| self.map.prefetch(*word));
            for &(_, word) in &pairs {
                match self.move_record(word, &guard) {
                    Ok(moved) => self.moved += u64::from(moved),
                    // Another thread took the space. What has moved so far stays moved.
                    Err(Error::Storage(error)) if error.is_no_space() => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
            if self.map.db.file.maintenance.is_stopping() {
                break;
            }
        }
        Ok(())
    }

    /// Moves the record that `word` names. Returns `true` if it did. A record that cannot be read,
    /// or does not verify, stays: a copy would make its damage look sound.
    pub(crate) fn move_record(&mut self, word: u64, guard: &Guard<'_>) -> Result<bool> {
        let (map, key, value) = (self.map, &mut self.key, &mut self.value);
        let owner = map.inner.header.owner();
        let Ok(record) = Record::at(map.db.file.pool.medium(), word) else { return Ok(false) };
        record.copy_to(key, value)?;
        if !record.verifies(owner, key, value) {
            return Ok(false);
        }
        let Some(control) = record.control().map(Control::encode) else { return Ok(false) };
        let (pool, flags) = (&map.db.file.pool, record.flags());
        let draft = Draft::reserve(pool, owner, key, value, flags, control, record.cas())?;
        // What it knows of its readers moves along.
        draft.set_access(record.access());
        draft.flush();
        if !pool.medium().mutant(mistakes::MOVED_UNFLUSHED) {
            pool.medium().fence();
        }
        let change = unless_damaged(map.commit(
            map.key(key)?,
            MutateMode::ExistingOnly,
            guard,
            Some(&draft),
            &mut |live| {
                match live {
                    // The expiry may have been touched since it was copied.
                    Some(live) if live.word() == word => Verdict::PublishWith(live.control_word()),
                    _ => Verdict::Keep,
                }
            },
        ))?;
        Ok(change.is_some_and(|change| change.new == Some(draft.word())))
    }
}
