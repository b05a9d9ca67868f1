//! The size and depth of trees.

use evermap_index::Stats;
use evermap_index::ordered::OrderedIndex;
use evermap_index::ordered::bplus::BPlus;
use evermap_pm::sim::rng::Rng;

use super::SOUND;

const KEYS: u64 = 100_000;

fn filled(keys: impl Iterator<Item = Vec<u8>>) -> (BPlus<40>, Stats) {
    let tree = BPlus::new();
    keys.for_each(|key| assert!(tree.insert(&key, 1).unwrap().inserted()));
    assert_eq!(tree.check(), SOUND);
    let stats = tree.stats();
    (tree, stats)
}

#[test]
fn numbers_take_no_blocks() {
    let mut random = Rng::new(1);
    let (_, stats) = filled((0..KEYS).map(|_| random.draw().to_be_bytes().to_vec()));
    assert!(stats.load_factor() > 0.65, "{stats:?}");
    assert!(stats.dram_bytes < 40 * KEYS, "{stats:?}");
    assert_eq!(stats.depth, 4);
}

#[test]
fn ascending_keys_leave_full_leaves() {
    let (_, stats) = filled((0..KEYS).map(|key| key.to_be_bytes().to_vec()));
    assert!(stats.load_factor() > 0.85, "{stats:?}");
    let (_, stats) = filled((0..KEYS).rev().map(|key| key.to_be_bytes().to_vec()));
    assert!(stats.load_factor() > 0.48, "{stats:?}");
}

/// The common prefix of neighbouring keys is stored once per node, not once per key.
#[test]
fn shared_prefixes_cost_little() {
    let long = |key: u64| [&[b'/'; 500][..], &key.to_be_bytes()].concat();
    let (_, stats) = filled((0..KEYS).map(long));
    assert!(stats.dram_bytes < 80 * KEYS, "{stats:?}");
}

#[test]
fn memory_of_removed_keys_is_freed() {
    let word =
        |key: u64| format!("{:030}{key}", key.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes();
    let (tree, full) = filled((0..KEYS).map(word));
    let remove = |key: u64| assert!(tree.remove(&word(key)).unwrap().removed());
    (0..KEYS).filter(|key| key % 16 != 0).for_each(remove);
    let sparse = tree.stats();
    assert_eq!(tree.check(), SOUND);
    assert!(sparse.dram_bytes < full.dram_bytes / 6, "{full:?} {sparse:?}");
    assert!(sparse.merges > 0 && sparse.load_factor() > 0.3, "{sparse:?}");
    (0..KEYS).step_by(16).for_each(remove);
    let empty = tree.stats();
    assert_eq!((empty.len, empty.depth, empty.segments, tree.check()), (0, 1, 1, SOUND));
    assert_eq!(empty.dram_bytes, BPlus::<40>::new().stats().dram_bytes);
}
