//! P-HOT.

use evermap_index::ordered::tree::PersistentTree;
use evermap_index::ordered::{Cursor, Direction, OrderedIndex};
use evermap_index::testkit::crash::battery;
use evermap_index::testkit::ordered::overtaken::{
    changes_that_are_overtaken_are_seen, pages_that_are_overtaken_are_of_one_moment,
};
use evermap_index::testkit::ordered::trees::{
    Costs, Make, SOUND, in_memory, nodes_stay_stale, pages_have_what_is_expected,
};
use evermap_index::testkit::{Coarse, Plain, tier};
use evermap_index::{conformance, crash_campaign, ordered_conformance};
use evermap_papers::hot::{Hot, MUTANTS};
use evermap_papers::testkit::tiny::PHot;
use evermap_pm::sim::{Sim, mutants::Fate};

ordered_conformance!(ordered, Make::<Hot<Sim, 5>>::new());
// Words are not records to the tree, so it cannot tell a damaged one from another.
conformance!(numbers, PHot, [u64, Plain, Coarse]);
crash_campaign!(p_hot, PHot);

/// With nodes of the full size.
#[test]
fn full_nodes_conform() -> Result<(), evermap_index::testkit::Failure> {
    use evermap_index::testkit::{Config, ordered};
    let (subject, config) = (Make::<Hot<Sim>>::new(), Config::from_env());
    ordered::model::ranges(&subject, &config)?;
    ordered::scans::scans(&subject, &config)?;
    ordered::growth(&subject, &config)
}

#[test]
fn nodes_of_an_opener_that_died_are_recovered() {
    nodes_stay_stale::<Hot<Sim>>();
}

#[test]
fn planted_mistakes_are_noticed() {
    evermap_pm::sim::keep_panics_quiet();
    let battery = battery("p-hot", MUTANTS, PHot);
    // HO-1 has a test of its own. HO-5 and HO-6 have too, and only few orders of threads show them.
    for mistake in &MUTANTS[tier().choose(1..4, 1..6)] {
        let (fate, trial) = battery.fate_of_planted(mistake, 2);
        println!("{mistake}: {fate} {trial:?}");
        assert!(!matches!(fate, Fate::Survived(_)), "{mistake}: {fate}");
    }
}

/// Returns the words of a tree in one direction.
fn words(tree: &dyn OrderedIndex, direction: Direction) -> Vec<u64> {
    let mut cursor = Cursor::new(tree, .., direction);
    let mut words = Vec::new();
    while let Some((_, word)) = cursor.next().unwrap() {
        words.push(word);
    }
    words
}

/// Every key is the beginning of all that are longer, and the longer ones go on with zeros, or with
/// the same byte. Each bit of the trie has one leaf on one side, so a way to a leaf has as many
/// nodes as there are keys for each 31.
#[test]
fn keys_can_be_the_beginning_of_others() {
    const LONGEST: usize = 3_000;
    for byte in [0, 7] {
        let tree: Hot<Sim> = in_memory();
        let key = vec![byte; LONGEST];
        for length in (0..=LONGEST).rev().step_by(7).chain((0..=LONGEST).step_by(5)) {
            tree.upsert(&key[..length], length as u64).unwrap();
        }
        assert_eq!(tree.check(), SOUND);
        let shown = words(&tree, Direction::Ascending);
        assert!(shown.is_sorted() && shown.len() as u64 == tree.len());
        let back = words(&tree, Direction::Descending);
        assert!(back.iter().rev().eq(&shown));
        for length in 0..=LONGEST {
            assert_eq!(
                tree.get(&key[..length]).unwrap().is_some(),
                shown.contains(&(length as u64))
            );
            tree.remove(&key[..length]).unwrap();
        }
        assert_eq!((tree.len(), tree.stats().segments), (0, 0));
    }
}

/// The longest keys, which differ in their last bits or in their lengths only.
#[test]
fn keys_can_be_long() {
    let tree: Hot<Sim> = in_memory();
    let longest = vec![0; evermap_index::record::KEY_MAX];
    let mut other = longest.clone();
    *other.last_mut().unwrap() = 1;
    let keys = [&longest[..], &longest[1..], &other, &[], &[0]];
    for (word, key) in (1..).zip(keys) {
        assert!(tree.insert(key, word).unwrap().inserted());
    }
    for (word, key) in (1..).zip(keys) {
        assert_eq!(tree.get(key).unwrap(), Some(word));
    }
    assert_eq!(words(&tree, Direction::Ascending), [4, 5, 2, 1, 3]);
    assert_eq!(tree.check(), SOUND);
    let too_long = vec![0; longest.len() + 1];
    assert!(tree.insert(&too_long, 6).is_err());
    assert_eq!(tree.get(&too_long).unwrap(), None);
}

/// Keys with up to 31 bits that tell them apart, in one word of the key and in many.
#[test]
fn keys_differ_in_any_bits() {
    for stride in [1, 3, 9, 64, 100] {
        let tree: Hot<Sim> = in_memory();
        let longest = 31 * stride / 8 + 1;
        // One bit each, so that all of them are in one node, and some pairs.
        let key = |bits: &[usize]| {
            let mut key = vec![0; longest];
            bits.iter().for_each(|bit| key[bit * stride / 8] |= 0x80 >> (bit * stride % 8));
            key
        };
        let ones = (0..31).map(|bit| key(&[bit]));
        let pairs = (0..31).flat_map(|bit| (0..bit).step_by(4).map(move |other| [bit, other]));
        let all: Vec<_> = ones.chain(pairs.map(|pair| key(&pair))).collect();
        for (word, key) in (0..).zip(&all) {
            assert!(tree.insert(key, word).unwrap().inserted());
            if word <= 32 || word % 16 == 0 {
                assert_eq!(tree.check(), SOUND);
            }
        }
        for (word, key) in (0..).zip(&all) {
            assert_eq!(tree.get(key).unwrap(), Some(word));
        }
        for key in &all {
            assert!(tree.remove(key).unwrap().removed());
        }
        assert_eq!((tree.check(), tree.len()), (SOUND, 0));
    }
}

/// The height is the least possible one for keys that come in any order, and removing what was
/// inserted gives back all space.
#[test]
fn trees_are_low_and_shrink() {
    const KEYS: u64 = 30_000;
    let orders: [fn(u64) -> u64; 3] = [
        |number| number,
        |number| KEYS - number,
        |number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
    ];
    for order in orders {
        let tree: Hot<Sim> = in_memory();
        let empty = tree.stats();
        (0..KEYS).for_each(|number| {
            assert!(tree.insert(&order(number).to_be_bytes(), number).unwrap().inserted());
        });
        let stats = tree.stats();
        println!("{stats:?}");
        assert_eq!(stats.len, KEYS);
        assert!(stats.depth <= 4, "{stats:?}");
        assert_eq!(tree.check(), SOUND);
        // Nodes that are left with few entries are put together.
        (0..KEYS).filter(|number| number % 16 != 0).for_each(|number| {
            assert!(tree.remove(&order(number).to_be_bytes()).unwrap().removed());
        });
        let fewer = tree.stats();
        println!("{fewer:?}");
        assert!(fewer.segments < stats.segments / 4, "{fewer:?}");
        assert_eq!(tree.check(), SOUND);
        (0..KEYS).filter(|number| number % 16 == 0).for_each(|number| {
            assert!(tree.remove(&order(number).to_be_bytes()).unwrap().removed());
        });
        assert_eq!(tree.stats(), empty);
        tree.memory().pool.epoch().drain();
        assert_eq!(tree.memory().pool.allocated().len(), 1);
    }
}

/// The flushes and fences of inserts of random keys, splits included. A lookup has none.
#[test]
fn inserts_flush_a_node() {
    let costs = Costs::of::<Hot<Sim>>();
    let (lines, fences) = Costs::of_each("an insert", &costs.inserted);
    assert!(lines <= 8.0 && fences <= 2.01, "{:?}", costs.inserted);
    let found = costs.found;
    assert_eq!((found.lines_flushed, found.fences, found.stores, found.cas), (0, 0, 0, 0));
    let (_, fences) = Costs::of_each("an update", &costs.updated);
    assert!(fences <= 1.1, "{:?}", costs.updated);
    let (lines, fences) = Costs::of_each("a removal", &costs.removed);
    assert!(lines <= 7.0 && fences <= 2.01, "{:?}", costs.removed);
}

#[test]
fn pages_are_as_long_as_the_caller_expects() {
    pages_have_what_is_expected::<Hot<Sim>>(1);
}

#[test]
fn pages_are_of_one_moment() {
    pages_that_are_overtaken_are_of_one_moment::<Hot<Sim>>();
}

#[test]
fn changes_that_are_overtaken_are_shown() {
    changes_that_are_overtaken_are_seen::<Hot<Sim>>();
}
