//! The invariants of a tree, checked without concurrent mutations.

use evermap_pm::Guard;

use super::BPlus;
use super::key::{INLINE_MAX, Probe, Tail};
use super::node::Node;
use super::tally::Count;

/// A walk over a whole tree.
struct Walk<'g, const N: usize> {
    guard: &'g Guard<'g>,
    found: Vec<String>,
    pairs: u64,
    leaves: u64,
    inner: u64,
    bytes: u64,
}

impl<const N: usize> BPlus<N> {
    /// Implements [`OrderedIndex::check`](crate::ordered::OrderedIndex::check).
    pub(super) fn violations(&self) -> Vec<String> {
        let guard = &self.epoch.pin();
        let mut walk = Walk { guard, found: Vec::new(), pairs: 0, leaves: 0, inner: 0, bytes: 0 };
        walk.node(self.root(guard), &[], None, true);
        for (what, count, due) in [
            ("pairs", Count::Pairs, walk.pairs),
            ("leaves", Count::Leaves, walk.leaves),
            ("inner nodes", Count::Inner, walk.inner),
            ("bytes", Count::Bytes, walk.bytes),
        ] {
            let counted = self.tally.sum(count);
            if counted != due {
                walk.found.push(format!("{counted} {what} are counted, but there are {due}"));
            }
        }
        walk.found
    }
}

impl<const N: usize> Walk<'_, N> {
    fn node(&mut self, node: &Node<N>, low: &[u8], high: Option<&[u8]>, root: bool) {
        let keys = self.keys(node);
        let mut wrong = |what: String| {
            self.found.push(format!("level {}, from {low:?} on: {what}", node.level));
        };
        if node.version.read().is_err() || node.version.try_lock().is_err() {
            wrong("obsolete or locked".into());
        }
        let range = node.range();
        if (range.low(), range.high()) != (low, high) {
            wrong(format!(
                "serves {:?} to {:?}, but its parent ends it at {high:?}",
                range.low(),
                range.high()
            ));
        }
        if !root && high.is_some() && node.is_sparse() {
            wrong(format!("only {} of {N} slots are in use", keys.len()));
        }
        if !node.is_permuted() {
            wrong("two slots have the same rest".into());
        }
        if !node.is_leaf() && keys.len() < 2 {
            wrong(format!("{} children", keys.len()));
        }
        if !keys.is_sorted_by(|one, other| one < other) {
            wrong(format!("not in order: {keys:?}"));
        }
        let inside = |key: &Vec<u8>| low <= &key[..] && high.is_none_or(|high| &key[..] < high);
        if let Some(key) = keys.iter().find(|key| !inside(key)) {
            wrong(format!("{key:?} is not below {high:?}"));
        }
        if !node.is_leaf() && keys.first().is_none_or(|first| first != low) {
            wrong("the first child does not begin at the node's low key".into());
        }
        self.bytes += node.size() as u64;
        self.slots(node, &keys);
        self.below(node, &keys, high);
    }

    fn keys(&self, node: &Node<N>) -> Vec<Vec<u8>> {
        let key = |at| {
            let mut key = Vec::new();
            node.append_key(at, &mut key, self.guard);
            key
        };
        (0..node.count()).map(key).collect()
    }

    /// Checks how the slots hold their keys.
    fn slots(&mut self, node: &Node<N>, keys: &[Vec<u8>]) {
        let prefix = node.prefix();
        for at in 0..N {
            let (head, tail) = node.slot(at, self.guard);
            let Some(key) = keys.get(at) else {
                if tail != Tail::EMPTY || node.word(at) != 0 {
                    self.found.push(format!("level {}: an unused slot is not cleared", node.level));
                }
                continue;
            };
            let probe = Probe::new(key);
            let held = match (probe.inline_tail(prefix), tail.block()) {
                (Some(inline), None) => inline == tail,
                (None, Some(block)) => {
                    self.bytes += block.size() as u64;
                    block.skip() <= prefix && key.len() - prefix > INLINE_MAX
                }
                _ => false,
            };
            if head != probe.head(prefix) || !held {
                self.found.push(format!("level {}: {key:?} is held in the wrong form", node.level));
            }
        }
    }

    fn below(&mut self, node: &Node<N>, keys: &[Vec<u8>], high: Option<&[u8]>) {
        if node.is_leaf() {
            self.leaves += 1;
            self.pairs += keys.len() as u64;
            return;
        }
        self.inner += 1;
        for (at, low) in keys.iter().enumerate() {
            let high = keys.get(at + 1).map(Vec::as_slice).or(high);
            match node.child(at, self.guard) {
                Some(child) if child.level + 1 == node.level => self.node(child, low, high, false),
                Some(child) => {
                    self.found.push(format!("level {} below level {}", child.level, node.level));
                }
                None => self.found.push(format!("level {}: no child for {low:?}", node.level)),
            }
        }
    }
}
