//! The forms of the tree: that of its paper, and that with what this project has added.

use super::layout::{Node, NodeBlock, RECORDS_MAX};

/// A form of the tree. It is part of the tree's type, and of its persistent format.
pub trait Form: Send + Sync + 'static {
    /// A node.
    type Node: NodeBlock;
    /// `true` if searches have no help but the order of the records: no copies of words, no prefix
    /// of the next node, no vacant prefixes, and nothing is prefetched.
    const PLAIN: bool;
    /// The most records that a node holds, at least 4.
    const FULL: usize;
    /// The first word of the root block.
    const KIND: u64;
}

/// Nodes of 768 bytes with up to `FULL` records, and all that spares searches a cache line or a
/// comparison.
pub enum Improved<const FULL: usize = RECORDS_MAX> {}

impl<const FULL: usize> Form for Improved<FULL> {
    type Node = Node<45>;
    const PLAIN: bool = false;
    const FULL: usize = FULL;
    const KIND: u64 = u64::from_le_bytes(*b"FASTFAI\x04");
}

/// Nodes of 512 bytes with up to `FULL` records, in which a search compares one record after the
/// other: the nodes and the searches of the paper.
///
/// The repairs are those of the [module](super), because the published code loses keys without
/// them: the header takes a line, readers wait for the writer of a node, a node has its least key,
/// and recovery ends what a crash has interrupted.
pub enum Paper<const FULL: usize = 27> {}

impl<const FULL: usize> Form for Paper<FULL> {
    type Node = Node<29>;
    const PLAIN: bool = true;
    const FULL: usize = FULL;
    const KIND: u64 = u64::from_le_bytes(*b"FASTFAP\x01");
}
