//! Trees in memory, for the tests of several ordered indexes.

use std::marker::PhantomData;

use evermap_index::ordered::PersistentOrdered;
use evermap_index::testkit::ordered::OrderedSubject;
use evermap_pm::region::{Identity, OnSuspect, RegionConfig};
use evermap_pm::sim::Sim;
use evermap_pm::{Medium, PmU64, Pool, Result};

/// What `check` returns for a tree without problems.
pub(crate) const SOUND: Vec<String> = Vec::new();

/// Creates a tree that takes all of a medium.
pub(crate) fn tree_in<T: PersistentOrdered<Sim>>(medium: Sim) -> Result<T> {
    let capacity = medium.capacity();
    let shape = RegionConfig { extent_size: 2 << 20, capacity, seed: Some(1) };
    let pool = Pool::create(medium, &shape, Identity::default())?;
    T::create(pool.clone(), pool.root(0))
}

/// Returns empty memory for a tree.
pub(crate) fn memory() -> Result<Sim> {
    Sim::in_memory(1 << 28)
}

/// Creates a tree in memory.
pub(crate) fn in_memory<T: PersistentOrdered<Sim>>() -> T {
    memory().and_then(tree_in).unwrap()
}

/// Creates trees for the conformance kit.
pub(crate) struct Make<T>(PhantomData<fn() -> T>);

impl<T> Make<T> {
    pub(crate) const fn new() -> Self {
        Make(PhantomData)
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
pub(crate) fn nodes_stay_stale<T: PersistentOrdered<Sim>>() {
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
