//! Threads under the simulated scheduler: every history is linearizable for each key, walks show
//! what stays, and the mistakes of this kind of table are noticed.

use std::collections::{BTreeMap, HashSet};

use evermap_index::Change;
use evermap_index::testkit::call::{Call, Verb};
use evermap_index::testkit::linearizability::{Clock, Event, check};

use super::mistakes::Mistake;
use super::*;

type Map = VolatileMap<u64, u64, BuildAttacked>;

type Body<'env, R> = Box<dyn FnOnce() -> R + Send + 'env>;

/// Calls one operation, and returns what the key was bound to before and after it.
fn call(map: &Map, Call { key, verb }: Call) -> Change {
    let pinned = map.pin();
    let old = |found: Option<&u64>| found.copied();
    match verb {
        Verb::Get => {
            let word = old(pinned.get(&key));
            Change { old: word, new: word }
        }
        Verb::Insert(word) => match pinned.try_insert(key, word) {
            Ok(&new) => Change { old: None, new: Some(new) },
            Err(occupied) => Change { old: Some(*occupied.current), new: Some(*occupied.current) },
        },
        Verb::Upsert(word) => Change { old: old(pinned.insert(key, word)), new: Some(word) },
        Verb::Remove => Change { old: old(pinned.remove(&key)), new: None },
        Verb::RemoveIf(expected) => match pinned.remove_if(&key, |_, &word| word == expected) {
            Ok(removed) => Change { old: removed.map(|(_, &word)| word), new: None },
            Err((_, &word)) => Change { old: Some(word), new: Some(word) },
        },
        Verb::Update(word) => compute(&pinned, key, |_| Operation::Insert(word)),
        Verb::CompareExchange { expected, new } => compute(&pinned, key, |current| {
            if current == expected { Operation::Insert(new) } else { Operation::Abort(current) }
        }),
        Verb::Mutate { .. } => unreachable!("not used here"),
    }
}

/// Calls `compute` for a key that is left alone if it is absent.
fn compute(
    pinned: &Pinned<'_, u64, u64, BuildAttacked>,
    key: u64,
    decide: impl Fn(u64) -> Operation<u64, u64>,
) -> Change {
    let computed = pinned.compute(key, |current| match current {
        Some((_, &word)) => match decide(word) {
            Operation::Abort(word) => Operation::Abort(Some(word)),
            Operation::Insert(word) => Operation::Insert(word),
            Operation::Remove => Operation::Remove,
        },
        None => Operation::Abort(None),
    });
    match computed {
        Compute::Updated { old: (_, &old), new: (_, &new) } => {
            Change { old: Some(old), new: Some(new) }
        }
        Compute::Aborted(word) => Change { old: word, new: word },
        other => panic!("{other:?}"),
    }
}

/// What the threads do besides working on a few hot keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pressure {
    /// One inserts other keys, so that the table grows.
    Grow,
    /// One removes other keys, so that it shrinks.
    Shrink,
    /// One inserts keys that collide, so that the table is seeded anew.
    Reseed,
}

const PRESSURES: [Pressure; 3] = [Pressure::Grow, Pressure::Shrink, Pressure::Reseed];

/// Creates a map that is about to be resized, with a few hot keys.
fn prepare(pressure: Pressure, mistake: Option<Mistake>) -> (Map, Vec<u64>, Vec<u64>) {
    let map: Map = mistaken(mistake);
    let (hot, others): (Vec<u64>, Vec<u64>) = match pressure {
        Pressure::Grow => ((0..6).collect(), (100..135).collect()),
        Pressure::Shrink => ((0..6).collect(), (100..190).collect()),
        Pressure::Reseed => {
            ((0..6).map(|key| key * 1024).collect(), (10..95).map(|key| key * 1024).collect())
        }
    };
    let before = match pressure {
        Pressure::Grow => 0..0,
        Pressure::Shrink => 0..others.len(),
        Pressure::Reseed => 0..60,
    };
    others[before].iter().for_each(|&key| ignore(map.pin().insert(key, key)));
    map.finish_resizes();
    let rest = match pressure {
        Pressure::Reseed => others[60..].to_vec(),
        _ => others,
    };
    (map, hot, rest)
}

fn press(map: &Map, pressure: Pressure, others: &[u64]) {
    for &key in others {
        match pressure {
            Pressure::Shrink => ignore(map.pin().remove(&key)),
            Pressure::Grow | Pressure::Reseed => ignore(map.pin().insert(key, key)),
        }
    }
}

/// Runs threads that record what they see of hot keys, beside one that makes the table change.
/// Returns the violation, if there is one.
fn history(seed: u64, pressure: Pressure, mistake: Option<Mistake>) -> Result<(), String> {
    let (map, hot, others) = prepare(pressure, mistake);
    let clock = Clock::default();
    let mut initial = BTreeMap::new();
    for &key in &hot[..3] {
        map.pin().insert(key, key);
        initial.insert(key, key);
    }
    let resizes = map.stats().resizes;
    let work = |thread: usize| {
        let (map, clock, hot) = (&map, &clock, &hot);
        let body = move || {
            let mut random = Rng::new(seed * 7 + thread as u64);
            let mut events = Vec::new();
            let mut words = 0;
            for _ in 0..25 {
                let key = *random.pick(hot);
                let mut word = |_: &mut Rng| {
                    words += 1;
                    (thread as u64 + 1) << 32 | words
                };
                let verb = match Verb::random(&mut random, None, 50, &mut word) {
                    Verb::Mutate { .. } => Verb::Get,
                    verb => verb,
                };
                let call_made = Call { key, verb };
                let begin = clock.tick();
                let answer = Some(call(map, call_made));
                events.push(Event { thread, call: call_made, begin, end: clock.tick(), answer });
            }
            events
        };
        Box::new(body) as Body<'_, Vec<Event>>
    };
    let pressing = || {
        press(&map, pressure, &others);
        Vec::new()
    };
    let bodies = vec![work(0), work(1), work(2), Box::new(pressing)];
    let mut events: Vec<Event> = in_turns(seed, bodies).concat();
    for &key in &hot {
        let word = map.pin().get(&key).copied();
        let (begin, end) = (clock.tick(), clock.tick());
        let answer = Some(Change { old: word, new: word });
        events.push(Event { thread: 9, call: Call { key, verb: Verb::Get }, begin, end, answer });
    }
    assert!(map.stats().resizes > resizes, "{pressure:?} did not resize");
    let found = map.audit();
    if !found.is_empty() {
        return Err(found.join("; "));
    }
    check(&events, &initial).map_err(|violation| violation.to_string())
}

fn histories(mistake: Option<Mistake>, seeds: u64) -> impl Iterator<Item = String> {
    runs(seeds).filter_map(move |(pressure, seed)| {
        let violation = history(seed, pressure, mistake).err()?;
        Some(format!("{pressure:?}, seed {seed}: {violation}"))
    })
}

/// Returns this number of seeds for each pressure.
fn runs(seeds: u64) -> impl Iterator<Item = (Pressure, u64)> {
    PRESSURES.iter().flat_map(move |&pressure| (0..seeds).map(move |seed| (pressure, seed)))
}

/// Readers look up keys that stay, while the table is replaced. Returns the number of misses.
fn misses(seed: u64, pressure: Pressure, mistake: Option<Mistake>) -> usize {
    let (map, hot, others) = prepare(pressure, mistake);
    hot.iter().for_each(|&key| ignore(map.pin().insert(key, key)));
    let read = || {
        let (map, hot) = (&map, &hot);
        let body = move || {
            let mut missed = 0;
            for _ in 0..12 {
                missed += hot.iter().filter(|&key| map.pin().get(key) != Some(key)).count();
            }
            missed
        };
        Box::new(body) as Body<'_, usize>
    };
    let pressing = || {
        press(&map, pressure, &others);
        0
    };
    in_turns(seed, vec![read(), read(), Box::new(pressing)]).into_iter().sum()
}

fn all_misses(mistake: Option<Mistake>, seeds: u64) -> impl Iterator<Item = usize> {
    runs(seeds).map(move |(pressure, seed)| misses(seed, pressure, mistake))
}

/// Walks over the map while the table is replaced, and returns how often keys that stay were not
/// shown exactly once, or others more than once.
fn wrong_walks(seed: u64, pressure: Pressure, mistake: Option<Mistake>) -> usize {
    let (map, hot, others) = prepare(pressure, mistake);
    hot.iter().for_each(|&key| ignore(map.pin().insert(key, key)));
    let walk = || {
        let (map, hot) = (&map, &hot);
        let body = move || {
            let mut wrong = 0;
            for _ in 0..4 {
                let pinned = map.pin();
                let shown: Vec<u64> = pinned.keys().copied().collect();
                let different: HashSet<u64> = shown.iter().copied().collect();
                let omitted = hot.iter().filter(|key| !different.contains(key)).count();
                wrong += omitted + shown.len() - different.len();
            }
            wrong
        };
        Box::new(body) as Body<'_, usize>
    };
    let pressing = || {
        press(&map, pressure, &others);
        0
    };
    // Removes and adds a key that does not stay.
    let flicker = || {
        for round in 0..20 {
            ignore(map.pin().insert(7777, round));
            map.pin().remove(&7777);
        }
        0
    };
    let bodies: Vec<Body<'_, usize>> = vec![walk(), walk(), Box::new(pressing), Box::new(flicker)];
    in_turns(seed, bodies).into_iter().sum()
}

fn all_wrong_walks(mistake: Option<Mistake>, seeds: u64) -> impl Iterator<Item = usize> {
    runs(seeds).map(move |(pressure, seed)| wrong_walks(seed, pressure, mistake))
}

fn seeds() -> u64 {
    if cfg!(miri) { 2 } else { tier().choose(20, 2000) }
}

#[test]
fn histories_are_linearizable_while_the_table_is_replaced() {
    assert_eq!(histories(None, seeds()).collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn keys_that_stay_are_found_while_the_table_is_replaced() {
    assert_eq!(all_misses(None, seeds()).sum::<usize>(), 0);
}

#[test]
fn walks_show_keys_that_stay_once_while_the_table_is_replaced() {
    assert_eq!(all_wrong_walks(None, seeds()).sum::<usize>(), 0);
}

#[cfg(not(miri))]
#[test]
fn mistakes_in_lookups_are_noticed() {
    use Mistake::*;
    let lookups =
        [LoadsTheTableTwice, ReadsForwardedBuckets, ForwardsBeforeCopying, ReplacesInTwoSteps];
    for mistake in lookups {
        let missed = all_misses(Some(mistake), 60).any(|misses| misses > 0);
        assert!(missed || histories(Some(mistake), 60).next().is_some(), "{mistake:?}");
    }
}

/// Walks after every insertion, at every stage of a resize. Returns the number of wrong walks.
fn wrong_walks_between_writes(mistake: Option<Mistake>) -> usize {
    let map: Map = mistaken(mistake);
    let insert_and_walk = |key: &u64| {
        map.pin().insert(*key, *key);
        let shown: HashSet<u64> = map.pin().keys().copied().collect();
        let omitted = (0..=*key).filter(|key| !shown.contains(key)).count();
        omitted > 0 || shown.len() as u64 != key + 1
    };
    (0..300).filter(insert_and_walk).count()
}

#[test]
fn walks_show_everything_at_every_stage_of_a_resize() {
    assert_eq!(wrong_walks_between_writes(None), 0);
    assert!(wrong_walks_between_writes(Some(Mistake::ShowsForwardedBuckets)) > 0);
}

#[cfg(not(miri))]
#[test]
fn mistakes_in_walks_are_noticed() {
    use Mistake::*;
    for mistake in [WalksInTwoOrders, ShowsBucketsFromTheirBeginning] {
        assert!(all_wrong_walks(Some(mistake), 200).any(|wrong| wrong > 0), "{mistake:?}");
    }
}

/// Begins walks in a small table, and continues them where a larger one is becoming smaller again:
/// at every stage of that. Returns how often keys that stay were not shown exactly once.
fn wrong_walks_where_buckets_become_one(mistake: Option<Mistake>) -> usize {
    const STAY: u64 = 30;
    let wrong_walk = |removals: u64| {
        let map: Map = mistaken(mistake);
        let pinned = map.pin();
        (0..STAY).for_each(|key| ignore(pinned.insert(key, key)));
        let mut walk = pinned.keys().copied();
        let mut shown: Vec<u64> = walk.by_ref().take(1).collect();
        (STAY..1000).for_each(|key| ignore(pinned.insert(key, key)));
        (STAY..STAY + removals).for_each(|key| ignore(pinned.remove(&key)));
        shown.extend(walk);
        (0..STAY).filter(|stays| shown.iter().filter(|key| *key == stays).count() != 1).count()
    };
    (600..900).map(wrong_walk).sum()
}

/// In a range of a walk that has several buckets, those that become one are moved together.
#[test]
fn walks_show_everything_where_buckets_become_one() {
    assert_eq!(wrong_walks_where_buckets_become_one(None), 0);
    assert!(wrong_walks_where_buckets_become_one(Some(Mistake::ForwardsHalfOfAPair)) > 0);
}
