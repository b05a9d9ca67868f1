//! The indexes of this crate with geometries that are so small that some hundred operations cause
//! every structural change.

use evermap_pm::Medium;

use super::keys::Numbered;
use super::ordered::encoded::InOrder;
use super::persistence::PoolSubject;
use crate::hash::{cceh, clht, dash, level, line};
use crate::key::Quotient;
use crate::ordered::art::Art;
use crate::ordered::fast_fair;

/// Dash-EH, beginning with one segment of 4 buckets.
pub struct DashEh;

impl<K: Numbered> PoolSubject<K> for DashEh {
    type Index<M: Medium> = dash::Tiny<K, M>;

    fn config<M: Medium>(&self) -> dash::Config {
        dash::Config { initial_depth: 0 }
    }
}

/// Dash-LH, beginning with one segment of 4 buckets.
pub struct DashLh;

impl<K: Numbered> PoolSubject<K> for DashLh {
    type Index<M: Medium> = dash::TinyLh<K, M>;

    fn config<M: Medium>(&self) -> dash::Config {
        dash::Config { initial_depth: 0 }
    }
}

/// CCEH, beginning with two segments.
pub struct Cceh(pub cceh::Locking, pub cceh::Recovery);

impl<K: Numbered> PoolSubject<K> for Cceh {
    type Index<M: Medium> = cceh::Tiny<K, M>;

    fn config<M: Medium>(&self) -> cceh::Config {
        cceh::Config { initial_depth: 1, locking: self.0, recovery: self.1 }
    }
}

/// Level hashing, beginning with levels of four and two buckets.
pub struct Level(pub level::Resize);

impl<K: Numbered> PoolSubject<K> for Level {
    type Index<M: Medium> = level::Tiny<K, M>;

    fn config<M: Medium>(&self) -> level::Config {
        level::Config { top_level: 2, resize: self.0 }
    }
}

/// P-CLHT, beginning with four buckets.
pub struct PClht;

impl<K: Numbered> PoolSubject<K> for PClht {
    type Index<M: Medium> = clht::Clht<K, M>;

    fn config<M: Medium>(&self) -> clht::Config {
        clht::Config { initial_buckets: 4 }
    }
}

/// The line hash, beginning with one segment.
pub struct Line;

impl<K: Numbered + Quotient> PoolSubject<K> for Line {
    type Index<M: Medium> = line::Tiny<K, M>;

    fn config<M: Medium>(&self) -> line::Config {
        line::Config { initial_depth: 0 }
    }
}

/// P-ART.
pub struct PArt;

impl<K: Numbered> PoolSubject<K> for PArt {
    type Index<M: Medium> = InOrder<K, Art<M>>;

    fn config<M: Medium>(&self) {}
}

/// FAST & FAIR.
pub struct FastFair;

impl<K: Numbered> PoolSubject<K> for FastFair {
    type Index<M: Medium> = InOrder<K, fast_fair::FastFair<M>>;

    fn config<M: Medium>(&self) {}
}
