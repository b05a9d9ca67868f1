//! Lookups during which another thread makes changes, at any load.
//!
//! Lookups hold no lock, so a writer can run between any two of their loads, on the same thread:
//! every interleaving with whole operations of one writer is tried.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use evermap_index::testkit::Plain;
use evermap_index::{Clht, Index, Persistent};

use evermap_pm::sim::Sim;

use super::watched::{Access, Watch};
use super::{dram, get, put, remove, tiny, wait_until};

type Table = Clht<Plain, Sim>;

/// Returns keys of one chain, whatever the size of the table.
fn key(number: u64) -> u64 {
    (number + 1) << 32
}

/// Looks `wanted` up in a table that `prepare` has filled, with `act` at the load number `first`
/// and then every `step` loads, up to `times` times. Returns what was found, and whether `act` was
/// called.
fn look(
    prepare: &dyn Fn(&Table),
    wanted: u64,
    act: fn(&Table, u64),
    (first, step, times): (u64, u64, u64),
) -> (Option<u64>, bool) {
    let watch = Arc::new(Watch::default());
    let index = Arc::new(tiny::<Plain, _>(dram(1 << 20).observed_by(watch.clone())));
    prepare(&index);
    let guard = index.pool().pin();
    let (loads, acts) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let hook = {
        let (index, loads, acts) = (index.clone(), loads.clone(), acts.clone());
        move |access| {
            assert_eq!(access, Access::Load, "a lookup does nothing but load");
            let load = loads.fetch_add(1, Relaxed);
            if load >= first && (load - first).is_multiple_of(step) && acts.load(Relaxed) < times {
                act(&index, acts.fetch_add(1, Relaxed));
            }
        }
    };
    watch.begin(hook);
    let found = index.get(wanted, &guard).unwrap();
    watch.end();
    drop(guard);
    assert_eq!(index.check(), Vec::<String>::new());
    (found, acts.load(Relaxed) > 0)
}

/// Calls [`look`] with every first load and step at which `act` can be called. Returns how many
/// there were.
fn everywhere(
    prepare: &dyn Fn(&Table),
    wanted: u64,
    act: fn(&Table, u64),
    times: u64,
    allowed: &[Option<u64>],
) -> u64 {
    let mut runs = 0;
    for step in 1..if times > 1 { 12 } else { 2 } {
        for first in 0.. {
            let (found, acted) = look(prepare, wanted, act, (first, step, times));
            assert!(allowed.contains(&found), "{found:?} at load {first}, then every {step}");
            if !acted {
                break;
            }
            runs += 1;
        }
    }
    assert!(runs > 3, "{runs} interleavings");
    runs
}

#[test]
fn a_lookup_finds_a_key_that_is_given_another_word() {
    for pairs in 1..=3 {
        // With three pairs in the bucket the word is replaced in place.
        let prepare = |index: &Table| (0..pairs).for_each(|number| put(index, key(number), 10));
        let act = |index: &Table, time| put(index, key(0), 11 + time);
        let words: Vec<_> = (10..16).map(Some).collect();
        everywhere(&prepare, key(0), act, 5, &words);
    }
}

/// A slot that is freed, and then filled by another key with the same word, must not be taken for
/// the former one: two equal reads of a word do not show that nothing happened in between.
#[test]
fn a_lookup_never_pairs_a_key_with_the_word_of_another() {
    let prepare = |index: &Table| (0..3).for_each(|number| put(index, key(number), 1));
    // One slot holds key 2 with an odd word and key 7 with an even one, in turns.
    let act = |index: &Table, time: u64| {
        if time.is_multiple_of(2) {
            remove(index, key(2));
            put(index, key(7), 2);
        } else {
            remove(index, key(7));
            put(index, key(2), 1);
        }
    };
    everywhere(&prepare, key(7), act, 9, &[None, Some(2)]);
    everywhere(&prepare, key(2), act, 9, &[None, Some(1)]);
}

#[test]
fn a_lookup_finds_what_is_behind_a_bucket_that_is_removed() {
    let prepare = |index: &Table| (0..12).for_each(|number| put(index, key(number), number));
    // New buckets are inserted directly after the home bucket, so keys 3 to 5 are in the last one.
    let act = |index: &Table, time: u64| match time {
        0 => (6..9).for_each(|number| remove(index, key(number))),
        1 => (9..12).for_each(|number| remove(index, key(number))),
        2 => (20..26).for_each(|number| put(index, key(number), 1)),
        _ => (20..26).for_each(|number| remove(index, key(number))),
    };
    for number in [0, 3, 5] {
        everywhere(&prepare, key(number), act, 4, &[Some(number)]);
    }
    everywhere(&prepare, key(40), act, 4, &[None]);
}

#[test]
fn a_lookup_finds_its_key_while_the_table_grows_and_shrinks() {
    let prepare = |index: &Table| {
        put(index, 5, 55);
        put(index, key(0), 66);
    };
    let act = |index: &Table, time: u64| {
        let before = index.stats(&index.pool().pin()).unwrap();
        let others = 100..200;
        if time.is_multiple_of(2) {
            others.for_each(|other| put(index, other, 1));
        } else {
            others.for_each(|other| remove(index, other));
        }
        let after = index.stats(&index.pool().pin()).unwrap();
        assert!(after.splits + after.merges > before.splits + before.merges);
    };
    everywhere(&prepare, 5, act, 3, &[Some(55)]);
    everywhere(&prepare, key(0), act, 3, &[Some(66)]);
    everywhere(&prepare, key(1), act, 3, &[None]);
}

/// A lookup that began in the old table may return an earlier state, but none that never existed.
#[test]
fn a_lookup_in_a_replaced_table_returns_a_past_state() {
    let prepare = |index: &Table| put(index, 5, 55);
    let act = |index: &Table, _| {
        (100..200).for_each(|other| put(index, other, 1));
        put(index, 5, 56);
        remove(index, 5);
    };
    everywhere(&prepare, 5, act, 1, &[Some(55), Some(56), None]);
    let index = tiny::<Plain, _>(dram(1 << 20));
    prepare(&index);
    act(&index, 0);
    assert_eq!(get(&index, 5), None);
}

/// A lookup that has begun before a word is replaced in place, and ends before that is durable,
/// must not return the new word, because a crash could lose it. The lookup is stopped at each of
/// its loads until the writer is at its fence. The writer continues when the lookup has ended, or
/// has made a thousand loads, which shows that it waits.
#[test]
fn a_lookup_never_returns_a_word_that_is_not_durable() {
    const LOOKS: u64 = 1000;
    let (mut stopped, mut waited) = (0, 0);
    for stop in 0.. {
        let watch = Arc::new(Watch::default());
        let index = Arc::new(tiny::<Plain, _>(dram(1 << 20).observed_by(watch.clone())));
        (0..3).for_each(|number| put(&index, key(number), 1));
        let (loads, stage) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(BEGUN)));
        let looker = std::thread::current().id();
        {
            let (loads, stage) = (loads.clone(), stage.clone());
            watch.begin(move |access| {
                if std::thread::current().id() != looker {
                    if access == Access::Fence {
                        stage.store(STORED, SeqCst);
                        wait_until(|| stage.load(SeqCst) == CONTINUE);
                    }
                } else if loads.fetch_add(1, SeqCst) == stop {
                    stage.store(WRITE, SeqCst);
                    wait_until(|| stage.load(SeqCst) == STORED);
                } else if loads.load(SeqCst) > stop + LOOKS {
                    stage.store(CONTINUE, SeqCst);
                }
            });
        }
        let found = std::thread::scope(|threads| {
            let (writer, turn) = (index.clone(), stage.clone());
            threads.spawn(move || {
                wait_until(|| turn.load(SeqCst) == WRITE || turn.load(SeqCst) == CONTINUE);
                if turn.load(SeqCst) == WRITE {
                    put(&writer, key(1), 2);
                }
            });
            let found = get(&index, key(1));
            let before = stage.swap(CONTINUE, SeqCst);
            (found, before)
        });
        watch.end();
        match found {
            // It was not stopped: every load has been tried.
            (_, BEGUN) => break,
            (found, STORED) => assert_eq!(found, Some(1), "stopped at load {stop}"),
            (found, _) => {
                waited += 1;
                assert_eq!(found, Some(2), "stopped at load {stop}");
            }
        }
        stopped += 1;
    }
    assert!(stopped > 3 && waited > 0, "stopped {stopped} times, waited {waited} times");
}

/// Neither thread has done anything.
const BEGUN: u64 = 0;
/// The lookup is stopped, and the writer begins.
const WRITE: u64 = 1;
/// The writer is at its fence, and the lookup continues.
const STORED: u64 = 2;
/// The writer continues.
const CONTINUE: u64 = 3;
