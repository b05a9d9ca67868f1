//! P-ART.

use evermap_index::ordered::art::{Art, MUTANTS};
use evermap_index::ordered::tree::PersistentTree;
use evermap_index::ordered::{Cursor, Direction, OrderedIndex, PersistentOrdered};
use evermap_index::testkit::crash::battery;
use evermap_index::testkit::ordered::overtaken::{
    changes_that_are_overtaken_are_seen, pages_that_are_overtaken_are_of_one_moment,
};
use evermap_index::testkit::ordered::trees::{
    Costs, Make, SOUND, in_memory, nodes_stay_stale, pages_have_what_is_expected,
};
use evermap_index::testkit::tiny::PArt;
use evermap_index::testkit::{Coarse, Plain, tier};
use evermap_index::{Visitor, conformance, crash_campaign, ordered_conformance};
use evermap_pm::sim::{Sim, mutants::Fate};

ordered_conformance!(ordered, Make::<Art<Sim>>::new());
// Words are not records to the tree, so it cannot tell a damaged one from another.
conformance!(numbers, PArt, [u64, Plain, Coarse]);
crash_campaign!(p_art, PArt);

#[test]
fn nodes_of_an_opener_that_died_are_recovered() {
    nodes_stay_stale::<Art<Sim>>();
}

#[test]
fn planted_mistakes_are_noticed() {
    evermap_pm::sim::keep_panics_quiet();
    let battery = battery("p-art", MUTANTS, PArt);
    // AR-1 takes ten seconds to notice, AR-4 more than a minute: only few orders of two threads
    // show it.
    for mistake in &MUTANTS[tier().choose(1..3, 0..4)] {
        let (fate, trial) = battery.fate_of_planted(mistake, 2);
        println!("{mistake}: {fate} {trial:?}");
        assert!(!matches!(fate, Fate::Survived(_)), "{mistake}: {fate}");
    }
}

/// Every key is the beginning of all that are longer, so there are as many nodes above each other
/// as bytes in the longest.
#[test]
fn keys_can_be_the_beginning_of_others() {
    const LONGEST: usize = 3_000;
    let tree: Art<Sim> = in_memory();
    let key = vec![7; LONGEST];
    for length in (0..=LONGEST).rev().step_by(7).chain((0..=LONGEST).step_by(7)) {
        tree.upsert(&key[..length], length as u64).unwrap();
    }
    assert_eq!(tree.check(), SOUND);
    for direction in [Direction::Ascending, Direction::Descending] {
        let mut cursor = Cursor::new(&tree, .., direction);
        let mut shown = Vec::new();
        while let Some((key, word)) = cursor.next().unwrap() {
            assert_eq!(key.len() as u64, word);
            shown.push(word);
        }
        assert_eq!(shown.len() as u64, tree.len());
        assert!(shown.is_sorted_by(|a, b| (a < b) == (direction == Direction::Ascending)));
    }
    for length in 0..=LONGEST {
        tree.remove(&key[..length]).unwrap();
    }
    assert_eq!((tree.len(), tree.stats().segments), (0, 1));
}

/// A visitor that wants a few blocks.
struct Few(Vec<u64>);

impl Visitor for Few {
    fn block(&mut self, offset: u64) {
        self.0.push(offset);
    }

    fn word(&mut self, _: u64) {}

    fn is_done(&self) -> bool {
        self.0.len() >= 10
    }
}

#[test]
fn a_visit_ends_when_the_visitor_is_done() {
    let tree: Art<Sim> = in_memory();
    (0..5000u64).for_each(|key| assert!(tree.insert(&key.to_be_bytes(), key).unwrap().inserted()));
    let mut few = Few(Vec::new());
    tree.visit(&mut few).unwrap();
    assert_eq!(few.0.len(), 10);
}

/// A node is replaced by a larger and by a smaller one when that is due, so removing what was
/// inserted gives back all space.
#[test]
fn nodes_grow_and_shrink() {
    let tree: Art<Sim> = in_memory();
    let empty = tree.stats();
    for prefix in [&b""[..], b"a", b"a common beginning of more than seven bytes"] {
        let key = |symbol: u8| [prefix, &[symbol]].concat();
        // In an order in which most symbols come between others.
        let symbols: Vec<u8> = (0..=255u8).map(|symbol| symbol.wrapping_mul(101)).collect();
        for (count, &symbol) in (1..).zip(&symbols) {
            assert!(tree.insert(&key(symbol), count).unwrap().inserted());
            if count % 16 < 2 {
                assert_eq!(tree.check(), SOUND);
                assert_eq!(tree.len(), count);
            }
        }
        for (count, &symbol) in (1..).zip(&symbols) {
            assert_eq!(tree.remove(&key(symbol)).unwrap().old, Some(count));
            if count % 16 < 2 || count > 200 {
                assert_eq!(tree.check(), SOUND);
                assert_eq!(tree.len(), 256 - count);
            }
        }
        let stats = tree.stats();
        assert_eq!((stats.len, stats.segments), (0, 1));
        assert_eq!(stats.pm_bytes, empty.pm_bytes);
    }
    tree.memory().pool.epoch().drain();
    assert_eq!(tree.memory().pool.allocated().len(), 2);
}

/// The flushes and fences of inserts of random keys, growth included: RECIPE has 2.4 and 3.0. A
/// lookup has none.
#[test]
fn inserts_flush_a_leaf_and_a_reference() {
    let costs = Costs::of::<Art<Sim>>();
    let (lines, fences) = Costs::of_each("insert", &costs.inserted);
    assert!(lines <= 2.4 && fences <= 2.4, "{:?}", costs.inserted);
    assert_eq!((costs.found.lines_flushed, costs.found.fences), (0, 0));
    let (_, fences) = Costs::of_each("update", &costs.updated);
    assert!(fences <= 1.1, "{:?}", costs.updated);
}

#[test]
fn pages_are_as_long_as_the_caller_expects() {
    pages_have_what_is_expected::<Art<Sim>>(1);
}

#[test]
fn pages_are_of_one_moment() {
    pages_that_are_overtaken_are_of_one_moment::<Art<Sim>>();
}

#[test]
fn changes_that_are_overtaken_are_shown() {
    changes_that_are_overtaken_are_seen::<Art<Sim>>();
}
