//! The keys in order, as a clean shutdown leaves them for the next opening.
//!
//! ```text
//! byte  0  before   offset of the block with the keys before these; 0 in the first
//! byte  8  keys     how many are in this block | bytes that they take (high half)
//! byte 16  checks   CRC32C of the 16 bytes above | of the keys (high half)
//! byte 24  keys, ascending, each as: bytes shared with the one before, further bytes (both
//!          LEB128), those bytes
//! ```
//!
//! A cell of the map names the last block, as a [checked word](crate::record::checked_word). It is
//! valid after a clean shutdown only, and only until the map changes: so opening remembers it, and
//! what it names is freed once the tree is loaded, or at the next shutdown at the latest. Opening
//! after an unclean one makes the cell 0; the blocks are unreachable then, and the sweep frees
//! them. Hashes are not saved, because they follow from the keys.

use std::sync::PoisonError;

use evermap_index::BPlus;
use evermap_index::key::BytesRef;
use evermap_index::ordered::{Cursor, Direction, Run};
use evermap_pm::sync::{Mutex, MutexGuard, Rank};
use evermap_pm::{Medium, PmU64, Pool, parallel, pod};

use crate::record::checked_word::{WordKind, decode_checked, encode_checked};
use crate::{Durability, Map, Result};

/// Format of a region in which keys may be saved: programs that only know the ones before would
/// take the blocks for lost, and change the map without a word to the cell.
const FORMAT: u32 = 8;
/// Bytes of keys from which on a block is full, in a heap with large extents.
const FULL: usize = 64 << 10;
/// Keys are saved while they take at most one byte in this many of an average record, so that a
/// clean shutdown does not double the file. Where they are longer, reading the records takes little
/// more than reading the keys.
const SHARE: u64 = 3;
/// Bytes that they may take above that.
const LITTLE: u64 = 512 << 10;

pod! {
    struct Head: 24 {
        before: PmU64,
        keys: PmU64,
        checks: PmU64,
    }
}

/// What a clean shutdown has left of a map, while it still says something.
pub(crate) struct Saved(Mutex<Option<Chain>>);

/// A chain of blocks, and the number of keys that it must have.
#[derive(Clone, Copy)]
struct Chain {
    last: u64,
    records: u64,
}

impl Saved {
    /// Reads what the `cell` of a map with this number of records names. There is nothing unless
    /// the last shutdown was clean, so that what is named was not freed, and the number of records
    /// is known.
    pub(crate) fn open<M: Medium>(
        pool: &Pool<M>,
        cell: &PmU64,
        clean: bool,
        records: Option<u64>,
    ) -> Self {
        let word = pool.medium().load(cell);
        let last = decode_checked(WordKind::Saved, word).filter(|_| clean);
        let chain = last.zip(records).map(|(last, records)| Chain { last, records });
        if chain.is_none() && word != 0 {
            clear(pool, cell);
            if clean {
                // Some blocks are allocated that are not known.
                pool.require_sweep();
            }
        }
        Saved(Mutex::ranked(Rank::Saved, chain))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Chain>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the blocks, from the first to the last, or `None` if one of them does not verify.
    pub(crate) fn blocks<M: Medium>(&self, pool: &Pool<M>) -> Option<Vec<u64>> {
        let chain = *self.lock();
        chain.map_or(Some(Vec::new()), |chain| chain.blocks(pool.medium()))
    }

    /// Frees what is left of it, if anything is.
    fn free<M: Medium>(&self, pool: &Pool<M>, cell: &PmU64) {
        let mut chain = self.lock();
        let Some(gone) = chain.take() else { return };
        clear(pool, cell);
        match gone.blocks(pool.medium()) {
            Some(blocks) => blocks.into_iter().for_each(|block| pool.free_unpublished(block)),
            // The next opening has to find out what it was.
            None => pool.require_sweep(),
        }
    }
}

/// From here on the cell names nothing. Durable on return.
pub(crate) fn clear<M: Medium>(pool: &Pool<M>, cell: &PmU64) {
    pool.medium().store(cell, 0);
    pool.medium().persist(cell);
}

impl Chain {
    fn blocks<M: Medium>(&self, m: &M) -> Option<Vec<u64>> {
        let (mut blocks, mut at, mut keys) = (Vec::new(), self.last, 0);
        while at != 0 {
            let head = Block::head(m, at)?;
            keys += head.keys;
            // Each has a key at least, so a ring ends here.
            if head.keys == 0 || keys > self.records {
                return None;
            }
            blocks.push(at);
            at = head.before;
        }
        blocks.reverse();
        (keys == self.records).then_some(blocks)
    }
}

/// The words of a block that verify.
struct Block {
    before: u64,
    keys: u64,
    bytes: u64,
    check: u32,
}

impl Block {
    fn head<M: Medium>(m: &M, offset: u64) -> Option<Self> {
        let head = m.at::<Head>(offset)?;
        let (before, keys, checks) =
            (m.load(&head.before), m.load(&head.keys), m.load(&head.checks));
        let sound = head_check(before, keys) == checks as u32;
        let check = (checks >> 32) as u32;
        sound.then_some(Block { before, keys: keys & 0xffff_ffff, bytes: keys >> 32, check })
    }

    /// Adds the keys of the block at `offset` to `run`. Returns `None` if they do not verify.
    fn read<M: Medium>(m: &M, offset: u64, seed: u64, run: &mut Run) -> Option<()> {
        let head = Self::head(m, offset)?;
        let cells = m.slice(offset + size_of::<Head>() as u64, head.bytes.div_ceil(8))?;
        let mut bytes = vec![0; head.bytes as usize];
        m.read_bytes(cells, &mut bytes);
        if crc32c::crc32c(&bytes) != head.check {
            return None;
        }
        let (mut rest, mut key) = (&bytes[..], Vec::new());
        for _ in 0..head.keys {
            let shared = take_number(&mut rest)?;
            let own = take_number(&mut rest)?;
            key.truncate(shared);
            key.extend_from_slice(rest.split_off(..own)?);
            run.push(&key, BytesRef::new(&key, seed).hash);
        }
        rest.is_empty().then_some(())
    }
}

fn head_check(before: u64, keys: u64) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&before.to_le_bytes()), &keys.to_le_bytes())
}

fn put_number(mut number: usize, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_number(from: &mut &[u8]) -> Option<usize> {
    let mut number = 0;
    for shift in (0..28).step_by(7) {
        let byte = *from.split_off_first()?;
        number |= usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Writes a chain. Dropping it frees what was written, unless it was [finished](Writer::finish).
struct Writer<'p, M: Medium> {
    pool: &'p Pool<M>,
    blocks: Vec<u64>,
    /// Of the block to be written next.
    bytes: Vec<u8>,
    keys: u64,
    /// The last key of that.
    key: Vec<u8>,
    full: usize,
    /// Bytes that blocks may still take, and how many more with each key.
    room: u64,
    share: u64,
}

impl<'p, M: Medium> Writer<'p, M> {
    /// A writer of blocks that take at most `share` bytes a key, and a little.
    fn new(pool: &'p Pool<M>, share: u64) -> Self {
        let full = FULL.min(pool.region().extent_size() as usize / 8) - size_of::<Head>();
        let (blocks, bytes, key) = (Vec::new(), Vec::new(), Vec::new());
        Writer { pool, blocks, bytes, keys: 0, key, full, room: LITTLE, share }
    }

    fn push(&mut self, key: &[u8]) -> Result<()> {
        let mut shared = self.key.iter().zip(key).take_while(|(old, new)| old == new).count();
        // Both numbers take three bytes at most.
        if self.keys > 0 && self.bytes.len() + 6 + key.len() - shared > self.full {
            self.write()?;
            shared = 0;
        }
        put_number(shared, &mut self.bytes);
        put_number(key.len() - shared, &mut self.bytes);
        self.bytes.extend_from_slice(&key[shared..]);
        self.key.truncate(shared);
        self.key.extend_from_slice(&key[shared..]);
        self.keys += 1;
        Ok(())
    }

    /// Writes a block, durable after the next fence.
    fn write(&mut self) -> Result<()> {
        let (m, bytes) = (self.pool.medium(), self.bytes.len() as u64);
        let size = size_of::<Head>() as u64 + bytes.next_multiple_of(8);
        let room = self.room + self.keys * self.share;
        let left = room.checked_sub(self.pool.block_size(size));
        let missing = size.saturating_sub(room);
        self.room =
            left.ok_or_else(|| evermap_pm::Error::no_space("share for saved keys", missing))?;
        let offset = self.pool.allocate_fixed(size)?;
        let before = self.blocks.last().copied().unwrap_or(0);
        self.blocks.push(offset);
        let keys = self.keys | bytes << 32;
        let head = m.at::<Head>(offset).expect("just allocated");
        let checks =
            u64::from(head_check(before, keys)) | u64::from(crc32c::crc32c(&self.bytes)) << 32;
        m.store(&head.before, before);
        m.store(&head.keys, keys);
        m.store(&head.checks, checks);
        let cells = m.slice::<PmU64>(offset, size / 8).expect("just allocated");
        m.write_bytes(&cells[size_of::<Head>() / 8..], &self.bytes);
        m.flush(cells);
        self.bytes.clear();
        self.key.clear();
        self.keys = 0;
        Ok(())
    }

    /// From here on the cell names what was written. Durable on return.
    fn finish(mut self, cell: &PmU64) -> Result<()> {
        if self.keys > 0 {
            self.write()?;
        }
        let Some(&last) = self.blocks.last() else { return Ok(()) };
        self.pool.region().raise_format(FORMAT)?;
        let m = self.pool.medium();
        m.fence();
        m.store(cell, encode_checked(WordKind::Saved, last));
        m.persist(cell);
        self.blocks.clear();
        Ok(())
    }
}

impl<M: Medium> Drop for Writer<'_, M> {
    fn drop(&mut self) {
        self.blocks.iter().for_each(|&block| self.pool.free_unpublished(block));
    }
}

impl<M: Medium> Map<M> {
    /// Returns the keys that a clean shutdown has saved, in consecutive runs, read by this number
    /// of threads, or `None` if there are none, or they do not verify.
    pub(super) fn read_saved(&self, threads: usize) -> Option<Vec<Run>> {
        let (pool, seed) = (&self.db.file.pool, self.inner.header.seed());
        let blocks = self.inner.saved.blocks(pool).filter(|blocks| !blocks.is_empty())?;
        let parts: Vec<&[u64]> = blocks.chunks(blocks.len().div_ceil(threads.max(1))).collect();
        let read = |part: usize| {
            let mut run = Run::new();
            let read = |&at: &u64| Block::read(pool.medium(), at, seed, &mut run);
            parts[part].iter().map(read).collect::<Option<()>>()?;
            Some(run)
        };
        parallel(threads, parts.len(), read).into_iter().collect()
    }

    /// Frees what a clean shutdown has left: the tree has it now, or it no longer says anything.
    pub(crate) fn forget_saved(&self) {
        self.inner.saved.free(&self.db.file.pool, self.inner.header.saved(&self.db.file.pool));
    }

    /// Whether what a clean shutdown has left still says what is there.
    fn saved_is_current(&self) -> bool {
        let (totals, exact) = self.inner.counters.totals();
        // Whatever is stored in a map gets a new CAS id; and if nothing was stored, a removed key
        // makes the count smaller.
        let unchanged = self.db.file.cas_counter.next() == self.db.file.cas_counter.first();
        unchanged && exact && self.inner.saved.lock().is_some_and(|it| it.records == totals.records)
    }

    /// Saves the keys of this map in order for the next opening, if the tree is complete, there is
    /// space, they take little beside the records, and the memory outlives the process. For a
    /// caller that has ended all operations.
    pub(crate) fn save_order(&self) {
        if self.saved_is_current() {
            return;
        }
        self.forget_saved();
        let volatile = self.db.file.origin.durability == Durability::Volatile;
        if volatile || !self.db.file.pool.is_swept() {
            return;
        }
        let Some(tree) = self.settled_tree() else { return };
        // What cannot be saved is built again.
        let _ = self.write_order(tree);
    }

    fn write_order(&self, tree: &BPlus) -> Result<()> {
        let (totals, exact) = self.inner.counters.totals();
        let share = totals.bytes / totals.records.max(1) / SHARE;
        let mut writer = Writer::new(&self.db.file.pool, share);
        let (mut cursor, mut keys) = (Cursor::new(tree, .., Direction::Ascending), 0);
        while let Some((key, _)) = cursor.next()? {
            writer.push(key)?;
            keys += 1;
        }
        // Where a record cannot be read, or was not counted, the next opening had better look
        // itself.
        if exact && keys == totals.records {
            writer.finish(self.inner.header.saved(&self.db.file.pool))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_were_written() {
        let mut bytes = Vec::new();
        let numbers = [0, 1, 127, 128, 300, 16_383, 16_384, 65_536, (1 << 28) - 1];
        numbers.iter().for_each(|&number| put_number(number, &mut bytes));
        let mut rest = &bytes[..];
        for number in numbers {
            assert_eq!(take_number(&mut rest), Some(number));
        }
        assert_eq!(take_number(&mut rest), None);
        assert_eq!(take_number(&mut &[0xff, 0xff, 0xff, 0xff, 0][..]), None);
    }
}
