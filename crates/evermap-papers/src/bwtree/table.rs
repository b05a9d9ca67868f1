//! The mapping table: the word of each node, by its id, and which ids are free.
//!
//! The ids of nodes never change, so a node is changed by one store of its word, whatever refers to
//! it. The table grows by segments, each twice as large as the last.
//!
//! Which ids are free is only known in ordinary memory. When an opener needs the first id, it looks
//! at all words: an id without a word is free. A process may have died after it had given a word to
//! an id and before a node referred to that, or after the last reference was gone; such words have
//! a bit that says so, and these ids are searched for. So an open takes no time, and no id is lost.

use std::collections::VecDeque;

use evermap_pm::medium::Note;
use evermap_pm::sync::{Mutex, MutexGuard, Rank};
use evermap_pm::{Error, GracePeriod, Medium, PmU64, Result};

use super::BwTree;
use super::access::Search;
use super::layout::{FIRST_SEGMENT, IDS, Link, SEGMENTS};

/// Why a crash may take it back that the word of an id was removed.
pub(super) const LOST_IDS: &str = "the next opener finds out again that no node refers to the id";

/// Why it is not noticed that a segment may come into use with other words than zeros.
const NO_WORDS: &str = "needed in reused memory: `a_segment_comes_into_use_without_words`";

/// Which ids are free.
#[derive(Default)]
pub(super) struct Ids {
    /// The first id that was never used.
    next: u64,
    free: Vec<u64>,
    /// Ids of nodes that are gone, but may be known to other threads until the grace period is
    /// over.
    waiting: VecDeque<(GracePeriod, u64)>,
}

/// Returns the number of a segment, and the position in it, of the word of an id.
fn place_of(id: u64) -> (usize, u64) {
    let counted = id + FIRST_SEGMENT;
    let segment = (counted / FIRST_SEGMENT).ilog2() as usize;
    (segment, counted - segment_words(segment))
}

/// Returns the number of words of a segment.
pub(super) fn segment_words(segment: usize) -> u64 {
    FIRST_SEGMENT << segment
}

/// Writes a segment without words to a new block, and flushes it.
pub(super) fn write_segment<M: Medium>(m: &M, block: u64, segment: usize) {
    let cells: &[PmU64] = m.slice(block, segment_words(segment)).expect("just allocated");
    cells.iter().for_each(|cell| m.store(cell, 0));
    m.note(Note::Harmless(NO_WORDS));
    m.flush(cells);
}

impl<M: Medium, const ITEMS: usize> BwTree<M, ITEMS> {
    /// Returns the word of a node.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline(always)]
    pub(super) fn cell(&self, id: u64) -> Result<&PmU64> {
        let (m, root) = (self.medium(), self.root_block()?);
        let cell = || {
            let (segment, position) = (0 < id && id < IDS).then(|| place_of(id))?;
            let at = m.load(&root.segments[segment]);
            m.at::<PmU64>(at.checked_add(8 * position)?).filter(|_| at != 0)
        };
        cell().ok_or_else(|| Error::damaged(self.memory.root, "there is no such id in a tree"))
    }

    /// Returns the offsets and the sizes of the segments of the mapping table, in bytes.
    pub(super) fn segments(&self) -> Result<impl Iterator<Item = (u64, u64)>> {
        let (m, root) = (self.medium(), self.root_block()?);
        let segments = root.segments.iter().map(|cell| m.load(cell)).enumerate();
        let present = segments.take_while(|&(_, at)| at != 0);
        Ok(present.map(|(segment, at)| (at, 8 * segment_words(segment))))
    }

    /// Finds out which ids are free, if that is not known yet. Returns `false` if another thread is
    /// just doing that. Before it is known, no node is split or merged.
    pub(super) fn knows_ids(&self) -> Result<bool> {
        Ok(self.ids.get().is_some() || self.find_ids()?)
    }

    #[cold]
    fn find_ids(&self) -> Result<bool> {
        let Ok(_finding) = self.finding.try_lock() else { return Ok(false) };
        if self.ids.get().is_none() {
            let found = self.look_for_ids()?;
            let _ = self.ids.set(Mutex::ranked(Rank::TreeIds, found));
        }
        Ok(true)
    }

    /// Looks at every word of the mapping table.
    fn look_for_ids(&self) -> Result<Ids> {
        let m = self.medium();
        // An earlier process may have stored the offset of a segment, and died before it was
        // durable. Words of that segment are referred to from now on.
        m.note(Note::Harmless(
            "needed where the process died then: \
             `a_segment_is_durable_before_its_ids_are_used`",
        ));
        m.persist(self.root_block()?);
        let (mut ids, mut all) = (Ids { next: 1, ..Ids::default() }, 1);
        for (at, bytes) in self.segments()? {
            let damaged = || Error::damaged(at, "there is no segment of the mapping table");
            let cells: &[PmU64] = m.slice(at, bytes / 8).ok_or_else(damaged)?;
            let first = if all == 1 { 1 } else { 0 };
            for cell in &cells[first..] {
                let word = Link(m.load(cell));
                if word.is_none() || word.may_be_unlinked() && !self.settle(all, cell)? {
                    ids.free.push(all);
                } else {
                    ids.next = all + 1;
                }
                all += 1;
            }
        }
        // The greatest ones were never used, as far as it matters.
        ids.free.retain(|&id| id < ids.next);
        ids.free.reverse();
        Ok(ids)
    }

    /// Decides whether any node refers to an id that an earlier process has left in doubt. If not,
    /// removes its word.
    fn settle(&self, id: u64, cell: &PmU64) -> Result<bool> {
        let m = self.medium();
        let word = self.word_in(cell);
        // If it cannot be read, that is damage, or its space was used for something else.
        let linked = self.node_of(id, cell, word, None).and_then(|node| {
            let (low, level) = (node.base.low(m), node.level());
            let root = self.root_node()?;
            if level >= root.level() {
                return Ok(level == root.level() && self.is_beside(id, &low, level)?);
            }
            let above = self.descend(&Search::at(&low), level + 1)?;
            let is_child = above.target().intent.is_some_and(|(_, child)| child == id);
            Ok(is_child || self.is_beside(id, &low, level)?)
        });
        match linked {
            Ok(false) => m.store(cell, 0),
            Ok(true) if word.0 & Link::NEW != 0 => self.clear_new(cell, word),
            _ => {}
        }
        if m.load(cell) == 0 {
            m.note(Note::Harmless(LOST_IDS));
            m.flush(cell);
        }
        Ok(!matches!(linked, Ok(false)))
    }

    /// Returns `true` if a search for the least key of a node finds the node.
    fn is_beside(&self, id: u64, low: &[u8], level: u8) -> Result<bool> {
        Ok(self.descend(&Search::at(low), level)?.target().id == id)
    }

    /// Removes the bit of a new node, to which another one refers now.
    pub(super) fn clear_new(&self, cell: &PmU64, word: Link) {
        // Fails if the node was changed: then the bit is gone.
        let _ = self.medium().cas_transient(cell, word.0, word.0 & !Link::NEW);
    }

    fn ids(&self) -> Option<MutexGuard<'_, Ids>> {
        self.ids.get()?.lock().ok()
    }

    /// Returns an id that no node has.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn new_id(&self) -> Result<u64> {
        let m = self.medium();
        let full = || Error::no_space("the mapping table of a tree", FIRST_SEGMENT);
        let mut ids = self.ids().ok_or_else(full)?;
        while let Some((period, id)) = ids.waiting.front().copied()
            && self.memory.pool.epoch().is_over(period)
        {
            ids.waiting.pop_front();
            let cell = self.cell(id)?;
            m.store(cell, 0);
            m.note(Note::Harmless(LOST_IDS));
            m.flush(cell);
            ids.free.push(id);
        }
        if let Some(id) = ids.free.pop() {
            return Ok(id);
        }
        let id = ids.next;
        let (segment, _) = place_of(id);
        if segment >= SEGMENTS {
            return Err(full());
        }
        let cell = &self.root_block()?.segments[segment];
        if m.load(cell) == 0 {
            let block = self.memory.pool.allocate_fixed(8 * segment_words(segment))?;
            write_segment(m, block, segment);
            m.note(Note::Harmless(NO_WORDS));
            m.fence();
            evermap_index::recipe::commit(m, cell, block);
        }
        ids.next += 1;
        Ok(id)
    }

    /// Gives back an id that was never referred to.
    pub(super) fn discard_id(&self, id: u64) {
        if let Some(mut ids) = self.ids() {
            ids.free.push(id);
        }
    }

    /// Gives back an id that no node refers to any more, when no thread knows it any more.
    pub(super) fn retire_id(&self, id: u64) {
        let period = self.memory.pool.epoch().start();
        if let Some(mut ids) = self.ids() {
            ids.waiting.push_back((period, id));
        }
    }

    /// Returns the number of ids that were ever used.
    #[cfg(test)]
    pub(super) fn used_ids(&self) -> u64 {
        self.ids().map_or(0, |ids| ids.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_has_a_place_of_its_own() {
        let mut due = (0, 0);
        for id in 0..100_000 {
            assert_eq!(place_of(id), due);
            due.1 += 1;
            if due.1 == segment_words(due.0) {
                due = (due.0 + 1, 0);
            }
        }
        let last = place_of(IDS - 1);
        assert_eq!(last, (SEGMENTS - 1, segment_words(SEGMENTS - 1) - 1));
    }
}
