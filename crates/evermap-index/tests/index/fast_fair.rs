//! FAST & FAIR.

use std::sync::Arc;

use evermap_index::ordered::fast_fair::{FastFair, MUTANTS};
use evermap_index::ordered::{Cursor, Direction, OrderedIndex};
use evermap_index::testkit::crash::battery;
use evermap_index::testkit::tiny;
use evermap_index::testkit::{Coarse, Plain, tier};
use evermap_index::{conformance, crash_campaign, ordered_conformance};
use evermap_pm::medium::Counter;
use evermap_pm::sim::{Sim, mutants::Fate};

use crate::trees::{Make, SOUND, in_memory, memory, nodes_stay_stale, tree_in};

ordered_conformance!(ordered, Make::<FastFair<Sim>>::new());
// Words are not records to the tree, so it cannot tell a damaged one from another.
conformance!(numbers, tiny::FastFair, [u64, Plain, Coarse]);
crash_campaign!(fast_fair, tiny::FastFair);

#[test]
fn nodes_of_an_opener_that_died_are_recovered() {
    nodes_stay_stale::<FastFair<Sim>>();
}

#[test]
fn planted_mistakes_are_noticed() {
    evermap_pm::sim::keep_panics_quiet();
    let battery = battery("fast-fair", MUTANTS, tiny::FastFair);
    for mistake in &MUTANTS[tier().choose(3..4, 0..5)] {
        let (fate, trial) = battery.fate_of_planted(mistake, 2);
        println!("{mistake}: {fate} {trial:?}");
        assert!(!matches!(fate, Fate::Survived(_)), "{mistake}: {fate}");
    }
}

/// Returns the keys of a tree in one direction.
fn keys(tree: &FastFair<Sim>, direction: Direction) -> Vec<Vec<u8>> {
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
    let tree: FastFair<Sim> = in_memory();
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

/// The published code takes a record for one that is being moved if the next one has the same
/// value, and ends a node at the value 0.
#[test]
fn equal_words_and_zero_are_words_like_others() {
    let tree: FastFair<Sim> = in_memory();
    for key in 0..1000u64 {
        assert!(tree.insert(&key.to_be_bytes(), key / 500).unwrap().inserted());
    }
    for key in 0..1000u64 {
        assert_eq!(tree.get(&key.to_be_bytes()).unwrap(), Some(key / 500));
    }
    assert_eq!(tree.len(), 1000);
}

/// Every level is told of every split: the height is that of a B+tree, in whatever order keys come.
#[test]
fn the_tree_does_not_turn_into_a_list() {
    const KEYS: u64 = 30_000;
    let orders: [fn(u64) -> u64; 3] =
        [|number| number, |number| KEYS - number, |number| number.wrapping_mul(0x9e37_79b9)];
    for order in orders {
        let tree: FastFair<Sim> = in_memory();
        (0..KEYS).for_each(|number| {
            assert!(tree.insert(&order(number).to_be_bytes(), number).unwrap().inserted());
        });
        let stats = tree.stats();
        // At least thirteen records to a node.
        assert_eq!((stats.len, stats.depth), (KEYS, 4));
        assert_eq!(tree.check(), SOUND);
    }
}

/// The flushes and fences of inserts of random keys, splits included. A lookup has none.
#[test]
fn inserts_flush_what_they_shift() {
    const KEYS: u64 = 50_000;
    let counter = Arc::new(Counter::default());
    let medium = memory().unwrap().observed_by(counter.clone());
    let tree: FastFair<Sim> = tree_in(medium).unwrap();
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
    assert!(lines <= 6.0 && fences <= 5.0, "{inserted:?}");
    let found = count(&|number| assert_eq!(tree.get(&key(number)).unwrap(), Some(number)));
    assert_eq!((found.lines_flushed, found.fences, found.stores, found.cas), (0, 0, 0, 0));
    let removed = count(&|number| assert!(tree.remove(&key(number)).unwrap().removed()));
    println!("{:.2} and {:.2} for a removal", each(removed.lines_flushed), each(removed.fences));
    assert!(each(removed.lines_flushed) <= 5.0, "{removed:?}");
}
