//! The settings of experiments. Every setting has a default that depends on the experiment.

use std::path::PathBuf;
use std::time::Duration;

use evermap_pm::medium::{Pages, Speed};

use crate::LabError;
use crate::driver::{Config, Plan, Quiet};
use crate::registry::subjects;
use crate::report::counted;
use crate::subject::MediumKind;
use crate::workload::{Distribution, KeyValueLengths, Lengths, Mix, Phase};

/// An option that not every experiment takes, by its name on command lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting(&'static str);

/// The names of options.
#[allow(missing_docs)] // the names say it
impl Setting {
    pub const INDEX: Setting = Setting("index");
    pub const KEYS: Setting = Setting("keys");
    pub const THREADS: Setting = Setting("threads");
    pub const ROUNDS: Setting = Setting("rounds");
    pub const MEDIUM: Setting = Setting("medium");
    /// Stands for `SPEEDS` too.
    pub const PM: Setting = Setting("pm");
    pub const PERSIST_NS: Setting = Setting("persist-ns");
    pub const READ_NS: Setting = Setting("read-ns");
    pub const NEAR_READ_NS: Setting = Setting("near-read-ns");
    pub const READ_MB_S: Setting = Setting("read-mb-s");
    pub const WRITE_MB_S: Setting = Setting("write-mb-s");
    pub const PHASES: Setting = Setting("phases");
    pub const BATCH: Setting = Setting("batch");
    pub const PRESIZE: Setting = Setting("presize");
    pub const HUGE_PAGES: Setting = Setting("huge-pages");
    pub const NO_LIMITS: Setting = Setting("no-limits");
    pub const NO_COUNTS: Setting = Setting("no-counts");
    pub const NO_LATENCIES: Setting = Setting("no-latencies");
    pub const KEY_BYTES: Setting = Setting("key-bytes");
    pub const VALUE_BYTES: Setting = Setting("value-bytes");
    pub const WORKLOADS: Setting = Setting("workloads");
    pub const DISTRIBUTION: Setting = Setting("distribution");
    pub const THETA: Setting = Setting("theta");
    pub const OPS: Setting = Setting("ops");
    pub const FROM: Setting = Setting("from");
    pub const TO: Setting = Setting("to");
    pub const SAMPLES: Setting = Setting("samples");
    pub const SHARDS: Setting = Setting("shards");
    pub const FIGURES: Setting = Setting("figures");

    /// The parts of a speed of the emulated medium.
    const SPEEDS: [Setting; 5] = [
        Setting::PERSIST_NS,
        Setting::READ_NS,
        Setting::NEAR_READ_NS,
        Setting::READ_MB_S,
        Setting::WRITE_MB_S,
    ];

    fn is_of_speed(self) -> bool {
        self == Setting::PM || Setting::SPEEDS.contains(&self)
    }
}

/// Kinds of persistent memory, by the names on command lines.
const MEMORIES: [(&str, Speed); 3] = [
    ("customary", Speed::CUSTOMARY),
    ("optane", Speed::OPTANE),
    ("optane-module", Speed::OPTANE_MODULE),
];

/// Returns the speed of a kind of persistent memory.
///
/// # Errors
///
/// `Config`, with the names that are known.
pub fn speed_called(name: &str) -> Result<Speed, LabError> {
    MEMORIES.iter().find(|one| one.0 == name).map(|one| one.1).ok_or_else(|| {
        let known = MEMORIES.map(|one| one.0).join(", ");
        LabError::Config(format!("unknown memory `{name}`; known are: {known}"))
    })
}

/// The options of all experiments that drive tables.
pub(super) const DRIVEN: &[Setting] = &[
    Setting::INDEX,
    Setting::KEYS,
    Setting::THREADS,
    Setting::ROUNDS,
    Setting::MEDIUM,
    Setting::PM,
    Setting::PHASES,
    Setting::BATCH,
    Setting::PRESIZE,
    Setting::HUGE_PAGES,
    Setting::NO_LIMITS,
    Setting::NO_COUNTS,
    Setting::NO_LATENCIES,
    Setting::KEY_BYTES,
    Setting::VALUE_BYTES,
];

/// The settings of an experiment; `None` for its default. See [`Config`] for their meaning.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)] // see `Config`
pub struct Settings {
    /// Fewer keys and rounds: a fraction of a minute for each experiment, with less precise
    /// figures.
    pub quick: bool,
    pub seed: Option<u64>,
    pub location: Option<PathBuf>,
    pub patience: Option<Duration>,
    pub retries: Option<usize>,
    /// The program that child processes of `recovery` run: this one.
    pub program: Option<PathBuf>,
    pub indexes: Option<Vec<String>>,
    pub keys: Option<u64>,
    pub threads: Option<usize>,
    pub rounds: Option<usize>,
    pub medium: Option<MediumKind>,
    pub pm: Option<Speed>,
    pub persist_ns: Option<u64>,
    pub read_ns: Option<u64>,
    pub near_read_ns: Option<u64>,
    pub read_mb_s: Option<u64>,
    pub write_mb_s: Option<u64>,
    pub phases: Option<Vec<Phase>>,
    pub batch: Option<usize>,
    pub presize: bool,
    pub huge_pages: bool,
    pub no_limits: bool,
    pub no_counts: bool,
    pub no_latencies: bool,
    pub key_bytes: Option<Lengths>,
    pub value_bytes: Option<Lengths>,
    pub workloads: Option<Vec<Mix>>,
    pub distribution: Option<Distribution>,
    pub theta: Option<f64>,
    /// The number of operations of a mix.
    pub ops: Option<u64>,
    /// The number of keys at the first sample.
    pub from: Option<u64>,
    /// The number of keys at the last sample.
    pub to: Option<u64>,
    pub samples: Option<u64>,
    /// The number of tables among which the keys are divided.
    pub shards: Option<usize>,
    /// The figures of a paper, by their numbers.
    pub figures: Option<Vec<String>>,
}

/// The default sizes of an experiment.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    pub(super) keys: u64,
    pub(super) rounds: usize,
    pub(super) quick_keys: u64,
    pub(super) quick_rounds: usize,
}

impl Settings {
    /// Returns the options that were given, of those that not every experiment takes.
    fn given(&self) -> Vec<Setting> {
        let all = [
            (Setting::INDEX, self.indexes.is_some()),
            (Setting::KEYS, self.keys.is_some()),
            (Setting::THREADS, self.threads.is_some()),
            (Setting::ROUNDS, self.rounds.is_some()),
            (Setting::MEDIUM, self.medium.is_some()),
            (Setting::PM, self.pm.is_some()),
            (Setting::PERSIST_NS, self.persist_ns.is_some()),
            (Setting::READ_NS, self.read_ns.is_some()),
            (Setting::NEAR_READ_NS, self.near_read_ns.is_some()),
            (Setting::READ_MB_S, self.read_mb_s.is_some()),
            (Setting::WRITE_MB_S, self.write_mb_s.is_some()),
            (Setting::PHASES, self.phases.is_some()),
            (Setting::BATCH, self.batch.is_some()),
            (Setting::PRESIZE, self.presize),
            (Setting::HUGE_PAGES, self.huge_pages),
            (Setting::NO_LIMITS, self.no_limits),
            (Setting::NO_COUNTS, self.no_counts),
            (Setting::NO_LATENCIES, self.no_latencies),
            (Setting::KEY_BYTES, self.key_bytes.is_some()),
            (Setting::VALUE_BYTES, self.value_bytes.is_some()),
            (Setting::WORKLOADS, self.workloads.is_some()),
            (Setting::DISTRIBUTION, self.distribution.is_some()),
            (Setting::THETA, self.theta.is_some()),
            (Setting::OPS, self.ops.is_some()),
            (Setting::FROM, self.from.is_some()),
            (Setting::TO, self.to.is_some()),
            (Setting::SAMPLES, self.samples.is_some()),
            (Setting::SHARDS, self.shards.is_some()),
            (Setting::FIGURES, self.figures.is_some()),
        ];
        all.into_iter().filter(|one| one.1).map(|one| one.0).collect()
    }

    /// Refuses an option that does not apply to `experiment`, because the user expects it to change
    /// something.
    pub(super) fn check(&self, experiment: &str, takes: &[Setting]) -> Result<(), LabError> {
        let parts = if takes.contains(&Setting::PM) { &Setting::SPEEDS[..] } else { &[] };
        let takes = [takes, parts].concat();
        match self.given().iter().find(|given| !takes.contains(given)) {
            None => self.check_speed(),
            Some(given) => {
                let takes: Vec<_> = takes.iter().map(|one| format!("--{}", one.0)).collect();
                Err(LabError::Config(format!(
                    "`--{}` does not apply to {}; it takes {}",
                    given.0,
                    experiment,
                    takes.join(", ")
                )))
            }
        }
    }

    /// Refuses a speed together with a medium that has its own.
    fn check_speed(&self) -> Result<(), LabError> {
        let of_speed = self.given().into_iter().find(|given| given.is_of_speed());
        match (of_speed, self.medium) {
            (Some(given), Some(medium)) if medium != MediumKind::Emulated => {
                Err(LabError::Config(format!(
                    "`--{}` is about the emulated medium, not `{}`; leave one of them out",
                    given.0,
                    medium.name()
                )))
            }
            _ => Ok(()),
        }
    }

    /// Returns the requested medium: the emulated one if its speed was given, or else `usual`.
    pub(super) fn medium(&self, usual: MediumKind) -> MediumKind {
        let is_emulated = self.given().into_iter().any(Setting::is_of_speed);
        self.medium.unwrap_or(if is_emulated { MediumKind::Emulated } else { usual })
    }

    /// Returns the speed of the emulated medium.
    pub(super) fn speed(&self) -> Speed {
        let kind = self.pm.unwrap_or(Speed::CUSTOMARY);
        Speed {
            persist_ns: self.persist_ns.unwrap_or(kind.persist_ns),
            read_ns: self.read_ns.unwrap_or(kind.read_ns),
            near_read_ns: self.near_read_ns.or(self.read_ns).unwrap_or(kind.near_read_ns),
            read_mb_s: self.read_mb_s.unwrap_or(kind.read_mb_s),
            write_mb_s: self.write_mb_s.unwrap_or(kind.write_mb_s),
        }
    }

    /// Returns the tables to measure: the requested ones, or those of `usual` that this program
    /// has.
    pub(super) fn indexes(&self, usual: &[&str]) -> Vec<String> {
        self.indexes.clone().unwrap_or_else(|| registered(usual))
    }

    /// Returns the lengths of keys and values, or `None` if neither was requested.
    pub(super) fn lengths(&self) -> Option<KeyValueLengths> {
        self.key_bytes.or(self.value_bytes)?;
        let usual = KeyValueLengths::default();
        Some(KeyValueLengths {
            keys: self.key_bytes.unwrap_or(usual.keys),
            values: self.value_bytes.unwrap_or(usual.values),
        })
    }

    /// Returns the number of processors that this process may use.
    pub(super) fn processors() -> usize {
        crate::machine::processors().len().max(1)
    }

    pub(super) fn keys(&self, scale: Scale) -> u64 {
        self.keys.unwrap_or(if self.quick { scale.quick_keys } else { scale.keys })
    }

    pub(super) fn pages(&self) -> Pages {
        if self.huge_pages { Pages::Huge } else { Pages::Base }
    }

    /// Returns the configuration of a drive.
    pub(super) fn config(&self, experiment: &'static str, usual: &[&str], scale: Scale) -> Config {
        let config = Config::default();
        let quick = self.quick;
        Config {
            experiment,
            indexes: self.indexes(usual),
            keys: self.keys(scale),
            threads: self.threads.unwrap_or(1),
            seed: self.seed.unwrap_or(config.seed),
            medium: self.medium(config.medium),
            location: self.location.clone(),
            pages: self.pages(),
            speed: self.speed(),
            rounds: self.rounds.unwrap_or(if quick { scale.quick_rounds } else { scale.rounds }),
            plan: Plan::Phases(self.phases.clone().unwrap_or_else(|| Phase::ALL.to_vec())),
            batch: self.batch.unwrap_or(config.batch),
            lengths: self.lengths(),
            presize: self.presize,
            populate: false,
            quiet: self.quiet(),
            limits: !self.no_limits,
            counts: !self.no_counts,
            latency: !self.no_latencies,
        }
    }

    /// Returns how much other programs may use the machine.
    fn quiet(&self) -> Quiet {
        let Quiet { limit, patience, retries } = Quiet::default();
        let (patience, retries) =
            if self.quick { (Duration::ZERO, 0) } else { (patience, retries) };
        Quiet {
            limit,
            patience: self.patience.unwrap_or(patience),
            retries: self.retries.unwrap_or(retries),
        }
    }
}

/// Describes the keys, threads and other circumstances of a drive.
pub(super) fn circumstances(config: &Config) -> String {
    let keys_and_values = match config.lengths {
        None => "keys and values of 8 bytes".to_owned(),
        Some(lengths) => format!("keys of {} bytes, values of {}", lengths.keys, lengths.values),
    };
    let emulated = match config.medium {
        MediumKind::Emulated => format!(" ({})", words(config.speed)),
        _ => String::new(),
    };
    format!(
        "{}, {keys_and_values}, {}, {}, medium {}{emulated}, seed {}",
        counted(config.keys as usize, "key"),
        counted(config.threads, "thread"),
        counted(config.rounds, "round"),
        config.medium.name(),
        config.seed,
    )
}

/// Describes a speed of the emulated medium.
fn words(speed: Speed) -> String {
    let Speed { persist_ns, read_ns, near_read_ns, read_mb_s, write_mb_s } = speed;
    let mut words = format!("a persist takes {persist_ns} ns, a read {read_ns} ns");
    if near_read_ns != read_ns {
        words.push_str(&format!(", {near_read_ns} ns in a block that was just read"));
    }
    for (what, mb_s) in [("reads", read_mb_s), ("writes", write_mb_s)] {
        if mb_s > 0 {
            words.push_str(&format!(", {what} {mb_s} MB/s"));
        }
    }
    words
}

/// Returns those of `names` that can be measured in this program.
fn registered(names: &[&str]) -> Vec<String> {
    let all = subjects();
    let known = |name: &&str| all.iter().any(|entry| entry.name == *name);
    names.iter().copied().filter(known).map(str::to_owned).collect()
}
