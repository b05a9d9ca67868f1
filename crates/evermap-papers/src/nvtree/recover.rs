//! Opening: the list of leaves is all there is. Only a leaf knows where the next one is, so one
//! thread follows the list; the leaves are recovered by several.

use std::cmp::Ordering;
use std::thread::available_parallelism;

use evermap_index::FOUND_LATE;
use evermap_index::fresh::Fresh;
use evermap_index::node_lock::Lock;
use evermap_index::ordered::memory::TreeMemory;
use evermap_pm::medium::Note;
use evermap_pm::{Error, Medium, Result, parallel};

use super::key::Brief;
use super::layout::{self, Rest, Root, Visible};
use super::leaf::{Item, Leaf};
use super::upper::LeafEntry;
use super::{Form, mistakes};

/// Leaves that a thread recovers, one after the other.
const TOGETHER: usize = 1 << 10;

/// Walks over all leaves, recovers each, and returns them in order. O(leaves). There are up to
/// `threads` threads, or as many as there are processors.
///
/// An earlier process may have died before the first line of a leaf was durable that it had stored,
/// or an entry that it had changed in place. Everything else is durable before that line says so,
/// which leads to it or counts it.
///
/// # Errors
/// `Damaged`: a leaf is none, or not behind the one before it.
pub(super) fn leaves<M: Medium, F: Form>(
    memory: &TreeMemory<M>,
    threads: Option<usize>,
) -> Result<Vec<LeafEntry>> {
    let (m, root) = (memory.medium(), memory.root_block::<Root>()?);
    m.note(Note::Scope("recovery of the leaves"));
    let list = list::<M, F>(m, m.load(&root.head))?;
    let parts = list.len().div_ceil(TOGETHER);
    let processors = || available_parallelism().map_or(1, usize::from);
    let threads = if parts == 1 { 1 } else { threads.unwrap_or_else(processors) };
    let part = |part| recover_some::<M, F>(memory, root, &list, part * TOGETHER);
    let parts: Result<Vec<_>> = parallel(threads, parts, part).into_iter().collect();
    Ok(parts?.concat())
}

/// Returns the offsets of the leaves in order.
fn list<M: Medium, F: Form>(m: &M, head: u64) -> Result<Vec<u64>> {
    let most = (m.len() / layout::leaf_bytes(F::LEAF)) as usize;
    let (mut list, mut next) = (Vec::new(), head);
    while next != 0 || list.is_empty() {
        if list.len() == most {
            return Err(Error::damaged(next, "the leaves of a tree do not end"));
        }
        list.push(next);
        next = m.load(&Leaf::at(m, next, F::LEAF)?.header.sibling);
    }
    Ok(list)
}

/// Recovers the leaves of a list from `start` on, and makes them durable; with the first of them
/// the root block.
fn recover_some<M: Medium, F: Form>(
    memory: &TreeMemory<M>,
    root: &Root,
    list: &[u64],
    start: usize,
) -> Result<Vec<LeafEntry>> {
    let m = memory.medium();
    let before = start.checked_sub(1).map(|before| Leaf::at(m, list[before], F::LEAF));
    let mut before = before.transpose()?.map(|leaf| leaf.low(m));
    if start == 0 {
        m.note(Note::Harmless(FOUND_LATE));
        m.flush(root);
    }
    let mut leaves = Vec::new();
    for &offset in list[start..].iter().take(TOGETHER) {
        let leaf = Leaf::at(m, offset, F::LEAF)?;
        let low = leaf.low(m);
        ensure_after(m, before.as_ref(), &low, offset)?;
        recover(memory, &leaf)?;
        leaves.push((low, offset));
        before = Some(low);
    }
    // A fence is for what the same thread has flushed.
    m.note(Note::Harmless(FOUND_LATE));
    m.fence();
    Ok(leaves)
}

/// Returns an error unless a leaf with the least key `low` can follow one with the least key
/// `before`.
fn ensure_after<M: Medium>(m: &M, before: Option<&Brief>, low: &Brief, offset: u64) -> Result<()> {
    let follows = match before {
        None => low.rest == Rest::NONE,
        Some(before) => {
            let is_key = low.rest != Rest::NONE && low.rest != Rest::END;
            is_key && before.compare(m, low)? == Ordering::Less
        }
    };
    match follows {
        true => Ok(()),
        false => Err(Error::damaged(offset, "a leaf of a tree is not behind the one before it")),
    }
}

/// Makes a leaf one of this opener. The caller makes it durable by a fence.
fn recover<M: Medium>(memory: &TreeMemory<M>, leaf: &Leaf<'_>) -> Result<()> {
    let (m, header) = (memory.medium(), leaf.header);
    let count = leaf.count(m)?;
    m.note(Note::Harmless(FOUND_LATE));
    m.flush(header);
    if count == leaf.entries.len() {
        // An entry may have been changed in place.
        m.note(Note::Harmless(FOUND_LATE));
        m.flush(leaf.entries);
    }
    if !m.mutant(mistakes::TRUST_VISIBLE) {
        m.store_transient(&header.visible, Visible::new(count).0);
    }
    m.store_transient(&header.lock, Lock::fresh(memory.generation).0);
    Ok(())
}

/// Writes the only leaf of an empty tree to a fresh block, and flushes it.
///
/// # Errors
/// `NoSpace`.
pub(super) fn write_first<M: Medium, F: Form>(
    memory: &TreeMemory<M>,
    fresh: &mut Fresh<'_, M>,
) -> Result<LeafEntry> {
    let block = fresh.allocate_fixed(layout::block_bytes(&memory.pool, F::LEAF))?;
    write::<M, F>(memory, block, &Brief::FIRST, 0, &[]);
    Ok((Brief::FIRST, block))
}

/// Writes a leaf with the keys of `items` to a new block, and flushes it.
pub(super) fn write<M: Medium, F: Form>(
    memory: &TreeMemory<M>,
    block: u64,
    low: &Brief,
    sibling: u64,
    items: &[Item<'_>],
) {
    let m = memory.medium();
    m.store(&leaf_cell(m, block).meta, layout::meta(F::LEAF));
    let leaf = Leaf::at(m, block, F::LEAF).expect("just allocated");
    let header = leaf.header;
    m.store_transient(&header.lock, Lock::fresh(memory.generation).0);
    m.store(&header.count, items.len() as u64);
    m.store(&header.sibling, sibling);
    m.store(&header.low[0], low.head[0]);
    m.store(&header.low[1], low.head[1]);
    m.store(&header.low_rest, low.rest.0);
    m.store_transient(&header.visible, Visible::new(items.len()).0);
    for (at, item) in items.iter().enumerate() {
        leaf.write(m, at, &item.key, Some(item.word));
    }
    m.flush(header);
    m.flush(&leaf.entries[..items.len()]);
}

fn leaf_cell<M: Medium>(m: &M, block: u64) -> &layout::Header {
    m.at(block).expect("just allocated")
}
