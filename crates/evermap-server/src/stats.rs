//! What the server counts, under the names that memcached gives it.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Something that is counted. [`Count::name`] tells what `stats` calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Keys looked up by get and gets.
    CmdGet,
    /// Storage commands whose value arrived whole.
    CmdSet,
    /// flush_all commands.
    CmdFlush,
    /// Keys touched by touch, gat and gats.
    CmdTouch,
    /// Keys looked up by get and gets, and found.
    GetHits,
    /// Keys looked up by get and gets in vain.
    GetMisses,
    /// delete without an item.
    DeleteMisses,
    /// delete of an item.
    DeleteHits,
    /// incr without an item.
    IncrMisses,
    /// incr of an item.
    IncrHits,
    /// decr without an item.
    DecrMisses,
    /// decr of an item.
    DecrHits,
    /// cas without an item.
    CasMisses,
    /// cas whose id was the item's.
    CasHits,
    /// cas whose id was not the item's.
    CasBadval,
    /// Keys touched and found.
    TouchHits,
    /// Keys touched in vain.
    TouchMisses,
    /// Values refused for their size.
    StoreTooLarge,
    /// Values refused for want of memory.
    StoreNoMemory,
    /// Bytes received.
    BytesRead,
    /// Bytes sent.
    BytesWritten,
    /// Times that a connection had to let others go first.
    ConnYields,
}

const NAMES: [&str; 22] = [
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
];

// The last variant has the last name.
const _: () = assert!(Count::ConnYields as usize + 1 == NAMES.len());

impl Count {
    /// The name in `stats`.
    pub fn name(self) -> &'static str {
        NAMES[self as usize]
    }
}

/// The counters of one worker: written by that worker only, read by all. On cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
pub struct Counters([AtomicU64; NAMES.len()]);

impl Counters {
    /// Counts `n` more. For the owner only: concurrent calls lose counts.
    #[inline]
    pub fn add(&self, count: Count, n: u64) {
        let counter = &self.0[count as usize];
        // A load and a store are enough, and no locked instruction is needed, since only the owner writes.
        counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// How many there are.
    pub fn get(&self, count: Count) -> u64 {
        self.0[count as usize].load(Relaxed)
    }
}

/// Sums of the counters of several workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals([u64; NAMES.len()]);

impl Totals {
    /// Adds up.
    pub fn of<'a>(workers: impl IntoIterator<Item = &'a Counters>) -> Self {
        let mut totals = Totals::default();
        for counters in workers {
            for (total, counter) in totals.0.iter_mut().zip(&counters.0) {
                *total = total.wrapping_add(counter.load(Relaxed));
            }
        }
        totals
    }

    /// What was counted since `earlier`.
    pub fn since(&self, earlier: &Totals) -> Self {
        let mut totals = *self;
        for (total, earlier) in totals.0.iter_mut().zip(earlier.0) {
            *total = total.wrapping_sub(earlier);
        }
        totals
    }

    /// How many there are.
    pub fn get(&self, count: Count) -> u64 {
        self.0[count as usize]
    }

    /// Shows every name and total.
    pub fn each(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        for (name, total) in NAMES.iter().zip(&self.0) {
            each(name, total);
        }
    }
}
