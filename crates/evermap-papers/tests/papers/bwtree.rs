//! P-BwTree.

use evermap_index::ordered::OrderedIndex;
use evermap_index::testkit::crash::battery;
use evermap_index::testkit::ordered::overtaken::{
    changes_that_are_overtaken_are_seen, pages_that_are_overtaken_are_of_one_moment,
};
use evermap_index::testkit::ordered::trees::{
    Costs, Make, SOUND, in_memory, keys_with_equal_prefixes, pages_have_what_is_expected,
};
use evermap_index::testkit::{Coarse, Plain};
use evermap_index::{conformance, crash_campaign, ordered_conformance};
use evermap_papers::bwtree::{BwTree, MUTANTS, Tiny};
use evermap_papers::testkit::tiny::PBwTree;
use evermap_pm::sim::{Sim, mutants::Fate};

ordered_conformance!(ordered, Make::<Tiny<Sim>>::new());
// Words are not records to the tree, so it cannot tell a damaged one from another.
conformance!(numbers, PBwTree, [u64, Plain, Coarse]);
crash_campaign!(p_bwtree, PBwTree);

#[test]
fn planted_mistakes_are_noticed() {
    evermap_pm::sim::keep_panics_quiet();
    let battery = battery("p-bwtree", MUTANTS, PBwTree);
    // The others have tests of their own: see `NOTICED_ELSEWHERE`.
    for mistake in &MUTANTS[1..4] {
        let (fate, trial) = battery.fate_of_planted(mistake, 2);
        println!("{mistake}: {fate} {trial:?}");
        assert!(!matches!(fate, Fate::Survived(_)), "{mistake}: {fate}");
    }
}

#[test]
fn prefixes_need_not_tell_keys_apart() {
    keys_with_equal_prefixes::<BwTree<Sim>>();
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
        // At least 64 keys to a leaf node, and 21 nodes to one above.
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
    let costs = Costs::of::<BwTree<Sim>>();
    let (lines, fences) = Costs::of_each("an insert", &costs.inserted);
    assert!(lines <= 4.5 && fences <= 2.3, "{:?}", costs.inserted);
    let found = costs.found;
    assert_eq!((found.lines_flushed, found.fences, found.stores, found.cas), (0, 0, 0, 0));
    let (_, fences) = Costs::of_each("an update", &costs.updated);
    assert!(fences <= 1.5, "{:?}", costs.updated);
    let (lines, _) = Costs::of_each("a removal", &costs.removed);
    assert!(lines <= 2.6, "{:?}", costs.removed);
}

#[test]
fn pages_are_as_long_as_the_caller_expects() {
    pages_have_what_is_expected::<BwTree<Sim>>(1);
}

#[test]
fn pages_are_of_one_moment() {
    pages_that_are_overtaken_are_of_one_moment::<BwTree<Sim>>();
    pages_that_are_overtaken_are_of_one_moment::<Tiny<Sim>>();
}

#[test]
fn changes_that_are_overtaken_are_shown() {
    changes_that_are_overtaken_are_seen::<BwTree<Sim>>();
    changes_that_are_overtaken_are_seen::<Tiny<Sim>>();
}
