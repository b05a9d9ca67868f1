//! States that crashes leave only rarely, constructed.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use evermap_pm::medium::Note;
use evermap_pm::sim::{self, ImageConfig, Sim};
use evermap_pm::{ErrorKind, Medium, PmU64, Pool};

use super::{DashEh, Tiny};
use crate::hash::dash::bucket::{Record, allocate, free_slot, meta_of};
use crate::hash::dash::layout::{
    BUCKET_BYTES, Bucket, Buckets, HEADER_LINE_SLOTS, HashPrefix, Header, Root, Version,
};
use crate::hash::dash::{Config, Geometry, Paper, Sizes};
use crate::hash::segmented::index::SegmentedIndex;
use crate::hash::segmented::{SegmentHeader, Segmented, prefix_at};
use crate::testkit::crash_states::{
    Number, created, for_each_image, is_durable_once_served, is_kept, record, reopened, word_in,
};
use crate::testkit::{Crowded, Plain};
use crate::{Action, Index, Key, MutateMode, Persistent};

const CAPACITY: u64 = 1 << 20;

/// Creates an index with these keys, in a medium whose recording is paused.
fn filled<K: Number>(keys: impl Iterator<Item = u64>) -> (Sim, Arc<Pool<Sim>>, Tiny<K, Sim>) {
    let (sim, pool, index) = created::<Tiny<K, Sim>>(CAPACITY, Config::default());
    for key in keys {
        index.insert(key, key, &pool.pin()).unwrap();
    }
    (sim, pool, index)
}

/// Calls `serve` with the reopened index, and checks that after any later crash the word at `at` is
/// `wanted`.
fn is_durable_after(
    sim: &Sim,
    serve: impl FnOnce(&Pool<Sim>, &Tiny<Plain, Sim>),
    (at, wanted): (u64, u64),
) {
    sim.checkpoint();
    let (pool, index) = reopened(sim);
    sim.note(Note::Begin(0));
    serve(&pool, &index);
    sim.note(Note::End(0));
    drop((index, pool));
    for_each_image(sim, true, |image| assert_eq!(word_in(image, at), wanted));
}

/// The stamps in version words repeat after 65,535 openings, and those in segment headers if the
/// stored generation was damaged. A lock that an earlier opener has left must be ignored.
#[test]
fn a_stamp_of_an_earlier_opener_is_ignored() {
    let keys = || (0..100).map(|key| Plain::hash(key << 57 | key, 0));
    for (generation, complement, ours) in [(0xffff, !0xffff, 0x10001), (0, 0, 2)] {
        let (sim, pool, index) = filled::<Plain>(keys());
        let segments = index.stats(&pool.pin()).unwrap().segments;
        // A process terminates while it holds the locks of all buckets.
        for key in keys() {
            let segment = index.segment(index.map.directory.locate(key)).unwrap();
            for bucket in &segment.normal {
                let version = Version(sim.load(&bucket.version));
                sim.store_transient(&bucket.version, version.locked().0);
            }
        }
        assert_eq!(pool.generation(), 1);
        let words = &pool.region().header().generation;
        sim.store(&words[0], generation);
        sim.store(&words[1], complement);
        drop((index, pool));
        let (pool, index) = reopened::<Tiny<Plain, Sim>>(&sim);
        assert_eq!(pool.generation(), ours);
        for key in keys() {
            assert_eq!(index.get(key, &pool.pin()).unwrap(), Some(key));
        }
        assert_eq!(index.stats(&pool.pin()).unwrap().recovered, segments);
    }
}

/// A segment that was recovered has a damaged version word. Recovery does not repair it, and
/// operations must fail instead of retrying without end.
#[test]
fn a_bucket_that_stays_stale_is_reported() {
    let keys = || (0..100).map(|key| Plain::hash(key << 57 | key, 0));
    let (sim, pool, index) = filled::<Plain>(keys());
    for key in keys() {
        let segment = index.segment(index.map.directory.locate(key)).unwrap();
        for bucket in &segment.normal {
            sim.store_transient(&bucket.version, Version::fresh(index.core.generation - 1).0);
        }
    }
    let guard = pool.pin();
    for key in keys() {
        for answer in [index.get(key, &guard).map(drop), index.update(key, 1, &guard).map(drop)] {
            assert!(matches!(answer.unwrap_err().kind(), ErrorKind::Damaged { .. }));
        }
    }
}

/// A damaged link refers to no block. It is cleared durably, because it could refer to a block once
/// the file has grown.
#[test]
fn a_damaged_chain_is_ended_durably() {
    let (sim, pool, index) = filled::<Plain>(0..4);
    let link = &index.segment(index.map.directory.locate(0)).unwrap().header.chain;
    sim.store(link, 1 << 40);
    let at = sim.offset_of(link);
    drop((index, pool));
    let serve = |pool: &Pool<Sim>, index: &Tiny<Plain, Sim>| {
        assert_eq!(index.get(0, &pool.pin()).unwrap(), Some(0));
    };
    is_durable_after(&sim, serve, (at, 0));
}

/// A split was committed, and a crash lost the other entries of its range. Recovery corrects them
/// durably before any operation returns: the segment that they still refer to may be freed next.
#[test]
fn a_range_that_recovery_has_finished_stays_finished() {
    // Several segments, of which all but one have many entries.
    let spread = (0..64).map(|key| key << 58 | 1);
    let (sim, pool, index) = filled::<Plain>(spread.chain((2..400).map(|key| key << 34)));
    let entries = index.map.directory.entries();
    let names = |at: usize| sim.load(&entries[at]);
    let prefix = |at: usize| prefix_at::<Header, _>(index.medium(), names(at)).unwrap();
    // The last entry of an upper half, and an entry of the lower half.
    let (last, lower) = (1..entries.len())
        .filter(|&last| names(last) == names(last - 1))
        .find_map(|last| {
            let first = (0..last).find(|&at| names(at) == names(last))?;
            let is_end = last + 1 == entries.len() || names(last + 1) != names(last);
            let lower = first.checked_sub(1)?;
            let are_halves = prefix(lower).depth == prefix(last).depth
                && prefix(last).pattern == prefix(lower).pattern + 1
                && prefix(last).pattern % 2 == 1;
            (is_end && are_halves).then_some((last, lower))
        })
        .expect("a segment with several entries beside its other half");
    let (wanted, at) = (names(last), sim.offset_of(&entries[last]));
    sim.store(&entries[last], names(lower));
    let key = (last as u64) << (64 - entries.len().trailing_zeros());
    drop((index, pool));
    let serve = |pool: &Pool<Sim>, index: &Tiny<Plain, Sim>| {
        assert_eq!(index.get(key, &pool.pin()).unwrap(), None);
    };
    is_durable_after(&sim, serve, (at, wanted));
}

/// A thread is about to recover a segment that was merged away before a crash, and is held up until
/// other threads have recovered that merge and split the merged segment again. No entry refers to
/// the old segment any more, which is not damage.
#[test]
fn what_was_merged_away_and_split_again_is_no_damage() {
    let keys = |count: u64| (1..count).map(|key: u64| key.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let wide = || keys(100).map(|key| key >> 1);
    let (sim, pool, index) = filled::<Plain>(wide().chain(keys(400).map(|key| key >> 1 | 1 << 63)));
    let locate = |index: &Tiny<Plain, Sim>, key| index.map.directory.locate(key);
    let segments = |index: &_| wide().map(|key| locate(index, key)).collect::<BTreeSet<u64>>();
    let before = segments(&index);
    for key in wide() {
        assert!(index.remove(key, &pool.pin()).unwrap().removed());
    }
    assert!(segments(&index).len() < before.len());
    drop((index, pool));
    let (pool, index) = reopened::<Tiny<Plain, Sim>>(&sim);
    let guard = pool.pin();
    for key in wide() {
        index.insert(key, key, &guard).unwrap();
    }
    let merged: Vec<u64> = before.difference(&segments(&index)).copied().collect();
    assert!(!merged.is_empty());
    for segment in merged {
        index.recover(segment).unwrap();
        // If an entry for other hashes refers to the segment, the directory is damaged.
        let entry = index.map.directory.entries().last().unwrap();
        let right = sim.load(entry);
        sim.store(entry, segment);
        assert!(index.recover(segment).is_err());
        sim.store(entry, right);
    }
    assert!(wide().all(|key| index.get(key, &guard).unwrap() == Some(key)));
}

/// Records with equal hashes fill several buckets of a chain. When their segment is split, they
/// move to a new chain, all of which is durable.
#[test]
fn a_chain_of_several_buckets_survives_a_split() {
    // All further bits are ones, so that these keys belong to the upper half of each split.
    let crowd =
        |corner: u64| (1..40).map(move |key| (corner << 62) | ((1 << 62) - (1 << 16)) | key);
    let crowds: Vec<u64> = (0..4).flat_map(crowd).collect();
    let (sim, pool, index) = filled::<Crowded>(crowds.iter().copied());
    let splits = index.stats(&pool.pin()).unwrap().splits;
    sim.checkpoint();
    sim.note(Note::Begin(0));
    let others: Vec<u64> = (0..64).map(|key| key << 58 | 1 << 57).collect();
    for &key in &others {
        index.insert(key, key, &pool.pin()).unwrap();
    }
    assert!(index.stats(&pool.pin()).unwrap().splits > splits + 3);
    sim.note(Note::End(0));
    drop((index, pool));
    for_each_image(&sim, true, |image| {
        let sim = Sim::from_image(image.bytes, CAPACITY).unwrap();
        let (pool, index) = reopened::<Tiny<Crowded, Sim>>(&sim);
        for &key in crowds.iter().chain(&others) {
            assert_eq!(index.get(key, &pool.pin()).unwrap(), Some(key));
        }
    });
}

/// A bucket is empty, durably, before a chain refers to it: its block may have been used before.
#[test]
fn a_chain_leads_to_empty_buckets_only() {
    const GARBAGE: u64 = u64::MAX;
    // All keys have the same hash. They fill a segment, and then its chain.
    let (sim, pool, index) = filled::<Crowded>(0..0);
    let mut keys = 0..0xffff;
    let mut insert = || {
        let key = keys.next().unwrap();
        index.insert(key, key, &pool.pin()).unwrap();
    };
    let chain = || sim.load(&index.segment(index.map.directory.locate(0)).unwrap().header.chain);
    while chain() == 0 {
        insert();
    }
    let first = sim.at::<Bucket>(chain()).unwrap();
    let all_blocks = std::iter::from_fn(|| pool.allocate_fixed(BUCKET_BYTES).ok());
    let blocks: Vec<u64> = all_blocks.collect();
    for &block in &blocks {
        let Bucket { version, fingerprints, meta, .. } = sim.at(block).unwrap();
        for word in [version, &fingerprints[0], &fingerprints[1], meta] {
            sim.store(word, GARBAGE);
        }
        pool.free_unpublished(block);
    }
    sim.checkpoint();
    while sim.load(&first.version) == 0 {
        insert();
    }
    let (link, second) = (sim.offset_of(&first.version), sim.load(&first.version));
    assert!(blocks.contains(&second), "the block was something else before");
    let meta = sim.offset_of(&sim.at::<Bucket>(second).unwrap().meta);
    let mut images = 0;
    sim::for_each_image(&sim.trace(), &ImageConfig::default(), |image| {
        if word_in(image, link) == second {
            assert_eq!(word_in(image, second), 0, "the end of the chain");
            assert_ne!(word_in(image, meta), GARBAGE);
            images += 1;
        }
        ControlFlow::Continue(())
    });
    assert!(images > 0);
}

/// A chain is lengthened for a record that is then not inserted. Other threads may insert records
/// there as soon as the stash is unlocked, so the link is durable by then.
#[test]
fn a_longer_chain_is_durable_whatever_comes_of_the_record() {
    let (sim, pool, index) = filled::<Crowded>(0..0);
    let chain = || sim.load(&index.segment(index.map.directory.locate(0)).unwrap().header.chain);
    for key in 0..100 {
        record(&sim, || {
            let keep = &mut |_| Action::Keep;
            index.mutate(key, MutateMode::MayInsert, &pool.pin(), keep).unwrap();
        });
        if chain() != 0 {
            let header = &index.segment(index.map.directory.locate(0)).unwrap().header;
            return is_kept(&sim, &header.chain);
        }
        index.insert(key, key, &pool.pin()).unwrap();
    }
    unreachable!("a hundred records with one hash need a chain");
}

/// The last record of a bucket in a chain is removed. The bucket is unlinked durably, because its
/// block may be reused.
#[test]
fn an_empty_block_of_a_chain_is_unlinked_for_good() {
    let (sim, pool, index) = filled::<Crowded>(0..0);
    let header = || &index.segment(index.map.directory.locate(0)).unwrap().header;
    let last = (0..100)
        .find(|&key| {
            index.insert(key, key, &pool.pin()).unwrap();
            sim.load(&header().chain) != 0
        })
        .expect("a hundred records with one hash need a chain");
    record(&sim, || assert!(index.remove(last, &pool.pin()).unwrap().removed()));
    assert_eq!(sim.load(&header().chain), 0);
    is_kept(&sim, &header().chain);
}

/// Inserts keys into one segment that has much room. Returns how many of them are not in their home
/// buckets.
fn spread<G: Geometry>() -> u32 {
    let (sim, pool, index) = created::<DashEh<u64, Sim, G>>(CAPACITY, Config { initial_depth: 0 });
    for key in 0..64 * 4 {
        index.insert(key, key, &pool.pin()).unwrap();
    }
    assert_eq!(index.check(), Vec::<String>::new());
    let segment = index.segment(index.map.directory.locate(0)).unwrap();
    let metas = segment.normal().iter().map(|bucket| meta_of(&sim, bucket));
    metas.map(|meta| (meta.allocated() & meta.members()).count_ones()).sum()
}

/// The paper's form inserts into the emptier bucket, the default one into the home bucket until
/// that is almost full.
#[test]
fn the_paper_balances_two_buckets() {
    let (usual, paper) = (spread::<Sizes>(), spread::<Paper>());
    assert_eq!(usual, 0);
    // With buckets that are equally full, the home bucket is used.
    assert!((64..128).contains(&paper), "{paper} of 256 records");
}

/// Marks a free slot of the bucket of key 0 as if an insertion had stored its header, but not the
/// record: the slot holds what an earlier record has left, with key 9.
fn tear_insertion(sim: &Sim, index: &Tiny<Plain, Sim>) {
    let segment = index.segment(index.map.directory.locate(0)).unwrap();
    let bucket = &segment.normal[0];
    let slot = free_slot(meta_of(sim, bucket), 4).unwrap();
    assert!(slot >= HEADER_LINE_SLOTS);
    sim.store(&bucket.slots[slot].key, 9);
    sim.store(&bucket.slots[slot].word, 9);
    allocate(sim, bucket, slot, 7, false);
}

/// An insertion makes its slot and the header durable in any order. If a crash comes between them,
/// the slot still holds what was there before.
#[test]
fn a_slot_without_its_record_is_free_after_a_crash() {
    let (sim, pool, index) = filled::<Plain>(0..3);
    tear_insertion(&sim, &index);
    drop((index, pool));
    let (pool, index) = reopened::<Tiny<Plain, Sim>>(&sim);
    for key in 0..10 {
        assert_eq!(index.get(key, &pool.pin()).unwrap(), (key < 3).then_some(key));
    }
    assert_eq!(index.check(), Vec::<String>::new());
}

/// An earlier version left fingerprints that were not those of their records, if it was interrupted
/// in a split. The first use of such a segment corrects them, and what it finds there stays.
#[test]
fn an_index_of_an_earlier_version_is_converted() {
    let (sim, pool, index) = filled::<Plain>(0..3);
    tear_insertion(&sim, &index);
    let offsets = [0, 1 << 63].map(|hash| index.map.directory.locate(hash));
    let magic = |offset| &sim.at::<Header>(offset).unwrap().magic;
    offsets.iter().for_each(|&offset| sim.store(magic(offset), Header::EARLIER));
    let kind = sim.at::<PmU64>(index.core.root).unwrap();
    sim.store(kind, Tiny::<Plain, Sim>::earlier_kind().unwrap());
    drop((index, pool));
    for _ in 0..2 {
        let (pool, index) = reopened::<Tiny<Plain, Sim>>(&sim);
        assert_eq!(sim.load(kind), Tiny::<Plain, Sim>::kind());
        assert_eq!(index.get(9, &pool.pin()).unwrap(), Some(9));
        assert_eq!(index.get(2, &pool.pin()).unwrap(), Some(2));
        assert_eq!(index.check(), Vec::<String>::new());
        assert!(offsets.iter().all(|&offset| sim.load(magic(offset)) == Header::MAGIC));
    }
}

/// Recovery drops a record from a bucket to which it does not belong. This is durable before the
/// segment is used: if another thread removed the record from its home bucket, the dropped one
/// could otherwise reappear after a crash.
#[test]
fn what_recovery_drops_is_gone_before_the_segment_is_used() {
    let (sim, pool, index) = filled::<Plain>(0..4);
    let segment = index.segment(index.map.directory.locate(0)).unwrap();
    let strange = &segment.normal[2];
    let before = meta_of(&sim, strange).0;
    let slot = free_slot(meta_of(&sim, strange), 4).unwrap();
    index.store_record(strange, slot, Record { hash: 0, slot_key: 0, word: 0 }, false);
    assert_ne!(meta_of(&sim, strange).0, before);
    let at = sim.offset_of(&strange.meta);
    drop((index, pool));
    let serve = |pool: &Pool<Sim>, index: &Tiny<Plain, Sim>| {
        assert_eq!(index.get(0, &pool.pin()).unwrap(), Some(0));
    };
    is_durable_after(&sim, serve, (at, before));
}

/// A process has stored records, in a bucket and in a chain, and has doubled the directory, and has
/// terminated before all of it was durable.
#[test]
fn what_recovery_finds_is_durable_before_it_is_used() {
    let (sim, pool, index) = filled::<Crowded>(0..40);
    let directory = &index.map.directory;
    let segment = index.segment(directory.locate(0)).unwrap();
    let chain = sim.at::<Bucket>(sim.load(&segment.header.chain)).expect("a chain");
    let words = [
        &sim.at::<Root>(index.core.root).unwrap().directory,
        &directory.entries()[0],
        &segment.normal[0].slots[3].word,
        &segment.normal[0].meta,
        &chain.slots[3].word,
    ]
    .map(|word| sim.offset_of(word));
    is_durable_once_served(&sim, (pool, index), &words, 0);
}

/// The segment S, for the lower half of all hashes, is split into S and U, and the process
/// terminates once the first of U's entries is stored. The next process uses only that entry. So it
/// splits U into U and V while the entries between them still refer to S, and terminates once the
/// first of V's entries is stored:
///
/// ```text
/// S S S S S S S S | U S S S V S S S | ...
/// ```
///
/// The last three entries belong to V, because V's entry is the nearest deciding one. A recovery
/// that used the first entry of the range would assign them to U.
#[test]
fn a_half_that_is_split_again_before_its_split_was_finished_keeps_its_records() {
    // Many keys with equal leading bits make the directory deep.
    let crowd =
        (0..500).map(|key: u64| 1 << 63 | key << 54 | key.wrapping_mul(0x9e37_79b1) & 0xffff);
    let (sim, pool, index) = filled::<Plain>(crowd);
    let depth = index.map.directory.depth();
    let load = |index: &Tiny<Plain, Sim>, at: usize| sim.load(&index.map.directory.entries()[at]);
    let prefix = |index: &Tiny<Plain, Sim>, at| {
        prefix_at::<Header, _>(index.medium(), load(index, at)).unwrap()
    };
    let key = |at: usize, low: u64| (at as u64) << (64 - depth) | (low * 0x940 + low % 64);
    let (first_of_u, first_of_v, end) = (1 << (depth - 2), 3 << (depth - 3), 1 << (depth - 1));
    let mut kept = Vec::new();
    let mut insert = |(pool, index): (&Pool<Sim>, &Tiny<Plain, Sim>), key| {
        index.insert(key, key, &pool.pin()).unwrap();
        kept.push(key);
    };
    // Simulates that the process terminates once it has stored `first`, the first entry of an upper
    // half: the other entries, and the prefix of the lower half, have their previous values.
    let die = |(pool, index): (Arc<Pool<Sim>>, Tiny<Plain, Sim>),
               first: usize,
               before: u64,
               lower: (u64, HashPrefix)| {
        let entries = &index.map.directory.entries()[first + 1..end];
        assert!(!entries.is_empty() && load(&index, first) != before);
        entries.iter().for_each(|entry| sim.store(entry, before));
        sim.store(&index.segment(lower.0).unwrap().header.prefix, lower.1.encode());
        drop((index, pool));
        reopened::<Tiny<Plain, Sim>>(&sim)
    };

    let whole = prefix(&index, 0);
    assert_eq!(
        (whole, load(&index, 0)),
        (HashPrefix { depth: 1, pattern: 0 }, load(&index, end - 1))
    );
    for low in 1.. {
        insert((&pool, &index), key((low * 5) as usize % end, low));
        if prefix(&index, first_of_u) == whole.half(1) {
            break;
        }
    }
    let (s, u) = (load(&index, 0), load(&index, first_of_u));
    let (pool, index) = die((pool, index), first_of_u, s, (s, whole));

    for low in 1000.. {
        insert((&pool, &index), key(first_of_u, low));
        if load(&index, first_of_v) != s {
            break;
        }
    }
    assert_eq!((load(&index, 0), load(&index, first_of_u)), (s, u), "only U was used and split");
    assert_eq!(load(&index, first_of_u + 1), s);
    let (pool, index) = die((pool, index), first_of_v, s, (u, whole.half(1)));

    // Keys in U first, so that U is in use when S is recovered.
    let place = |key: u64| (key >> (64 - depth)) as usize;
    kept.sort_by_key(|&key| (place(key) != first_of_u, key));
    assert!(kept.iter().any(|&key| place(key) > first_of_v), "some keys have wrong entries");
    for key in kept {
        assert_eq!(index.get(key, &pool.pin()).unwrap(), Some(key), "key {key:#x}");
    }
    assert_eq!(index.check(), [""; 0]);
}
