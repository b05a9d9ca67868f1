//! The classic text protocol: a state machine over lines and data blocks.

mod batch;
mod parse;

use std::fmt::Display;
use std::ops::ControlFlow;

use memchr::memchr;

use super::session::Progress;
use super::{Context, ITEM_OVERHEAD, KEY_LIST_MAX, LINE_MAX, Next, Share, reply};
use crate::cache::{Arithmetic, CacheError, StoreMode, StoreOutcome};
use crate::number;
use crate::stats::Count;
use batch::{Answered, Batch, Mark};
use parse::{Refused, Request, Stats, Store, Then, Verb, Words};

/// Where a client's conversation stands.
#[derive(Default)]
pub(super) struct Text {
    state: State,
    /// Bytes of the unfinished line at the start of the input that are known to hold no line feed, so that
    /// a line coming in small pieces is searched once.
    searched: usize,
}

/// What the next byte of input belongs to.
#[derive(Default)]
enum State {
    /// The beginning of a line.
    #[default]
    Line,
    /// The keys of a lookup. Their line is complete and checked, and at least one key is left.
    Keys(Lookup),
    /// A data block of which a part has arrived.
    Data(Box<Upload>),
    /// This many bytes that mean nothing.
    Swallow(usize),
}

/// What to do with keys.
#[derive(Clone, Copy)]
struct Lookup {
    with_cas: bool,
    /// The new expiry, for gat and gats.
    touch: Option<u32>,
}

/// A storage command whose data block has not arrived whole.
struct Upload {
    verb: Verb,
    key: Box<[u8]>,
    flags: u32,
    exptime: i64,
    len: usize,
    noreply: bool,
    /// What has arrived of the value and the line end after it.
    data: Vec<u8>,
    /// Counts the memory of `data`.
    share: Share,
}

/// What an upload did with the bytes it was shown.
enum Taken {
    /// All of them; more is missing.
    Part,
    /// This many; nothing is missing any more.
    Whole(usize),
    /// None: there is no memory for them.
    NoMemory,
}

/// A line at the start of some input.
enum Line<'a> {
    /// All of it, without its end; the input goes on after `len` bytes.
    Whole {
        line: &'a [u8],
        len: usize,
    },
    Unfinished,
    TooLong,
}

/// One pass over some input.
struct Pass<'a, 'p> {
    text: &'p mut Text,
    input: &'a [u8],
    /// Bytes of the input that are consumed, once the batch is answered.
    at: usize,
    batch: Batch<'a>,
    context: &'p Context<'p>,
    out: &'p mut Vec<u8>,
}

/// The first byte of every request of the binary protocol, which this server does not speak. No
/// command begins with it.
const BINARY_REQUEST: u8 = 0x80;

/// Whether the pass goes on, or how it ended.
type Step = ControlFlow<Next>;
const ON: Step = ControlFlow::Continue(());

impl Text {
    /// Does what `input` asks as far as it has arrived and there is room for the replies.
    ///
    /// What is not consumed has to be shown again, with more behind it or after making room.
    pub(super) fn process(
        &mut self,
        input: &[u8],
        context: &Context<'_>,
        out: &mut Vec<u8>,
    ) -> Progress {
        let mut pass = Pass { text: self, input, at: 0, batch: Batch::new(), context, out };
        let next = loop {
            if let ControlFlow::Break(next) = pass.step() {
                break next;
            }
        };
        Progress { consumed: pass.at, next }
    }

    pub(super) fn held_bytes(&self) -> usize {
        match &self.state {
            State::Data(upload) => size_of::<Upload>() + upload.key.len() + upload.data.capacity(),
            _ => 0,
        }
    }
}

impl<'a> Pass<'a, '_> {
    fn step(&mut self) -> Step {
        match self.text.state {
            State::Line => self.line(),
            State::Keys(lookup) => self.keys(lookup),
            State::Data(_) => self.data(),
            State::Swallow(len) => self.swallow(len),
        }
    }

    /// The beginning of a line.
    fn line(&mut self) -> Step {
        // A packet of the binary protocol. What it carries must not be taken for lines.
        if self.input.get(self.at) == Some(&BINARY_REQUEST) {
            self.answer_batch()?;
            return ControlFlow::Break(Next::Close);
        }
        if self.out.len() >= self.context.output_limit {
            self.answer_batch()?;
            return ControlFlow::Break(Next::Resume);
        }
        match first_line(&self.input[self.at..], self.text.searched) {
            Line::Whole { line, len } => {
                self.text.searched = 0;
                self.request(line, len)
            }
            Line::Unfinished => {
                self.answer_batch()?;
                self.text.searched = self.input.len() - self.at;
                ControlFlow::Break(Next::Receive)
            }
            Line::TooLong => {
                self.answer_batch()?;
                self.reply(b"CLIENT_ERROR line too long\r\n", false);
                ControlFlow::Break(Next::Close)
            }
        }
    }

    /// A whole line; `len` counts its end too.
    fn request(&mut self, line: &'a [u8], len: usize) -> Step {
        let request = parse::parse(line);
        // Lookups only gather keys. Everything else has to wait until those gathered before it are answered.
        if let Ok(Request::Lookup { exptime, with_cas, keys_at }) = request {
            let touch = exptime.map(|exptime| expiry(exptime, self.context.now));
            let lookup = Lookup { with_cas, touch };
            self.text.state = State::Keys(lookup);
            self.at += keys_at;
            return self.look_up(&line[keys_at..], len - keys_at, lookup);
        }
        self.answer_batch()?;
        self.at += len;
        match request {
            Ok(request) => self.execute(request),
            Err(Refused { reply, noreply, then }) => {
                self.reply(reply, noreply);
                match then {
                    Then::NextLine => {}
                    Then::Swallow(block) => self.text.state = State::Swallow(block),
                    Then::Close => return ControlFlow::Break(Next::Close),
                }
                ON
            }
        }
    }

    fn execute(&mut self, request: Request<'a>) -> Step {
        match request {
            Request::Lookup { .. } => {}
            Request::Store(store) => self.begin_store(store),
            Request::Delete { key, noreply } => self.delete(key, noreply),
            Request::Arithmetic { key, delta, up, noreply } => {
                self.arithmetic(key, delta, up, noreply);
            }
            Request::Touch { key, exptime, noreply } => self.touch(key, exptime, noreply),
            Request::FlushAll { delay, noreply } => self.flush_all(delay, noreply),
            Request::Version => {
                let version = self.context.host.version();
                for part in ["VERSION ", version, "\r\n"] {
                    self.out.extend_from_slice(part.as_bytes());
                }
            }
            Request::Verbosity { noreply } => self.reply(b"OK\r\n", noreply),
            Request::Stats(which) => self.stats(which),
            Request::Quit | Request::Http => return ControlFlow::Break(Next::Close),
        }
        ON
    }

    /// The keys that were left of a checked line when the replies were full.
    fn keys(&mut self, lookup: Lookup) -> Step {
        match line_at(&self.input[self.at..], 0) {
            Line::Whole { line, len } => self.look_up(line, len, lookup),
            // Not reached: a line is checked only when it is whole, and then stays in the input.
            _ => ControlFlow::Break(Next::Receive),
        }
    }

    /// The keys in `line`; `len` counts its end too.
    fn look_up(&mut self, line: &'a [u8], len: usize, lookup: Lookup) -> Step {
        let (start, mut words) = (self.at, Words::new(line));
        while let Some(key) = words.next() {
            let last = words.is_done();
            let resume_at = start + if last { len } else { words.at };
            let mark = Mark { resume_at, with_cas: lookup.with_cas, last };
            let sound = match lookup.touch {
                None => self.gather(key, mark)?,
                Some(expiry) => self.get_and_touch(key, expiry, mark)?,
            };
            if !sound {
                // The store failed and the client was told so instead of END: the rest of the line is void.
                self.at = start + len;
                break;
            }
        }
        self.text.state = State::Line;
        ON
    }

    /// A key of get or gets. Answers whether its line is sound so far.
    fn gather(&mut self, key: &'a [u8], mark: Mark) -> ControlFlow<Next, bool> {
        self.batch.push(key, mark);
        self.at = mark.resume_at;
        if self.batch.is_full() { self.answer_batch() } else { ControlFlow::Continue(true) }
    }

    /// A key of gat or gats. Answers whether its line is sound so far.
    fn get_and_touch(&mut self, key: &[u8], expiry: u32, mark: Mark) -> ControlFlow<Next, bool> {
        self.answer_batch()?;
        self.at = mark.resume_at;
        let before = self.out.len();
        let alive = self.context.cache.get_and_touch(key, expiry, &mut |item| {
            reply::value(key, &item, mark.with_cas, self.out);
        });
        match alive {
            Ok(alive) => {
                // As in memcached, which counts these keys as touched and not as looked up.
                self.count(Count::CmdTouch);
                self.count(if alive { Count::TouchHits } else { Count::TouchMisses });
            }
            Err(error) => {
                self.out.truncate(before);
                reply::cache_error(&error, self.out);
                return ControlFlow::Continue(false);
            }
        }
        if mark.last {
            self.out.extend_from_slice(b"END\r\n");
        } else if self.out.len() >= self.context.output_limit {
            return ControlFlow::Break(Next::Resume);
        }
        ControlFlow::Continue(true)
    }

    /// Answers the keys gathered so far. Answers whether the line of the last one is sound so far.
    fn answer_batch(&mut self) -> ControlFlow<Next, bool> {
        match self.batch.answer(self.context, self.out) {
            Answered::Whole => ControlFlow::Continue(true),
            Answered::Failed => ControlFlow::Continue(false),
            Answered::Until(Mark { resume_at, with_cas, last }) => {
                self.at = resume_at;
                self.text.state = match last {
                    true => State::Line,
                    false => State::Keys(Lookup { with_cas, touch: None }),
                };
                ControlFlow::Break(Next::Resume)
            }
        }
    }

    /// The line of a storage command: what follows is its data block.
    fn begin_store(&mut self, store: Store<'a>) {
        let block = store.len + 2;
        if store.key.len() + store.len + ITEM_OVERHEAD > self.context.item_size_max {
            self.store_failed(&store, &CacheError::TooLarge);
            self.text.state = State::Swallow(block);
        } else if let Some(data) = self.input[self.at..].get(..block) {
            self.at += block;
            self.finish_store(&store, data);
        } else {
            let Store { verb, key, flags, exptime, len, noreply } = store;
            let (key, data, share) = (key.into(), Vec::new(), Share::of(self.context.uploads));
            let upload = Upload { verb, key, flags, exptime, len, noreply, data, share };
            self.text.state = State::Data(Box::new(upload));
        }
    }

    /// A part of a data block.
    fn data(&mut self) -> Step {
        let State::Data(mut upload) = std::mem::take(&mut self.text.state) else {
            return ON;
        };
        let arrived = &self.input[self.at..];
        match upload.take(arrived) {
            Taken::Whole(len) => {
                self.at += len;
                self.finish_store(&upload.store(), &upload.data);
                ON
            }
            Taken::Part => {
                self.at += arrived.len();
                self.text.state = State::Data(upload);
                ControlFlow::Break(Next::Receive)
            }
            Taken::NoMemory => {
                self.text.state = State::Swallow(upload.missing());
                self.store_failed(&upload.store(), &CacheError::OutOfMemory);
                ON
            }
        }
    }

    /// Bytes that mean nothing.
    fn swallow(&mut self, len: usize) -> Step {
        let taken = len.min(self.input.len() - self.at);
        self.at += taken;
        if taken < len {
            self.text.state = State::Swallow(len - taken);
            return ControlFlow::Break(Next::Receive);
        }
        self.text.state = State::Line;
        ON
    }

    /// A storage command whose data block is there: the value and two bytes more.
    fn finish_store(&mut self, store: &Store<'_>, data: &[u8]) {
        self.count(Count::CmdSet);
        let (value, end) = data.split_at(store.len);
        if end != b"\r\n" {
            return self.reply(b"CLIENT_ERROR bad data chunk\r\n", store.noreply);
        }
        let Context { cache, now, item_size_max, .. } = *self.context;
        let put =
            |mode| cache.store(store.key, value, store.flags, expiry(store.exptime, now), mode);
        let outcome = match store.verb {
            Verb::Set => put(StoreMode::Set),
            Verb::Add => put(StoreMode::Add),
            Verb::Replace => put(StoreMode::Replace),
            Verb::Cas(id) => put(StoreMode::Cas(id)),
            Verb::Concat(side) => {
                let value_max = item_size_max - ITEM_OVERHEAD - store.key.len();
                cache.concat(store.key, value, side, value_max)
            }
        };
        match outcome {
            Ok(outcome) => self.stored(store, outcome),
            Err(error) => self.store_failed(store, &error),
        }
    }

    fn stored(&mut self, store: &Store<'_>, outcome: StoreOutcome) {
        if let Verb::Cas(_) = store.verb {
            match outcome {
                StoreOutcome::Stored => self.count(Count::CasHits),
                StoreOutcome::Exists => self.count(Count::CasBadval),
                StoreOutcome::NotFound => self.count(Count::CasMisses),
                StoreOutcome::NotStored => {}
            }
        }
        let reply: &[u8] = match outcome {
            StoreOutcome::Stored => b"STORED\r\n",
            StoreOutcome::NotStored => b"NOT_STORED\r\n",
            StoreOutcome::Exists => b"EXISTS\r\n",
            StoreOutcome::NotFound => b"NOT_FOUND\r\n",
        };
        self.reply(reply, store.noreply);
    }

    fn store_failed(&mut self, store: &Store<'_>, error: &CacheError) {
        let no_room = match error {
            CacheError::TooLarge => Some(Count::StoreTooLarge),
            CacheError::OutOfMemory => Some(Count::StoreNoMemory),
            _ => None,
        };
        if let Some(count) = no_room {
            self.count(count);
            if store.verb == Verb::Set {
                // The client meant to replace the item, so the old value must not be served any more. If it
                // cannot be deleted either, the reply tells of the failure all the same.
                let _ = self.context.cache.delete(store.key);
            }
        }
        self.failed(error, store.noreply);
    }

    fn delete(&mut self, key: &[u8], noreply: bool) {
        match self.context.cache.delete(key) {
            Ok(true) => {
                self.count(Count::DeleteHits);
                self.reply(b"DELETED\r\n", noreply);
            }
            Ok(false) => {
                self.count(Count::DeleteMisses);
                self.reply(b"NOT_FOUND\r\n", noreply);
            }
            Err(error) => self.failed(&error, noreply),
        }
    }

    fn arithmetic(&mut self, key: &[u8], delta: u64, up: bool, noreply: bool) {
        let (hits, misses) = match up {
            true => (Count::IncrHits, Count::IncrMisses),
            false => (Count::DecrHits, Count::DecrMisses),
        };
        match self.context.cache.arithmetic(key, delta, up) {
            Ok(Arithmetic::Value(number)) => {
                self.count(hits);
                if !noreply {
                    number::append(number, self.out);
                    self.out.extend_from_slice(b"\r\n");
                }
            }
            Ok(Arithmetic::NotFound) => {
                self.count(misses);
                self.reply(b"NOT_FOUND\r\n", noreply);
            }
            Ok(Arithmetic::NonNumeric) => self.reply(
                b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
                noreply,
            ),
            Err(error) => self.failed(&error, noreply),
        }
    }

    fn touch(&mut self, key: &[u8], exptime: i64, noreply: bool) {
        let touched = self.context.cache.touch(key, expiry(exptime, self.context.now));
        if let Ok(alive) = touched {
            self.count(Count::CmdTouch);
            self.count(if alive { Count::TouchHits } else { Count::TouchMisses });
        }
        match touched {
            Ok(true) => self.reply(b"TOUCHED\r\n", noreply),
            Ok(false) => self.reply(b"NOT_FOUND\r\n", noreply),
            Err(error) => self.failed(&error, noreply),
        }
    }

    fn flush_all(&mut self, delay: i64, noreply: bool) {
        let now = self.context.now;
        let at = Some(expiry(delay, now)).filter(|&at| at > now);
        self.count(Count::CmdFlush);
        match self.context.cache.flush_all(at) {
            Ok(()) => self.reply(b"OK\r\n", noreply),
            Err(error) => self.failed(&error, noreply),
        }
    }

    fn stats(&mut self, which: Stats) {
        let Context { host, cache, .. } = *self.context;
        let mut each = |name: &str, value: &dyn Display| reply::stat(name, value, self.out);
        match which {
            Stats::General => {
                host.general(&mut each);
                cache.stats(&mut each);
            }
            Stats::Settings => host.settings(&mut each),
            Stats::Sizes => each("sizes_status", &"disabled"),
            Stats::Empty => {}
            Stats::Reset => {
                host.reset();
                return self.reply(b"RESET\r\n", false);
            }
        }
        self.reply(b"END\r\n", false);
    }

    fn reply(&mut self, reply: &[u8], noreply: bool) {
        if !noreply {
            self.out.extend_from_slice(reply);
        }
    }

    fn failed(&mut self, error: &CacheError, noreply: bool) {
        if !noreply {
            reply::cache_error(error, self.out);
        }
    }

    fn count(&self, count: Count) {
        self.context.counters.add(count, 1);
    }
}

impl Upload {
    /// Bytes of the data block that have not arrived.
    fn missing(&self) -> usize {
        self.len + 2 - self.data.len()
    }

    /// Takes what is missing from the front of `arrived`.
    fn take(&mut self, arrived: &[u8]) -> Taken {
        let missing = self.missing();
        let taken = missing.min(arrived.len());
        let needed = self.data.len() + taken;
        if needed > self.data.capacity() {
            // Memory follows what has arrived, doubling, but never exceeds what was announced.
            let room = needed.max(2 * self.data.capacity()).min(self.len + 2);
            if !self.share.grow_to(room) {
                return Taken::NoMemory;
            }
            self.data.reserve_exact(room - self.data.len());
        }
        self.data.extend_from_slice(&arrived[..taken]);
        if taken == missing { Taken::Whole(taken) } else { Taken::Part }
    }

    fn store(&self) -> Store<'_> {
        let Upload { verb, ref key, flags, exptime, len, noreply, .. } = *self;
        Store { verb, key, flags, exptime, len, noreply }
    }
}

/// The line at the start of `input`, unless it is longer than a line may be.
fn first_line(input: &[u8], searched: usize) -> Line<'_> {
    let line = line_at(input, searched);
    let before_end = match line {
        Line::Whole { len, .. } => len - 1,
        _ => input.len(),
    };
    if before_end <= LINE_MAX || before_end <= KEY_LIST_MAX && parse::lists_keys(input) {
        line
    } else {
        Line::TooLong
    }
}

/// The line at the start of `input`, of which the first `searched` bytes are known to hold no line feed.
fn line_at(input: &[u8], searched: usize) -> Line<'_> {
    match memchr(b'\n', &input[searched..]) {
        None => Line::Unfinished,
        Some(at) => {
            let end = searched + at;
            let line = &input[..end];
            Line::Whole { line: line.strip_suffix(b"\r").unwrap_or(line), len: end + 1 }
        }
    }
}

/// The absolute expiry that the protocol's `exptime` means: 0 never; less, already over; up to 30 days,
/// seconds from now; more, seconds since 1970.
fn expiry(exptime: i64, now: u32) -> u32 {
    const RELATIVE_MAX: i64 = 60 * 60 * 24 * 30;
    const LONG_AGO: u32 = 1;
    match exptime {
        0 => 0,
        ..0 => LONG_AGO,
        1..=RELATIVE_MAX => now.saturating_add(exptime as u32),
        _ => exptime.try_into().unwrap_or(u32::MAX),
    }
}
