//! States that crashes seldom leave, constructed.

use std::ops::Bound;
use std::sync::Arc;

use evermap_index::node_lock::Lock;
use evermap_index::ordered::Page;
use evermap_index::testkit::crash_states::{
    created, for_each_image, is_durable_once_served, is_kept, record, reopened, word_in,
};
use evermap_index::testkit::ordered::encoded::InOrder;
use evermap_index::testkit::ordered::trees::keys;
use evermap_index::{Direction, OrderedIndex, Persistent};
use evermap_pm::sim::Sim;
use evermap_pm::{Error, ErrorKind, Medium, Pool};

use super::access::Node;
use super::layout::{INLINE_MAX, LeafBlock, Link};
use super::{Form, FpTree, Fused};
use crate::search::Search;

type Tiny = Fused<8>;
type Tree = InOrder<u64, FpTree<Sim, Tiny>>;

/// As many keys as a leaf has space for.
const FULL: u64 = <<Tiny as Form>::Leaf as LeafBlock>::SLOTS as u64;

fn insert(index: &Tree, keys: impl IntoIterator<Item = u64>) {
    for key in keys {
        assert!(index.index.insert(&key.to_be_bytes(), key).unwrap().inserted());
    }
}

fn first<'i>(index: &'i FpTree<Sim, Tiny>) -> Node<'i, Tiny> {
    let first = index.medium().load(&index.root_block().unwrap().first);
    index.node_as_it_is(first).unwrap()
}

fn second<'i>(index: &'i FpTree<Sim, Tiny>) -> Node<'i, Tiny> {
    index.node_as_it_is(first(index).next(index.medium()).offset().unwrap()).unwrap()
}

/// Checks that a tree has the keys below `keys`, and nothing else.
fn assert_complete(index: &Tree, keys: u64) {
    for key in 0..keys {
        assert_eq!(index.index.get(&key.to_be_bytes()).unwrap(), Some(key), "key {key}");
    }
    assert_eq!((index.check(), index.index.len()), (Vec::<String>::new(), keys));
}

fn is_damaged<T: std::fmt::Debug>(result: Result<T, Error>) -> bool {
    matches!(result.unwrap_err().kind(), ErrorKind::Damaged { .. })
}

/// A process has died before what it had stored in a leaf was durable, and another one finds it.
#[test]
fn what_recovery_finds_is_durable_before_it_is_used() {
    let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    insert(&index, 0..3);
    let leaf = first(&index.index);
    let (line, entry) = (leaf.line(), leaf.entry(1));
    let words = [&line.bitmap, &line.fingerprints[0], &entry.key.words[0], &entry.word];
    let words = words.map(|word| sim.offset_of(word));
    is_durable_once_served(&sim, (pool, index), &words, 1);
}

/// A process has died before the reference to a leaf was durable. The next one comes to that leaf
/// from the inner nodes, and never looks at the one before.
#[test]
fn references_that_are_found_are_durable_before_a_leaf_is_used() {
    let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    insert(&index, 0..FULL + 1);
    let reference = sim.offset_of(&first(&index.index).header().next);
    is_durable_once_served(&sim, (pool, index), &[reference], FULL);
}

/// Makes the first leaf what it was before the last step of its split, when it had these entries.
fn undo_last_step(sim: &Sim, leaf: &Node<'_, Tiny>, bitmap: u64) {
    let next = leaf.next(sim).offset().unwrap();
    sim.store(&leaf.line().bitmap, bitmap);
    sim.store(&leaf.header().next, Link::unfinished(next).0);
}

/// An update with the word that a key has moves the key to another entry. A reader that began
/// before has to read the leaf again.
#[test]
fn an_update_with_the_same_word_is_noticed() {
    let (sim, _pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    insert(&index, 0..FULL - 1);
    let key = 1u64.to_be_bytes();
    let read = || {
        let page = &mut Page::default();
        index.index.try_ascending(Bound::Unbounded, 1, page).unwrap().unwrap()
    };
    let seen = read();
    assert!(!index.index.insert(&key, 7).unwrap().inserted());
    assert!(seen.is_unchanged(&sim), "nothing was changed");
    assert_eq!(index.index.update(&key, 1).unwrap().old, Some(1));
    assert!(!seen.is_unchanged(&sim));
    let seen = read();
    assert!(index.index.remove(&key).unwrap().removed());
    assert!(!seen.is_unchanged(&sim));
}

/// A key is inserted into either half of a full leaf. In the lower half it takes the place of one
/// that is in the new leaf now, which the old leaf must have lost before.
#[test]
fn a_split_survives_every_crash() {
    for key in [0, 2 * FULL] {
        let (sim, _pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
        insert(&index, (0..FULL).map(|key| 2 * key + 1));
        record(&sim, || insert(&index, [key]));
        for_each_image(&sim, false, |image| {
            let copy = Sim::from_image(image.bytes, 1 << 20).unwrap();
            let (_pool, index): (_, Tree) = reopened(&copy);
            assert_eq!(index.check(), Vec::<String>::new());
            let found = index.index.get(&key.to_be_bytes()).unwrap();
            assert!(found.is_none_or(|found| found == key) && index.index.len() >= FULL);
            (0..FULL).map(|key| 2 * key + 1).for_each(|key| {
                assert_eq!(index.index.get(&key.to_be_bytes()).unwrap(), Some(key));
            });
        });
    }
}

/// A process has died between the two stores of a split: both leaves have the upper half of the
/// entries. The old leaf loses them before any other thread can remove one of them from the new
/// leaf, and use its block for something else.
#[test]
fn a_split_is_completed_when_the_index_is_opened() {
    let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    let key = |number: u64| [&[7; INLINE_MAX][..], &number.to_be_bytes()[..]].concat();
    for number in 0..FULL {
        assert!(index.index.insert(&key(number), number).unwrap().inserted());
    }
    let all = first(&index.index).bitmap(&sim);
    assert!(index.index.insert(&key(FULL), FULL).unwrap().inserted());
    undo_last_step(&sim, &first(&index.index), all);
    drop((pool, index));
    let mut opened: Option<(Arc<Pool<Sim>>, Tree)> = None;
    record(&sim, || opened = Some(reopened(&sim)));
    let (_pool, index) = opened.unwrap();
    let leaf = first(&index.index);
    assert_eq!((leaf.bitmap(&sim), leaf.next(&sim).is_unfinished()), (all & 0xf, false));
    is_kept(&sim, &leaf.line().bitmap);
    for number in (0..=FULL).rev() {
        assert_eq!(index.check(), Vec::<String>::new());
        assert!(index.index.remove(&key(number)).unwrap().removed());
    }
    assert_eq!((index.index.len(), index.check()), (0, Vec::new()));
}

/// A crash has taken back that a split is complete. Nothing is left to be done.
#[test]
fn a_complete_split_may_look_unfinished() {
    let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    insert(&index, 0..FULL + 1);
    let leaf = first(&index.index);
    undo_last_step(&sim, &leaf, leaf.bitmap(&sim));
    drop((pool, index));
    let (_pool, index): (_, Tree) = reopened(&sim);
    assert!(!first(&index.index).next(&sim).is_unfinished());
    assert_complete(&index, FULL + 1);
    assert_eq!(index.index.rebuilt().leaves, 2);
}

/// The block that a word names is written by the caller, flushed, and not fenced: it is durable
/// whenever a crash leaves the word.
#[test]
fn what_the_caller_has_flushed_is_durable_before_a_word_names_it() {
    const VALUE: u64 = 77;
    for (before, key) in [(0, 0), (3, 9), (3, 1), (FULL, 1), (FULL, FULL)] {
        let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
        insert(&index, 0..before);
        let block = pool.allocate(64).unwrap();
        let value = sim.at::<evermap_pm::PmU64>(block).unwrap();
        sim.store(value, 0);
        record(&sim, || {
            sim.store(value, VALUE);
            sim.flush(value);
            index.index.upsert(&key.to_be_bytes(), block).unwrap();
        });
        for done in [false, true] {
            for_each_image(&sim, done, |image| {
                let copy = Sim::from_image(image.bytes, 1 << 20).unwrap();
                let opened: (_, Tree) = reopened(&copy);
                match opened.1.index.get(&key.to_be_bytes()).unwrap() {
                    Some(word) if word == block => assert_eq!(word_in(image, block), VALUE),
                    other => assert!(!done && other == Some(key).filter(|&key| key < before)),
                }
            });
        }
    }
}

/// Without any free space, keys that are present can be changed and removed, also in a full leaf.
#[test]
fn a_full_leaf_can_be_changed_without_space() {
    let (_sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    insert(&index, 0..FULL);
    while pool.allocate_fixed(index.index.leaf_bytes()).is_ok() {}
    let new = FULL.to_be_bytes();
    assert!(index.index.insert(&new, 1).unwrap_err().is_no_space());
    for key in 0..FULL {
        assert!(index.index.update(&key.to_be_bytes(), key + 1).unwrap().changed());
        assert!(index.index.update(&key.to_be_bytes(), key).unwrap().changed());
    }
    assert_complete(&index, FULL);
    assert!(index.index.remove(&0u64.to_be_bytes()).unwrap().removed());
    assert!(index.index.insert(&new, 1).unwrap().inserted());
    assert_eq!(index.check(), Vec::<String>::new());
}

/// A fingerprint of 0 is one like others, and what is in an entry that is not valid means nothing.
#[test]
fn fingerprints_of_entries_that_are_not_valid_mean_nothing() {
    let (sim, _pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    let tree = &index.index;
    let fingerprint = |key: u64| Search::at(&key.to_be_bytes()).fingerprint(tree.seed);
    let zero = (0..).find(|&key| fingerprint(key) == 0).unwrap();
    let key = zero.to_be_bytes();
    assert_eq!((tree.get(&key).unwrap(), tree.compared(&key).unwrap()), (None, 0));
    insert(&index, [zero]);
    assert_eq!((tree.get(&key).unwrap(), tree.compared(&key).unwrap()), (Some(zero), 1));
    assert!(tree.remove(&key).unwrap().removed());
    assert_eq!(sim.load(&first(tree).entry(0).word), zero);
    assert_eq!((tree.get(&key).unwrap(), tree.compared(&key).unwrap()), (None, 0));
}

/// A leaf that is empty after a crash has its least key, and so its place.
#[test]
fn an_empty_leaf_keeps_its_place() {
    let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    insert(&index, 0..FULL + 1);
    sim.store(&second(&index.index).line().bitmap, 0);
    drop((pool, index));
    let (_pool, index): (_, Tree) = reopened(&sim);
    assert_eq!((index.index.rebuilt().leaves, index.index.len()), (2, FULL / 2));
    assert_eq!(index.check(), Vec::<String>::new());
    let all = keys(&*index.index, Direction::Descending);
    assert_eq!(all.len() as u64, FULL / 2);
    insert(&index, FULL / 2..FULL);
    assert_complete(&index, FULL);
    (FULL / 2..FULL).for_each(|key| {
        assert!(index.index.remove(&key.to_be_bytes()).unwrap().removed());
    });
    assert_eq!(index.index.stats().segments, 1);
}

/// A reference to the next leaf is damaged. What is before it is served, and what is behind it is
/// not said to be absent.
#[test]
fn what_is_behind_a_damaged_reference_is_not_absent() {
    for reference in [8, 64, u64::MAX] {
        let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
        insert(&index, 0..3 * FULL);
        sim.store(&second(&index.index).header().next, reference);
        drop((pool, index));
        let (_pool, index): (_, Tree) = reopened(&sim);
        assert_eq!(index.index.rebuilt().leaves, 2);
        let get = |key: u64| index.index.get(&key.to_be_bytes());
        assert_eq!(get(0).unwrap(), Some(0));
        assert!(is_damaged(get(3 * FULL - 1)));
        assert!(is_damaged(index.index.remove(&(3 * FULL - 1).to_be_bytes())));
        assert!(is_damaged(index.index.insert(&(3 * FULL).to_be_bytes(), 1)));
        assert!(!index.check().is_empty());
    }
}

/// References that lead back would lead a walk round and round.
#[test]
fn a_list_that_leads_back_is_damaged() {
    let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    insert(&index, 0..2 * FULL);
    let back = first(&index.index).offset;
    sim.store(&second(&index.index).header().next, back);
    drop((pool, index));
    let (_pool, index): (_, Tree) = reopened(&sim);
    assert_eq!(index.index.rebuilt().leaves, 2);
    assert!(is_damaged(index.index.get(&(2 * FULL).to_be_bytes())));
}

/// The lock word says that the leaf is not part of the tree any more, though everything leads
/// there.
#[test]
fn an_obsolete_leaf_is_damaged() {
    let (sim, _pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    insert(&index, 0..3);
    let lock = &first(&index.index).header().lock;
    let before = Lock(sim.load(lock));
    sim.store(lock, before.locked().obsolete().0);
    let key = 1u64.to_be_bytes();
    assert!(is_damaged(index.index.get(&key)));
    assert!(is_damaged(index.index.upsert(&key, 7)));
    assert!(is_damaged(index.index.remove(&key)));
    sim.store(lock, before.0);
    assert!(index.index.remove(&key).unwrap().removed());
}

/// Several threads look at the leaves of one list. What is behind a damaged reference is left out,
/// also if another thread looks at it.
#[test]
fn threads_find_all_leaves() {
    const KEYS: u64 = 12_000;
    let (sim, _pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 23, ());
    insert(&index, 0..KEYS);
    let leaves = index.index.stats().segments;
    assert!(leaves > 2 * 1024, "{leaves}");
    let Tree { index: mut tree, .. } = index;
    for threads in [1, 3] {
        assert_eq!(tree.rebuild_by(threads).unwrap().leaves, leaves);
        assert_eq!((tree.len(), tree.check()), (KEYS, Vec::new()));
    }
    let next = |node: Node<'_, Tiny>| node.next(&sim).offset().unwrap();
    let mut last = first(&tree).offset;
    (0..1_500).for_each(|_| last = next(tree.node_as_it_is(last).unwrap()));
    sim.store(&tree.node_as_it_is(last).unwrap().header().next, first(&tree).offset);
    assert_eq!(tree.rebuild_by(3).unwrap().leaves, 1_501);
}
