//! The order of the nodes in a chain.

/// How chains are ordered: [`Unordered`] or [`SplitOrder`].
pub trait Order: sealed::Sealed + Send + Sync + 'static {
    /// Whether the nodes of a chain are in the order of their places.
    const SORTED: bool;

    /// Returns the place of a pair whose key has this hash. The inverse of itself.
    fn place(hash: u64) -> u64;
}

/// New nodes come first, as in the paper. The place is the hash.
#[derive(Clone, Copy, Debug)]
pub enum Unordered {}

/// Nodes are sorted by their hashes with the bits reversed: the *split order* of Shalev and Shavit.
///
/// The low bits of a hash choose its bucket, so the next bit, which decides when the bucket is
/// split, is the first of the reversed bits in which the hashes of a bucket differ. Splitting a
/// chain is a cut, and joining two is a concatenation.
#[derive(Clone, Copy, Debug)]
pub enum SplitOrder {}

impl Order for Unordered {
    const SORTED: bool = false;

    #[inline(always)]
    fn place(hash: u64) -> u64 {
        hash
    }
}

impl Order for SplitOrder {
    const SORTED: bool = true;

    #[inline(always)]
    fn place(hash: u64) -> u64 {
        hash.reverse_bits()
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Unordered {}
    impl Sealed for super::SplitOrder {}
}
