//! Sessions: from bytes to operations on a [`Cache`] and back, without sockets.
//!
//! A [`Session`] is the server's side of one connection. It receives bytes in pieces of any size
//! and appends the replies to a buffer. The replies do not depend on where the bytes were cut. Each
//! protocol is a module; at present there is only the classic text protocol.
//!
//! A session holds a bounded number of bytes, whatever the client sends: at most [`KEY_LIST_MAX`]
//! bytes of an unfinished line, or the part of one value that has arrived, or the requests that
//! arrived in one piece and wait for space in the reply buffer. A [`Budget`] bounds what all
//! sessions hold together.

mod budget;
mod reply;
mod session;
mod text;

use std::fmt::Display;
use std::sync::Arc;

use crate::cache::Cache;
use crate::stats::Counters;

pub use budget::{Budget, Reservation};
pub use session::Session;

/// The maximum length of a key, in bytes.
pub const KEY_MAX: usize = 250;
/// The maximum length of a request line without its line feed, in bytes. The lines of get, gets,
/// gat and gats may be longer.
pub const LINE_MAX: usize = 2048;
/// The maximum length of a line of get, gets, gat or gats without its line feed, in bytes.
pub const KEY_LIST_MAX: usize = 1 << 20;
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
    /// The length of the replies, in bytes, at which a session pauses. One value may exceed it.
    pub output_limit: usize,
}

/// The server, as the `stats` and `version` commands see it.
pub trait Host {
    /// Returns the version that `version` replies with.
    fn version(&self) -> &str;

    /// Calls `each` with the name and value of each statistic about the server: the process, its
    /// connections and its counters.
    fn general(&self, each: &mut dyn FnMut(&str, &dyn Display));

    /// Calls `each` with the name and value of each setting that `stats settings` shows.
    fn settings(&self, each: &mut dyn FnMut(&str, &dyn Display));

    /// Resets the counters to 0.
    fn reset(&self);

    /// Loads the certificates of TLS again, for connections that begin later.
    ///
    /// # Errors
    /// The reason why they cannot be used. Then those that were loaded before stay in use.
    fn refresh_certificates(&self) -> Result<(), String> {
        Err("no listener uses TLS".into())
    }
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
}
