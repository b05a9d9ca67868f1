//! A crash in text form, so that it can be repeated.

use std::fmt;
use std::str::FromStr;

use super::choice::Choice;
use super::durable::{GrowthModel, Model};
use super::image::UndecidedGranule;
use super::schedule::{Schedule, Strategy};

/// A crash, and crashes of the recovery from it, exactly.
///
/// The text form, with `#` for comments:
///
/// ```text
/// subject dash-eh/few-keys      the subject, if there is a choice
/// model adr                     how memory loses data
/// schedule gap 12               if threads ran in parallel: strategy and seed
/// seed 7                        seed of the workload
/// call upsert 3 0x17            if it was shrunk: the remaining calls of the workload
/// crash 123 1240=1 1280=0+3f    before record 123, with the oldest undecided store to the granule
///                               at 0x1240 persisted, and words 0x3f of the oldest one at 0x1280
/// crash 45                      of the recovery from that, before its record 45, with nothing
///                               persisted
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// The subject, if there is a choice: see [`Battery`](super::battery::Battery).
    pub subject: Option<String>,
    pub(crate) model: Model,
    pub(crate) growth: GrowthModel,
    pub(crate) schedule: Option<Schedule>,
    pub(crate) seed: u64,
    pub(crate) calls: Option<Vec<String>>,
    pub(crate) steps: Vec<Step>,
}

/// One crash of a [`Replay`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) record: usize,
    /// By the granule's offset. Granules that are missing here have lost all undecided stores.
    pub(crate) choices: Vec<(u64, Choice)>,
}

impl Step {
    pub(crate) fn new(record: usize, items: &[UndecidedGranule], choices: &[Choice]) -> Self {
        let choices = items.iter().zip(choices);
        let choices = choices.filter(|(_, choice)| **choice != Choice::default());
        Step { record, choices: choices.map(|(item, choice)| (item.offset, *choice)).collect() }
    }

    /// Sets the choice for the granule at `offset`.
    pub(crate) fn set(&mut self, offset: u64, choice: Choice) {
        self.choices.retain(|(at, _)| *at != offset);
        if choice != Choice::default() {
            self.choices.push((offset, choice));
            self.choices.sort_unstable_by_key(|(at, _)| *at);
        }
    }

    /// Returns the choice for the granule at `offset`.
    pub(crate) fn choice(&self, offset: u64) -> Choice {
        let found = self.choices.iter().find(|(at, _)| *at == offset);
        found.map_or(Choice::default(), |(_, choice)| *choice)
    }
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(subject) = &self.subject {
            writeln!(f, "subject {subject}")?;
        }
        writeln!(f, "model {}", self.model)?;
        if self.growth == GrowthModel::UntilSync {
            writeln!(f, "length lags")?;
        }
        if let Some(Schedule { strategy, seed }) = self.schedule {
            writeln!(f, "schedule {strategy} {seed}")?;
        }
        writeln!(f, "seed {}", self.seed)?;
        for call in self.calls.iter().flatten() {
            writeln!(f, "call {call}")?;
        }
        for step in &self.steps {
            write!(f, "crash {}", step.record)?;
            for (offset, Choice { taken, partial }) in &step.choices {
                write!(f, " {offset:x}={taken}")?;
                if *partial != 0 {
                    write!(f, "+{partial:x}")?;
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl FromStr for Replay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut replay = Replay {
            subject: None,
            model: Model::Adr,
            growth: GrowthModel::Immediate,
            schedule: None,
            seed: 0,
            calls: None,
            steps: Vec::new(),
        };
        let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
        for (at, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            replay.read(line).ok_or_else(|| {
                format!(
                    "line {at} of a replay: {line:?}; \
                     expected subject, model, length, schedule, seed, call or crash"
                )
            })?;
        }
        Ok(replay)
    }
}

impl Replay {
    /// Parses one line. Returns `None` if it is invalid.
    fn read(&mut self, line: &str) -> Option<()> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "subject" if !rest.is_empty() => self.subject = Some(rest.to_owned()),
            "model" => self.model = rest.parse().ok()?,
            "length" if rest == "lags" => self.growth = GrowthModel::UntilSync,
            "schedule" => {
                let (strategy, seed) = rest.split_once(' ')?;
                let (strategy, seed) = (strategy.parse().ok()?, seed.parse().ok()?);
                self.schedule = Some(Schedule { strategy, seed });
            }
            "seed" => self.seed = rest.parse().ok()?,
            "call" => self.calls.get_or_insert_default().push(rest.to_owned()),
            "crash" => {
                let mut words = rest.split_whitespace();
                let record = words.next()?.parse().ok()?;
                let choices = words.map(read_choice).collect::<Option<_>>()?;
                self.steps.push(Step { record, choices });
            }
            _ => return None,
        }
        Some(())
    }
}

fn read_choice(text: &str) -> Option<(u64, Choice)> {
    let (offset, choice) = text.split_once('=')?;
    let (taken, partial) = choice.split_once('+').unwrap_or((choice, "0"));
    let partial = u8::from_str_radix(partial, 16).ok()?;
    let choice = Choice { taken: taken.parse().ok()?, partial };
    Some((u64::from_str_radix(offset, 16).ok()?, choice))
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Model::Adr => f.write_str("adr"),
            Model::ProcessDeath => f.write_str("process-death"),
            Model::PageCache { granule } => write!(f, "page-cache-{granule}"),
        }
    }
}

impl FromStr for Model {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let granule = |text: &str| text.strip_prefix("page-cache-")?.parse().ok();
        match (text, granule(text)) {
            ("adr", _) => Ok(Model::Adr),
            ("process-death", _) => Ok(Model::ProcessDeath),
            (_, Some(granule @ (512 | 4096))) => Ok(Model::PageCache { granule }),
            _ => Err(format!(
                "unknown model `{text}`; \
                 known are: adr, process-death, page-cache-4096, page-cache-512"
            )),
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Strategy::Random => "random",
            Strategy::Priority => "priority",
            Strategy::Gap => "gap",
            Strategy::Stall => "stall",
            Strategy::Mixed => "mixed",
        })
    }
}

impl FromStr for Strategy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "random" => Ok(Strategy::Random),
            "priority" => Ok(Strategy::Priority),
            "gap" => Ok(Strategy::Gap),
            "stall" => Ok(Strategy::Stall),
            "mixed" => Ok(Strategy::Mixed),
            _ => Err(format!(
                "unknown strategy `{text}`; known are: random, priority, gap, stall, mixed"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replays_survive_conversion_to_text() {
        let text = "subject dash-eh/few-keys\nmodel page-cache-512\nlength lags\nschedule gap 12\n\
                    seed 7\ncall upsert 3 0x17\n\
                    call remove 3\ncrash 123 1240=1 1280=0+3f\ncrash 45\n";
        let replay: Replay = text.parse().unwrap();
        assert_eq!(replay.steps.len(), 2);
        assert_eq!(replay.steps[0].choice(0x1280), Choice { taken: 0, partial: 0x3f });
        assert_eq!(replay.calls, Some(vec!["upsert 3 0x17".into(), "remove 3".into()]));
        assert_eq!(replay.to_string(), text);
        assert_eq!(format!("# comment\n\n  {text}").parse(), Ok(replay));
        for wrong in ["seed", "seed x", "7", "crash", "crash 1 3", "crash 1 g=1", "model adr2"] {
            assert!(wrong.parse::<Replay>().unwrap_err().contains("line 1"), "{wrong}");
        }
    }
}
