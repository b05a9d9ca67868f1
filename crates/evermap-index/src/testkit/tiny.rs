//! The indexes of this crate with geometries that are so small that some hundred operations cause
//! every structural change.

use evermap_pm::sim::Sim;

use super::keys::Numbered;
use super::ordered::encoded::InOrder;
use super::persistence::PoolSubject;
use crate::hash::{cceh, clht, dash, level, line, tranche};
use crate::key::Quotient;
use crate::ordered::art::Art;

/// Dash-EH, beginning with one segment of 4 buckets.
pub struct DashEh;

impl<K: Numbered> PoolSubject<K> for DashEh {
    type Index = dash::Tiny<K, Sim>;

    fn config(&self) -> dash::Config {
        dash::Config { initial_depth: 0 }
    }
}

/// Dash-LH, beginning with one segment of 4 buckets.
pub struct DashLh;

impl<K: Numbered> PoolSubject<K> for DashLh {
    type Index = dash::TinyLh<K, Sim>;

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
pub struct Level(pub level::Resize);

impl<K: Numbered> PoolSubject<K> for Level {
    type Index = level::Tiny<K, Sim>;

    fn config(&self) -> level::Config {
        level::Config { top_level: 2, resize: self.0 }
    }
}

/// P-CLHT, beginning with four buckets.
pub struct PClht;

impl<K: Numbered> PoolSubject<K> for PClht {
    type Index = clht::Clht<K, Sim>;

    fn config(&self) -> clht::Config {
        clht::Config { initial_buckets: 4 }
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

/// P-ART.
pub struct PArt;

impl<K: Numbered> PoolSubject<K> for PArt {
    type Index = InOrder<K, Art<Sim>>;

    fn config(&self) {}
}
