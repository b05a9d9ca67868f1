//! From bytes to operations on a [`Cache`] and back, without sockets.
//!
//! A [`Session`] is one client's side of the conversation: it takes the bytes as they come, in pieces of
//! any size, and appends the replies to a buffer. How the bytes were cut into pieces never shows in the
//! replies. Each protocol is a module; the classic text protocol is the only one so far.
//!
//! Whatever a client sends, a session holds a bounded number of bytes: at most [`KEY_LIST_MAX`] of an
//! unfinished line, or the part of one value that has arrived, or the requests that came in one piece and
//! wait for room in the reply buffer. What all sessions hold together is bounded by a [`Budget`].

mod budget;
mod reply;
mod session;
mod text;

use std::fmt::Display;
use std::sync::Arc;

use crate::cache::Cache;
use crate::stats::Counters;

pub use budget::{Budget, Share};
pub use session::Session;

/// Longest key, bytes.
pub const KEY_MAX: usize = 250;
/// Longest request line before its line feed, bytes. One of get, gets, gat or gats may be longer.
pub const LINE_MAX: usize = 2048;
/// Longest line of get, gets, gat or gats before its line feed, bytes.
pub const KEY_LIST_MAX: usize = 1 << 20;
/// What an item takes beyond key and value, bytes, when it is measured against
/// [`Context::item_size_max`]: memcached's item header, so that its limits mean the same here.
pub const ITEM_OVERHEAD: usize = 50;

/// What a session needs from its surroundings while it works.
pub struct Context<'a> {
    /// Where the items live.
    pub cache: &'a dyn Cache,
    /// Where to count.
    pub counters: &'a Counters,
    /// What unfinished requests of all sessions may hold together.
    pub uploads: &'a Arc<Budget>,
    /// Who knows about the server as a whole.
    pub host: &'a dyn Host,
    /// The time, seconds since 1970.
    pub now: u32,
    /// Largest item: key, value and [`ITEM_OVERHEAD`], bytes.
    pub item_size_max: usize,
    /// A session stops answering when the replies take this many bytes. One value may exceed it.
    pub output_limit: usize,
}

/// The server, as the `stats` and `version` commands see it.
pub trait Host {
    /// What `version` answers.
    fn version(&self) -> &str;

    /// Shows what `stats` tells about the server: process, connections, counters.
    fn general(&self, each: &mut dyn FnMut(&str, &dyn Display));

    /// Shows what `stats settings` tells.
    fn settings(&self, each: &mut dyn FnMut(&str, &dyn Display));

    /// Makes the counters start from 0.
    fn reset(&self);
}

/// How a session goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Everything is answered; it waits for more bytes.
    Receive,
    /// The reply buffer is full: empty it, then [`resume`](Session::resume).
    Resume,
    /// The conversation is over: send the replies, then close.
    Close,
}
