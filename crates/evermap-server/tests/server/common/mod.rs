//! A session without sockets, whose memory bounds are checked after every step.

pub(crate) mod hooked_cache;
pub(crate) mod packet;

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evermap_server::latency::Latencies;
use evermap_server::protocol::{
    Binding, Budget, Context, Credentials, Host, KEY_LIST_MAX, KEY_MAX, Next, Session,
};
use evermap_server::stats::Counters;
use evermap_server::watch::Watch;
use evermap_server::{Cache, ModelCache};

/// The time of the model cache and of the sessions, in seconds since 1970.
pub(crate) const NOW: u32 = 1_800_000_000;

/// Returns the time that is this number of seconds after the beginning of 1970.
pub(crate) fn at(seconds: u32) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.into())
}

/// A session over a cache.
pub(crate) struct TestSession<C = ModelCache> {
    pub(crate) cache: C,
    /// The time that the session gets from its context.
    pub(crate) now: u32,
    pub(crate) counters: Counters,
    pub(crate) watch: Watch,
    pub(crate) latencies: Latencies,
    /// The budget of unfinished requests.
    pub(crate) uploads: Arc<Budget>,
    /// The protocols that the session may speak.
    pub(crate) binding: Binding,
    /// The users that the session knows, if it must know its client.
    pub(crate) credentials: Option<Arc<Credentials>>,
    item_size_max: usize,
    /// The maximum length of a key.
    pub(crate) key_size_max: usize,
    output_limit: usize,
    session: Session,
    next: Next,
    /// The maximum number of bytes that the session has held.
    pub(crate) held_max: usize,
    /// The number of times that the reply buffer was full.
    pub(crate) resumed: usize,
}

impl Default for TestSession {
    fn default() -> Self {
        TestSession::new(1 << 20, 1 << 16)
    }
}

impl TestSession {
    /// Creates a session over a model cache with these limits, in bytes.
    pub(crate) fn new(item_size_max: usize, output_limit: usize) -> Self {
        TestSession::with(ModelCache::new(NOW), item_size_max, output_limit)
    }
}

impl<C: Cache> TestSession<C> {
    /// Creates a session over `cache`.
    pub(crate) fn with(cache: C, item_size_max: usize, output_limit: usize) -> Self {
        TestSession {
            cache,
            now: NOW,
            counters: Counters::default(),
            watch: Watch::default(),
            latencies: Latencies::default(),
            uploads: Budget::new(usize::MAX),
            binding: Binding::Auto,
            credentials: None,
            item_size_max,
            key_size_max: KEY_MAX,
            output_limit,
            session: Session::new(),
            next: Next::Receive,
            held_max: 0,
            resumed: 0,
        }
    }

    /// Sends one piece and returns the replies to it.
    pub(crate) fn send(&mut self, piece: &[u8]) -> Vec<u8> {
        let (mut replies, mut out) = (Vec::new(), Vec::new());
        if self.is_closed() {
            return replies;
        }
        self.receive(piece, &mut out);
        loop {
            // The replies may exceed the limit by one value and the lines of one batch of keys.
            assert!(out.len() < self.output_limit + self.item_size_max + 4096, "{}", out.len());
            // The session may hold a piece that waits for space, or the part of a line or value
            // that has arrived. A growing buffer may double.
            let arrived = KEY_LIST_MAX.max(self.item_size_max) + piece.len();
            assert!(self.held_bytes() <= 2 * arrived, "{}", self.held_bytes());
            self.held_max = self.held_max.max(self.held_bytes());
            replies.append(&mut out);
            if self.next != Next::Resume {
                return replies;
            }
            self.resumed += 1;
            let (session, context) = self.parts();
            self.next = session.resume(&context, &mut out);
        }
    }

    /// Sends one piece. Appends the replies to `out`, until it is full.
    pub(crate) fn receive(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        let (session, context) = self.parts();
        self.next = session.receive(piece, &context, out);
    }

    /// Continues after the reply buffer was full. Appends the replies to `out`, until it is full
    /// again, and returns `true` if it is.
    pub(crate) fn resume(&mut self, out: &mut Vec<u8>) -> bool {
        let (session, context) = self.parts();
        self.next = session.resume(&context, out);
        self.next == Next::Resume
    }

    fn parts(&mut self) -> (&mut Session, Context<'_>) {
        let context = Context {
            cache: &self.cache,
            counters: &self.counters,
            uploads: &self.uploads,
            host: &FixedHost,
            now: self.now,
            item_size_max: self.item_size_max,
            key_size_max: self.key_size_max,
            output_limit: self.output_limit,
            binding: self.binding,
            credentials: self.credentials.as_deref(),
            watch: &self.watch,
            latencies: &self.latencies,
            connection: 0,
        };
        (&mut self.session, context)
    }

    /// Sends `bytes` in pieces of `piece` bytes and returns all replies.
    pub(crate) fn send_in_pieces(&mut self, bytes: &[u8], piece: usize) -> Vec<u8> {
        bytes.chunks(piece).flat_map(|piece| self.send(piece)).collect()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.next == Next::Close
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.session.held_bytes()
    }
}

/// A host with one statistic and one setting.
struct FixedHost;

impl Host for FixedHost {
    fn version(&self) -> &str {
        "1.2.3 test"
    }

    fn general(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        each("threads", &1);
    }

    fn settings(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        each("maxconns", &1024);
    }

    fn reset(&self) {}

    fn set_verbosity(&self, _level: u32) {}

    fn shutdown(&self, graceful: bool) -> bool {
        // Only so that both replies can be tested.
        graceful
    }

    fn refresh_certs(&self) -> Option<Result<(), String>> {
        Some(Err("no such\r\nfile".into()))
    }
}
