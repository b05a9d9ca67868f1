//! What a campaign did and found, in words, and how to see it again.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use super::image::{Choice, Image};
use super::trace::Site;

/// What a campaign did and found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Seeds whose workload ran.
    pub seeds: u64,
    /// Operations of the workloads.
    pub ops: u64,
    /// Stores of the workloads.
    pub stores: u64,
    /// Flushes of the workloads.
    pub flushes: u64,
    /// Fences of the workloads.
    pub fences: u64,
    /// Crash points in the workloads.
    pub points: u64,
    /// Those of them at which every combination of stores that need to persist was considered.
    pub exhaustive_points: u64,
    /// Images recovered and verified, nested ones included.
    pub images: u64,
    /// Images of crashes during or after the recovery from another crash.
    pub nested_images: u64,
    /// Recoveries that were worth a crash in turn.
    pub nested_chosen: u64,
    /// Those of them that were crashed before the budget of images ran out.
    pub nested_traces: u64,
    /// Images not verified because an equal one with the same obligations was.
    pub repeated: u64,
    /// Images not verified because they differ from a verified one only where that one was not read.
    pub unread: u64,
    /// Whether the budget of images ran out before the last crash point of a workload.
    pub truncated: bool,
    /// Where flushes were called, in workloads and in the recoveries that were crashed.
    pub flush_sites: BTreeSet<Site>,
    /// Where fences were called, in workloads and in the recoveries that were crashed.
    pub fence_sites: BTreeSet<Site>,
    /// Images after which something was wrong; also workloads that failed without a crash.
    pub failed_images: u64,
    /// What went wrong, each kind of crash once.
    pub violations: Vec<Violation>,
}

impl Report {
    /// Whether nothing went wrong.
    pub fn is_clean(&self) -> bool {
        self.failed_images == 0
    }

    /// Panics with the whole report if anything went wrong.
    ///
    /// # Panics
    /// See above.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert!(self.is_clean(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = 100.0 * self.exhaustive_points as f64 / self.points.max(1) as f64;
        writeln!(
            f,
            "{} workloads: {} operations, {} stores, {} flushes, {} fences",
            self.seeds, self.ops, self.stores, self.flushes, self.fences
        )?;
        writeln!(
            f,
            "{} crash points, {share:.1} % of them with every combination of stores",
            self.points
        )?;
        writeln!(
            f,
            "{} images verified, {} of them nested (crashes of {} recoveries, of {} chosen); skipped: {} repeated, {} different only where nothing reads",
            self.images,
            self.nested_images,
            self.nested_traces,
            self.nested_chosen,
            self.repeated,
            self.unread
        )?;
        if self.truncated {
            writeln!(f, "the budget of images ran out before the last crash point")?;
        }
        writeln!(f, "{} images failed", self.failed_images)?;
        self.violations.iter().try_for_each(|violation| write!(f, "\n{violation}"))
    }
}

/// A crash after which something was wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What was wrong.
    pub message: String,
    /// How it came about: each crash with the stores that were lost in it.
    pub story: String,
    /// For [`replay`](super::campaign::replay).
    pub replay: Replay,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n{}replay: {}", self.message, self.story, self.replay)
    }
}

/// A crash, and crashes of the recovery from it, exactly. As text it fits on a line:
/// `seed=7 123:1240=1,1280=0+3f 45:` is a crash of the workload of seed 7 before record 123, with the
/// oldest undecided store to the granule at 0x1240 persisted and words 0x3f of the oldest one at 0x1280,
/// followed by one of its recovery before record 45.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    pub(crate) seed: u64,
    pub(crate) steps: Vec<Step>,
}

/// One crash of a [`Replay`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) record: usize,
    /// By the granule's offset; granules not named have lost all that was undecided.
    pub(crate) choices: Vec<(u64, Choice)>,
}

impl Step {
    pub(crate) fn of(image: &Image<'_>) -> Self {
        let choices = image.items().iter().zip(image.choices);
        let choices = choices.filter(|(_, choice)| **choice != Choice::default());
        Step {
            record: image.point.record(),
            choices: choices.map(|(item, choice)| (item.offset, *choice)).collect(),
        }
    }

    /// Makes another choice for the granule at `offset`.
    pub(crate) fn set(&mut self, offset: u64, choice: Choice) {
        self.choices.retain(|(at, _)| *at != offset);
        self.choices.push((offset, choice));
    }

    /// The choice for the granule at `offset`.
    pub(crate) fn choice(&self, offset: u64) -> Choice {
        self.choices
            .iter()
            .find(|(at, _)| *at == offset)
            .map_or(Choice::default(), |(_, choice)| *choice)
    }
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed={}", self.seed)?;
        for step in &self.steps {
            write!(f, " {}:", step.record)?;
            for (at, (offset, Choice { taken, partial })) in step.choices.iter().enumerate() {
                let comma = if at > 0 { "," } else { "" };
                write!(f, "{comma}{offset:x}={taken}")?;
                if *partial != 0 {
                    write!(f, "+{partial:x}")?;
                }
            }
        }
        Ok(())
    }
}

impl FromStr for Replay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).ok_or_else(|| {
            format!("not a replay: {text:?}; expected seed=N and then RECORD:OFFSET=TAKEN+WORDS,... for each crash")
        })
    }
}

fn parse(text: &str) -> Option<Replay> {
    let mut words = text.split_whitespace();
    let seed = words.next()?.strip_prefix("seed=")?.parse().ok()?;
    let steps = words.map(|word| {
        let (record, choices) = word.split_once(':')?;
        let choices = choices.split(',').filter(|choice| !choice.is_empty()).map(|choice| {
            let (offset, choice) = choice.split_once('=')?;
            let (taken, partial) = choice.split_once('+').unwrap_or((choice, "0"));
            let partial = u8::from_str_radix(partial, 16).ok()?;
            let choice = Choice { taken: taken.parse().ok()?, partial };
            Some((u64::from_str_radix(offset, 16).ok()?, choice))
        });
        Some(Step { record: record.parse().ok()?, choices: choices.collect::<Option<_>>()? })
    });
    Some(Replay { seed, steps: steps.collect::<Option<_>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replays_survive_being_text() {
        let text = "seed=7 123:1240=1,1280=0+3f 45:";
        let replay: Replay = text.parse().unwrap();
        assert_eq!(replay.steps.len(), 2);
        assert_eq!(replay.steps[0].choice(0x1280), Choice { taken: 0, partial: 0x3f });
        assert_eq!(replay.to_string(), text);
        for wrong in ["", "seed=", "seed=x", "7", "seed=1 5", "seed=1 5:3", "seed=1 5:g=1"] {
            assert!(wrong.parse::<Replay>().is_err(), "{wrong}");
        }
    }
}
