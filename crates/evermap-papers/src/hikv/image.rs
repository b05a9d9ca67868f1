//! The tree as a normal shutdown leaves it for the next opening (section 3.5 of the paper).
//!
//! The pairs are written in the order of their keys, in blocks of the heap, each after those before
//! it: the length of the key (4 bytes), the position (8 bytes), the key. The keys are those of the
//! items; with them, the image is read in one run, and not an item at a time. Then the place of the
//! last block becomes durable, and then the flag.
//!
//! The flag is the generation of the opener that has saved the image. Only the next opener trusts
//! it, so it need not be cleared before the first change. It is cleared before the blocks are
//! freed: when the tree is built, or by the first change after the image was saved.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

use evermap_index::key::BytesRef;
use evermap_index::ordered::Run;
use evermap_pm::medium::Note;
use evermap_pm::sync::{Mutex, MutexGuard, Rank};
use evermap_pm::{ErrorKind, Medium, PmU64, Pool, Result, parallel};

use super::layout::{IMAGE_HEAD, ImageHead, Root};
use super::mistakes;

/// The number of bytes of pairs from which on a block is full, if extents are large.
const FULL: u64 = 64 << 10;
/// Why campaigns need not detect that something of an image is not durable.
const UNUSED: &str = "an image that is not complete does not verify, and is not used";
/// The number of bytes of a pair without its key.
const PAIR: usize = 12;

/// What the root block names: the last block, and the number of pairs in all.
#[derive(Clone, Copy)]
struct Named {
    last: u64,
    pairs: u64,
}

/// The image that the root block names, if the flag is set.
pub(super) struct Image {
    named: Mutex<Option<Named>>,
    /// Whether the image is of this opener, so that any change outdates it.
    is_own: AtomicBool,
}

/// A block that verifies.
struct Block {
    before: u64,
    pairs: u64,
    bytes: Vec<u8>,
}

impl Image {
    /// Creates what a store without image has.
    pub(super) fn none() -> Self {
        Image { named: Mutex::ranked(Rank::Saved, None), is_own: AtomicBool::new(false) }
    }

    /// Finds out whether there is an image that the last opener has saved. O(1).
    pub(super) fn open<M: Medium>(pool: &Pool<M>, root: &Root) -> Self {
        let m = pool.medium();
        let (image, saved) = (Image::none(), m.load(&root.saved));
        if saved == 0 {
            return image;
        }
        let named = Named { last: m.load(&root.image), pairs: m.load(&root.image_keys) };
        let is_last = saved.wrapping_add(1) == pool.generation() || m.mutant(mistakes::FLAG_STAYS);
        if is_last {
            image.set(Some(named));
        } else {
            // The last opener died before it was open, or did not open this store.
            clear(m, root);
            // Otherwise the sweep does it.
            if pool.is_swept() {
                named.free(pool);
            }
        }
        image
    }

    fn set(&self, named: Option<Named>) {
        if let Ok(mut current) = self.lock() {
            *current = named;
        }
    }

    fn lock(&self) -> Result<MutexGuard<'_, Option<Named>>> {
        self.named.lock().map_err(|_| ErrorKind::Poisoned.into())
    }

    /// Returns the pairs of the image in runs, read by `threads` threads. Returns `None` if there
    /// is no image, or if it does not verify.
    ///
    /// # Errors
    ///
    /// `Poisoned`.
    pub(super) fn read<M: Medium>(
        &self,
        pool: &Pool<M>,
        threads: usize,
    ) -> Result<Option<Vec<Run>>> {
        let Some(named) = *self.lock()? else { return Ok(None) };
        let Some(blocks) = named.blocks(pool) else { return Ok(None) };
        let read = |at: usize| Block::read(pool, blocks[at])?.run();
        Ok(parallel(threads, blocks.len(), read).into_iter().collect())
    }

    /// Calls `each` with the offset of each block.
    ///
    /// # Errors
    ///
    /// `Poisoned`.
    pub(super) fn show<M: Medium>(&self, pool: &Pool<M>, each: &mut dyn FnMut(u64)) -> Result<()> {
        let named = self.lock()?;
        let blocks = named.and_then(|named| named.blocks(pool));
        blocks.into_iter().flatten().for_each(each);
        Ok(())
    }

    /// Frees the image, if there is one: the tree has what is in it, or it is outdated.
    ///
    /// # Errors
    ///
    /// `Poisoned`.
    pub(super) fn free<M: Medium>(&self, pool: &Pool<M>, root: &Root) -> Result<()> {
        let mut named = self.lock()?;
        let Some(gone) = named.take() else { return Ok(()) };
        if !pool.medium().mutant(mistakes::FLAG_STAYS) {
            clear(pool.medium(), root);
        }
        self.is_own.store(false, Release);
        gone.free(pool);
        Ok(())
    }

    /// Returns whether there is an image.
    pub(super) fn is_named(&self) -> Result<bool> {
        Ok(self.lock()?.is_some())
    }

    /// Returns whether this opener has saved the image, so that any change outdates it.
    #[inline]
    pub(super) fn is_own(&self) -> bool {
        self.is_own.load(Acquire)
    }

    /// Lets the next opener trust an image that was not used: nothing has changed since.
    ///
    /// # Errors
    ///
    /// `Poisoned`.
    pub(super) fn renew<M: Medium>(&self, pool: &Pool<M>, root: &Root) -> Result<()> {
        if self.is_named()? {
            self.stamp(pool, root);
        }
        Ok(())
    }

    /// Sets the flag.
    fn stamp<M: Medium>(&self, pool: &Pool<M>, root: &Root) {
        let m = pool.medium();
        m.store(&root.saved, pool.generation());
        m.note(Note::Harmless(UNUSED));
        m.persist(&root.saved);
        self.is_own.store(true, Release);
    }

    /// Saves the pairs that `next` returns, in ascending order: each call adds some to a run, or
    /// none at the end. There is no image yet.
    ///
    /// # Errors
    ///
    /// `NoSpace`: nothing is saved then. The errors of `next`.
    pub(super) fn save<M: Medium>(
        &self,
        pool: &Pool<M>,
        root: &Root,
        mut next: impl FnMut(&mut Run) -> Result<()>,
    ) -> Result<()> {
        let full = FULL.min(pool.region().extent_size() / 8) as usize - IMAGE_HEAD as usize;
        let mut writer = Writer { pool, blocks: Vec::new(), bytes: Vec::new(), pairs: 0, full };
        let (mut run, mut pairs) = (Run::new(), 0);
        loop {
            run.clear();
            next(&mut run)?;
            if run.is_empty() {
                break;
            }
            pairs += run.len() as u64;
            run.iter().try_for_each(|(key, position)| writer.push(key, position))?;
        }
        writer.write()?;
        let m = pool.medium();
        m.note(Note::Harmless(UNUSED));
        m.fence();
        let named = Named { last: writer.keep(), pairs };
        m.store(&root.image, named.last);
        m.store(&root.image_keys, named.pairs);
        m.note(Note::Harmless(UNUSED));
        m.persist(root);
        self.set(Some(named));
        self.stamp(pool, root);
        Ok(())
    }
}

/// Clears the flag durably.
fn clear<M: Medium>(m: &M, root: &Root) {
    m.store(&root.saved, 0);
    m.persist(&root.saved);
}

impl Named {
    /// Returns the offsets of the blocks, from the first to the last. Returns `None` if they are
    /// not as many pairs as there must be.
    fn blocks<M: Medium>(self, pool: &Pool<M>) -> Option<Vec<u64>> {
        let (m, mut at, mut left, mut blocks) = (pool.medium(), self.last, self.pairs, Vec::new());
        if self.pairs > m.len() / PAIR as u64 {
            return None;
        }
        while at != 0 {
            let head = m.at::<ImageHead>(at)?;
            // Each has a pair at least, so a ring ends here.
            let pairs = m.load(&head.pairs);
            left = left.checked_sub(pairs).filter(|_| pairs > 0)?;
            blocks.push(at);
            at = m.load(&head.before);
        }
        blocks.reverse();
        (left == 0).then_some(blocks)
    }

    fn free<M: Medium>(self, pool: &Pool<M>) {
        match self.blocks(pool) {
            Some(blocks) => blocks.into_iter().for_each(|block| pool.free_unpublished(block)),
            // The next opening has to find out what was its own.
            None => pool.require_sweep(),
        }
    }
}

impl Block {
    fn check(&self, seed: u64) -> u64 {
        let words = [self.before, self.pairs, self.bytes.len() as u64];
        let words = words.map(|word| BytesRef::new(&word.to_le_bytes(), seed).hash);
        words
            .into_iter()
            .fold(BytesRef::new(&self.bytes, seed).hash, |hash, word| hash.rotate_left(21) ^ word)
    }

    fn read<M: Medium>(pool: &Pool<M>, offset: u64) -> Option<Self> {
        let m = pool.medium();
        let head = m.at::<ImageHead>(offset)?;
        let bytes = m.load(&head.bytes);
        let cells = m.slice::<PmU64>(offset + IMAGE_HEAD, bytes.div_ceil(8))?;
        let mut block = Block {
            before: m.load(&head.before),
            pairs: m.load(&head.pairs),
            bytes: vec![0; bytes as usize],
        };
        m.read_bytes(cells, &mut block.bytes);
        (block.check(pool.seed()) == m.load(&head.check)).then_some(block)
    }

    /// Returns the pairs.
    fn run(&self) -> Option<Run> {
        let (mut run, mut rest) = (Run::new(), &self.bytes[..]);
        for _ in 0..self.pairs {
            let (length, after) = rest.split_first_chunk()?;
            let (position, after) = after.split_first_chunk()?;
            let (key, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            run.push(key, u64::from_le_bytes(*position));
            rest = after;
        }
        rest.is_empty().then_some(run)
    }
}

/// Writes blocks. Dropping it frees what was written, unless that was [kept](Writer::keep).
struct Writer<'p, M: Medium> {
    pool: &'p Pool<M>,
    blocks: Vec<u64>,
    /// Of the next block.
    bytes: Vec<u8>,
    pairs: u64,
    full: usize,
}

impl<M: Medium> Writer<'_, M> {
    fn push(&mut self, key: &[u8], position: u64) -> Result<()> {
        if self.pairs > 0 && self.bytes.len() + PAIR + key.len() > self.full {
            self.write()?;
        }
        self.bytes.extend_from_slice(&(key.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(&position.to_le_bytes());
        self.bytes.extend_from_slice(key);
        self.pairs += 1;
        Ok(())
    }

    /// Writes a block of the pairs that there are, if there are any, and flushes it.
    fn write(&mut self) -> Result<()> {
        if self.pairs == 0 {
            return Ok(());
        }
        let (m, bytes) = (self.pool.medium(), self.bytes.len() as u64);
        let offset = self.pool.allocate_fixed(IMAGE_HEAD + bytes.next_multiple_of(8))?;
        let block = Block {
            before: self.blocks.last().copied().unwrap_or(0),
            pairs: self.pairs,
            bytes: std::mem::take(&mut self.bytes),
        };
        self.blocks.push(offset);
        self.pairs = 0;
        let head = m.at::<ImageHead>(offset).expect("just allocated");
        m.store(&head.before, block.before);
        m.store(&head.pairs, block.pairs);
        m.store(&head.bytes, bytes);
        m.store(&head.check, block.check(self.pool.seed()));
        let cells = m.slice::<PmU64>(offset + IMAGE_HEAD, bytes.div_ceil(8));
        let cells = cells.expect("just allocated");
        m.write_bytes(cells, &block.bytes);
        m.note(Note::Harmless(UNUSED));
        m.flush(head);
        m.note(Note::Harmless(UNUSED));
        m.flush(cells);
        Ok(())
    }

    /// Leaves the blocks to the image. Returns the offset of the last one, or 0.
    fn keep(mut self) -> u64 {
        std::mem::take(&mut self.blocks).last().copied().unwrap_or(0)
    }
}

impl<M: Medium> Drop for Writer<'_, M> {
    fn drop(&mut self) {
        self.blocks.iter().for_each(|&block| self.pool.free_unpublished(block));
    }
}
