//! touch, gat and gats.

use crate::cache::{CacheError, Item};
use crate::latency;
use crate::protocol::Context;
use crate::stats::Count;

/// What receives the item that was found.
type Found<'a> = dyn FnMut(&Item<'_>) -> Result<(), CacheError> + 'a;

impl Context<'_> {
    /// Changes the expiry of an item. Returns `true` if there is one.
    pub(in crate::protocol) fn touch(&self, key: &[u8], expiry: u32) -> Result<bool, CacheError> {
        self.executed_touch(self.cache.touch(key, expiry))
    }

    /// Changes the expiry of an item, and calls `found` with it. Returns `true` if there is one.
    pub(in crate::protocol) fn touch_with(
        &self,
        key: &[u8],
        expiry: u32,
        found: &mut Found<'_>,
    ) -> Result<bool, CacheError> {
        self.executed_touch(self.cache.get_and_touch(key, expiry, &mut |item| found(&item)))
    }

    /// As [`touch_with`](Context::touch_with), for a client that looks the item up, which log
    /// streams show.
    pub(in crate::protocol) fn get_and_touch(
        &self,
        key: &[u8],
        expiry: u32,
        found: &mut Found<'_>,
    ) -> Result<bool, CacheError> {
        let live = self.touch_with(key, expiry, &mut |item| {
            found(item)?;
            self.fetched(key, Some(item));
            Ok(())
        })?;
        if !live {
            self.fetched(key, None);
        }
        Ok(live)
    }

    /// Counts a command that touches an item, if there is one. memcached does not count it as a
    /// lookup.
    pub(in crate::protocol) fn touched(&self, live: bool) {
        self.counters.add(Count::CmdTouch, 1);
        self.counters.add(if live { Count::TouchHits } else { Count::TouchMisses }, 1);
    }

    fn executed_touch(&self, touched: Result<bool, CacheError>) -> Result<bool, CacheError> {
        self.executed(latency::Command::Touch, 1);
        touched.inspect(|&live| self.touched(live))
    }
}
