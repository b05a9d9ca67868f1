//! What request lines ask for.

use super::dump::Dump;
use crate::protocol::exptime::expiry;
use crate::protocol::meta;
use crate::protocol::ops::{self, Verb};
use crate::watch::Streams;

/// A parsed request line.
#[derive(Debug)]
pub(super) enum Request<'a> {
    /// get, gets, gat or gats. The keys are the words from byte `keys_at` of the line on. There is
    /// at least one, and none is too long.
    Lookup {
        exptime: Option<i64>,
        with_cas: bool,
        keys_at: usize,
    },
    /// A storage command. Its data block follows the line.
    Store(Storage<'a>),
    /// A command of the meta protocol without a data block.
    Meta(meta::Command<'a>),
    Delete {
        key: &'a [u8],
        noreply: bool,
    },
    Arithmetic {
        key: &'a [u8],
        delta: u64,
        up: bool,
        noreply: bool,
    },
    Touch {
        key: &'a [u8],
        exptime: i64,
        noreply: bool,
    },
    FlushAll {
        delay: i64,
        noreply: bool,
    },
    FlushNamespace {
        prefix: &'a [u8],
        noreply: bool,
    },
    Version,
    Verbosity {
        level: u32,
        noreply: bool,
    },
    MemoryLimit {
        megabytes: u64,
        noreply: bool,
    },
    Shutdown {
        graceful: bool,
    },
    RefreshCerts,
    /// A request for a list of all items.
    Dump(Dump),
    /// A command that changes nothing in this server, with its reply.
    Accepted(&'static [u8]),
    Stats(Stats),
    Watch(Streams),
    Quit,
    /// The first line of an HTTP request.
    Http,
}

/// The line of a storage command of either protocol.
#[derive(Debug)]
pub(super) enum Storage<'a> {
    Text(Store<'a>),
    Meta(meta::Set<'a>),
}

/// The line of a storage command of the text protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Store<'a> {
    pub(super) verb: Verb,
    /// The CAS id of cas.
    pub(super) compare: Option<u64>,
    pub(super) key: &'a [u8],
    pub(super) flags: u32,
    pub(super) exptime: i64,
    /// Length of the value, bytes. The data block is two bytes longer.
    pub(super) len: usize,
    pub(super) noreply: bool,
}

/// The statistics that a `stats` command asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stats {
    General,
    Settings,
    Reset,
    Sizes,
    /// The items of each size class.
    Items,
    /// The memory of each size class.
    Slabs,
    /// What items cost.
    Cost,
    /// What namespaces have.
    Namespaces,
    /// Keys of a size class; at most this number of them, or all if it is 0.
    Keys {
        class: usize,
        limit: u64,
    },
    Connections,
    Latency,
    HotKeys,
    Detail(Detail),
    /// Those of a part of memcached that this server does not have, of which there are none.
    Absent,
}

/// What `stats detail` does with the counters by prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    On,
    Off,
    Dump,
}

impl Storage<'_> {
    /// Returns the key of the item.
    pub(super) fn key(&self) -> &[u8] {
        match self {
            Storage::Text(store) => store.key,
            Storage::Meta(set) => &set.request.key,
        }
    }

    /// Returns the length of the value, in bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Storage::Text(store) => store.len,
            Storage::Meta(set) => set.len,
        }
    }

    /// Returns what is to be done. `now` is in seconds since 1970.
    pub(super) fn store(&self, now: u32) -> ops::Store<'_> {
        match self {
            &Storage::Text(Store { verb, compare, key, flags, exptime, .. }) => {
                let expiry = expiry(exptime, now);
                ops::Store { key, verb, compare, flags, expiry, ..ops::Store::default() }
            }
            Storage::Meta(set) => set.store(now),
        }
    }

    /// Returns `true` if not even errors are reported. The meta protocol always reports them.
    pub(super) fn noreply(&self) -> bool {
        match self {
            Storage::Text(store) => store.noreply,
            Storage::Meta(_) => false,
        }
    }
}
