//! Shrinking: makes a violation as simple as possible.

use super::campaign::{Campaign, Config, Level, calls_of, run_calls};
use super::image::Walk;
use super::replay::{Replay, Step};
use super::report::Violation;
use super::schedule::Schedule;
use super::subject::Subject;

/// Maximum number of images tried for one shorter workload.
const IMAGES: u64 = 2000;
/// Maximum number of shorter workloads that are tried.
const WORKLOADS: usize = 300;
/// Maximum number of granules of one crash that are tried in another state.
const GRANULES: usize = 64;

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
    let find = |calls: &[S::Call]| {
        let found = run_calls(subject, config, seed, calls).violations.into_iter().next()?;
        (found.kind() == wanted).then_some(found)
    };
    let Ok(calls) = calls_of(subject, &violation.replay) else { return violation };
    // A violation that needs more images than are tried here is not shrunk.
    let Some(mut least) = find(&calls) else { return violation };
    let mut calls = calls;
    let (mut parts, mut tries) = (2, 0);
    while calls.len() > 1 && tries < WORKLOADS {
        let size = calls.len().div_ceil(parts);
        let mut shorter = None;
        for start in (0..calls.len()).step_by(size) {
            tries += 1;
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

/// Returns the violation of the same crashes that deviates in as few granules as possible from
/// crashes that lose nothing, or from ones that lose everything.
pub(crate) fn least_deviation<S: Subject>(
    campaign: &Campaign<'_, S>,
    root: &Level<'_, S::History>,
    violation: Violation,
) -> Violation {
    let nothing_lost = approach(campaign, root, &violation, true);
    let everything_lost = approach(campaign, root, &violation, false);
    match (nothing_lost, everything_lost) {
        (Some((lost, first)), Some((kept, second))) => {
            if kept < lost {
                second
            } else {
                first
            }
        }
        (first, second) => first.or(second).map_or(violation, |(_, found)| found),
    }
}

/// Moves the last crash granule by granule towards one that loses nothing, or everything, as long
/// as it stays a violation. Also returns the number of granules in which it still deviates.
fn approach<S: Subject>(
    campaign: &Campaign<'_, S>,
    root: &Level<'_, S::History>,
    violation: &Violation,
    lose_nothing: bool,
) -> Option<(usize, Violation)> {
    let kind = violation.kind();
    let (mut found, mut steps) = (violation.clone(), violation.replay.steps.clone());
    let last = steps.len().checked_sub(1)?;
    let states = last_states(campaign, root, &steps)?;
    let target = |whole| if lose_nothing { whole } else { Default::default() };
    let mut deviations = 0;
    let mut tries = 0;
    for (offset, whole) in states {
        let target = target(whole);
        if steps[last].choice(offset) == target {
            continue;
        }
        deviations += 1;
        tries += 1;
        let mut other = steps.clone();
        other[last].set(offset, target);
        if tries <= GRANULES
            && let Ok(Some(again)) = campaign.follow(root, &other)
            && again.kind() == kind
        {
            (found, steps) = (again, other);
            deviations -= 1;
        }
    }
    Some((deviations, found))
}

/// Returns the granules that are undecided at the last crash, with their contents if nothing is
/// lost.
fn last_states<S: Subject>(
    campaign: &Campaign<'_, S>,
    level: &Level<'_, S::History>,
    steps: &[Step],
) -> Option<Vec<(u64, super::image::Choice)>> {
    let (step, rest) = steps.split_first()?;
    let mut walk = Walk::new(level.trace, &level.images(campaign.config));
    if rest.is_empty() {
        walk.go_to(step.record)?;
        let items = walk.items().iter().enumerate();
        return Some(items.map(|(at, item)| (item.offset, walk.whole(at))).collect());
    }
    let deeper = |nested: &Level<'_, S::History>| last_states(campaign, nested, rest);
    campaign.crash_and_record(level, &mut walk, step, deeper).ok()??
}
