//! Events of what happens to a file, for the crate `tracing`, behind the feature of that name.
//! Without it these functions do nothing, and nothing is computed for them.
//!
//! No event is about one operation: what could be many in a second is summed up.

// Without the feature, what is passed is not used.
#![cfg_attr(not(feature = "tracing"), allow(unused_variables))]

use std::fmt::Display;
use std::path::Path;
use std::time::{Duration, Instant};

/// A file was opened, or created.
#[inline]
pub(crate) fn opened(
    path: Option<&Path>,
    generation: u64,
    is_clean: bool,
    is_read_only: bool,
    bytes: u64,
) {
    #[cfg(feature = "tracing")]
    tracing::info!(
        target: "evermap::open",
        path = path.map(tracing::field::debug),
        generation,
        is_clean,
        is_read_only,
        bytes,
        "opened"
    );
}

/// A file was closed.
#[inline]
pub(crate) fn closed(path: Option<&Path>) {
    #[cfg(feature = "tracing")]
    tracing::info!(
        target: "evermap::open",
        path = path.map(tracing::field::debug),
        "closed"
    );
}

/// The sweep after an unclean shutdown has ended.
#[inline]
pub(crate) fn swept(records: u64, swept: Result<&(), &dyn Display>, took: Duration) {
    #[cfg(feature = "tracing")]
    {
        let took_ms = took.as_millis() as u64;
        match swept {
            Ok(&()) => {
                tracing::info!(target: "evermap::recovery", took_ms, records, "swept");
            }
            Err(error) => {
                let error = tracing::field::display(error);
                tracing::warn!(target: "evermap::recovery", took_ms, error, "the sweep has failed");
            }
        }
    }
}

/// Records were moved out of sparse extents.
#[inline]
pub(crate) fn compacted(path: Option<&Path>, moved: u64, began: Instant) {
    #[cfg(feature = "tracing")]
    tracing::info!(
        target: "evermap::compaction",
        path = path.map(tracing::field::debug),
        moved,
        took_ms = began.elapsed().as_millis() as u64,
        "compacted"
    );
}

/// What was evicted while it exists.
pub(crate) struct Evictions {
    #[cfg(feature = "tracing")]
    before: (u64, u64),
}

impl Evictions {
    /// `totals` returns the records and bytes that were evicted so far.
    #[inline]
    pub(crate) fn begin(totals: impl Fn() -> (u64, u64)) -> Self {
        Evictions {
            #[cfg(feature = "tracing")]
            before: totals(),
        }
    }

    /// Reports what was evicted since. `is_direct`: by a mutation that lacked space.
    #[inline]
    pub(crate) fn end(self, totals: impl Fn() -> (u64, u64), is_direct: bool) {
        #[cfg(feature = "tracing")]
        {
            let (records, bytes) = totals();
            let (records, bytes) = (records - self.before.0, bytes - self.before.1);
            if records > 0 {
                tracing::debug!(target: "evermap::eviction", records, bytes, is_direct, "evicted");
            }
        }
    }
}
