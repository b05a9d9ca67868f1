//! Grace periods: a block is reused only when nobody can still see it.
//!
//! Readers hold a [`Guard`] while they use what they found. A block that was unlinked is
//! [retired](Domain::retire), and handed to the domain's reclaimer once every guard that was alive at
//! that moment is gone. This is epoch-based reclamation after Fraser (2004): a guard announces the global
//! epoch it saw; the epoch advances only when every announced guard has seen the current one; what was
//! retired in epoch `e` is unreachable by everyone in epoch `e + 2`.
//!
//! A guard is a place in a table. Each of the first 256 threads has a place of its own, so that a
//! guard costs two ordinary stores; guards of other threads, and guards inside guards, take shared
//! places. Of those more are made as they are needed, and all are used again, so no number of
//! guards has to wait for a place. A guard ends on the thread that made it, so a thread can tell
//! whether it holds one.
//!
//! Memory that waits for a guard is bounded if the owner of the domain [asks for
//! that](Domain::set_backlog_limit): beyond the limit the domain is [backed up](Domain::is_backed_up), and
//! mutations wait, or fail with the name of the
//! [thread that holds them up](Holder).
//!
//! An announcement must be visible before the loads it protects. Instead of a fence in every guard
//! there is one *process-wide* fence ([`membarrier`]) whenever the epoch is to advance, which is
//! once in hundreds of retirements, as it interrupts every processor that runs one of our threads.
//! Where the system has none, all places are shared, and guards fence for themselves.
//!
//! The list of retired blocks is volatile: after a crash, reachability alone says what is free.
//!
//! [`membarrier`]: https://man7.org/linux/man-pages/man2/membarrier.2.html

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, compiler_fence, fence};
use std::time::{Duration, Instant};

use crate::sync::{Backoff, Mutex, MutexGuard};

/// Places that belong to one thread each.
const OWN: usize = 256;
/// Shared places in the first chunk of them; each further chunk has twice as many as the one
/// before.
const FIRST_CHUNK: usize = if cfg!(test) { 2 } else { 256 };
/// Chunks of shared places: more than fit in any memory.
const CHUNKS: usize = 32;
/// Lists of retired blocks, so that threads seldom share one.
const SHARDS: usize = 16;
/// So many bytes in one list, since that was last tried, make its owner try to reclaim: a thousandth of all bytes,
/// within these bounds.
const COLLECT_AT: RangeInclusive<u64> = 64 << 10..=256 << 10;
const COLLECT_PART: u64 = 1024;
/// What a block counts for at least.
const SMALL: usize = 256;
/// One part in this many of all bytes may wait before the domain is backed up, if that is more than
/// the bound.
const BACKLOG_PART: u64 = 4;
/// A place without a guard. Epochs start above it.
const IDLE: u64 = 0;
/// Bits of an announcement that are the epoch. The others name the thread in a shared place: the
/// system's thread ids stay below 2^22. Announcements are compared for equality only, and a guard
/// holds up the epoch, so that it does not matter where these bits wrap.
const EPOCH_BITS: u32 = 42;
const EPOCHS: u64 = (1 << EPOCH_BITS) - 1;

/// Where a guard announces the epoch that it saw.
#[repr(align(128))]
struct Place(AtomicU64);

/// Places that any guard can take.
struct Shared {
    chunks: [OnceLock<Box<[Place]>>; CHUNKS],
    /// Places `0..made` exist.
    made: AtomicUsize,
    /// Places `0..used` may hold a guard; the rest never did.
    used: AtomicUsize,
}

#[repr(align(128))]
struct Shard {
    list: Mutex<Waiting>,
    /// Bytes of all blocks in the list. Changed by whoever holds that.
    bytes: AtomicUsize,
}

/// Retired blocks that wait for the end of their grace period, oldest first.
#[derive(Default)]
struct Waiting {
    blocks: VecDeque<Retired>,
    /// Bytes that came since reclaiming was last tried, in blocks that count for [`SMALL`] at least.
    untried: usize,
}

struct Retired {
    token: u64,
    bytes: usize,
    epoch: u64,
}

impl Shard {
    fn new() -> Self {
        Shard { list: Mutex::default(), bytes: AtomicUsize::new(0) }
    }

    fn hold(&self) -> MutexGuard<'_, Waiting> {
        self.list.lock().expect("no panics while held")
    }

    /// Changes the count of bytes, for a caller that holds the list.
    fn count(&self, change: impl FnOnce(usize) -> usize) {
        // Relaxed, and no atomic exchange: nobody else changes it, and those who read it want a sum
        // only.
        self.bytes.store(change(self.bytes.load(Relaxed)), Relaxed);
    }
}

fn places(count: usize) -> Box<[Place]> {
    (0..count).map(|_| Place(AtomicU64::new(IDLE))).collect()
}

impl Shared {
    fn new() -> Self {
        Shared {
            chunks: [const { OnceLock::new() }; CHUNKS],
            made: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
        }
    }

    /// In which chunk place `index` is, and where there.
    fn locate(index: usize) -> (usize, usize) {
        let chunk = (index / FIRST_CHUNK + 1).ilog2() as usize;
        (chunk, index - FIRST_CHUNK * ((1 << chunk) - 1))
    }

    /// Place `index`, if it exists.
    fn get(&self, index: usize) -> Option<&Place> {
        let (chunk, offset) = Self::locate(index);
        self.chunks[chunk].get()?.get(offset)
    }

    /// Makes more places behind the first `made`, unless another thread has done so.
    #[cold]
    fn grow(&self, made: usize) {
        let (chunk, _) = Self::locate(made);
        let more = self.chunks[chunk].get_or_init(|| places(FIRST_CHUNK << chunk)).len();
        // Release: whoever knows of the places finds them.
        self.made.fetch_max(made + more, Release);
    }

    /// Takes an idle place for this announcement.
    fn take(&self, announcement: impl Fn() -> u64) -> &AtomicU64 {
        let mut from = NEXT_SHARED.get();
        loop {
            // Acquire: pairs with the release in `grow`.
            let made = self.made.load(Acquire);
            for step in 0..made {
                let at = (from + step) % made;
                let Some(Place(place)) = self.get(at) else { continue };
                if at >= self.used.load(Relaxed) {
                    // Before anything is announced in it, so that scans include it.
                    self.used.fetch_max(at + 1, SeqCst);
                }
                step_of_protocol();
                // Acquire: the guard that was here before has ended.
                if place.compare_exchange(IDLE, announcement(), Acquire, Relaxed).is_ok() {
                    // Where this thread begins to look next time: here if this guard has ended by
                    // then, and otherwise behind those that it holds.
                    NEXT_SHARED.set(at);
                    return place;
                }
            }
            // All of them hold guards.
            self.grow(made);
            from = made;
        }
    }

    /// The places that may hold a guard.
    fn used(&self) -> impl Iterator<Item = &Place> {
        // SeqCst: see `Domain::places`.
        (0..self.used.load(SeqCst)).filter_map(|at| self.get(at))
    }
}

/// A point between two steps of the protocol, at which tests let the simulator's scheduler choose
/// another thread.
#[inline(always)]
fn step_of_protocol() {
    #[cfg(test)]
    crate::sim::schedule::did(crate::sim::schedule::Did::Transient);
}

/// What a domain does with a token whose grace period is over. Must not use the domain.
pub type Reclaimer = Box<dyn Fn(u64) + Send + Sync>;

/// A set of guards and retired blocks that wait for each other. One per store.
pub struct Domain {
    global: AtomicU64,
    /// One for each thread, by its number. None where threads have to fence for themselves.
    own: Box<[Place]>,
    /// Whether more bytes wait than may.
    backed_up: AtomicBool,
    shared: Shared,
    shards: Box<[Shard]>,
    reclaim: Reclaimer,
    /// Bytes that may wait in any case, and that may wait now.
    bound: AtomicU64,
    limit: AtomicU64,
    began: Instant,
    /// When the epoch was moved on last, in nanoseconds since the domain was made: a guard that is
    /// behind is older.
    advanced: AtomicU64,
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
/// Cheap (two stores, mostly), and nests; any number may live. It can be lent to other threads, but
/// stays with the thread that made it:
///
/// ```compile_fail
/// let domain = evermap_pm::Domain::new(Box::new(|_| {}));
/// let guard = domain.pin();
/// std::thread::scope(|threads| threads.spawn(move || drop(guard)).join());
/// ```
///
/// Long-lived guards hold up the reuse of memory.
#[must_use = "a guard protects only while it lives"]
pub struct Guard<'d> {
    domain: &'d Domain,
    place: &'d AtomicU64,
    /// As a lock's guard: may be shared between threads, but not moved to another.
    stays: PhantomData<std::sync::MutexGuard<'static, ()>>,
}

/// A thread whose guard holds up the reuse of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The system's id of the thread; 0 where it is not known.
    pub thread: u32,
    /// Its name, if it lives and has one.
    pub name: Option<String>,
    /// For how long it has held the guard, at least.
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

/// More bytes wait for guards than may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// Bytes that wait.
    pub waiting: u64,
    /// Bytes that may.
    pub limit: u64,
    /// Who holds the oldest guard, if it still lives.
    pub holder: Option<Holder>,
}

impl fmt::Display for Backlog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes wait to be used again, more than the limit of {}: ",
            self.waiting, self.limit
        )?;
        match &self.holder {
            Some(holder) => holder.fmt(f),
            None => f.write_str("a guard held them up until just now"),
        }
    }
}

thread_local! {
    static ORDINAL: Cell<usize> = const { Cell::new(usize::MAX) };
    /// The system's id of this thread; 0 until it is asked for.
    static THREAD: Cell<u32> = const { Cell::new(0) };
    /// Where this thread looks for a shared place first.
    static NEXT_SHARED: Cell<usize> = const { Cell::new(0) };
    static RETURN_ORDINAL: ReturnOrdinal = const { ReturnOrdinal };
}

/// Thread numbers from here on were never given out.
static ORDINALS: AtomicUsize = AtomicUsize::new(0);

/// The system's ids of the threads that have places of their own, by their numbers.
static OWNERS: [AtomicU32; OWN] = [const { AtomicU32::new(0) }; OWN];

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
    settle_in(number);
    // Late in the end of a thread its number can no longer be given back: it is then never used again.
    let _ = RETURN_ORDINAL.try_with(|_| {});
    number
}

/// Notes who has this number now, and where threads of different numbers begin to look for shared
/// places.
fn settle_in(number: usize) {
    NEXT_SHARED.set(number);
    if let Some(owner) = OWNERS.get(number) {
        // Relaxed: for messages only.
        owner.store(thread_id(), Relaxed);
    }
}

/// The system's id of the calling thread, which no other living thread of this process has.
fn thread_id() -> u32 {
    if THREAD.get() == 0 {
        // SAFETY: this system call takes nothing and touches no memory.
        THREAD.set(unsafe { libc::gettid() } as u32);
    }
    THREAD.get()
}

/// The name of a living thread of this process.
fn name_of(thread: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/self/task/{thread}/comm")).ok()?;
    Some(name.trim_end().to_owned()).filter(|name| !name.is_empty())
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
    settle_in(number);
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
        Self::with(reclaim, register_process_fence())
    }

    /// The same; `process_fence` says whether the kernel can fence for guards.
    fn with(reclaim: Reclaimer, process_fence: bool) -> Self {
        Domain {
            global: AtomicU64::new(IDLE + 1),
            own: places(if process_fence { OWN } else { 0 }),
            backed_up: AtomicBool::new(false),
            shared: Shared::new(),
            shards: (0..SHARDS).map(|_| Shard::new()).collect(),
            reclaim,
            bound: AtomicU64::new(u64::MAX),
            limit: AtomicU64::new(u64::MAX),
            began: Instant::now(),
            advanced: AtomicU64::new(0),
        }
    }

    /// Lets the domain be [backed up](Domain::is_backed_up) once more than `bytes` wait for guards,
    /// or more than a quarter of all that [`retire_with_total`](Domain::retire_with_total) was told of, whichever
    /// is more. Without a call there is no limit.
    pub fn set_backlog_limit(&self, bytes: u64) {
        // Relaxed, here and where it is read: a limit that a thread learns of a little later does
        // as well.
        self.bound.store(bytes, Relaxed);
        self.limit.store(bytes, Relaxed);
    }

    /// Begins to protect everything reachable from now on. Never waits.
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
        Some(Guard { domain: self, place, stays: PhantomData })
    }

    /// The first guard of a thread, a guard inside another, or one that has no place of its own.
    #[cold]
    #[inline(never)]
    fn pin_slowly(&self) -> Guard<'_> {
        if let Some(guard) = self.pin_own(thread_ordinal()) {
            return guard;
        }
        let thread = u64::from(thread_id()) << EPOCH_BITS;
        // Relaxed: an older epoch than the current one holds up more, not less.
        let place = self.shared.take(|| thread | self.global.load(Relaxed) & EPOCHS);
        step_of_protocol();
        // As in `pin_own`, for the case that nobody fences for us.
        fence(SeqCst);
        Guard { domain: self, place, stays: PhantomData }
    }

    /// The places that may hold a guard. Those of which nobody knew when this was called hold none that began
    /// before.
    fn places(&self) -> impl Iterator<Item = &AtomicU64> {
        let own = self.own.len().min(ORDINALS.load(SeqCst));
        self.own[..own].iter().chain(self.shared.used()).map(|place| &place.0)
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
        self.retire_with_total(token, bytes, 0);
    }

    /// The same for a block that is one of so many bytes in `all`: where these are many, more may wait, and reclaiming is
    /// rarer.
    pub fn retire_with_total(&self, token: u64, bytes: usize, all: u64) {
        let most = (all / COLLECT_PART).clamp(*COLLECT_AT.start(), *COLLECT_AT.end());
        let shard = &self.shards[thread_ordinal() % SHARDS];
        let mut list = shard.hold();
        // Read under the lock, so that epochs in one list never decrease. SeqCst after the unlink: a guard that can
        // still see the block announced an epoch of at least this one minus one.
        fence(SeqCst);
        let epoch = self.global.load(Relaxed);
        list.blocks.push_back(Retired { token, bytes, epoch });
        shard.count(|waiting| waiting + bytes);
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
        let bound = self.bound.load(Relaxed);
        self.limit.store(bound.max(all / BACKLOG_PART), Relaxed);
        self.judge();
    }

    /// Bytes of blocks that were retired and not reclaimed yet; approximately, while others retire.
    fn bytes_waiting(&self) -> usize {
        self.shards.iter().map(|shard| shard.bytes.load(Relaxed)).sum()
    }

    /// Finds out whether more bytes wait than may.
    fn judge(&self) -> bool {
        let backed_up = self.bytes_waiting() as u64 > self.limit.load(Relaxed);
        if self.backed_up.load(Relaxed) != backed_up {
            self.backed_up.store(backed_up, Relaxed);
        }
        backed_up
    }

    /// Whether more bytes wait for guards than [may](Domain::set_backlog_limit): whoever is about to retire
    /// something should
    /// [wait](Domain::relieve) first. One load.
    #[inline(always)]
    pub fn is_backed_up(&self) -> bool {
        // Relaxed: the bytes that a few more mutations retire do not matter.
        self.backed_up.load(Relaxed)
    }

    /// Waits until no more bytes wait than may, for `patience` at most, and not at all for a guard
    /// of the calling thread.
    ///
    /// # Errors
    /// Who holds the reuse of memory up.
    pub fn reduce_backlog(&self, patience: Duration) -> Result<(), Backlog> {
        let (mut backoff, mut wait_until) = (Backoff::new(), None);
        loop {
            self.collect_all();
            if !self.judge() {
                return Ok(());
            }
            let until = *wait_until.get_or_insert_with(|| Instant::now() + patience);
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

    /// Who holds the oldest guard.
    pub fn oldest_guard(&self) -> Option<Holder> {
        let epoch = self.global.load(Relaxed);
        let own = self
            .own
            .iter()
            .zip(&OWNERS)
            .map(|(place, owner)| (place.0.load(Relaxed), owner.load(Relaxed)));
        let shared = self.shared.used().map(|place| {
            let announced = place.0.load(Relaxed);
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

    /// Moves the epoch on if every guard has seen the current one.
    fn advance(&self) -> bool {
        let epoch = self.global.load(Relaxed);
        let lags = |place: &AtomicU64| {
            step_of_protocol();
            let announced = place.load(Relaxed);
            announced != IDLE && announced & EPOCHS != epoch & EPOCHS
        };
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
        let moved = self.global.compare_exchange(epoch, epoch + 1, Release, Relaxed).is_ok();
        if moved {
            self.advanced.store(self.began.elapsed().as_nanos() as u64, Relaxed);
        }
        moved
    }

    /// Reclaims what is old enough in one list.
    fn collect(&self, shard: &Shard) {
        // Held while reclaiming too: whoever has held every list since knows that nothing taken from one is
        // still on its way.
        let mut list = shard.hold();
        let now = self.global.load(Acquire);
        while let Some(retired) = list.blocks.pop_front_if(|first| first.epoch + 2 <= now) {
            shard.count(|waiting| waiting - retired.bytes);
            (self.reclaim)(retired.token);
        }
    }

    /// Reclaims what is old enough.
    fn collect_all(&self) {
        self.shards.iter().for_each(|shard| self.collect(shard));
    }

    /// Waits until every guard alive at the call is gone.
    ///
    /// Must not be called by a thread that [holds a guard](Domain::is_pinned) of this domain: it
    /// would wait for itself.
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
        self.collect_all();
        self.judge();
    }

    /// Reclaims what was retired before the call, and waits for guards that hold it up, but not longer than so, and not if
    /// the calling thread has one.
    pub fn drain_within(&self, limit: Duration) {
        let mut wait_until = None;
        let mut backoff = Backoff::new();
        // What was retired last is reclaimed two epochs later.
        let target = self.global.load(Relaxed) + 2;
        while self.global.load(Acquire) < target {
            if self.advance() {
                continue;
            }
            let in_vain = self.bytes_waiting() == 0 || self.is_pinned();
            let until = *wait_until.get_or_insert_with(|| Instant::now() + limit);
            if in_vain || Instant::now() >= until {
                break;
            }
            backoff.wait();
        }
        self.collect_all();
        self.judge();
    }

    /// Whether the calling thread holds a guard. O(guards in shared places).
    pub fn is_pinned(&self) -> bool {
        // Relaxed: only this thread makes its place busy, or announces its name.
        let own = self.own.get(ORDINAL.get()).map_or(IDLE, |place| place.0.load(Relaxed));
        let thread = u64::from(thread_id());
        let is_ours = |place: &Place| place.0.load(Relaxed) >> EPOCH_BITS == thread;
        own != IDLE || self.shared.used().any(is_ours)
    }

    /// The state of the domain now.
    pub fn stats(&self) -> EpochStats {
        let epoch = self.global.load(Relaxed);
        let announced = self.places().map(|place| place.load(Relaxed)).filter(|&seen| seen != IDLE);
        let (guards, oldest_guard_lag) =
            announced.fold((0, 0), |(count, most), seen| (count + 1, most.max(lag(epoch, seen))));
        EpochStats { epoch, guards, oldest_guard_lag, bytes_waiting: self.bytes_waiting() }
    }
}

/// How many epochs an announcement is behind.
fn lag(epoch: u64, announced: u64) -> u64 {
    // One that is ahead of an epoch that was read before is not behind.
    let behind = epoch.wrapping_sub(announced) & EPOCHS;
    if behind > EPOCHS / 2 { 0 } else { behind }
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
        counting_with(register_process_fence())
    }

    fn counting_with(process_fence: bool) -> (Domain, Arc<Mutex<Vec<u64>>>) {
        let freed = Arc::new(Mutex::new(Vec::new()));
        let log = freed.clone();
        let reclaim = Box::new(move |token| log.lock().unwrap().push(token));
        (Domain::with(reclaim, process_fence), freed)
    }

    /// Guards that the kernel fences for, where it can, and guards that fence for themselves.
    fn ways_to_fence() -> impl Iterator<Item = bool> {
        [false, true]
            .into_iter()
            .filter(|&process_fence| !process_fence || register_process_fence())
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
    fn any_number_of_guards_nest_in_one_thread() {
        const MANY: usize = 10_000;
        for process_fence in ways_to_fence() {
            let (domain, freed) = counting_with(process_fence);
            assert!(!domain.is_pinned());
            let mut guards: Vec<_> = (0..MANY).map(|_| domain.pin()).collect();
            assert_eq!(domain.stats().guards, MANY);
            domain.retire(1, 8);
            // Not in the order in which they were made.
            let last = guards.swap_remove(MANY / 3);
            drop(guards);
            assert!(domain.is_pinned());
            domain.drain_within(Duration::ZERO);
            assert!(freed.lock().unwrap().is_empty());
            drop(last);
            assert!(!domain.is_pinned());
            domain.drain();
            assert_eq!(*freed.lock().unwrap(), [1]);
            // Places of guards that have ended are used again.
            let made = domain.shared.made.load(SeqCst);
            drop((0..MANY).map(|_| domain.pin()).collect::<Vec<_>>());
            assert_eq!(domain.shared.made.load(SeqCst), made);
            assert_eq!(domain.stats().guards, 0);
        }
    }

    #[test]
    fn a_nested_guard_takes_the_place_of_the_one_before() {
        let (domain, _) = counting();
        let _outer = domain.pin();
        (0..1000).for_each(|_| drop(domain.pin()));
        let most = thread_ordinal() + 1;
        assert!(domain.shared.used.load(SeqCst) <= most.max(FIRST_CHUNK));
    }

    /// All threads hold two guards each before any of them lets go of one.
    #[test]
    fn any_number_of_threads_hold_guards() {
        const THREADS: usize = 520;
        for process_fence in ways_to_fence() {
            let (domain, _) = counting_with(process_fence);
            let (domain, all) = (&domain, &std::sync::Barrier::new(THREADS));
            std::thread::scope(|threads| {
                for _ in 0..THREADS {
                    let thread = std::thread::Builder::new().stack_size(64 << 10);
                    let body = move || {
                        let _outer = domain.pin();
                        all.wait();
                        let _inner = domain.pin();
                        all.wait();
                        assert!(domain.is_pinned());
                    };
                    thread.spawn_scoped(threads, body).unwrap();
                }
            });
            assert_eq!(domain.stats().guards, 0);
        }
    }

    #[test]
    fn places_are_found_by_their_numbers() {
        let mut expected =
            (0..10).flat_map(|chunk| (0..FIRST_CHUNK << chunk).map(move |at| (chunk, at)));
        for index in 0..FIRST_CHUNK * 1023 {
            assert_eq!(Some(Shared::locate(index)), expected.next(), "{index}");
        }
    }

    /// Threads hand their protection from one guard to the next, in places that are being made
    /// meanwhile, while another thread retires what they read: in many orders of their steps.
    #[test]
    fn nothing_is_reclaimed_while_places_are_made() {
        use crate::sim::schedule::{Schedule, Strategy, run};
        const RETIRED: u64 = 12;
        let mut grown = 0;
        for seed in 0..400 {
            for process_fence in ways_to_fence() {
                let alive: Arc<Vec<AtomicBool>> =
                    Arc::new((0..=RETIRED).map(|_| AtomicBool::new(true)).collect());
                let dead = alive.clone();
                let reclaim = Box::new(move |token| dead[token as usize].store(false, SeqCst));
                let (domain, shared) = (Domain::with(reclaim, process_fence), AtomicU64::new(0));
                let read = || {
                    for _ in 0..3 {
                        let outer = domain.pin();
                        let inner = domain.pin();
                        let third = domain.pin();
                        drop(outer);
                        step_of_protocol();
                        let seen = shared.load(Acquire) as usize;
                        step_of_protocol();
                        drop(inner);
                        step_of_protocol();
                        assert!(alive[seen].load(SeqCst), "reclaimed under a guard, seed {seed}");
                        drop(third);
                    }
                };
                let write = || {
                    for next in 1..=RETIRED {
                        let old = shared.swap(next, SeqCst);
                        step_of_protocol();
                        domain.retire(old, *COLLECT_AT.start() as usize);
                    }
                };
                let bodies: Vec<Box<dyn FnOnce() + Send>> =
                    vec![Box::new(read), Box::new(read), Box::new(read), Box::new(write)];
                let strategy = if seed % 2 == 0 { Strategy::Random } else { Strategy::Mixed };
                run(Schedule { strategy, seed }, bodies);
                grown += u32::from(domain.shared.made.load(SeqCst) > FIRST_CHUNK);
                domain.drain();
                assert_eq!(domain.stats().bytes_waiting, 0);
            }
        }
        assert!(grown > 200, "places were made in {grown} runs only");
    }

    /// Where more waits than may, whoever asks is told who holds it up: at once if it is the caller
    /// itself.
    #[test]
    fn a_backlog_names_its_holder() {
        const LONG: Duration = Duration::from_secs(1000);
        const BLOCK: usize = 64 << 10;
        for process_fence in ways_to_fence() {
            let (domain, freed) = counting_with(process_fence);
            domain.set_backlog_limit(3 * BLOCK as u64);
            let (held, over) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
            std::thread::scope(|threads| {
                let holder = std::thread::Builder::new().name("holder".into());
                let body = || {
                    let _outer = domain.pin();
                    let _inner = domain.pin();
                    held.wait();
                    over.wait();
                    let backlog = domain.reduce_backlog(LONG).unwrap_err();
                    assert_eq!(backlog.holder.unwrap().thread, thread_id());
                    thread_id()
                };
                let holder = holder.spawn_scoped(threads, body).unwrap();
                held.wait();
                for token in 0..4 {
                    assert!(!domain.is_backed_up(), "after {token} blocks");
                    domain.retire(token, BLOCK);
                }
                assert!(domain.is_backed_up());
                let backlog = domain.reduce_backlog(Duration::ZERO).unwrap_err();
                assert_eq!((backlog.waiting, backlog.limit), (4 * BLOCK as u64, 3 * BLOCK as u64));
                let named = backlog.holder.unwrap();
                assert_eq!(named.name.as_deref(), Some("holder"));
                assert!(named.to_string().contains("(\"holder\") has held a guard for at least"));
                over.wait();
                assert_eq!(holder.join().unwrap(), named.thread);
            });
            domain.reduce_backlog(LONG).unwrap();
            assert!(!domain.is_backed_up());
            domain.drain();
            assert_eq!(*freed.lock().unwrap(), [0, 1, 2, 3]);
            // Of much more, more may wait.
            let _guard = domain.pin();
            domain.retire_with_total(4, 64 * BLOCK, 256 * BLOCK as u64);
            assert!(!domain.is_backed_up());
            domain.retire_with_total(5, BLOCK, 256 * BLOCK as u64);
            domain.retire_with_total(6, 64 * BLOCK, 256 * BLOCK as u64);
            assert!(domain.is_backed_up());
        }
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
        let (domain, freed) = counting_with(false);
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
            let own = domain.pin();
            domain.drain_within(LONG);
            assert!(freed.lock().unwrap().is_empty());
            drop(own);
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
