//! What each table promises by itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use evermap_index::testkit::tier;
use evermap_pm::epoch::WaitError;
use evermap_pm::sim::rng::Rng;

use super::*;

/// A table with one word that its values share.
fn counted<T: ResizableTable<String, Arc<u64>>>(table: T, domain: Arc<Domain>) {
    let word = Arc::new(5);
    let key = |number: u64| format!("key {number}");
    for number in 0..40 {
        table.insert(&key(number), word.clone(), &domain.pin()).unwrap();
        table.insert(&key(number), word.clone(), &domain.pin()).unwrap();
        table.upsert(&key(number / 2), word.clone(), &domain.pin()).unwrap();
        if number % 3 == 0 {
            table.remove(&key(number), &domain.pin()).unwrap();
        }
    }
    assert_eq!(table.stats().pairs, pairs_of(&table, &domain.pin()));
    // In the middle of a resize, if it is one that takes several steps.
    let guard = domain.pin();
    for number in 100..200 {
        table.insert(&key(number), word.clone(), &guard).unwrap();
    }
    drop(guard);
    drop(table);
    // Whatever still waits is dropped with the domain.
    drop(domain);
    assert_eq!(Arc::strong_count(&word), 1, "values that were not dropped");
}

fn pairs_of<K, V>(table: &impl ResizableTable<K, V>, guard: &Guard<'_>) -> u64 {
    let mut count = 0;
    table.for_each(guard, &mut |_, _| {
        count += 1;
        true
    });
    count
}

#[test]
fn keys_and_values_are_dropped_once() {
    for (grow, shrink) in places() {
        let config = Config {
            grow,
            shrink,
            buckets: 2,
            buckets_min: 1,
            buckets_max: 512,
            ..Config::default()
        };
        let hasher = std::hash::RandomState::new;
        let domain = domain();
        counted(Rp::<_, _, _>::new(domain.clone(), hasher(), config).unwrap(), domain);
        let domain = super::domain();
        counted(RpSorted::new(domain.clone(), hasher(), config).unwrap(), domain);
        let domain = super::domain();
        counted(Ddds::new(domain.clone(), hasher(), config).unwrap(), domain);
        let domain = super::domain();
        counted(RwLockTable::new(domain.clone(), hasher(), config).unwrap(), domain);
    }
}

#[test]
#[should_panic(expected = "a guard of another domain")]
fn a_guard_of_another_domain_is_refused() {
    let table = Plain::<Unordered>::new(domain(), Identity, tiny(2)).unwrap();
    let other = domain();
    table.get(&1, &other.pin());
}

#[test]
fn a_thread_that_would_wait_for_itself_is_refused() {
    fn refused<K: Kind>() {
        let domain = domain();
        let table = K::create(domain.clone(), Identity, tiny(2)).unwrap();
        let refusal = |result| matches!(result, Err(ResizeError::Wait(WaitError::HoldsGuard)));
        let guard = domain.pin();
        assert!(refusal(table.resize(4)));
        drop(guard);
        let mut reader = domain.register();
        assert!(refusal(table.resize(4)));
        assert_eq!(table.stats().buckets, 2);
        reader.offline(|| table.resize(4)).unwrap();
        assert_eq!(table.stats().buckets, 4);
    }
    refused::<Relativistic>();
    refused::<Sorted>();
    refused::<Moving>();
}

/// A chain of `R` runs takes `R` - 1 passes, each but the first after a grace period, and one grace
/// period before. A sorted chain has two runs.
#[test]
fn the_waits_of_a_resize_are_counted() {
    let efforts = |sorted: bool, keys: &[u64], place| {
        let domain = domain();
        let config = Config { grow: place, shrink: place, stripes: 1, ..tiny(1) };
        fn resized<T: ResizableTable<u64, u64>>(table: T, keys: &[u64]) -> (Effort, Effort) {
            for key in keys.iter().rev() {
                table.insert(key, 0, &table.domain().pin()).unwrap();
            }
            table.resize(2).unwrap();
            table.resize(1).unwrap();
            let stats = table.stats();
            assert_eq!((stats.expansions, stats.shrinks), (1, 1));
            let both = stats.last_expansion.grace_periods + stats.last_shrink.grace_periods;
            assert_eq!(stats.grace_periods, both);
            (stats.last_expansion, stats.last_shrink)
        }
        let (grown, shrunk) = match sorted {
            true => resized(Plain::<SplitOrder>::new(domain, Identity, config).unwrap(), keys),
            false => resized(Plain::<Unordered>::new(domain, Identity, config).unwrap(), keys),
        };
        (grown.passes, grown.grace_periods, grown.steps, shrunk.grace_periods)
    };
    let alternating = [2, 3, 4, 5, 6, 7];
    let uniform = [2, 4, 6];
    // Passes, grace periods and links to grow; grace periods to shrink.
    assert_eq!(efforts(false, &alternating, Place::New), (5, 5, 5, 0));
    assert_eq!(efforts(false, &uniform, Place::New), (1, 1, 0, 0));
    assert_eq!(efforts(true, &alternating, Place::New), (1, 1, 1, 0));
    // In place, one more before the mask changes; the lower head is right from the start.
    assert_eq!(efforts(false, &alternating, Place::Same).3, 2);
    assert_eq!(efforts(true, &alternating, Place::Same).3, 2);
    assert_eq!(efforts(true, &uniform, Place::Same).1, 2);
}

/// A thread that never waits, such as an event loop, makes a table grow and shrink: each update
/// takes part, and the table keeps up with the insertions.
#[test]
fn updates_resize_a_table_without_waiting() {
    fn keeps_up<K: Kind>(places: (Place, Place)) {
        let most = tier().choose(2000, 10_000);
        let domain = domain();
        let config =
            Config { grow: places.0, shrink: places.1, buckets_max: 1 << 14, ..Config::default() };
        let table = K::create(domain.clone(), KeyHash::<u64>::new(1), config).unwrap();
        let highest = highest_load(&table, most);
        assert!(highest < 150, "{highest} pairs for 100 buckets: {}", K::NAME);
        let full = table.stats();
        assert!(full.expansions >= 6, "{full:?}");
        for key in 0..most {
            assert!(table.remove(&key, &domain.pin()).unwrap());
        }
        // Nothing is left to update, so whatever is unfinished needs help.
        while table.help() {}
        let empty = table.stats();
        assert!(empty.shrinks > 0 && empty.buckets < full.buckets, "{empty:?}");
        assert_eq!((empty.pairs, empty.resizing), (0, None));
    }
    for places in [(Place::New, Place::New), (Place::New, Place::Same), (Place::Same, Place::Same)]
    {
        keeps_up::<Relativistic>(places);
        keeps_up::<Sorted>(places);
    }
    keeps_up::<Moving>((Place::New, Place::New));
    keeps_up::<Locking>((Place::New, Place::New));
}

/// Inserts keys, and returns the largest number of pairs for 100 buckets meanwhile.
fn highest_load(table: &impl ResizableTable<u64, u64>, keys: u64) -> u64 {
    let load = |key| {
        table.insert(&key, !key, &table.domain().pin()).unwrap();
        let stats = table.stats();
        stats.pairs * 100 / stats.buckets
    };
    (0..keys).map(load).max().unwrap_or(0)
}

/// A table whose updates leave a resize to other threads may fill faster than it grows.
#[test]
fn updates_that_do_not_help_are_noticed() {
    let create = || Relativistic::create(domain(), KeyHash::<u64>::new(1), Config::default());
    let table = hook::plant(Some(steps::Mistake::UpdatesDoNotHelp), create).unwrap();
    assert!(highest_load(&table, 1000) > 150);
}

/// A number of pairs that goes up and down by a fifth does not make the table alternate.
#[test]
fn a_table_does_not_alternate() {
    let domain = domain();
    let table =
        Rp::<u64, u64, _>::new(domain.clone(), KeyHash::<u64>::new(1), Config::default()).unwrap();
    let insert = |key| table.insert(&key, 0, &domain.pin()).unwrap();
    let remove = |key| table.remove(&key, &domain.pin()).unwrap();
    // The next pair makes it grow.
    (0..768).for_each(|key| assert!(insert(key)));
    while table.help() {}
    assert_eq!(table.stats().buckets, 1024);
    for _ in 0..10 {
        (768..920).for_each(|key| assert!(insert(key)));
        (768..920).for_each(|key| assert!(remove(key)));
        while table.help() {}
    }
    let stats = table.stats();
    assert_eq!((stats.buckets, stats.shrinks), (2048, 0));
}

#[test]
fn the_progress_of_a_resize_is_visible() {
    let domain = domain();
    let config = Config { buckets_max: 256, stripes: 1, ..tiny(128) };
    let table = Plain::<Unordered>::new(domain.clone(), Identity, config).unwrap();
    for key in 0..1000 {
        table.insert(&key, 0, &domain.pin()).unwrap();
    }
    let base = resizing::Resizes::base(&table);
    resizing::begin(&table, &mut base.stop_resizing(), 256).unwrap();
    let stage = |table: &Plain<Unordered>| table.stats().resizing.map(|progress| progress.stage);
    let guard = domain.pin();
    let mut seen = Vec::new();
    for _ in 0..9 {
        seen.extend(stage(&table));
        assert!(table.help());
    }
    drop(guard);
    assert_eq!(seen[0], Stage::Linking { done: 0, of: 128 });
    assert_eq!(seen[1], Stage::Linking { done: 16, of: 128 });
    assert_eq!(seen[7], Stage::Linking { done: 112, of: 128 });
    assert_eq!(seen[8], Stage::Waiting);
    assert_eq!(stage(&table), Some(Stage::Waiting));
    table.help();
    assert_eq!(stage(&table), Some(Stage::Splitting { done: 16, of: 128 }));
    while table.help() {}
    assert_eq!((stage(&table), table.stats().buckets), (None, 256));
}

/// A lookup of a reader that announces quiescent states stores nothing, in the table or elsewhere.
#[test]
fn a_lookup_stores_nothing() {
    let domain = domain();
    let table = Plain::<Unordered>::new(domain.clone(), Identity, tiny(2)).unwrap();
    (0..8).for_each(|key| assert!(table.insert(&key, key, &domain.pin()).unwrap()));
    let reader = domain.register();
    let before = hook::stores();
    for key in 0..16 {
        assert_eq!(table.get(&key, reader.section()).is_some(), key < 8);
    }
    assert_eq!(hook::stores(), before);
    drop(reader);
    assert!(table.remove(&1, &domain.pin()).unwrap());
    assert!(hook::stores() > before, "stores are counted");
}

/// A reference is valid as long as its guard, whatever happens to its pair.
#[test]
fn a_reference_outlives_its_pair() {
    let domain = domain();
    let table = Rp::<u64, String, _>::new(domain.clone(), Identity, tiny(1)).unwrap();
    table.insert(&1, "one".into(), &domain.pin()).unwrap();
    let guard = domain.pin();
    let value = table.get(&1, &guard).unwrap();
    std::thread::scope(|threads| {
        let change = || {
            table.upsert(&1, "two".into(), &domain.pin()).unwrap();
            table.remove(&1, &domain.pin()).unwrap();
        };
        threads.spawn(change).join().unwrap();
    });
    assert_eq!((value.as_str(), table.get(&1, &guard)), ("one", None));
}

/// A walk over sorted chains keeps its position between two guards, while the table is resized: it
/// shows what stays exactly once.
#[test]
fn a_scan_survives_resizes() {
    for seed in 0..tier().choose(50, 2000) {
        let mut random = Rng::new(seed);
        let domain = domain();
        let table =
            RpSorted::<u64, u64, _>::new(domain.clone(), KeyHash::<u64>::new(seed), tiny(4));
        let table = table.unwrap();
        (0..60).for_each(|key| assert!(table.insert(&key, key, &domain.pin()).unwrap()));
        let (mut from, mut shown) = (Some(0), Vec::new());
        while let Some(here) = from {
            from = table.scan(here, &domain.pin(), &mut |&key, _| shown.push(key));
            match random.below(4) {
                0 => table.resize(1 << random.below(6)).unwrap(),
                1 => drop(table.remove(&(40 + random.below(20)), &domain.pin()).unwrap()),
                _ => {
                    let key = 40 + random.below(20);
                    table.upsert(&key, key, &domain.pin()).unwrap();
                }
            }
        }
        let distinct: BTreeSet<u64> = shown.iter().copied().collect();
        assert_eq!(distinct.len(), shown.len(), "shown twice, seed {seed}");
        assert!((0..40).all(|key| distinct.contains(&key)), "not shown, seed {seed}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let create = |config| Plain::<Unordered>::new(domain(), Identity, config).map(drop);
    let huge = Config { buckets: 1 << 60, ..Config::default() };
    assert!(create(huge).unwrap_err().is_no_space());
    let huge = Config { buckets_max: 1 << 60, grow: Place::Same, ..Config::default() };
    assert!(create(huge).unwrap_err().is_no_space());
    let policy = Some(Policy { grow_above_percent: 75, shrink_below_percent: 40 });
    assert!(create(Config { policy, ..Config::default() }).is_err());
}

/// Numbers that are out of range are brought into it, and a resize stays within the limits.
#[test]
fn limits_are_kept() {
    fn kept<K: Kind>() {
        let config = Config { buckets: 5, buckets_min: 3, buckets_max: 0, stripes: 0, ..tiny(1) };
        let table = K::create(domain(), Identity, config).unwrap();
        for (wanted, buckets) in [(0, 4), (1 << 40, 8), (5, 8), (3, 4), (4, 4)] {
            table.resize(wanted).unwrap();
            assert_eq!(table.stats().buckets, buckets, "{wanted}");
        }
    }
    kept::<Relativistic>();
    kept::<Sorted>();
    kept::<Moving>();
    kept::<Locking>();
}
