//! What a lookup costs while a table grows by a factor of hundreds: a line through the samples, and
//! its slope.
//!
//! Keys are made in portions, so that a run of hundreds of millions needs memory for the table
//! only.

use std::hint::black_box;

use crate::LabError;
use crate::driver::Config;
use crate::experiments::load_factor::insertion;
use crate::experiments::settings::Settings;
use crate::machine::{self, CpuClock};
use crate::registry::subject;
use crate::report::model::cell;
use crate::report::{Grid, Marks, Output, Plot, Point, Record, Series, grouped};
use crate::subject::{Setup, Size, Subject, Work};
use crate::workload::bytes::draw;
use crate::workload::{Phase, Stream, Workload};

/// The table that grows, unless exactly one is requested.
const USUAL: &str = "tranche-4k";
/// The number of keys in a portion.
const PORTION: u64 = 1 << 20;
/// The greatest number of lookups of a sample.
const LOOKUPS: u64 = 1 << 20;
/// Bytes that a key takes in the table at most, for a table that has just doubled.
const BYTES_PER_KEY: u64 = 64;

/// A table at one size.
#[derive(Clone, Copy)]
struct Sample {
    keys: u64,
    size: Size,
    /// Processor time of a lookup of a present key, of an absent key, and of an insertion since the
    /// sample before, in nanoseconds.
    hit: f64,
    miss: f64,
    insert: f64,
}

/// The samples of a table.
pub(super) struct Growth {
    index: &'static str,
    samples: Vec<Sample>,
}

/// A straight line through points, by least squares.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    start: f64,
    slope: f64,
}

impl Line {
    /// Returns the line through points, or `None` if there are fewer than two different places.
    fn through(points: &[(f64, f64)]) -> Option<Line> {
        let count = points.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(|point| point.0), mean(|point| point.1));
        let spread: f64 = points.iter().map(|point| (point.0 - x) * (point.0 - x)).sum();
        let both: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
        let slope = both / spread;
        (spread > 0.0).then_some(Line { start: y - slope * x, slope })
    }
}

/// Grows a table through the sizes, and measures it at each.
pub(super) fn measure(
    settings: &Settings,
    config: &Config,
    out: &mut dyn Output,
) -> Result<Growth, LabError> {
    let (from, to) = if settings.quick { (20_000, 160_000) } else { (1_000_000, 16_000_000) };
    let (from, to) = (settings.from.unwrap_or(from), settings.to.unwrap_or(to));
    let samples = settings.samples.unwrap_or(5);
    if from == 0 || from > to || samples == 0 {
        return Err(LabError::Config(format!(
            "{samples} samples between {from} and {to} keys are impossible: there must be at least \
             one, and the first size must be above zero and not above the second"
        )));
    }
    let entry = match settings.indexes.as_deref() {
        Some([one]) => subject(one)?,
        _ => subject(USUAL)?,
    };
    if let Some(available) = machine::available()
        && to.saturating_mul(BYTES_PER_KEY) > available
    {
        return Err(LabError::Config(format!(
            "{to} keys may take {} MiB of memory, but only {} MiB are free; take a lower `--to`",
            (to * BYTES_PER_KEY) >> 20,
            available >> 20
        )));
    }
    // The driver's own lists of keys are small here, so its bound for memory does not apply.
    let small = Setup::new(config.medium, config.location.clone(), config.pages, 1, None)?;
    let table = entry.build(&Setup { keys: to, ..small })?;
    if table.speller().is_some() {
        return Err(LabError::Config(format!("{} does not take words as keys", entry.name)));
    }
    let mut growth = Growth { index: entry.name, samples: Vec::new() };
    let workload = Workload { keys: to, threads: 1, seed: config.seed };
    let mut grower = Grower { table: &*table, workload, inserted: 0, stream: Stream::default() };
    for keys in sizes(from, to, samples) {
        out.step(&format!("short-records: {} with {keys} records", entry.name));
        let insert = grower.grow_to(keys)?;
        let (hit, miss) = (grower.look_up(true)?, grower.look_up(false)?);
        let sample = Sample { keys, size: table.size()?, hit, miss, insert };
        for record in growth.records(&sample, config.seed, &*table) {
            out.record(&record)?;
        }
        growth.samples.push(sample);
    }
    Ok(growth)
}

/// Returns sizes from the first to the last, each by the same factor larger than the one before.
fn sizes(from: u64, to: u64, samples: u64) -> Vec<u64> {
    let factor = (to as f64 / from as f64).powf(1.0 / (samples.max(2) - 1) as f64);
    let mut sizes: Vec<_> =
        (0..samples).map(|step| (from as f64 * factor.powi(step as i32)).round() as u64).collect();
    if samples > 1
        && let Some(last) = sizes.last_mut()
    {
        *last = to;
    }
    sizes.dedup();
    sizes
}

/// Returns the number of lookups in a table with this number of keys: a small one needs fewer.
fn lookups(keys: u64) -> u64 {
    LOOKUPS.min(keys.saturating_mul(16))
}

/// A table that grows.
struct Grower<'t> {
    table: &'t dyn Subject,
    workload: Workload,
    inserted: u64,
    stream: Stream,
}

impl Grower<'_> {
    /// Inserts keys until there are `keys`. Returns the processor time of an insertion in
    /// nanoseconds, without that of making the keys.
    fn grow_to(&mut self, keys: u64) -> Result<f64, LabError> {
        let (before, mut seconds) = (self.inserted, 0.0);
        while self.inserted < keys {
            let until = keys.min(self.inserted + PORTION);
            self.stream.keys.clear();
            self.stream.keys.extend((self.inserted..until).map(|at| self.workload.key(at)));
            seconds += self.run(insertion)?;
            self.inserted = until;
        }
        Ok(seconds * 1e9 / (keys - before).max(1) as f64)
    }

    /// Looks up random present keys, or absent ones. Returns the processor time of a lookup in
    /// nanoseconds.
    fn look_up(&mut self, present: bool) -> Result<f64, LabError> {
        let (workload, inserted) = (self.workload, self.inserted);
        let lookups = lookups(inserted);
        let place = |number| match present {
            true => draw(workload.seed, inserted, number) % inserted,
            false => workload.keys + number,
        };
        self.stream.keys.clear();
        self.stream.keys.extend((0..lookups).map(|number| workload.key(place(number))));
        let phase = if present { Phase::Positive } else { Phase::Negative };
        let seconds = self.run(|stream| Work { name: phase.name(), phase, ..insertion(stream) })?;
        Ok(seconds * 1e9 / lookups as f64)
    }

    /// Does the work of the stream. Returns the processor time in seconds.
    fn run(&self, work: impl FnOnce(&Stream) -> Work<'_>) -> Result<f64, LabError> {
        let clock = CpuClock::now();
        self.table.run(black_box(work(&self.stream)))?;
        Ok(clock.elapsed().own)
    }
}

impl Growth {
    fn records(&self, sample: &Sample, seed: u64, table: &dyn Subject) -> [Record; 3] {
        let of = |phase: Phase, ns: f64| {
            let mut record = Record {
                experiment: "short-records",
                index: self.index.to_owned(),
                threads: 1,
                keys: sample.keys,
                phase: phase.name().to_owned(),
                ops: lookups(sample.keys),
                cpu_ns_per_op: Some(ns),
                key_bytes: Some("8".into()),
                value_bytes: Some("8".into()),
                case: Some("growth".into()),
                seed,
                ..Record::at(table.place())
            };
            record.size(sample.size);
            record
        };
        [
            of(Phase::Insert, sample.insert),
            of(Phase::Positive, sample.hit),
            of(Phase::Negative, sample.miss),
        ]
    }

    pub(super) fn table(&self) -> Grid {
        let columns = [
            "hit, ns",
            "miss, ns",
            "insert, ns",
            "fill",
            "tranches/hit",
            "tranches/miss",
            "bytes/record",
        ];
        let title = format!("{}, 8/8 bytes: processor time of a look-up by size", self.index);
        let mut grid = Grid::new(title, &columns);
        for sample in &self.samples {
            let Sample { keys, size, hit, miss, insert } = sample;
            let mut record = Record::default();
            record.size(*size);
            grid.push(
                grouped(*keys),
                vec![
                    format!("{hit:.0}"),
                    format!("{miss:.0}"),
                    format!("{insert:.0}"),
                    cell(record.load_factor, 3),
                    cell(record.tranches_per_hit, 3),
                    cell(record.tranches_per_miss, 3),
                    cell(record.bytes_per_record, 1),
                ],
            );
        }
        grid
    }

    pub(super) fn plot(&self) -> Plot {
        let series = |name: &str, of: fn(&Sample) -> f64| Series {
            name: name.into(),
            points: self
                .samples
                .iter()
                .map(|sample| Point::new(sample.keys as f64, of(sample)))
                .collect(),
        };
        Plot {
            title: format!("{}: a look-up by size", self.index),
            x: "records".into(),
            y: "processor time, ns".into(),
            log_x: true,
            marks: Marks::Lines,
            series: vec![
                series("present", |sample| sample.hit),
                series("absent", |sample| sample.miss),
            ],
        }
    }

    /// Returns the slopes: of the time by the size, and by its logarithm; and of the tranches.
    pub(super) fn notes(&self) -> Vec<String> {
        let line = |x: fn(f64) -> f64, y: &dyn Fn(&Sample) -> Option<f64>| {
            let points: Option<Vec<_>> = self
                .samples
                .iter()
                .map(|sample| Some((x(sample.keys as f64), y(sample)?)))
                .collect();
            points.and_then(|points| Line::through(&points))
        };
        let shown = |line: Option<Line>, digits: usize| {
            line.map_or("-".into(), |line| {
                format!("{:.digits$} + {:.digits$}", line.start, line.slope)
            })
        };
        let hundreds = |keys: f64| keys / 1e8;
        let hit = |sample: &Sample| Some(sample.hit);
        let per_hit = |sample: &Sample| Some(sample.size.placement?.tranches_per_hit);
        vec![format!(
            "{}: a hit takes {} ns for each hundred million records, or {} ns for each doubling of \
             one record, and parses {} tranches for each hundred million.",
            self.index,
            shown(line(hundreds, &hit), 1),
            shown(line(f64::log2, &hit), 1),
            shown(line(hundreds, &per_hit), 4)
        )]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_slope_of_their_points() {
        let points = [(0.0, 1.0), (1.0, 3.0), (5.0, 11.0)];
        assert_eq!(Line::through(&points), Some(Line { start: 1.0, slope: 2.0 }));
        assert_eq!(Line::through(&points[..1]), None);
        assert_eq!(Line::through(&[]), None);
    }

    #[test]
    fn sizes_grow_by_one_factor_and_end_at_the_last() {
        assert_eq!(sizes(1_000, 100_000, 3), [1_000, 10_000, 100_000]);
        assert_eq!(sizes(10, 10, 4), [10]);
        assert_eq!(sizes(10, 500, 1), [10]);
    }

    #[test]
    fn what_is_impossible_is_refused() {
        let run = |settings: Settings| {
            let config = Config { keys: 10, ..Config::default() };
            let measured = measure(&settings, &config, &mut crate::testing::Kept::default());
            measured.err().unwrap().to_string()
        };
        let between = |from, to, samples| Settings {
            from: Some(from),
            to: Some(to),
            samples: Some(samples),
            ..Settings::default()
        };
        for (from, to, samples) in [(0, 9, 2), (10, 9, 2), (1, 9, 0)] {
            assert!(run(between(from, to, samples)).contains("are impossible"));
        }
        assert!(run(between(1, u64::MAX / 64, 2)).contains("take a lower `--to`"));
        let store = Some(vec!["evermap".to_owned()]);
        let error = run(Settings { indexes: store, ..between(1, 2, 1) });
        assert!(error.contains("does not take words"), "{error}");
    }

    #[test]
    fn slopes_are_told() {
        let sample = |keys: u64| Sample {
            keys,
            size: Size::default(),
            hit: 50.0 + keys as f64 / 1e8,
            miss: 1.0,
            insert: 1.0,
        };
        let growth = Growth { index: "some", samples: [1 << 20, 1 << 27].map(sample).to_vec() };
        let note = &growth.notes()[0];
        assert!(note.contains("50.0 + 1.0 ns for each hundred million"), "{note}");
        assert!(note.contains("parses - tranches"), "{note}");
    }
}
