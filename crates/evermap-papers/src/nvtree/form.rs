//! The forms of the tree: how large its nodes are, and how a rebuild fills those above the leaves.

/// A form of the tree. Only the capacity of the leaves is part of its persistent format.
pub trait Form: Send + Sync + 'static {
    /// The number of entries of a leaf, at least 4 and at most 255.
    const LEAF: usize;
    /// The most leaves that a parent has, at least 4.
    const PARENT: usize;
    /// The number of children of an inner node, at least 2.
    const FANOUT: usize;
    /// The number of leaves that a rebuild gives to each parent.
    const FILLED: usize;
    /// Whether a rebuild leaves spare parents where the tree has grown.
    const SPARES: bool;
}

/// A rebuild fills half of each parent, and leaves spare parents where the tree has grown: the
/// usual form. In all, these are as many as the parents with leaves.
///
/// A leaf has 1 KiB: a line for its header and 15 for its entries. These are about as many as the
/// comparisons of others have given NV-Tree.
pub enum HalfFull<const LEAF: usize = 30, const PARENT: usize = 128, const FANOUT: usize = 128> {}

impl<const LEAF: usize, const PARENT: usize, const FANOUT: usize> Form
    for HalfFull<LEAF, PARENT, FANOUT>
{
    const LEAF: usize = LEAF;
    const PARENT: usize = PARENT;
    const FANOUT: usize = FANOUT;
    const FILLED: usize = PARENT / 2;
    const SPARES: bool = true;
}

/// A rebuild gives each leaf a parent of its own, as NVStore does: there is room for splits
/// everywhere, and the parents take much memory.
pub enum OneLeafPerParent<
    const LEAF: usize = 30,
    const PARENT: usize = 128,
    const FANOUT: usize = 128,
> {}

impl<const LEAF: usize, const PARENT: usize, const FANOUT: usize> Form
    for OneLeafPerParent<LEAF, PARENT, FANOUT>
{
    const LEAF: usize = LEAF;
    const PARENT: usize = PARENT;
    const FANOUT: usize = FANOUT;
    const FILLED: usize = 1;
    const SPARES: bool = false;
}
