//! What operators see of the items and connections while the server runs: log streams (`watch`),
//! counters by prefix (`stats detail`) and hot keys (`stats hotkeys`).
//!
//! Each worker has a [`Watch`], to which the protocols report events. While nobody is interested
//! in an event, a report costs one relaxed load. Otherwise the worker writes a record to a queue of
//! its own and never waits: a record that finds no space is counted as dropped. The thread of the
//! [`Hub`] takes the records, formats each as a line, and sends it to the watchers that want it.
//! Each watcher has a buffer of limited size. Lines that find no space in it are counted, and the
//! watcher is told their number.

mod event;
mod hot;
mod hub;
mod prefixes;
mod ring;
mod streams;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) use event::encode_uri;
pub use event::{CloseReason, DeleteCommand, StoreCommand, StoreStatus, Transport};
pub use hot::SAMPLING;
pub use hub::{HotKey, Hub, HubStats, Settings, Sink, WatcherSlot};
pub use prefixes::PrefixCounts;
pub use streams::Streams;

use event::{Event, Kind, RECORD_MAX};
use hot::HotKeys;
use prefixes::Prefixes;
use ring::Ring;

/// Where one worker reports events. Only that worker may call the methods that report.
///
/// The alignment keeps it apart from data that other workers write.
#[derive(Default)]
#[repr(align(128))]
pub struct Watch {
    /// The events that are wanted. Relaxed everywhere: an event that happens while this changes
    /// may be reported or not.
    wanted: AtomicU32,
    /// The delimiter of prefixes.
    delimiter: AtomicU8,
    /// Whether records were pushed since the last [`take_pushed`](Watch::take_pushed).
    pushed: AtomicBool,
    /// The reason that the session gave for closing, by its number.
    closing: AtomicU8,
    /// The time until which hot keys are sampled, in seconds since 1970.
    hot_until: AtomicU64,
    ring: Ring,
    prefixes: Prefixes,
    hot_keys: HotKeys,
}

/// A set of events to which a report belongs. It contains what needs to see the key: the streams,
/// the sampling of hot keys and the counters by prefix.
#[derive(Clone, Copy)]
pub struct Topic(u32);

impl Topic {
    /// Lookups.
    pub const FETCHES: Topic = Topic(Streams::FETCHERS.0 | Streams::HOT_KEYS | Streams::PREFIXES);
    /// Stores.
    pub const STORES: Topic = Topic(Streams::MUTATIONS.0 | Streams::HOT_KEYS | Streams::PREFIXES);
    /// Deletions.
    pub const DELETIONS: Topic =
        Topic(Streams::DELETIONS.0 | Streams::HOT_KEYS | Streams::PREFIXES);
    /// Connections.
    pub const CONNECTIONS: Topic = Topic(Streams::CONNEVENTS.0);
}

impl Watch {
    /// Returns `true` if anything needs to know of such events.
    #[inline]
    pub fn wants(&self, topic: Topic) -> bool {
        self.wanted.load(Relaxed) & topic.0 != 0
    }

    /// Returns `true` if the length of a value that is about to be deleted is needed.
    #[inline]
    pub fn wants_deleted_len(&self) -> bool {
        self.wanted.load(Relaxed) & Streams::DELETIONS.0 != 0
    }

    /// Reports that a key was looked up. `found` is the length of the value, if there was one.
    #[cold]
    pub fn fetched(&self, connection: u32, key: &[u8], found: Option<usize>) {
        let hits = u64::from(found.is_some());
        self.see_key(key, PrefixCounts { gets: 1, hits, ..PrefixCounts::default() });
        let kind = Kind::Fetched { found: found.is_some() };
        self.push(connection, key, found.unwrap_or(0), kind);
    }

    /// Reports the outcome of a command that stores. `ttl` is the time to live of the new item in
    /// seconds, 0 if it is unlimited; `len` is the length of its value.
    #[cold]
    pub fn stored(
        &self,
        connection: u32,
        key: &[u8],
        command: StoreCommand,
        status: StoreStatus,
        ttl: u32,
        len: usize,
    ) {
        self.see_key(key, PrefixCounts { sets: 1, ..PrefixCounts::default() });
        self.push(connection, key, len, Kind::Stored { command, status, ttl });
    }

    /// Reports that a key was to be deleted. `deleted` is the length of the value, if there was
    /// one.
    #[cold]
    pub fn deleted(
        &self,
        connection: u32,
        key: &[u8],
        command: DeleteCommand,
        deleted: Option<usize>,
    ) {
        self.see_key(key, PrefixCounts { deletes: 1, ..PrefixCounts::default() });
        if let Some(len) = deleted {
            self.push(connection, key, len, Kind::Deleted { command });
        }
    }

    /// Reports a new connection from an address and port.
    #[cold]
    pub fn connected(&self, connection: u32, peer: &[u8], transport: Transport, port: u16) {
        self.push(connection, peer, 0, Kind::Connected { transport, port });
    }

    /// Reports that a connection from an address and port was closed.
    #[cold]
    pub fn closed(
        &self,
        connection: u32,
        peer: &[u8],
        transport: Transport,
        port: u16,
        reason: CloseReason,
    ) {
        self.push(connection, peer, 0, Kind::Closed { transport, port, reason });
    }

    /// Remembers why the session that the worker executes ends its connection, for
    /// [`take_reason`](Watch::take_reason). A session that says nothing violated the protocol.
    pub fn set_reason(&self, reason: CloseReason) {
        self.closing.store(reason as u8, Relaxed);
    }

    /// Returns the reason that was set since the last call.
    pub fn take_reason(&self) -> CloseReason {
        let reason = self.closing.load(Relaxed);
        self.closing.store(CloseReason::Error as u8, Relaxed);
        CloseReason::from_number(u64::from(reason)).unwrap_or(CloseReason::Error)
    }

    /// Returns `true` if events were reported since the last call, so that the hub has to be
    /// notified.
    #[inline]
    pub fn take_pushed(&self) -> bool {
        // Only this worker writes it.
        let pushed = self.pushed.load(Relaxed);
        if pushed {
            self.pushed.store(false, Relaxed);
        }
        pushed
    }

    /// Passes a key to what counts keys.
    fn see_key(&self, key: &[u8], counts: PrefixCounts) {
        let wanted = self.wanted.load(Relaxed);
        if wanted & Streams::PREFIXES != 0 {
            self.prefixes.count(key, self.delimiter.load(Relaxed), counts);
        }
        if wanted & Streams::HOT_KEYS != 0 {
            if micros() / 1_000_000 < self.hot_until.load(Relaxed) {
                self.hot_keys.offer(key);
            } else {
                self.change_wanted(Streams::HOT_KEYS, 0);
            }
        }
    }

    /// Pushes an event to the queue, if a watcher wants it.
    fn push(&self, connection: u32, key: &[u8], len: usize, kind: Kind) {
        let size = u32::try_from(len).unwrap_or(u32::MAX);
        let mut event = Event { time: 0, connection, key, size, kind };
        if self.wanted.load(Relaxed) & event.stream().0 == 0 {
            return;
        }
        event.time = micros();
        let mut record = [0; RECORD_MAX];
        let len = event.encode(&mut record);
        self.ring.push(&record[..len]);
        self.pushed.store(true, Relaxed);
    }

    /// Removes some bits from what is wanted, and adds others. Any thread may call this.
    fn change_wanted(&self, remove: u32, add: u32) {
        let changed = |wanted| Some(wanted & !remove | add);
        // The closure always returns a value.
        let _ = self.wanted.fetch_update(Relaxed, Relaxed, changed);
    }
}

/// Returns the time in microseconds since 1970.
fn micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_micros().try_into().unwrap_or(u64::MAX)
}
