//! Maintenance, which no operation waits for: [sweeping](sweep) after an unclean shutdown,
//! [removing what is expired or flushed](expire), [reclaiming what dropped maps
//! occupied](crate::map::catalog), [moving records together](compact) or [in the order of their
//! keys](arrange), and, in a cache, [evicting](evict).

pub(crate) mod arrange;
pub(crate) mod census;
pub(crate) mod check;
pub(crate) mod compact;
pub(crate) mod cost;
pub(crate) mod evict;
pub(crate) mod expire;
pub(crate) mod probe;
pub(crate) mod stats;
pub(crate) mod sweep;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use evermap_pm::Medium;
use evermap_pm::sync::{Condvar, Mutex, MutexGuard, Rank};

use crate::Evermap;
use crate::maintenance::evict::Evictor;
use crate::maintenance::sweep::SweepState;

/// How long a mutation that lacks space waits for a sweep to find some.
const SWEEP_WAIT: Duration = Duration::from_secs(2);
/// How long a mutation that lacks space waits for a walk to find dead records, and how often it
/// looks for space.
const PURGE_WAIT: Duration = Duration::from_secs(2);
const PURGE_LOOK: Duration = Duration::from_millis(10);
/// Shortest time between two walks that no mutation waits for, and before the first.
const WALK_PAUSE: Duration = Duration::from_secs(60);
/// Such walks take at most about one part in this of the time.
const WALK_SHARE: u32 = 100;
/// Shortest time between two attempts to compact.
const COMPACT_PAUSE: Duration = Duration::from_secs(1);
/// Compaction takes at most about one part in this of the time.
const COMPACT_SHARE: u32 = 4;

/// What is to be done without waiting for the next round.
#[derive(Clone, Copy, Debug, Default)]
struct Wanted {
    /// A flush has left something to remove.
    purge: bool,
    /// A map was dropped, and its space is not reclaimed yet.
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
    /// Whether dropped maps have space that is not reclaimed yet.
    reclaim_pending: AtomicBool,
    /// Whether a thread in the background sweeps as soon as it can.
    has_thread: AtomicBool,
    /// Held while a thread sweeps, purges, moves records or reclaims maps, and by a thread that
    /// must not be disturbed by that.
    sweeping: Mutex<()>,
    stop: AtomicBool,
    wanted: Mutex<Wanted>,
    changed: Condvar,
    /// Signalled when a walk has removed something, and when it ends.
    purged_some: Condvar,
    /// Whether all maps of the file were opened and walked through, or created since.
    pub(crate) looked: AtomicBool,
    /// The number of walks so far.
    pub(crate) purges: AtomicU64,
    /// The number of records that were removed because they were dead.
    pub(crate) purged: AtomicU64,
    pub(crate) evictor: Arc<Evictor>,
}

impl Maintenance {
    /// `is_new`: there are no records, and no maps that are not open.
    pub(crate) fn new(needs_sweep: bool, is_new: bool) -> Self {
        Maintenance {
            sweep: Mutex::ranked(
                Rank::Leaf,
                if needs_sweep { SweepState::Pending } else { SweepState::NotNeeded },
            ),
            swept: Condvar::new(),
            reclaim_pending: AtomicBool::new(false),
            has_thread: AtomicBool::new(false),
            sweeping: Mutex::ranked(Rank::Maintenance, ()),
            stop: AtomicBool::new(false),
            wanted: Mutex::ranked(Rank::Leaf, Wanted::default()),
            changed: Condvar::new(),
            purged_some: Condvar::new(),
            looked: AtomicBool::new(is_new),
            purges: AtomicU64::new(0),
            purged: AtomicU64::new(0),
            evictor: Evictor::new(),
        }
    }

    /// Waits until no thread sweeps, purges or moves records, and keeps others from it until the
    /// guard is dropped.
    pub(crate) fn sweeping(&self) -> MutexGuard<'_, ()> {
        // A sweep that panicked has poisoned the store.
        self.sweeping.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Does what [`sweeping`](Maintenance::sweeping) does without waiting. Returns `None` if
    /// another thread is at it.
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

    /// Waits for a while until what frees space in the background has ended. Returns `true` if it
    /// has, or if nothing was under way.
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
        // Not without end: it may itself be waiting for a reader of the calling thread.
        let waited = self.swept.wait_timeout_while(state, SWEEP_WAIT, ahead);
        let (state, waited) = waited.expect("no panics while held");
        drop(state);
        !waited.timed_out()
    }

    /// Has the thread in the background walk through all records, and waits for a while until
    /// `enough` returns `true`. Returns `true` if there is such a thread.
    #[cold]
    pub(crate) fn wait_for_walk(&self, enough: impl Fn() -> bool) -> bool {
        if !self.has_thread.load(Relaxed) || self.is_stopping() {
            return false;
        }
        self.want_purge();
        let until = Instant::now() + PURGE_WAIT;
        // `enough` takes other locks, so it is not called under this one. It is called again now
        // and then, because a signal in between is missed.
        while !enough() && !self.is_stopping() && Instant::now() < until {
            let wanted = self.wanted.lock().expect("no panics while held");
            drop(self.purged_some.wait_timeout(wanted, PURGE_LOOK));
        }
        true
    }

    /// Notes that a walk has removed something, or has ended.
    pub(crate) fn has_purged(&self) {
        self.purged_some.notify_all();
    }

    /// Ends all maintenance soon.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Relaxed);
        // Under the lock, so that no thread has just looked and waits now.
        drop(self.wanted.lock().expect("no panics while held"));
        self.changed.notify_all();
        self.evictor.wake();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        // Relaxed: it only tells that the work is no longer wanted.
        self.stop.load(Relaxed)
    }

    /// Notes that a flush has left something to remove.
    pub(crate) fn want_purge(&self) {
        self.want(|wanted| wanted.purge = true);
    }

    /// Notes that a map was dropped.
    pub(crate) fn want_reclaim(&self) {
        self.reclaim_pending.store(true, Relaxed);
        self.want(|wanted| wanted.reclaim = true);
    }

    /// Notes that the space of dropped maps is reclaimed: of all of them, or but for those that
    /// were dropped meanwhile.
    pub(crate) fn set_reclaimed(&self, all: bool) {
        let _state = self.sweep.lock().expect("no panics while held");
        self.reclaim_pending.store(!all, Relaxed);
        self.swept.notify_all();
    }

    /// Notes that a map was opened whose counts do not verify.
    pub(crate) fn want_census(&self) {
        let mut state = self.sweep.lock().expect("no panics while held");
        if state.is_over() {
            *state = SweepState::Pending;
        }
        drop(state);
        self.changed.notify_all();
    }

    fn want(&self, what: impl FnOnce(&mut Wanted)) {
        what(&mut self.wanted.lock().expect("no panics while held"));
        self.changed.notify_all();
    }

    /// Waits for `pause`, or until something is wanted. Returns what, or `None` if all maintenance
    /// is to end.
    fn wait(&self, pause: Duration) -> Option<Wanted> {
        let wanted = self.wanted.lock().expect("no panics while held");
        let idle = |wanted: &mut Wanted| !wanted.any() && !self.is_stopping();
        let waited = self.changed.wait_timeout_while(wanted, pause, idle);
        let (mut wanted, _) = waited.expect("no panics while held");
        (!self.is_stopping()).then(|| std::mem::take(&mut *wanted))
    }
}

impl<M: Medium> Evermap<M> {
    /// Runs in the thread in the background: sweeps, then purges and compacts when there is reason
    /// to, until the store is closed. A panic in it poisons the store.
    pub(crate) fn run_maintenance(&self) {
        let poison = self.file.pool.region().poison_on_panic();
        // An error here is in `stat`, or is returned by every operation that meets it.
        let _ = self.sweep_now();
        // Now there is something to choose from.
        self.file.maintenance.evictor.wake();
        let mut walk_at = Instant::now() + WALK_PAUSE;
        let mut pause = Duration::ZERO;
        while let Some(wanted) = self.file.maintenance.wait(pause) {
            if wanted.reclaim {
                let _ = self.reclaim_drops();
            }
            // A map may have been opened whose counts do not verify.
            let _ = self.sweep_now();
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

    /// Lowers the bounds in the file of the bytes that records take, where they are far above what
    /// they take.
    fn tighten_bounds(&self) {
        let poisoned = self.file.pool.region().ensure_writable().is_err();
        for map in self.open_maps().iter().filter(|_| !poisoned) {
            // Under a guard, so that the word is not reused while it is written, if the map is
            // dropped meanwhile.
            let Ok(_guard) = map.enter() else { continue };
            if map.inner.counters.is_bound_loose() {
                map.inner.set_bound(&self.file.pool);
            }
        }
    }
}
