//! States that crashes seldom leave, constructed.

use std::sync::Arc;

use evermap_index::key::Key;
use evermap_index::testkit::crash_states::{
    self, for_each_image, is_durable_once_served, is_kept, record, word_in,
};
use evermap_index::{Action, Index, MutateMode, Persistent};
use evermap_pm::error::ErrorKind;
use evermap_pm::sim::{Mutation, Sim};
use evermap_pm::{Medium, PmU64, Pool};

use super::super::additions::Additions;
use super::super::group::Stored;
use super::super::image::{Item, home};
use super::super::layout::{COMMIT, GROUP_WORD, Kind, LINK, Named, Root, Shape};
use super::super::place::{Division, State};
use super::super::{Config, Sizes, Tiny, TinySizes, Tranche};

const CAPACITY: u64 = 128 << 10;

type Parts = (Sim, Arc<Pool<Sim>>, Tiny<u64, Sim>);

fn created() -> Parts {
    crash_states::created(CAPACITY, Config { initial_depth: 0 })
}

/// Returns the record of a key.
fn stored<'i>(index: &'i Tiny<u64, Sim>, key: u64) -> Stored<'i> {
    let hash = <u64 as Key>::hash(key, index.table.seed);
    let group = index.table.arrays.group(index.table.group_of(hash)).unwrap();
    let is_it = |stored: &Stored<'_>| index.table.medium().load(&stored.payload[0]) == key;
    index.table.groups().find(group, hash, is_it).unwrap().unwrap()
}

/// Opens an image as a file, and checks that it has exactly these keys, each with itself as word.
fn check_image(bytes: &[u8], keys: std::ops::Range<u64>) {
    let sim = Sim::from_image(bytes, CAPACITY).unwrap();
    let (pool, index) = crash_states::reopened::<Tiny<u64, Sim>>(&sim);
    for key in keys.clone() {
        assert_eq!(index.get(key, &pool.pin()).unwrap(), Some(key));
    }
    assert_eq!(index.check(), Vec::<String>::new());
    let len = index.stats(&pool.pin()).unwrap().len;
    assert!(len == keys.end || len == keys.end + 1, "{len} keys");
}

/// A crash at any point of a move, from each state of a growing and of a shrinking table, loses and
/// duplicates nothing.
#[test]
fn every_move_is_crashed_everywhere() {
    let (sim, pool, index) = created();
    const KEYS: u64 = 60;
    for key in 0..KEYS {
        index.insert(key, key, &pool.pin()).unwrap();
    }
    let root = sim.at::<Root>(sim.load(pool.root(0))).unwrap();
    let word = sim.offset_of(&root.state);
    let state = || index.table.arrays.state();
    let (least, most) = (state(), 9);
    let crash = |work: &dyn Fn()| {
        let before = sim.load(&root.state);
        record(&sim, work);
        let (old, new) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
        for_each_image(&sim, false, |image| {
            let count = if word_in(image, word) == before { &old } else { &new };
            count.set(count.get() + 1);
            check_image(image.bytes, 0..KEYS);
        });
        assert!(old.get() > 0 && new.get() > 0);
        assert_eq!(index.check(), Vec::<String>::new());
    };
    while state().count() < most {
        crash(&|| index.table.advance(1, &pool.pin()).unwrap());
    }
    while state() != least {
        crash(&|| index.table.retreat(&pool.pin()).unwrap());
    }
}

/// Recovery that left records where a move has left them, or both records that a return to a home
/// has left, would be noticed.
#[test]
fn what_moves_leave_is_noticed() {
    for mistake in ["TM-3", "TM-4"] {
        let (sim, pool, index) = created();
        for key in 0..60 {
            index.insert(key, key, &pool.pin()).unwrap();
        }
        let noticed = std::cell::Cell::new(false);
        while !noticed.get() {
            record(&sim, || index.table.advance(1, &pool.pin()).unwrap());
            for_each_image(&sim, false, |image| {
                let sim = Sim::from_image(image.bytes, CAPACITY).unwrap();
                sim.mutate(Some(Mutation::Planted(mistake)));
                let (_, index) = crash_states::reopened::<Tiny<u64, Sim>>(&sim);
                noticed.set(noticed.get() || !index.check().is_empty());
            });
            assert!(index.table.arrays.state().count() < 20, "{mistake} is not noticed");
        }
    }
}

/// Growth that is asked for is crashed everywhere, and completed afterwards.
#[test]
fn rehashing_is_crashed_everywhere() {
    let (sim, pool, index) = created();
    const KEYS: u64 = 20;
    for key in 0..KEYS {
        index.insert(key, key, &pool.pin()).unwrap();
    }
    let state = || index.table.arrays.state();
    assert_eq!(index.rehash_step(0).unwrap(), 0);
    while index.rehash_step(1).unwrap() > 0 {}
    assert_eq!((state().moved, index.rehash_all().unwrap()), (0, 0));
    // As an insertion does that a group is too full for.
    index.table.overfull.store(3, std::sync::atomic::Ordering::Relaxed);
    let before = state();
    record(&sim, || assert!(index.rehash_all().unwrap() >= 3));
    assert!(state().count() > before.count() && state().moved == 0);
    assert_eq!(index.check(), Vec::<String>::new());
    for_each_image(&sim, false, |image| {
        let sim = Sim::from_image(image.bytes, CAPACITY).unwrap();
        let (pool, index) = crash_states::reopened::<Tiny<u64, Sim>>(&sim);
        index.rehash_all().unwrap();
        assert_eq!(index.table.arrays.state().moved, 0);
        assert_eq!(index.check(), Vec::<String>::new());
        for key in 0..KEYS {
            assert_eq!(index.get(key, &pool.pin()).unwrap(), Some(key));
        }
    });
}

/// A group is rewritten without its dead records, and crashed everywhere.
#[test]
fn a_rewriting_is_crashed_everywhere() {
    let (sim, pool, index) = created();
    const KEYS: u64 = 14;
    for key in 0..KEYS + 4 {
        index.insert(key, key, &pool.pin()).unwrap();
    }
    for key in KEYS..KEYS + 4 {
        index.remove(key, &pool.pin()).unwrap();
    }
    record(&sim, || {
        let mut locked = index.table.lock(0).unwrap();
        index.table.compact(&mut locked, &pool.pin()).unwrap();
    });
    let groups = index.table.groups();
    assert!(!groups.has_dead(index.table.arrays.group(0).unwrap()).unwrap());
    for_each_image(&sim, false, |image| check_image(image.bytes, 0..KEYS));
}

/// A process has allocated a chunk and died before the word that names it was durable. The next
/// process uses the same chunk.
#[test]
fn a_chunk_that_a_process_left_is_durable_before_a_group_in_it_counts() {
    let (sim, pool, index) = created();
    index.insert(7, 7, &pool.pin()).unwrap();
    index.table.arrays.extend_to(1).unwrap();
    let root = sim.load(pool.root(0));
    let header = sim.at::<Root>(root).unwrap();
    let table = Named::Table(1).decode(sim.load(&header.arrays[1])).unwrap();
    let entry = sim.at::<PmU64>(table).unwrap();
    let left = sim.load(entry);
    drop((pool, index));
    sim.store(entry, 0);
    sim.checkpoint();
    sim.store(entry, left);
    let (pool, index) = crash_states::reopened::<Tiny<u64, Sim>>(&sim);
    crash_states::as_operation(&sim, || index.table.advance(1, &pool.pin()).unwrap());
    let split = std::cell::Cell::new(0);
    for_each_image(&sim, false, |image| {
        let word = word_in(image, sim.offset_of(&header.state));
        let state = State::decode(word, Division::of(256, 2)).unwrap();
        if state.count() > 1 {
            assert_eq!(word_in(image, table), left);
            split.set(split.get() + 1);
        }
    });
    assert!(split.get() > 0);
}

/// A thread has allocated the table of an array, and failed then. Another thread adds the first
/// group of the array.
#[test]
fn a_table_that_a_thread_left_is_durable_before_a_group_in_it_counts() {
    let (sim, pool, index) = created();
    index.insert(7, 7, &pool.pin()).unwrap();
    let header = sim.at::<Root>(sim.load(pool.root(0))).unwrap();
    sim.checkpoint();
    std::thread::scope(|scope| {
        scope.spawn(|| index.table.arrays.extend_to(1).unwrap());
    });
    let table = sim.load(&header.arrays[1]);
    assert!(Named::Table(1).decode(table).is_some());
    crash_states::as_operation(&sim, || index.table.advance(1, &pool.pin()).unwrap());
    let counted = std::cell::Cell::new(0);
    for_each_image(&sim, false, |image| {
        let word = word_in(image, sim.offset_of(&header.state));
        if State::decode(word, Division::of(256, 2)).unwrap().count() > 1 {
            assert_eq!(word_in(image, sim.offset_of(&header.arrays[1])), table);
            counted.set(counted.get() + 1);
        }
    });
    assert!(counted.get() > 0);
}

/// A group gets an overflow block for a record that is then not inserted. Other threads may insert
/// records there as soon as the group is unlocked, so the link is durable by then.
#[test]
fn a_link_to_an_overflow_block_is_durable_whatever_comes_of_the_record() {
    use evermap_index::testkit::Coarse;
    type Crowded = Tiny<Coarse, Sim>;
    let (sim, pool, index) =
        crash_states::created::<Crowded>(CAPACITY, Config { initial_depth: 0 });
    let group = || index.table.arrays.group(index.table.group_of(0)).unwrap();
    for key in 0..100 {
        let guard = pool.pin();
        record(&sim, || {
            let keep = &mut |_| Action::Keep;
            index.mutate(key, MutateMode::MayInsert, &guard, keep).unwrap();
        });
        let word = &group().words[LINK * Shape::<TinySizes>::WORDS + GROUP_WORD];
        if sim.load(word) != 0 {
            return is_kept(&sim, word);
        }
        index.insert(key, key, &guard).unwrap();
    }
    unreachable!("a hundred records with one hash need an overflow block");
}

/// A record takes the place of a dead one in a tranche whose fingerprints and entries are in
/// different lines. The fingerprint is durable before the entry.
#[test]
fn a_fingerprint_is_durable_before_a_dead_record_is_replaced() {
    type LargeSizes = Sizes<4096, 2, 0>;
    type Large = Tranche<u64, Sim, LargeSizes>;
    /// The first records whose entries are in the line behind that of their fingerprints.
    const AT: usize = 36;
    let (sim, pool, index) = crash_states::created::<Large>(256 << 10, Config { initial_depth: 0 });
    let (table, groups) = (&index.table, index.table.groups());
    let hash_of = |key: u64| <u64 as Key>::hash(key, table.seed);
    // Keys of one home, which the table does not grow for.
    let mut keys = (0..).filter(|&key| home::<LargeSizes>(hash_of(key)) == 0);
    let mut locked = table.lock_group(0).unwrap();
    let payload = |key: u64| [key, key];
    for key in keys.by_ref().take(Shape::<LargeSizes>::PAIRS) {
        let room = groups.room(locked.group, hash_of(key), Kind::Pair, 2).unwrap().unwrap();
        groups.add(locked.group, &room, hash_of(key), Kind::Pair, &payload(key)).unwrap();
    }
    let tranche = groups.tranche(locked.group, 0).unwrap().unwrap();
    let commit = groups.commit(tranche).unwrap();
    let dead = groups.record(tranche, 0, commit, AT).unwrap();
    let (_, spare) = (groups.kill(locked.group, &dead, table.hash_of(&dead).unwrap()), keys.next());
    let other = groups.record(tranche, 0, commit, 0).unwrap();
    let hash = hash_of(spare.unwrap());
    let before = sim.load(&tranche[Shape::<LargeSizes>::entry_word(AT)]);
    record(&sim, || {
        let mut added = Additions::new(table.groups(), locked.group);
        assert!(added.add(&Item::of(&other, hash), 1).unwrap());
        added.flush();
        sim.fence();
        added.commit();
        sim.fence();
    });
    locked.changed = true;
    let (words, entries) =
        (Shape::<LargeSizes>::fingerprint_word(AT), Shape::<LargeSizes>::entry_word(AT));
    assert_ne!(sim.load(&tranche[entries]), before, "the dead record was replaced");
    let fingerprints = sim.load(&tranche[words]);
    for_each_image(&sim, false, |image| {
        if word_in(image, sim.offset_of(&tranche[entries])) != before {
            assert_eq!(word_in(image, sim.offset_of(&tranche[words])), fingerprints);
        }
    });
    drop(pool);
}

/// Chunks that processes have left behind the last group are freed when the table shrinks.
#[test]
fn a_chunk_that_a_process_left_is_freed() {
    let (_, pool, index) = created();
    let named = || {
        let mut bytes = 0;
        index.table.arrays.blocks(|_, more| bytes += more);
        bytes
    };
    let least = named();
    for group in 1..7 {
        index.table.arrays.extend_to(group).unwrap();
    }
    let tables = 8 + 8 + 16;
    assert_eq!(named(), least + tables + 7 * 512);
    while index.table.arrays.state().count() < 5 {
        index.table.advance(1, &pool.pin()).unwrap();
    }
    while index.table.arrays.state().count() > 1 {
        index.table.retreat(&pool.pin()).unwrap();
    }
    assert_eq!(named(), least + tables);
    pool.epoch().drain();
    let mut blocks = 0;
    index.table.own_blocks(|_| blocks += 1);
    assert_eq!(pool.allocated().len(), blocks);
}

/// A state that no table can have is damage.
#[test]
fn an_impossible_state_is_damage() {
    let (sim, pool, index) = created();
    let root = sim.at::<Root>(sim.load(pool.root(0))).unwrap();
    let impossible = State { groups: 4, ..index.table.arrays.state() };
    drop(index);
    for word in [0, u64::MAX, sim.load(&root.state) ^ 1 << 20, impossible.encode()] {
        sim.store(&root.state, word);
        let error = Tiny::<u64, _>::open(pool.clone(), pool.root(0)).err().unwrap();
        assert!(matches!(error.kind(), ErrorKind::Damaged { .. }), "{error}");
    }
}

/// A table of the format before this one is refused, with an error that says so.
#[test]
fn an_earlier_format_is_refused() {
    let (sim, pool, index) = created();
    let root = sim.at::<Root>(sim.load(pool.root(0))).unwrap();
    drop(index);
    // "TRAN2" instead of "TRAN3".
    sim.store(&root.kind, sim.load(&root.kind) ^ 1 << 32);
    let error = Tiny::<u64, _>::open(pool.clone(), pool.root(0)).err().unwrap();
    assert!(matches!(error.kind(), ErrorKind::Config(_)), "{error}");
    assert!(error.to_string().contains("earlier format"), "{error}");
}

/// A process has stored a record and died before it was durable. Once the next process has served
/// it, it is.
#[test]
fn what_recovery_finds_is_durable_before_it_is_used() {
    let (sim, pool, index) = created();
    index.insert(7, 70, &pool.pin()).unwrap();
    let stored = stored(&index, 7);
    // Not the header: the inverse of its word would be damage.
    let words = [&stored.payload[0], &stored.payload[1]];
    let words: Vec<u64> = words.map(|word| sim.offset_of(word)).into();
    is_durable_once_served(&sim, (pool, index), &words, 7);
}

/// Counters that a crash has left too small or too large are counted anew.
#[test]
fn counters_are_not_trusted_after_a_crash() {
    let (sim, pool, index) = created();
    for key in 0..40 {
        index.insert(key, key, &pool.pin()).unwrap();
    }
    let groups = index.table.groups();
    for group in 0..index.table.arrays.state().count() {
        let group = index.table.arrays.group(group).unwrap();
        for (number, tranche) in groups.tranches(group).unwrap().into_iter().enumerate() {
            let mut commit = groups.commit(tranche).unwrap();
            commit.pass = 3 * (number as u64 % 2);
            sim.store(&tranche[COMMIT], commit.encode());
        }
    }
    drop((pool, index));
    let (pool, index) = crash_states::reopened::<Tiny<u64, Sim>>(&sim);
    for key in 0..40 {
        assert_eq!(index.get(key, &pool.pin()).unwrap(), Some(key));
    }
    assert_eq!(index.check(), Vec::<String>::new());
}

/// A length from the file that reaches beyond the tranche is damage, and nothing outside is read.
#[test]
fn impossible_records_are_damage() {
    for (word, what) in [(0, "no kind"), (u64::MAX, "all bits"), (0x2fff, "lengths at the end")] {
        let (sim, pool, index) = created();
        index.insert(7, 70, &pool.pin()).unwrap();
        let entries = Shape::<TinySizes>::entry_word(stored(&index, 7).at);
        let tranche = stored(&index, 7).tranche;
        sim.store(&tranche[entries], word);
        sim.store(&tranche[31], u64::MAX);
        let found = index.get(7, &pool.pin());
        assert!(found.is_err(), "{what}: {found:?}");
        assert!(!index.check().is_empty());
    }
}

/// An entry with a wrong bit can name the payload of another record, which a walk shows once.
#[test]
fn records_that_overlap_are_shown_once() {
    const KEYS: u64 = 10;
    let (sim, pool, index) = created();
    (0..KEYS).for_each(|key| assert!(index.insert(key, key, &pool.pin()).unwrap().inserted()));
    let mut damaged = 0;
    for key in 0..KEYS {
        let record = stored(&index, key);
        let cell = &record.tranche[Shape::<TinySizes>::entry_word(record.at)];
        let before = sim.load(cell);
        for bit in 0..12 {
            sim.store(cell, before ^ 1 << (record.at % 4 * 16 + bit));
            let mut shown = Vec::new();
            let walked = index.for_each(&pool.pin(), &mut |key, _| {
                shown.push(key);
                true
            });
            damaged += u64::from(walked.is_err());
            let distinct: std::collections::HashSet<_> = shown.iter().collect();
            assert_eq!(distinct.len(), shown.len(), "bit {bit} of key {key}");
        }
        sim.store(cell, before);
    }
    assert!(damaged > KEYS, "{damaged}");
}

/// Garbage in the chunk of a group that is about to be used is no record.
#[test]
fn used_memory_makes_no_difference() {
    let (sim, pool, index) = created();
    let bytes = 1024;
    let blocks: Vec<u64> = (0..20).map(|_| pool.allocate_fixed(bytes).unwrap()).collect();
    for &block in &blocks {
        let words = sim.slice::<PmU64>(block, bytes / 8).unwrap();
        words.iter().for_each(|word| sim.store(word, 0x1020_1020_1020_1020));
        pool.free_unpublished(block);
    }
    for key in 0..400 {
        index.insert(key, key, &pool.pin()).unwrap();
    }
    assert_eq!(index.check(), Vec::<String>::new());
    assert_eq!(index.stats(&pool.pin()).unwrap().len, 400);
}

/// All records of a table of adversarial hashes are in one group, which overflows up to its limit
/// and keeps what it has.
#[test]
fn a_group_overflows_up_to_a_limit() {
    use evermap_index::testkit::Coarse;
    let pool = super::in_memory(16 << 20);
    let config = Config { initial_depth: 0 };
    let index = Tiny::<Coarse, _>::create(pool.clone(), pool.root(0), config).unwrap();
    let keys: Vec<u64> = (0..300).map(|i| 0x9a3c_55f0 << 32 | i).collect();
    let insert = |&&key: &&u64| match index.insert(key, key, &pool.pin()) {
        Ok(change) => change.inserted(),
        Err(error) => {
            assert!(error.is_no_space(), "{error}");
            false
        }
    };
    let held: Vec<&u64> = keys.iter().filter(insert).collect();
    assert_eq!(held.len(), 24 * 9, "a group of 24 pairs, and eight overflow blocks");
    for key in &keys {
        let due = held.contains(&key).then_some(*key);
        assert_eq!(index.get(*key, &pool.pin()).unwrap(), due);
    }
    assert!(index.stats(&pool.pin()).unwrap().depth <= 6);
    assert_eq!(index.check(), Vec::<String>::new());
    // Removed records give their places to others.
    assert!(index.remove(*held[5], &pool.pin()).unwrap().removed());
    assert!(index.insert(keys[299], 1, &pool.pin()).unwrap().inserted());
    assert_eq!(index.check(), Vec::<String>::new());
    // Without records, rewriting gives the blocks back.
    keys.iter().for_each(|&key| {
        index.remove(key, &pool.pin()).unwrap();
    });
    let group = index.table.group_of(Coarse::hash(keys[0], pool.seed()));
    let mut locked = index.table.lock_group(group).unwrap();
    index.table.compact(&mut locked, &pool.pin()).unwrap();
    assert_eq!(index.table.groups().overflows(locked.group).unwrap(), []);
    drop(locked);
    let room = index.table.groups().room(
        index.table.arrays.group(group).unwrap(),
        Coarse::hash(keys[0], pool.seed()),
        Kind::Pair,
        2,
    );
    assert!(room.unwrap().is_some());
}
