//! States that crashes leave only rarely, constructed.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use evermap_index::Index;
use evermap_index::hash::dash::Config;
use evermap_index::hash::dash::bucket::{Record, meta_of};
use evermap_index::hash::dash::layout::{Bucket, HashPrefix, Header, Meta, Segment};
use evermap_index::hash::segmented::core::HasCore;
use evermap_index::hash::segmented::{SegmentHeader, Segmented};
use evermap_index::testkit::crash_states::{
    Number, are_kept, created, for_each_image, is_durable_once_served, look_up_after_death, record,
    word_in,
};
use evermap_index::testkit::{Crowded, Plain};
use evermap_pm::sim::Sim;
use evermap_pm::{Medium, Pool};

use super::expand::Growing;
use super::layout::{Extent, Root};
use super::{Linear, TinyLh, numbers, prefix_if_initialised};

const CAPACITY: u64 = 1 << 20;
/// Keys are multiples of this one, so that all their bits differ.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Creates an index with this number of keys, in a medium whose recording is paused.
fn filled<K: Number>(keys: u64) -> (Sim, Arc<Pool<Sim>>, TinyLh<K, Sim>) {
    let config = Config { initial_depth: 0 };
    let (sim, pool, index) = created::<TinyLh<K, Sim>>(CAPACITY, config);
    for key in 0..keys {
        index.insert(key.wrapping_mul(SPREAD), key, &pool.pin()).unwrap();
    }
    (sim, pool, index)
}

fn segment<K: Number>(index: &TinyLh<K, Sim>, number: u64) -> &Segment<4, 2> {
    index.segment(index.place(number)).unwrap()
}

/// Expands until the next segments are in an array that exists already.
fn expand_to_reserved<K: Number>(index: &TinyLh<K, Sim>) -> u64 {
    let linear = index.map();
    loop {
        let next = linear.count();
        let last = Linear::<Sim, 2, 2>::next(next) - 1;
        if linear.arrays[numbers::array_of(last, 2, 2)].load(Relaxed) != 0 {
            return next;
        }
        index.expand(0).unwrap();
        assert!(linear.count() > next, "too sparse");
    }
}

/// The memory of a new segment contains an initialised segment of an earlier index. Its prefix is
/// cleared, durably, before the segment comes into use: otherwise its origin would be taken to be
/// split.
#[test]
fn a_segment_comes_into_use_without_a_prefix() {
    let (sim, _pool, index) = filled::<Plain>(200);
    let next = expand_to_reserved(&index);
    let header = &segment(&index, next).header;
    let depth = numbers::least_depth(next);
    let pattern = (next << (64 - depth)).reverse_bits();
    let before = HashPrefix { depth, pattern };
    assert_eq!(numbers::number_of_prefix(before), next);
    sim.store(&header.magic, Header::MAGIC);
    sim.store(&header.prefix, before.encode());
    assert!(prefix_if_initialised(&sim, next, index.place(next)).is_some());
    record(&sim, || index.expand(0).unwrap());
    assert!(index.map().count() > next);
    let extent = sim.offset_of(&sim.at::<Root>(index.core().root).unwrap().extent);
    let prefix = sim.offset_of(&header.prefix);
    for_each_image(&sim, false, |image| {
        let in_use = Extent::decode(word_in(image, extent)).unwrap().0 > next;
        assert!(!in_use || word_in(image, prefix) == 0);
    });
}

/// The origin of a split is durable before it is unlocked: other threads may then remove records
/// that were moved inside of it, and after a crash the copies of these records must not reappear.
#[test]
fn a_split_is_durable_whatever_comes_of_the_record() {
    let (sim, pool, index) = filled::<Plain>(200);
    let next = expand_to_reserved(&index);
    index.expand(0).unwrap();
    let (origin, prefix) = index.nearest(next).unwrap();
    let origin = segment(&index, origin);
    let records = index.count_records(origin);
    record(&sim, || index.initialise(next, &pool.pin()).unwrap());
    assert!(index.count_records(origin) < records);
    assert_ne!(sim.load(&origin.header.prefix), prefix.encode());
    let metas = origin.normal.iter().chain(&origin.stash).map(|bucket| &bucket.meta);
    are_kept(&sim, metas.chain([&origin.header.prefix, &origin.header.chain]), !0);
}

/// A process has stored records, in a bucket and in a chain, and the extent, and has terminated
/// before they were durable.
#[test]
fn what_recovery_finds_is_durable_before_it_is_used() {
    let (sim, pool, index) = filled::<Crowded>(40);
    let (number, _) = index.nearest(0).unwrap();
    let found = segment(&index, number);
    let chain = sim.at::<Bucket>(sim.load(&found.header.chain)).expect("a chain");
    let words = [
        &sim.at::<Root>(index.core().root).unwrap().extent,
        &found.header.prefix,
        &found.normal[0].slots[3].word,
        &found.normal[0].meta,
        &chain.slots[3].word,
    ]
    .map(|word| sim.offset_of(word));
    is_durable_once_served(&sim, (pool, index), &words, 0);
}

/// A process has moved a record to its home bucket, and has terminated when only the original was
/// durable. Recovery drops the original only once the copy is durable.
#[test]
fn a_copy_that_recovery_finds_is_durable_before_the_other_is_dropped() {
    let (sim, pool, index) = filled::<Plain>(1);
    let [home, next, ..] = &segment(&index, 0).normal;
    let (with, record) = (meta_of(&sim, home).0, Record { hash: 0, slot_key: 0, word: 0 });
    index.store_record(next, 0, record, true);
    sim.store(&home.meta, Meta::default().0);
    sim.checkpoint();
    sim.store(&home.meta, with);
    let metas = [home, next].map(|bucket| sim.offset_of(&bucket.meta));
    assert_eq!(look_up_after_death(&sim, (pool, index), 0), Some(0));
    assert_eq!(meta_of(&sim, sim.at(metas[1]).unwrap()).count(), 0);
    for_each_image(&sim, false, |image| {
        assert!(metas.iter().any(|&at| Meta(word_in(image, at)).count() > 0));
    });
}
