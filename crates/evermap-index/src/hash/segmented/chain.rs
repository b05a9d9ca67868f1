//! The chain of a segment: blocks for records that would have no slot even if the segment were
//! split.

use std::collections::HashSet;

use evermap_pm::medium::Note;
use evermap_pm::{Error, Guard, Medium, PmU64, Pod, Pool, Result};

use super::apply::Chain;

/// The number of blocks up to which a chain is followed: a bound on what a damaged one can cost.
pub(crate) const CHAIN_MAX: usize = 1 << 20;

/// A block of a chain.
pub(crate) trait Link: Pod {
    /// The word that leads to the next block.
    fn next(&self) -> &PmU64;

    /// Returns the offset in a word that leads to a block, 0 for the end.
    fn offset_in(word: u64) -> u64;

    /// Returns `word` with another offset.
    fn with_offset(word: u64, offset: u64) -> u64;

    /// Returns whether there is no record in it.
    fn is_empty<M: Medium>(&self, m: &M) -> bool;

    /// Makes a new block an empty one at the end of a chain, durably.
    fn clear<M: Medium>(&self, m: &M);
}

/// Returns the blocks of the chain that `first` leads to.
pub(crate) fn links<'a, L: Link, M: Medium>(
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

/// Returns the block that a word leads to. Returns `None` at the end, and if there cannot be one.
fn at<L: Link, M: Medium>(m: &M, word: u64) -> Option<&L> {
    match L::offset_in(word) {
        0 => None,
        offset => m.at::<L>(offset),
    }
}

/// Returns the offsets of a chain's blocks.
pub(crate) fn blocks<L: Link, M: Medium>(m: &M, first: &PmU64) -> Vec<u64> {
    links::<L, M>(m, first).map(|link| m.offset_of(link)).collect()
}

/// Checks that a chain has an end, so that [`links`] shows all of it.
///
/// # Errors
/// `Damaged`.
pub(crate) fn ensure_ends<L: Link, M: Medium>(m: &M, first: &PmU64) -> Result<()> {
    let mut cell = first;
    // Up to this number of blocks, and the end.
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

/// Unlinks the empty blocks of a chain, durably, and retires them. No other thread may use it.
pub(crate) fn trim<L: Link, M: Medium>(pool: &Pool<M>, first: &PmU64, guard: &Guard<'_>) {
    let m = pool.medium();
    let mut cell = first;
    for _ in 0..CHAIN_MAX {
        let word = m.load(cell);
        let Some(link) = at::<L, M>(m, word) else { return };
        if link.is_empty(m) {
            m.store(cell, L::with_offset(word, L::offset_in(m.load(link.next()))));
            m.note(Note::Harmless(
                "needed once the block is something else: \
                 `an_empty_block_of_a_chain_is_unlinked_for_good`",
            ));
            m.persist(cell);
            pool.retire(L::offset_in(word), size_of::<L>() as u64, guard);
        } else {
            cell = link.next();
        }
    }
}

/// Retires all blocks of a chain.
pub(crate) fn retire<L: Link, M: Medium>(pool: &Pool<M>, first: &PmU64, guard: &Guard<'_>) {
    for block in blocks::<L, M>(pool.medium(), first) {
        pool.retire(block, size_of::<L>() as u64, guard);
    }
}

/// Finds a block with a free slot, as `free_slot` tells, in a chain that no other thread changes.
/// Lengthens it by one block if there is none and `chain` allows that.
pub(crate) fn find_room<'a, L: Link, M: Medium>(
    m: &'a M,
    first: &'a PmU64,
    chain: &mut Chain,
    free_slot: impl Fn(&L) -> Option<usize>,
) -> Option<(&'a L, usize)> {
    let mut cell = first;
    for _ in 0..CHAIN_MAX {
        let word = m.load(cell);
        let offset = match L::offset_in(word) {
            // The end: lengthen it by an empty block. A crash leaves it empty, and reachable.
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

/// Writes records into new blocks of up to `slots` records each. `write` writes one block, whose
/// next one is at the given offset, and flushes it without a fence. Returns the offset of the first
/// block, 0 if there are no records.
///
/// # Errors
/// `NoSpace`; nothing is allocated then.
pub(crate) fn build<L: Link, M: Medium, R>(
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

/// Calls `each` with every block of a chain that may be damaged. A word that leads to no block, or
/// back to one of the chain, becomes its end.
pub(crate) fn rebuild<L: Link, M: Medium>(m: &M, first: &PmU64, mut each: impl FnMut(&L)) {
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

/// Frees the blocks of a chain that was never reachable.
pub(crate) fn free_unpublished<L: Link, M: Medium>(pool: &Pool<M>, first: &PmU64) {
    for block in blocks::<L, M>(pool.medium(), first) {
        pool.free_unpublished(block);
    }
}
