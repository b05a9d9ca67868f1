//! The superblock and the header: their layouts, and how the superblock is written and found.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::Region;
use super::table::{PARTS, TABLE};
use crate::medium::{HOLDER_PID_OFFSET, Medium};
use crate::{Error, ErrorKind, PmU64, Result, pod};

/// First word of a superblock: "EVERMAP" and a zero byte.
const MAGIC: u64 = u64::from_le_bytes(*b"EVERMAP\0");

/// First word of a region that is being created: all other contents are meaningless. It differs
/// from `MAGIC` in every byte, so that no damage to a single word turns a region into an empty one.
pub(super) const CREATING: u64 = u64::from_le_bytes(*b"creating");

/// Newest format that this version supports. The low half of the format word.
pub const FORMAT: u32 = 11;

/// Format of a new region. It [rises](Region::raise_format) only when something is stored that
/// programs of the older format would ignore with bad consequences, so that they can open all other
/// regions.
pub(super) const FORMAT_AT_FIRST: u32 = 5;

/// High half of the format word: it reads differently if the byte order is swapped.
const BYTE_ORDER: u32 = 0x0102_0304;

/// Offset of the second copy of the superblock.
pub(super) const SECOND_COPY: u64 = 4096;

/// Offset of the header words.
pub(super) const HEADER_WORDS: u64 = 8192;

/// Number of root slots in a region.
pub const ROOTS: usize = 16;

/// `state` of a region that was closed with everything durable, and in which no damage was found.
pub(super) const CLEAN: u64 = u64::from_le_bytes(*b"CLEAN\0\0\0");

/// `state` of a region that was closed with everything durable, although damage was found in it.
/// Any other value means open.
pub(super) const CLOSED: u64 = u64::from_le_bytes(*b"CLOSED\0\0");

pod! {
    /// One copy of the superblock. After creation only its format ever changes.
    pub(super) struct Superblock: 256 {
        pub(super) magic: PmU64,
        /// Format version (low 32 bits) and byte order mark (high 32 bits).
        pub(super) format: PmU64,
        pub(super) uuid: [PmU64; 2],
        /// Bytes in the largest extent of blocks, a power of two.
        pub(super) extent_size: PmU64,
        /// Maximum number of units of the region.
        pub(super) unit_count: PmU64,
        /// Seed of the placement hash.
        pub(super) seed: PmU64,
        /// Durability level that the store was created for; 0 until levels with a log exist.
        durability: PmU64,
        /// Identity of the log of this region; 0 if there is none.
        log_uuid: [PmU64; 2],
        /// Log sequence number of the last checkpoint; 0 if there is none.
        checkpoint_lsn: PmU64,
        /// Random number that region and log share; 0 if there is none.
        epoch: PmU64,
        reserved: [PmU64; 19],
        /// CRC32C of all preceding fields.
        pub(super) check: PmU64,
    }
}

pod! {
    /// The words that change. Each group is on a line of its own.
    pub struct Header: 1024 {
        /// `CLEAN` after a clean shutdown, `CLOSED` after one with damage.
        pub(super) state: PmU64,
        /// Bytes of the file that had no space allocated at the last clean shutdown.
        pub(super) hole_bytes: PmU64,
        pad0: [PmU64; 6],
        /// The number of opens so far, and its complement as a check.
        pub generation: [PmU64; 2],
        pad1: [PmU64; 6],
        /// Boot id (2), device, inode, birth time: see [`Identity`].
        pub(super) identity: [PmU64; 5],
        pad2: [PmU64; 3],
        /// Upper bound: only CAS ids below this one were ever assigned.
        pub cas_limit: PmU64,
        pad3: [PmU64; 7],
        /// Records with a CAS id below the first word are flushed. The second word is the time at
        /// which a pending flush is due (unix seconds, 0 if there is none).
        pub flush_mark: [PmU64; 2],
        pad4: [PmU64; 6],
        /// Process id of the writer.
        pub(super) holder: PmU64,
        pad5: [PmU64; 7],
        /// Saved occupancy of the heap: offset, bytes, CRC32C. Valid only when clean.
        pub(crate) snapshot: [PmU64; 3],
        pad6: [PmU64; 5],
        /// Counters of the owner. They are exact after a clean shutdown, and valid only when clean.
        pub counters: [PmU64; 4],
        pad7: [PmU64; 4],
        pub(super) roots: [PmU64; ROOTS],
        /// Offsets of the later parts of the table, each with a check; two copies.
        pub(super) parts: [[PmU64; PARTS]; 2],
        /// Says which superblock belongs to these words: see [`Region::fit`]. 0 in regions that
        /// were never opened by a program that knows it.
        pub(super) fit: PmU64,
        pad8: [PmU64; 7],
        /// Whether damage was found: see [`DamageMark`](super::DamageMark).
        pub(super) damage: PmU64,
        pad9: [PmU64; 7],
    }
}

const _: () =
    assert!(HEADER_WORDS + std::mem::offset_of!(Header, holder) as u64 == HOLDER_PID_OFFSET);

impl<M: Medium> Region<M> {
    pub(super) fn write_superblock(&self, at: u64) {
        self.write_superblock_as(at, self.format());
    }

    pub(super) fn write_superblock_as(&self, at: u64, format: u32) {
        let m = &self.medium;
        let copy = m.at::<Superblock>(at).expect("below the table");
        m.store(&copy.format, format_word(format));
        m.store(&copy.uuid[0], self.uuid[0]);
        m.store(&copy.uuid[1], self.uuid[1]);
        m.store(&copy.extent_size, self.extent_size);
        m.store(&copy.unit_count, self.unit_count);
        m.store(&copy.seed, self.seed);
        m.store(&copy.magic, MAGIC);
        m.store(&copy.check, Self::checksum(m, at));
        // In any order: if a crash leaves a part of it, the copy does not verify. The other one
        // does, or the region counts as one that is being created.
        m.persist(copy);
    }

    /// Makes programs that only support formats below `format` refuse this region from now on.
    /// Durable on return. Must be called before storing anything that those programs would ignore
    /// with bad consequences. Does nothing if the region already has that format, at the cost of
    /// one load.
    ///
    /// # Errors
    ///
    /// `Poisoned` or `Forked`.
    ///
    /// # Panics
    ///
    /// If `format` is above [`FORMAT`].
    #[inline]
    pub fn raise_format(&self, format: u32) -> Result<()> {
        assert!(format <= FORMAT, "format {format} is not known yet");
        // Acquire: a caller that sees the new format relies on its being durable.
        if self.format.load(Ordering::Acquire) >= format {
            Ok(())
        } else {
            self.write_format(format)
        }
    }

    #[cold]
    fn write_format(&self, format: u32) -> Result<()> {
        self.ensure_writable()?;
        let _held = self.format_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.format();
        if before >= format {
            return Ok(());
        }
        let poison = self.poison_on_panic();
        // One copy after the other, so that a crash leaves one that verifies: until the second
        // write the old format is the valid one, and nothing of the new format is stored yet.
        for at in [SECOND_COPY, 0] {
            self.write_superblock_as(at, format);
        }
        self.format.store(format, Ordering::Release);
        poison.disarm();
        Ok(())
    }

    /// Returns the current format of the region.
    pub fn format(&self) -> u32 {
        self.format.load(Ordering::Acquire)
    }

    /// Returns the checksum of the copy at `at`: that of all its fields before.
    pub(super) fn checksum(medium: &M, at: u64) -> u64 {
        let mut bytes = [0; 248];
        medium.read_bytes(medium.slice(at, 31).expect("below the table"), &mut bytes);
        u64::from(crc32c::crc32c(&bytes))
    }

    pub(super) fn superblock_verifies(medium: &M, at: u64) -> bool {
        let Some(copy) = medium.at::<Superblock>(at) else { return false };
        medium.load(&copy.magic) == MAGIC && medium.load(&copy.check) == Self::checksum(medium, at)
    }

    /// Returns the word by which the header recognises a superblock: a checksum of the fields that
    /// never change, with a checksum of its own. A superblock of another region, or one that was
    /// changed and given a new checksum, would place all keys elsewhere.
    pub(super) fn fit(medium: &M, at: u64) -> u64 {
        let mut bytes = [0; 40];
        let offset = at + std::mem::offset_of!(Superblock, uuid) as u64;
        medium.read_bytes(medium.slice(offset, 5).expect("below the table"), &mut bytes);
        fit_word(crc32c::crc32c(&bytes))
    }

    /// Returns the offset of the copy of the superblock that is valid and fits the header.
    ///
    /// # Errors
    ///
    /// `Damaged` if there is none, or two that contradict each other.
    fn fitting_superblock(medium: &M) -> Result<Option<u64>> {
        let mut valid =
            [0, SECOND_COPY].into_iter().filter(|&at| Self::superblock_verifies(medium, at));
        let (first, second) = (valid.next(), valid.next());
        let header: &Header = medium.at(HEADER_WORDS).expect("below the table");
        let known = medium.load(&header.fit);
        if known != 0 && known == fit_word(known as u32) {
            let fits =
                [first, second].into_iter().flatten().find(|&at| Self::fit(medium, at) == known);
            return match fits {
                None if first.is_some() => Err(Error::damaged(
                    HEADER_WORDS,
                    "the superblock is not the one that this file was created with",
                )),
                fits => Ok(fits),
            };
        }
        match (first, second) {
            (Some(one), Some(other)) if Self::fit(medium, one) != Self::fit(medium, other) => {
                Err(Error::damaged(0, "the two copies of the superblock contradict each other"))
            }
            _ => Ok(first),
        }
    }

    /// Returns the offset of the valid copy of the superblock.
    pub(super) fn find_superblock(medium: &M) -> Result<u64> {
        let no_store = |why: String| Err(ErrorKind::NotAStore { path: "".into(), why }.into());
        if medium.len() < TABLE {
            return match medium.at::<PmU64>(0).map_or(0, |word| medium.load(word)) {
                MAGIC => Err(truncated_header(medium.file_len())),
                _ => no_store(format!("it has only {} bytes", medium.file_len())),
            };
        }
        if let Some(at) = Self::fitting_superblock(medium)? {
            let format = medium.load(&medium.at::<Superblock>(at).expect("verified").format);
            if format >> 32 != u64::from(BYTE_ORDER) {
                return no_store("it is one of a machine with another byte order".into());
            }
            if (format as u32) < FORMAT_AT_FIRST {
                let why = format!(
                    "it has format {}, which an older version wrote and this one cannot read; \
                         this version reads formats {FORMAT_AT_FIRST} to {FORMAT}",
                    format as u32
                );
                return Err(ErrorKind::NotAStore { path: "".into(), why }.into());
            }
            if format as u32 > FORMAT {
                let (path, found) = ("".into(), format as u32);
                return Err(ErrorKind::NewerFormat { path, found, known: FORMAT }.into());
            }
            return Ok(at);
        }
        let magic = |at| medium.load(&medium.at::<Superblock>(at).expect("fits").magic);
        // First: the second copy may be there in part.
        if magic(0) == CREATING {
            return no_store("its creation was interrupted; create it again".into());
        }
        if magic(0) == MAGIC || magic(SECOND_COPY) == MAGIC {
            return Err(Error::damaged(0, "neither copy of the superblock verifies"));
        }
        if is_zero(medium, TABLE) {
            return no_store(format!(
                "there are only zeros where its header should be, in a file of {} bytes; if the \
                 file contains nothing of value, remove it, and a new store can be created",
                medium.file_len()
            ));
        }
        no_store("it has no superblock".into())
    }
}

/// Returns the error for a file that begins with a superblock and ends after `len` bytes, inside
/// its header.
pub fn truncated_header(len: u64) -> Error {
    let what = format!("the file ends at {len} bytes, inside its header: it was cut off");
    Error::damaged(len, what).at_opening()
}

/// Returns `true` if `bytes` begin with the magic word of a region.
pub fn starts_with_magic(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC.to_le_bytes())
}

/// Returns `true` if the first `bytes` bytes are zeros.
pub(super) fn is_zero<M: Medium>(medium: &M, bytes: u64) -> bool {
    let words = medium.slice::<PmU64>(0, bytes / 8);
    words.is_some_and(|words| words.iter().all(|word| medium.load(word) == 0))
}

/// Returns a word with a checksum and a checksum of that.
fn fit_word(checksum: u32) -> u64 {
    u64::from(checksum) | u64::from(crc32c::crc32c_append(checksum, b"fits")) << 32
}

fn format_word(format: u32) -> u64 {
    u64::from(format) | u64::from(BYTE_ORDER) << 32
}
