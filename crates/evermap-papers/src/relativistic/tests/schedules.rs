//! Readers, an updater, a walk and a thread that resizes without a pause, in many orders of their
//! steps; and the mistakes that this must notice.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use evermap_index::testkit::model::panicked;
use evermap_index::testkit::tier;
use evermap_pm::Domain;
use evermap_pm::sim::keep_panics_quiet;
use evermap_pm::sim::rng::Rng;
use evermap_pm::sim::schedule::{self, Progress, Schedule, Strategy};

use super::super::steps::Mistake;
use super::*;

/// What the threads do.
#[derive(Clone, Copy, Debug)]
struct Scene {
    config: Config,
    mistake: Option<Mistake>,
    /// The number of keys that stay, and of those that come and go.
    stable: u64,
    transient: u64,
    /// The number of buckets between which the table is resized.
    between: (u64, u64),
}

impl Scene {
    fn new(mistake: Option<Mistake>, (grow, shrink): (Place, Place)) -> Self {
        let config = Config { grow, shrink, stripes: 2, ..tiny(2) };
        Scene { config, mistake, stable: 6, transient: 6, between: (2, 4) }
    }

    /// Returns a key that stays or one that does not. Their hashes are mixed in every bucket.
    fn key(number: u64) -> u64 {
        number * 5 % 64
    }
}

const VALUE: u64 = 77;

/// More steps than any thread needs.
const STEPS: u64 = 100_000;

/// What a thread has left in the table.
type Pairs = Vec<(u64, u64)>;

fn look_up<T: ResizableTable<u64, u64>>(table: &T, scene: Scene, seed: u64) -> Pairs {
    let mut random = Rng::new(seed);
    for _ in 0..12 {
        let guard = table.domain().pin();
        let key = Scene::key(random.below(scene.stable));
        let found = table.get_copied(&key, &guard);
        assert_eq!(found, Some(VALUE), "key {key} was missed, seed {seed}");
        drop(guard);
        schedule::after(Progress::End);
    }
    Pairs::new()
}

/// The same, with sections that store nothing.
fn look_up_online<T: ResizableTable<u64, u64>>(table: &T, scene: Scene, seed: u64) -> Pairs {
    let mut random = Rng::new(seed);
    let mut reader = table.domain().register();
    for round in 0..12 {
        let key = Scene::key(random.below(scene.stable));
        let found = table.get_copied(&key, reader.section());
        assert_eq!(found, Some(VALUE), "key {key} was missed, seed {seed}");
        if round % 3 == 2 {
            reader.quiescent();
        }
        schedule::after(Progress::End);
    }
    Pairs::new()
}

/// Inserts, replaces and removes keys that no other thread changes, and so knows all results.
/// Returns what is present in the end.
fn update<T: ResizableTable<u64, u64>>(table: &T, scene: Scene, seed: u64) -> Pairs {
    let mut random = Rng::new(!seed);
    let mut present = std::collections::BTreeMap::new();
    for round in 0..24 {
        let key = Scene::key(scene.stable + random.below(scene.transient));
        let guard = table.domain().pin();
        match random.below(4) {
            0 | 1 => {
                let absent = table.insert(&key, round, &guard).unwrap();
                assert_eq!(absent, !present.contains_key(&key), "insert {key}, seed {seed}");
                present.entry(key).or_insert(round);
            }
            2 => {
                let absent = table.upsert(&key, round, &guard).unwrap();
                assert_eq!(absent, present.insert(key, round).is_none(), "upsert {key}");
            }
            _ => {
                let was = table.remove(&key, &guard).unwrap();
                assert_eq!(was, present.remove(&key).is_some(), "remove {key}, seed {seed}");
            }
        }
        let found = table.get_copied(&key, &guard);
        assert_eq!(found, present.get(&key).copied(), "key {key}, seed {seed}");
        drop(guard);
        schedule::after(Progress::End);
    }
    present.into_iter().collect()
}

/// Walks over all pairs: what stays is shown once.
fn walk<T: ResizableTable<u64, u64>>(table: &T, scene: Scene, seed: u64) -> Pairs {
    for _ in 0..3 {
        let shown = pairs(table, &table.domain().pin());
        let keys: Vec<u64> = shown.iter().map(|&(key, _)| key).collect();
        let twice = keys.windows(2).find(|pair| pair[0] == pair[1]);
        assert_eq!(twice, None, "shown twice, seed {seed}");
        for key in (0..scene.stable).map(Scene::key) {
            assert!(keys.contains(&key), "{key} was not shown, seed {seed}");
        }
        schedule::after(Progress::End);
    }
    Pairs::new()
}

fn resize<T: ResizableTable<u64, u64>>(table: &T, scene: Scene) -> Pairs {
    for _ in 0..3 {
        table.resize(scene.between.1).unwrap();
        table.resize(scene.between.0).unwrap();
    }
    Pairs::new()
}

/// Runs a scene in one order of the steps.
fn play<K: Kind>(scene: Scene, seed: u64) {
    let domain: Arc<Domain> = domain();
    let table = hook::plant(scene.mistake, || K::create(domain.clone(), Identity, scene.config));
    let table = &table.unwrap();
    let mut numbers: Vec<u64> = (0..scene.stable).collect();
    Rng::new(seed).shuffle(&mut numbers);
    for number in numbers {
        table.insert(&Scene::key(number), VALUE, &domain.pin()).unwrap();
    }
    type Body<'a> = Box<dyn FnOnce() -> Pairs + Send + 'a>;
    fn limited<'a>(body: impl FnOnce() -> Pairs + Send + 'a) -> Body<'a> {
        Box::new(move || {
            hook::limit_steps(STEPS);
            body()
        })
    }
    let bodies = vec![
        limited(move || look_up(table, scene, seed)),
        limited(move || look_up_online(table, scene, seed)),
        limited(move || update(table, scene, seed)),
        limited(move || walk(table, scene, seed)),
        limited(move || resize(table, scene)),
    ];
    let strategy = Strategy::Mixed;
    let (results, _) = schedule::run(Schedule { strategy, seed }, bodies);
    let mut expected = results.concat();
    expected.extend((0..scene.stable).map(|number| (Scene::key(number), VALUE)));
    expected.sort_unstable();
    assert_eq!(pairs(table, &domain.pin()), expected, "seed {seed}");
    assert_eq!(table.stats().pairs, expected.len() as u64);
}

fn play_all<K: Kind>(scene: Scene, seeds: u64) {
    for seed in 0..seeds {
        play::<K>(scene, seed);
    }
}

#[test]
fn nothing_is_missed_in_any_order_of_the_steps() {
    let seeds = tier().choose(20, 3000);
    for places in places() {
        play_all::<Relativistic>(Scene::new(None, places), seeds);
        play_all::<Sorted>(Scene::new(None, places), seeds);
    }
    play_all::<Moving>(Scene::new(None, (Place::New, Place::New)), seeds);
    play_all::<Locking>(Scene::new(None, (Place::New, Place::New)), seeds);
}

/// Longer chains of fewer buckets, which take more passes.
#[test]
fn nothing_is_missed_in_long_chains() {
    let seeds = tier().choose(15, 2000);
    for places in places() {
        let config = Config { stripes: 1, ..Scene::new(None, places).config };
        let scene = Scene {
            config: Config { buckets: 1, ..config },
            stable: 12,
            transient: 4,
            between: (1, 2),
            ..Scene::new(None, places)
        };
        play_all::<Relativistic>(scene, seeds);
        play_all::<Sorted>(scene, seeds);
    }
}

/// Returns the first seed with which a mistake is noticed, and what is said then.
fn first_notice<K: Kind>(scene: Scene, seeds: u64) -> Option<(u64, String)> {
    keep_panics_quiet();
    (0..seeds).find_map(|seed| {
        let result = catch_unwind(AssertUnwindSafe(|| play::<K>(scene, seed)));
        result.err().map(|panic| (seed, panicked(panic)))
    })
}

#[track_caller]
fn must_notice<K: Kind>(mistake: Mistake, places: (Place, Place)) {
    const SEEDS: u64 = 3000;
    let noticed = first_notice::<K>(Scene::new(Some(mistake), places), SEEDS);
    let Some((seed, what)) = noticed else {
        panic!("{mistake:?} was not noticed with {SEEDS} seeds");
    };
    println!("{} {mistake:?}: seed {seed}: {what}", K::NAME);
}

const NEW: (Place, Place) = (Place::New, Place::New);
const SAME: (Place, Place) = (Place::Same, Place::Same);

#[test]
fn two_loads_of_the_table_are_noticed() {
    must_notice::<Relativistic>(Mistake::LoadsTableTwice, NEW);
    must_notice::<Sorted>(Mistake::LoadsTableTwice, NEW);
}

#[test]
fn missing_grace_periods_are_noticed() {
    must_notice::<Relativistic>(Mistake::NoWaitAfterPublication, NEW);
    must_notice::<Relativistic>(Mistake::NoWaitBetweenPasses, NEW);
    must_notice::<Relativistic>(Mistake::NoWaitAfterPublication, SAME);
    must_notice::<Relativistic>(Mistake::UpperHalfReturnedAtOnce, SAME);
    // The one wait that sorted chains need.
    must_notice::<Sorted>(Mistake::NoWaitAfterPublication, NEW);
}

#[test]
fn two_jumps_in_one_pass_are_noticed() {
    must_notice::<Relativistic>(Mistake::TwoJumpsInOnePass, NEW);
}

#[test]
fn early_frees_are_noticed() {
    must_notice::<Relativistic>(Mistake::OldArrayFreedAtOnce, NEW);
    must_notice::<Relativistic>(Mistake::NodeFreedAtOnce, NEW);
}

#[test]
fn wrong_removals_are_noticed() {
    must_notice::<Relativistic>(Mistake::AuxNotAdvanced, NEW);
    must_notice::<Relativistic>(Mistake::OneOfTwoLinks, NEW);
    must_notice::<Relativistic>(Mistake::RunEndNotNoticed, NEW);
}

#[test]
fn insertions_that_look_only_at_their_own_bucket_are_noticed() {
    must_notice::<Relativistic>(Mistake::UniqueInPreciseChainOnly, NEW);
}

#[test]
fn mistakes_of_ddds_are_noticed() {
    must_notice::<Moving>(Mistake::NoRetry, NEW);
    must_notice::<Moving>(Mistake::NotAnnounced, NEW);
}

#[test]
fn walks_that_show_foreign_nodes_are_noticed() {
    must_notice::<Relativistic>(Mistake::WalkShowsForeignNodes, NEW);
}

/// A reader that wants the lock of the resize in its section, here by a walk, and a thread that
/// waits for readers while it holds that lock, would wait for each other.
#[test]
fn a_wait_under_a_lock_that_a_reader_wants_is_noticed() {
    let deadlocks = |mistake| {
        keep_panics_quiet();
        (0..200).any(|seed| {
            let domain = domain();
            let create = || Ddds::<u64, u64, _>::new(domain.clone(), Identity, tiny(2));
            let table = hook::plant(mistake, create).unwrap();
            (0..8).for_each(|key| assert!(table.insert(&key, VALUE, &domain.pin()).unwrap()));
            let bodies: Vec<Box<dyn FnOnce() + Send>> = vec![
                Box::new(|| (0..4).for_each(|_| assert_eq!(pairs(&table, &domain.pin()).len(), 8))),
                Box::new(|| [4, 2, 4].iter().for_each(|&to| table.resize(to).unwrap())),
            ];
            let strategy = Strategy::Mixed;
            let run = || drop(schedule::run(Schedule { strategy, seed }, bodies));
            catch_unwind(AssertUnwindSafe(run)).is_err()
        })
    };
    assert!(!deadlocks(None));
    assert!(deadlocks(Some(Mistake::WaitsWithLock)));
}
