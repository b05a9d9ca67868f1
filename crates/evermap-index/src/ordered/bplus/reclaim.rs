//! Reclamation of published nodes and blocks.
//!
//! Nodes are published by [`OwnedNode::publish`] and blocks by [`OwnedBlock::publish`]. They are
//! freed a grace period after [`retire_node`] or [`retire_block`].

use std::ptr;
use std::sync::Arc;

use evermap_pm::Guard;
use evermap_pm::epoch::Reclaimer;

use super::arena::Arena;
use super::block::{Block, OwnedBlock};
use super::node::{Node, OwnedNode};

/// Set in the token of a block, clear in that of a node.
const BLOCK: u64 = 1;

/// Frees a node after its grace period. What its slots name is not freed.
///
/// # Safety
/// 1. The node was published, and is retired only once.
/// 2. Only retired nodes name it, and no other node ever will.
/// 3. The guard is of the tree's domain.
/// 3. The guard is one of the tree's domain.
pub(super) unsafe fn retire_node<const N: usize>(node: &Node<N>, guard: &Guard<'_>) {
    guard.domain().retire(ptr::from_ref(node).addr() as u64, node.size());
}

/// Frees a block after its grace period.
///
/// # Safety
/// 1. The block was published, and is retired only once.
/// 2. Only retired nodes name it, and no other node ever will.
/// 3. The guard is of the tree's domain.
pub(super) unsafe fn retire_block(block: Block<'_>, guard: &Guard<'_>) {
    guard.domain().retire(block.as_ptr().addr() as u64 | BLOCK, block.size());
}

/// Frees a node and everything below it immediately.
///
/// # Safety
/// 1. A node of this type and arena at `address` was published and is not retired, and the same
///    holds for everything that it names.
/// 2. None of it is used now or later.
/// 3. The guard is of the tree's domain.
pub(super) unsafe fn free_all<const N: usize>(
    arena: &Arc<Arena<Node<N>>>,
    address: usize,
    guard: &Guard<'_>,
) {
    // SAFETY: 1. and 2. are promised by the caller.
    let node = unsafe { OwnedNode::reclaim(arena, address) };
    for at in 0..node.count() {
        if let Some(block) = node.tail(at, guard).block() {
            // SAFETY: 1. a block that a slot names was published, to this slot only. 2. promised by
            // the caller.
            drop(unsafe { OwnedBlock::reclaim(block.as_ptr().addr()) });
        }
        if let Some(child) = node.child(at, guard).map(|child| ptr::from_ref(child).addr()) {
            // SAFETY: 1. to 3. are promised by the caller for everything that the node names.
            unsafe { free_all(arena, child, guard) };
        }
    }
}

/// Returns the function by which the domain of a tree frees tokens; the tree's nodes are of this
/// arena.
pub(super) fn reclaimer<const N: usize>(arena: Arc<Arena<Node<N>>>) -> Reclaimer {
    Box::new(move |token| {
        let address = (token & !BLOCK) as usize;
        // SAFETY: 1. tokens come from `retire_node` and `retire_block`, once each, and the nodes of
        // a tree are of one arena. 2. the grace period, which began when no reference was left, is
        // over.
        unsafe {
            if token & BLOCK == 0 {
                drop(OwnedNode::reclaim(&arena, address));
            } else {
                drop(OwnedBlock::reclaim(address));
            }
        }
    })
}
