//! The order in which locks are acquired.
//!
//! A thread that waits for a lock must hold only locks of lower [`Rank`]. So threads cannot wait
//! for each other in a circle: each of them would wait for a lock of a rank above all that it
//! holds. A lock that is only *tried* may have any rank, because nothing is waited for; from then
//! on it is held like any other.
//!
//! Builds with debug assertions check this at each lock that is acquired, and so do builds with the
//! feature `lock-ranks`, which all tests have. In other builds a rank takes neither time nor space.
//!
//! The ranks are those of the whole store, because the order is one. What is not in the table: the
//! locks of buckets, nodes and lines in the indexes, which are words of the file, are acquired
//! while their [`Key`](Rank::Key) is.

/// The ranks, from the first to be acquired to the last. A thread that holds a lock does not wait
/// for another one of the same rank, unless those have an [order](super::Mutex::lock_next)
/// themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Rank {
    /// Held while a thread sweeps, purges, compacts, checks, closes, or reclaims dropped maps. Not
    /// waited for under a guard.
    Maintenance,
    /// The hand of eviction: held by the thread that evicts. Not waited for under a guard.
    Hand,
    /// The hand of a map that evicts its own records.
    OwnHand,
    /// Held by the thread that executes deferred calls of a list. Only tried, but for a thread that
    /// waits for guards and calls to end.
    Calls,
    /// No lock, but the guards of other threads: a thread that waits until they end holds nothing
    /// from here on, because a thread with a guard may wait for it.
    Readers,
    /// Held by the thread that examines keys of a map that may have expired.
    Expiry,
    /// The table of the named maps: held while one is opened, created, dropped or listed.
    Maps,
    /// Held by the thread that fills the persistent order of a map.
    Filling,
    /// A walk through an index that several threads share.
    Walk,
    /// Held by the batch that runs, and by a mutation that waits for it.
    Batch,
    /// Held while records of a map are flushed.
    Flush,
    /// The order of the changes of some keys of a map that is watched: held while one is made and
    /// reported.
    Watched,
    /// No lock of ordinary memory, but that of the bucket of a key, while its record is chosen.
    Key,
    /// Held by the thread that applies notices of a shard to the ordered index.
    Notices,
    /// Held by the thread that makes an index grow or shrink.
    Resize,
    /// A part of an index through which walks go in turn.
    Part,
    /// Held by the thread that recovers a segment, or a group of buckets, of an index.
    Recovery,
    /// The latch of a directory: shared by those that use it, exclusive while it is replaced.
    Directory,
    /// The words in which an index notes what an interrupted change is to be completed with.
    Redo,
    /// The keys of a P-BwTree that are being changed.
    TreeKey,
    /// The free ids of a P-BwTree.
    TreeIds,
    /// A shard of a map in ordinary memory.
    Shard,
    /// The notices of a shard that wait to be applied.
    Queue,
    /// The keys that a clean shutdown has saved.
    Saved,
    /// The upper limit in the file of the bytes that the records of a map take.
    Bound,
    /// The limit in the file of the CAS ids.
    CasLimit,
    /// Values that are written piece by piece.
    Partial,
    /// Blocks, or calls, that wait for the end of a grace period.
    Retired,
    /// Held by the thread that advances the epoch.
    Epoch,
    /// The limits of a cache: asked for, and in effect.
    Limits,
    /// The memory of a B+tree in ordinary memory.
    Arena,
    /// The magazines of the heap that some threads allocate from.
    Magazine,
    /// What is known about one extent. Of several, the one that begins first is locked first.
    Extent,
    /// What all threads that allocate share: units that are free, extents with free blocks.
    Heap,
    /// The version of the format in the superblock.
    Format,
    /// Held by the thread that appends to a redo log.
    Log,
    /// Held by the thread that makes a checkpoint of a redo log.
    Checkpoint,
    /// Held by the thread that creates, renames or removes segments of a redo log.
    Segments,
    /// The length of a mapped file.
    File,
    /// Locks under which nothing else is acquired, and that are held for a few instructions.
    Leaf,
}

#[cfg(any(debug_assertions, feature = "lock-ranks"))]
mod checked {
    use std::cell::Cell;

    use super::Rank;

    thread_local! {
        /// A bit for each rank of which the thread holds a lock.
        static HELD: Cell<u64> = const { Cell::new(0) };
    }

    const _: () = assert!((Rank::Leaf as u32) < u64::BITS);

    impl Rank {
        /// Every rank.
        const ALL: [Rank; Rank::Leaf as usize + 1] = [
            Rank::Maintenance,
            Rank::Hand,
            Rank::OwnHand,
            Rank::Calls,
            Rank::Readers,
            Rank::Expiry,
            Rank::Maps,
            Rank::Filling,
            Rank::Walk,
            Rank::Batch,
            Rank::Flush,
            Rank::Watched,
            Rank::Key,
            Rank::Notices,
            Rank::Resize,
            Rank::Part,
            Rank::Recovery,
            Rank::Directory,
            Rank::Redo,
            Rank::TreeKey,
            Rank::TreeIds,
            Rank::Shard,
            Rank::Queue,
            Rank::Saved,
            Rank::Bound,
            Rank::CasLimit,
            Rank::Partial,
            Rank::Retired,
            Rank::Epoch,
            Rank::Limits,
            Rank::Arena,
            Rank::Magazine,
            Rank::Extent,
            Rank::Heap,
            Rank::Format,
            Rank::Log,
            Rank::Checkpoint,
            Rank::Segments,
            Rank::File,
            Rank::Leaf,
        ];

        fn bit(self) -> u64 {
            1 << self as u8
        }
    }

    /// The rank of a lock, if it has one.
    #[derive(Clone, Copy, Debug)]
    pub(in crate::sync) struct OfLock(Option<Rank>);

    impl OfLock {
        pub(in crate::sync) const NONE: Self = OfLock(None);

        pub(in crate::sync) const fn new(rank: Rank) -> Self {
            OfLock(Some(rank))
        }
    }

    /// Lives while a thread holds a lock of some rank.
    #[derive(Debug)]
    pub(in crate::sync) struct Held {
        /// Zero if the thread held another lock of the same rank before.
        bit: u64,
    }

    impl Held {
        pub(in crate::sync) fn new(lock: OfLock) -> Self {
            let (before, bit) = (HELD.get(), lock.0.map_or(0, Rank::bit));
            HELD.set(before | bit);
            Held { bit: bit & !before }
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            HELD.set(HELD.get() & !self.bit);
        }
    }

    /// Checks that the calling thread may wait for a lock.
    #[inline]
    pub(in crate::sync) fn expect_order(lock: OfLock) {
        expect(lock, |bit| bit - 1);
    }

    /// Checks that the calling thread may wait for a lock, although it may hold others of its rank.
    #[inline]
    pub(in crate::sync) fn expect_order_or_same(lock: OfLock) {
        expect(lock, |bit| bit | (bit - 1));
    }

    /// Checks that the calling thread, which holds a lock and is about to wait for a signal under
    /// it, holds no other.
    pub(in crate::sync) fn expect_alone(lock: OfLock) {
        expect(lock, |bit| bit);
    }

    /// Checks that the calling thread may wait until guards of other threads end.
    pub(crate) fn expect_to_wait_for_readers() {
        expect_order(OfLock::new(Rank::Readers));
    }

    /// Checks that the calling thread holds only locks that `allowed` returns for the bit of the
    /// one that it waits for.
    fn expect(lock: OfLock, allowed: impl FnOnce(u64) -> u64) {
        if let Some(awaited) = lock.0 {
            let held = HELD.get() & !allowed(awaited.bit());
            if held != 0 {
                out_of_order(awaited, held);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn out_of_order(awaited: Rank, held: u64) {
        // What is being unwound has been reported.
        if std::thread::panicking() {
            return;
        }
        let names = Rank::ALL.iter().filter(|rank| rank.bit() & held != 0);
        let names: Vec<_> = names.map(|rank| format!("{rank:?}")).collect();
        panic!(
            "a thread waits for {awaited:?} while it holds {}: the order is in `Rank`",
            names.join(" and ")
        );
    }
}

#[cfg(not(any(debug_assertions, feature = "lock-ranks")))]
mod checked {
    use super::Rank;

    /// The rank of a lock, which is not needed.
    #[derive(Clone, Copy, Debug)]
    pub(in crate::sync) struct OfLock;

    impl OfLock {
        pub(in crate::sync) const NONE: Self = OfLock;

        pub(in crate::sync) const fn new(_: Rank) -> Self {
            OfLock
        }
    }

    /// Lives while a thread holds a lock.
    #[derive(Debug)]
    pub(in crate::sync) struct Held;

    impl Held {
        #[inline(always)]
        pub(in crate::sync) fn new(_: OfLock) -> Self {
            Held
        }
    }

    #[inline(always)]
    pub(in crate::sync) fn expect_order(_: OfLock) {}

    #[inline(always)]
    pub(in crate::sync) fn expect_order_or_same(_: OfLock) {}

    #[inline(always)]
    pub(in crate::sync) fn expect_alone(_: OfLock) {}

    #[inline(always)]
    pub(crate) fn expect_to_wait_for_readers() {}
}

pub(crate) use checked::expect_to_wait_for_readers;
pub(super) use checked::{Held, OfLock, expect_alone, expect_order, expect_order_or_same};

/// A lock that is none of ordinary memory, such as that of a bucket, as long as this lives: see
/// [`Rank`].
#[derive(Debug)]
pub struct HeldRank(
    #[allow(dead_code)] // for its drop
    Held,
    /// It stays on its thread, like a guard of a lock.
    std::marker::PhantomData<*const ()>,
);

impl HeldRank {
    /// Notes that the calling thread waits for a lock of this rank, and then holds it.
    #[inline(always)]
    pub fn acquire(rank: Rank) -> Self {
        let lock = OfLock::new(rank);
        expect_order(lock);
        HeldRank(Held::new(lock), std::marker::PhantomData)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{Condvar, Mutex, RwLock};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    /// Returns what the panic of `call` says, or `None` if it returns.
    fn complaint(call: impl FnOnce()) -> Option<String> {
        let panic = catch_unwind(AssertUnwindSafe(call)).err()?;
        Some(*panic.downcast::<String>().expect("a message with arguments"))
    }

    #[test]
    fn locks_are_acquired_in_the_order_of_their_ranks() {
        let (first, second) = (Mutex::ranked(Rank::Maps, ()), RwLock::ranked(Rank::Heap, ()));
        let leaf = Mutex::ranked(Rank::Leaf, ());
        let in_order = || {
            let _first = first.lock().unwrap();
            let _second = second.write().unwrap();
            let _leaf = leaf.lock().unwrap();
        };
        in_order();
        let held = second.read().unwrap();
        let said = complaint(|| drop(first.lock())).unwrap();
        assert!(said.contains("waits for Maps while it holds Heap"), "{said}");
        // A lock that is tried is not waited for.
        let tried = first.try_lock().unwrap();
        assert!(complaint(|| drop(second.read())).is_some(), "it is held already");
        drop(held);
        // What was tried counts as held, whatever the order of their ends.
        assert!(complaint(|| drop(Mutex::ranked(Rank::Expiry, ()).lock())).is_some());
        // A lock without a rank may be acquired anywhere.
        drop(Mutex::new(()).lock());
        drop(tried);
        in_order();
    }

    #[test]
    fn a_second_lock_of_a_rank_is_not_waited_for() {
        let [one, other] = [(); 2].map(|()| Mutex::ranked(Rank::Leaf, ()));
        let held = one.lock().unwrap();
        assert!(complaint(|| drop(other.lock())).is_some());
        drop(other.try_lock().unwrap());
        assert!(complaint(|| drop(other.lock())).is_some(), "the first is still held");
        drop(held);
        drop(other.lock().unwrap());
    }

    #[test]
    fn signals_and_readers_are_waited_for_without_other_locks() {
        let (outer, inner) = (Mutex::ranked(Rank::Maps, ()), Mutex::ranked(Rank::Leaf, ()));
        let signal = Condvar::new();
        let wait = || drop(signal.wait_timeout(inner.lock().unwrap(), Duration::ZERO));
        wait();
        let held = outer.lock().unwrap();
        assert!(complaint(wait).is_some());
        let domain = crate::Domain::new(Box::new(|_| {}));
        assert!(complaint(|| domain.drain()).is_some(), "a reader may wait for the table");
        drop(held);
        domain.drain();
        let key = HeldRank::acquire(Rank::Key);
        assert!(complaint(|| drop(outer.lock())).is_some());
        drop(key);
        drop(outer.lock());
    }
}
