//! Trees in memory, for the tests of several ordered indexes. The functions panic where a tree does
//! not do what it should.

use std::marker::PhantomData;
use std::ops::Bound;
use std::sync::Arc;

use evermap_pm::medium::{Counter, Counts};
use evermap_pm::region::{Identity, OnSuspect, RegionConfig};
use evermap_pm::sim::Sim;
use evermap_pm::{Medium, PmU64, Pool, Result};

use super::OrderedSubject;
use crate::ordered::{Cursor, Direction, OrderedIndex, Page, PersistentOrdered};

/// What `check` returns for a tree without problems.
pub const SOUND: Vec<String> = Vec::new();

/// Creates a tree that takes all of a medium.
pub fn tree_in<T: PersistentOrdered<Sim>>(medium: Sim) -> Result<T> {
    let capacity = medium.capacity();
    let shape = RegionConfig { extent_size: 2 << 20, capacity, seed: Some(1) };
    let pool = Pool::create(medium, &shape, Identity::default())?;
    T::create(pool.clone(), pool.root(0))
}

/// Returns empty memory for a tree.
pub fn memory() -> Result<Sim> {
    Sim::in_memory(1 << 28)
}

/// Creates a tree in memory.
pub fn in_memory<T: PersistentOrdered<Sim>>() -> T {
    memory().and_then(tree_in).unwrap()
}

/// Returns the keys of a tree in one direction.
pub fn keys(tree: &dyn OrderedIndex, direction: Direction) -> Vec<Vec<u8>> {
    let mut cursor = Cursor::new(tree, .., direction);
    let mut keys = Vec::new();
    while let Some((key, _)) = cursor.next().unwrap() {
        keys.push(key.to_vec());
    }
    keys
}

/// What the caller expects bounds a page, and not what a scan shows: of a thousand keys, a page for
/// one pair has at most `most`.
pub fn pages_have_what_is_expected<T: PersistentOrdered<Sim>>(most: usize) {
    let tree: T = in_memory();
    for key in 0..1_000u64 {
        tree.insert(&key.to_be_bytes(), key).unwrap();
    }
    for direction in [Direction::Ascending, Direction::Descending] {
        for expected in [1, 3] {
            let mut page = Page::default();
            page.expect(expected);
            tree.page(Bound::Unbounded, direction, &mut page).unwrap();
            let words: Vec<u64> = page.pairs.iter().map(|(_, word)| word).collect();
            let pairs = words.len();
            assert!((expected..=most.max(expected)).contains(&pairs), "{direction:?}: {pairs}");
            let first = if direction == Direction::Ascending { 0 } else { 1_000 - pairs as u64 };
            assert!(words.into_iter().eq(first..first + pairs as u64), "{direction:?}");
        }
        for expected in [0, 1, 7, usize::MAX] {
            let mut cursor = Cursor::new(&tree, .., direction);
            cursor.expect(expected);
            for number in 0..1_000 {
                let key = if direction == Direction::Ascending { number } else { 999 - number };
                assert_eq!(cursor.next().unwrap().map(|(_, word)| word), Some(key));
            }
            assert_eq!(cursor.next().unwrap(), None);
        }
    }
}

/// Keys that only differ after their prefixes, some of which are the beginning of others.
pub fn keys_with_equal_prefixes<T: PersistentOrdered<Sim>>() {
    let tree: T = in_memory();
    let mut all: Vec<Vec<u8>> = (0..2000u32)
        .map(|number| [&b"a common beginning"[..], &number.to_be_bytes()[..]].concat())
        .chain((0..300).map(|length| vec![0; length]))
        .collect();
    all.sort();
    for (word, key) in all.iter().enumerate().rev() {
        assert!(tree.insert(key, word as u64).unwrap().inserted());
    }
    assert_eq!(tree.check(), SOUND);
    assert_eq!(keys(&tree, Direction::Ascending), all);
    all.reverse();
    assert_eq!(keys(&tree, Direction::Descending), all);
    for key in &all {
        assert!(tree.remove(key).unwrap().removed());
    }
    assert_eq!((tree.check(), tree.len()), (SOUND, 0));
}

/// The accesses of operations on many random keys of 8 bytes.
pub struct Costs {
    /// Of insertions.
    pub inserted: Counts,
    /// Of lookups of keys that are present.
    pub found: Counts,
    /// Of updates.
    pub updated: Counts,
    /// Of removals.
    pub removed: Counts,
}

impl Costs {
    const KEYS: u64 = 50_000;

    /// Inserts, looks up, updates and removes keys in a new tree.
    pub fn of<T: PersistentOrdered<Sim>>() -> Self {
        let counter = Arc::new(Counter::default());
        let tree: T = tree_in(memory().unwrap().observed_by(counter.clone())).unwrap();
        let key = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        let count = |run: &dyn Fn(u64)| {
            counter.reset();
            (0..Self::KEYS).for_each(run);
            counter.counts()
        };
        Costs {
            inserted: count(&|n| assert!(tree.insert(&key(n), n).unwrap().inserted())),
            found: count(&|n| assert_eq!(tree.get(&key(n)).unwrap(), Some(n))),
            updated: count(&|n| assert!(tree.update(&key(n), n + 1).unwrap().changed())),
            removed: count(&|n| assert!(tree.remove(&key(n)).unwrap().removed())),
        }
    }

    /// Returns the numbers of flushed lines and of fences of one operation, and prints them.
    pub fn of_each(what: &str, counts: &Counts) -> (f64, f64) {
        let each = |count: u64| count as f64 / Self::KEYS as f64;
        let (lines, fences) = (each(counts.lines_flushed), each(counts.fences));
        println!("{what}: {lines:.2} lines flushed, {fences:.2} fences");
        (lines, fences)
    }
}

/// Creates trees for the conformance kit.
pub struct Make<T>(PhantomData<fn() -> T>);

impl<T> Make<T> {
    /// Creates the subject.
    pub const fn new() -> Self {
        Make(PhantomData)
    }
}

impl<T> Default for Make<T> {
    fn default() -> Self {
        Make::new()
    }
}

impl<T: PersistentOrdered<Sim> + 'static> OrderedSubject for Make<T> {
    type Index = T;

    fn fresh(&self) -> Result<T> {
        memory().and_then(tree_in)
    }
}

/// An opener that cannot trust any generation makes all nodes stale, and dies before it has used
/// one. The next opener, whose generation is one more, has to recover them as well.
pub fn nodes_stay_stale<T: PersistentOrdered<Sim>>() {
    const KEYS: u64 = 1_000;
    let medium = memory().unwrap();
    let open = || {
        let (pool, _) = Pool::open(medium.clone(), Identity::default(), OnSuspect::Refuse).unwrap();
        (T::open(pool.clone(), pool.root(0)).unwrap(), pool.generation())
    };
    let created: T = tree_in(medium.clone()).unwrap();
    (0..KEYS).for_each(|key| assert!(created.insert(&key.to_be_bytes(), key).unwrap().inserted()));
    drop(created);
    let (_, generation) = open();
    // The header has the generation and its complement.
    let mut cells = (0..medium.len()).step_by(8).map(|at| medium.at::<PmU64>(at).unwrap());
    let complement = cells.find(|cell| medium.load(cell) == !generation).unwrap();
    medium.store(complement, 0);
    drop(open());
    let (tree, last) = open();
    assert_eq!(last, generation + 2);
    (0..KEYS).for_each(|key| assert_eq!(tree.get(&key.to_be_bytes()).unwrap(), Some(key)));
    assert!(tree.stats().recovered > 1, "{:?}", tree.stats());
}
