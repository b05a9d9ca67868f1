//! Every persistent index survives every crash.

use evermap_index::hash::clht;
use evermap_index::hash::dash::{Config, Tiny};
use evermap_index::testkit::{Numbered, PoolSubject};
use evermap_index::{Clht, crash_campaign};
use evermap_pm::Medium;

struct TinyDash;

impl<K: Numbered> PoolSubject<K> for TinyDash {
    type Index<M: Medium> = Tiny<K, M>;

    fn config<M: Medium>(&self) -> Config {
        Config { initial_depth: 0 }
    }
}

crash_campaign!(dash_eh, TinyDash);

struct TinyClht;

impl<K: Numbered> PoolSubject<K> for TinyClht {
    type Index<M: Medium> = Clht<K, M>;

    fn config<M: Medium>(&self) -> clht::Config {
        clht::Config { initial_buckets: 4 }
    }
}

crash_campaign!(p_clht, TinyClht);
