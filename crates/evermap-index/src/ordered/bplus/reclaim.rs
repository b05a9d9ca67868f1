//! The end of nodes and blocks that others know.
//!
//! Their life begins with [`OwnedNode::publish`] or [`OwnedBlock::give_away`]. It ends a grace period after
//! [`retire_node`] or [`retire_block`].

use std::ptr;
use std::sync::Arc;

use evermap_pm::Guard;
use evermap_pm::epoch::Reclaimer;

use super::arena::Arena;
use super::block::{Block, OwnedBlock};
use super::node::{Node, OwnedNode};

/// In the token of a block; clear in that of a node.
const BLOCK: u64 = 1;

/// Frees a node, not what its slots name, when nobody can see it any more.
///
/// # Safety
/// 1. The node was published, and is retired this once only.
/// 2. No node names it but such as are retired themselves, and none ever will.
/// 3. The guard is one of the tree's domain.
pub(super) unsafe fn retire_node<const N: usize>(node: &Node<N>, guard: &Guard<'_>) {
    guard.domain().retire(ptr::from_ref(node).addr() as u64, node.size());
}

/// Frees a block when nobody can see it any more.
///
/// # Safety
/// 1. The block was given away, and is retired this once only.
/// 2. No node names it but such as are retired themselves, and none ever will.
/// 3. The guard is one of the tree's domain.
pub(super) unsafe fn retire_block(block: Block<'_>, guard: &Guard<'_>) {
    guard.domain().retire(block.as_ptr().addr() as u64 | BLOCK, block.size());
}

/// Frees a node and everything below it, now.
///
/// # Safety
/// 1. A node of this type and home at `address` was published and is not retired, and so is everything that it names.
/// 2. Nobody uses any of it any more, nor will.
/// 3. The guard is one of the tree's domain.
pub(super) unsafe fn free_all<const N: usize>(
    home: &Arc<Arena<Node<N>>>,
    address: usize,
    guard: &Guard<'_>,
) {
    // SAFETY: 1. and 2. as promised.
    let node = unsafe { OwnedNode::take_back(home, address) };
    for at in 0..node.count() {
        if let Some(block) = node.tail(at, guard).block() {
            // SAFETY: 1. what slots name was given away, each to one. 2. as promised.
            drop(unsafe { OwnedBlock::take_back(block.as_ptr().addr()) });
        }
        if let Some(child) = node.child(at, guard).map(|child| ptr::from_ref(child).addr()) {
            // SAFETY: 1. to 3. as promised, of what the node names.
            unsafe { free_all(home, child, guard) };
        }
    }
}

/// What the domain of a tree with nodes of this home does with tokens.
pub(super) fn reclaimer<const N: usize>(home: Arc<Arena<Node<N>>>) -> Reclaimer {
    Box::new(move |token| {
        let address = (token & !BLOCK) as usize;
        // SAFETY: 1. tokens come from `retire_node` and `retire_block`, once each; a tree has nodes of one home. 2.
        // their grace period is over, which began when nothing led to them any more.
        unsafe {
            if token & BLOCK == 0 {
                drop(OwnedNode::take_back(&home, address));
            } else {
                drop(OwnedBlock::take_back(address));
            }
        }
    })
}
