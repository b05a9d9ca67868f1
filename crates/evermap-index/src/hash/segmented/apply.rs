//! Making a change, for indexes in which a record is protected by the lock of its *home bucket*:
//! the bucket that its hash selects, even if the record is stored elsewhere.
//!
//! Each index implements the common cases, which concern only the home bucket, itself, and they are
//! compiled into each kind of change. [`apply_slow`] handles all other cases.

use evermap_pm::{Error, Guard, Medium, PmU64, Result};

use super::Segmented;
use super::chain::{CHAIN_MAX, Chain};
use super::map::{SegmentMap, Split};
use super::waiting::Waiting;
use crate::index::{Action, Change, MutateMode};

/// A change: its key, its mode and the caller's guard.
pub struct Operation<'a, P> {
    /// The key.
    pub probe: &'a P,
    /// Whether the key may be added.
    pub mode: MutateMode,
    /// The caller's guard.
    pub guard: &'a Guard<'a>,
}

impl<P> Clone for Operation<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Operation<'_, P> {}

/// A bucket that the calling thread has locked.
pub trait HeldBucket {
    /// Releases the bucket, which was not changed.
    fn release<M: Medium>(self, m: &M);

    /// Releases the bucket after a change, so that concurrent readers notice the change.
    fn release_changed<M: Medium>(self, m: &M);
}

/// Locks that are held in addition to that of the home bucket.
pub trait OtherLocks: Default {
    /// Releases the locks. If `changed`, concurrent readers notice a change.
    fn release<M: Medium>(self, m: &M, changed: bool);
}

/// The locked home bucket of a key, and the segment that contains it.
pub struct Home<'a, T: BucketLocked + 'a> {
    /// The segment.
    pub segment: &'a T::Segment,
    /// The locked bucket.
    pub held: T::Held<'a>,
}

/// The outcome of an attempt to lock a home bucket.
pub enum LockingHome<'a, T: BucketLocked + 'a> {
    /// The home bucket is locked.
    Held(Home<'a, T>),
    /// The index changed meanwhile: the caller tries again.
    Moved,
    /// Another thread holds the lock, in this segment.
    Busy(&'a T::Segment),
    /// The segment at this offset was not recovered since the region was opened.
    Stale(u64),
}

/// The outcome of the search for a free slot.
pub enum FreeSlot<S, L> {
    /// This slot is free, and protected by these locks besides the home bucket's.
    Free(S, L),
    /// Another bucket is locked: the caller releases all locks and tries again.
    Busy,
    /// No slot is free: the segment must be split, or its chain used.
    Full,
}

/// A change that was stored, and is to be made durable together with others.
pub struct Staged<'a, T: BucketLocked + 'a> {
    /// The change.
    pub change: Change,
    /// The locks that must be held until it is durable, besides that of the home bucket.
    pub locks: T::Locks<'a>,
    /// Words in the lines that must be flushed.
    pub unflushed: [Option<&'a PmU64>; 2],
}

impl<'a, T: BucketLocked> Staged<'a, T> {
    /// Returns the outcome if nothing was stored.
    pub fn unchanged(old: Option<u64>) -> Self {
        let change = Change { old, new: old };
        Staged { change, locks: T::Locks::default(), unflushed: [None; 2] }
    }
}

/// An index whose changes lock the home bucket of the key.
pub trait BucketLocked: Segmented {
    /// A key with values computed from it, such as its hash.
    type Probe<'k>;
    /// A locked bucket.
    type Held<'a>: HeldBucket
    where
        Self: 'a;
    /// The location of a slot, in a bucket or in a chain.
    type Spot<'a>
    where
        Self: 'a;
    /// Locks in addition to that of the home bucket.
    type Locks<'a>: OtherLocks
    where
        Self: 'a;

    /// Returns the rank of a key's hash.
    fn rank(probe: &Self::Probe<'_>) -> u64;

    /// Tries to lock the home bucket of a key, in the segment that serves the key; if `at_holder`,
    /// in the segment that holds the key's records, which can be another one while a split is
    /// unfinished.
    ///
    /// # Errors
    /// `Damaged` if the index leads to no segment.
    fn try_lock_home(
        &self,
        probe: &Self::Probe<'_>,
        mode: MutateMode,
        at_holder: bool,
    ) -> Result<LockingHome<'_, Self>>;

    /// Makes a change that concerns only the locked home bucket; calls [`apply_slow`] for all
    /// others.
    ///
    /// # Errors
    /// As [`apply`].
    fn apply_at_home<'a>(
        &'a self,
        home: Home<'a, Self>,
        operation: Operation<'_, Self::Probe<'_>>,
        decide: &mut impl FnMut(Option<u64>) -> Action,
    ) -> Result<Change>;

    /// Prefetches what a change of this key reads first.
    fn prefetch_for_change(&self, probe: &Self::Probe<'_>, mode: MutateMode);

    /// Stores the change that `decide` chooses for a key whose home bucket is locked, without
    /// flushing it: until it is durable, no lock may be released. Returns `None` without having
    /// called `decide` if that takes more than the home bucket and one other one that is not
    /// locked; nothing has changed then.
    fn stage<'a>(
        &'a self,
        home: &mut Home<'a, Self>,
        operation: Operation<'_, Self::Probe<'_>>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Option<Staged<'a, Self>>;

    /// Finds the record of a key whose home bucket is locked, and its word.
    fn find_held<'a>(
        &'a self,
        home: &Home<'a, Self>,
        probe: &Self::Probe<'_>,
    ) -> Option<(Self::Spot<'a>, u64)>;

    /// Takes the locks that are needed, besides that of the home bucket, to remove a record.
    /// Returns `None` if another thread holds one of them.
    ///
    /// # Errors
    /// `Poisoned`, `Damaged`.
    fn lock_for_removal<'a>(
        &'a self,
        home: &Home<'a, Self>,
        probe: &Self::Probe<'_>,
        spot: &Self::Spot<'a>,
    ) -> Result<Option<Self::Locks<'a>>>;

    /// Replaces the word of a record, durably. It is a single store, so it is atomic.
    fn overwrite(&self, spot: &Self::Spot<'_>, word: u64);

    /// Removes a record, durably, under the locks of
    /// [`lock_for_removal`](Self::lock_for_removal).
    fn remove(
        &self,
        home: &mut Home<'_, Self>,
        spot: &Self::Spot<'_>,
        operation: Operation<'_, Self::Probe<'_>>,
    );

    /// Returns whether a removal left the home bucket empty, in which case the segment may be
    /// sparse. To save time, may return `false` without checking.
    fn may_be_sparse(&self, held: &Self::Held<'_>) -> bool;

    /// Finds a free slot for a record whose home bucket is locked, moving other records if need be.
    ///
    /// # Errors
    /// `Poisoned`, `Damaged`.
    fn find_free_slot<'a>(
        &'a self,
        home: &mut Home<'a, Self>,
        probe: &Self::Probe<'_>,
        chain: &mut Chain,
    ) -> Result<FreeSlot<Self::Spot<'a>, Self::Locks<'a>>>;

    /// Stores a record with this word in a free slot, durably. If there is no word, only completes
    /// the changes that [`find_free_slot`](Self::find_free_slot) has begun.
    fn fill(
        &self,
        home: &mut Home<'_, Self>,
        spot: &Self::Spot<'_>,
        locks: &Self::Locks<'_>,
        probe: &Self::Probe<'_>,
        word: Option<u64>,
    );

    /// Allocates a block for a chain.
    ///
    /// # Errors
    /// `NoSpace`.
    fn allocate_link(&self) -> Result<u64>;
}

/// Makes the change that `decide` chooses for a key. Implements
/// [`Index::mutate`](crate::Index::mutate).
///
/// # Errors
/// `NoSpace`; nothing has changed then. `Poisoned`, `Forked`, `Damaged`.
#[inline(always)]
pub fn apply<T: BucketLocked>(
    index: &T,
    probe: &T::Probe<'_>,
    mode: MutateMode,
    guard: &Guard<'_>,
    mut decide: impl FnMut(Option<u64>) -> Action,
) -> Result<Change> {
    let poison = index.core().begin_change(guard)?;
    let operation = Operation { probe, mode, guard };
    let change = match index.try_lock_home(probe, mode, false) {
        Ok(LockingHome::Held(home)) => index.apply_at_home(home, operation, &mut decide),
        Ok(_) => apply_slow(index, None, operation, &mut decide),
        Err(error) => Err(error),
    };
    poison.disarm();
    change
}

/// Makes the change that `decide` chooses for a record that was found, and releases all locks.
#[inline(always)]
pub fn apply_to<'a, T: BucketLocked>(
    index: &'a T,
    (spot, word): (&T::Spot<'a>, u64),
    locks: T::Locks<'a>,
    mut home: Home<'a, T>,
    operation: Operation<'_, T::Probe<'_>>,
    decide: &mut (impl FnMut(Option<u64>) -> Action + ?Sized),
) -> Result<Change> {
    let m = index.core().medium();
    let old = Some(word);
    match decide(old) {
        Action::Keep => {
            locks.release(m, false);
            home.held.release(m);
            Ok(Change { old, new: old })
        }
        Action::Put(word) => {
            index.overwrite(spot, word);
            locks.release(m, true);
            home.held.release_changed(m);
            Ok(Change { old, new: Some(word) })
        }
        Action::Remove => {
            index.remove(&mut home, spot, operation);
            let emptied = index.may_be_sparse(&home.held);
            locks.release(m, true);
            home.held.release_changed(m);
            if emptied {
                T::Map::emptied(index, home.segment, T::rank(operation.probe), operation.guard)?;
            }
            Ok(Change { old, new: None })
        }
    }
}

/// Makes the change that `decide` chooses for a key, in all cases. `home` is the home bucket if it
/// is locked already, and `true` if the key is known to be absent.
///
/// # Errors
/// As [`apply`].
#[inline(never)]
pub fn apply_slow<'a, T: BucketLocked>(
    index: &'a T,
    home: Option<(Home<'a, T>, bool)>,
    operation: Operation<'_, T::Probe<'_>>,
    decide: &mut dyn FnMut(Option<u64>) -> Action,
) -> Result<Change> {
    let mut chain = T::Map::CHAIN;
    let change = retry(index, home, operation, &mut chain, decide);
    match chain {
        Chain::Lengthen(unused) => index.core().pool.free_unpublished(unused),
        Chain::Lengthened => T::Map::lengthened(index, T::rank(operation.probe))?,
        Chain::Avoid | Chain::Fill => {}
    }
    change
}

/// Tries a change until it succeeds or fails.
fn retry<'a, T: BucketLocked>(
    index: &'a T,
    mut locked: Option<(Home<'a, T>, bool)>,
    operation: Operation<'_, T::Probe<'_>>,
    chain: &mut Chain,
    decide: &mut dyn FnMut(Option<u64>) -> Action,
) -> Result<Change> {
    let (m, probe) = (index.core().medium(), operation.probe);
    let mut waiting = Waiting::default();
    let mut at_holder = false;
    loop {
        let (mut home, absent) = match locked.take() {
            Some(locked) => locked,
            None => match index.try_lock_home(probe, operation.mode, at_holder)? {
                LockingHome::Held(home) => (home, false),
                LockingHome::Moved => continue,
                LockingHome::Busy(segment) => {
                    waiting.wait(index, segment)?;
                    continue;
                }
                LockingHome::Stale(stale) => {
                    at_holder = make_usable(index, stale, at_holder, operation, &mut waiting)?;
                    continue;
                }
            },
        };
        let segment = home.segment;
        if !absent && let Some((spot, word)) = index.find_held(&home, probe) {
            match index.lock_for_removal(&home, probe, &spot) {
                Ok(Some(locks)) => {
                    return apply_to(index, (&spot, word), locks, home, operation, decide);
                }
                // A thread that holds a lock never waits for another one, so that there is no
                // deadlock: it releases its lock and begins again.
                Ok(None) => {
                    home.held.release(m);
                    waiting.wait(index, segment)?;
                    continue;
                }
                Err(error) => {
                    home.held.release(m);
                    return Err(error);
                }
            }
        }
        if operation.mode == MutateMode::ExistingOnly {
            home.held.release(m);
            return Ok(Change::default());
        }
        match index.find_free_slot(&mut home, probe, chain) {
            Ok(FreeSlot::Free(spot, locks)) => {
                let new = match decide(None) {
                    Action::Put(word) => Some(word),
                    Action::Keep | Action::Remove => None,
                };
                index.fill(&mut home, &spot, &locks, probe, new);
                // Released as changed even if nothing was inserted: making room may have moved a
                // record.
                locks.release(m, true);
                home.held.release_changed(m);
                return Ok(Change { old: None, new });
            }
            Ok(FreeSlot::Busy) => {
                home.held.release(m);
                waiting.wait(index, segment)?;
            }
            Ok(FreeSlot::Full) => {
                home.held.release(m);
                extend(index, segment, operation, chain)?;
            }
            Err(error) => {
                home.held.release(m);
                return Err(error);
            }
        }
    }
}

/// Makes the stale segment at `offset` usable for changes. Returns whether the next attempt must
/// lock the home bucket in the segment that holds the records.
fn make_usable<T: BucketLocked>(
    index: &T,
    offset: u64,
    at_holder: bool,
    operation: Operation<'_, T::Probe<'_>>,
    waiting: &mut Waiting,
) -> Result<bool> {
    if at_holder {
        waiting.recover(index, offset)?;
        return Ok(true);
    }
    waiting.count_recovery(offset)?;
    Ok(!T::Map::prepare(index, offset, T::rank(operation.probe), operation.guard)?)
}

/// Splits a full segment, or determines how the next attempt may use its chain.
///
/// # Errors
/// `NoSpace`; nothing has changed then.
#[cold]
fn extend<T: BucketLocked>(
    index: &T,
    segment: &T::Segment,
    operation: Operation<'_, T::Probe<'_>>,
    chain: &mut Chain,
) -> Result<()> {
    let (m, refusals) = (index.core().medium(), &index.core().refusals);
    let (offset, rank) = (m.offset_of(segment), T::rank(operation.probe));
    let splits = T::Map::CHAIN == Chain::Avoid;
    match *chain {
        Chain::Avoid if refusals.contain(offset, rank) => {
            *chain = Chain::Fill;
            return Ok(());
        }
        Chain::Fill if splits && !refusals.is_attempt_due(offset) => {
            *chain = Chain::Lengthen(index.allocate_link()?);
            return Ok(());
        }
        _ => {}
    }
    match (T::Map::split(index, segment, rank, operation.guard)?, &chain) {
        (Split::Done, Chain::Lengthen(_)) => {}
        (Split::Done, _) => *chain = T::Map::CHAIN,
        (_, Chain::Lengthen(_)) => return Err(chain_too_long::<T>()),
        (refused, _) => {
            if splits {
                let blocks = index.chain_blocks(segment).len();
                let like = (refused == Split::Inseparable).then_some(rank);
                // As many blocks of a chain hold as many records as a segment without one.
                let segment = T::SLOTS.div_ceil(T::LINK.0);
                refusals.remember(offset, (segment + blocks) / 2, like);
            }
            *chain = Chain::Lengthen(index.allocate_link()?);
        }
    }
    Ok(())
}

/// Returns the error for a chain that has reached its greatest length.
#[cold]
fn chain_too_long<T: BucketLocked>() -> Error {
    let longest = format!("a chain of {CHAIN_MAX} blocks for keys with equal hashes");
    Error::no_space(longest, size_of::<T::Segment>() as u64)
}
