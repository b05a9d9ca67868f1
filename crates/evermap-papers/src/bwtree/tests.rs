//! States that crashes and other threads seldom leave, constructed.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use evermap_index::ordered::PersistentOrdered;
use evermap_index::ordered::leaf::LeafState;
use evermap_index::testkit::crash_states::{
    are_kept, as_operation, created, for_each_image, look_up_after_death, record, reopened, word_in,
};
use evermap_index::testkit::ordered::encoded::InOrder;
use evermap_index::{
    Action, Cursor, Direction, Index, MutateMode, OrderedIndex, Persistent, Visitor,
};
use evermap_pm::sim::rng::Rng;
use evermap_pm::sim::schedule::{Schedule, Strategy};
use evermap_pm::sim::{Mutation, Sim};
use evermap_pm::{Medium, PmU64, Pool};

use super::access::Search;
use super::consolidate::Work;
use super::layout::{Child, Link, Part, TREE_MARK};
use super::node::{BaseRef, Bounds};
use super::table::segment_words;
use super::walk::Shown;
use super::{BwTree, Tiny, mistakes};

type Tree = InOrder<u64, Tiny<Sim>>;
type Open = (Sim, Arc<Pool<Sim>>, Tree);

const SOUND: Vec<String> = Vec::new();

fn tree() -> Open {
    created(1 << 20, ())
}

fn bytes(key: u64) -> [u8; 8] {
    key.to_be_bytes()
}

fn insert(tree: &Tiny<Sim>, keys: impl IntoIterator<Item = u64>) {
    for key in keys {
        assert!(tree.insert(&bytes(key), key).unwrap().inserted());
    }
}

/// Removes a key, and leaves undone what is to be done in the structure.
fn remove_only(tree: &Tiny<Sim>, key: u64) {
    let remove = &mut |_| Action::Remove;
    let (change, _) = tree.change_locked(&bytes(key), MutateMode::ExistingOnly, remove).unwrap();
    assert!(change.removed());
}

/// Returns the id of the leaf node into which a key belongs.
fn leaf_of(tree: &Tiny<Sim>, key: u64) -> u64 {
    tree.descend(&Search::at(&bytes(key)), 0).unwrap().target().id
}

/// Checks that a tree has these keys and no others, whatever changes are not complete.
fn assert_holds(tree: &Tiny<Sim>, keys: &BTreeSet<u64>) {
    for key in 0..300 {
        let due = keys.contains(&key).then_some(key);
        assert_eq!(tree.get(&bytes(key)).unwrap(), due, "key {key}");
    }
    for direction in [Direction::Ascending, Direction::Descending] {
        let mut cursor = Cursor::new(tree, .., direction);
        let mut shown = Vec::new();
        while let Some((_, word)) = cursor.next().unwrap() {
            shown.push(word);
        }
        if direction == Direction::Descending {
            shown.reverse();
        }
        assert!(shown.iter().eq(keys), "{shown:?}");
    }
    assert_eq!(tree.check(), SOUND);
    assert_eq!(tree.stats().len, keys.len() as u64);
}

/// Checks that each block is reachable exactly once or free.
fn assert_no_leak(pool: &Pool<Sim>, tree: &Tiny<Sim>) {
    struct Blocks(Vec<u64>);
    impl Visitor for Blocks {
        fn block(&mut self, offset: u64) {
            self.0.push(offset);
        }
        fn word(&mut self, _: u64) {}
    }
    pool.sweep(|mark| {
        let mut blocks = Blocks(Vec::new());
        tree.visit(&mut blocks)?;
        blocks.0.into_iter().for_each(mark);
        Ok(())
    })
    .unwrap();
    pool.epoch().drain();
    let mut blocks = Blocks(Vec::new());
    tree.visit(&mut blocks).unwrap();
    blocks.0.sort_unstable();
    assert_eq!(blocks.0, pool.allocated());
}

/// How far a merge has come.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Stage {
    Intended,
    Frozen,
    TakenOver,
}

/// A tree of a few leaf nodes with few keys, in which a merge has come to a stage. Also returns the
/// id of the node that is being merged, its least key, and all keys.
fn merging(stage: Stage) -> (Open, u64, u64, BTreeSet<u64>) {
    let (sim, pool, index) = tree();
    let tree = &*index.index;
    // The words of the first node and of the others are in different lines, which become durable in
    // any order.
    assert!(tree.knows_ids().unwrap());
    (0..8).for_each(|_| assert!(tree.new_id().is_ok()));
    insert(tree, (0..24).map(|key| 10 * key));
    let keys: BTreeSet<u64> = (0..24).map(|key| 10 * key).filter(|key| key % 40 == 0).collect();
    (0..24).map(|key| 10 * key).filter(|key| key % 40 != 0).for_each(|key| remove_only(tree, key));
    let guard = pool.pin();
    let todo = &mut Vec::new();
    let left = leaf_of(tree, 0);
    let base = tree.node(left, Some(0)).unwrap().base;
    let low = u64::from_be_bytes({
        let mut low = base.high(&sim).unwrap();
        low.resize(8, 0);
        low.try_into().unwrap()
    });
    let right = base.sibling;
    for id in [left, right] {
        assert!(tree.consolidate(0, id, &guard, todo).unwrap());
    }
    let above = tree.root_node().unwrap().id;
    tree.consolidate(1, above, &guard, todo).unwrap();
    tree.merge(0, right, &guard, todo).unwrap();
    assert_eq!(tree.root_node().unwrap().intent.unwrap().1, right);
    if stage >= Stage::Frozen {
        assert!(tree.freeze(0, right, &guard, todo).unwrap());
    }
    if stage >= Stage::TakenOver {
        assert!(tree.consolidate(0, left, &guard, todo).unwrap());
        assert_eq!(leaf_of(tree, low), left);
    }
    drop(guard);
    ((sim, pool, index), right, low, keys)
}

const STAGES: [Stage; 3] = [Stage::Intended, Stage::Frozen, Stage::TakenOver];

/// Readers and writers tolerate a merge that is not complete, and writers complete it. The
/// published code leaves a mark in the node above, with which no change there ever succeeds.
#[test]
fn a_merge_is_completed_by_any_writer() {
    for stage in STAGES {
        for dies in [false, true] {
            let ((sim, mut pool, mut index), right, low, mut keys) = merging(stage);
            assert_holds(&index.index, &keys);
            if dies {
                drop((pool, index));
                (pool, index) = reopened(&sim);
                assert_holds(&index.index, &keys);
            }
            let tree = &*index.index;
            insert(tree, [low + 1]);
            keys.insert(low + 1);
            assert_holds(tree, &keys);
            let root = tree.root_node().unwrap();
            assert_eq!(root.intent, None, "{stage:?}");
            assert!(root.base.entries(&sim).all(|entry| entry.child != right));
            // The node above can be changed and split as ever.
            insert(tree, (0..300).filter(|key| !keys.contains(key)));
            assert_holds(tree, &(0..300).collect());
            assert_no_leak(&pool, tree);
        }
    }
}

/// A node takes over its neighbour, and is split again where that began. The new node has another
/// id, so the merge is complete.
#[test]
fn a_merge_that_ends_in_a_split_at_the_same_key_is_complete() {
    let ((sim, pool, index), right, low, mut keys) = merging(Stage::Frozen);
    let tree = &*index.index;
    let high = u64::from_be_bytes(
        tree.node(right, Some(0)).unwrap().base.high(&sim).unwrap().try_into().unwrap(),
    );
    // Until both have five keys, of which the right one's first is its least.
    let mut add = |range: std::ops::Range<u64>| {
        for key in range.clone() {
            if keys.range(range.clone()).count() < 5 && keys.insert(key) {
                let put = &mut |_| Action::Put(key);
                tree.change_locked(&bytes(key), MutateMode::MayInsert, put).unwrap();
            }
        }
    };
    add(0..low);
    add(low..high);
    let (guard, todo) = (pool.pin(), &mut Vec::new());
    let left = leaf_of(tree, 0);
    assert!(tree.consolidate(0, left, &guard, todo).unwrap());
    let base = tree.node(left, Some(0)).unwrap().base;
    assert_eq!(base.high(&sim).unwrap(), bytes(low));
    assert_ne!(base.sibling, right);
    assert_holds(tree, &keys);
    drop(guard);
    insert(tree, [low + 9]);
    keys.insert(low + 9);
    assert_eq!(tree.root_node().unwrap().intent, None);
    assert_holds(tree, &keys);
    assert_no_leak(&pool, tree);
}

/// Keys of a node that is being merged are deltas of its left neighbour. A page of that ends where
/// the other one begins.
#[test]
fn keys_of_a_node_that_is_merged_are_shown_once() {
    let ((_sim, _pool, index), _, low, mut keys) = merging(Stage::Frozen);
    for key in [1, 2, low + 1, low + 2] {
        let put = &mut |_| Action::Put(key);
        index.index.change_locked(&bytes(key), MutateMode::MayInsert, put).unwrap();
        keys.insert(key);
    }
    assert_holds(&index.index, &keys);
}

/// Returns the number of entries whose copies may be used, and checks those.
fn copies(tree: &Tiny<Sim>) -> usize {
    let (m, mut count) = (tree.medium(), 0);
    tree.each_node(&mut |shown| {
        let base = shown.end.target().base;
        let Some(copies) = tree.copies_of(&base) else { return Ok(true) };
        for (position, entry) in base.entries(m).enumerate() {
            if let Some((key, word)) = copies.get(m, position) {
                let leaf = tree.record(entry.at)?;
                assert_eq!((leaf.key(m), tree.binding(&leaf)), (bytes(key).to_vec(), Some(word)));
                count += 1;
            }
        }
        Ok(true)
    })
    .unwrap();
    count
}

/// The first scan makes copies, consolidations take them over, changes forget them, and the next
/// opener has none.
#[test]
fn copies_are_made_by_scans_and_forgotten_by_changes() {
    let (sim, mut pool, mut index) = tree();
    insert(&index.index, 0..100);
    assert_eq!(copies(&index.index), 0, "a tree that is not scanned");
    assert_holds(&index.index, &(0..100).collect());
    let made = copies(&index.index);
    assert!(made > 60, "{made}");
    assert!(index.index.update(&bytes(50), 50).unwrap().new.is_some());
    remove_only(&index.index, 20);
    assert!(copies(&index.index) < made);
    assert!(index.index.insert(&bytes(20), 20).unwrap().inserted());
    // Splits and consolidations of all nodes.
    insert(&index.index, 100..200);
    assert!(copies(&index.index) > made / 2);
    assert_holds(&index.index, &(0..200).collect());
    drop((pool, index));
    (pool, index) = reopened(&sim);
    assert_eq!(copies(&index.index), 0, "those of an earlier opener");
    assert_holds(&index.index, &(0..200).collect());
    assert!(copies(&index.index) > made);
    assert_no_leak(&pool, &index.index);
}

/// Every change of one thread is complete when it returns: there is no intent, and the level above
/// of each level has all of its nodes.
#[test]
fn one_thread_leaves_nothing_incomplete() {
    let (_sim, pool, index) = tree();
    let (tree, mut rng) = (&*index.index, Rng::new(7));
    for round in 0..20_000u64 {
        let key = &bytes(rng.below(400));
        // There are times of growth and of shrinking.
        if rng.below(10) < 2 + round / 500 % 2 * 6 {
            tree.upsert(key, 1).unwrap();
        } else {
            tree.remove(key).unwrap();
        }
        if round % 40 == 0 {
            let (mut nodes, mut children) = (BTreeMap::new(), BTreeMap::new());
            tree.each_node(&mut |shown| {
                let node = shown.end.target();
                assert_eq!(node.intent, None, "round {round}");
                *nodes.entry(node.level()).or_insert(0) += 1;
                if let Some(below) = node.level().checked_sub(1) {
                    let inserted = tree.inserts(node).count();
                    *children.entry(below).or_insert(0) += node.base.len() + inserted;
                }
                Ok(true)
            })
            .unwrap();
            let root = nodes.pop_last();
            assert_eq!((root.unwrap().1, nodes), (1, children), "round {round}");
        }
    }
    assert_eq!(tree.check(), SOUND);
    let stats = tree.stats();
    assert!(stats.splits > 200 && stats.merges > 200, "{stats:?}");
    assert_no_leak(&pool, tree);
}

/// Without space, a merge stays where it is, and all keys can be changed and removed.
#[test]
fn no_change_needs_a_merge_to_be_completed() {
    for stage in STAGES {
        let ((sim, pool, index), _, low, mut keys) = merging(stage);
        let tree = &*index.index;
        let reserve = &tree.root_block().unwrap().reserve;
        pool.free_unpublished(sim.load(reserve));
        sim.store(reserve, 0);
        pool.epoch().drain();
        let taken: Vec<u64> =
            std::iter::from_fn(|| pool.allocate_fixed(Tiny::<Sim>::NODE_BYTES).ok()).collect();
        for key in [low + 1, low + 2, 1, 2] {
            if tree.insert(&bytes(key), key).is_ok() {
                keys.insert(key);
            }
        }
        assert!(keys.contains(&(low + 1)), "there was space for a record");
        assert_holds(tree, &keys);
        assert!(tree.root_node().unwrap().intent.is_some());
        for key in std::mem::take(&mut keys) {
            assert_eq!(tree.update(&bytes(key), key + 1).unwrap().new, Some(key + 1));
            assert_eq!(tree.remove(&bytes(key)).unwrap().old, Some(key + 1));
        }
        assert_holds(tree, &keys);
        taken.into_iter().for_each(|block| pool.free_unpublished(block));
        insert(tree, 0..300);
        assert_holds(tree, &(0..300).collect());
        assert_no_leak(&pool, tree);
    }
}

/// A crash at any store of a merge: what recovery finds is completed.
#[test]
fn a_merge_survives_every_crash() {
    let ((sim, _pool, index), right, low, mut keys) = merging(Stage::Intended);
    let left = leaf_of(&index.index, 0);
    record(&sim, || insert(&index.index, [low + 1]));
    for_each_image(&sim, false, |image| {
        let crashed = Sim::from_image(image.bytes, 1 << 20).unwrap();
        let (_pool, index): (_, Tree) = reopened(&crashed);
        // Once the left node has taken its neighbour over, that must be frozen: the thread that
        // completes the merge must not look at its blocks.
        let has_taken_over = index.index.node(left, Some(0)).unwrap().base.sibling != right;
        let word = Link(crashed.load(index.index.cell(right).unwrap()));
        assert!(word.is_frozen() || word.is_none() || !has_taken_over);
        let mut keys = keys.clone();
        if index.index.get(&bytes(low + 1)).unwrap().is_some() {
            keys.insert(low + 1);
        }
        assert_holds(&index.index, &keys);
        keys.insert(low + 2);
        insert(&index.index, [low + 2]);
        assert_holds(&index.index, &keys);
        assert_eq!(index.index.root_node().unwrap().intent, None);
    });
    keys.insert(low + 1);
    assert_holds(&index.index, &keys);
}

/// A thread has split a node, and comes to tell the level above when the new node has been merged.
#[test]
fn a_node_that_was_merged_is_not_added_to_the_level_above() {
    for mutation in [None, Some(Mutation::Planted(mistakes::TELL_OF_MERGED))] {
        let (sim, pool, index) = tree();
        let tree = &*index.index;
        insert(tree, (0..6).map(|key| 10 * key));
        let slow = pool.pin();
        let todo = &mut Vec::new();
        // As many as make the next consolidation a split.
        while todo.is_empty() {
            let next = tree.stats().len * 10;
            let put = &mut |_| Action::Put(next);
            let (_, left) = tree.change_locked(&bytes(next), MutateMode::MayInsert, put).unwrap();
            for work in left {
                let Work::Consolidate(level, id) = work else { unreachable!("{work:?}") };
                tree.consolidate(level, id, &slow, todo).unwrap();
            }
            todo.retain(|work| matches!(work, Work::Post(..)));
        }
        let Some(Work::Post(0, new)) = todo.pop() else { unreachable!("a split") };
        assert_eq!(tree.root_node().unwrap().level(), 0);
        // Others do it meanwhile, and remove what the new node had.
        let all = tree.stats().len;
        insert(tree, (0..40).map(|key| 10 * all + key));
        (0..40).for_each(|key| assert!(tree.remove(&bytes(10 * all + key)).unwrap().removed()));
        let low = tree.node(new, Some(0)).unwrap().base.low(&sim);
        for key in (0..all).rev().map(|key| 10 * key).filter(|key| bytes(*key)[..] >= low[..]) {
            assert!(tree.remove(&bytes(key)).unwrap().removed());
        }
        assert_eq!(tree.root_node().unwrap().intent, None);
        assert!(tree.node(new, Some(0)).unwrap().is_frozen());
        sim.mutate(mutation);
        tree.post(0, new, todo).unwrap();
        sim.mutate(None);
        assert_eq!(tree.check() == SOUND, mutation.is_none(), "{:?}", tree.check());
        drop(slow);
    }
}

/// Another thread, or a process that has died, has stored a word, and has not flushed it.
#[test]
fn a_lookup_makes_durable_what_it_acts_on() {
    for word in 0..3 {
        for dies in [false, true] {
            let (sim, at, mark) = looked_up_before_it_was_durable(word, dies, None);
            let cell: &PmU64 = sim.at(at).unwrap();
            are_kept(&sim, [cell], !mark);
            assert_eq!(sim.load(cell) & mark, 0, "the mark is removed");
        }
    }
}

/// The same, with the mistake planted.
#[test]
fn what_is_not_durable_and_acted_on_is_lost() {
    for word in [0, 2] {
        let (sim, at, mark) =
            looked_up_before_it_was_durable(word, false, Some(mistakes::ACT_EARLY));
        let (now, lost) = (sim.load(sim.at(at).unwrap()), Cell::new(false));
        for_each_image(&sim, true, |image| {
            lost.set(lost.get() || (word_in(image, at) ^ now) & !mark != 0);
        });
        assert!(lost.get(), "word {word}");
    }
}

/// Looks up a key when the word of its node, the state of its leaf, or the word of the tree is not
/// durable. Returns the offset of that word, and its mark.
fn looked_up_before_it_was_durable(
    word: usize,
    dies: bool,
    mistake: Option<&'static str>,
) -> (Sim, u64, u64) {
    const KEY: u64 = 7;
    let (sim, pool, index) = tree();
    insert(&index.index, [KEY]);
    let node = index.index.node(1, Some(0)).unwrap();
    let (_, leaf) = index.index.inserts(&node).next().unwrap().unwrap();
    let (cell, mark) = [
        (node.cell, Link::MARK),
        (&leaf.leaf.state, LeafState::MARK),
        (&index.index.root_block().unwrap().tree, TREE_MARK),
    ][word];
    let at = sim.offset_of(cell);
    let cell: &PmU64 = sim.at(at).unwrap();
    let stored = sim.load(cell);
    // An image that lacks the word is one with another word there.
    sim.store(cell, !stored);
    sim.checkpoint();
    sim.store(cell, stored | mark);
    sim.mutate(mistake.map(Mutation::Planted));
    if dies {
        assert_eq!(look_up_after_death(&sim, (pool, index), KEY), Some(KEY));
    } else {
        as_operation(&sim, || assert_eq!(index.get(KEY, &pool.pin()).unwrap(), Some(KEY)));
    }
    sim.mutate(None);
    (sim, at, mark)
}

/// A removal that is not durable yet is no absence to rely on.
#[test]
fn a_lookup_makes_a_removal_durable() {
    let (sim, pool, index) = tree();
    insert(&index.index, [7]);
    let node = index.index.node(1, Some(0)).unwrap();
    let (_, leaf) = index.index.inserts(&node).next().unwrap().unwrap();
    let cell: &PmU64 = sim.at(sim.offset_of(&leaf.leaf.state)).unwrap();
    sim.checkpoint();
    sim.store(cell, LeafState(sim.load(cell)).removed().0 | LeafState::MARK);
    as_operation(&sim, || assert_eq!(index.get(7, &pool.pin()).unwrap(), None));
    are_kept(&sim, [cell], !LeafState::MARK);
}

/// Words of nodes are durable before what they replace can be used for something else.
#[test]
fn every_word_is_durable_when_a_change_returns() {
    let (sim, _pool, index) = tree();
    let tree = &*index.index;
    for round in 0..120 {
        record(&sim, || match round {
            0..60 => insert(tree, [round]),
            _ => assert!(tree.remove(&bytes(round - 60)).unwrap().removed()),
        });
        let mut words = vec![];
        let each = &mut |shown: &Shown<'_>| {
            words.push(sim.offset_of(shown.end.target().cell));
            Ok(true)
        };
        tree.each_node(each).unwrap();
        let cells = words.into_iter().map(|at| sim.at::<PmU64>(at).unwrap());
        are_kept(&sim, cells, !(Link::MARK | Link::NEW));
        are_kept(&sim, [&tree.root_block().unwrap().tree], !TREE_MARK);
    }
    assert!(tree.stats().splits > 5 && tree.stats().merges > 5, "{:?}", tree.stats());
}

/// Everything that creation stores is durable when it returns.
#[test]
fn a_new_tree_is_durable() {
    let (sim, pool, _first) = tree();
    record(&sim, || drop(Tree::create(pool.clone(), pool.root(1), ()).unwrap()));
    for_each_image(&sim, true, |image| {
        let crashed = Sim::from_image(image.bytes, 1 << 20).unwrap();
        let pool = reopened::<Tree>(&crashed).0;
        let tree = Tree::open(pool.clone(), pool.root(1)).unwrap();
        insert(&tree.index, 0..300);
        assert_holds(&tree.index, &(0..300).collect());
    });
}

/// Deltas of a process that has died are not overwritten by those of the next one. The published
/// code takes them from a block whose counter it does not flush.
#[test]
fn deltas_have_blocks_of_their_own() {
    let (sim, mut pool, mut index) = tree();
    for key in 0..40 {
        insert(&index.index, [key]);
        drop((pool, index));
        (pool, index) = reopened(&sim);
    }
    assert_holds(&index.index, &(0..40).collect());
    assert_no_leak(&pool, &index.index);
}

/// What base nodes know of their deltas and of other base nodes need not be there.
#[test]
fn what_was_not_flushed_is_not_needed() {
    let (sim, pool, index) = tree();
    let tree = &*index.index;
    for key in 0..300 {
        insert(tree, [key]);
        for id in 1..tree.used_ids() {
            if Link(sim.load(tree.cell(id).unwrap())).is_none() {
                continue;
            }
            let base = tree.node(id, None).unwrap().base;
            let forgotten = base.header.deltas.iter().skip((key % 5) as usize * 2).step_by(2);
            forgotten.for_each(|word| sim.store_transient(word, 0));
            for (position, entry) in base.entries(&sim).enumerate().skip((key % 3) as usize) {
                // Some are left as they are, some lead to another node, and some nowhere.
                let to = [0, 0xf_ffff_ffc0, base.offset, entry.base][position % 4];
                base.note_child(&sim, position, Child::new(entry.child, to));
            }
        }
        if key % 20 == 0 {
            assert_holds(tree, &(0..=key).collect());
        }
    }
    assert_holds(tree, &(0..300).collect());
    assert_no_leak(&pool, tree);
}

/// The heads of keys are chosen so that they tell these apart.
#[test]
fn heads_tell_keys_apart() {
    let (sim, _pool, index) = tree();
    let tree = &*index.index;
    let key = |number: u32| [b"a common beginning".as_slice(), &number.to_be_bytes()].concat();
    for number in 0..1000u32 {
        // In no order.
        let number = number * 619 % 1000;
        assert!(tree.insert(&key(number), u64::from(number)).unwrap().inserted());
    }
    let (mut all, mut equal) = (0, 0);
    tree.each_node(&mut |shown| {
        let base = &shown.end.target().base;
        if base.level == 0 {
            let heads: BTreeSet<u64> = base.entries(&sim).map(|entry| entry.head).collect();
            (all, equal) = (all + base.len(), equal + base.len() - heads.len());
        }
        Ok(true)
    })
    .unwrap();
    println!("{equal} of {all} heads are not the first of their kind");
    // Those of the last node, which ends nowhere.
    assert!(equal < 20, "{equal} of {all}");
    assert_eq!(tree.check(), SOUND);
    for number in 0..1000 {
        assert_eq!(tree.get(&key(number)).unwrap(), Some(u64::from(number)));
        assert_eq!(tree.get(&[&key(number)[..], &[0]].concat()).unwrap(), None);
    }
}

/// A process has died when it had given an id to a node, and before another node referred to it;
/// another one when a node was merged. Their ids are found when the first one is needed.
#[test]
fn a_crash_loses_no_ids() {
    let (sim, pool, index) = tree();
    let tree = &*index.index;
    insert(tree, 0..100);
    let block = pool.allocate_fixed(Tiny::<Sim>::NODE_BYTES).unwrap();
    let bounds = Bounds { low: bytes(50).to_vec(), high: bytes(51).to_vec(), sibling: 1, skip: 0 };
    BaseRef::write(&sim, block, 0, (&bounds, false), &[]);
    let (unlinked, used) = (tree.new_node(block).unwrap().id, tree.used_ids());
    drop((pool, index));
    let (pool, index): (_, Tree) = reopened(&sim);
    let tree = &*index.index;
    assert!(tree.knows_ids().unwrap());
    assert!(tree.used_ids() <= used);
    let ids: BTreeSet<u64> = std::iter::from_fn(|| tree.new_id().ok()).take(5).collect();
    assert!(ids.contains(&unlinked), "{unlinked} is not in {ids:?}");
    assert_holds(tree, &(0..100).collect());
    drop(pool);

    let ((sim, pool, index), merged, low, mut keys) = merging(Stage::TakenOver);
    insert(&index.index, [low + 1]);
    keys.insert(low + 1);
    drop((pool, index));
    let (_pool, index): (_, Tree) = reopened(&sim);
    let tree = &*index.index;
    assert!(tree.knows_ids().unwrap());
    let ids: BTreeSet<u64> = std::iter::from_fn(|| tree.new_id().ok()).take(20).collect();
    assert!(ids.contains(&merged), "{merged} is not in {ids:?}");
    assert_holds(tree, &keys);
}

/// A process has stored the offset of a segment of the mapping table, and has died before it was
/// durable. Nodes with ids of that segment are only referred to once it is.
#[test]
fn a_segment_is_durable_before_its_ids_are_used() {
    let (sim, pool, index) = tree();
    insert(&index.index, 0..1_000);
    let at = sim.offset_of(&index.index.root_block().unwrap().segments[1]);
    drop((pool, index));
    let cell: &PmU64 = sim.at(at).unwrap();
    let stored = sim.load(cell);
    assert_ne!(stored, 0);
    // An image that lacks the word is one with another word there.
    sim.store(cell, !stored);
    sim.checkpoint();
    sim.store(cell, stored);
    let (_pool, index): (_, Tree) = reopened(&sim);
    as_operation(&sim, || assert!(index.index.knows_ids().unwrap()));
    are_kept(&sim, [cell], !0);
}

/// Where a segment comes into use, other things were before. Their words would be taken for those
/// of nodes, and no node would ever get these ids.
#[test]
fn a_segment_comes_into_use_without_words() {
    let (sim, pool, index) = tree();
    let tree = &*index.index;
    let bytes = 8 * segment_words(1);
    let used: Vec<u64> = std::iter::from_fn(|| pool.allocate_fixed(bytes).ok()).collect();
    for &block in &used {
        let cells: &[PmU64] = sim.slice(block, bytes / 8).unwrap();
        cells.iter().for_each(|cell| sim.store(cell, Link::base(block).0));
    }
    used.into_iter().for_each(|block| pool.free_unpublished(block));
    let second = &tree.root_block().unwrap().segments[1];
    let mut keys = 0..1_000;
    while sim.load(second) == 0 {
        record(&sim, || insert(tree, keys.next()));
    }
    let (named, at) = (sim.offset_of(second), sim.load(second));
    let words = (at..at + bytes).step_by(8);
    let vacant: Vec<u64> =
        words.filter(|&at| sim.load(sim.at::<PmU64>(at).unwrap()) == 0).collect();
    assert!(!vacant.is_empty());
    for_each_image(&sim, false, |image| {
        let is_vacant = |at: &u64| word_in(image, *at) == 0;
        assert!(word_in(image, named) == 0 || vacant.iter().all(is_vacant));
    });
}

/// Ids of nodes that were merged are used again. The published code has a million of them.
#[test]
fn ids_are_used_again() {
    let (_sim, pool, index) = tree();
    let tree = &*index.index;
    let mut used = 0;
    for round in 0..30 {
        insert(tree, 0..300);
        (0..300).for_each(|key| assert!(tree.remove(&bytes(key)).unwrap().removed()));
        pool.epoch().drain();
        used = if round == 0 { tree.used_ids() } else { used };
    }
    assert!(tree.used_ids() <= 2 * used, "{used} and {}", tree.used_ids());
    assert_holds(tree, &BTreeSet::new());
    assert_no_leak(&pool, tree);
}

#[test]
fn the_mapping_table_grows() {
    let (sim, pool, index) = tree();
    for key in 0..4_000 {
        assert!(index.index.insert(&bytes(key), key).unwrap().inserted());
    }
    assert!(index.index.segments().unwrap().count() >= 4);
    drop((pool, index));
    let (pool, index): (_, Tree) = reopened(&sim);
    assert_eq!((index.check(), index.index.len()), (SOUND, 4_000));
    assert_no_leak(&pool, &index.index);
}

/// There is space for records, and none for nodes.
#[test]
fn keys_are_found_without_space_for_nodes() {
    let (sim, pool, index) = tree();
    let tree = &*index.index;
    insert(tree, 0..2);
    let reserve = &tree.root_block().unwrap().reserve;
    pool.free_unpublished(sim.load(reserve));
    sim.store(reserve, 0);
    let bytes_taken = Tiny::<Sim>::NODE_BYTES;
    let taken: Vec<u64> = std::iter::from_fn(|| pool.allocate_fixed(bytes_taken).ok()).collect();
    // More would fit into larger blocks.
    insert(tree, 2..20);
    let keys: BTreeSet<u64> = (0..20).collect();
    assert_eq!(tree.node(1, Some(0)).unwrap().word.depth(), 20);
    assert_holds(tree, &keys);
    taken.into_iter().for_each(|block| pool.free_unpublished(block));
    insert(tree, 20..300);
    assert_holds(tree, &(0..300).collect());
    assert!(tree.stats().depth > 1);
    assert_no_leak(&pool, tree);
}

/// The block in reserve is used once, and replaced when there is space.
#[test]
fn the_reserve_frees_space() {
    let (sim, pool, index) = tree();
    let tree = &*index.index;
    insert(tree, 0..6);
    let reserve = &tree.root_block().unwrap().reserve;
    let kept = sim.load(reserve);
    let bytes_taken = Tiny::<Sim>::NODE_BYTES;
    let taken: Vec<u64> = std::iter::from_fn(|| pool.allocate_fixed(bytes_taken).ok()).collect();
    (0..6).for_each(|key| assert!(tree.remove(&bytes(key)).unwrap().removed()));
    assert_eq!(tree.node(1, Some(0)).unwrap().base.len(), 0);
    pool.epoch().drain();
    taken.into_iter().for_each(|block| pool.free_unpublished(block));
    insert(tree, 0..300);
    assert!(kept != 0 && sim.load(reserve) != 0);
    assert_holds(tree, &(0..300).collect());
    assert_no_leak(&pool, tree);
}

/// Threads that change keys of one node make each other try again, but each decides once.
#[test]
fn every_change_is_decided_once() {
    for seed in 0..60 {
        let (sim, _pool, index) = tree();
        sim.set_schedule(Schedule { strategy: Strategy::Mixed, seed });
        let tree = &*index.index;
        let decided = AtomicU64::new(0);
        let change = |keys: [u64; 6]| {
            for key in keys {
                let mut decide = |old| {
                    decided.fetch_add(1, Ordering::Relaxed);
                    assert_eq!(old, None);
                    Action::Put(key)
                };
                tree.mutate(&bytes(key), MutateMode::MayInsert, &mut decide).unwrap();
            }
        };
        sim.in_parallel::<()>(vec![
            Box::new(|| change([0, 3, 6, 9, 12, 15])),
            Box::new(|| change([1, 4, 7, 10, 13, 16])),
            Box::new(|| change([2, 5, 8, 11, 14, 17])),
        ]);
        assert_eq!(decided.load(Ordering::Relaxed), 18);
        assert_holds(tree, &(0..18).collect());
    }
}

/// Threads insert and remove keys of nodes that are being split and merged. Returns whether the
/// tree has all keys then.
fn race(seed: u64, mutation: Option<Mutation>) -> bool {
    let (sim, _pool, index) = tree();
    let tree = &*index.index;
    insert(tree, (0..24).map(|key| 10 * key));
    (0..24).filter(|key| key % 6 > 1).for_each(|key| remove_only(tree, 10 * key));
    sim.set_schedule(Schedule { strategy: Strategy::Mixed, seed });
    sim.mutate(mutation);
    let change = |keys: &[u64], insert: bool| {
        for key in keys {
            let key = &bytes(*key);
            let changed = if insert { tree.insert(key, 7) } else { tree.remove(key) };
            assert!(changed.unwrap().changed());
        }
    };
    sim.in_parallel::<()>(vec![
        Box::new(|| change(&[60, 10, 70, 190, 130, 0], false)),
        Box::new(|| change(&[61, 62, 71, 121, 72, 181], true)),
        Box::new(|| change(&[63, 122, 73, 64, 182, 74], true)),
    ]);
    sim.mutate(None);
    let inserted = [61, 62, 71, 121, 72, 181, 63, 122, 73, 64, 182, 74];
    let holds = |key: &u64| tree.get(&bytes(*key)).unwrap() == Some(7);
    inserted.iter().all(holds) && tree.check() == SOUND
}

/// A writer that has come to a node before that was frozen must not change it.
#[test]
fn a_frozen_node_is_not_changed() {
    assert!((0..400).all(|seed| race(seed, None)));
    let noticed =
        (0..400).find(|&seed| !race(seed, Some(Mutation::Planted(mistakes::CHANGE_FROZEN))));
    println!("noticed by {noticed:?}");
    assert!(noticed.is_some());
}

/// A damaged word of the mapping table leads nowhere.
#[test]
fn a_word_that_names_no_node_is_damage() {
    let (sim, _pool, index) = tree();
    insert(&index.index, 0..3);
    let cell = index.index.node(1, Some(0)).unwrap().cell;
    let word = Link(sim.load(cell));
    let loops = word.with(Part::Insert, word.offset()).0;
    for damaged in [0, loops, word.0 | 3 << 48, 0xffff_0000_0000_0010, word.0 | Link::FROZEN] {
        sim.store(cell, damaged);
        let error = index.index.insert(&bytes(9), 9).unwrap_err();
        assert!(matches!(error.kind(), evermap_pm::ErrorKind::Damaged { .. }), "{error}");
    }
    sim.store(cell, word.0);
    insert(&index.index, 3..300);
    assert_holds(&index.index, &(0..300).collect());
}

/// The size of nodes is part of the format.
#[test]
fn a_tree_with_other_nodes_is_another_kind() {
    let (_sim, pool, _index) = tree();
    assert!(InOrder::<u64, Tiny<Sim>>::is_at(&pool, pool.root(0)));
    assert!(!InOrder::<u64, BwTree<Sim>>::is_at(&pool, pool.root(0)));
}
