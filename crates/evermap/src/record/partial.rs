//! A record that is written piece by piece, because its value comes that way.
//!
//! Its block is allocated with the first piece, and nothing names it before all of it is there. So
//! a crash leaves a block that no index leads to, which the next sweep frees as any other.

use std::cell::Cell;
use std::collections::HashSet;

use evermap_index::record::HEADER;
use evermap_pm::sync::{Mutex, MutexGuard, Rank};
use evermap_pm::{Medium, Pool};

use super::{Draft, Owner, Value, checksum, free_unpublished, record_bytes};
use crate::Result;

/// The blocks of partial records: taken, and not reachable.
///
/// The caller that takes an offset out of here has to free the block, or to publish it.
pub(crate) struct PartialBlocks(Mutex<HashSet<u64>>);

impl Default for PartialBlocks {
    fn default() -> Self {
        PartialBlocks(Mutex::ranked(Rank::Partial, HashSet::new()))
    }
}

impl PartialBlocks {
    /// Returns the blocks.
    pub(crate) fn all(&self) -> Vec<u64> {
        self.lock().iter().copied().collect()
    }

    /// Frees all blocks. No operation runs any more, and none begins.
    pub(crate) fn free_all<M: Medium>(&self, pool: &Pool<M>) {
        // Under the lock: afterwards nobody else frees any.
        self.lock().drain().for_each(|offset| free_unpublished(pool, offset));
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.0.lock().expect("no panics while held")
    }
}

/// A block with a key, and as much of the value as has come. [`free`](PartialRecord::free) it, or
/// make a [draft](PartialRecord::draft) of it.
pub(crate) struct PartialRecord {
    offset: u64,
    key_len: usize,
    value_len: usize,
    /// Bytes of key and value that have come.
    at: usize,
    /// What has come of the word at `at`, which is stored when it is complete.
    word: [u8; 8],
    /// CRC32C of what has come of the value.
    check: u32,
}

impl PartialRecord {
    /// Allocates a block for a key and a value of `value_len` bytes, and writes the key.
    ///
    /// # Errors
    /// `NoSpace`; nothing has changed then.
    pub(crate) fn reserve<M: Medium>(
        pool: &Pool<M>,
        blocks: &PartialBlocks,
        key: &[u8],
        value_len: usize,
    ) -> Result<Self> {
        let offset = pool.allocate(record_bytes(key.len(), value_len))?;
        blocks.lock().insert(offset);
        let (key_len, word) = (key.len(), [0; 8]);
        let mut record = PartialRecord { offset, key_len, value_len, at: 0, word, check: 0 };
        record.write(pool.medium(), key);
        Ok(record)
    }

    /// Returns the length that the value is to have.
    pub(crate) fn value_len(&self) -> usize {
        self.value_len
    }

    /// Returns how many bytes of the value have come.
    pub(crate) fn written(&self) -> usize {
        self.at - self.key_len
    }

    /// Returns the bytes of the block.
    pub(crate) fn block_bytes<M: Medium>(&self, pool: &Pool<M>) -> u64 {
        pool.block_size(record_bytes(self.key_len, self.value_len))
    }

    /// Adds the next piece of the value.
    ///
    /// # Panics
    /// If the value would be longer than it is to be.
    pub(crate) fn append<M: Medium>(&mut self, m: &M, bytes: &[u8]) {
        assert!(bytes.len() <= self.value_len - self.written(), "a piece that does not fit");
        self.write(m, bytes);
        self.check = checksum::append(self.check, bytes);
    }

    /// Writes bytes behind those that have come. Words that are complete are stored.
    fn write<M: Medium>(&mut self, m: &M, mut bytes: &[u8]) {
        let words = (record_bytes(self.key_len, self.value_len) - HEADER) / 8;
        let cells = m.slice(self.offset + HEADER, words).expect("allocated");
        let within = self.at % 8;
        if within > 0 {
            let (taken, rest) = bytes.split_at(bytes.len().min(8 - within));
            self.word[within..within + taken.len()].copy_from_slice(taken);
            m.write_bytes(&cells[self.at / 8..], &self.word[..within + taken.len()]);
            self.at += taken.len();
            bytes = rest;
        }
        if bytes.is_empty() {
            return;
        }
        // Here begins a word. What is left of the last one is stored, too, and again when more has
        // come.
        m.write_bytes(&cells[self.at / 8..], bytes);
        let rest = bytes.len() % 8;
        self.word[..rest].copy_from_slice(&bytes[bytes.len() - rest..]);
        self.at += bytes.len();
    }

    /// Makes a draft of a record whose value has come, and hands the block over to it: until the
    /// answer of [`take_back`](PartialRecord::take_back), dropping the draft frees it unless it is
    /// published.
    ///
    /// The caller holds a guard, so that closing waits.
    pub(crate) fn draft<'d, M: Medium>(
        &self,
        pool: &'d Pool<M>,
        blocks: &PartialBlocks,
        owner: Owner,
        key: &'d [u8],
        (flags, control): (u32, u64),
        cas: u64,
    ) -> Draft<'d, M> {
        debug_assert_eq!(self.written(), self.value_len);
        blocks.lock().remove(&self.offset);
        Draft {
            pool,
            owner,
            offset: self.offset,
            key,
            value: Value::Written { len: self.value_len, check: self.check },
            flags,
            cas: Cell::new(cas),
            control: Cell::new(control),
            access: Cell::default(),
            published: Cell::new(false),
        }
    }

    /// Takes the block back from a draft that was not published; returns whether it was not. The
    /// caller still holds the guard.
    pub(crate) fn take_back<M: Medium>(
        &self,
        blocks: &PartialBlocks,
        draft: &Draft<'_, M>,
    ) -> bool {
        let is_ours = !draft.is_published();
        if is_ours {
            blocks.lock().insert(self.offset);
            // Not the draft's any more.
            draft.set_published();
        }
        is_ours
    }

    /// Frees the block, unless closing has done so. In a forked child it is the parent's, and
    /// stays.
    pub(crate) fn free<M: Medium>(&self, pool: &Pool<M>, blocks: &PartialBlocks) {
        if pool.region().ensure_writable().is_err() {
            return;
        }
        // Under the lock: see `free_all`.
        let mut blocks = blocks.lock();
        if blocks.remove(&self.offset) {
            free_unpublished(pool, self.offset);
        }
    }
}
