//! The limits of the machine, to compare tables with.
//!
//! The limits are measured beside the tables, on as much memory as a compact table of as many keys
//! takes, and on pages of the requested kind. A lookup that misses the cache once cannot be faster
//! than a dependent load. A batch of lookups cannot read more lines in a second than independent,
//! prefetched reads do. An insertion that is durable on return waits for at least one ordered
//! persist.

use std::hint::black_box;
use std::sync::Arc;

use evermap_pm::medium::{Dram, FlushInstruction, LINE, Pages, fence, flush_lines, line_flush};
use evermap_pm::{Medium, PmU64};

use crate::LabError;
use crate::driver::Quiet;
use crate::driver::workers::Workers;
use crate::machine::{self, CpuClock};
use crate::report::Record;
use crate::report::interval::median;
use crate::workload::{Permutation, Phase};

/// How many lines ahead the measurements of independent reads prefetch. 0 leaves it to the
/// processor.
pub const DISTANCES: [usize; 5] = [0, 8, 16, 32, 64];
/// Bytes of a compact table for one key.
const BYTES_PER_KEY: u64 = 32;
/// With fewer bytes, caches would be measured.
const BYTES_MIN: u64 = 64 << 20;
/// The number of loads in the dependent chain: each waits for the one before.
const CHAIN_LOADS: u64 = 1_000_000;
/// The number of stores in the measurement of persists.
const PERSISTS: usize = 250_000;

/// The machine's limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// The number of bytes that were accessed at random.
    pub bytes: u64,
    /// The page size that these bytes really had.
    pub page_size: Option<u64>,
    /// Nanoseconds of one load whose address is the result of the load before it.
    pub dependent_load_ns: f64,
    /// Independent random reads of lines.
    pub independent: Vec<Independent>,
    /// Nanoseconds of an ordered persist: store, write the line back, fence. `None` if the
    /// processor cannot write lines back.
    pub persist_ns: Option<f64>,
    /// The average number of processors that other programs kept busy at the same time.
    pub foreign_cpu: Option<f64>,
    /// Whether that was too much for the figures to be trusted.
    pub void: bool,
}

/// Independent random reads of lines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Independent {
    /// The number of threads that read, each all of the memory.
    pub threads: usize,
    /// How many lines ahead each thread prefetches, one of [`DISTANCES`].
    pub distance: usize,
    /// Million lines per second, over all threads.
    pub mlines: f64,
}

impl Limits {
    /// Returns the medians of those measurements that are not void, or of all of them, marked void,
    /// if all are. Returns `None` if there are none.
    pub fn median(all: &[Limits]) -> Option<Limits> {
        let void = all.iter().all(|limits| limits.void);
        let used: Vec<_> = all.iter().filter(|limits| void || !limits.void).collect();
        let first = used.first()?;
        let over = |figure: &dyn Fn(&Limits) -> Option<f64>| {
            median(&used.iter().filter_map(|limits| figure(limits)).collect::<Vec<_>>())
        };
        let independent = first.independent.iter().enumerate().map(|(at, one)| Independent {
            mlines: over(&|limits| Some(limits.independent[at].mlines)).unwrap_or(one.mlines),
            ..*one
        });
        Some(Limits {
            bytes: first.bytes,
            page_size: first.page_size,
            dependent_load_ns: over(&|limits| Some(limits.dependent_load_ns))?,
            independent: independent.collect(),
            persist_ns: over(&|limits| limits.persist_ns),
            foreign_cpu: over(&|limits| limits.foreign_cpu),
            void,
        })
    }

    /// Returns the most random lines that `threads` threads have read, in million per second, at
    /// the best distance.
    pub fn mlines(&self, threads: usize) -> Option<f64> {
        let measured = self.independent.iter().filter(|one| one.threads == threads);
        measured.map(|one| one.mlines).max_by(f64::total_cmp)
    }

    /// Returns the share of a limit that a phase reaches, 0 to 1: for `get_many` of the lines that
    /// can be read, for mutations that flush of one ordered persist each. Returns `None` for phases
    /// that no single limit governs.
    pub fn share(&self, figures: &Record) -> Option<f64> {
        let mops = figures.mops?;
        match figures.phase.parse().ok()? {
            Phase::GetMany => Some(mops / self.mlines(figures.threads)?),
            Phase::Insert | Phase::Update | Phase::Delete | Phase::InsertMany
                if figures.flush_kind.is_some() =>
            {
                Some(mops * self.persist_ns? / (1000.0 * figures.threads as f64))
            }
            _ => None,
        }
    }

    /// Returns the limits as records of an index called `machine`.
    pub fn records(&self, keys: u64, seed: u64) -> Vec<Record> {
        let record = |phase: String, threads, mops| Record {
            experiment: "limits",
            index: "machine".to_owned(),
            medium: "dram".to_owned(),
            threads,
            keys,
            phase,
            mops: Some(mops),
            page_size: self.page_size,
            seed,
            foreign_cpu: self.foreign_cpu,
            void: self.void,
            ..Record::default()
        };
        let mut records = vec![record("dependent_load".into(), 1, 1e3 / self.dependent_load_ns)];
        for one in &self.independent {
            records.push(record(format!("lines_ahead_{}", one.distance), one.threads, one.mlines));
        }
        records.extend(self.persist_ns.map(|ns| record("persist".into(), 1, 1e3 / ns)));
        records
    }
}

/// Memory that is accessed at random, and the order.
struct Lines {
    memory: Dram,
    count: usize,
    /// A random order of all lines, followed by its beginning again, as long as the farthest
    /// prefetch. The first word of each line holds the number of the next one in this order.
    order: Vec<u32>,
}

impl Lines {
    fn new(count: u32, pages: Pages) -> Result<Self, LabError> {
        let failed = |error| LabError::index("machine", error);
        let bytes = u64::from(count) * LINE;
        let memory = Dram::reserve(bytes, pages).map_err(failed)?;
        memory.grow(bytes).map_err(failed)?;
        let permutation = Permutation::new(u64::from(count), 0);
        let again = DISTANCES[DISTANCES.len() - 1] as u64;
        let places = (0..u64::from(count)).chain(0..again.min(u64::from(count)));
        let order = places.map(|place| permutation.at(place) as u32).collect();
        let lines = Lines { memory, count: count as usize, order };
        for next in lines.order[..=lines.count].windows(2) {
            lines.memory.store(lines.word(next[0]), u64::from(next[1]));
        }
        Ok(lines)
    }

    /// Returns the first word of a line.
    #[inline(always)]
    fn word(&self, line: u32) -> &PmU64 {
        self.memory.at(u64::from(line) * LINE).expect("grown to hold every line")
    }

    /// Follows the chain for this number of loads and returns the last line.
    fn chain(&self, loads: u64) -> u32 {
        let mut line = self.order[0];
        for _ in 0..loads {
            line = self.memory.load_relaxed(self.word(line)) as u32;
        }
        line
    }

    /// Reads all lines, starting at a place that depends on `thread`, and returns their sum.
    fn read(&self, distance: usize, thread: usize, threads: usize) -> u64 {
        let start = self.count / threads * thread;
        let mut sum = 0u64;
        for part in [start..self.count, 0..start] {
            let ahead = &self.order[part.start + distance..];
            for (&line, &ahead) in self.order[part].iter().zip(ahead) {
                if distance > 0 {
                    self.memory.prefetch(u64::from(ahead) * LINE);
                }
                sum = sum.wrapping_add(self.memory.load_relaxed(self.word(line)));
            }
        }
        sum
    }

    /// Stores to random lines, and waits each time until the line is written back.
    fn persist(&self, stores: usize) {
        let lines = self.order[..self.count].iter();
        for (value, &line) in lines.cycle().take(stores).enumerate() {
            // The second word, because the first is a link of the chain.
            let word: &PmU64 =
                self.memory.at(u64::from(line) * LINE + 8).expect("in a line of ours");
            self.memory.store(word, value as u64);
            flush_lines(std::ptr::from_ref(word).cast(), size_of::<PmU64>());
            fence();
        }
    }
}

/// Measures the limits repeatedly, on memory that is set up once.
pub(crate) struct Probe {
    lines: Arc<Lines>,
    one: Workers,
    page_size: Option<u64>,
}

impl Probe {
    /// Allocates as much memory as a compact table of `keys` keys takes.
    ///
    /// # Errors
    ///
    /// `Index` or `Io` if the system refuses memory or a thread.
    pub(crate) fn new(keys: u64, pages: Pages) -> Result<Self, LabError> {
        let bytes = keys.saturating_mul(BYTES_PER_KEY).max(BYTES_MIN);
        let count = u32::try_from(bytes / LINE).unwrap_or(u32::MAX);
        let before = machine::resident();
        let lines = Arc::new(Lines::new(count, pages)?);
        let page_size = machine::growth(before).map(machine::page_size);
        Ok(Probe { lines, one: Workers::start(1)?, page_size })
    }

    /// Measures with one thread and with `workers`. The result is void if other programs kept more
    /// processors busy than `quiet` allows.
    ///
    /// # Errors
    ///
    /// `Panicked`.
    pub(crate) fn measure(&self, workers: &Workers, quiet: Quiet) -> Result<Limits, LabError> {
        let clock = CpuClock::now();
        let lines = self.lines.clone();
        let chain = self.one.race(move |_, _| Ok(black_box(lines.chain(CHAIN_LOADS))))?;
        let persist_ns = if line_flush() == FlushInstruction::None {
            None
        } else {
            let lines = self.lines.clone();
            let race = self.one.race(move |_, _| {
                lines.persist(PERSISTS);
                Ok(())
            })?;
            Some(race.seconds * 1e9 / PERSISTS as f64)
        };
        let mut independent = Vec::new();
        let groups = [Some(&self.one), Some(workers).filter(|workers| workers.count() > 1)];
        for group in groups.into_iter().flatten() {
            let threads = group.count();
            for distance in DISTANCES {
                let lines = self.lines.clone();
                let race = group
                    .race(move |thread, _| Ok(black_box(lines.read(distance, thread, threads))))?;
                let mlines = (self.lines.count * threads) as f64 / race.seconds / 1e6;
                independent.push(Independent { threads, distance, mlines });
            }
        }
        let foreign_cpu = clock.elapsed().foreign_share();
        Ok(Limits {
            bytes: self.lines.count as u64 * LINE,
            page_size: self.page_size,
            dependent_load_ns: chain.seconds * 1e9 / CHAIN_LOADS as f64,
            independent,
            persist_ns,
            foreign_cpu,
            void: quiet.is_exceeded(foreign_cpu),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_visits_every_line_once() {
        let lines = Lines::new(1000, Pages::Base).unwrap();
        let mut seen = vec![false; 1000];
        for loads in 0..1000 {
            let line = lines.chain(loads) as usize;
            assert!(!std::mem::replace(&mut seen[line], true), "line {line} twice");
        }
        assert_eq!(lines.chain(1000), lines.chain(0));
    }

    #[test]
    fn persists_leave_the_chain_alone_and_reach_every_line() {
        let lines = Lines::new(100, Pages::Base).unwrap();
        let end = lines.chain(1234);
        lines.persist(250);
        assert_eq!(lines.chain(1234), end);
        let stored = |line| lines.memory.load(lines.memory.at(line * LINE + 8).unwrap());
        let mut values: Vec<_> = (0..100).map(stored).collect();
        values.sort();
        // The last store to each line: half of them in the third lap, half in the second.
        assert_eq!(values, (150..250).collect::<Vec<_>>());
    }

    #[test]
    fn every_thread_reads_every_line_at_every_distance() {
        let lines = Lines::new(1000, Pages::Base).unwrap();
        for distance in DISTANCES {
            for thread in 0..3 {
                // The words are the numbers of all lines, in another order.
                assert_eq!(lines.read(distance, thread, 3), 999 * 1000 / 2);
            }
        }
    }

    #[test]
    fn shares_are_relative_to_the_limit_of_the_phase() {
        let one = |threads, distance, mlines| Independent { threads, distance, mlines };
        let limits = Limits {
            bytes: 0,
            page_size: None,
            dependent_load_ns: 100.0,
            independent: vec![one(1, 0, 40.0), one(1, 32, 80.0), one(2, 32, 150.0)],
            persist_ns: Some(200.0),
            foreign_cpu: None,
            void: false,
        };
        let figures = |threads, mops, flush_kind: Option<&str>| Record {
            threads,
            mops: Some(mops),
            flush_kind: flush_kind.map(str::to_owned),
            ..Record::default()
        };
        let share = |phase: Phase, figures| {
            limits.share(&Record { phase: phase.name().to_owned(), ..figures })
        };
        assert_eq!(limits.mlines(3), None);
        assert_eq!(share(Phase::GetMany, figures(1, 20.0, None)), Some(0.25));
        assert_eq!(share(Phase::GetMany, figures(2, 75.0, None)), Some(0.5));
        // One persist of 200 ns an operation allows 5 million a second and thread.
        assert_eq!(share(Phase::Insert, figures(1, 2.5, Some("clwb"))), Some(0.5));
        assert_eq!(share(Phase::Insert, figures(2, 2.5, Some("clwb"))), Some(0.25));
        assert_eq!(share(Phase::Insert, figures(1, 2.5, None)), None);
        assert_eq!(share(Phase::Positive, figures(1, 2.5, None)), None);
    }

    #[test]
    fn medians_of_measurements_leave_out_void_ones() {
        let of = |load, lines, persist, void| Limits {
            bytes: 64,
            page_size: None,
            dependent_load_ns: load,
            independent: vec![Independent { threads: 1, distance: 8, mlines: lines }],
            persist_ns: persist,
            foreign_cpu: None,
            void,
        };
        assert_eq!(Limits::median(&[]), None);
        let (first, last) = (of(1.0, 9.0, None, false), of(2.0, 8.0, None, false));
        let all = [first.clone(), of(3.0, 7.0, Some(5.0), false), of(99.0, 99.0, None, true), last];
        assert_eq!(Limits::median(&all), Some(of(2.0, 8.0, Some(5.0), false)));
        let all = [of(1.0, 9.0, None, true), of(3.0, 7.0, None, true)];
        assert_eq!(Limits::median(&all), Some(of(2.0, 8.0, None, true)));
    }
}
