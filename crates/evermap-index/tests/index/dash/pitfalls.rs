//! Mistakes of other implementations of Dash, with one test for each.
//!
//! The numbers are those of `docs/design/dash.md`, which also lists the pitfalls that cannot occur
//! here.

use std::collections::BTreeSet;
use std::sync::Arc;

use evermap_index::hash::dash::{Config, DashEh, Geometry, Paper, Sizes, Tiny};
use evermap_index::testkit::{Crowded, beside_readers};
use evermap_index::{Index, Persistent, Visitor};
use evermap_pm::medium::Note;
use evermap_pm::region::{Identity, OnSuspect, RegionConfig};
use evermap_pm::sim::Sim;
use evermap_pm::{Medium, Pool};

fn config(capacity: u64) -> RegionConfig {
    RegionConfig { extent_size: 4096, capacity, seed: Some(1) }
}

fn dram(capacity: u64) -> Arc<Pool<Sim>> {
    let medium = Sim::in_memory(capacity).unwrap();
    Pool::create(medium, &config(capacity), Identity::default()).unwrap()
}

fn reopen(sim: &Sim) -> Arc<Pool<Sim>> {
    Pool::open(sim.clone(), Identity::default(), OnSuspect::Refuse).unwrap().0
}

/// P5: the words that record whether the last shutdown was clean, and which opener this is, must be
/// durable before anything is served. Otherwise a second crash could bring back the state before
/// the first.
#[test]
fn p5_the_generation_is_durable_before_anything_is_served() {
    let sim = Sim::new(128 << 10).unwrap();
    let pool = Pool::create(sim.clone(), &config(128 << 10), Identity::default()).unwrap();
    Tiny::<u64, _>::create(pool.clone(), pool.root(0), Config::default()).unwrap();
    pool.close().unwrap();
    drop(pool);
    let pool = reopen(&sim);
    let generation = pool.generation();
    // Something is served.
    sim.note(Note::Begin(0));
    sim.note(Note::End(0));
    drop(pool);
    let trace = sim.trace();
    let mut images = 0;
    let visit = |image: &evermap_pm::sim::Image<'_>| {
        if image.point.completed(0) {
            let survivor = Sim::from_image(image.bytes, 128 << 10).unwrap();
            let (again, opened) =
                Pool::open(survivor, Identity::default(), OnSuspect::Refuse).unwrap();
            assert!(again.generation() > generation, "a generation was used twice");
            assert!(!opened.clean, "an unclean shutdown was taken for a clean one");
            images += 1;
        }
        std::ops::ControlFlow::Continue(())
    };
    evermap_pm::sim::for_each_image(&trace, &evermap_pm::sim::ImageConfig::default(), visit);
    assert!(images > 0);
}

/// P6: a lookup that misses while records move must start again. Keys that are never removed must
/// always be found while changes of other keys displace records, and split and merge segments.
#[test]
fn p6_no_lookup_misses_a_record_that_moves() {
    no_lookup_misses::<Sizes<4, 2, 4>>();
    no_lookup_misses::<Paper<4, 2, 4>>();
}

fn no_lookup_misses<G: Geometry>() {
    const KEPT: u64 = 64;
    // Much more than is needed, because a reader that waits for a processor delays the reuse of
    // segments.
    let pool = dram(1 << 28);
    let (root, config) = (pool.root(0), Config::default());
    let index = DashEh::<u64, _, G>::create(pool.clone(), root, config).unwrap();
    for key in 0..KEPT {
        index.insert(key, key + 1, &pool.pin()).unwrap();
    }
    let change = |round| {
        for key in 0..600 {
            index.insert(KEPT + key, round, &pool.pin()).unwrap();
        }
        for key in 0..600 {
            index.remove(KEPT + key, &pool.pin()).unwrap();
        }
    };
    beside_readers(60, change, || {
        for key in 0..KEPT {
            let found = index.get(key, &pool.pin()).unwrap();
            assert_eq!(found, Some(key + 1), "key {key} was present all the time");
        }
    });
    let stats = index.stats(&pool.pin()).unwrap();
    assert!(stats.splits > 0 && stats.merges > 0, "{stats:?}");
}

/// P8: a segment is recovered once, by the first thread that accesses it, while other threads use
/// it and the directory doubles.
#[test]
fn p8_segments_recover_while_the_directory_doubles() {
    let sim = Sim::new(1 << 20).unwrap();
    sim.pause();
    let pool = Pool::create(sim.clone(), &config(1 << 20), Identity::default()).unwrap();
    let index = Tiny::<u64, _>::create(pool.clone(), pool.root(0), Config::default()).unwrap();
    for key in 0..300 {
        index.insert(key, key, &pool.pin()).unwrap();
    }
    let segments = index.stats(&pool.pin()).unwrap().segments;
    drop((index, pool));
    let pool = reopen(&sim);
    let index = Tiny::<u64, _>::open(pool.clone(), pool.root(0)).unwrap();
    std::thread::scope(|threads| {
        for part in 0..3u64 {
            let (index, pool) = (&index, &pool);
            threads.spawn(move || {
                for key in 0..300 {
                    assert_eq!(index.get(key, &pool.pin()).unwrap(), Some(key));
                    index.insert(1000 * (part + 1) + key, key, &pool.pin()).unwrap();
                }
            });
        }
    });
    let stats = index.stats(&pool.pin()).unwrap();
    assert_eq!(stats.len, 1200);
    assert!(stats.recovered <= segments, "{stats:?} of {segments} segments");
    assert_eq!(index.check(), Vec::<String>::new());
}

/// P11: blocks that were retired and not yet freed at a crash must not leak.
#[test]
fn p11_retired_blocks_do_not_leak() {
    struct Blocks(BTreeSet<u64>);
    impl Visitor for Blocks {
        fn block(&mut self, offset: u64) {
            self.0.insert(offset);
        }
        fn word(&mut self, _word: u64) {}
    }
    let sim = Sim::new(512 << 10).unwrap();
    sim.pause();
    let pool = Pool::create(sim.clone(), &config(512 << 10), Identity::default()).unwrap();
    let index = Tiny::<u64, _>::create(pool.clone(), pool.root(0), Config::default()).unwrap();
    // A guard that is held until the "crash": directories and merged segments are retired, and not
    // freed before that.
    let guard = pool.pin();
    for key in 0..400 {
        index.insert(key, key, &pool.pin()).unwrap();
    }
    for key in 0..400 {
        index.remove(key, &pool.pin()).unwrap();
    }
    assert!(pool.epoch_stats().bytes_waiting > 0);
    drop(guard);
    drop((index, pool));
    let pool = reopen(&sim);
    let index = Tiny::<u64, _>::open(pool.clone(), pool.root(0)).unwrap();
    let mut reachable = Blocks(BTreeSet::new());
    pool.sweep(|mark| {
        index.visit(&mut reachable)?;
        reachable.0.iter().for_each(|&block| mark(block));
        Ok(())
    })
    .unwrap();
    assert_eq!(pool.allocated(), reachable.0.into_iter().collect::<Vec<_>>());
}

/// P22: keys with equal hashes fill a segment that no split can help. They must neither double the
/// directory without end nor be refused.
#[test]
fn p22_equal_hashes_go_to_a_chain() {
    let pool = dram(1 << 24);
    let index =
        DashEh::<Crowded, _>::create(pool.clone(), pool.root(0), Config::default()).unwrap();
    // 65,536 keys share each hash; 3,000 of them overfill a segment three times.
    for key in 0..3000 {
        assert!(index.insert(key, key, &pool.pin()).unwrap().inserted());
    }
    let stats = index.stats(&pool.pin()).unwrap();
    assert!(stats.depth <= 2, "{stats:?}");
    for key in 0..3000 {
        assert_eq!(index.get(key, &pool.pin()).unwrap(), Some(key));
    }
    assert_eq!(index.check(), Vec::<String>::new());
    for key in 0..3000 {
        assert!(index.remove(key, &pool.pin()).unwrap().removed());
    }
    assert_eq!(index.stats(&pool.pin()).unwrap().len, 0);
}

/// P22, with an attacker: keys chosen so that every split separates a few of them from the rest
/// would make the directory exponential in the number of keys.
#[test]
fn p22_a_directory_stays_in_proportion_to_what_it_names() {
    let pool = dram(1 << 24);
    let index = Tiny::<Crowded, _>::create(pool.clone(), pool.root(0), Config::default()).unwrap();
    let mut keys = 0u64;
    for depth in 0..40 {
        // Hashes that agree in their first `depth` bits and then differ.
        for low in 0..12u64 {
            let key = (1u64 << (63 - depth)) | low << 16 | low;
            keys += u64::from(index.insert(key, 1, &pool.pin()).unwrap().inserted());
        }
    }
    let stats = index.stats(&pool.pin()).unwrap();
    assert_eq!(stats.len, keys);
    assert!(8 << stats.depth <= (256).max(stats.pm_bytes / 2), "{stats:?}");
    assert_eq!(index.check(), Vec::<String>::new());
}
