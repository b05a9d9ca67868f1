//! Sessions: from bytes to operations on a [`Cache`] and back, without sockets.
//!
//! A [`Session`] is the server's side of one connection. It receives bytes in pieces of any size
//! and appends the replies to a buffer. The replies do not depend on where the bytes were cut. Each
//! protocol is a module: the text protocol, the meta protocol, whose commands may come in between,
//! and the binary protocol. What their commands do with items is in one more, which all share. The
//! first byte of a connection decides which one it speaks, as far as [`Binding`] allows.
//!
//! A session holds a bounded number of bytes, whatever the client sends: at most [`KEY_LIST_MAX`]
//! bytes of an unfinished line, or the part of one value that has arrived, or the requests that
//! arrived in one piece and wait for space in the reply buffer. A [`Budget`] bounds what all
//! sessions hold together.

mod auth;
mod binary;
mod budget;
mod context;
mod exptime;
mod line;
mod meta;
mod ops;
mod refused;
mod reply;
mod session;
mod stats;
mod text;
mod upload;

use std::fmt::Display;
use std::sync::Arc;

use crate::cache::Cache;
use crate::latency::Latencies;
use crate::stats::Counters;
use crate::watch::{PrefixCounts, Streams, Watch};

pub use auth::{Credentials, CredentialsError};
pub use budget::{Budget, Reservation};
pub use session::Session;

/// The maximum length of a key, in bytes, as memcached has it: the minimum of
/// [`Context::key_size_max`].
pub const KEY_MAX: usize = 250;
/// The maximum of [`Context::key_size_max`], in bytes: the longest key that a packet of the binary
/// protocol can name.
pub const KEY_SIZE_LIMIT: usize = u16::MAX as usize;
/// The maximum length of a request line without its line feed, in bytes, if keys have at most
/// [`KEY_MAX`] bytes; if they may have more, it is greater by the difference. The lines of get,
/// gets, gat and gats may be longer.
pub const LINE_MAX: usize = 2048;
/// The maximum length of a line of get, gets, gat or gats without its line feed, in bytes.
pub const KEY_LIST_MAX: usize = 16 << 20;
/// The number of bytes that an item counts in addition to its key and value when it is compared
/// with [`Context::item_size_max`]. This is the size of memcached's item header, so that its limits
/// mean the same here.
pub const ITEM_OVERHEAD: usize = 50;

/// What a session needs from its surroundings while it processes requests.
pub struct Context<'a> {
    /// The items.
    pub cache: &'a dyn Cache,
    /// The counters of the thread that runs the session.
    pub counters: &'a Counters,
    /// The limit on the memory of the unfinished requests of all sessions.
    pub uploads: &'a Arc<Budget>,
    /// The server as a whole.
    pub host: &'a dyn Host,
    /// The current time, in seconds since 1970.
    pub now: u32,
    /// The maximum size of an item: key, value and [`ITEM_OVERHEAD`], in bytes.
    pub item_size_max: usize,
    /// The maximum length of a key, in bytes: from [`KEY_MAX`] to [`KEY_SIZE_LIMIT`].
    pub key_size_max: usize,
    /// The length of the replies, in bytes, at which a session pauses. One value, or the lines for
    /// one [page](crate::Cache::page) of items, may exceed it.
    pub output_limit: usize,
    /// The protocols that a new session may speak.
    pub binding: Binding,
    /// The users and passwords of which a client must name one before it may send commands; `None`
    /// if any client may.
    pub credentials: Option<&'a Credentials>,
    /// Where the thread that runs the session reports events of items.
    pub watch: &'a Watch,
    /// The latencies of the thread that runs the session.
    pub latencies: &'a Latencies,
    /// The number of the connection in log streams: its file descriptor.
    pub connection: u32,
}

/// The protocols that the server speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Binding {
    /// The protocol that the first byte of a connection belongs to.
    #[default]
    Auto,
    /// The text protocol. A client of the binary protocol is disconnected.
    Ascii,
    /// The binary protocol. A client of the text protocol is disconnected.
    Binary,
}

impl Binding {
    /// Returns the name that `stats settings` shows, which is memcached's.
    pub fn name(self) -> &'static str {
        match self {
            Binding::Auto => "auto-negotiate",
            Binding::Ascii => "ascii",
            Binding::Binary => "binary",
        }
    }
}

/// The server, as the `stats` and `version` commands see it.
pub trait Host {
    /// Returns the version that `version` replies with.
    fn version(&self) -> &str;

    /// Calls `each` with the name and value of each statistic about the server: the process, its
    /// connections and its counters.
    fn general(&self, each: &mut dyn FnMut(&str, &dyn Display));

    /// Calls `each` with the name and value of each statistic about the items of `cache`. A host
    /// whose cumulative statistics include those of earlier processes adds these.
    fn items(&self, cache: &dyn Cache, each: &mut dyn FnMut(&str, &dyn Display)) {
        cache.stats(each);
    }

    /// Calls `each` with the name and value of each setting that `stats settings` shows.
    fn settings(&self, each: &mut dyn FnMut(&str, &dyn Display));

    /// Resets the counters to 0.
    fn reset(&self);

    /// Calls `each` with the name and value of each statistic about open connections that
    /// `stats conns` shows.
    fn connections(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        let _ = each;
    }

    /// Calls `each` with the name and value of each statistic about the latency of commands that
    /// `stats latency` shows.
    fn latencies(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        let _ = each;
    }

    /// Calls `each` with the name and value of each statistic about hot keys that `stats hotkeys`
    /// shows. Starts to sample keys if nobody asked recently.
    fn hot_keys(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        let _ = each;
    }

    /// Starts or ends the counting of accesses by prefix.
    fn set_detail(&self, on: bool) {
        let _ = on;
    }

    /// Calls `each` with every prefix and its counters.
    fn prefixes(&self, each: &mut dyn FnMut(&[u8], PrefixCounts)) {
        let _ = each;
    }
    /// Sets how much the server reports about what it does: 0, nothing; 1 or more, more.
    fn set_verbosity(&self, level: u32);

    /// Ends the server, because a client has asked for it: `graceful`ly if it may first finish what
    /// it does. Returns `false` if clients are not allowed to.
    fn shutdown(&self, graceful: bool) -> bool;

    /// Reads the certificates again. Returns `None` if the server has none; an error of one line if
    /// it keeps the old ones because the new ones are not usable.
    fn refresh_certs(&self) -> Option<Result<(), String>>;

    /// Returns `true` if clients may send the command.
    fn allows(&self, command: Restricted) -> bool {
        let _ = command;
        true
    }
}

/// A command that the operator may refuse to all clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restricted {
    /// `flush_all`, in both protocols, and `flush_namespace`.
    FlushAll,
    /// The lists of all items: `stats cachedump`, `lru_crawler metadump` and `mgdump`.
    Dump,
    /// `watch`.
    Watch,
}

/// What a session needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// More bytes: all complete requests have been processed.
    Receive,
    /// An empty reply buffer and a call of [`resume`](Session::resume): the buffer is full.
    Resume,
    /// The end of the connection, after the replies have been sent.
    Close,
    /// To become a watcher of these events, after the replies have been sent. If that is refused,
    /// the session continues with [`resume`](Session::resume).
    Watch(Streams),
}

/// How far a protocol got with its input.
#[derive(Debug)]
struct Progress {
    /// The number of bytes that the protocol does not need again.
    consumed: usize,
    next: Next,
}
