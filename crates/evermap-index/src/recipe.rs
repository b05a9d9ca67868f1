//! Making a concurrent index persistent: the conditions of RECIPE.
//!
//! After "RECIPE: Converting Concurrent DRAM Indexes to Persistent-Memory Indexes" (Lee, Mohan,
//! Kashyap, Kim, Chidambaram; SOSP 2019). If the readers of an index tolerate every intermediate
//! state of its writers, they also tolerate a crash in each of these states, provided that what
//! each step depends on is durable first. The steps of a change determine what a conversion
//! requires:
//!
//! 1. Every change becomes visible by one store of 8 bytes. It is made persistent by a
//!    [`Preparation`], or by [`commit`] if nothing is prepared.
//! 2. A change is several such stores, and any writer that finds it incomplete completes it. Each
//!    step is committed, by [`exchange_marked`], and a word that was loaded is made durable before
//!    it is acted on, by [`help`].
//! 3. A change is several such stores, which only the holder of a lock completes. Each step is
//!    committed. After a crash, the first thread that comes to the lock of an incomplete change
//!    completes it, by [`resume`].
//!
//! # Which condition an index meets
//!
//! List the stores of a change that other threads can see, in order; building something that
//! nothing names yet does not count. If there is one, it is condition 1. Otherwise consider each
//! prefix of the list: does a thread that starts in that state find every key that was there
//! before? If not, no flush helps, and the algorithm has to change. If so, does the existing code
//! of a later writer do the rest? Then it is condition 2. If it only waits for the holder of the
//! lock, it is condition 3.
//!
//! # Converting an index that meets condition 1
//!
//! 1. Make each word that other threads can see a [`PmU64`], and make references to nodes offsets.
//!    A thread that allocates a node and does not publish it frees it; after a crash,
//!    [reachability](evermap_pm::heap) decides what is free.
//! 2. Route each change through a [`Preparation`]: name the word whose store makes it visible,
//!    store the rest, and [commit](Preparation::commit). Stores to the cache line of that word cost
//!    nothing, because a line becomes durable in program order. So put what changes together into
//!    one line: then a change is one flush and one fence.
//! 3. Locks need none of this. Store them by [`store_transient`](Medium::store_transient), with the
//!    [generation](evermap_pm::Pool::generation) in the same word: a lock of an earlier opener is
//!    not locked.
//! 4. Flush the contents of a node before acting on them for the first time after opening: the
//!    process that stored them may have died before they were durable.
//! 5. Retire what was unlinked only after `commit` has returned.
//!
//! # Converting an index that meets condition 2
//!
//! 1. Make each step one [`exchange_marked`] of a word, and allocate and flush before it what the
//!    step refers to, as for condition 1.
//! 2. Pass each word that is loaded through [`help`] before anything depends on it, in writers and
//!    in readers. So no step is durable before those that it builds on, which may be of other
//!    threads.
//! 3. Let a writer find out from the words alone which step is next: it may be of another process.
//!    What only the first thread knows has to be in a word that the first step stores.
//! 4. If a step needs space, let every other change be possible without it.
//!
//! # Converting an index that meets condition 3
//!
//! 1. Let all words of a change, but for those of new nodes, be under one lock, which has the
//!    [generation](evermap_pm::Pool::generation): see [`Lock`]. So a thread knows that a change
//!    which it finds under a lock of an earlier opener is completed by nobody else.
//! 2. Before any thread reads what a lock protects, call [`resume`]. Its function finds out from
//!    the words which step was the last, repeats the flush of that one, and makes the others. It
//!    may be called again after another crash, so each step changes nothing if it has been made.
//!
//! The splits of P-Masstree and of FAST & FAIR are such changes.
//!
//! # What readers may see
//!
//! A store is visible before it is durable. If a reader acts on it in between (by answering a
//! request, say), a crash may take back what it has acted on. The paper allows that; Evermap does
//! not. There are three solutions, and each index documents which one it uses:
//!
//! * *A copy.* Readers follow a word that need not persist, and that is stored once `commit` has
//!   returned. This is the best solution if it is possible, because no reader ever waits.
//! * *A lock.* Writers hold a lock that readers check until `commit` has returned.
//! * *Help.* Readers flush what they are about to return, if it has the mark of a word that may not
//!   be durable: [`commit_marked`] and [`help`].
//!
//! # Example
//!
//! A stack: a node is written, then the word that names the top is stored. Only the two calls of
//! `Preparation` distinguish it from a stack in ordinary memory. The simulator crashes it at every
//! point:
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

use evermap_pm::medium::{LINE, Note};
use evermap_pm::region::Region;
use evermap_pm::{Medium, PmU64, Result};

use crate::lock_wait::LockWait;
use crate::node_lock::Lock;

/// A change by condition 1 that is in progress: everything stored through it is durable before the
/// one store that commits it.
///
/// The caller ensures that no other thread changes the word that commits, and that no thread reads
/// what is prepared.
#[must_use = "nothing is visible until the change is committed"]
pub struct Preparation<'m, M: Medium> {
    medium: &'m M,
    /// The word whose store commits the change.
    commit: &'m PmU64,
    /// The last word stored outside the line of `commit`; its line has not been flushed yet.
    last: Option<&'m PmU64>,
    /// `true` if a line was flushed that `commit` has to wait for.
    flushed: bool,
}

impl<'m, M: Medium> Preparation<'m, M> {
    /// Begins a change that is committed by a store to `commit`.
    #[inline(always)]
    pub fn new(medium: &'m M, commit: &'m PmU64) -> Self {
        Preparation { medium, commit, last: None, flushed: false }
    }

    /// Stores a word that is not visible before the commit. Consecutive stores to one line cost one
    /// flush, and stores to the line of the committing word cost none.
    #[inline(always)]
    #[track_caller]
    pub fn store(&mut self, cell: &'m PmU64, value: u64) {
        self.medium.store(cell, value);
        // The committing word's line becomes durable in program order, so this store is durable
        // whenever the commit is.
        if share_line(cell, self.commit) {
            return;
        }
        if let Some(last) = self.last.replace(cell)
            && !share_line(last, cell)
        {
            self.flush(last);
        }
    }

    /// Flushes what the caller has stored to `what` by other means.
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

    /// Makes everything prepared durable, then stores `value` to the committing word and makes it
    /// durable too. After the return, no crash takes the change back.
    #[inline(always)]
    #[track_caller]
    pub fn commit(mut self, value: u64) {
        self.complete();
        commit(self.medium, self.commit, value);
    }

    /// Does the same for a word that readers may act on at once: see [`commit_marked`].
    #[inline(always)]
    #[track_caller]
    pub fn commit_marked(mut self, value: u64, mark: u64) {
        self.complete();
        commit_marked(self.medium, self.commit, value, mark);
    }

    /// Makes everything prepared outside the line of the committing word durable.
    #[inline(always)]
    #[track_caller]
    fn complete(&mut self) {
        if let Some(last) = self.last.take() {
            self.flush(last);
        }
        if self.flushed {
            order(self.medium);
        }
    }
}

/// Orders the preparation before the commit. The simulator identifies this fence by its location
/// here, and the fence after the commit by the location of the caller, so that it can leave out
/// each of them separately.
#[inline(always)]
fn order<M: Medium>(medium: &M) {
    medium.fence();
}

/// Commits a change by condition 1 that needs no preparation, or whose preparation is durable:
/// stores `value` and makes it durable before it returns.
#[inline(always)]
#[track_caller]
pub fn commit<M: Medium>(medium: &M, cell: &PmU64, value: u64) {
    medium.store(cell, value);
    medium.persist(cell);
}

/// Commits a change like [`commit`], to a word that other threads act on as soon as they see it. It
/// has the bit `mark` until it is durable, so that they can [`help`].
///
/// A crash can leave the mark in the word. It has no meaning then.
#[inline(always)]
#[track_caller]
pub fn commit_marked<M: Medium>(medium: &M, cell: &PmU64, value: u64, mark: u64) {
    commit(medium, cell, value | mark);
    // Durable or not, the word means the same without the mark.
    medium.store_transient(cell, value);
}

/// Commits one step of a change that any thread may complete, if no other thread has changed the
/// word: replaces `old` by `new` and makes that durable before it returns. The word has the bit
/// `mark` until then, as in [`commit_marked`].
///
/// `old` is what [`help`] has returned, so what `new` builds on is durable.
///
/// # Errors
/// The word found, if it was not `old`.
#[inline(always)]
#[track_caller]
pub fn exchange_marked<M: Medium>(
    medium: &M,
    cell: &PmU64,
    old: u64,
    new: u64,
    mark: u64,
) -> Result<(), u64> {
    medium.cas(cell, old, new | mark)?;
    medium.persist(cell);
    // Fails if a thread that has found the word has removed the mark, or has made the next step.
    let _ = medium.cas_transient(cell, new | mark, new);
    Ok(())
}

/// Returns `word`, which was loaded from `cell`, without the bit `mark`. If it has that, which
/// [`commit_marked`] gives to words that may not be durable, makes it durable first. So a thread
/// never acts on something that a crash could take back, and never waits for the thread that has
/// stored it.
///
/// After "Log-Free Concurrent Data Structures" (David, Dragojević, Guerraoui, Zablotchi; USENIX ATC
/// 2018), where this is called link-and-persist.
#[inline(always)]
#[track_caller]
pub fn help<M: Medium>(medium: &M, cell: &PmU64, word: u64, mark: u64) -> u64 {
    if word & mark != 0 {
        persist_marked(medium, cell, word, mark);
    }
    word & !mark
}

/// Makes a marked word durable, and removes the mark unless another thread has changed the word.
#[cold]
#[track_caller]
fn persist_marked<M: Medium>(medium: &M, cell: &PmU64, word: u64, mark: u64) {
    medium.persist(cell);
    // The thread that has stored the word removes the mark if this does not.
    let _ = medium.cas_transient(cell, word, word & !mark);
}

/// Returns whether two words are in one line, and so become durable in program order.
#[inline(always)]
pub fn share_line(one: &PmU64, other: &PmU64) -> bool {
    let line = |cell: &PmU64| std::ptr::from_ref(cell).addr() as u64 / LINE;
    line(one) == line(other)
}

/// Completes what the holder of a lock has begun before a crash: calls `complete` if the lock word
/// is of an earlier opener, in one thread, and makes it one of the opener with this generation.
/// Other threads wait for that.
///
/// # Errors
/// `Poisoned`, `Damaged`: another thread does not end.
pub fn resume<M: Medium>(
    region: &Region<M>,
    lock: &PmU64,
    generation: u64,
    complete: impl FnOnce(),
) -> Result<()> {
    let m = region.medium();
    let recovering = Lock::recovering(generation);
    let mut wait = LockWait::default();
    loop {
        let found = Lock(m.load(lock));
        if found.is_of(generation) {
            return Ok(());
        }
        if found != recovering && m.cas_transient(lock, found.0, recovering.0).is_ok() {
            m.note(Note::Scope("recovery of a node"));
            complete();
            m.store_transient(lock, Lock::fresh(generation).0);
            return Ok(());
        }
        wait.wait_at(region, m.offset_of(lock))?;
    }
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

    /// Formats what was recorded: `s` and the line of a store, `f` and the line of a flush, `|` for
    /// a fence.
    fn events(sim: &Sim) -> String {
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
        assert_eq!(events(&sim), "s0 s0 s0 f0 |");
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
        assert_eq!(events(&sim), "s1 s1 s0 s2 f1 s3 f3 f2 | s0 f0 |");
    }

    #[test]
    fn a_store_without_preparation() {
        let sim = sim();
        commit(&sim, cell(&sim, 8), 6);
        assert_eq!(events(&sim), "s0 f0 |");
    }

    #[test]
    fn a_step_that_comes_too_late_changes_nothing() {
        let sim = sim();
        assert_eq!(exchange_marked(&sim, cell(&sim, 8), 0, 6, 1), Ok(()));
        assert_eq!(exchange_marked(&sim, cell(&sim, 8), 0, 4, 1), Err(6));
        assert_eq!(events(&sim), "s0 f0 | s0");
        assert_eq!(sim.load(cell(&sim, 8)), 6);
    }
}
