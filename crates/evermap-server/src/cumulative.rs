//! Statistics that only grow, and that a server passes on to the one that is started after it.
//!
//! `stats` shows the sum of all processes that have served a store since the last `stats reset`, so
//! that the rates in a monitoring system do not break at a restart.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::stats::Count;

/// Cumulative statistics that are no [`Count`]: of the connections, of the threads in the
/// background, and of the [`Cache`](crate::Cache).
const OTHERS: [&str; 27] = [
    "crawler_items_checked",
    "crawler_reclaimed",
    "direct_reclaims",
    "evicted_active",
    "evicted_unfetched",
    "evermap_evicted_bytes",
    "evermap_evicted_directly",
    "evictions",
    "expired_unfetched",
    "listen_disabled_num",
    "log_watcher_sent",
    "log_watcher_skipped",
    "log_worker_dropped",
    "log_worker_written",
    "lru_crawler_starts",
    "lru_maintainer_juggles",
    "lrutail_reflocked",
    "malloc_fails",
    "moves_to_cold",
    "moves_to_warm",
    "moves_within_lru",
    "reclaimed",
    "rejected_connections",
    "slabs_moved",
    "time_in_listen_disabled_us",
    "total_connections",
    "unexpected_napi_ids",
];

/// Returns `true` if the statistic with this name only grows until `stats reset`.
pub fn is_cumulative(name: &str) -> bool {
    Count::names().contains(&name) || OTHERS.contains(&name)
}

/// The values of cumulative statistics, by the names that they have in `stats`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cumulative(BTreeMap<String, u64>);

impl Cumulative {
    /// Sets the value of a statistic. Does nothing if it is not [cumulative](is_cumulative), as it
    /// may be if another version has saved it.
    pub fn set(&mut self, name: &str, value: u64) {
        if is_cumulative(name) {
            self.0.insert(name.to_owned(), value);
        }
    }

    /// Returns the value of a statistic, 0 if there is none with this name.
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Returns the names and values, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, &value)| (name.as_str(), value))
    }
}

/// What is added to the statistics of this process: the values of its predecessors. After
/// `stats reset`, the negative values of the moment of the reset.
///
/// Sums wrap around, so that a negative number is one just below 2^64.
pub(crate) struct Offsets(Mutex<Cumulative>);

impl Offsets {
    /// Returns offsets that begin with the values of earlier processes.
    pub(crate) fn new(earlier: Cumulative) -> Self {
        Offsets(Mutex::new(earlier))
    }

    fn lock(&self) -> MutexGuard<'_, Cumulative> {
        // No change of the map can be left half made.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `each` with the statistics that `source` produces, and with the sums of those that are
    /// cumulative.
    pub(crate) fn add_to(
        &self,
        source: impl FnOnce(&mut dyn FnMut(&str, &dyn Display)),
        each: &mut dyn FnMut(&str, &dyn Display),
    ) {
        // A copy, because `each` may do anything.
        let offsets = self.lock().clone();
        source(&mut |name, value| match offsets.0.get(name) {
            Some(&offset) => match number(value) {
                Some(value) => each(name, &value.wrapping_add(offset)),
                None => each(name, value),
            },
            None => each(name, value),
        });
    }

    /// Returns the sums of the cumulative statistics that `source` produces. A value of an earlier
    /// process that `source` does not produce, because this process has no use for it, is kept.
    pub(crate) fn sums(
        &self,
        source: impl FnOnce(&mut dyn FnMut(&str, &dyn Display)),
    ) -> Cumulative {
        let offsets = self.lock().clone();
        let mut sums = offsets.clone();
        source(&mut |name, value| {
            if let Some(value) = number(value) {
                sums.set(name, value.wrapping_add(offsets.get(name)));
            }
        });
        sums
    }

    /// Makes every sum 0, given the statistics that `source` produces.
    pub(crate) fn reset(&self, source: impl FnOnce(&mut dyn FnMut(&str, &dyn Display))) {
        let mut offsets = self.lock();
        *offsets = Cumulative::default();
        source(&mut |name, value| {
            if let Some(value) = number(value).filter(|&value| value != 0) {
                offsets.set(name, value.wrapping_neg());
            }
        });
    }
}

/// Returns the value of a statistic if it is a number.
fn number(value: &dyn Display) -> Option<u64> {
    value.to_string().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(offsets: &Offsets, own: &[(&str, &dyn Display)]) -> Vec<String> {
        let mut shown = Vec::new();
        offsets.add_to(
            |each| own.iter().for_each(|(name, value)| each(name, value)),
            &mut |name, value| shown.push(format!("{name} {value}")),
        );
        shown
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = Count::names().iter().chain(&OTHERS).copied().collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn only_cumulative_statistics_are_kept() {
        let mut values = Cumulative::default();
        for name in ["get_hits", "evictions", "total_connections", "curr_items", "uptime", "x"] {
            values.set(name, 7);
        }
        let kept: Vec<_> = values.iter().map(|(name, _)| name).collect();
        assert_eq!(kept, ["evictions", "get_hits", "total_connections"]);
        assert_eq!((values.get("get_hits"), values.get("uptime")), (7, 0));
    }

    #[test]
    fn sums_go_on_from_earlier_processes_until_a_reset() {
        let mut earlier = Cumulative::default();
        earlier.set("get_hits", 100);
        earlier.set("evictions", 5);
        earlier.set("idle_kicks", 3);
        let offsets = Offsets::new(earlier);
        let own: [(&str, &dyn Display); 4] =
            [("get_hits", &7), ("uptime", &20), ("evictions", &"none"), ("cmd_get", &9)];
        assert_eq!(
            shown(&offsets, &own),
            ["get_hits 107", "uptime 20", "evictions none", "cmd_get 9"]
        );
        let sums = |offsets: &Offsets, own: &[(&str, &dyn Display)]| {
            offsets.sums(|each| own.iter().for_each(|(name, value)| each(name, value)))
        };
        let before = sums(&offsets, &own);
        let values: Vec<_> = before.iter().collect();
        assert_eq!(
            values,
            [("cmd_get", 9), ("evictions", 5), ("get_hits", 107), ("idle_kicks", 3)]
        );

        offsets.reset(|each| own.iter().for_each(|(name, value)| each(name, value)));
        let own: [(&str, &dyn Display); 2] = [("get_hits", &8), ("cmd_get", &9)];
        assert_eq!(shown(&offsets, &own), ["get_hits 1", "cmd_get 0"]);
        let values: Vec<_> = sums(&offsets, &own).iter().map(|(_, value)| value).collect();
        assert_eq!(values, [0, 1]);
    }
}
