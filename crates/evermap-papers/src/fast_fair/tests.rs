//! States that crashes seldom leave, constructed.

use std::sync::Arc;

use evermap_index::node_lock::{Lock, Seen};
use evermap_index::ordered::tree::PersistentTree;
use evermap_index::testkit::crash_states::{
    created, is_durable_once_served, is_kept, record, reopened,
};
use evermap_index::testkit::ordered::encoded::InOrder;
use evermap_index::{OrderedIndex, Persistent};
use evermap_pm::sim::{Mutation, Sim};
use evermap_pm::{Error, ErrorKind, Medium, Pool};

use super::layout::{Node, NodeBlock, RECORDS_MAX, node_bytes};
use super::{FastFair, Improved, mistakes};

type Tree = InOrder<u64, FastFair<Sim>>;

/// As many keys as the first node has space for.
const FULL: u64 = RECORDS_MAX as u64;

fn insert(index: &Tree, keys: impl IntoIterator<Item = u64>) {
    for key in keys {
        assert!(index.index.insert(&key.to_be_bytes(), key).unwrap().inserted());
    }
}

/// Checks that a tree has two levels and the keys below `keys`, and nothing else.
fn assert_complete(index: &Tree, keys: u64) {
    for key in 0..keys {
        assert_eq!(index.index.get(&key.to_be_bytes()).unwrap(), Some(key), "key {key}");
    }
    assert_eq!(index.check(), Vec::<String>::new());
    let stats = index.index.stats();
    assert_eq!((stats.len, stats.depth), (keys, 2));
}

/// Behind the end of a node that was split there are references to leaves, and these may be freed
/// soon. So where a node ends is durable when a change returns, also if it is the new one that has
/// got the key.
#[test]
fn the_end_of_a_node_is_durable_when_a_change_returns() {
    let (sim, _pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    insert(&index, (0..FULL).map(|key| 2 * key + 1));
    let left = index.index.root_node().unwrap();
    let mut added = 0;
    for key in [2 * FULL].into_iter().chain((0..).step_by(2)) {
        record(&sim, || insert(&index, [key]));
        added += 1;
        let end = &left.records()[left.count(&sim)].at;
        assert_eq!(sim.load(end), 0);
        is_kept(&sim, end);
        if left.count(&sim) == RECORDS_MAX - 1 {
            break;
        }
    }
    assert_eq!(index.index.stats().len, FULL + added);
    assert_eq!(index.check(), Vec::<String>::new());
}

/// A process has died before what it had stored in a node was durable, and another one finds it.
#[test]
fn what_recovery_finds_is_durable_before_it_is_used() {
    let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    insert(&index, 0..FULL + 1);
    let root = sim.load(&index.index.root_block().unwrap().tree);
    let left = sim.load(&sim.at::<Node<45>>(root).unwrap().low().at);
    let node = sim.at::<Node<45>>(left).unwrap();
    let records = node.records();
    let words = [&node.header.sibling, &records[3].prefix, &records[3].at, &records[9].at];
    let words = words.map(|word| sim.offset_of(word));
    is_durable_once_served(&sim, (pool, index), &words, 3);
}

/// A process has died between the two stores of a split: both nodes have the upper half of the
/// records.
#[test]
fn a_split_is_completed_after_a_crash() {
    let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    insert(&index, 0..FULL);
    sim.mutate(Some(Mutation::Planted(mistakes::KEEP_UPPER_HALF)));
    insert(&index, FULL..FULL + 1);
    sim.mutate(None);
    let root = sim.load(&index.index.root_block().unwrap().tree);
    let left = sim.load(&sim.at::<Node<45>>(root).unwrap().low().at);
    let left = index.index.node_as_it_is(left, Some(0)).unwrap();
    assert_eq!(left.count(&sim), RECORDS_MAX);
    let offset = left.offset;
    drop((pool, index));
    let (_pool, index): (_, Tree) = reopened(&sim);
    record(&sim, || assert_eq!(index.index.get(&0u64.to_be_bytes()).unwrap(), Some(0)));
    let left = index.index.node_as_it_is(offset, Some(0)).unwrap();
    assert!(left.count(&sim) < RECORDS_MAX);
    is_kept(&sim, &left.records()[left.count(&sim)].at);
    assert_complete(&index, FULL + 1);
}

/// A process has died when a root was split, before it put a new root above the two nodes.
#[test]
fn a_root_that_was_split_gets_one_above() {
    let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    let cell = &index.index.root_block().unwrap().tree;
    insert(&index, 0..FULL);
    let before = sim.load(cell);
    insert(&index, FULL..FULL + 1);
    sim.store(cell, before);
    drop((pool, index));
    let (_pool, index): (_, Tree) = reopened(&sim);
    // It comes to the right node from the left one.
    insert(&index, FULL + 1..FULL + 2);
    assert_complete(&index, FULL + 2);
}

/// There is space for the new node of a split, and none for a root above it.
#[test]
fn a_split_without_space_for_a_root_is_complete() {
    let (_sim, pool, index): (_, _, Tree) = created(1 << 20, ());
    insert(&index, 0..FULL);
    let sizes = [1, 0].map(|level| node_bytes::<_, Improved>(&pool, level));
    let mut taken: Vec<u64> = sizes
        .into_iter()
        .flat_map(|bytes| {
            std::iter::from_fn(|| pool.allocate_fixed(bytes).ok()).collect::<Vec<_>>()
        })
        .collect();
    pool.free_unpublished(taken.pop().unwrap());
    insert(&index, FULL..FULL + 1);
    assert_eq!(index.index.stats().depth, 1);
    assert_eq!(index.index.get(&FULL.to_be_bytes()).unwrap(), Some(FULL));
    taken.into_iter().for_each(|block| pool.free_unpublished(block));
    insert(&index, FULL + 1..FULL + 2);
    assert_complete(&index, FULL + 2);
}

/// A node whose first word is damaged is not changed.
#[test]
fn a_node_without_a_beginning_is_damaged() {
    let (sim, _pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    insert(&index, 0..3);
    let root = sim.load(&index.index.root_block().unwrap().tree);
    sim.store(&sim.at::<Node<45>>(root).unwrap().low().at, 0);
    let key = 0u64.to_be_bytes();
    let error = index.index.remove(&key).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Damaged { .. }), "{error}");
    assert_eq!(index.index.get(&key).unwrap(), Some(0));
}

/// The lock word says that the node is not part of the tree any more, which none ever is.
#[test]
fn an_obsolete_node_is_damaged() {
    let (sim, _pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    insert(&index, 0..3);
    let lock = &index.index.root_node().unwrap().header().lock;
    let before = Lock(sim.load(lock));
    sim.store(lock, before.locked().obsolete().0);
    let key = 1u64.to_be_bytes();
    for result in [index.index.upsert(&key, 7), index.index.remove(&key)] {
        let error = result.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Damaged { .. }), "{error}");
    }
    sim.store(lock, before.0);
    assert!(index.index.remove(&key).unwrap().removed());
}

/// In a file whose pages are of different ages, the level above has a reference to a node to which
/// its left neighbour has none. Searches come there.
#[test]
fn nodes_that_their_neighbours_do_not_know_are_made_stale() {
    let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    insert(&index, 0..2 * FULL);
    let root = index.index.root_node().unwrap();
    let children: Vec<_> = (0..=root.count(&sim))
        .map(|at| index.index.node_as_it_is(root.left_of(&sim, at), Some(0)).unwrap())
        .collect();
    assert!(children.len() > 2);
    let [first, second] = [0, 1].map(|at| &children[at].header().sibling);
    sim.store(first, sim.load(second));
    index.index.make_stale().unwrap();
    for child in children {
        assert!(!Lock(sim.load(&child.header().lock)).is_of(pool.generation()));
    }
}

/// A page that meets a node in the middle of a split finds references that lead nowhere: only what
/// stays so is damage.
#[test]
fn errors_count_only_if_nodes_are_unchanged() {
    let (sim, _pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    insert(&index, 0..3);
    let lock = &index.index.root_node().unwrap().header().lock;
    let seen = || {
        let mut seen = Seen::default();
        seen.add(lock, Lock(sim.load(lock)));
        seen
    };
    let judged = |seen| index.index.if_unchanged(Err(Error::damaged(0, "for the test")), seen);
    assert!(judged(seen()).is_err());
    let before = seen();
    sim.store(lock, Lock(sim.load(lock)).locked().changed().0);
    assert!(judged(before).unwrap().is_none());
}
