//! Tests of P-CLHT alone: mistakes of other implementations, with one test for each, and what the
//! conformance kit does not cover.
//!
//! Numbers beginning with PC are those of `docs/design/clht.md`, which also lists the pitfalls that
//! cannot occur here.

mod gaps;
mod lookups;
mod pitfalls;
mod resize;
mod watched;

use std::collections::BTreeSet;
use std::sync::Arc;

use evermap_index::hash::clht::Config;
use evermap_index::{Clht, Index, Key, Persistent, Visitor};
use evermap_pm::region::{Identity, OnSuspect, RegionConfig};
use evermap_pm::sim::Sim;
use evermap_pm::{Medium, Pool};

/// Root slot of the index.
const ROOT: usize = 0;

/// Creates a table of four home buckets in a new pool.
fn tiny<K: Key, M: Medium>(medium: M) -> Clht<K, M> {
    let config = RegionConfig { extent_size: 4096, capacity: medium.capacity(), seed: Some(1) };
    let pool = Pool::create(medium, &config, Identity::default()).unwrap();
    Clht::create(pool.clone(), pool.root(ROOT), Config { initial_buckets: 4 }).unwrap()
}

fn dram(capacity: u64) -> Sim {
    Sim::in_memory(capacity).unwrap()
}

/// Opens the index again, as after the death of the process.
fn reopen<K: Key>(sim: &Sim) -> Clht<K, Sim> {
    let (pool, _) = Pool::open(sim.clone(), Identity::default(), OnSuspect::Refuse).unwrap();
    Clht::open(pool.clone(), pool.root(ROOT)).unwrap()
}

fn put<K, M>(index: &Clht<K, M>, key: u64, word: u64)
where
    K: for<'a> Key<Ref<'a> = u64>,
    M: Medium,
{
    index.upsert(key, word, &index.pool().pin()).unwrap();
}

fn remove<K, M>(index: &Clht<K, M>, key: u64)
where
    K: for<'a> Key<Ref<'a> = u64>,
    M: Medium,
{
    assert!(index.remove(key, &index.pool().pin()).unwrap().removed(), "key {key:#x}");
}

fn get<K, M>(index: &Clht<K, M>, key: u64) -> Option<u64>
where
    K: for<'a> Key<Ref<'a> = u64>,
    M: Medium,
{
    index.get(key, &index.pool().pin()).unwrap()
}

fn wait_until(ready: impl Fn() -> bool) {
    while !ready() {
        std::thread::yield_now();
    }
}

/// Returns the blocks that the index refers to.
fn reachable<K: Key, M: Medium>(index: &Clht<K, M>) -> BTreeSet<u64> {
    struct Blocks(BTreeSet<u64>);
    impl Visitor for Blocks {
        fn block(&mut self, offset: u64) {
            assert!(self.0.insert(offset), "block {offset:#x} is named twice");
        }
        fn word(&mut self, _word: u64) {}
    }
    let mut blocks = Blocks(BTreeSet::new());
    index.visit(&mut blocks).unwrap();
    blocks.0
}

/// Checks every invariant, and that exactly the reachable blocks are allocated.
fn verify<K: Key, M: Medium>(index: &Clht<K, M>) {
    assert_eq!(index.check(), Vec::<String>::new());
    let pool: &Arc<Pool<M>> = index.pool();
    pool.epoch().drain();
    let taken: BTreeSet<u64> = pool.allocated().into_iter().collect();
    assert_eq!(taken, reachable(index));
    assert_eq!(pool.heap_stats().faults, 0);
}
