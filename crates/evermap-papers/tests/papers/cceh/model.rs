//! The default geometry, compared with a model, and its load factor.

use std::collections::HashMap;

use evermap_papers::cceh::Cceh;
use evermap_pm::sim::rng::Rng;

use super::*;

#[test]
fn the_standard_geometry_agrees_with_a_model() {
    const KEYS: u64 = 40_000;
    for locking in LOCKINGS {
        let pool = dram(2 << 20, 1 << 27);
        let index = Cceh::<u64, _>::create(pool.clone(), pool.root(0), config(locking)).unwrap();
        let (mut model, mut random) = (HashMap::new(), Rng::new(99));
        for round in 0..300_000 {
            let guard = pool.pin();
            let key = random.below(KEYS);
            // The index grows, shrinks and grows again, so that slots of removed and of moved
            // records are reused.
            let inserts = if round / 60_000 % 2 == 0 { 75 } else { 25 };
            if random.below(100) < inserts {
                let change = index.upsert(key, round, &guard).unwrap();
                assert_eq!(change.old, model.insert(key, round), "round {round}");
            } else {
                let change = index.remove(key, &guard).unwrap();
                assert_eq!(change.old, model.remove(&key), "round {round}");
            }
            let other = random.below(KEYS);
            assert_eq!(index.get(other, &guard).unwrap(), model.get(&other).copied());
        }
        let guard = pool.pin();
        let keys: Vec<u64> = (0..KEYS).collect();
        let mut out = vec![None; keys.len()];
        index.get_many(&keys, &mut out, &guard).unwrap();
        for (key, out) in keys.iter().zip(out) {
            assert_eq!(out, model.get(key).copied());
        }
        let stats = index.stats(&guard).unwrap();
        assert_eq!(stats.len, model.len() as u64);
        assert!(stats.splits > 20, "{stats:?}");
        assert_eq!(index.check(), Vec::<String>::new());
    }
}

/// The paper reports 35 to 43 percent, depending on the splits; its released code reaches 35 to 44.
#[test]
fn the_load_factor_is_that_of_the_paper() {
    let pool = dram(2 << 20, 1 << 28);
    let index = Cceh::<u64, _>::create(pool.clone(), pool.root(0), Config::default()).unwrap();
    let (mut least, mut most, mut sum, mut samples) = (1f64, 0f64, 0.0, 0);
    let mut key = 0;
    for size in (100_000..1_000_000).step_by(20_000) {
        while key < size {
            index.insert(key, key, &pool.pin()).unwrap();
            key += 1;
        }
        let load = index.stats(&pool.pin()).unwrap().load_factor();
        (least, most, sum, samples) = (least.min(load), most.max(load), sum + load, samples + 1);
    }
    let mean = sum / f64::from(samples);
    println!("load factor {least:.3} to {most:.3}, mean {mean:.3}");
    assert!(least > 0.33 && most < 0.46, "{least} to {most}");
    assert!((0.36..0.42).contains(&mean), "{mean}");
}
