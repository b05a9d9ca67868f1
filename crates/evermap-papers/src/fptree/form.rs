//! The forms of the tree: how many steps a change is made durable in.

use evermap_index::ordered::bplus::BPlus;

use super::inner::{Inner, Transactional};
use super::layout::{Leaf, LeafBlock, SLOTS};

/// A form of the tree. Forms with leaves of one size have the same persistent format: a file that
/// was written by one can be opened by another.
pub trait Form: Send + Sync + 'static {
    /// A leaf.
    type Leaf: LeafBlock;
    /// Whether a fingerprint becomes durable together with the bitmap, whose line it shares.
    const FUSED: bool;
    /// The inner nodes.
    type Inner: Inner;
}

/// Leaves of `N` entries; an insertion or an update takes two fences. The entry comes first;
/// the fingerprint and the bitmap share a line, which becomes durable in program order.
pub enum Fused<const N: usize = SLOTS> {}

impl<const N: usize> Form for Fused<N> {
    type Leaf = Leaf<N>;
    const FUSED: bool = true;
    type Inner = BPlus;
}

/// Leaves of `N` entries; an insertion or an update takes three fences, as published: for the
/// entry, for its fingerprint, and for the bitmap.
pub enum Paper<const N: usize = SLOTS> {}

impl<const N: usize> Form for Paper<N> {
    type Leaf = Leaf<N>;
    const FUSED: bool = false;
    type Inner = BPlus;
}

/// As [`Paper`], with inner nodes that are used by hardware transactions, as published too. Where
/// the processor has none of these, one lock for all takes their place: see [`htm`](crate::htm).
pub enum Transactions<const N: usize = SLOTS> {}

impl<const N: usize> Form for Transactions<N> {
    type Leaf = Leaf<N>;
    const FUSED: bool = false;
    type Inner = Transactional;
}
