//! States that crashes seldom leave, constructed.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use evermap_pm::sim::Sim;
use evermap_pm::{ErrorKind, Medium, PmU64, Pool};

use super::Art;
use super::layout::{Child, Kind};
use super::node::{Node, RANKS, rank};
use crate::ordered::Page;
use crate::ordered::leaf::LeafState;
use crate::testkit::crash_states::{are_kept, as_operation, created, look_up_after_death};
use crate::testkit::ordered::encoded::InOrder;
use crate::{Cursor, Direction, Index, OrderedIndex, Result};

type Tree = InOrder<u64, Art<Sim>>;

const KEY: u64 = 7;

/// A tree with one key, the reference to its leaf, and the state of that.
fn one_key(sim: &Sim, index: &Tree) -> [(u64, u64); 2] {
    let tree = &*index.index;
    tree.insert(&KEY.to_be_bytes(), 1).unwrap();
    let symbol = Some(KEY.to_be_bytes()[0]);
    let (cell, child) = tree.root_node().unwrap().find(sim, symbol).unwrap();
    let state = &tree.leaf(child).unwrap().leaf.state;
    [(sim.offset_of(cell), Child::MARK), (sim.offset_of(state), LeafState::MARK)]
}

/// Stores a word with its mark, as a thread or process does that has not flushed it yet.
fn store_marked(sim: &Sim, (at, mark): (u64, u64)) -> &PmU64 {
    let cell: &PmU64 = sim.at(at).unwrap();
    let word = sim.load(cell);
    // An image that lacks the word is one with another word there.
    sim.store(cell, !word);
    sim.checkpoint();
    sim.store(cell, word | mark);
    cell
}

/// Another thread has stored a word, and has not flushed it yet. A lookup must not act on it before
/// it is durable.
#[test]
fn a_lookup_makes_durable_what_it_acts_on() {
    for word in 0..2 {
        let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
        let marked = one_key(&sim, &index)[word];
        let cell = store_marked(&sim, marked);
        as_operation(&sim, || {
            assert_eq!(index.get(KEY, &pool.pin()).unwrap(), Some(1));
        });
        are_kept(&sim, [cell], !marked.1);
        assert_eq!(sim.load(cell) & marked.1, 0, "the mark is removed");
    }
}

/// The same if the process has died, and another one looks the key up.
#[test]
fn what_recovery_finds_is_durable_before_it_is_used() {
    for word in 0..2 {
        let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
        let marked = one_key(&sim, &index)[word];
        let cell = store_marked(&sim, marked);
        assert_eq!(look_up_after_death(&sim, (pool, index), KEY), Some(1));
        are_kept(&sim, [cell], !marked.1);
    }
}

/// A removal that is not durable yet is no absence to rely on.
#[test]
fn a_lookup_makes_a_removal_durable() {
    let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    let (at, mark) = one_key(&sim, &index)[0];
    let cell: &PmU64 = sim.at(at).unwrap();
    sim.checkpoint();
    sim.store(cell, Child::none(Some(Child(sim.load(cell)).symbol())).0 | mark);
    as_operation(&sim, || {
        assert_eq!(index.get(KEY, &pool.pin()).unwrap(), None);
    });
    are_kept(&sim, [cell], !mark);
}

/// A reference that was replaced is there again. No operation waits for the obsolete node behind it
/// to become part of the tree.
#[test]
fn a_reference_to_an_obsolete_node_is_damage() {
    let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    let tree = &*index.index;
    // The guard keeps what is replaced from being reused.
    let _guard = pool.pin();
    let insert = |last: u8| tree.insert(&[b'a', last], 1);
    for last in 0..4 {
        insert(last).unwrap();
    }
    let (cell, child) = tree.root_node().unwrap().find(&sim, Some(b'a')).unwrap();
    insert(4).unwrap();
    assert_ne!(Child(sim.load(cell)).offset(), child.offset(), "the node was full");
    let scan = |direction| -> Result<usize> {
        let (mut cursor, mut count) = (Cursor::new(tree, .., direction), 0);
        while cursor.next()?.is_some() {
            count += 1;
        }
        Ok(count)
    };
    assert_eq!(scan(Direction::Ascending).unwrap(), 5);
    sim.store(cell, child.0);
    let met = [
        scan(Direction::Ascending).map(drop),
        scan(Direction::Descending).map(drop),
        insert(5).map(drop),
        tree.upsert(&[b'a', 0], 2).map(drop),
        tree.remove(&[b'a', 0]).map(drop),
    ];
    for result in met {
        let error = result.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Damaged { .. }), "{error}");
    }
}

/// A node gathers its children in the order of their keys, from any edge on.
#[test]
fn a_node_gathers_its_children_in_order() {
    for count in [2, 4, 5, 16, 17, 48, 49, 256] {
        let (sim, _pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
        let tree = &*index.index;
        tree.insert(b"a", 0).unwrap();
        // In no order, so that the places of the children are in none either.
        for symbol in (0..count).map(|at| (at * 101 % 256) as u8) {
            tree.insert(&[b'a', symbol], 1).unwrap();
        }
        let (_, child) = tree.root_node().unwrap().find(&sim, Some(b'a')).unwrap();
        let node = tree.node(child, Some(0)).unwrap();
        assert_eq!(node.kind, Kind::for_symbols(count));
        let mut ranks: Vec<_> = node.all(&sim).map(|(symbol, _)| rank(symbol)).collect();
        ranks.sort_unstable();
        for edge in 0..=RANKS {
            let mut from = edge;
            let mut shown = Vec::new();
            while from < RANKS {
                let mut part = Vec::new();
                from = node.gather(&sim, from, Direction::Ascending, &mut part);
                shown.extend(part.iter().rev().map(|(_, child)| rank_of(&sim, &node, *child)));
            }
            assert!(
                shown.iter().eq(ranks.iter().filter(|rank| **rank >= edge)),
                "{edge} {shown:?}"
            );
            let mut before = edge;
            let mut shown = Vec::new();
            while before > 0 {
                let mut part = Vec::new();
                before = node.gather(&sim, before, Direction::Descending, &mut part);
                shown.extend(part.iter().rev().map(|(_, child)| rank_of(&sim, &node, *child)));
            }
            let below = ranks.iter().rev().filter(|rank| **rank < edge);
            assert!(shown.iter().eq(below), "{edge} {shown:?}");
        }
    }
}

fn rank_of(sim: &Sim, node: &Node<'_>, child: Child) -> u16 {
    let is_end = Child(sim.load(&node.header.end)).is(child);
    rank((!is_end).then_some(child.symbol()))
}

/// Scans begin at any bound, however many bytes the nodes on the way skip.
#[test]
fn pages_begin_at_their_bounds() {
    let (_sim, _pool, index): (_, Arc<Pool<Sim>>, Tree) = created(4 << 20, ());
    let tree = &*index.index;
    let mut state = 7u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    // Runs of equal bytes, so that few nodes skip many bytes, some of them more than a node stores.
    let mut key = || {
        let runs = (0..next() % 4).map(|_| vec![b'a' + next() as u8 % 3; next() % 6]);
        runs.collect::<Vec<_>>().concat()
    };
    let keys: BTreeSet<_> = (0..400).map(|_| key()).collect();
    for key in &keys {
        tree.insert(key, key.len() as u64).unwrap();
    }
    for bound in keys.clone().into_iter().chain((0..2_000).map(|_| key())) {
        for (from, direction) in [
            (Bound::Included(&bound[..]), Direction::Ascending),
            (Bound::Excluded(&bound[..]), Direction::Ascending),
            (Bound::Included(&bound[..]), Direction::Descending),
            (Bound::Excluded(&bound[..]), Direction::Descending),
        ] {
            let mut page = Page::default();
            page.expect(5);
            tree.page(from, direction, &mut page).unwrap();
            let shown: Vec<_> = page.pairs.iter().map(|(key, _)| key.to_vec()).collect();
            let expected: Vec<_> = match direction {
                Direction::Ascending => {
                    keys.range::<[u8], _>((from, Bound::Unbounded)).take(5).cloned().collect()
                }
                Direction::Descending => {
                    let range = keys.range::<[u8], _>((Bound::Unbounded, from));
                    let mut last: Vec<_> = range.rev().take(5).cloned().collect();
                    last.reverse();
                    last
                }
            };
            assert_eq!(shown, expected, "{direction:?} from {from:?}");
        }
    }
}
