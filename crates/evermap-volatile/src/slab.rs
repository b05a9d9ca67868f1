//! Places with numbers, for entries and for overflow buckets.
//!
//! A place never moves. Its number, an [`Id`], is half as long as a pointer. Places are in blocks,
//! each as large as all before it together, so the highest bit of an id says in which block its
//! place is.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::num::NonZeroU32;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;

use crate::memory::Memory;

/// The smallest id, which is also the number of places in the first block.
const FIRST: u32 = 16;
/// The number of bits of an id.
const BITS: usize = 32;

/// The number of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(NonZeroU32);

impl Id {
    /// Returns the id with this number, or `None` for 0, which is no id.
    #[inline(always)]
    pub(crate) fn new(number: u32) -> Option<Self> {
        NonZeroU32::new(number).map(Id)
    }

    /// Returns the number.
    #[inline(always)]
    pub(crate) fn get(self) -> u32 {
        self.0.get()
    }

    /// Returns the position of the block in [`Slab::blocks`].
    #[inline(always)]
    fn block(self) -> usize {
        // The mask tells the compiler that no bounds have to be checked.
        self.0.leading_zeros() as usize % BITS
    }
}

/// A place: a value, or the next free place.
#[repr(C)]
union Cell<T> {
    value: ManuallyDrop<T>,
    next_free: u32,
}

/// The places for values of type `T`, as readers find them. [`Places`] says which are in use.
pub(crate) struct Slab<T> {
    /// Where the place with the number 0 would be, if the block of these ids began there.
    blocks: [AtomicPtr<Cell<T>>; BITS],
}

/// Which places of a [`Slab`] are in use. Protected by a lock.
pub(crate) struct Places<T> {
    /// The number of the first place that was never used.
    next: u32,
    /// The first of the places that were used and are free.
    free: Option<Id>,
    /// The number of places in use.
    used: u32,
    blocks: Vec<Memory>,
    holds: PhantomData<fn() -> T>,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Slab { blocks: [const { AtomicPtr::new(null_mut()) }; BITS] }
    }

    /// Returns the address of a place.
    #[inline(always)]
    pub(crate) fn at(&self, id: Id) -> *mut T {
        // Relaxed: who has an id has it by an acquire from a thread that allocated the place after
        // the block.
        let block = self.blocks[id.block()].load(Relaxed);
        block.wrapping_add(id.get() as usize).cast()
    }
}

impl<T> Places<T> {
    pub(crate) fn new() -> Self {
        Places { next: FIRST, free: None, used: 0, blocks: Vec::new(), holds: PhantomData }
    }

    /// Returns the number of places in use.
    pub(crate) fn used(&self) -> usize {
        self.used as usize
    }

    /// Returns the number of bytes of all blocks.
    pub(crate) fn bytes(&self) -> usize {
        self.blocks.iter().map(Memory::bytes).sum()
    }

    /// Allocates a place of the slab, whose places these are. It is not allocated again before it
    /// is [freed](Places::free). Its contents are undefined.
    ///
    /// Returns `None` if there is no more memory, or no number below `limit`.
    pub(crate) fn allocate(&mut self, slab: &Slab<T>, limit: u32) -> Option<Id> {
        let id = match self.free {
            Some(id) => {
                // SAFETY: a free place of this slab, which `free` has written.
                self.free = Id::new(unsafe { (*slab.at(id).cast::<Cell<T>>()).next_free });
                id
            }
            None => {
                let id = Id::new(self.next).filter(|id| id.get() < limit)?;
                if id.get().is_power_of_two() {
                    self.add_block(slab, id)?;
                }
                // Beyond the last number there is 0, which is no id.
                self.next = self.next.wrapping_add(1);
                id
            }
        };
        self.used += 1;
        Some(id)
    }

    #[cold]
    fn add_block(&mut self, slab: &Slab<T>, first: Id) -> Option<()> {
        let places = first.get() as usize;
        let bytes = places.checked_mul(size_of::<Cell<T>>())?;
        let memory = Memory::zeroed(bytes, align_of::<Cell<T>>())?;
        let start = memory.base().as_ptr().cast::<Cell<T>>().wrapping_sub(places);
        // Relaxed: see `Slab::at`.
        slab.blocks[first.block()].store(start, Relaxed);
        self.blocks.push(memory);
        Some(())
    }

    /// Frees a place.
    ///
    /// # Safety
    /// 1. The place was allocated from this slab, and has not been freed since.
    /// 2. It is not used any more, and its value was dropped or is not needed.
    pub(crate) unsafe fn free(&mut self, slab: &Slab<T>, id: Id) {
        let next = self.free.map_or(0, Id::get);
        // SAFETY: a place of this slab (1.) that nobody else uses (2.).
        unsafe { (*slab.at(id).cast::<Cell<T>>()).next_free = next };
        self.free = Some(id);
        self.used -= 1;
    }

    /// Takes all blocks, if no place is in use and they are larger than `bytes_kept`.
    pub(crate) fn take_blocks(&mut self, slab: &Slab<T>, bytes_kept: usize) -> Vec<Memory> {
        if self.used > 0 || self.bytes() <= bytes_kept {
            return Vec::new();
        }
        slab.blocks.iter().for_each(|block| block.store(null_mut(), Relaxed));
        std::mem::replace(self, Places::new()).blocks
    }
}

/// Returns a pointer to a place that is not null, for values that were written to it.
#[inline(always)]
pub(crate) fn non_null<T>(place: *mut T) -> NonNull<T> {
    debug_assert!(!place.is_null());
    // SAFETY: places are in blocks, and no block contains the null address.
    unsafe { NonNull::new_unchecked(place) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use evermap_pm::sim::rng::Rng;

    fn places_come_and_go<T: Copy + PartialEq + std::fmt::Debug>(value: impl Fn(u64) -> T) {
        let (slab, mut places, mut random) = (Slab::<T>::new(), Places::<T>::new(), Rng::new(5));
        let mut given: BTreeMap<u32, u64> = BTreeMap::new();
        let rounds = if cfg!(miri) { 500 } else { 20_000 };
        for round in 0..rounds {
            if given.is_empty() || random.below(if round < rounds / 2 { 3 } else { 2 }) > 0 {
                let id = places.allocate(&slab, u32::MAX).unwrap();
                assert!(given.insert(id.get(), round).is_none());
                assert!(slab.at(id).is_aligned());
                // SAFETY: allocated for this test only.
                unsafe { slab.at(id).write(value(round)) };
            } else {
                let number = *random.pick(&Vec::from_iter(given.keys().copied()));
                let (id, round) = (Id::new(number).unwrap(), given.remove(&number).unwrap());
                // SAFETY: written above, and freed once.
                unsafe {
                    assert_eq!(slab.at(id).read(), value(round));
                    places.free(&slab, id);
                }
            }
            assert_eq!(places.used(), given.len());
        }
        assert!(places.take_blocks(&slab, 0).is_empty());
        for number in given.into_keys() {
            // SAFETY: allocated above, and freed once.
            unsafe { places.free(&slab, Id::new(number).unwrap()) };
        }
        assert!(places.take_blocks(&slab, usize::MAX).is_empty());
        assert!(!places.take_blocks(&slab, 0).is_empty());
        assert_eq!((places.used(), places.bytes()), (0, 0));
        assert_eq!(places.allocate(&slab, u32::MAX).unwrap().get(), FIRST);
    }

    #[test]
    fn places_of_all_sizes_come_and_go() {
        places_come_and_go(|_| ());
        places_come_and_go(|round| round as u8);
        places_come_and_go(|round| (round, !round));
        places_come_and_go(|round| [round; 33]);
    }

    #[test]
    fn numbers_are_limited() {
        let (slab, mut places) = (Slab::<u8>::new(), Places::<u8>::new());
        assert!((FIRST..100).all(|_| places.allocate(&slab, 100).is_some()));
        assert!(places.allocate(&slab, 100).is_none());
        assert_eq!(places.used(), 100 - FIRST as usize);
        places.next = u32::MAX;
        assert_eq!(places.allocate(&slab, u32::MAX), None);
    }
}
