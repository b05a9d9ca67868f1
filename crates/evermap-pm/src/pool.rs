//! A region, its heap and its epoch domain as one object, which indexes are built on.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::epoch::EpochStats;
use crate::heap::{Evacuation, Heap, HeapStats, PreviousUse};
use crate::region::{Identity, OnSuspect, Opened, Region, RegionConfig};
use crate::{Domain, Guard, Medium, PmU64, Result};

/// The resources of an index, shared by all indexes of a store.
pub struct Pool<M: Medium> {
    region: Arc<Region<M>>,
    heap: Arc<Heap<M>>,
    epoch: Domain,
    swept: AtomicBool,
    /// Whether some allocated blocks are not reachable.
    unreachable: AtomicBool,
}

impl<M: Medium> Pool<M> {
    /// Creates a region in a blank medium.
    ///
    /// # Errors
    ///
    /// `Config` if the configuration is impossible, `NoSpace`.
    pub fn create(medium: M, config: &RegionConfig, identity: Identity) -> Result<Arc<Self>> {
        let region = Region::create(medium, config, identity)?;
        Ok(Self::assemble(region, PreviousUse::None))
    }

    /// Opens the region in `medium`. After an unclean shutdown, old space is not reused until
    /// [`sweep`](Pool::sweep) has run.
    ///
    /// # Errors
    ///
    /// `NotAStore`, `NewerFormat`, `Damaged`, `Suspect` (unless `on_suspect` allows it).
    pub fn open(
        medium: M,
        identity: Identity,
        on_suspect: OnSuspect,
    ) -> Result<(Arc<Self>, Opened)> {
        let (region, opened) = Region::open(medium, identity, on_suspect)?;
        let previous = if opened.clean { PreviousUse::Closed } else { PreviousUse::Unclean };
        Ok((Self::assemble(region, previous), opened))
    }

    fn assemble(region: Region<M>, previous: PreviousUse) -> Arc<Self> {
        let region = Arc::new(region);
        let heap = Arc::new(Heap::open(region.clone(), previous));
        let freer = heap.clone();
        let epoch = Domain::new(Box::new(move |offset| freer.free(offset)));
        let swept = AtomicBool::new(!heap.needs_sweep());
        Arc::new(Pool { region, heap, epoch, swept, unreachable: AtomicBool::new(false) })
    }

    /// Returns the medium.
    #[inline(always)]
    pub fn medium(&self) -> &M {
        self.region.medium()
    }

    /// Returns a shared reference to the region.
    pub fn share_region(&self) -> Arc<Region<M>> {
        self.region.clone()
    }

    /// Returns the region.
    #[inline(always)]
    pub fn region(&self) -> &Region<M> {
        &self.region
    }

    /// Returns the epoch domain, in which blocks wait for the end of their grace period.
    pub fn epoch(&self) -> &Domain {
        &self.epoch
    }

    /// Returns the seed of the placement hash.
    #[inline(always)]
    pub fn seed(&self) -> u64 {
        self.region.seed()
    }

    /// Returns the generation of this open. See [`Region::generation`].
    #[inline(always)]
    pub fn generation(&self) -> u64 {
        self.region.generation()
    }

    /// Returns root slot `index`. See [`Region::root`].
    ///
    /// # Panics
    ///
    /// If `index` is not below [`ROOTS`](crate::region::ROOTS).
    pub fn root(&self, index: usize) -> &PmU64 {
        self.region.root(index)
    }

    /// Creates a guard that protects everything reachable from now on.
    #[inline(always)]
    pub fn pin(&self) -> Guard<'_> {
        self.epoch.pin()
    }

    /// Allocates a block. See [`Heap::allocate`].
    ///
    /// # Errors
    ///
    /// `NoSpace`; nothing has changed then.
    pub fn allocate(&self, size: u64) -> Result<u64> {
        self.heap.allocate(size)
    }

    /// Allocates a block that never moves. See [`Heap::allocate_fixed`].
    ///
    /// # Errors
    ///
    /// `NoSpace`; nothing has changed then.
    pub fn allocate_fixed(&self, size: u64) -> Result<u64> {
        self.heap.allocate_fixed(size)
    }

    /// Allocates a block of exactly `size` bytes. See [`Heap::allocate_exact`].
    ///
    /// # Errors
    ///
    /// `NoSpace`; nothing has changed then.
    pub fn allocate_exact(&self, size: u64) -> Result<u64> {
        self.heap.allocate_exact(size)
    }

    /// Frees a block whose offset was never stored in anything reachable.
    pub fn free_unpublished(&self, offset: u64) {
        self.heap.free(offset);
    }

    /// Frees a block when no thread can access it any more.
    ///
    /// The block must have been unlinked durably, and the guard that protected the unlinking
    /// (`guard`) must still be alive: the sweep relies on that order. `bytes` is the size of the
    /// block.
    pub fn retire(&self, offset: u64, bytes: u64, guard: &Guard<'_>) {
        debug_assert!(std::ptr::eq(guard.domain(), &self.epoch), "a guard of another pool");
        self.epoch.retire_with_total(offset, bytes as usize, self.medium().len());
    }

    /// Returns `true` if it is known for all space whether it is in use. After an unclean shutdown
    /// this is `false` until a [`sweep`](Pool::sweep) has completed.
    #[inline]
    pub fn is_swept(&self) -> bool {
        // Acquire: what the sweep recovered is visible to a thread that sees `true`.
        self.swept.load(Ordering::Acquire)
    }

    /// Records that an allocated block is no longer reachable, so that the next open sweeps, even
    /// after a clean shutdown.
    pub fn require_sweep(&self) {
        // Relaxed: closing is ordered after this call by other means.
        self.unreachable.store(true, Ordering::Relaxed);
    }

    /// Finds out which old blocks are in use, and makes the others available.
    ///
    /// `visit` must call its argument with every block that is reachable throughout. Mutations may
    /// continue during the sweep, with short guards. The calling thread must not [hold a
    /// guard](Domain::is_pinned). If `visit` fails, old space stays unavailable, which is safe.
    ///
    /// # Errors
    ///
    /// The error of `visit`; `Io` if the thread cannot wait for guards.
    pub fn sweep(&self, visit: impl FnOnce(&mut dyn FnMut(u64)) -> Result<()>) -> Result<()> {
        visit(&mut |offset| self.heap.mark(offset))?;
        // A block that was unlinked before the marking reached it may not be retired yet, or is in
        // the list of retired blocks. In both cases it must become a deferred free of the heap
        // before the old extents open.
        self.epoch.try_drain()?;
        self.heap.finish_sweep();
        self.swept.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns the size in bytes of the block at `offset`, if it was allocated before an unclean
    /// shutdown and the [sweep](Pool::sweep) has not completed. So a sweep can learn the size of a
    /// block, and that it is not a new one, without reading it. Returns `Some(0)` if there is no
    /// block at `offset`, because of damage.
    pub fn old_block_size(&self, offset: u64) -> Option<u64> {
        self.heap.closed_block_size(offset)
    }

    /// Returns the size in bytes of the block at `offset`, allocated or not, or `None` if there is
    /// no block as far as the heap knows.
    pub fn block_size_at(&self, offset: u64) -> Option<u64> {
        self.heap.block_size_at(offset).filter(|&bytes| bytes > 0)
    }

    /// Returns the ranges of the extents with fixed blocks that were allocated before an unclean
    /// shutdown, in the order of their offsets, as long as the [sweep](Pool::sweep) has not
    /// completed. A sweep reads these and nothing else.
    pub fn old_fixed_extents(&self) -> impl Iterator<Item = Range<u64>> {
        self.heap.closed_fixed_extents().into_iter()
    }

    /// Chooses sparse extents that can be emptied by moving their blocks. Returns `None` if fewer
    /// than `least` bytes would become free. O(extents). See [`Evacuation`].
    ///
    /// To move a block, the caller replaces it as in any other mutation, and
    /// [retires](Pool::retire) the old one.
    pub fn evacuation(&self, least: u64) -> Option<Evacuation<'_, M>> {
        self.heap.evacuation(least)
    }

    /// Returns the heap.
    pub fn heap(&self) -> &Heap<M> {
        &self.heap
    }

    /// Frees blocks that no guard protects any more, and returns free memory to the system, except
    /// for some that will soon be needed.
    pub fn trim(&self) {
        // A forked child does not know which extents are free.
        if self.region.ensure_writable().is_err() {
            return;
        }
        self.epoch.drain_within(Duration::ZERO);
        self.heap.trim(false);
    }

    /// Closes the region cleanly: all retired blocks are freed, occupancy is saved, and the region
    /// is marked clean.
    ///
    /// Mutations must have ended, and no guard may be alive.
    ///
    /// # Errors
    ///
    /// `Io` if the system could not write, or the thread cannot wait for guards; `Poisoned`,
    /// `Forked`. The region then counts as not closed.
    pub fn close(&self) -> Result<()> {
        self.region.ensure_writable()?;
        self.epoch.try_drain()?;
        // Not flushed, like the snapshot itself: the region becomes clean only when all of it is
        // durable.
        self.medium().store(&self.region.header().snapshot[0], 0);
        // If there is no room for the snapshot, the sweep has not completed, or blocks are
        // unreachable, the next open sweeps.
        if self.is_swept() && !self.unreachable.load(Ordering::Relaxed) {
            match self.heap.save_snapshot() {
                Err(error) if !error.is_no_space() => return Err(error),
                _ => {}
            }
        }
        // The next open allocates the space of free extents again before they are used.
        self.heap.trim(true);
        self.region.close()
    }

    /// Returns how much space is in use.
    pub fn heap_stats(&self) -> HeapStats {
        self.heap.stats()
    }

    /// Returns the actual size in bytes of a block for `size` bytes.
    pub fn block_size(&self, size: u64) -> u64 {
        self.heap.block_size(size)
    }

    /// Returns every allocated block in ascending order, for checks. There must be no concurrent
    /// changes.
    pub fn allocated(&self) -> Vec<u64> {
        self.heap.allocated()
    }

    /// Returns the state of the epoch domain.
    pub fn epoch_stats(&self) -> EpochStats {
        self.epoch.stats()
    }
}
