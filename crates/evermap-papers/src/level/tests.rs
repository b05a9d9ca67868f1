//! States that crashes seldom leave, constructed.

use std::ops::ControlFlow;
use std::sync::Arc;

use evermap_index::testkit::crash_states::{self, is_durable_once_served, word_in};
use evermap_index::{Index, Persistent};
use evermap_pm::medium::Note;
use evermap_pm::sim::schedule::Schedule;
use evermap_pm::sim::{self, Image, ImageConfig, Mutation, Sim, Strategy};
use evermap_pm::{Medium, PmU64, Pool};

use super::bucket::{KeyHashes, Probe, Record, write};
use super::layout::{BUCKET_BYTES, Bucket, CheckedOffset, OFFSET, Root};
use super::levels::{first_index, home_index, region_bits, second_index};
use super::{Config, Geometry, Locking, Resize, Sizes, Tiny, stripe};

const CAPACITY: u64 = 128 << 10;
const GARBAGE: u64 = u64::MAX;
/// The level by which a new index grows.
const NEXT: u32 = 3;
/// The number of buckets in a chunk of that level.
const IN_CHUNK: u64 = 4;

type Parts = (Sim, Arc<Pool<Sim>>, Tiny<u64, Sim>);

/// Creates an index in memory that does not record yet.
fn created() -> Parts {
    let config = Config { top_level: NEXT - 1, resize: Resize::Incremental, ..Config::default() };
    crash_states::created(CAPACITY, config)
}

/// Opens the index as the next process does after this one has died.
fn reopen(sim: Sim) -> Parts {
    let (pool, index) = crash_states::reopened(&sim);
    (sim, pool, index)
}

/// Inserts keys until `done` returns `true`.
fn insert_until((_, pool, index): &Parts, done: impl Fn() -> bool) {
    let mut keys = 0..100;
    while !done() {
        let key = keys.next().expect("a hundred keys are enough");
        index.upsert(key, key, &pool.pin()).unwrap();
    }
}

/// Fills blocks with garbage, and frees them.
fn fill_with_garbage((sim, pool, _): &Parts, blocks: &[u64], bytes: u64) {
    for &block in blocks {
        let words = sim.slice::<PmU64>(block, bytes / 8).unwrap();
        words.iter().for_each(|word| sim.store(word, GARBAGE));
        pool.free_unpublished(block);
    }
}

/// Records `work`, and calls `check` with every image that a crash can leave, and whether `work`
/// was complete.
fn crash(sim: &Sim, work: impl FnOnce(), mut check: impl FnMut(&Image<'_>, bool)) {
    sim.note(Note::Begin(0));
    work();
    sim.note(Note::End(0));
    let mut after = 0;
    sim::for_each_image(&sim.trace(), &ImageConfig::default(), |image| {
        let done = image.point.completed(0);
        after += u32::from(done);
        check(image, done);
        ControlFlow::Continue(())
    });
    assert!(after > 0);
}

/// Returns the offset of the root's entry for the next level.
fn next_level((sim, _, index): &Parts) -> u64 {
    sim.offset_of(&sim.at::<Root>(index.root).unwrap().levels[NEXT as usize])
}

/// Returns the offsets of the entries of a table that name its chunks, with their tags.
fn chunks(named: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..(1 << NEXT) / IN_CHUNK)
        .map(move |chunk| (named & OFFSET) + chunk * 8)
        .zip((0..).map(|chunk| CheckedOffset::chunk(NEXT, chunk)))
}

/// The memory of a level was used for something else before, for example a table whose chunks are
/// in use by others. So the table is empty, durably, before the root names it, and so are the
/// buckets before they count.
#[test]
fn a_level_is_durable_before_it_is_named() {
    let parts = created();
    let (sim, pool, index) = &parts;
    let (of_table, of_chunk) = ((1 << NEXT) / IN_CHUNK * 8, IN_CHUNK * BUCKET_BYTES);
    let tables: Vec<u64> = std::iter::from_fn(|| pool.allocate(of_table).ok()).collect();
    let space: Vec<u64> = std::iter::from_fn(|| pool.allocate_fixed(of_chunk).ok()).collect();
    fill_with_garbage(&parts, &tables, of_table);
    fill_with_garbage(&parts, &space, of_chunk);
    sim.checkpoint();
    let (root, mut lives) = (next_level(&parts), 0);
    let grow = || insert_until(&parts, || index.levels.view().growing);
    crash(sim, grow, |image, _| {
        let named = word_in(image, root);
        if named == 0 {
            return;
        }
        assert!(tables.contains(&(named & OFFSET)));
        let live = CheckedOffset(named).offset(CheckedOffset::live(NEXT)).is_some();
        lives += u32::from(live);
        for (at, tag) in chunks(named) {
            let chunk = CheckedOffset(word_in(image, at));
            assert!(chunk.offset(tag).is_some() || chunk == CheckedOffset(0) && !live, "{chunk:?}");
            assert!(chunk == CheckedOffset(0) || space.contains(&(chunk.0 & OFFSET)));
            for bucket in (0..IN_CHUNK).filter(|_| live) {
                let bucket: &Bucket = sim.at((chunk.0 & OFFSET) + bucket * BUCKET_BYTES).unwrap();
                for tokens in [&bucket.meta, &bucket.tokens] {
                    assert_ne!(word_in(image, sim.offset_of(tokens)), GARBAGE);
                }
            }
        }
    });
    assert!(lives > 0);
}

/// A process dies after it has allocated chunks for the next level, before they are durable. The
/// next process uses the same chunks.
#[test]
fn chunks_that_a_process_left_are_durable_before_the_level_is_live() {
    let parts = created();
    let root = next_level(&parts);
    let (sim, pool, index) = parts;
    index.levels.begin_preparation(NEXT).unwrap();
    index.levels.extend(NEXT, 0, 1 << NEXT).unwrap();
    drop((index, pool));
    let named = sim.load(sim.at::<PmU64>(root).unwrap());
    let entries: Vec<&PmU64> = chunks(named).map(|(at, _)| sim.at(at).unwrap()).collect();
    let left: Vec<u64> = entries.iter().map(|entry| sim.load(entry)).collect();
    entries.iter().for_each(|entry| sim.store(entry, 0));
    sim.checkpoint();
    entries.iter().zip(&left).for_each(|(entry, &chunk)| sim.store(entry, chunk));
    let parts = reopen(sim.clone());
    let grow = || insert_until(&parts, || parts.2.levels.view().growing);
    crash(&sim, grow, |image, _| {
        let live = CheckedOffset(word_in(image, root)).offset(CheckedOffset::live(NEXT)).is_some();
        for (&entry, &chunk) in entries.iter().zip(&left) {
            assert!(!live || word_in(image, sim.offset_of(entry)) == chunk);
        }
    });
}

/// A process dies after it has stored the levels and a record, before any of that is durable.
#[test]
fn what_recovery_finds_is_durable_before_it_is_used() {
    let (sim, pool, index) = created();
    index.insert(0, 7, &pool.pin()).unwrap();
    let Probe { hashes, .. } = Probe::<u64>::new(0, pool.seed());
    let (view, root) = (index.levels.view(), sim.at::<Root>(index.root).unwrap());
    let levels = &root.levels[view.lowest() as usize..=view.highest() as usize];
    let homes =
        (view.lowest()..=view.highest()).flat_map(|at| index.levels.pair(at, hashes).unwrap());
    let holds = |bucket: &&Bucket| sim.load(&bucket.near[0].word) == 7;
    let home = homes.map(|site| site.bucket).find(holds).unwrap();
    let words = levels.iter().chain([&home.meta, &home.near[0].key, &home.near[0].word]);
    let words: Vec<u64> = words.map(|word| sim.offset_of(word)).collect();
    is_durable_once_served(&sim, (pool, index), &words, 0);
}

/// A crash has left a record in two buckets, and a walk drops the second. If that were lost after
/// another thread has removed the first, the record would be back.
#[test]
fn a_copy_that_is_dropped_is_gone_for_good() {
    let (sim, pool, index) = created();
    index.insert(0, 7, &pool.pin()).unwrap();
    let Probe { slot_key, hashes, .. } = Probe::<u64>::new(0, pool.seed());
    let [copy, _] = index.levels.pair(index.levels.view().lowest(), hashes).unwrap();
    write(&sim, copy.bucket, 0, Record { slot_key, word: 7, hashes });
    let tokens = sim.offset_of(&copy.bucket.meta);
    drop((index, pool));
    sim.checkpoint();
    let (sim, pool, index) = reopen(sim);
    // Recovers all buckets, so that the walk recovers none, which would hide its own effect.
    let view = index.levels.view();
    for level in view.lowest()..=view.highest() {
        for bucket in 0..1 << level {
            index.ensure_recovered(index.levels.site(level, bucket).unwrap()).unwrap();
        }
    }
    let walk = || assert_eq!(index.stats(&pool.pin()).unwrap().len, 1);
    crash(&sim, walk, |image, done| assert!(!done || word_in(image, tokens) & 1 == 0));
}

/// A key stays within its part of the hashes in all levels. Its first bucket is a home, and its
/// second is not.
#[test]
fn both_buckets_of_a_key_are_in_its_region() {
    type G = Sizes<4, 2>;
    for hash in (0..2000u64).map(|key| key.wrapping_mul(0x2545_f491_4f6c_dd1d)) {
        let hashes = KeyHashes::of(hash);
        for level in 1..20 {
            let bits = region_bits(level, G::CHUNK_LOG);
            let (first, second) =
                (first_index::<G>(hashes, level), second_index::<G>(hashes, level));
            assert!((0..1 << (level - 1)).any(|n| home_index::<G>(n, level) == first) || level > 9);
            for bucket in [first, second] {
                // `level - bits` may be 0.
                assert_eq!(bucket >> bits, hashes.first >> 1 >> (63 - (level - bits)));
            }
            let upper = |bucket: u64| bucket >> (bits - 1) & 1 == 1;
            assert!(!upper(first) && upper(second));
        }
    }
}

/// L7: a process dies while its threads hold and share the locks of stripes, and the next one finds
/// these words.
#[test]
fn locks_of_stripes_end_with_their_process() {
    const KEYS: u64 = 10;
    let config = Config { top_level: 2, resize: Resize::Blocking, locking: Locking::Striped };
    let parts: Parts = crash_states::created(CAPACITY, config);
    let (sim, pool, index) = &parts;
    (0..KEYS).for_each(|key| assert!(index.insert(key, key, &pool.pin()).unwrap().inserted()));
    let view = index.levels.view();
    for level in view.lowest()..=view.highest() {
        for at in 0..1 << level {
            let cell = index.levels.stripe(index.levels.site(level, at).unwrap()).unwrap();
            // The first bucket of each stripe comes first.
            assert!(!stripe::share(sim, cell, pool.generation()) || stripe::has_readers(sim, cell));
            stripe::try_lock(sim, cell, pool.generation());
        }
    }
    let sim = parts.0.clone();
    drop(parts);
    let (_sim, pool, index) = reopen(sim);
    for key in 0..KEYS {
        assert_eq!(index.get(key, &pool.pin()).unwrap(), Some(key));
        assert!(index.remove(key, &pool.pin()).unwrap().removed());
    }
}

/// Walks over the index while records move and the table grows concurrently. Returns the number of
/// schedules in which the walk did not show exactly once each record that was present throughout.
fn walk_beside_growth(mistake: Option<Mutation>) -> usize {
    const ORDERS: u64 = 200;
    const THERE: u64 = 150;
    let is_wrong = |&seed: &u64| {
        let config = Config { top_level: 2, resize: Resize::Incremental, ..Config::default() };
        let (sim, pool, index): (_, _, Tiny<u64, Sim>) = crash_states::created(1 << 20, config);
        (0..THERE).for_each(|key| {
            index.insert(key, key, &pool.pin()).unwrap();
        });
        sim.mutate(mistake);
        sim.set_schedule(Schedule { strategy: Strategy::Mixed, seed });
        let (index, pool, mut shown) = (&index, &pool, [0; THERE as usize]);
        let walk = || {
            let mut from = Some(0);
            while let Some(here) = from {
                let mut count = |key: u64, _| {
                    if let Some(times) = shown.get_mut(key as usize) {
                        *times += 1;
                    }
                };
                let (unit, next) = index.scan(here, &pool.pin(), &mut count);
                unit.unwrap();
                from = next;
            }
        };
        let grow = move || {
            (THERE..THERE + 150).for_each(|key| {
                index.insert(key, key, &pool.pin()).unwrap();
            });
        };
        sim.in_parallel(vec![Box::new(walk), Box::new(grow)]);
        shown != [1; THERE as usize]
    };
    (0..ORDERS).filter(is_wrong).count()
}

/// Records do not move among the buckets that a walk copies, so each is shown exactly once.
#[test]
fn a_walk_shows_each_record_once_while_others_move() {
    assert_eq!(walk_beside_growth(None), 0);
    assert!(walk_beside_growth(Some(Mutation::Planted("LV-16"))) > 0);
}
