//! The experiments, by name.

use crate::LabError;
use crate::driver::{self, Config, DriveReport};
use crate::registry::subjects_called;
use crate::report::Output;
use crate::report::{Figure, Report};
use tables::times;

mod hikv;
pub mod killed;
mod large_values;
mod load_factor;
mod on_disk;
mod recovery;
mod resize;
mod segment;
mod servers;
mod settings;
mod short_records;
mod stores;
mod sweeps;
mod tables;
mod words;
mod ycsb;

pub use servers::serve_engine;
pub use settings::{Setting, Settings};

/// An experiment that can be run.
#[derive(Clone, Copy)]
pub struct Experiment {
    /// The name on command lines and in records.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// Options that apply to it, besides those that apply to all.
    pub takes: &'static [Setting],
    run: fn(&Settings, &mut dyn Output) -> Result<Report, LabError>,
}

/// Every experiment, in the order in which `all` runs them.
pub const EXPERIMENTS: &[Experiment] = &[
    words::MICRO,
    words::SCALE,
    words::DATASET_SIZE,
    words::VARIABLE_KEYS,
    load_factor::LOAD_FACTOR,
    segment::SEGMENT_SIZE,
    words::FINGERPRINTS,
    words::OVERFLOW_METADATA,
    words::LOCKING,
    sweeps::LATENCY_SWEEP,
    sweeps::MEMORY,
    ycsb::YCSB,
    stores::STORES,
    large_values::LARGE_VALUES,
    short_records::SHORT_RECORDS,
    on_disk::ON_DISK,
    servers::SERVERS,
    servers::ENGINES,
    hikv::HIKV,
    resize::RESIZE,
    recovery::RECOVERY,
    recovery::AFTER_RECOVERY,
];

impl Experiment {
    /// Runs the experiment. `out` receives everything immediately.
    ///
    /// # Errors
    ///
    /// `Config` for settings that are impossible or do not apply to it, and those of what it
    /// measures.
    pub fn run(&self, settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
        settings.check(self.name, self.takes)?;
        self.run_as_far_as_it_applies(settings, out)
    }

    /// As [`run`](Experiment::run), but ignores settings that do not apply to it.
    ///
    /// # Errors
    ///
    /// As [`run`](Experiment::run).
    pub fn run_as_far_as_it_applies(
        &self,
        settings: &Settings,
        out: &mut dyn Output,
    ) -> Result<Report, LabError> {
        let report = (self.run)(settings, out)?;
        out.report(&report)?;
        Ok(report)
    }
}

/// Returns the experiment called `name`.
///
/// # Errors
///
/// `UnknownExperiment`, with the names that are known.
pub fn experiment(name: &str) -> Result<Experiment, LabError> {
    EXPERIMENTS.iter().find(|one| one.name == name).copied().ok_or_else(|| {
        LabError::UnknownExperiment {
            name: name.to_owned(),
            known: EXPERIMENTS.iter().map(|one| one.name).collect(),
        }
    })
}

/// Measures the subjects that `config` names.
///
/// # Errors
///
/// `UnknownIndex`, and as [`driver::drive`].
pub fn drive(config: &Config, out: &mut dyn Output) -> Result<DriveReport, LabError> {
    driver::drive(&subjects_called(&config.indexes)?, config, out)
}

/// Returns a ratio that a paper reports, and the one measured here.
fn ratio_figure(driven: &DriveReport, of: &str, to: &str, phase: &str, paper: &str) -> Figure {
    Figure {
        what: format!("{phase}: {of} / {to}"),
        paper: paper.to_owned(),
        here: driven.ratio(of, to, phase).map(|ratio| times(&ratio)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Kept;

    #[test]
    fn names_are_unique_and_errors_list_the_known_ones() {
        for one in EXPERIMENTS {
            assert_eq!(experiment(one.name).unwrap().about, one.about);
            assert_eq!(EXPERIMENTS.iter().filter(|other| other.name == one.name).count(), 1);
        }
        let error = experiment("mikro").err().unwrap().to_string();
        assert!(
            error.starts_with("unknown experiment `mikro`; known are: micro, scale"),
            "{error}"
        );
    }

    #[test]
    fn settings_that_mean_nothing_are_refused() {
        let settings = Settings { batch: Some(8), ..Settings::default() };
        let error = experiment("memory").unwrap().run(&settings, &mut Kept::default());
        let error = error.unwrap_err().to_string();
        assert!(error.contains("`--batch` does not apply to memory; it takes --index"), "{error}");
    }
}
