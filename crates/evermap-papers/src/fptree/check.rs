//! The invariants of the tree.

use std::ops::Bound;

use evermap_index::node_lock::Lock;
use evermap_pm::{Medium, Result};

use super::access::Node;
use super::inner::Inner;
use super::{Form, FpTree};
use crate::search::Search;

impl<M: Medium, F: Form> FpTree<M, F> {
    /// Describes what is wrong. Each key has to be found, and each leaf.
    pub(super) fn check_parts(&self, problems: &mut Vec<String>) -> Result<()> {
        let _guard = self.memory.pool.pin();
        let m = self.medium();
        problems.extend(self.inner.check());
        let mut leaves = 0;
        let mut next = Some(self.node(m.load(&self.root_block()?.first))?);
        while let Some(node) = next {
            leaves += 1;
            if let Err(error) = self.check_leaf(&node, problems) {
                problems.push(error.to_string());
            }
            let offset = node.next(m).offset();
            next = offset.map(|offset| self.next_node(&node, offset)).transpose()?;
        }
        let known = self.inner.leaves()?;
        if known != leaves {
            problems.push(format!("the inner nodes have {known} leaves, but there are {leaves}"));
        }
        Ok(())
    }

    fn check_leaf(&self, node: &Node<'_, F>, problems: &mut Vec<String>) -> Result<()> {
        let m = self.medium();
        let mut wrong = |what: &str| problems.push(format!("leaf {:#x}: {what}", node.offset));
        if Lock(m.load(&node.header().lock)).is_locked() {
            wrong("it is locked");
        }
        let low = node.low(m)?.to_vec(m);
        if self.inner.floor(Bound::Included(&low))? != Some(node.offset) {
            wrong("the inner nodes do not lead there");
        }
        let next = node.next(m).offset().map(|next| self.node_as_it_is(next)?.low(m));
        let high = next.transpose()?.map(|high| (high.prefix(), high.to_vec(m)));
        if m.load(&node.header().next_prefix) != high.as_ref().map_or(u64::MAX, |high| high.0) {
            wrong("it has another prefix than the next leaf");
        }
        let entries = self.sorted(node, |_| true)?;
        let keys: Vec<_> = entries.iter().map(|(key, _)| key.to_vec(m)).collect();
        if !keys.is_sorted_by(|one, other| one < other) {
            wrong("it has a key twice");
        }
        for (key, &(_, slot)) in keys.iter().zip(&entries) {
            if *key < low || high.as_ref().is_some_and(|(_, high)| key >= high) {
                wrong("it has a key of another leaf");
            }
            let fingerprint = Search::at(key).fingerprint(self.seed);
            if !node.candidates(m, fingerprint).any(|candidate| candidate == slot) {
                wrong("an entry has another fingerprint than its key");
            }
            if self.find(key)? != Some(m.load(&node.entry(slot).word)) {
                wrong("a lookup of a key does not find its word");
            }
        }
        Ok(())
    }
}
