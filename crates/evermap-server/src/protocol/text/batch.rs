//! Keys collected from consecutive get and mg commands, to be looked up together.

use std::borrow::Cow;
use std::ops::{ControlFlow, Range};

use crate::cache::{BATCH_KEYS, CacheError};
use crate::latency::Command;
use crate::protocol::meta::{self, Plan, Request};
use crate::protocol::{Context, reply};
use crate::stats::Count;
use crate::watch::Topic;

// The number of an mg in its batch fits `KeyContext::meta`.
const _: () = assert!(BATCH_KEYS <= 1 << u8::BITS);

/// At most [`BATCH_KEYS`] keys, each with its context.
pub(super) struct Batch<'a> {
    keys: [&'a [u8]; BATCH_KEYS],
    contexts: [KeyContext; BATCH_KEYS],
    len: usize,
    /// The commands of mg, with the positions of their keys. The keys are here and not in `keys` if
    /// they were written in base64.
    metas: Vec<(usize, Request<'a>)>,
}

/// The position of a key in its command and in the input. Small, because an array of them is
/// initialized for each read from a socket.
#[derive(Clone, Copy, Default)]
pub(super) struct KeyContext {
    /// Where the input continues after this key, or after its line if the key is the last one.
    pub(super) resume_at: usize,
    /// Whether the reply contains the CAS id.
    pub(super) with_cas: bool,
    /// Whether this is the last key of its command.
    pub(super) last: bool,
    /// The number of its mg in the batch; `None` for get and gets.
    meta: Option<u8>,
}

/// The result of executing a batch.
pub(super) enum BatchOutcome {
    /// The replies to all keys are written.
    Complete,
    /// The reply buffer was full after the key with this context. The keys after it have to be
    /// collected again.
    OutputFull(KeyContext),
    /// The lookup failed in a command that has more keys than the batch. The error is the reply to
    /// that command, and the rest of its line has to be skipped.
    Failed,
}

/// How far a lookup got.
enum Reached {
    /// The replies to all keys are written.
    End,
    /// The reply buffer was full after the key at this position.
    Full(usize),
    /// The mg at this position wins its item, so it has to be executed on its own. The replies to
    /// the keys before it are written.
    Win(usize),
}

impl KeyContext {
    /// Returns the context of a key of get or gets.
    pub(super) fn new(resume_at: usize, with_cas: bool, last: bool) -> Self {
        KeyContext { resume_at, with_cas, last, meta: None }
    }
}

impl<'a> Batch<'a> {
    pub(super) fn new() -> Self {
        Batch {
            keys: [&[]; BATCH_KEYS],
            contexts: [KeyContext::default(); BATCH_KEYS],
            len: 0,
            metas: Vec::new(),
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.len == BATCH_KEYS
    }

    /// Adds a key of get or gets.
    ///
    /// # Panics
    /// If the batch is full.
    pub(super) fn push(&mut self, key: &'a [u8], context: KeyContext) {
        self.keys[self.len] = key;
        self.contexts[self.len] = context;
        self.len += 1;
    }

    /// Adds the key of an mg that [only looks it up](Request::only_looks_up). The input continues
    /// at `resume_at` after its line.
    ///
    /// # Panics
    /// If the batch is full.
    pub(super) fn push_meta(&mut self, request: Request<'a>, resume_at: usize) {
        let key = match request.key {
            Cow::Borrowed(key) => key,
            Cow::Owned(_) => &[],
        };
        let meta = Some(self.metas.len() as u8);
        self.metas.push((self.len, request));
        self.push(key, KeyContext { resume_at, with_cas: false, last: true, meta });
    }

    /// Looks up the keys, appends the replies, and empties the batch.
    pub(super) fn execute(&mut self, context: &Context<'_>, out: &mut Vec<u8>) -> BatchOutcome {
        let len = std::mem::take(&mut self.len);
        if len == 0 {
            return BatchOutcome::Complete;
        }
        let metas = std::mem::take(&mut self.metas);
        let mut decoded;
        let keys = if metas.is_empty() {
            &self.keys
        } else {
            decoded = self.keys;
            for (at, request) in &metas {
                decoded[*at] = &request.key;
            }
            &decoded
        };
        let run = Run { keys, contexts: &self.contexts, metas: &metas, context };
        run.execute(len, out)
    }
}

/// The execution of a batch.
struct Run<'r, 'a> {
    keys: &'r [&'r [u8]; BATCH_KEYS],
    contexts: &'r [KeyContext; BATCH_KEYS],
    metas: &'r [(usize, Request<'a>)],
    context: &'r Context<'r>,
}

impl Run<'_, '_> {
    /// Returns what mg asks for, if this is the context of its key.
    fn plan(&self, key: &KeyContext) -> Option<&Plan<'_>> {
        key.meta.map(|number| &self.metas[usize::from(number)].1.plan)
    }

    /// Looks up the first `len` keys and appends the replies.
    fn execute(&self, len: usize, out: &mut Vec<u8>) -> BatchOutcome {
        let mut start = 0;
        while start < len {
            let before = out.len();
            match self.look_up(start..len, out) {
                Ok(Reached::End) => break,
                Ok(Reached::Full(at)) => return BatchOutcome::OutputFull(self.contexts[at]),
                Ok(Reached::Win(at)) => {
                    self.win(at, out);
                    start = at + 1;
                    if out.len() >= self.context.output_limit {
                        return BatchOutcome::OutputFull(self.contexts[at]);
                    }
                }
                Err(_) => {
                    // At least one key cannot be looked up. Only the commands with such a key fail.
                    out.truncate(before);
                    return self.execute_each_command(start..len, out);
                }
            }
        }
        BatchOutcome::Complete
    }

    /// Looks up the keys in `range` with one lookup for each command.
    #[cold]
    fn execute_each_command(&self, range: Range<usize>, out: &mut Vec<u8>) -> BatchOutcome {
        let Range { mut start, end: len } = range;
        while start < len {
            let last = self.contexts[start..len].iter().position(|key| key.last);
            let end = last.map_or(len, |last| start + last + 1);
            let before = out.len();
            match self.look_up(start..end, out) {
                Ok(Reached::End) => {}
                Ok(Reached::Full(at)) => return BatchOutcome::OutputFull(self.contexts[at]),
                Ok(Reached::Win(at)) => self.win(at, out),
                Err(error) => {
                    out.truncate(before);
                    reply::cache_error(&error, out);
                    if last.is_none() {
                        return BatchOutcome::Failed;
                    }
                }
            }
            start = end;
        }
        BatchOutcome::Complete
    }

    /// Executes the mg at this position on its own. It has one key, so it is complete afterwards.
    #[cold]
    fn win(&self, at: usize, out: &mut Vec<u8>) {
        if let Some(number) = self.contexts[at].meta {
            meta::get(&self.metas[usize::from(number)].1, self.context, out);
        }
    }

    /// Looks up the keys in `range` with one lookup and appends the replies.
    ///
    /// # Errors
    /// If a key cannot be looked up. The caller removes what was appended to `out` until then.
    fn look_up(&self, range: Range<usize>, out: &mut Vec<u8>) -> Result<Reached, CacheError> {
        let (mut hits, mut done) = (0, range.start);
        let mut reached = Reached::End;
        self.context.cache.get_many(&self.keys[range.clone()], &mut |i, item| {
            let at = range.start + i;
            self.end_keys(done..at, out);
            done = at;
            match self.plan(&self.contexts[at]) {
                // This request must tell the client to store a new value, and no other client.
                Some(_) if meta::wins(item.marks) => {
                    reached = Reached::Win(at);
                    return Ok(ControlFlow::Break(()));
                }
                Some(plan) => meta::hit(plan, &item, self.context.now, out)?,
                None => {
                    reply::value(self.keys[at], &item, self.contexts[at].with_cas, out)?;
                    if self.contexts[at].last {
                        out.extend_from_slice(b"END\r\n");
                    }
                }
            }
            self.context.fetched(self.keys[at], Some(&item));
            done = at + 1;
            hits += 1;
            if out.len() < self.context.output_limit {
                return Ok(ControlFlow::Continue(()));
            }
            reached = Reached::Full(at);
            Ok(ControlFlow::Break(()))
        })?;
        if let Reached::End = reached {
            self.end_keys(done..range.end, out);
            done = range.end;
        }
        let keys = (done - range.start) as u64;
        self.context.looked_up(keys, hits);
        let mut metas = 0;
        if !self.metas.is_empty() {
            let keys = &self.contexts[range.start..done];
            metas = keys.iter().filter(|key| key.meta.is_some()).count() as u64;
            self.context.counters.add(Count::CmdMeta, metas);
            self.context.executed(Command::MetaGet, metas);
        }
        self.context.executed(Command::Get, keys - metas);
        Ok(reached)
    }

    /// Appends what ends each command whose last key is in `range`, where no key was found.
    fn end_keys(&self, range: Range<usize>, out: &mut Vec<u8>) {
        if self.context.watch.wants(Topic::FETCHES) {
            for key in &self.keys[range.clone()] {
                self.context.fetched(key, None);
            }
        }
        for key in &self.contexts[range] {
            match self.plan(key) {
                Some(plan) => meta::miss(plan, out),
                None if key.last => out.extend_from_slice(b"END\r\n"),
                None => {}
            }
        }
    }
}
