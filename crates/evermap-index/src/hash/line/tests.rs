//! States that crashes leave now and then, made by hand.

use std::ops::ControlFlow;
use std::sync::Arc;

use evermap_pm::medium::Note;
use evermap_pm::region::{Identity, OnSuspect, RegionConfig};
use evermap_pm::sim::{self, ImageConfig, Sim};
use evermap_pm::{Medium, PmU64, Pool};

use super::bucket::{Record, place};
use super::layout::{FOREIGN, Segment};
use super::{Config, Tiny};
use crate::testkit::Plain;
use crate::{Action, Index, Intent, Persistent};

const CAPACITY: u64 = 1 << 20;
const UPPER: u64 = 1 << 63;

type TinyLine = Tiny<Plain, Sim>;

/// The `n`th key whose home is line `home`, of four, and which may be in one other line alone: 0 and 1, 2 and 3 belong
/// together.
fn key(n: u64, home: u64) -> u64 {
    n << 8 | home
}

/// An index of these keys, in memory that does not record yet.
fn filled(keys: impl IntoIterator<Item = u64>) -> (Sim, Arc<Pool<Sim>>, TinyLine) {
    let sim = Sim::new(CAPACITY).unwrap();
    sim.pause();
    let config = RegionConfig { extent_size: 4096, capacity: CAPACITY, seed: Some(1) };
    let pool = Pool::create(sim.clone(), &config, Identity::default()).unwrap();
    let index = Tiny::create(pool.clone(), pool.root(0), Config::default()).unwrap();
    for key in keys {
        index.insert(key, key, &pool.pin()).unwrap();
    }
    (sim, pool, index)
}

/// The segment that serves a key.
fn serving(index: &TinyLine, key: u64) -> &Segment<4> {
    index.segment(index.locate(key)).unwrap()
}

/// Makes room for a key, but does not insert it: so nothing is flushed afterwards.
fn make_room(pool: &Pool<Sim>, index: &TinyLine, key: u64) {
    let keep = &mut |_| Action::Keep;
    index.mutate(key, Intent::MayInsert, &pool.pin(), keep).unwrap();
}

/// Records `work`, as an operation.
fn record(sim: &Sim, work: impl FnOnce()) {
    sim.checkpoint();
    sim.note(Note::Begin(0));
    work();
    sim.note(Note::End(0));
}

/// Whatever a crash loses after the recorded work, these words are as they are now.
fn are_kept(sim: &Sim, words: &[PmU64]) {
    let now: Vec<u8> = words.iter().flat_map(|word| sim.load(word).to_le_bytes()).collect();
    let at = sim.offset_of(&words[0]) as usize;
    let mut images = 0;
    sim::for_each_image(&sim.trace(), &ImageConfig::default(), |image| {
        if image.point.completed(0) {
            assert_eq!(image.bytes[at..at + now.len()], now);
            images += 1;
        }
        ControlFlow::Continue(())
    });
    assert!(images > 0);
}

fn is_kept(sim: &Sim, word: &PmU64) {
    are_kept(sim, std::slice::from_ref(word));
}

/// Recovery drops a copy that a move left behind. That is durable before the segment is used: were the record removed, by
/// somebody else, the copy would come back.
#[test]
fn what_recovery_drops_is_gone_before_the_segment_is_used() {
    let moved = key(1, 0);
    let (sim, pool, index) = filled([moved]);
    let copy = &serving(&index, moved).lines[1];
    place::<_, 4, 3>(&sim, copy, 1, Record { image: moved, word: moved }, FOREIGN);
    let at = sim.offset_of(&copy.keys[1]);
    drop((index, pool));
    let pool = Pool::open(sim.clone(), Identity::default(), OnSuspect::Refuse).unwrap().0;
    let index: TinyLine = Tiny::open(pool.clone(), pool.root(0)).unwrap();
    record(&sim, || assert_eq!(index.get(moved, &pool.pin()).unwrap(), Some(moved)));
    let copy = sim.at::<PmU64>(at).unwrap();
    assert_eq!(sim.load(copy), 0);
    is_kept(&sim, copy);
}

/// A segment is split for a record that in the end is not inserted. Others may split or merge what came of it as soon as
/// that is unlocked, and recovery finishes one such step alone.
#[test]
fn a_split_is_durable_whatever_comes_of_the_record() {
    let keys = (0..6).map(|n| key(n, n % 2) | (UPPER & n << 62));
    let (sim, pool, index) = filled(keys);
    let shape = &serving(&index, 0).header.shape;
    let whole = sim.load(shape);
    record(&sim, || make_room(&pool, &index, key(6, 0)));
    assert_ne!(sim.load(shape), whole);
    is_kept(&sim, shape);
}

/// The same for a chain that is made longer: others may put their records there as soon as it is unlocked.
#[test]
fn a_longer_chain_is_durable_whatever_comes_of_the_record() {
    let (sim, pool, index) = filled((0..6).map(|n| key(n, 0)));
    let chain = &serving(&index, 0).header.chain;
    assert_eq!(sim.load(chain), 0);
    record(&sim, || make_room(&pool, &index, key(6, 0)));
    assert_ne!(sim.load(chain), 0);
    is_kept(&sim, chain);
}

/// A split takes all records out of a chain, and with them its only link, whose block may be something else soon.
#[test]
fn an_empty_link_of_a_chain_is_unlinked_for_good() {
    let chained = (0..7).map(|n| key(n, 0) | UPPER);
    let others = (0..6).map(|n| key(n, 2) | (UPPER & n << 63));
    let (sim, pool, index) = filled(chained.chain(others));
    let chain = &serving(&index, 0).header.chain;
    assert_ne!(sim.load(chain), 0);
    record(&sim, || make_room(&pool, &index, key(6, 2)));
    assert_eq!(sim.load(chain), 0);
    is_kept(&sim, chain);
}

/// No entry leads to what was merged, whose blocks may be something else soon.
#[test]
fn a_merge_is_durable_before_its_halves_are_retired() {
    // Enough keys for a deep directory; then a few that split a segment of many entries.
    let deep = (0..64).map(|n| UPPER | (n * 37 % 64) << 57 | (n % 4));
    let wide: Vec<u64> = (0..7).map(|n| key(n, 0) | (n & 1) << 62).collect();
    let (sim, pool, index) = filled(wide[..1].iter().copied().chain(deep));
    assert!(index.directory.depth() >= 4);
    for &key in &wide[1..] {
        index.insert(key, key, &pool.pin()).unwrap();
    }
    assert_eq!(index.shape_at(index.locate(0)).unwrap().depth, 2);
    let merges = || index.stats(&pool.pin()).unwrap().merges;
    for &key in &wide {
        record(&sim, || assert!(index.remove(key, &pool.pin()).unwrap().removed()));
        if merges() > 0 {
            return are_kept(&sim, index.directory.entries());
        }
    }
    panic!("nothing was merged");
}
