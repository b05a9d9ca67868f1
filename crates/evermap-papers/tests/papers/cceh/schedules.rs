//! Two threads on one segment, and a crash: no thread may act on what is visible but not durable
//! yet.

use std::ops::ControlFlow;

use evermap_index::Change;
use evermap_index::testkit::tier;
use evermap_pm::sim::oracle::{MapHistory, MapOp};
use evermap_pm::sim::{Image, ImageConfig, Sim, for_each_image};

use super::staged::{Staged, Stops};
use super::*;

const CAPACITY: u64 = 96 << 10;

/// An operation on a key.
type Call = (u64, MapOp);

/// The keys that are present, what the first thread does, where it may be stopped, and what second
/// threads do then.
struct Scene {
    keys: Vec<u64>,
    first: Call,
    stops: Stops,
    seconds: Vec<Vec<Call>>,
}

fn apply<M: Medium>(index: &Chosen<M>, pool: &Pool<M>, history: &MapHistory<u64>, (key, op): Call) {
    let (m, guard) = (pool.medium(), pool.pin());
    let number = history.begin(m, key, op);
    let change = match op {
        MapOp::Insert(word) => index.insert(key, word, &guard),
        MapOp::Upsert(word) => index.upsert(key, word, &guard),
        MapOp::Update(word) => index.update(key, word, &guard),
        MapOp::Remove => index.remove(key, &guard),
        MapOp::Get => index.get(key, &guard).map(|old| Change { old, new: old }),
        MapOp::CompareExchange { .. } | MapOp::RemoveIf(_) => unreachable!("in no scene"),
    };
    history.end(m, number, change.unwrap().old);
}

/// Runs a scene with the first thread stopped at its access number `stop`, and crashes it at every
/// point at which both threads have begun. Returns the number of images, or `None` if the first
/// thread has no such access.
fn play(scene: &Scene, second: &[Call], stop: u64, locking: Locking) -> Option<u64> {
    let staged = Arc::new(Staged::new());
    let sim = Sim::new(CAPACITY).unwrap().observed_by(staged.clone());
    sim.pause();
    let region = region(4096, CAPACITY);
    let pool = Pool::create(sim.clone(), &region, Identity::default()).unwrap();
    let index = Chosen::create(pool.clone(), pool.root(0), config(locking)).unwrap();
    put(&index, &pool, &scene.keys);
    sim.checkpoint();
    let before = scene.keys.iter().enumerate().map(|(word, &key)| (key, word as u64));
    let history = MapHistory::new(before);
    let stopped = staged.run(
        scene.stops,
        stop,
        || apply(&index, &pool, &history, scene.first),
        || second.iter().for_each(|&call| apply(&index, &pool, &history, call)),
    );
    if !stopped {
        return None;
    }
    assert_eq!(index.check(), Vec::<String>::new());
    let per_point = tier().choose(1, 12);
    let config = ImageConfig { per_point, random: per_point / 3, ..ImageConfig::default() };
    let mut images = 0;
    let visit = |image: &Image<'_>| {
        if image.point.begun() < 2 {
            return ControlFlow::Continue(());
        }
        images += 1;
        let sim = Sim::from_image(image.bytes, CAPACITY).unwrap();
        sim.set_budget(200_000);
        let pool = reopen(sim);
        let index = Chosen::open(pool.clone(), pool.root(0)).unwrap();
        for key in history.keys() {
            let found = index.get(key, &pool.pin()).unwrap();
            if let Err(what) = history.check(&key, image.point, found) {
                let story = image.describe(&|number| history.name(number));
                panic!("{what}; second {second:x?}, stop {stop}, {locking:?}\n{story}");
            }
        }
        assert_sound(&index, &pool);
        ControlFlow::Continue(())
    };
    for_each_image(&sim.trace(), &config, visit);
    Some(images)
}

fn play_all(scene: &Scene) {
    let step = tier().choose(3, 1);
    for &locking in &LOCKINGS[..tier().choose(1, 2)] {
        for (first, second) in (0..).zip(&scene.seconds) {
            let (mut stop, mut stops, mut images) = (first % step, 0, 0);
            while let Some(more) = play(scene, second, stop, locking) {
                (stop, stops, images) = (stop + step, stops + 1, images + more);
            }
            assert!(stop >= 5 && images >= stops, "{stops} stops, {images} images");
        }
    }
}

/// Returns second threads that make one call each.
fn alone(calls: impl IntoIterator<Item = Call>) -> Vec<Vec<Call>> {
    calls.into_iter().map(|call| vec![call]).collect()
}

/// CC-5: a lookup, or another change, must not return what a crash can still lose.
#[test]
fn cc5_no_thread_sees_what_is_not_durable() {
    let keys: Vec<u64> = (0..3).map(|number| key(0b01, 2, number)).collect();
    let seconds = |of: u64| {
        use MapOp::{Get, Insert, Remove, Update, Upsert};
        alone([Get, Insert(101), Update(102), Upsert(103), Remove].map(|op| (of, op)))
    };
    let absent = key(0b01, 2, 9);
    for first in
        [(absent, MapOp::Insert(100)), (keys[1], MapOp::Update(100)), (keys[1], MapOp::Remove)]
    {
        let seconds = seconds(first.0);
        play_all(&Scene { keys: keys.clone(), first, stops: Stops::Changes, seconds });
    }
}

/// C4: a lookup that is overtaken between any two of its loads returns a state that existed: not
/// the key of one record with the word of another, and not `None` for a key that is present all the
/// time.
#[test]
fn c4_a_lookup_may_be_overtaken_anywhere() {
    let keys: Vec<u64> = (0..8).map(|number| key(0b01, 2, number)).collect();
    let key_of = |number| key(0b01, 2, number);
    for place in [0, 5] {
        let (of, kept) = (keys[place], keys[7 - place]);
        let replaced = vec![(of, MapOp::Remove), (key_of(50), MapOp::Insert(100))];
        let moved = vec![(of, MapOp::Remove), (kept, MapOp::Remove), (of, MapOp::Insert(101))];
        // The window is full, so this splits the segment.
        let split = vec![(key(0b00, 2, 9), MapOp::Insert(102))];
        let seconds = vec![replaced, moved, split];
        for first in [(of, MapOp::Get), (kept, MapOp::Get)] {
            let (keys, seconds) = (keys.clone(), seconds.clone());
            play_all(&Scene { keys, first, stops: Stops::Accesses, seconds });
        }
    }
}

/// What the second thread does while the first splits a segment.
fn around_a_split(moving: u64, staying: u64, fresh: u64, freed: u64) -> Vec<Vec<Call>> {
    alone([
        (moving, MapOp::Get),
        (moving, MapOp::Update(101)),
        (moving, MapOp::Remove),
        (staying, MapOp::Update(102)),
        (fresh, MapOp::Insert(103)),
        // Into a slot that a moved record leaves behind.
        (freed, MapOp::Insert(104)),
    ])
}

/// CC-4, C6: no thread acts on a directory or a segment that a crash can still lose; here the
/// directory doubles.
#[test]
fn cc4_no_thread_acts_on_a_doubling_that_is_not_durable() {
    let keys: Vec<u64> = (0..4).flat_map(|n| [key(0b00, 2, n), key(0b01, 2, n)]).collect();
    let (staying, moving) = (keys[0], keys[1]);
    let seconds = around_a_split(moving, staying, key(0b01, 2, 50), key(0b00, 2, 51));
    let first = (key(0b01, 2, 9), MapOp::Insert(100));
    play_all(&Scene { keys, first, stops: Stops::Changes, seconds });
}

/// The same if a range of the directory is changed entry by entry.
#[test]
fn cc4_no_thread_acts_on_a_range_that_is_not_durable() {
    let deepening = (0..8).map(|n| key(0b1000, 4, n)).chain([key(0b1001, 4, 0)]);
    let wide = (0..4).flat_map(|n| [key(0b0000, 4, n), key(0b0111, 4, n)]);
    let keys: Vec<u64> = deepening.chain(wide).collect();
    let (staying, moving) = (key(0b0000, 4, 0), key(0b0111, 4, 0));
    let seconds = around_a_split(moving, staying, key(0b0100, 4, 50), key(0b0011, 4, 51));
    let first = (key(0b0100, 4, 9), MapOp::Insert(100));
    play_all(&Scene { keys, first, stops: Stops::Changes, seconds });
}

/// A segment is to be split while the thread that split it last has not finished.
#[test]
fn c1_a_split_waits_until_the_last_one_is_durable() {
    let deepening = (0..8).map(|n| key(0b10000, 5, n)).chain([key(0b10001, 5, 0)]);
    let keys: Vec<u64> = deepening.chain((0..8).map(|n| key(0b00000, 5, n))).collect();
    let first = (key(0b01100, 5, 9), MapOp::Insert(100));
    let seconds = alone([(key(0b00100, 5, 50), MapOp::Insert(101))]);
    play_all(&Scene { keys, first, stops: Stops::Changes, seconds });
}
