//! P-BwTree.

use std::sync::Arc;

use evermap_index::ordered::bwtree::{BwTree, MUTANTS, Tiny};
use evermap_index::ordered::{Cursor, Direction, OrderedIndex};
use evermap_index::testkit::crash::battery;
use evermap_index::testkit::tiny::PBwTree;
use evermap_index::testkit::{Coarse, Plain, tier};
use evermap_index::{conformance, crash_campaign, ordered_conformance};
use evermap_pm::medium::Counter;
use evermap_pm::sim::{Sim, mutants::Fate};

use crate::trees::{Make, SOUND, in_memory, memory, tree_in};

ordered_conformance!(ordered, Make::<Tiny<Sim>>::new());
// Words are not records to the tree, so it cannot tell a damaged one from another.
conformance!(numbers, PBwTree, [u64, Plain, Coarse]);
crash_campaign!(p_bwtree, PBwTree);

#[test]
fn planted_mistakes_are_noticed() {
    evermap_pm::sim::keep_panics_quiet();
    let battery = battery("p-bwtree", MUTANTS, PBwTree);
    for mistake in &MUTANTS[tier().choose(1..3, 0..3)] {
        let (fate, trial) = battery.fate_of_planted(mistake, 2);
        println!("{mistake}: {fate} {trial:?}");
        assert!(!matches!(fate, Fate::Survived(_)), "{mistake}: {fate}");
    }
}

/// Returns the keys of a tree in one direction.
fn keys(tree: &dyn OrderedIndex, direction: Direction) -> Vec<Vec<u8>> {
    let mut cursor = Cursor::new(tree, .., direction);
    let mut keys = Vec::new();
    while let Some((key, _)) = cursor.next().unwrap() {
        keys.push(key.to_vec());
    }
    keys
}

/// Keys that only differ after their prefixes, some of which are the beginning of others.
#[test]
fn prefixes_need_not_tell_keys_apart() {
    let tree: BwTree<Sim> = in_memory();
    let mut all: Vec<Vec<u8>> = (0..2000u32)
        .map(|number| [&b"a common beginning"[..], &number.to_be_bytes()[..]].concat())
        .chain((0..300).map(|length| vec![0; length]))
        .collect();
    all.sort();
    for (word, key) in all.iter().enumerate().rev() {
        assert!(tree.insert(key, word as u64).unwrap().inserted());
    }
    assert_eq!(tree.check(), SOUND);
    assert_eq!(keys(&tree, Direction::Ascending), all);
    all.reverse();
    assert_eq!(keys(&tree, Direction::Descending), all);
    for key in &all {
        assert!(tree.remove(key).unwrap().removed());
    }
    assert_eq!((tree.check(), tree.len()), (SOUND, 0));
}

/// Every level is told of every split: the height is that of a B+tree, in whatever order keys come.
#[test]
fn the_tree_does_not_turn_into_a_list() {
    const KEYS: u64 = 30_000;
    let orders: [fn(u64) -> u64; 3] =
        [|number| number, |number| KEYS - number, |number| number.wrapping_mul(0x9e37_79b9)];
    for order in orders {
        let tree: BwTree<Sim> = in_memory();
        (0..KEYS).for_each(|number| {
            assert!(tree.insert(&order(number).to_be_bytes(), number).unwrap().inserted());
        });
        let stats = tree.stats();
        // At least 36 keys to a leaf node, and 25 nodes to one above.
        assert_eq!((stats.len, stats.depth), (KEYS, 3));
        assert_eq!(tree.check(), SOUND);
    }
}

/// Removing what was inserted gives back all space but that of a few nodes, whatever the order is.
#[test]
fn nodes_are_merged() {
    const KEYS: u64 = 20_000;
    let tree: BwTree<Sim> = in_memory();
    let orders: [fn(u64) -> u64; 3] =
        [|number| number, |number| KEYS - 1 - number, |number| number * 7919 % KEYS];
    for order in orders {
        (0..KEYS).for_each(|key| assert!(tree.insert(&key.to_be_bytes(), key).unwrap().inserted()));
        for number in 0..KEYS {
            assert!(tree.remove(&order(number).to_be_bytes()).unwrap().removed());
            if number % 4000 == 0 {
                assert_eq!(tree.check(), SOUND);
            }
        }
        let stats = tree.stats();
        println!("{stats:?}");
        assert_eq!((tree.check(), stats.len), (SOUND, 0));
        assert!(stats.segments < 20, "{stats:?}");
    }
}

/// The flushes and fences of inserts of random keys, splits included. A lookup has none.
#[test]
fn inserts_flush_a_record_and_a_word() {
    const KEYS: u64 = 50_000;
    let counter = Arc::new(Counter::default());
    let medium = memory().unwrap().observed_by(counter.clone());
    let tree: BwTree<Sim> = tree_in(medium).unwrap();
    let key = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    let count = |run: &dyn Fn(u64)| {
        counter.reset();
        (0..KEYS).for_each(run);
        counter.counts()
    };
    let each = |count: u64| count as f64 / KEYS as f64;
    let inserted = count(&|number| assert!(tree.insert(&key(number), number).unwrap().inserted()));
    let (lines, fences) = (each(inserted.lines_flushed), each(inserted.fences));
    println!("{lines:.2} lines flushed, {fences:.2} fences");
    assert!(lines <= 6.0 && fences <= 2.5, "{inserted:?}");
    let found = count(&|number| assert_eq!(tree.get(&key(number)).unwrap(), Some(number)));
    assert_eq!((found.lines_flushed, found.fences, found.stores, found.cas), (0, 0, 0, 0));
    let updated =
        count(&|number| assert!(tree.update(&key(number), number + 1).unwrap().changed()));
    println!("{:.2} and {:.2} for an update", each(updated.lines_flushed), each(updated.fences));
    assert!(each(updated.fences) <= 1.5, "{updated:?}");
    let removed = count(&|number| assert!(tree.remove(&key(number)).unwrap().removed()));
    println!("{:.2} and {:.2} for a removal", each(removed.lines_flushed), each(removed.fences));
    assert!(each(removed.lines_flushed) <= 6.0, "{removed:?}");
}
