//! The extents of a heap in ordinary memory, and the table that finds them by their units.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{OnceLock, PoisonError, TryLockError};

use super::{AMPLE_PART, lock};
use crate::region::{BlockKind, Geometry, TableEntry, Usage};
use crate::sync::{Backoff, Mutex, MutexGuard, Rank};

/// The state of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExtentState {
    /// Nothing in it, or no extent begins here.
    Free,
    /// In use. `bits` says which blocks are allocated.
    Open,
    /// From before an unclean shutdown. `bits` says which blocks the sweep has marked.
    Closed,
}

/// One extent, in ordinary memory. A large object is one block.
pub(super) struct Extent {
    pub(super) entry: TableEntry,
    pub(super) state: ExtentState,
    /// Number of blocks in the extent.
    pub(super) blocks: u32,
    /// Open: number of blocks that are not allocated.
    pub(super) free: u32,
    /// One bit per block. Closed: empty until something [is marked](Self::marks).
    pub(super) bits: Vec<u64>,
    /// Closed: blocks freed since the open, to be applied after the sweep.
    pub(super) deferred_frees: Vec<u32>,
    /// Open: whether it is listed as having free blocks.
    pub(super) listed: bool,
    /// Open: whether it is listed as having ample free blocks.
    pub(super) listed_ample: bool,
    /// Whether it was put to use since the open, so that all its space is known to be allocated in
    /// the file.
    pub(super) claimed: bool,
    /// Open: whether it is being evacuated, so that nothing is allocated from it.
    pub(super) evacuating: bool,
    /// Number of blocks that remained after the last evacuation.
    pub(super) unmoved: u32,
}

impl Extent {
    const UNUSED: Extent = Extent {
        entry: TableEntry::UNUSED,
        state: ExtentState::Free,
        blocks: 0,
        free: 0,
        bits: Vec::new(),
        deferred_frees: Vec::new(),
        listed: false,
        listed_ample: false,
        claimed: false,
        evacuating: false,
        unmoved: 0,
    };

    /// Returns an extent whose use begins, as described by `entry`, with no block allocated.
    fn begun(entry: TableEntry, state: ExtentState, geometry: &Geometry) -> Self {
        let blocks = Self::count_blocks(entry, geometry);
        let mut extent = Extent { entry, state, blocks, free: blocks, ..Self::UNUSED };
        if state == ExtentState::Open {
            extent.bits = vec![0; extent.words()];
            extent.claimed = true;
        }
        extent
    }

    /// Starts a new use of the extent.
    pub(super) fn begin(&mut self, entry: TableEntry, state: ExtentState, geometry: &Geometry) {
        *self = Self::begun(entry, state, geometry);
    }

    /// Returns the number of blocks in an extent with this entry.
    pub(super) fn count_blocks(entry: TableEntry, geometry: &Geometry) -> u32 {
        match entry.usage {
            Usage::Blocks(kind) => (entry.units * geometry.unit() / kind.size) as u32,
            Usage::Large => 1,
            Usage::Unused | Usage::Tail | Usage::Free | Usage::Table => 0,
        }
    }

    /// Returns the number of words of `bits`.
    pub(super) fn words(&self) -> usize {
        self.blocks.div_ceil(64) as usize
    }

    /// Returns `bits`, all zeros if nothing was marked yet. Opening a large store would take longer
    /// if there were bits for all of it at once.
    pub(super) fn marks(&mut self) -> &mut [u64] {
        if self.bits.is_empty() {
            self.bits = vec![0; self.words()];
        }
        &mut self.bits
    }

    /// Returns the size of a block in bytes.
    pub(super) fn block_size(&self, geometry: &Geometry) -> u64 {
        match self.entry.usage {
            Usage::Blocks(kind) => kind.size,
            Usage::Large => self.entry.units * geometry.unit(),
            Usage::Unused | Usage::Tail | Usage::Free | Usage::Table => 0,
        }
    }

    /// Returns `true` if it is in use and has movable blocks, or is one large object.
    pub(super) fn is_movable(&self) -> bool {
        let movable = matches!(
            self.entry.usage,
            Usage::Large | Usage::Blocks(BlockKind { fixed: false, .. })
        );
        self.state == ExtentState::Open && movable
    }

    /// Returns `true` if blocks of this kind can be allocated from it.
    pub(super) fn has_space(&self, kind: BlockKind) -> bool {
        self.state == ExtentState::Open
            && self.entry.usage == Usage::Blocks(kind)
            && self.free > 0
            && !self.evacuating
    }

    /// Returns `true` if a worthwhile number of them can be allocated.
    pub(super) fn has_ample_space(&self, kind: BlockKind) -> bool {
        self.has_space(kind) && self.free >= self.blocks / AMPLE_PART
    }

    /// Returns the bits of word `index` that stand for blocks.
    pub(super) fn valid_bits(&self, index: usize) -> u64 {
        let left = self.blocks - index as u32 * 64;
        if left >= 64 { u64::MAX } else { (1 << left) - 1 }
    }

    pub(super) fn bit(block: u32) -> (usize, u64) {
        (block as usize / 64, 1 << (block % 64))
    }

    /// Returns the block that begins `rest` bytes into the extent.
    pub(super) fn block_at(&self, rest: u64) -> Option<u32> {
        match self.entry.usage {
            Usage::Blocks(BlockKind { size, .. }) if rest.is_multiple_of(size) => {
                let block = rest / size;
                (block < u64::from(self.blocks)).then_some(block as u32)
            }
            Usage::Large if rest == 0 => Some(0),
            _ => None,
        }
    }
}

/// The extent that begins with a unit, or began there once.
type ExtentSlot = OnceLock<Box<Mutex<Extent>>>;

/// State of one unit.
#[derive(Default)]
struct UnitState {
    /// Number of units between the first unit of the extent that it belongs to, or belonged to
    /// last, and this one.
    back: AtomicU32,
    extent: ExtentSlot,
}

/// State of the neighbouring units of a group. Most of a large store is in extents of whole groups,
/// so that opening it touches little memory.
#[derive(Default)]
struct UnitGroup {
    /// If all units belong to one extent, or did last: its first unit, plus one. Otherwise 0.
    owner: AtomicU64,
    /// The extent that begins with the first unit.
    first: ExtentSlot,
    /// Each unit, once an extent has begun or ended inside the group.
    units: OnceLock<Box<[UnitState]>>,
}

/// The extents of a region by their first units. They are created on first use, because a region
/// may have room for many more than it uses. A unit where no extent begins has a
/// [free](ExtentState::Free) one.
pub(super) struct Extents {
    chunks: Box<[OnceLock<Box<[UnitGroup]>>]>,
    pub(super) len: u64,
    /// Distance of the first unit from the alignment of the largest extents, in units.
    shift: u64,
    /// Logarithm to base 2 of the units in a group: as many as the largest extent of blocks has,
    /// within limits.
    group_bits: u32,
}

impl Extents {
    /// The least and the largest value of `group_bits`. The state of a group takes as much memory
    /// as that of two units.
    const GROUP_BITS: RangeInclusive<u32> = 4..=7;
    /// Logarithm to base 2 of the units in a chunk.
    const CHUNK_BITS: u32 = 13;

    pub(super) fn new(geometry: &Geometry, shift: u64) -> Self {
        let bits = Self::GROUP_BITS;
        let group_bits = geometry.largest.ilog2().clamp(*bits.start(), *bits.end());
        let len = geometry.units;
        let chunks = (len + shift).div_ceil(1 << Self::CHUNK_BITS);
        Extents { chunks: (0..chunks).map(|_| OnceLock::new()).collect(), len, shift, group_bits }
    }

    /// Returns the number of units in a group.
    fn group_units(&self) -> u64 {
        1 << self.group_bits
    }

    /// Returns the group of unit `index`, which must be below `len`, and the position of the unit
    /// in it.
    fn group(&self, index: u64) -> (&UnitGroup, usize) {
        let (unit, bits) = (index + self.shift, Self::CHUNK_BITS - self.group_bits);
        let chunk = self.chunks[(unit >> Self::CHUNK_BITS) as usize]
            .get_or_init(|| (0..1 << bits).map(|_| UnitGroup::default()).collect());
        let group = unit >> self.group_bits & ((1 << bits) - 1);
        (&chunk[group as usize], (unit & (self.group_units() - 1)) as usize)
    }

    /// Returns the units of a group.
    fn units<'g>(&self, group: &'g UnitGroup) -> &'g [UnitState] {
        let create = || (0..self.group_units()).map(|_| UnitState::default()).collect();
        group.units.get_or_init(create)
    }

    /// Locks the extent that begins with unit `index`, which must be below `len`.
    pub(super) fn lock(&self, index: u64) -> MutexGuard<'_, Extent> {
        lock(self.extent(index))
    }

    /// Locks an extent for a thread that has locked one before it.
    pub(super) fn lock_later(&self, index: u64) -> MutexGuard<'_, Extent> {
        self.extent(index).lock_next().unwrap_or_else(PoisonError::into_inner)
    }

    fn extent(&self, index: u64) -> &Mutex<Extent> {
        self.slot(index).get_or_init(|| Box::new(Mutex::ranked(Rank::Extent, Extent::UNUSED)))
    }

    fn slot(&self, index: u64) -> &ExtentSlot {
        let (group, at) = self.group(index);
        if at == 0 { &group.first } else { &self.units(group)[at].extent }
    }

    /// Locks the extent that begins with unit `index`, if one begins there or did once.
    pub(super) fn lock_existing(&self, index: u64) -> Option<MutexGuard<'_, Extent>> {
        let (group, at) = self.group(index);
        let extent = if at == 0 { &group.first } else { &group.units.get()?[at].extent };
        extent.get().map(|extent| lock(extent))
    }

    /// Starts a new use of the extent that begins with unit `index`.
    pub(super) fn begin(
        &self,
        index: u64,
        entry: TableEntry,
        state: ExtentState,
        geometry: &Geometry,
    ) {
        self.set_owner(index, entry);
        self.lock(index).begin(entry, state, geometry);
    }

    /// Does what [`begin`](Extents::begin) does where no extent was before, for a thread that has
    /// locked what all share. Only damage leads other threads there, and those that find such an
    /// extent need nothing else before they release it.
    pub(super) fn begin_first(
        &self,
        index: u64,
        entry: TableEntry,
        state: ExtentState,
        geometry: &Geometry,
    ) {
        self.set_owner(index, entry);
        let (mut is_new, mut backoff) = (false, Backoff::new());
        let extent = self.slot(index).get_or_init(|| {
            is_new = true;
            Box::new(Mutex::ranked(Rank::Extent, Extent::begun(entry, state, geometry)))
        });
        if is_new {
            return;
        }
        let mut extent = loop {
            match extent.try_lock() {
                Ok(extent) => break extent,
                Err(TryLockError::Poisoned(error)) => break error.into_inner(),
                Err(TryLockError::WouldBlock) => drop(backoff.wait()),
            }
        };
        extent.begin(entry, state, geometry);
    }

    /// Notes to which extent the units of `entry` belong, which begins with unit `index`.
    fn set_owner(&self, index: u64, entry: TableEntry) {
        let (mut unit, end) = (index, index + entry.units);
        while unit < end {
            let (group, at) = self.group(unit);
            let here = (self.group_units() - at as u64).min(end - unit);
            // All stores are relaxed: a thread gets an offset from a word stored after this. An
            // offset that it got otherwise can only come from damage, and then the extent tells
            // whether it is the right one.
            if here == self.group_units() {
                group.owner.store(index + 1, Ordering::Relaxed);
            } else {
                for (unit, back) in self.units(group)[at..].iter().zip(unit - index..end - index) {
                    unit.back.store(back as u32, Ordering::Relaxed);
                }
                group.owner.store(0, Ordering::Relaxed);
            }
            unit += here;
        }
    }

    /// Returns the first unit of the extent to which unit `index` belongs.
    pub(super) fn first_of(&self, index: u64) -> u64 {
        let (group, at) = self.group(index);
        Self::first_in(group, at, index)
    }

    /// The same for a unit whose group and place in it are known.
    fn first_in(group: &UnitGroup, at: usize, index: u64) -> u64 {
        let back = |unit: &UnitState| u64::from(unit.back.load(Ordering::Relaxed));
        match group.owner.load(Ordering::Relaxed) {
            0 => index.saturating_sub(group.units.get().map_or(0, |units| back(&units[at]))),
            owner => owner - 1,
        }
    }

    /// Locks the extent to which unit `index` belongs, which must be below `len`, if one begins
    /// there or did once. Returns its first unit too.
    pub(super) fn lock_around(&self, index: u64) -> Option<(u64, MutexGuard<'_, Extent>)> {
        let (group, at) = self.group(index);
        let first = Self::first_in(group, at, index);
        // An opening looks at thousands, and most of them begin with a group.
        let extent = match first + at as u64 == index {
            true => group.first.get().map(|extent| lock(extent)),
            false => self.lock_existing(first),
        };
        extent.map(|extent| (first, extent))
    }
}
