//! Invariants that all segmented indexes share.

use std::collections::HashMap;

use evermap_pm::Medium;

use super::map::SegmentMap;
use super::split::Directed;
use super::walk::walk;
use super::{HeaderOf, SegmentHeader, SegmentLayout, Segmented};
use crate::hash::hash_prefix::HashPrefix;

/// Implements [`Persistent::check`](crate::Persistent::check).
pub fn check<T: Segmented>(index: &T) -> Vec<String> {
    let mut problems = Vec::new();
    let mut found: HashMap<u64, HashPrefix> = HashMap::new();
    let walked = walk(
        index,
        |at| {
            let mut problems = Vec::new();
            if index.core().medium().load(at.segment.header().magic()) != HeaderOf::<T>::MAGIC {
                problems.push(format!("segment {:#x}: no magic word", at.offset));
            }
            index.check_segment(at.segment, at.prefix, &mut problems);
            (at.offset, at.prefix, problems)
        },
        |(offset, prefix, described)| {
            problems.extend(described);
            if let Some(first) = found.insert(offset, prefix) {
                problems
                    .push(format!("segment {offset:#x} serves two places: {first:?}, {prefix:?}"));
            }
            true
        },
    );
    if let Err(error) = walked {
        problems.push(error.to_string());
    }
    T::Map::check(index, &found, &mut problems);
    problems
}

/// Checks that every entry of a directory refers to the segment that a walk has `found` for the
/// hashes of the entry.
pub fn check_directory<T: Directed>(
    index: &T,
    found: &HashMap<u64, HashPrefix>,
    problems: &mut Vec<String>,
) {
    let depth = index.map().directory.depth();
    let latch = index.map().directory.share();
    for pattern in 0..1u64 << depth {
        let place = HashPrefix { depth, pattern };
        let entry = index.map().directory.first(place, &latch);
        let named = T::offset_in(entry);
        if !found.get(&named).is_some_and(|prefix| prefix.contains(place)) {
            problems
                .push(format!("directory entry {pattern} names {named:#x}, which is elsewhere"));
        }
        // A walk has visited all segments, so all of them were recovered.
        if entry != index.entry_for(named) {
            problems.push(format!("directory entry {pattern} is stale: {entry:#x}"));
        }
    }
}

/// The records of one segment that were checked so far.
pub struct SeenRecords {
    prefix: HashPrefix,
    words_are_records: bool,
    times: HashMap<(u64, u64), usize>,
}

impl SeenRecords {
    /// Creates an empty set for a segment with this prefix. Two records with the same key are
    /// duplicates, unless `words_are_records` and their words differ.
    pub fn new(prefix: HashPrefix, words_are_records: bool) -> Self {
        SeenRecords { prefix, words_are_records, times: HashMap::new() }
    }

    /// Checks that a record belongs to the segment, and that it is not a duplicate.
    pub fn check(&mut self, rank: u64, (key, word): (u64, u64), wrong: &mut impl FnMut(&str)) {
        if !self.prefix.covers(rank) {
            wrong("belongs to another segment");
        }
        let identity = (key, if self.words_are_records { word } else { 0 });
        let times = self.times.entry(identity).or_default();
        *times += 1;
        if *times > 1 {
            wrong("the same record is in another slot too");
        }
    }
}
