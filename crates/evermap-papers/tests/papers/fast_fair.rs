//! FAST & FAIR.

use evermap_index::ordered::OrderedIndex;
use evermap_index::testkit::crash::battery;
use evermap_index::testkit::ordered::overtaken::{
    changes_that_are_overtaken_are_seen, pages_that_are_overtaken_are_of_one_moment,
};
use evermap_index::testkit::ordered::trees::{
    Costs, Make, SOUND, in_memory, keys_with_equal_prefixes, nodes_stay_stale,
    pages_have_what_is_expected,
};
use evermap_index::testkit::{Coarse, Plain};
use evermap_index::{conformance, crash_campaign, ordered_conformance};
use evermap_papers::fast_fair::{FastFair, MUTANTS, Paper};
use evermap_papers::testkit::tiny;
use evermap_pm::sim::{Sim, mutants::Fate};

ordered_conformance!(ordered, Make::<FastFair<Sim>>::new());
// Words are not records to the tree, so it cannot tell a damaged one from another.
conformance!(numbers, tiny::FastFair, [u64, Plain, Coarse]);
crash_campaign!(fast_fair, tiny::FastFair);

ordered_conformance!(ordered_paper, Make::<FastFair<Sim, Paper>>::new());
conformance!(numbers_paper, tiny::FastFairPaper, [u64]);
crash_campaign!(variant fast_fair_paper, tiny::FastFairPaper);

#[test]
fn nodes_of_an_opener_that_died_are_recovered() {
    nodes_stay_stale::<FastFair<Sim>>();
}

#[test]
fn planted_mistakes_are_noticed() {
    evermap_pm::sim::keep_panics_quiet();
    let battery = battery("fast-fair", MUTANTS, tiny::FastFair);
    for mistake in MUTANTS {
        let (fate, trial) = battery.fate_of_planted(mistake, 2);
        println!("{mistake}: {fate} {trial:?}");
        assert!(!matches!(fate, Fate::Survived(_)), "{mistake}: {fate}");
    }
}

#[test]
fn prefixes_need_not_tell_keys_apart() {
    keys_with_equal_prefixes::<FastFair<Sim>>();
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
        // At least 21 records to a node.
        assert_eq!((stats.len, stats.depth), (KEYS, 4));
        assert_eq!(tree.check(), SOUND);
    }
}

/// The flushes and fences of inserts of random keys, splits included. A lookup has none.
#[test]
fn inserts_flush_what_they_shift() {
    let costs = Costs::of::<FastFair<Sim>>();
    let (lines, fences) = Costs::of_each("insert", &costs.inserted);
    assert!(lines <= 6.9 && fences <= 6.3, "{:?}", costs.inserted);
    let found = costs.found;
    assert_eq!((found.lines_flushed, found.fences, found.stores, found.cas), (0, 0, 0, 0));
    let (lines, _) = Costs::of_each("removal", &costs.removed);
    assert!(lines <= 5.0, "{:?}", costs.removed);
}

/// Nodes of the paper's size have fewer records to shift.
#[test]
fn inserts_in_the_form_of_the_paper_shift_less() {
    let costs = Costs::of::<FastFair<Sim, Paper>>();
    let (lines, fences) = Costs::of_each("insert", &costs.inserted);
    assert!(lines <= 5.4 && fences <= 4.8, "{:?}", costs.inserted);
    let found = costs.found;
    assert_eq!((found.lines_flushed, found.fences, found.stores, found.cas), (0, 0, 0, 0));
}

#[test]
fn pages_are_as_long_as_the_caller_expects() {
    pages_have_what_is_expected::<FastFair<Sim>>(40);
}

#[test]
fn pages_are_of_one_moment() {
    pages_that_are_overtaken_are_of_one_moment::<FastFair<Sim>>();
}

#[test]
fn changes_that_are_overtaken_are_shown() {
    changes_that_are_overtaken_are_seen::<FastFair<Sim>>();
}
