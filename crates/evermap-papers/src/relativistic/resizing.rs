//! What all tables that are resized step by step share: one resizer at a time, helpers, waiting.

use std::hash::{BuildHasher, Hash};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, PoisonError, TryLockError};

use evermap_pm::epoch::{GracePeriod, WaitError};
use evermap_pm::sync::{Mutex, MutexGuard};
use evermap_pm::{Domain, Guard, Result};

use super::steps::{Mistake, Planted};
use super::stripes::Stripes;
use super::{Config, Effort, Progress, ResizeError, TableStats, check_guard, hash_of};

/// The number of buckets that an update processes of a running resize. A pass over all buckets is
/// then over after a fraction of the updates that it takes to fill the table.
const HELP: u64 = 16;

/// What does not depend on the kind of table. `R` is the state of a running resize.
pub(super) struct Base<S, R> {
    pub(super) domain: Arc<Domain>,
    hasher: S,
    pub(super) config: Config,
    pub(super) stripes: Stripes,
    pub(super) planted: Planted,
    /// In memory of its own, because it changes, and lookups read the fields above.
    resizing: Box<Resizing<R>>,
}

struct Resizing<R> {
    /// The running resize. Its lock is never held while a thread waits for readers: a reader may
    /// want it.
    running: Mutex<Option<R>>,
    /// Whether there is one.
    active: AtomicBool,
    counters: Counters,
}

#[derive(Default)]
struct Counters {
    expansions: AtomicU64,
    shrinks: AtomicU64,
    grace_periods: AtomicU64,
    grace_periods_max: AtomicU64,
    last: Mutex<[Effort; 2]>,
}

/// What is known after a thread has taken part in a resize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// More can be done now.
    Unfinished,
    /// Nothing can be done before readers are gone.
    Waiting,
    Done,
}

/// A table that can be resized step by step.
pub(super) trait Resizes {
    type Hasher;
    /// The state of a running resize.
    type Run;

    fn base(&self) -> &Base<Self::Hasher, Self::Run>;

    /// Returns the current number of buckets.
    fn buckets(&self) -> u64;

    /// Begins to double or halve the table, to `to` buckets.
    ///
    /// # Errors
    /// `NoSpace`.
    fn begin(&self, to: u64) -> Result<Self::Run>;

    /// Continues, with `budget` buckets at most, but without waiting.
    fn advance(&self, run: &mut Self::Run, budget: &mut u64) -> Outcome;

    /// Returns how far it is.
    fn progress(run: &Self::Run) -> Progress;
}

impl<S: BuildHasher, R> Base<S, R> {
    /// # Errors
    /// `Config`.
    pub(super) fn new(domain: Arc<Domain>, hasher: S, config: Config) -> Result<Self> {
        let config = config.checked()?;
        let resizing = Resizing {
            running: Mutex::new(None),
            active: AtomicBool::new(false),
            counters: Counters::default(),
        };
        Ok(Base {
            domain,
            hasher,
            stripes: Stripes::new(config.stripes),
            config,
            planted: Planted::current(),
            resizing: Box::new(resizing),
        })
    }

    #[inline(always)]
    pub(super) fn hash(&self, key: &(impl Hash + ?Sized)) -> u64 {
        hash_of(&self.hasher, key)
    }
}

impl<S, R> Base<S, R> {
    #[inline(always)]
    pub(super) fn check(&self, guard: &Guard<'_>) {
        check_guard(guard, &self.domain);
    }

    /// Returns `true` if the grace period is over. `mistake` is the planted one of not waiting for
    /// it.
    pub(super) fn is_over(&self, period: GracePeriod, mistake: Mistake) -> bool {
        self.planted.has(mistake) || self.domain.is_over(period)
    }

    /// Waits until no thread continues the running resize, and lets none do so.
    pub(super) fn stop_resizing(&self) -> MutexGuard<'_, Option<R>> {
        self.resizing.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_running(&self) -> Option<MutexGuard<'_, Option<R>>> {
        match self.resizing.running.try_lock() {
            Ok(running) => Some(running),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns the running resize of a table that no other thread uses.
    pub(super) fn take_run(&mut self) -> Option<R> {
        self.stop_resizing().take()
    }

    /// Counts a grace period that a resize waits for.
    pub(super) fn start(&self, effort: &mut Effort) -> GracePeriod {
        effort.grace_periods += 1;
        // Relaxed, here and below: numbers for statistics.
        self.resizing.counters.grace_periods.fetch_add(1, Relaxed);
        self.domain.start()
    }

    /// Counts a resize that is done.
    fn count(&self, progress: Progress) {
        let counters = &self.resizing.counters;
        let grew = progress.to > progress.from;
        let effort = progress.effort;
        if grew {
            counters.expansions.fetch_add(1, Relaxed);
            counters.grace_periods_max.fetch_max(effort.grace_periods, Relaxed);
        } else {
            counters.shrinks.fetch_add(1, Relaxed);
        }
        let mut last = counters.last.lock().unwrap_or_else(PoisonError::into_inner);
        last[usize::from(grew)] = effort;
    }

    fn set_active(&self, active: bool) {
        // Relaxed: a thread that learns of a resize a little later helps with it later.
        self.resizing.active.store(active, Relaxed);
    }
}

/// Continues a resize while its lock is held.
fn advance<T: Resizes>(table: &T, running: &mut Option<T::Run>, budget: &mut u64) -> Outcome {
    let Some(run) = running else { return Outcome::Done };
    let outcome = table.advance(run, budget);
    if outcome == Outcome::Done {
        let base = table.base();
        base.set_active(false);
        base.count(T::progress(run));
        *running = None;
    }
    outcome
}

pub(super) fn begin<T: Resizes>(table: &T, running: &mut Option<T::Run>, to: u64) -> Result<()> {
    *running = Some(table.begin(to)?);
    table.base().set_active(true);
    Ok(())
}

/// See [`ResizableTable::resize`](super::ResizableTable::resize).
pub(super) fn resize<T: Resizes>(table: &T, buckets: u64) -> std::result::Result<(), ResizeError> {
    // More than any table needs from one size to another. Without a bound, the loop might not end
    // if the policy always undoes what it does.
    const RESIZES: u32 = 64;
    let base = table.base();
    if base.domain.is_pinned() {
        return Err(ResizeError::Wait(WaitError::HoldsGuard));
    }
    let Config { buckets_min, buckets_max, .. } = base.config;
    let target = buckets.clamp(buckets_min, buckets_max).next_power_of_two();
    let mut begun = 0;
    loop {
        let mut running = base.stop_resizing();
        if running.is_none() {
            let now = table.buckets();
            if now == target || begun == RESIZES {
                return Ok(());
            }
            let to = if now < target { now * 2 } else { now / 2 };
            begin(table, &mut running, to).map_err(ResizeError::NoSpace)?;
            begun += 1;
        }
        if advance(table, &mut running, &mut { u64::MAX }) == Outcome::Waiting {
            let _locked = base.planted.has(Mistake::WaitsWithLock).then_some(running);
            base.domain.synchronize().map_err(ResizeError::Wait)?;
        }
    }
}

/// See [`ResizableTable::help`](super::ResizableTable::help).
pub(super) fn help<T: Resizes>(table: &T) -> bool {
    let base = table.base();
    if !base.resizing.active.load(Relaxed) {
        return false;
    }
    match base.try_running() {
        Some(mut running) => advance(table, &mut running, &mut { HELP }) != Outcome::Done,
        None => true,
    }
}

/// Takes part in the running resize after an update, or begins one if the policy wants it. `pairs`
/// is the number of pairs of the stripe that was changed.
#[inline]
pub(super) fn maintain<T: Resizes>(table: &T, buckets: u64, pairs: u64, added: bool) {
    let base = table.base();
    if base.resizing.active.load(Relaxed) {
        if !base.planted.has(Mistake::UpdatesDoNotHelp) {
            help(table);
        }
    } else if let Some(to) = wanted(base, buckets, pairs, added) {
        begin_and_help(table, buckets, to);
    }
}

/// Returns the number of buckets that the policy wants. All stripes are only asked if this one
/// suggests it.
#[inline]
fn wanted<S, R>(base: &Base<S, R>, buckets: u64, pairs: u64, added: bool) -> Option<u64> {
    let policy = base.config.policy?;
    let estimate = pairs.saturating_mul(base.stripes.count());
    if added {
        let wants = |pairs| policy.wants_growth(pairs, buckets);
        let grows = buckets < base.config.buckets_max && wants(estimate);
        (grows && wants(base.stripes.pairs())).then_some(buckets * 2)
    } else {
        let wants = |pairs| policy.wants_shrinkage(pairs, buckets);
        let shrinks = buckets > base.config.buckets_min && wants(estimate);
        (shrinks && wants(base.stripes.pairs())).then_some(buckets / 2)
    }
}

#[cold]
fn begin_and_help<T: Resizes>(table: &T, buckets: u64, to: u64) {
    let Some(mut running) = table.base().try_running() else { return };
    // Another thread may have resized the table since then. If there is no memory, the table stays
    // as it is, and a later update tries again.
    if running.is_none() && table.buckets() == buckets && begin(table, &mut running, to).is_ok() {
        advance(table, &mut running, &mut { HELP });
    }
}

/// Returns the statistics of a table, but for its bytes.
pub(super) fn stats<T: Resizes>(table: &T) -> TableStats {
    let base = table.base();
    let resizing = base.stop_resizing().as_ref().map(T::progress);
    let counters = &base.resizing.counters;
    let [last_shrink, last_expansion] =
        *counters.last.lock().unwrap_or_else(PoisonError::into_inner);
    TableStats {
        pairs: base.stripes.pairs(),
        buckets: table.buckets(),
        bytes: 0,
        resizing,
        expansions: counters.expansions.load(Relaxed),
        shrinks: counters.shrinks.load(Relaxed),
        grace_periods: counters.grace_periods.load(Relaxed),
        last_expansion,
        last_shrink,
        grace_periods_max: counters.grace_periods_max.load(Relaxed),
    }
}
