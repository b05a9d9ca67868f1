//! The invariants of the tree.

use evermap_pm::{Medium, Result};

use super::Art;
use super::layout::{Child, Kind};
use super::node::rank;
use super::scan::Item;
use crate::node_lock::Lock;

impl<M: Medium> Art<M> {
    /// Describes what is wrong. Each leaf has to be found by its key, so this includes the
    /// prefixes, symbols, positions and levels of the nodes above it.
    pub(super) fn check_parts(&self, problems: &mut Vec<String>) -> Result<()> {
        let mut last: Option<Vec<u8>> = None;
        let mut check = |item: Item<'_>, problems: &mut Vec<String>| -> Result<()> {
            match item {
                Item::Node(child) => self.check_node(child, problems),
                Item::Leaf(leaf) => {
                    let key = leaf.key(self.medium());
                    if last.as_ref().is_some_and(|last| *last >= key) {
                        problems.push(format!("leaf {:#x} is not in order", leaf.offset));
                    }
                    match self.find(&key)? {
                        Some(found) if found.offset == leaf.offset => Ok(()),
                        _ => Err(evermap_pm::Error::damaged(
                            leaf.offset,
                            "a search for the key of a leaf does not find it",
                        )),
                    }?;
                    last = Some(key);
                    Ok(())
                }
            }
        };
        self.walk(&mut |item, _| {
            if let Err(error) = check(item, problems) {
                problems.push(error.to_string());
            }
            true
        })
    }

    fn check_node(&self, child: Child, problems: &mut Vec<String>) -> Result<()> {
        let m = self.medium();
        let node = self.node(child, None)?;
        let mut wrong = |what: &str| problems.push(format!("node {:#x}: {what}", child.offset()));
        let lock = Lock(m.load(&node.header.lock));
        if lock.is_locked() || lock.is_obsolete() {
            wrong("it is locked or obsolete");
        }
        if node.len(m) < 2 {
            wrong("it has less than two children");
        }
        let mut ranks: Vec<_> = node.all(m).map(|(symbol, _)| rank(symbol)).collect();
        ranks.sort_unstable();
        if ranks.windows(2).any(|pair| pair[0] == pair[1]) {
            wrong("two children have the same symbol");
        }
        if node.kind != Kind::N4 && node.len(m) <= node.kind.shrinks_at() / 2 {
            wrong("it has few children");
        }
        Ok(())
    }
}
