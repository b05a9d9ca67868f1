//! The counters of the server, under memcached's names.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A counted event. [`Count::name`] is its name in the `stats` command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Keys that get and gets looked up.
    CmdGet,
    /// Storage commands whose value arrived completely.
    CmdSet,
    /// flush_all commands.
    CmdFlush,
    /// Keys that touch, gat and gats looked up.
    CmdTouch,
    /// Keys that get and gets found.
    GetHits,
    /// Keys that get and gets did not find.
    GetMisses,
    /// delete commands that did not find an item.
    DeleteMisses,
    /// delete commands that removed an item.
    DeleteHits,
    /// incr commands that did not find an item.
    IncrMisses,
    /// incr commands that changed an item.
    IncrHits,
    /// decr commands that did not find an item.
    DecrMisses,
    /// decr commands that changed an item.
    DecrHits,
    /// cas commands that did not find an item.
    CasMisses,
    /// cas commands whose CAS id matched.
    CasHits,
    /// cas commands whose CAS id did not match.
    CasBadval,
    /// Keys that touch, gat and gats found.
    TouchHits,
    /// Keys that touch, gat and gats did not find.
    TouchMisses,
    /// Values that were too large.
    StoreTooLarge,
    /// Values for which there was no memory.
    StoreNoMemory,
    /// Bytes received from clients.
    BytesRead,
    /// Bytes sent to clients.
    BytesWritten,
    /// The number of times that a connection with more work had to wait for other connections.
    ConnYields,
    /// Commands of the meta protocol.
    CmdMeta,
    /// Attempts to authenticate.
    AuthCmds,
    /// Attempts to authenticate that failed.
    AuthErrors,
    /// Connections that were closed because they were idle for too long.
    IdleKicks,
    /// Connections that failed during their TLS handshake.
    SslHandshakeErrors,
    /// Values that were stored. Incremented numbers do not count: memcached changes them in place.
    TotalItems,
}

const NAMES: [&str; 28] = [
    "cmd_get",
    "cmd_set",
    "cmd_flush",
    "cmd_touch",
    "get_hits",
    "get_misses",
    "delete_misses",
    "delete_hits",
    "incr_misses",
    "incr_hits",
    "decr_misses",
    "decr_hits",
    "cas_misses",
    "cas_hits",
    "cas_badval",
    "touch_hits",
    "touch_misses",
    "store_too_large",
    "store_no_memory",
    "bytes_read",
    "bytes_written",
    "conn_yields",
    "cmd_meta",
    "auth_cmds",
    "auth_errors",
    "idle_kicks",
    "ssl_handshake_errors",
    "total_items",
];

// The last variant has the last name.
const _: () = assert!(Count::TotalItems as usize + 1 == NAMES.len());

impl Count {
    /// Returns the name in `stats`.
    pub fn name(self) -> &'static str {
        NAMES[self as usize]
    }

    /// Returns the names of all counts.
    pub(crate) fn names() -> &'static [&'static str] {
        &NAMES
    }
}

/// The counters of one worker. Only that worker writes them, and any thread reads them. The
/// alignment keeps them apart from data that other threads write.
#[derive(Default)]
#[repr(align(128))]
pub struct Counters([AtomicU64; NAMES.len()]);

impl Counters {
    /// Adds `n`. Only the worker may call this, because concurrent calls lose counts.
    #[inline]
    pub fn add(&self, count: Count, n: u64) {
        let counter = &self.0[count as usize];
        // A load and a store suffice, without a locked instruction, because there is one writer.
        counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Returns one counter.
    pub fn get(&self, count: Count) -> u64 {
        self.0[count as usize].load(Relaxed)
    }
}

/// Sums of the counters of several workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals([u64; NAMES.len()]);

impl Totals {
    /// Returns the sums of the counters of `workers`.
    pub fn of<'a>(workers: impl IntoIterator<Item = &'a Counters>) -> Self {
        let mut totals = Totals::default();
        for counters in workers {
            for (total, counter) in totals.0.iter_mut().zip(&counters.0) {
                *total = total.wrapping_add(counter.load(Relaxed));
            }
        }
        totals
    }

    /// Returns the differences from `earlier` sums.
    pub fn since(&self, earlier: &Totals) -> Self {
        let mut totals = *self;
        for (total, earlier) in totals.0.iter_mut().zip(earlier.0) {
            *total = total.wrapping_sub(earlier);
        }
        totals
    }

    /// Returns one sum.
    pub fn get(&self, count: Count) -> u64 {
        self.0[count as usize]
    }

    /// Calls `each` with every name and sum.
    pub fn each(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        for (name, total) in NAMES.iter().zip(&self.0) {
            each(name, total);
        }
    }
}
