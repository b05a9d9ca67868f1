//! Keys collected from consecutive gets, to be looked up together.

use std::ops::{ControlFlow, Range};

use super::packet::Tag;
use super::reply::{self, Status};
use crate::cache::{BATCH_KEYS, CacheError};
use crate::latency::Command;
use crate::protocol::Context;

/// At most [`BATCH_KEYS`] keys, each with its request.
pub(super) struct Batch<'a> {
    keys: [&'a [u8]; BATCH_KEYS],
    gets: [Get; BATCH_KEYS],
    len: usize,
}

/// How the get of a key is answered.
#[derive(Clone, Copy, Default)]
pub(super) struct Get {
    pub(super) tag: Tag,
    /// Whether the reply contains the key.
    pub(super) with_key: bool,
    /// Whether there is no reply if the item does not exist.
    pub(super) quiet: bool,
    /// Where the request begins in the input.
    pub(super) start_at: usize,
}

/// The result of executing a batch.
pub(super) enum BatchOutcome {
    /// All gets are answered.
    Complete,
    /// The reply buffer is full. The gets from this position of the input on have to be collected
    /// again.
    OutputFull(usize),
}

/// How far the gets of a batch are answered, and what was found.
struct Answers<'b, 'a, 'p> {
    batch: &'b Batch<'a>,
    /// The number of gets that are answered, from the start of the batch on.
    done: usize,
    hits: u64,
    context: &'p Context<'p>,
    out: &'p mut Vec<u8>,
}

impl<'a> Batch<'a> {
    pub(super) fn new() -> Self {
        Batch { keys: [&[]; BATCH_KEYS], gets: [Get::default(); BATCH_KEYS], len: 0 }
    }

    pub(super) fn is_full(&self) -> bool {
        self.len == BATCH_KEYS
    }

    /// Adds a get.
    ///
    /// # Panics
    /// If the batch is full.
    pub(super) fn push(&mut self, key: &'a [u8], get: Get) {
        self.keys[self.len] = key;
        self.gets[self.len] = get;
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
            Ok(done) => self.outcome(done, len),
            Err(_) => {
                // At least one key cannot be looked up. Only the gets of such keys fail.
                out.truncate(before);
                self.execute_each(len, context, out)
            }
        }
    }

    fn outcome(&self, done: usize, len: usize) -> BatchOutcome {
        if done == len {
            BatchOutcome::Complete
        } else {
            BatchOutcome::OutputFull(self.gets[done].start_at)
        }
    }

    /// Looks up the first `len` keys with one lookup for each.
    #[cold]
    fn execute_each(&self, len: usize, context: &Context<'_>, out: &mut Vec<u8>) -> BatchOutcome {
        for at in 0..len {
            if out.len() >= context.output_limit {
                return self.outcome(at, len);
            }
            let before = out.len();
            if let Err(error) = self.look_up(at..at + 1, context, out) {
                out.truncate(before);
                reply::cache_error(self.gets[at].tag, &error, out);
            }
        }
        BatchOutcome::Complete
    }

    /// Looks up the keys in `range` with one lookup and appends the replies. Returns the position
    /// behind the last key that is answered, which is before the end of the range if the reply
    /// buffer is full.
    ///
    /// # Errors
    /// If a key cannot be looked up. The caller removes what was appended to `out` until then.
    fn look_up(
        &self,
        range: Range<usize>,
        context: &Context<'_>,
        out: &mut Vec<u8>,
    ) -> Result<usize, CacheError> {
        let mut answers = Answers { batch: self, done: range.start, hits: 0, context, out };
        context.cache.get_many(&self.keys[range.clone()], &mut |i, item| {
            let at = range.start + i;
            answers.misses(at);
            if answers.done < at {
                return Ok(ControlFlow::Break(()));
            }
            let key: &[u8] = if self.gets[at].with_key { self.keys[at] } else { b"" };
            reply::item(self.gets[at].tag, key, &item, answers.out)?;
            context.fetched(self.keys[at], Some(&item));
            answers.done += 1;
            answers.hits += 1;
            Ok(if answers.is_full() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        answers.misses(range.end);
        let (keys, hits) = ((answers.done - range.start) as u64, answers.hits);
        context.looked_up(keys, hits);
        context.executed(Command::Get, keys);
        Ok(answers.done)
    }
}

impl Answers<'_, '_, '_> {
    fn is_full(&self) -> bool {
        self.out.len() >= self.context.output_limit
    }

    /// Answers the gets before position `end`, whose keys were not found, until the reply buffer is
    /// full.
    fn misses(&mut self, end: usize) {
        while self.done < end && !self.is_full() {
            let Get { tag, with_key, quiet, .. } = self.batch.gets[self.done];
            self.context.fetched(self.batch.keys[self.done], None);
            match (quiet, with_key) {
                (true, _) => {}
                (false, true) => reply::missing_key(tag, self.batch.keys[self.done], self.out),
                (false, false) => reply::error(tag, Status::NotFound, self.out),
            }
            self.done += 1;
        }
    }
}
