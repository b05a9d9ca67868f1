//! The general statistics and the settings, as all protocols show them.

use std::collections::HashSet;
use std::fmt::Display;

use super::Context;

/// Statistics of mechanisms that this server does not have, or whose events it does not tell apart.
/// Tools that read memcached's statistics miss a name more than they mind a zero.
const ABSENT: [&str; 53] = [
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
    "slab_reassign_busy_deletes",
    "slab_reassign_busy_items",
    "slab_reassign_busy_nomem",
    "slab_reassign_chunk_rescues",
    "slab_reassign_evictions_nomem",
    "slab_reassign_inline_reclaim",
    "slab_reassign_last_busy_status",
    "slab_reassign_rescues",
    "slab_reassign_running",
    "slabs_moved",
    "time_in_listen_disabled_us",
    "total_items",
    "unexpected_napi_ids",
];

/// Settings of mechanisms that this server does not have, and what they amount to here.
const FIXED: [(&str, &str); 60] = [
    ("auth_enabled_ascii", "no"),
    ("auth_enabled_sasl", "no"),
    ("chunk_size", "48"),
    ("client_flags_size", "4"),
    ("detail_enabled", "no"),
    ("drop_privileges", "no"),
    ("dump_enabled", "yes"),
    ("ext_compact_under", "0"),
    ("ext_drop_under", "0"),
    ("ext_drop_unread", "no"),
    ("ext_item_age", "0"),
    ("ext_item_size", "0"),
    ("ext_low_ttl", "0"),
    ("ext_max_frag", "0.00"),
    ("ext_max_sleep", "0"),
    ("ext_recache_rate", "0"),
    ("ext_wbuf_size", "0"),
    ("growth_factor", "1.25"),
    ("hash_algorithm", "xxh3"),
    ("hashpower_init", "0"),
    ("hot_lru_pct", "0"),
    ("hot_max_factor", "0.00"),
    ("idle_timeout", "0"),
    ("inline_ascii_response", "no"),
    ("lru_crawler", "yes"),
    ("lru_crawler_sleep", "0"),
    ("lru_crawler_tocrawl", "0"),
    ("lru_maintainer_thread", "no"),
    ("lru_segmented", "no"),
    ("memory_file", "NULL"),
    ("num_napi_ids", "0"),
    ("num_threads_per_udp", "0"),
    ("oldest", "0"),
    ("proxy_enabled", "no"),
    ("proxy_uring_enabled", "no"),
    ("read_buf_mem_limit", "0"),
    ("slab_automove", "0"),
    ("slab_automove_freeratio", "0.000"),
    ("slab_automove_ratio", "0.00"),
    ("slab_automove_window", "0"),
    ("slab_chunk_max", "524288"),
    ("slab_reassign", "no"),
    ("ssl_ca_cert", "NULL"),
    ("ssl_chain_cert", "NULL"),
    ("ssl_ciphers", "NULL"),
    ("ssl_kernel_tls", "no"),
    ("ssl_key", "NULL"),
    ("ssl_keyformat", "1"),
    ("ssl_min_version", "tlsv1.2"),
    ("ssl_session_cache", "no"),
    ("ssl_verify_mode", "0"),
    ("ssl_wbuf_size", "0"),
    ("stat_key_prefix", ":"),
    ("tail_repair_time", "0"),
    ("temp_lru", "no"),
    ("temporary_ttl", "0"),
    ("track_sizes", "no"),
    ("umask", "700"),
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
    filter.add("libevent", &"none");
}

/// Calls `each` with the name and value of each setting.
pub(super) fn settings(context: &Context<'_>, each: &mut dyn FnMut(&str, &dyn Display)) {
    let mut filter = Filter::new(each);
    context.host.settings(&mut |name, value| filter.add(name, value));
    let limit = context.cache.memory_limit();
    filter.add("maxbytes", &limit);
    filter.add("evictions", &if limit == 0 { "off" } else { "on" });
    for (name, value) in FIXED {
        filter.add(name, &value);
    }
}
