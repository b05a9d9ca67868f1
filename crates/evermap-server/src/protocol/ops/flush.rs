//! flush_all, and the same for a namespace.

use crate::cache::CacheError;
use crate::protocol::{Context, Restricted};
use crate::stats::Count;

impl Context<'_> {
    /// Invalidates all items, at the time `at` if that is to come. Returns `None` if clients are
    /// not allowed to.
    pub(in crate::protocol) fn flush_all(&self, at: u32) -> Option<Result<(), CacheError>> {
        if !self.host.allows(Restricted::FlushAll) {
            return None;
        }
        self.counters.add(Count::CmdFlush, 1);
        Some(self.cache.flush_all(Some(at).filter(|&at| at > self.now)))
    }

    /// Invalidates the items of a namespace, now. Returns `None` if clients are not allowed to, and
    /// `false` if there is no such namespace.
    pub(in crate::protocol) fn flush_namespace(
        &self,
        prefix: &[u8],
    ) -> Option<Result<bool, CacheError>> {
        if !self.host.allows(Restricted::FlushAll) {
            return None;
        }
        self.counters.add(Count::CmdFlush, 1);
        Some(self.cache.flush_namespace(prefix))
    }
}
