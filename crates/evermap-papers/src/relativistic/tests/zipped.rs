//! One chain that is split or joined, in every shape, at every stage, with every removal, and with
//! lookups that are overtaken anywhere: exhaustively, by one thread.
//!
//! A chain is given by the buckets of its nodes from the first on: `A` stays in the lower bucket,
//! and `B` belongs to the upper one. The table has one bucket and grows to two, or the reverse.

use std::sync::Arc;

use evermap_index::testkit::tier;
use evermap_pm::{Domain, Guard};

use super::super::resizing::{self, Resizes};
use super::super::steps::Mistake;
use super::*;

/// How one table is resized, and with which mistake.
#[derive(Clone, Copy, Debug)]
struct Setup {
    mistake: Option<Mistake>,
    place: Place,
    /// Whether one bucket becomes two, or two become one.
    grows: bool,
}

/// An update in the middle of a resize.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Update {
    Remove,
    Replace,
    /// A key that is not there yet, of the same bucket.
    Insert,
}

/// More steps than a play takes.
const STEPS: u64 = 1_000_000;

/// A chain whose nodes are `A` or `B`.
#[derive(Clone, Copy, Debug)]
struct Shape {
    bits: u32,
    length: usize,
}

impl Shape {
    fn parse(text: &str) -> Self {
        let upper = |(at, bucket)| u32::from(bucket == 'B') << at;
        Shape { bits: text.chars().enumerate().map(upper).sum(), length: text.len() }
    }

    /// Returns all shapes with up to `most` nodes.
    fn all(most: usize) -> impl Iterator<Item = Shape> {
        (1..=most).flat_map(|length| (0..1 << length).map(move |bits| Shape { bits, length }))
    }

    /// Returns the key of a node. Its last bit is its bucket.
    fn key(self, at: usize) -> u64 {
        (at as u64 + 1) << 1 | u64::from(self.bits >> at & 1)
    }

    fn keys(self) -> impl Iterator<Item = u64> {
        (0..self.length).map(move |at| self.key(at))
    }
}

/// Creates a table with one chain of this shape, or two that together have these nodes.
fn create<O: Order>(domain: &Arc<Domain>, setup: Setup, shape: Shape) -> super::Plain<O> {
    hook::limit_steps(STEPS);
    let config = Config {
        grow: setup.place,
        shrink: setup.place,
        stripes: 1,
        ..tiny(if setup.grows { 1 } else { 2 })
    };
    let table = hook::plant(setup.mistake, || Rp::new(domain.clone(), Identity, config)).unwrap();
    let guard = domain.pin();
    // Each comes before those that are there.
    for at in (0..shape.length).rev() {
        table.insert(&shape.key(at), value_of(shape.key(at)), &guard).unwrap();
    }
    drop(guard);
    table
}

fn value_of(key: u64) -> u64 {
    key * 100
}

/// Begins the resize, without a step.
fn start<O: Order>(table: &super::Plain<O>, setup: Setup) {
    let mut running = table.base().stop_resizing();
    resizing::begin(table, &mut running, if setup.grows { 2 } else { 1 }).unwrap();
}

/// Continues the resize as far as possible while some readers end and others begin, `rounds` times.
/// Two rounds are a grace period.
fn proceed<'d, O: Order>(
    table: &super::Plain<O>,
    domain: &'d Domain,
    guard: Guard<'d>,
    rounds: usize,
) -> Guard<'d> {
    let mut guard = guard;
    for _ in 0..rounds {
        drop(guard);
        guard = domain.pin();
        table.help();
    }
    guard
}

/// More rounds than any resize here needs.
const ALL: usize = 24;

fn assert_all<O: Order>(table: &super::Plain<O>, keys: &[(u64, u64)], guard: &Guard<'_>) {
    for &(key, value) in keys {
        assert_eq!(table.get(&key, guard), Some(&value), "key {key}");
    }
    let mut expected = keys.to_vec();
    expected.sort_unstable();
    assert_eq!(pairs(table, guard), expected);
    // What was removed is in no chain.
    for bucket in 0..table.buckets() {
        table.each_in_chain(bucket, guard, &mut |_, key| {
            assert!(keys.iter().any(|(other, _)| other == key), "{key} is still linked");
        });
    }
}

/// Asserts that each chain has only nodes of its own bucket.
fn assert_precise<O: Order>(table: &super::Plain<O>, guard: &Guard<'_>) {
    assert_eq!(table.stats().resizing, None);
    let mask = table.buckets() - 1;
    let mut counted = 0;
    for bucket in 0..=mask {
        table.each_in_chain(bucket, guard, &mut |place, _| {
            assert_eq!(O::place(place) & mask, bucket, "a node in the chain of another bucket");
            counted += 1;
        });
    }
    assert_eq!(counted, table.stats().pairs);
}

/// Makes updates at given moments of a resize, and verifies the contents after each step.
fn play<O: Order>(
    domain: &Arc<Domain>,
    setup: Setup,
    shape: Shape,
    updates: &[(usize, usize, Update)],
) {
    let table = create::<O>(domain, setup, shape);
    let mut expected: Vec<(u64, u64)> = shape.keys().map(|key| (key, value_of(key))).collect();
    start(&table, setup);
    let mut guard = domain.pin();
    for &(rounds, at, update) in updates {
        guard = proceed(&table, domain, guard, rounds);
        let key = shape.key(at);
        match update {
            Update::Remove => {
                table.remove(&key, &guard).unwrap();
                expected.retain(|&(other, _)| other != key);
            }
            Update::Replace => {
                table.upsert(&key, 7, &guard).unwrap();
                expected.retain(|&(other, _)| other != key);
                expected.push((key, 7));
            }
            Update::Insert => {
                let new = key + 1000;
                assert!(table.insert(&new, 8, &guard).unwrap());
                assert!(!table.insert(&new, 9, &guard).unwrap(), "inserted twice");
                expected.push((new, 8));
            }
        }
        assert_all(&table, &expected, &guard);
    }
    for _ in 0..ALL {
        guard = proceed(&table, domain, guard, 1);
        assert_all(&table, &expected, &guard);
    }
    assert_precise(&table, &guard);
}

/// Calls `act` with every shape and every pair of updates at every moment.
fn each_play(length: usize, mut act: impl FnMut(Shape, [(usize, usize, Update); 2])) {
    for shape in Shape::all(length) {
        for (first, second) in (0..9).flat_map(|first| (0..4).map(move |second| (first, second))) {
            for (at, then) in
                (0..shape.length).flat_map(|at| (0..shape.length).map(move |then| (at, then)))
            {
                for update in [Update::Remove, Update::Replace, Update::Insert] {
                    act(shape, [(first, at, update), (second, then, Update::Remove)]);
                }
            }
        }
    }
}

fn setups(mistake: Option<Mistake>) -> [Setup; 4] {
    let setup = |place, grows| Setup { mistake, place, grows };
    [
        setup(Place::New, true),
        setup(Place::Same, true),
        setup(Place::New, false),
        setup(Place::Same, false),
    ]
}

#[test]
fn updates_at_any_moment_of_a_resize_lose_nothing() {
    let domain = domain();
    for setup in setups(None) {
        each_play(tier().choose(2, 4), |shape, updates| {
            play::<Unordered>(&domain, setup, shape, &updates);
        });
        each_play(tier().choose(2, 3), |shape, updates| {
            play::<SplitOrder>(&domain, setup, shape, &updates);
        });
    }
}

/// The example of a chain whose convergence nodes are `B1`, and after the first pass `A3`: removing
/// one of these must redirect two links.
#[test]
fn a_node_with_two_predecessors_is_removed_from_both() {
    let (domain, shape) = (domain(), Shape::parse("AABBAB"));
    for place in [Place::New, Place::Same] {
        let setup = Setup { mistake: None, place, grows: true };
        for (rounds, at) in (0..14).flat_map(|rounds| (0..6).map(move |at| (rounds, at))) {
            play::<Unordered>(&domain, setup, shape, &[(rounds, at, Update::Remove)]);
        }
    }
}

/// If the run at the auxiliary pointer, or the one behind it, ends by a removal, two runs of one
/// bucket become one, and the other bucket's chain leads into it.
#[test]
fn a_removal_that_joins_two_runs_loses_nothing() {
    let domain = domain();
    for shape in ["ABAB", "AABAABB", "ABABAB", "BABA", "ABBAABB"].map(Shape::parse) {
        for place in [Place::New, Place::Same] {
            let setup = Setup { mistake: None, place, grows: true };
            for (rounds, at) in (0..9).flat_map(|r| (0..shape.length).map(move |at| (r, at))) {
                for then in 0..shape.length {
                    let updates = [(rounds, at, Update::Remove), (0, then, Update::Remove)];
                    play::<Unordered>(&domain, setup, shape, &updates);
                }
            }
        }
    }
}

/// Returns what the first play shows that fails with a mistake.
fn first_failure<O: Order>(setup: Setup, length: usize) -> Option<String> {
    let domain = domain();
    panic_of(|| each_play(length, |shape, updates| play::<O>(&domain, setup, shape, &updates)))
}

#[test]
fn mistakes_of_updates_are_noticed() {
    use Mistake::*;
    let setup = |mistake| Setup { mistake: Some(mistake), place: Place::New, grows: true };
    for mistake in [AuxNotAdvanced, OneOfTwoLinks, RunEndNotNoticed, UniqueInPreciseChainOnly] {
        let noticed = first_failure::<Unordered>(setup(mistake), 4);
        assert!(noticed.is_some(), "{mistake:?} was not noticed");
    }
    assert!(first_failure::<SplitOrder>(setup(OneOfTwoLinks), 3).is_some());
    // Only a lookup that is overtaken notices this.
    assert!(first_straggler(setup(NodeFreedAtOnce), 3).is_some());
}

/// Looks up one key while another is updated, and the resize continues as far as it may, before
/// step number `step` of the lookup. Returns `false` if it has no such step.
fn overtaken<O: Order>(
    domain: &Arc<Domain>,
    setup: Setup,
    shape: Shape,
    rounds: usize,
    (wanted, victim): (usize, Option<usize>),
    step: u64,
) -> bool {
    let table = create::<O>(domain, setup, shape);
    start(&table, setup);
    drop(proceed(&table, domain, domain.pin(), rounds));
    let guard = domain.pin();
    let key = shape.key(wanted);
    let act = || {
        if let Some(victim) = victim {
            table.remove(&shape.key(victim), &guard).unwrap();
        }
        (0..8).for_each(|_| {
            let _ = table.help();
        });
    };
    let lookup = || table.get(&key, &guard).copied();
    let (found, reached) = hook::interrupted(step, act, lookup);
    assert_eq!(found, Some(value_of(key)), "key {key} was missed");
    reached
}

/// Overtakes every lookup at each of its steps, at every moment of a resize, with every removal.
fn all_stragglers<O: Order>(domain: &Arc<Domain>, setup: Setup, length: usize) {
    for (shape, rounds) in Shape::all(length).flat_map(|shape| (0..10).map(move |r| (shape, r))) {
        for wanted in 0..shape.length {
            let victims = (0..shape.length).filter(|&at| at != wanted).map(Some);
            for victim in victims.chain([None]) {
                let mut step = 0;
                while overtaken::<O>(domain, setup, shape, rounds, (wanted, victim), step) {
                    step += 1;
                }
                assert!(step > 2, "only {step} steps");
            }
        }
    }
}

#[test]
fn a_lookup_that_is_overtaken_anywhere_finds_its_key() {
    let domain = domain();
    for setup in setups(None) {
        all_stragglers::<Unordered>(&domain, setup, tier().choose(2, 5));
        all_stragglers::<SplitOrder>(&domain, setup, tier().choose(2, 4));
    }
}

/// Returns what the first lookup shows that fails with a mistake.
fn first_straggler(setup: Setup, length: usize) -> Option<String> {
    let domain = domain();
    panic_of(|| all_stragglers::<Unordered>(&domain, setup, length))
}

#[test]
fn mistakes_of_waiting_are_noticed() {
    use Place::{New, Same};
    for (mistake, place, grows) in [
        (Mistake::NoWaitAfterPublication, New, true),
        (Mistake::NoWaitAfterPublication, Same, true),
        (Mistake::NoWaitBetweenPasses, New, true),
        (Mistake::NoWaitBetweenPasses, Same, true),
        (Mistake::TwoJumpsInOnePass, New, true),
        (Mistake::TwoJumpsInOnePass, Same, true),
        (Mistake::LoadsTableTwice, New, true),
        (Mistake::LoadsTableTwice, New, false),
        (Mistake::UpperHalfReturnedAtOnce, Same, false),
    ] {
        let setup = Setup { mistake: Some(mistake), place, grows };
        assert!(first_straggler(setup, 4).is_some(), "{mistake:?} {place:?} was not noticed");
    }
}

/// Walks over the table at any moment of its growth, which goes on as far as it may before step
/// number `step` of the walk; if it is done then, the table shrinks again as far as it may. Returns
/// `false` if the walk has no such step.
fn overtaken_walk<O: Order>(
    domain: &Arc<Domain>,
    setup: Setup,
    shape: Shape,
    rounds: usize,
    step: u64,
) -> bool {
    let table = create::<O>(domain, setup, shape);
    start(&table, setup);
    drop(proceed(&table, domain, domain.pin(), rounds));
    let guard = domain.pin();
    let act = || {
        let goes_on = (0..8).all(|_| table.help());
        if !goes_on {
            start(&table, Setup { grows: false, ..setup });
            (0..8).for_each(|_| {
                let _ = table.help();
            });
        }
    };
    let (shown, reached) = hook::interrupted(step, act, || pairs(&table, &guard));
    let expected: Vec<(u64, u64)> = shape.keys().map(|key| (key, value_of(key))).collect();
    assert_eq!(shown, expected, "{shape:?}, {rounds} rounds, step {step}");
    reached
}

fn all_walks<O: Order>(setup: Setup, length: usize) {
    let domain = domain();
    for (shape, rounds) in Shape::all(length).flat_map(|shape| (0..10).map(move |r| (shape, r))) {
        let mut step = 0;
        while overtaken_walk::<O>(&domain, setup, shape, rounds, step) {
            step += 1;
        }
        assert!(step > 2, "only {step} steps");
    }
}

/// A walk may be in the end of a lower chain, which its own upper chain led to, when a shrink links
/// that end to the beginning of the upper chain.
#[test]
fn a_walk_that_is_overtaken_anywhere_shows_each_pair_once() {
    for place in [Place::New, Place::Same] {
        let setup = Setup { mistake: None, place, grows: true };
        all_walks::<Unordered>(setup, tier().choose(4, 7));
        all_walks::<SplitOrder>(setup, tier().choose(4, 7));
        let setup = Setup { mistake: Some(Mistake::WalkGoesRound), ..setup };
        let shown = panic_of(|| all_walks::<Unordered>(setup, 5));
        assert!(shown.is_some_and(|what| what.contains("rounds")), "not noticed, {place:?}");
    }
}

/// In place, the mask must not change while a reader from before the links is there. The order of
/// the stores would be right on a processor that keeps the order of loads, but readers load the
/// mask without a barrier: so this is a test of the protocol, not of its result.
#[test]
fn the_mask_waits_for_readers_from_before_the_links() {
    for (grows, mistake) in [
        (true, None),
        (false, None),
        (true, Some(Mistake::MaskWithoutWait)),
        (false, Some(Mistake::MaskWithoutWait)),
    ] {
        let domain = domain();
        let setup = Setup { mistake, place: Place::Same, grows };
        let table = create::<Unordered>(&domain, setup, Shape::parse("ABAB"));
        let before = table.buckets();
        let reader = domain.pin();
        start(&table, setup);
        (0..8).for_each(|_| {
            let _ = table.help();
        });
        assert_eq!(table.buckets() != before, mistake.is_some());
        drop(reader);
        drop(proceed(&table, &domain, domain.pin(), ALL));
        assert_ne!(table.buckets(), before);
    }
}
