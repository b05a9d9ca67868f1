//! What an experiment is.

use super::settings::{Setting, Settings};
use crate::LabError;
use crate::driver::{self, Config, DriveReport};
use crate::registry::subjects_called;
use crate::report::{Output, Report};

/// An experiment that can be run.
#[derive(Clone, Copy)]
pub struct Experiment {
    /// The name on command lines and in records.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// Options that apply to it, besides those that apply to all.
    pub takes: &'static [Setting],
    pub(super) run: fn(&Settings, &mut dyn Output) -> Result<Report, LabError>,
}

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

/// Measures the subjects that `config` names.
///
/// # Errors
///
/// `UnknownIndex`, and as [`driver::drive`].
pub fn drive(config: &Config, out: &mut dyn Output) -> Result<DriveReport, LabError> {
    driver::drive(&subjects_called(&config.indexes)?, config, out)
}
