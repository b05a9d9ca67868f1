//! The general statistics and the settings, as all protocols show them.

use std::collections::HashSet;
use std::fmt::Display;

use super::Context;

/// Statistics of mechanisms that this server does not have, or whose events it does not tell apart.
/// Tools that read memcached's statistics miss a name more than they mind a zero.
const ABSENT: [&str; 45] = [
    "auth_cmds",
    "auth_errors",
    "crawler_items_checked",
    "crawler_reclaimed",
    "direct_reclaims",
    "evicted_active",
    "evicted_unfetched",
    "evictions",
    "expired_unfetched",
    "get_expired",
    "get_flushed",
    "hash_bytes",
    "hash_is_expanding",
    "hash_power_level",
    "idle_kicks",
    "log_watcher_sent",
    "log_watcher_skipped",
    "log_watchers",
    "log_worker_dropped",
    "log_worker_written",
    "lru_bumps_dropped",
    "lru_crawler_running",
    "lru_crawler_starts",
    "lru_maintainer_juggles",
    "lrutail_reflocked",
    "malloc_fails",
    "moves_to_cold",
    "moves_to_warm",
    "moves_within_lru",
    "read_buf_bytes",
    "read_buf_bytes_free",
    "read_buf_count",
    "read_buf_oom",
    "reclaimed",
    "reserved_fds",
    "response_obj_bytes",
    "response_obj_count",
    "response_obj_oom",
    "round_robin_fallback",
    "slab_global_page_pool",
    "slab_reassign_running",
    "slabs_moved",
    "time_in_listen_disabled_us",
    "total_items",
    "unexpected_napi_ids",
];

/// Settings of mechanisms that this server does not have, and what they amount to here.
const FIXED: [(&str, &str); 21] = [
    ("auth_enabled_ascii", "no"),
    ("auth_enabled_sasl", "no"),
    ("chunk_size", "48"),
    ("detail_enabled", "no"),
    ("dump_enabled", "yes"),
    ("growth_factor", "1.25"),
    ("hot_lru_pct", "0"),
    ("hot_max_factor", "0.00"),
    ("idle_timeout", "0"),
    ("lru_crawler", "yes"),
    ("lru_crawler_sleep", "0"),
    ("lru_crawler_tocrawl", "0"),
    ("lru_maintainer_thread", "no"),
    ("lru_segmented", "no"),
    ("oldest", "0"),
    ("slab_automove", "0"),
    ("slab_reassign", "no"),
    ("stat_key_prefix", ":"),
    ("temp_lru", "no"),
    ("warm_lru_pct", "0"),
    ("warm_max_factor", "0.00"),
];

/// Passes statistics on, and notes their names.
struct Filter<'e> {
    each: &'e mut dyn FnMut(&str, &dyn Display),
    names: HashSet<String>,
}

impl<'e> Filter<'e> {
    fn new(each: &'e mut dyn FnMut(&str, &dyn Display)) -> Self {
        Filter { each, names: HashSet::new() }
    }

    /// Passes a statistic on, unless there was one with this name.
    fn add(&mut self, name: &str, value: &dyn Display) {
        if self.names.insert(name.to_owned()) {
            (self.each)(name, value);
        }
    }
}

/// Calls `each` with the name and value of each general statistic.
pub(super) fn general(context: &Context<'_>, each: &mut dyn FnMut(&str, &dyn Display)) {
    let mut filter = Filter::new(each);
    context.host.general(&mut |name, value| filter.add(name, value));
    context.host.items(context.cache, &mut |name, value| filter.add(name, value));
    for name in ABSENT {
        filter.add(name, &0);
    }
}

/// Calls `each` with the name and value of each setting.
pub(super) fn settings(context: &Context<'_>, each: &mut dyn FnMut(&str, &dyn Display)) {
    let mut filter = Filter::new(each);
    context.host.settings(&mut |name, value| filter.add(name, value));
    filter.add("maxbytes", &context.cache.memory_limit());
    for (name, value) in FIXED {
        filter.add(name, &value);
    }
}
