//! The classic text protocol, as a state machine over lines and data blocks. It also carries the
//! commands of the [meta protocol](super::meta), which may come in between.

mod batch;
mod dump;
mod parse;
mod request;
mod tuning;

use std::fmt::Display;
use std::ops::ControlFlow;

use memchr::memchr;

use super::exptime::expiry;
use super::line::{AfterReject, Rejected, Words};
use super::meta::Command;
use super::ops::{Counter, Delete, DeleteOutcome, Delta, DeltaOutcome, set_many};
use super::refused::Refused;
use super::upload::{Upload, UploadProgress};
use super::{
    Context, KEY_LIST_MAX, KEY_MAX, LINE_MAX, Next, Progress, Restricted, binary, reply, stats,
};
use crate::cache::{BATCH_KEYS, Cache, CacheError, StoreOutcome, Stored};
use crate::number;
use crate::stats::Count;
use batch::{Batch, BatchOutcome, KeyContext};
use dump::Dump;
use request::{Detail, Request, Stats, Storage};

/// The state of a session of the text protocol.
#[derive(Default)]
pub(super) struct Text {
    state: State,
    /// The number of bytes of the unfinished line at the start of the input that are known to
    /// contain no line feed, so that a line that arrives in small pieces is scanned only once.
    scanned: usize,
}

/// What the next byte of the input belongs to.
#[derive(Default)]
enum State {
    /// A new line.
    #[default]
    Line,
    /// The remaining keys of a lookup, at least one. The input has the complete line, and it was
    /// checked. The line has `left` bytes from here to its end; 0 if that is not known.
    Keys { lookup: Lookup, left: usize },
    /// A data block that has not arrived completely.
    Data(Box<Unfinished>),
    /// A list of items of which only a part fits the reply buffer.
    Dump(Dump),
    /// The data block of a request that is refused.
    Refused(Refused),
}

/// How the keys of a command are looked up.
#[derive(Clone, Copy)]
struct Lookup {
    with_cas: bool,
    /// The new expiry; `None` for get and gets.
    touch: Option<u32>,
}

/// A storage command whose data block has not arrived completely.
struct Unfinished {
    /// The line of the command, which is parsed again when the data block is complete.
    line: Box<[u8]>,
    /// The value and its line end.
    block: Upload,
}

/// The line at the start of some input.
enum Line<'a> {
    /// A complete line, given without its line end. With it, the line has `len` bytes.
    Complete {
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
    /// The number of bytes of the input that are consumed once the batch is executed.
    at: usize,
    batch: Batch<'a>,
    /// Commands that only set, with their values, to be executed together. Either these or the
    /// batch are empty.
    sets: Vec<(Storage<'a>, &'a [u8])>,
    context: &'p Context<'p>,
    out: &'p mut Vec<u8>,
}

/// What receives the names and values of statistics.
type EachStat<'a> = dyn FnMut(&str, &dyn Display) + 'a;

/// Whether the pass continues, or how it ended.
type Step = ControlFlow<Next>;
const CONTINUE: Step = ControlFlow::Continue(());

impl Text {
    /// Executes the complete requests in `input`, until the reply buffer is full.
    ///
    /// The next call must get the bytes that were not consumed again, either with more bytes behind
    /// them or after the reply buffer was emptied.
    pub(super) fn process(
        &mut self,
        input: &[u8],
        context: &Context<'_>,
        out: &mut Vec<u8>,
    ) -> Progress {
        let (batch, sets) = (Batch::new(), Vec::new());
        let mut pass = Pass { text: self, input, at: 0, batch, sets, context, out };
        let next = loop {
            if let ControlFlow::Break(next) = pass.step() {
                break next;
            }
        };
        Progress { consumed: pass.at, next }
    }

    pub(super) fn held_bytes(&self) -> usize {
        match &self.state {
            State::Data(unfinished) => {
                let Unfinished { line, block } = &**unfinished;
                size_of::<Unfinished>() + line.len() + block.held_bytes()
            }
            State::Refused(refused) => refused.held_bytes(),
            _ => 0,
        }
    }
}

impl<'a> Pass<'a, '_> {
    fn step(&mut self) -> Step {
        match self.text.state {
            State::Line => self.line(),
            State::Keys { lookup, left } => self.keys(lookup, left),
            State::Data(_) => self.data(),
            State::Dump(dump) => self.dump(dump),
            State::Refused(_) => self.refused(),
        }
    }

    /// Executes the request in the next line.
    fn line(&mut self) -> Step {
        // A packet of the binary protocol: its content must not be read as commands.
        if self.input.get(self.at) == Some(&binary::REQUEST) {
            self.execute_batch()?;
            return ControlFlow::Break(Next::Close);
        }
        if self.out.len() >= self.context.output_limit {
            self.execute_batch()?;
            return ControlFlow::Break(Next::Resume);
        }
        match first_line(&self.input[self.at..], self.text.scanned, self.context) {
            Line::Complete { line, len } => {
                self.text.scanned = 0;
                self.request(line, len)
            }
            Line::Unfinished => {
                self.execute_batch()?;
                self.text.scanned = self.input.len() - self.at;
                ControlFlow::Break(Next::Receive)
            }
            Line::TooLong => {
                self.execute_batch()?;
                self.reply(b"CLIENT_ERROR line too long\r\n", false);
                ControlFlow::Break(Next::Close)
            }
        }
    }

    fn parse<'l>(&self, line: &'l [u8]) -> Result<Request<'l>, Rejected> {
        parse::parse(line, self.context.key_size_max)
    }

    /// Executes the request in a complete line. `len` includes the line end.
    fn request(&mut self, line: &'a [u8], len: usize) -> Step {
        let request = self.parse(line);
        // A lookup only collects its keys, and so does what only sets. Any other request must
        // follow the execution of what was collected before it.
        let request = match request {
            Ok(Request::Store(storage)) => match self.value_to_set(&storage, len) {
                Some(value) => return self.collect_set(storage, value, len),
                None => Ok(Request::Store(storage)),
            },
            Ok(Request::Lookup { exptime, with_cas, keys_at }) => {
                let touch = exptime.map(|exptime| expiry(exptime, self.context.now));
                let lookup = Lookup { with_cas, touch };
                self.execute_sets();
                self.text.state = State::Keys { lookup, left: 0 };
                self.at += keys_at;
                return self.look_up(&line[keys_at..], len - keys_at, lookup);
            }
            Ok(Request::Meta(Command::Get(request))) if request.only_looks_up() => {
                self.execute_sets();
                self.at += len;
                self.batch.push_meta(request, self.at);
                return match self.batch.is_full() {
                    true => self.execute_batch().map_continue(drop),
                    false => CONTINUE,
                };
            }
            request => request,
        };
        self.execute_batch()?;
        self.at += len;
        match request {
            Ok(request) => self.execute(request, line),
            Err(Rejected { reply, noreply, after }) => {
                let start = self.out.len();
                self.reply(reply, noreply);
                match after {
                    AfterReject::NextLine => {}
                    AfterReject::Skip(block) => self.refuse(block, start),
                    AfterReject::Close => return ControlFlow::Break(Next::Close),
                }
                CONTINUE
            }
        }
    }

    fn execute(&mut self, request: Request<'a>, line: &[u8]) -> Step {
        match request {
            Request::Lookup { .. } => {}
            Request::Store(store) => self.begin_store(&store, line),
            Request::Meta(command) => command.execute(self.context, self.out),
            Request::Delete { key, noreply } => self.delete(key, noreply),
            Request::Arithmetic { key, delta, up, noreply } => {
                self.arithmetic(&Delta { key, delta, up, ..Delta::default() }, noreply);
            }
            Request::Touch { key, exptime, noreply } => self.touch(key, exptime, noreply),
            Request::FlushAll { delay, noreply } => self.flush_all(delay, noreply),
            Request::FlushNamespace { prefix, noreply } => self.flush_namespace(prefix, noreply),
            Request::Version => {
                let version = self.context.host.version();
                for part in ["VERSION ", version, "\r\n"] {
                    self.out.extend_from_slice(part.as_bytes());
                }
            }
            Request::Verbosity { level, noreply } => {
                self.context.host.set_verbosity(level);
                self.reply(b"OK\r\n", noreply);
            }
            Request::MemoryLimit { megabytes, noreply } => self.set_limit(megabytes, noreply),
            Request::Shutdown { graceful } => return self.shutdown(graceful),
            Request::RefreshCerts => self.refresh_certs(),
            // The operator has refused lists of all items.
            Request::Dump(dump) if !self.context.host.allows(Restricted::Dump) => {
                self.reply(dump.refusal(), false);
            }
            Request::Dump(dump) => {
                self.reply(b"OK\r\n", false);
                self.text.state = State::Dump(dump);
            }
            Request::Accepted(reply) => self.reply(reply, false),
            Request::Stats(which) => self.stats(which),
            // The operator has refused log streams.
            Request::Watch(_) if !self.context.host.allows(Restricted::Watch) => {
                self.reply(b"CLIENT_ERROR watch commands not allowed\r\n", false);
            }
            Request::Watch(streams) => return ControlFlow::Break(Next::Watch(streams)),
            Request::Quit => {
                self.context.quitting();
                return ControlFlow::Break(Next::Close);
            }
            Request::Http => return ControlFlow::Break(Next::Close),
        }
        CONTINUE
    }

    /// Looks up the keys that remained of a checked line when the reply buffer was full.
    fn keys(&mut self, lookup: Lookup, left: usize) -> Step {
        // The line end is not searched again for each reply: the list may be long.
        match line_at(&self.input[self.at..], left.saturating_sub(1)) {
            Line::Complete { line, len } => self.look_up(line, len, lookup),
            // Unreachable: only a complete line is checked, and it stays in the input.
            _ => ControlFlow::Break(Next::Receive),
        }
    }

    /// Looks up the keys in `line`. `len` includes the line end.
    fn look_up(&mut self, line: &'a [u8], len: usize, lookup: Lookup) -> Step {
        let (start, mut words) = (self.at, Words::new(line));
        while let Some(key) = words.next() {
            let last = words.is_done();
            let resume_at = start + if last { len } else { words.at };
            let position = KeyContext::new(resume_at, lookup.with_cas, last);
            let step = match lookup.touch {
                None => self.get(key, position),
                Some(expiry) => self.get_and_touch(key, expiry, position),
            };
            match step {
                ControlFlow::Continue(true) => {}
                ControlFlow::Continue(false) => {
                    // The store failed, and the reply to the command is the error instead of END.
                    // Skip the rest of the line.
                    self.at = start + len;
                    break;
                }
                ControlFlow::Break(next) => {
                    self.note_end_of_keys(start, start + len);
                    return ControlFlow::Break(next);
                }
            }
        }
        self.text.state = State::Line;
        CONTINUE
    }

    /// Notes how long the rest of a line is whose keys begin at `start`, if the reply buffer was
    /// full after one of them and not after a key of an earlier command.
    fn note_end_of_keys(&mut self, start: usize, end: usize) {
        if let State::Keys { left, .. } = &mut self.text.state
            && self.at > start
        {
            *left = end - self.at;
        }
    }

    /// Collects a key of get or gets. Returns `false` if a lookup for its command failed.
    fn get(&mut self, key: &'a [u8], position: KeyContext) -> ControlFlow<Next, bool> {
        self.batch.push(key, position);
        self.at = position.resume_at;
        if self.batch.is_full() { self.execute_batch() } else { ControlFlow::Continue(true) }
    }

    /// Executes a key of gat or gats. Returns `false` if it failed.
    fn get_and_touch(
        &mut self,
        key: &[u8],
        expiry: u32,
        position: KeyContext,
    ) -> ControlFlow<Next, bool> {
        self.execute_batch()?;
        self.at = position.resume_at;
        let before = self.out.len();
        let touched = self.context.get_and_touch(key, expiry, &mut |item| {
            reply::value(key, item, position.with_cas, self.out)
        });
        if let Err(error) = touched {
            self.out.truncate(before);
            reply::cache_error(&error, self.out);
            return ControlFlow::Continue(false);
        }
        if position.last {
            self.out.extend_from_slice(b"END\r\n");
        } else if self.out.len() >= self.context.output_limit {
            return ControlFlow::Break(Next::Resume);
        }
        ControlFlow::Continue(true)
    }

    /// Looks up the keys that were collected, or executes the sets. Returns `false` if a lookup for
    /// the command of the last key failed and the command has more keys.
    fn execute_batch(&mut self) -> ControlFlow<Next, bool> {
        self.execute_sets();
        match self.batch.execute(self.context, self.out) {
            BatchOutcome::Complete => ControlFlow::Continue(true),
            BatchOutcome::Failed => ControlFlow::Continue(false),
            BatchOutcome::OutputFull(KeyContext { resume_at, with_cas, last, .. }) => {
                self.at = resume_at;
                self.text.state = match last {
                    true => State::Line,
                    false => State::Keys { lookup: Lookup { with_cas, touch: None }, left: 0 },
                };
                ControlFlow::Break(Next::Resume)
            }
        }
    }

    /// Returns the value of a command that only sets, if all of it has arrived and can be stored.
    /// `len` is the length of the line. A single command is not worth collecting.
    fn value_to_set(&self, storage: &Storage<'_>, len: usize) -> Option<&'a [u8]> {
        let (data, rest) =
            self.input.get(self.at + len..)?.split_at_checked(storage.len().checked_add(2)?)?;
        if rest.is_empty() && self.sets.is_empty() {
            return None;
        }
        let value = data.strip_suffix(b"\r\n")?;
        let fits = self.context.fits(storage.key(), storage.len());
        (fits && storage.store(self.context.now).only_sets()).then_some(value)
    }

    /// Collects a command that only sets.
    fn collect_set(&mut self, storage: Storage<'a>, value: &'a [u8], len: usize) -> Step {
        if self.sets.is_empty() {
            self.execute_batch()?;
        }
        self.at += len + value.len() + 2;
        self.sets.push((storage, value));
        if self.sets.len() == BATCH_KEYS {
            self.execute_sets();
        }
        CONTINUE
    }

    /// Executes the sets that were collected.
    fn execute_sets(&mut self) {
        if self.sets.is_empty() {
            return;
        }
        let (sets, context) = (std::mem::take(&mut self.sets), self.context);
        let metas = sets.iter().filter(|(set, _)| matches!(set, Storage::Meta(_))).count();
        context.counters.add(Count::CmdMeta, metas as u64);
        let commands: Vec<_> =
            sets.iter().map(|(set, value)| (set.store(context.now), *value)).collect();
        set_many(&commands, context, &mut |at, stored| {
            let (storage, value) = &sets[at];
            self.reply_to_store(storage, stored.map(|stored| (stored, value.len())));
        });
    }

    /// Begins the storage command in `line`. Its data block follows in the input.
    fn begin_store(&mut self, storage: &Storage<'_>, line: &[u8]) {
        let (key, len) = (storage.key(), storage.len());
        let block = len + 2;
        if !self.context.fits(key, len) {
            self.refuse_store(storage, &CacheError::TooLarge, block);
        } else if let Some(data) = self.input[self.at..].get(..block) {
            self.at += block;
            self.finish_store(storage, data);
        } else {
            let block = Upload::new(block, self.context.uploads);
            let unfinished = Unfinished { line: line.into(), block };
            self.text.state = State::Data(Box::new(unfinished));
        }
    }

    /// Takes the next part of a data block.
    fn data(&mut self) -> Step {
        let State::Data(mut unfinished) = std::mem::take(&mut self.text.state) else {
            return CONTINUE;
        };
        let arrived = &self.input[self.at..];
        match unfinished.block.take(arrived) {
            UploadProgress::Complete(len) => {
                self.at += len;
                if let Ok(Request::Store(storage)) = self.parse(&unfinished.line) {
                    self.finish_store(&storage, unfinished.block.data());
                }
                CONTINUE
            }
            UploadProgress::Partial => {
                self.at += arrived.len();
                self.text.state = State::Data(unfinished);
                ControlFlow::Break(Next::Receive)
            }
            UploadProgress::NoMemory => {
                let missing = unfinished.block.missing();
                if let Ok(Request::Store(storage)) = self.parse(&unfinished.line) {
                    self.refuse_store(&storage, &CacheError::OutOfMemory, missing);
                }
                CONTINUE
            }
        }
    }

    /// Drops the next `missing` bytes. What was replied since `start` follows them.
    fn refuse(&mut self, missing: usize, start: usize) {
        self.text.state = State::Refused(Refused::new(missing, self.out, start));
    }

    /// Reports why a storage command fails. `missing` bytes of its data block follow.
    fn refuse_store(&mut self, storage: &Storage<'_>, error: &CacheError, missing: usize) {
        let start = self.out.len();
        storage.store(self.context.now).refuse(error, storage.len(), self.context);
        self.failed(error, storage.noreply());
        self.refuse(missing, start);
    }

    /// Drops the next part of the data block of a request that is refused.
    fn refused(&mut self) -> Step {
        let State::Refused(refused) = &mut self.text.state else { return CONTINUE };
        self.at += refused.take(&self.input[self.at..], self.out);
        if !refused.is_complete() {
            return ControlFlow::Break(Next::Receive);
        }
        self.text.state = State::Line;
        CONTINUE
    }

    /// Executes a storage command. `data` is its data block: the value and a line end.
    fn finish_store(&mut self, storage: &Storage<'_>, data: &[u8]) {
        let (value, end) = data.split_at(storage.len());
        if end != b"\r\n" {
            self.count(Count::CmdSet);
            return self.reply(b"CLIENT_ERROR bad data chunk\r\n", storage.noreply());
        }
        if let Storage::Meta(_) = storage {
            self.count(Count::CmdMeta);
        }
        self.reply_to_store(storage, storage.store(self.context.now).execute(value, self.context));
    }

    fn reply_to_store(
        &mut self,
        storage: &Storage<'_>,
        stored: Result<(Stored, usize), CacheError>,
    ) {
        match (stored, storage) {
            (Ok((stored, len)), Storage::Meta(set)) => set.reply(stored, len, self.out),
            (Ok((stored, _)), Storage::Text(_)) => {
                let reply: &[u8] = match stored.outcome {
                    StoreOutcome::Stored => b"STORED\r\n",
                    StoreOutcome::NotStored => b"NOT_STORED\r\n",
                    StoreOutcome::Exists => b"EXISTS\r\n",
                    StoreOutcome::NotFound => b"NOT_FOUND\r\n",
                };
                self.reply(reply, storage.noreply());
            }
            (Err(error), _) => self.failed(&error, storage.noreply()),
        }
    }

    fn delete(&mut self, key: &[u8], noreply: bool) {
        match (Delete { key, ..Delete::default() }).execute(self.context) {
            Ok(DeleteOutcome::Done) => self.reply(b"DELETED\r\n", noreply),
            Ok(_) => self.reply(b"NOT_FOUND\r\n", noreply),
            Err(error) => self.failed(&error, noreply),
        }
    }

    fn arithmetic(&mut self, delta: &Delta<'_>, noreply: bool) {
        match delta.execute(self.context) {
            Ok(DeltaOutcome::Changed(_)) if noreply => {}
            Ok(DeltaOutcome::Changed(Counter { number, .. })) => {
                number::append(number, self.out);
                self.out.extend_from_slice(b"\r\n");
            }
            Ok(DeltaOutcome::NonNumeric) => self.reply(
                b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
                noreply,
            ),
            Ok(_) => self.reply(b"NOT_FOUND\r\n", noreply),
            Err(error) => self.failed(&error, noreply),
        }
    }

    fn touch(&mut self, key: &[u8], exptime: i64, noreply: bool) {
        match self.context.touch(key, expiry(exptime, self.context.now)) {
            Ok(true) => self.reply(b"TOUCHED\r\n", noreply),
            Ok(false) => self.reply(b"NOT_FOUND\r\n", noreply),
            Err(error) => self.failed(&error, noreply),
        }
    }

    fn flush_all(&mut self, delay: i64, noreply: bool) {
        match self.context.flush_all(expiry(delay, self.context.now)) {
            None => self.reply(b"CLIENT_ERROR flush_all not allowed\r\n", noreply),
            Some(Ok(())) => self.reply(b"OK\r\n", noreply),
            Some(Err(error)) => self.failed(&error, noreply),
        }
    }

    fn flush_namespace(&mut self, prefix: &[u8], noreply: bool) {
        match self.context.flush_namespace(prefix) {
            None => self.reply(b"CLIENT_ERROR flush_namespace not allowed\r\n", noreply),
            Some(Ok(true)) => self.reply(b"OK\r\n", noreply),
            Some(Ok(false)) => self.reply(b"NOT_FOUND\r\n", noreply),
            Some(Err(error)) => self.failed(&error, noreply),
        }
    }

    fn stats(&mut self, which: Stats) {
        let host = self.context.host;
        let mut each = |name: &str, value: &dyn Display| reply::stat(name, value, self.out);
        match which {
            Stats::General => stats::general(self.context, &mut each),
            Stats::Settings => stats::settings(self.context, &mut each),
            Stats::Sizes => each("sizes_status", &"disabled"),
            Stats::Items => return self.stats_of(|cache, each| cache.item_stats(each)),
            Stats::Slabs => return self.stats_of(|cache, each| cache.slab_stats(each)),
            Stats::Cost => return self.stats_of(|cache, each| cache.cost_stats(each)),
            Stats::Namespaces => self.context.cache.namespace_stats(&mut each),
            Stats::Keys { class, limit } => return self.keys_of_class(class, limit),
            Stats::Connections => host.connections(&mut each),
            Stats::Latency => host.latencies(&mut each),
            Stats::HotKeys => host.hot_keys(&mut each),
            Stats::Absent => {}
            Stats::Detail(Detail::Dump) => {
                host.prefixes(&mut |prefix, counts| reply::prefix(prefix, counts, self.out));
            }
            Stats::Detail(detail) => {
                host.set_detail(detail == Detail::On);
                return self.reply(b"OK\r\n", false);
            }
            Stats::Reset => {
                host.reset();
                return self.reply(b"RESET\r\n", false);
            }
        }
        self.reply(b"END\r\n", false);
    }

    /// Appends statistics that the cache has to compute.
    fn stats_of(&mut self, compute: fn(&dyn Cache, &mut EachStat<'_>) -> Result<(), CacheError>) {
        let before = self.out.len();
        let out = &mut *self.out;
        let done = compute(self.context.cache, &mut |name, value| reply::stat(name, value, out));
        self.end_list(before, done);
    }

    fn keys_of_class(&mut self, class: usize, limit: u64) {
        if !self.context.host.allows(Restricted::Dump) {
            return self.reply(b"CLIENT_ERROR stats cachedump not allowed\r\n", false);
        }
        let before = self.out.len();
        let done = dump::append_keys(class, limit, self.context, self.out);
        self.end_list(before, done);
    }

    /// Ends a list that began at `before`, or replaces it by an error.
    fn end_list(&mut self, before: usize, done: Result<(), CacheError>) {
        match done {
            Ok(()) => self.out.extend_from_slice(b"END\r\n"),
            Err(error) => {
                self.out.truncate(before);
                self.failed(&error, false);
            }
        }
    }

    /// Appends the next part of a list of items.
    fn dump(&mut self, dump: Dump) -> Step {
        if self.out.len() >= self.context.output_limit {
            return ControlFlow::Break(Next::Resume);
        }
        let before = self.out.len();
        self.text.state = match dump.next_page(self.context, self.out) {
            Ok(Some(rest)) => State::Dump(rest),
            Ok(None) => State::Line,
            Err(error) => {
                self.out.truncate(before);
                self.failed(&error, false);
                State::Line
            }
        };
        CONTINUE
    }

    fn set_limit(&mut self, megabytes: u64, noreply: bool) {
        match self.context.cache.set_memory_limit(megabytes << 20) {
            Ok(()) => self.reply(b"OK\r\n", noreply),
            Err(_) => {
                self.reply(b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n", noreply)
            }
        }
    }

    fn shutdown(&mut self, graceful: bool) -> Step {
        if self.context.host.shutdown(graceful) {
            return ControlFlow::Break(Next::Close);
        }
        self.reply(b"SERVER_ERROR: shutdown not enabled\r\n", false);
        CONTINUE
    }

    fn refresh_certs(&mut self) {
        match self.context.host.refresh_certs() {
            // Without certificates, the command does not exist.
            None => self.reply(b"ERROR\r\n", false),
            Some(Ok(())) => self.reply(b"OK\r\n", false),
            Some(Err(error)) => self.failed(&CacheError::Other(error), false),
        }
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

/// Returns the number of bytes of the data block that follows a line, as far as the line says it.
pub(super) fn block_len(line: &[u8]) -> usize {
    match parse::parse(line, KEY_MAX) {
        Ok(Request::Store(storage)) => storage.len() + 2,
        Err(Rejected { after: AfterReject::Skip(block), .. }) => block,
        _ => 0,
    }
}

/// Returns the line at the start of `input`, or [`Line::TooLong`] if it exceeds the limit of its
/// command.
fn first_line<'a>(input: &'a [u8], scanned: usize, context: &Context<'_>) -> Line<'a> {
    let line = line_at(input, scanned);
    let before_end = match line {
        Line::Complete { len, .. } => len - 1,
        _ => input.len(),
    };
    // What longer keys may add.
    let line_max = LINE_MAX + (context.key_size_max - KEY_MAX);
    if before_end <= line_max || before_end <= KEY_LIST_MAX && parse::lists_keys(input) {
        line
    } else {
        Line::TooLong
    }
}

/// Returns the line at the start of `input`, whose first `scanned` bytes are known to contain no
/// line feed.
fn line_at(input: &[u8], scanned: usize) -> Line<'_> {
    match memchr(b'\n', &input[scanned..]) {
        None => Line::Unfinished,
        Some(at) => {
            let end = scanned + at;
            let line = &input[..end];
            Line::Complete { line: line.strip_suffix(b"\r").unwrap_or(line), len: end + 1 }
        }
    }
}
