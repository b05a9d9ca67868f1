//! The indexes of this crate with geometries that are so small that some hundred operations cause
//! every structural change.

use evermap_pm::sim::Sim;

use super::keys::Numbered;
use super::ordered::encoded::InOrder;
use super::persistence::PoolSubject;
use crate::hash::{clht, dash};
use crate::ordered::art::Art;

/// Dash-EH, beginning with one segment of 4 buckets.
pub struct DashEh;

impl<K: Numbered> PoolSubject<K> for DashEh {
    type Index = dash::Tiny<K, Sim>;

    fn config(&self) -> dash::Config {
        dash::Config { initial_depth: 0 }
    }
}

/// The same in the paper's form.
pub struct DashEhPaper;

impl<K: Numbered> PoolSubject<K> for DashEhPaper {
    type Index = dash::DashEh<K, Sim, dash::Paper<4, 2, 4>>;

    fn config(&self) -> dash::Config {
        dash::Config { initial_depth: 0 }
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

/// P-ART.
pub struct PArt;

impl<K: Numbered> PoolSubject<K> for PArt {
    type Index = InOrder<K, Art<Sim>>;

    fn config(&self) {}
}
