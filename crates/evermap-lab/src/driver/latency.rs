//! Latencies of single operations, from a separate pass, because reading the clock costs more than
//! some operations.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::LabError;
use crate::report::Record;
use crate::subject::{Subject, Work};
use crate::workload::Phase;

/// One of this many operations is timed, because reading the clock twice would slow down all of
/// them.
const SAMPLE_EVERY: usize = 16;

/// Latencies of one phase, in nanoseconds.
pub(crate) struct Latency {
    all: Histogram<u64>,
    /// Whether other programs used the machine too much at the same time.
    pub(crate) void: bool,
}

impl Latency {
    /// Merges the latencies of all threads.
    pub(crate) fn of(threads: Vec<Histogram<u64>>) -> Self {
        let mut all = histogram();
        for one in threads {
            all.add(one).expect("equal bounds");
        }
        Latency { all, void: false }
    }

    /// Stores the quantiles in `record`, if there are any.
    pub(crate) fn write(&self, record: &mut Record) {
        record.void |= self.void;
        if self.all.is_empty() {
            return;
        }
        record.p50_ns = Some(self.all.value_at_quantile(0.5));
        record.p95_ns = Some(self.all.value_at_quantile(0.95));
        record.p99_ns = Some(self.all.value_at_quantile(0.99));
        record.p999_ns = Some(self.all.value_at_quantile(0.999));
        record.max_ns = Some(self.all.max());
    }
}

/// Returns an empty histogram from 1 ns to 100 s with three digits.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 100_000_000_000, 3).expect("valid bounds")
}

/// Does all of `work` and times one operation, or one batch of `get_many`, of [`SAMPLE_EVERY`].
pub(crate) fn sample(
    subject: &dyn Subject,
    work: Work<'_>,
    clock: Duration,
) -> Result<Histogram<u64>, LabError> {
    let mut histogram = histogram();
    let batched = matches!(work.phase, Phase::GetMany | Phase::InsertMany);
    let unit = if batched { work.batch } else { 1 };
    let (len, mut at) = (work.keys.len(), 0);
    while at < len {
        let timed = (at + unit * (SAMPLE_EVERY - 1)).min(len);
        let end = (timed + unit).min(len);
        subject.run(work.part(at, timed))?;
        if timed < end {
            let begin = Instant::now();
            subject.run(work.part(timed, end))?;
            histogram.saturating_record((begin.elapsed().saturating_sub(clock)).as_nanos() as u64);
        }
        at = end;
    }
    Ok(histogram)
}

/// Returns the cost of reading the clock twice, which is subtracted from every latency.
pub(crate) fn clock_cost() -> Duration {
    let mut costs: Vec<_> = (0..1001).map(|_| Instant::now().elapsed()).collect();
    costs.sort();
    costs[costs.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::{Guards, Measured};
    use crate::testing::{Fault, Faulty, work};

    #[test]
    fn latencies_come_from_one_operation_in_sixteen() {
        let table = Faulty::new(Fault::None);
        let subject = Measured { name: "faulty", table, guards: Guards::PerOperation };
        let count = |phase, keys: &[u64]| {
            let work = Work { batch: 10, ..work(phase, keys) };
            sample(&subject, work, Duration::ZERO).unwrap().len()
        };
        let keys: Vec<_> = (0..1000).collect();
        assert_eq!(count(Phase::Insert, &keys), 62);
        assert_eq!(count(Phase::Positive, &keys[..15]), 0);
        assert_eq!(count(Phase::Positive, &keys[..16]), 1);
        // Batches of ten: 150 keys untimed, then one batch, whole or not.
        assert_eq!(count(Phase::GetMany, &keys), 6);
        assert_eq!(count(Phase::GetMany, &keys[..155]), 1);
        assert_eq!(count(Phase::GetMany, &keys[..150]), 0);
    }

    #[test]
    fn quantiles_are_those_of_all_threads() {
        let mut one = histogram();
        let mut other = histogram();
        (1..=600).for_each(|ns| one.saturating_record(ns));
        (601..=1000).for_each(|ns| other.saturating_record(ns));
        let mut record = Record::default();
        Latency { void: true, ..Latency::of(vec![one, other]) }.write(&mut record);
        assert_eq!((record.p50_ns, record.p95_ns), (Some(500), Some(950)));
        assert_eq!(record.p99_ns, Some(990));
        assert_eq!((record.p999_ns, record.max_ns), (Some(999), Some(1000)));
        assert!(record.void);
    }
}
