//! States that crashes seldom leave, constructed.

use evermap_pm::Medium;

use super::bucket::pairs_in;
use super::layout::{Bucket, Link, Root, Table};
use super::{Clht, Config};
use crate::testkit::Plain;
use crate::testkit::crash_states::{created, is_durable_once_served, reopened};
use crate::{Index, Key, Persistent, Visitor};

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

/// Collects the blocks of an index.
struct Blocks(Vec<u64>);

impl Visitor for Blocks {
    fn block(&mut self, offset: u64) {
        self.0.push(offset);
    }

    fn word(&mut self, _word: u64) {}
}

/// A process dies between the two steps of a removal: an overflow bucket is empty, and still in its
/// chain. A replacement of the table frees it too.
#[test]
fn an_empty_bucket_of_a_crash_is_freed_with_its_table() {
    let config = Config { initial_buckets: 4 };
    let (sim, pool, index) = created::<Clht<Plain, _>>(1 << 20, config);
    let table = Table::decode(sim.load(&sim.at::<Root>(index.root).unwrap().table));
    let buckets = sim.slice::<Bucket>(table.offset, 4).unwrap();
    let first = |link: u64| (!Link(link).is_last()).then(|| Link(link).next().unwrap());
    let (number, overflow) = (0..)
        .find_map(|key| {
            index.insert(key, key, &pool.pin()).unwrap();
            let next = |home: &Bucket| first(sim.load(&home.link));
            (0..).zip(buckets).find_map(|(number, home)| Some((number, next(home)?)))
        })
        .unwrap();
    let bucket = sim.at::<Bucket>(overflow).unwrap();
    let taken = Link(sim.load(&bucket.link)).taken();
    let emptied = (0..32).filter(|slot| taken >> slot & 1 == 1);
    sim.store(&bucket.link, emptied.fold(Link(sim.load(&bucket.link)), Link::without).0);
    drop((pool, index));

    let (pool, index) = reopened::<Clht<Plain, _>>(&sim);
    pool.sweep(|mark| {
        let mut blocks = Blocks(Vec::new());
        index.visit(&mut blocks)?;
        blocks.0.into_iter().for_each(mark);
        Ok(())
    })
    .unwrap();
    // The next pair of the chain would fill the bucket.
    let home_of = |key| table.home_of(<Plain as Key>::hash(key, index.seed));
    for key in (1000..).filter(|&key| home_of(key) != number) {
        index.insert(key, key, &pool.pin()).unwrap();
        if index.table() != table {
            break;
        }
    }
    pool.epoch().synchronize().unwrap();
    pool.epoch().try_drain().unwrap();
    let mut reachable = Blocks(Vec::new());
    index.visit(&mut reachable).unwrap();
    reachable.0.sort_unstable();
    let mut allocated = pool.allocated();
    allocated.sort_unstable();
    assert_eq!(allocated, reachable.0);
}
