//! The invariants of the tree.

use evermap_index::node_lock::Lock;
use evermap_index::ordered::leaf::LeafRef;
use evermap_pm::{Medium, Result};

use super::access::{NodeRef, Search};
use super::layout::{NO_CHILD, prefix};
use super::walk::Snapshot;
use super::{FastFair, Form};

impl<M: Medium, F: Form> FastFair<M, F> {
    /// Describes what is wrong. Each leaf has to be found by its key.
    pub(super) fn check_parts(&self, problems: &mut Vec<String>) -> Result<()> {
        self.each_node(&mut |node, snapshot| {
            if let Err(error) = self.check_node(node, snapshot, problems) {
                problems.push(error.to_string());
            }
            Ok(true)
        })
    }

    fn check_node(
        &self,
        node: &NodeRef<'_, F>,
        snapshot: &Snapshot,
        problems: &mut Vec<String>,
    ) -> Result<()> {
        let m = self.medium();
        let mut wrong = |what: &str| problems.push(format!("node {:#x}: {what}", node.offset));
        if Lock(m.load(&node.header().lock)).is_locked() {
            wrong("it is locked");
        }
        if snapshot.records.len() > Self::RECORDS_MAX {
            wrong("it has too many records");
        }
        let low = self.low(node)?;
        let mut last = low.clone();
        let mut keys = Vec::new();
        for (record, &at) in node.records().iter().zip(&snapshot.records) {
            let key = match node.level {
                0 => LeafRef::at(m, at)?.key(m),
                level => self.low(&self.node_as_it_is(at, Some(level - 1))?)?.unwrap_or_default(),
            };
            if m.load(&record.prefix) != prefix(&key) {
                wrong("a record has another prefix than its key");
            }
            // The first key of a leaf node may be the least one.
            let first_of_leaf = keys.is_empty() && node.level == 0;
            let follows = |last: &Vec<u8>| if first_of_leaf { *last <= key } else { *last < key };
            if !last.as_ref().is_none_or(follows) {
                wrong("its keys are not in order");
            }
            last = Some(key.clone());
            keys.push(key);
        }
        match node.level {
            0 if snapshot.leftmost != NO_CHILD => wrong("a leaf node has a child"),
            0 => {}
            level => {
                let leftmost = self.node_as_it_is(snapshot.leftmost, Some(level - 1))?;
                if self.low(&leftmost)? != low {
                    wrong("its leftmost child has another least key");
                }
            }
        }
        if snapshot.sibling != 0 {
            let next = self.node_as_it_is(snapshot.sibling, Some(node.level))?;
            if self.low(&next)?.is_none_or(|next| last.is_some_and(|last| last >= next)) {
                wrong("it has keys of the next node");
            }
        }
        if node.level == 0 {
            for (key, &leaf) in keys.iter().zip(&snapshot.records) {
                let search = Search::new(key);
                if self.descend(&search, 0)?.place.found != Some(leaf) {
                    wrong("a search for a key does not find it");
                }
                if self.find(&search)? != Some(LeafRef::at(m, leaf)?.word(m)) {
                    wrong("a lookup of a key does not find its word");
                }
            }
        }
        Ok(())
    }
}
