//! States that crashes leave now and then, made by hand.

use evermap_pm::Medium;

use super::layout::Root;
use super::{Clht, Config};
use crate::Index;
use crate::hash::by_hand::{created, is_durable_once_served};
use crate::testkit::Plain;

/// A process dies that has stored where the table is.
#[test]
fn what_recovery_finds_is_durable_before_it_is_used() {
    let config = Config { initial_buckets: 4 };
    let (sim, pool, index) = created::<Clht<Plain, _>>(1 << 20, config);
    index.insert(0, 0, &pool.pin()).unwrap();
    let words = [&sim.at::<Root>(index.root).unwrap().table].map(|word| sim.offset_of(word));
    is_durable_once_served(&sim, (pool, index), &words, 0);
}
