//! Shrinking: makes the workload of a violation as short as possible.

use super::config::Config;
use super::crashes::run_calls;
use super::recovery::calls_of;
use super::replay::Replay;
use super::report::Violation;
use super::schedule::Schedule;
use super::subject::Subject;

/// Maximum number of images tried for one shorter workload.
const IMAGES: u64 = 2000;

/// Maximum number of images tried for all of them. A failure should be reported within minutes.
const IMAGES_OF_ALL: u64 = 50_000;

/// Returns the violation with a workload from which no call can be omitted: delta debugging after
/// Zeller and Hildebrandt (2002). It may come from another crash, but is of the same kind.
pub(crate) fn shrink<S: Subject>(
    subject: &S,
    config: &Config,
    seed: u64,
    violation: Violation,
) -> Violation {
    let wanted = violation.kind();
    let config = &Config { max_failed: 1, max_images: IMAGES, shrink: false, ..*config };
    let mut images = 0;
    let mut find = |calls: &[S::Call]| {
        if images >= IMAGES_OF_ALL {
            return None;
        }
        let report = run_calls(subject, config, seed, calls);
        // A workload that cannot even be run has no images.
        images += report.images.max(1);
        let found = report.violations.into_iter().next()?;
        (found.kind() == wanted).then_some(found)
    };
    let Ok(calls) = calls_of(subject, &violation.replay) else { return violation };
    // A violation that needs more images than are tried here is not shrunk.
    let Some(mut least) = find(&calls) else { return violation };
    let mut calls = calls;
    let mut parts = 2;
    while calls.len() > 1 {
        let size = calls.len().div_ceil(parts);
        let mut shorter = None;
        for start in (0..calls.len()).step_by(size) {
            let mut without = calls.clone();
            without.drain(start..(start + size).min(calls.len()));
            if let Some(found) = find(&without) {
                shorter = Some((without, found));
                break;
            }
        }
        match shorter {
            Some((without, found)) => {
                (calls, least) = (without, found);
                parts = (parts - 1).max(2);
            }
            None if size == 1 => break,
            None => parts = (parts * 2).min(calls.len()),
        }
    }
    let calls = Some(calls.iter().map(ToString::to_string).collect());
    let schedule = Some(Schedule { strategy: config.strategy, seed });
    let schedule = schedule.filter(|_| least.story.contains("by thread 1"));
    Violation { replay: Replay { calls, schedule, ..least.replay }, ..least }
}
