//! The structures of this crate with geometries that are so small that some hundred operations
//! cause every structural change.

use evermap_index::hash::dash;
use evermap_index::key::Quotient;
use evermap_index::testkit::ordered::encoded::InOrder;
use evermap_index::testkit::{Numbered, PoolSubject};
use evermap_pm::sim::Sim;

use crate::hikv;
use crate::hot::Hot;
use crate::{bwtree, cceh, dash_lh, fast_fair, fptree, level, line, masstree, nvtree, tranche};

/// Dash-LH, beginning with one segment of 4 buckets.
pub struct DashLh;

impl<K: Numbered> PoolSubject<K> for DashLh {
    type Index = dash_lh::TinyLh<K, Sim>;

    fn config(&self) -> dash::Config {
        dash::Config { initial_depth: 0 }
    }
}

/// CCEH, beginning with two segments.
pub struct Cceh(pub cceh::Locking, pub cceh::Recovery);

impl<K: Numbered> PoolSubject<K> for Cceh {
    type Index = cceh::Tiny<K, Sim>;

    fn config(&self) -> cceh::Config {
        cceh::Config { initial_depth: 1, locking: self.0, recovery: self.1 }
    }
}

/// Level hashing, beginning with levels of four and two buckets.
pub struct Level(pub level::Resize, pub level::Locking);

impl<K: Numbered> PoolSubject<K> for Level {
    type Index = level::Tiny<K, Sim>;

    fn config(&self) -> level::Config {
        level::Config { top_level: 2, resize: self.0, locking: self.1 }
    }
}

/// The line hash, beginning with one segment.
pub struct Line;

impl<K: Numbered + Quotient> PoolSubject<K> for Line {
    type Index = line::Tiny<K, Sim>;

    fn config(&self) -> line::Config {
        line::Config { initial_depth: 0 }
    }
}

/// The heterogeneous table, beginning with one group of two tranches.
pub struct Tranche;

impl<K: Numbered> PoolSubject<K> for Tranche {
    type Index = tranche::Tiny<K, Sim>;

    fn config(&self) -> tranche::Config {
        tranche::Config { initial_depth: 0 }
    }
}

/// FAST & FAIR with up to nine records in a node, which are in three lines.
pub struct FastFair;

impl<K: Numbered> PoolSubject<K> for FastFair {
    type Index = InOrder<K, fast_fair::FastFair<Sim, fast_fair::Improved<9>>>;

    fn config(&self) {}
}

/// The same in the paper's form.
pub struct FastFairPaper;

impl<K: Numbered> PoolSubject<K> for FastFairPaper {
    type Index = InOrder<K, fast_fair::FastFair<Sim, fast_fair::Paper<9>>>;

    fn config(&self) {}
}

/// FPTree with up to eight entries in a leaf.
pub struct FpTree;

impl<K: Numbered> PoolSubject<K> for FpTree {
    type Index = InOrder<K, fptree::FpTree<Sim, fptree::Fused<8>>>;

    fn config(&self) {}
}

/// The same in the paper's form.
pub struct FpTreePaper;

impl<K: Numbered> PoolSubject<K> for FpTreePaper {
    type Index = InOrder<K, fptree::FpTree<Sim, fptree::Paper<8>>>;

    fn config(&self) {}
}

/// NV-Tree with up to eight entries in a leaf, four leaves of a parent, and three children of an
/// inner node.
pub struct NvTree;

impl<K: Numbered> PoolSubject<K> for NvTree {
    type Index = InOrder<K, nvtree::NvTree<Sim, nvtree::HalfFull<8, 4, 3>>>;

    fn config(&self) {}
}

/// The same in the paper's form.
pub struct NvTreePaper;

impl<K: Numbered> PoolSubject<K> for NvTreePaper {
    type Index = InOrder<K, nvtree::NvTree<Sim, nvtree::OneLeafPerParent<8, 4, 3>>>;

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

/// HiKV with two partitions, which begin with one bucket, and without threads.
pub struct HiKv;

impl<K: Numbered> PoolSubject<K> for HiKv {
    type Index = InOrder<K, hikv::Indexed<Sim, hikv::Tiny<false>>>;

    fn config(&self) {}
}

/// The same with two logs.
pub struct HiKvWal;

impl<K: Numbered> PoolSubject<K> for HiKvWal {
    type Index = InOrder<K, hikv::Indexed<Sim, hikv::Tiny<true>>>;

    fn config(&self) {}
}

/// P-HOT with nodes of up to five entries.
pub struct PHot;

impl<K: Numbered> PoolSubject<K> for PHot {
    type Index = InOrder<K, Hot<Sim, 5>>;

    fn config(&self) {}
}
