//! Every persistent index survives every crash.

use evermap_index::crash_campaign;
use evermap_index::hash::dash::{Config, Tiny};
use evermap_index::testkit::{Numbered, PoolSubject};
use evermap_pm::Medium;

struct TinyDash;

impl<K: Numbered> PoolSubject<K> for TinyDash {
    type Index<M: Medium> = Tiny<K, M>;

    fn config<M: Medium>(&self) -> Config {
        Config { initial_depth: 0 }
    }
}

crash_campaign!(dash_eh, TinyDash);
