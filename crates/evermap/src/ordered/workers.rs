//! Threads in the background that apply notices, and the number of them that should work.
//!
//! HiKV gives each thread one of two tasks, so that those that serve requests and those that keep
//! the tree up to date take equally long for their parts of an average write. Here the time of the
//! first is measured from the outside: the threads that do not work on notices are taken to serve
//! all the time.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::thread::Thread;
use std::time::{Duration, Instant};

use evermap_pm::Medium;
use evermap_pm::sync::{Mutex, Rank};

use super::OrderedUpdates;
use super::build::cores;
use crate::Map;

/// How often the number of working threads is adjusted.
const WINDOW: Duration = Duration::from_millis(100);
/// Shortest and longest pause of a thread that finds nothing to do. After that it sleeps until it
/// is woken.
const PAUSES: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(2)];
/// Longest sleep: a call to wake may be missed, and threads that are not wanted are not woken.
const SLEEP: Duration = Duration::from_secs(1);

/// What an average write costs, and what is read beside it: in any unit of time.
#[derive(Clone, Copy, Debug, Default)]
struct Costs {
    /// Lookups for each write, and the time of one.
    gets: f64,
    get: f64,
    /// Scans for each write, and the time of one.
    scans: f64,
    scan: f64,
    /// The time of a write, without what the tree takes.
    write: f64,
    /// The time to tell the tree.
    notice: f64,
}

/// Returns how many of `threads`, at least two, should apply notices, so that they take as long for
/// one as the others for a write and the reads beside it.
///
/// After "HiKV: A Hybrid Index Key-Value Store for DRAM-NVM Memory Systems" (USENIX ATC 2017),
/// section 3.4, solved for the number.
fn backends(threads: usize, costs: Costs) -> usize {
    let serving = costs.gets * costs.get + costs.scans * costs.scan + costs.write;
    let share = threads as f64 * costs.notice / (serving + costs.notice);
    // It is not a number if nothing was measured: one.
    (share.round() as usize).clamp(1, threads - 1)
}

/// The threads in the background, and what they have done in this window.
pub(crate) struct WorkerPool {
    cores: usize,
    /// Whether there are such threads.
    present: AtomicBool,
    /// The number of them that work.
    working: AtomicUsize,
    busy_nanos: AtomicU64,
    notices: AtomicU64,
    /// Those of them that sleep, and whether there are any.
    sleepers: Mutex<Vec<Thread>>,
    asleep: AtomicBool,
}

impl WorkerPool {
    pub(super) fn new() -> Self {
        WorkerPool {
            cores: cores().max(2),
            present: AtomicBool::new(false),
            working: AtomicUsize::new(1),
            busy_nanos: AtomicU64::new(0),
            notices: AtomicU64::new(0),
            sleepers: Mutex::ranked(Rank::Leaf, Vec::new()),
            asleep: AtomicBool::new(false),
        }
    }

    /// Most threads that may ever work: half of the cores, for writers help where that is too
    /// little.
    fn size(&self) -> usize {
        self.cores / 2
    }

    /// Whether there are threads that work on notices.
    #[inline]
    pub(super) fn is_present(&self) -> bool {
        // Relaxed: a thread that reads an old value does a little more or less work itself.
        self.present.load(Relaxed)
    }

    /// Wakes threads, because there is something to do.
    #[inline]
    pub(super) fn wake(&self) {
        // Relaxed: a thread that falls asleep just now is woken by the next call, or by its
        // timeout.
        if self.asleep.load(Relaxed) {
            self.wake_sleepers();
        }
    }

    #[cold]
    fn wake_sleepers(&self) {
        let mut sleepers = self.sleepers.lock().expect("no panics while held");
        self.asleep.store(false, Relaxed);
        sleepers.drain(..).for_each(|thread| thread.unpark());
    }

    /// Sleeps for a while, or until there is something to do if this thread is one of those that
    /// should work.
    fn sleep(&self, wanted: bool) {
        if wanted {
            let mut sleepers = self.sleepers.lock().expect("no panics while held");
            let me = std::thread::current();
            // The clock may have woken it before.
            sleepers.retain(|thread| thread.id() != me.id());
            sleepers.push(me);
            self.asleep.store(true, Relaxed);
        }
        std::thread::park_timeout(SLEEP);
    }

    /// Adjusts the number of threads that work, after a window of this length.
    fn adjust(&self, window: Duration) {
        let (busy, notices) = (self.busy_nanos.swap(0, Relaxed), self.notices.swap(0, Relaxed));
        if notices == 0 {
            return;
        }
        let serving = (self.cores - self.working.load(Relaxed)) as f64;
        let per_notice = |nanos: f64| nanos / notices as f64;
        let costs = Costs {
            write: per_notice(serving * window.as_nanos() as f64),
            notice: per_notice(busy as f64),
            ..Costs::default()
        };
        self.working.store(backends(self.cores, costs).min(self.size()), Relaxed);
    }
}

impl<M: Medium> Map<M> {
    /// Returns the number of threads that the caller must start to [apply
    /// notices](Self::work_on_notices). From now on writers rely on them.
    pub(crate) fn notice_workers(&self) -> usize {
        match &self.inner.ordered {
            Some(ordered) if ordered.updates == OrderedUpdates::Background => {
                ordered.workers.present.store(true, Relaxed);
                ordered.workers.size()
            }
            _ => 0,
        }
    }

    /// Runs in a thread of the pool until the store is closed.
    pub(crate) fn work_on_notices(&self, number: usize) {
        let Some(workers) = self.inner.ordered.as_ref().map(|ordered| &ordered.workers) else {
            return;
        };
        let (mut pause, mut window) = (PAUSES[0], Instant::now());
        while !self.db.file.maintenance.is_stopping() {
            let wanted = number < workers.working.load(Relaxed);
            let worked = wanted && self.work_once(workers, number);
            if number == 0 && window.elapsed() >= WINDOW {
                workers.adjust(window.elapsed());
                window = Instant::now();
            }
            match (worked, wanted && pause < PAUSES[1]) {
                (true, _) => pause = PAUSES[0],
                (false, true) => {
                    std::thread::park_timeout(pause);
                    pause *= 2;
                }
                (false, false) => workers.sleep(wanted),
            }
        }
        workers.present.store(false, Relaxed);
    }

    /// Applies what waits in the shards of this thread. Returns `true` if there was anything.
    fn work_once(&self, workers: &WorkerPool, number: usize) -> bool {
        let (Some(ordered), Ok(guard)) = (&self.inner.ordered, self.enter()) else { return false };
        let Some(tree) = ordered.tree.get() else { return false };
        let (began, mut batches, mut notices) = (Instant::now(), 0, 0);
        for shard in
            ordered.shards.iter().skip(number).step_by(workers.working.load(Relaxed).max(1))
        {
            // Another thread is applying it.
            let Some(_working) = shard.try_work() else { continue };
            let before = shard.counts().0;
            batches += u64::from(self.apply_next(ordered, tree, shard, &guard));
            notices += shard.counts().0 - before;
        }
        if batches > 0 {
            workers.busy_nanos.fetch_add(began.elapsed().as_nanos() as u64, Relaxed);
            workers.notices.fetch_add(notices, Relaxed);
        }
        batches > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The splits that HiKV's authors found for 16 threads at three mixes of reads and writes.
    #[test]
    fn the_published_splits() {
        for (gets, expected) in [(1.0, 8), (19.0, 3), (3.0, 7)] {
            let costs = Costs { gets, get: 0.185, write: 0.815, notice: 1.0, ..Costs::default() };
            let found = backends(16, costs);
            assert_eq!((16 - found, found), (16 - expected, expected), "{gets} lookups a write");
        }
    }

    #[test]
    fn there_is_always_one_of_each() {
        for threads in 2..9 {
            for notice in [0.0, 1e-9, 1.0, 1e9, f64::NAN] {
                let costs =
                    Costs { scans: 1.0, scan: 14.0, write: 1.0, notice, ..Costs::default() };
                assert!((1..threads).contains(&backends(threads, costs)));
            }
            assert_eq!(backends(threads, Costs::default()), 1);
        }
    }

    #[test]
    fn a_crew_grows_where_notices_take_long() {
        let workers = WorkerPool { cores: 16, ..WorkerPool::new() };
        // A hundred milliseconds of fifteen threads for 10,000 writes: 150 us each. Notices take as
        // long.
        workers.busy_nanos.store(1_500_000_000, Relaxed);
        workers.notices.store(10_000, Relaxed);
        workers.adjust(WINDOW);
        assert_eq!(workers.working.load(Relaxed), 8);
        workers.adjust(WINDOW);
        assert_eq!(workers.working.load(Relaxed), 8, "nothing was learned from nothing");
    }
}
