//! Indexes made of segments, against a model.

use std::collections::HashMap;
use std::sync::Arc;

use evermap_index::{Index, Persistent};
use evermap_pm::Pool;
use evermap_pm::region::{Identity, RegionConfig};
use evermap_pm::sim::Sim;

pub(crate) fn pool(extent_size: u64, capacity: u64) -> Arc<Pool<Sim>> {
    let config = RegionConfig { extent_size, capacity, seed: Some(1) };
    let medium = Sim::in_memory(capacity).unwrap();
    Pool::create(medium, &config, Identity::default()).unwrap()
}

pub(crate) fn model<I: Index<u64> + Persistent<Sim, Config: Default>>(
    pool: Arc<Pool<Sim>>,
    universe: u64,
    rounds: u64,
) {
    let index = I::create(pool.clone(), pool.root(0), I::Config::default()).unwrap();
    let mut model: HashMap<u64, u64> = HashMap::new();
    let mut state = 99u64;
    let mut next = move |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    for round in 0..rounds {
        let guard = pool.pin();
        let key = next(universe);
        // The index grows, shrinks, and grows again, three times each.
        let inserts = if (round / (rounds / 6 + 1)).is_multiple_of(2) { 70 } else { 20 };
        if next(100) < inserts {
            let change = index.upsert(key, round, &guard).unwrap();
            assert_eq!(change.old, model.insert(key, round), "round {round}");
        } else {
            let change = index.remove(key, &guard).unwrap();
            assert_eq!(change.old, model.remove(&key), "round {round}");
        }
        let other = next(universe);
        assert_eq!(index.get(other, &guard).unwrap(), model.get(&other).copied());
        if round % (rounds / 20 + 1) == 0 {
            assert_eq!(index.check(), Vec::<String>::new());
        }
    }
    let guard = pool.pin();
    let mut seen = HashMap::new();
    index
        .for_each(&guard, &mut |key, word| {
            assert_eq!(seen.insert(key, word), None);
            true
        })
        .unwrap();
    assert_eq!(seen, model);
    let keys: Vec<u64> = (0..universe).collect();
    let mut out = vec![None; keys.len()];
    index.get_many(&keys, &mut out, &guard).unwrap();
    for (key, out) in keys.iter().zip(out) {
        assert_eq!(out, model.get(key).copied());
    }
    let stats = index.stats(&guard).unwrap();
    println!("{stats:?}");
    assert_eq!(stats.len, model.len() as u64);
    assert!(stats.splits > 0);
    assert_eq!(index.check(), Vec::<String>::new());
}
