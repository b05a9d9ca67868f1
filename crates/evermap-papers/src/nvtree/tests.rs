//! States that crashes seldom leave, constructed.

use std::cell::Cell;
use std::sync::Arc;

use evermap_index::OrderedIndex;
use evermap_index::node_lock::Lock;
use evermap_index::testkit::crash_states::{
    created, for_each_image, is_durable_once_served, is_kept, record, reopened, word_in,
};
use evermap_index::testkit::ordered::encoded::InOrder;
use evermap_pm::region::{Identity, OnSuspect};
use evermap_pm::sim::Sim;
use evermap_pm::{Error, ErrorKind, Medium, PmU64, Pool};

use super::leaf::Leaf;
use super::{HalfFull, NvTree};
use crate::search::Search;

type Small = NvTree<Sim, HalfFull<8, 4, 3>>;
type Tree = InOrder<u64, Small>;

fn insert(index: &Tree, keys: impl IntoIterator<Item = u64>) {
    for key in keys {
        assert!(index.index.insert(&key.to_be_bytes(), key).unwrap().inserted());
    }
}

/// Returns the leaf of a key.
fn leaf_of<'t>(tree: &'t Small, pool: &Pool<Sim>, key: u64) -> Leaf<'t> {
    let _guard = pool.pin();
    tree.leaf_of(&Search::at(&key.to_be_bytes())).unwrap()
}

fn is_damaged(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Damaged { .. })
}

/// The fence between an entry and its count is also for what the word refers to: a caller flushes
/// that, and leaves it to the tree to order it.
#[test]
fn what_the_caller_has_flushed_is_durable_before_its_word_is() {
    let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    insert(&index, 0..3);
    let block = pool.allocate_fixed(64).unwrap();
    let value: &PmU64 = sim.at(block).unwrap();
    sim.store(value, 1);
    sim.persist(value);
    let count = sim.offset_of(&leaf_of(&index.index, &pool, 1).header.count);
    record(&sim, || {
        sim.store(value, 2);
        sim.flush(value);
        assert!(index.index.upsert(&1u64.to_be_bytes(), block).unwrap().changed());
    });
    let counted = Cell::new(0);
    for_each_image(&sim, false, |image| {
        if word_in(image, count) == 4 {
            assert_eq!(word_in(image, block), 2);
            counted.set(counted.get() + 1);
        }
    });
    assert!(counted.get() > 0);
}

/// A process has died before what it had stored was durable: the first leaf, a count, and the
/// reference to the next leaf. Another process finds it.
#[test]
fn what_recovery_finds_is_durable_before_it_is_used() {
    let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    insert(&index, 0..9);
    let header = leaf_of(&index.index, &pool, 0).header;
    let head = &index.index.root_block().unwrap().head;
    let words = [head, &header.count, &header.sibling].map(|word| sim.offset_of(word));
    is_durable_once_served(&sim, (pool, index), &words, 3);
}

/// As above, with entries of a full leaf that were being changed in place.
#[test]
fn changes_in_place_that_recovery_finds_are_durable_before_they_are_used() {
    let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    insert(&index, 0..8);
    let entries = leaf_of(&index.index, &pool, 0).entries;
    let words = [&entries[2].word, &entries[6].word].map(|word| sim.offset_of(word));
    is_durable_once_served(&sim, (pool, index), &words, 3);
}

/// An insertion counts its entry when that is durable, and lookups read it when the count is.
#[test]
fn lookups_read_what_is_counted_durably() {
    let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    insert(&index, 0..3);
    let header = leaf_of(&index.index, &pool, 0).header;
    let [count, visible] = [&header.count, &header.visible].map(|word| sim.offset_of(word));
    record(&sim, || insert(&index, [3]));
    for_each_image(&sim, false, |image| {
        // They are in one line, and stored in this order.
        assert!(word_in(image, visible) <= word_in(image, count));
    });
    for_each_image(&sim, true, |image| assert_eq!(word_in(image, count), 4));
}

/// The list of leaves leads back to one of them.
#[test]
fn a_list_in_a_circle_is_damaged() {
    let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    insert(&index, 0..40);
    let (early, late) = (leaf_of(&index.index, &pool, 8), leaf_of(&index.index, &pool, 39));
    sim.store(&late.header.sibling, early.offset);
    drop((pool, index));
    let (pool, _) = Pool::open(sim.clone(), Identity::default(), OnSuspect::Refuse).unwrap();
    let opened =
        <Small as evermap_index::ordered::PersistentOrdered<Sim>>::open(pool.clone(), pool.root(0));
    assert!(is_damaged(&opened.err().unwrap()));
}

/// The lock word of a leaf says that it is not part of the tree, although the tree leads there.
#[test]
fn an_obsolete_leaf_is_damaged() {
    let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    insert(&index, 0..3);
    let lock = &leaf_of(&index.index, &pool, 0).header.lock;
    let before = Lock(sim.load(lock));
    sim.store(lock, before.locked().obsolete().0);
    let key = 1u64.to_be_bytes();
    assert!(is_damaged(&index.index.get(&key).unwrap_err()));
    assert!(is_damaged(&index.index.upsert(&key, 7).unwrap_err()));
    sim.store(lock, before.0);
    assert!(index.index.remove(&key).unwrap().removed());
}

/// A lookup that has begun in a leaf, which is then replaced, and whose keys are changed in the new
/// one, begins again.
#[test]
fn a_leaf_that_was_replaced_is_obsolete() {
    let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    insert(&index, 0..8);
    let _guard = pool.pin();
    let old = leaf_of(&index.index, &pool, 0);
    let visible = old.visible(&sim).unwrap();
    assert!(old.is_unchanged(&sim, visible));
    insert(&index, [8]);
    assert!(!old.is_unchanged(&sim, visible));
    assert!(Lock(sim.load(&old.header.lock)).is_obsolete());
    assert_ne!(leaf_of(&index.index, &pool, 0).offset, old.offset);
}

/// The thread that replaces a leaf need not be the one that appends to the new one, so what refers
/// to that is durable first.
#[test]
fn a_leaf_is_durably_replaced_before_another_one_is_used() {
    let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    insert(&index, 0..8);
    let head = &index.index.root_block().unwrap().head;
    let old = sim.load(head);
    record(&sim, || {
        let key = 3u64.to_be_bytes();
        index.index.make_room(&Search::at(&key), &pool.pin()).unwrap();
    });
    assert_ne!(sim.load(head), old);
    is_kept(&sim, head);
    assert_eq!(index.index.check(), Vec::<String>::new());
}

/// After a crash, what was appended and not counted does not exist.
#[test]
fn an_entry_that_is_not_counted_does_not_exist() {
    let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    insert(&index, 0..3);
    let leaf = leaf_of(&index.index, &pool, 0);
    sim.store(&leaf.header.count, 2);
    drop((pool, index));
    let (_pool, index): (_, Tree) = reopened(&sim);
    assert_eq!(index.index.get(&2u64.to_be_bytes()).unwrap(), None);
    insert(&index, [2]);
    assert_eq!(index.index.len(), 3);
}

/// A full leaf and its right neighbour, both with few keys, had the same parent when they were
/// found. Before they are locked another thread adds leaves, and everything above is built anew:
/// now they have different parents, and are not merged. A search would lead to the right one, which
/// is obsolete, for ever.
#[test]
fn leaves_are_merged_only_if_they_have_the_same_parent_still() {
    let (_sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 20, ());
    let (tree, key) = (&index.index, |number: u64| number.to_be_bytes());
    // Four leaves in one parent. The second has eight entries, the third six, and both two keys.
    insert(&index, 0..17);
    [4, 5, 8, 9].iter().for_each(|&gone| assert!(tree.remove(&key(gone)).unwrap().removed()));
    [6, 7].iter().for_each(|&number| assert!(tree.update(&key(number), 0).unwrap().changed()));
    let _guard = pool.pin();
    let spot = tree.spot_of(&Search::at(&key(6))).unwrap();
    let third = leaf_of(tree, &pool, 10).offset;
    assert_eq!((spot.next, tree.next_of(&spot.leaf)), (Some(third), Some(third)));
    insert(&index, 17..21);
    assert_eq!((tree.counters().rebuilds, tree.next_of(&spot.leaf)), (1, None));
    let first = tree.lock(leaf_of(tree, &pool, 0)).unwrap().unwrap();
    let cell = &first.node.header.sibling;
    tree.replace_at(cell, spot.leaf, spot.next, &pool.pin()).unwrap();
    first.release(tree.medium());
    let counters = tree.counters();
    assert_eq!((counters.merges, counters.replacements), (0, 1));
    assert_eq!((tree.get(&key(6)).unwrap(), tree.get(&key(10)).unwrap()), (Some(0), Some(10)));
    assert_eq!((tree.len(), tree.check()), (17, Vec::new()));
}

/// Several threads recover the leaves of one list.
#[test]
fn threads_recover_all_leaves() {
    const KEYS: u64 = 12_000;
    let (_sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(1 << 23, ());
    insert(&index, 0..KEYS);
    let leaves = index.index.counters().upper.leaves;
    assert!(leaves > 2 * 1024, "{leaves}");
    let Tree { index: mut tree, .. } = index;
    for threads in [1, 3] {
        tree.rebuild_by(threads).unwrap();
        assert_eq!(tree.counters().upper.leaves, leaves);
        assert_eq!((tree.len(), tree.check()), (KEYS, Vec::new()));
    }
    drop(pool);
}
