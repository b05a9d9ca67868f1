//! The invariants of the tree.

use std::cmp::Ordering;

use evermap_index::node_lock::Lock;
use evermap_pm::{Medium, Result};

use super::key::Brief;
use super::layout::Visible;
use super::upper::LeafEntry;
use super::walk::Snapshot;
use super::{Form, NvTree};
use crate::search::Search;

impl<M: Medium, F: Form> NvTree<M, F> {
    /// Describes what is wrong. Each key has to be found, and what is above the leaves has to have
    /// the leaves of the list.
    pub(super) fn check_parts(&self, problems: &mut Vec<String>) -> Result<()> {
        let m = self.medium();
        let mut listed: Vec<LeafEntry> = Vec::new();
        let mut next = m.load(&self.root_block()?.head);
        self.each_leaf(&mut |snapshot| {
            let leaf = &snapshot.leaf;
            if leaf.offset != next {
                problems.push(format!("leaf {:#x} is not the next of the list", leaf.offset));
            }
            listed.push((leaf.low(m), leaf.offset));
            next = m.load(&leaf.header.sibling);
            if let Err(error) = self.check_leaf(snapshot, problems) {
                problems.push(error.to_string());
            }
            Ok(true)
        })?;
        let _guard = self.memory.pool.pin();
        let above: Vec<LeafEntry> = self.with_upper(|upper| upper.leaves().collect());
        if above != listed {
            problems.push("what is above the leaves has others than the list".into());
        }
        Ok(())
    }

    fn check_leaf(&self, snapshot: &Snapshot<'_>, problems: &mut Vec<String>) -> Result<()> {
        let m = self.medium();
        let Snapshot { leaf, items, next } = snapshot;
        let mut wrong = |what: &str| problems.push(format!("leaf {:#x}: {what}", leaf.offset));
        if Lock(m.load(&leaf.header.lock)).is_locked() {
            wrong("it is locked");
        }
        if Visible(m.load(&leaf.header.visible)).count() != leaf.count(m)? {
            wrong("lookups do not read all of its entries");
        }
        let low = leaf.low(m);
        let mut last: Option<Brief> = None;
        for item in items {
            if low.compare(m, &item.key)? == Ordering::Greater {
                wrong("it has a key of the leaf before");
            }
            if last.is_some_and(|last| !matches!(last.compare(m, &item.key), Ok(Ordering::Less))) {
                wrong("its keys are not in order");
            }
            last = Some(item.key);
            let key = item.key.key(m)?.unwrap_or_default();
            if next.as_ref().is_some_and(|next| *next <= key) {
                wrong("it has a key of the next leaf");
            }
            if self.leaf_of(&Search::at(&key))?.offset != leaf.offset {
                wrong("a search for a key does not find it");
            }
            if self.find(&key)? != item.is_live.then_some(item.word) {
                wrong("a lookup of a key does not find its word");
            }
        }
        Ok(())
    }
}
