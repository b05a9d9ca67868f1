//! Every key and every value is dropped exactly once, and not while a guard protects it.

use super::*;

/// Inserts, replaces and removes values at random.
fn churn(map: &VolatileMap<u64, Tracked>, registry: &Arc<Registry>, rounds: usize, seed: u64) {
    let mut random = Rng::new(seed);
    for round in 0..rounds {
        let (key, pinned) = (random.below(200), map.pin());
        let made = || registry.create(key);
        match random.below(if round / 500 % 2 == 0 { 6 } else { 9 }) {
            0 | 1 => ignore(pinned.insert(key, made())),
            2 => ignore(pinned.try_insert(key, made())),
            3 => ignore(pinned.update(key, |old| registry.create(old.number().unwrap()))),
            4 => ignore(pinned.get_or_insert_with(key, made)),
            5 => ignore(pinned.update_or_insert_with(key, |_| made(), made)),
            _ => ignore(pinned.remove(&key)),
        }
    }
}

#[test]
fn nothing_leaks_and_nothing_is_dropped_twice() {
    let rounds = if cfg!(miri) { 800 } else { 20_000 };
    let registry = Arc::new(Registry::default());
    let map = tiny::<u64, Tracked, RandomState>();
    churn(&map, &registry, rounds, 1);
    assert!(registry.alive() < map.len() + 200, "what is retired is dropped while others are");
    map.flush();
    assert_eq!(registry.alive(), map.len());
    assert_eq!(map.stats().entries_waiting, 0);
    map.pin().clear();
    map.flush();
    assert_eq!((registry.alive(), map.len()), (0, 0));
    churn(&map, &registry, rounds, 2);
    // What is present, and what waits, is dropped with the map.
    assert!(map.stats().entries_waiting > 0);
    drop(map);
    assert_eq!(registry.alive(), 0);
}

#[test]
fn a_map_can_be_dropped_while_it_is_resized() {
    for count in (0..200).step_by(if cfg!(miri) { 37 } else { 1 }) {
        let registry = Arc::new(Registry::default());
        let map = tiny::<u64, Tracked, RandomState>();
        (0..count).for_each(|key| ignore(map.pin().insert(key, registry.create(key))));
        assert_eq!(registry.alive() as u64, count);
        if count % 2 == 0 {
            let mut pairs = map.into_iter();
            let taken = pairs.by_ref().take(count as usize / 3).count();
            assert_eq!((taken, registry.alive()), (count as usize / 3, count as usize - taken));
            drop(pairs);
        } else {
            drop(map);
        }
        assert_eq!(registry.alive(), 0);
    }
}

#[test]
fn threads_leak_nothing() {
    let registry = Arc::new(Registry::default());
    let map = tiny::<u64, Tracked, RandomState>();
    let rounds = if cfg!(miri) { 300 } else { 10_000 };
    std::thread::scope(|threads| {
        for seed in 0..4 {
            let (map, registry) = (&map, &registry);
            threads.spawn(move || churn(map, registry, rounds, seed));
        }
    });
    map.flush();
    assert_eq!(registry.alive(), map.len());
    drop(map);
    assert_eq!(registry.alive(), 0);
}

#[test]
fn a_guard_protects_what_it_has_seen() {
    let registry = Arc::new(Registry::default());
    let map = tiny::<u64, Tracked, RandomState>();
    (0..100).for_each(|key| ignore(map.pin().insert(key, registry.create(key))));
    let pinned = map.pin();
    let seen: Vec<&Tracked> = pinned.iter().map(|(_, value)| value).collect();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            (0..100).for_each(|key| ignore(map.pin().remove(&key)));
            (100..2000).for_each(|key| ignore(map.pin().insert(key, registry.create(key))));
            map.flush();
        });
    });
    assert!(seen.iter().all(|value| value.number().is_some()));
    assert!(map.stats().entries_waiting >= 100 && registry.alive() >= 2000);
    drop(seen);
    drop(pinned);
    map.flush();
    assert_eq!((registry.alive(), map.stats().entries_waiting), (1900, 0));
    assert_eq!(map.stats().tables_waiting, 0);
}

/// Who removes values while another thread uses them must wait for it.
#[test]
fn an_entry_without_a_grace_period_is_noticed() {
    use mistakes::Mistake::FreesWithoutGracePeriod;
    for (mistake, noticed) in [(None, false), (Some(FreesWithoutGracePeriod), true)] {
        let registry = Arc::new(Registry::default());
        let map = mistaken::<u64, Tracked, RandomState>(mistake);
        map.pin().insert(1, registry.create(1));
        let pinned = map.pin();
        let seen = pinned.get(&1).unwrap();
        std::thread::scope(|threads| {
            threads.spawn(|| ignore(map.pin().remove(&1))).join().unwrap()
        });
        assert_eq!(seen.number().is_none(), noticed, "{mistake:?}");
        drop(pinned);
    }
}

#[test]
fn an_empty_shard_gives_its_memory_back() {
    let map = tiny::<u64, [u64; 8], RandomState>();
    let count = if cfg!(miri) { 2000 } else { 20_000 };
    (0..count).for_each(|key| ignore(map.pin().insert(key, [key; 8])));
    let full = map.stats();
    assert!(full.bytes as u64 > count * 72);
    (0..count).for_each(|key| ignore(map.pin().remove(&key)));
    map.shrink_to_fit();
    let empty = map.stats();
    assert!(empty.bytes < 100 << 10, "{} bytes, {} when full", empty.bytes, full.bytes);
    map.pin().insert(1, [1; 8]);
    assert_eq!(map.pin().get(&1), Some(&[1; 8]));
}
