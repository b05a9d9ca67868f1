//! The chain of a segment: a linked list of blocks, for records that would find no free slot even
//! if the segment were split.

use std::collections::HashSet;

use evermap_pm::medium::Note;
use evermap_pm::{Error, Guard, Medium, PmU64, Pod, Pool, Result};

/// The greatest number of blocks in a chain. It bounds the time for following a damaged chain.
pub const CHAIN_MAX: usize = 1 << 20;

/// How an insert may use the chain of a segment whose other slots are full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chain {
    /// Not at all: the segment can be split instead.
    Avoid,
    /// It may use a free slot of the chain.
    Fill,
    /// It may use a free slot of the chain, or append the block at this offset.
    Lengthen(u64),
    /// The block was appended.
    Lengthened,
}

/// A block of a chain.
pub trait Link: Pod {
    /// Returns the word that contains the offset of the next block.
    fn next(&self) -> &PmU64;

    /// Returns the offset of a block that a word contains; 0 at the end of the chain.
    fn offset_in(word: u64) -> u64;

    /// Returns `word` with its offset replaced.
    fn with_offset(word: u64, offset: u64) -> u64;

    /// Returns whether the block contains no record.
    fn is_empty<M: Medium>(&self, m: &M) -> bool;

    /// Initialises a new block, durably: it is empty, and the end of a chain.
    fn clear<M: Medium>(&self, m: &M);
}

/// Returns the blocks of the chain whose first block `first` refers to.
pub fn links<'a, L: Link, M: Medium>(
    m: &'a M,
    first: &PmU64,
) -> impl Iterator<Item = &'a L> + 'a + use<'a, L, M> {
    let mut word = m.load(first);
    std::iter::from_fn(move || {
        let link = at::<L, M>(m, word)?;
        word = m.load(link.next());
        Some(link)
    })
    .take(CHAIN_MAX)
}

/// Returns the block that a word refers to. Returns `None` at the end of the chain, and if a block
/// there would end outside the region.
fn at<L: Link, M: Medium>(m: &M, word: u64) -> Option<&L> {
    match L::offset_in(word) {
        0 => None,
        offset => m.at::<L>(offset),
    }
}

/// Returns the offsets of the blocks of a chain.
pub fn blocks<L: Link, M: Medium>(m: &M, first: &PmU64) -> Vec<u64> {
    links::<L, M>(m, first).map(|link| m.offset_of(link)).collect()
}

/// Checks that a chain ends, so that [`links`] returns all of its blocks.
///
/// # Errors
/// `Damaged`.
pub fn ensure_ends<L: Link, M: Medium>(m: &M, first: &PmU64) -> Result<()> {
    let mut cell = first;
    // `CHAIN_MAX` blocks, and the end.
    for _ in 0..=CHAIN_MAX {
        let offset = L::offset_in(m.load(cell));
        if offset == 0 {
            return Ok(());
        }
        let Some(link) = m.at::<L>(offset) else { break };
        cell = link.next();
    }
    Err(Error::damaged(m.offset_of(cell), "the chain of a segment does not end"))
}

/// Unlinks the empty blocks of a chain, durably, and retires them. Returns how many. No other
/// thread may change the chain meanwhile.
pub fn trim<L: Link, M: Medium>(pool: &Pool<M>, first: &PmU64, guard: &Guard<'_>) -> u64 {
    let m = pool.medium();
    let (mut cell, mut trimmed) = (first, 0);
    for _ in 0..CHAIN_MAX {
        let word = m.load(cell);
        let Some(link) = at::<L, M>(m, word) else { break };
        if link.is_empty(m) {
            m.store(cell, L::with_offset(word, L::offset_in(m.load(link.next()))));
            m.note(Note::Harmless(
                "needed once the block is used for something else: \
                 `an_empty_block_of_a_chain_is_unlinked_for_good`",
            ));
            m.persist(cell);
            pool.retire(L::offset_in(word), size_of::<L>() as u64, guard);
            trimmed += 1;
        } else {
            cell = link.next();
        }
    }
    trimmed
}

/// Finds a block with a free slot, which `free_slot` returns, in a chain that no other thread
/// changes. If no slot is free and `chain` allows it, appends a block.
pub fn find_room<'a, L: Link, M: Medium>(
    m: &'a M,
    first: &'a PmU64,
    chain: &mut Chain,
    free_slot: impl Fn(&L) -> Option<usize>,
) -> Option<(&'a L, usize)> {
    let mut cell = first;
    for _ in 0..CHAIN_MAX {
        let word = m.load(cell);
        let offset = match L::offset_in(word) {
            // The end of the chain: append an empty block. After a crash it is empty and reachable.
            0 => {
                let Chain::Lengthen(offset) = *chain else { return None };
                m.at::<L>(offset)?.clear(m);
                m.store(cell, L::with_offset(word, offset));
                m.note(Note::Harmless(
                    "needed by other users of the chain: \
                     `a_longer_chain_is_durable_whatever_comes_of_the_record`",
                ));
                m.persist(cell);
                *chain = Chain::Lengthened;
                offset
            }
            offset => offset,
        };
        let link = m.at::<L>(offset)?;
        if let Some(slot) = free_slot(link) {
            return Some((link, slot));
        }
        cell = link.next();
    }
    None
}

/// Writes records into new blocks of up to `slots` records each. `write` writes one block, given
/// the offset of the next one, and flushes it without a fence. Returns the offset of the first
/// block, or 0 if there are no records.
///
/// # Errors
/// `NoSpace`; nothing is allocated then.
pub fn build<L: Link, M: Medium, R>(
    pool: &Pool<M>,
    records: &[R],
    slots: usize,
    allocate: impl Fn() -> Result<u64>,
    write: impl Fn(&L, &[R], u64),
) -> Result<u64> {
    let mut blocks: Vec<u64> = Vec::new();
    for _ in records.chunks(slots) {
        match allocate() {
            Ok(block) => blocks.push(block),
            Err(error) => {
                blocks.into_iter().for_each(|block| pool.free_unpublished(block));
                return Err(error);
            }
        }
    }
    for (i, records) in records.chunks(slots).enumerate() {
        let link = pool.medium().at::<L>(blocks[i]).expect("just allocated");
        write(link, records, blocks.get(i + 1).copied().unwrap_or(0));
    }
    Ok(blocks.first().copied().unwrap_or(0))
}

/// Calls `each` with every block of a chain that may be damaged. Ends the chain at a word that
/// refers to no block, or to an earlier block of the same chain.
pub fn rebuild<L: Link, M: Medium>(m: &M, first: &PmU64, mut each: impl FnMut(&L)) {
    let mut seen = HashSet::new();
    let mut cell = first;
    while seen.len() < CHAIN_MAX {
        let word = m.load(cell);
        let offset = L::offset_in(word);
        if offset == 0 {
            return;
        }
        let Some(link) = m.at::<L>(offset).filter(|_| seen.insert(offset)) else {
            m.store(cell, L::with_offset(word, 0));
            m.flush(cell);
            return;
        };
        each(link);
        cell = link.next();
    }
}
