//! The structures of a line hash in the region. The documentation of each type shows its layout.

use evermap_index::hash::hash_prefix::HashPrefix;
use evermap_index::hash::segmented::{SegmentHeader, SegmentLayout, chain};
use evermap_pm::medium::Note;
use evermap_pm::{Medium, PmU64, pod};

/// The bits of a word that are an offset: in a directory entry, and in [`Link::next`].
pub use evermap_index::hash::directory::OFFSET;
pub use evermap_index::hash::segmented::extendible::Root;

pod! {
    /// One cache line: four records of 16 bytes, and nothing else.
    ///
    /// ```text
    /// byte  0  key words 0 to 3   bit 12..64 tag     52 bits of the image of the key
    ///                             bit 11     valid   storing it commits an insert or a delete
    ///                             bit 10     foreign its home is its other line
    ///                             bit  0..10 of word 0: version (0..9), locked (9)
    ///                                        of word 1: version, next ten bits
    ///                                        of word 2: filter (0..8), chained (8, and filter)
    ///                                        of word 3: version, last ten bits
    /// byte 32  words 0 to 3
    /// ```
    ///
    /// The tag lacks some bits of the image, which follow from the position of the record: the
    /// lowest bits are the number of its home line, and the highest are equal for all records of a
    /// segment. In a *shallow* segment, which an index that begins small has at first, the highest
    /// bits are not equal. Its lines have three slots: of the fourth, the key word is marked as
    /// foreign, but not as valid, and the word holds the highest bits, 16 for each slot.
    ///
    /// Version, lock, filter and chained need not survive a crash, so changes of them alone are
    /// never flushed.
    #[repr(align(64))]
    pub struct Line: 64 {
        /// Tags, each with twelve bits of metadata.
        pub keys: [PmU64; 4],
        /// The values, or the offsets of the records in the heap.
        pub words: [PmU64; 4],
    }
}

/// Key word 0: a thread has locked the line.
pub const LOCKED: u64 = 1 << 9;
/// Key word 0: the lowest bits of the line's version, which counts changes. They are just below the
/// lock.
pub const VERSION_LOW: u64 = LOCKED - 1;
/// Key words 1 and 3: more bits of the version.
pub const VERSION_MORE: u64 = META;
/// Key word 2: for each record of this line that is in another line, the bit that its tag selects.
pub const FILTER: u64 = 0xff;
/// Key word 2: some record of this line is in the segment's chain. All bits of the filter are set
/// then, so that lookups have to check only the filter.
pub const CHAINED: u64 = 1 << 8 | FILTER;
/// The bits of a key word that do not describe its record.
pub const META: u64 = (1 << 10) - 1;
/// The record belongs to another line. In the key word of a slot without a record: the word of the
/// slot holds the top bits of the records of this line.
pub const FOREIGN: u64 = 1 << 10;
/// There is a record.
pub const VALID: u64 = 1 << 11;
/// The bits of a key word of which none is set if its slot is free.
pub const TAKEN: u64 = VALID | FOREIGN;
/// The bits of a key word that contain a part of the image.
pub const TAG: u64 = !0 << TAG_SHIFT;
const TAG_SHIFT: u32 = 12;
const TAG_BITS: u32 = 64 - TAG_SHIFT;

/// Returns whether the fourth slot of a line, with this key word, holds the top bits of the
/// records in the other three, instead of a record.
#[inline]
pub fn holds_tops(fourth: u64) -> bool {
    fourth & TAKEN == FOREIGN
}

/// Returns the bit of [`FILTER`] for a tag.
#[inline(always)]
pub fn filter_bit(tag: u64) -> u64 {
    1 << (tag >> (TAG_SHIFT + 8) & 7)
}

/// How images are divided into parts, in segments of `L` lines. If `SMALL`, an index begins with
/// one segment, and segments are shallow until they determine the bits of an image above the tag.
pub struct Geometry<const L: usize, const SMALL: bool>;

impl<const L: usize, const SMALL: bool> Geometry<L, SMALL> {
    const LINE_BITS: u32 = {
        assert!(L.is_power_of_two() && L >= 4 && L <= 1024);
        L.ilog2()
    };
    /// The number of bits of an image above the tag.
    const TOP_BITS: u32 = 64 - TAG_BITS - Self::LINE_BITS;
    /// The least local depth of a segment: unless it may be shallow, it determines the top bits.
    pub const DEPTH_MIN: u32 = if SMALL { 0 } else { Self::TOP_BITS };

    /// Returns whether a segment of this depth is shallow: its lines hold the top bits of images.
    pub fn is_shallow(depth: u32) -> bool {
        SMALL && depth < Self::TOP_BITS
    }

    /// Returns the top bits of the images that a segment with this prefix serves. Those of a
    /// shallow segment differ in some of them.
    pub fn top_of(prefix: HashPrefix) -> u64 {
        let HashPrefix { depth, pattern } = prefix;
        match depth.checked_sub(Self::TOP_BITS) {
            Some(below) => pattern >> below,
            None => pattern << (Self::TOP_BITS - depth),
        }
    }

    /// Returns the home line of an image.
    #[inline(always)]
    pub fn home(image: u64) -> usize {
        image as usize & (L - 1)
    }

    /// Returns the tag of an image, at its position in a key word.
    #[inline(always)]
    pub fn tag(image: u64) -> u64 {
        image >> Self::LINE_BITS << TAG_SHIFT
    }

    /// Returns the bits of an image above the tag.
    #[inline(always)]
    pub fn top(image: u64) -> u64 {
        image >> (TAG_BITS + Self::LINE_BITS)
    }

    /// Returns the half (0 or 1) of a segment of local depth `depth` to which the record in a slot
    /// belongs. `key` is its key word, and `tops` the fourth word of its line.
    #[inline(always)]
    pub fn half(key: u64, tops: u64, slot: usize, depth: u32) -> u64 {
        // The highest bit of the image that the segment does not determine.
        let bit = 63 - depth;
        match bit.checked_sub(TAG_BITS + Self::LINE_BITS) {
            Some(bit) => Self::top_in(tops, slot) >> bit & 1,
            None => key >> (bit - Self::LINE_BITS + TAG_SHIFT) & 1,
        }
    }

    /// Returns the image that consists of these parts.
    #[inline(always)]
    pub fn image(top: u64, tag: u64, home: usize) -> u64 {
        top << (TAG_BITS + Self::LINE_BITS) | tag >> TAG_SHIFT << Self::LINE_BITS | home as u64
    }

    /// Returns the second line in which a record may be, from the first one, `at`. Maps each of the
    /// two lines to the other.
    #[inline(always)]
    pub fn other(at: usize, tag: u64) -> usize {
        // The mask is odd, so the result differs from `at`.
        at ^ ((tag >> TAG_SHIFT) as usize & (L - 1) | 1)
    }

    /// Returns the line, besides its home line, in which a record with this image may be.
    #[inline(always)]
    pub fn other_of(image: u64) -> usize {
        Self::other(Self::home(image), Self::tag(image))
    }

    /// Returns `word`, from the fourth slot of a line of a shallow segment, with the top bits of
    /// the record in `slot` replaced.
    #[inline(always)]
    pub fn with_top(word: u64, slot: usize, top: u64) -> u64 {
        word & !(0xffff << (16 * slot)) | top << (16 * slot)
    }

    /// Returns the top bits of the record in `slot`: see [`with_top`](Self::with_top).
    #[inline(always)]
    pub fn top_in(word: u64, slot: usize) -> u64 {
        word >> (16 * slot) & ((1 << Self::TOP_BITS) - 1)
    }
}

pod! {
    /// The first line of a segment.
    pub struct Header: 64 {
        /// `Header::MAGIC`.
        pub magic: PmU64,
        /// The images that the segment serves.
        pub prefix: PmU64,
        /// The generation of the opener that recovered this segment. Never flushed: for every new
        /// opener, all segments are stale.
        pub generation: PmU64,
        /// The offset of the first link of the chain, which is used if two lines are full; 0 if
        /// there is no chain.
        pub chain: PmU64,
        /// The lock of the chain: 1 while a thread changes the chain, else 0. Never flushed.
        pub chain_lock: PmU64,
        reserved: [PmU64; 3],
    }
}

pod! {
    /// A segment of `L` lines.
    pub struct Segment<const L: usize> {
        /// The header.
        pub header: Header,
        /// The records.
        pub lines: [Line; L],
    }
}

const _: () = assert!(size_of::<Segment<256>>() == 257 * 64);

/// The number of records in a link of a chain.
pub const LINK_SLOTS: usize = 3;

pod! {
    /// A link of a segment's chain: for records whose two lines are full, if a split would not
    /// help.
    ///
    /// ```text
    /// byte  0  next   bit 0..48 offset of the next link or 0; bit 48..51 which slots are valid
    /// byte  8  images 0 to 2
    /// byte 32  words 0 to 2
    /// ```
    pub struct Link: 64 {
        /// The offset of the next link, and the valid slots. Storing it commits an insert or a
        /// removal.
        pub next: PmU64,
        /// The complete images.
        pub images: [PmU64; LINK_SLOTS],
        /// The values, or the offsets of the records in the heap.
        pub words: [PmU64; LINK_SLOTS],
        reserved: PmU64,
    }
}

/// Returns the valid slots of a link, as a bit set.
#[inline(always)]
pub fn valid_in(next: u64) -> u32 {
    (next >> 48) as u32 & ((1 << LINK_SLOTS) - 1)
}

/// Returns the bit of [`Link::next`] that makes `slot` valid.
#[inline(always)]
pub fn link_bit(slot: usize) -> u64 {
    1 << (48 + slot)
}

impl SegmentHeader for Header {
    /// "LINESEG" and a version byte.
    const MAGIC: u64 = u64::from_le_bytes(*b"LINESEG\x01");

    fn magic(&self) -> &PmU64 {
        &self.magic
    }

    fn prefix(&self) -> &PmU64 {
        &self.prefix
    }

    fn generation(&self) -> &PmU64 {
        &self.generation
    }
}

impl<const L: usize> SegmentLayout for Segment<L> {
    type Header = Header;

    fn header(&self) -> &Header {
        &self.header
    }
}

impl chain::Link for Link {
    fn next(&self) -> &PmU64 {
        &self.next
    }

    fn offset_in(word: u64) -> u64 {
        word & OFFSET
    }

    fn with_offset(word: u64, offset: u64) -> u64 {
        word & !OFFSET | offset
    }

    fn is_empty<M: Medium>(&self, m: &M) -> bool {
        valid_in(m.load(&self.next)) == 0
    }

    fn clear<M: Medium>(&self, m: &M) {
        m.note(Note::Harmless("torn, it is complete before a chain refers to the link"));
        m.store(&self.next, 0);
        m.persist(&self.next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts_make_the_whole<const L: usize, const SMALL: bool>() {
        let mut image = 0x0123_4567_89ab_cdef_u64;
        for _ in 0..1000 {
            image = image.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (top, tag) = (Geometry::<L, SMALL>::top(image), Geometry::<L, SMALL>::tag(image));
            let home = Geometry::<L, SMALL>::home(image);
            assert_eq!(Geometry::<L, SMALL>::image(top, tag, home), image);
            assert_eq!(tag & !TAG, 0);
            let other = Geometry::<L, SMALL>::other(home, tag);
            assert!(other != home && other < L);
            assert_eq!(Geometry::<L, SMALL>::other(other, tag), home);
            assert_eq!(filter_bit(tag) & !FILTER, 0);
            let with_top = |word, slot| Geometry::<L, SMALL>::with_top(word, slot, top);
            let tops = (0..3).fold(!0, with_top);
            assert!((0..3).all(|slot| Geometry::<L, SMALL>::top_in(tops, slot) == top));
            for depth in Geometry::<L, SMALL>::DEPTH_MIN..=40 {
                let half = Geometry::<L, SMALL>::half(tag | META, tops, 2, depth);
                assert_eq!(half, image >> (63 - depth) & 1, "{depth}");
                let pattern = image.checked_shr(64 - depth).unwrap_or(0);
                let of_prefix = Geometry::<L, SMALL>::top_of(HashPrefix { depth, pattern });
                assert!(Geometry::<L, SMALL>::is_shallow(depth) || of_prefix == top, "{depth}");
            }
        }
    }

    #[test]
    fn the_parts_of_an_image_make_it_whole() {
        parts_make_the_whole::<4, true>();
        parts_make_the_whole::<64, false>();
        parts_make_the_whole::<256, false>();
        parts_make_the_whole::<256, true>();
        parts_make_the_whole::<1024, true>();
    }

    /// What a free slot looks like, and one that holds top bits, differs from any record.
    #[test]
    fn a_slot_with_top_bits_holds_no_record() {
        assert!(holds_tops(FOREIGN | META));
        for other in [0, META, VALID, VALID | FOREIGN, TAG | VALID | FOREIGN] {
            assert!(!holds_tops(other));
        }
    }
}
