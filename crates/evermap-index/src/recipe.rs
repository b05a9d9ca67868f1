//! Making a concurrent index persistent: the conditions of RECIPE.
//!
//! After "RECIPE: Converting Concurrent DRAM Indexes to Persistent-Memory Indexes" (Lee, Mohan, Kashyap, Kim,
//! Chidambaram; SOSP 2019). An index whose readers already tolerate every state that its writers go through also
//! tolerates a crash in each of them, if what each step builds on is durable first. Which steps there are decides
//! what a conversion takes:
//!
//! | condition | holds when | what makes it persistent |
//! |---|---|---|
//! | 1 | every change becomes visible by one store of 8 bytes | [`Preparation`], or [`commit`] where nothing is prepared |
//! | 2 | a change is several such stores, and any writer that meets it half done completes it | each step committed, and a word that was loaded made durable before somebody acts on it: to be called `help` |
//! | 3 | a change is several such stores, which only the holder of a lock completes | each step committed, and whoever gets the lock of a half done change after a crash completes it: to be called `resume` |
//!
//! Only the first is needed by the indexes there are. The other two have their place here.
//!
//! # Which condition an index meets
//!
//! List the stores of a change that others can see, in their order; building something that nothing names yet
//! does not count. If there is one, it is condition 1. Otherwise ask of each beginning of the list whether somebody
//! who starts there finds every key that was there before. If not, no flush helps, and the algorithm has to
//! change. If so, ask whether the existing code of a later writer does the rest: that is condition 2; if it only
//! waits for the lock's holder, it is condition 3.
//!
//! # Converting an index that meets condition 1
//!
//! 1. Make each word that others can see a [`PmU64`], and references to nodes offsets. Whoever allocates a node
//!    frees it again where it is not published; after a crash [reachability](evermap_pm::heap) does.
//! 2. Route each change through a [`Preparation`]: name the word whose store makes it visible, store the rest,
//!    and [commit](Preparation::commit). What shares a cache line with that word costs nothing, because a line
//!    becomes durable in program order: put what changes together into one line, and a change is one flush and
//!    one fence.
//! 3. Locks are no part of this. Store them by [`store_transient`](Medium::store_transient), with the
//!    [generation](evermap_pm::Pool::generation) in the same word: a lock of an earlier opener is no lock.
//! 4. Flush what a node that was found says before acting on it for the first time after opening: the process
//!    that stored it may have died before it was durable.
//! 5. Retire what was unlinked only after `commit` has returned.
//!
//! # What readers may see
//!
//! A store is visible before it is durable. A reader that acts on it in between (answers a request, say) may see a
//! crash take it back. The paper allows that; Evermap does not. There are three ways out, and each index says
//! which it takes:
//!
//! * *A copy.* Readers follow a word that need not persist, and that is stored once `commit` has returned.
//!   The best one where it is possible, because no reader ever waits.
//! * *A lock.* Writers hold a lock that readers look at until `commit` has returned.
//! * *Help.* Readers flush what they are about to return: condition 2.
//!
//! # Example
//!
//! A stack: a node is written, then the word that names the top is stored. Nothing but the two calls of
//! `Preparation` tells it from one in ordinary memory. The simulator crashes it everywhere:
//!
//! ```
//! use evermap_index::recipe::Preparation;
//! use evermap_pm::sim::{ImageConfig, Sim, for_each_image};
//! use evermap_pm::{Medium, PmU64, pod};
//! use std::ops::ControlFlow;
//!
//! pod! {
//!     struct Node: 64 {
//!         value: PmU64,
//!         below: PmU64,
//!         unused: [PmU64; 6],
//!     }
//! }
//!
//! fn push(sim: &Sim, node: u64, value: u64) -> Option<()> {
//!     let (top, cells) = (sim.at::<PmU64>(0)?, sim.at::<Node>(node)?);
//!     let mut change = Preparation::new(sim, top);
//!     change.store(&cells.value, value);
//!     change.store(&cells.below, sim.load(top));
//!     change.commit(node);
//!     Some(())
//! }
//!
//! let sim = Sim::new(4096)?;
//! sim.grow(4096)?;
//! for value in 1..5 {
//!     push(&sim, value * 64, value).expect("inside the medium");
//! }
//! let mut images = 0;
//! for_each_image(&sim.trace(), &ImageConfig::default(), |image| {
//!     let crashed = Sim::from_image(image.bytes, 4096).unwrap();
//!     let mut offset = crashed.at::<PmU64>(0).map_or(0, |top| crashed.load(top));
//!     let mut expected = offset / 64;
//!     while let Some(node) = crashed.at::<Node>(offset).filter(|_| offset != 0) {
//!         assert_eq!(crashed.load(&node.value), expected);
//!         (offset, expected) = (crashed.load(&node.below), expected - 1);
//!     }
//!     assert_eq!(expected, 0, "the stack ends early");
//!     images += 1;
//!     ControlFlow::Continue(())
//! });
//! assert!(images > 8);
//! # Ok::<(), evermap_pm::Error>(())
//! ```

use evermap_pm::medium::LINE;
use evermap_pm::{Medium, PmU64};

/// A change by condition 1, under way: everything stored through it is durable before the one store that commits it.
///
/// The caller makes sure that nobody else changes the word that commits, and that nobody reads what is prepared.
#[must_use = "nothing is visible until the change is committed"]
pub struct Preparation<'m, M: Medium> {
    medium: &'m M,
    /// The word whose store commits the change.
    commit: &'m PmU64,
    /// The last word stored outside the line of `commit`: its line is not flushed yet.
    last: Option<&'m PmU64>,
    /// Whether a line was flushed that `commit` has to wait for.
    flushed: bool,
}

impl<'m, M: Medium> Preparation<'m, M> {
    /// Begins a change that a store to `commit` will commit.
    #[inline(always)]
    pub fn new(medium: &'m M, commit: &'m PmU64) -> Self {
        Preparation { medium, commit, last: None, flushed: false }
    }

    /// Stores a word that is not visible before the commit. Consecutive stores to one line cost one flush, and
    /// those to the line of the committing word none.
    #[inline(always)]
    #[track_caller]
    pub fn store(&mut self, cell: &'m PmU64, value: u64) {
        self.medium.store(cell, value);
        // The committing word's line becomes durable in program order, so that this cannot be missing when the
        // commit is there.
        if share_line(cell, self.commit) {
            return;
        }
        if let Some(last) = self.last.replace(cell)
            && !share_line(last, cell)
        {
            self.flush(last);
        }
    }

    /// Flushes what was stored to `what` by other means.
    #[inline(always)]
    #[track_caller]
    pub fn include<T: ?Sized>(&mut self, what: &T) {
        self.medium.flush(what);
        self.flushed = true;
    }

    #[inline(always)]
    #[track_caller]
    fn flush(&mut self, cell: &PmU64) {
        self.medium.flush(cell);
        self.flushed = true;
    }

    /// Makes everything prepared durable, then stores `value` to the committing word and makes that durable too:
    /// when this returns, no crash takes the change back.
    #[inline(always)]
    #[track_caller]
    pub fn commit(mut self, value: u64) {
        if let Some(last) = self.last.take() {
            self.flush(last);
        }
        if self.flushed {
            order(self.medium);
        }
        commit(self.medium, self.commit, value);
    }
}

/// What the commit makes visible must not be lost where the commit is not. The simulator knows this fence by its
/// place here, and the one after the commit by the place of the caller: so it can leave out either alone.
#[inline(always)]
fn order<M: Medium>(medium: &M) {
    medium.fence();
}

/// Commits a change by condition 1 that needs no preparation, or whose preparation is durable: stores `value` and
/// makes that durable before it returns.
#[inline(always)]
#[track_caller]
pub fn commit<M: Medium>(medium: &M, cell: &PmU64, value: u64) {
    medium.store(cell, value);
    medium.persist(cell);
}

#[inline(always)]
fn share_line(one: &PmU64, other: &PmU64) -> bool {
    let line = |cell: &PmU64| std::ptr::from_ref(cell).addr() as u64 / LINE;
    line(one) == line(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use evermap_pm::sim::{Event, Sim};

    fn sim() -> Sim {
        let sim = Sim::new(4096).unwrap();
        sim.grow(4096).unwrap();
        sim.checkpoint();
        sim
    }

    fn cell(sim: &Sim, offset: u64) -> &PmU64 {
        sim.at(offset).unwrap()
    }

    /// What was recorded: `s` and the line of a store, `f` and that of a flush, `|` for a fence.
    fn story(sim: &Sim) -> String {
        let trace = sim.trace();
        let steps = trace.records().iter().map(|record| match record.event {
            Event::Store { words, .. } => format!("s{}", trace.words(words)[0].offset / LINE),
            Event::Flush { offset, .. } => format!("f{}", offset / LINE),
            Event::Fence => "|".into(),
            other => format!("{other:?}"),
        });
        steps.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn one_line_takes_one_flush_and_one_fence() {
        let sim = sim();
        let mut change = Preparation::new(&sim, cell(&sim, 8));
        change.store(cell(&sim, 16), 1);
        change.store(cell(&sim, 24), 2);
        change.commit(3);
        assert_eq!(story(&sim), "s0 s0 s0 f0 |");
    }

    #[test]
    fn other_lines_are_durable_before_the_commit_is_stored() {
        let sim = sim();
        let mut change = Preparation::new(&sim, cell(&sim, 8));
        change.store(cell(&sim, 64), 1);
        change.store(cell(&sim, 72), 2);
        change.store(cell(&sim, 16), 3);
        change.store(cell(&sim, 128), 4);
        sim.store(cell(&sim, 192), 5);
        change.include(cell(&sim, 192));
        change.commit(6);
        assert_eq!(story(&sim), "s1 s1 s0 s2 f1 s3 f3 f2 | s0 f0 |");
    }

    #[test]
    fn a_store_alone() {
        let sim = sim();
        commit(&sim, cell(&sim, 8), 6);
        assert_eq!(story(&sim), "s0 f0 |");
    }
}
