//! States that crashes leave only rarely, constructed.

use std::sync::Arc;

use evermap_index::hash::segmented::{Segmented, chain, prefix_at};
use evermap_index::testkit::Plain;
use evermap_index::testkit::crash_states::{
    are_kept, created, for_each_image, is_kept, look_up_after_death, record, reopened, word_in,
};
use evermap_index::{Action, Index, MutateMode, Persistent};
use evermap_pm::sim::Sim;
use evermap_pm::{Medium, PmU64, Pool};

use super::bucket::{Record, place, write};
use super::layout::{FOREIGN, Header, Link, OFFSET, Segment, TAG, VALID, holds_tops, link_bit};
use super::{Config, HashPrefix, SmallLineHash, Tiny};

const CAPACITY: u64 = 1 << 20;
const UPPER: u64 = 1 << 63;

type TinyLine = Tiny<Plain, Sim>;

/// Returns the `n`th key whose home is line `home`, of four. The second line for a key of line 0 is
/// line 1, for one of line 2 it is line 3, and vice versa.
fn key(n: u64, home: u64) -> u64 {
    n << 8 | home
}

/// Creates an index with these keys, in a medium whose recording is paused.
fn filled(keys: impl IntoIterator<Item = u64>) -> (Sim, Arc<Pool<Sim>>, TinyLine) {
    let (sim, pool, index) = created::<TinyLine>(CAPACITY, Config::default());
    for key in keys {
        index.insert(key, key, &pool.pin()).unwrap();
    }
    (sim, pool, index)
}

/// Returns the segment that serves a key.
fn serving(index: &TinyLine, key: u64) -> &Segment<4> {
    index.segment(index.locate(key)).unwrap()
}

/// Makes room for a key without inserting it, so that no flush of the record follows.
fn make_room(pool: &Pool<Sim>, index: &TinyLine, key: u64) {
    let keep = &mut |_| Action::Keep;
    index.mutate(key, MutateMode::MayInsert, &pool.pin(), keep).unwrap();
}

/// Recovery drops a copy that an interrupted move has left. This is durable before the segment is
/// used: if another thread removed the record, the copy could otherwise reappear after a crash.
#[test]
fn what_recovery_drops_is_gone_before_the_segment_is_used() {
    let moved = key(1, 0);
    let (sim, pool, index) = filled([moved]);
    let copy = &serving(&index, moved).lines[1];
    place::<_, 4, true>(&sim, copy, 1, Record { image: moved, word: moved }, FOREIGN);
    let at = sim.offset_of(&copy.keys[1]);
    drop((index, pool));
    let (pool, index) = reopened::<TinyLine>(&sim);
    record(&sim, || assert_eq!(index.get(moved, &pool.pin()).unwrap(), Some(moved)));
    let copy = sim.at::<PmU64>(at).unwrap();
    assert_eq!(sim.load(copy), 0);
    is_kept(&sim, copy);
}

/// A segment is split for a record that is then not inserted. Other threads may split or merge both
/// halves as soon as they are unlocked, and recovery can finish only one such step.
#[test]
fn a_split_is_durable_whatever_comes_of_the_record() {
    let keys = (0..6).map(|n| key(n, n % 2) | (UPPER & n << 62));
    let (sim, pool, index) = filled(keys);
    let prefix = &serving(&index, 0).header.prefix;
    let whole = sim.load(prefix);
    record(&sim, || make_room(&pool, &index, key(6, 0)));
    assert_ne!(sim.load(prefix), whole);
    is_kept(&sim, prefix);
}

/// The same for a chain that is lengthened: other threads may insert records there as soon as it is
/// unlocked.
#[test]
fn a_longer_chain_is_durable_whatever_comes_of_the_record() {
    let (sim, pool, index) = filled((0..6).map(|n| key(n, 0)));
    let chain = &serving(&index, 0).header.chain;
    assert_eq!(sim.load(chain), 0);
    record(&sim, || make_room(&pool, &index, key(6, 0)));
    assert_ne!(sim.load(chain), 0);
    is_kept(&sim, chain);
}

/// A damaged link makes records unreachable. A walk reports that it did not see all records, for
/// callers that rely on this, such as the sweep.
#[test]
fn a_walk_reports_a_damaged_chain() {
    let (sim, pool, index) = filled((0..7).map(|n| key(n, 0)));
    assert!(index.for_each(&pool.pin(), &mut |_, _| true).is_ok());
    let chain = &serving(&index, 0).header.chain;
    sim.store(chain, sim.load(chain) & !OFFSET | 1 << 40);
    assert!(index.for_each(&pool.pin(), &mut |_, _| true).is_err());
    let (mut from, mut shown) = (Some(0), Ok(()));
    while let Some(here) = from {
        let (unit, next) = index.scan(here, &pool.pin(), &mut |_, _| ());
        (shown, from) = (shown.and(unit), next);
    }
    assert!(shown.is_err());
    assert!(!index.check().is_empty());
}

/// A split removes all records of a chain, and its only link. The link is unlinked durably, because
/// its block may be reused.
#[test]
fn an_empty_block_of_a_chain_is_unlinked_for_good() {
    let chained = (0..7).map(|n| key(n, 0) | UPPER);
    let others = (0..6).map(|n| key(n, 2) | (UPPER & n << 63));
    let (sim, pool, index) = filled(chained.chain(others));
    let chain = &serving(&index, 0).header.chain;
    assert_ne!(sim.load(chain), 0);
    record(&sim, || make_room(&pool, &index, key(6, 2)));
    assert_eq!(sim.load(chain), 0);
    is_kept(&sim, chain);
}

/// Creates an index with a deep directory, in which the lowest keys are in two sibling segments
/// that have many entries each. Also returns these keys.
fn with_wide_halves() -> (Sim, Arc<Pool<Sim>>, TinyLine, Vec<u64>) {
    let deep = (0..64).map(|n| UPPER | (n * 37 % 64) << 57 | (n % 4));
    let wide: Vec<u64> = (0..7).map(|n| key(n, 0) | (n & 1) << 62).collect();
    let (sim, pool, index) = filled(wide[..1].iter().copied().chain(deep));
    for &key in &wide[1..] {
        index.insert(key, key, &pool.pin()).unwrap();
    }
    assert!(index.map.directory.depth() >= 4);
    assert_eq!(prefix_at::<Header, _>(&sim, index.locate(0)).unwrap().depth, 2);
    (sim, pool, index, wide)
}

/// No entry refers to the merged segments, durably, before their blocks may be reused.
#[test]
fn a_merge_is_durable_before_its_halves_are_retired() {
    let (sim, pool, index, wide) = with_wide_halves();
    let merges = || index.stats(&pool.pin()).unwrap().merges;
    for &key in &wide {
        record(&sim, || assert!(index.remove(key, &pool.pin()).unwrap().removed()));
        if merges() > 0 {
            return are_kept(&sim, index.map.directory.entries(), !0);
        }
    }
    panic!("nothing was merged");
}

/// A thread is about to recover a segment that was merged away before a crash, and is held up until
/// other threads have recovered that merge and split the merged segment again. No entry refers to
/// the old segment any more, which is not damage.
#[test]
fn what_was_merged_away_and_split_again_is_no_damage() {
    let (sim, pool, index, wide) = with_wide_halves();
    let halves = [wide[0], wide[1]].map(|key| index.locate(key));
    for key in &wide {
        assert!(index.remove(*key, &pool.pin()).unwrap().removed());
    }
    assert_eq!(index.locate(wide[0]), index.locate(wide[1]));
    drop((index, pool));
    let (pool, index) = reopened::<TinyLine>(&sim);
    let guard = pool.pin();
    for &key in &wide {
        index.insert(key, key, &guard).unwrap();
    }
    assert_ne!(index.locate(wide[0]), index.locate(wide[1]));
    let merged =
        halves.into_iter().filter(|&half| wide.iter().all(|&key| index.locate(key) != half));
    let merged: Vec<u64> = merged.collect();
    assert!(!merged.is_empty());
    for half in merged {
        index.recover(half).unwrap();
        // If an entry for other hashes refers to the segment, the directory is damaged.
        let entry = index.map.directory.entries().last().unwrap();
        let right = sim.load(entry);
        sim.store(entry, half);
        assert!(index.recover(half).is_err());
        sim.store(entry, right);
    }
    assert!(wide.iter().all(|&key| index.get(key, &guard).unwrap() == Some(key)));
}

/// A process terminates during a split, when only the new segment is durable. The directory entries
/// of the new segment must be durable before an operation returns, and before the prefix of the
/// other half is changed.
#[test]
fn a_split_that_recovery_finds_is_durable_before_it_is_used() {
    for half in [0, 1] {
        let (sim, pool, index, wide) = with_wide_halves();
        let lower = serving(&index, 0);
        let whole = HashPrefix::decode(sim.load(&lower.header.prefix)).unwrap().parent().unwrap();
        let entries = index.map.directory.range(whole.half(1), &index.map.directory.share());
        let upper = sim.load(&entries[0]);
        entries.iter().for_each(|entry| sim.store(entry, index.map.directory.locate(0)));
        sim.store(&lower.header.prefix, whole.encode());
        sim.checkpoint();
        entries.iter().for_each(|entry| sim.store(entry, upper));
        let (first, count) = (sim.offset_of(&entries[0]), entries.len() as u64);
        let prefix = sim.offset_of(&lower.header.prefix);
        assert_eq!(look_up_after_death(&sim, (pool, index), wide[half]), Some(wide[half]));
        are_kept(&sim, sim.slice(first, count).unwrap(), OFFSET);
        for_each_image(&sim, false, |image| {
            let is_whole = word_in(image, prefix) == whole.encode();
            assert!(is_whole || (word_in(image, first) ^ upper) & OFFSET == 0);
        });
    }
}

/// A process has stored records, in a line and in a chain, and has terminated before they were
/// durable.
#[test]
fn a_record_that_recovery_finds_is_durable_before_it_is_used() {
    let (sim, pool, index) = filled((0..7).map(|n| key(n, 0)));
    let segment = serving(&index, 0);
    let line = &segment.lines[2];
    let link = chain::links::<Link, _>(&sim, &segment.header.chain).next().unwrap();
    let [found, chained] = [key(8, 2), key(9, 0)];
    sim.checkpoint();
    write::<_, 4, true>(&sim, line, 0, Record { image: found, word: found }, 0);
    sim.store(&link.words[1], chained);
    sim.store(&link.images[1], chained);
    sim.store(&link.next, sim.load(&link.next) | link_bit(1));
    let [line, link] = [&line.words[0], &link.next].map(|word| sim.offset_of(word));
    assert_eq!(look_up_after_death(&sim, (pool, index), found), Some(found));
    is_kept(&sim, sim.at(line).unwrap());
    is_kept(&sim, sim.at(link).unwrap());
}

/// A process has moved a record to its home line, and has terminated when only the original was
/// durable. Recovery drops the original only once the copy is durable.
#[test]
fn a_copy_that_recovery_finds_is_durable_before_the_other_is_dropped() {
    let moved = key(1, 0);
    let (sim, pool, index) = filled([]);
    let [home, other, ..] = &serving(&index, moved).lines;
    let record = Record { image: moved, word: moved };
    place::<_, 4, true>(&sim, other, 0, record, FOREIGN);
    sim.checkpoint();
    write::<_, 4, true>(&sim, home, 0, record, 0);
    let places = [home, other].map(|line| sim.offset_of(&line.keys[0]));
    assert_eq!(look_up_after_death(&sim, (pool, index), moved), Some(moved));
    for_each_image(&sim, false, |image| {
        assert!(places.iter().any(|&at| word_in(image, at) & VALID != 0));
    });
}

/// The depth from which on segments of four lines determine the top bits of their records.
const DEEP: u32 = 10;
/// The bit of an image by which the last shallow segments are divided.
const LAST: u64 = 1 << (64 - DEEP);

/// Creates an index of shallow segments that become deep when they are split. Also returns keys
/// that are in the first of them, of both halves: one more with the home line 0 splits it.
fn with_shallow_segment() -> (Sim, Arc<Pool<Sim>>, TinyLine, Vec<u64>) {
    let config = Config { initial_depth: DEEP - 1 };
    let (sim, pool, index) = created::<TinyLine>(CAPACITY, config);
    let keys: Vec<u64> =
        (0..8).map(|n| key(n, if n < 6 { n % 2 } else { 2 }) | (n % 3 % 2 * LAST)).collect();
    for &key in &keys {
        index.insert(key, key, &pool.pin()).unwrap();
    }
    assert!(are_shallow(&index, &keys, true));
    (sim, pool, index, keys)
}

/// Returns whether all lines of the segments of these keys are as in a shallow segment, or all as
/// in one that is not.
fn are_shallow(index: &TinyLine, keys: &[u64], shallow: bool) -> bool {
    let lines = keys.iter().flat_map(|&key| &serving(index, key).lines);
    lines.into_iter().all(|line| holds_tops(index.medium().load(&line.keys[3])) == shallow)
}

/// As long as a segment is shallow its lines hold the bits by which it is divided. They are needed
/// until no record of the other half is left, whenever a crash interrupts the split.
#[test]
fn the_split_of_a_shallow_segment_survives_crashes() {
    let (sim, pool, index, keys) = with_shallow_segment();
    let last = key(8, 0);
    record(&sim, || assert!(index.insert(last, last, &pool.pin()).unwrap().inserted()));
    assert_eq!(prefix_at::<Header, _>(&sim, index.locate(last)).unwrap().depth, DEEP);
    assert!(are_shallow(&index, &keys, false));
    survives_everywhere(&sim, &keys, last);
}

/// Checks that every crash during the recorded insertion of `last` leaves each of the other keys
/// once, and `last` at most once.
fn survives_everywhere(sim: &Sim, keys: &[u64], last: u64) {
    for_each_image(sim, false, |image| {
        let sim = Sim::from_image(image.bytes, CAPACITY).unwrap();
        let (pool, index) = reopened::<TinyLine>(&sim);
        let guard = pool.pin();
        for &key in keys {
            assert_eq!(index.get(key, &guard).unwrap(), Some(key), "{key:x}");
            assert_eq!(index.get(key ^ LAST, &guard).unwrap(), None, "{key:x}");
        }
        let found = index.get(last, &guard).unwrap();
        assert!(found == Some(last) || found.is_none() && !image.point.completed(0));
        assert_eq!(index.check(), Vec::<String>::new());
        let mut shown = Vec::new();
        index.for_each(&guard, &mut |key, _| (shown.push(key), true).1).unwrap();
        shown.sort_unstable();
        let mut expected: Vec<u64> = keys.iter().copied().chain(found).collect();
        expected.sort_unstable();
        assert_eq!(shown, expected);
    });
}

/// Two segments that determine the top bits are merged to one that does not.
#[test]
fn a_merge_makes_a_shallow_segment() {
    let (_sim, pool, index, keys) = with_shallow_segment();
    let guard = pool.pin();
    let last = key(8, 0);
    index.insert(last, last, &guard).unwrap();
    let (stay, go) = keys.split_at(2);
    for &key in go.iter().chain([&last]) {
        assert!(index.remove(key, &guard).unwrap().removed());
    }
    assert!(are_shallow(&index, stay, true));
    assert!(stay.iter().all(|&key| index.get(key, &guard).unwrap() == Some(key)));
    assert_eq!(index.check(), Vec::<String>::new());
}

/// Damage has changed what marks the fourth slot of a line of a shallow segment: recovery marks it
/// again, and no record is lost. It also frees the slot of a segment that is not shallow.
#[test]
fn recovery_corrects_the_marks_of_shallow_segments() {
    let (sim, pool, index, keys) = with_shallow_segment();
    let lines = &serving(&index, keys[0]).lines;
    let marks = [0, VALID, TAG | VALID | FOREIGN];
    for (line, mark) in lines.iter().zip(marks) {
        sim.store(&line.keys[3], mark);
    }
    let last = key(8, 0);
    drop((index, pool));
    let (pool, index) = reopened::<TinyLine>(&sim);
    let guard = pool.pin();
    assert!(keys.iter().all(|&key| index.get(key, &guard).unwrap() == Some(key)));
    assert!(are_shallow(&index, &keys, true));
    index.insert(last, last, &guard).unwrap();
    sim.store(&serving(&index, last).lines[3].keys[3], FOREIGN);
    drop(guard);
    drop((index, pool));
    let (pool, index) = reopened::<TinyLine>(&sim);
    assert!(keys.iter().all(|&key| index.get(key, &pool.pin()).unwrap() == Some(key)));
    assert!(are_shallow(&index, &keys, false));
}

/// A page of a segment was overwritten with zeros, which look like lines without records.
#[test]
fn a_page_of_zeros_is_noticed() {
    const PAGE: u64 = 4096;
    // The segments of the first are shallow.
    for records in [3000, 15_000] {
        let (sim, pool, index) =
            created::<SmallLineHash<u64, Sim>>(4 * CAPACITY, Config::default());
        for key in 0..records {
            index.insert(key, key, &pool.pin()).unwrap();
        }
        let page = (index.locate(0) + 1).next_multiple_of(PAGE);
        for at in (page..page + PAGE).step_by(8) {
            sim.store(sim.at::<PmU64>(at).unwrap(), 0);
        }
        drop((index, pool));
        let (pool, index) = reopened::<SmallLineHash<u64, Sim>>(&sim);
        let guard = pool.pin();
        assert!((0..records).any(|key| index.get(key, &guard).unwrap().is_none()));
        assert!(!index.check().is_empty());
    }
}
