//! Finding the crash that deviates least from one that loses nothing, or everything.

use super::choice::Choice;
use super::image::Walk;
use super::recovery::{Campaign, Level};
use super::replay::Step;
use super::report::Violation;
use super::subject::Subject;

/// Maximum number of granules of one crash that are tried in another state.
const GRANULES: usize = 64;

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
) -> Option<Vec<(u64, Choice)>> {
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
