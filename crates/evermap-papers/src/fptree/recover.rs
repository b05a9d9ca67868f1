//! Opening: the leaves are found one after the other, and the inner nodes are made of their least
//! keys.

use std::time::{Duration, Instant};

use evermap_index::node_lock::Lock;
use evermap_index::ordered::Run;
use evermap_pm::medium::Note;
use evermap_pm::{Medium, Result};

use super::access::Node;
use super::inner::Inner;
use super::{Form, FpTree};

/// Why crash campaigns need not detect that a reference which was found becomes durable late.
const REFERENCE_FOUND_LATE: &str = "late, it matters to other threads: \
     `references_that_are_found_are_durable_before_a_leaf_is_used`";

/// How the inner nodes were made when the index was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// The number of leaves.
    pub leaves: u64,
    /// How long that took.
    pub time: Duration,
}

impl<M: Medium, F: Form> FpTree<M, F> {
    /// Makes the inner nodes of the leaves that are found. What is in a leaf is not read, except
    /// where a split was interrupted. O(leaves).
    ///
    /// Every reference from a leaf to the next one is durable before any thread uses the index: a
    /// thread that comes to a leaf from the inner nodes changes it, and does not pass the one
    /// before.
    ///
    /// # Errors
    /// `Damaged` if there is no first leaf; `NoSpace`.
    pub(super) fn rebuild(&mut self) -> Result<()> {
        let (began, m) = (Instant::now(), self.medium());
        let mut run = Run::new();
        let mut unfinished = Vec::new();
        let mut next = Some(self.node_as_it_is(m.load(&self.root_block()?.first))?);
        while let Some(node) = next {
            node.low(m)?;
            self.find_leaf(&node, &mut run);
            if node.next(m).is_unfinished() {
                unfinished.push(node);
            }
            next = self.leaf_after(&node);
        }
        m.note(Note::Harmless(REFERENCE_FOUND_LATE));
        m.fence();
        // Before other threads remove keys of these leaves, and their blocks are used again.
        unfinished.iter().try_for_each(|node| self.recover(node))?;
        let leaves = run.len() as u64;
        self.inner = F::Inner::load(run)?;
        self.rebuilt = Rebuilt { leaves, time: began.elapsed() };
        Ok(())
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

    /// Returns the leaf after another one. If it is damaged there is none: a search for what
    /// is there comes to the leaf before it, and returns an error.
    fn leaf_after(&self, node: &Node<'_, F>) -> Option<Node<'_, F>> {
        let next = node.next(self.medium()).offset()?;
        let next = self.node_as_it_is(next).ok()?;
        self.ensure_after(node, &next).is_ok().then_some(next)
    }

    /// Returns how the inner nodes were made when the index was opened.
    pub fn rebuilt(&self) -> Rebuilt {
        self.rebuilt
    }
}
