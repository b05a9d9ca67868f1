//! States that crashes seldom leave, constructed.

use evermap_pm::Medium;

use super::bucket::pairs_in;
use super::layout::{Bucket, Root, Table};
use super::{Clht, Config};
use crate::Index;
use crate::testkit::Plain;
use crate::testkit::crash_states::{created, is_durable_once_served};

/// A process dies after it has stored the table word and a pair, before any of that is durable.
#[test]
fn what_recovery_finds_is_durable_before_it_is_used() {
    let config = Config { initial_buckets: 4 };
    let (sim, pool, index) = created::<Clht<Plain, _>>(1 << 20, config);
    index.insert(0, 0, &pool.pin()).unwrap();
    let table = &sim.at::<Root>(index.root).unwrap().table;
    let Table { offset, .. } = Table::decode(sim.load(table));
    let buckets = sim.slice::<Bucket>(offset, 4).unwrap();
    let home = buckets.iter().find(|&bucket| pairs_in(&sim, bucket).next().is_some()).unwrap();
    let words = [table, &home.link, &home.pairs[0].word].map(|word| sim.offset_of(word));
    is_durable_once_served(&sim, (pool, index), &words, 0);
}
