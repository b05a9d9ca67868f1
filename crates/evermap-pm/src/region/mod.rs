//! A medium with a superblock, which holds its format, its identity, and the words that change at
//! every open.
//!
//! ```text
//! 0      superblock, first copy     written at creation, and when the format rises; checksummed
//! 4096   superblock, second copy    written before the first; after it a copy of the generation
//! 8192   header words               they change; each group is on a line of its own
//! 12288  first part of the table    8 bytes per unit, see `heap`
//! 16384  units                      the heap takes space in units
//! ```
//!
//! The table grows with the file: each later part describes three times as many units as all parts
//! before it together. Later parts are stored among the units, and the header has their offsets.
//!
//! A region exists as soon as its superblock does: the second copy is written when everything else
//! is durable, and the first copy after it. Until then the first word says that a creation is in
//! progress, and it does so before the file is longer than a page. So an interrupted creation is
//! started again, whatever the size of the file, and no other file is ever mistaken for one.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::medium::{Medium, Note, OFFSET_LIMIT};
use crate::sync::{Mutex, Rank};
use crate::{Error, ErrorKind, PmU64, Result, random};

pub mod copy;
mod damage;
mod entry;
pub mod mistakes;
mod outdated;
mod superblock;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use entry::{BlockKind, GRANULE, Geometry, TableEntry, Usage};
use superblock::{
    CLEAN, CLOSED, CREATING, FORMAT_AT_FIRST, HEADER_WORDS, SECOND_COPY, Superblock, is_zero,
};
use table::{HEADER_BYTES, PARTS};

use damage::DamageLog;

pub use crate::medium::{HOLDER_PID_OFFSET, Identity};
pub use damage::{DamageMark, OnDamage, WIDE_DAMAGE, WIDESPREAD};
pub use superblock::{FORMAT, Header, ROOTS, starts_with_magic, truncated_header};

/// Smallest and largest extent size, in bytes.
const EXTENT_SIZES: std::ops::RangeInclusive<u64> = 4096..=1 << 30;

/// What to do with a store whose contents cannot be trusted: one that was not closed before the
/// machine restarted or that was copied while it was open, so that its pages may be from different
/// times; one that was truncated; or one with damage that prevents opening it.
///
/// None of these overwrites a file that is not a store, or one of a newer format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnSuspect {
    /// Returns an error that says what was found, and leaves the contents unchanged.
    #[default]
    Refuse,
    /// Opens the store without the lost parts. Records that do not verify are reported when they
    /// are found, and stay until their keys are put or removed. Loses nothing if nothing is wrong.
    /// Still an error if no copy of the header can be read.
    Salvage,
    /// Starts with an empty store: all contents are permanently lost. A store that can be trusted
    /// is opened as it is.
    Discard,
}

/// Configuration of a new region.
#[derive(Clone, Copy, Debug)]
pub struct RegionConfig {
    /// Bytes in the largest extent of blocks: a power of two, 4 KiB to 1 GiB. The heap takes space
    /// in units of a 128th of that, but at least 4 KiB and at most 16 KiB.
    pub extent_size: u64,
    /// Maximum size of the region, in bytes.
    pub capacity: u64,
    /// Seed of the placement hash. If `None`, a random one is chosen.
    pub seed: Option<u64>,
}

impl Default for RegionConfig {
    /// Returns a configuration with extents of up to 2 MiB and a capacity of 256 GiB.
    fn default() -> Self {
        RegionConfig { extent_size: 2 << 20, capacity: 256 << 30, seed: None }
    }
}

/// The state that [`Region::open`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Whether the last close was clean, and no damage was found before it.
    pub clean: bool,
    /// The damage that was found before.
    pub damage: DamageMark,
    /// Whether the contents are suspect but were opened nevertheless.
    pub suspect: bool,
    /// Whether the header is of an earlier opening than another page, so that its words may be
    /// outdated.
    pub outdated: bool,
    /// Whether old generation tags cannot be distinguished from new ones, so that everything must
    /// be recovered now: O(everything).
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
    /// Offsets of the later parts of the table, or 0 for parts that do not exist yet.
    parts: [AtomicU64; PARTS],
    recover_all: bool,
    table_faults: u64,
    /// Whether parts of the table may be missing, because the file was cut off.
    parts_lost: bool,
    format: AtomicU32,
    /// Locked while the superblock changes.
    format_lock: Mutex<()>,
    poisoned: AtomicBool,
    damage: DamageLog,
    forked: crate::fork::ForkDetector,
}

impl<M: Medium> Region<M> {
    /// Returns `true` if `medium` holds no region yet: it is empty, or the creation of one was
    /// interrupted. O(1).
    pub fn is_blank(medium: &M) -> bool {
        let Some(first) = medium.at::<PmU64>(0) else { return true };
        match medium.load(first) {
            CREATING => true,
            // The medium has its first bytes, but not yet the word that says what they are for.
            0 => medium.len() <= medium.begun_bytes() && is_zero(medium, medium.len()),
            _ => false,
        }
    }

    /// Creates a region in a blank medium.
    ///
    /// # Errors
    ///
    /// `Config` if the configuration is impossible, `NoSpace`.
    pub fn create(medium: M, config: &RegionConfig, identity: Identity) -> Result<Self> {
        let extent_size = config.extent_size;
        if !extent_size.is_power_of_two() || !EXTENT_SIZES.contains(&extent_size) {
            let text =
                format!("extents must be a power of two from 4 KiB to 1 GiB, not {extent_size}");
            return Err(ErrorKind::Config(text).into());
        }
        let capacity = config.capacity.min(medium.capacity()).min(OFFSET_LIMIT);
        let unit_count = capacity.saturating_sub(HEADER_BYTES) / unit_of(extent_size);
        // Durable before anything else changes: until the first copy of the superblock is complete,
        // all other contents of the medium are meaningless.
        medium.begin(CREATING)?;
        medium.grow(HEADER_BYTES)?;
        let region = Region {
            generation: 1,
            seed: config.seed.unwrap_or_else(random::number),
            // A chosen seed makes everything reproducible.
            uuid: config
                .seed
                .map_or_else(|| [random::number(), random::number()], |seed| [seed, !seed]),
            extent_size,
            unit_count,
            parts: Default::default(),
            recover_all: false,
            table_faults: 0,
            parts_lost: false,
            format: AtomicU32::new(FORMAT_AT_FIRST),
            format_lock: Mutex::ranked(Rank::Format, ()),
            poisoned: AtomicBool::new(false),
            damage: DamageLog::default(),
            forked: crate::fork::ForkDetector::new()?,
            medium,
        };
        region.clear();
        region.write_identity(identity);
        // This makes all of the above durable.
        region.write_generation();
        region.write_generation_copy();
        region.write_superblock(SECOND_COPY);
        region.write_fit(SECOND_COPY);
        region.write_superblock(0);
        Ok(region)
    }

    /// Zeroes the remains of an interrupted creation, flushed without a fence.
    fn clear(&self) {
        let cells = self.medium.slice::<PmU64>(HEADER_WORDS, (HEADER_BYTES - HEADER_WORDS) / 8);
        let cells = cells.expect("grown to hold the header");
        for cell in cells {
            if self.medium.load(cell) != 0 {
                self.medium.store(cell, 0);
                self.medium.note(Note::Harmless(
                    "needed over old contents: `a_creation_erases_former_contents`",
                ));
                self.medium.flush(cell);
            }
        }
    }

    /// Opens the region in `medium`, and makes every generation tag of earlier opens stale.
    ///
    /// # Errors
    ///
    /// `NotAStore`, `NewerFormat`, `Damaged`, `Suspect` (unless `on_suspect` allows it).
    pub fn open(medium: M, identity: Identity, on_suspect: OnSuspect) -> Result<(Self, Opened)> {
        Self::open_at(medium, identity, on_suspect).map_err(Error::at_opening)
    }

    fn open_at(medium: M, identity: Identity, on_suspect: OnSuspect) -> Result<(Self, Opened)> {
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
                medium.file_len()
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
            parts_lost: false,
            format: AtomicU32::new(format),
            format_lock: Mutex::ranked(Rank::Format, ()),
            poisoned: AtomicBool::new(false),
            damage: DamageLog::default(),
            forked: crate::fork::ForkDetector::new()?,
            medium,
        };
        region.ensure_header()?;
        let before = region.identity();
        let is_same_file = identity.is_same_file(&before);
        // Before the table is read: on a memory file system even reading needs space.
        let has_holes = !is_same_file || region.medium.hole_bytes() > 0;
        if has_holes {
            region.fill_holes(0..HEADER_BYTES)?;
        }
        let words = region.find_parts(on_suspect)?;
        if has_holes {
            region.parts().try_for_each(|part| region.fill_holes(part))?;
        }
        // All of it is read now, and waiting for one page after the other takes longer.
        region.parts().for_each(|part| region.medium.read_ahead(part));
        let beyond = region.check_length(on_suspect)?;
        let (closed, mut suspect) = region.check_trust(identity, on_suspect)?;
        if region.restore_length(beyond)? || region.parts_lost {
            suspect = true;
            region.store_damage_mark(match region.parts_lost {
                true => DamageMark::Widespread,
                false => region.damage_mark().max(DamageMark::Found),
            });
        }
        region.parts_lost |= region.damage_mark() == DamageMark::Widespread;
        region.fill_used_holes(is_same_file, closed)?;
        region.store_part_words(words);
        region.clear_entries(beyond);
        // The process that stored these words may have died before they were durable. Fenced
        // together with the generation, before the other copy is touched, and before anything
        // relies on the format or on a root.
        region.medium.note(Note::Harmless(
            "needed after a creation that was killed: `an_open_makes_durable_what_it_relies_on`",
        ));
        region.medium.flush(region.medium.at::<Superblock>(at).expect("just read"));
        region.medium.note(Note::Harmless(
            "needed by users of more than a root: `an_open_makes_durable_what_it_relies_on`",
        ));
        region.medium.flush(region.header());
        let opened = region.take_over(identity, closed, suspect)?;
        region.recover_all = opened.recover_all;
        for copy in [SECOND_COPY, 0] {
            // A copy that does not verify was damaged, or its write was interrupted: repair it from
            // the other.
            if !Self::superblock_verifies(&region.medium, copy)
                || Self::fit(&region.medium, copy) != Self::fit(&region.medium, at)
            {
                region.write_superblock(copy);
            }
        }
        region.write_fit(at);
        Ok((region, opened))
    }

    /// Returns the number of units that are wholly inside the current length of the medium.
    pub(crate) fn units_in_file(&self) -> u64 {
        let bytes = self.medium.len().saturating_sub(self.unit_offset(0));
        (bytes / self.unit()).min(self.unit_count)
    }

    /// Stores the word by which the header recognises the superblock, of which there is a copy at
    /// `at`, durably.
    fn write_fit(&self, at: u64) {
        let (m, cell) = (&self.medium, &self.header().fit);
        let fit = Self::fit(m, at);
        if m.load(cell) != fit {
            m.store(cell, fit);
            m.note(Note::Harmless("a region without the word is opened all the same"));
            m.flush(cell);
            m.note(Note::Harmless("a region without the word is opened all the same"));
            m.fence();
        }
    }

    /// Allocates space for holes in `range`, so that touching them cannot find the file system
    /// full.
    fn fill_holes(&self, range: Range<u64>) -> Result<()> {
        self.medium.claim(range).map_err(|error| match error.kind() {
            ErrorKind::NoSpace { what, needed } => {
                let text = format!("the file has holes, as a sparse copy has, and {what}");
                Error::no_space(text, *needed)
            }
            _ => error,
        })
    }

    /// Allocates space for all holes that the heap does not know of. The heap has returned the
    /// space of free extents, and allocates it again before it uses them. All other holes have
    /// another cause: a sparse copy, or a program that punches holes.
    fn fill_used_holes(&self, is_same_file: bool, closed: bool) -> Result<()> {
        let (m, holes) = (&self.medium, self.medium.hole_bytes());
        if is_same_file && holes == 0 {
            return Ok(());
        }
        let entries = || (0..).zip(self.entries(0..self.units_in_file()));
        let free =
            || entries().filter(|&(index, entry)| TableEntry::FREE.encode(index) == m.load(entry));
        // In the same file, the holes of the last close were made by the heap. If it was not
        // closed, their number is unknown, but cannot exceed the free space. In a copy, holes can
        // be anywhere.
        let own = match closed {
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

    /// Returns the identity under which the region was opened last.
    fn identity(&self) -> Identity {
        let (m, words) = (&self.medium, self.header());
        Identity::from_words(std::array::from_fn(|i| m.load(&words.identity[i])))
    }

    /// Returns whether the region was closed with everything durable, and whether its contents are
    /// suspect.
    ///
    /// # Errors
    ///
    /// `Suspect`, unless `on_suspect` allows it.
    fn check_trust(&self, identity: Identity, on_suspect: OnSuspect) -> Result<(bool, bool)> {
        let is_outdated = self.is_header_outdated();
        let closed = self.says_closed() && !is_outdated;
        let doubt = match is_outdated {
            true => Some("a part of the file is older than the rest: its header".into()),
            false => identity.doubt(&self.identity()).filter(|_| !closed).map(|why| {
                format!(
                    "{why}. They are whole if the machine was shut down normally, and of different \
                     ages if it crashed or lost power"
                )
            }),
        };
        let is_damaged = self.damage_mark() == DamageMark::Widespread;
        let damage = || format!("damage was found in many places of it. {WIDE_DAMAGE}");
        match doubt.or_else(|| is_damaged.then(damage)) {
            Some(why) if on_suspect == OnSuspect::Refuse => {
                Err(ErrorKind::Suspect { path: "".into(), why }.into())
            }
            doubt => Ok((closed, doubt.is_some())),
        }
    }

    /// Checks that the header is not a page of zeros, which has no generation either.
    fn ensure_header(&self) -> Result<()> {
        let words = self.medium.slice::<PmU64>(HEADER_WORDS, size_of::<Header>() as u64 / 8);
        let words = words.expect("below the table");
        if words.iter().all(|word| self.medium.load(word) == 0) {
            return Err(Error::damaged(
                HEADER_WORDS,
                "the header is lost: there are zeros instead",
            ));
        }
        Ok(())
    }

    /// Takes from a header what keeps [`open`](Region::open) from opening the rest with
    /// [`OnSuspect::Salvage`]: that all of it is lost, and words that refer to no part of the
    /// table. What the later parts described is unknown then. For a medium whose changes stay
    /// private.
    pub fn mend_header(medium: &M) {
        let Some(header) = medium.at::<Header>(HEADER_WORDS) else { return };
        header.parts.iter().flatten().for_each(|cell| medium.store(cell, 0));
        if header.generation.iter().all(|cell| medium.load(cell) == 0) {
            // Any that does not agree with its complement: everything is recovered.
            medium.store(&header.generation[0], 1);
        }
    }

    /// Returns `true` if the generation in the header agrees with its complement.
    fn is_generation_reliable(&self) -> bool {
        let [generation, complement] = &self.header().generation;
        self.medium.load(complement) == !self.medium.load(generation)
    }

    /// Returns `true` if the header says that the region was closed.
    fn says_closed(&self) -> bool {
        [CLEAN, CLOSED].contains(&self.medium.load(&self.header().state))
    }

    /// Makes this open the current generation.
    fn take_over(&mut self, identity: Identity, closed: bool, suspect: bool) -> Result<Opened> {
        let (m, words) = (&self.medium, self.header());
        let (damage, outdated) = (self.damage_mark(), self.is_header_outdated());
        let before = self.identity();
        let clean = closed && m.load(&words.state) == CLEAN && damage == DamageMark::None;
        let says_closed = self.says_closed();
        let generation = m.load(&words.generation[0]);
        let reliable = self.is_generation_reliable();
        // The low 16 bits of a generation are never 0: when they would be, the tags in version
        // words start to repeat, so everything is recovered once.
        let next = generation.max(self.copied_generation()).wrapping_add(1);
        let wrapped = next as u16 == 0;
        self.generation = if wrapped { next.wrapping_add(1) } else { next };
        // First, the opener's identity and generation become durable, so that a crash neither looks
        // like one on another machine, nor lets a generation be used again. One fence for both.
        self.write_identity(identity);
        self.write_generation();
        // Only then does the region count as open. A region that was not closed already does. One
        // that was closed must say so before anything else changes, and because the page cache
        // writes pages back in any order, that needs a sync: otherwise a crash of the machine could
        // leave a changed file that counts as closed. This is one flush of the device for one page,
        // whatever the size of the file, because nothing else has changed since the close. On
        // memory file systems it costs nothing. Neither may it count as written back to persistent
        // memory when it is changed by a process that does not do that.
        let m = &self.medium;
        m.note(Note::Harmless("torn, the word is no longer `CLEAN`: the region counts as open"));
        m.store(&self.header().state, 0);
        let counts_as_durable = says_closed
            || before.boot == Identity::DURABLE
            || before.is_persistent() && !identity.is_persistent();
        if counts_as_durable && !m.mutant(mistakes::CLEAN_MARK_STAYS) {
            m.sync()?;
        }
        self.write_generation_copy();
        // In a suspect file the page with the generation may be older than pages with tags of that
        // generation and of later ones.
        let recover_all = !reliable || wrapped || suspect || damage > DamageMark::None;
        Ok(Opened { clean, damage, suspect, outdated, recover_all })
    }

    /// Writes the generation. Durable on return, together with everything flushed before.
    fn write_generation(&self) {
        let (m, words) = (&self.medium, self.header());
        // On one line, in this order: a crash between the two leaves a mismatch, which means
        // "recover all".
        m.store(&words.generation[0], self.generation);
        m.store(&words.generation[1], !self.generation);
        if !m.mutant(mistakes::GENERATION_UNFLUSHED) {
            m.note(Note::Harmless(
                "late, other threads notice: `a_generation_is_durable_before_the_region_is_used`",
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
        // Only used while the process lives.
        m.store_transient(&words.holder, u64::from(std::process::id()));
        m.flush(&words.identity);
    }

    /// Marks the region closed, with everything durable, and as clean if no damage was found. There
    /// must be no changes afterwards.
    ///
    /// # Errors
    ///
    /// `Io` if the system could not write. The region then counts as not closed.
    pub(crate) fn close(&self) -> Result<()> {
        self.ensure_writable()?;
        let (holes, cell) = (self.medium.hole_bytes(), &self.header().hole_bytes);
        if self.medium.load(cell) != holes {
            self.medium.store(cell, holes);
        }
        self.medium.sync()?;
        self.medium
            .note(Note::Harmless("torn, the word is not `CLEAN`: the region counts as open"));
        let clean = self.damage_mark() == DamageMark::None;
        self.medium.store(&self.header().state, if clean { CLEAN } else { CLOSED });
        self.medium.sync()
    }

    /// Returns the medium.
    #[inline(always)]
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// Returns the generation of this open. Any other generation tag was written during an earlier
    /// one.
    #[inline(always)]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns `true` if generation tags of earlier opens can equal the current one. Structures
    /// then recover everything when they are opened. Happens once in 65,535 opens, and if the
    /// generation was damaged.
    pub fn must_recover_all(&self) -> bool {
        self.recover_all
    }

    /// Returns the seed of the placement hash.
    #[inline(always)]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the identity of the region, which is part of the names of side files.
    pub fn uuid(&self) -> [u64; 2] {
        self.uuid
    }

    /// Returns the words that change.
    pub fn header(&self) -> &Header {
        self.medium.at(HEADER_WORDS).expect("checked when opened")
    }

    /// Returns root slot `index`, which holds the offset of the root of an index, or 0.
    ///
    /// # Panics
    ///
    /// If `index` is not below [`ROOTS`].
    pub fn root(&self, index: usize) -> &PmU64 {
        &self.header().roots[index]
    }

    /// Returns the sizes of the heap in this region.
    pub(crate) fn geometry(&self) -> Geometry {
        let shift = self.unit().ilog2();
        Geometry { shift, largest: self.extent_size >> shift, units: self.unit_limit() }
    }

    /// Returns the number of bytes in the largest extent of blocks.
    pub fn extent_size(&self) -> u64 {
        self.extent_size
    }

    /// Returns the number of bytes in a unit.
    #[inline(always)]
    pub fn unit(&self) -> u64 {
        unit_of(self.extent_size)
    }

    /// Returns the offset of unit `index`. Units are aligned to their size.
    #[inline(always)]
    pub fn unit_offset(&self, index: u64) -> u64 {
        HEADER_BYTES + index * self.unit()
    }

    /// Returns the maximum size of the region, in bytes.
    pub fn capacity(&self) -> u64 {
        self.unit_offset(self.unit_limit())
    }

    /// Returns the maximum size with which the region was created, in bytes.
    pub fn created_capacity(&self) -> u64 {
        self.unit_offset(self.unit_count)
    }

    /// Returns the number of units that fit the capacity of the medium.
    pub(crate) fn unit_limit(&self) -> u64 {
        (self.medium.capacity().saturating_sub(HEADER_BYTES) / self.unit()).min(self.unit_count)
    }

    /// Checks that this process may change the region.
    ///
    /// # Errors
    ///
    /// `Poisoned` or `Forked`.
    #[inline(always)]
    pub fn ensure_writable(&self) -> Result<()> {
        if self.forked.is_child() {
            return Err(ErrorKind::Forked.into());
        }
        self.ensure_sound()
    }

    /// Checks that no thread has panicked in the middle of a change.
    ///
    /// # Errors
    ///
    /// `Poisoned`.
    #[inline(always)]
    pub fn ensure_sound(&self) -> Result<()> {
        if self.poisoned.load(Ordering::Relaxed) {
            return Err(ErrorKind::Poisoned.into());
        }
        Ok(())
    }

    /// Returns a guard that poisons the region if a panic drops it. Hold one while structures are
    /// between two consistent states.
    #[inline(always)]
    pub fn poison_on_panic(&self) -> PoisonOnPanic<'_> {
        PoisonOnPanic(&self.poisoned)
    }
}

/// Returns the number of bytes in a unit of a region with extents of up to `extent_size`: small
/// enough that a few records of each size need little space, and large enough that the table stays
/// below a thousandth of the file.
const fn unit_of(extent_size: u64) -> u64 {
    match extent_size / 128 {
        ..4096 => 4096,
        16384.. => 16384,
        unit => unit,
    }
}

/// Returns a generation that is an earlier one for the opener with `generation`, and for all later
/// ones: generations only grow, and before they repeat, everything is
/// [recovered](Opened::recover_all). What is to be recovered later is tagged with it. With a later
/// generation, the opener that has that one would take it for recovered.
#[inline]
pub fn stale(generation: u64) -> u64 {
    generation.wrapping_sub(1)
}

/// A guard that poisons a region. See [`Region::poison_on_panic`].
pub struct PoisonOnPanic<'r>(&'r AtomicBool);

impl PoisonOnPanic<'_> {
    /// Drops the guard without poisoning: the change is complete.
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
