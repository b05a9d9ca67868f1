//! A region, its heap and its epoch domain as one object: what an index is built on.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::epoch::EpochStats;
use crate::heap::{Evacuation, Heap, HeapStats};
use crate::region::{Identity, OnSuspect, Opened, Region, RegionConfig};
use crate::{Domain, Guard, Medium, PmU64, Result};

/// Everything that an index needs, shared by all indexes of one store.
pub struct Pool<M: Medium> {
    region: Arc<Region<M>>,
    heap: Arc<Heap<M>>,
    epoch: Domain,
    swept: AtomicBool,
    /// Whether what is taken is more than what can be reached.
    lost: AtomicBool,
}

impl<M: Medium> Pool<M> {
    /// Makes a new region of a blank medium.
    ///
    /// # Errors
    /// `Config` for impossible shapes, `NoSpace`.
    pub fn create(medium: M, config: &RegionConfig, identity: Identity) -> Result<Arc<Self>> {
        let region = Region::create(medium, config, identity)?;
        Ok(Self::assemble(region, false))
    }

    /// Opens the region in `medium`. After an unclean stop old space is not reused until
    /// [`sweep`](Pool::sweep) has run.
    ///
    /// # Errors
    /// `NotAStore`, `NewerFormat`, `Damaged`, `Suspect` (unless `on_suspect` allows it).
    pub fn open(
        medium: M,
        identity: Identity,
        on_suspect: OnSuspect,
    ) -> Result<(Arc<Self>, Opened)> {
        let (region, opened) = Region::open(medium, identity, on_suspect)?;
        Ok((Self::assemble(region, opened.clean), opened))
    }

    fn assemble(region: Region<M>, restore: bool) -> Arc<Self> {
        let region = Arc::new(region);
        let heap = Arc::new(Heap::open(region.clone(), restore));
        let freer = heap.clone();
        let epoch = Domain::new(Box::new(move |offset| freer.free(offset)));
        let swept = AtomicBool::new(!heap.needs_sweep());
        Arc::new(Pool { region, heap, epoch, swept, lost: AtomicBool::new(false) })
    }

    /// The medium underneath.
    #[inline(always)]
    pub fn medium(&self) -> &M {
        self.region.medium()
    }

    /// The region underneath, for those who want it close at hand.
    pub fn share_region(&self) -> Arc<Region<M>> {
        self.region.clone()
    }

    /// The region underneath.
    #[inline(always)]
    pub fn region(&self) -> &Region<M> {
        &self.region
    }

    /// The domain in which blocks wait for their grace period.
    pub fn epoch(&self) -> &Domain {
        &self.epoch
    }

    /// Seed of the placement hash.
    #[inline(always)]
    pub fn seed(&self) -> u64 {
        self.region.seed()
    }

    /// Number of this opener; see [`Region::generation`].
    #[inline(always)]
    pub fn generation(&self) -> u64 {
        self.region.generation()
    }

    /// Root slot `index`; see [`Region::root`].
    ///
    /// # Panics
    /// If `index` is not below [`ROOTS`](crate::region::ROOTS).
    pub fn root(&self, index: usize) -> &PmU64 {
        self.region.root(index)
    }

    /// Begins to protect everything reachable from now on.
    #[inline(always)]
    pub fn pin(&self) -> Guard<'_> {
        self.epoch.pin()
    }

    /// Allocates a block; see [`Heap::allocate`].
    ///
    /// # Errors
    /// `NoSpace`; nothing has changed then.
    pub fn allocate(&self, size: u64) -> Result<u64> {
        self.heap.allocate(size)
    }

    /// Allocates a block that stays where it is; see [`Heap::allocate_fixed`].
    ///
    /// # Errors
    /// `NoSpace`; nothing has changed then.
    pub fn allocate_fixed(&self, size: u64) -> Result<u64> {
        self.heap.allocate_fixed(size)
    }

    /// Allocates a block of exactly `size` bytes; see [`Heap::allocate_exact`].
    ///
    /// # Errors
    /// `NoSpace`; nothing has changed then.
    pub fn allocate_exact(&self, size: u64) -> Result<u64> {
        self.heap.allocate_exact(size)
    }

    /// Frees a block whose offset was never stored in anything reachable.
    pub fn free_unpublished(&self, offset: u64) {
        self.heap.free(offset);
    }

    /// Frees a block once nobody can see it any more.
    ///
    /// It was unlinked, that is durable, and the guard that protected the unlinking (`guard`) is still alive:
    /// the sweep relies on that order. `bytes` is what it occupies.
    pub fn retire(&self, offset: u64, bytes: u64, guard: &Guard<'_>) {
        debug_assert!(std::ptr::eq(guard.domain(), &self.epoch), "a guard of another pool");
        self.epoch.retire_with_total(offset, bytes as usize, self.medium().len());
    }

    /// Whether all space is accounted for. After an unclean stop it is not, until a [`sweep`](Pool::sweep).
    #[inline]
    pub fn is_swept(&self) -> bool {
        // Acquire: what the sweep recovered is visible to whoever builds on its being through.
        self.swept.load(Ordering::Acquire)
    }

    /// Says that some block is taken that nothing names any more: the next opening has to sweep, however this one ends.
    pub fn require_sweep(&self) {
        // Relaxed: whoever closes comes after it by other means.
        self.lost.store(true, Ordering::Relaxed);
    }

    /// Finds out which old blocks are taken, and makes the others available.
    ///
    /// `visit` calls its argument with every block that is reachable throughout. Mutations may go on
    /// meanwhile; their guards must be short. The calling thread must not
    /// [hold a guard](Domain::is_pinned). Where `visit` fails,
    /// old space stays unavailable, which is safe.
    ///
    /// # Errors
    /// What `visit` answers.
    pub fn sweep(&self, visit: impl FnOnce(&mut dyn FnMut(u64)) -> Result<()>) -> Result<()> {
        visit(&mut |offset| self.heap.mark(offset))?;
        // What was unlinked before the marking passed it is in nobody's list yet, or in the list of retired
        // blocks: let both end in the heap's notes before old extents open.
        self.epoch.drain();
        self.heap.finish_sweep();
        self.swept.store(true, Ordering::Release);
        Ok(())
    }

    /// Bytes of the block at `offset`, if it was allocated before an unclean open and the [sweep](Pool::sweep) is not
    /// through: what tells a sweep how large a block is, and that it is not a new one, without a look at it. 0 where
    /// damage leads to what is no block.
    pub fn old_block_size(&self, offset: u64) -> Option<u64> {
        self.heap.closed_block(offset)
    }

    /// Bytes of the block at `offset`, whether or not it is taken; `None` if there is none, as far as the heap knows.
    pub fn block_size_at(&self, offset: u64) -> Option<u64> {
        self.heap.block(offset).filter(|&bytes| bytes > 0)
    }

    /// Where the parts of structures lie that were allocated before an unclean open, as long as the [sweep](Pool::sweep)
    /// is not through: in the order of the file. A sweep reads these and nothing else.
    pub fn old_fixed_extents(&self) -> impl Iterator<Item = Range<u64>> {
        self.heap.closed_parts().into_iter()
    }

    /// Chooses extents that hold little, to be emptied by moving what is in them; nothing if fewer than `least`
    /// bytes would become free. O(extents). See [`Evacuation`].
    ///
    /// Whoever moves a block replaces it as in any other mutation, and [retires](Pool::retire) the old one.
    pub fn evacuation(&self, least: u64) -> Option<Evacuation<'_, M>> {
        self.heap.evacuation(least)
    }

    /// Frees what no guard holds back any more, and gives memory that is free back to the system,
    /// but for some that will soon be needed.
    pub fn trim(&self) {
        // In a forked child nobody knows any more which extents are free.
        if self.region.ensure_writable().is_err() {
            return;
        }
        self.epoch.drain_within(Duration::ZERO);
        self.heap.trim(false);
    }

    /// Closes in order: everything retired is freed, occupancy is saved, and the region is marked clean.
    ///
    /// Mutations have ended, and no guard is alive.
    ///
    /// # Errors
    /// `Io` if the system could not write, `Poisoned`, `Forked`; the region then counts as not closed.
    pub fn close(&self) -> Result<()> {
        self.region.ensure_writable()?;
        self.epoch.drain();
        // Not flushed, as little as the snapshot: the region becomes clean when all of it is durable.
        self.medium().store(&self.region.header().snapshot[0], 0);
        // Without room for the snapshot, before the sweep is through, or where blocks were lost, the next open sweeps.
        if self.is_swept() && !self.lost.load(Ordering::Relaxed) {
            match self.heap.save_snapshot() {
                Err(error) if !error.is_no_space() => return Err(error),
                _ => {}
            }
        }
        // The next opener sets free extents aside again before it uses them.
        self.heap.trim(true);
        self.region.close()
    }

    /// Space in use now.
    pub fn heap_stats(&self) -> HeapStats {
        self.heap.stats()
    }

    /// Bytes that a block for `size` bytes really has.
    pub fn block_size(&self, size: u64) -> u64 {
        self.heap.block_size(size)
    }

    /// Every block that is taken, ascending. For checking: call without concurrent changes.
    pub fn allocated(&self) -> Vec<u64> {
        self.heap.allocated()
    }

    /// State of the epoch domain.
    pub fn epoch_stats(&self) -> EpochStats {
        self.epoch.stats()
    }
}
