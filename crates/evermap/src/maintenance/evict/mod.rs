//! Eviction: making space in a cache by removing what is unlikely to be read again.
//!
//! A file that is opened with [`Options::evict`](crate::Options::evict) and a
//! [limit](crate::Options::memory_limit) is a cache. A thread in the background keeps some space
//! free, so that mutations find it; a mutation that is faster than this thread makes space itself.
//! What has expired goes first.
//!
//! * [`need`] decides whether space has to be made, and for which sizes.
//! * [`hand`] chooses the records that go: it passes over the extents of the file in turn.
//! * [`course`] has what hands know, and keep.
//! * [`empty`] moves what is left in sparse extents together, so that the space of one size can
//!   serve another.
//! * [`neighbours`] moves or evicts what is between free units, where enough are free for a record,
//!   but not in one place.
//! * [`limits`] has the limit in effect, and how long the file may become for it.
//! * [`own`] makes room in a map that evicts its own records within its own limit.
//!
//! An eviction is a removal like any other, under the lock of the key, and only if the record is
//! still the one that was chosen. Nothing about it is in the file but [how each record was
//! read](crate::record::access), so that there is nothing to recover.

pub(crate) mod course;
mod empty;
mod hand;
mod limits;
mod need;
mod neighbours;
mod own;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use evermap_pm::Medium;
use evermap_pm::sync::{Condvar, Mutex, MutexGuard, Rank};

use crate::error::Shortage;
use crate::trace::Evictions;
use crate::{Error, Evermap, Map, Result};
use hand::Hand;
use limits::Limits;
use need::{Demands, Goal, Need};

/// How often the thread in the background looks although nothing has woken it: less and less often
/// while it finds nothing that can be evicted.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_SELDOM: Duration = Duration::from_secs(64);
/// How long it waits for readers that keep space from being reused.
const READERS: Duration = Duration::from_millis(10);
/// Bytes that wait for readers at a time while a file is reduced to a lower limit.
const WAITING_AT_ONCE: u64 = 4 << 20;
/// How long a mutation waits for them.
const READER_WAIT: Duration = Duration::from_millis(500);
/// The number of times that a mutation makes space and finds that others have taken it.
const ATTEMPTS: u32 = 64;
/// Records of the default map that take less than this part of the limit are not searched for:
/// nearly all that the hand would pass over is something else.
const LITTLE_PART: u64 = 64;
/// The number of times in a row that it finds nothing to be made, and none left.
const STALLS: u32 = 8;

/// A record that was evicted: what [`Evermap::on_evict`] passes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Evicted<'e> {
    /// The key.
    pub key: &'e [u8],
    /// Length of the value, in bytes.
    pub value_len: usize,
    /// Bytes that the record took.
    pub bytes: u64,
    /// The time that it would still have lived; `None` if it never expired.
    pub ttl: Option<Duration>,
    /// The time since the last access, up to 8 seconds too short or too long.
    pub idle: Duration,
    /// Whether it was ever read.
    pub fetched: bool,
}

/// What is called with every record that is evicted: see [`Evermap::on_evict`].
pub type EvictionListener = Box<dyn Fn(&Evicted<'_>) + Send + Sync>;

type SharedListener = Arc<dyn Fn(&Evicted<'_>) + Send + Sync>;

/// The state of eviction in one file.
pub(crate) struct Evictor {
    /// Held by the thread that evicts.
    hand: Mutex<(Hand, Demands)>,
    limits: Mutex<Limits>,
    /// Whether the thread in the background is to look.
    wanted: Mutex<bool>,
    changed: Condvar,
    listener: Mutex<Option<SharedListener>>,
    is_watched: AtomicBool,
    pub(crate) counts: Counts,
}

/// What was evicted since opening.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) evictions: AtomicU64,
    /// Those of them that were never read.
    pub(crate) evicted_unfetched: AtomicU64,
    /// Bytes of their blocks.
    pub(crate) evicted_bytes: AtomicU64,
    /// Evictions by mutations that found no space.
    pub(crate) direct: AtomicU64,
    /// Seconds since the last access of the record that was evicted last.
    pub(crate) idle: AtomicU64,
    /// Records that expired without having been read.
    pub(crate) expired_unfetched: AtomicU64,
    /// Records that were moved to make space.
    pub(crate) moved: AtomicU64,
}

impl Evictor {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Evictor {
            hand: Mutex::ranked(Rank::Hand, (Hand::new(), Demands::new())),
            limits: Mutex::ranked(Rank::Limits, Limits::new()),
            wanted: Mutex::ranked(Rank::Leaf, false),
            changed: Condvar::new(),
            listener: Mutex::ranked(Rank::Leaf, None),
            is_watched: AtomicBool::new(false),
            counts: Counts::default(),
        })
    }

    /// Has the thread in the background look whether space is to be made. Never waits for long, so
    /// that it can be called under locks.
    pub(crate) fn wake(&self) {
        *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits until space is to be made, or for a while.
    fn wait(&self, pause: Duration) {
        let wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(wanted, pause, |wanted| !*wanted);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }

    /// Keeps all threads from evicting until the guard is dropped.
    pub(crate) fn hold(&self) -> MutexGuard<'_, impl Sized> {
        self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, (Hand, Demands)> {
        // A panic of the medium under it has poisoned the store.
        self.hand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listener(&self) -> Option<SharedListener> {
        // Relaxed: an eviction that runs beside the call that sets it may be missed.
        if !self.is_watched.load(Relaxed) {
            return None;
        }
        self.listener.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// How space is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// Ahead of need, in the background.
    Ahead,
    /// By a mutation that needs it.
    Direct,
    /// By a mutation, within the limit of its map.
    Own,
}

impl<M: Medium> Evermap<M> {
    /// Sets what is called with every record that is evicted, or nothing. Returns when a call to
    /// the previous one that is under way may still have to end.
    ///
    /// `listener` is called by the thread that evicts, which may be one that stores a record,
    /// without any lock or guard. It should be quick.
    ///
    /// ```
    /// use evermap::{Evermap, Options};
    /// let db = Evermap::in_memory(Options::new().evict(true).memory_limit(64 << 20))?;
    /// db.on_evict(Some(Box::new(|evicted| {
    ///     println!("{:?} was not read for {:?}", evicted.key, evicted.idle);
    /// })));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn on_evict(&self, listener: Option<EvictionListener>) {
        let evictor = &self.file.maintenance.evictor;
        let mut current = evictor.listener.lock().unwrap_or_else(PoisonError::into_inner);
        evictor.is_watched.store(listener.is_some(), Relaxed);
        *current = listener.map(Arc::from);
    }

    /// [`evict_if_due`](Evermap::evict_if_due).
    pub(crate) fn evict_due(&self) -> Result<u64> {
        self.ensure_no_guard("evict_if_due")?;
        self.file.ensure_writable()?;
        let counts = &self.file.maintenance.evictor.counts;
        let before = counts.evictions.load(Relaxed);
        if self.evicts() {
            self.evict_ahead()?;
        }
        Ok(counts.evictions.load(Relaxed) - before)
    }

    /// Returns `true` if the file is a cache: the default map evicts records.
    pub(crate) fn evicts(&self) -> bool {
        self.file.default.evicts()
    }

    /// Returns the map whose records go so that the file stays within its limit: the default one
    /// as long as it has some, and then, of the maps that evict their own, that which is nearest to
    /// its limit.
    fn map_to_give_way(&self) -> Map<M> {
        let default = self.default_map();
        if default.inner.counters.most_bytes() > self.file.pool.heap().room().limit / LITTLE_PART {
            return default;
        }
        let part = |map: &Map<M>| {
            let limit = map.inner.max_bytes.load(Relaxed).max(1);
            map.inner.counters.most_bytes() as f64 / limit as f64
        };
        let own = self.open_maps().into_iter().filter(Map::evicts_own);
        own.max_by(|a, b| part(a).total_cmp(&part(b))).unwrap_or(default)
    }

    /// Runs in a thread in the background until the store is closed: evicts when space becomes
    /// short. A panic in it poisons the store.
    pub(crate) fn run_evictor(&self) {
        let poison = self.file.pool.region().poison_on_panic();
        let (maintenance, mut pause) = (&self.file.maintenance, LOOK);
        while !maintenance.is_stopping() {
            // A failure is returned by every mutation that meets it.
            let is_useful = self.evict_ahead().unwrap_or(false);
            pause = if is_useful { LOOK } else { LOOK_SELDOM.min(pause * 2) };
            maintenance.evictor.wait(pause);
        }
        poison.disarm();
    }

    /// Makes as much space as there should be ahead of need. Returns `true` if there was as much,
    /// or if it has evicted anything.
    fn evict_ahead(&self) -> Result<bool> {
        let pool = &self.file.pool;
        // Until the sweep it is not known what is free, and nothing would become free.
        if pool.heap().room().limit == u64::MAX || !pool.is_swept() {
            return Ok(true);
        }
        self.raise_limit();
        let evictions = || self.file.maintenance.evictor.counts.evictions.load(Relaxed);
        let first = evictions();
        loop {
            let before = evictions();
            self.return_excess();
            let passed = self.reach_goal()?;
            self.return_excess();
            // One goal is not enough where the limit was lowered by much.
            let (room, gone) = (pool.heap().room(), evictions() > before);
            if room.used <= room.limit || !gone || self.file.maintenance.is_stopping() {
                return Ok(passed == 0 || evictions() > first);
            }
        }
    }

    /// Makes space until there is as much as there should be, or no more can be made at present.
    /// Returns the number of bytes that were passed over.
    fn reach_goal(&self) -> Result<u64> {
        let pool = &self.file.pool;
        let goal = Goal::ahead(pool.heap().room().limit, pool.region().unit());
        let mut passes = Passes::new(goal);
        while !self.file.maintenance.is_stopping() {
            pool.region().ensure_writable()?;
            if !self.make_some(&mut passes, Manner::Ahead)? {
                break;
            }
        }
        Ok(passes.passed)
    }

    /// Returns the memory of free units to the system as far as the limit demands it.
    fn return_excess(&self) {
        let heap = self.file.pool.heap();
        while heap.return_excess(need::RETURNED_AT_ONCE) && !self.file.maintenance.is_stopping() {}
    }

    /// Evicts records because a mutation lacked `missing` bytes, and calls `attempt` again, until
    /// it does not fail for lack of space, or nothing more can be evicted.
    ///
    /// # Errors
    /// [`Error::Full`] if there cannot be as much space.
    #[cold]
    pub(crate) fn evict_and_retry<R>(
        &self,
        mut answer: Result<R>,
        attempt: &mut impl FnMut() -> Result<R>,
    ) -> Result<R> {
        let (pool, mut stalls) = (&self.file.pool, 0);
        for _ in 0..ATTEMPTS {
            let Some(shortage) = shortage_of(&answer) else { return answer };
            if !pool.is_swept() || pool.epoch().is_pinned() {
                return answer;
            }
            let made = match shortage {
                Shortage::Limit { missing } => {
                    self.make_units(pool.heap().room().left() + missing)?
                }
                Shortage::Neighbours { needed } => self.make_neighbours(needed)?,
                Shortage::Disk { missing } => {
                    self.take_what_there_is();
                    self.make_units(missing)?;
                    true
                }
            };
            answer = attempt();
            // Others may have made space, and others have taken it.
            stalls = if made { 0 } else { stalls + 1 };
            if stalls == STALLS {
                break;
            }
        }
        answer
    }

    /// Evicts records until `wanted` bytes are free in units, or no more can be evicted at present.
    /// Returns `true` if they are free.
    ///
    /// # Errors
    /// [`Error::Full`] if there cannot be as much space, or not in one place.
    fn make_units(&self, wanted: u64) -> Result<bool> {
        let (pool, room) = (&self.file.pool, self.file.pool.heap().room());
        let is_possible = wanted <= room.limit.saturating_sub(self.unevictable_bytes())
            && (wanted <= self.largest_shared_block() || pool.heap().can_have_neighbours(wanted));
        if !is_possible {
            return Err(Error::Full { limit: room.limit, needed: wanted });
        }
        let mut passes = Passes::new(Goal::direct(room.limit, pool.region().unit(), wanted));
        // Only as much as is needed now: more is left to the thread in the background, which has
        // been woken.
        while self.make_some(&mut passes, Manner::Direct)? {
            pool.epoch().drain_within(READER_WAIT);
            if pool.heap().room().left() >= wanted || passes.steps >= need::DIRECT_STEPS {
                break;
            }
        }
        Ok(pool.heap().room().left() >= wanted)
    }

    /// Returns the size of the largest blocks that share an extent, so that they need few
    /// neighbouring units.
    fn largest_shared_block(&self) -> u64 {
        self.file.pool.region().extent_size() / 8
    }

    /// Returns the bytes of what eviction cannot remove: the header, the table, and the extents of
    /// the indexes.
    fn unevictable_bytes(&self) -> u64 {
        let heap = self.file.pool.heap();
        let (mut movable, mut at) = (0, 0);
        while let Some(extent) = heap.extent_from(at) {
            movable += extent.bytes;
            at = extent.next;
        }
        heap.room().used.saturating_sub(movable)
    }

    /// Makes some of the space that is needed. Returns `false` if none is needed, or no more can be
    /// made at present.
    fn make_some(&self, passes: &mut Passes, manner: Manner) -> Result<bool> {
        let evictor = &self.file.maintenance.evictor;
        let mut events = Vec::new();
        let counts = &evictor.counts;
        let totals = || (counts.evictions.load(Relaxed), counts.evicted_bytes.load(Relaxed));
        let evictions = Evictions::begin(totals);
        let done = {
            let (hand, demands) = &mut *evictor.lock();
            self.make_some_under(hand, demands, passes, manner, &mut events)
        };
        evictions.end(totals, manner == Manner::Direct);
        self.show_evictions(&events);
        done
    }

    /// Calls the listener. Without the lock, because it may use the store.
    fn show_evictions(&self, events: &[hand::Event]) {
        let evictor = &self.file.maintenance.evictor;
        if let Some(listener) = evictor.listener().filter(|_| !events.is_empty()) {
            events.iter().for_each(|event| event.show(&*listener));
        }
    }

    fn make_some_under(
        &self,
        hand: &mut Hand,
        demands: &mut Demands,
        passes: &mut Passes,
        manner: Manner,
        events: &mut Vec<hand::Event>,
    ) -> Result<bool> {
        let heap = self.file.pool.heap();
        let waiting = || self.file.pool.epoch_stats().bytes_waiting as u64;
        let (before, room) = (waiting(), heap.room());
        // After the limit was lowered by much, more waits for readers at a time.
        let excess = room.used.saturating_sub(room.limit).min(WAITING_AT_ONCE);
        match demands.need(heap, &passes.goal, before.saturating_sub(excess)) {
            Need::Nothing { budget } => {
                heap.set_budget(Some(budget));
                return Ok(false);
            }
            // What was evicted waits for readers. More would wait as well.
            Need::Readers => {
                let wait = if manner == Manner::Ahead { READERS } else { READER_WAIT };
                self.file.pool.epoch().drain_within(wait);
                passes.waits += u32::from(waiting() >= before);
                return Ok(passes.waits < need::READER_WAITS);
            }
            Need::Units { missing, sparse } => {
                passes.steps += 1;
                if let Some(size) = sparse
                    && self.empty_extents(size, passes.goal.step().max(missing))? > 0
                {
                    return Ok(true);
                }
            }
            Need::Blocks => passes.steps += 1,
        }
        // What has expired first. A failure to remove leaves things as they are.
        let map = self.map_to_give_way();
        if map.remove_expired(need::EXPIRED_AT_ONCE).is_ok_and(|gone| gone > 0) {
            self.file.pool.epoch().drain_within(READERS);
            return Ok(true);
        }
        let (bar, step) = (passes.bar(), passes.goal.step());
        let passed = match map.evicts_own() {
            true => map.pass_own(step, bar, events)?,
            false => self.pass(hand, step, bar, manner, events)?.bytes,
        };
        passes.passed += passed;
        if passes.passed >= passes.goal.passed_per_bar() / 2 && !passes.has_returned {
            // In a small cache, these keep many extents from becoming free.
            passes.has_returned = true;
            heap.return_claimed();
        }
        if waiting() >= excess {
            self.file.pool.epoch().drain_within(READERS);
        }
        Ok(passed > 0 && passes.passed <= passes.goal.most_passed())
    }
}

/// How much was passed over to reach one goal.
struct Passes {
    goal: Goal,
    /// Bytes of extents that the hand has passed over.
    passed: u64,
    steps: u32,
    /// How often readers were waited for without effect.
    waits: u32,
    /// Whether blocks that threads had claimed were returned.
    has_returned: bool,
}

impl Passes {
    fn new(goal: Goal) -> Self {
        Passes { goal, passed: 0, steps: 0, waits: 0, has_returned: false }
    }

    /// Returns the largest frequency of records that are evicted: it rises while too few are.
    fn bar(&self) -> u16 {
        (self.passed / self.goal.passed_per_bar()).min(3) as u16
    }
}

/// Returns what a mutation lacked, if that is why it failed.
pub(crate) fn shortage_of<R>(answer: &Result<R>) -> Option<Shortage> {
    match answer {
        Err(Error::Storage(error)) => error.shortage(),
        _ => None,
    }
}
