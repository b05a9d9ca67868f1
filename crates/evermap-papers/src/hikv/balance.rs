//! How many backends are needed for the serving threads: sampled costs, and HiKV's formula.
//!
//! The formula makes both sides take the same time for the operations that come with one write:
//! lookups, scans and the hash index's part of the write on one side, the tree's part on the other.
//! The serving threads belong to the callers and cannot become backends here, so the formula
//! decides the number of backends.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use evermap_pm::epoch::thread_ordinal;
use evermap_pm::sync::{Mutex, Rank};

/// One of this many operations is timed.
const SAMPLED: u64 = 64;
/// The number of threads that are counted separately.
const SHARDS: usize = 64;
/// How often the number of backends may change, by one.
pub(super) const WINDOW: Duration = Duration::from_millis(50);
/// The least difference, in backends, between the formula and the present number that leads to a
/// change.
const HYSTERESIS: f64 = 0.1;
/// The weight of the last window.
const WEIGHT: f64 = 0.5;

/// The operations that come with one write, and their costs in any unit of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Costs {
    /// The number of lookups for each write.
    pub(super) gets: f64,
    /// The number of scans for each write.
    pub(super) scans: f64,
    /// The time of a lookup.
    pub(super) get: f64,
    /// The time of a scan.
    pub(super) scan: f64,
    /// The time of a write in the serving thread.
    pub(super) serve: f64,
    /// The time of a write in a backend.
    pub(super) apply: f64,
}

impl Costs {
    /// Returns the share of all threads' time that belongs to the backends, so that both sides are
    /// equally fast.
    pub(super) fn share(&self) -> f64 {
        let serving = self.gets * self.get + self.scans * self.scan + self.serve;
        self.apply / (serving + self.apply)
    }
}

/// Returns how many of `threads` should be backends if these take `share` of the time: at least
/// one, and not all.
pub(super) fn backends(threads: usize, share: f64) -> usize {
    ((threads as f64 * share).round() as usize).clamp(1, threads.saturating_sub(1).max(1))
}

/// Returns the next number of backends: one step from `now` towards what the formula says for
/// `serving` other threads, or `now` if that is close enough.
fn step(now: usize, serving: usize, share: f64, most: usize) -> usize {
    let threads = now + serving;
    let exact = threads as f64 * share;
    let wanted = backends(threads, share).min(most);
    let far = (exact - now as f64).abs() > 0.5 + HYSTERESIS;
    match wanted.cmp(&now) {
        std::cmp::Ordering::Greater if far => now + 1,
        std::cmp::Ordering::Less if far => now - 1,
        _ => now,
    }
}

/// Kinds of operations that are sampled separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Get,
    Scan,
    Write,
    /// The part of a write that a backend does.
    Apply,
}
const KINDS: usize = 4;

/// The counters of one kind.
#[derive(Default)]
struct Tally {
    ops: AtomicU64,
    timed: AtomicU64,
    nanos: AtomicU64,
}

/// The counters of one kind, read.
#[derive(Clone, Copy, Default)]
struct Sum {
    ops: u64,
    timed: u64,
    nanos: u64,
}

impl Sum {
    fn since(self, earlier: Sum) -> Sum {
        Sum {
            ops: self.ops - earlier.ops,
            timed: self.timed - earlier.timed,
            nanos: self.nanos - earlier.nanos,
        }
    }

    /// Returns the nanoseconds of one operation.
    fn mean(self) -> f64 {
        self.nanos as f64 / self.timed.max(1) as f64
    }
}

/// The counters of a thread.
#[derive(Default)]
#[repr(align(128))]
struct Shard([Tally; KINDS]);

/// Samples operations, and decides about backends.
pub(super) struct Balance {
    shards: Box<[Shard]>,
    /// The greatest number of backends.
    most: usize,
    past: Mutex<Past>,
}

/// The counters at the last decision.
struct Past {
    at: Instant,
    sums: Vec<[Sum; KINDS]>,
    share: Option<f64>,
}

/// An operation that is being timed.
pub(super) struct Sample<'b> {
    tally: &'b Tally,
    start: Instant,
}

impl Drop for Sample<'_> {
    fn drop(&mut self) {
        add(&self.tally.nanos, self.start.elapsed().as_nanos() as u64);
        add(&self.tally.timed, 1);
    }
}

/// Adds to a counter of one thread. If there are more threads than shards, some share one, and a
/// lost count does no harm.
#[inline]
fn add(counter: &AtomicU64, more: u64) -> u64 {
    let before = counter.load(Relaxed);
    counter.store(before + more, Relaxed);
    before
}

impl Balance {
    /// Creates a balance for up to `most` backends.
    pub(super) fn new(most: usize) -> Self {
        let past = Past { at: Instant::now(), sums: vec![Default::default(); SHARDS], share: None };
        Balance {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            most,
            past: Mutex::ranked(Rank::Leaf, past),
        }
    }

    fn tally(&self, kind: Kind) -> &Tally {
        &self.shards[thread_ordinal() % SHARDS].0[kind as usize]
    }

    /// Starts an operation of this kind. It is timed until the result is dropped, if it is sampled.
    #[inline]
    pub(super) fn begin(&self, kind: Kind) -> Option<Sample<'_>> {
        let tally = self.tally(kind);
        let number = add(&tally.ops, 1);
        number.is_multiple_of(SAMPLED).then(|| Sample { tally, start: Instant::now() })
    }

    /// Counts this many requests that a backend has carried out since `start`.
    pub(super) fn applied(&self, count: u64, start: Instant) {
        let tally = self.tally(Kind::Apply);
        add(&tally.ops, count);
        add(&tally.timed, count);
        add(&tally.nanos, start.elapsed().as_nanos() as u64);
    }

    /// Returns the number of backends after `now`, or `None` if the window is not over.
    pub(super) fn decide(&self, now: usize) -> Option<usize> {
        let mut past = self.past.try_lock().ok()?;
        if past.at.elapsed() < WINDOW {
            return None;
        }
        past.at = Instant::now();
        let (mut all, mut serving) = ([Sum::default(); KINDS], 0);
        for (shard, past) in self.shards.iter().zip(&mut past.sums) {
            let sums = shard.0.each_ref().map(|tally| Sum {
                ops: tally.ops.load(Relaxed),
                timed: tally.timed.load(Relaxed),
                nanos: tally.nanos.load(Relaxed),
            });
            let news: [Sum; KINDS] = std::array::from_fn(|kind| sums[kind].since(past[kind]));
            *past = sums;
            serving += usize::from(news[..Kind::Apply as usize].iter().any(|sum| sum.ops > 0));
            for (all, new) in all.iter_mut().zip(news) {
                *all = Sum {
                    ops: all.ops + new.ops,
                    timed: all.timed + new.timed,
                    nanos: all.nanos + new.nanos,
                };
            }
        }
        let [gets, scans, writes, applied] = all;
        if writes.ops == 0 {
            // Nothing to apply: one backend waits for requests.
            return Some(1);
        }
        if writes.timed == 0 || applied.timed == 0 {
            return Some(now);
        }
        let costs = Costs {
            gets: gets.ops as f64 / writes.ops as f64,
            scans: scans.ops as f64 / writes.ops as f64,
            get: gets.mean(),
            scan: scans.mean(),
            serve: writes.mean(),
            apply: applied.mean(),
        };
        let share = match past.share {
            Some(before) => WEIGHT * costs.share() + (1.0 - WEIGHT) * before,
            None => costs.share(),
        };
        past.share = Some(share);
        Some(step(now, serving, share, self.most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The splits of 16 threads that the paper publishes for YCSB A, B and F, which have 1, 19 and
    /// 3 lookups for each write.
    #[test]
    fn the_formula_gives_the_published_splits() {
        let costs = |gets| Costs { gets, get: 0.185, serve: 0.815, apply: 1.0, ..Costs::default() };
        assert_eq!(backends(16, costs(1.0).share()), 8);
        assert_eq!(backends(16, costs(19.0).share()), 3);
        assert_eq!(backends(16, costs(3.0).share()), 7);
    }

    #[test]
    fn there_is_a_backend_and_a_thread_that_serves() {
        for threads in 1..20 {
            for share in [0.0, 0.01, 0.5, 0.99, 1.0] {
                let backends = backends(threads, share);
                assert!(backends >= 1 && backends < threads.max(2), "{threads} {share}");
            }
        }
    }

    /// Scans cost as much as fourteen lookups in the paper; they leave less to the backends.
    #[test]
    fn scans_count_by_their_cost() {
        let costs = Costs { get: 1.0, scan: 14.0, serve: 1.0, apply: 1.0, ..Costs::default() };
        assert_eq!(costs.share(), 0.5);
        let scans = Costs { scans: 1.0, ..costs };
        assert_eq!(scans.share(), Costs { gets: 14.0, ..costs }.share());
        assert_eq!(scans.share(), 1.0 / 16.0);
    }

    /// For a given number of serving threads, steps end where both sides keep pace: at serving *
    /// share / (1 - share).
    #[test]
    fn steps_lead_to_balance_and_stay_there() {
        for (serving, share, balanced) in [(8, 0.5, 8), (13, 3.0 / 16.0, 3), (9, 7.0 / 16.0, 7)] {
            for start in [1, balanced, 2 * balanced] {
                let mut now = start;
                for _ in 0..40 {
                    now = step(now, serving, share, 100);
                }
                assert!(now.abs_diff(balanced) <= 1, "{serving} {share} from {start}: {now}");
                assert_eq!(step(now, serving, share, 100), now);
            }
        }
        assert_eq!(step(2, 8, 0.9, 2), 2, "no more than there are");
    }

    #[test]
    fn a_window_without_writes_needs_one_backend() {
        let balance = Balance::new(4);
        // However slow this test is.
        let later = Duration::from_secs(3600);
        balance.past.lock().unwrap().at += later;
        assert_eq!(balance.decide(3), None, "the window is not over");
        balance.past.lock().unwrap().at -= later + WINDOW;
        drop(balance.begin(Kind::Get));
        assert_eq!(balance.decide(3), Some(1));
    }

    #[test]
    fn costs_are_sampled_and_lead_to_steps() {
        let balance = Balance::new(4);
        let end_window = || balance.past.lock().unwrap().at -= WINDOW;
        let timed = (0..1000).filter(|_| balance.begin(Kind::Write).is_some()).count();
        assert_eq!(timed, 1000_usize.div_ceil(SAMPLED as usize));
        // A backend that takes a second for each write is far too slow; one that takes no time is
        // not needed.
        balance.applied(1000, Instant::now() - Duration::from_secs(1000));
        end_window();
        assert_eq!(
            balance.decide(1),
            Some(1),
            "of one that serves and one backend, neither can go"
        );
        // With four serving threads, backends are added, one in a window, up to the greatest
        // number.
        let together = std::sync::Barrier::new(3);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    drop(balance.begin(Kind::Write));
                    together.wait();
                });
            }
        });
        (0..SAMPLED).for_each(|_| drop(balance.begin(Kind::Write)));
        balance.applied(4, Instant::now() - Duration::from_secs(1000));
        end_window();
        assert_eq!(balance.decide(1), Some(2));
        // Backends that need next to no time become fewer, once the past has faded.
        let mut now = 4;
        for _ in 0..60 {
            (0..SAMPLED).for_each(|_| drop(balance.begin(Kind::Write)));
            balance.applied(1 << 40, Instant::now());
            end_window();
            now = balance.decide(now).unwrap();
        }
        assert_eq!(now, 1);
    }
}
