//! What to do about other programs that use the machine.

use std::time::Duration;

use crate::LabError;
use crate::machine;
use crate::report::output::Output;
use crate::report::record::Record;

/// How much other programs may use the machine, and how often what they disturbed is repeated.
#[derive(Clone, Copy, Debug)]
pub struct Quiet {
    /// The number of processors that other programs may keep busy before a measurement is void. If
    /// infinite, nothing is void.
    pub limit: f64,
    /// How long to wait before each run until other programs leave the processors.
    pub patience: Duration,
    /// The number of times that what is void is repeated. After that its figures are used, marked.
    pub retries: usize,
}

impl Default for Quiet {
    fn default() -> Self {
        Quiet { limit: 0.2, patience: Duration::from_secs(10), retries: 3 }
    }
}

impl Quiet {
    /// Whatever other programs do.
    pub const NOT_NEEDED: Quiet =
        Quiet { limit: f64::INFINITY, patience: Duration::ZERO, retries: 0 };

    /// Waits until other programs leave the processors, or patience ends. Says in `out` what it
    /// waits for.
    pub(crate) fn wait(&self, out: &mut dyn Output) {
        let Quiet { limit, patience, .. } = *self;
        machine::wait_for_quiet(limit, patience, |busy| {
            out.wait(&format!(
                "waits for a quiet machine, up to {} s (--patience): other programs keep {busy:.1} \
                 processors busy, and {limit:.1} are too many",
                patience.as_secs()
            ));
        });
    }

    /// Returns whether a measurement is void during which other programs kept this number of
    /// processors busy.
    pub(crate) fn is_exceeded(&self, foreign_share: Option<f64>) -> bool {
        foreign_share.is_some_and(|share| share > self.limit)
    }

    /// Measures something, and again while it is void. Returns the last measurement and the number
    /// of repetitions.
    ///
    /// # Errors
    ///
    /// Those of `measure`.
    pub(crate) fn measure<T>(
        &self,
        out: &mut dyn Output,
        mut measure: impl FnMut(&mut dyn Output) -> Result<T, LabError>,
        is_void: impl Fn(&T) -> bool,
    ) -> Result<(T, usize), LabError> {
        let mut measured = measure(out)?;
        for repeated in 0..self.retries {
            if !is_void(&measured) {
                return Ok((measured, repeated));
            }
            let (next, most) = (repeated + 1, self.retries);
            out.wait(&format!("other programs have disturbed it: repetition {next} of {most}"));
            self.wait(out);
            measured = measure(out)?;
        }
        Ok((measured, self.retries))
    }

    /// Measures several things at once, and again while one of them has always been void. Returns
    /// the first measurement of each that is not void, or else the last one, and the number of
    /// repetitions.
    ///
    /// # Errors
    ///
    /// Those of `measure`.
    pub(crate) fn best_of_each(
        &self,
        out: &mut dyn Output,
        mut measure: impl FnMut(&mut dyn Output) -> Result<Vec<Record>, LabError>,
    ) -> Result<(Vec<Record>, usize), LabError> {
        let mut best: Vec<Record> = Vec::new();
        let attempt = |out: &mut dyn Output| {
            let next = measure(out)?;
            if best.is_empty() {
                best = next;
            } else {
                let pairs = best.iter_mut().zip(next);
                pairs.filter(|(best, _)| best.void).for_each(|(best, next)| *best = next);
            }
            Ok(best.iter().any(|record| record.void))
        };
        let (_, repeated) = self.measure(out, attempt, |is_void| *is_void)?;
        Ok((best, repeated))
    }
}
