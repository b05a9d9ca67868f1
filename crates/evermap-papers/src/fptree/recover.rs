//! Opening: the list of leaves is followed, and the inner nodes are made of their least keys. Only
//! a leaf knows where the next one is, so that is one thread's work; the leaves that it has found
//! are looked at by several.

use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use evermap_index::node_lock::Lock;
use evermap_index::ordered::Run;
use evermap_pm::medium::Note;
use evermap_pm::{Medium, Result, parallel};

use super::access::Node;
use super::inner::Inner;
use super::{Form, FpTree};

/// Why crash campaigns need not detect that a reference which was found becomes durable late.
const REFERENCE_FOUND_LATE: &str = "late, it matters to other threads: \
     `references_that_are_found_are_durable_before_a_leaf_is_used`";

/// Leaves that a thread looks at, one after the other.
const TOGETHER: usize = 1 << 10;

/// How the inner nodes were made when the index was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// The number of leaves.
    pub leaves: u64,
    /// How long that took.
    pub time: Duration,
}

/// What a thread has found in its part of the list.
#[derive(Default)]
struct Found {
    run: Run,
    /// The leaves with an interrupted split.
    unfinished: Vec<u64>,
    /// Whether the list ends here, because what follows is damaged.
    is_end: bool,
}

impl<M: Medium, F: Form> FpTree<M, F> {
    /// Makes the inner nodes of the leaves that are found, with as many threads as there are
    /// processors. What is in a leaf is not read, except where a split was interrupted. O(leaves).
    ///
    /// Every reference from a leaf to the next one is durable before any thread uses the index: a
    /// thread that comes to a leaf from the inner nodes changes it, and does not pass the one
    /// before.
    ///
    /// # Errors
    /// `Damaged` if there is no first leaf; `NoSpace`.
    pub(super) fn rebuild(&mut self) -> Result<()> {
        let began = Instant::now();
        let list = self.list()?;
        let threads = match list.len() {
            0..=TOGETHER => 1,
            _ => available_parallelism().map_or(1, usize::from),
        };
        self.rebuild_of(&list, threads, began)
    }

    /// Makes the inner nodes anew, as an opening does, with up to `threads` threads. Returns what
    /// [`rebuilt`](Self::rebuilt) does from then on. For measurements. O(leaves).
    ///
    /// # Errors
    /// Those of an opening.
    pub fn rebuild_by(&mut self, threads: usize) -> Result<Rebuilt> {
        let began = Instant::now();
        let list = self.list()?;
        self.rebuild_of(&list, threads, began)?;
        Ok(self.rebuilt)
    }

    fn rebuild_of(&mut self, list: &[u64], threads: usize, began: Instant) -> Result<()> {
        let parts = list.len().div_ceil(TOGETHER);
        let found = parallel(threads, parts, |part| self.find_leaves(list, part * TOGETHER));
        let (mut runs, mut unfinished) = (Vec::new(), Vec::new());
        for found in found {
            let Found { run, unfinished: more, is_end } = found?;
            runs.push(run);
            unfinished.extend(more);
            if is_end {
                break;
            }
        }
        // Before other threads remove keys of these leaves, and their blocks are used again.
        unfinished.iter().try_for_each(|&leaf| self.recover(&self.node_as_it_is(leaf)?))?;
        let leaves = runs.iter().map(|run| run.len() as u64).sum();
        self.inner = F::Inner::load(&runs, threads)?;
        self.rebuilt = Rebuilt { leaves, time: began.elapsed() };
        Ok(())
    }

    /// Returns the offsets of the leaves, in the order of the references: no more than there is
    /// space for. What is behind a reference that leads to no leaf is not among them.
    fn list(&self) -> Result<Vec<u64>> {
        let m = self.medium();
        let most = (m.len() / size_of::<F::Leaf>() as u64) as usize;
        let mut node = self.node_as_it_is(m.load(&self.root_block()?.first))?;
        let mut list = vec![node.offset];
        while let Some(next) = node.next(m).offset().filter(|_| list.len() < most) {
            let Ok(next) = self.node_as_it_is(next) else { break };
            list.push(next.offset);
            node = next;
        }
        Ok(list)
    }

    /// Looks at the leaves of a list from `start` on. It ends before a leaf that is not after the
    /// one before it: a search for what is there comes to that one, and returns an error.
    fn find_leaves(&self, list: &[u64], start: usize) -> Result<Found> {
        let m = self.medium();
        let mut found = Found::default();
        let before = start.checked_sub(1).map(|before| self.node_as_it_is(list[before]));
        let mut before = before.transpose()?;
        for &offset in list[start..].iter().take(TOGETHER) {
            let node = self.node_as_it_is(offset)?;
            match before {
                Some(before) => found.is_end = self.ensure_after(&before, &node).is_err(),
                None => drop(node.low(m)?),
            }
            if found.is_end {
                break;
            }
            self.find_leaf(&node, &mut found.run);
            if node.next(m).is_unfinished() {
                found.unfinished.push(offset);
            }
            before = Some(node);
        }
        // A fence is for what the same thread has flushed.
        m.note(Note::Harmless(REFERENCE_FOUND_LATE));
        m.fence();
        Ok(found)
    }

    /// Notes a leaf that was found.
    fn find_leaf(&self, node: &Node<'_, F>, run: &mut Run) {
        let m = self.medium();
        let header = node.header();
        if self.memory.region.must_recover_all() {
            // Generations of an earlier opener could equal the current one.
            m.store_transient(&header.lock, Lock::stale(self.memory.generation).0);
        }
        m.note(Note::Harmless(REFERENCE_FOUND_LATE));
        m.flush(header);
        if let Ok(low) = node.low(m) {
            run.push_with(node.offset, |bytes| low.append(m, bytes));
        }
    }

    /// Returns how the inner nodes were made when the index was opened.
    pub fn rebuilt(&self) -> Rebuilt {
        self.rebuilt
    }
}
