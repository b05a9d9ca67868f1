//! Chains that contain only nodes of their own bucket, in no order.

use std::borrow::Borrow;

use evermap_pm::Guard;

use super::Decision;
use super::heads::Heads;
use super::node::{Link, NodeRef, Vacant};

/// Where a key is in a chain. If it is absent, the link is the head, where a new node is inserted.
pub(super) struct Position<'s, K, V> {
    link: &'s Link<K, V>,
    pub(super) node: Option<NodeRef<'s, K, V>>,
}

/// A change that was made to a chain.
pub(super) struct Applied<'s, K, V> {
    /// The node that no link names any more.
    pub(super) unlinked: Option<NodeRef<'s, K, V>>,
    /// How the number of pairs changes.
    pub(super) difference: i8,
}

/// Returns the node of a key in the chain from `entry` on.
#[inline(always)]
pub(super) fn search<'s, K: Borrow<Q>, V, Q: Eq + ?Sized>(
    entry: &Link<K, V>,
    place: u64,
    key: &Q,
    guard: &'s Guard<'_>,
) -> Option<NodeRef<'s, K, V>> {
    let mut next = entry.follow(guard);
    while let Some(node) = next {
        if node.place == place && node.key.borrow() == key {
            return Some(node);
        }
        next = node.next.follow(guard);
    }
    None
}

/// Returns where a key is in the chain from `entry` on, which no other thread changes.
pub(super) fn find<'s, K: Eq, V>(
    entry: &'s Link<K, V>,
    place: u64,
    key: &K,
    guard: &'s Guard<'_>,
) -> Position<'s, K, V> {
    let mut link = entry;
    while let Some(node) = link.follow(guard) {
        if node.place == place && node.key == *key {
            return Position { link, node: Some(node) };
        }
        link = &node.get().next;
    }
    Position { link: entry, node: None }
}

impl<'s, K, V> Position<'s, K, V> {
    /// Makes the change that was decided, if it is possible and there is one. `vacant` is the
    /// memory for a new node, and `pair` returns what it contains.
    pub(super) fn apply(
        &self,
        decision: Decision<V>,
        vacant: Option<Vacant<K, V>>,
        pair: impl FnOnce(V) -> (u64, K, V),
        guard: &'s Guard<'_>,
    ) -> Option<Applied<'s, K, V>> {
        let (to, difference) = match (self.node, decision, vacant) {
            (None, Decision::Put(value), Some(vacant)) => {
                (Some(vacant.fill(self.link.follow(guard), pair(value), guard)), 1)
            }
            (Some(old), Decision::Put(value), Some(vacant)) => {
                (Some(vacant.fill(old.next.follow(guard), pair(value), guard)), 0)
            }
            (Some(old), Decision::Remove, _) => (old.next.follow(guard), -1),
            _ => return None,
        };
        self.link.point_to(to);
        Some(Applied { unlinked: self.node, difference })
    }
}

/// Calls `each` with every pair until it returns `false`. Returns `false` then.
pub(super) fn for_each<K, V>(
    heads: &Heads<K, V>,
    guard: &Guard<'_>,
    each: &mut dyn FnMut(&K, &V) -> bool,
) -> bool {
    (0..heads.buckets()).all(|bucket| {
        let mut next = heads.head(bucket).follow(guard);
        while let Some(node) = next {
            if !each(&node.key, &node.value) {
                return false;
            }
            next = node.next.follow(guard);
        }
        true
    })
}

/// Calls `each` with every node, which may free it.
pub(super) fn each_node<'s, K: 's, V: 's>(
    heads: &Heads<K, V>,
    guard: &'s Guard<'_>,
    mut each: impl FnMut(NodeRef<'s, K, V>),
) {
    for bucket in 0..heads.buckets() {
        let mut next = heads.head(bucket).follow(guard);
        while let Some(node) = next {
            next = node.next.follow(guard);
            each(node);
        }
    }
}
