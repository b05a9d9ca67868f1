//! States that crashes leave now and then, made by hand.

use std::sync::Arc;

use evermap_pm::sim::Sim;
use evermap_pm::{Medium, PmU64, Pool};

use super::layout::{HashPrefix, Root, Segment};
use super::{Config, Tiny};
use crate::hash::crash_states::{
    created, is_durable_once_served, is_kept, look_up_after_death, record,
};
use crate::hash::segmented::Segmented;
use crate::testkit::Plain;
use crate::{Action, Index, MutateMode};

const CAPACITY: u64 = 1 << 20;

type TinyCceh = Tiny<Plain, Sim>;

/// Keys whose hashes differ in their first bits alone, so that they belong in one bucket until they
/// are told apart.
fn key(n: u64) -> u64 {
    n.reverse_bits()
}

/// An index of this number of them, in memory that does not record yet.
fn filled(keys: u64) -> (Sim, Arc<Pool<Sim>>, TinyCceh) {
    let (sim, pool, index) = created::<TinyCceh>(CAPACITY, Config::default());
    for n in 0..keys {
        index.insert(key(n), n, &pool.pin()).unwrap();
    }
    (sim, pool, index)
}

/// The segment that serves a key.
fn serving(index: &TinyCceh, key: u64) -> &Segment<4> {
    index.segment(index.expansion.directory.locate(key)).unwrap()
}

/// A segment is split for a record that in the end is not inserted. Others may write into the slots
/// of the records that moved as soon as it is unlocked.
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

/// A process dies that has stored a record, entries of the directory, and which directory counts.
#[test]
fn what_recovery_finds_is_durable_before_it_is_used() {
    let (sim, pool, index) = filled(40);
    let segment = serving(&index, key(0));
    let words = [
        &sim.at::<Root>(index.core.root).unwrap().directory,
        &index.expansion.directory.entries()[0],
        &segment.header.prefix,
        &segment.buckets[0].slots[0].key,
    ]
    .map(|word| sim.offset_of(word));
    is_durable_once_served(&sim, (pool, index), &words, key(0));
}

/// A process dies in a split, before the segment says that it has lost a half. Recovery sees to
/// that, durably before anybody writes into the slots of the records that moved.
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
