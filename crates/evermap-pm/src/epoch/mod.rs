//! Grace periods: a block is reused only when no thread can still access it.
//!
//! A reader holds a [`Guard`] while it uses what it found. A *grace period* is over when every
//! guard that existed at its start has been dropped. There are four ways to use one:
//!
//! * A block that was unlinked is [retired](Domain::retire), and passed to the domain's reclaimer
//!   after a grace period.
//! * Any other function is [deferred](Domain::defer) until a grace period is over.
//! * [`Domain::synchronize`] waits for a grace period. It is the tool of an algorithm that changes
//!   a structure in steps of which no reader may see a later one without an earlier one.
//! * [`Domain::start`] and [`Domain::is_over`] do the same without waiting, for an event loop.
//!
//! This is epoch-based reclamation after Fraser (2004): a guard announces the global epoch that it
//! saw; the epoch advances only when every announced guard has seen the current one; a block that
//! was retired in epoch `e` is unreachable for all threads in epoch `e + 2`. So a grace period that
//! begins in epoch `e` is over in epoch `e + 2`, and all that begin in one epoch are the same:
//! threads that wait at the same time share the work.
//!
//! # Readers
//!
//! A guard occupies a slot of a table. Each of the first 256 threads has a slot of its own, so that
//! a guard costs two ordinary stores. Guards of other threads, and nested guards, use shared slots.
//! More of those are created as they are needed, and all are reused, so a guard never has to wait
//! for a slot. A guard is dropped on the thread that created it, so a thread can tell whether it
//! holds one.
//!
//! A thread that comes back to one place again and again can be a [`Reader`] instead. That is a
//! guard that it renews there: between two *quiescent states* it reads without any store. While it
//! sleeps, it is *offline*. Both kinds of readers can be mixed in a domain and in a thread.
//!
//! # Bounds
//!
//! The memory that waits for readers is bounded if the owner of the domain [sets a
//! limit](Domain::set_backlog_limit): beyond the limit the domain is [backed
//! up](Domain::is_backed_up), and mutations wait, or fail with the name of the [thread](Holder)
//! that they wait for. That thread is also [reported](Domain::report_stalls) by others that wait.
//!
//! # Fences
//!
//! An announcement must be visible before the loads that it protects. Instead of a fence in every
//! guard there is one *process-wide* fence ([`membarrier`]) whenever the epoch advances, which is
//! once in hundreds of retirements, because it interrupts every processor that runs a thread of
//! this process. If the system has no such fence, or a filter of system calls forbids it, all slots
//! are shared, and guards execute a fence themselves. If it is forbidden only later, no grace
//! period ends any more, which is an [error](WaitError::FenceRefused).
//!
//! # Crashes and forks
//!
//! The list of retired blocks is volatile: after a crash, reachability alone decides which blocks
//! are free.
//!
//! In a forked child a domain works if no thread but the forking one had a guard or was changing
//! the domain when the process forked. So a server can fork to run in the background. Otherwise no
//! grace period ends in the child, which is an [error](WaitError::Forked): it can read, and waits
//! for nothing.
//!
//! [`membarrier`]: https://man7.org/linux/man-pages/man2/membarrier.2.html

use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, compiler_fence, fence};
use std::time::{Duration, Instant};

use crate::fork::process_number;
use crate::sync::{Backoff, Mutex, MutexGuard, Rank, expect_to_wait_for_readers};

mod deferred;
mod fences;
mod grace;
mod quiescent;
mod report;
mod retired;
mod slots;
#[cfg(test)]
mod tests;
mod threads;

use deferred::CallList;
pub(crate) use fences::{fence_all_threads, register_process_fence};
use report::{Stalls, lag};
use retired::{Retired, RetiredList, Shard};
use slots::{EPOCH_BITS, EPOCHS, GuardSlot, IDLE, SharedSlots, schedule_point, slots};
use threads::{
    ORDINAL, ORDINALS, OWN_SLOTS, lives_here, number_lives_here, thread_id, watch_forks,
};

pub use grace::{GracePeriod, WaitError};
pub use quiescent::Reader;
pub use report::{Backlog, Holder, Stall};
pub use threads::thread_ordinal;
#[cfg(any(test, feature = "sim"))]
pub(crate) use threads::with_ordinal;

/// Number of lists of retired blocks, so that threads seldom share one.
const SHARDS: usize = 16;

/// Tries to reclaim after this many newly retired bytes in one list: a thousandth of all bytes,
/// within these bounds.
const COLLECT_AT: RangeInclusive<u64> = 64 << 10..=256 << 10;

const COLLECT_PART: u64 = 1024;

/// Minimum number of bytes that a block counts for.
const SMALL: usize = 256;

/// The domain is backed up when one part in this many of all bytes waits, if that is more than the
/// limit.
const BACKLOG_PART: u64 = 4;

/// The function that a domain calls with a token whose grace period is over. It must not use the
/// domain.
pub type Reclaimer = Box<dyn Fn(u64) + Send + Sync>;

/// A set of guards, and of retired blocks and deferred calls that wait for them. A store has one.
pub struct Domain {
    global: AtomicU64,
    /// One per thread, by its number. Empty if guards have to execute fences themselves.
    own: Box<[GuardSlot]>,
    /// Whether more bytes wait than the limit allows.
    backed_up: AtomicBool,
    shared: SharedSlots,
    shards: Box<[Shard]>,
    calls: Box<[CallList]>,
    reclaim: Reclaimer,
    /// The configured limit of waiting bytes, and the current one.
    backlog_limit: AtomicU64,
    limit: AtomicU64,
    began: Instant,
    /// When the epoch last advanced, in nanoseconds since the domain was created. A guard that lags
    /// behind is older.
    advanced: AtomicU64,
    /// Held by the thread that advances the epoch.
    advancing: Mutex<()>,
    /// How often all threads were made to execute a fence.
    fences: AtomicU64,
    /// Which domain this is.
    id: u64,
    /// The process that uses this domain.
    process: AtomicU64,
    /// The forked child in which no grace period ends any more.
    lost: AtomicU64,
    stalls: Stalls,
    /// The mistake that a test has planted.
    #[cfg(test)]
    mistake: Option<&'static str>,
}

/// The state of a [`Domain`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct EpochStats {
    /// The global epoch.
    pub epoch: u64,
    /// Number of guards, which includes the online readers.
    pub guards: usize,
    /// Number of online readers.
    pub online_readers: usize,
    /// Number of epochs that the oldest guard lags behind. It prevents reclamation while this is
    /// not zero.
    pub oldest_guard_lag: u64,
    /// Bytes that are retired but not reclaimed yet, and those of deferred calls.
    pub bytes_waiting: usize,
    /// How often a thread made all threads of the process execute a fence to advance the epoch, or
    /// found that guards execute fences themselves.
    pub fences: u64,
}

/// Proof that nothing that was reachable when it was created is reused while it exists.
///
/// Guards are cheap (usually two stores) and can be nested; their number is not limited. A guard
/// can be lent to other threads, but stays on the thread that created it:
///
/// ```compile_fail
/// let domain = evermap_pm::Domain::new(Box::new(|_| {}));
/// let guard = domain.pin();
/// std::thread::scope(|threads| threads.spawn(move || drop(guard)).join());
/// ```
///
/// Long-lived guards prevent the reuse of memory.
#[must_use = "a guard protects only while it lives"]
pub struct Guard<'d> {
    domain: &'d Domain,
    slot: &'d GuardSlot,
    /// Like the guard of a lock: may be shared between threads, but not moved to another one.
    not_send: PhantomData<std::sync::MutexGuard<'static, ()>>,
}

/// The result of an attempt to advance the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Advance {
    Done,
    /// A guard has not seen the current epoch.
    HeldUp,
    /// Another thread is advancing the epoch.
    Busy,
}

impl Domain {
    /// Creates a domain that passes tokens to `reclaim` after their grace period.
    pub fn new(reclaim: Reclaimer) -> Self {
        Self::with(reclaim, register_process_fence())
    }

    /// Creates a domain. `process_fence` says whether the kernel can execute fences for guards.
    fn with(reclaim: Reclaimer, process_fence: bool) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        watch_forks();
        Domain {
            global: AtomicU64::new(IDLE + 1),
            own: slots(if process_fence { OWN_SLOTS } else { 0 }),
            backed_up: AtomicBool::new(false),
            shared: SharedSlots::new(),
            shards: (0..SHARDS).map(|_| Shard::new()).collect(),
            calls: (0..SHARDS).map(|_| CallList::new()).collect(),
            reclaim,
            backlog_limit: AtomicU64::new(u64::MAX),
            limit: AtomicU64::new(u64::MAX),
            began: Instant::now(),
            advanced: AtomicU64::new(0),
            advancing: Mutex::ranked(Rank::Epoch, ()),
            fences: AtomicU64::new(0),
            id: LAST.fetch_add(1, Relaxed),
            process: AtomicU64::new(process_number()),
            lost: AtomicU64::new(0),
            stalls: OnceLock::new(),
            #[cfg(test)]
            mistake: None,
        }
    }

    /// Returns `true` if the code should make the deliberate mistake `name`, which a test must
    /// detect.
    #[cfg(test)]
    fn mutant(&self, name: &'static str) -> bool {
        self.mistake == Some(name)
    }

    #[cfg(not(test))]
    #[inline(always)]
    fn mutant(&self, _name: &'static str) -> bool {
        false
    }

    /// Sets the limit beyond which the domain is [backed up](Domain::is_backed_up): when more than
    /// `bytes` bytes wait for guards, and more than a quarter of the total passed to
    /// [`retire_with_total`](Domain::retire_with_total). Without a call there is no limit.
    pub fn set_backlog_limit(&self, bytes: u64) {
        // Relaxed, here and where it is loaded: it does not matter if a thread sees a limit a
        // little later.
        self.backlog_limit.store(bytes, Relaxed);
        self.limit.store(bytes, Relaxed);
    }

    /// Creates a guard that protects everything reachable from now on. Never waits.
    #[inline(always)]
    pub fn pin(&self) -> Guard<'_> {
        // If the thread has no number yet, this value is larger than any.
        self.pin_own(ORDINAL.get()).unwrap_or_else(|| self.pin_slow())
    }

    /// Creates a guard in slot `number`, which belongs to the calling thread. Returns `None` if the
    /// slot does not exist or is busy.
    #[inline(always)]
    fn pin_own(&self, number: usize) -> Option<Guard<'_>> {
        let slot = self.own.get(number)?;
        // Only this thread makes its slot busy, so that needs no atomic exchange. It is already
        // busy under an outer guard. Acquire: a guard of this slot that was dropped on another
        // thread has ended.
        if slot.announced.load(Acquire) != IDLE {
            return None;
        }
        // Acquire: loads under the guard happen after the load of the epoch. If they happened
        // before it, a block that was unlinked in the previous epoch could be protected by an
        // announcement of this one, which is too late.
        slot.announced.store(self.global.load(Acquire), Relaxed);
        // The announcement must be visible before this thread's first load of shared words, or an
        // advancing thread could miss it while this thread still reads what it frees. The advancing
        // thread makes this thread execute a fence; the compiler must keep the order too.
        compiler_fence(SeqCst);
        Some(Guard { domain: self, slot, not_send: PhantomData })
    }

    /// Creates the first guard of a thread, a nested guard, or one of a thread that has no slot of
    /// its own.
    #[cold]
    #[inline(never)]
    fn pin_slow(&self) -> Guard<'_> {
        if let Some(guard) = self.pin_own(thread_ordinal()) {
            return guard;
        }
        self.pin_shared()
    }

    /// Creates a guard in a shared slot.
    fn pin_shared(&self) -> Guard<'_> {
        let thread = u64::from(thread_id()) << EPOCH_BITS;
        // Relaxed: an older epoch than the current one protects more, not less.
        let slot = self.shared.take(|| thread | self.global.load(Relaxed) & EPOCHS);
        schedule_point();
        // As in `pin_own`, for the case that no other thread executes a fence for this one.
        fence(SeqCst);
        Guard { domain: self, slot, not_send: PhantomData }
    }

    /// Returns the slots that may hold a guard. Slots that are not known yet when this is called
    /// hold no guard that was created before.
    fn slots(&self) -> impl Iterator<Item = &GuardSlot> {
        let own = self.own.len().min(ORDINALS.load(SeqCst));
        self.own[..own].iter().chain(self.shared.used())
    }

    /// Executes the fence that [`pin_own`](Self::pin_own) lacks, on the side of the advancing
    /// thread. Returns `false` if the kernel refuses.
    fn fence_everyone(&self) -> bool {
        if !self.own.is_empty() && !fence_all_threads() {
            return false;
        }
        fence(SeqCst);
        // Relaxed, and no atomic exchange: the caller holds the lock of the advancing thread.
        self.fences.store(self.fences.load(Relaxed) + 1, Relaxed);
        true
    }

    /// Passes `token` to the reclaimer when every guard that exists now has been dropped.
    ///
    /// Must be called after the block was unlinked durably. `bytes` counts towards the limit of
    /// waiting bytes.
    pub fn retire(&self, token: u64, bytes: usize) {
        self.retire_with_total(token, bytes, 0);
    }

    /// Retires a block, like [`retire`](Domain::retire), that is part of a total of `all` bytes. If
    /// the total is large, more bytes may wait, and reclaiming is rarer.
    pub fn retire_with_total(&self, token: u64, bytes: usize, all: u64) {
        let most = (all / COLLECT_PART).clamp(*COLLECT_AT.start(), *COLLECT_AT.end());
        let number = thread_ordinal() % SHARDS;
        let shard = &self.shards[number];
        let Some(mut list) = self.lock(shard) else { return };
        // Loaded under the lock, so that epochs in one list never decrease. SeqCst after the
        // unlink: a guard that can still see the block announced at least the previous epoch.
        fence(SeqCst);
        let epoch = self.global.load(Relaxed);
        list.blocks.push_back(Retired { token, bytes, epoch });
        shard.count(|waiting| waiting + bytes);
        list.since_collect += bytes.max(SMALL);
        if (list.since_collect as u64) < most {
            return;
        }
        list.since_collect = 0;
        // Unless other threads have already advanced the epoch far enough.
        let waits = list.blocks.front().is_some_and(|first| first.epoch + 2 > epoch);
        drop(list);
        if waits {
            // If it does not advance, later retirements try again.
            let _ = self.advance_from(epoch);
        }
        self.collect(shard);
        self.run_calls(&self.calls[number], 2 * *COLLECT_AT.start() as usize);
        let configured = self.backlog_limit.load(Relaxed);
        self.limit.store(configured.max(all / BACKLOG_PART), Relaxed);
        self.update_backed_up();
    }

    /// Acquires the lock of a list. Returns `None` in a forked child if a thread may hold it that
    /// does not exist there: what the caller would retire is then never reused.
    #[inline(always)]
    fn lock<'s>(&self, shard: &'s Shard) -> Option<MutexGuard<'s, RetiredList>> {
        shard.try_lock().or_else(|| self.wait_for_lock(shard))
    }

    #[cold]
    #[inline(never)]
    fn wait_for_lock<'s>(&self, shard: &'s Shard) -> Option<MutexGuard<'s, RetiredList>> {
        self.ensure_not_forked().ok()?;
        Some(shard.lock())
    }

    /// Returns the bytes of blocks that are retired and not reclaimed yet, and of calls that are
    /// deferred and not executed yet. Approximate while other threads retire.
    fn bytes_waiting(&self) -> usize {
        let blocks = self.shards.iter().map(|shard| &shard.bytes);
        let calls = self.calls.iter().map(|list| &list.bytes);
        blocks.chain(calls).map(|bytes| bytes.load(Relaxed)).sum()
    }

    /// Finds out whether more bytes wait than the limit allows.
    fn update_backed_up(&self) -> bool {
        let backed_up = self.bytes_waiting() as u64 > self.limit.load(Relaxed);
        if self.backed_up.load(Relaxed) != backed_up {
            self.backed_up.store(backed_up, Relaxed);
        }
        backed_up
    }

    /// Returns `true` if more bytes wait for guards than the [limit](Domain::set_backlog_limit)
    /// allows. Before retiring more, the caller should [wait](Domain::reduce_backlog). Costs one
    /// load.
    #[inline(always)]
    pub fn is_backed_up(&self) -> bool {
        // Relaxed: the bytes that a few more mutations retire do not matter.
        self.backed_up.load(Relaxed)
    }

    /// Waits until no more bytes wait than the limit allows, for at most `timeout`. Does not wait
    /// for a guard of the calling thread.
    ///
    /// # Errors
    ///
    /// The thread that prevents the reuse of memory.
    pub fn reduce_backlog(&self, timeout: Duration) -> Result<(), Backlog> {
        let (mut backoff, mut wait_until) = (Backoff::new(), None);
        loop {
            self.collect_all();
            if !self.update_backed_up() {
                return Ok(());
            }
            let until = *wait_until.get_or_insert_with(|| Instant::now() + timeout);
            let Ok(advance) = self.advance() else { return Err(self.backlog()) };
            if advance == Advance::HeldUp && self.is_pinned() || Instant::now() >= until {
                return Err(self.backlog());
            }
            if advance != Advance::Done {
                expect_to_wait_for_readers();
                backoff.wait();
            }
        }
    }

    /// Advances the epoch if every guard has seen the current one.
    ///
    /// # Errors
    ///
    /// `Forked`, `FenceRefused`.
    fn advance(&self) -> Result<Advance, WaitError> {
        self.advance_from(self.global.load(Relaxed))
    }

    /// Advances the epoch from `epoch`, unless another thread has done so already.
    fn advance_from(&self, epoch: u64) -> Result<Advance, WaitError> {
        self.ensure_not_forked()?;
        let Some(_advancing) = self.try_advancing() else { return Ok(Advance::Busy) };
        // Relaxed: it changes only under this lock. If it has changed, advancing once more would
        // only interrupt all processors once more.
        if self.global.load(Relaxed) != epoch {
            return Ok(Advance::Done);
        }
        let lags = |slot: &GuardSlot| {
            schedule_point();
            let announced = slot.announced.load(Relaxed);
            announced != IDLE && announced & EPOCHS != epoch & EPOCHS
        };
        // First without a fence: if a guard is known to lag behind, the fence is not needed.
        if self.slots().any(lags) {
            return Ok(Advance::HeldUp);
        }
        if !self.fence_everyone() {
            return Err(WaitError::FenceRefused);
        }
        if self.slots().any(lags) {
            return Ok(Advance::HeldUp);
        }
        // Acquire: loads under guards that have been dropped happen before any reuse that follows.
        fence(Acquire);
        // A read-modify-write, so that a reader that loads the new epoch also synchronizes with the
        // start of grace periods in the old one: see `start`.
        self.global.fetch_add(1, Release);
        self.advanced.store(self.began.elapsed().as_nanos() as u64, Relaxed);
        Ok(Advance::Done)
    }

    /// Acquires the lock of the advancing thread, if it is free.
    fn try_advancing(&self) -> Option<MutexGuard<'_, ()>> {
        schedule_point();
        self.advancing.try_lock().ok()
    }

    /// Determines whether this process may change the domain: it has created it, or is a forked
    /// child in which no guard and no lock is left of a thread that exists only in the parent.
    ///
    /// # Errors
    ///
    /// `Forked`.
    #[inline]
    fn ensure_not_forked(&self) -> Result<(), WaitError> {
        // Relaxed: a thread that loads an old number determines the same once more.
        match self.process.load(Relaxed) == process_number() {
            true => Ok(()),
            false => self.adopt(),
        }
    }

    /// Makes a domain usable in a forked child. Guards and locks of a thread that was not copied
    /// are never released. Without them the domain is as it would be in a process that was not
    /// forked.
    #[cold]
    #[inline(never)]
    fn adopt(&self) -> Result<(), WaitError> {
        // What threads of this process have locked is free after some attempts.
        const ATTEMPTS: u32 = 256;
        let process = process_number();
        let mut backoff = Backoff::new();
        // Relaxed: as in `ensure_not_forked`.
        while self.lost.load(Relaxed) != process {
            if !self.has_remains() && (self.own.is_empty() || register_process_fence()) {
                self.process.store(process, Relaxed);
                return Ok(());
            }
            if backoff.wait_long() >= ATTEMPTS {
                self.lost.store(process, Relaxed);
            }
        }
        Err(WaitError::Forked)
    }

    /// Returns `true` if a thread that does not exist in this process may hold a guard or a lock of
    /// the domain.
    fn has_remains(&self) -> bool {
        self.shards.iter().any(|shard| shard.try_lock().is_none())
            || self.calls.iter().any(CallList::is_locked)
            || self.advancing.try_lock().is_err()
            || self.own.iter().enumerate().any(|(number, slot)| {
                slot.announced.load(Relaxed) != IDLE && !number_lives_here(number)
            })
            || self.shared.used().any(|slot| {
                let announced = slot.announced.load(Relaxed);
                announced != IDLE && !lives_here((announced >> EPOCH_BITS) as u32)
            })
    }

    /// Reclaims the blocks of one list whose grace period is over.
    fn collect(&self, shard: &Shard) {
        // Locked while reclaiming too: a thread that has locked every list since then knows that no
        // block taken from one is still being reclaimed.
        let Some(mut list) = self.lock(shard) else { return };
        let now = self.global.load(Acquire);
        while let Some(retired) = list.blocks.pop_front_if(|first| first.epoch + 2 <= now) {
            shard.count(|waiting| waiting - retired.bytes);
            (self.reclaim)(retired.token);
        }
    }

    /// Reclaims all blocks whose grace period is over, and executes all such calls.
    fn collect_all(&self) {
        self.shards.iter().for_each(|shard| self.collect(shard));
        self.calls.iter().for_each(|list| self.run_calls(list, usize::MAX));
    }

    /// Waits until everything is reclaimed that was retired before the call, or under a guard that
    /// existed at the call; and until deferred calls have been executed likewise.
    ///
    /// # Panics
    ///
    /// Where [`try_drain`](Domain::try_drain) returns an error.
    pub fn drain(&self) {
        self.try_drain().unwrap_or_else(|error| panic!("draining a domain: {error}"));
    }

    /// Waits like [`drain`](Domain::drain).
    ///
    /// # Errors
    ///
    /// As of [`synchronize`](Domain::synchronize). What could be reclaimed may have been.
    pub fn try_drain(&self) -> Result<(), WaitError> {
        // Once for those guards, and once for the blocks that were retired under them.
        self.synchronize()?;
        self.synchronize()?;
        self.collect_all();
        self.finish_calls();
        self.update_backed_up();
        Ok(())
    }

    /// Reclaims blocks and executes calls whose grace period is over, and advances others. Never
    /// waits: what a reader holds up stays. Costs O(slots) and up to two fences of all threads if
    /// anything is left, so an event loop should call it when it has nothing else to do.
    pub fn flush(&self) {
        if self.bytes_waiting() > 0 {
            self.drain_within(Duration::ZERO);
        }
    }

    /// Reclaims blocks that were retired before the call, and waits for guards that prevent it, for
    /// at most `limit`. Does not wait if the calling thread holds a guard.
    pub fn drain_within(&self, limit: Duration) {
        let mut wait_until = None;
        let mut backoff = Backoff::new();
        // The last retired blocks are reclaimed two epochs later.
        let target = self.global.load(Relaxed) + 2;
        while self.global.load(Acquire) < target {
            let Ok(advance) = self.advance() else { break };
            if advance == Advance::Done {
                continue;
            }
            let pointless = self.bytes_waiting() == 0 || self.is_pinned();
            let until = *wait_until.get_or_insert_with(|| Instant::now() + limit);
            if pointless || Instant::now() >= until {
                break;
            }
            expect_to_wait_for_readers();
            backoff.wait();
        }
        self.collect_all();
        self.update_backed_up();
    }

    /// Returns `true` if the calling thread holds a guard, or is an online [`Reader`]. O(guards in
    /// shared slots).
    pub fn is_pinned(&self) -> bool {
        // Relaxed: only this thread makes its slot busy, or announces its id.
        let own = self.own.get(ORDINAL.get()).map_or(IDLE, |slot| slot.announced.load(Relaxed));
        let thread = u64::from(thread_id());
        let is_ours = |slot: &GuardSlot| slot.announced.load(Relaxed) >> EPOCH_BITS == thread;
        own != IDLE || self.shared.used().any(is_ours)
    }

    /// Returns the current state of the domain.
    pub fn stats(&self) -> EpochStats {
        let mut stats = EpochStats {
            epoch: self.global.load(Relaxed),
            bytes_waiting: self.bytes_waiting(),
            fences: self.fences.load(Relaxed),
            ..EpochStats::default()
        };
        for slot in self.slots() {
            let announced = slot.announced.load(Relaxed);
            if announced != IDLE {
                stats.guards += 1;
                stats.online_readers += usize::from(slot.online.load(Relaxed));
                stats.oldest_guard_lag = stats.oldest_guard_lag.max(lag(stats.epoch, announced));
            }
        }
        stats
    }
}

impl Guard<'_> {
    /// Returns the domain of this guard.
    #[inline]
    pub fn domain(&self) -> &Domain {
        self.domain
    }
}

impl Drop for Guard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: loads under this guard happen before any reuse that follows its end.
        self.slot.announced.store(IDLE, Release);
    }
}
