//! States that crashes seldom leave, constructed.

use std::sync::Arc;

use evermap_pm::sim::Sim;
use evermap_pm::{ErrorKind, Medium, PmU64, Pool};

use super::Art;
use super::layout::Child;
use crate::crash_states::{are_kept, as_operation, created, look_up_after_death};
use crate::ordered::leaf::LeafState;
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
