//! Which block sizes are in demand, and when space has to be made.
//!
//! A caller that makes space has to know for which sizes: a free block serves blocks of its own
//! size only, a free unit all of them. So for each size the heap counts the bytes of the free
//! blocks in its extents, and the bytes that threads have claimed. And it calls its owner when more
//! than an agreed number of bytes was claimed, so that space is made before it is short.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU64};

use super::Heap;
use crate::medium::Medium;
use crate::region::BlockKind;

/// The use of one block size for movable blocks.
#[derive(Default)]
struct ClassUse {
    /// Bytes of blocks that are neither allocated nor claimed, in open extents.
    free: AtomicI64,
    /// Bytes that were claimed since the heap was opened.
    claimed: AtomicU64,
}

/// The demand for space in one heap.
pub(super) struct Demand {
    classes: Box<[ClassUse]>,
    /// Bytes that were taken for large objects and for extents of fixed blocks since the heap was
    /// opened.
    other: AtomicU64,
    /// Bytes that may be claimed until the owner is called.
    budget: AtomicI64,
    /// The owner.
    call: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// The use of one block size: see [`Heap::demands`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeDemand {
    /// The size of the blocks, in bytes; 0 for everything that takes whole units.
    pub block_size: u64,
    /// Bytes of free blocks in extents of that size.
    pub free: u64,
    /// Bytes that were claimed since the heap was opened.
    pub claimed: u64,
}

impl Demand {
    pub(super) fn new(classes: usize) -> Self {
        Demand {
            classes: (0..classes).map(|_| ClassUse::default()).collect(),
            other: AtomicU64::new(0),
            budget: AtomicI64::new(i64::MAX),
            call: OnceLock::new(),
        }
    }

    /// Subtracts claimed bytes from the budget. Calls the owner when it is used up.
    fn spend(&self, bytes: u64) {
        // Relaxed, as all counts here: nothing else depends on their order.
        if self.budget.load(Relaxed) == i64::MAX {
            return;
        }
        let bytes = bytes as i64;
        let before = self.budget.fetch_sub(bytes, Relaxed);
        if before > 0
            && before <= bytes
            && let Some(call) = self.call.get()
        {
            call();
        }
    }
}

impl<M: Medium> Heap<M> {
    /// Sets what is called when the [budget](Heap::set_budget) is used up. It is called while locks
    /// of the heap are held, so it must not use the heap, and must not wait. Only the first call of
    /// this function has an effect.
    pub fn on_budget_spent(&self, call: Box<dyn Fn() + Send + Sync>) {
        let _ = self.demand.call.set(call);
    }

    /// Sets the number of bytes that may be claimed until the function of
    /// [`on_budget_spent`](Heap::on_budget_spent) is called, once. `None`: it is not called.
    pub fn set_budget(&self, bytes: Option<u64>) {
        let bytes = bytes.map_or(i64::MAX, |bytes| bytes.min(i64::MAX as u64 - 1) as i64);
        self.demand.budget.store(bytes, Relaxed);
    }

    /// Returns `true` if the [budget](Heap::set_budget) is used up.
    pub fn is_budget_spent(&self) -> bool {
        self.demand.budget.load(Relaxed) <= 0
    }

    /// Returns the use of each size of movable blocks that has any, and at last that of everything
    /// that takes whole units. O(block sizes).
    pub fn demands(&self) -> Vec<SizeDemand> {
        let of_class = |(class, it): (usize, &ClassUse)| SizeDemand {
            block_size: self.classes.size(class),
            free: it.free.load(Relaxed).max(0) as u64,
            claimed: it.claimed.load(Relaxed),
        };
        let mut demands: Vec<_> = self.demand.classes.iter().enumerate().map(of_class).collect();
        demands.retain(|it| it.free > 0 || it.claimed > 0);
        let claimed = self.demand.other.load(Relaxed);
        demands.push(SizeDemand { block_size: 0, free: 0, claimed });
        demands
    }

    fn class_use(&self, kind: BlockKind) -> Option<&ClassUse> {
        if kind.fixed {
            return None;
        }
        self.demand.classes.get(self.classes.of(kind.size)?)
    }

    /// Counts blocks that became free in an extent, or, if negative, went with it.
    pub(super) fn count_free(&self, kind: BlockKind, blocks: i64) {
        if let Some(class) = self.class_use(kind) {
            class.free.fetch_add(blocks * kind.size as i64, Relaxed);
        }
    }

    /// Counts free blocks that a thread has claimed.
    pub(super) fn count_claimed(&self, kind: BlockKind, blocks: u32) {
        let bytes = u64::from(blocks) * kind.size;
        match self.class_use(kind) {
            Some(class) => {
                class.free.fetch_sub(bytes as i64, Relaxed);
                class.claimed.fetch_add(bytes, Relaxed);
            }
            None => {
                self.demand.other.fetch_add(bytes, Relaxed);
            }
        }
        self.demand.spend(bytes);
    }

    /// Counts a request for units of its own.
    pub(super) fn count_large(&self, units: u64) {
        let bytes = units << self.geometry.shift;
        self.demand.other.fetch_add(bytes, Relaxed);
        self.demand.spend(bytes);
    }
}
