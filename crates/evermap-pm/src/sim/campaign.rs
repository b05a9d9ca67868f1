//! Campaigns: running a structure, crashing it everywhere, and crashing its recovery too.

use std::ops::Range;

pub use super::config::{Config, Nested};
use super::crashes::run_calls;
use super::image::ImageConfig;
use super::recovery::{Campaign, calls_of};
use super::replay::Replay;
use super::report::{Report, Violation};
use super::shrink;
use super::subject::{Failure, Subject};
use super::trace::Trace;

/// Runs the workloads of `seeds` and verifies the structure after every crash.
///
/// Panics of the subject are caught and reported. The panic hook of the process runs first, unless
/// [`keep_panics_quiet`](super::keep_panics_quiet) was called.
pub fn run<S: Subject>(subject: &S, config: &Config, seeds: Range<u64>) -> Report {
    let mut report = Report::default();
    for seed in seeds {
        if report.failed_images >= config.max_failed {
            break;
        }
        let mut found = run_calls(subject, config, seed, &subject.workload(seed));
        if config.shrink
            && let Some(violation) = found.violations.first()
        {
            found.violations[0] = shrink::shrink(subject, config, seed, violation.clone());
        }
        report.merge(found);
    }
    report
}

/// Runs the workload of `seed` without crashing it.
///
/// # Errors
///
/// The failure that the subject returns, or its panic.
pub fn record<S: Subject>(
    subject: &S,
    config: &Config,
    seed: u64,
) -> Result<(Trace, S::History), Failure> {
    let campaign = Campaign { subject, config, seed };
    let recorded = campaign.record(&subject.workload(seed))?;
    Ok((recorded.trace, recorded.history))
}

/// Crashes as `replay` says. Returns the violation that follows, if there still is one.
///
/// # Errors
///
/// If the program no longer does what it did when the replay was written.
pub fn replay<S: Subject>(
    subject: &S,
    config: &Config,
    replay: &Replay,
) -> Result<Option<Violation>, String> {
    let images = ImageConfig { model: replay.model, growth: replay.growth, ..config.images };
    let strategy = replay.schedule.map_or(config.strategy, |schedule| schedule.strategy);
    let config = &Config { images, strategy, ..*config };
    let campaign = Campaign { subject, config, seed: replay.seed };
    campaign.replay(&calls_of(subject, replay)?, replay)
}

/// Runs the workload of a replay and verifies the structure after every crash.
///
/// # Errors
///
/// If it contains text that is not a call.
pub fn run_replayed<S: Subject>(
    subject: &S,
    config: &Config,
    replay: &Replay,
) -> Result<Report, String> {
    Ok(run_calls(subject, config, replay.seed, &calls_of(subject, replay)?))
}
