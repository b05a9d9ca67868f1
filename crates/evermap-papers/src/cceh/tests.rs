//! States that crashes leave only rarely, constructed.

use std::sync::Arc;

use evermap_index::hash::segmented::Segmented;
use evermap_index::testkit::Plain;
use evermap_index::testkit::crash_states::{
    created, is_durable_once_served, is_kept, look_up_after_death, record,
};
use evermap_index::{Action, Index, MutateMode};
use evermap_pm::sim::Sim;
use evermap_pm::{Medium, PmU64, Pool};

use super::layout::{HashPrefix, Root, Segment};
use super::{Config, Tiny};

const CAPACITY: u64 = 1 << 20;

type TinyCceh = Tiny<Plain, Sim>;

/// Returns keys whose hashes differ only in their leading bits, so that they have the same home
/// bucket in any segment.
fn key(n: u64) -> u64 {
    n.reverse_bits()
}

/// Creates an index with this number of these keys, in a medium whose recording is paused.
fn filled(keys: u64) -> (Sim, Arc<Pool<Sim>>, TinyCceh) {
    let (sim, pool, index) = created::<TinyCceh>(CAPACITY, Config::default());
    for n in 0..keys {
        index.insert(key(n), n, &pool.pin()).unwrap();
    }
    (sim, pool, index)
}

/// Returns the segment that serves a key.
fn serving(index: &TinyCceh, key: u64) -> &Segment<4> {
    index.segment(index.map.directory.locate(key)).unwrap()
}

/// A segment is split for a record that is then not inserted. Other threads may store into the
/// slots of the moved records as soon as the segment is unlocked.
#[test]
fn a_split_is_durable_whatever_comes_of_the_record() {
    let (sim, pool, index) = filled(0);
    for n in 0..100 {
        let prefix = &serving(&index, key(n)).header.prefix;
        let whole = sim.load(prefix);
        record(&sim, || {
            let keep = &mut |_| Action::Keep;
            index.mutate(key(n), MutateMode::MayInsert, &pool.pin(), keep).unwrap();
        });
        if sim.load(prefix) != whole {
            return is_kept(&sim, prefix);
        }
        index.insert(key(n), n, &pool.pin()).unwrap();
    }
    unreachable!("a hundred records of one bucket need several segments");
}

/// A process has stored a record, entries of a directory, and the root cell of the directory, and
/// has terminated before they were durable.
#[test]
fn what_recovery_finds_is_durable_before_it_is_used() {
    let (sim, pool, index) = filled(40);
    let segment = serving(&index, key(0));
    let words = [
        &sim.at::<Root>(index.core.root).unwrap().directory,
        &index.map.directory.entries()[0],
        &segment.header.prefix,
        &segment.buckets[0].slots[0].key,
    ]
    .map(|word| sim.offset_of(word));
    is_durable_once_served(&sim, (pool, index), &words, key(0));
}

/// A process terminates during a split, before the prefix of the old segment is stored. Recovery
/// stores it, durably, before another thread can store into the slots of the moved records.
#[test]
fn a_split_that_recovery_finishes_is_durable_before_the_segment_is_used() {
    let (sim, pool, index) = filled(40);
    let prefix = &serving(&index, key(0)).header.prefix;
    let (at, lower) = (sim.offset_of(prefix), sim.load(prefix));
    let whole = HashPrefix::decode(lower).unwrap().parent().expect("it was split");
    sim.store(prefix, whole.encode());
    sim.checkpoint();
    assert_eq!(look_up_after_death(&sim, (pool, index), key(0)), Some(0));
    let prefix = sim.at::<PmU64>(at).unwrap();
    assert_eq!(sim.load(prefix), lower);
    is_kept(&sim, prefix);
}
