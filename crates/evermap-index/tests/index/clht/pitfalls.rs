//! Pitfalls that only crashes show.

use std::ops::ControlFlow;

use evermap_index::hash::clht::layout::{Bucket, Control, Root, Table};
use evermap_index::testkit::Plain;
use evermap_index::{Clht, Index, Persistent};
use evermap_pm::Medium;
use evermap_pm::medium::Note;
use evermap_pm::sim::{Event, Image, ImageConfig, Model, Mutation, Sim, Site, for_each_image};

use super::{ROOT, get, put, reopen, tiny, verify};

const CAPACITY: u64 = 128 << 10;

/// Opens every image that a crash of the recording may leave, and passes it to `visit`.
fn crash_everywhere(
    sim: &Sim,
    model: Model,
    mut visit: impl FnMut(&Image<'_>, Clht<Plain, Sim>),
) -> u64 {
    let mut images = 0;
    for_each_image(
        &sim.trace(),
        &ImageConfig { per_point: 64, ..ImageConfig::of(model) },
        |image| {
            images += 1;
            visit(image, reopen(&Sim::from_image(image.bytes, CAPACITY).unwrap()));
            ControlFlow::Continue(())
        },
    );
    images
}

fn acknowledged(sim: &Sim, op: u64, act: impl FnOnce()) {
    sim.note(Note::Begin(op));
    act();
    sim.note(Note::End(op));
}

/// PC-1: every bucket of a chain must be durable before the new table is current, not only the
/// second.
#[test]
fn pc1_a_resize_makes_long_chains_durable() {
    let sim = Sim::new(CAPACITY).unwrap();
    let index = tiny::<Plain, _>(sim.clone());
    let key = |number: u64, low: u64| (number + 1) << 32 | low;
    // One chain of seven buckets does not make the table grow; a second chain does.
    (0..20).for_each(|number| put(&index, key(number, 0), number));
    (0..3).for_each(|number| put(&index, key(number, 1), number));
    let before = index.stats(&index.pool().pin()).unwrap();
    assert_eq!((before.segments, before.splits), (7, 0));
    sim.checkpoint();
    acknowledged(&sim, 0, || put(&index, key(3, 1), 3));
    assert_eq!(index.stats(&index.pool().pin()).unwrap().splits, 1);
    let images = crash_everywhere(&sim, Model::Adr, |image, index| {
        (0..20).for_each(|number| assert_eq!(get(&index, key(number, 0)), Some(number)));
        (0..3).for_each(|number| assert_eq!(get(&index, key(number, 1)), Some(number)));
        let last = get(&index, key(3, 1));
        assert!(last == Some(3) || last.is_none() && !image.point.completed(0));
    });
    assert!(images > 50, "{images} images");
}

/// PC-3: a lock that was held at the crash does not count afterwards.
#[test]
fn pc3_a_lock_ends_with_its_process() {
    let sim = Sim::new(CAPACITY).unwrap();
    let index = tiny::<Plain, _>(sim.clone());
    (0..9).for_each(|key| put(&index, key << 32, key));
    sim.checkpoint();
    put(&index, 7 << 32, 70);
    put(&index, 9 << 32, 90);
    let home = |sim: &Sim| {
        let root = sim.at::<Root>(sim.load(index.pool().root(ROOT))).unwrap();
        Table::decode(sim.load(&root.table)).home(0)
    };
    let home = home(&sim);
    let mut locked = 0;
    for_each_image(&sim.trace(), &ImageConfig::of(Model::ProcessDeath), |image| {
        let crashed = Sim::from_image(image.bytes, CAPACITY).unwrap();
        let control = crashed.load(&crashed.at::<Bucket>(home).unwrap().control);
        locked += u64::from(Control(control).is_locked());
        crashed.set_budget(100_000);
        let index = reopen::<Plain>(&crashed);
        (0..12).for_each(|key| put(&index, key << 32, 1));
        (0..12).for_each(|key| assert_eq!(get(&index, key << 32), Some(1)));
        assert_eq!(index.check(), Vec::<String>::new());
        ControlFlow::Continue(())
    });
    assert!(locked > 5, "a lock was held in {locked} images");
}

/// PC-4: blocks that wait for their grace period are recorded in ordinary memory only, so a crash
/// neither leaks them nor causes them to be freed twice.
#[test]
fn pc4_what_a_resize_leaves_behind_is_freed_once() {
    let sim = Sim::new(512 << 10).unwrap();
    sim.pause();
    let index = tiny::<u64, _>(sim.clone());
    for _life in 0..3 {
        let pool = index.pool().clone();
        // Tables and buckets are retired, and not freed before the "crash".
        let guard = pool.pin();
        (0..400).for_each(|key| put(&index, key, key));
        (0..400).for_each(|key| super::remove(&index, key));
        assert!(pool.epoch_stats().bytes_waiting > 64 << 7);
        drop(guard);
    }
    (0..100).for_each(|key| put(&index, key, key));
    drop(index);
    for _life in 0..2 {
        let index = reopen::<u64>(&sim);
        let marked = super::reachable(&index);
        index
            .pool()
            .sweep(|mark| {
                marked.iter().for_each(|&block| mark(block));
                Ok(())
            })
            .unwrap();
        verify(&index);
        (0..100).for_each(|key| assert_eq!(get(&index, key), Some(key)));
    }
}

/// Runs `act` as if the process died before the flush that is called at `site`.
fn without_the_last_flush(sim: &Sim, site: Site, act: impl FnOnce()) {
    sim.mutate(Some(Mutation::DropFlush(site)));
    act();
    sim.mutate(None);
}

/// Returns where the last flush of the recording was called.
fn last_flush(sim: &Sim) -> Site {
    let trace = sim.trace();
    let flush = trace.records().iter().rev().find(|r| matches!(r.event, Event::Flush { .. }));
    flush.unwrap().site
}

/// A process that dies between a store and its flush leaves something visible that is not durable.
/// A thread that finds it after opening must make it durable before acting on it.
#[test]
fn what_a_dead_process_did_not_flush_is_durable_before_it_is_shown() {
    let sim = Sim::new(CAPACITY).unwrap();
    let index = tiny::<Plain, _>(sim.clone());
    put(&index, 1 << 32, 1);
    let site = last_flush(&sim);
    sim.checkpoint();
    without_the_last_flush(&sim, site, || put(&index, 2 << 32, 2));
    drop(index);
    let index = reopen::<Plain>(&sim);
    acknowledged(&sim, 0, || assert_eq!(get(&index, 2 << 32), Some(2)));
    // Opening the pool must not have made it durable by chance.
    let mut lost = 0;
    crash_everywhere(&sim, Model::Adr, |image, index| {
        let found = get(&index, 2 << 32);
        assert!(found == Some(2) || !image.point.completed(0), "it was returned, and then lost");
        lost += u64::from(found.is_none());
    });
    assert!(lost > 0, "no crash could lose it");
}

/// The same for the word that names the table.
#[test]
fn a_table_that_a_dead_process_did_not_publish_durably_is_durable_before_it_is_used() {
    let sim = Sim::new(CAPACITY).unwrap();
    let index = tiny::<Plain, _>(sim.clone());
    let grow = |index: &Clht<Plain, Sim>, number: u64| {
        let splits = || index.stats(&index.pool().pin()).unwrap().splits;
        let before = splits();
        let mut key = number << 32;
        while splits() == before {
            put(index, key, 1);
            key += 1;
        }
    };
    grow(&index, 1);
    // The last thing that a resize flushes is the root.
    let site = last_flush(&sim);
    sim.checkpoint();
    without_the_last_flush(&sim, site, || grow(&index, 2));
    drop(index);
    let index = reopen::<Plain>(&sim);
    acknowledged(&sim, 0, || put(&index, 77, 7));
    crash_everywhere(&sim, Model::Adr, |image, index| {
        let found = get(&index, 77);
        assert!(found == Some(7) || !image.point.completed(0), "acknowledged, and then lost");
    });
}
