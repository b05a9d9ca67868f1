//! Entries of the extent table: what each unit is used for.
//!
//! The [heap](crate::heap) describes their layout.

/// Block sizes are multiples of this, in bytes.
pub(crate) const GRANULE: u64 = 16;

/// The kind of blocks in an extent. Blocks of different kinds never share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BlockKind {
    /// Bytes in a block.
    pub(crate) size: u64,
    /// Whether the blocks never move, because they are parts of a structure.
    pub(crate) fixed: bool,
}

/// What an extent is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usage {
    /// Never used.
    Unused,
    /// Blocks of one kind.
    Blocks(BlockKind),
    /// One large object.
    Large,
    /// A unit whose extent is unknown. Nothing is allocated from it.
    Tail,
    /// Free: its former contents are no longer needed, even after a crash.
    Free,
    /// A later part of the table. The region knows where those are, so their units have no entries.
    Table,
}

/// A decoded entry of the table: the use of an extent, and its number of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableEntry {
    pub(crate) usage: Usage,
    pub(crate) units: u64,
}

impl TableEntry {
    pub(crate) const UNUSED: TableEntry = TableEntry { usage: Usage::Unused, units: 1 };
    pub(crate) const TAIL: TableEntry = TableEntry { usage: Usage::Tail, units: 1 };
    pub(crate) const FREE: TableEntry = TableEntry { usage: Usage::Free, units: 1 };

    /// Returns the encoded entry of the first unit of the extent, which is unit `index`.
    pub(crate) fn encode(self, index: u64) -> u64 {
        match self.usage {
            Usage::Unused => 0,
            Usage::Blocks(BlockKind { size, fixed }) => {
                (if fixed { 5 } else { 1 }) | self.units << 8 | (size / GRANULE) << 32
            }
            Usage::Large => 2 | self.units << 32,
            Usage::Tail => 3,
            Usage::Free => 4 | index << 32,
            Usage::Table => 6 | self.units << 32,
        }
    }

    /// Decodes the entry of unit `index`. Returns `None` if that unit of a heap with this
    /// `geometry` cannot have such an entry.
    pub(crate) fn decode(word: u64, index: u64, geometry: &Geometry) -> Option<TableEntry> {
        let detail = word >> 32;
        let entry = match word as u8 {
            0 => TableEntry::UNUSED,
            code @ (1 | 5) => {
                let kind = BlockKind { size: detail * GRANULE, fixed: code == 5 };
                TableEntry { usage: Usage::Blocks(kind), units: word >> 8 & 0xff_ffff }
            }
            2 => TableEntry { usage: Usage::Large, units: detail },
            3 => TableEntry::TAIL,
            4 => TableEntry::FREE,
            _ => return None,
        };
        let possible = match entry.usage {
            Usage::Blocks(kind) => {
                let fits = GRANULE..=entry.units * geometry.unit();
                entry.units <= geometry.largest && fits.contains(&kind.size)
            }
            _ => entry.units > 0,
        };
        let inside = entry.units <= geometry.units - index;
        (possible && inside && entry.encode(index) == word).then_some(entry)
    }
}

/// The sizes of a heap.
#[derive(Clone, Copy)]
pub(crate) struct Geometry {
    /// Logarithm to base 2 of the bytes in a unit.
    pub(crate) shift: u32,
    /// Units in the largest extent of blocks.
    pub(crate) largest: u64,
    /// Total number of units.
    pub(crate) units: u64,
}

impl Geometry {
    pub(crate) fn unit(&self) -> u64 {
        1 << self.shift
    }
}
