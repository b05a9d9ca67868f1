//! Memory for the nodes of a tree: in pieces that grow with it, large ones in huge pages where the system grants them.
//!
//! A way down the tree ends at a leaf that was seldom seen before. In small pages, each of them would cost a walk over the
//! page table as well.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ptr::NonNull;

use evermap_pm::Result;
use evermap_pm::medium::prefer_huge_pages;
use evermap_pm::sync::{Mutex, MutexGuard};

use super::block::no_memory;

/// Bytes of the first piece, and of the largest. Each is as large as all before it, between these.
const PIECE: [usize; 2] = [64 << 10, 32 << 20];
/// A piece of so many bytes has huge pages, of this size.
const HUGE: usize = 8 << 20;
const HUGE_PAGE: usize = 2 << 20;

/// Places for values of type `T`.
pub(super) struct Arena<T> {
    rooms: Mutex<Rooms>,
    holds: PhantomData<fn() -> T>,
}

#[derive(Default)]
struct Rooms {
    /// By their first addresses.
    pieces: BTreeMap<usize, Piece>,
    /// Pieces with free places.
    open: Vec<usize>,
    bytes: usize,
}

struct Piece {
    memory: NonNull<u8>,
    layout: Layout,
    /// Places that are free again, and the first that was never used: their distances from the beginning.
    free: Vec<u32>,
    next: usize,
    used: usize,
}

const _: () = assert!(PIECE[1] <= u32::MAX as usize);

// SAFETY: it is memory that nobody else knows, but for the places that it has given.
unsafe impl Send for Piece {}

impl<T> Arena<T> {
    const SIZE: usize = size_of::<T>();

    pub(super) fn new() -> Self {
        Arena { rooms: Mutex::default(), holds: PhantomData }
    }

    /// Room for a value, for whoever asks: nobody else is given it before it is [given back](Self::give_back).
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn take(&self) -> Result<NonNull<T>> {
        let mut rooms = self.rooms();
        loop {
            let Some(&piece) = rooms.open.last() else {
                rooms.add(Layout::new::<T>())?;
                continue;
            };
            let piece = rooms.pieces.get_mut(&piece).expect("what is open is there");
            match piece.take(Self::SIZE) {
                Some(room) => return Ok(room.cast()),
                None => drop(rooms.open.pop()),
            }
        }
    }

    /// Takes back room that nobody uses any more.
    ///
    /// # Safety
    /// 1. [`take`](Self::take) of this arena has given it, and it was not given back since.
    /// 2. Nobody uses it any more, nor will.
    pub(super) unsafe fn give_back(&self, room: NonNull<T>) {
        self.rooms().give_back(room.addr().get(), Self::SIZE);
    }

    fn rooms(&self) -> MutexGuard<'_, Rooms> {
        self.rooms.lock().expect("no panics while held")
    }
}

impl Rooms {
    fn add(&mut self, value: Layout) -> Result<()> {
        let bytes = self.bytes.clamp(PIECE[0], PIECE[1]).max(value.size());
        let piece = Piece::new(bytes, value.align())?;
        let base = piece.memory.addr().get();
        self.pieces.insert(base, piece);
        self.open.push(base);
        self.bytes += bytes;
        Ok(())
    }

    fn give_back(&mut self, address: usize, size: usize) {
        let (&base, piece) = self.pieces.range_mut(..=address).next_back().expect("it was given");
        if !piece.has_room(size) {
            self.open.push(base);
        }
        piece.free.push((address - base) as u32);
        piece.used -= 1;
        // The last one is kept: most likely it is wanted again.
        if piece.used == 0 && self.open.len() > 1 {
            self.bytes -= piece.layout.size();
            self.pieces.remove(&base);
            self.open.retain(|&open| open != base);
        }
    }
}

impl Piece {
    fn new(bytes: usize, align: usize) -> Result<Self> {
        let huge = bytes >= HUGE;
        let layout = Layout::from_size_align(bytes, if huge { HUGE_PAGE } else { align });
        let layout = layout.expect("a power of two, and less than the address space");
        // SAFETY: not of size zero.
        let memory = NonNull::new(unsafe { alloc(layout) }).ok_or_else(|| no_memory(bytes))?;
        if huge {
            prefer_huge_pages(NonNull::slice_from_raw_parts(memory, bytes));
        }
        Ok(Piece { memory, layout, free: Vec::new(), next: 0, used: 0 })
    }

    fn has_room(&self, size: usize) -> bool {
        !self.free.is_empty() || self.next + size <= self.layout.size()
    }

    fn take(&mut self, size: usize) -> Option<NonNull<u8>> {
        if !self.has_room(size) {
            return None;
        }
        let at = self.free.pop().map_or(self.next, |at| at as usize);
        if at == self.next {
            self.next += size;
        }
        self.used += 1;
        // SAFETY: `at` is within what was allocated.
        Some(unsafe { self.memory.add(at) })
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout. Nobody uses it any more: either all places were given back, or the arena goes,
        // and whoever has a place has the arena.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evermap_pm::sim::rng::Rng;

    type Large = [u64; 500];

    /// What is given does not overlap, is aligned, and comes back; pieces that nobody uses go.
    #[test]
    fn rooms_come_and_go() {
        let (arena, mut random) = (Arena::<Large>::new(), Rng::new(5));
        let mut given: BTreeMap<usize, NonNull<Large>> = BTreeMap::new();
        for round in 0..20_000 {
            if given.is_empty() || random.below(if round < 10_000 { 3 } else { 2 }) > 0 {
                let room = arena.take().unwrap();
                assert!(room.is_aligned());
                let address = room.addr().get();
                let before = given.range(..=address).next_back();
                assert!(before.is_none_or(|(before, _)| before + size_of::<Large>() <= address));
                let after = given.range(address..).next();
                assert!(after.is_none_or(|(&after, _)| address + size_of::<Large>() <= after));
                // SAFETY: it is ours, aligned, and large enough.
                unsafe { room.write([address as u64; 500]) };
                given.insert(address, room);
            } else {
                let address = *random.pick(&Vec::from_iter(given.keys().copied()));
                let room = given.remove(&address).unwrap();
                // SAFETY: written above; taken from this arena, and forgotten here.
                unsafe {
                    assert!(room.as_ref().iter().all(|&word| word == address as u64));
                    arena.give_back(room);
                }
            }
        }
        assert!(arena.rooms().pieces.len() > 5);
        for room in given.into_values() {
            // SAFETY: taken from this arena, and forgotten here.
            unsafe { arena.give_back(room) };
        }
        let rooms = arena.rooms();
        assert_eq!((rooms.pieces.len(), rooms.open.len()), (1, 1));
        assert_eq!(rooms.pieces.values().map(|piece| piece.used).sum::<usize>(), 0);
    }
}
