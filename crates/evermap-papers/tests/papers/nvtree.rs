//! NV-Tree.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evermap_index::ordered::{Cursor, Direction, OrderedIndex, PersistentOrdered};
use evermap_index::testkit::crash::battery;
use evermap_index::testkit::ordered::trees::{
    Costs, Make, SOUND, in_memory, keys_with_equal_prefixes, memory, nodes_stay_stale,
    pages_have_what_is_expected, tree_in,
};
use evermap_index::testkit::{Coarse, Config, Failure, Plain, ordered as kit, persistence};
use evermap_index::{Bytes, conformance, crash_campaign, ordered_conformance};
use evermap_papers::nvtree::{Form, HalfFull, MUTANTS, NvTree, OneLeafPerParent, layout};
use evermap_papers::testkit::tiny;
use evermap_pm::medium::Counter;
use evermap_pm::sim::{Sim, mutants::Fate};

/// NV-Tree as published.
type Paper<M> = NvTree<M, OneLeafPerParent>;
/// With very small nodes.
type Tiny<M> = NvTree<M, HalfFull<8, 4, 3>>;

ordered_conformance!(ordered, Make::<Tiny<Sim>>::new());
// Words are not records to the tree, so it cannot tell a damaged one from another.
conformance!(numbers, tiny::NvTree, [u64, Plain, Coarse]);
crash_campaign!(nvtree, tiny::NvTree);

ordered_conformance!(ordered_paper, Make::<NvTree<Sim, OneLeafPerParent<8, 4, 3>>>::new());
conformance!(numbers_paper, tiny::NvTreePaper, [u64]);
crash_campaign!(variant nvtree_paper, tiny::NvTreePaper);

/// With nodes of the full size.
#[test]
fn full_nodes_conform() -> Result<(), Failure> {
    let (subject, config) = (Make::<NvTree<Sim>>::new(), Config::from_env());
    kit::model::ranges(&subject, &config)?;
    kit::scans::scans(&subject, &config)?;
    kit::growth(&subject, &config)
}

/// Long keys have blocks, which are needed and freed while there is no space for another leaf.
#[test]
fn long_keys_conform_without_space() -> Result<(), Failure> {
    persistence::full::<Bytes, _>(&tiny::NvTree, &Config::from_env())
}

/// Without space for other leaves, keys are changed in place beside lookups.
#[test]
fn lookups_find_what_is_changed_in_place() {
    const KEYS: u64 = 24;
    const ROUNDS: u64 = 300;
    let pool = super::model::pool(4096, 1 << 17);
    let tree: Tiny<Sim> = PersistentOrdered::create(pool.clone(), pool.root(0)).unwrap();
    let key = |number: u64| number.to_be_bytes();
    let mut keys = 0..;
    while tree.insert(&key(keys.next().unwrap()), 0).is_ok() {}
    let bytes = layout::block_bytes(&pool, 8);
    pool.epoch().drain();
    while pool.allocate_fixed(bytes).is_ok() {}
    // So that their leaves are full.
    (0..8 * KEYS).for_each(|step| assert!(tree.update(&key(step % KEYS), 0).is_ok()));
    let before = tree.counters();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                for number in 0..KEYS {
                    // Every other key is removed and inserted again.
                    if number % 2 == 1 {
                        assert!(tree.remove(&key(number)).unwrap().removed());
                    }
                    assert_eq!(tree.upsert(&key(number), round).unwrap().new, Some(round));
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        let mut last = [0; KEYS as usize];
        while !done.load(Ordering::Relaxed) {
            for (number, last) in (0..KEYS).zip(&mut last) {
                let found = tree.get(&key(number)).unwrap();
                assert!(found.is_some() || number % 2 == 1, "key {number}");
                assert!(found.is_none_or(|round| round >= *last), "key {number}");
                *last = found.unwrap_or(*last);
            }
        }
    });
    let after = tree.counters();
    assert_eq!((after.splits, after.replacements), (before.splits, before.replacements));
    assert!((0..KEYS).all(|number| tree.get(&key(number)).unwrap() == Some(ROUNDS)));
    assert_eq!(tree.check(), SOUND);
}

#[test]
fn leaves_of_an_opener_that_died_are_recovered() {
    nodes_stay_stale::<NvTree<Sim>>();
}

#[test]
fn planted_mistakes_are_noticed() {
    evermap_pm::sim::keep_panics_quiet();
    let battery = battery("nv-tree", MUTANTS, tiny::NvTree);
    for mistake in MUTANTS {
        let (fate, trial) = battery.fate_of_planted(mistake, 2);
        println!("{mistake}: {fate} {trial:?}");
        assert!(!matches!(fate, Fate::Survived(_)), "{mistake}: {fate}");
    }
}

#[test]
fn beginnings_need_not_tell_keys_apart() {
    keys_with_equal_prefixes::<Tiny<Sim>>();
    keys_with_equal_prefixes::<Paper<Sim>>();
}

#[test]
fn pages_are_as_long_as_the_caller_expects() {
    pages_have_what_is_expected::<NvTree<Sim>>(30);
}

/// Each change is two ordered persists, of the entry and of its count, for keys of any length.
#[test]
fn every_change_is_two_persists() {
    // The bytes of a key, and the lines of its block if it has one.
    for (length, of_key) in [(8, 0), (16, 0), (40, 1)] {
        let counter = Arc::new(Counter::default());
        let tree: NvTree<Sim> = tree_in(memory().unwrap().observed_by(counter.clone())).unwrap();
        let key = |number: u8| [vec![7; length - 1], vec![number]].concat();
        let costs = |change: &dyn Fn(u8)| {
            (0..7).for_each(|number| {
                counter.reset();
                change(number);
                let counts = counter.counts();
                assert_eq!(counts.fences, 2, "{length} bytes");
                let lines = counts.lines_flushed;
                assert!((2..=2 + 2 * of_key).contains(&lines), "{length} bytes: {lines} lines");
            });
        };
        costs(&|number| assert!(tree.insert(&key(number), 1).unwrap().inserted()));
        costs(&|number| assert!(tree.update(&key(number), 2).unwrap().changed()));
        costs(&|number| assert!(tree.remove(&key(number)).unwrap().removed()));
        costs(&|number| assert!(tree.upsert(&key(number), 3).unwrap().inserted()));
        counter.reset();
        assert_eq!(tree.get(&key(3)).unwrap(), Some(3));
        let counts = counter.counts();
        assert_eq!((counts.lines_flushed, counts.fences, counts.stores, counts.cas), (0, 0, 0, 0));
    }
}

/// The flushes and fences of operations on random keys, with what replaces leaves.
#[test]
fn replacing_leaves_costs_little_more() {
    let costs = Costs::of::<NvTree<Sim>>();
    let (lines, fences) = Costs::of_each("insert", &costs.inserted);
    assert!(lines <= 3.5 && fences <= 2.3, "{:?}", costs.inserted);
    let found = costs.found;
    assert_eq!((found.lines_flushed, found.fences, found.stores, found.cas), (0, 0, 0, 0));
    let (lines, fences) = Costs::of_each("update", &costs.updated);
    assert!(lines <= 3.5 && fences <= 2.3, "{:?}", costs.updated);
    let (lines, fences) = Costs::of_each("removal", &costs.removed);
    assert!(lines <= 3.5 && fences <= 2.3, "{:?}", costs.removed);
}

/// Returns the pairs of a tree.
fn pairs(tree: &dyn OrderedIndex, direction: Direction) -> Vec<(Vec<u8>, u64)> {
    let mut cursor = Cursor::new(tree, .., direction);
    let mut pairs = Vec::new();
    while let Some((key, word)) = cursor.next().unwrap() {
        pairs.push((key.to_vec(), word));
    }
    pairs
}

/// Published code shows keys that were removed, counts entries instead of pairs, or takes any entry
/// of a key that has no later one that is dead.
#[test]
fn the_last_entry_of_a_key_counts() {
    let tree: NvTree<Sim> = in_memory();
    let mut model = BTreeMap::new();
    // All of it in a leaf or two, which are replaced again and again.
    for step in 0..2_000u64 {
        let key = [(step * step % 23) as u8; 20][..1 + (step % 20) as usize].to_vec();
        match step * 7 % 10 {
            0..4 => {
                let old = tree.remove(&key).unwrap().old;
                assert_eq!(old, model.remove(&key), "step {step}");
            }
            _ => {
                let old = tree.upsert(&key, step).unwrap().old;
                assert_eq!(old, model.insert(key.clone(), step), "step {step}");
            }
        }
        assert_eq!(tree.get(&key).unwrap(), model.get(&key).copied());
        if step % 10 == 0 {
            let mut expected: Vec<_> = model.clone().into_iter().collect();
            assert_eq!(pairs(&tree, Direction::Ascending), expected);
            expected.reverse();
            assert_eq!(pairs(&tree, Direction::Descending), expected);
        }
    }
    assert_eq!((tree.check(), tree.len()), (SOUND, model.len() as u64));
    let counters = tree.counters();
    assert!(counters.splits > 0 && counters.replacements > 0, "{counters:?}");
}

/// Leaves that lose their keys are merged.
#[test]
fn small_neighbours_are_merged() {
    let tree: Tiny<Sim> = in_memory();
    let keys = || (0..4_000u64).map(u64::to_be_bytes);
    keys().for_each(|key| assert!(tree.insert(&key, 99).unwrap().inserted()));
    // Some stay, and are changed until all leaves have been full.
    for round in 0..16 {
        for (number, key) in keys().enumerate() {
            match number % 50 {
                0 => assert!(tree.update(&key, round).unwrap().changed()),
                _ => assert_eq!(tree.remove(&key).unwrap().removed(), round == 0),
            }
        }
    }
    let counters = tree.counters();
    assert!(counters.merges > 10, "{counters:?}");
    assert_eq!((tree.check(), tree.len()), (SOUND, 80));
}

/// In what order keys are inserted.
type Order = fn(u64) -> u64;

const ORDERS: [(&str, Order); 4] = [
    ("random", |number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
    ("ascending", |number| number),
    ("descending", |number| u64::MAX - number),
    // Three of them ascend, and one descends to keys that are there.
    ("four at once", |number| match number % 4 {
        _ if number < 64 => 3 << 40 | number,
        3 => u64::MAX - number,
        stream => stream << 40 | number,
    }),
];

fn filled<F: Form>(keys: u64, order: Order) -> NvTree<Sim, F> {
    let tree: NvTree<Sim, F> = in_memory();
    for number in 0..keys {
        assert!(tree.insert(&order(number).to_be_bytes(), number).unwrap().inserted());
    }
    tree
}

/// As published, every parent that is full causes a rebuild, however large the tree is. Spare
/// parents where the tree grows make rebuilds rare, whatever the order is.
#[test]
fn a_growing_tree_is_seldom_rebuilt() {
    const KEYS: u64 = 20_000;
    for (name, order) in ORDERS {
        let tree = filled::<HalfFull<8, 8, 8>>(KEYS, order);
        let counters = tree.counters();
        println!("half full, {name}: {counters:?}");
        assert_eq!(tree.check(), SOUND);
        // Some for each doubling of the parents.
        let most = 6 * u64::from(counters.upper.used_parents.ilog2());
        assert!(counters.rebuilds <= most, "{name}: {counters:?}");
        assert!(counters.upper.parents <= 4 * counters.upper.used_parents, "{name}: {counters:?}");
    }
    let tree = filled::<OneLeafPerParent<8, 8, 8>>(KEYS / 2, ORDERS[1].1);
    let counters = tree.counters();
    println!("one leaf per parent, ascending: {counters:?}");
    assert_eq!(tree.check(), SOUND);
    assert!(counters.rebuilds > counters.upper.leaves / 16, "{counters:?}");
}

/// Prints what a lookup reads, and how full leaves are.
#[test]
fn a_lookup_reads_half_a_leaf() {
    const KEYS: u64 = 30_000;
    for (name, order) in ORDERS {
        let tree = filled::<HalfFull>(KEYS, order);
        let read = |number| tree.entries_read(&u64::to_be_bytes(order(number))).unwrap();
        let read = (0..KEYS).map(read).sum::<usize>() as f64 / KEYS as f64;
        let stats = tree.stats();
        println!("{name}: {read:.1} entries read, load factor {:.2}", stats.load_factor());
        assert!(read < 20.0 && stats.load_factor() > 0.45, "{name}");
        assert_eq!(stats.len, KEYS);
    }
}

/// What is above the leaves takes much more memory as published, and is counted.
#[test]
fn a_parent_for_each_leaf_takes_memory() {
    const KEYS: u64 = 20_000;
    let bytes = [
        filled::<HalfFull>(KEYS, ORDERS[1].1).stats().dram_bytes,
        filled::<OneLeafPerParent>(KEYS, ORDERS[1].1).stats().dram_bytes,
    ];
    println!("bytes in ordinary memory: {bytes:?}");
    assert!(bytes[1] > 20 * bytes[0]);
}
