//! The map from byte strings to byte strings, against a model and against crashes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use evermap_index::index::Visitor;
use evermap_index::testkit::{Coarse, beside_readers, tier};
use evermap_pm::medium::Note;
use evermap_pm::region::{Identity, OnSuspect};
use evermap_pm::sim::rng::Rng;
use evermap_pm::sim::{ImageConfig, Model, Sim, for_each_image};
use evermap_pm::{Medium, Pool};

use super::super::{Config, Geometry, Sizes, TinyMap, TinySizes, TrancheMap};
use super::{in_memory, pool};

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// Returns a length: of a pair, of a direct record, of an indirect one, now and then a long one.
fn length(random: &mut Rng, longest: u64) -> usize {
    let most = match random.below(12) {
        0..3 => return 8,
        3..8 => 40,
        8..11 => 300,
        _ => longest,
    };
    random.below(most + 1) as usize
}

/// Returns a key with this number, of any length.
fn key(number: u64) -> Vec<u8> {
    let random = &mut Rng::new(number);
    let mut key = number.to_le_bytes().to_vec();
    let len = length(random, 2000);
    // Different keys, although some are shorter than a number.
    match number % 5 {
        0 => key,
        1 => key[..3].to_vec(),
        _ => {
            key.resize(8 + len, number as u8);
            key
        }
    }
}

fn value(random: &mut Rng, longest: u64) -> Vec<u8> {
    let (len, byte) = (length(random, longest), random.draw() as u8);
    (0..len).map(|at| byte.wrapping_add(at as u8)).collect()
}

fn contents<G: Geometry>(map: &TrancheMap<Sim, G>) -> Contents {
    let mut contents = Contents::new();
    map.for_each(|key, value| {
        assert!(contents.insert(key.to_vec(), value.to_vec()).is_none(), "shown twice");
        true
    })
    .unwrap();
    contents
}

#[derive(Default)]
struct Blocks(Vec<u64>);

impl Visitor for Blocks {
    fn block(&mut self, offset: u64) {
        self.0.push(offset);
    }
    fn word(&mut self, _word: u64) {}
}

fn sweep<G: Geometry>(map: &TrancheMap<Sim, G>) {
    map.pool()
        .sweep(|mark| {
            let mut blocks = Blocks::default();
            map.visit(&mut blocks)?;
            blocks.0.into_iter().for_each(mark);
            Ok(())
        })
        .unwrap();
}

/// Checks that the allocated blocks are those that the map names, each once.
fn check_space<G: Geometry>(map: &TrancheMap<Sim, G>) {
    map.pool().epoch().drain();
    let mut blocks = Blocks::default();
    map.visit(&mut blocks).unwrap();
    let named: BTreeSet<u64> = blocks.0.iter().copied().collect();
    assert_eq!(named.len(), blocks.0.len(), "a block is named twice");
    assert_eq!(named, map.pool().allocated().into_iter().collect());
    assert_eq!(map.pool().heap_stats().faults, 0);
}

fn reopen<G: Geometry>(map: TrancheMap<Sim, G>, clean: bool) -> TrancheMap<Sim, G> {
    let sim = map.pool().medium().clone();
    if clean {
        map.pool().close().unwrap();
    }
    drop(map);
    let (pool, _) = Pool::open(sim, Identity::default(), OnSuspect::Refuse).unwrap();
    TrancheMap::open(pool.clone(), pool.root(0)).unwrap()
}

/// Runs random operations, compares all results and the contents, and reopens now and then.
fn against_a_model<G: Geometry>(keys: u64, steps: u64, longest: u64) {
    let pool = in_memory(256 << 20);
    let config = Config { initial_depth: 0 };
    let mut map = TrancheMap::<_, G>::create(pool.clone(), pool.root(0), config).unwrap();
    drop(pool);
    let (random, mut model) = (&mut Rng::new(G::TRANCHE_BYTES as u64), Contents::new());
    for step in 0..steps {
        // Growth, then as many removals as additions, then shrinkage, and again.
        let additions = [80, 50, 20, 80][(step * 8 / steps % 4) as usize];
        let key = key(random.below(keys));
        let change = random.below(100);
        if change < additions {
            let value = value(random, longest);
            if random.below(4) == 0 {
                let added = !model.contains_key(&key);
                assert_eq!(map.insert(&key, &value).unwrap(), added);
                model.entry(key).or_insert(value);
            } else {
                let present = model.insert(key.clone(), value.clone()).is_some();
                assert_eq!(map.upsert(&key, &value).unwrap(), present);
            }
        } else {
            assert_eq!(map.remove(&key).unwrap(), model.remove(&key).is_some());
        }
        let other = self::key(random.below(keys));
        assert_eq!(map.get(&other).unwrap(), model.get(&other).cloned(), "step {step}");
        let length = map.read(&other, <[u8]>::len).unwrap();
        assert_eq!(length, model.get(&other).map(Vec::len));
        assert_eq!(map.contains(&other).unwrap(), length.is_some());
        if step % (steps / 8) == steps / 16 {
            assert_eq!(map.verify(), Vec::<String>::new());
            check_space(&map);
            map = reopen(map, step % (steps / 4) == steps / 16);
            if !map.pool().is_swept() {
                sweep(&map);
            }
            check_space(&map);
        }
        if step % (steps / 20) == 0 {
            assert_eq!(contents(&map), model);
            assert_eq!(map.len().unwrap(), model.len() as u64);
        }
    }
    let stats = map.stats().unwrap();
    println!("{} bytes: {stats:?}", G::TRANCHE_BYTES);
    assert_eq!(map.verify(), Vec::<String>::new());
    assert_eq!(contents(&map), model);
    assert!(stats.segments > 4, "{stats:?}");
}

#[test]
fn mixed_lengths_against_a_model() {
    let scale = tier().choose(1, 8);
    against_a_model::<TinySizes>(600 * scale, 4000 * scale, 70_000);
    against_a_model::<Sizes<256, 16, 7>>(3000 * scale, 12_000 * scale, 3000);
    against_a_model::<Sizes<4096, 4, 2>>(1500 * scale, 8000 * scale, 70_000);
}

/// Threads replace values of all kinds by each other. Every value names its key and repeats one
/// byte, so a torn or foreign value would show.
#[test]
fn readers_see_whole_values() {
    const KEYS: u64 = 12;
    let pool = in_memory(64 << 20);
    let map = TinyMap::create(pool.clone(), pool.root(0), Config { initial_depth: 0 }).unwrap();
    let value = |number: u64, round: u64| {
        let len = [8, 20, 35, 300, 5000][((number + round) % 5) as usize];
        [vec![number as u8], vec![round as u8; len - 1]].concat()
    };
    let key = |number: u64| format!("key {number}").into_bytes();
    for number in 0..KEYS {
        map.upsert(&key(number), &value(number, 0)).unwrap();
    }
    let change = |round| {
        for number in 0..KEYS {
            assert!(map.upsert(&key(number), &value(number, round)).unwrap());
            let fresh = format!("other {}", round * KEYS + number).into_bytes();
            map.upsert(&fresh, &value(number, round)).unwrap();
            if round % 3 == 2 {
                map.remove(&format!("other {}", (round - 1) * KEYS + number).into_bytes()).unwrap();
            }
        }
    };
    beside_readers(tier().choose(60, 400), change, || {
        for number in 0..KEYS {
            let value = map.get(&key(number)).unwrap().expect("never removed");
            assert!(
                u64::from(value[0]) == number && value[1..].iter().all(|&byte| byte == value[1])
            );
        }
    });
    assert_eq!(map.verify(), Vec::<String>::new());
    check_space(&map);
}

/// An operation of a crash campaign.
#[derive(Clone, Debug)]
enum Call {
    Upsert(Vec<u8>, Vec<u8>),
    Remove(Vec<u8>),
}

fn calls(seed: u64, count: u64) -> Vec<Call> {
    let random = &mut Rng::new(seed);
    let call = |at| {
        let key = key(random.below(60));
        let removals = if at < count * 2 / 3 { 15 } else { 60 };
        if random.below(100) < removals {
            return Call::Remove(key);
        }
        Call::Upsert(key, value(random, 1000))
    };
    (0..count).map(call).collect()
}

fn carry_out(map: &TinyMap<Sim>, call: &Call) {
    match call {
        Call::Upsert(key, value) => map.upsert(key, value).map(drop).unwrap(),
        Call::Remove(key) => map.remove(key).map(drop).unwrap(),
    }
}

/// Checks an image: it has what was acknowledged, and the operation in progress wholly or not at
/// all. Returns what it has, and the medium.
fn check_image(image: &[u8], capacity: u64, allowed: &[&Contents]) -> (Contents, Sim) {
    let sim = Sim::from_image(image, capacity).unwrap();
    let (pool, _) = Pool::open(sim.clone(), Identity::default(), OnSuspect::Refuse).unwrap();
    let map = TinyMap::open(pool.clone(), pool.root(0)).unwrap();
    let found = contents(&map);
    assert!(allowed.contains(&&found), "{found:?} is none of {allowed:?}");
    assert_eq!(map.verify(), Vec::<String>::new());
    sweep(&map);
    check_space(&map);
    (found, sim)
}

/// Crashes a map of records of all kinds at every point, and some of the recoveries again.
fn crash_campaign(seed: u64, model: Model, count: u64, per_point: u64) -> u64 {
    const CAPACITY: u64 = 256 << 10;
    let sim = Sim::new(CAPACITY).unwrap();
    sim.pause();
    let pool = pool(sim.clone(), 1);
    let map = TinyMap::create(pool.clone(), pool.root(0), Config { initial_depth: 0 }).unwrap();
    let calls = calls(seed, count);
    let mut states = vec![Contents::new()];
    sim.checkpoint();
    for (number, call) in calls.iter().enumerate() {
        sim.note(Note::Begin(number as u64));
        carry_out(&map, call);
        sim.note(Note::End(number as u64));
        let mut next = states[number].clone();
        match call {
            Call::Upsert(key, value) => next.insert(key.clone(), value.clone()),
            Call::Remove(key) => next.remove(key),
        };
        states.push(next);
    }
    assert!(map.stats().unwrap().splits > 1);
    let config = ImageConfig { per_point, random: 2, stride: 17, ..ImageConfig::of(model) };
    let mut images = 0;
    for_each_image(&sim.trace(), &config, |image| {
        let done = (0..count).take_while(|&call| image.point.completed(call)).count();
        let allowed: Vec<&Contents> = states[done..].iter().take(2).collect();
        let (found, recovered) = check_image(image.bytes, CAPACITY, &allowed);
        images += 1;
        if images % 101 == 0 {
            // What was found once is found again, wherever the recovery is crashed.
            let config = ImageConfig { per_point: 2, random: 1, ..ImageConfig::of(model) };
            for_each_image(&recovered.trace(), &config, |image| {
                check_image(image.bytes, CAPACITY, &[&found]);
                ControlFlow::Continue(())
            });
        }
        ControlFlow::Continue(())
    });
    images
}

#[test]
fn every_crash_leaves_what_was_acknowledged() {
    let (seeds, count) = (tier().choose(1, 6), tier().choose(90, 150));
    for seed in 0..seeds {
        let images = crash_campaign(seed, Model::Adr, count, tier().choose(3, 12));
        println!("{images} images");
        assert!(images > 300, "{images}");
        let images = crash_campaign(100 + seed, Model::ProcessDeath, count, 2);
        assert!(images > 50, "{images}");
    }
}

/// A full pool refuses what needs space, changes nothing then, and has space again after removals.
#[test]
fn a_full_pool_refuses_and_recovers() {
    let pool = pool(Sim::in_memory(256 << 10).unwrap(), 1);
    let map = TinyMap::create(pool.clone(), pool.root(0), Config { initial_depth: 0 }).unwrap();
    let (mut model, random) = (Contents::new(), &mut Rng::new(3));
    for number in 0.. {
        let (key, value) = (key(number), value(random, 3000));
        match map.upsert(&key, &value) {
            Ok(_) => drop(model.insert(key, value)),
            Err(error) => {
                assert!(error.is_no_space(), "{error}");
                break;
            }
        }
    }
    assert!(model.len() > 100, "{}", model.len());
    assert_eq!(contents(&map), model);
    check_space(&map);
    for key in model.keys() {
        assert!(map.remove(key).unwrap());
        map.pool().epoch().drain();
    }
    assert!(map.is_empty().unwrap());
    let half: Contents = model.into_iter().step_by(2).collect();
    for (key, value) in &half {
        map.upsert(key, value).unwrap();
    }
    assert_eq!(contents(&map), half);
    assert_eq!(map.verify(), Vec::<String>::new());
    check_space(&map);
}

/// The root cell tells a map from an index, and from a map with other tranches.
#[test]
fn a_map_is_recognised() {
    let pool: Arc<Pool<Sim>> = in_memory(16 << 20);
    TinyMap::create(pool.clone(), pool.root(0), Config::default()).unwrap();
    assert!(TinyMap::is_at(&pool, pool.root(0)));
    assert!(!TrancheMap::<Sim>::is_at(&pool, pool.root(0)));
    use evermap_index::Persistent;
    assert!(!super::super::Tiny::<Coarse, Sim>::is_at(&pool, pool.root(0)));
    assert!(TrancheMap::<Sim>::open(pool.clone(), pool.root(0)).is_err());
    let config = Config { initial_depth: 41 };
    assert!(TinyMap::create(pool.clone(), pool.root(1), config).is_err());
}
