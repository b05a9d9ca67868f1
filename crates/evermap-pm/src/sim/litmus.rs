//! Exact outcome sets of small programs, and a comparison of the crash points with a simulator that
//! has no shortcuts.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::thread;

use super::rng::Rng;
use super::trace::{get, put};
use super::*;
use crate::medium::{LINE, Note};
use crate::{Medium, PmU64};

/// Two words of one line, and two of other lines.
const X: u64 = 0;
const X2: u64 = 8;
const Y: u64 = 64;
const Z: u64 = 8192;

fn cell(sim: &Sim, offset: u64) -> &PmU64 {
    sim.at(offset).unwrap()
}

fn set(sim: &Sim, offset: u64, value: u64) {
    sim.store(cell(sim, offset), value);
}

fn flush(sim: &Sim, offset: u64) {
    sim.flush(cell(sim, offset));
}

fn flush_fence(sim: &Sim, offset: u64) {
    sim.persist(cell(sim, offset));
}

/// Changes the requirements, so that images seen before are visited again at the end.
fn acknowledge(sim: &Sim) {
    sim.note(Note::Begin(0));
    sim.note(Note::End(0));
}

/// Runs `code` in another thread.
fn other(sim: &Sim, code: impl FnOnce(&Sim) + Send) {
    thread::scope(|threads| threads.spawn(|| code(sim)).join().unwrap());
}

/// Runs `program` and returns the possible values of the words at `read` after a crash: at any
/// moment, and at the end.
fn crash(config: ImageConfig, read: &[u64], program: impl FnOnce(&Sim)) -> [BTreeSet<Vec<u64>>; 2] {
    crash_trace(config, read, &record(program))
}

fn record(program: impl FnOnce(&Sim)) -> Trace {
    let sim = Sim::new(1 << 16).unwrap();
    sim.grow(Z + 4096).unwrap();
    sim.checkpoint();
    program(&sim);
    acknowledge(&sim);
    sim.trace()
}

fn crash_trace(config: ImageConfig, read: &[u64], trace: &Trace) -> [BTreeSet<Vec<u64>>; 2] {
    let [mut ever, mut last] = [BTreeSet::new(), BTreeSet::new()];
    let stats = for_each_image(trace, &config, |image| {
        let found: Vec<u64> = read.iter().map(|&offset| get(image.bytes, offset)).collect();
        if image.point.record() == trace.records().len() {
            last.insert(found.clone());
        }
        ever.insert(found);
        ControlFlow::Continue(())
    });
    assert_eq!(stats.points, stats.exhaustive);
    [ever, last]
}

/// Returns the possible values of the words at `read` after a power loss at the end of `program`.
fn at_end(read: &[u64], program: impl FnOnce(&Sim)) -> BTreeSet<Vec<u64>> {
    let [_, last] = crash(ImageConfig::default(), read, program);
    last
}

/// Returns the possible values after a power loss at any moment.
fn ever(read: &[u64], program: impl FnOnce(&Sim)) -> BTreeSet<Vec<u64>> {
    let [ever, _] = crash(ImageConfig::default(), read, program);
    ever
}

fn sets<const N: usize>(from: &[[u64; N]]) -> BTreeSet<Vec<u64>> {
    from.iter().map(|values| values.to_vec()).collect()
}

#[test]
fn one_line_persists_in_program_order() {
    let program = |sim: &Sim| {
        set(sim, X, 1);
        set(sim, X2, 1);
    };
    assert_eq!(at_end(&[X, X2], program), sets(&[[0, 0], [1, 0], [1, 1]]));
}

#[test]
fn two_lines_persist_in_any_order() {
    let program = |sim: &Sim| {
        set(sim, X, 1);
        set(sim, Y, 1);
    };
    assert_eq!(at_end(&[X, Y], program), sets(&[[0, 0], [1, 0], [0, 1], [1, 1]]));
}

#[test]
fn flush_and_fence_order_two_lines() {
    let program = |sim: &Sim| {
        set(sim, X, 1);
        flush_fence(sim, X);
        set(sim, Y, 1);
    };
    assert_eq!(ever(&[X, Y], program), sets(&[[0, 0], [1, 0], [1, 1]]));
    assert_eq!(at_end(&[X, Y], program), sets(&[[1, 0], [1, 1]]));
}

#[test]
fn a_flush_without_fence_orders_nothing() {
    let program = |sim: &Sim| {
        set(sim, X, 1);
        flush(sim, X);
        set(sim, Y, 1);
    };
    assert_eq!(at_end(&[X, Y], program), sets(&[[0, 0], [1, 0], [0, 1], [1, 1]]));
}

#[test]
fn a_fence_without_flush_orders_nothing() {
    let program = |sim: &Sim| {
        set(sim, X, 1);
        sim.fence();
        set(sim, Y, 1);
    };
    assert_eq!(at_end(&[X, Y], program), sets(&[[0, 0], [1, 0], [0, 1], [1, 1]]));
}

#[test]
fn flushing_another_line_does_not_help() {
    let program = |sim: &Sim| {
        set(sim, X, 1);
        flush_fence(sim, Y);
        set(sim, Y, 1);
        flush_fence(sim, Y);
    };
    assert_eq!(at_end(&[X, Y], program), sets(&[[0, 1], [1, 1]]));
}

#[test]
fn a_flush_captures_the_current_contents_of_the_line() {
    let program = |sim: &Sim| {
        set(sim, X, 1);
        flush(sim, X);
        set(sim, X, 2);
        sim.fence();
    };
    assert_eq!(at_end(&[X], program), sets(&[[1], [2]]));
}

#[test]
fn a_flush_covers_the_whole_line_and_every_thread() {
    let program = |sim: &Sim| {
        set(sim, X2, 1);
        other(sim, |sim| {
            flush_fence(sim, X);
        });
    };
    assert_eq!(at_end(&[X2], program), sets(&[[1]]));
}

#[test]
fn a_fence_of_another_thread_completes_nothing() {
    let program = |sim: &Sim| {
        set(sim, X, 1);
        flush(sim, X);
        other(sim, |sim| sim.fence());
    };
    assert_eq!(at_end(&[X], program), sets(&[[0], [1]]));
}

#[test]
fn a_reader_may_persist_what_it_read() {
    let program = |sim: &Sim| {
        set(sim, X, 1);
        other(sim, |sim| {
            if sim.load(cell(sim, X)) == 1 {
                flush_fence(sim, X);
                set(sim, Y, 1);
            }
        });
    };
    assert_eq!(ever(&[X, Y], program), sets(&[[0, 0], [1, 0], [1, 1]]));
}

#[test]
fn a_dependent_store_may_outlive_an_unpersisted_one() {
    let program = |sim: &Sim| {
        set(sim, X, 1);
        other(sim, |sim| {
            let seen = sim.load(cell(sim, X));
            set(sim, Y, seen);
            flush_fence(sim, Y);
        });
    };
    assert_eq!(at_end(&[X, Y], program), sets(&[[0, 1], [1, 1]]));
}

#[test]
fn any_subset_of_a_bulk_write_may_persist_until_something_follows_it() {
    let write = |sim: &Sim| sim.write_bytes(sim.slice(X, 2).unwrap(), &[1; 16]);
    let one = u64::from_le_bytes([1; 8]);
    assert_eq!(at_end(&[X, X2], write), sets(&[[0, 0], [one, 0], [0, one], [one, one]]));
    let then_store = |sim: &Sim| {
        write(sim);
        set(sim, 16, 1);
    };
    let expected = [[0, 0, 0], [one, 0, 0], [0, one, 0], [one, one, 0], [one, one, 1]];
    assert_eq!(at_end(&[X, X2, 16], then_store), sets(&expected));
    let then_persist = |sim: &Sim| {
        write(sim);
        flush_fence(sim, X);
    };
    assert_eq!(at_end(&[X, X2], then_persist), sets(&[[one, one]]));
}

#[test]
fn a_bulk_write_over_two_lines_is_two_bundles() {
    let program = |sim: &Sim| {
        sim.write_bytes(sim.slice(56, 2).unwrap(), &[1; 16]);
        flush_fence(sim, 56);
    };
    let one = u64::from_le_bytes([1; 8]);
    assert_eq!(at_end(&[56, Y], program), sets(&[[one, 0], [one, one]]));
}

#[test]
fn transient_stores_keep_their_place_in_the_line() {
    let program = |sim: &Sim| {
        sim.store_transient(cell(sim, X), 1);
        set(sim, X2, 1);
        assert_eq!(sim.cas_transient(cell(sim, X), 1, 2), Ok(1));
        assert_eq!(sim.cas(cell(sim, X2), 7, 8), Err(1));
    };
    assert_eq!(at_end(&[X, X2], program), sets(&[[0, 0], [1, 0], [1, 1], [2, 1]]));
}

#[test]
fn death_of_the_process_leaves_a_prefix_of_all_stores() {
    let program = |sim: &Sim| {
        set(sim, Y, 1);
        set(sim, X, 1);
        flush_fence(sim, X);
        set(sim, Z, 1);
    };
    let [ever, last] = crash(ImageConfig::of(Model::ProcessDeath), &[X, Y, Z], program);
    assert_eq!(ever, sets(&[[0, 0, 0], [0, 1, 0], [1, 1, 0], [1, 1, 1]]));
    assert_eq!(last, sets(&[[1, 1, 1]]));
}

#[test]
fn pages_persist_by_prefix_and_only_a_sync_is_certain() {
    let config = ImageConfig::of(Model::PageCache { granule: 4096 });
    let program = |sim: &Sim| {
        set(sim, X, 1);
        set(sim, Y, 1);
        flush_fence(sim, X);
        set(sim, Z, 1);
    };
    let [_, last] = crash(config, &[X, Y, Z], program);
    let prefixes = [[0, 0], [1, 0], [1, 1]];
    let expected = prefixes.iter().flat_map(|[x, y]| [vec![*x, *y, 0], vec![*x, *y, 1]]);
    assert_eq!(last, expected.collect());
    let [ever, last] = crash(config, &[X, Y, Z], |sim| {
        program(sim);
        sim.sync().unwrap();
    });
    assert_eq!(last, sets(&[[1, 1, 1]]));
    assert_eq!(ever.len(), 6);
}

#[test]
fn torn_pages_persist_by_sector() {
    let program = |sim: &Sim| {
        set(sim, X, 1);
        set(sim, 512, 1);
    };
    let page = crash(ImageConfig::of(Model::PageCache { granule: 4096 }), &[X, 512], program);
    assert_eq!(page[1], sets(&[[0, 0], [1, 0], [1, 1]]));
    let sector = crash(ImageConfig::of(Model::PageCache { granule: 512 }), &[X, 512], program);
    assert_eq!(sector[1], sets(&[[0, 0], [1, 0], [0, 1], [1, 1]]));
}

#[test]
fn a_sync_after_a_failed_one_does_not_repair_it() {
    let config = ImageConfig::of(Model::PageCache { granule: 4096 });
    let program = |sim: &Sim| {
        set(sim, X, 1);
        sim.fail_next_sync();
        assert!(sim.sync().is_err());
        set(sim, Z, 1);
        sim.sync().unwrap();
    };
    assert_eq!(crash(config, &[X, Z], program)[1], sets(&[[0, 1], [1, 1]]));
    // Writing the page again repairs it.
    let repaired = |sim: &Sim| {
        program(sim);
        set(sim, X2, 1);
        sim.sync().unwrap();
    };
    assert_eq!(crash(config, &[X, X2, Z], repaired)[1], sets(&[[1, 1, 1]]));
}

#[test]
fn growth_is_durable_immediately_or_at_a_sync() {
    let lengths = |growth, sync: bool| {
        let sim = Sim::new(1 << 16).unwrap();
        sim.grow(4096).unwrap();
        sim.checkpoint();
        sim.grow(8192).unwrap();
        set(&sim, 4096, 1);
        flush_fence(&sim, 4096);
        if sync {
            sim.sync().unwrap();
        }
        acknowledge(&sim);
        let end = sim.recorded();
        let mut found = BTreeSet::new();
        for_each_image(&sim.trace(), &ImageConfig { growth, ..ImageConfig::default() }, |image| {
            if image.point.record() == end {
                found.insert((image.bytes.len(), image.bytes.get(4096).copied()));
            }
            ControlFlow::Continue(())
        });
        found
    };
    assert_eq!(lengths(GrowthModel::Immediate, false), BTreeSet::from([(8192, Some(1))]));
    assert_eq!(
        lengths(GrowthModel::UntilSync, false),
        BTreeSet::from([(4096, None), (8192, Some(1))])
    );
    assert_eq!(lengths(GrowthModel::UntilSync, true), BTreeSet::from([(8192, Some(1))]));
}

#[test]
fn a_discard_is_durable_immediately() {
    let program = |sim: &Sim| {
        set(sim, Z, 1);
        flush_fence(sim, Z);
        set(sim, Z + 8, 1);
        sim.discard(Z..Z + 4096);
        assert_eq!(sim.load(cell(sim, Z)), 0);
    };
    let [ever, last] = crash(ImageConfig::default(), &[Z, Z + 8], program);
    assert_eq!(ever, sets(&[[0, 0], [1, 0], [1, 1]]));
    assert_eq!(last, sets(&[[0, 0]]));
}

#[test]
fn nothing_before_a_checkpoint_is_crashed() {
    let program = |sim: &Sim| {
        set(sim, X, 1);
        sim.pause();
        set(sim, X, 2);
        sim.checkpoint();
        set(sim, Y, 1);
    };
    assert_eq!(ever(&[X, Y], program), sets(&[[2, 0], [2, 1]]));
}

#[test]
fn mutations_change_exactly_their_site() {
    let program = |sim: &Sim| {
        set(sim, X, 1);
        flush(sim, X);
        sim.fence();
        set(sim, Y, 1);
        sim.flush(cell(sim, Y));
        sim.fence();
    };
    let trace = record(program);
    let crashed =
        |mutation: Mutation| crash_trace(ImageConfig::default(), &[X, Y], &mutation.apply(&trace));
    let mutated = |mutation| {
        let [_, last] = crashed(mutation);
        last
    };
    let (flushes, fences) = (trace.flush_sites(), trace.fence_sites());
    assert_eq!((flushes.len(), fences.len()), (2, 2));
    let (first, second) = (flushes.first().unwrap(), flushes.last().unwrap());
    // The helper's flush comes first in the file, and is the one of X.
    assert_eq!(mutated(Mutation::DropFlush(*first)), sets(&[[0, 1], [1, 1]]));
    assert_eq!(mutated(Mutation::DropFlush(*second)), sets(&[[1, 0], [1, 1]]));
    assert_eq!(mutated(Mutation::DropFence(*fences.first().unwrap())), sets(&[[1, 1]]));
    assert_eq!(mutated(Mutation::DropFence(*fences.last().unwrap())), sets(&[[1, 0], [1, 1]]));
    // Delayed past its fence and the next store, the first flush is completed by the second fence.
    assert_eq!(mutated(Mutation::DelayFlush(*first)), sets(&[[1, 1]]));
    let [early, _] = crashed(Mutation::DelayFlush(*first));
    assert!(early.contains(&vec![0, 1]), "{early:?}");
}

#[test]
fn a_torn_store_persists_in_any_part_of_its_halves() {
    let trace = record(|sim| {
        set(sim, X, 0x0102);
        flush_fence(sim, X);
        set(sim, X, 0x0302);
        flush_fence(sim, X);
    });
    let commits = trace.commit_sites();
    assert_eq!(commits.len(), 1, "`set` stores both");
    let torn = Mutation::TearStore(*commits.first().unwrap()).apply(&trace);
    let [ever, last] = crash_trace(ImageConfig::default(), &[X], &torn);
    // Only one byte changes in the second store.
    let halves: Vec<u64> = ever.into_iter().map(|found| found[0]).collect();
    assert!(halves == [0, 0x0002, 0x0102, 0x0302] || halves == [0, 0x0100, 0x0102, 0x0302]);
    assert_eq!(last, sets(&[[0x0302]]));
}

#[test]
fn a_commit_is_a_word_that_is_stored_alone() {
    let trace = record(|sim| {
        sim.store(cell(sim, X), 1);
        sim.store(cell(sim, Y), 1);
        flush_fence(sim, X);
        sim.store_transient(cell(sim, Y), 2);
        sim.store(cell(sim, X2), 1);
        flush_fence(sim, X2);
    });
    let lines: Vec<u32> = trace.commit_sites().iter().map(Site::line).collect();
    let mut stores = trace
        .records()
        .iter()
        .filter(|record| matches!(record.event, Event::Store { transient: false, .. }));
    assert_eq!(lines, [stores.next_back().unwrap().site.line()]);
}

#[test]
fn accesses_outside_the_medium_and_endless_loops_panic() {
    let sim = Sim::new(1 << 16).unwrap();
    sim.grow(8192).unwrap();
    let foreign = Sim::new(1 << 16).unwrap();
    foreign.grow(4096).unwrap();
    let panic_message = |code: &dyn Fn()| {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(code));
        *result.unwrap_err().downcast::<String>().unwrap()
    };
    let outside = panic_message(&|| set_through(&sim, cell(&foreign, 0)));
    assert!(outside.contains("store of 8 bytes") && outside.contains("outside"), "{outside}");
    assert!(outside.contains("litmus.rs"), "{outside}");
    let flushed =
        panic_message(&|| sim.flush_bytes(cell(&sim, 8184) as *const PmU64 as *const u8, 16));
    assert!(flushed.contains("flush of 16 bytes at offset 0x1ff8"), "{flushed}");
    sim.set_budget(1000);
    let stuck = panic_message(&|| while sim.load(cell(&sim, 0)) == 0 {});
    assert!(stuck.contains("stuck"), "{stuck}");
    // The medium is still usable.
    set(&sim, 0, 1);
    assert_eq!(sim.load(cell(&sim, 0)), 1);
    assert!(Sim::from_image(&[0; 4096], 2048).is_err());
    assert!(Sim::from_image(&[0; 100], 4096).is_err());
    assert!(sim.grow(1 << 20).unwrap_err().is_no_space());
}

fn set_through(sim: &Sim, cell: &PmU64) {
    sim.store(cell, 1);
}

#[test]
fn lines_that_were_read_are_tracked() {
    let mut sim = Sim::from_image(&[0; 4096], 4096).unwrap();
    set(&sim, X, 1);
    assert!(!sim.was_read(0..4096));
    sim.load(cell(&sim, Y));
    assert!(sim.was_read(64..128) && sim.was_read(127..300));
    assert!(!sim.was_read(0..64) && !sim.was_read(128..4096));
    assert!(sim.reload(&[0; 4096], Some(&[])));
    assert!(!sim.was_read(0..4096));
    assert_eq!(sim.contents(), [0; 4096], "the store was undone");
    assert!(sim.was_read(0..64));
    let handle = sim.clone();
    assert!(!sim.reload(&[0; 4096], None), "another handle lives");
    drop(handle);
    let mut image = [0; 4096];
    put(&mut image, 8, 5);
    assert!(sim.reload(&image, Some(&[8])));
    assert_eq!(sim.trace().base(), image);
}

/// Threads that race: the recording must be in an order that explains every loaded value.
#[test]
fn racing_threads_are_recorded_in_the_order_of_their_effects() {
    let sim = Sim::new(4096).unwrap();
    sim.grow(4096).unwrap();
    sim.checkpoint();
    const ROUNDS: u64 = 2000;
    thread::scope(|threads| {
        for thread in 1..=3 {
            let sim = &sim;
            threads.spawn(move || {
                for round in 0..ROUNDS {
                    let counter = cell(sim, X);
                    let mut seen = sim.load(counter);
                    while let Err(found) = sim.cas(counter, seen, seen + 1) {
                        seen = found;
                    }
                    // A copy of the new count: must come after it in the recording.
                    sim.store(cell(sim, Y + thread * LINE), seen + 1);
                    if round % 16 == 0 {
                        sim.persist(counter);
                    }
                }
            });
        }
    });
    let trace = sim.trace();
    let mut count = 0;
    let mut memory = trace.base().to_vec();
    for record in trace.records() {
        let Event::Store { words, .. } = record.event else { continue };
        for word in trace.words(words) {
            assert_eq!(get(&memory, word.offset), word.old, "stores are recorded as they happened");
            put(&mut memory, word.offset, word.new);
            if word.offset == X {
                count += 1;
                assert_eq!(word.new, count);
            } else {
                assert!(word.new <= count, "a copy came before its original");
            }
        }
    }
    assert_eq!(count, 3 * ROUNDS);
    assert_eq!(memory, sim.contents());
}

/// Simulates a power loss without any shortcut: returns the possible contents after the first
/// `time` records.
fn reference(trace: &Trace, time: usize) -> BTreeSet<Vec<u8>> {
    let records = &trace.records()[..time];
    let mut images = BTreeSet::from([trace.base().to_vec()]);
    for line in 0..trace.base().len() as u64 / LINE {
        // The stores to this line, each with its time.
        let stores: Vec<(usize, Vec<Word>)> = records
            .iter()
            .enumerate()
            .filter_map(|(at, record)| match record.event {
                Event::Store { words, .. } => {
                    let words = trace.words(words).iter().copied();
                    let here: Vec<Word> = words.filter(|word| word.offset / LINE == line).collect();
                    (!here.is_empty()).then_some((at, here))
                }
                _ => None,
            })
            .collect();
        // Certainly durable: stores captured by a flush that is followed by a fence of the same
        // thread.
        let sure = records.iter().enumerate().filter_map(|(at, record)| match record.event {
            Event::Flush { offset, len }
                if (offset..offset + len).any(|byte| byte / LINE == line) =>
            {
                let fence = |later: &TraceRecord| {
                    later.thread == record.thread && later.event == Event::Fence
                };
                records[at..].iter().any(fence).then_some(at)
            }
            _ => None,
        });
        let sure = sure.max().unwrap_or(0);
        let least = stores.iter().filter(|(at, _)| *at < sure).count();
        let mut next = BTreeSet::new();
        for image in &images {
            for prefix in least..=stores.len() {
                let mut image = image.clone();
                for (_, words) in &stores[..prefix] {
                    words.iter().for_each(|word| put(&mut image, word.offset, word.new));
                }
                let torn = stores.get(prefix).map_or(&[][..], |(_, words)| words);
                for subset in 0..1u32 << torn.len() {
                    let mut image = image.clone();
                    let chosen = torn.iter().enumerate().filter(|(bit, _)| subset >> bit & 1 != 0);
                    chosen.for_each(|(_, word)| put(&mut image, word.offset, word.new));
                    next.insert(image);
                }
            }
        }
        images = next;
    }
    images
}

/// Returns the recording of a random program of two threads on three lines.
fn random_trace(rng: &mut Rng) -> Trace {
    let site = Site::caller();
    let mut memory = vec![0; 3 * LINE as usize];
    let (mut records, mut words, mut next_op) = (Vec::new(), Vec::new(), 0);
    let mut running = [None; 2];
    for _ in 0..6 + rng.below(12) {
        let thread = rng.below(2) as u16;
        let offset = rng.below(3) * LINE + rng.below(2) * 8;
        let event = match rng.below(10) {
            kind @ 0..4 => {
                let first = words.len() as u32;
                // Sometimes a bulk write, which may extend into the next line.
                let count = if kind == 3 { 1 + rng.below(2) } else { 1 };
                let start = if kind == 3 { rng.below(3 * 8 - 1) * 8 } else { offset };
                for offset in (start..).step_by(8).take(count as usize) {
                    let (old, new) = (get(&memory, offset), 1 + rng.below(2));
                    put(&mut memory, offset, new);
                    words.push(Word { offset, old, new });
                }
                Event::Store { words: Span { first, count: count as u32 }, transient: kind == 2 }
            }
            4 | 5 => Event::Flush { offset, len: 8 },
            6 | 7 => Event::Fence,
            _ => match running[usize::from(thread)].take() {
                Some(op) => Event::Note(Note::End(op)),
                None => {
                    running[usize::from(thread)] = Some(next_op);
                    next_op += 1;
                    Event::Note(Note::Begin(next_op - 1))
                }
            },
        };
        records.push(TraceRecord { event, thread, site });
    }
    Trace::new(memory, records, words)
}

/// Every outcome of a crash at any moment appears at one of the crash points, with requirements
/// that are at least as strict, and nothing impossible appears.
#[test]
fn the_crash_points_lose_nothing() {
    let mut rng = Rng::new(2024);
    let (mut images, mut moments) = (0, 0);
    for _ in 0..400 {
        let trace = random_trace(&mut rng);
        let mut shown: Vec<(Vec<u8>, u64, u64)> = Vec::new();
        let stats = for_each_image(&trace, &ImageConfig::default(), |image| {
            let possible = reference(&trace, image.point.record());
            assert!(
                possible.contains(image.bytes),
                "impossible: {}",
                image.describe(&|op| op.to_string())
            );
            shown.push((image.bytes.to_vec(), image.point.begun(), image.point.ended()));
            ControlFlow::Continue(())
        });
        assert_eq!(stats.points, stats.exhaustive);
        assert_eq!(stats.images, shown.len() as u64);
        images += stats.images;
        for time in 0..=trace.records().len() {
            let happened = &trace.records()[..time];
            let count = |wanted: fn(&Event) -> bool| {
                happened.iter().filter(|r| wanted(&r.event)).count() as u64
            };
            let begun = count(|event| matches!(event, Event::Note(Note::Begin(_))));
            let ended = count(|event| matches!(event, Event::Note(Note::End(_))));
            for image in reference(&trace, time) {
                moments += 1;
                let strict =
                    shown.iter().any(|(bytes, b, e)| *bytes == image && *b <= begun && *e >= ended);
                assert!(strict, "an image possible at {time} is not tried: {:#?}", trace.records());
            }
        }
    }
    assert!(moments > 3 * images, "{moments} outcomes by {images} images");
}

/// The death of a process leaves exactly the contents that had been stored, with the requirements
/// of that moment.
#[test]
fn the_crash_points_of_a_process_lose_nothing() {
    let mut rng = Rng::new(7);
    for _ in 0..300 {
        let trace = random_trace(&mut rng);
        let bulk =
            |r: &TraceRecord| matches!(r.event, Event::Store { words, .. } if words.count > 1);
        if trace.records().iter().any(bulk) {
            continue;
        }
        let mut shown = BTreeSet::new();
        for_each_image(&trace, &ImageConfig::of(Model::ProcessDeath), |image| {
            shown.insert((image.bytes.to_vec(), image.point.begun(), image.point.ended()));
            ControlFlow::Continue(())
        });
        let (mut memory, mut begun, mut ended) = (trace.base().to_vec(), 0, 0);
        let mut expected = BTreeSet::from([(memory.clone(), 0, 0)]);
        let mut strict = true;
        for record in trace.records() {
            match record.event {
                Event::Store { words, .. } => {
                    trace
                        .words(words)
                        .iter()
                        .for_each(|word| put(&mut memory, word.offset, word.new));
                }
                Event::Note(Note::Begin(_)) => begun += 1,
                Event::Note(Note::End(_)) => ended += 1,
                _ => {}
            }
            strict &=
                shown.iter().any(|(bytes, b, e)| *bytes == memory && *b <= begun && *e >= ended);
            expected.insert((memory.clone(), begun, ended));
        }
        assert!(strict && shown.is_subset(&expected), "{:#?}", trace.records());
    }
}

#[test]
fn points_with_too_many_images_show_the_most_informative_ones() {
    let sim = Sim::new(1 << 16).unwrap();
    sim.grow(1 << 13).unwrap();
    sim.checkpoint();
    let lines: Vec<u64> = (0..20).map(|line| line * LINE).collect();
    lines.iter().for_each(|&line| set(&sim, line, 1));
    let mut lost = BTreeSet::new();
    let mut show = |per_point| {
        lost.clear();
        let stats = for_each_image(
            &sim.trace(),
            &ImageConfig { per_point, ..ImageConfig::default() },
            |image| {
                lost.insert(
                    lines
                        .iter()
                        .filter(|&&line| get(image.bytes, line) == 0)
                        .copied()
                        .collect::<Vec<_>>(),
                );
                ControlFlow::Continue(())
            },
        );
        assert_eq!((stats.points, stats.exhaustive), (1, 0));
        lost.clone()
    };
    let many = show(512);
    assert!(many.len() > 50, "with random ones");
    for &line in &lines {
        assert!(many.contains(&vec![line]), "all but {line}");
        let others: Vec<u64> = lines.iter().copied().filter(|&other| other != line).collect();
        assert!(many.contains(&others), "only {line}");
    }
    let few = show(4);
    assert!(few.len() <= 4 && few.contains(&vec![]) && few.contains(&lines), "{few:?}");
}

#[test]
fn transient_stores_do_not_displace_the_others() {
    let sim = Sim::new(1 << 16).unwrap();
    sim.grow(1 << 13).unwrap();
    sim.checkpoint();
    let lines: Vec<u64> = (0..20).map(|line| line * LINE).collect();
    let (locks, data) = lines.split_at(17);
    locks.iter().for_each(|&line| sim.store_transient(cell(&sim, line), 1));
    data.iter().for_each(|&line| set(&sim, line, 1));
    let mut found = BTreeSet::new();
    let config = ImageConfig { per_point: 64, ..ImageConfig::default() };
    let stats = for_each_image(&sim.trace(), &config, |image| {
        let held =
            |lines: &[u64]| lines.iter().map(|&line| get(image.bytes, line)).collect::<Vec<_>>();
        found.insert((held(data), held(locks)));
        ControlFlow::Continue(())
    });
    assert_eq!((stats.points, stats.exhaustive, stats.images), (1, 1, 3 * 8));
    let states: BTreeSet<_> = found.iter().map(|(data, _)| data.clone()).collect();
    assert_eq!(states.len(), 8, "every combination of the stores that need to persist");
    for state in states {
        for locks in [vec![0; 17], vec![1; 17]] {
            assert!(found.contains(&(state.clone(), locks)));
        }
    }
}

#[test]
fn a_frequently_changed_lock_has_its_first_or_one_of_its_last_states() {
    let found = at_end(&[X, X2], |sim| {
        (1..=100).for_each(|value| sim.store_transient(cell(sim, X), value));
        set(sim, X2, 1);
    });
    assert!(found.contains(&vec![0, 0]) && found.contains(&vec![100, 1]), "{found:?}");
    assert!(found.contains(&vec![99, 0]) && found.len() < 12, "{found:?}");
    let [_, data] = crash(ImageConfig::default(), &[X], |sim| {
        (1..=100).for_each(|value| set(sim, X, value));
    });
    assert_eq!(data.len(), 101, "stores that need to persist are all kept");
}
