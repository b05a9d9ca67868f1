//! The persistent layout of the heterogeneous table, which is drawn in the documentation of the
//! types.

use std::marker::PhantomData;

use evermap_index::hash::hash_prefix::check_bits;
use evermap_pm::region::stale;
use evermap_pm::{PmU64, pod};

use super::geometry::Geometry;

/// The number of arrays of groups: the first, and one for each doubling.
pub const ARRAYS: usize = 48;
/// The greatest number of overflow blocks of one group.
pub const OVERFLOWS_MAX: usize = 8;

pod! {
    /// The block that the root cell names.
    ///
    /// ```text
    /// byte   0  kind          the kind of the index, its key format and its geometry
    /// byte   8  base          binary logarithm of the number of groups in array 0
    /// byte  16  state         see `place::State`; its store commits the move of a part
    /// byte  24  redo          see `Redo`; its store commits the rewriting of a group
    /// byte  32  redo_block    the block that holds the new content of a group that is rewritten
    /// byte  40  reserved
    /// byte  64  arrays        entry 0 names the table of groups 0 to 2^base - 1, entry a > 0 that
    ///                         of groups 2^(base+a-1) to 2^(base+a) - 1; 0 if there is none yet
    /// ```
    ///
    /// A table has one word for each chunk of groups: its offset, or 0 if it is not allocated yet.
    /// All offsets are [`Named`].
    pub struct Root: 448 {
        /// See the drawing.
        pub kind: PmU64,
        /// See the drawing.
        pub base: PmU64,
        /// See the drawing.
        pub state: PmU64,
        /// See the drawing.
        pub redo: PmU64,
        /// See the drawing.
        pub redo_block: PmU64,
        reserved: [PmU64; 3],
        /// See the drawing.
        pub arrays: [PmU64; ARRAYS],
    }
}

/// The bits of a word that are an offset.
const OFFSET: u64 = (1 << 48) - 1;

/// The offset of a block with check bits that also say what the block is used for, so that damage
/// is detected before anything is written to the block.
///
/// ```text
/// bit  0..48 offset
/// bit 48..64 check bits of the offset and the use
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Named {
    /// The table of an array.
    Table(usize),
    /// A chunk of groups, by the first one.
    Chunk(u64),
    /// The overflow block of a group with this number, behind this many others.
    Overflow(u64, usize),
    /// The block for the content of groups that are rewritten.
    Redo,
    /// The block of an indirect record, by the hash of its key.
    Item(u64),
}

impl Named {
    fn salt(self) -> u64 {
        match self {
            Named::Table(array) => 0x5441_0000 + array as u64,
            Named::Chunk(first) => 0x4348_0000 ^ first.rotate_left(20),
            Named::Overflow(group, place) => 0x4f56_0000 ^ group.rotate_left(20) ^ place as u64,
            Named::Redo => 0x5245_0000,
            Named::Item(hash) => 0x4954_0000 ^ hash,
        }
    }

    /// Encodes the offset of a block with this use.
    pub fn encode(self, offset: u64) -> u64 {
        offset | check_bits(offset, self.salt()) << 48
    }

    /// Decodes a word. Returns `None` if it is no offset of a block with this use.
    #[inline(always)]
    pub fn decode(self, word: u64) -> Option<u64> {
        let offset = word & OFFSET;
        (offset != 0 && word == self.encode(offset)).then_some(offset)
    }
}

/// Names the group that is being rewritten: its new content is complete in the block for that, and
/// is copied again when the table is opened. 0 if there is none.
///
/// ```text
/// bit  0..48  number of the group, plus 1
/// bit 48..64  check bits
/// ```
pub struct Redo;

impl Redo {
    const SALT: u64 = 0x5245_444f;

    /// Encodes the number of a group.
    pub fn encode(group: u64) -> u64 {
        (group + 1) | check_bits(group + 1, Self::SALT) << 48
    }

    /// Decodes a word that is not 0.
    pub fn decode(word: u64) -> Option<u64> {
        let group = (word & OFFSET).checked_sub(1)?;
        (Self::encode(group) == word).then_some(group)
    }
}

/// The index of the word of a tranche that is about more than its content: the [`Version`] of the
/// tranche; in tranche 0 that of the group, which is its lock; and in tranche [`LINK`] the
/// offset of the next overflow block, or 0. In overflow blocks only the last one is used.
pub const GROUP_WORD: usize = 0;
/// The tranche of a group or of an overflow block that names the next overflow block.
pub const LINK: usize = 1;
/// The index of the word of a tranche that says what is in it: see [`Commit`].
pub const COMMIT: usize = 1;
/// The number of words before the strip.
const HEADER: usize = 2;

/// The positions in a tranche.
///
/// ```text
/// word 0     version, lock, or next overflow block: see `GROUP_WORD`
/// word 1     see `Commit`
/// word 2     strip, which grows upwards: blocks of LANES records
///              LANES fingerprints, 1 byte each
///              LANES entries, 2 bytes each: see `Entry`
///            ...
///            free
///            ...
///            payloads, which grow downwards from the end
/// ```
///
/// A record takes 3 bytes of the strip, and its payload, in whole words. A tranche of 256 bytes
/// holds twelve pairs of 16 bytes exactly, and its strip is then all in the first line.
pub struct Shape<G: Geometry>(PhantomData<fn() -> G>);

impl<G: Geometry> Shape<G> {
    /// The number of words in a tranche.
    pub const WORDS: usize = {
        let bytes = G::TRANCHE_BYTES;
        assert!(bytes.is_power_of_two() && bytes >= 256 && bytes <= 32 << 10);
        bytes / 8
    };
    /// The number of records in a block of the strip. In a large tranche a search reads one line of
    /// fingerprints in three.
    pub const LANES: usize = if G::TRANCHE_BYTES > 4096 { 64 } else { 8 };
    /// The number of pairs of 16 bytes that a tranche holds.
    pub const PAIRS: usize = {
        let mut pairs = 0;
        while Self::strip_end(pairs + 1) + 2 * (pairs + 1) <= Self::WORDS {
            pairs += 1;
        }
        pairs
    };

    /// Returns the word with the fingerprint of a record; it is byte `at % 8` of that.
    #[inline(always)]
    pub const fn fingerprint_word(at: usize) -> usize {
        HEADER + at / Self::LANES * (Self::LANES / 8 * 3) + at % Self::LANES / 8
    }

    /// Returns the word with the entry of a record; it is the part `at % 4` of that.
    #[inline(always)]
    pub const fn entry_word(at: usize) -> usize {
        HEADER + at / Self::LANES * (Self::LANES / 8 * 3) + Self::LANES / 8 + at % Self::LANES / 4
    }

    /// Returns the end of the strip of `count` records.
    #[inline(always)]
    pub const fn strip_end(count: usize) -> usize {
        if count == 0 { HEADER } else { Self::entry_word(count - 1) + 1 }
    }
}

/// The word of a tranche that says what is in it. Its store commits an appended record.
///
/// ```text
/// bit  0..14  count   records in the strip, dead ones included
/// bit 14..28  low     first word of the payloads
/// bit 28..44  pass    live records that a search finds behind this tranche: they found no room
///                     here, or in a tranche before
/// bit 44..58  dead    dead records in the strip
/// ```
///
/// `count` and `low` are persistent. Recovery counts `pass` and `dead` anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Commit {
    /// See the type.
    pub count: usize,
    /// See the type.
    pub low: usize,
    /// See the type.
    pub pass: u64,
    /// See the type.
    pub dead: usize,
}

impl Commit {
    /// A counter that has reached this value is no longer exact, and stays as it is. A search that
    /// goes on needlessly is harmless; one that stops too early loses records.
    const PASS_MAX: u64 = 0xffff;

    /// Returns the word of an empty tranche.
    pub const fn empty(words: usize) -> Self {
        Commit { count: 0, low: words, pass: 0, dead: 0 }
    }

    /// Encodes the fields in a word.
    #[inline(always)]
    pub const fn encode(self) -> u64 {
        self.count as u64 | (self.low as u64) << 14 | self.pass << 28 | (self.dead as u64) << 44
    }

    /// Decodes a word. Returns `None` if a tranche cannot have it.
    #[inline(always)]
    pub fn decode<G: Geometry>(word: u64) -> Option<Self> {
        let commit = Commit {
            count: (word & 0x3fff) as usize,
            low: (word >> 14 & 0x3fff) as usize,
            pass: word >> 28 & 0xffff,
            dead: (word >> 44 & 0x3fff) as usize,
        };
        let fits = commit.low <= Shape::<G>::WORDS
            && Shape::<G>::strip_end(commit.count) <= commit.low
            && commit.dead <= commit.count;
        fits.then_some(commit)
    }

    /// Returns whether another record with a payload of `words` words fits.
    #[inline(always)]
    pub fn has_room<G: Geometry>(self, words: usize) -> bool {
        Shape::<G>::strip_end(self.count + 1) + words <= self.low
    }

    /// Returns the word after the search for room has passed the tranche.
    pub fn passed(self) -> Self {
        Commit { pass: (self.pass + 1).min(Self::PASS_MAX), ..self }
    }

    /// Returns the word after a record that had passed the tranche was removed.
    pub fn passed_no_more(self) -> Self {
        let exact = self.pass < Self::PASS_MAX;
        Commit { pass: self.pass.saturating_sub(u64::from(exact)), ..self }
    }
}

/// The kind of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A key and a value of 8 bytes each, without lengths.
    Pair = 1,
    /// A word with the lengths of key (low half) and value, then both, padded with zeros.
    Direct = 2,
    /// The [named](Named::Item) offset of a block with key and value, then the hash of the key, so
    /// that no other key's block is read.
    Indirect = 3,
}

impl Kind {
    fn of(bits: u16) -> Option<Self> {
        match bits {
            1 => Some(Kind::Pair),
            2 => Some(Kind::Direct),
            3 => Some(Kind::Indirect),
            _ => None,
        }
    }
}

/// The entry of a record in the strip.
///
/// ```text
/// bit  0..12  word at which the payload begins
/// bit 12..14  see `Kind`; never 0, so that zeros are no record
/// bit 14      dead
/// bit 15      0
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The word at which the payload begins.
    pub start: usize,
    /// The kind of the record.
    pub kind: Kind,
    /// `true` if the record was removed. Its space can be used again.
    pub dead: bool,
}

impl Entry {
    /// The marks of dead records in a word with four entries.
    pub const DEAD_OF_FOUR: u64 = 0x4000_4000_4000_4000;

    /// Encodes the entry.
    pub fn encode(self) -> u16 {
        self.start as u16 | (self.kind as u16) << 12 | u16::from(self.dead) << 14
    }

    /// Returns the word at which the payload of an encoded entry begins.
    #[inline(always)]
    pub fn start_of(bits: u16) -> usize {
        usize::from(bits & 0xfff)
    }

    /// Decodes an entry. Returns `None` if it is none.
    #[inline(always)]
    pub fn decode(bits: u16) -> Option<Self> {
        let kind = Kind::of(bits >> 12 & 3)?;
        let entry = Entry { start: Self::start_of(bits), kind, dead: bits >> 14 & 1 == 1 };
        (bits >> 15 == 0).then_some(entry)
    }
}

/// The lock and the version of a group, or the version of a tranche.
///
/// ```text
/// bit  0..16  generation  low bits of the generation; any other means "not recovered"
/// bit 16      locked
/// bit 32..64  version     number of changes
/// ```
///
/// The version of a tranche is locked while the holder of the group's lock changes records in it,
/// or moves keys whose home it is. So a search that ends in its home has to validate only this
/// version, which is in a line that it reads anyway.
///
/// It is obsolete after a crash, so it is never flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Version(pub u64);

impl Version {
    const LOCKED: u64 = 1 << 16;
    const ONE: u64 = 1 << 32;

    /// Returns the initial word of a group, unlocked.
    pub fn fresh(generation: u64) -> Self {
        Version(generation & 0xffff)
    }

    /// Returns `true` if the opener `generation` wrote the word.
    #[inline(always)]
    pub fn is_of(self, generation: u64) -> bool {
        self.0 as u16 == generation as u16
    }

    /// Returns `true` if the opener `generation` wrote the word, and the group is not locked.
    #[inline(always)]
    pub fn is_readable(self, generation: u64) -> bool {
        (self.0 ^ generation & 0xffff) & (Self::LOCKED | 0xffff) == 0
    }

    /// Returns the word with the group locked.
    #[inline(always)]
    pub fn locked(self) -> Self {
        Version(self.0 | Self::LOCKED)
    }

    /// Returns the word for a group that is not in the table any more, unlocked: "not recovered".
    /// It keeps the version, so that no later one equals an earlier one of the same memory.
    pub fn of_no_group(self, generation: u64) -> Self {
        Version(self.0 & !0x1_ffff | stale(generation) & 0xffff)
    }

    /// Returns the word for a group that joins the table, unlocked, with a new version.
    pub fn of_new_group(self, generation: u64) -> Self {
        Version(self.0 & !0x1_ffff | generation & 0xffff).advanced()
    }

    /// Returns the word with the group unlocked and a new version.
    #[inline(always)]
    pub fn advanced(self) -> Self {
        // The version is in the highest bits, so that its carry is lost.
        Version((self.0 & !Self::LOCKED).wrapping_add(Self::ONE))
    }
}

#[cfg(test)]
mod tests {
    use super::super::geometry::{Sizes, TinySizes};
    use super::*;

    /// The positions in a tranche of `T` bytes.
    type Of<const T: usize> = Shape<Sizes<T, 2, 0>>;

    /// Checks that strip and payloads do not overlap, for every count.
    fn check_shape<const T: usize>() {
        let (mut used, pairs) = (vec![0u8; T], Of::<T>::PAIRS);
        used[..8 * HEADER].fill(1);
        for at in 0..pairs {
            used[8 * Of::<T>::fingerprint_word(at) + at % 8] += 1;
            let entry = 8 * Of::<T>::entry_word(at) + at % 4 * 2;
            used[entry..entry + 2].iter_mut().for_each(|byte| *byte += 1);
            let end = 8 * Of::<T>::strip_end(at + 1);
            assert!(used[end..].iter().all(|&byte| byte == 0), "{T}: record {at}");
        }
        assert_eq!(used.iter().map(|&byte| usize::from(byte)).sum::<usize>(), 16 + 3 * pairs);
        assert!(8 * Of::<T>::strip_end(pairs) + 16 * pairs <= T);
    }

    #[test]
    fn strips_have_no_overlaps() {
        check_shape::<256>();
        check_shape::<512>();
        check_shape::<4096>();
        check_shape::<{ 32 << 10 }>();
    }

    /// Bytes per pair of 16 bytes, with header: at least 19.
    #[test]
    fn pairs_of_a_tranche() {
        let pairs =
            [Of::<256>::PAIRS, Of::<512>::PAIRS, Of::<4096>::PAIRS, Of::<{ 32 << 10 }>::PAIRS];
        assert_eq!(pairs, [12, 25, 214, 1723]);
    }

    #[test]
    fn words_decode_to_what_was_encoded() {
        let commit = Commit { count: 1723, low: 4096, pass: 0xffff, dead: 1000 };
        assert_eq!(Commit::decode::<Sizes<{ 32 << 10 }, 2, 0>>(commit.encode()), Some(commit));
        assert_eq!(Commit::decode::<TinySizes>(commit.encode()), None);
        assert_eq!(
            Commit::decode::<TinySizes>(Commit::empty(32).encode()),
            Some(Commit::empty(32))
        );
        assert_eq!(Commit::decode::<TinySizes>(0), None, "zeros are no tranche");
        for kind in [Kind::Pair, Kind::Direct, Kind::Indirect] {
            for dead in [false, true] {
                let entry = Entry { start: 4095, kind, dead };
                assert_eq!(Entry::decode(entry.encode()), Some(entry));
            }
        }
        assert_eq!((Entry::decode(0), Entry::decode(u16::MAX)), (None, None));
        assert_eq!(Redo::decode(Redo::encode(0)), Some(0));
        assert_eq!((Redo::decode(0), Redo::decode(7)), (None, None));
        let names = [Named::Table(1), Named::Chunk(1), Named::Overflow(1, 0), Named::Redo];
        for name in names {
            for other in names {
                let expected = (name == other).then_some(4096);
                assert_eq!(other.decode(name.encode(4096)), expected, "{name:?} {other:?}");
            }
        }
    }

    #[test]
    fn a_saturated_counter_stays() {
        let commit = |pass| Commit { pass, ..Commit::empty(32) };
        assert_eq!(commit(7).passed(), commit(8));
        assert_eq!(commit(8).passed_no_more(), commit(7));
        assert_eq!(commit(0xfffe).passed(), commit(0xffff));
        assert_eq!(commit(0xffff).passed(), commit(0xffff));
        assert_eq!(commit(0xffff).passed_no_more(), commit(0xffff));
        assert_eq!(commit(0).passed_no_more(), commit(0));
    }

    #[test]
    fn versions() {
        let version = Version::fresh(0xffff_1234);
        assert!(version.is_of(0x1234) && version.is_readable(0x1234) && !version.is_readable(1));
        let locked = version.locked();
        assert!(locked.is_of(0x1234) && !locked.is_readable(0x1234));
        assert!(locked.advanced().is_readable(0x1234) && locked.advanced() != version);
        assert_eq!(Version(u64::MAX).advanced().0, 0xfffe_ffff, "the version wraps");
        let gone = locked.advanced().of_no_group(0x1234);
        assert!(!gone.is_of(0x1234) && gone.of_new_group(0x1234).is_readable(0x1234));
        assert_ne!(gone.of_new_group(0x1234), locked.advanced());
        assert!(!Version(0x1_0000).of_no_group(0).is_of(0));
    }
}
