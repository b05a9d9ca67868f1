//! Grace periods: a block is reused only when no thread can still access it.
//!
//! A reader holds a [`Guard`] while it uses what it found. A block that was unlinked is
//! [retired](Domain::retire), and passed to the domain's reclaimer when every guard that existed at
//! that moment has been dropped. This is epoch-based reclamation after Fraser (2004): a guard
//! announces the global epoch that it saw; the epoch advances only when every announced guard has
//! seen the current one; a block that was retired in epoch `e` is unreachable for all threads in
//! epoch `e + 2`.
//!
//! A guard occupies a slot of a table. Each of the first 256 threads has a slot of its own, so that
//! a guard costs two ordinary stores. Guards of other threads, and nested guards, use shared slots.
//! More of those are created as they are needed, and all are reused, so a guard never has to wait
//! for a slot. A guard is dropped on the thread that created it, so a thread can tell whether it
//! holds one.
//!
//! The memory that waits for guards is bounded if the owner of the domain [sets a
//! limit](Domain::set_backlog_limit): beyond the limit the domain is [backed
//! up](Domain::is_backed_up), and mutations wait, or fail with the name of the [thread](Holder)
//! whose guard they wait for.
//!
//! An announcement must be visible before the loads that it protects. Instead of a fence in every
//! guard there is one *process-wide* fence ([`membarrier`]) whenever the epoch advances, which is
//! once in hundreds of retirements, because it interrupts every processor that runs a thread of
//! this process. If the system has no such fence, all slots are shared, and guards execute a fence
//! themselves.
//!
//! The list of retired blocks is volatile: after a crash, reachability alone decides which blocks
//! are free.
//!
//! [`membarrier`]: https://man7.org/linux/man-pages/man2/membarrier.2.html

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, compiler_fence, fence};
use std::time::{Duration, Instant};

use crate::sync::Backoff;

mod retired;
mod slots;
#[cfg(test)]
mod tests;
mod threads;

use retired::{Retired, Shard};
use slots::{EPOCH_BITS, EPOCHS, GuardSlot, IDLE, SharedSlots, schedule_point, slots};
use threads::{ORDINAL, ORDINALS, OWN_SLOTS, OWNERS, name_of, thread_id};

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

/// A set of guards and of retired blocks that wait for them. A store has one.
pub struct Domain {
    global: AtomicU64,
    /// One per thread, by its number. Empty if guards have to execute fences themselves.
    own: Box<[GuardSlot]>,
    /// Whether more bytes wait than the limit allows.
    backed_up: AtomicBool,
    shared: SharedSlots,
    shards: Box<[Shard]>,
    reclaim: Reclaimer,
    /// The configured limit of waiting bytes, and the current one.
    backlog_limit: AtomicU64,
    limit: AtomicU64,
    began: Instant,
    /// When the epoch last advanced, in nanoseconds since the domain was created. A guard that lags
    /// behind is older.
    advanced: AtomicU64,
}

/// The state of a [`Domain`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpochStats {
    /// The global epoch.
    pub epoch: u64,
    /// Number of guards.
    pub guards: usize,
    /// Number of epochs that the oldest guard lags behind. It prevents reclamation while this is
    /// not zero.
    pub oldest_guard_lag: u64,
    /// Bytes that are retired but not reclaimed yet.
    pub bytes_waiting: usize,
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
    slot: &'d AtomicU64,
    /// Like the guard of a lock: may be shared between threads, but not moved to another one.
    not_send: PhantomData<std::sync::MutexGuard<'static, ()>>,
}

/// A thread whose guard prevents the reuse of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The system's id of the thread, or 0 if it is not known.
    pub thread: u32,
    /// The name of the thread, if it still exists and has one.
    pub name: Option<String>,
    /// The minimum time for which it has held the guard.
    pub held: Duration,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {}", self.thread)?;
        if let Some(name) = &self.name {
            write!(f, " (\"{name}\")")?;
        }
        write!(f, " has held a guard for at least {:.1} s", self.held.as_secs_f64())
    }
}

/// The error when more bytes wait for guards than the limit allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// Number of bytes that wait.
    pub waiting: u64,
    /// The limit.
    pub limit: u64,
    /// The thread that holds the oldest guard, if it still holds it.
    pub holder: Option<Holder>,
}

impl fmt::Display for Backlog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes wait to be reused, more than the limit of {}: ",
            self.waiting, self.limit
        )?;
        match &self.holder {
            Some(holder) => holder.fmt(f),
            None => f.write_str("a guard that has just been dropped held them up"),
        }
    }
}

/// Returns `true` if the kernel can execute a fence on all threads of this process.
fn register_process_fence() -> bool {
    // SAFETY: this system call takes only numbers and touches no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 }
}

// From linux/membarrier.h.
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;

const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

impl Domain {
    /// Creates a domain that passes tokens to `reclaim` after their grace period.
    pub fn new(reclaim: Reclaimer) -> Self {
        Self::with(reclaim, register_process_fence())
    }

    /// Creates a domain. `process_fence` says whether the kernel can execute fences for guards.
    fn with(reclaim: Reclaimer, process_fence: bool) -> Self {
        Domain {
            global: AtomicU64::new(IDLE + 1),
            own: slots(if process_fence { OWN_SLOTS } else { 0 }),
            backed_up: AtomicBool::new(false),
            shared: SharedSlots::new(),
            shards: (0..SHARDS).map(|_| Shard::new()).collect(),
            reclaim,
            backlog_limit: AtomicU64::new(u64::MAX),
            limit: AtomicU64::new(u64::MAX),
            began: Instant::now(),
            advanced: AtomicU64::new(0),
        }
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
        let slot = &self.own.get(number)?.0;
        // Only this thread makes its slot busy, so that needs no atomic exchange. It is already
        // busy under an outer guard. Acquire: a guard of this slot that was dropped on another
        // thread has ended.
        if slot.load(Acquire) != IDLE {
            return None;
        }
        // Acquire: loads under the guard happen after the load of the epoch. If they happened
        // before it, a block that was unlinked in the previous epoch could be protected by an
        // announcement of this one, which is too late.
        slot.store(self.global.load(Acquire), Relaxed);
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
    fn slots(&self) -> impl Iterator<Item = &AtomicU64> {
        let own = self.own.len().min(ORDINALS.load(SeqCst));
        self.own[..own].iter().chain(self.shared.used()).map(|slot| &slot.0)
    }

    /// Executes the fence that [`pin_own`](Self::pin_own) lacks, on the side of the advancing
    /// thread.
    fn fence_everyone(&self) {
        if !self.own.is_empty() {
            // SAFETY: as in `register_process_fence`, which reported that this works.
            let done = unsafe { libc::syscall(libc::SYS_membarrier, PRIVATE_EXPEDITED, 0, 0) };
            assert_eq!(done, 0, "a registered membarrier does not fail");
        }
        fence(SeqCst);
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
        let shard = &self.shards[thread_ordinal() % SHARDS];
        let mut list = shard.lock();
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
            self.advance();
        }
        self.collect(shard);
        let configured = self.backlog_limit.load(Relaxed);
        self.limit.store(configured.max(all / BACKLOG_PART), Relaxed);
        self.update_backed_up();
    }

    /// Returns the bytes of blocks that are retired and not reclaimed yet. Approximate while other
    /// threads retire.
    fn bytes_waiting(&self) -> usize {
        self.shards.iter().map(|shard| shard.bytes.load(Relaxed)).sum()
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
            let moved = self.advance();
            if !moved && self.is_pinned() || Instant::now() >= until {
                return Err(self.backlog());
            }
            if !moved {
                backoff.wait();
            }
        }
    }

    fn backlog(&self) -> Backlog {
        let (waiting, limit) = (self.bytes_waiting() as u64, self.limit.load(Relaxed));
        Backlog { waiting, limit, holder: self.oldest_guard() }
    }

    /// Returns the thread that holds the oldest guard.
    pub fn oldest_guard(&self) -> Option<Holder> {
        let epoch = self.global.load(Relaxed);
        let own = self
            .own
            .iter()
            .zip(&OWNERS)
            .map(|(slot, owner)| (slot.0.load(Relaxed), owner.load(Relaxed)));
        let shared = self.shared.used().map(|slot| {
            let announced = slot.0.load(Relaxed);
            (announced, (announced >> EPOCH_BITS) as u32)
        });
        let busy = own.chain(shared).filter(|&(announced, _)| announced != IDLE);
        let (lag, thread) = busy
            .map(|(announced, thread)| (lag(epoch, announced), thread))
            .max_by_key(|&(lag, _)| lag)?;
        let (now, advanced) = (self.began.elapsed(), self.advanced.load(Relaxed));
        let held = if lag == 0 {
            Duration::ZERO
        } else {
            now.saturating_sub(Duration::from_nanos(advanced))
        };
        Some(Holder { thread, name: name_of(thread), held })
    }

    /// Advances the epoch if every guard has seen the current one.
    fn advance(&self) -> bool {
        let epoch = self.global.load(Relaxed);
        let lags = |slot: &AtomicU64| {
            schedule_point();
            let announced = slot.load(Relaxed);
            announced != IDLE && announced & EPOCHS != epoch & EPOCHS
        };
        // First without a fence: if a guard is known to lag behind, the fence is not needed.
        if self.slots().any(lags) {
            return false;
        }
        self.fence_everyone();
        if self.slots().any(lags) {
            return false;
        }
        // Acquire: loads under guards that have been dropped happen before any reuse that follows.
        fence(Acquire);
        let moved = self.global.compare_exchange(epoch, epoch + 1, Release, Relaxed).is_ok();
        if moved {
            self.advanced.store(self.began.elapsed().as_nanos() as u64, Relaxed);
        }
        moved
    }

    /// Reclaims the blocks of one list whose grace period is over.
    fn collect(&self, shard: &Shard) {
        // Locked while reclaiming too: a thread that has locked every list since then knows that no
        // block taken from one is still being reclaimed.
        let mut list = shard.lock();
        let now = self.global.load(Acquire);
        while let Some(retired) = list.blocks.pop_front_if(|first| first.epoch + 2 <= now) {
            shard.count(|waiting| waiting - retired.bytes);
            (self.reclaim)(retired.token);
        }
    }

    /// Reclaims all blocks whose grace period is over.
    fn collect_all(&self) {
        self.shards.iter().for_each(|shard| self.collect(shard));
    }

    /// Waits until every guard that exists at the call has been dropped.
    ///
    /// Must not be called by a thread that [holds a guard](Domain::is_pinned) of this domain,
    /// because it would wait for itself.
    pub fn synchronize(&self) {
        let target = self.global.load(Relaxed) + 2;
        let mut backoff = Backoff::new();
        while self.global.load(Acquire) < target {
            if !self.advance() {
                backoff.wait();
            }
        }
    }

    /// Waits until everything is reclaimed that was retired before the call, or under a guard that
    /// existed at the call. Like [`synchronize`](Domain::synchronize), it must not be called by a
    /// thread that holds a guard.
    pub fn drain(&self) {
        // Once for those guards, and once for the blocks that were retired under them.
        self.synchronize();
        self.synchronize();
        self.collect_all();
        self.update_backed_up();
    }

    /// Reclaims blocks that were retired before the call, and waits for guards that prevent it, for
    /// at most `limit`. Does not wait if the calling thread holds a guard.
    pub fn drain_within(&self, limit: Duration) {
        let mut wait_until = None;
        let mut backoff = Backoff::new();
        // The last retired blocks are reclaimed two epochs later.
        let target = self.global.load(Relaxed) + 2;
        while self.global.load(Acquire) < target {
            if self.advance() {
                continue;
            }
            let pointless = self.bytes_waiting() == 0 || self.is_pinned();
            let until = *wait_until.get_or_insert_with(|| Instant::now() + limit);
            if pointless || Instant::now() >= until {
                break;
            }
            backoff.wait();
        }
        self.collect_all();
        self.update_backed_up();
    }

    /// Returns `true` if the calling thread holds a guard. O(guards in shared slots).
    pub fn is_pinned(&self) -> bool {
        // Relaxed: only this thread makes its slot busy, or announces its id.
        let own = self.own.get(ORDINAL.get()).map_or(IDLE, |slot| slot.0.load(Relaxed));
        let thread = u64::from(thread_id());
        let is_ours = |slot: &GuardSlot| slot.0.load(Relaxed) >> EPOCH_BITS == thread;
        own != IDLE || self.shared.used().any(is_ours)
    }

    /// Returns the current state of the domain.
    pub fn stats(&self) -> EpochStats {
        let epoch = self.global.load(Relaxed);
        let announced = self.slots().map(|slot| slot.load(Relaxed)).filter(|&seen| seen != IDLE);
        let (guards, oldest_guard_lag) =
            announced.fold((0, 0), |(count, most), seen| (count + 1, most.max(lag(epoch, seen))));
        EpochStats { epoch, guards, oldest_guard_lag, bytes_waiting: self.bytes_waiting() }
    }
}

/// Returns the number of epochs that an announcement lags behind.
fn lag(epoch: u64, announced: u64) -> u64 {
    // An announcement of a later epoch than the one loaded before does not lag behind.
    let behind = epoch.wrapping_sub(announced) & EPOCHS;
    if behind > EPOCHS / 2 { 0 } else { behind }
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
        self.slot.store(IDLE, Release);
    }
}
