//! The invariants of the tree.

use evermap_index::node_lock::Lock;
use evermap_index::ordered::leaf::LeafRef;
use evermap_pm::medium::LINE;
use evermap_pm::{Error, Medium, Result};

use super::Hot;
use super::bits::Search;
use super::node::Node;
use super::scan::Item;

/// What a check has seen so far.
struct Seen<'p> {
    /// The nodes above: the height and the first bit of each.
    above: Vec<(u32, u32)>,
    /// The key of the last leaf.
    last: Option<Vec<u8>>,
    problems: &'p mut Vec<String>,
}

impl<const ENTRIES: usize, M: Medium> Hot<M, ENTRIES> {
    /// Describes what is wrong. Each leaf has to be found by its key, so this includes the masks
    /// and the partial keys of the nodes above it.
    pub(super) fn check_parts(&self, problems: &mut Vec<String>) -> Result<()> {
        let root = self.root_node()?;
        if Lock(self.medium().load(root.lock)).is_locked() {
            problems.push("the root block is locked".to_owned());
        }
        let mut seen = Seen { above: Vec::new(), last: None, problems };
        self.walk(&mut |item, above| {
            let checked = match item {
                Item::Node(node) => self.check_node(&node, above, &mut seen),
                Item::Leaf(leaf) => self.check_leaf(&leaf, false, &mut seen),
                Item::Dead(leaf) => self.check_leaf(&leaf, true, &mut seen),
            };
            seen.problems.extend(checked.err().map(|error| error.to_string()));
            true
        })
    }

    fn check_leaf(&self, leaf: &LeafRef<'_>, is_dead: bool, seen: &mut Seen<'_>) -> Result<()> {
        let key = leaf.key(self.medium());
        if seen.last.as_ref().is_some_and(|last| *last >= key) {
            seen.problems.push(format!("leaf {:#x} is not in order", leaf.offset));
        }
        let found = self.find(&Search::new(&key))?.map(|found| found.offset);
        seen.last = Some(key);
        match found == (!is_dead).then_some(leaf.offset) {
            true => Ok(()),
            false => {
                let what = "a search for the key of a leaf does not find it";
                Err(Error::damaged(leaf.offset, what))
            }
        }
    }

    fn check_node(&self, node: &Node<'_>, above: usize, seen: &mut Seen<'_>) -> Result<()> {
        let m = self.medium();
        let mut wrong = |what: &str| seen.problems.push(format!("node {:#x}: {what}", node.offset));
        let lock = Lock(m.load(node.lock));
        if lock.is_locked() || lock.is_obsolete() {
            wrong("it is locked or obsolete");
        }
        if node.children.len() > ENTRIES {
            wrong("it has too many entries");
        }
        if !node.offset.is_multiple_of(LINE) {
            wrong("it begins within a cache line");
        }
        let contents = node.contents(m)?;
        let positions = contents.positions();
        if positions.as_slice() != node.positions(m)? {
            wrong("it has bits that tell no entries apart");
        }
        let keys = contents.partial_keys(&positions).enumerate();
        if !keys.into_iter().all(|(at, key)| node.partial_key(m, at) == key) {
            wrong("it has wrong partial keys");
        }
        let first = positions.as_slice()[0];
        seen.above.truncate(above);
        if let Some(&(height, bit)) = seen.above.last()
            && (node.height >= height || first <= bit)
        {
            wrong("it is not below the node above it");
        }
        seen.above.push((node.height, first));
        Ok(())
    }
}
