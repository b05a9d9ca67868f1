//! Keys collected from consecutive get commands, to be looked up together.

use std::ops::{ControlFlow, Range};

use crate::cache::{BATCH_KEYS, CacheError};
use crate::latency::Command;
use crate::protocol::{Context, reply};
use crate::stats::Count;
use crate::watch::Topic;

/// At most [`BATCH_KEYS`] keys, each with its context.
pub(super) struct Batch<'a> {
    keys: [&'a [u8]; BATCH_KEYS],
    contexts: [KeyContext; BATCH_KEYS],
    len: usize,
}

/// The position of a key in its command and in the input.
#[derive(Clone, Copy, Default)]
pub(super) struct KeyContext {
    /// Where the input continues after this key, or after its line if the key is the last one.
    pub(super) resume_at: usize,
    /// Whether the reply contains the CAS id.
    pub(super) with_cas: bool,
    /// Whether this is the last key of its command.
    pub(super) last: bool,
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

impl<'a> Batch<'a> {
    pub(super) fn new() -> Self {
        Batch { keys: [&[]; BATCH_KEYS], contexts: [KeyContext::default(); BATCH_KEYS], len: 0 }
    }

    pub(super) fn is_full(&self) -> bool {
        self.len == BATCH_KEYS
    }

    /// Adds a key.
    ///
    /// # Panics
    /// If the batch is full.
    pub(super) fn push(&mut self, key: &'a [u8], context: KeyContext) {
        self.keys[self.len] = key;
        self.contexts[self.len] = context;
        self.len += 1;
    }

    /// Looks up the keys, appends the replies, and empties the batch.
    pub(super) fn execute(&mut self, context: &Context<'_>, out: &mut Vec<u8>) -> BatchOutcome {
        let len = std::mem::take(&mut self.len);
        if len == 0 {
            return BatchOutcome::Complete;
        }
        let before = out.len();
        match self.look_up(0..len, context, out) {
            Ok(outcome) => outcome,
            Err(_) => {
                // At least one key cannot be looked up. Only the commands with such a key fail.
                out.truncate(before);
                self.execute_each_command(len, context, out)
            }
        }
    }

    /// Looks up the first `len` keys with one lookup for each command.
    #[cold]
    fn execute_each_command(
        &self,
        len: usize,
        context: &Context<'_>,
        out: &mut Vec<u8>,
    ) -> BatchOutcome {
        let mut start = 0;
        while start < len {
            let last = self.contexts[start..len].iter().position(|key| key.last);
            let end = last.map_or(len, |last| start + last + 1);
            let before = out.len();
            match self.look_up(start..end, context, out) {
                Ok(BatchOutcome::Complete) => {}
                Ok(other) => return other,
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

    /// Looks up the keys in `range` with one lookup and appends the replies.
    ///
    /// # Errors
    /// If a key cannot be looked up. The caller removes what was appended to `out` until then.
    fn look_up(
        &self,
        range: Range<usize>,
        context: &Context<'_>,
        out: &mut Vec<u8>,
    ) -> Result<BatchOutcome, CacheError> {
        let (mut hits, mut done) = (0, range.start);
        let mut full = false;
        context.cache.get_many(&self.keys[range.clone()], &mut |i, item| {
            let at = range.start + i;
            self.end_commands(done..at, out);
            self.report_misses(done..at, context);
            reply::value(self.keys[at], &item, self.contexts[at].with_cas, out)?;
            self.end_commands(at..at + 1, out);
            context.fetched(self.keys[at], Some(&item));
            done = at + 1;
            hits += 1;
            full = out.len() >= context.output_limit;
            Ok(if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        if !full {
            self.end_commands(done..range.end, out);
            self.report_misses(done..range.end, context);
            done = range.end;
        }
        let keys = (done - range.start) as u64;
        context.counters.add(Count::CmdGet, keys);
        context.counters.add(Count::GetHits, hits);
        context.counters.add(Count::GetMisses, keys - hits);
        context.executed(Command::Get, keys);
        Ok(match full {
            true => BatchOutcome::OutputFull(self.contexts[done - 1]),
            false => BatchOutcome::Complete,
        })
    }

    /// Reports the keys in `range` as not found.
    fn report_misses(&self, range: Range<usize>, context: &Context<'_>) {
        if context.watch.wants(Topic::FETCHES) {
            for key in &self.keys[range] {
                context.fetched(key, None);
            }
        }
    }

    /// Appends `END` for each command whose last key is in `range`.
    fn end_commands(&self, range: Range<usize>, out: &mut Vec<u8>) {
        for key in &self.contexts[range] {
            if key.last {
                out.extend_from_slice(b"END\r\n");
            }
        }
    }
}
