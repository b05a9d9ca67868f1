//! The paper's machine, which this one is not: a model.
//!
//! A thread needs its own processor time, and lines of a memory that all threads share, which
//! serves one after the other. There are 16 cores; a second thread of a core adds a part of one.
//! HiKV divides its threads into those that serve and those that update the tree, and does as many
//! operations as the slower side allows.
//!
//! Two numbers of the paper fix what a second thread of a core adds and what a line takes. What
//! operations take is measured here, with one thread on emulated memory.

use super::bench::Cost;
use crate::experiments::queues::throughput;

/// Cores of the paper's machine.
pub(super) const CORES: usize = 16;

/// What an operation takes of a processor and of the memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Demand {
    /// Nanoseconds of the thread that serves.
    pub(super) serving: f64,
    /// Nanoseconds of a backend; 0 if there are none.
    pub(super) backend: f64,
    /// Lines that it reads.
    pub(super) lines: f64,
}

impl Demand {
    /// Returns the demand of an operation with this cost.
    pub(super) fn of(cost: Cost, lines: f64) -> Self {
        Demand { serving: cost.serving, backend: (cost.all - cost.serving).max(0.0), lines }
    }

    /// The same of a store without backends: what other threads of the process do counts too.
    pub(super) fn without_backends(self) -> Self {
        Demand { serving: self.serving + self.backend, backend: 0.0, ..self }
    }
}

/// The machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Machine {
    /// What a second thread of a core adds, in cores.
    pub(super) twin: f64,
    /// Nanoseconds in which the memory serves a line.
    pub(super) line_ns: f64,
}

impl Machine {
    /// Returns the machine on which `of_processors` has the first and `of_lines` the second ratio
    /// of operations with 32 threads to those with two.
    pub(super) fn fitted(of_processors: (Demand, f64), of_lines: (Demand, f64)) -> Self {
        let mut machine = Machine { twin: 0.0, line_ns: 0.0 };
        // Each hardly changes what the other is fitted to.
        for _ in 0..4 {
            machine.twin = bisect(-1.0, 1.0, |twin| {
                Machine { twin, ..machine }.scaling(of_processors.0) < of_processors.1
            });
            let most = of_lines.0.serving / of_lines.0.lines.max(0.01);
            machine.line_ns = bisect(0.0, most, |line_ns| {
                Machine { line_ns, ..machine }.scaling(of_lines.0) > of_lines.1
            });
        }
        machine
    }

    /// Returns how many times as much 32 threads do as two, without backends.
    fn scaling(self, demand: Demand) -> f64 {
        self.mops(demand, 32) / self.mops(demand, 2)
    }

    /// Returns how many times as long a thread takes if there are this many.
    fn slowdown(self, threads: usize) -> f64 {
        let second = threads.saturating_sub(CORES) as f64;
        threads as f64 / (threads as f64 - second + self.twin * second).max(1.0)
    }

    /// Returns million operations a second of `threads` threads that all serve.
    pub(super) fn mops(self, demand: Demand, threads: usize) -> f64 {
        self.serving(demand, threads, self.slowdown(threads))
    }

    fn serving(self, demand: Demand, threads: usize, slowdown: f64) -> f64 {
        let lines = demand.lines * self.line_ns;
        let alone = (demand.serving - lines).max(0.0) * slowdown;
        1e3 * throughput(threads, alone, &[lines])
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
            self.mops(demand.without_backends(), threads)
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

    const READ: Demand = Demand { serving: 1000.0, backend: 0.0, lines: 5.0 };

    #[test]
    fn the_machine_explains_what_it_is_fitted_to() {
        let scan = Demand { serving: 14_000.0, backend: 0.0, lines: 300.0 };
        let machine = Machine::fitted((READ, 8.2), (scan, 3.4));
        assert!((machine.scaling(READ) - 8.2).abs() < 0.05, "{machine:?}");
        assert!((machine.scaling(scan) - 3.4).abs() < 0.01, "{machine:?}");
    }

    #[test]
    fn the_slower_side_is_the_limit() {
        let machine = Machine { twin: 0.0, line_ns: 0.0 };
        let write = Demand { serving: 1000.0, backend: 1000.0, lines: 0.0 };
        assert_eq!(backends(write, 16), 8);
        assert_eq!(machine.divided(write, 16, 8), 8.0);
        assert_eq!(machine.divided(write, 16, 4), 4.0);
        assert_eq!(machine.divided(write, 16, 12), 4.0);
        assert_eq!(machine.divided(READ, 16, 1), 15.0);
        assert_eq!(machine.store_mops("other", write, 16), 8.0);
    }

    /// One serving thread of two, and more than 15 times as many of 32: as the paper explains its
    /// figure 7.
    #[test]
    fn more_threads_leave_a_greater_part_to_serve() {
        let machine = Machine { twin: 0.1, line_ns: 0.0 };
        let read = Demand { serving: 1000.0, backend: 50.0, lines: 0.0 };
        let scaling = machine.store_mops("hikv", read, 32) / machine.store_mops("hikv", read, 2);
        assert!(scaling > 15.0, "{scaling}");
    }
}
