//! The structures of this crate with geometries that are so small that some hundred operations cause
//! every structural change.

use evermap_index::testkit::ordered::encoded::InOrder;
use evermap_index::testkit::{Numbered, PoolSubject};
use evermap_pm::sim::Sim;

use crate::hot::Hot;
use crate::{bwtree, fast_fair, masstree};

/// FAST & FAIR with up to nine records in a node, which are in three lines.
pub struct FastFair;

impl<K: Numbered> PoolSubject<K> for FastFair {
    type Index = InOrder<K, fast_fair::FastFair<Sim, 9>>;

    fn config(&self) {}
}

/// P-BwTree with up to eight keys in a leaf node.
pub struct PBwTree;

impl<K: Numbered> PoolSubject<K> for PBwTree {
    type Index = InOrder<K, bwtree::Tiny<Sim>>;

    fn config(&self) {}
}

/// P-Masstree.
pub struct PMasstree;

impl<K: Numbered> PoolSubject<K> for PMasstree {
    type Index = InOrder<K, masstree::Masstree<Sim>>;

    fn config(&self) {}
}

/// P-HOT with nodes of up to five entries.
pub struct PHot;

impl<K: Numbered> PoolSubject<K> for PHot {
    type Index = InOrder<K, Hot<Sim, 5>>;

    fn config(&self) {}
}
