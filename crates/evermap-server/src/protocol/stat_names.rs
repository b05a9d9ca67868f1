//! The names of statistics and settings that tools expect of memcached.

use std::collections::HashSet;
use std::fmt::Display;

use super::Context;

/// Statistics of mechanisms that this server does not have, or whose events it does not tell apart.
/// Tools that read memcached's statistics miss a name more than they mind a zero.
const ABSENT: [&str; 44] = [
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

/// Shows statistics, each name once.
struct Once<'e> {
    each: &'e mut dyn FnMut(&str, &dyn Display),
    names: HashSet<String>,
}

impl<'e> Once<'e> {
    fn new(each: &'e mut dyn FnMut(&str, &dyn Display)) -> Self {
        Once { each, names: HashSet::new() }
    }

    /// Shows a statistic, unless one with this name was shown before.
    fn show(&mut self, name: &str, value: &dyn Display) {
        if self.names.insert(name.to_owned()) {
            (self.each)(name, value);
        }
    }
}

/// Calls `each` with the name and value of each general statistic.
pub(super) fn general(context: &Context<'_>, each: &mut dyn FnMut(&str, &dyn Display)) {
    let mut once = Once::new(each);
    context.host.general(&mut |name, value| once.show(name, value));
    context.host.items(context.cache, &mut |name, value| once.show(name, value));
    for name in ABSENT {
        once.show(name, &0);
    }
}

/// Calls `each` with the name and value of each setting.
pub(super) fn settings(context: &Context<'_>, each: &mut dyn FnMut(&str, &dyn Display)) {
    let mut once = Once::new(each);
    context.host.settings(&mut |name, value| once.show(name, value));
    once.show("maxbytes", &context.cache.memory_limit());
    for (name, value) in FIXED {
        once.show(name, &value);
    }
}
