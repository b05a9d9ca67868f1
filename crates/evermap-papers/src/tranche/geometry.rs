//! The sizes of which a table is made. They are part of its type, and of its persistent format.

/// The sizes of a kind of table: constants, so that what is computed from them is constant too.
///
/// All of them are powers of two. A table whose sizes are not possible does not compile.
pub trait Geometry: 'static {
    /// The number of bytes in a tranche: 256 to 32,768.
    const TRANCHE_BYTES: usize;
    /// The number of tranches in a group, without those of its overflow blocks: 2 to 64.
    const TRANCHES: usize;
    /// Binary logarithm of the greatest number of groups that are allocated in one piece, a chunk:
    /// at most 15.
    const CHUNK_LOG: u32;
}

/// The geometry with groups of `G` tranches of `T` bytes, allocated in chunks of `2^C` groups.
pub enum Sizes<const T: usize, const G: usize, const C: u32> {}

/// Groups that are so small that a few keys cause every structural change.
pub type TinySizes = Sizes<256, 2, 1>;

impl<const T: usize, const G: usize, const C: u32> Geometry for Sizes<T, G, C> {
    const TRANCHE_BYTES: usize = T;
    const TRANCHES: usize = G;
    const CHUNK_LOG: u32 = C;
}
