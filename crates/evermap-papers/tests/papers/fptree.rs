//! FPTree.

use std::sync::Arc;

use evermap_index::ordered::OrderedIndex;
use evermap_index::testkit::crash::battery;
use evermap_index::testkit::ordered::trees::{
    Costs, Make, SOUND, in_memory, keys_with_equal_prefixes, memory, nodes_stay_stale,
    pages_have_what_is_expected, tree_in,
};
use evermap_index::testkit::{Coarse, Plain};
use evermap_index::{conformance, crash_campaign, ordered_conformance};
use evermap_papers::fptree::{FpTree, Fused, MUTANTS, Paper, Transactions};
use evermap_papers::testkit::tiny;
use evermap_pm::medium::{Counter, Counts};
use evermap_pm::sim::{Sim, mutants::Fate};

ordered_conformance!(ordered, Make::<FpTree<Sim>>::new());
ordered_conformance!(ordered_tiny, Make::<FpTree<Sim, Fused<8>>>::new());
// Words are not records to the tree, so it cannot tell a damaged one from another.
conformance!(numbers, tiny::FpTree, [u64, Plain, Coarse]);
crash_campaign!(fp_tree, tiny::FpTree);

ordered_conformance!(ordered_paper, Make::<FpTree<Sim, Paper>>::new());
conformance!(numbers_paper, tiny::FpTreePaper, [u64]);
crash_campaign!(variant fp_tree_paper, tiny::FpTreePaper);

// By hardware transactions, or under their lock where there are none.
ordered_conformance!(ordered_transactions, Make::<FpTree<Sim, Transactions<8>>>::new());

#[test]
fn leaves_of_an_opener_that_died_are_recovered() {
    nodes_stay_stale::<FpTree<Sim>>();
}

#[test]
fn planted_mistakes_are_noticed() {
    evermap_pm::sim::keep_panics_quiet();
    let battery = battery("fp-tree", MUTANTS, tiny::FpTree);
    for mistake in MUTANTS {
        let (fate, trial) = battery.fate_of_planted(mistake, 2);
        println!("{mistake}: {fate} {trial:?}");
        assert!(!matches!(fate, Fate::Survived(_)), "{mistake}: {fate}");
    }
}

#[test]
fn prefixes_need_not_tell_keys_apart() {
    keys_with_equal_prefixes::<FpTree<Sim>>();
    keys_with_equal_prefixes::<FpTree<Sim, Fused<8>>>();
}

#[test]
fn pages_are_as_long_as_the_caller_expects() {
    pages_have_what_is_expected::<FpTree<Sim>>(56);
}

/// What operations on one key cost in a leaf that has room.
struct Persists {
    inserted: Counts,
    updated: Counts,
    removed: Counts,
    found: Counts,
}

/// Counts what operations on a key of this length cost.
fn persists<T: evermap_index::ordered::PersistentOrdered<Sim>>(length: usize) -> Persists {
    let counter = Arc::new(Counter::default());
    let tree: T = tree_in(memory().unwrap().observed_by(counter.clone())).unwrap();
    tree.insert(b"another key", 1).unwrap();
    let key = vec![7; length];
    let count = |run: &dyn Fn() -> bool| {
        counter.reset();
        assert!(run());
        counter.counts()
    };
    // The heap may take an extent for the first block of a size.
    tree.insert(&key, 1).unwrap();
    tree.remove(&key).unwrap();
    Persists {
        inserted: count(&|| tree.insert(&key, 2).unwrap().inserted()),
        found: count(&|| tree.get(&key).unwrap() == Some(2)),
        updated: count(&|| tree.update(&key, 3).unwrap().changed()),
        removed: count(&|| tree.remove(&key).unwrap().removed()),
    }
}

/// The persists of the paper: three for an insertion and for an update, one for a removal. A longer
/// key has a block, which is durable with the entry.
#[test]
fn changes_in_the_form_of_the_paper_take_three_persists() {
    for (length, lines) in [(0, 3), (16, 3), (17, 4), (64, 4), (65, 5)] {
        let Persists { inserted, updated, removed, found } = persists::<FpTree<Sim, Paper>>(length);
        assert_eq!((inserted.fences, inserted.lines_flushed), (3, lines), "length {length}");
        assert_eq!((updated.fences, updated.lines_flushed), (3, 3), "length {length}");
        assert_eq!((removed.fences, removed.lines_flushed), (1, 1), "length {length}");
        assert_eq!((found.fences, found.stores, found.cas, found.transient_stores), (0, 0, 0, 0));
    }
}

/// The fingerprint shares a line with the bitmap, and so needs no fence of its own.
#[test]
fn changes_take_two_persists() {
    for (length, lines) in [(0, 2), (16, 2), (17, 3), (64, 3), (65, 4)] {
        let Persists { inserted, updated, removed, found } = persists::<FpTree<Sim>>(length);
        assert_eq!((inserted.fences, inserted.lines_flushed), (2, lines), "length {length}");
        assert_eq!((updated.fences, updated.lines_flushed), (2, 2), "length {length}");
        assert_eq!((removed.fences, removed.lines_flushed), (1, 1), "length {length}");
        assert_eq!((found.fences, found.stores, found.cas, found.transient_stores), (0, 0, 0, 0));
    }
}

/// Random keys, splits included.
#[test]
fn splits_cost_little_more() {
    let costs = Costs::of::<FpTree<Sim>>();
    let (lines, fences) = Costs::of_each("insert", &costs.inserted);
    assert!(lines <= 2.8 && fences <= 2.2, "{:?}", costs.inserted);
    let (lines, fences) = Costs::of_each("update", &costs.updated);
    assert!(lines <= 2.0 && fences <= 2.0, "{:?}", costs.updated);
    let (lines, fences) = Costs::of_each("removal", &costs.removed);
    assert!(lines <= 1.1 && fences <= 1.1, "{:?}", costs.removed);
    let found = costs.found;
    assert_eq!((found.lines_flushed, found.fences, found.stores, found.cas), (0, 0, 0, 0));
    let costs = Costs::of::<FpTree<Sim, Paper>>();
    let (lines, fences) = Costs::of_each("insert as published", &costs.inserted);
    assert!(lines <= 3.8 && fences <= 3.2, "{:?}", costs.inserted);
}

/// The claim of the paper: a fingerprint spares a lookup all keys but about one.
#[test]
fn a_lookup_compares_about_one_key() {
    const KEYS: u64 = 20_000;
    let tree: FpTree<Sim> = in_memory();
    let key = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    (0..KEYS).for_each(|number| assert!(tree.insert(&key(number), 1).unwrap().inserted()));
    let sum = |keys: std::ops::Range<u64>| -> usize {
        keys.map(|number| tree.compared(&key(number)).unwrap()).sum()
    };
    let (hits, misses) = (sum(0..KEYS), sum(KEYS..2 * KEYS));
    let each = |sum: usize| sum as f64 / KEYS as f64;
    println!("{} keys for one that is present, {} for another", each(hits), each(misses));
    assert!((1.0..1.15).contains(&each(hits)) && each(misses) < 0.25);
}

/// Leaves that become empty are taken out, wherever they are, and their space is used again.
#[test]
fn empty_leaves_are_taken_out() {
    const KEYS: u64 = 2_000;
    let tree: FpTree<Sim, Fused<8>> = in_memory();
    let orders: [fn(u64) -> u64; 3] =
        [|number| number, |number| KEYS - 1 - number, |number| number * 1_237 % KEYS];
    for order in orders {
        for number in 0..KEYS {
            assert!(tree.insert(&number.to_be_bytes(), number).unwrap().inserted());
        }
        let leaves = tree.stats().segments;
        assert!(leaves >= KEYS / 8);
        for number in 0..KEYS {
            assert!(tree.remove(&order(number).to_be_bytes()).unwrap().removed());
        }
        let stats = tree.stats();
        assert_eq!((stats.len, stats.segments, tree.check()), (0, 1, SOUND));
    }
}
