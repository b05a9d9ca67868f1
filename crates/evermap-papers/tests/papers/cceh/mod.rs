//! Tests of CCEH: a comparison with a model, mistakes of other implementations, and crashes while
//! two threads run.

mod crashes;
mod hashes;
mod model;
mod schedules;
mod staged;

use std::sync::Arc;

use evermap_index::testkit::Plain;
use evermap_index::{Index, Key, Persistent};
use evermap_papers::cceh::{Config, Locking, Recovery, Tiny};
use evermap_pm::region::{Identity, OnSuspect, RegionConfig};
use evermap_pm::sim::Sim;
use evermap_pm::{Medium, Pool};

/// Both kinds of locking.
const LOCKINGS: [Locking; 2] = [Locking::Optimistic, Locking::Pessimistic];

/// The configuration of a small region.
fn region(extent_size: u64, capacity: u64) -> RegionConfig {
    RegionConfig { extent_size, capacity, seed: Some(1) }
}

/// Creates a pool in ordinary memory.
fn dram(extent_size: u64, capacity: u64) -> Arc<Pool<Sim>> {
    let medium = Sim::in_memory(capacity).unwrap();
    Pool::create(medium, &region(extent_size, capacity), Identity::default()).unwrap()
}

/// Opens the pool in a medium.
fn reopen<M: Medium>(medium: M) -> Arc<Pool<M>> {
    Pool::open(medium, Identity::default(), OnSuspect::Refuse).unwrap().0
}

fn config(locking: Locking) -> Config {
    Config { locking, ..Config::default() }
}

/// A tiny index whose keys are their own hashes: the top bits select the segment, the lowest two
/// the bucket where probing begins. A window holds eight records.
type Chosen<M> = Tiny<Plain, M>;

/// Returns a key of the first bucket of the segment that serves the hashes whose first `bits` bits
/// are `top`.
fn key(top: u64, bits: u32, number: u64) -> u64 {
    assert!(top < 1 << bits && number < 1 << 32);
    top << (64 - bits) | number << 2
}

/// Inserts keys, each with its position in the list as its word.
fn put<K: for<'a> Key<Ref<'a> = u64>>(
    index: &impl Index<K>,
    pool: &Pool<impl Medium>,
    keys: &[u64],
) {
    for (word, &key) in keys.iter().enumerate() {
        assert!(index.insert(key, word as u64, &pool.pin()).unwrap().inserted(), "key {key:#x}");
    }
}

/// Asserts that the structure is sound, and that exactly the reachable blocks are allocated.
fn assert_sound<M: Medium>(index: &Chosen<M>, pool: &Pool<M>) {
    assert_eq!(index.check(), Vec::<String>::new());
    let mut reachable = Vec::new();
    if !pool.is_swept() {
        pool.sweep(|mark| index.visit(&mut Blocks(mark))).unwrap();
    }
    index.visit(&mut Blocks(&mut |block| reachable.push(block))).unwrap();
    pool.epoch().drain();
    reachable.sort_unstable();
    assert_eq!(reachable, pool.allocated(), "reachable, and allocated");
    assert_eq!(pool.heap_stats().faults, 0);
}

/// Visits the blocks of an index whose words name no records.
struct Blocks<'a>(&'a mut dyn FnMut(u64));

impl evermap_index::Visitor for Blocks<'_> {
    fn block(&mut self, offset: u64) {
        (self.0)(offset);
    }

    fn word(&mut self, _word: u64) {}
}
