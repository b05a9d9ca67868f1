//! States that crashes seldom leave, and orders of threads that are rare, constructed.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use evermap_index::index::{Action, Change, MutateMode};
use evermap_index::node_lock::Lock;
use evermap_index::ordered::leaf::LeafState;
use evermap_index::ordered::{Direction, Page, PersistentOrdered};
use evermap_index::testkit::crash_states::{
    are_kept, as_operation, created, for_each_image, look_up_after_death, record, reopened, word_in,
};
use evermap_index::testkit::ordered::encoded::InOrder;
use evermap_index::{Index, OrderedIndex, Visitor};
use evermap_pm::region::{Identity, OnSuspect};
use evermap_pm::sim::rng::Rng;
use evermap_pm::sim::{Image, Mutation, Sim};
use evermap_pm::{ErrorKind, Medium, PmU64, Pool};

use super::bits::Search;
use super::layout::Child;
use super::node::Node;
use super::scan::Item;
use super::{Hot, mistakes};

type Tiny = Hot<Sim, 5>;
type Tree = InOrder<u64, Tiny>;

const CAPACITY: u64 = 1 << 20;

/// Keys whose numbers are neighbours differ in various bits.
fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn insert(tree: &Tiny, keys: std::ops::Range<u64>) {
    for number in keys {
        assert!(tree.insert(&key(number), number).unwrap().inserted());
    }
}

/// Returns all references of a tree, with the node of each.
fn references<'t>(tree: &'t Tiny) -> Vec<(Node<'t>, usize)> {
    let mut nodes = vec![tree.root_node().unwrap()];
    let mut references = Vec::new();
    while let Some(node) = nodes.pop() {
        for at in 0..node.children.len() {
            let child = tree.child(&node, at);
            references.push((node, at));
            if !child.is_leaf() && !child.is_none() {
                nodes.push(tree.node(child, node.height).unwrap());
            }
        }
    }
    references
}

/// Stores a word with its mark, as a thread or process does that has not flushed it yet.
fn store_marked(sim: &Sim, (at, mark): (u64, u64)) -> &PmU64 {
    let cell: &PmU64 = sim.at(at).unwrap();
    let word = sim.load(cell);
    // An image that lacks the word is one with another word there.
    sim.store(cell, !word);
    sim.checkpoint();
    sim.store(cell, word | mark);
    cell
}

/// The words on the way to a key: references and the state of its leaf, with their marks.
fn words_on_the_way(sim: &Sim, tree: &Tiny, number: u64) -> Vec<(u64, u64)> {
    let path = tree.descend(&Search::new(&key(number)), |_| ()).unwrap();
    let references = path.iter().map(|step| (sim.offset_of(step.cell()), Child::MARK));
    let leaf = tree.leaf(path.last().unwrap().child).unwrap();
    references.chain([(sim.offset_of(&leaf.leaf.state), LeafState::MARK)]).collect()
}

/// Another thread has stored a word, and has not flushed it yet. A lookup must not act on it before
/// it is durable. In the published code only the reference to the root has a mark.
#[test]
fn a_lookup_makes_durable_what_it_acts_on() {
    for word in 0..4 {
        let (sim, cell, mark) = looked_up_before_it_was_durable(word, None);
        are_kept(&sim, [sim.at::<PmU64>(cell).unwrap()], !mark);
        assert_eq!(sim.load(sim.at(cell).unwrap()) & mark, 0, "the mark is removed");
    }
}

/// The same, with the mistake planted.
#[test]
fn what_is_not_durable_and_acted_on_is_noticed() {
    let (sim, cell, mark) = looked_up_before_it_was_durable(1, Some(mistakes::ACT_EARLY));
    let (now, lost) = (sim.load(sim.at(cell).unwrap()), Cell::new(false));
    for_each_image(&sim, true, |image| {
        lost.set(lost.get() || (word_in(image, cell) ^ now) & !mark != 0);
    });
    assert!(lost.get());
}

/// Looks up a key when one of the words on the way to it is not durable. Returns the offset of that
/// word, and its mark.
fn looked_up_before_it_was_durable(word: usize, mistake: Option<&'static str>) -> (Sim, u64, u64) {
    let (sim, _pool, index): (_, Arc<Pool<Sim>>, Tree) = created(CAPACITY, ());
    insert(&index.index, 0..12);
    let words = words_on_the_way(&sim, &index.index, 0);
    assert!(words.len() >= 4, "there are nodes on two levels");
    store_marked(&sim, words[word]);
    sim.mutate(mistake.map(Mutation::Planted));
    as_operation(&sim, || assert_eq!(index.index.get(&key(0)).unwrap(), Some(0)));
    sim.mutate(None);
    (sim, words[word].0, words[word].1)
}

/// The same if the process has died, and another one looks the key up.
#[test]
fn what_recovery_finds_is_durable_before_it_is_used() {
    for word in 0..4 {
        let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(CAPACITY, ());
        insert(&index.index, 0..12);
        let marked = words_on_the_way(&sim, &index.index, 0)[word];
        let cell = store_marked(&sim, marked);
        // The key of number 0 is 0.
        assert_eq!(look_up_after_death(&sim, (pool, index), 0), Some(0));
        are_kept(&sim, [cell], !marked.1);
    }
}

/// A removal that is not durable yet is no absence to rely on.
#[test]
fn a_lookup_makes_a_removal_durable() {
    let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(CAPACITY, ());
    insert(&index.index, 0..1);
    let cell = &index.index.root_block().unwrap().tree;
    for removed in [Child::NONE, Child(sim.load(cell)).dead()] {
        let before = sim.load(cell);
        sim.checkpoint();
        sim.store(cell, removed.0 | Child::MARK);
        as_operation(&sim, || assert_eq!(index.get(0, &pool.pin()).unwrap(), None));
        are_kept(&sim, [cell], !Child::MARK);
        sim.store(cell, before);
    }
}

type Pairs = Vec<(Vec<u8>, u64)>;

/// Returns the pairs of the tree in an image, or what is wrong with it.
fn pairs_in(image: &Image<'_>) -> std::result::Result<Pairs, String> {
    let crashed = Sim::from_image(image.bytes, CAPACITY).unwrap();
    crashed.pause();
    let pool = Pool::open(crashed, Identity::default(), OnSuspect::Refuse).unwrap().0;
    let tree = Tiny::open(pool.clone(), pool.root(0)).map_err(|error| error.to_string())?;
    match tree.check() {
        problems if problems.is_empty() => Ok(pairs(&tree)),
        problems => Err(problems.join("; ")),
    }
}

/// Returns the pairs of a tree.
fn pairs(tree: &Tiny) -> Pairs {
    let mut pairs = Vec::new();
    let shown = tree.walk(&mut |item, _| {
        if let Item::Leaf(leaf) = item {
            pairs.push((leaf.key(tree.medium()), leaf.word(tree.medium())));
        }
        true
    });
    shown.unwrap();
    pairs
}

/// Returns `true` if a crash after the recorded work leaves `after`, and one during it that or
/// `before`.
fn survives(sim: &Sim, before: &Pairs, after: &Pairs) -> bool {
    let survives = Cell::new(true);
    let judge = |is_right| survives.set(survives.get() && is_right);
    for_each_image(sim, true, |image| judge(pairs_in(image).as_ref() == Ok(after)));
    for_each_image(sim, false, |image| {
        judge(pairs_in(image).is_ok_and(|found| found == *before || found == *after));
    });
    survives.get()
}

/// A tree in which the insertion of the key with this number splits the nodes of at least two
/// levels, so that a new node refers to two others that are new.
fn before_a_high_split() -> (Sim, Arc<Pool<Sim>>, Tree, u64) {
    let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(CAPACITY, ());
    let mut depth = 0;
    for next in 0.. {
        let (trial, _pool, other): (Sim, Arc<Pool<Sim>>, Tree) = created(CAPACITY, ());
        insert(&other.index, 0..next + 1);
        drop(trial);
        let grown = other.index.stats().depth;
        if depth >= 2 && grown > depth {
            return (sim, pool, index, next);
        }
        depth = grown;
        insert(&index.index, next..next + 1);
    }
    unreachable!()
}

/// The published code flushes the halves of a split node, and then stores a reference to another
/// new node in one of them. After a crash the reference can be one to a node that was freed.
#[test]
fn a_split_of_several_levels_survives_every_crash() {
    assert!(high_split_survives(None));
}

/// The same, with each mistake planted.
#[test]
fn a_node_or_reference_that_is_not_flushed_is_noticed() {
    for mistake in [
        mistakes::PUBLISH_EARLY,
        mistakes::LEAVE_REFERENCE_UNFLUSHED,
        mistakes::LEAVE_NODE_UNFLUSHED,
    ] {
        assert!(!high_split_survives(Some(mistake)), "{mistake}");
    }
}

fn high_split_survives(mistake: Option<&'static str>) -> bool {
    let (sim, _pool, index, next) = before_a_high_split();
    let before = pairs(&index.index);
    sim.mutate(mistake.map(Mutation::Planted));
    record(&sim, || insert(&index.index, next..next + 1));
    sim.mutate(None);
    let after = pairs(&index.index);
    assert_eq!(after.len(), before.len() + 1);
    survives(&sim, &before, &after)
}

/// The root becomes a leaf, a node, and so on back to nothing. All of these are stores of one
/// reference.
#[test]
fn the_root_is_whole_after_every_crash() {
    let (sim, _pool, index): (_, Arc<Pool<Sim>>, Tree) = created(CAPACITY, ());
    let tree = &*index.index;
    let is_leaf = || Child(sim.load(&tree.root_block().unwrap().tree)).is_leaf();
    for (number, inserts, leaf) in
        [(1, true, true), (2, true, false), (2, false, true), (1, false, false)]
    {
        let before = pairs(tree);
        record(&sim, || {
            let change = match inserts {
                true => tree.insert(&key(number), number),
                false => tree.remove(&key(number)),
            };
            assert!(change.unwrap().changed());
        });
        let after = pairs(tree);
        assert_eq!(is_leaf(), leaf);
        assert!(survives(&sim, &before, &after));
    }
    assert!(pairs(tree).is_empty());
}

/// A process has died while it held all locks, and with bits in them that say that nodes are not
/// part of the tree.
#[test]
fn locks_of_the_dead_are_not_held() {
    let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(CAPACITY, ());
    insert(&index.index, 0..40);
    for (node, _) in references(&index.index) {
        let lock = Lock(sim.load(node.lock)).locked().obsolete().locked();
        sim.store_transient(node.lock, lock.0);
    }
    drop((pool, index));
    let (_pool, index): (_, Tree) = reopened(&sim);
    let tree = &*index.index;
    insert(tree, 40..80);
    (0..40).for_each(|number| assert!(tree.remove(&key(number)).unwrap().removed()));
    (40..80).for_each(|number| assert_eq!(tree.get(&key(number)).unwrap(), Some(number)));
    assert_eq!(tree.check(), Vec::<String>::new());
    assert!(tree.stats().recovered > 10);
}

/// What a thread does with a key.
#[derive(Clone, Copy, Debug)]
enum Step {
    Insert,
    Update,
    Remove,
}

impl Step {
    fn draw(random: &mut Rng) -> Self {
        [Step::Insert, Step::Insert, Step::Update, Step::Remove][random.draw() as usize % 4]
    }

    fn action(self, old: Option<u64>, word: u64) -> Action {
        match (self, old) {
            (Step::Insert, Some(_)) => Action::Keep,
            (Step::Insert | Step::Update, _) => Action::Put(word),
            (Step::Remove, _) => Action::Remove,
        }
    }

    fn mode(self) -> MutateMode {
        match self {
            Step::Insert => MutateMode::MayInsert,
            _ => MutateMode::ExistingOnly,
        }
    }

    fn apply(self, map: &mut BTreeMap<u64, u64>, number: u64, word: u64) {
        match self {
            Step::Insert => drop(map.entry(number).or_insert(word)),
            Step::Update => drop(map.get_mut(&number).map(|old| *old = word)),
            Step::Remove => drop(map.remove(&number)),
        }
    }
}

/// A thread has searched for a key. Before it locks anything, another thread makes a change.
/// Returns whether the first one starts again or does what is right.
fn late_changes_are_right(mistake: Option<&'static str>) -> bool {
    let (sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(8 * CAPACITY, ());
    let (tree, random, mut map) = (&*index.index, &mut Rng::new(5), BTreeMap::new());
    sim.mutate(mistake.map(Mutation::Planted));
    let mut restarts = 0;
    for word in 0..20_000 {
        // The number of keys grows to the limit and shrinks again.
        let limit = 1 + word / 32 % 64;
        let mut draw = || (random.draw() % limit, Step::draw(random));
        let [(late, first), (other, second)] = [draw(), draw()];
        let (late_key, guard) = (key(late), pool.pin());
        let search = Search::new(&late_key);
        let Ok(path) = tree.descend(&search, |_| ()) else { return false };
        let before = map.get(&late).copied();
        let decide = |step: Step| move |old| step.action(old, word);
        if tree.mutate(&key(other), second.mode(), &mut decide(second)).is_err() {
            return false;
        }
        second.apply(&mut map, other, word);
        let done = tree.change_at(&search, &path, first.mode(), &guard, &mut decide(first));
        let Ok(done) = done else { return false };
        if done.is_none() {
            restarts += 1;
            tree.mutate(&late_key, first.mode(), &mut decide(first)).unwrap();
        }
        // A key that was absent when it was searched for need not be searched for again.
        let was_absent = done == Some(Change::default());
        if was_absent && before.is_some() {
            return false;
        }
        if !was_absent {
            first.apply(&mut map, late, word);
        }
        let found = (0..limit).map(|number| tree.get(&key(number)));
        let is_right = found.enumerate().all(|(number, found)| {
            found.is_ok_and(|found| found == map.get(&(number as u64)).copied())
        });
        if !is_right || word % 64 == 0 && !tree.check().is_empty() {
            return false;
        }
    }
    assert!((100..10_000).contains(&restarts), "{restarts} restarts");
    true
}

#[test]
fn a_change_notices_what_others_have_changed() {
    assert!(late_changes_are_right(None));
}

#[test]
fn a_change_that_does_not_notice_is_noticed() {
    for mistake in [mistakes::CHANGE_OBSOLETE, mistakes::OVERLOOK_CHANGES] {
        assert!(!late_changes_are_right(Some(mistake)), "{mistake}");
    }
}

/// Collects what is shown.
#[derive(Default)]
struct Shown {
    blocks: Vec<u64>,
    words: Vec<u64>,
}

impl Visitor for Shown {
    fn block(&mut self, offset: u64) {
        self.blocks.push(offset);
    }

    fn word(&mut self, word: u64) {
        self.words.push(word);
    }
}

/// Checks that every allocated block is part of the tree, and shown once.
fn assert_no_leak(pool: &Pool<Sim>, tree: &Tiny, but: &[u64]) -> Shown {
    pool.epoch().drain();
    let mut shown = Shown::default();
    tree.visit(&mut shown).unwrap();
    shown.blocks.extend(but);
    shown.blocks.sort_unstable();
    assert_eq!(shown.blocks, pool.allocated());
    shown
}

/// There is no space for a smaller node: the leaf stays, dead, until its node is replaced.
#[test]
fn keys_can_be_removed_without_space() {
    const KEYS: u64 = 60;
    let (_sim, pool, index): (_, Arc<Pool<Sim>>, Tree) = created(CAPACITY, ());
    let tree = &*index.index;
    insert(tree, 0..KEYS);
    let mut taken = Vec::new();
    for bytes in [64, 128, 192] {
        taken.extend(std::iter::from_fn(|| pool.allocate_fixed(bytes).ok()));
    }
    let removed = (0..KEYS).filter(|number| number % 3 != 0);
    // What a removal frees would be used by the next one.
    let guard = pool.pin();
    for number in removed.clone() {
        assert!(tree.remove(&key(number)).unwrap().removed());
        assert_eq!(tree.get(&key(number)).unwrap(), None);
        assert!(!tree.remove(&key(number)).unwrap().removed());
        assert!(!tree.update(&key(number), 7).unwrap().changed());
    }
    drop(guard);
    assert_eq!(tree.check(), Vec::<String>::new());
    let shown = assert_no_leak(&pool, tree, &taken);
    assert_eq!(shown.words.len() as u64, tree.len());
    let alive = 1 + tree.stats().segments as usize + shown.words.len();
    assert!(shown.blocks.len() > taken.len() + alive, "some leaves are dead");
    assert!(pairs(tree).len() as u64 == tree.len());
    taken.drain(..).for_each(|block| pool.free_unpublished(block));
    // Beside dead leaves, and in their place.
    for number in removed.clone().filter(|number| number % 2 == 0) {
        assert!(tree.insert(&key(number), number).unwrap().inserted());
    }
    (KEYS..2 * KEYS).for_each(|number| insert(tree, number..number + 1));
    assert_eq!(tree.check(), Vec::<String>::new());
    assert_no_leak(&pool, tree, &[]);
    (0..2 * KEYS).for_each(|number| assert!(tree.remove(&key(number)).is_ok()));
    assert_eq!((tree.check(), tree.len()), (Vec::new(), 0));
    assert_eq!(assert_no_leak(&pool, tree, &[]).blocks.len(), 1);
}

/// Damaged references and shapes are errors, and no walk is without end.
#[test]
fn a_node_is_not_below_itself() {
    let (sim, _pool, index): (_, Arc<Pool<Sim>>, Tree) = created(CAPACITY, ());
    insert(&index.index, 0..20);
    let tree = &*index.index;
    for (node, at) in references(tree) {
        let cell = &node.children[at];
        let before = sim.load(cell);
        // Only the root block may have no child.
        for wrong in [node.offset, node.offset + 16, 1 << 47, 0]
            .into_iter()
            .take(3 + usize::from(!node.is_root()))
        {
            sim.store(cell, wrong);
            (0..20).for_each(|number| drop(tree.get(&key(number))));
            assert!(!tree.check().is_empty());
            assert!(tree.visit(&mut Shown::default()).is_err());
        }
        sim.store(cell, before);
    }
    assert_eq!(tree.check(), Vec::<String>::new());
}

/// A reference is damaged so that it leads to a node to which another one leads. When that node is
/// replaced, it stays where it is on the other way. No operation tries for ever to change it.
#[test]
fn a_node_on_two_ways_is_damaged() {
    let (sim, _pool, index): (_, Arc<Pool<Sim>>, Tree) = created(CAPACITY, ());
    insert(&index.index, 0..60);
    let tree = &*index.index;
    let is_node =
        |(node, at): &(Node<'_>, usize)| !node.is_root() && !tree.child(node, *at).is_leaf();
    let all: Vec<_> = references(tree).into_iter().filter(is_node).collect();
    let mut pairs = all.windows(2).filter(|pair| pair[0].0.offset == pair[1].0.offset);
    let (node, [at, other]) = pairs.next().map(|it| (it[0].0, [it[0].1, it[1].1])).unwrap();
    sim.store(&node.children[other], sim.load(&node.children[at]));
    assert!(!tree.check().is_empty());
    let failed = (60..300).filter(|&number| {
        let change = tree.insert(&key(number), number);
        change.is_err_and(|error| matches!(error.kind(), ErrorKind::Damaged { .. }))
    });
    assert!(failed.count() > 0);
    // Whether these can be read is undefined; they end.
    for direction in [Direction::Ascending, Direction::Descending] {
        let _ = tree.page(Bound::Unbounded, direction, &mut Page::default());
    }
}
