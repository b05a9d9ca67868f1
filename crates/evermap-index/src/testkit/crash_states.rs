//! Helpers for tests that construct states which crashes rarely leave, for several indexes.

use std::ops::ControlFlow;
use std::sync::Arc;

use evermap_pm::medium::Note;
use evermap_pm::region::{Identity, OnSuspect, RegionConfig};
use evermap_pm::sim::{self, Image, ImageConfig, Sim};
use evermap_pm::{Medium, PmU64, Pool};

use crate::{Index, Key, Persistent};

/// A key type whose keys are numbers.
pub trait Number: for<'a> Key<Ref<'a> = u64> {}

impl<K: for<'a> Key<Ref<'a> = u64>> Number for K {}

/// Creates an empty index in a medium of `capacity` bytes whose recording is paused.
pub fn created<I: Persistent<Sim>>(capacity: u64, config: I::Config) -> (Sim, Arc<Pool<Sim>>, I) {
    let sim = Sim::new(capacity).unwrap();
    sim.pause();
    let region = RegionConfig { extent_size: 4096, capacity, seed: Some(1) };
    let pool = Pool::create(sim.clone(), &region, Identity::default()).unwrap();
    let index = I::create(pool.clone(), pool.root(0), config).unwrap();
    (sim, pool, index)
}

/// Opens the index as the next process would after this one has terminated.
pub fn reopened<I: Persistent<Sim>>(sim: &Sim) -> (Arc<Pool<Sim>>, I) {
    let pool = Pool::open(sim.clone(), Identity::default(), OnSuspect::Refuse).unwrap().0;
    let index = I::open(pool.clone(), pool.root(0)).unwrap();
    (pool, index)
}

/// Returns the word at an offset in an image.
pub fn word_in(image: &Image<'_>, at: u64) -> u64 {
    u64::from_le_bytes(image.bytes[at as usize..][..8].try_into().unwrap())
}

/// Starts a new recording that contains `work` as an operation.
pub fn record(sim: &Sim, work: impl FnOnce()) {
    sim.checkpoint();
    as_operation(sim, work);
}

/// Records `work` as an operation.
pub fn as_operation(sim: &Sim, work: impl FnOnce()) {
    sim.note(Note::Begin(0));
    work();
    sim.note(Note::End(0));
}

/// Simulates that the process terminates, and that the next one looks up a key, which is recorded.
pub fn look_up_after_death<K: Number, I: Index<K> + Persistent<Sim>>(
    sim: &Sim,
    open: (Arc<Pool<Sim>>, I),
    key: u64,
) -> Option<u64> {
    drop(open);
    let (pool, index) = reopened::<I>(sim);
    let mut found = None;
    as_operation(sim, || found = index.get(key, &pool.pin()).unwrap());
    found
}

/// Checks that words are durable once a key was looked up: a process has stored the words at these
/// offsets, and has terminated before any of them was durable. Once the next process has looked up
/// the key, all of them must be durable.
pub fn is_durable_once_served<K: Number, I: Index<K> + Persistent<Sim>>(
    sim: &Sim,
    open: (Arc<Pool<Sim>>, I),
    words: &[u64],
    key: u64,
) {
    let word = |at: u64| sim.at::<PmU64>(at).expect("a word of the index");
    let stored: Vec<u64> = words.iter().map(|&at| sim.load(word(at))).collect();
    words.iter().for_each(|&at| sim.store(word(at), !sim.load(word(at))));
    sim.checkpoint();
    words.iter().zip(&stored).for_each(|(&at, &stored)| sim.store(word(at), stored));
    assert!(look_up_after_death(sim, open, key).is_some());
    for_each_image(sim, true, |image| {
        for (number, (&at, &stored)) in words.iter().zip(&stored).enumerate() {
            assert_eq!(word_in(image, at), stored, "word {number}");
        }
    });
}

/// Calls `check` with every image that a crash can leave: after the recorded work if `done`, or
/// else at any time.
pub fn for_each_image(sim: &Sim, done: bool, check: impl Fn(&Image<'_>)) {
    let mut images = 0;
    sim::for_each_image(&sim.trace(), &ImageConfig::default(), |image| {
        if image.point.completed(0) || !done {
            check(image);
            images += 1;
        }
        ControlFlow::Continue(())
    });
    assert!(images > 0);
}

/// Checks that the current values of these words, in the bits of `mask`, survive every crash after
/// the recorded work.
pub fn are_kept<'w>(sim: &Sim, words: impl IntoIterator<Item = &'w PmU64>, mask: u64) {
    let now: Vec<(u64, u64)> =
        words.into_iter().map(|word| (sim.offset_of(word), sim.load(word))).collect();
    for_each_image(sim, true, |image| {
        now.iter().for_each(|&(at, now)| assert_eq!((word_in(image, at) ^ now) & mask, 0));
    });
}

/// Checks that the current value of a word survives every crash after the recorded work.
pub fn is_kept(sim: &Sim, word: &PmU64) {
    are_kept(sim, [word], !0);
}
