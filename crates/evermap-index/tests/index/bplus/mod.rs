//! The B+tree.

use evermap_index::ordered::bplus::BPlus;
use evermap_index::ordered_conformance;
use evermap_index::testkit::ordered::OrderedSubject;
use evermap_pm::Result;

mod limits;
mod load;
mod many;
mod memory;
mod shape;

/// Makes trees of nodes with `N` slots.
struct Tree<const N: usize>;

impl<const N: usize> OrderedSubject for Tree<N> {
    type Index = BPlus<N>;

    fn fresh(&self) -> Result<BPlus<N>> {
        BPlus::with_config(Default::default())
    }
}

// The smallest possible nodes, an odd size, and the default size.
ordered_conformance!(four_slots, Tree::<4>);
ordered_conformance!(seven_slots, Tree::<7>);
ordered_conformance!(forty_slots, Tree::<40>);

/// What `check` returns for a tree without problems.
const SOUND: Vec<String> = Vec::new();
