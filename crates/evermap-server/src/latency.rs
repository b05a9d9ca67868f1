//! How long the server takes to answer, by kind of command.
//!
//! A worker measures turns, not commands: the time from the moment at which the system reported
//! the bytes of a client to the moment at which the replies to them were handed to the socket. All
//! commands that were executed in between waited that long for their replies, because the replies
//! leave together. So a turn costs one reading of the clock, however many commands it executes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A kind of command whose latency is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// A key of get or gets, or a get of the binary protocol.
    Get,
    /// set, add, replace, append, prepend and cas.
    Set,
    /// delete.
    Delete,
    /// A key of touch, gat or gats.
    Touch,
    /// incr and decr.
    Arithmetic,
    /// mg.
    MetaGet,
    /// ms.
    MetaSet,
    /// md.
    MetaDelete,
    /// ma.
    MetaArithmetic,
}

impl Command {
    /// All kinds.
    pub const ALL: [Command; 9] = [
        Command::Get,
        Command::Set,
        Command::Delete,
        Command::Touch,
        Command::Arithmetic,
        Command::MetaGet,
        Command::MetaSet,
        Command::MetaDelete,
        Command::MetaArithmetic,
    ];

    /// Returns the name in `stats latency` and in the metrics.
    pub fn name(self) -> &'static str {
        match self {
            Command::Get => "get",
            Command::Set => "set",
            Command::Delete => "delete",
            Command::Touch => "touch",
            Command::Arithmetic => "arithmetic",
            Command::MetaGet => "meta_get",
            Command::MetaSet => "meta_set",
            Command::MetaDelete => "meta_delete",
            Command::MetaArithmetic => "meta_arithmetic",
        }
    }
}

/// Durations below 2^7 ns are counted in the first bucket: one reading of the clock takes a good
/// part of that.
const MIN_EXPONENT: u32 = 7;
/// Durations of 2^34 ns (17 s) and more are counted in the last bucket.
const END_EXPONENT: u32 = 34;
/// Each power of two is divided into 2^4 buckets, so the middle of a bucket is within 3.1 % of
/// every duration in it.
const DIVISION_BITS: u32 = 4;
const DIVISIONS: usize = 1 << DIVISION_BITS;
const BUCKETS: usize = (END_EXPONENT - MIN_EXPONENT) as usize * DIVISIONS;

/// Returns the bucket of a duration in nanoseconds.
fn bucket_of(nanoseconds: u64) -> usize {
    let nanoseconds = nanoseconds.max(1 << MIN_EXPONENT);
    let exponent = nanoseconds.ilog2();
    let division = (nanoseconds >> (exponent - DIVISION_BITS)) as usize % DIVISIONS;
    let bucket = (exponent - MIN_EXPONENT) as usize * DIVISIONS + division;
    bucket.min(BUCKETS - 1)
}

/// Returns the first duration of a bucket, in nanoseconds.
fn start_of(bucket: usize) -> u64 {
    let exponent = MIN_EXPONENT + (bucket / DIVISIONS) as u32;
    ((DIVISIONS + bucket % DIVISIONS) as u64) << (exponent - DIVISION_BITS)
}

/// Returns the middle of a bucket.
fn middle_of(bucket: usize) -> Duration {
    Duration::from_nanos(start_of(bucket).midpoint(start_of(bucket + 1)))
}

/// The latencies of one worker, 31 KiB. Only that worker writes them, and any thread reads them.
///
/// All orderings are relaxed, because the counters guard no other memory. A reader may see a
/// duration in one counter and not yet in another.
#[repr(align(128))]
pub struct Latencies {
    /// The commands that were executed since the last call of [`record`](Latencies::record).
    executed: [AtomicU64; Command::ALL.len()],
    histograms: [Histogram; Command::ALL.len()],
}

struct Histogram {
    /// The number of commands in each bucket.
    buckets: [AtomicU64; BUCKETS],
    /// The sum of all durations.
    nanoseconds: AtomicU64,
}

impl Default for Latencies {
    fn default() -> Self {
        let executed = std::array::from_fn(|_| AtomicU64::new(0));
        let histograms = std::array::from_fn(|_| Histogram {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            nanoseconds: AtomicU64::new(0),
        });
        Latencies { executed, histograms }
    }
}

impl Latencies {
    /// Counts commands of the present turn. Only the worker may call this.
    #[inline]
    pub fn executed(&self, command: Command, count: u64) {
        add(&self.executed[command as usize], count);
    }

    /// Ends a turn, and records its duration for each of its commands. Calls `duration` if there
    /// were any. Only the worker may call this.
    pub fn record(&self, duration: impl FnOnce() -> Duration) {
        if self.executed.iter().all(|executed| executed.load(Relaxed) == 0) {
            return;
        }
        let duration = duration();
        for (executed, histogram) in self.executed.iter().zip(&self.histograms) {
            let count = executed.load(Relaxed);
            if count > 0 {
                executed.store(0, Relaxed);
                histogram.record(duration, count);
            }
        }
    }
}

impl Histogram {
    fn record(&self, duration: Duration, count: u64) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        add(&self.buckets[bucket_of(nanoseconds)], count);
        add(&self.nanoseconds, nanoseconds.saturating_mul(count));
    }
}

/// Adds to a counter that only the calling thread writes. A load and a store suffice, without a
/// locked instruction.
#[inline]
fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(count), Relaxed);
}

/// Sums of the latencies of several workers.
#[derive(Clone, Debug)]
pub struct LatencyTotals(Vec<HistogramTotals>);

#[derive(Clone, Debug)]
struct HistogramTotals {
    buckets: Vec<u64>,
    nanoseconds: u64,
}

impl LatencyTotals {
    /// Returns the sums of the latencies of `workers`.
    pub fn of<'a>(workers: impl IntoIterator<Item = &'a Latencies> + Clone) -> Self {
        let totals = |command: Command| {
            let mut totals = HistogramTotals { buckets: vec![0; BUCKETS], nanoseconds: 0 };
            for worker in workers.clone() {
                totals.add(&worker.histograms[command as usize]);
            }
            totals
        };
        LatencyTotals(Command::ALL.into_iter().map(totals).collect())
    }

    /// Returns the differences from `earlier` sums.
    #[must_use]
    pub fn since(mut self, earlier: &LatencyTotals) -> Self {
        for (totals, earlier) in self.0.iter_mut().zip(&earlier.0) {
            totals.nanoseconds = totals.nanoseconds.wrapping_sub(earlier.nanoseconds);
            for (count, earlier) in totals.buckets.iter_mut().zip(&earlier.buckets) {
                *count = count.wrapping_sub(*earlier);
            }
        }
        self
    }

    /// Returns the number of commands.
    pub fn count(&self, command: Command) -> u64 {
        self.0[command as usize].buckets.iter().sum()
    }

    /// Returns the sum of the durations of all commands.
    pub fn sum(&self, command: Command) -> Duration {
        Duration::from_nanos(self.0[command as usize].nanoseconds)
    }

    /// Returns the number of commands that took less than 2^`exponent` nanoseconds.
    pub fn count_below(&self, command: Command, exponent: u32) -> u64 {
        let powers = exponent.clamp(MIN_EXPONENT, END_EXPONENT) - MIN_EXPONENT;
        self.0[command as usize].buckets[..powers as usize * DIVISIONS].iter().sum()
    }

    /// Returns the middles of the buckets that are not empty, and the numbers of commands in them.
    pub fn buckets(&self, command: Command) -> impl Iterator<Item = (Duration, u64)> {
        let buckets = self.0[command as usize].buckets.iter().enumerate();
        let filled = buckets.filter(|(_, count)| **count > 0);
        filled.map(|(bucket, count)| (middle_of(bucket), *count))
    }

    /// Returns the duration that a part of the commands did not exceed, within 3.1 %. `part` is
    /// from 0 to 1, for example 0.99. Returns `None` if there were no commands.
    pub fn quantile(&self, command: Command, part: f64) -> Option<Duration> {
        let buckets = &self.0[command as usize].buckets;
        let count: u64 = buckets.iter().sum();
        let rank = ((part * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0;
        let bucket = buckets.iter().position(|&count| {
            seen += count;
            seen >= rank
        })?;
        Some(middle_of(bucket))
    }
}

impl HistogramTotals {
    fn add(&mut self, histogram: &Histogram) {
        self.nanoseconds = self.nanoseconds.wrapping_add(histogram.nanoseconds.load(Relaxed));
        for (total, count) in self.buckets.iter_mut().zip(&histogram.buckets) {
            *total = total.wrapping_add(count.load(Relaxed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_cover_all_durations_in_order() {
        assert_eq!((start_of(0), bucket_of(0), bucket_of(128)), (128, 0, 0));
        for bucket in 1..BUCKETS {
            assert_eq!(bucket_of(start_of(bucket)), bucket);
            assert_eq!(bucket_of(start_of(bucket) - 1), bucket - 1);
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn every_command_of_a_turn_has_the_duration_of_the_turn() {
        let [one, two] = [Latencies::default(), Latencies::default()];
        one.executed(Command::Get, 97);
        one.executed(Command::Set, 1);
        one.record(|| Duration::from_micros(10));
        one.record(|| unreachable!("nothing was executed"));
        two.executed(Command::Get, 3);
        two.record(|| Duration::from_millis(2));
        let totals = LatencyTotals::of([&one, &two]);
        assert_eq!((totals.count(Command::Get), totals.count(Command::Set)), (100, 1));
        assert_eq!(totals.sum(Command::Get), Duration::from_micros(97 * 10 + 3 * 2000));
        let quantile = |part| totals.quantile(Command::Get, part).unwrap().as_micros();
        assert_eq!([quantile(0.0), quantile(0.5), quantile(0.97)], [9; 3]);
        assert_eq!([quantile(0.98), quantile(1.0)], [1998; 2]);
        assert_eq!(totals.quantile(Command::Delete, 0.5), None);
        let buckets = totals.buckets(Command::Get).map(|(time, count)| (time.as_micros(), count));
        assert_eq!(buckets.collect::<Vec<_>>(), [(9, 97), (1998, 3)]);
        // 10 microseconds are between 2^13 and 2^14 nanoseconds.
        let below = [0, 13, 14, 20, 21, 99].map(|power| totals.count_below(Command::Get, power));
        assert_eq!(below, [0, 0, 97, 97, 100, 100]);
        let earlier = totals.clone();
        one.executed(Command::Get, 1);
        one.record(|| Duration::ZERO);
        let later = LatencyTotals::of([&one, &two]).since(&earlier);
        assert_eq!((later.count(Command::Get), later.count(Command::Set)), (1, 0));
    }

    proptest! {
        #[test]
        fn the_middle_of_a_bucket_is_close(nanoseconds in 128u64..1 << 34) {
            let latencies = Latencies::default();
            latencies.executed(Command::MetaGet, 1);
            latencies.record(|| Duration::from_nanos(nanoseconds));
            let totals = LatencyTotals::of([&latencies]);
            let middle = totals.quantile(Command::MetaGet, 0.5).unwrap().as_nanos() as f64;
            prop_assert!((middle / nanoseconds as f64 - 1.0).abs() <= 0.03126);
        }
    }
}
