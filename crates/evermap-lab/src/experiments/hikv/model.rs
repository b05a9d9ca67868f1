//! The paper's machine, which this one is not: a model.
//!
//! A thread needs its own processor time, and waits for its persists, which are emulated by waiting
//! and take nothing of a core. There are 16 cores; a second thread of a core adds a part of one. A
//! share of each scan excludes other scans: the paper's scans of all stores, whatever they read,
//! gain little from more than 16 threads, so it is not the memory that holds them up. HiKV divides
//! its threads into those that serve and those that update the tree, and does as many operations
//! as the slower side allows.
//!
//! Two numbers of the paper fix what a second thread of a core adds and how much of a scan excludes
//! others. What operations take is measured here, with one thread on emulated memory.

use crate::experiments::queues::throughput;
use crate::report::Record;
use crate::report::interval::median;

/// Cores of the paper's machine.
pub(super) const CORES: usize = 16;

/// What an operation takes, in nanoseconds of threads.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Demand {
    /// Of the thread that serves.
    pub(super) serving: f64,
    /// The part of that in which it waits for persists.
    pub(super) waiting: f64,
    /// The part in which it scans.
    pub(super) scanning: f64,
    /// Of a backend; 0 if there are none.
    pub(super) backend: f64,
}

impl Demand {
    /// Returns what an operation of a mix without backends took, if that was measured and counted.
    /// Of a mix with scans all counts as one: what else it does takes a hundredth.
    pub(super) fn of(record: &Record, scans: bool) -> Option<Self> {
        let serving = record.serving_ns_per_op?;
        let waiting = record.fences_per_op? * record.persist_ns.unwrap_or(0) as f64;
        let waiting = waiting.min(serving);
        let scanning = if scans { serving - waiting } else { 0.0 };
        Some(Demand { serving, waiting, scanning, backend: 0.0 })
    }

    /// Returns, for each part, the median of some demands.
    pub(super) fn median(all: &[Demand]) -> Self {
        let of = |part: fn(&Demand) -> f64| {
            median(&all.iter().map(part).collect::<Vec<_>>()).unwrap_or_default()
        };
        Demand {
            serving: of(|one| one.serving),
            waiting: of(|one| one.waiting),
            scanning: of(|one| one.scanning),
            backend: of(|one| one.backend),
        }
    }
}

/// The machine, and how its stores scan.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Machine {
    /// What a second thread of a core adds, in cores.
    pub(super) twin: f64,
    /// The share of a scan that excludes other scans.
    pub(super) exclusive: f64,
}

impl Machine {
    /// Returns the machine on which `of_processors` and then `of_scans` have these ratios of
    /// operations with 32 threads to those with two. The former has no scans.
    pub(super) fn fitted(of_processors: (Demand, f64), of_scans: (Demand, f64)) -> Self {
        let twin = bisect(-1.0, 1.0, |twin| {
            Machine { twin, exclusive: 0.0 }.scaling(of_processors.0) < of_processors.1
        });
        let exclusive = bisect(0.0, 1.0, |exclusive| {
            Machine { twin, exclusive }.scaling(of_scans.0) > of_scans.1
        });
        Machine { twin, exclusive }
    }

    /// Returns how many times as much 32 threads do as two, without backends.
    fn scaling(self, demand: Demand) -> f64 {
        self.mops(demand, 32) / self.mops(demand, 2)
    }

    /// Returns how many times as long a thread computes if there are this many.
    fn slowdown(self, threads: usize) -> f64 {
        let second = threads.saturating_sub(CORES) as f64;
        threads as f64 / (threads as f64 - second + self.twin * second).max(1.0)
    }

    /// Returns million operations a second of `threads` threads that all serve.
    pub(super) fn mops(self, demand: Demand, threads: usize) -> f64 {
        self.serving(demand, threads, self.slowdown(threads))
    }

    fn serving(self, demand: Demand, threads: usize, slowdown: f64) -> f64 {
        let held = demand.scanning * self.exclusive;
        let alone = (demand.serving - demand.waiting - held) * slowdown + demand.waiting;
        1e3 * throughput(threads, alone, &[held])
    }

    /// Returns million operations a second of HiKV if this many of its threads are backends.
    pub(super) fn divided(self, demand: Demand, threads: usize, backends: usize) -> f64 {
        let slowdown = self.slowdown(threads);
        let serving = self.serving(demand, threads - backends, slowdown);
        if demand.backend <= 0.0 {
            return serving;
        }
        serving.min(1e3 * backends as f64 / (demand.backend * slowdown))
    }

    /// Returns million operations a second of a store: of HiKV with the division that its formula
    /// gives, or of a rival whose threads all serve.
    pub(super) fn store_mops(self, store: &str, demand: Demand, threads: usize) -> f64 {
        if store.starts_with("hikv") {
            self.divided(demand, threads, backends(demand, threads))
        } else {
            self.mops(demand, threads)
        }
    }
}

/// Returns how many of `threads` should be backends: HiKV's formula (section 3.2), by which both
/// sides take the same time.
pub(super) fn backends(demand: Demand, threads: usize) -> usize {
    let share = demand.backend / (demand.backend + demand.serving);
    ((threads as f64 * share).round() as usize).clamp(1, threads - 1)
}

/// Returns where `is_low` stops to be true.
fn bisect(mut low: f64, mut high: f64, is_low: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..50 {
        let middle = f64::midpoint(low, high);
        if is_low(middle) { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Demand = Demand { serving: 1000.0, waiting: 0.0, scanning: 0.0, backend: 0.0 };

    #[test]
    fn the_machine_explains_what_it_is_fitted_to() {
        let scan = Demand { serving: 14_000.0, scanning: 14_000.0, ..READ };
        let machine = Machine::fitted((READ, 8.2), (scan, 3.4));
        assert!((machine.scaling(READ) - 8.2).abs() < 0.01, "{machine:?}");
        assert!((machine.scaling(scan) - 3.4).abs() < 0.01, "{machine:?}");
    }

    /// A thread that waits leaves its core to the other one.
    #[test]
    fn waits_are_not_slowed_down() {
        let write = Demand { waiting: 500.0, ..READ };
        let machine = Machine::default();
        assert_eq!(machine.mops(READ, 32), 16.0);
        assert_eq!(machine.mops(write, 32), 32.0 / 1.5);
        assert_eq!(machine.mops(write, 16), 16.0);
    }

    #[test]
    fn what_is_counted_of_a_record_is_no_more_than_it_took() {
        let record = |serving, fences| Record {
            serving_ns_per_op: Some(serving),
            fences_per_op: Some(fences),
            persist_ns: Some(600),
            ..Record::default()
        };
        let of = |serving, fences, scans| Demand::of(&record(serving, fences), scans).unwrap();
        assert_eq!(of(1000.0, 1.5, false), Demand { waiting: 900.0, ..READ });
        assert_eq!(of(1000.0, 2.0, true), Demand { waiting: 1000.0, ..READ });
        assert_eq!(of(1000.0, 0.0, true), Demand { scanning: 1000.0, ..READ });
        assert_eq!(Demand::of(&Record::default(), false), None);
    }

    #[test]
    fn the_slower_side_is_the_limit() {
        let machine = Machine::default();
        let write = Demand { backend: 1000.0, ..READ };
        assert_eq!(backends(write, 16), 8);
        assert_eq!(machine.divided(write, 16, 8), 8.0);
        assert_eq!(machine.divided(write, 16, 4), 4.0);
        assert_eq!(machine.divided(write, 16, 12), 4.0);
        assert_eq!(machine.divided(READ, 16, 1), 15.0);
        assert_eq!(machine.store_mops("other", READ, 16), 16.0);
    }

    /// One serving thread of two, and more than 15 times as many of 32: as the paper explains its
    /// figure 7.
    #[test]
    fn more_threads_leave_a_greater_part_to_serve() {
        let machine = Machine { twin: 0.1, exclusive: 0.0 };
        let read = Demand { backend: 50.0, ..READ };
        let scaling = machine.store_mops("hikv", read, 32) / machine.store_mops("hikv", read, 2);
        assert!(scaling > 15.0, "{scaling}");
    }
}
