//! States that crashes leave now and then, made by hand: what the tests of several indexes need for that.

use std::sync::Arc;

use evermap_pm::Pool;
use evermap_pm::region::{Identity, OnSuspect, RegionConfig};
use evermap_pm::sim::{Image, Sim};

use crate::Persistent;

/// An empty index, in memory of so many bytes that does not record yet.
pub(crate) fn created<I: Persistent<Sim>>(
    capacity: u64,
    config: I::Config,
) -> (Sim, Arc<Pool<Sim>>, I) {
    let sim = Sim::new(capacity).unwrap();
    sim.pause();
    let shape = RegionConfig { extent_size: 4096, capacity, seed: Some(1) };
    let pool = Pool::create(sim.clone(), &shape, Identity::default()).unwrap();
    let index = I::create(pool.clone(), pool.root(0), config).unwrap();
    (sim, pool, index)
}

/// What is there after the process has died.
pub(crate) fn reopened<I: Persistent<Sim>>(sim: &Sim) -> (Arc<Pool<Sim>>, I) {
    let pool = Pool::open(sim.clone(), Identity::default(), OnSuspect::Refuse).unwrap().0;
    let index = I::open(pool.clone(), pool.root(0)).unwrap();
    (pool, index)
}

/// The word at an offset in an image.
pub(crate) fn word_in(image: &Image<'_>, at: u64) -> u64 {
    u64::from_le_bytes(image.bytes[at as usize..][..8].try_into().unwrap())
}
