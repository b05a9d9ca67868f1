//! Every operation against a map of the standard library.

use std::collections::HashMap;

use super::*;

/// Executes a random operation on both maps, and compares the results.
fn operate<S: BuildHasher>(
    map: &VolatileMap<u64, u64, S>,
    model: &mut HashMap<u64, u64>,
    random: &mut Rng,
    keys: u64,
    grow: u64,
) {
    let pinned = map.pin();
    let (key, value) = (random.below(keys), random.below(1 << 40));
    let present = model.get(&key).copied();
    assert_eq!(pinned.get(&key).copied(), present);
    assert_eq!(pinned.contains_key(&key), present.is_some());
    assert_eq!(pinned.get_key_value(&key), present.as_ref().map(|value| (&key, value)));
    if random.below(100) < grow {
        match random.below(6) {
            0 => assert_eq!(pinned.insert(key, value).copied(), model.insert(key, value)),
            1 => match pinned.try_insert(key, value) {
                Ok(&new) => assert_eq!((new, model.insert(key, value)), (value, None)),
                Err(Occupied { current, rejected }) => {
                    assert_eq!((Some(*current), rejected), (present, value));
                }
            },
            2 => {
                assert_eq!(pinned.get_or_insert(key, value), model.entry(key).or_insert(value));
            }
            3 => assert_eq!(
                pinned.get_or_insert_with(key, || value),
                model.entry(key).or_insert_with(|| value)
            ),
            4 => {
                let new = present.map_or(value, |old| old.wrapping_mul(3));
                model.insert(key, new);
                assert_eq!(*pinned.update_or_insert(key, |old| old.wrapping_mul(3), value), new);
            }
            _ => {
                let computed = pinned.compute(key, |current| match current {
                    Some((_, &old)) => Operation::<_, ()>::Insert(old ^ value),
                    None => Operation::Insert(value),
                });
                let new = present.map_or(value, |old| old ^ value);
                match (computed, present) {
                    (Compute::Inserted(_, &found), None) => assert_eq!(found, new),
                    (Compute::Updated { old, new: (_, &found) }, Some(before)) => {
                        assert_eq!((*old.1, found), (before, new));
                    }
                    other => panic!("{other:?}"),
                }
                model.insert(key, new);
            }
        }
    } else {
        match random.below(5) {
            0 => assert_eq!(pinned.remove(&key).copied(), model.remove(&key)),
            1 => assert_eq!(
                pinned.remove_entry(&key).map(|(&key, &value)| (key, value)),
                model.remove_entry(&key)
            ),
            2 => {
                let even = |_: &u64, value: &u64| value.is_multiple_of(2);
                match (pinned.remove_if(&key, even), present) {
                    (Ok(None), None) => {}
                    (Ok(Some((_, &value))), Some(old)) if old.is_multiple_of(2) => {
                        assert_eq!((value, model.remove(&key)), (old, Some(old)));
                    }
                    (Err((_, &value)), Some(old)) if !old.is_multiple_of(2) => {
                        assert_eq!(value, old)
                    }
                    other => panic!("{other:?}"),
                }
            }
            3 => {
                let new = present.map(|old| old.wrapping_add(1));
                assert_eq!(pinned.update(key, |old| old.wrapping_add(1)).copied(), new);
                new.map(|new| model.insert(key, new));
            }
            _ => {
                let computed = pinned.compute(key, |current| match current {
                    Some((_, old)) if old.is_multiple_of(2) => Operation::Abort(*old),
                    _ => Operation::Remove,
                });
                match (computed, present) {
                    (Compute::Aborted(value), Some(old)) => assert_eq!(value, old),
                    (Compute::Removed(_, &value), Some(old)) => {
                        assert_eq!((value, model.remove(&key)), (old, Some(old)));
                    }
                    (Compute::Absent, None) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

fn assert_equal<S: BuildHasher>(map: &VolatileMap<u64, u64, S>, model: &HashMap<u64, u64>) {
    assert_eq!(map.len(), model.len());
    assert_eq!(map.is_empty(), model.is_empty());
    let mut shown: Vec<(u64, u64)> = map.pin().iter().map(|(&key, &value)| (key, value)).collect();
    let mut expected: Vec<(u64, u64)> = model.iter().map(|(&key, &value)| (key, value)).collect();
    shown.sort_unstable();
    expected.sort_unstable();
    assert_eq!(shown, expected);
}

/// Returns the numbers of tables that were replaced.
fn compare<S: BuildHasher + Default>(seed: u64, keys: u64, rounds: usize) -> usize {
    let (map, mut random) = (tiny::<u64, u64, S>(), Rng::new(seed));
    let mut model = HashMap::new();
    for round in 0..rounds {
        // Phases of growth and of shrinkage.
        let grow = if (round / (rounds / 6)).is_multiple_of(2) { 80 } else { 10 };
        operate(&map, &mut model, &mut random, keys, grow);
        match random.below(rounds as u64 / 20) {
            0 => assert_equal(&map, &model),
            1 => map.reserve(random.below(300) as usize),
            2 => map.shrink_to_fit(),
            3 => {
                map.pin().retain(|key, _| key % 3 != 0);
                model.retain(|key, _| key % 3 != 0);
            }
            4 if random.below(4) == 0 => {
                map.pin().clear();
                model.clear();
            }
            5 => map.flush(),
            _ => {}
        }
    }
    assert_equal(&map, &model);
    let resizes = map.stats().resizes;
    let mut left: Vec<(u64, u64)> = map.into_iter().collect();
    let mut expected: Vec<(u64, u64)> = model.into_iter().collect();
    left.sort_unstable();
    expected.sort_unstable();
    assert_eq!(left, expected);
    resizes
}

#[test]
fn every_operation_equals_that_of_the_standard_library() {
    let rounds = if cfg!(miri) { 600 } else { tier().choose(20_000, 200_000) };
    for seed in 0..3 {
        for keys in [20, 100, 1000] {
            let resizes = compare::<BuildAttacked>(seed, keys, rounds);
            assert!(resizes > 5 || keys < 100 || cfg!(miri), "{resizes} resizes of {keys} keys");
        }
    }
}

#[test]
fn weak_hashers_only_cost_time() {
    let rounds = if cfg!(miri) { 300 } else { 6000 };
    for seed in 0..3 {
        compare::<BuildWeak<0>>(seed, 200, rounds);
        compare::<BuildWeak<1>>(seed, 200, rounds);
        compare::<BuildWeak<5>>(seed, 1000, rounds);
        compare::<BuildWeak<63>>(seed, 1000, rounds);
        compare::<RandomState>(seed, 1000, rounds);
    }
}

/// Keys of which an attacker knows that they collide are distributed by a new hash.
#[test]
fn keys_that_collide_are_placed_anew() {
    let map = tiny::<u64, u64, BuildAttacked>();
    let keys = || (0..3000_u64).map(|number| number * 1024);
    let mut model = HashMap::new();
    for key in keys() {
        map.pin().insert(key, !key);
        model.insert(key, !key);
        assert!(
            keys()
                .take_while(|&other| other <= key)
                .step_by(97)
                .all(|key| map.pin().contains_key(&key))
        );
    }
    assert_equal(&map, &model);
    let longest = map.longest_chain();
    assert!(longest <= 64, "a chain of {longest} entries");
    // A hasher for which nothing helps is not tried again and again.
    let map = tiny::<u64, u64, BuildWeak<0>>();
    (0..3000).for_each(|key| ignore(map.pin().insert(key, key)));
    assert!(map.stats().resizes < 30, "{} resizes", map.stats().resizes);
    assert_eq!((map.len(), map.pin().get(&2999)), (3000, Some(&2999)));
}
