//! What an operation costs, and how many are done by more threads than this machine has processors.
//!
//! A thread does most of an operation alone. But all threads share the memory, which writes one
//! block of 256 bytes after the other and reads one after the other, so each of the two is a server
//! with a queue. What excludes everybody else, such as a resize of the whole table, happens while
//! nobody operates. Nothing else is modelled: neither caches that threads share, nor lines that
//! several write, nor distances between sockets.

use crate::driver::results::DriveReport;
use crate::experiments::queues::throughput;
use crate::report::Record;

/// What an operation costs on average.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Cost {
    /// Nanoseconds of the only thread, everything included.
    pub(super) alone_ns: f64,
    /// Blocks that it reads.
    pub(super) blocks_read: f64,
    /// Blocks that it writes.
    pub(super) blocks_written: f64,
    /// Nanoseconds of `alone_ns` in which other threads would be excluded.
    pub(super) exclusive_ns: f64,
}

/// How long the memory takes for a block, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Memory {
    pub(super) read_ns: f64,
    pub(super) write_ns: f64,
}

impl Cost {
    /// Returns what was measured and counted, or `None` if one of them was not.
    pub(super) fn of(record: &Record) -> Option<Self> {
        Some(Cost {
            alone_ns: record.cpu_ns_per_op?,
            blocks_read: record.blocks_read_per_op?,
            blocks_written: record.blocks_written_per_op?,
            exclusive_ns: 0.0,
        })
    }

    /// Returns the cost of a phase of a drive.
    pub(super) fn in_phase(driven: &DriveReport, index: &str, phase: &str) -> Option<Self> {
        Cost::of(&driven.subject(index)?.phase(phase)?.summary)
    }

    /// Returns the cost of a mix of which `share` are these, and the rest are `others`.
    pub(super) fn mixed(self, share: f64, others: Cost) -> Self {
        let mix = |this: f64, other: f64| share * this + (1.0 - share) * other;
        Cost {
            alone_ns: mix(self.alone_ns, others.alone_ns),
            blocks_read: mix(self.blocks_read, others.blocks_read),
            blocks_written: mix(self.blocks_written, others.blocks_written),
            exclusive_ns: mix(self.exclusive_ns, others.exclusive_ns),
        }
    }

    /// Returns million operations a second of `threads` threads with a processor each.
    pub(super) fn mops(self, threads: usize, memory: Memory) -> f64 {
        let demands = [self.blocks_read * memory.read_ns, self.blocks_written * memory.write_ns];
        let alone = self.alone_ns - self.exclusive_ns - demands.iter().sum::<f64>();
        let shared = throughput(threads, alone.max(0.0), &demands);
        1e3 / (self.exclusive_ns + 1.0 / shared)
    }

    /// Returns how many times as much `threads` threads do as one.
    pub(super) fn speedup(self, threads: usize, memory: Memory) -> f64 {
        self.mops(threads, memory) / self.mops(1, memory)
    }
}

impl Memory {
    /// Returns the memory in which the speedup of `cost` with `threads` threads is `speedup`.
    pub(super) fn fitted(cost: Cost, threads: usize, speedup: f64, read_ns: f64) -> Self {
        let (mut low, mut high) = (0.0, cost.alone_ns / cost.blocks_written.max(0.01));
        for _ in 0..60 {
            let write_ns = (low + high) / 2.0;
            if cost.speedup(threads, Memory { read_ns, write_ns }) > speedup {
                low = write_ns;
            } else {
                high = write_ns;
            }
        }
        Memory { read_ns, write_ns: (low + high) / 2.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: Memory = Memory { read_ns: 5.0, write_ns: 100.0 };

    fn writes(blocks_written: f64) -> Cost {
        Cost { alone_ns: 1000.0, blocks_read: 2.0, blocks_written, exclusive_ns: 0.0 }
    }

    #[test]
    fn one_thread_takes_what_was_measured() {
        for cost in [writes(0.0), writes(2.0), Cost { exclusive_ns: 300.0, ..writes(1.0) }] {
            assert!((cost.mops(1, MEMORY) - 1.0).abs() < 1e-9, "{cost:?}");
        }
    }

    #[test]
    fn what_is_shared_or_exclusive_limits_all() {
        // One block takes 100 ns, so ten million are written in a second.
        let full = writes(2.0).mops(1000, MEMORY);
        assert!((4.9..=5.0).contains(&full), "{full}");
        assert!(writes(0.0).speedup(24, MEMORY) > 22.0);
        let half = Cost { exclusive_ns: 500.0, ..writes(0.0) };
        assert!(half.speedup(1000, MEMORY) < 2.0);
    }

    #[test]
    fn the_fitted_memory_explains_the_point() {
        let memory = Memory::fitted(writes(1.2), 24, 8.4, 5.0);
        assert!((writes(1.2).speedup(24, memory) - 8.4).abs() < 1e-6);
    }

    #[test]
    fn a_mix_is_in_between() {
        let mixed = writes(2.0).mixed(0.25, writes(0.0));
        assert_eq!((mixed.blocks_written, mixed.alone_ns), (0.5, 1000.0));
    }
}
