//! States that crashes seldom leave, constructed, and mistakes of other implementations.

use std::ops::{Bound, RangeBounds};
use std::sync::{Arc, Mutex};

use evermap_index::node_lock::Lock;
use evermap_index::ordered::tree::PersistentTree;
use evermap_index::ordered::{Cursor, Direction, Page, PersistentOrdered};
use evermap_index::testkit::crash_states::{
    created, for_each_image, is_durable_once_served, record, reopened,
};
use evermap_index::testkit::ordered::encoded::InOrder;
use evermap_index::{Action, MutateMode, OrderedIndex, Visitor};
use evermap_pm::region::{Identity, OnSuspect, RegionConfig};
use evermap_pm::sim::{Access, Mutation, Observer, Sim};
use evermap_pm::{ErrorKind, Medium, PmU64, Pool};

use super::access::{NodeRef, Target};
use super::layout::{Below, ENTRIES, Node, Permutation, Slice};
use super::{Masstree, mistakes};

type Tree = InOrder<u64, Masstree<Sim>>;
type Open = (Sim, Arc<Pool<Sim>>, Tree);

const SOUND: Vec<String> = Vec::new();

/// As many keys as a node has space for.
const FULL: u64 = ENTRIES as u64;

fn empty() -> Open {
    created(1 << 20, ())
}

fn insert(index: &Tree, keys: impl IntoIterator<Item = u64>) {
    for key in keys {
        assert!(index.index.insert(&key.to_be_bytes(), key).unwrap().inserted(), "key {key}");
    }
}

/// Keys in an order in which splits leave room on both sides.
fn mixed(keys: u64) -> impl Iterator<Item = u64> {
    assert!(!keys.is_multiple_of(7));
    (0..keys).map(move |number| number * 7 % keys)
}

/// Returns the pairs of a tree in one direction.
fn pairs(tree: &Masstree<Sim>, direction: Direction) -> Vec<(Vec<u8>, u64)> {
    let mut cursor = Cursor::new(tree, .., direction);
    let mut pairs = Vec::new();
    while let Some((key, word)) = cursor.next().unwrap() {
        pairs.push((key.to_vec(), word));
    }
    pairs
}

/// Checks that a tree has the numbers below `keys`, each once, and nothing else.
fn assert_complete(index: &Tree, keys: u64) {
    let tree = &*index.index;
    for key in 0..keys {
        assert_eq!(tree.get(&key.to_be_bytes()).unwrap(), Some(key), "key {key}");
    }
    let mut due: Vec<_> = (0..keys).map(|key| (key.to_be_bytes().to_vec(), key)).collect();
    assert_eq!(pairs(tree, Direction::Ascending), due);
    due.reverse();
    assert_eq!(pairs(tree, Direction::Descending), due);
    assert_eq!(tree.check(), SOUND);
    assert_eq!(tree.stats().len, keys);
}

/// Returns the leaf nodes of the first layer, as they are.
fn leaf_nodes(tree: &Masstree<Sim>) -> Vec<NodeRef<'_>> {
    let m = tree.medium();
    let mut node = tree.node_as_it_is(m.load(&tree.root_block().unwrap().tree), None, 0).unwrap();
    while node.level() > 0 {
        node = tree.node_as_it_is(m.load(&node.header().leftmost), None, 0).unwrap();
    }
    let next = |node: &NodeRef<'_>| {
        let next = m.load(&node.header().next);
        (next != 0).then(|| tree.node_as_it_is(next, Some(0), 0).unwrap().offset)
    };
    let offsets = std::iter::successors(Some(node.offset), |&offset| {
        next(&tree.node_as_it_is(offset, Some(0), 0).unwrap())
    });
    offsets.map(|offset| tree.node_as_it_is(offset, Some(0), 0).unwrap()).collect()
}

fn lengths(tree: &Masstree<Sim>) -> Vec<usize> {
    leaf_nodes(tree).iter().map(|node| node.permutation(tree.medium()).len()).collect()
}

/// Returns every word of every node.
fn words(tree: &Masstree<Sim>) -> Vec<u64> {
    let m = tree.medium();
    let mut words = vec![m.load(&tree.root_block().unwrap().tree)];
    tree.each_node(&mut |node, _, _| {
        let cells: &[PmU64] = m.slice(node.offset + 8, size_of::<Node>() as u64 / 8 - 1).unwrap();
        words.extend(cells.iter().map(|cell| m.load(cell)));
        Ok(true)
    })
    .unwrap();
    words
}

/// What a visit shows.
#[derive(Default)]
struct Blocks(Vec<u64>);

impl Visitor for Blocks {
    fn block(&mut self, offset: u64) {
        self.0.push(offset);
    }

    fn word(&mut self, _: u64) {}
}

/// Checks that exactly the blocks of the tree are allocated.
fn assert_no_leak(pool: &Pool<Sim>, tree: &Masstree<Sim>) {
    pool.epoch().drain();
    let mut blocks = Blocks::default();
    tree.visit(&mut blocks).unwrap();
    blocks.0.sort_unstable();
    assert_eq!(blocks.0, pool.allocated());
}

/// Creates a tree in which a process has died between the two stores of a split: both nodes have
/// the upper half of the entries.
fn half_split() -> (Sim, Arc<Pool<Sim>>, Tree) {
    let (sim, pool, index) = empty();
    insert(&index, (0..FULL).map(|key| 2 * key));
    sim.mutate(Some(Mutation::Planted(mistakes::KEEP_UPPER_HALF)));
    insert(&index, [2 * FULL - 3]);
    sim.mutate(None);
    assert_eq!(lengths(&index.index), [15, 8]);
    // No process has told the level above.
    let first = leaf_nodes(&index.index)[0].offset;
    sim.store(&index.index.root_block().unwrap().tree, first);
    drop((pool, index));
    let (pool, index) = reopened(&sim);
    (sim, pool, index)
}

/// Whatever comes to the nodes first: the old one does not show its copies, the new one keeps what
/// it gets, also when the old one is split again. The published code drops the new one then.
#[test]
fn a_split_is_completed_after_a_crash() {
    let keys: Vec<u64> = (0..FULL).map(|key| 2 * key).chain([2 * FULL - 3]).collect();
    let shown = |index: &Tree, direction| {
        let numbers = pairs(&index.index, direction).into_iter();
        numbers.map(|(_, word)| word).collect::<Vec<_>>()
    };
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    for first in 0..5 {
        let (_sim, _pool, index) = half_split();
        let tree = &*index.index;
        match first {
            0 => assert_eq!(shown(&index, Direction::Ascending), sorted),
            1 => {
                let descending = shown(&index, Direction::Descending);
                assert!(descending.iter().rev().eq(&sorted));
            }
            2 => assert!(tree.remove(&28u64.to_be_bytes()).unwrap().removed()),
            3 => insert(&index, [25]),
            _ => assert_eq!(tree.stats().len, FULL + 1),
        }
        assert_eq!(lengths(tree)[0], 8, "{first}");
        // The new node gets keys, and then the old one is split again.
        insert(&index, [17, 19, 21]);
        insert(&index, [1, 3, 5, 7, 9, 11, 13, 15]);
        let mut due: Vec<u64> = sorted.iter().copied().chain([17, 19, 21]).collect();
        due.extend((1..16).step_by(2));
        due.retain(|&key| first != 2 || key != 28);
        due.extend((first == 3).then_some(25));
        due.sort_unstable();
        assert_eq!(shown(&index, Direction::Ascending), due, "{first}");
        assert_eq!(tree.check(), SOUND);
        assert_eq!(lengths(tree).len(), 3);
    }
}

/// The root is behind by two levels, as if no process had ever put a new one above: the next
/// changes do. The published code waits for its own locks then.
#[test]
fn a_root_that_was_split_gets_others_above() {
    const KEYS: u64 = 900;
    let (sim, pool, index) = empty();
    insert(&index, mixed(KEYS));
    assert_eq!(index.index.stats().depth, 3);
    let first = leaf_nodes(&index.index)[0].offset;
    sim.store(&index.index.root_block().unwrap().tree, first);
    drop((pool, index));
    let (pool, index): (_, Tree) = reopened(&sim);
    assert_eq!(index.index.stats().depth, 1);
    // Searches find everything without.
    assert_complete(&index, KEYS);
    for key in mixed(KEYS) {
        assert_eq!(index.index.upsert(&key.to_be_bytes(), key).unwrap().old, Some(key));
    }
    assert_complete(&index, KEYS);
    assert_eq!(index.index.stats().depth, 3);
    insert(&index, KEYS..KEYS + 100);
    assert_complete(&index, KEYS + 100);
    drop(pool);
}

/// The same for the root of a layer, to which an entry of the layer above refers.
#[test]
fn a_root_of_a_layer_that_was_split_gets_others_above() {
    const KEYS: u64 = 900;
    let (sim, pool, index) = empty();
    let tree = &*index.index;
    let key = |number: u64| [&b"eight by"[..], &number.to_be_bytes()].concat();
    let change = |tree: &Masstree<Sim>| {
        mixed(KEYS).for_each(|number| {
            tree.upsert(&key(number), number).unwrap();
        });
    };
    tree.insert(b"eight by", 1).unwrap();
    change(tree);
    assert_eq!(tree.stats().depth, 4);
    let root = tree.layer_of(&key(0), 1).unwrap();
    let mut node = root;
    while node.level() > 0 {
        node = tree.node(sim.load(&node.header().leftmost), None, 1).unwrap();
    }
    let target = Target::new(b"eight by+", 0);
    let entry = tree.descend(tree.root_node().unwrap(), &target, 0).unwrap();
    let (position, word) = entry.place.found.unwrap();
    assert_eq!(word, Below::Layer(root.offset).word());
    let cell = &entry.node.node.entries[position].value;
    sim.store(cell, Below::Layer(node.offset).word());
    drop((pool, index));
    let (_pool, index): (_, Tree) = reopened(&sim);
    let tree = &*index.index;
    assert_eq!(tree.stats().depth, 2);
    for number in 0..KEYS {
        assert_eq!(tree.get(&key(number)).unwrap(), Some(number));
    }
    change(tree);
    assert_eq!((tree.check(), tree.stats().depth, tree.len()), (SOUND, 4, KEYS + 1));
    assert_eq!(tree.get(b"eight by").unwrap(), Some(1));
}

/// Completing what is complete already, from any node.
#[test]
fn telling_the_level_above_twice_changes_nothing() {
    let (_sim, pool, index) = empty();
    let tree = &*index.index;
    insert(&index, mixed(900));
    let before = words(tree);
    let mut nodes = Vec::new();
    tree.each_node(&mut |node, _, _| {
        nodes.push(node.offset);
        Ok(true)
    })
    .unwrap();
    let root = tree.root_node().unwrap();
    for node in nodes.into_iter().filter(|&node| node != root.offset) {
        tree.add_to_level_above(b"", 0, node).unwrap();
    }
    assert_eq!(words(tree), before);
    // Nor does a thread that was overtaken put a second root above a former one.
    for level in (0..2).rev() {
        let former = tree.descend(root, &Target::of_slice(Slice::FIRST, 0), level).unwrap().node;
        assert!(tree.grow(b"", &former).unwrap());
    }
    assert_eq!(words(tree), before);
    assert_no_leak(&pool, tree);
}

/// There is space for the new node of a split, and none for a root above it.
#[test]
fn a_split_without_space_for_a_root_is_complete() {
    let (_sim, pool, index) = empty();
    insert(&index, 0..FULL);
    let bytes = size_of::<Node>() as u64;
    let mut taken: Vec<u64> = std::iter::from_fn(|| pool.allocate_fixed(bytes).ok()).collect();
    pool.free_unpublished(taken.pop().unwrap());
    insert(&index, FULL..FULL + 1);
    assert_eq!(index.index.stats().depth, 1);
    assert_complete(&index, FULL + 1);
    taken.into_iter().for_each(|block| pool.free_unpublished(block));
    insert(&index, FULL + 1..FULL + 2);
    assert_complete(&index, FULL + 2);
    assert_eq!(index.index.stats().depth, 2);
    assert_no_leak(&pool, &index.index);
}

/// A process has died with all locks held, in the middle of changes. The published code waits for
/// ever.
#[test]
fn no_lock_is_held_after_a_crash() {
    let (sim, pool, index) = empty();
    insert(&index, mixed(300));
    let mut cells = Vec::new();
    let tree = &*index.index;
    tree.each_node(&mut |node, _, _| {
        cells.push(sim.offset_of(&node.header().lock));
        Ok(true)
    })
    .unwrap();
    for cell in cells {
        let cell: &PmU64 = sim.at(cell).unwrap();
        sim.store(cell, Lock(sim.load(cell)).locked().0);
    }
    drop((pool, index));
    let (_pool, index) = reopened(&sim);
    insert(&index, 300..320);
    assert_complete(&index, 320);
}

/// A process has died before what it had stored in a node was durable, and another one finds it.
#[test]
fn what_recovery_finds_is_durable_before_it_is_used() {
    let (sim, pool, index) = empty();
    insert(&index, 0..FULL + 1);
    let nodes = leaf_nodes(&index.index);
    let (header, entry) = (nodes[0].header(), &nodes[0].node.entries[3]);
    let words = [&header.permutation, &header.classes, &header.next, &entry.key, &entry.value];
    let words = words.map(|word| sim.offset_of(word));
    is_durable_once_served(&sim, (pool, index), &words, 3);
}

/// Blocks are allocated before it is known whether they are needed. The published code loses them
/// when it has to begin again, or finds the key.
#[test]
fn blocks_that_are_not_needed_are_freed() {
    let (_sim, pool, index) = empty();
    let tree = &*index.index;
    let keeps = |key: &[u8]| {
        let before = pool.allocated();
        let kept = tree.mutate(key, MutateMode::MayInsert, &mut |_| Action::Keep).unwrap();
        assert!(!kept.changed());
        assert_eq!(pool.allocated(), before);
    };
    // A word, a leaf, a layer, layers below each other, and a split.
    keeps(b"short");
    keeps(b"longer than a slice");
    tree.insert(b"longer than a slice", 1).unwrap();
    keeps(b"longer than");
    keeps(b"longer than a slice, and a few more");
    insert(&index, 1..FULL);
    assert_eq!(lengths(tree), [15]);
    keeps(&FULL.to_be_bytes());
    keeps(b"short");
    keeps(b"longer and with a leaf");
    tree.insert(b"longer than", 2).unwrap();
    tree.insert(b"longer than a slice, and a few more", 3).unwrap();
    assert_no_leak(&pool, tree);
    for key in [&b"longer than a slice"[..], b"longer than", b"longer than a slice, and a few more"]
    {
        assert!(tree.remove(key).unwrap().removed());
    }
    assert_no_leak(&pool, tree);
    assert_eq!((tree.check(), tree.len()), (SOUND, FULL - 1));
}

/// The same if there is no space for all of them.
#[test]
fn a_change_that_has_no_space_changes_nothing() {
    let (_sim, pool, index) = empty();
    let tree = &*index.index;
    let long = |last: u8| [&[b'l'; 99][..], &[last]].concat();
    tree.insert(&long(0), 1).unwrap();
    insert(&index, 1..FULL);
    let bytes = size_of::<Node>() as u64;
    let mut taken: Vec<u64> = std::iter::from_fn(|| pool.allocate_fixed(bytes).ok()).collect();
    let before = words(tree);
    // Of twelve layers there is space for up to three.
    for free in 0..4 {
        let allocated = pool.allocated();
        for key in [long(1), FULL.to_be_bytes().to_vec()] {
            if key.len() < 9 && free > 0 {
                continue;
            }
            assert!(tree.insert(&key, 2).unwrap_err().is_no_space());
            assert_eq!((words(tree), pool.allocated()), (before.clone(), allocated.clone()));
            assert_eq!(tree.get(&key).unwrap(), None);
        }
        pool.free_unpublished(taken.pop().unwrap());
    }
    taken.into_iter().for_each(|block| pool.free_unpublished(block));
    assert!(tree.insert(&long(1), 2).unwrap().inserted());
    assert_no_leak(&pool, tree);
}

/// Words are flushed whatever they are. The published code leaves out the block of a word that is
/// 0.
#[test]
fn a_word_that_is_zero_is_durable() {
    for key in [&b"short"[..], b"with a leaf of its own", b"with a layer"] {
        let (sim, pool, index) = empty();
        index.index.insert(b"with a l", 5).unwrap();
        index.index.insert(b"with a l...", 6).unwrap();
        record(&sim, || {
            assert!(index.index.insert(key, 0).unwrap().inserted());
        });
        drop((pool, index));
        for_each_image(&sim, true, |image| {
            let crashed = Sim::from_image(image.bytes, 1 << 20).unwrap();
            let identity = Identity::default();
            let (pool, _) = Pool::open(crashed, identity, OnSuspect::Refuse).unwrap();
            let tree = Masstree::open(pool.clone(), pool.root(0)).unwrap();
            assert_eq!(tree.get(key).unwrap(), Some(0));
            assert_eq!(tree.get(b"with a l...").unwrap(), Some(6));
        });
    }
}

/// Pages that are as short as those of scans which others overtake again and again, from every key
/// in turn, where most nodes are empty.
#[test]
fn short_pages_go_on_beyond_where_they_began() {
    let (_sim, _pool, index) = empty();
    let tree = &*index.index;
    insert(&index, mixed(300));
    let long = |number: u64| [&150u64.to_be_bytes()[..], &number.to_be_bytes()].concat();
    mixed(90).for_each(|number| assert!(tree.insert(&long(number), number).unwrap().inserted()));
    let mut starts: Vec<Vec<u8>> = Vec::new();
    tree.each_node(&mut |node, _, way| {
        let mut start = way.prefix.to_vec();
        node.low(tree.medium()).append_first_to(&mut start);
        starts.push(start);
        Ok(true)
    })
    .unwrap();
    starts.extend(pairs(tree, Direction::Ascending).into_iter().map(|(key, _)| key));
    for number in (0..300u64).filter(|number| number % 50 != 0) {
        tree.remove(&number.to_be_bytes()).unwrap();
    }
    for number in (0..90).filter(|number| number % 40 != 0) {
        tree.remove(&long(number)).unwrap();
    }
    let all: Vec<_> = pairs(tree, Direction::Ascending).into_iter().map(|(key, _)| key).collect();
    for direction in [Direction::Ascending, Direction::Descending] {
        for start in &starts {
            for first in [Bound::Included(&start[..]), Bound::Excluded(&start[..])] {
                let (mut from, mut shown) = (first.map(<[u8]>::to_vec), Vec::new());
                loop {
                    let mut page = Page::default();
                    let bound = from.as_ref().map(Vec::as_slice);
                    let seen = tree.read_page(bound, direction, 1, &mut page).unwrap();
                    assert!(seen.is_unchanged(tree.medium()));
                    shown.extend(page.pairs.iter().map(|(key, _)| key.to_vec()));
                    let Some(next) = page.next(direction) else { break };
                    let (Bound::Included(edge) | Bound::Excluded(edge)) = next else { panic!() };
                    let (Bound::Included(begun) | Bound::Excluded(begun)) = bound else { panic!() };
                    let goes_on = match direction {
                        Direction::Ascending => edge > begun,
                        Direction::Descending => match bound {
                            Bound::Included(_) => edge <= begun,
                            _ => edge < begun,
                        },
                    };
                    assert!(goes_on, "{direction:?} from {bound:?}: {edge:?}");
                    from = next.map(<[u8]>::to_vec);
                }
                let range = match direction {
                    Direction::Ascending => (first, Bound::Unbounded),
                    Direction::Descending => (Bound::Unbounded, first),
                };
                let mut due: Vec<_> =
                    all.iter().filter(|key| range.contains(&key[..])).cloned().collect();
                if direction == Direction::Descending {
                    due.reverse();
                }
                assert_eq!(shown, due, "{direction:?} from {first:?}");
            }
        }
    }
}

/// The accesses of changes to words of one node.
#[derive(Default)]
struct Log(Mutex<Vec<Access>>);

impl Observer for Log {
    fn observe(&self, access: Access) {
        if !matches!(access, Access::Load(_) | Access::Prefetch(_)) {
            self.0.lock().unwrap().push(access);
        }
    }
}

/// Readers wait for the lock of a node, so what they see is durable if it is held from before the
/// first store until after the last fence.
#[test]
fn a_node_is_locked_until_its_change_is_durable() {
    let log = Arc::new(Log::default());
    let sim = Sim::in_memory(1 << 20).unwrap().observed_by(log.clone());
    let shape = RegionConfig { extent_size: 4096, capacity: 1 << 20, seed: Some(1) };
    let pool = Pool::create(sim.clone(), &shape, Identity::default()).unwrap();
    let tree = Masstree::create(pool.clone(), pool.root(0)).unwrap();
    let node = sim.load(&tree.root_block().unwrap().tree);
    let within = |offset: u64| (node..node + size_of::<Node>() as u64).contains(&offset);
    let is_locked_throughout = |change: &dyn Fn()| {
        log.0.lock().unwrap().clear();
        change();
        let (mut locked, mut pending, mut releases) = (false, false, 0);
        for access in &*log.0.lock().unwrap() {
            match *access {
                Access::Swapped(at) if at == node => locked = true,
                Access::Store(at, _) if within(at) => {
                    assert!(locked, "the node is changed without its lock");
                    pending = true;
                }
                Access::Fence => pending = false,
                Access::StoreTransient(at) if at == node => {
                    assert!(locked && !pending, "the node is released before it is durable");
                    (locked, releases) = (false, releases + 1);
                }
                _ => {}
            }
        }
        assert!(!locked && releases > 0);
    };
    let number = |number: u64| number.to_be_bytes();
    for key in 0..FULL {
        is_locked_throughout(&|| assert!(tree.insert(&number(key), key).unwrap().inserted()));
    }
    // A split that leaves all entries where they are, other changes, and another split.
    is_locked_throughout(&|| assert!(tree.insert(&number(FULL), 1).unwrap().inserted()));
    is_locked_throughout(&|| assert!(tree.update(&number(3), 4).unwrap().changed()));
    is_locked_throughout(&|| assert!(tree.remove(&number(9)).unwrap().removed()));
    let with_leaf = b"\0\0\0\0\0\0\0\x07 and a leaf";
    is_locked_throughout(&|| assert!(tree.insert(with_leaf, 1).unwrap().inserted()));
    is_locked_throughout(&|| assert!(tree.insert(&with_leaf[..11], 1).unwrap().inserted()));
    is_locked_throughout(&|| assert!(tree.insert(&number(9), 1).unwrap().inserted()));
}

/// A node whose order is damaged is not changed, and searches in it end.
#[test]
fn an_order_that_is_wrong_is_damaged() {
    let positions = Permutation::identity(4).0;
    for order in [0, u64::MAX, positions | 0xf0, positions ^ 0x10, positions ^ 1 << 63] {
        let (sim, _pool, index) = empty();
        let tree = &*index.index;
        insert(&index, 0..4);
        let node = leaf_nodes(tree)[0];
        sim.store(&node.header().permutation, order);
        let before: Vec<u64> = words_of(&sim, &node);
        for key in [0, 2, 9] {
            let error = tree.insert(&9u64.to_be_bytes(), key).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Damaged { .. }), "{error}");
            let _ = tree.get(&key.to_be_bytes());
        }
        let _ = pairs_if_possible(tree);
        assert_eq!(words_of(&sim, &node), before);
        assert_ne!(tree.check(), SOUND);
    }
}

fn words_of(sim: &Sim, node: &NodeRef<'_>) -> Vec<u64> {
    let cells: &[PmU64] = sim.slice(node.offset + 8, size_of::<Node>() as u64 / 8 - 1).unwrap();
    cells.iter().map(|cell| sim.load(cell)).collect()
}

fn pairs_if_possible(tree: &Masstree<Sim>) -> evermap_pm::Result<usize> {
    let mut cursor = Cursor::new(tree, .., Direction::Descending);
    let mut count = 0;
    while cursor.next()?.is_some() {
        count += 1;
    }
    Ok(count)
}

/// References that lead round and round, or out of the layer, are damaged.
#[test]
fn references_that_lead_elsewhere_are_damaged() {
    let (sim, _pool, index) = empty();
    let tree = &*index.index;
    insert(&index, 0..100);
    tree.insert(b"0 has a leaf", 1).unwrap();
    let nodes = leaf_nodes(tree);
    let is_damaged = |result: evermap_pm::Result<()>| {
        let error = result.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Damaged { .. }), "{error}");
    };
    // The last node is followed by the first one.
    let last = nodes.last().unwrap();
    sim.store(&last.header().next, nodes[0].offset);
    is_damaged(tree.get(&u64::MAX.to_be_bytes()).map(drop));
    is_damaged(tree.insert(&u64::MAX.to_be_bytes(), 1).map(drop));
    is_damaged(pairs_if_possible(tree).map(drop));
    is_damaged(tree.visit(&mut Blocks::default()));
    sim.store(&last.header().next, 0);
    assert_eq!(tree.check(), SOUND);
    // Nodes never become obsolete.
    let lock = &last.header().lock;
    let before = Lock(sim.load(lock));
    sim.store(lock, before.locked().obsolete().0);
    is_damaged(tree.insert(&u64::MAX.to_be_bytes(), 1).map(drop));
    sim.store(lock, before.0);
    // A leaf is below another slice, and a layer is the first one.
    let target = Target::new(b"0 has a leaf", 0);
    let end = tree.descend(tree.root_node().unwrap(), &target, 0).unwrap();
    let (position, word) = end.place.found.unwrap();
    let entry = &end.node.node.entries[position];
    sim.store(&entry.key, Slice::of(b"1 has a leaf", 0).bytes);
    is_damaged(tree.insert(b"1 has a leaf", 2).map(drop));
    assert_ne!(tree.check(), SOUND);
    sim.store(&entry.key, target.slice.bytes);
    sim.store(&entry.value, Below::Layer(nodes[0].offset).word());
    is_damaged(tree.get(b"0 has a leaf").map(drop));
    is_damaged(tree.insert(b"0 has a leaf", 2).map(drop));
    is_damaged(pairs_if_possible(tree).map(drop));
    sim.store(&entry.value, word);
    assert_eq!(tree.check(), SOUND);
}

/// In a file whose pages are of different ages, the level above has a reference to a node to which
/// its left neighbour has none. Searches come there.
#[test]
fn nodes_that_their_neighbours_do_not_know_are_made_stale() {
    let (sim, pool, index) = empty();
    insert(&index, 0..3 * FULL);
    let tree = &index.index;
    let root = tree.root_node().unwrap();
    let contents = tree.contents(&root).unwrap();
    let children: Vec<_> = std::iter::once(contents.leftmost)
        .chain(contents.entries.iter().map(|&(_, child)| child))
        .map(|child| tree.node_as_it_is(child, Some(0), 0).unwrap())
        .collect();
    assert!(children.len() > 2);
    let [first, second] = [0, 1].map(|at| &children[at].header().next);
    sim.store(first, sim.load(second));
    tree.make_stale().unwrap();
    for child in children {
        assert!(!Lock(sim.load(&child.header().lock)).is_of(pool.generation()));
    }
}
