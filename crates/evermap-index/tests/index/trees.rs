//! Trees in memory, for the tests of several ordered indexes.

use std::marker::PhantomData;

use evermap_index::ordered::PersistentOrdered;
use evermap_index::testkit::ordered::OrderedSubject;
use evermap_pm::region::{Identity, RegionConfig};
use evermap_pm::sim::Sim;
use evermap_pm::{Medium, Pool, Result};

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
