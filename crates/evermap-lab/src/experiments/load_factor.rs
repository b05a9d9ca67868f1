//! How full a table is, and how much space a pair takes, while it grows.
//!
//! Both oscillate between two doublings or splits, so one number at one size means little: they are
//! sampled over a range of sizes.

use std::path::PathBuf;

use evermap_pm::medium::Pages;

use super::definition::Experiment;
use super::settings::{Setting, Settings};
use crate::LabError;
use crate::registry::subject;
use crate::report::{Figure, Grid, Marks, Plot, Point, Report, Series};
use crate::report::{Output, Record};
use crate::subject::{Entry, MediumKind, Setup, Work};
use crate::workload::{Phase, Stream, Workload, Writer};

pub(super) const LOAD_FACTOR: Experiment = Experiment {
    name: "load-factor",
    about: "how full a table is, and how much space a pair takes, while it grows",
    takes: &[Setting::INDEX, Setting::MEDIUM, Setting::FROM, Setting::TO, Setting::SAMPLES],
    run,
};

/// The tables of the paper.
const USUAL: &[&str] = &["dash-eh", "dash-eh-4-stash", "dash-lh", "cceh", "level"];

fn run(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let (from, to) = if settings.quick { (200_000, 800_000) } else { (1_000_000, 4_000_000) };
    let config = Config {
        from: settings.from.unwrap_or(from),
        to: settings.to.unwrap_or(to),
        samples: settings.samples.unwrap_or(if settings.quick { 40 } else { 200 }),
        seed: settings.seed.unwrap_or(1),
        medium: settings.medium(MediumKind::Dram),
        location: settings.location.clone(),
    };
    let names = settings.indexes(USUAL);
    if names.is_empty() {
        return Err(LabError::Config("there must be at least one index".into()));
    }
    let entries = names.iter().map(|name| subject(name)).collect::<Result<Vec<_>, _>>()?;
    let grown = entries.iter().map(|entry| grow(entry, &config, out));
    let grown = grown.collect::<Result<Vec<_>, _>>()?;
    let full = |index: &str, what: &str, paper: &str| Figure {
        what: format!("{index}: {what}"),
        paper: paper.into(),
        here: grown.iter().find(|one| one.index == index).map(|one| {
            let Spread { min, mean, max } = one.load_factor();
            format!("{min:.2} to {max:.2}, mean {mean:.2}")
        }),
    };
    let figures = vec![
        full("dash-eh", "two stash buckets", "up to 0.80"),
        full("dash-lh", "two stash buckets", "up to 0.80"),
        full("dash-eh-4-stash", "four stash buckets", "up to 0.90"),
        full("cceh", "linear probing over four lines", "0.35 to 0.43"),
        full("level", "two levels", "up to 0.90"),
    ];
    let plot = |title: &str, y: &str, of: fn(&Sample) -> Option<f64>| Plot {
        title: title.into(),
        x: "keys".into(),
        y: y.into(),
        log_x: false,
        marks: Marks::Lines,
        series: grown
            .iter()
            .map(|one| Series {
                name: one.index.into(),
                points: one
                    .samples
                    .iter()
                    .filter_map(|sample| Some(Point::new(sample.keys as f64, of(sample)?)))
                    .collect(),
            })
            .collect(),
    };
    Ok(Report {
        experiment: "load-factor",
        title: "how full, and how large, while keys are inserted".into(),
        about: format!(
            "{} samples from {} to {} keys of 8 bytes, seed {}",
            config.samples, config.from, config.to, config.seed
        ),
        figures,
        tables: grown.iter().map(Grown::table).collect(),
        plots: vec![
            plot("Load factor", "pairs / places", |sample| Some(sample.load_factor)),
            plot("Bytes for a pair", "bytes", |sample| sample.bytes_per_pair),
        ],
        notes: Vec::new(),
    })
}

/// What to measure.
#[derive(Clone, Debug)]
struct Config {
    /// The number of keys at the first sample.
    from: u64,
    /// The number of keys at the last sample.
    to: u64,
    /// The number of samples, evenly spaced between the two. Each may walk the whole table.
    samples: u64,
    seed: u64,
    medium: MediumKind,
    location: Option<PathBuf>,
}

/// The samples of a table.
struct Grown {
    index: &'static str,
    samples: Vec<Sample>,
}

struct Sample {
    keys: u64,
    /// The number of pairs divided by the number of slots.
    load_factor: f64,
    /// Bytes in ordinary memory and in the medium together, if the table reports them.
    bytes_per_pair: Option<f64>,
}

impl Grown {
    fn load_factor(&self) -> Spread {
        let all: Vec<_> = self.samples.iter().map(|sample| sample.load_factor).collect();
        Spread::of(&all).expect("at least one sample")
    }

    fn bytes_per_pair(&self) -> Option<Spread> {
        let all: Vec<_> = self.samples.iter().filter_map(|sample| sample.bytes_per_pair).collect();
        Spread::of(&all)
    }

    fn table(&self) -> Grid {
        let cells = |spread: Option<Spread>, digits: usize| {
            let Some(Spread { min, mean, max }) = spread else {
                return vec!["-".to_owned(); 3];
            };
            [min, mean, max].map(|value| format!("{value:.digits$}")).to_vec()
        };
        let mut grid = Grid::new(self.index, &["min", "mean", "max"]);
        grid.push("load factor", cells(Some(self.load_factor()), 3));
        grid.push("bytes for a pair", cells(self.bytes_per_pair(), 1));
        grid
    }
}

/// Least, mean and greatest of some values.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    min: f64,
    mean: f64,
    max: f64,
}

impl Spread {
    /// Returns the spread of `values`, or `None` if there are none.
    fn of(values: &[f64]) -> Option<Spread> {
        Some(Spread {
            min: values.iter().copied().min_by(f64::total_cmp)?,
            mean: values.iter().sum::<f64>() / values.len() as f64,
            max: values.iter().copied().max_by(f64::total_cmp)?,
        })
    }
}

/// Inserts keys into a table, and samples it in between.
fn grow(entry: &Entry, config: &Config, out: &mut dyn Output) -> Result<Grown, LabError> {
    let Config { from, to, samples, seed, .. } = *config;
    if from == 0 || from > to || samples == 0 {
        return Err(LabError::Config(format!(
            "{samples} samples between {from} and {to} keys are impossible: there must be at least \
             one, and the first size must be above zero and not above the second"
        )));
    }
    let setup = Setup::new(config.medium, config.location.clone(), Pages::Base, to, None)?;
    let table = entry.build(&setup)?;
    let mut stream = Stream::default();
    stream.fill(&Workload { keys: to, threads: 1, seed }, Phase::Insert, 0);
    if let Some(speller) = table.speller() {
        stream.spell(&speller);
    }
    let work = insertion(&stream);
    out.begin(samples);
    let mut grown = Grown { index: entry.name, samples: Vec::new() };
    let mut inserted = 0;
    for sample in 0..samples {
        out.step(&format!("load-factor: {}", entry.name));
        let span = u128::from(to - from) * u128::from(sample) / u128::from((samples - 1).max(1));
        let keys = from + span as u64;
        table.run(work.part(inserted, keys as usize))?;
        inserted = keys as usize;
        let size = table.size()?;
        let unreported = LabError::Unreported { index: entry.name, what: "its load factor" };
        let told = size.dram_bytes.is_some() || size.pm_bytes.is_some();
        let bytes = size.dram_bytes.unwrap_or(0) + size.pm_bytes.unwrap_or(0);
        grown.samples.push(Sample {
            keys,
            load_factor: size.load_factor.ok_or(unreported)?,
            bytes_per_pair: told.then_some(bytes as f64 / keys as f64),
        });
        out.record(&Record {
            experiment: "load-factor",
            index: entry.name.to_owned(),
            threads: 1,
            keys,
            phase: Phase::Insert.name().to_owned(),
            ops: keys,
            load_factor: size.load_factor,
            dram_bytes: size.dram_bytes,
            pm_bytes: size.pm_bytes,
            seed,
            ..Record::at(table.place())
        })?;
    }
    Ok(grown)
}

/// Returns the work of inserting the keys of a stream, one after the other.
pub(super) fn insertion(stream: &Stream) -> Work<'_> {
    Work {
        name: Phase::Insert.name(),
        phase: Phase::Insert,
        keys: &stream.keys,
        spelled: stream.spelled.all(),
        ops: &[],
        version: 0,
        batch: 1,
        writer: Writer { thread: 0, threads: 1, first: 0, most: 0 },
        bulk: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fault, Kept, faulty};

    fn config(from: u64, to: u64, samples: u64) -> Config {
        Config { from, to, samples, seed: 1, medium: MediumKind::Dram, location: None }
    }

    #[test]
    fn spread_of_some_values() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[3.0, 1.0, 5.0]), Some(Spread { min: 1.0, mean: 3.0, max: 5.0 }));
    }

    /// The table of the test has the next power of two of slots, of 16 bytes each.
    #[test]
    fn samples_are_taken_at_even_steps() {
        let mut kept = Kept::default();
        let grown = grow(&faulty(Fault::None), &config(64, 128, 5), &mut kept).unwrap();
        let keys: Vec<_> = kept.records.iter().map(|record| record.keys).collect();
        assert_eq!(keys, [64, 80, 96, 112, 128]);
        // 64 of 64, then 80, 96, 112 and 128 of 128.
        let full = [1.0, 0.625, 0.75, 0.875, 1.0];
        let measured: Vec<_> =
            kept.records.iter().map(|record| record.load_factor.unwrap()).collect();
        assert_eq!(measured, full);
        assert_eq!(grown.load_factor(), Spread { min: 0.625, mean: 0.85, max: 1.0 });
        let bytes = grown.bytes_per_pair().unwrap();
        assert_eq!((bytes.min, bytes.max), (16.0, 2048.0 / 80.0));
        assert_eq!((grown.samples.len(), kept.steps), (5, 5));
        let text = grown.table().text();
        assert!(text.contains("load factor       0.625  0.850  1.000\n"), "{text}");
        assert!(text.contains("bytes for a pair   16.0   19.4   25.6\n"), "{text}");
    }

    #[test]
    fn one_sample_is_at_the_first_size() {
        let grown = grow(&faulty(Fault::None), &config(96, 128, 1), &mut Kept::default()).unwrap();
        assert_eq!(grown.load_factor(), Spread { min: 0.75, mean: 0.75, max: 0.75 });
    }

    #[test]
    fn what_cannot_be_measured_is_explained() {
        let run = |entry, config: &Config| {
            grow(&entry, config, &mut Kept::default()).err().unwrap().to_string()
        };
        let silent = run(subject("reference").unwrap(), &config(10, 20, 2));
        assert!(silent.starts_with("reference does not report its load factor"), "{silent}");
        for (from, to, samples) in [(0, 20, 2), (21, 20, 2), (10, 20, 0)] {
            let error = run(faulty(Fault::None), &config(from, to, samples));
            assert!(error.contains("are impossible"), "{error}");
        }
        let wrong = run(faulty(Fault::Fails), &config(8000, 9000, 2));
        assert!(wrong.starts_with("faulty failed"), "{wrong}");
    }
}
