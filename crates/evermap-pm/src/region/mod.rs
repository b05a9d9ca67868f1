//! A medium with a superblock: what it is, whose it is, and what changed hands at every open.
//!
//! ```text
//! 0      superblock, first copy     written at creation, and when the format rises; checksummed
//! 4096   superblock, second copy    written before the first
//! 8192   words that change          each group on a line of its own
//! 12288  first part of the table    8 bytes a unit, see `heap`
//! 16384  units                      what the heap takes space in
//! ```
//!
//! The table grows with the file: each later part describes three times as many units as all parts before it together.
//! It lies among the units, and a word here says where.
//!
//! A region comes into being with its superblock: the second copy is written when everything else is
//! durable, the first copy after it. Until then the first word says that a creation is going on, and it
//! says so before the file is longer than a page. So an interrupted creation is begun again, whatever
//! its size, and no other file is ever taken for one.

use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::medium::{Medium, Note, OFFSET_LIMIT};
use crate::sync::Mutex;
use crate::{Error, ErrorKind, PmU64, Result, pod};

mod entry;

pub(crate) use entry::{BlockKind, GRANULE, Geometry, TableEntry, Usage};

/// First word of a superblock: "EVERMAP" and a zero byte.
const MAGIC: u64 = u64::from_le_bytes(*b"EVERMAP\0");
/// First word of a region that is being created: nothing else in it counts. It differs from `MAGIC` in
/// every byte, so that no damage to a single word turns a region into an empty one.
const CREATING: u64 = u64::from_le_bytes(*b"creating");
/// Newest format that this version understands; the low half of the format word.
pub const FORMAT: u32 = 8;
/// Format of a new region. It [rises](Region::raise_format) only when something is kept in the region that programs of
/// the older format would ignore to its harm, so that they can open all others.
const FORMAT_AT_FIRST: u32 = 5;
/// High half of the format word: reads differently where bytes are swapped.
const BYTE_ORDER: u32 = 0x0102_0304;
const SECOND_COPY: u64 = 4096;
const HEADER_WORDS: u64 = 8192;
/// Where the first part of the table begins.
pub(crate) const TABLE: u64 = 12288;
/// Where the units begin.
const HEADER_BYTES: u64 = 16384;
/// Units that the first part of the table describes.
const FIRST_PART: u64 = (HEADER_BYTES - TABLE) / 8;
/// Parts that the table can have beside its first.
const PARTS: usize = 16;
/// Bits of the offset in a word that names a part of the table; above it is a check.
const PART_BITS: u32 = 48;
/// Root slots in a region.
pub const ROOTS: usize = 16;
/// `state` of a region that was closed with everything durable. Anything else means open.
const CLEAN: u64 = u64::from_le_bytes(*b"CLEAN\0\0\0");
/// Smallest and largest extent, bytes.
const EXTENT_SIZES: std::ops::RangeInclusive<u64> = 4096..=1 << 30;

pod! {
    /// One copy of the superblock. Nothing but its format ever changes after creation.
    struct Superblock: 256 {
        magic: PmU64,
        /// Format version (low 32 bits) and byte order mark (high 32 bits).
        format: PmU64,
        uuid: [PmU64; 2],
        /// Bytes in the largest extent that blocks share, a power of two.
        extent_size: PmU64,
        /// Most units that the region can have.
        unit_count: PmU64,
        /// Seed of the placement hash.
        seed: PmU64,
        /// Durability level the store was created for; 0 until levels with a log exist.
        durability: PmU64,
        /// Identity of the log that belongs to this region; 0: none.
        log_uuid: [PmU64; 2],
        /// Log sequence number of the last checkpoint; 0: none.
        checkpoint_lsn: PmU64,
        /// Random number that region and log share; 0: none.
        epoch: PmU64,
        reserved: [PmU64; 19],
        /// CRC32C of everything before.
        check: PmU64,
    }
}

pod! {
    /// The words that change, each group on its own line.
    pub struct Header: 1024 {
        /// `CLEAN` after an orderly close.
        state: PmU64,
        /// Bytes of the file that had no space of their own at the last orderly close.
        hole_bytes: PmU64,
        pad0: [PmU64; 6],
        /// How often the region was opened, and the complement as a check.
        pub generation: [PmU64; 2],
        pad1: [PmU64; 6],
        /// Boot id (2), device, inode, birth time: see [`Identity`].
        identity: [PmU64; 5],
        pad2: [PmU64; 3],
        /// No stamp (CAS id) at or above this one was ever given out.
        pub cas_limit: PmU64,
        pad3: [PmU64; 7],
        /// Records with a stamp below the first word are flushed; the second is when a pending flush falls
        /// due (unix seconds, 0: none).
        pub flush_mark: [PmU64; 2],
        pad4: [PmU64; 6],
        /// Process id of the writer.
        holder: PmU64,
        pad5: [PmU64; 7],
        /// Occupancy of the heap, saved by an orderly close: offset, bytes, CRC32C. Counts only when clean.
        pub(crate) snapshot: [PmU64; 3],
        pad6: [PmU64; 5],
        /// Counters of the owner, exact after an orderly close. Count only when clean.
        pub counters: [PmU64; 4],
        pad7: [PmU64; 4],
        roots: [PmU64; ROOTS],
        /// Where the later parts of the table are, each with a check; two copies.
        parts: [[PmU64; PARTS]; 2],
        reserved: [PmU64; 16],
    }
}

/// Where a process finds the pid of a region's holder before it may read the rest.
pub const HOLDER_PID_OFFSET: u64 = HEADER_WORDS + 5 * 64;
const _: () =
    assert!(std::mem::offset_of!(Header, holder) as u64 + HEADER_WORDS == HOLDER_PID_OFFSET);

/// What tells whether the pages of a file can be of different ages: who wrote them, and where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Which life of the machine this is: the boot id of the kernel, or one of
    /// [`unknown_boot`](Identity::unknown_boot) and [`MEMORY`](Identity::MEMORY).
    pub boot: [u64; 2],
    /// What holds the file: its device, or where device numbers change from mount to mount, the file
    /// system's own id.
    pub device: u64,
    /// Inode of the file.
    pub inode: u64,
    /// When the file was created, nanoseconds since 1970, 0 where unknown.
    pub birth: u64,
}

impl Identity {
    /// In place of the boot id for a file that cannot outlive the kernel, and that no other file can be
    /// taken for: as long as it is the same file, it is the same life of the machine. So it does not matter
    /// what a container says the boot id is.
    pub const MEMORY: [u64; 2] = [u64::from_le_bytes(*b"inmemory"), 0];
    const UNKNOWN: u64 = u64::from_le_bytes(*b"no boot ");

    /// In place of a boot id that cannot be learned. Different every time, so that it never equals another.
    pub fn unknown_boot() -> [u64; 2] {
        [Self::UNKNOWN, random()]
    }

    fn words(&self) -> [u64; 5] {
        [self.boot[0], self.boot[1], self.device, self.inode, self.birth]
    }

    fn from_words([first, second, device, inode, birth]: [u64; 5]) -> Self {
        Identity { boot: [first, second], device, inode, birth }
    }

    fn is_same_file(&self, other: &Self) -> bool {
        let file = |identity: &Self| (identity.device, identity.inode, identity.birth);
        file(self) == file(other)
    }

    /// Why what was written under the identity `before`, and not closed, cannot be trusted under this one;
    /// nothing if the kernel has kept every page as it was last stored.
    fn doubt(&self, before: &Self) -> Option<&'static str> {
        if (self.inode, self.birth) != (before.inode, before.birth) {
            return Some(
                "the store was not closed, and this is not the file that was open then, but a copy \
                 of it or a restored one",
            );
        }
        if self.device != before.device {
            return Some(
                "the store was not closed, and its file system is on another device now: a copy of \
                 the old one, or the same under another number",
            );
        }
        if self.boot == before.boot || self.boot == Self::MEMORY {
            return None;
        }
        if [self.boot[0], before.boot[0]].contains(&Self::UNKNOWN) {
            return Some(
                "the store was not closed, and it is not known whether the machine has crashed since: \
                 /proc/sys/kernel/random/boot_id cannot be read or trusted here, or could not then",
            );
        }
        Some(
            "the store was not closed, and since then the machine was restarted, or the container, if \
             it has a boot id of its own",
        )
    }
}

/// What to do with a store whose contents cannot be trusted: one that was not closed before the machine
/// restarted or that was copied while it was open, so that its pages may be of different ages; one that was
/// cut off; one with damage that keeps it from being opened.
///
/// None of these overwrites a file that is not a store, or one of a newer format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnSuspect {
    /// Returns an error that says what was found, and leaves the contents alone.
    #[default]
    Refuse,
    /// Opens it, and does without what is lost; what does not verify is dropped when it is found. Loses
    /// nothing where nothing is wrong. Still an error where no copy of the header can be read.
    Salvage,
    /// Starts empty: everything that was in it is gone for good. A store that can be trusted is opened as
    /// it is.
    Discard,
}

/// Shape of a new region.
#[derive(Clone, Copy, Debug)]
pub struct RegionConfig {
    /// Bytes in the largest extent that blocks share: a power of two, 4 KiB to 1 GiB. The heap takes space in units of a
    /// 128th of that, but at least 4 KiB and at most 16 KiB.
    pub extent_size: u64,
    /// Most bytes that the region may ever have.
    pub capacity: u64,
    /// Seed of the placement hash; drawn at random where `None`.
    pub seed: Option<u64>,
}

impl Default for RegionConfig {
    /// Extents of up to 2 MiB in up to 256 GiB.
    fn default() -> Self {
        RegionConfig { extent_size: 2 << 20, capacity: 256 << 30, seed: None }
    }
}

/// What [`Region::open`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Whether the last close was orderly.
    pub clean: bool,
    /// Whether the contents are suspect and were opened all the same.
    pub suspect: bool,
    /// Whether old generation stamps cannot be told from new ones, so that everything must be recovered now: O(everything).
    pub recover_all: bool,
}

/// A medium with a superblock.
pub struct Region<M: Medium> {
    medium: M,
    generation: u64,
    seed: u64,
    uuid: [u64; 2],
    extent_size: u64,
    unit_count: u64,
    /// Offsets of the later parts of the table; 0 for those that there are not yet.
    parts: [AtomicU64; PARTS],
    recover_all: bool,
    table_faults: u64,
    format: AtomicU32,
    /// Held while the superblock changes.
    rising: Mutex<()>,
    poisoned: AtomicBool,
    forked: crate::fork::ForkDetector,
}

impl<M: Medium> Region<M> {
    /// Whether `medium` holds no region yet: it is empty, or the creation of one was interrupted. O(1).
    pub fn is_blank(medium: &M) -> bool {
        let Some(first) = medium.at::<PmU64>(0) else { return true };
        match medium.load(first) {
            CREATING => true,
            // The medium has got its first bytes, but not yet the word that says what for.
            0 => medium.len() <= medium.begun_bytes() && is_zero(medium, medium.len()),
            _ => false,
        }
    }

    /// Makes a region of a blank medium.
    ///
    /// # Errors
    /// `Config` for impossible shapes, `NoSpace`.
    pub fn create(medium: M, config: &RegionConfig, identity: Identity) -> Result<Self> {
        let extent_size = config.extent_size;
        if !extent_size.is_power_of_two() || !EXTENT_SIZES.contains(&extent_size) {
            let text =
                format!("extents must be a power of two from 4 KiB to 1 GiB, not {extent_size}");
            return Err(ErrorKind::Config(text).into());
        }
        let capacity = config.capacity.min(medium.capacity()).min(OFFSET_LIMIT);
        let unit_count = capacity.saturating_sub(HEADER_BYTES) / unit_of(extent_size);
        // Durable before anything else changes: from here on until the first copy of the superblock is
        // complete, nothing in the medium counts.
        medium.begin(CREATING)?;
        medium.grow(HEADER_BYTES)?;
        let region = Region {
            generation: 1,
            seed: config.seed.unwrap_or_else(random),
            // A chosen seed makes everything reproducible.
            uuid: config.seed.map_or_else(|| [random(), random()], |seed| [seed, !seed]),
            extent_size,
            unit_count,
            parts: Default::default(),
            recover_all: false,
            table_faults: 0,
            format: AtomicU32::new(FORMAT_AT_FIRST),
            rising: Mutex::new(()),
            poisoned: AtomicBool::new(false),
            forked: crate::fork::ForkDetector::new()?,
            medium,
        };
        region.clear();
        region.write_identity(identity);
        // With it all of the above becomes durable.
        region.write_generation();
        region.write_superblock(SECOND_COPY);
        region.write_superblock(0);
        Ok(region)
    }

    /// Zeroes what an interrupted creation may have left, flushed without a fence.
    fn clear(&self) {
        let cells = self.medium.slice::<PmU64>(HEADER_WORDS, (HEADER_BYTES - HEADER_WORDS) / 8);
        let cells = cells.expect("grown to hold the header");
        for cell in cells {
            if self.medium.load(cell) != 0 {
                self.medium.store(cell, 0);
                self.medium.note(Note::Harmless(
                    "needed in memory with a past: `what_was_there_before_a_creation_is_gone_for_good`",
                ));
                self.medium.flush(cell);
            }
        }
    }

    fn write_superblock(&self, at: u64) {
        self.write_superblock_as(at, self.format());
    }

    fn write_superblock_as(&self, at: u64, format: u32) {
        let m = &self.medium;
        let copy = m.at::<Superblock>(at).expect("below the table");
        m.store(&copy.format, format_word(format));
        m.store(&copy.uuid[0], self.uuid[0]);
        m.store(&copy.uuid[1], self.uuid[1]);
        m.store(&copy.extent_size, self.extent_size);
        m.store(&copy.unit_count, self.unit_count);
        m.store(&copy.seed, self.seed);
        m.store(&copy.check, self.check_with_magic(at));
        m.persist(copy);
        // Last, because it says that the rest is complete.
        m.store(&copy.magic, MAGIC);
        m.persist(&copy.magic);
    }

    /// Makes programs that only know formats below `format` refuse this region from now on; durable on return. Call
    /// before anything is stored that they would ignore to its harm. Does nothing if that is so already: one load.
    ///
    /// # Errors
    /// `Poisoned` or `Forked`.
    ///
    /// # Panics
    /// If `format` is above [`FORMAT`].
    #[inline]
    pub fn raise_format(&self, format: u32) -> Result<()> {
        assert!(format <= FORMAT, "format {format} is not known yet");
        // Acquire: whoever sees it raised builds on its being durable.
        if self.format.load(Ordering::Acquire) >= format { Ok(()) } else { self.rise(format) }
    }

    #[cold]
    fn rise(&self, format: u32) -> Result<()> {
        self.ensure_writable()?;
        let _held = self.rising.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.format();
        if before >= format {
            return Ok(());
        }
        let poison = self.poison_on_panic();
        // One copy after the other, so that a crash leaves one that verifies: up to the second of the two writes the
        // old one is believed, and nothing of the new format is there yet.
        for at in [SECOND_COPY, 0] {
            self.write_superblock_as(at, format);
        }
        self.format.store(format, Ordering::Release);
        poison.disarm();
        Ok(())
    }

    /// The format that the region has now.
    pub fn format(&self) -> u32 {
        self.format.load(Ordering::Acquire)
    }

    /// The checksum that the copy at `at` will have once its magic word is there.
    fn check_with_magic(&self, at: u64) -> u64 {
        let mut bytes = Self::superblock_bytes(&self.medium, at);
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        u64::from(crc32c::crc32c(&bytes))
    }

    /// A copy without its checksum.
    fn superblock_bytes(medium: &M, at: u64) -> [u8; 248] {
        let mut bytes = [0; 248];
        medium.read_bytes(medium.slice(at, 31).expect("below the table"), &mut bytes);
        bytes
    }

    /// Opens the region in `medium`, and makes everything stamped by earlier openers stale.
    ///
    /// # Errors
    /// `NotAStore`, `NewerFormat`, `Damaged`, `Suspect` (unless `on_suspect` allows it).
    pub fn open(medium: M, identity: Identity, on_suspect: OnSuspect) -> Result<(Self, Opened)> {
        let at = Self::find_superblock(&medium)?;
        let copy = medium.at::<Superblock>(at).expect("just read");
        let load = |cell: &PmU64| medium.load(cell);
        let (extent_size, unit_count) = (load(&copy.extent_size), load(&copy.unit_count));
        if !extent_size.is_power_of_two()
            || !EXTENT_SIZES.contains(&extent_size)
            || unit_count > OFFSET_LIMIT / unit_of(extent_size)
        {
            return Err(Error::damaged(at, "superblock: impossible extents"));
        }
        if medium.len() < HEADER_BYTES {
            let text = format!(
                "the file ends at {} bytes, inside its extent table: it was cut off",
                medium.len()
            );
            return Err(Error::damaged(medium.len(), text));
        }
        let format = load(&copy.format) as u32;
        let (seed, uuid) = (load(&copy.seed), [load(&copy.uuid[0]), load(&copy.uuid[1])]);
        let mut region = Region {
            generation: 0,
            seed,
            uuid,
            extent_size,
            unit_count,
            parts: Default::default(),
            recover_all: false,
            table_faults: 0,
            format: AtomicU32::new(format),
            rising: Mutex::new(()),
            poisoned: AtomicBool::new(false),
            forked: crate::fork::ForkDetector::new()?,
            medium,
        };
        let before = region.identity();
        let is_same_file = identity.is_same_file(&before);
        // Before the table is looked at: in memory even that needs space.
        let has_holes = !is_same_file || region.medium.hole_bytes() > 0;
        if has_holes {
            region.fill_holes(0..HEADER_BYTES)?;
        }
        let named = region.find_parts(on_suspect)?;
        if has_holes {
            region.parts().try_for_each(|part| region.fill_holes(part))?;
        }
        let lost = region.check_length(on_suspect)?;
        let (clean, suspect) = region.judge(identity, on_suspect)?;
        region.fill_used_holes(is_same_file, clean)?;
        region.name_parts(named);
        region.forget_entries(lost);
        // Whoever stored what these say may have died before it was durable. Fenced with the generation, before the
        // other copy is touched, or anything relies on the format or on a root.
        region.medium.flush(region.medium.at::<Superblock>(at).expect("just read"));
        region.medium.note(Note::Harmless(
            "needed by who keeps more than a root here: `what_an_opening_believes_is_durable`",
        ));
        region.medium.flush(region.header());
        let opened = region.take_over(identity, clean, suspect)?;
        region.recover_all = opened.recover_all;
        for copy in [SECOND_COPY, 0] {
            // A copy that does not verify was damaged, or its write was interrupted: mend it from the other.
            if !Self::superblock_verifies(&region.medium, copy) {
                region.write_superblock(copy);
            }
        }
        Ok((region, opened))
    }

    fn superblock_verifies(medium: &M, at: u64) -> bool {
        let Some(copy) = medium.at::<Superblock>(at) else { return false };
        medium.load(&copy.magic) == MAGIC
            && medium.load(&copy.check)
                == u64::from(crc32c::crc32c(&Self::superblock_bytes(medium, at)))
    }

    /// The copy to believe.
    fn find_superblock(medium: &M) -> Result<u64> {
        let no_store = |why: String| Err(ErrorKind::NotAStore { path: "".into(), why }.into());
        if medium.len() < TABLE {
            return match medium.at::<PmU64>(0).map_or(0, |word| medium.load(word)) {
                MAGIC => Err(truncated_header(medium.len())),
                _ => no_store(format!("it has only {} bytes", medium.len())),
            };
        }
        for at in [0, SECOND_COPY] {
            if Self::superblock_verifies(medium, at) {
                let format = medium.load(&medium.at::<Superblock>(at).expect("verified").format);
                if format >> 32 != u64::from(BYTE_ORDER) {
                    return no_store("it is one of a machine with another byte order".into());
                }
                if (format as u32) < FORMAT_AT_FIRST {
                    let why = format!(
                        "it has format {}, which an older version wrote and this one cannot read; this version \
                         reads formats {FORMAT_AT_FIRST} to {FORMAT}",
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
        }
        let magic = |at| medium.load(&medium.at::<Superblock>(at).expect("fits").magic);
        if magic(0) == MAGIC || magic(SECOND_COPY) == MAGIC {
            return Err(Error::damaged(0, "neither copy of the superblock verifies"));
        }
        if magic(0) == CREATING {
            return no_store("its creation was interrupted; create it again".into());
        }
        if is_zero(medium, TABLE) {
            return no_store(format!(
                "there are only zeros where its header should be, in a file of {} bytes; if nothing of \
                 value is in the file, remove it, and a new store can be made",
                medium.len()
            ));
        }
        no_store("it has no superblock".into())
    }

    /// Entries of the extent table for what is beyond the end of the file. The file never ends before a unit
    /// that is in use, so either it was cut off, or the entries are damaged.
    ///
    /// Returns where the entries begin if any of them says anything.
    ///
    /// # Errors
    /// `Damaged` if the file was cut off, unless `on_suspect` allows it.
    fn check_length(&self, on_suspect: OnSuspect) -> Result<Option<u64>> {
        let (m, whole, count) = (&self.medium, self.units_in_file(), self.described());
        if self.entries(whole..count).all(|entry| m.load(entry) == 0) {
            return Ok(None);
        }
        // Units come into use one after the other. So where a file was cut off, the first entry beyond its
        // end says what a unit was for; any other is damage, and describes nothing that ever was.
        let end = (whole..count).find(|&index| !self.is_used_entry(index));
        let end = end.unwrap_or(count);
        if end > whole && on_suspect == OnSuspect::Refuse {
            return Err(self.cut_off_before(self.unit_offset(end)));
        }
        Ok(Some(whole))
    }

    /// Finds the later parts of the table. A file that is too short for one was truncated: where it is opened all
    /// the same, nothing of what that part describes is left.
    ///
    /// Returns the words that should name them.
    ///
    /// # Errors
    /// `Damaged`, if the file was cut off unless `on_suspect` allows it.
    fn find_parts(&mut self, on_suspect: OnSuspect) -> Result<[u64; PARTS]> {
        let m = &self.medium;
        let mut named = [0; PARTS];
        let (mut last, mut cut) = (false, false);
        for part in 1..=PARTS {
            let copies = self.part_words(part);
            let words = copies.map(|word| m.load(word));
            let valid = |word: &&u64| part_word(part, *word % (1 << PART_BITS)) == **word;
            let Some(&word) = words.iter().find(valid) else {
                if words != [0, 0] {
                    let at = m.offset_of(copies[0]);
                    return Err(Error::damaged(
                        at,
                        "both words that name a part of the extent table",
                    ));
                }
                last = true;
                continue;
            };
            let (at, entries) = (word % (1 << PART_BITS), self.part_entries(part));
            if last
                || entries.is_empty()
                || at < HEADER_BYTES
                || !(at - HEADER_BYTES).is_multiple_of(self.unit())
            {
                return Err(Error::damaged(
                    at,
                    "the parts of the extent table do not fit together",
                ));
            }
            let end = at + (entries.end - entries.start) * 8;
            let whole = !cut && end <= m.len();
            if !whole && on_suspect == OnSuspect::Refuse {
                return Err(self.cut_off_before(end));
            }
            if whole {
                named[part - 1] = word;
                *self.parts[part - 1].get_mut() = at;
            }
            cut |= !whole;
        }
        Ok(named)
    }

    /// Makes both copies of the words that name parts of the table these words: of an interrupted growth one
    /// may be missing, and a file that was cut off may have lost parts. Fenced with the generation.
    fn name_parts(&self, named: [u64; PARTS]) {
        let cells = self.header().parts.iter().flat_map(|copy| copy.iter().zip(named));
        for (cell, word) in cells {
            if self.medium.load(cell) != word {
                self.medium.store(cell, word);
                self.medium.flush(cell);
            }
        }
    }

    /// The error for a file that once went on to `end` at least.
    fn cut_off_before(&self, end: u64) -> Error {
        let len = self.medium.len();
        let text = format!(
            "the file has {len} bytes, but had {end} at least: it was cut off; restore it, or open what is left \
             with on_suspect = salvage"
        );
        Error::damaged(len, text)
    }

    /// Clears the entries of the extent table from `first` on.
    fn forget_entries(&mut self, first: Option<u64>) {
        let Some(first) = first else { return };
        let m = &self.medium;
        let mut faults = 0;
        for entry in (first..self.described()).map(|index| self.entry(index)) {
            if m.load(entry) != 0 {
                m.store(entry, 0);
                // Fenced with the generation, before anything is served.
                m.flush(entry);
                faults += 1;
            }
        }
        self.table_faults = faults;
    }

    /// Entries of the extent table that could not be right when the region was opened.
    pub(crate) fn table_faults(&self) -> u64 {
        self.table_faults
    }

    /// Units that lie wholly inside the medium's present length.
    pub(crate) fn units_in_file(&self) -> u64 {
        let bytes = self.medium.len().saturating_sub(self.unit_offset(0));
        (bytes / self.unit()).min(self.unit_count)
    }

    /// Sets space aside for holes in `range`, so that touching it cannot find the file system full.
    fn fill_holes(&self, range: Range<u64>) -> Result<()> {
        self.medium.claim(range).map_err(|error| match error.kind() {
            ErrorKind::NoSpace { what, needed } => {
                let text = format!("the file has holes, as a sparse copy has, and {what}");
                Error::no_space(text, *needed)
            }
            _ => error,
        })
    }

    /// Sets space aside for all holes that the heap does not know of. It has given back the space of free
    /// extents, and takes it again before it uses them. All other holes come from elsewhere: a sparse copy,
    /// or a program that digs them.
    fn fill_used_holes(&self, is_same_file: bool, clean: bool) -> Result<()> {
        let (m, holes) = (&self.medium, self.medium.hole_bytes());
        if is_same_file && holes == 0 {
            return Ok(());
        }
        let entries = || (0..).zip(self.entries(0..self.units_in_file()));
        let free =
            || entries().filter(|&(index, entry)| TableEntry::FREE.encode(index) == m.load(entry));
        // In the file that was open before, the holes of then are the heap's own. If it was not closed, nobody
        // knows how many those were, but not more than there is free space. In a copy they can be anywhere.
        let own = match clean {
            true => m.load(&self.header().hole_bytes),
            false => free().count() as u64 * self.unit(),
        };
        if is_same_file && holes <= own {
            return Ok(());
        }
        let mut from = self.unit_offset(0).min(m.len());
        for (index, _) in free() {
            let start = self.unit_offset(index);
            if from < start {
                self.fill_holes(from..start)?;
            }
            from = start + self.unit();
        }
        self.fill_holes(from..m.len().max(from))
    }

    /// The identity under which the region was opened last.
    fn identity(&self) -> Identity {
        let (m, words) = (&self.medium, self.header());
        Identity::from_words(std::array::from_fn(|i| m.load(&words.identity[i])))
    }

    /// Whether the region was closed, and whether its contents are suspect.
    ///
    /// # Errors
    /// `Suspect`, unless `on_suspect` allows it.
    fn judge(&self, identity: Identity, on_suspect: OnSuspect) -> Result<(bool, bool)> {
        let clean = self.medium.load(&self.header().state) == CLEAN;
        match identity.doubt(&self.identity()) {
            Some(why) if !clean && on_suspect == OnSuspect::Refuse => {
                Err(ErrorKind::Suspect { path: "".into(), why: why.into() }.into())
            }
            doubt => Ok((clean, !clean && doubt.is_some())),
        }
    }

    /// Makes this opener the current generation.
    fn take_over(&mut self, identity: Identity, clean: bool, suspect: bool) -> Result<Opened> {
        let (m, words) = (&self.medium, self.header());
        let generation = m.load(&words.generation[0]);
        let reliable = m.load(&words.generation[1]) == !generation;
        // 0 in the low 16 bits never names a generation: that is where stamps in version words would repeat,
        // so everything is recovered once at that point.
        let next = generation.wrapping_add(1);
        let wrapped = next as u16 == 0;
        self.generation = if wrapped { next.wrapping_add(1) } else { next };
        // First it is durable who opens the region, and as which generation: a crash must neither look like one of
        // another machine, nor let a generation be used again. One fence for both.
        self.write_identity(identity);
        self.write_generation();
        // Only then the region counts as open. One that was not closed does already. One that was must say so before
        // anything else changes; and since pages above a page cache reach the disk in any order, that takes a sync:
        // else a machine that crashes could leave a changed file that counts as closed. It is one flush of the device
        // for one page, whatever the size, since nothing else has changed since the close; none in memory.
        let m = &self.medium;
        m.note(Note::Harmless("torn, the word is not `CLEAN` any more: the region counts as open"));
        m.store(&self.header().state, 0);
        if clean && !m.mutant("DA-1") {
            m.sync()?;
        }
        // In a suspect file the page with the generation may be older than pages with stamps of it and of later ones.
        Ok(Opened { clean, suspect, recover_all: !reliable || wrapped || suspect })
    }

    /// Writes the generation; durable on return, with what was flushed before.
    fn write_generation(&self) {
        let (m, words) = (&self.medium, self.header());
        // One line, in this order: a crash between the two leaves a mismatch, which means "recover all".
        m.store(&words.generation[0], self.generation);
        m.store(&words.generation[1], !self.generation);
        if !m.mutant("DA-2") {
            m.note(Note::Harmless(
                "late, it matters to other threads: `a_generation_is_durable_before_the_region_is_used`",
            ));
            m.flush(&words.generation);
        }
        m.fence();
    }

    /// Writes the identity, and flushes it without a fence.
    fn write_identity(&self, identity: Identity) {
        let (m, words) = (&self.medium, self.header());
        for (cell, value) in words.identity.iter().zip(identity.words()) {
            m.store(cell, value);
        }
        // Of interest only while the process lives.
        m.store_transient(&words.holder, u64::from(std::process::id()));
        m.flush(&words.identity);
    }

    /// Declares everything durable and closed. Call when nothing will change any more.
    ///
    /// # Errors
    /// `Io` if the system could not write; the region then counts as not closed.
    pub(crate) fn close(&self) -> Result<()> {
        self.ensure_writable()?;
        let (holes, cell) = (self.medium.hole_bytes(), &self.header().hole_bytes);
        if self.medium.load(cell) != holes {
            self.medium.store(cell, holes);
        }
        self.medium.sync()?;
        self.medium
            .note(Note::Harmless("torn, the word is not `CLEAN`: the region counts as open"));
        self.medium.store(&self.header().state, CLEAN);
        self.medium.sync()
    }

    /// The medium underneath.
    #[inline(always)]
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// Number of this opener: everything stamped otherwise was written by an earlier one.
    #[inline(always)]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether stamps of earlier openers can be taken for this one's: structures then recover everything when
    /// they are opened. Happens once in 65,535 openings, and when the generation was damaged.
    pub fn must_recover_all(&self) -> bool {
        self.recover_all
    }

    /// Seed of the placement hash.
    #[inline(always)]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Identity of the region, which the names of side files carry.
    pub fn uuid(&self) -> [u64; 2] {
        self.uuid
    }

    /// The words that change.
    pub fn header(&self) -> &Header {
        self.medium.at(HEADER_WORDS).expect("checked when opened")
    }

    /// Root slot `index`: the offset of an index's root, or 0.
    ///
    /// # Panics
    /// If `index` is not below [`ROOTS`].
    pub fn root(&self, index: usize) -> &PmU64 {
        &self.header().roots[index]
    }

    /// The units that part `part` of the table describes; none if the region cannot have so many.
    fn part_entries(&self, part: usize) -> std::ops::Range<u64> {
        let end = |part: usize| (FIRST_PART << (2 * part)).min(self.unit_count);
        if part == 0 { 0..end(0) } else { end(part - 1)..end(part) }
    }

    /// How many units the table describes.
    pub(crate) fn described(&self) -> u64 {
        self.part_entries(self.count_parts()).end
    }

    /// The words that name part `part` of the table.
    pub(crate) fn part_words(&self, part: usize) -> [&PmU64; 2] {
        self.header().parts.each_ref().map(|copy| &copy[part - 1])
    }

    fn count_parts(&self) -> usize {
        self.parts.iter().take_while(|at| at.load(Ordering::Acquire) != 0).count()
    }

    /// The table's entry for unit `index`.
    ///
    /// # Panics
    /// If the table does not [describe](Region::described) it.
    pub(crate) fn entry(&self, index: u64) -> &PmU64 {
        // Each part ends at four times as many units as the one before.
        let part = (index / FIRST_PART).checked_ilog2().map_or(0, |twos| twos as usize / 2 + 1);
        let at = self.part_at(part);
        assert!(at != 0, "unit {index} is not described");
        let within = (index - self.part_entries(part).start) * 8;
        self.medium.at(at + within).expect("checked when opened")
    }

    /// The entries for those of these units that the table [describes](Region::described), ascending. Faster than
    /// one [`entry`](Region::entry) after the other.
    pub(crate) fn entries(&self, units: Range<u64>) -> impl DoubleEndedIterator<Item = &PmU64> {
        (0..=self.count_parts()).flat_map(move |part| {
            let all = self.part_entries(part);
            let wanted = units.start.clamp(all.start, all.end)..units.end.clamp(all.start, all.end);
            let (at, count) = (wanted.start - all.start, wanted.end.saturating_sub(wanted.start));
            let cells = self.medium.slice::<PmU64>(self.part_at(part) + at * 8, count);
            cells.expect("checked when opened")
        })
    }

    /// Where part `part` of the table lies; 0 if it does not exist.
    fn part_at(&self, part: usize) -> u64 {
        match part.checked_sub(1) {
            None => TABLE,
            // Acquire: the part is zero, and all of it usable, since before it was named.
            Some(later) => self.parts[later].load(Ordering::Acquire),
        }
    }

    /// Where the later parts of the table lie, bytes.
    pub(crate) fn parts(&self) -> impl Iterator<Item = std::ops::Range<u64>> {
        (1..=self.count_parts()).map(|part| {
            let at = self.parts[part - 1].load(Ordering::Acquire);
            let entries = self.part_entries(part);
            at..at + (entries.end - entries.start) * 8
        })
    }

    /// Bytes that the next part of the table needs; 0 if it describes all units.
    pub(crate) fn next_part_bytes(&self) -> u64 {
        let entries = self.part_entries(self.count_parts() + 1);
        (entries.end - entries.start) * 8
    }

    /// Makes what is at `at` the next part of the table; durable on return. One thread at a time, with
    /// [`next_part_bytes`](Region::next_part_bytes) usable there, which must not be 0.
    pub(crate) fn add_part(&self, at: u64) {
        let (m, part) = (&self.medium, self.count_parts() + 1);
        let cells = m.slice::<PmU64>(at, self.next_part_bytes() / 8).expect("made usable");
        for cell in cells {
            // An earlier opener may have used the space, and lost what said so in a crash.
            if m.load(cell) != 0 {
                m.store(cell, 0);
            }
        }
        m.flush(cells);
        m.fence();
        for copy in self.part_words(part) {
            m.store(copy, part_word(part, at));
            m.flush(copy);
        }
        m.fence();
        // Release: whoever sees it sees the zeros.
        self.parts[part - 1].store(at, Ordering::Release);
    }

    /// Returns the sizes of the heap in this region.
    pub(crate) fn geometry(&self) -> Geometry {
        let shift = self.unit().ilog2();
        Geometry { shift, largest: self.extent_size >> shift, units: self.unit_limit() }
    }

    /// Returns `true` if the table's entry for unit `index` is valid and says that the unit was in
    /// use at some time.
    fn is_used_entry(&self, index: u64) -> bool {
        let entry = self.medium.load(self.entry(index));
        entry != 0 && TableEntry::decode(entry, index, &self.geometry()).is_some()
    }

    /// Bytes in the largest extent that blocks share.
    pub fn extent_size(&self) -> u64 {
        self.extent_size
    }

    /// Bytes in a unit, in which the heap takes space.
    #[inline(always)]
    pub fn unit(&self) -> u64 {
        unit_of(self.extent_size)
    }

    /// Where unit `index` begins. Units are aligned to their size.
    #[inline(always)]
    pub fn unit_offset(&self, index: u64) -> u64 {
        HEADER_BYTES + index * self.unit()
    }

    /// Most bytes that the region can have.
    pub fn capacity(&self) -> u64 {
        self.unit_offset(self.unit_limit())
    }

    /// Units that fit the capacity of the medium.
    pub(crate) fn unit_limit(&self) -> u64 {
        (self.medium.capacity().saturating_sub(HEADER_BYTES) / self.unit()).min(self.unit_count)
    }

    /// Whether this process may change the region.
    ///
    /// # Errors
    /// `Poisoned` or `Forked`.
    #[inline(always)]
    pub fn ensure_writable(&self) -> Result<()> {
        if self.forked.is_child() {
            return Err(ErrorKind::Forked.into());
        }
        self.ensure_sound()
    }

    /// Whether no thread has panicked in the middle of a change.
    ///
    /// # Errors
    /// `Poisoned`.
    #[inline(always)]
    pub fn ensure_sound(&self) -> Result<()> {
        if self.poisoned.load(Ordering::Relaxed) {
            return Err(ErrorKind::Poisoned.into());
        }
        Ok(())
    }

    /// Poisons the region if it is dropped by a panic: hold one while structures are between two states.
    #[inline(always)]
    pub fn poison_on_panic(&self) -> PoisonOnPanic<'_> {
        PoisonOnPanic(&self.poisoned)
    }
}

/// What is wrong with a file that begins as a region and ends after `len` bytes, inside its header.
pub fn truncated_header(len: u64) -> Error {
    Error::damaged(len, format!("the file ends at {len} bytes, inside its header: it was cut off"))
}

/// Whether a file begins with these bytes as a region does.
pub fn starts_with_magic(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC.to_le_bytes())
}

/// Whether the first `bytes` bytes are zeros.
fn is_zero<M: Medium>(medium: &M, bytes: u64) -> bool {
    let words = medium.slice::<PmU64>(0, bytes / 8);
    words.is_some_and(|words| words.iter().all(|word| medium.load(word) == 0))
}

/// Bytes in a unit of a region with extents of up to `extent_size`: small enough that a few records of each size take
/// little space, large enough that the table stays below a thousandth of the file.
const fn unit_of(extent_size: u64) -> u64 {
    match extent_size / 128 {
        ..4096 => 4096,
        16384.. => 16384,
        unit => unit,
    }
}

/// The word that says that part `part` of the table is at `at`. Never 0.
fn part_word(part: usize, at: u64) -> u64 {
    let check = crc32c::crc32c(&[at.to_le_bytes(), (part as u64).to_le_bytes()].concat());
    at | u64::from(check as u16 | 1) << PART_BITS
}

fn format_word(format: u32) -> u64 {
    u64::from(format) | u64::from(BYTE_ORDER) << 32
}

/// See [`Region::poison_on_panic`].
pub struct PoisonOnPanic<'r>(&'r AtomicBool);

impl PoisonOnPanic<'_> {
    /// The change is complete.
    #[inline(always)]
    pub fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for PoisonOnPanic<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A random number from the system.
fn random() -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: the buffer is ours and as long as we say.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == 8 {
        return u64::from_le_bytes(bytes);
    }
    // No entropy device in this sandbox: time and process id still differ from store to store.
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(std::process::id())
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::sim::{Event, ImageConfig, Sim, for_each_image};

    const IDENTITY: Identity = Identity { boot: [1, 2], device: 3, inode: 4, birth: 5 };

    fn syncs(sim: &Sim) -> usize {
        sim.trace().records().iter().filter(|record| record.event == Event::Sync).count()
    }

    #[test]
    fn opening_syncs_once_where_the_region_was_closed_and_never_else() {
        let sim = Sim::new(1 << 16).unwrap();
        let config = RegionConfig { extent_size: 4096, capacity: 1 << 16, seed: None };
        let region = Region::create(sim.clone(), &config, IDENTITY).unwrap();
        assert_eq!(syncs(&sim), 0);
        region.close().unwrap();
        for (clean, expected) in [(true, 1), (false, 0)] {
            sim.checkpoint();
            let (_, opened) = Region::open(sim.clone(), IDENTITY, OnSuspect::Refuse).unwrap();
            assert_eq!((opened.clean, syncs(&sim)), (clean, expected));
        }
    }

    fn small() -> RegionConfig {
        RegionConfig { extent_size: 4096, capacity: 1 << 20, seed: None }
    }

    /// What opening answers that finds a region under the identity `before`, closed or not, and is `now`.
    fn opened(before: Identity, closed: bool, now: Identity) -> Result<Opened> {
        let sim = Sim::new(1 << 20).unwrap();
        let region = Region::create(sim.clone(), &small(), before).unwrap();
        if closed {
            region.close().unwrap();
        }
        Region::open(sim, now, OnSuspect::Refuse).map(|(_, opened)| opened)
    }

    #[test]
    fn only_the_same_file_in_the_same_life_of_the_machine_is_trusted() {
        let unknown = || Identity { boot: Identity::unknown_boot(), ..IDENTITY };
        let memory = Identity { boot: Identity::MEMORY, ..IDENTITY };
        let mut cases = vec![
            (IDENTITY, IDENTITY, ""),
            (memory, memory, ""),
            // Of a container with another boot id, or of a version that stored the boot id.
            (IDENTITY, memory, ""),
            (IDENTITY, Identity { boot: [1, 3], ..IDENTITY }, "was restarted"),
            (IDENTITY, Identity { device: 9, ..IDENTITY }, "another device"),
            (IDENTITY, unknown(), "cannot be read"),
            (unknown(), IDENTITY, "cannot be read"),
            (unknown(), unknown(), "cannot be read"),
        ];
        for before in [IDENTITY, memory] {
            cases.push((before, Identity { inode: 9, ..before }, "a copy"));
            cases.push((before, Identity { birth: 9, ..before }, "a copy"));
        }
        for (before, now, wanted) in cases {
            assert!(opened(before, true, now).unwrap().clean);
            match opened(before, false, now) {
                Ok(opened) => {
                    assert!(!opened.clean && !opened.suspect && wanted.is_empty(), "{now:?}");
                }
                Err(error) => {
                    let text = error.to_string();
                    assert!(matches!(error.kind(), ErrorKind::Suspect { .. }), "{text}");
                    assert!(!wanted.is_empty() && text.contains(wanted), "{text}");
                }
            }
        }
    }

    /// The entry of an extent of one unit, for blocks of 64 bytes.
    const USED: u64 = 1 | 1 << 8 | 4 << 32;

    /// A region whose file has so many units, and whose table says that the first are in use.
    fn with_extents(in_file: u64, in_use: u64) -> Sim {
        let sim = Sim::new(1 << 20).unwrap();
        let region = Region::create(sim.clone(), &small(), IDENTITY).unwrap();
        sim.grow(region.unit_offset(in_file)).unwrap();
        assert_eq!(region.units_in_file(), in_file);
        (0..in_use).for_each(|index| sim.store(region.entry(index), USED));
        region.close().unwrap();
        sim
    }

    #[test]
    fn a_damaged_word_of_the_extent_table_is_no_end_of_the_file() {
        for index in [4, 5, 6, 7, 40, 100, 200, 250] {
            // A word of zeros but for one bit, and words of all kinds.
            let bits = (0..64).map(|bit| 1 << bit);
            for word in bits.chain([u64::MAX, 0x1234_5678_9abc_def0, 2 | 1 << 60]) {
                let sim = with_extents(4, 3);
                sim.store(sim.at(TABLE + index * 8).unwrap(), word);
                let (region, opened) = Region::open(sim, IDENTITY, OnSuspect::Refuse).unwrap();
                assert!(opened.clean && !opened.suspect);
                assert_eq!(region.table_faults(), 1);
                assert_eq!(region.medium().load(region.entry(index)), 0);
                assert_eq!(region.medium().load(region.entry(2)), USED, "nothing else is");
            }
        }
        // One that looks like an extent, far from all others.
        let sim = with_extents(4, 3);
        sim.store(sim.at(TABLE + 99 * 8).unwrap(), USED);
        let (region, _) = Region::open(sim, IDENTITY, OnSuspect::Refuse).unwrap();
        assert_eq!(region.table_faults(), 1);
    }

    #[test]
    fn a_file_that_was_cut_off_is_refused_or_salvaged() {
        let sim = with_extents(4, 7);
        let refused = Region::open(sim.clone(), IDENTITY, OnSuspect::Refuse).map(drop).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("32768 bytes") && text.contains("45056 at least"), "{text}");
        assert!(text.contains("cut off") && text.contains("on_suspect = salvage"), "{text}");
        let (region, _) = Region::open(sim, IDENTITY, OnSuspect::Salvage).unwrap();
        let entries = (0..7).map(|index| region.medium().load(region.entry(index)) != 0);
        assert_eq!(entries.filter(|used| *used).count(), 4);
    }

    /// A refusal must not take anything away from a later opening that is told to salvage.
    #[test]
    fn a_refusal_stores_nothing() {
        let sim = Sim::new(1 << 20).unwrap();
        let region = Region::create(sim.clone(), &small(), IDENTITY).unwrap();
        sim.store(region.entry(99), u64::MAX);
        let before = sim.contents();
        let other = Identity { boot: [8, 8], ..IDENTITY };
        assert!(Region::open(sim.clone(), other, OnSuspect::Refuse).is_err());
        assert!(sim.contents() == before);
    }

    /// Whatever a crash leaves of a creation is begun again, or is the region.
    #[test]
    fn an_interrupted_creation_is_begun_again() {
        let sim = Sim::new(1 << 20).unwrap();
        sim.note(Note::Begin(0));
        Region::create(sim.clone(), &small(), IDENTITY).unwrap();
        sim.note(Note::End(0));
        let (mut blank, mut whole) = (0, 0);
        for_each_image(&sim.trace(), &ImageConfig::default(), |image| {
            let after = Sim::from_image(image.bytes, 1 << 20).unwrap();
            if Region::is_blank(&after) {
                assert!(!image.point.completed(0));
                Region::create(after, &small(), IDENTITY).unwrap();
                blank += 1;
            } else {
                Region::open(after, IDENTITY, OnSuspect::Refuse).unwrap();
                whole += 1;
            }
            ControlFlow::Continue(())
        });
        assert!(blank > 10 && whole > 0, "{blank} and {whole}");
    }

    #[test]
    fn zeros_are_no_region_and_are_not_made_one() {
        for bytes in [8192, 12288, 1 << 16] {
            let sim = Sim::new(1 << 20).unwrap();
            sim.grow(bytes).unwrap();
            assert!(!Region::is_blank(&sim));
            let refused = Region::open(sim, IDENTITY, OnSuspect::Salvage).map(drop).unwrap_err();
            assert!(matches!(refused.kind(), ErrorKind::NotAStore { .. }), "{refused}");
        }
    }

    /// Whatever a crash loses after `work`, the words at these offsets are these.
    fn are_durable_after(sim: &Sim, work: impl FnOnce(), words: &[(u64, u64)]) {
        sim.note(Note::Begin(0));
        work();
        sim.note(Note::End(0));
        let mut images = 0;
        for_each_image(&sim.trace(), &ImageConfig::default(), |image| {
            if image.point.completed(0) {
                images += 1;
                for &(at, word) in words {
                    assert_eq!(image.bytes[at as usize..][..8], word.to_le_bytes(), "at {at}");
                }
            }
            ControlFlow::Continue(())
        });
        assert!(images > 0);
    }

    /// Whatever was in the memory before, a region begins without extents, and with empty root cells, whatever a crash
    /// loses after its creation.
    #[test]
    fn what_was_there_before_a_creation_is_gone_for_good() {
        let sim = Sim::new(1 << 16).unwrap();
        let config = RegionConfig { extent_size: 4096, capacity: 1 << 16, seed: None };
        sim.grow(TABLE + 16 * 8).unwrap();
        let cells = [TABLE - 8, TABLE, TABLE + 8];
        for at in cells {
            sim.store(sim.at::<PmU64>(at).unwrap(), u64::MAX);
        }
        sim.checkpoint();
        let create = || drop(Region::create(sim.clone(), &config, IDENTITY).unwrap());
        are_durable_after(&sim, create, &cells.map(|at| (at, 0)));
    }

    /// Stamps of this generation must not outlive it: in the next opener's they would be fresh.
    #[test]
    fn a_generation_is_durable_before_the_region_is_used() {
        let sim = Sim::new(1 << 16).unwrap();
        let config = RegionConfig { extent_size: 4096, capacity: 1 << 16, seed: None };
        let region = Region::create(sim.clone(), &config, IDENTITY).unwrap();
        let (at, next) =
            (sim.offset_of(&region.header().generation[0]), region.generation().wrapping_add(1));
        sim.checkpoint();
        let open = || drop(Region::open(sim.clone(), IDENTITY, OnSuspect::Refuse).unwrap());
        are_durable_after(&sim, open, &[(at, next)]);
    }

    /// A process dies that has stored a superblock and a root cell, with nothing of that durable. Whoever opens the region goes
    /// by them.
    #[test]
    fn what_an_opening_believes_is_durable() {
        let sim = Sim::new(1 << 16).unwrap();
        let config = RegionConfig { extent_size: 4096, capacity: 1 << 16, seed: None };
        let region = Region::create(sim.clone(), &config, IDENTITY).unwrap();
        let superblock = sim.at::<Superblock>(0).unwrap();
        let words = [&superblock.check, &superblock.magic, &region.header().roots[7]];
        let stored = words.map(|word| (sim.offset_of(word), sim.load(word)));
        words.iter().for_each(|word| sim.store(word, !sim.load(word)));
        sim.checkpoint();
        words.iter().zip(stored).for_each(|(word, (_, stored))| sim.store(word, stored));
        let open = || drop(Region::open(sim.clone(), IDENTITY, OnSuspect::Refuse).unwrap());
        are_durable_after(&sim, open, &stored);
    }

    #[test]
    fn a_raised_format_stays_whichever_copy_is_lost() {
        for lost in [0, SECOND_COPY] {
            let sim = Sim::new(1 << 16).unwrap();
            let config = RegionConfig { extent_size: 4096, capacity: 1 << 16, seed: None };
            let region = Region::create(sim.clone(), &config, IDENTITY).unwrap();
            assert_eq!(region.format(), FORMAT_AT_FIRST);
            region.raise_format(FORMAT).unwrap();
            region.raise_format(FORMAT_AT_FIRST).unwrap();
            assert_eq!(region.format(), FORMAT, "it only rises");
            region.close().unwrap();
            let copy = sim.at::<Superblock>(lost).unwrap();
            sim.store(&copy.check, 0);
            let (region, _) = Region::open(sim.clone(), IDENTITY, OnSuspect::Refuse).unwrap();
            assert_eq!(region.format(), FORMAT);
            for at in [0, SECOND_COPY] {
                assert!(Region::superblock_verifies(&sim, at), "mended");
                assert_eq!(sim.load(&sim.at::<Superblock>(at).unwrap().format) as u32, FORMAT);
            }
        }
    }

    #[test]
    fn a_format_of_the_past_is_refused() {
        let sim = Sim::new(1 << 16).unwrap();
        let config = RegionConfig { extent_size: 4096, capacity: 1 << 16, seed: None };
        let region = Region::create(sim.clone(), &config, IDENTITY).unwrap();
        for at in [SECOND_COPY, 0] {
            region.write_superblock_as(at, FORMAT_AT_FIRST - 1);
        }
        let refused = Region::open(sim, IDENTITY, OnSuspect::Salvage).map(drop).unwrap_err();
        assert!(refused.to_string().contains("has format 4"), "{refused}");
    }

    #[test]
    fn a_format_of_the_future_is_refused() {
        let sim = Sim::new(1 << 16).unwrap();
        let config = RegionConfig { extent_size: 4096, capacity: 1 << 16, seed: None };
        let region = Region::create(sim.clone(), &config, IDENTITY).unwrap();
        for at in [SECOND_COPY, 0] {
            region.write_superblock_as(at, FORMAT + 1);
        }
        let refused = Region::open(sim, IDENTITY, OnSuspect::Refuse).map(drop).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::NewerFormat { .. }), "{refused}");
    }
}
