//! Crash campaigns: the simulator crashes an index, its heap and its region at every point.
//!
//! A workload runs once on the simulated medium, with a geometry so small that some hundred calls
//! cause every structural change. At every point at which a crash could matter, the images that the
//! crash could leave are opened, judged by every rule in [`oracle`], used further, and crashed
//! again.
//!
//! [`crash_campaign!`](crate::crash_campaign) runs all of it on an index in one line.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use evermap_pm::sim::battery::{Battery, SubjectTrial, Trial};
use evermap_pm::sim::{self, ImageConfig, Model, Nested, Replay, Report};

use super::Tier;
use super::erased::Erased;
use super::keys::{Numbered, Plain};
use super::persistence::PoolSubject;
use crate::Bytes;

mod subject;
mod workload;

use subject::Shared;
pub use subject::{Crashed, History, Live, Scrutiny};
pub use workload::{Call, Verb, Workload};

/// The rules by which a recovered index is judged.
pub mod oracle {
    /// What was acknowledged is present, and what was not is present wholly or not at all, key by
    /// key.
    pub const LINEARIZABLE: &str = "durable linearizability";
    /// After the creation has returned, the index exists.
    pub const CREATED: &str = "creation is durable";
    /// Lookups of all keys and a walk over all pairs show the same.
    pub const SCAN: &str = "lookups and scans agree";
    /// The index finds no violated invariant.
    pub const STRUCTURE: &str = "structure";
    /// Each allocated block is reachable exactly once.
    pub const SPACE: &str = "no leak";
    /// Further operations return what those of a map return.
    pub const MODEL: &str = "answers of further operations";
    /// What is removed is absent.
    pub const REMOVED: &str = "removal";
    /// A second recovery shows what the first one did.
    pub const TWICE: &str = "recovery is idempotent";
    /// Opening reports whether the file can be trusted.
    pub const SUSPECT: &str = "suspect files are refused";
    /// No operation returns an unexpected error.
    pub const ERRORS: &str = "answers";
    /// Nothing panics.
    pub const PANIC: &str = "no panic";
    /// Every operation ends.
    pub const STEPS: &str = "bounded steps";
    /// All of them.
    pub const ALL: [&str; 12] = [
        LINEARIZABLE,
        CREATED,
        SCAN,
        STRUCTURE,
        SPACE,
        MODEL,
        REMOVED,
        TWICE,
        SUSPECT,
        ERRORS,
        PANIC,
        STEPS,
    ];
}

/// Returns the configuration of a campaign, whose number of images `EVERMAP_TESTKIT_SCALE`
/// multiplies. In the default tier there are fewer images.
fn config(workload: Workload, model: Model, tier: Tier) -> sim::Config {
    let config = sim::Config {
        capacity: workload.capacity,
        images: ImageConfig { per_point: 64, ..ImageConfig::of(model) },
        max_images: tier.choose(300, 4_000) * super::Config::from_env().scale as u64,
        shrink: true,
        ..sim::Config::default()
    };
    match (workload.threads, model) {
        // Only the order of the threads matters, and a mistake shows in most images or in none.
        (2.., _) if workload.fresh => sim::Config {
            images: ImageConfig { per_point: 2, ..config.images },
            nested: Nested { depth: 0, ..config.nested },
            max_images: 20,
            ..config
        },
        // There are many orders of the threads, and each gets few images.
        (2.., _) => sim::Config {
            images: ImageConfig { per_point: 8, ..config.images },
            nested: Nested { per_point: 2, every: 512, ..config.nested },
            max_images: tier.choose(80, 240),
            ..config
        },
        // A refused file is not recovered, so its recovery is not crashed either.
        (_, Model::PageCache { .. }) => sim::Config {
            images: ImageConfig { per_point: 16, ..config.images },
            nested: Nested { depth: 0, ..config.nested },
            max_images: tier.choose(250, 3_000),
            ..config
        },
        _ if workload.prepared => {
            sim::Config { nested: Nested { depth: 2, ..config.nested }, ..config }
        }
        _ => config,
    }
}

/// Creates a campaign on `crashed`, without the kind of its keys.
fn on<K: Numbered>(
    name: &'static str,
    crashed: Crashed<'static, K>,
    config: sim::Config,
    first_seed: u64,
) -> SubjectTrial<Erased<Call, History>> {
    SubjectTrial::new(name, Erased::new(crashed), config, first_seed)
}

/// Returns a campaign as a trial.
fn boxed(campaign: SubjectTrial<Erased<Call, History>>) -> Box<dyn Trial> {
    Box::new(campaign)
}

/// Creates all campaigns for the index of `subject`, in full length.
pub fn battery<P>(name: &str, planted: &'static [&'static str], subject: P) -> Battery
where
    P: PoolSubject<u64> + PoolSubject<Plain> + PoolSubject<Bytes> + Send + 'static,
{
    battery_of(name, planted, subject, Tier::Full)
}

/// Creates all campaigns for the index of `subject`, in the length that [`tier`](super::tier)
/// chooses.
pub fn test_battery<P>(name: &str, subject: P) -> Battery
where
    P: PoolSubject<u64> + PoolSubject<Plain> + PoolSubject<Bytes> + Send + 'static,
{
    battery_of(name, &[], subject, super::tier())
}

fn battery_of<P>(name: &str, planted: &'static [&'static str], subject: P, tier: Tier) -> Battery
where
    P: PoolSubject<u64> + PoolSubject<Plain> + PoolSubject<Bytes> + Send + 'static,
{
    let subject = Arc::new(subject);
    let trials = trials(subject.clone(), subject.clone(), subject, tier);
    Battery { name: name.replace('_', "-"), trials, planted }
}

/// Creates the campaigns for an index with three kinds of keys. Not generic, so that they are
/// compiled with this crate.
fn trials(
    numbers: Shared<'static, u64>,
    plain: Shared<'static, Plain>,
    bytes: Shared<'static, Bytes>,
    tier: Tier,
) -> Vec<Box<dyn Trial>> {
    let config = |workload, model| config(workload, model, tier);
    let crash = |name, workload, model, seed| {
        let crashed = Crashed::of(numbers.clone(), workload);
        boxed(on(name, crashed, config(workload, model), seed))
    };
    let page = |name, granule| {
        let (workload, model) = (Workload::FEW_KEYS, Model::PageCache { granule });
        let crashed = Crashed::of(numbers.clone(), workload).on_another_boot();
        boxed(on(name, crashed, config(workload, model), 500))
    };
    let skewed = Crashed::of(plain.clone(), Workload::SKEWED);
    let skewed = on("skewed", skewed, config(Workload::SKEWED, Model::Adr), 600);
    let one_sided = Crashed::of(plain.clone(), Workload::ONE_SIDED);
    let one_sided = on("one-sided", one_sided, config(Workload::ONE_SIDED, Model::Adr), 700);
    let used = Crashed::of(plain, Workload::USED);
    let used = on("used-space", used, config(Workload::USED, Model::Adr), 600);
    let byte_keys = Crashed::of(bytes.clone(), Workload::FEW_KEYS);
    let byte_keys = on("byte-keys", byte_keys, config(Workload::FEW_KEYS, Model::Adr), 400);
    let parallel = Crashed::of(numbers.clone(), Workload::PARALLEL);
    let parallel = on("parallel", parallel, config(Workload::PARALLEL, Model::Adr), 1000);
    let parallel_bytes = Crashed::of(bytes, Workload::PARALLEL);
    let parallel_bytes =
        on("parallel-byte-keys", parallel_bytes, config(Workload::PARALLEL, Model::Adr), 2000);
    let clustered = Crashed::of(numbers.clone(), Workload::CROWDED);
    let clustered = on("crowded", clustered, config(Workload::CROWDED, Model::Adr), 3000);
    let groups = Crashed::of(numbers.clone(), Workload::PARALLEL_GROUPS);
    let groups = on("parallel-groups", groups, config(Workload::PARALLEL_GROUPS, Model::Adr), 4000);
    vec![
        crash("few-keys", Workload::FEW_KEYS, Model::Adr, 300),
        boxed(one_sided),
        crash("reopening", Workload::REOPENING, Model::Adr, 100),
        crash("growing", Workload::GROWING, Model::Adr, 0),
        boxed(skewed),
        boxed(used),
        boxed(byte_keys),
        boxed(parallel.in_parallel(25)),
        boxed(parallel_bytes.in_parallel(25)),
        boxed(clustered.in_parallel(400)),
        crash("grouped", Workload::GROUPED, Model::Adr, 5000),
        boxed(groups.in_parallel(25)),
        crash("process-death", Workload::REOPENING, Model::ProcessDeath, 200),
        page("page-cache", 4096),
        page("torn-pages", 512),
    ]
}

/// Creates campaigns that show the cost of examining a recovered index more thoroughly: in a pool
/// of 64 KiB, with `max_images` images for each seed.
pub fn costs<P>(name: &str, subject: P, max_images: u64) -> Battery
where
    P: PoolSubject<u64> + Send + 'static,
{
    Battery {
        name: name.to_owned(),
        trials: cost_trials(Arc::new(subject), max_images),
        planted: &[],
    }
}

fn cost_trials(subject: Shared<'static, u64>, max_images: u64) -> Vec<Box<dyn Trial>> {
    let workload = Workload { universe: 32, capacity: 64 << 10, ..Workload::FEW_KEYS };
    let config = sim::Config { max_images, ..config(workload, Model::Adr, Tier::Full) };
    let flat = sim::Config { nested: Nested { depth: 0, ..config.nested }, ..config };
    let with_scrutiny = |name, scrutiny, config| {
        let crashed = Crashed::of(subject.clone(), workload).with_scrutiny(scrutiny);
        boxed(on(name, crashed, config, 300))
    };
    vec![
        with_scrutiny("lookups and check", Scrutiny::Lookups, flat),
        with_scrutiny("and a probe", Scrutiny::Probe, flat),
        with_scrutiny("and a sweep", Scrutiny::Everything, flat),
        with_scrutiny("and nested crashes", Scrutiny::Everything, config),
    ]
}

/// Crashes the workloads of `seeds` under `model`, in the length that [`tier`](super::tier)
/// chooses.
///
/// # Panics
/// With the report if a crash leads to a violation, or if very few images were built.
pub fn assert_survives<K: Numbered, P: PoolSubject<K>>(
    subject: &P,
    workload: Workload,
    model: Model,
    seeds: Range<u64>,
) {
    let crashed = Crashed::<K>::new(subject, workload);
    assert_clean(&sim::campaign::run(&crashed, &config(workload, model, super::tier()), seeds));
}

/// Runs the campaign `trial` of a battery.
///
/// # Panics
/// As [`assert_survives`]; also if there is no such campaign.
pub fn assert_trial(battery: &Battery, trial: &str, seeds: u64) {
    let trial =
        battery.trials.iter().find(|other| other.name() == trial).expect("a known campaign");
    assert_clean(&battery.run(&**trial, 0..seeds));
}

fn assert_clean(report: &Report) {
    println!("{report}");
    report.assert_clean();
    let least = super::tier().choose(MIN_IMAGES.0, MIN_IMAGES.1);
    assert!(report.images > least, "only {} images", report.images);
}

/// Replays the files of earlier failures in `directory`, each on the battery that it names, which
/// must find nothing any more. The default tier tries a third of them.
///
/// # Panics
/// If a file is replayed and something is found; also if there is no file, or a file names none of
/// the batteries.
pub fn assert_replays(directory: impl AsRef<Path>, batteries: &[Battery]) {
    let files = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
    let files: BTreeSet<_> = files.collect();
    assert!(!files.is_empty());
    for path in files.into_iter().step_by(super::tier().choose(3, 1)) {
        let text = std::fs::read_to_string(&path).unwrap();
        let replay: Replay =
            text.parse().unwrap_or_else(|what| panic!("{}: {what}", path.display()));
        let index = replay.subject.as_deref().and_then(|subject| subject.split_once('/'));
        let battery =
            batteries.iter().find(|battery| index.is_some_and(|(name, _)| battery.name == name));
        let battery = battery.unwrap_or_else(|| panic!("{}: of which index?", path.display()));
        battery.replay(&text).unwrap_or_else(|what| panic!("{}: {what}", path.display()));
    }
}

/// The number of images that a campaign must exceed in the default tier and in the full tier.
const MIN_IMAGES: (u64, u64) = (60, 1000);

/// Declares a module of crash campaigns: `crash_campaign!(name, subject)` for a [`PoolSubject`] of
/// `u64` and [`Bytes`](crate::Bytes).
///
/// `crash_campaign!(variant name, subject)` is for an index that differs little from another one:
/// in the default [`Tier`] only few keys and several threads are tried.
///
/// `subject` is an expression that each test evaluates anew. In the default [`Tier`] the campaigns
/// take some five seconds of CPU time in total, in the full tier thirty. `EVERMAP_TESTKIT_SCALE`
/// multiplies the number of images.
#[macro_export]
macro_rules! crash_campaign {
    ($name:ident, $subject:expr) => {
        $crate::crash_campaign!(@tests $name, $subject, 1);
    };
    (variant $name:ident, $subject:expr) => {
        $crate::crash_campaign!(@tests $name, $subject, 0);
    };
    (@tests $name:ident, $subject:expr, $one:literal) => {
        #[cfg(test)]
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            use $crate::testkit::crash::{assert_trial, test_battery};
            use $crate::testkit::tier;

            /// Runs a campaign with the number of seeds for each tier.
            fn survives(trial: &str, default: u64, full: u64) {
                let seeds = tier().choose(default, full);
                if seeds > 0 {
                    assert_trial(&test_battery(stringify!($name), $subject), trial, seeds);
                }
            }

            #[test]
            fn growing_and_shrinking() {
                survives("growing", $one, 2);
            }

            #[test]
            fn reopening_and_sweeping() {
                survives("reopening", $one, 2);
            }

            #[test]
            fn few_keys() {
                survives("few-keys", 1, 2);
            }

            #[test]
            fn skewed_hashes() {
                survives("skewed", $one, 1);
            }

            #[test]
            fn one_sided_growth() {
                survives("one-sided", $one, 1);
            }

            #[test]
            fn used_space() {
                survives("used-space", $one, 1);
            }

            #[test]
            fn byte_keys() {
                survives("byte-keys", $one, 1);
            }

            #[test]
            fn threads_in_parallel() {
                survives("parallel", 3, 30);
                survives("parallel-byte-keys", 2, 20);
                survives("crowded", 5, 60);
                survives("parallel-groups", 2, 20);
            }

            #[test]
            fn changes_in_groups() {
                survives("grouped", $one, 2);
            }

            #[test]
            fn process_death_at_every_store() {
                survives("process-death", $one, 1);
            }

            #[test]
            fn power_loss_above_the_page_cache() {
                survives("page-cache", $one, 1);
                survives("torn-pages", $one, 1);
            }
        }
    };
}
