//! What readers may still use although it is not reachable any more: entries, overflow buckets and
//! tables.

use std::collections::VecDeque;

use evermap_pm::{Domain, GracePeriod};

use crate::memory::Memory;
use crate::slab::Id;

/// A batch is closed when it has this many entries, or this many bytes: a grace period costs a
/// system call that interrupts other processors.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 64 << 10;
/// The same for entries that have to be dropped, because they may own any amount of memory.
const BATCH_OF_DROPS: usize = 32;
/// Tables are looked at once in this many writes.
const TABLES_EVERY: u32 = 64;

/// Places that become free together.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) entries: Vec<Id>,
    pub(crate) overflow: Vec<Id>,
}

/// The garbage of a shard. Protected by its lock.
pub(crate) struct Garbage {
    /// The number of entries at which a batch is closed.
    batch: usize,
    entry_bytes: usize,
    open: Batch,
    closed: VecDeque<(GracePeriod, Batch)>,
    /// Empty batches, to use their memory again.
    spare: Vec<Batch>,
    tables: VecDeque<(GracePeriod, Memory)>,
    /// Memory that nobody uses any more.
    unused: Vec<Memory>,
    writes: u32,
}

impl Garbage {
    /// Creates an empty list for entries of this size.
    pub(crate) fn new(entry_bytes: usize, needs_drop: bool) -> Self {
        Garbage {
            batch: if needs_drop { BATCH_OF_DROPS } else { BATCH },
            entry_bytes,
            open: Batch::default(),
            closed: VecDeque::new(),
            spare: Vec::new(),
            tables: VecDeque::new(),
            unused: Vec::new(),
            writes: 0,
        }
    }

    /// Adds an entry. Returns `true` if it is time to [reclaim](Garbage::oldest).
    pub(crate) fn retire(&mut self, entry: Id, domain: &Domain) -> bool {
        self.open.entries.push(entry);
        let entries = self.open.entries.len();
        if entries < self.batch && entries * self.entry_bytes < BATCH_BYTES {
            return false;
        }
        self.close(domain);
        true
    }

    /// Adds an overflow bucket.
    pub(crate) fn retire_overflow(&mut self, bucket: Id) {
        self.open.overflow.push(bucket);
    }

    /// Adds a table.
    pub(crate) fn retire_table(&mut self, memory: Memory, domain: &Domain) {
        self.tables.push_back((domain.start(), memory));
    }

    /// Adds memory that nobody uses any more.
    pub(crate) fn add_unused(&mut self, memory: Vec<Memory>) {
        self.unused.extend(memory);
    }

    /// Begins the grace period of what was added since the last call.
    pub(crate) fn close(&mut self, domain: &Domain) {
        if !self.open.entries.is_empty() || !self.open.overflow.is_empty() {
            let next = self.spare.pop().unwrap_or_default();
            self.closed.push_back((domain.start(), std::mem::replace(&mut self.open, next)));
        }
    }

    /// Returns the grace period of the oldest closed batch.
    pub(crate) fn oldest(&self) -> Option<GracePeriod> {
        self.closed.front().map(|&(period, _)| period)
    }

    /// Takes the oldest closed batch, if this is its grace period, which is over.
    pub(crate) fn take(&mut self, period: GracePeriod) -> Option<Batch> {
        let (_, batch) = self.closed.pop_front_if(|(oldest, _)| *oldest == period)?;
        Some(batch)
    }

    /// Returns a batch whose places were freed.
    pub(crate) fn put_back(&mut self, mut batch: Batch) {
        const SPARE: usize = 4;
        batch.entries.clear();
        batch.overflow.clear();
        if self.spare.len() < SPARE {
            self.spare.push(batch);
        }
    }

    /// Frees a part of the memory that nobody uses any more, so that no write has to free all of
    /// it. Called once for each write.
    #[inline]
    pub(crate) fn free_some(&mut self, domain: &Domain) {
        if !self.tables.is_empty() || !self.unused.is_empty() {
            self.writes += 1;
            if self.writes.is_multiple_of(TABLES_EVERY) {
                self.free_step(domain);
            }
        }
    }

    /// Frees a part of the memory that nobody uses any more. Returns `false` if there is none.
    #[cold]
    pub(crate) fn free_step(&mut self, domain: &Domain) -> bool {
        if let Some(memory) = self.unused.last_mut() {
            return memory.shrink() || self.unused.pop().is_some();
        }
        let over = self.tables.pop_front_if(|&mut (period, _)| domain.is_over(period));
        self.unused.extend(over.map(|(_, memory)| memory));
        !self.unused.is_empty()
    }

    /// Returns the number of entries that wait.
    pub(crate) fn entries_waiting(&self) -> usize {
        let closed = self.closed.iter().map(|(_, batch)| batch);
        closed.chain([&self.open]).map(|batch| batch.entries.len()).sum()
    }

    /// Returns the number of overflow buckets that wait.
    #[cfg(test)]
    pub(crate) fn overflow_waiting(&self) -> usize {
        let closed = self.closed.iter().map(|(_, batch)| batch);
        closed.chain([&self.open]).map(|batch| batch.overflow.len()).sum()
    }

    /// Returns the number of bytes of tables that wait, and of memory that is not freed yet.
    pub(crate) fn memory_waiting(&self) -> usize {
        let tables = self.tables.iter().map(|(_, memory)| memory);
        tables.chain(&self.unused).map(Memory::bytes).sum()
    }

    /// Takes all entries, for an owner that has no readers any more.
    pub(crate) fn take_entries(&mut self) -> Vec<Id> {
        let closed = self.closed.drain(..).map(|(_, batch)| batch);
        closed.chain([std::mem::take(&mut self.open)]).flat_map(|batch| batch.entries).collect()
    }
}
