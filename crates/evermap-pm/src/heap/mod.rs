//! Blocks inside a region.
//!
//! The heap takes space in *extents*, each of one or more neighbouring *units*. An extent holds blocks of one size, or one
//! large object. All that persists is a table of what each unit is for:
//!
//! ```text
//! bit  0..8   kind: 0 never used, 1 first unit of an extent of blocks, 2 first unit of a large object, 3 a later unit of
//!             either, 4 free, 5 first unit of an extent of blocks that stay
//! bit  8..32  kinds 1 and 5: number of units
//! bit 32..64  kinds 1 and 5: block size / 16; kind 2: number of units; kind 4: number of this unit, so that damage
//!             hardly ever looks like it
//! ```
//!
//! **Extents grow with what they are for.** The first extents of a size have the fewest units that hold a block, later
//! ones a quarter of what that size has already, up to the [extent size](Region::extent_size) of the region. So a little
//! of everything takes little space, while most of a large store is in large extents, which suit huge pages and need few
//! locks. What an unclean stop left behind does not count before it is swept: a store that is killed again and again
//! takes small extents each time.
//!
//! Blocks that can be moved, because a few words name them, and blocks that [stay](Heap::allocate_fixed) where they
//! are, because a structure is built of them, never share an extent: a structure that becomes empty would else leave
//! some block in most extents of that size, and nothing could empty those for other sizes.
//!
//! Which blocks are taken is known in ordinary memory only, so allocating flushes nothing (changing what an
//! extent is for does, once). **Reachability is the truth**: after an unclean open every old extent is
//! *closed*, which means that nothing is allocated from it, and frees into it are noted. A sweep asks the
//! indexes which blocks they name; what they do not name becomes free. Meanwhile allocation uses units that
//! the table calls free, and fresh ones. So a block that was allocated but never published is simply forgotten by a crash, and no record
//! of intentions is needed.
//!
//! A thread takes several free blocks of one word of an extent's bits at once, and hands them out without asking anybody. Where
//! records are replaced at random, each extent has a hole now and then; so a thread goes to extents with
//! ample room, then to new ones, and fills single holes only to move records together, or where space is short. This
//! leaves up to a sixteenth of extents unused.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::epoch::thread_ordinal;
use crate::medium::Medium;
use crate::region::Region;
use crate::sync::{Mutex, MutexGuard};
use crate::{Error, Result};

mod classes;
mod evacuate;
mod runs;
mod snapshot;
mod trim;

use classes::{Classes, GRANULE};
use runs::Runs;

pub use evacuate::Evacuation;

/// Shards, so that threads seldom share one.
const SHARDS: usize = 16;
/// Largest step by which a region grows ahead of need, bytes.
const GROWTH_MAX: u64 = 64 << 20;
/// An extent has ample room if one block in this many is free: taking them one at a time costs several times as much
/// as taking some at once, where frees are scattered and threads compete. A thread takes no larger share of an extent
/// at once either, so that several threads fill one extent where extents are small.
const AMPLE: u32 = 16;
/// A new extent has this share of the units that its block size has already.
const SHARE: u64 = 4;
/// Free units are used for an extent before new ones unless they are fewer than one in this many of what it should have.
const CRUMB: u64 = 16;
/// Of a block that will be written next, so many bytes are fetched.
const FETCHED: u64 = 512;
/// Bytes of free units kept ready before the memory of others is given back to the system.
const FREE_BYTES_KEPT: u64 = 16 << 20;
/// The same as a share of all units that were ever used, if that is more.
const FREE_PART_KEPT: u64 = 16;

/// Entries in a page of the table: what storage loses at a time.
const PAGE_ENTRIES: u64 = 4096 / 8;

/// Blocks that can share an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Blocks {
    /// Bytes in a block.
    size: u64,
    /// Whether they stay where they are, as parts of a structure.
    stay: bool,
}

/// What an extent is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Never used.
    Unused,
    /// Blocks of one size.
    Blocks(Blocks),
    /// One object.
    Large,
    /// Something whose first unit is not known. Nothing is allocated from it.
    Tail,
    /// Nothing: what was in it is gone for good.
    Free,
    /// A later part of the table. The region knows where those are, so their units have no entries.
    Table,
}

/// What an extent is for, and how many units it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    used: Use,
    units: u64,
}

impl Shape {
    const UNUSED: Shape = Shape { used: Use::Unused, units: 1 };
    const TAIL: Shape = Shape { used: Use::Tail, units: 1 };
    const FREE: Shape = Shape { used: Use::Free, units: 1 };

    /// The table's entry for the first unit, which is unit `index`.
    fn encode(self, index: u64) -> u64 {
        match self.used {
            Use::Unused => 0,
            Use::Blocks(Blocks { size, stay }) => {
                (if stay { 5 } else { 1 }) | self.units << 8 | (size / GRANULE) << 32
            }
            Use::Large => 2 | self.units << 32,
            Use::Tail => 3,
            Use::Free => 4 | index << 32,
            Use::Table => 6 | self.units << 32,
        }
    }

    /// `None` for an entry that unit `index` of a heap of `geometry` cannot have.
    fn decode(entry: u64, index: u64, geometry: &Geometry) -> Option<Shape> {
        let detail = entry >> 32;
        let shape = match entry as u8 {
            0 => Shape::UNUSED,
            kind @ (1 | 5) => {
                let blocks = Blocks { size: detail * GRANULE, stay: kind == 5 };
                Shape { used: Use::Blocks(blocks), units: entry >> 8 & 0xff_ffff }
            }
            2 => Shape { used: Use::Large, units: detail },
            3 => Shape::TAIL,
            4 => Shape::FREE,
            _ => return None,
        };
        let possible = match shape.used {
            Use::Blocks(blocks) => {
                let fits = GRANULE..=shape.units * geometry.unit();
                shape.units <= geometry.largest && fits.contains(&blocks.size)
            }
            _ => shape.units > 0,
        };
        let inside = shape.units <= geometry.units - index;
        (possible && inside && shape.encode(index) == entry).then_some(shape)
    }
}

/// The sizes of a heap.
#[derive(Clone, Copy)]
struct Geometry {
    /// Bytes in a unit: 1 shifted so far.
    shift: u32,
    /// Units in the largest extent of blocks.
    largest: u64,
    /// Units in all.
    units: u64,
}

impl Geometry {
    fn of<M: Medium>(region: &Region<M>) -> Self {
        let shift = region.unit().ilog2();
        Geometry { shift, largest: region.extent_size() >> shift, units: region.unit_limit() }
    }

    fn unit(&self) -> u64 {
        1 << self.shift
    }

    /// How many units the next extent of blocks of `size` bytes needs at least, and should have, where the extents of
    /// such blocks have `have` units.
    fn next_extent(&self, size: u64, have: u64) -> Range<u64> {
        let least = size.div_ceil(self.unit());
        let wanted = (have / SHARE).clamp(least, self.largest);
        // A few more where less would be left over behind the last block.
        let waste = |units: u64| (units * self.unit() % size) * self.largest / units;
        let best = (wanted..=(wanted + wanted / 4).min(self.largest)).min_by_key(|&it| waste(it));
        least..best.unwrap_or(wanted)
    }
}

/// Whether the table's entry for unit `index` can be right, and says that the unit was ever in use.
pub(crate) fn describes_unit<M: Medium>(region: &Region<M>, index: u64) -> bool {
    let entry = region.medium().load(region.entry(index));
    entry != 0 && Shape::decode(entry, index, &Geometry::of(region)).is_some()
}

/// Whether this is the table's entry for unit `index` if that is free, so that its space may have been given back.
pub(crate) fn is_free_entry(entry: u64, index: u64) -> bool {
    entry == Shape::FREE.encode(index)
}

/// Where an extent is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// Nothing in it, or no extent begins here.
    Free,
    /// In use; `bits` tells which blocks are taken.
    Open,
    /// From before an unclean open: `bits` tells which blocks the sweep has seen.
    Closed,
}

/// One extent, in ordinary memory. A large object is one block.
struct Extent {
    shape: Shape,
    life: Life,
    /// Blocks in the extent.
    blocks: u32,
    /// Open: blocks not taken.
    free: u32,
    /// A bit a block.
    bits: Vec<u64>,
    /// Closed: blocks freed since, to be applied after the sweep.
    noted: Vec<u32>,
    /// Open: whether it is known as one with room.
    listed: bool,
    /// Open: whether it is known as one with ample room.
    listed_ample: bool,
    /// Whether this opener put it to use, so that all its space is known to be set aside.
    claimed: bool,
    /// Open: it is being emptied, and nothing is allocated from it.
    leaving: bool,
    /// Blocks that could not be moved when that was tried last.
    left: u32,
}

impl Extent {
    const UNUSED: Extent = Extent {
        shape: Shape::UNUSED,
        life: Life::Free,
        blocks: 0,
        free: 0,
        bits: Vec::new(),
        noted: Vec::new(),
        listed: false,
        listed_ample: false,
        claimed: false,
        leaving: false,
        left: 0,
    };

    /// Starts a life as `shape`, with no block taken.
    fn begin(&mut self, shape: Shape, life: Life, geometry: &Geometry) {
        self.shape = shape;
        self.life = life;
        self.blocks = match shape.used {
            Use::Blocks(blocks) => (shape.units * geometry.unit() / blocks.size) as u32,
            Use::Large => 1,
            Use::Unused | Use::Tail | Use::Free | Use::Table => 0,
        };
        self.free = self.blocks;
        self.bits = vec![0; self.blocks.div_ceil(64) as usize];
        self.noted = Vec::new();
        self.listed = false;
        self.listed_ample = false;
        self.claimed = life == Life::Open;
        self.leaving = false;
        self.left = 0;
    }

    /// Bytes in a block.
    fn block_size(&self, geometry: &Geometry) -> u64 {
        match self.shape.used {
            Use::Blocks(blocks) => blocks.size,
            Use::Large => self.shape.units * geometry.unit(),
            Use::Unused | Use::Tail | Use::Free | Use::Table => 0,
        }
    }

    /// Whether such blocks can be taken from it.
    fn has_room(&self, blocks: Blocks) -> bool {
        self.life == Life::Open
            && self.shape.used == Use::Blocks(blocks)
            && self.free > 0
            && !self.leaving
    }

    /// Whether enough of them can be taken to make it worthwhile.
    fn has_ample_room(&self, blocks: Blocks) -> bool {
        self.has_room(blocks) && self.free >= self.blocks / AMPLE
    }

    /// Bits of word `index` that stand for blocks.
    fn valid_bits(&self, index: usize) -> u64 {
        let left = self.blocks - index as u32 * 64;
        if left >= 64 { u64::MAX } else { (1 << left) - 1 }
    }

    fn bit(block: u32) -> (usize, u64) {
        (block as usize / 64, 1 << (block % 64))
    }
}

/// Blocks claimed from one word of one extent's bits, to be handed out without further locking.
#[derive(Clone, Copy, Default)]
struct Hand {
    extent: u64,
    /// Where the extent begins.
    start: u64,
    /// First block of the word.
    first: u32,
    /// First block behind those that were claimed.
    behind: u32,
    /// Claimed blocks, relative to `first`.
    mask: u64,
}

/// The extent that begins with a unit, or did once.
type Beginning = OnceLock<Box<Mutex<Extent>>>;

/// What is known of one unit.
#[derive(Default)]
struct Unit {
    /// How many units before it the extent begins that it belongs to, or belonged to last.
    back: AtomicU32,
    extent: Beginning,
}

/// What is known of [`GROUP`](Extents::GROUP) neighbouring units. Most of a large store is in extents that have whole
/// groups, so that opening it touches little memory.
#[derive(Default)]
struct Group {
    /// If all of them belong to one extent, or did last: its first unit, plus one. Otherwise 0.
    owner: AtomicU64,
    /// The extent that begins with the first of them.
    first: Beginning,
    /// Each of them, once an extent has begun or ended between them.
    units: OnceLock<Box<[Unit]>>,
}

impl Group {
    fn units(&self) -> &[Unit] {
        self.units.get_or_init(|| (0..Extents::GROUP).map(|_| Unit::default()).collect())
    }
}

/// The extents of a region by their first units, described when first asked for: a region may have room for many more
/// than it uses. A unit where no extent begins has a [free](Life::Free) one.
struct Extents {
    chunks: Box<[OnceLock<Box<[Group]>>]>,
    len: u64,
    /// How far the first unit is from where the largest extents are aligned, in units.
    shift: u64,
}

impl Extents {
    /// Units in a group: as many as the largest extent of blocks has, with extents of the usual size.
    const GROUP: u64 = 128;
    /// Groups in a chunk.
    const CHUNK: u64 = 64;

    fn new(len: u64, shift: u64) -> Self {
        let chunks = (len + shift).div_ceil(Self::GROUP * Self::CHUNK);
        Extents { chunks: (0..chunks).map(|_| OnceLock::new()).collect(), len, shift }
    }

    /// The group of unit `index`, which must be below `len`, and where the unit is in it.
    fn group(&self, index: u64) -> (&Group, usize) {
        let (group, at) = ((index + self.shift) / Self::GROUP, (index + self.shift) % Self::GROUP);
        let chunk = self.chunks[(group / Self::CHUNK) as usize]
            .get_or_init(|| (0..Self::CHUNK).map(|_| Group::default()).collect());
        (&chunk[(group % Self::CHUNK) as usize], at as usize)
    }

    /// Locks the extent that begins with unit `index`, which must be below `len`.
    fn hold(&self, index: u64) -> MutexGuard<'_, Extent> {
        let (group, at) = self.group(index);
        let extent = if at == 0 { &group.first } else { &group.units()[at].extent };
        hold(extent.get_or_init(|| Box::new(Mutex::new(Extent::UNUSED))))
    }

    /// The same if an extent begins there, or did once.
    fn hold_known(&self, index: u64) -> Option<MutexGuard<'_, Extent>> {
        let (group, at) = self.group(index);
        let extent = if at == 0 { &group.first } else { &group.units.get()?[at].extent };
        extent.get().map(|extent| hold(extent))
    }

    /// Starts the life of an extent from unit `index` on.
    fn begin(&self, index: u64, shape: Shape, life: Life, geometry: &Geometry) {
        let (mut unit, end) = (index, index + shape.units);
        while unit < end {
            let (group, at) = self.group(unit);
            let here = (Self::GROUP - at as u64).min(end - unit);
            // Relaxed, all of them: a thread learns of a block through a word stored after this; and another thread's
            // offset can only come from damage, where the extent tells whether it is the right one.
            if here == Self::GROUP {
                group.owner.store(index + 1, Ordering::Relaxed);
            } else {
                for (unit, back) in group.units()[at..].iter().zip(unit - index..end - index) {
                    unit.back.store(back as u32, Ordering::Relaxed);
                }
                group.owner.store(0, Ordering::Relaxed);
            }
            unit += here;
        }
        self.hold(index).begin(shape, life, geometry);
    }

    /// First unit of the extent to which unit `index` belongs.
    fn first_of(&self, index: u64) -> u64 {
        let (group, at) = self.group(index);
        let back = |unit: &Unit| u64::from(unit.back.load(Ordering::Relaxed));
        match group.owner.load(Ordering::Relaxed) {
            0 => index.saturating_sub(group.units.get().map_or(0, |units| back(&units[at]))),
            owner => owner - 1,
        }
    }
}

/// A hand of each class for blocks that move, then one of each for blocks that stay.
#[repr(align(128))]
struct Shard(Mutex<Vec<Hand>>);

/// Extents with room for blocks of one kind. Any may be out of date; the extent tells.
#[derive(Default)]
struct Room {
    /// Those with ample room. The last is taken first: blocks that were freed just now are used again soon, so mistakes show.
    ample: Vec<u64>,
    /// Those with any.
    any: BTreeSet<u64>,
    /// Units of all open extents of such blocks.
    units: u64,
}

/// What all shards share.
struct Shared {
    /// Extents with room.
    room: BTreeMap<Blocks, Room>,
    /// How many [evacuations](Evacuation) are going on.
    evacuations: u32,
    /// Units in use for nothing.
    free: Runs,
    /// Free units whose space was given back, or may have been by an earlier opener: to be claimed before use.
    unclaimed: Runs,
    /// Units from here on were never used.
    frontier: u64,
    /// Hands of exact sizes.
    exact: BTreeMap<u64, Hand>,
}

/// Space in use, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapStats {
    /// Bytes of the medium that are usable now.
    pub file_bytes: u64,
    /// Bytes of extents that hold something.
    pub extent_bytes: u64,
    /// Bytes of blocks that are taken.
    pub allocated_bytes: u64,
    /// Blocks that are taken.
    pub allocated_blocks: u64,
    /// Bytes of extents from before an unclean open that wait for the sweep.
    pub closed_bytes: u64,
    /// Frees of something that was not taken, and marks of something that is no block: damage, or a bug.
    pub faults: u64,
}

/// Allocates blocks in a region. See the [module](self).
pub struct Heap<M: Medium> {
    region: Arc<Region<M>>,
    geometry: Geometry,
    classes: Classes,
    extents: Extents,
    shards: Box<[Shard]>,
    shared: Mutex<Shared>,
    faults: AtomicU64,
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while one of these is held is a bug in this module; the region is poisoned then, and what the
    // heap does no longer matters: reopening rebuilds it.
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl<M: Medium> Heap<M> {
    /// The heap of a region. Extents in use are closed until [`finish_sweep`](Heap::finish_sweep), unless
    /// `snapshot` says to restore what an orderly close saved and that verifies.
    pub(crate) fn open(region: Arc<Region<M>>, snapshot: bool) -> Self {
        let geometry = Geometry::of(&region);
        let classes = Classes::new(region.extent_size(), region.unit());
        let heap = Heap {
            extents: Extents::new(geometry.units, region.unit_offset(0) >> geometry.shift),
            shards: (0..SHARDS)
                .map(|_| Shard(Mutex::new(vec![Hand::default(); 2 * classes.len()])))
                .collect(),
            shared: Mutex::new(Shared {
                room: BTreeMap::new(),
                evacuations: 0,
                free: Runs::default(),
                unclaimed: Runs::default(),
                frontier: 0,
                exact: BTreeMap::new(),
            }),
            faults: AtomicU64::new(region.table_faults()),
            geometry,
            classes,
            region,
        };
        heap.read_table();
        if snapshot {
            heap.restore_snapshot();
        }
        heap
    }

    fn load_entry(&self, index: u64) -> u64 {
        self.region.medium().load(self.region.entry(index))
    }

    fn read_table(&self) {
        // What damage puts behind the end of the file is not there.
        let whole =
            (self.region.medium().len() - self.region.unit_offset(0)) >> self.geometry.shift;
        let described = self.region.described().min(self.extents.len).min(whole);
        let m = self.region.medium();
        let behind = self.region.entries(0..described).rev().take_while(|entry| m.load(entry) == 0);
        let mut frontier = described - behind.count() as u64;
        // A table whose last page was overwritten by zeros ends where a page does. What that page described is
        // still there, so nothing is allocated from it before a sweep.
        if frontier.is_multiple_of(PAGE_ENTRIES) {
            frontier = described.min(frontier + PAGE_ENTRIES);
        }
        let mut parts = BTreeMap::new();
        for bytes in self.region.parts() {
            let part = self.units_of(bytes);
            frontier = frontier.max(part.end);
            parts.insert(part.start, part.end - part.start);
        }
        let shared = &mut *hold(&self.shared);
        shared.frontier = frontier;
        let mut index = 0;
        while index < frontier {
            // Whatever the entries say, the table is not part of anything else.
            let end = parts.range(index..).next().map_or(frontier, |(start, _)| *start);
            let shape = match parts.get(&index) {
                Some(&units) => Shape { used: Use::Table, units },
                None => self.shape_at(index, end),
            };
            let life = match shape.used {
                Use::Free => Life::Free,
                Use::Table => Life::Open,
                _ => Life::Closed,
            };
            if life == Life::Free {
                let used = (index..end).find(|&it| !self.is_free(it)).unwrap_or(end);
                shared.free.insert(index..used);
                shared.unclaimed.insert(index..used);
                index = used;
            } else {
                self.extents.begin(index, shape, life, &self.geometry);
                index += shape.units;
            }
        }
    }

    /// The units that hold these bytes.
    fn units_of(&self, bytes: Range<u64>) -> Range<u64> {
        let unit = |at: u64| at.saturating_sub(self.region.unit_offset(0));
        unit(bytes.start) >> self.geometry.shift..unit(bytes.end).div_ceil(self.geometry.unit())
    }

    fn is_free(&self, index: u64) -> bool {
        self.load_entry(index) == Shape::FREE.encode(index)
    }

    /// What the table says of the extent that begins with unit `index`.
    fn shape_at(&self, index: u64, end: u64) -> Shape {
        let Some(shape) = Shape::decode(self.load_entry(index), index, &self.geometry) else {
            self.fault();
            return Shape::UNUSED;
        };
        let tail = Shape::TAIL.encode(0);
        let tails = index + 1..index + shape.units;
        // An extent that lacks a tail, and a tail that follows no such extent, are what an interrupted
        // change leaves, or what reuse of some of the units of a free extent does: nothing names them.
        let m = self.region.medium();
        let whole = tails.end <= end && self.region.entries(tails).all(|it| m.load(it) == tail);
        if shape.used == Use::Tail || !whole { Shape::UNUSED } else { shape }
    }

    fn fault(&self) {
        self.faults.fetch_add(1, Ordering::Relaxed);
    }

    /// Bytes that a block for `size` bytes really has.
    pub fn block_size(&self, size: u64) -> u64 {
        match self.classes.of(size) {
            Some(class) => self.classes.size(class),
            None => size.next_multiple_of(self.geometry.unit()),
        }
    }

    /// Allocates a block of at least `size` bytes, aligned to 16 bytes, or to its size where that is a power
    /// of two up to 4096. Its contents are undefined. Until its offset is published in something reachable, a crash
    /// frees it.
    ///
    /// # Errors
    /// `NoSpace`; nothing has changed then.
    pub fn allocate(&self, size: u64) -> Result<u64> {
        self.allocate_of(size, false)
    }

    /// The same for a part of a structure, which stays where it is until it is freed.
    ///
    /// # Errors
    /// `NoSpace`; nothing has changed then.
    pub fn allocate_fixed(&self, size: u64) -> Result<u64> {
        self.allocate_of(size, true)
    }

    fn allocate_of(&self, size: u64, stay: bool) -> Result<u64> {
        let Some(class) = self.classes.of(size) else { return self.allocate_large(size) };
        let blocks = Blocks { size: self.classes.size(class), stay };
        let mut hands = hold(&self.shards[thread_ordinal() % SHARDS].0);
        let hand = &mut hands[if stay { self.classes.len() } else { 0 } + class];
        if hand.mask == 0 {
            self.refill(hand, blocks)?;
        }
        let block = take(hand, blocks.size);
        // The one after it will be written next: its lines come while this one is.
        if hand.mask != 0 {
            self.region
                .medium()
                .prefetch_bytes(next_in(hand, blocks.size), blocks.size.min(FETCHED));
        }
        Ok(block)
    }

    /// Size of the blocks in a shard's hand of this number.
    fn size_in_hand(&self, number: usize) -> u64 {
        self.classes.size(number % self.classes.len())
    }

    /// Allocates a block of exactly `size` bytes, a multiple of 16, which stays where it is: for large numbers of
    /// large parts of a structure, where rounding up to a size class would cost.
    ///
    /// # Errors
    /// `NoSpace`; nothing has changed then.
    pub fn allocate_exact(&self, size: u64) -> Result<u64> {
        if size > self.region.extent_size() {
            return self.allocate_large(size);
        }
        let mut hand = hold(&self.shared).exact.remove(&size).unwrap_or_default();
        if hand.mask == 0 {
            self.refill(&mut hand, Blocks { size, stay: true })?;
        }
        let offset = take(&mut hand, size);
        let raced = hold(&self.shared).exact.insert(size, hand);
        // Another thread allocated at the same time and left a hand too: give that one back.
        if let Some(other) = raced {
            self.put_back(other);
        }
        Ok(offset)
    }

    /// Claims some free blocks.
    fn refill(&self, hand: &mut Hand, blocks: Blocks) -> Result<()> {
        // First behind the last ones: neighbours in time become neighbours in space.
        if self.claim(hand.extent, hand.behind, blocks, hand) {
            return Ok(());
        }
        loop {
            let extent = self.extent_with_room(blocks)?;
            if self.claim(extent, 0, blocks, hand) {
                return Ok(());
            }
        }
    }

    /// An extent that has room for such blocks, unless another thread takes it first: one with ample room, else a new
    /// one, and one with little room only to save space.
    fn extent_with_room(&self, blocks: Blocks) -> Result<u64> {
        if let Some(extent) = self.extent_with_ample_room(blocks) {
            return Ok(extent);
        }
        // Who moves records together does not want new extents for them.
        if hold(&self.shared).evacuations > 0
            && let Some(extent) = self.extent_with_any_room(blocks)
        {
            return Ok(extent);
        }
        let have = hold(&self.shared).room.get(&blocks).map_or(0, |room| room.units);
        let units = self.geometry.next_extent(blocks.size, have);
        match self.take_units(units) {
            Ok(units) => {
                let shape = Shape { used: Use::Blocks(blocks), units: units.end - units.start };
                self.assign(units.start, shape);
                Ok(units.start)
            }
            Err(error) => self.extent_with_any_room(blocks).ok_or(error),
        }
    }

    fn extent_with_ample_room(&self, blocks: Blocks) -> Option<u64> {
        loop {
            let index = hold(&self.shared).room.get_mut(&blocks)?.ample.pop()?;
            let extent = &mut *self.extents.hold(index);
            extent.listed_ample = false;
            if extent.has_ample_room(blocks) {
                return Some(index);
            }
        }
    }

    fn extent_with_any_room(&self, blocks: Blocks) -> Option<u64> {
        let index = hold(&self.shared).room.get_mut(&blocks)?.any.pop_first()?;
        self.extents.hold(index).listed = false;
        Some(index)
    }

    /// Claims free blocks of the first of the words in which any is free, from block `from` on, if that extent has such
    /// blocks: all of them, or a [share](AMPLE) of a small extent.
    fn claim(&self, index: u64, from: u32, blocks: Blocks, hand: &mut Hand) -> bool {
        if index >= self.extents.len {
            return false;
        }
        let extent = &mut *self.extents.hold(index);
        if !extent.has_room(blocks) {
            return false;
        }
        let (first_word, passed) = Extent::bit(from);
        let free = |word: usize| {
            let free = !extent.bits[word] & extent.valid_bits(word);
            if word == first_word { free & !(passed - 1) } else { free }
        };
        let found = (first_word..extent.bits.len()).find(|&word| free(word) != 0);
        if let Some(word) = found {
            let first = word as u32 * 64;
            // Two at least, so that an extent with one block in use is not given back each time that one is freed.
            let mask = lowest(free(word), (extent.blocks / AMPLE).max(2));
            // Whole words are left behind as a whole: a hole in one that appears meanwhile is not worth a refill.
            let behind =
                if mask == free(word) { first + 64 } else { first + 64 - mask.leading_zeros() };
            extent.bits[word] |= mask;
            extent.free -= mask.count_ones();
            let start = self.region.unit_offset(index);
            *hand = Hand { extent: index, start, first, behind, mask };
        }
        // For other threads, so that they use it too before they take an extent, and for what is free before `from`.
        self.list_if_room(index, extent);
        found.is_some()
    }

    /// Lists an extent among those with room, if it has some.
    fn list_if_room(&self, index: u64, extent: &mut Extent) {
        let Use::Blocks(blocks) = extent.shape.used else { return };
        let any = !extent.listed && extent.has_room(blocks);
        let ample = !extent.listed_ample && extent.has_ample_room(blocks);
        if !any && !ample {
            return;
        }
        let shared = &mut *hold(&self.shared);
        let room = shared.room.entry(blocks).or_default();
        if any {
            extent.listed = true;
            room.any.insert(index);
        }
        if ample {
            extent.listed_ample = true;
            room.ample.push(index);
        }
    }

    /// Takes at least `units.start` and at most `units.end` neighbouring units: free ones, else new ones. What is much
    /// smaller than it should be is taken last, so that a large store does not end up in small extents.
    fn take_units(&self, units: Range<u64>) -> Result<Range<u64>> {
        let shared = &mut *hold(&self.shared);
        let worthwhile = units.start.max(units.end / CRUMB);
        if let Some(taken) = self.take_free(shared, worthwhile..units.end)? {
            return Ok(taken);
        }
        let mut count = units.end;
        loop {
            match self.take_new(shared, count) {
                Ok(taken) => return Ok(taken),
                // The last of the space may do for fewer.
                Err(_) if count > units.start => count = (count / 2).max(units.start),
                Err(error) => return self.take_free(shared, units)?.ok_or(error),
            }
        }
    }

    /// Takes units out of the free ones, if so many neighbours are free.
    fn take_free(&self, shared: &mut Shared, units: Range<u64>) -> Result<Option<Range<u64>>> {
        let longest = || shared.free.longest().filter(|run| run.end - run.start >= units.start);
        let Some(run) = shared.free.fitting(units.end).or_else(longest) else { return Ok(None) };
        let aligned = self.align(run.start, units.end);
        let start = if aligned + units.end <= run.end { aligned } else { run.start };
        let taken = start..run.end.min(start + units.end);
        if shared.unclaimed.overlaps(&taken) {
            self.region.medium().claim(self.bytes_of(&taken))?;
            shared.unclaimed.remove(taken.clone());
        }
        shared.free.remove(taken.clone());
        Ok(Some(taken))
    }

    /// Unit `start`, or the first one behind it that lies where the largest extents had better begin, if there are to be
    /// so many: where large pages begin.
    fn align(&self, start: u64, count: u64) -> u64 {
        if count != self.geometry.largest {
            return start;
        }
        let before = self.region.unit_offset(0) >> self.geometry.shift;
        (start + before).next_multiple_of(count) - before
    }

    fn bytes_of(&self, units: &Range<u64>) -> Range<u64> {
        self.region.unit_offset(units.start)..self.region.unit_offset(units.end)
    }

    /// Takes units that were never used, growing the region and its table for them.
    fn take_new(&self, shared: &mut Shared, count: u64) -> Result<Range<u64>> {
        let mut taken = self.new_units(shared, count)?;
        while taken.end > self.region.described() {
            self.grow_table(shared)?;
            taken = self.new_units(shared, count)?;
        }
        self.grow_to(self.region.unit_offset(taken.end))?;
        let skipped = std::mem::replace(&mut shared.frontier, taken.end)..taken.start;
        if skipped.start < skipped.end {
            self.put_into_free(shared, skipped);
        }
        Ok(taken)
    }

    /// The next so many units that were never used.
    fn new_units(&self, shared: &Shared, count: u64) -> Result<Range<u64>> {
        let aligned = self.align(shared.frontier, count);
        let first = if aligned + count <= self.extents.len { aligned } else { shared.frontier };
        self.check_capacity(first..first + count)
    }

    fn check_capacity(&self, units: Range<u64>) -> Result<Range<u64>> {
        let missing = units.end.saturating_sub(self.extents.len) << self.geometry.shift;
        if missing > 0 {
            return Err(Error::no_space("capacity of the region", missing));
        }
        Ok(units)
    }

    /// Adds the next part of the table, in units that were never used.
    fn grow_table(&self, shared: &mut Shared) -> Result<()> {
        let units = self.region.next_part_bytes().div_ceil(self.geometry.unit());
        let part = self.check_capacity(shared.frontier..shared.frontier + units)?;
        let at = self.region.unit_offset(part.start);
        self.grow_to(self.region.unit_offset(part.end))?;
        self.region.add_part(at);
        // Nobody else has ever locked an extent there.
        let shape = Shape { used: Use::Table, units };
        self.extents.begin(part.start, shape, Life::Open, &self.geometry);
        shared.frontier = part.end;
        Ok(())
    }

    /// Makes `end` usable, with some more ahead so that growth is rare.
    fn grow_to(&self, end: u64) -> Result<()> {
        let m = self.region.medium();
        if m.len() >= end {
            return Ok(());
        }
        let ahead = (end / 16).min(GROWTH_MAX) >> self.geometry.shift << self.geometry.shift;
        let wanted = (end + ahead).min(self.region.capacity());
        let old = m.len();
        if wanted == end || m.grow(wanted).is_err() {
            m.grow(end)?;
        }
        m.prefault(old..m.len());
        Ok(())
    }

    /// Makes units be an extent of this shape, durably, before anything in it can be published.
    fn assign(&self, first: u64, shape: Shape) {
        let m = self.region.medium();
        let mut changed = false;
        for index in first..first + shape.units {
            let wanted = if index == first { shape } else { Shape::TAIL }.encode(index);
            let entry = self.region.entry(index);
            if m.load(entry) != wanted {
                m.store(entry, wanted);
                m.flush(entry);
                changed = true;
            }
        }
        self.extents.begin(first, shape, Life::Open, &self.geometry);
        self.count_units(shape);
        if changed {
            m.fence();
        }
    }

    /// Counts the units of an open extent among those that its block size has.
    fn count_units(&self, shape: Shape) {
        if let Use::Blocks(blocks) = shape.used {
            hold(&self.shared).room.entry(blocks).or_default().units += shape.units;
        }
    }

    fn allocate_large(&self, size: u64) -> Result<u64> {
        let units = size.div_ceil(self.geometry.unit()).max(1);
        let first = self.take_units(units..units)?.start;
        self.assign(first, Shape { used: Use::Large, units });
        let extent = &mut *self.extents.hold(first);
        extent.free = 0;
        extent.bits[0] = 1;
        Ok(self.region.unit_offset(first))
    }

    /// The extent that `offset` is in, and how many bytes into it.
    fn locate(&self, offset: u64) -> Option<(u64, u64)> {
        let index = offset.checked_sub(self.region.unit_offset(0))? >> self.geometry.shift;
        if index >= self.extents.len {
            return None;
        }
        let first = self.extents.first_of(index);
        Some((first, offset - self.region.unit_offset(first)))
    }

    /// Frees a block that nobody can see: one that was never published, or whose grace period is over.
    pub(crate) fn free(&self, offset: u64) {
        let Some((index, rest)) = self.locate(offset) else { return self.fault() };
        let extent = &mut *self.extents.hold(index);
        let Some(block) = block_at(extent, rest) else { return self.fault() };
        let (word, bit) = Extent::bit(block);
        match extent.life {
            // The sweep may not have passed yet, and must not find it taken afterwards.
            Life::Closed => extent.noted.push(block),
            Life::Open if extent.bits[word] & bit != 0 => {
                extent.bits[word] &= !bit;
                extent.free += 1;
                self.after_free(index, extent);
            }
            // Freed twice: the region names the block from two places, which only damage can cause.
            Life::Open | Life::Free => self.fault(),
        }
    }

    /// Offers an extent that gained room for use.
    fn after_free(&self, index: u64, extent: &mut Extent) {
        if extent.free < extent.blocks {
            return self.list_if_room(index, extent);
        }
        extent.life = Life::Free;
        extent.leaving = false;
        let shared = &mut *hold(&self.shared);
        if let Use::Blocks(blocks) = extent.shape.used {
            let room = shared.room.entry(blocks).or_default();
            room.units = room.units.saturating_sub(extent.shape.units);
        }
        let units = index..index + extent.shape.units;
        if extent.claimed {
            self.put_into_free(shared, units);
        } else {
            self.put_into_unclaimed(shared, units);
        }
    }

    /// Makes units free that are known to be set aside. Where there are enough of those, their memory goes back to the
    /// system.
    fn put_into_free(&self, shared: &mut Shared, units: Range<u64>) {
        self.call_free(shared, units.clone());
        let ready = shared.free.total() - shared.unclaimed.total();
        if ready > self.kept_ready(shared) {
            self.region.medium().discard(self.bytes_of(&units));
            shared.unclaimed.insert(units);
        }
    }

    /// Makes units free that have to be claimed before use.
    fn put_into_unclaimed(&self, shared: &mut Shared, units: Range<u64>) {
        self.call_free(shared, units.clone());
        shared.unclaimed.insert(units);
    }

    fn call_free(&self, shared: &mut Shared, units: Range<u64>) {
        let m = self.region.medium();
        for index in units.clone() {
            // Not flushed: a crash that loses it leaves the sweep to find out.
            let (entry, free) = (self.region.entry(index), Shape::FREE.encode(index));
            if m.load(entry) != free {
                m.store_transient(entry, free);
            }
        }
        shared.free.insert(units);
    }

    /// Gives claimed blocks that were not handed out back.
    fn put_back(&self, hand: Hand) {
        if hand.mask == 0 {
            return;
        }
        let extent = &mut *self.extents.hold(hand.extent);
        // Nothing names a claimed block, so only damage can have had some of these freed already, or even all of the
        // extent, which may be something else now.
        let word =
            extent.bits.get_mut(hand.first as usize / 64).filter(|_| extent.life == Life::Open);
        let Some(word) = word else { return self.fault() };
        let held = *word & hand.mask;
        if held != hand.mask {
            self.fault();
        }
        if held != 0 {
            *word &= !held;
            extent.free += held.count_ones();
            self.after_free(hand.extent, extent);
        }
    }

    /// Gives back what is claimed in the extents that `of` names.
    fn put_back_hands(&self, of: impl Fn(u64) -> bool) {
        let wanted = |hand: &Hand| hand.mask != 0 && of(hand.extent);
        for shard in &self.shards {
            let hands: Vec<_> =
                hold(&shard.0).iter_mut().filter(|hand| wanted(hand)).map(std::mem::take).collect();
            hands.into_iter().for_each(|hand| self.put_back(hand));
        }
        let exact: Vec<_> =
            hold(&self.shared).exact.extract_if(.., |_, hand| wanted(hand)).collect();
        exact.into_iter().for_each(|(_, hand)| self.put_back(hand));
    }

    /// Whether a sweep has to tell which old blocks are taken.
    pub fn needs_sweep(&self) -> bool {
        let mut closed = false;
        self.for_each_extent(|_, extent| closed |= extent.life == Life::Closed);
        closed
    }

    /// Calls `f` with every extent that is in use, ascending.
    fn for_each_extent(&self, mut f: impl FnMut(u64, &mut Extent)) {
        let frontier = hold(&self.shared).frontier;
        let mut index = 0;
        while index < frontier {
            let mut units = 1;
            if let Some(mut extent) = self.extents.hold_known(index)
                && extent.life != Life::Free
            {
                // Before `f`, which may free it.
                units = extent.shape.units;
                f(index, &mut extent);
            }
            index += units;
        }
    }

    /// Notes that something reachable names the block at `offset`.
    pub(crate) fn mark(&self, offset: u64) {
        let Some((index, rest)) = self.locate(offset) else { return self.fault() };
        let extent = &mut *self.extents.hold(index);
        let Some(block) = block_at(extent, rest) else {
            // Damage: of what names it, or of the extent's entry, which may then be that of other blocks. Nothing may be
            // allocated over what is there.
            let wrong = matches!(extent.shape.used, Use::Unused | Use::Blocks(_));
            if extent.life == Life::Closed && wrong {
                self.seal_off(index, extent);
            }
            return self.fault();
        };
        if extent.life == Life::Closed {
            let (word, bit) = Extent::bit(block);
            extent.bits[word] |= bit;
        }
    }

    /// Bytes of the block at `offset`, if its extent is from before an unclean open and was not swept yet; 0 if that extent
    /// cannot have a block there.
    pub(crate) fn closed_block(&self, offset: u64) -> Option<u64> {
        self.bytes_at(offset, |life| life == Life::Closed)
    }

    /// Bytes of the block at `offset`, taken or not, if there can be one; 0 if its extent is in use and cannot.
    pub(crate) fn block(&self, offset: u64) -> Option<u64> {
        self.bytes_at(offset, |life| life != Life::Free)
    }

    fn bytes_at(&self, offset: u64, lives: impl Fn(Life) -> bool) -> Option<u64> {
        let (index, rest) = self.locate(offset)?;
        let extent = self.extents.hold_known(index)?;
        let bytes = |_| extent.block_size(&self.geometry);
        lives(extent.life).then(|| block_at(&extent, rest).map_or(0, bytes))
    }

    /// Where the extents lie that hold [parts of structures](Heap::allocate_fixed) and were not swept yet: ascending.
    pub(crate) fn closed_parts(&self) -> Vec<Range<u64>> {
        let mut parts = Vec::new();
        self.for_each_extent(|index, extent| {
            let stays = matches!(extent.shape.used, Use::Blocks(Blocks { stay: true, .. }));
            if stays && extent.life == Life::Closed {
                parts.push(self.bytes_of(&(index..index + extent.shape.units)));
            }
        });
        parts
    }

    /// Sees to it that nothing is allocated from a unit whose table entry must be wrong, since something
    /// reachable is in it, nor from the later units of what was one extent with it: what is there can still
    /// be read. Only a `Tail` promises that.
    fn seal_off(&self, index: u64, extent: &mut Extent) {
        extent.begin(Shape::TAIL, Life::Closed, &self.geometry);
        let described = self.region.described().min(self.extents.len);
        let tail = Shape::TAIL.encode(0);
        for later in (index + 1..described).take_while(|&later| self.load_entry(later) == tail) {
            let later = &mut *self.extents.hold(later);
            if (later.life, later.shape.used) == (Life::Closed, Use::Unused) {
                later.begin(Shape::TAIL, Life::Closed, &self.geometry);
            }
        }
    }

    /// Opens the closed extents: what was not marked, or freed since, is free.
    ///
    /// The caller promises that every block unlinked before the marking ended has been handed to
    /// [`free`](Heap::free): otherwise one would be freed a second time, after its reuse.
    pub(crate) fn finish_sweep(&self) {
        self.for_each_extent(|index, extent| {
            if extent.life != Life::Closed {
                return;
            }
            for block in std::mem::take(&mut extent.noted) {
                let (word, bit) = Extent::bit(block);
                extent.bits[word] &= !bit;
            }
            self.reopen(index, extent);
        });
    }

    /// Opens one closed extent whose `bits` are right.
    fn reopen(&self, index: u64, extent: &mut Extent) {
        let taken: u32 = extent.bits.iter().map(|word| word.count_ones()).sum();
        extent.free = extent.blocks - taken;
        match extent.shape.used {
            // Stays closed: see `seal_off`.
            Use::Tail | Use::Free | Use::Table => {}
            Use::Unused => {
                extent.life = Life::Free;
                self.put_into_unclaimed(&mut hold(&self.shared), index..index + 1);
            }
            Use::Blocks(_) | Use::Large => {
                extent.life = Life::Open;
                self.count_units(extent.shape);
                if extent.free > 0 {
                    self.after_free(index, extent);
                }
            }
        }
    }

    /// Space in use now; approximately, while others allocate and free. O(extents).
    pub fn stats(&self) -> HeapStats {
        let mut stats = HeapStats {
            file_bytes: self.region.medium().len(),
            faults: self.faults.load(Ordering::Relaxed),
            ..Default::default()
        };
        self.for_each_extent(|_, extent| {
            if extent.shape.used == Use::Table {
                return;
            }
            let bytes = extent.shape.units << self.geometry.shift;
            stats.extent_bytes += bytes;
            if extent.life == Life::Closed {
                stats.closed_bytes += bytes;
            } else {
                let taken = u64::from(extent.blocks - extent.free);
                stats.allocated_blocks += taken;
                stats.allocated_bytes += taken * extent.block_size(&self.geometry);
            }
        });
        self.subtract_hands(&mut stats);
        stats
    }

    /// Blocks in hands are claimed but not taken.
    fn subtract_hands(&self, stats: &mut HeapStats) {
        let mut subtract = |hand: &Hand, size: u64| {
            // Blocks that were claimed after their extent was counted must not make it less than nothing.
            let claimed = u64::from(hand.mask.count_ones());
            stats.allocated_blocks = stats.allocated_blocks.saturating_sub(claimed);
            stats.allocated_bytes = stats.allocated_bytes.saturating_sub(claimed * size);
        };
        for shard in &self.shards {
            for (number, hand) in hold(&shard.0).iter().enumerate() {
                subtract(hand, self.size_in_hand(number));
            }
        }
        for (size, hand) in &hold(&self.shared).exact {
            subtract(hand, *size);
        }
    }

    /// Every block that is taken, ascending. For checking: call without concurrent changes.
    pub fn allocated(&self) -> Vec<u64> {
        let mut blocks = Vec::new();
        self.for_each_extent(|index, extent| {
            if extent.life != Life::Open {
                return;
            }
            let (start, size) = (self.region.unit_offset(index), extent.block_size(&self.geometry));
            let taken = |block: &u32| {
                let (word, bit) = Extent::bit(*block);
                extent.bits[word] & bit != 0
            };
            let taken = (0..extent.blocks).filter(taken);
            blocks.extend(taken.map(|block| start + u64::from(block) * size));
        });
        let mut in_hands = BTreeSet::new();
        let mut note = |hand: &Hand, size: u64| {
            let mut left = *hand;
            while left.mask != 0 {
                in_hands.insert(take(&mut left, size));
            }
        };
        for shard in &self.shards {
            let hands = hold(&shard.0);
            hands.iter().enumerate().for_each(|(at, hand)| note(hand, self.size_in_hand(at)));
        }
        hold(&self.shared).exact.iter().for_each(|(size, hand)| note(hand, *size));
        blocks.retain(|block| !in_hands.contains(block));
        blocks
    }
}

/// The next block of a hand, which must have some.
fn next_in(hand: &Hand, size: u64) -> u64 {
    hand.start + u64::from(hand.first + hand.mask.trailing_zeros()) * size
}

fn take(hand: &mut Hand, size: u64) -> u64 {
    let block = next_in(hand, size);
    hand.mask &= hand.mask - 1;
    block
}

/// The lowest `count` of the bits that are set.
fn lowest(bits: u64, count: u32) -> u64 {
    let mut rest = bits;
    for _ in 0..count.min(bits.count_ones()) {
        rest &= rest - 1;
    }
    bits & !rest
}

/// The block that begins `rest` bytes into an extent.
fn block_at(extent: &Extent, rest: u64) -> Option<u32> {
    match extent.shape.used {
        Use::Blocks(Blocks { size, .. }) if rest.is_multiple_of(size) => {
            let block = rest / size;
            (block < u64::from(extent.blocks)).then_some(block as u32)
        }
        Use::Large if rest == 0 => Some(0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::ControlFlow;

    use crate::PmU64;
    use crate::medium::{Dram, Note, Pages};
    use crate::pool::Pool;
    use crate::region::{Identity, RegionConfig};
    use crate::sim::{self, ImageConfig, Sim};

    fn pool(extent_size: u64, capacity: u64) -> Arc<Pool<Dram>> {
        let config = RegionConfig { extent_size, capacity, seed: Some(1) };
        let medium = Dram::reserve(capacity, Pages::Base).unwrap();
        Pool::create(medium, &config, Identity::default()).unwrap()
    }

    /// Random allocations and frees: blocks never overlap, and the accounts agree with a model.
    #[test]
    fn blocks_do_not_overlap() {
        for extent_size in [4096, 16384, 1 << 20] {
            blocks_do_not_overlap_with(extent_size);
        }
    }

    fn blocks_do_not_overlap_with(extent_size: u64) {
        let pool = pool(extent_size, 8 << 20);
        let mut live: BTreeMap<u64, u64> = BTreeMap::new();
        let mut random = 12345u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % below
        };
        for _ in 0..20_000 {
            if next(100) < 55 {
                let size = match next(10) {
                    0 => 1 + next(60_000),
                    1 => 17_152,
                    _ => 1 + next(900),
                };
                let exact = size % 3 == 0;
                let size = if exact { size.next_multiple_of(16) } else { size };
                let got = if exact { pool.allocate_exact(size) } else { pool.allocate(size) };
                let Ok(offset) = got else {
                    assert!(got.unwrap_err().is_no_space());
                    continue;
                };
                let block = if exact { size } else { pool.block_size(size) };
                assert!(offset + block <= pool.medium().len());
                let before = live.range(..offset + block).next_back();
                assert!(before.is_none_or(|(start, len)| start + len <= offset), "overlap");
                live.insert(offset, block);
            } else if let Some((&offset, _)) = live.range(next(8 << 20)..).next() {
                live.remove(&offset);
                pool.free_unpublished(offset);
            }
        }
        assert_eq!(pool.allocated(), live.keys().copied().collect::<Vec<_>>());
        assert_eq!(pool.heap_stats().allocated_blocks, live.len() as u64);
        assert_eq!(pool.heap_stats().faults, 0);
        for offset in live.into_keys() {
            pool.free_unpublished(offset);
        }
        assert_eq!(pool.heap_stats().allocated_bytes, 0);
    }

    #[test]
    fn what_is_freed_twice_or_was_never_a_block_is_noticed() {
        let pool = pool(16384, 1 << 20);
        let block = pool.allocate(100).unwrap();
        let other = pool.allocate(100).unwrap();
        pool.free_unpublished(block);
        pool.free_unpublished(block);
        pool.free_unpublished(other + 16);
        pool.free_unpublished(3);
        assert_eq!(pool.heap_stats().faults, 3);
        assert_eq!(pool.allocated(), [other]);
    }

    /// A block that damage names although it was never handed out.
    #[test]
    fn what_is_freed_out_of_a_hand_is_counted_once() {
        let pool = pool(16384, 1 << 20);
        let block = pool.allocate(100).unwrap();
        let next = pool.allocate(100).unwrap();
        let claimed = next + (next - block);
        pool.free_unpublished(claimed);
        // Puts back what is claimed, and goes by the counts.
        assert!(pool.evacuation(1).is_none());
        assert_eq!(pool.heap_stats().faults, 1);
        assert_eq!(pool.allocated(), [block, next]);
        // All of an extent, while some of it is claimed.
        let third = pool.allocate(100).unwrap();
        for block in [block, next, third] {
            pool.free_unpublished(block);
        }
        let rest = (0..16384 / (next - block)).map(|at| block + at * (next - block));
        rest.for_each(|block| pool.free_unpublished(block));
        assert!(pool.evacuation(1).is_none());
        assert_eq!(pool.allocated(), []);
        assert_eq!(pool.heap_stats().allocated_bytes, 0);
    }

    #[test]
    fn a_full_heap_says_so_and_recovers() {
        let pool = pool(16384, 1 << 20);
        let mut blocks = Vec::new();
        let error = loop {
            match pool.allocate(5000) {
                Ok(block) => blocks.push(block),
                Err(error) => break error,
            }
        };
        assert!(error.is_no_space(), "{error}");
        let count = blocks.len();
        blocks.drain(..).for_each(|block| pool.free_unpublished(block));
        assert_eq!((0..count).filter(|_| pool.allocate(5000).is_ok()).count(), count);
    }

    fn region(extent_size: u64, capacity: u64) -> Arc<Region<Dram>> {
        let config = RegionConfig { extent_size, capacity, seed: Some(1) };
        let medium = Dram::reserve(capacity, Pages::Base).unwrap();
        Arc::new(Region::create(medium, &config, Identity::default()).unwrap())
    }

    /// A large object is freed, one of its extents is reused, and a crash comes that has lost some of the notes that
    /// they are free: those that still look like parts of the object must not be lost.
    #[test]
    fn parts_of_freed_large_objects_come_back_after_a_crash() {
        for (reused, lost) in
            (0..4u64).flat_map(|reused| (0..16u64).map(move |lost| (reused, lost)))
        {
            let region = region(4096, 1 << 20);
            let before = Heap::open(region.clone(), false);
            let large = before.allocate(16_000).unwrap();
            let table = |index: u64| region.entry(index);
            let entries: Vec<_> = (0..4).map(|index| region.medium().load(table(index))).collect();
            before.free(large);
            hold(&before.shared).free.remove(0..reused);
            hold(&before.shared).free.remove(reused + 1..4);
            let block = before.allocate(100).unwrap();
            for index in (0..4).filter(|&index| index != reused && lost >> index & 1 == 1) {
                region.medium().store(table(index), entries[index as usize]);
            }
            let after = Heap::open(region.clone(), false);
            let closed = 1 + (lost & !(1 << reused)).count_ones();
            assert_eq!(after.stats().closed_bytes, u64::from(closed) * 4096);
            after.mark(block);
            after.finish_sweep();
            assert_eq!((after.stats().faults, after.stats().closed_bytes), (0, 0));
            assert_eq!(after.allocated(), [block]);
            let others = std::iter::from_fn(|| after.allocate(4096).ok()).count() as u64;
            assert_eq!(others, after.extents.len - 1);
        }
    }

    /// Whoever is given a block may publish it and fence by himself: what the extent is for, which another thread has
    /// written, must be durable then.
    #[test]
    fn what_an_extent_is_for_is_durable_before_a_block_is_given_out() {
        for bytes in [100, 40_000] {
            let sim = Sim::new(1 << 20).unwrap();
            let config = RegionConfig { extent_size: 16384, capacity: 1 << 20, seed: Some(1) };
            let region = Region::create(sim.clone(), &config, Identity::default()).unwrap();
            let heap = Heap::open(Arc::new(region), false);
            sim.note(Note::Begin(0));
            let block = heap.allocate(bytes).unwrap();
            sim.note(Note::End(0));
            let (index, _) = heap.locate(block).unwrap();
            let entry = heap.region.entry(index);
            let (at, wanted) = (sim.offset_of(entry) as usize, sim.load(entry).to_le_bytes());
            let mut images = 0;
            sim::for_each_image(&sim.trace(), &ImageConfig::default(), |image| {
                if image.point.completed(0) {
                    assert_eq!(image.bytes[at..at + 8], wanted);
                    images += 1;
                }
                ControlFlow::Continue(())
            });
            assert!(images > 0);
        }
    }

    /// A damaged entry must not let anything be allocated over what is still there.
    #[test]
    fn nothing_is_allocated_over_what_a_damaged_entry_hides() {
        let blocks = Use::Blocks(Blocks { size: 64, stay: false });
        let fits = Shape { used: blocks, units: 1 }.encode(0);
        let (tail, other) = (Shape::TAIL.encode(0), Shape::FREE.encode(1));
        for damaged in [0, 1, 5, u64::MAX, tail, fits, other] {
            let region = region(16384, 1 << 20);
            let before = Heap::open(region.clone(), false);
            let large = before.allocate(60_000).unwrap();
            let entry = region.entry(before.locate(large).unwrap().0);
            region.medium().store(entry, damaged);
            let after = Heap::open(region, false);
            after.mark(large);
            after.finish_sweep();
            let taken: Vec<_> = std::iter::from_fn(|| after.allocate(64).ok()).collect();
            assert!(taken.len() > 1000);
            let whole = large..large + 60_000;
            let over = taken.iter().filter(|block| whole.contains(block)).count();
            // An entry that fits by accident is believed.
            assert!(over == 0 || damaged == fits);
        }
    }

    /// A page of the table is overwritten by zeros: what it described can still be read, and nothing is put over it.
    #[test]
    fn nothing_is_allocated_over_what_a_zeroed_page_of_the_table_described() {
        for units in [700, 1100] {
            for page in 0..=units / PAGE_ENTRIES {
                let region = region(4096, 16 << 20);
                let before = Heap::open(region.clone(), false);
                let blocks: Vec<_> =
                    (0..units).map(|_| before.allocate_exact(4096).unwrap()).collect();
                let (m, described) = (region.medium(), region.described());
                let entries = page * PAGE_ENTRIES..described.min((page + 1) * PAGE_ENTRIES);
                entries.for_each(|index| m.store(region.entry(index), 0));
                let after = Heap::open(region, false);
                let take = |heap: &Heap<Dram>| -> BTreeSet<u64> {
                    std::iter::from_fn(|| heap.allocate_exact(4096).ok()).take(600).collect()
                };
                let early = take(&after);
                blocks.iter().for_each(|&block| after.mark(block));
                after.finish_sweep();
                let late = take(&after);
                let over = |block: &&u64| early.contains(block) || late.contains(block);
                assert_eq!(blocks.iter().filter(over).count(), 0, "page {page} of {units} units");
                assert!(early.len() == 600 && late.len() == 600);
            }
        }
    }

    /// Every order in which the table's entries of a large object become durable.
    #[test]
    fn an_interrupted_large_allocation_leaves_nothing() {
        for durable in 0..8u32 {
            let region = region(4096, 1 << 20);
            Heap::open(region.clone(), false).allocate(12_000).unwrap();
            for index in (0..3).filter(|index| durable >> index & 1 == 0) {
                region.medium().store(region.entry(index), 0);
            }
            let heap = Heap::open(region, false);
            heap.finish_sweep();
            let stats = heap.stats();
            assert_eq!((stats.faults, stats.extent_bytes, stats.allocated_bytes), (0, 0, 0));
        }
    }

    /// Threads that allocate the same size fill one extent, not one each.
    #[test]
    fn threads_share_extents() {
        let pool = pool(16384, 1 << 20);
        for _ in 0..8 {
            std::thread::scope(|threads| {
                threads.spawn(|| pool.allocate(64).unwrap());
                threads.spawn(|| pool.allocate(64).unwrap());
            });
        }
        let blocks = pool.heap_stats().allocated_blocks;
        assert_eq!(blocks, 16);
        assert!(pool.heap_stats().extent_bytes <= 2 * 4096, "{:?}", pool.heap_stats());
    }

    #[test]
    fn emptied_extents_serve_other_sizes_and_large_objects() {
        let pool = pool(16384, 1 << 20);
        let small: Vec<_> = std::iter::from_fn(|| pool.allocate(64).ok()).collect();
        assert!(pool.allocate(40_000).is_err());
        small.into_iter().for_each(|block| pool.free_unpublished(block));
        pool.allocate(40_000).unwrap();
        pool.allocate(700).unwrap();
    }

    /// What a structure keeps does not hold on to the extents of what is gone: neither now nor after a crash.
    #[test]
    fn blocks_that_stay_have_extents_of_their_own() {
        let region = region(16384, 1 << 20);
        let heap = Heap::open(region.clone(), false);
        let mut parts = Vec::new();
        let mut records = Vec::new();
        for _ in 0..512 {
            parts.push(heap.allocate_fixed(64).unwrap());
            parts.push(heap.allocate_exact(64).unwrap());
            records.extend((0..4).map(|_| heap.allocate(64).unwrap()));
        }
        let extents = |blocks: &[u64]| -> BTreeSet<u64> {
            blocks.iter().map(|&block| heap.locate(block).unwrap().0).collect()
        };
        assert!(extents(&parts).is_disjoint(&extents(&records)));
        let heap = Heap::open(region, false);
        parts.iter().chain(&records).for_each(|&block| heap.mark(block));
        heap.finish_sweep();
        let before = heap.stats();
        records.iter().for_each(|&block| heap.free(block));
        let stats = heap.stats();
        assert_eq!(stats.faults, 0);
        assert_eq!(stats.allocated_blocks, parts.len() as u64);
        assert!(before.extent_bytes - stats.extent_bytes >= records.len() as u64 * 64);
        assert!(stats.extent_bytes <= parts.len() as u64 * 64 * 5 / 4);
        assert!(heap.evacuation(1).is_none(), "what stays cannot be moved");
    }

    /// Every fourth block of many extents stays, with one that cannot move: the rest of the extents can be emptied
    /// into each other, and nothing is allocated in those that are.
    #[test]
    fn sparse_extents_are_emptied_into_others() {
        let pool = pool(16384, 1 << 20);
        let blocks: Vec<_> = (0..256 * 16).map(|_| pool.allocate(64).unwrap()).collect();
        let (stay, go): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|block| block % 256 == 0);
        go.into_iter().for_each(|block| pool.free_unpublished(block));
        let full = pool.heap_stats().extent_bytes;
        assert!(pool.evacuation(full).is_none());
        let evacuation = pool.evacuation(full / 2).unwrap();
        assert_eq!(evacuation.remaining(), evacuation.extents());
        let leaving = |block: &&u64| evacuation.contains(**block);
        let fixed = *stay.iter().find(leaving).unwrap();
        for block in stay.iter().filter(leaving).filter(|block| **block != fixed) {
            let new = pool.allocate(64).unwrap();
            assert!(!evacuation.contains(new));
            pool.free_unpublished(*block);
        }
        assert_eq!(evacuation.remaining(), 1);
        drop(evacuation);
        let stats = pool.heap_stats();
        assert!(stats.extent_bytes < full / 4 + 3 * 16384, "{stats:?} of {full}");
        assert_eq!(stats.allocated_blocks, stay.len() as u64);
        assert!(pool.evacuation(full / 2).is_none(), "there is little left to gain");
    }

    /// One block of each size, then many of all sizes: at most twice what they need, and little above that.
    #[test]
    fn a_mix_of_sizes_takes_little_space() {
        let pool = pool(2 << 20, 1 << 30);
        let (mut asked, mut random) = (0u64, 1u64);
        let mut next = |below: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % below
        };
        for class in 0..Classes::new(2 << 20, 16384).len() {
            let size = Classes::new(2 << 20, 16384).size(class);
            pool.allocate(size).unwrap();
            asked += size;
        }
        let check = |asked: u64| {
            let stats = pool.heap_stats();
            assert!(stats.file_bytes <= 2 * asked + (1 << 20), "{stats:?} for {asked}");
        };
        check(asked);
        for count in 0..20_000 {
            let size = if count % 100 == 0 { 1 + next(3 << 20) } else { 1 + next(5120) };
            pool.allocate(size).unwrap();
            asked += size;
            check(asked);
        }
        let stats = pool.heap_stats();
        assert!(stats.file_bytes <= asked * 5 / 4, "{stats:?} for {asked}");
    }

    /// Objects beyond some units waste less than a unit each.
    #[test]
    fn objects_of_a_mebibyte_take_what_they_need() {
        for size in [1 << 20, (1 << 20) + 100, (2 << 20) + 100, 3_333_333] {
            let pool = pool(2 << 20, 1 << 30);
            let blocks: Result<Vec<_>> = (0..100).map(|_| pool.allocate(size)).collect();
            assert!(blocks.is_ok());
            let bytes = pool.heap_stats().file_bytes;
            assert!(bytes <= size * 115, "{bytes} for 100 objects of {size}");
        }
    }

    /// Openers that allocate some blocks of many sizes and die, with and without a sweep between.
    #[test]
    fn lives_that_end_early_take_little_space() {
        let sizes = [40, 100, 300, 1000, 3000, 9000, 20_000];
        for swept in [false, true] {
            let region = region(2 << 20, 1 << 30);
            // All sizes have a lot of extents from before.
            let heap = Heap::open(region.clone(), false);
            let large =
                |size: u64| (0..(1 << 20) / size).map(|_| heap.allocate(size).unwrap()).last();
            let live: Vec<u64> = sizes.into_iter().filter_map(large).collect();
            let before = heap.stats().file_bytes;
            for _ in 0..20 {
                let heap = Heap::open(region.clone(), false);
                if swept {
                    live.iter().for_each(|&block| heap.mark(block));
                    heap.finish_sweep();
                }
                assert!(sizes.iter().all(|&size| heap.allocate(size).is_ok()));
            }
            let grown = region.medium().len() - before;
            // What is unswept counts once for each life, in units that hold one block.
            let most = if swept { 1 << 20 } else { 20 * 8 * 16384 * 9 / 8 };
            assert!(grown <= most, "{grown} bytes for 20 lives, swept: {swept}");
        }
    }

    /// The table gets its later parts, whatever is allocated first, and each opening finds them.
    #[test]
    fn the_table_grows_with_the_file() {
        for first in [100, 3 << 20, 40 << 20] {
            let region = region(4096, 256 << 20);
            let before = Heap::open(region.clone(), false);
            let mut live = vec![before.allocate(first).unwrap()];
            live.extend((0..20_000).map(|_| before.allocate(4000).unwrap()));
            assert!(region.parts().count() >= 3);
            let parts: Vec<_> = region.parts().collect();
            for &block in &live[1..] {
                assert!(parts.iter().all(|part| block + 4096 <= part.start || part.end <= block));
            }
            let after = Heap::open(region.clone(), false);
            live.iter().for_each(|&block| after.mark(block));
            after.finish_sweep();
            live.sort_unstable();
            assert_eq!(after.allocated(), live);
            assert_eq!(after.stats().faults, 0);
            live.iter().for_each(|&block| after.free(block));
            assert_eq!(after.stats().extent_bytes, 0);
            // All of it can be used again, except the table.
            let blocks = std::iter::from_fn(|| after.allocate(4096).ok()).count() as u64;
            let parts: u64 =
                region.parts().map(|part| (part.end - part.start).div_ceil(4096)).sum();
            assert_eq!(blocks, after.extents.len - parts);
        }
    }

    /// A crash while the table grows, over what an earlier opener has left there.
    #[test]
    fn a_part_of_the_table_is_there_as_a_whole_or_not_at_all() {
        let sim = Sim::new(4 << 20).unwrap();
        let config = RegionConfig { extent_size: 4096, capacity: 4 << 20, seed: Some(1) };
        let region = Region::create(sim.clone(), &config, Identity::default()).unwrap();
        let region = Arc::new(region);
        let heap = Heap::open(region.clone(), false);
        let first = heap.allocate(511 * 4096).unwrap();
        sim.grow(region.unit_offset(520)).unwrap();
        let left = sim.slice::<PmU64>(region.unit_offset(511), 3 * 512).unwrap();
        left.iter().for_each(|cell| sim.store(cell, Shape::TAIL.encode(0)));
        sim.flush(left);
        sim.fence();
        sim.checkpoint();
        sim.note(Note::Begin(0));
        let second = heap.allocate(8192).unwrap();
        sim.note(Note::End(0));
        assert_eq!(region.parts().count(), 1);
        let (mut with, mut without) = (0, 0);
        sim::for_each_image(&sim.trace(), &ImageConfig::default(), |image| {
            let after = Sim::from_image(image.bytes, 4 << 20).unwrap();
            let (region, _) = Region::open(after, Identity::default(), Default::default()).unwrap();
            let region = Arc::new(region);
            *if region.parts().count() == 1 { &mut with } else { &mut without } += 1;
            let heap = Heap::open(region, false);
            let mut live = vec![first];
            live.extend(image.point.completed(0).then_some(second));
            live.iter().for_each(|&block| heap.mark(block));
            heap.finish_sweep();
            assert_eq!((heap.stats().faults, heap.allocated()), (0, live));
            let third = heap.allocate(12288).unwrap();
            assert!(
                heap.region.parts().all(|part| third >= part.end || third + 12288 <= part.start)
            );
            ControlFlow::Continue(())
        });
        assert!(with > 0 && without > 0, "{with} and {without}");
    }

    /// One of the words that name a part of the table is damaged, or both are.
    #[test]
    fn a_part_of_the_table_is_found_by_either_word() {
        for (damaged, found) in [(0..1, true), (1..2, true), (0..2, false)] {
            let sim = Sim::new(4 << 20).unwrap();
            let config = RegionConfig { extent_size: 4096, capacity: 4 << 20, seed: Some(1) };
            let region = Region::create(sim.clone(), &config, Identity::default()).unwrap();
            let heap = Heap::open(Arc::new(region), false);
            heap.allocate(600 * 4096).unwrap();
            let words = heap.region.part_words(1);
            damaged.for_each(|copy| sim.store(words[copy], sim.load(words[copy]) ^ 1 << 20));
            let opened = Region::open(sim.clone(), Identity::default(), Default::default());
            match opened {
                Ok((region, _)) => assert!(found && region.parts().count() == 1),
                Err(error) => assert!(!found && error.to_string().contains("extent table")),
            }
        }
    }

    /// Whatever the table says, and whatever is named, nothing panics, nothing is handed out twice, and the table itself
    /// is not handed out.
    #[test]
    fn a_damaged_table_does_no_further_harm() {
        let mut random = 99u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % below
        };
        for round in 0..300 {
            let extent_size = [4096, 16384][round % 2];
            let pool = pool(extent_size, 8 << 20);
            let mut live: Vec<u64> = (0..800)
                .map(|at| pool.allocate(if at % 40 == 0 { 30_000 } else { 16 + next(9000) }))
                .map(Result::unwrap)
                .collect();
            if round % 3 == 0 {
                pool.close().unwrap();
            }
            let region = pool.share_region();
            let (m, described) = (region.medium(), region.described());
            // Entries changed, zeroed, exchanged, copied from elsewhere, or a page of something else.
            for _ in 0..1 + next(20) {
                let (one, other) = (region.entry(next(described)), region.entry(next(described)));
                let word = match next(6) {
                    0 => 0,
                    1 => m.load(one) ^ 1 << next(64),
                    2 => m.load(other),
                    3 => next(1 << 33) << 32 | next(7),
                    4 => next(1 << 10) << 32 | next(1 << 10) << 8 | [1, 5][next(2) as usize],
                    _ => 2 | next(400) << 32,
                };
                m.store(one, word);
            }
            if round % 10 == 0 {
                let page = region.entry(0);
                let start = m.offset_of(page);
                let cells = m.slice::<PmU64>(start, 512).unwrap();
                let with = [0, Shape::TAIL.encode(0), 0x0123_4567_89ab_cdef][next(3) as usize];
                cells.iter().for_each(|cell| m.store(cell, with));
            }
            let heap = Heap::open(region.clone(), round % 3 == 0);
            if heap.needs_sweep() {
                live.extend((0..20).map(|_| next(9 << 20)));
                live.iter().for_each(|&block| heap.mark(block));
                heap.finish_sweep();
            }
            for _ in 0..50 {
                heap.free(live[next(live.len() as u64) as usize]);
                heap.free(next(9 << 20));
            }
            let mut taken = BTreeMap::new();
            for part in region.parts() {
                taken.insert(part.start, part.end);
            }
            let mut allocate = |size: u64| {
                let Ok(block) = heap.allocate(size) else { return false };
                let before = taken.range(..block + size).next_back();
                assert!(before.is_none_or(|(_, &end)| end <= block), "handed out twice");
                assert!(block >= region.unit_offset(0) && block + size <= m.len());
                taken.insert(block, block + size).is_none()
            };
            while allocate([100, 5000, 30_000][next(3) as usize]) {}
            drop(heap.evacuation(1));
            heap.stats();
            heap.allocated();
            match heap.save_snapshot() {
                Ok(()) => drop(Heap::open(region.clone(), true)),
                Err(error) => assert!(error.is_no_space(), "{error}"),
            }
        }
    }

    /// A heap of which nothing is left has a snapshot too.
    #[test]
    fn an_empty_table_can_be_closed() {
        let pool = pool(16384, 1 << 20);
        pool.close().unwrap();
        let region = pool.share_region();
        (0..region.described()).for_each(|at| region.medium().store(region.entry(at), 0));
        let heap = Heap::open(region, true);
        heap.save_snapshot().unwrap();
    }
}
