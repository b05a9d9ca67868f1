//! The memory for the nodes of a tree: chunks that grow with it. Large chunks use huge pages if the
//! system grants them.
//!
//! A descent ends at a leaf that is seldom in the TLB. With small pages, each descent would also
//! cost a page-table walk.

use std::alloc::{Layout, alloc, dealloc};
use std::marker::PhantomData;
use std::ptr::NonNull;

use evermap_pm::Result;
use evermap_pm::medium::prefer_huge_pages;
use evermap_pm::sync::{Mutex, MutexGuard, Rank};

use super::block::no_memory;

/// The size of the first chunk and of the largest, bytes. Each chunk is as large as all before it,
/// within these limits.
const CHUNK_BYTES: [usize; 2] = [64 << 10, 32 << 20];
/// Chunks of at least this size use huge pages.
const HUGE_FROM: usize = 8 << 20;
const HUGE_PAGE: usize = 2 << 20;

/// Allocates places for values of type `T`.
pub(super) struct Arena<T> {
    state: Mutex<State>,
    holds: PhantomData<fn() -> T>,
}

#[derive(Default)]
struct State {
    /// The chunks in the order of their addresses.
    chunks: Vec<Chunk>,
    /// The first addresses of the chunks with free places.
    open: Vec<usize>,
    bytes: usize,
}

struct Chunk {
    memory: NonNull<u8>,
    layout: Layout,
    /// Freed places, as offsets from the beginning of the chunk; and the first offset that was
    /// never used.
    free: Vec<u32>,
    next: usize,
    used: usize,
}

const _: () = assert!(CHUNK_BYTES[1] <= u32::MAX as usize);

// SAFETY: it owns memory that no other thread knows, except for the places that it has handed out.
unsafe impl Send for Chunk {}

impl<T> Arena<T> {
    const SIZE: usize = size_of::<T>();

    pub(super) fn new() -> Self {
        Arena { state: Mutex::ranked(Rank::Arena, State::default()), holds: PhantomData }
    }

    /// Allocates a place for a value. It is not handed out again before it is [freed](Self::free).
    ///
    /// # Errors
    /// `NoSpace` if the system has no more memory.
    pub(super) fn allocate(&self) -> Result<NonNull<T>> {
        let mut state = self.state();
        loop {
            let Some(&base) = state.open.last() else {
                state.add(Layout::new::<T>())?;
                continue;
            };
            let chunk = state.chunk_of(base);
            match state.chunks[chunk].take(Self::SIZE) {
                Some(place) => return Ok(place.cast()),
                None => drop(state.open.pop()),
            }
        }
    }

    /// Frees a place.
    ///
    /// # Safety
    /// 1. The place was returned by [`allocate`](Self::allocate) of this arena and has not been
    ///    freed since.
    /// 2. It is not used now or later.
    pub(super) unsafe fn free(&self, place: NonNull<T>) {
        self.state().free(place.addr().get(), Self::SIZE);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panics while held")
    }
}

impl State {
    fn add(&mut self, value: Layout) -> Result<()> {
        let bytes = self.bytes.clamp(CHUNK_BYTES[0], CHUNK_BYTES[1]).max(value.size());
        let chunk = Chunk::new(bytes, value.align())?;
        let base = chunk.base();
        self.chunks.insert(self.chunks_up_to(base), chunk);
        self.open.push(base);
        self.bytes += bytes;
        Ok(())
    }

    /// Returns the number of chunks that begin at an address or before it.
    fn chunks_up_to(&self, address: usize) -> usize {
        self.chunks.partition_point(|chunk| chunk.base() <= address)
    }

    /// Returns the position of the chunk that contains an address.
    fn chunk_of(&self, address: usize) -> usize {
        self.chunks_up_to(address) - 1
    }

    fn free(&mut self, address: usize, size: usize) {
        let at = self.chunk_of(address);
        let chunk = &mut self.chunks[at];
        let base = chunk.base();
        if !chunk.has_space(size) {
            self.open.push(base);
        }
        chunk.free.push((address - base) as u32);
        chunk.used -= 1;
        // The last open chunk is kept, because it is likely to be needed again.
        if chunk.used == 0 && self.open.len() > 1 {
            self.bytes -= chunk.layout.size();
            self.chunks.remove(at);
            self.open.retain(|&open| open != base);
        }
    }
}

impl Chunk {
    fn new(bytes: usize, align: usize) -> Result<Self> {
        let huge = bytes >= HUGE_FROM;
        let layout = Layout::from_size_align(bytes, if huge { HUGE_PAGE } else { align });
        let layout = layout.expect("a power of two, and less than the address space");
        // SAFETY: the size is not zero.
        let memory = NonNull::new(unsafe { alloc(layout) }).ok_or_else(|| no_memory(bytes))?;
        if huge {
            prefer_huge_pages(NonNull::slice_from_raw_parts(memory, bytes));
        }
        Ok(Chunk { memory, layout, free: Vec::new(), next: 0, used: 0 })
    }

    fn base(&self) -> usize {
        self.memory.addr().get()
    }

    fn has_space(&self, size: usize) -> bool {
        !self.free.is_empty() || self.next + size <= self.layout.size()
    }

    fn take(&mut self, size: usize) -> Option<NonNull<u8>> {
        if !self.has_space(size) {
            return None;
        }
        let at = self.free.pop().map_or(self.next, |at| at as usize);
        if at == self.next {
            self.next += size;
        }
        self.used += 1;
        // SAFETY: `at` is within the allocation.
        Some(unsafe { self.memory.add(at) })
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and not in use: either all places were freed, or the
        // arena is dropped, and every user of a place holds the arena.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use evermap_pm::sim::rng::Rng;

    type Large = [u64; 500];

    /// Places do not overlap, are aligned and reusable, and empty chunks are freed.
    #[test]
    fn rooms_come_and_go() {
        let (arena, mut random) = (Arena::<Large>::new(), Rng::new(5));
        let mut given: BTreeMap<usize, NonNull<Large>> = BTreeMap::new();
        for round in 0..20_000 {
            if given.is_empty() || random.below(if round < 10_000 { 3 } else { 2 }) > 0 {
                let place = arena.allocate().unwrap();
                assert!(place.is_aligned());
                let address = place.addr().get();
                let before = given.range(..=address).next_back();
                assert!(before.is_none_or(|(before, _)| before + size_of::<Large>() <= address));
                let after = given.range(address..).next();
                assert!(after.is_none_or(|(&after, _)| address + size_of::<Large>() <= after));
                // SAFETY: allocated for this test only, aligned, and large enough.
                unsafe { place.write([address as u64; 500]) };
                given.insert(address, place);
            } else {
                let address = *random.pick(&Vec::from_iter(given.keys().copied()));
                let place = given.remove(&address).unwrap();
                // SAFETY: written above, allocated by this arena, and not used any more.
                unsafe {
                    assert!(place.as_ref().iter().all(|&word| word == address as u64));
                    arena.free(place);
                }
            }
        }
        assert!(arena.state().chunks.len() > 5);
        for place in given.into_values() {
            // SAFETY: allocated by this arena, and not used any more.
            unsafe { arena.free(place) };
        }
        let state = arena.state();
        assert_eq!((state.chunks.len(), state.open.len()), (1, 1));
        assert_eq!(state.chunks.iter().map(|chunk| chunk.used).sum::<usize>(), 0);
    }
}
