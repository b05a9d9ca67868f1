//! Freeing what a dropped map has left.

use evermap_index::Visitor;
use evermap_index::key::BytesRef;
use evermap_index::record::OFFSET_MASK;
use evermap_pm::{Medium, Pool};

use crate::map::inner::MapInner;
use crate::record::{Record, tombstone_of};

/// Records that are looked up under one guard.
const LOOKED_UP: usize = 256;

/// What a map has in the heap.
#[derive(Default)]
struct Contents {
    /// The offsets of the blocks of its indexes.
    blocks: Vec<u64>,
    /// The words of its records.
    records: Vec<u64>,
    /// Whether there are blocks that may be part of something else.
    is_unsure: bool,
}

impl Visitor for Contents {
    fn block(&mut self, offset: u64) {
        self.blocks.push(offset);
    }

    fn unrecognised_block(&mut self, _: u64) {
        self.is_unsure = true;
    }

    fn word(&mut self, word: u64) {
        self.records.push(word);
    }
}

/// Frees all blocks of a map that nothing leads to and no thread uses, and makes its records
/// unreadable. Returns `true` if all were freed. O(records), 8 bytes of memory each.
///
/// A damaged word may lead to a part of another map, and what is freed is used again. So if
/// anything is wrong with the map, nothing is freed: the next sweep finds out what is in use.
pub(super) fn free_everything<M: Medium>(pool: &Pool<M>, map: &MapInner<M>) -> bool {
    let Some(Contents { mut blocks, records, .. }) = sound_contents(pool, map) else {
        return false;
    };
    let tombstone = tombstone_of(pool.generation());
    for &word in &records {
        // The descriptor of another map may be stored where this one was, and the records of this
        // one would verify there.
        if let Ok(record) = Record::at(pool.medium(), word) {
            record.set_tombstone(tombstone);
        }
    }
    blocks.extend(records.iter().map(|word| word & OFFSET_MASK));
    blocks.iter().for_each(|&block| pool.free_unpublished(block));
    true
}

/// Returns what a map has in the heap, or `None` if anything is wrong with it.
fn sound_contents<M: Medium>(pool: &Pool<M>, map: &MapInner<M>) -> Option<Contents> {
    let mut contents = Contents { blocks: vec![map.header.descriptor()], ..Contents::default() };
    map.visit_order(&mut |block| contents.blocks.push(block)).ok()?;
    map.index.visit(&mut contents).ok()?;
    contents.blocks.extend(map.saved.blocks(pool)?);
    let (known, exact) = map.counters.totals();
    let sound = !contents.is_unsure
        && (!exact || known.records == contents.records.len() as u64)
        && map.index.check().is_empty()
        && map.order.as_ref().is_none_or(|order| order.is_all_of(map.header.seed()))
        && are_distinct(&contents)
        && contents.records.chunks(LOOKED_UP).all(|words| are_bound(pool, map, words));
    sound.then_some(contents)
}

/// Returns `true` if no block is in use twice.
fn are_distinct(contents: &Contents) -> bool {
    let records = contents.records.iter().map(|word| word & OFFSET_MASK);
    let mut all: Vec<_> = contents.blocks.iter().copied().chain(records).collect();
    all.sort_unstable();
    all.windows(2).all(|pair| pair[0] != pair[1])
}

/// Returns `true` if these are the records that the keys in them are bound to.
fn are_bound<M: Medium>(pool: &Pool<M>, map: &MapInner<M>, words: &[u64]) -> bool {
    let (guard, mut key) = (pool.pin(), Vec::new());
    words.iter().all(|&word| {
        key.clear();
        let record = Record::at(pool.medium(), word);
        let read =
            record.is_ok_and(|record| !record.is_unbound() && record.append_key(&mut key).is_ok());
        let key = BytesRef::new(&key, map.header.seed());
        read && matches!(map.index.get(key, &guard), Ok(Some(bound)) if bound == word)
    })
}
