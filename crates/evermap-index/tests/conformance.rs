//! Every index passes the conformance kit.

use evermap_index::conformance;
use evermap_index::hash::dash::{Config, Tiny};
use evermap_index::testkit::{Numbered, PoolSubject};
use evermap_pm::Medium;

struct TinyDash;

impl<K: Numbered> PoolSubject<K> for TinyDash {
    type Index<M: Medium> = Tiny<K, M>;

    fn config<M: Medium>(&self) -> Config {
        Config { initial_depth: 1 }
    }
}

conformance!(dash_eh, TinyDash);
