//! Grace periods: a block is reused only when nobody can still see it.
//!
//! Readers hold a [`Guard`] while they use what they found. A block that was unlinked is
//! [retired](Domain::retire), and handed to the domain's reclaimer once every guard that was alive at
//! that moment is gone. This is epoch-based reclamation after Fraser (2004): a guard announces the global
//! epoch it saw; the epoch advances only when every announced guard has seen the current one; what was
//! retired in epoch `e` is unreachable by everyone in epoch `e + 2`.
//!
//! A guard is a place in a table. Each of the first 256 threads has a place of its own, so that a guard costs
//! two ordinary stores; guards of other threads, and guards inside guards, take any of 256 shared ones. So
//! guards nest, and may end on another thread.
//!
//! An announcement must be visible before the loads it protects. Instead of a fence in every guard there is one
//! *process-wide* fence ([`membarrier`]) whenever the epoch is to advance, which is once in hundreds of
//! retirements, as it interrupts every processor that runs one of our threads. Where the system has none, all places are shared, and guards fence for themselves.
//!
//! The list of retired blocks is volatile: after a crash, reachability alone says what is free.
//!
//! [`membarrier`]: https://man7.org/linux/man-pages/man2/membarrier.2.html

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, AtomicUsize, compiler_fence, fence};
use std::time::{Duration, Instant};

use crate::sync::{Backoff, Mutex, MutexGuard};

/// Places that belong to one thread each.
const OWN: usize = 256;
/// Places for all other guards; one more of those waits for another to end.
const SHARED: usize = 256;
/// Lists of retired blocks, so that threads seldom share one.
const SHARDS: usize = 16;
/// So many bytes in one list, since that was last tried, make its owner try to reclaim: a thousandth of all bytes,
/// within these bounds.
const COLLECT_AT: RangeInclusive<u64> = 64 << 10..=256 << 10;
const COLLECT_PART: u64 = 1024;
/// What a block counts for at least.
const SMALL: usize = 256;
/// A place without a guard. Epochs start above it.
const IDLE: u64 = 0;

#[repr(align(128))]
struct Place(AtomicU64);

#[repr(align(128))]
struct Shard(Mutex<Waiting>);

/// Retired blocks that wait for the end of their grace period, oldest first.
#[derive(Default)]
struct Waiting {
    blocks: VecDeque<Retired>,
    /// Bytes of all these.
    bytes: usize,
    /// Bytes that came since reclaiming was last tried, in blocks that count for [`SMALL`] at least.
    untried: usize,
}

struct Retired {
    token: u64,
    bytes: usize,
    epoch: u64,
}

impl Shard {
    fn hold(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().expect("no panics while held")
    }
}

/// What a domain does with a token whose grace period is over. Must not use the domain.
pub type Reclaimer = Box<dyn Fn(u64) + Send + Sync>;

/// A set of guards and retired blocks that wait for each other. One per store.
pub struct Domain {
    global: AtomicU64,
    /// One for each thread, by its number. None where threads have to fence for themselves.
    own: Box<[Place]>,
    shared: Box<[Place]>,
    /// Shared places `0..used` may hold a guard; the rest never did.
    used: AtomicUsize,
    shards: Box<[Shard]>,
    reclaim: Reclaimer,
}

/// State of a [`Domain`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpochStats {
    /// The global epoch.
    pub epoch: u64,
    /// Guards alive.
    pub guards: usize,
    /// How many epochs the oldest guard lags behind; it holds up reclamation while this is not zero.
    pub oldest_guard_lag: u64,
    /// Bytes retired but not yet reclaimed.
    pub bytes_waiting: usize,
}

/// Proof that nothing reachable when it was made is reused while it lives.
///
/// Cheap (two stores, mostly), nests, and may move to another thread. Long-lived guards hold up the reuse of
/// memory.
#[must_use = "a guard protects only while it lives"]
pub struct Guard<'d> {
    domain: &'d Domain,
    place: &'d AtomicU64,
}

thread_local! {
    static ORDINAL: Cell<usize> = const { Cell::new(usize::MAX) };
    static RETURN_ORDINAL: ReturnOrdinal = const { ReturnOrdinal };
}

/// Thread numbers from here on were never given out.
static ORDINALS: AtomicUsize = AtomicUsize::new(0);

/// Numbers of threads that have ended.
static RETURNED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Gives a thread's number back when the thread ends.
struct ReturnOrdinal;

impl Drop for ReturnOrdinal {
    fn drop(&mut self) {
        // A guard that outlives its thread keeps the place busy, which its next owner notices.
        let number = ORDINAL.replace(usize::MAX);
        RETURNED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(number);
    }
}

/// A small number that no other living thread has.
#[inline]
pub fn thread_ordinal() -> usize {
    let number = ORDINAL.get();
    if number == usize::MAX { new_ordinal() } else { number }
}

#[cold]
fn new_ordinal() -> usize {
    let returned = RETURNED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop();
    // SeqCst: before any announcement under this number; see `Domain::places`.
    let number = returned.unwrap_or_else(|| ORDINALS.fetch_add(1, SeqCst));
    ORDINAL.set(number);
    // Late in the end of a thread its number can no longer be given back: it is then never used again.
    let _ = RETURN_ORDINAL.try_with(|_| {});
    number
}

/// Runs `body` while the calling thread has the given number, which no other thread that uses the same domains
/// has meanwhile.
#[cfg(any(test, feature = "sim"))]
pub(crate) fn with_ordinal<R>(number: usize, body: impl FnOnce() -> R) -> R {
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            ORDINAL.set(self.0);
        }
    }
    // Its place must be among those that are looked at; see `Domain::places`.
    ORDINALS.fetch_max(number + 1, SeqCst);
    let _restore = Restore(ORDINAL.replace(number));
    body()
}

/// Whether the kernel can run a fence on all threads of this process.
fn register_process_fence() -> bool {
    // SAFETY: this system call takes numbers only and touches no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 }
}

// From linux/membarrier.h.
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

impl Domain {
    /// A domain that gives tokens to `reclaim` after their grace period.
    pub fn new(reclaim: Reclaimer) -> Self {
        let own = if register_process_fence() { OWN } else { 0 };
        let places = |count| (0..count).map(|_| Place(AtomicU64::new(IDLE))).collect();
        Domain {
            global: AtomicU64::new(IDLE + 1),
            own: places(own),
            shared: places(SHARED),
            used: AtomicUsize::new(0),
            shards: (0..SHARDS).map(|_| Shard(Mutex::default())).collect(),
            reclaim,
        }
    }

    /// Begins to protect everything reachable from now on.
    ///
    /// Waits while hundreds of other guards are alive.
    #[inline(always)]
    pub fn pin(&self) -> Guard<'_> {
        // A thread without a number has one that is too large.
        self.pin_own(ORDINAL.get()).unwrap_or_else(|| self.pin_slowly())
    }

    /// A guard in the place of the calling thread, `number`, if it has one and that is free.
    #[inline(always)]
    fn pin_own(&self, number: usize) -> Option<Guard<'_>> {
        let place = &self.own.get(number)?.0;
        // Only this thread makes its place busy, so that needs no atomic exchange. It is busy already under
        // an outer guard. Acquire: a guard of ours that ended on another thread has ended.
        if place.load(Acquire) != IDLE {
            return None;
        }
        // Acquire: what is read under the guard is read after the epoch. Read before it, something that was unlinked
        // in the last epoch could be protected by an announcement of this one, which is too late.
        place.store(self.global.load(Acquire), Relaxed);
        // The announcement must be visible before this thread's first load of shared words, or an advancing
        // thread could miss it while we still read what it frees. The advancing thread makes this thread fence;
        // the compiler must keep the order too.
        compiler_fence(SeqCst);
        Some(Guard { domain: self, place })
    }

    /// The first guard of a thread, a guard inside another, or one that has no place of its own.
    #[cold]
    #[inline(never)]
    fn pin_slowly(&self) -> Guard<'_> {
        let number = thread_ordinal();
        if let Some(guard) = self.pin_own(number) {
            return guard;
        }
        let mut backoff = Backoff::new();
        loop {
            for step in 0..SHARED {
                let at = (number + step) % SHARED;
                if at >= self.used.load(Relaxed) {
                    // Before it is first announced in, so that scans include it.
                    self.used.fetch_max(at + 1, SeqCst);
                }
                let (place, epoch) = (&self.shared[at].0, self.global.load(Relaxed));
                if place.compare_exchange(IDLE, epoch, Acquire, Relaxed).is_ok() {
                    // As in `pin_own`, for the case that nobody fences for us.
                    fence(SeqCst);
                    return Guard { domain: self, place };
                }
            }
            backoff.wait();
        }
    }

    /// The places that may hold a guard. Those of which nobody knew when this was called hold none that began
    /// before.
    fn places(&self) -> impl Iterator<Item = &AtomicU64> {
        let own = self.own.len().min(ORDINALS.load(SeqCst));
        let shared = self.used.load(SeqCst);
        self.own[..own].iter().chain(&self.shared[..shared]).map(|place| &place.0)
    }

    /// The advancing thread's side of the fence that [`pin_own`](Self::pin_own) lacks.
    fn fence_everyone(&self) {
        if !self.own.is_empty() {
            // SAFETY: as in `register_process_fence`, which said that this works.
            let done = unsafe { libc::syscall(libc::SYS_membarrier, PRIVATE_EXPEDITED, 0, 0) };
            assert_eq!(done, 0, "a registered membarrier does not fail");
        }
        fence(SeqCst);
    }

    /// Hands `token` to the reclaimer once every guard alive now is gone.
    ///
    /// Call it after the block is unlinked and that is durable. `bytes` decides how many may wait.
    pub fn retire(&self, token: u64, bytes: usize) {
        self.retire_of(token, bytes, 0);
    }

    /// The same for a block that is one of so many bytes in `all`: where these are many, more may wait, and reclaiming is
    /// rarer.
    pub fn retire_of(&self, token: u64, bytes: usize, all: u64) {
        let most = (all / COLLECT_PART).clamp(*COLLECT_AT.start(), *COLLECT_AT.end());
        let shard = &self.shards[thread_ordinal() % SHARDS];
        let mut list = shard.hold();
        // Read under the lock, so that epochs in one list never decrease. SeqCst after the unlink: a guard that can
        // still see the block announced an epoch of at least this one minus one.
        fence(SeqCst);
        let epoch = self.global.load(Relaxed);
        list.blocks.push_back(Retired { token, bytes, epoch });
        list.bytes += bytes;
        list.untried += bytes.max(SMALL);
        if (list.untried as u64) < most {
            return;
        }
        list.untried = 0;
        // Unless others have moved the epoch on far enough.
        let waits = list.blocks.front().is_some_and(|first| first.epoch + 2 > epoch);
        drop(list);
        if waits {
            self.advance();
        }
        self.collect(shard);
    }

    /// Bytes of blocks that were retired and not reclaimed yet.
    fn bytes_waiting(&self) -> usize {
        self.shards.iter().map(|shard| shard.hold().bytes).sum()
    }

    /// Moves the epoch on if every guard has seen the current one.
    fn advance(&self) -> bool {
        let epoch = self.global.load(Relaxed);
        let lags = |place: &AtomicU64| ![IDLE, epoch].contains(&place.load(Relaxed));
        // Once without a fence: a guard that is known to hold us up needs none.
        if self.places().any(lags) {
            return false;
        }
        self.fence_everyone();
        if self.places().any(lags) {
            return false;
        }
        // Acquire: what the departed guards' owners did happens before any reuse that follows.
        fence(Acquire);
        self.global.compare_exchange(epoch, epoch + 1, Release, Relaxed).is_ok()
    }

    /// Reclaims what is old enough in one list.
    fn collect(&self, shard: &Shard) {
        // Held while reclaiming too: whoever has held every list since knows that nothing taken from one is
        // still on its way.
        let mut list = shard.hold();
        let now = self.global.load(Acquire);
        while let Some(retired) = list.blocks.pop_front_if(|first| first.epoch + 2 <= now) {
            list.bytes -= retired.bytes;
            (self.reclaim)(retired.token);
        }
    }

    /// Waits until every guard alive at the call is gone.
    ///
    /// Must not be called by a thread that holds a guard of this domain: it would wait for itself.
    pub fn synchronize(&self) {
        let target = self.global.load(Relaxed) + 2;
        let mut backoff = Backoff::new();
        while self.global.load(Acquire) < target {
            if !self.advance() {
                backoff.wait();
            }
        }
    }

    /// Waits until everything is reclaimed that was retired before the call, or under a guard that was alive at
    /// the call. The rule of [`synchronize`](Domain::synchronize) about guards holds here too.
    pub fn drain(&self) {
        // Once for those guards, and once for what they have retired.
        self.synchronize();
        self.synchronize();
        for shard in &self.shards {
            self.collect(shard);
        }
    }

    /// Reclaims what was retired before the call, and waits for guards that hold it up, but not longer than so, and not if
    /// the calling thread is known to have one: those of the first 256 threads are.
    pub fn drain_within(&self, limit: Duration) {
        let mut wait_until = None;
        let mut backoff = Backoff::new();
        // What was retired last is reclaimed two epochs later.
        let target = self.global.load(Relaxed) + 2;
        while self.global.load(Acquire) < target {
            if self.advance() {
                continue;
            }
            let in_vain = self.bytes_waiting() == 0 || self.has_guard_here();
            let until = *wait_until.get_or_insert_with(|| Instant::now() + limit);
            if in_vain || Instant::now() >= until {
                break;
            }
            backoff.wait();
        }
        for shard in &self.shards {
            self.collect(shard);
        }
    }

    /// Whether the calling thread holds a guard in the place that is its own.
    fn has_guard_here(&self) -> bool {
        // Relaxed: nobody else makes it busy.
        self.own.get(ORDINAL.get()).is_some_and(|place| place.0.load(Relaxed) != IDLE)
    }

    /// The state of the domain now.
    pub fn stats(&self) -> EpochStats {
        let epoch = self.global.load(Relaxed);
        let announced = self.places().map(|place| place.load(Relaxed)).filter(|&seen| seen != IDLE);
        let (guards, oldest) =
            announced.fold((0, epoch), |(count, oldest), seen| (count + 1, oldest.min(seen)));
        EpochStats {
            epoch,
            guards,
            oldest_guard_lag: epoch - oldest,
            bytes_waiting: self.bytes_waiting(),
        }
    }
}

impl Guard<'_> {
    /// The domain that this guard belongs to.
    #[inline]
    pub fn domain(&self) -> &Domain {
        self.domain
    }
}

impl Drop for Guard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: our loads happen before any reuse that follows our departure.
        self.place.store(IDLE, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    fn counting() -> (Domain, Arc<Mutex<Vec<u64>>>) {
        let freed = Arc::new(Mutex::new(Vec::new()));
        let log = freed.clone();
        (Domain::new(Box::new(move |token| log.lock().unwrap().push(token))), freed)
    }

    #[test]
    fn a_guard_holds_back_what_was_retired_after_it_began() {
        let (domain, freed) = counting();
        let guard = domain.pin();
        domain.retire(7, 100);
        for _ in 0..10 {
            domain.advance();
            domain.shards.iter().for_each(|shard| domain.collect(shard));
        }
        assert!(freed.lock().unwrap().is_empty());
        assert_eq!(domain.stats().bytes_waiting, 100);
        assert_eq!(domain.stats().guards, 1);
        drop(guard);
        domain.drain();
        assert_eq!(*freed.lock().unwrap(), [7]);
        assert_eq!(
            domain.stats(),
            EpochStats { epoch: domain.stats().epoch, ..Default::default() }
        );
    }

    #[test]
    fn guards_nest_and_outnumber_the_places_only_by_waiting() {
        let (domain, _) = counting();
        let guards: Vec<_> = (0..=SHARED).map(|_| domain.pin()).collect();
        assert_eq!(domain.stats().guards, SHARED + 1);
        let (domain, entered) = (&domain, &AtomicBool::new(false));
        std::thread::scope(|threads| {
            threads.spawn(move || {
                let _own = domain.pin();
                let _one_more = domain.pin();
                entered.store(true, Release);
            });
            std::thread::yield_now();
            assert!(!entered.load(Acquire), "no place was free");
            drop(guards);
        });
        assert!(entered.load(Acquire));
        assert_eq!(domain.stats().guards, 0);
    }

    #[test]
    fn a_guard_may_end_on_another_thread() {
        let (domain, freed) = counting();
        let guard = domain.pin();
        domain.retire(1, 1);
        std::thread::scope(|threads| {
            threads.spawn(move || drop(guard));
        });
        domain.drain();
        assert_eq!(*freed.lock().unwrap(), [1]);
        drop(domain.pin());
    }

    #[test]
    fn numbers_of_ended_threads_are_used_again() {
        let numbers: std::collections::HashSet<_> =
            (0..1000).map(|_| std::thread::spawn(thread_ordinal).join().unwrap()).collect();
        assert!(numbers.len() < 100, "{} numbers for a thousand threads in turn", numbers.len());
    }

    #[test]
    fn what_no_guard_holds_back_is_reclaimed_without_waiting() {
        let (domain, freed) = counting();
        let old = domain.pin();
        domain.retire(1, 8);
        domain.drain_within(Duration::ZERO);
        assert!(freed.lock().unwrap().is_empty());
        drop(old);
        domain.retire(2, 8);
        domain.drain_within(Duration::ZERO);
        assert_eq!(*freed.lock().unwrap(), [1, 2]);
    }

    /// Guards of others are waited for, one of the calling thread is not: it would not end.
    #[test]
    fn draining_waits_for_guards_of_others() {
        const LONG: Duration = Duration::from_secs(1000);
        let (domain, freed) = counting();
        let (held, ahead) = (std::sync::Barrier::new(2), AtomicBool::new(true));
        domain.retire(1, 8);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let _guard = domain.pin();
                domain.advance();
                held.wait();
                while ahead.load(SeqCst) {
                    std::thread::yield_now();
                }
            });
            held.wait();
            // Where threads have no places of their own, nobody knows whose guards are whose.
            if !domain.own.is_empty() {
                let _own = domain.pin();
                domain.drain_within(LONG);
                assert!(freed.lock().unwrap().is_empty());
            }
            domain.drain_within(Duration::from_millis(1));
            assert!(freed.lock().unwrap().is_empty());
            let draining = threads.spawn(|| domain.drain_within(LONG));
            ahead.store(false, SeqCst);
            draining.join().unwrap();
            assert_eq!(*freed.lock().unwrap(), [1]);
        });
    }

    /// A block that another thread is just reclaiming is not reclaimed yet.
    #[test]
    fn draining_waits_for_reclaiming_threads() {
        let (entered, go_on, finished) =
            <(Arc<AtomicBool>, Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let seen = (entered.clone(), go_on.clone(), finished.clone());
        let domain = Domain::new(Box::new(move |_| {
            entered.store(true, SeqCst);
            while !go_on.load(SeqCst) {
                std::thread::yield_now();
            }
            finished.store(true, SeqCst);
        }));
        let (entered, go_on, finished) = seen;
        domain.retire(1, 8);
        std::thread::scope(|threads| {
            let domain = &domain;
            threads.spawn(|| domain.drain());
            while !entered.load(SeqCst) {
                std::thread::yield_now();
            }
            let drained = threads.spawn(|| {
                domain.drain();
                finished.load(SeqCst)
            });
            (0..1000).for_each(|_| std::thread::yield_now());
            go_on.store(true, SeqCst);
            assert!(drained.join().unwrap());
        });
    }

    /// A guard that was alive when draining began may retire something while it goes on.
    #[test]
    fn draining_covers_what_older_guards_retire_meanwhile() {
        for _ in 0..20 {
            let (domain, freed) = counting();
            std::thread::scope(|threads| {
                let guard = domain.pin();
                let before = domain.stats().epoch;
                let drained = threads.spawn(|| {
                    domain.drain();
                    freed.lock().unwrap().clone()
                });
                while domain.stats().epoch == before {
                    std::thread::yield_now();
                }
                domain.retire(7, 8);
                drop(guard);
                assert_eq!(drained.join().unwrap(), [7]);
            });
        }
    }

    /// Readers follow a shared slot and must never see a value that was reclaimed.
    #[test]
    fn nothing_is_reclaimed_under_a_reader() {
        const ROUNDS: u64 = 20_000;
        let alive: Arc<Vec<AtomicBool>> =
            Arc::new((0..=ROUNDS).map(|_| AtomicBool::new(true)).collect());
        let dead = alive.clone();
        let domain = Domain::new(Box::new(move |token| dead[token as usize].store(false, SeqCst)));
        let shared = AtomicU64::new(0);
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    loop {
                        let guard = domain.pin();
                        let seen = shared.load(Acquire);
                        for _ in 0..20 {
                            assert!(alive[seen as usize].load(SeqCst), "reclaimed under a guard");
                        }
                        drop(guard);
                        if seen == ROUNDS {
                            break;
                        }
                    }
                });
            }
            for next in 1..=ROUNDS {
                let old = shared.swap(next, SeqCst);
                domain.retire(old, 1 << 10);
            }
        });
        domain.drain();
        assert_eq!(domain.stats().bytes_waiting, 0);
        assert!((0..ROUNDS).all(|token| !alive[token as usize].load(SeqCst)));
    }
}
