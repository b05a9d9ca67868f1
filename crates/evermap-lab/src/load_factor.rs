//! How full a table is, and how much space a pair takes, while it grows.
//!
//! Both swing between two doublings or splits, so one number at one size says little: they are sampled
//! over a range of sizes.

use std::path::PathBuf;

use evermap_pm::medium::Pages;

use crate::LabError;
use crate::output::{Output, Record};
use crate::subject::{Entry, MediumKind, Setup, Work, subject};
use crate::workload::{Phase, Stream, Workload};

/// What to measure.
#[derive(Clone, Debug)]
pub struct LoadFactorConfig {
    /// Name of the table; see [`subjects`](crate::subject::subjects).
    pub index: String,
    /// Keys at the first sample.
    pub from: u64,
    /// Keys at the last sample.
    pub to: u64,
    /// Samples, evenly spread between the two. Each may walk the whole table.
    pub samples: u64,
    /// What all keys follow from.
    pub seed: u64,
    /// Where an index that can persist lives.
    pub medium: MediumKind,
    /// The directory for its file; see [`Setup::new`].
    pub location: Option<PathBuf>,
}

impl Default for LoadFactorConfig {
    fn default() -> Self {
        LoadFactorConfig {
            index: String::new(),
            from: 1_000_000,
            to: 4_000_000,
            samples: 200,
            seed: 1,
            medium: MediumKind::Dram,
            location: None,
        }
    }
}

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadFactorReport {
    /// Name of the table.
    pub index: &'static str,
    /// Keys at the first sample.
    pub from: u64,
    /// Keys at the last sample.
    pub to: u64,
    /// Samples taken.
    pub samples: u64,
    /// Pairs divided by places.
    pub load_factor: Spread,
    /// Bytes for a pair, in ordinary memory and in the medium together, where the table tells.
    pub bytes_per_record: Option<Spread>,
}

/// Least, mean and greatest of some values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Least.
    pub min: f64,
    /// Mean.
    pub mean: f64,
    /// Greatest.
    pub max: f64,
}

impl Spread {
    /// Of `values`; nothing where there are none.
    pub fn of(values: &[f64]) -> Option<Spread> {
        Some(Spread {
            min: values.iter().copied().min_by(f64::total_cmp)?,
            mean: values.iter().sum::<f64>() / values.len() as f64,
            max: values.iter().copied().max_by(f64::total_cmp)?,
        })
    }
}

/// Inserts keys into the table that `config` names, and samples it meanwhile.
///
/// # Errors
/// `UnknownIndex`, `Config` for impossible settings, `Unreported` if the table does not tell its load factor,
/// `WrongAnswer`, `Index`, `Io`.
pub fn run_load_factor(
    config: &LoadFactorConfig,
    out: &mut dyn Output,
) -> Result<LoadFactorReport, LabError> {
    run_load_factor_on(&subject(&config.index)?, config, out)
}

/// The same for a table that need not be in the registry; the name in `config` is not used.
///
/// # Errors
/// As [`run_load_factor`].
pub fn run_load_factor_on(
    entry: &Entry,
    config: &LoadFactorConfig,
    out: &mut dyn Output,
) -> Result<LoadFactorReport, LabError> {
    let LoadFactorConfig { from, to, samples, seed, .. } = *config;
    if from == 0 || from > to || samples == 0 {
        return Err(LabError::Config(format!(
            "{samples} samples between {from} and {to} keys are impossible: there must be at least one, \
             and the first size must be above zero and not above the second"
        )));
    }
    let setup = Setup::new(config.medium, config.location.clone(), Pages::Base, to)?;
    let table = (entry.build)(&setup)?;
    let mut stream = Stream::default();
    stream.fill(&Workload { keys: to, threads: 1, seed }, Phase::Insert, 0);
    let work =
        Work { phase: Phase::Insert, keys: &stream.keys, inserts: &[], version: 0, batch: 1 };
    out.begin(samples);
    let (mut full, mut space, mut inserted) = (Vec::new(), Vec::new(), 0);
    for sample in 0..samples {
        out.step(entry.name);
        let span = u128::from(to - from) * u128::from(sample) / u128::from((samples - 1).max(1));
        let keys = from + span as u64;
        table.run(work.part(inserted, keys as usize))?;
        inserted = keys as usize;
        let size = table.size()?;
        full.push(
            size.load_factor
                .ok_or(LabError::Unreported { index: entry.name, what: "its load factor" })?,
        );
        if size.dram_bytes.is_some() || size.pm_bytes.is_some() {
            let bytes = size.dram_bytes.unwrap_or(0) + size.pm_bytes.unwrap_or(0);
            space.push(bytes as f64 / keys as f64);
        }
        let place = table.place();
        out.record(&Record {
            experiment: "load_factor",
            index: entry.name.to_owned(),
            medium: place.medium,
            threads: 1,
            keys,
            phase: Phase::Insert.name().to_owned(),
            ops: keys,
            load_factor: size.load_factor,
            dram_bytes: size.dram_bytes,
            pm_bytes: size.pm_bytes,
            location: place.location,
            flush_kind: place.flush_kind,
            seed,
            ..Record::default()
        })?;
    }
    let report = LoadFactorReport {
        index: entry.name,
        from,
        to,
        samples,
        load_factor: Spread::of(&full).expect("at least one sample"),
        bytes_per_record: Spread::of(&space),
    };
    out.load_factor(&report)?;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::subject;
    use crate::testing::{Fault, Kept, faulty};

    #[test]
    fn spread_by_hand() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[3.0, 1.0, 5.0]), Some(Spread { min: 1.0, mean: 3.0, max: 5.0 }));
    }

    /// The test's table has the next power of two of places, of 16 bytes each.
    #[test]
    fn samples_are_taken_at_even_steps() {
        let config = LoadFactorConfig { from: 64, to: 128, samples: 5, ..Default::default() };
        let mut kept = Kept::default();
        let report = run_load_factor_on(&faulty(Fault::None), &config, &mut kept).unwrap();
        let keys: Vec<_> = kept.records.iter().map(|record| record.keys).collect();
        assert_eq!(keys, [64, 80, 96, 112, 128]);
        // 64 of 64, then 80, 96, 112 and 128 of 128.
        let full = [1.0, 0.625, 0.75, 0.875, 1.0];
        let measured: Vec<_> =
            kept.records.iter().map(|record| record.load_factor.unwrap()).collect();
        assert_eq!(measured, full);
        assert_eq!(report.load_factor, Spread { min: 0.625, mean: 0.85, max: 1.0 });
        let bytes = report.bytes_per_record.unwrap();
        assert_eq!((bytes.min, bytes.max), (16.0, 2048.0 / 80.0));
        assert_eq!((report.samples, kept.steps), (5, 5));
    }

    #[test]
    fn one_sample_is_at_the_first_size() {
        let config = LoadFactorConfig { from: 96, to: 128, samples: 1, ..Default::default() };
        let report =
            run_load_factor_on(&faulty(Fault::None), &config, &mut Kept::default()).unwrap();
        assert_eq!(report.load_factor, Spread { min: 0.75, mean: 0.75, max: 0.75 });
    }

    #[test]
    fn what_cannot_be_measured_is_explained() {
        let run = |entry, config: &LoadFactorConfig| {
            run_load_factor_on(&entry, config, &mut Kept::default()).unwrap_err().to_string()
        };
        let small = LoadFactorConfig { from: 10, to: 20, samples: 2, ..Default::default() };
        let silent = run(subject("reference").unwrap(), &small);
        assert!(silent.starts_with("reference does not report its load factor"), "{silent}");
        for (from, to, samples) in [(0, 20, 2), (21, 20, 2), (10, 20, 0)] {
            let config = LoadFactorConfig { from, to, samples, ..Default::default() };
            let error = run(faulty(Fault::None), &config);
            assert!(error.contains("are impossible"), "{error}");
        }
        let wrong = run(faulty(Fault::Fails), &LoadFactorConfig { to: 9000, from: 8000, ..small });
        assert!(wrong.starts_with("faulty failed"), "{wrong}");
    }
}
