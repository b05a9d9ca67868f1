//! Emptying sparse extents, so that the space of a size that is not in demand serves others.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use evermap_pm::Medium;
use evermap_pm::heap::Evacuation;

use super::hand::offset_of;
use crate::maintenance::compact::Mover;
use crate::record::Record;
use crate::{Error, Evermap, Result};

/// How long the old copies wait for readers.
pub(super) const RECLAMATION_WAIT: Duration = Duration::from_millis(20);

impl<M: Medium> Evermap<M> {
    /// Moves the records in the sparsest extents with blocks of this size to other extents of that
    /// size, until `bytes` bytes are free for all sizes. Returns the number of records moved: 0 if
    /// that is not possible, or another thread sweeps, checks or compacts.
    ///
    /// Unlike [`compact`](Evermap::compact) it does not walk through the index: the key of each
    /// record in the extents leads to it.
    pub(super) fn empty_extents(&self, block_size: u64, bytes: u64) -> Result<u64> {
        // Without waiting: the holder may wait for a reader of the calling thread.
        let Some(_sweeping) = self.file.maintenance.try_sweeping() else { return Ok(0) };
        if self.is_closed() {
            return Ok(0);
        }
        let heap = self.file.pool.heap();
        let extents = heap.sparse_extents(block_size, bytes);
        if extents.is_empty() {
            return Ok(0);
        }
        let mut evacuation = heap.begin_evacuation();
        for &extent in &extents {
            evacuation.add(extent);
        }
        let moved = self.move_out(&evacuation, &mut |_, _| Ok(false));
        self.wait_for_reclamation(&evacuation, RECLAMATION_WAIT);
        moved
    }

    /// Moves the records that are in the extents to be emptied. Where there is no space for one,
    /// `stuck` is called with the extent and the block, and may return `true` to go on. Returns the
    /// number of records moved.
    pub(super) fn move_out(
        &self,
        evacuation: &Evacuation<'_, M>,
        stuck: &mut dyn FnMut(u64, u64) -> Result<bool>,
    ) -> Result<u64> {
        let mut moved = 0;
        let done = self.move_each(evacuation, stuck, &mut moved);
        self.file.maintenance.evictor.counts.moved.fetch_add(moved, Relaxed);
        done.map(|()| moved)
    }

    fn move_each(
        &self,
        evacuation: &Evacuation<'_, M>,
        stuck: &mut dyn FnMut(u64, u64) -> Result<bool>,
        moved: &mut u64,
    ) -> Result<()> {
        let heap = self.file.pool.heap();
        // The records of a map that cannot be opened stay where they are.
        let maps = self.all_maps()?.0;
        let mut movers: Vec<_> = maps.iter().map(Mover::new).collect();
        for &extent in evacuation.numbers() {
            let Some(blocks) = heap.extent_from(extent).filter(|found| found.extent == extent)
            else {
                continue;
            };
            for offset in blocks.offsets().filter(|&offset| evacuation.contains(offset)) {
                for mover in &mut movers {
                    match mover.move_block(extent, offset) {
                        Ok(true) => *moved += 1,
                        Ok(false) | Err(Error::Dropped { .. }) => continue,
                        // Another thread took the space. What has moved so far stays moved.
                        Err(Error::Storage(error)) if error.is_no_space() => {
                            if !stuck(extent, offset)? {
                                return Ok(());
                            }
                        }
                        Err(error) => return Err(error),
                    }
                    break;
                }
            }
            if self.file.maintenance.is_stopping() {
                break;
            }
        }
        Ok(())
    }
}

impl<M: Medium> Mover<'_, M> {
    /// Moves the record in the block at `offset` of an extent, if there is one of this map. Returns
    /// `true` if it did.
    fn move_block(&mut self, extent: u64, offset: u64) -> Result<bool> {
        let map = self.map();
        let (guard, pool) = (map.enter_writing()?, &map.db.file.pool);
        let (mut key, mut is_bound) = (Vec::new(), false);
        pool.heap().with_blocks(extent, &[offset], |block| {
            let record = Record::in_block(pool.medium(), block).ok();
            is_bound = record
                .is_some_and(|record| !record.is_unbound() && record.append_key(&mut key).is_ok());
        });
        if !is_bound {
            return Ok(false);
        }
        let found = map.inner.index.get(map.key(&key)?, &guard)?;
        match found.filter(|&word| offset_of(word) == offset) {
            Some(word) => self.move_record(word, &guard),
            // Another map's, or not bound any more, or no record.
            None => Ok(false),
        }
    }
}
