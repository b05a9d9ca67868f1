//! P-Masstree.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use evermap_index::ordered::{Direction, OrderedIndex};
use evermap_index::testkit::crash::battery;
use evermap_index::testkit::ordered::overtaken::{
    changes_that_are_overtaken_are_seen, pages_that_are_overtaken_are_of_one_moment,
};
use evermap_index::testkit::ordered::trees::{
    Costs, Make, SOUND, in_memory, keys, nodes_stay_stale, pages_have_what_is_expected, tree_in,
};
use evermap_index::testkit::{Coarse, Plain};
use evermap_index::{conformance, crash_campaign, ordered_conformance};
use evermap_papers::masstree::{MUTANTS, Masstree};
use evermap_papers::testkit::tiny;
use evermap_pm::sim::{Access, Observer, Sim, mutants::Fate};

ordered_conformance!(ordered, Make::<Masstree<Sim>>::new());
// Words are not records to the tree, so it cannot tell a damaged one from another.
conformance!(numbers, tiny::PMasstree, [u64, Plain, Coarse]);
crash_campaign!(p_masstree, tiny::PMasstree);

#[test]
fn nodes_of_an_opener_that_died_are_recovered() {
    nodes_stay_stale::<Masstree<Sim>>();
}

#[test]
fn planted_mistakes_are_noticed() {
    evermap_pm::sim::keep_panics_quiet();
    let battery = battery("p-masstree", MUTANTS, tiny::PMasstree);
    for mistake in MUTANTS {
        let (fate, trial) = battery.fate_of_planted(mistake, 2);
        println!("{mistake}: {fate} {trial:?}");
        assert!(!matches!(fate, Fate::Survived(_)), "{mistake}: {fate}");
    }
}

/// Inserts keys in this order and removes them in another, and compares all answers with those of
/// a map.
fn agrees_with_a_map(all: &[Vec<u8>]) {
    let tree: Masstree<Sim> = in_memory();
    let mut map = BTreeMap::new();
    let agrees = |map: &BTreeMap<&[u8], u64>| {
        let mut due: Vec<_> = map.keys().map(|key| key.to_vec()).collect();
        assert_eq!(keys(&tree, Direction::Ascending), due);
        due.reverse();
        assert_eq!(keys(&tree, Direction::Descending), due);
        for key in all {
            assert_eq!(tree.get(key).unwrap(), map.get(&key[..]).copied(), "{key:?}");
        }
        assert_eq!((tree.check(), tree.len()), (SOUND, map.len() as u64));
    };
    for (word, key) in (0..).zip(all) {
        assert_eq!(tree.insert(key, word).unwrap().old, map.get(&key[..]).copied());
        map.entry(&key[..]).or_insert(word);
    }
    agrees(&map);
    for key in all.iter().step_by(2) {
        assert_eq!(tree.remove(key).unwrap().old, map.remove(&key[..]));
    }
    agrees(&map);
    for key in all {
        assert_eq!(tree.remove(key).unwrap().old, map.remove(&key[..]));
    }
    agrees(&map);
}

/// Keys that differ only in the zeros behind them. The published code makes layer below layer for
/// two of them, until there is no space.
#[test]
fn keys_can_end_with_zeros() {
    let zeros = (0..=40).map(|length| vec![0; length]);
    let text = (0..=20).map(|zeros| [&b"text"[..], &vec![0; zeros]].concat());
    let mut all: Vec<_> = zeros.chain(text).collect();
    agrees_with_a_map(&all);
    all.reverse();
    agrees_with_a_map(&all);
}

/// Keys of all lengths around slices, whose bytes differ in each place. The published code compared
/// the bytes of a slice in the wrong order if a key had less than half of it.
#[test]
fn keys_of_all_lengths_are_compared_as_bytes() {
    let mut all = Vec::new();
    for length in 1..=25 {
        let key: Vec<u8> = (1..=length).collect();
        for place in 0..key.len() {
            for byte in [0, 0x7f, 0x80, 0xff] {
                let mut key = key.clone();
                key[place] = byte;
                all.push(key);
            }
        }
        all.push(key);
    }
    all.sort();
    all.dedup();
    agrees_with_a_map(&all);
    // In an order in which most keys come between others.
    let count = all.len();
    assert!(!count.is_multiple_of(389));
    let mixed: Vec<_> = (0..count).map(|at| all[at * 389 % count].clone()).collect();
    agrees_with_a_map(&mixed);
}

/// Every key is the beginning of all that are longer, so there is a layer for every eight bytes of
/// the longest.
#[test]
fn keys_can_be_the_beginning_of_others() {
    const LONGEST: usize = 2_000;
    let tree: Masstree<Sim> = in_memory();
    let key = vec![7; LONGEST];
    let lengths = || (0..=LONGEST).rev().step_by(7).chain((0..=LONGEST).step_by(7));
    for length in lengths() {
        tree.upsert(&key[..length], length as u64).unwrap();
    }
    assert_eq!((tree.check(), tree.stats().depth), (SOUND, LONGEST as u32 / 8));
    for direction in [Direction::Ascending, Direction::Descending] {
        let shown = keys(&tree, direction);
        assert_eq!(shown.len() as u64, tree.len());
        let ascends = direction == Direction::Ascending;
        assert!(shown.is_sorted_by(|a, b| (a.len() < b.len()) == ascends));
    }
    for length in lengths() {
        tree.remove(&key[..length]).unwrap();
    }
    assert_eq!((tree.check(), tree.len()), (SOUND, 0));
}

/// Every level is told of every split: the height is that of a B+tree, in whatever order keys come.
/// In ascending order nodes are full.
#[test]
fn the_tree_does_not_turn_into_a_list() {
    const KEYS: u64 = 30_000;
    let orders: [fn(u64) -> u64; 3] = [
        |number| number,
        |number| KEYS - number,
        |number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
    ];
    for (order, most) in orders.into_iter().zip([2_200, 4_400, 3_800]) {
        let tree: Masstree<Sim> = in_memory();
        (0..KEYS).for_each(|number| {
            assert!(tree.insert(&order(number).to_be_bytes(), number).unwrap().inserted());
        });
        let stats = tree.stats();
        println!("{} nodes", stats.segments);
        // At least seven entries to a node.
        assert!(stats.len == KEYS && stats.depth <= 6 && stats.segments <= most, "{stats:?}");
        assert_eq!(tree.check(), SOUND);
    }
}

/// All keys are removed, from either end, and a key comes back to each node that has become empty.
/// Other implementations have lost keys where they remove such nodes.
#[test]
fn nodes_that_have_become_empty_are_used_again() {
    const KEYS: u64 = 500;
    let tree: Masstree<Sim> = in_memory();
    let number = |number: u64| number.to_be_bytes();
    let mut nodes = 0;
    for round in 0..4 {
        for key in 0..KEYS {
            assert!(tree.insert(&number(key), round).unwrap().inserted());
        }
        nodes = if round == 0 { tree.stats().segments } else { nodes };
        for at in 0..KEYS {
            let key = if round % 2 == 0 { at } else { KEYS - 1 - at };
            assert_eq!(tree.remove(&number(key)).unwrap().old, Some(round));
            // Into an empty node at either end, and out of it.
            assert!(tree.insert(&number(key), 9).unwrap().inserted());
            assert!(tree.remove(&number(key)).unwrap().removed());
        }
        assert_eq!((tree.check(), tree.len()), (SOUND, 0));
        assert!(keys(&tree, Direction::Ascending).is_empty());
        assert!(keys(&tree, Direction::Descending).is_empty());
        assert_eq!(tree.stats().segments, nodes);
    }
}

/// The flushes and fences of inserts of random keys, splits included. A lookup has none.
#[test]
fn inserts_flush_an_entry_and_a_permutation() {
    let costs = Costs::of::<Masstree<Sim>>();
    let (lines, fences) = Costs::of_each("insert", &costs.inserted);
    assert!(lines <= 3.0 && fences <= 2.5, "{:?}", costs.inserted);
    let found = costs.found;
    assert_eq!((found.lines_flushed, found.fences, found.stores, found.cas), (0, 0, 0, 0));
    assert_eq!(Costs::of_each("update", &costs.updated), (1.0, 1.0));
    assert_eq!(Costs::of_each("removal", &costs.removed), (1.0, 1.0));
}

/// Does something, once, before a load that was chosen: what another thread does in the meantime.
/// Not once the operation has locked a node, for which the other thread would wait.
#[derive(Default)]
struct Overtakes {
    /// The number of loads until then, or 0 for never.
    loads: AtomicU64,
    act: OnceLock<Box<dyn Fn() + Send + Sync>>,
    acted: AtomicBool,
}

impl Observer for Overtakes {
    fn observe(&self, access: Access) {
        match access {
            Access::Load(_) => {
                let loads = self.loads.load(SeqCst);
                self.loads.store(loads.saturating_sub(1), SeqCst);
                if let (1, Some(act)) = (loads, self.act.get()) {
                    act();
                    self.acted.store(true, SeqCst);
                }
            }
            Access::Swap(_) => self.loads.store(0, SeqCst),
            _ => {}
        }
    }
}

/// The keys that are there throughout.
fn stable() -> Vec<Vec<u8>> {
    let numbers = (0..40u64).map(|number| (number * 16).to_be_bytes().to_vec());
    let long = (0..12).map(|number| format!("text {:04} and a rest", number * 16).into_bytes());
    numbers.chain(long).collect()
}

/// Splits nodes, makes layers, lets one grow, and changes words.
fn overtake(tree: &Masstree<Sim>) {
    for number in (0..640u64).filter(|number| number % 16 != 0 && number % 3 == 0) {
        tree.insert(&number.to_be_bytes(), 1).unwrap();
    }
    for number in (0..192).filter(|number| number % 16 != 0 && number % 5 == 0) {
        tree.insert(format!("text {number:04} and a rest").as_bytes(), 1).unwrap();
        tree.insert(format!("text {number:04} and another").as_bytes(), 1).unwrap();
    }
    for key in stable() {
        assert!(tree.upsert(&key, 2).unwrap().old.is_some());
    }
    for number in (0..640u64).filter(|number| number % 16 == 3) {
        tree.remove(&number.to_be_bytes()).unwrap();
    }
}

/// Calls `operate` with a tree that changes before each of its loads in turn. Returns how often.
fn overtaken(operate: impl Fn(&Masstree<Sim>)) -> u64 {
    for load in 1.. {
        let overtakes = Arc::new(Overtakes::default());
        let medium = Sim::in_memory(1 << 24).unwrap().observed_by(overtakes.clone());
        let tree: Arc<Masstree<Sim>> = Arc::new(tree_in(medium).unwrap());
        stable().iter().for_each(|key| assert!(tree.insert(key, 1).unwrap().inserted()));
        let other = Arc::downgrade(&tree);
        let act = move || overtake(&other.upgrade().expect("it is in use"));
        assert!(overtakes.act.set(Box::new(act)).is_ok());
        overtakes.loads.store(load, SeqCst);
        operate(&tree);
        if !overtakes.acted.load(SeqCst) {
            return load - 1;
        }
        assert_eq!(tree.check(), SOUND);
    }
    unreachable!("an operation ends")
}

/// Another thread changes the tree at any moment of a scan: between loads of the permutation, the
/// entries and the next node too. The published code reads a permutation before the version by
/// which it is validated, and loses keys.
#[test]
fn scans_that_are_overtaken_show_what_stays() {
    let stable = stable();
    for direction in [Direction::Ascending, Direction::Descending] {
        let mut due = stable.clone();
        if direction == Direction::Descending {
            due.reverse();
        }
        let times = overtaken(|tree| {
            let shown = keys(tree, direction);
            let ascends = direction == Direction::Ascending;
            assert!(shown.is_sorted_by(|one, other| one != other && (one < other) == ascends));
            let kept = shown.iter().filter(|key| stable.contains(key));
            assert!(kept.eq(&due), "{direction:?}");
        });
        println!("{direction:?}: {times} moments");
        assert!(times > 200);
    }
}

/// The same for a lookup of each kind of key, and for a page that begins at one.
#[test]
fn lookups_that_are_overtaken_find_what_stays() {
    for key in stable().iter().step_by(3) {
        let times = overtaken(|tree| {
            let word = tree.get(key).unwrap();
            assert!(matches!(word, Some(1 | 2)), "{key:?}: {word:?}");
        });
        assert!(times > 10);
    }
    let first = &stable()[20];
    overtaken(|tree| {
        let mut page = Default::default();
        tree.page(Bound::Included(first), Direction::Ascending, &mut page).unwrap();
        assert_eq!(page.pairs.key(0), first);
    });
}

/// The same for changes: the place that was found without a lock may be another when the node is
/// locked.
#[test]
fn changes_that_are_overtaken_take_effect_once() {
    let new: [&[u8]; 5] = [
        &321u64.to_be_bytes(),
        &320u64.to_be_bytes(),
        b"text 0032 and more",
        b"text 0033",
        b"text 0000 and a rest at last",
    ];
    for key in new {
        let times = overtaken(|tree| {
            tree.upsert(key, 7).unwrap();
            assert_eq!(tree.get(key).unwrap(), Some(7), "{key:?}");
            let shown = keys(tree, Direction::Ascending);
            assert_eq!(shown.iter().filter(|other| *other == key).count(), 1, "{key:?}");
        });
        assert!(times > 10);
    }
}

#[test]
fn pages_are_as_long_as_the_caller_expects() {
    pages_have_what_is_expected::<Masstree<Sim>>(16);
}

#[test]
fn pages_are_of_one_moment() {
    pages_that_are_overtaken_are_of_one_moment::<Masstree<Sim>>();
}

#[test]
fn changes_that_are_overtaken_are_shown() {
    changes_that_are_overtaken_are_seen::<Masstree<Sim>>();
}
