//! Panics in a caller's code leave the map consistent.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};

use evermap_pm::sim::keep_panics_quiet;

use super::*;

thread_local! {
    /// The number of calls until one panics.
    static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
}

fn call() {
    let left = LEFT.get();
    LEFT.set(left.wrapping_sub(1));
    assert!(left != 0, "as planned");
}

/// A key whose hash, comparison, clone and drop may panic.
#[derive(Debug)]
struct Fragile(u64);

impl Hash for Fragile {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        call();
        hasher.write_u64(self.0);
    }
}

impl PartialEq for Fragile {
    fn eq(&self, other: &Self) -> bool {
        call();
        self.0 == other.0
    }
}

impl Eq for Fragile {}

impl Clone for Fragile {
    fn clone(&self) -> Self {
        call();
        Fragile(self.0)
    }
}

type Map = VolatileMap<Fragile, Tracked, BuildAttacked>;

/// Checks that exactly these keys are present, and that the map can be used.
fn assert_usable(map: &Map, keys: &BTreeSet<u64>) {
    let shown: Vec<u64> = map.pin().keys().map(|key| key.0).collect();
    assert_eq!(shown.len(), keys.len());
    assert_eq!(shown.into_iter().collect::<BTreeSet<_>>(), *keys);
    assert!(keys.iter().all(|&key| map.pin().contains_key(&Fragile(key))));
    assert_eq!((map.len(), map.audit()), (keys.len(), Vec::new()));
}

#[test]
fn hashers_and_comparisons_may_panic() {
    keep_panics_quiet();
    let (registry, map) = (Arc::new(Registry::default()), tiny());
    let (mut keys, mut random) = (BTreeSet::new(), Rng::new(9));
    let mut panics = 0;
    for round in 0..if cfg!(miri) { 300 } else { 3000 } {
        let key = random.below(400);
        let removes = random.below(100) < if round / 1000 == 1 { 80 } else { 20 };
        LEFT.set(random.below(60));
        let done = catch_unwind(AssertUnwindSafe(|| {
            if removes {
                map.pin().remove(&Fragile(key)).is_some()
            } else {
                map.pin().insert(Fragile(key), registry.create(key)).is_some()
            }
        }));
        LEFT.set(u64::MAX);
        match done {
            Ok(was_present) => {
                assert_eq!(was_present, keys.contains(&key));
                if removes {
                    keys.remove(&key)
                } else {
                    keys.insert(key)
                };
            }
            Err(_) => panics += 1,
        }
        if round % 100 == 0 {
            assert_usable(&map, &keys);
        }
    }
    assert!(panics > 50 || cfg!(miri), "{panics} panics");
    assert_usable(&map, &keys);
    map.flush();
    assert_eq!(registry.alive(), keys.len());
    drop(map);
    assert_eq!(registry.alive(), 0);
}

#[test]
fn closures_may_panic() {
    keep_panics_quiet();
    let (registry, map) = (Arc::new(Registry::default()), tiny::<u64, Tracked, RandomState>());
    (0..50).for_each(|key| ignore(map.pin().insert(key, registry.create(key))));
    let pinned = map.pin();
    let attempts: [&dyn Fn(); 6] = [
        &|| ignore(pinned.update(7, |_| panic!("as planned"))),
        &|| ignore(pinned.get_or_insert_with(99, || panic!("as planned"))),
        &|| {
            ignore(pinned.update_or_insert_with(
                99,
                |_| panic!("as planned"),
                || panic!("as planned"),
            ))
        },
        &|| ignore(pinned.remove_if(&7, |_, _| panic!("as planned"))),
        &|| pinned.retain(|&key, _| if key == 7 { panic!("as planned") } else { true }),
        &|| ignore(pinned.compute(7, |_| -> Operation<Tracked, ()> { panic!("as planned") })),
    ];
    for attempt in attempts {
        assert!(catch_unwind(AssertUnwindSafe(attempt)).is_err());
        assert_eq!((map.len(), map.audit()), (50, Vec::new()));
    }
    drop(pinned);
    map.flush();
    assert_eq!(registry.alive(), 50);
}

/// A closure runs without a lock, so it can use the map, and drops can too.
#[test]
fn closures_and_drops_may_use_the_map() {
    struct Removes(Option<(Arc<VolatileMap<u64, Removes>>, u64)>);
    impl Drop for Removes {
        fn drop(&mut self) {
            if let Some((map, other)) = self.0.take() {
                map.pin().remove(&other);
            }
        }
    }
    let map: Arc<VolatileMap<u64, Removes>> = Arc::new(tiny());
    for key in 0..100 {
        map.pin().insert(key, Removes(Some((map.clone(), key + 1000))));
        map.pin().insert(key + 1000, Removes(None));
    }
    (0..100).for_each(|key| ignore(map.pin().remove(&key)));
    map.flush();
    map.flush();
    assert_eq!(map.len(), 0);
    let pinned = map.pin();
    pinned.get_or_insert_with(1, || {
        pinned.insert(2, Removes(None));
        Removes(None)
    });
    pinned.update(1, |_| {
        pinned.remove(&2);
        Removes(None)
    });
    assert_eq!(map.len(), 1);
}

/// If the drop of one value panics, the others are dropped all the same.
#[test]
fn drops_may_panic() {
    struct Panics(u64, #[expect(dead_code, reason = "only dropped")] Tracked);
    impl Drop for Panics {
        fn drop(&mut self) {
            assert!(self.0 != 5, "as planned");
        }
    }
    keep_panics_quiet();
    let (registry, map) = (Arc::new(Registry::default()), tiny::<u64, Panics, RandomState>());
    for key in 0..20 {
        map.pin().insert(key, Panics(key, registry.create(key)));
    }
    (0..20).for_each(|key| ignore(map.pin().remove(&key)));
    assert!(catch_unwind(AssertUnwindSafe(|| map.flush())).is_err());
    map.flush();
    assert_eq!((registry.alive(), map.len(), map.stats().entries_waiting), (0, 0, 0));
    assert_eq!(map.audit(), Vec::<String>::new());
    map.pin().insert(1, Panics(1, registry.create(1)));
    assert_eq!(map.pin().get(&1).map(|value| value.0), Some(1));
}
