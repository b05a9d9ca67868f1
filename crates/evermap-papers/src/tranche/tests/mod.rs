//! Tests of what the public interface does not show.

use std::sync::Arc;

use evermap_pm::region::{Identity, RegionConfig};
use evermap_pm::sim::Sim;
use evermap_pm::{Medium, Pool};

mod figures;
mod map;
mod pitfalls;
mod placement;
mod states;
mod values;
mod walk;

/// Creates a pool in ordinary memory.
fn pool(medium: Sim, seed: u64) -> Arc<Pool<Sim>> {
    let capacity = medium.capacity();
    let extent_size = if capacity > 16 << 20 { 2 << 20 } else { 4096 };
    let config = RegionConfig { extent_size, capacity, seed: Some(seed) };
    Pool::create(medium, &config, Identity::default()).unwrap()
}

fn in_memory(capacity: u64) -> Arc<Pool<Sim>> {
    pool(Sim::in_memory(capacity).unwrap(), 1)
}
