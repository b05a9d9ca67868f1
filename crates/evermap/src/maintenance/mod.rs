//! What has to be done that no operation waits for: sweeping after an unclean stop, [removing what is expired or
//! flushed](crate::maintenance::expire), [freeing what dropped maps had](crate::map::catalog), and [moving records
//! together](crate::maintenance::compact).

pub(crate) mod census;
pub(crate) mod check;
pub(crate) mod compact;
pub(crate) mod expire;
pub(crate) mod stats;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use evermap_index::Visitor;
use evermap_index::record::OFFSET_MASK;
use evermap_pm::sync::{Condvar, Mutex, MutexGuard};
use evermap_pm::{ErrorKind, Medium};

use crate::maintenance::census::{Census, Totals};
use crate::record::Record;
use crate::{Error, Evermap, Map, Result};

/// A part of an index that is there sooner was in memory.
const SWEEP_NOTICED: Duration = Duration::from_millis(1);
/// How long a mutation that lacks space waits for a sweep to find some.
const SWEEP_WAIT: Duration = Duration::from_secs(2);
/// How long a mutation that lacks space waits for a walk to find dead records, and how often it looks whether there is some.
const PURGE_WAIT: Duration = Duration::from_secs(2);
const PURGE_LOOK: Duration = Duration::from_millis(10);
/// Shortest time between two walks that nobody waits for, and before the first.
const WALK_PAUSE: Duration = Duration::from_secs(60);
/// Such walks take at most about one part in this many of the time.
const WALK_SHARE: u32 = 100;
/// Shortest time between two looks whether there is something to compact.
const COMPACT_PAUSE: Duration = Duration::from_secs(1);
/// A compaction takes at most about one part in this many of the time.
const COMPACT_SHARE: u32 = 4;

/// Where the sweep after an unclean stop is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SweepState {
    /// The last stop was orderly.
    NotNeeded,
    /// It has not begun.
    Pending,
    /// It is running.
    Running,
    /// It took this long.
    Done(Duration),
    /// It could not be completed: space from before stays unused, and counts stay inexact.
    Failed(String),
}

impl std::fmt::Display for SweepState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SweepState::NotNeeded => f.pad("not needed"),
            SweepState::Pending => f.pad("pending"),
            SweepState::Running => f.pad("running"),
            SweepState::Done(took) => write!(f, "done in {:.1} ms", took.as_secs_f64() * 1e3),
            SweepState::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

/// What is to be done at once.
#[derive(Clone, Copy, Debug, Default)]
struct Wanted {
    /// A flush has left something to remove.
    purge: bool,
    /// A map was dropped, and its space is not free yet.
    reclaim: bool,
}

impl Wanted {
    fn any(self) -> bool {
        self.purge || self.reclaim
    }
}

/// State of the maintenance of one file.
pub(crate) struct Maintenance {
    sweep: Mutex<SweepState>,
    swept: Condvar,
    /// Whether dropped maps have something to free.
    reclaim_pending: AtomicBool,
    /// Whether a thread in the background sweeps as soon as it can.
    has_thread: AtomicBool,
    /// Held by whoever sweeps, purges, moves records or frees maps, or must not be disturbed by that.
    sweeping: Mutex<()>,
    stop: AtomicBool,
    wanted: Mutex<Wanted>,
    changed: Condvar,
    /// Signalled when a walk has removed something, and when it ends.
    purged_some: Condvar,
    /// Whether all maps of the file were opened and walked through, or made since.
    pub(crate) looked: AtomicBool,
    /// Walks so far.
    pub(crate) purges: AtomicU64,
    /// Records that were removed because they were dead.
    pub(crate) purged: AtomicU64,
}

impl Maintenance {
    /// `is_new`: there are no records, and no maps that are not open.
    pub(crate) fn new(needs_sweep: bool, is_new: bool) -> Self {
        Maintenance {
            sweep: Mutex::new(if needs_sweep {
                SweepState::Pending
            } else {
                SweepState::NotNeeded
            }),
            swept: Condvar::new(),
            reclaim_pending: AtomicBool::new(false),
            has_thread: AtomicBool::new(false),
            sweeping: Mutex::new(()),
            stop: AtomicBool::new(false),
            wanted: Mutex::default(),
            changed: Condvar::new(),
            purged_some: Condvar::new(),
            looked: AtomicBool::new(is_new),
            purges: AtomicU64::new(0),
            purged: AtomicU64::new(0),
        }
    }

    /// Waits until nobody sweeps, purges or moves records, and keeps it so.
    pub(crate) fn sweeping(&self) -> MutexGuard<'_, ()> {
        // A sweep that panicked has poisoned the store.
        self.sweeping.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The same without waiting: nothing if somebody is at it.
    pub(crate) fn try_sweeping(&self) -> Option<MutexGuard<'_, ()>> {
        self.sweeping.try_lock().ok()
    }

    pub(crate) fn sweep_state(&self) -> SweepState {
        self.sweep.lock().expect("no panics while held").clone()
    }

    fn set_sweep_state(&self, state: SweepState) {
        *self.sweep.lock().expect("no panics while held") = state;
        self.swept.notify_all();
    }

    /// Notes that a thread in the background is being started.
    pub(crate) fn set_has_thread(&self) {
        self.has_thread.store(true, Relaxed);
    }

    /// Gives what frees space in the background some time to end; returns whether it has, or nothing was under way.
    #[cold]
    pub(crate) fn wait_for_space(&self) -> bool {
        let ahead = |state: &mut SweepState| {
            let has_thread = self.has_thread.load(Relaxed) && !self.is_stopping();
            let begun = *state == SweepState::Running;
            begun
                || has_thread
                    && (*state == SweepState::Pending || self.reclaim_pending.load(Relaxed))
        };
        let state = self.sweep.lock().expect("no panics while held");
        // Not for ever: it may itself be waiting for a reader of the calling thread.
        let waited = self.swept.wait_timeout_while(state, SWEEP_WAIT, ahead);
        let (state, waited) = waited.expect("no panics while held");
        drop(state);
        !waited.timed_out()
    }

    /// Lets the thread in the background walk through all records, and waits until `enough`, but not for long; returns whether
    /// there is such a thread.
    #[cold]
    pub(crate) fn wait_for_walk(&self, enough: impl Fn() -> bool) -> bool {
        if !self.has_thread.load(Relaxed) || self.is_stopping() {
            return false;
        }
        self.want_purge();
        let until = Instant::now() + PURGE_WAIT;
        let mut wanted = self.wanted.lock().expect("no panics while held");
        // Looked at again now and then, since what is signalled in between is missed.
        while !enough() && !self.is_stopping() && Instant::now() < until {
            let waited = self.purged_some.wait_timeout(wanted, PURGE_LOOK);
            wanted = waited.expect("no panics while held").0;
        }
        true
    }

    /// A walk has removed something, or has ended.
    pub(crate) fn has_purged(&self) {
        self.purged_some.notify_all();
    }

    /// Ends all maintenance soon.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Relaxed);
        let _wanted = self.wanted.lock().expect("no panics while held");
        self.changed.notify_all();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        // Relaxed: only says that the work is no longer wanted.
        self.stop.load(Relaxed)
    }

    /// A flush has left something to remove.
    pub(crate) fn want_purge(&self) {
        self.want(|wanted| wanted.purge = true);
    }

    /// A map was dropped.
    pub(crate) fn want_reclaim(&self) {
        self.reclaim_pending.store(true, Relaxed);
        self.want(|wanted| wanted.reclaim = true);
    }

    /// What dropped maps had is free now, unless others were dropped meanwhile.
    pub(crate) fn set_reclaimed(&self, all: bool) {
        let _state = self.sweep.lock().expect("no panics while held");
        self.reclaim_pending.store(!all, Relaxed);
        self.swept.notify_all();
    }

    /// A map was opened whose counts do not verify.
    pub(crate) fn want_census(&self) {
        let mut state = self.sweep.lock().expect("no panics while held");
        if matches!(*state, SweepState::NotNeeded | SweepState::Done(_)) {
            *state = SweepState::Pending;
        }
        drop(state);
        self.changed.notify_all();
    }

    fn want(&self, what: impl FnOnce(&mut Wanted)) {
        what(&mut self.wanted.lock().expect("no panics while held"));
        self.changed.notify_all();
    }

    /// Waits for `pause`, or until something is to be done at once. Answers what; nothing if all maintenance is to end.
    fn wait(&self, pause: Duration) -> Option<Wanted> {
        let wanted = self.wanted.lock().expect("no panics while held");
        let idle = |wanted: &mut Wanted| !wanted.any() && !self.is_stopping();
        let waited = self.changed.wait_timeout_while(wanted, pause, idle);
        let (mut wanted, _) = waited.expect("no panics while held");
        (!self.is_stopping()).then(|| std::mem::take(&mut *wanted))
    }
}

impl<M: Medium> Evermap<M> {
    /// After an unclean stop: finds out which space of the file is in use, so that the rest can be reused, repairs every
    /// part of the index of each map on the way, and counts records. Does nothing if that is done or not needed.
    ///
    /// Reads the indexes and no records. Other operations may go on meanwhile. O(n), 0.1 to 0.5 µs a record if the
    /// indexes are in memory.
    /// [`Evermap`](crate::Evermap) calls it in the background.
    ///
    /// # Errors
    /// [`Error::GuardHeld`](crate::Error::GuardHeld).
    /// [`Error::Storage`](crate::Error::Storage) with `Damaged` where a part of an index cannot be read, and
    /// [`Error::MapDamaged`](crate::Error::MapDamaged) where a map cannot be opened: space from before stays unused then.
    pub fn recover(&self) -> Result<()> {
        self.ensure_no_guard("recover")?;
        let _sweeping = self.file.maintenance.sweeping();
        if !matches!(self.file.maintenance.sweep_state(), SweepState::Pending) || self.is_closed() {
            return Ok(());
        }
        self.file.pool.region().ensure_writable()?;
        self.file.maintenance.set_sweep_state(SweepState::Running);
        let began = Instant::now();
        let swept = self.sweep().map_err(|error| match self.file.maintenance.is_stopping() {
            true => Error::Closed,
            false => error,
        });
        self.file.maintenance.set_sweep_state(match &swept {
            Ok(()) => SweepState::Done(began.elapsed()),
            Err(_) if self.file.maintenance.is_stopping() => SweepState::Pending,
            Err(error) => SweepState::Failed(error.to_string()),
        });
        swept
    }

    fn sweep(&self) -> Result<()> {
        // Maps that are made from here on have nothing in old extents.
        let (stores, problem) = match self.file.pool.medium().mutant("MA-3") {
            false => self.all_maps_and_dropped()?,
            true => self.all_maps()?,
        };
        self.read_parts_ahead();
        let (mut census, mut found) = (Census::default(), vec![Totals::default(); stores.len()]);
        let mut visit = |mark: &mut dyn FnMut(u64)| {
            let mut visited = Ok(());
            for (store, found) in stores.iter().zip(&mut found) {
                store.inner.header.block().into_iter().for_each(&mut *mark);
                let mut sweeper = Sweeper { store, mark, census: &mut census, found };
                // Whatever else can be read is recovered on the way.
                visited = visited.and(store.inner.index.visit(&mut sweeper));
            }
            visited?;
            if self.file.maintenance.is_stopping() { Err(interrupted()) } else { Ok(()) }
        };
        if let Some(problem) = problem {
            // What cannot be opened cannot be marked.
            let _ = visit(&mut |_| {});
            return Err(problem);
        }
        if self.file.pool.is_swept() {
            // An orderly stop, but its counts do not verify: only count.
            visit(&mut |_| {})?;
            self.file.pool.epoch().synchronize();
        } else {
            self.file.pool.sweep(visit)?;
        }
        for (store, found) in stores.iter().zip(found) {
            store.inner.counters.settle(&mut census, found);
            store.inner.set_bound(&self.file.pool);
        }
        Ok(())
    }

    /// Brings the indexes into memory in the order of the file, before the sweep visits them in the order of the keys' hashes.
    ///
    /// A part at a time, with a pause after each as long as it took: so at most half of what the disk can do is taken
    /// from reads that wait for it, and hardly any time where all is in memory.
    fn read_parts_ahead(&self) {
        for range in self.file.pool.old_parts() {
            let began = Instant::now();
            self.file.pool.medium().read_ahead(range);
            if self.file.maintenance.is_stopping() {
                return;
            }
            let took = began.elapsed();
            if took >= SWEEP_NOTICED {
                std::thread::sleep(took);
            }
        }
    }

    /// The background thread: sweeps, then purges and compacts when there is reason to, until the store is
    /// closed. A panic in it poisons the store.
    pub(crate) fn run_maintenance(&self) {
        let poison = self.file.pool.region().poison_on_panic();
        // Whatever goes wrong here is in `stat`, or every operation that meets it says so.
        let _ = self.recover();
        let mut walk_at = Instant::now() + WALK_PAUSE;
        let mut pause = Duration::ZERO;
        while let Some(wanted) = self.file.maintenance.wait(pause) {
            if wanted.reclaim {
                let _ = self.reclaim_dropped();
            }
            // A map may have been opened whose counts do not verify.
            let _ = self.recover();
            let began = Instant::now();
            if wanted.purge || began >= walk_at && self.is_walk_due() {
                let _ = self.purge();
                walk_at = Instant::now() + WALK_PAUSE.max(began.elapsed() * WALK_SHARE);
            } else {
                let _ = self.purge_expired();
            }
            self.tighten_bounds();
            let began = Instant::now();
            let _ = self.compact();
            pause = COMPACT_PAUSE.max(began.elapsed() * (COMPACT_SHARE - 1));
        }
        poison.disarm();
    }

    /// Lowers what the file says that records take at most, where that is far more than they take.
    fn tighten_bounds(&self) {
        let poisoned = self.file.pool.region().ensure_writable().is_err();
        for store in self.open_maps().iter().filter(|_| !poisoned) {
            if store.inner.counters.is_bound_loose() {
                store.inner.set_bound(&self.file.pool);
            }
        }
    }
}

/// Ends a sweep that closing the store has interrupted. [`Evermap::recover`] reports it as [`Error::Closed`].
fn interrupted() -> evermap_pm::Error {
    ErrorKind::Config("the store is being closed".into()).into()
}

/// Marks every block that the index names, and counts the records of earlier openings. It looks at no record, since these can
/// be many times as much to read as the indexes.
struct Sweeper<'s, M: Medium> {
    store: &'s Map<M>,
    mark: &'s mut dyn FnMut(u64),
    census: &'s mut Census,
    found: &'s mut Totals,
}

impl<M: Medium> Sweeper<'_, M> {
    /// Bytes of the record that `word` names, if it was stored before this opening; 0 if it cannot be read.
    fn old_bytes(&self, word: u64) -> Option<u64> {
        let (pool, offset) = (&self.store.db.file.pool, word & OFFSET_MASK);
        if !pool.is_swept() {
            // What was stored since is in other extents, and was counted when it was stored.
            return pool.old_block(offset);
        }
        // The last stop was orderly, but counts are missing. Old and new records share extents, so only their CAS ids tell
        // which is which.
        match Record::at(pool.medium(), word) {
            Ok(record) => (record.cas() < self.store.db.file.cas_counter.first())
                .then(|| pool.block_size(record.bytes())),
            Err(_) => (offset < pool.medium().len()).then_some(0),
        }
    }
}

impl<M: Medium> Visitor for Sweeper<'_, M> {
    fn block(&mut self, offset: u64) {
        (self.mark)(offset);
    }

    fn word(&mut self, word: u64) {
        if self.store.db.file.maintenance.is_stopping() {
            return;
        }
        let offset = word & OFFSET_MASK;
        (self.mark)(offset);
        if let Some(bytes) = self.old_bytes(word) {
            self.census.count(self.found, offset, bytes);
        }
    }
}
