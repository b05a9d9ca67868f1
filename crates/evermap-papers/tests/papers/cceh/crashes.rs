//! Single operations, crashed at every point at which other implementations lose something.

use std::ops::ControlFlow;

use evermap_index::testkit::tier;
use evermap_pm::PmU64;
use evermap_pm::medium::{Counter, Note};
use evermap_pm::sim::{Event, Image, ImageConfig, Sim, for_each_image};

use super::*;

const CAPACITY: u64 = 128 << 10;

/// Returns keys that make a directory of 64 entries in eight lines. Half of the entries belong to
/// one segment whose first window is full, and half of its records move when it is split.
fn before_a_wide_split() -> Vec<u64> {
    let deepening = (0..8).map(|n| key(0b100000, 6, n)).chain([key(0b100001, 6, 0)]);
    let moving = (0..2).flat_map(|n| [key(0b0100, 4, n), key(0b0110, 4, n)]);
    deepening.chain((0..4).map(|n| key(0b000, 3, n))).chain(moving).collect()
}

/// The key that finds the window full, and the number of one that stays when the segment is split.
const ONE_MORE: u64 = 0b0101 << 60 | 9 << 2;
const STAYING: usize = 9;

/// Creates an index with these keys on a simulator that records from now on.
fn recorded(keys: &[u64]) -> (Sim, Arc<Pool<Sim>>, Chosen<Sim>) {
    let sim = Sim::new(CAPACITY).unwrap();
    sim.pause();
    let pool = Pool::create(sim.clone(), &region(4096, CAPACITY), Identity::default()).unwrap();
    let index = Chosen::create(pool.clone(), pool.root(0), Config::default()).unwrap();
    put(&index, &pool, keys);
    sim.checkpoint();
    (sim, pool, index)
}

/// Calls `each` with every image that a crash of the recording may leave. Returns their number.
fn each_crash(sim: &Sim, mut each: impl FnMut(&Image<'_>)) -> u64 {
    let config = ImageConfig { per_point: 400, ..ImageConfig::default() };
    let visit = |image: &Image<'_>| {
        each(image);
        ControlFlow::Continue(())
    };
    for_each_image(&sim.trace(), &config, visit).images
}

/// Opens the index that a crash has left.
fn after(image: &Image<'_>) -> (Arc<Pool<Sim>>, Chosen<Sim>, Sim) {
    let sim = Sim::from_image(image.bytes, CAPACITY).unwrap();
    sim.set_budget(200_000);
    let pool = reopen(sim.clone());
    let index = Chosen::open(pool.clone(), pool.root(0)).unwrap();
    (pool, index, sim)
}

/// Asserts that all of `keys` are present, with their positions as words.
fn assert_there(index: &Chosen<Sim>, pool: &Pool<Sim>, keys: &[u64]) {
    for (word, &key) in keys.iter().enumerate() {
        let found = index.get(key, &pool.pin()).unwrap();
        assert_eq!(found, Some(word as u64), "key {key:#x}");
    }
}

/// Makes the upper half of the wide segment split, by keys of its first directory entry and of one
/// in its middle. Nothing accesses the lower half.
fn split_the_upper_half(index: &Chosen<Sim>, pool: &Pool<Sim>) {
    for number in 10..16 {
        for entry in [0b0100, 0b0110] {
            index.upsert(key(entry, 4, number), 7, &pool.pin()).unwrap();
        }
    }
}

/// Makes the lower half of the wide segment split twice, by keys that belong only there.
fn split_the_lower_half(index: &Chosen<Sim>, pool: &Pool<Sim>) {
    let before = index.stats(&pool.pin()).unwrap().splits;
    let crowd = (30..34).map(|number| key(0b0000, 4, number));
    for key in crowd.chain([key(0b0010, 4, 20), key(0b0001, 4, 21)]) {
        index.upsert(key, 7, &pool.pin()).unwrap();
    }
    assert_eq!(index.stats(&pool.pin()).unwrap().splits, before + 2);
}

/// CC-1, CC-2, C1, C11: depth, pattern and directory change together. Other implementations persist
/// the old segment's depth or pattern before the directory. After a crash it is then deeper than
/// the directory, or its keys are unreachable, and lookups never end.
///
/// Each image is accessed in four orders, because recovery is lazy: whatever is accessed first must
/// be right.
#[test]
fn cc1_cc2_a_split_is_all_or_nothing() {
    let keys = before_a_wide_split();
    let (sim, pool, index) = recorded(&keys);
    let splits = index.stats(&pool.pin()).unwrap().splits;
    index.insert(ONE_MORE, 1, &pool.pin()).unwrap();
    let stats = index.stats(&pool.pin()).unwrap();
    assert_eq!((stats.splits, stats.depth), (splits + 1, 6), "a range of 16 entries changes");
    let mut unfinished = 0;
    let images = each_crash(&sim, |image| {
        for way in 0..4 {
            let (pool, index, _) = after(image);
            match way {
                0 => assert_there(&index, &pool, &keys),
                1 => assert_sound(&index, &pool),
                // The new segment is recovered, changed and split before the old one is accessed.
                2 => split_the_upper_half(&index, &pool),
                // The reverse order.
                _ => {
                    let lower = index.get(keys[STAYING], &pool.pin()).unwrap();
                    assert_eq!(lower, Some(STAYING as u64));
                    split_the_upper_half(&index, &pool);
                }
            }
            assert_there(&index, &pool, &keys);
            assert_sound(&index, &pool);
            let stats = index.stats(&pool.pin()).unwrap();
            unfinished += u64::from(way == 2 && stats.splits > 0 && stats.depth == 6);
        }
    });
    assert!(images > 50 && unfinished > 0, "{images} images, {unfinished} with a later split");
}

/// The same if the directory doubles.
#[test]
fn cc1_a_doubling_is_all_or_nothing() {
    // A full window in the segment of one directory entry; half of the records move.
    let keys: Vec<u64> = (0..4).flat_map(|n| [key(0b00, 2, n), key(0b01, 2, n)]).collect();
    let (sim, pool, index) = recorded(&keys);
    assert_eq!(index.stats(&pool.pin()).unwrap().depth, 1);
    index.insert(key(0b01, 2, 9), 1, &pool.pin()).unwrap();
    assert_eq!(index.stats(&pool.pin()).unwrap().depth, 2);
    let mut doubled = 0;
    let images = each_crash(&sim, |image| {
        let (pool, index, _) = after(image);
        doubled += u64::from(index.stats(&pool.pin()).unwrap().depth == 2);
        assert_there(&index, &pool, &keys);
        assert_sound(&index, &pool);
    });
    assert!(images > 100 && doubled > 0 && doubled < images, "{doubled} of {images} doubled");
}

/// A second crash, while other splits follow the one that the first crash interrupted: recovery
/// must have made durable what it repaired, or two splits of the lower half would be unfinished.
#[test]
fn c1_a_recovered_split_is_durable_before_the_next() {
    let keys = before_a_wide_split();
    let (sim, pool, index) = recorded(&keys);
    index.insert(ONE_MORE, 1, &pool.pin()).unwrap();
    let mut nested = 0;
    each_crash(&sim, |image| {
        // Only crashes after which the old segment's prefix or its range is unfinished.
        let (pool, index, sim) = after(image);
        let recorded = sim.recorded();
        index.get(keys[STAYING], &pool.pin()).unwrap();
        let repairs = sim.trace().records()[recorded..]
            .iter()
            .any(|record| matches!(record.event, Event::Store { transient: false, .. }));
        if !repairs {
            return;
        }
        split_the_lower_half(&index, &pool);
        let config = ImageConfig { per_point: tier().choose(2, 12), ..ImageConfig::default() };
        for_each_image(&sim.trace(), &config, |second| {
            let (pool, index, _) = after(second);
            assert_there(&index, &pool, &keys);
            assert_sound(&index, &pool);
            nested += 1;
            ControlFlow::Continue(())
        });
    });
    assert!(nested > 1000, "{nested} images of second crashes");
}

/// Consecutive splits: when one begins, the previous one is durable to the last entry of its range.
#[test]
fn c1_only_the_last_split_is_ever_unfinished() {
    let keys = before_a_wide_split();
    let (sim, pool, index) = recorded(&keys);
    index.insert(ONE_MORE, 1, &pool.pin()).unwrap();
    split_the_lower_half(&index, &pool);
    let images = each_crash(&sim, |image| {
        let (pool, index, _) = after(image);
        assert_there(&index, &pool, &keys);
        assert_sound(&index, &pool);
    });
    assert!(images > 200, "{images}");
}

/// CC-3, C2: a crash in an insert must not lose a slot. Other implementations claim it with a
/// reserved key, which is never removed.
#[test]
fn cc3_no_slot_is_lost() {
    let window = |count: u64| (0..count).map(|number| key(0b01, 2, number)).collect::<Vec<_>>();
    let (sim, pool, index) = recorded(&window(3));
    index.insert(key(0b01, 2, 50), 50, &pool.pin()).unwrap();
    index.remove(key(0b01, 2, 1), &pool.pin()).unwrap();
    index.update(key(0b01, 2, 0), 9, &pool.pin()).unwrap();
    index.insert(key(0b01, 2, 51), 51, &pool.pin()).unwrap();
    let images = each_crash(&sim, |image| {
        let (pool, index, _) = after(image);
        let held = index.stats(&pool.pin()).unwrap().len;
        for number in 60..60 + (8 - held) {
            index.insert(key(0b01, 2, number), 1, &pool.pin()).unwrap();
        }
        let stats = index.stats(&pool.pin()).unwrap();
        assert_eq!((stats.len, stats.splits), (8, 0), "the window holds eight");
    });
    assert!(images > 20, "{images}");
}

/// CC-6, CC-7: an index that is being created is not visible before it is durable, and a crash in
/// the middle leaks no blocks.
#[test]
fn cc6_cc7_creation_is_all_or_nothing_and_nothing_leaks() {
    let sim = Sim::new(CAPACITY).unwrap();
    sim.pause();
    let pool = Pool::create(sim.clone(), &region(4096, CAPACITY), Identity::default()).unwrap();
    sim.checkpoint();
    let config = Config { initial_depth: 2, recovery: Recovery::Eager, ..Config::default() };
    sim.note(Note::Begin(0));
    let index = Chosen::create(pool.clone(), pool.root(0), config).unwrap();
    sim.note(Note::End(0));
    index.insert(5, 6, &pool.pin()).unwrap();
    let mut complete = 0;
    let images = each_crash(&sim, |image| {
        let sim = Sim::from_image(image.bytes, CAPACITY).unwrap();
        let pool = reopen(sim.clone());
        if sim.load(pool.root(0)) != 0 {
            complete += 1;
            let index = Chosen::open(pool.clone(), pool.root(0)).unwrap();
            let stats = index.stats(&pool.pin()).unwrap();
            assert_eq!((stats.segments, stats.depth), (4, 2));
            assert!(stats.len == 0 || index.get(5, &pool.pin()).unwrap() == Some(6));
            assert_sound(&index, &pool);
        } else {
            assert!(!image.point.completed(0), "creation had returned");
            pool.sweep(|_| Ok(())).unwrap();
            assert_eq!(pool.allocated(), [], "nothing is reachable");
        }
    });
    assert!(complete > 0 && complete < images, "{complete} of {images}");
}

/// C4, C16: slots of moved records are reused only when the move is durable.
#[test]
fn c16_moved_records_are_overwritten_only_when_the_move_is_durable() {
    let keys = before_a_wide_split();
    let (sim, pool, index) = recorded(&keys);
    index.insert(ONE_MORE, 1, &pool.pin()).unwrap();
    // Into the slots of the lower half that the split has freed.
    let late: Vec<u64> = (100..104).map(|number| key(0b000, 3, number)).collect();
    for &key in &late {
        index.insert(key, 8, &pool.pin()).unwrap();
    }
    let mut late_ones = 0;
    each_crash(&sim, |image| {
        let (pool, index, _) = after(image);
        assert_there(&index, &pool, &keys);
        late_ones +=
            late.iter().filter(|&&k| index.get(k, &pool.pin()).unwrap() == Some(8)).count();
        assert_sound(&index, &pool);
    });
    assert!(late_ones > 0);
}

/// C9, C10: whatever state a crash leaves the locks in, no thread waits for them. Eager recovery,
/// which the paper's code does only in part, makes every segment usable.
#[test]
fn c9_locks_of_ended_processes_do_not_count() {
    for recovery in [Recovery::Lazy, Recovery::Eager] {
        for locking in LOCKINGS {
            let sim = Sim::new(CAPACITY).unwrap();
            let pool =
                Pool::create(sim.clone(), &region(4096, CAPACITY), Identity::default()).unwrap();
            let config = Config { locking, recovery, ..Config::default() };
            let index = Chosen::create(pool.clone(), pool.root(0), config).unwrap();
            let keys = before_a_wide_split();
            put(&index, &pool, &keys);
            let mut segments = Vec::new();
            index.visit(&mut Blocks(&mut |block| segments.push(block))).unwrap();
            drop((index, pool));
            // Locked, shared by many readers, with some version, by this generation.
            for &segment in &segments[2..] {
                let lock = sim.at::<PmU64>(segment).unwrap();
                sim.store(lock, sim.load(lock) | 0xabcd_ffff_0000);
            }
            sim.set_budget(1_000_000);
            let pool = reopen(sim.clone());
            let index = Chosen::open(pool.clone(), pool.root(0)).unwrap();
            let recovered = index.stats(&pool.pin()).unwrap().recovered;
            assert_eq!(recovered, segments.len() as u64 - 2);
            assert_there(&index, &pool, &keys);
            assert!(index.insert(ONE_MORE, 1, &pool.pin()).unwrap().inserted());
            assert_sound(&index, &pool);
        }
    }
}

/// Opening reads the same number of lines for any size if recovery is lazy, and a line of every
/// segment if it is eager.
#[test]
fn lazy_opening_reads_the_same_whatever_the_size() {
    let lines = |keys: u64, recovery| {
        let capacity = 1 << 26;
        let counter = Arc::new(Counter::default());
        let memory = Sim::in_memory(capacity).unwrap().observed_by(counter.clone());
        let pool = Pool::create(memory, &region(4096, capacity), Identity::default());
        let pool = pool.unwrap();
        let config = Config { recovery, ..Config::default() };
        let index = Tiny::<u64, _>::create(pool.clone(), pool.root(0), config).unwrap();
        for key in 0..keys {
            index.insert(key, key, &pool.pin()).unwrap();
        }
        let segments = index.stats(&pool.pin()).unwrap().segments;
        drop(index);
        counter.reset();
        counter.begin_op();
        let index = Tiny::<u64, _>::open(pool.clone(), pool.root(0)).unwrap();
        counter.end_op();
        let lines = counter.counts().lines_read;
        assert_eq!(index.get(5, &pool.pin()).unwrap(), Some(5));
        (lines, segments)
    };
    let (few, _) = lines(50, Recovery::Lazy);
    let (many, _) = lines(20_000, Recovery::Lazy);
    assert_eq!(few, many);
    assert!(many < 8, "{many}");
    let (eager, segments) = lines(20_000, Recovery::Eager);
    assert!(eager > segments, "{eager} lines of {segments} segments");
}
