//! Keys gathered from consecutive get commands, to be looked up at once.

use std::ops::Range;

use crate::cache::CacheError;
use crate::protocol::{Context, reply};
use crate::stats::Count;

/// Most keys in one lookup: more than a core can have misses under way, few enough for the answers to be
/// used while they are in the cache.
const KEYS_MAX: usize = 32;

/// The keys that wait, and what belongs to each.
pub(super) struct Batch<'a> {
    keys: [&'a [u8]; KEYS_MAX],
    marks: [Mark; KEYS_MAX],
    len: usize,
}

/// What belongs to a key.
#[derive(Clone, Copy, Default)]
pub(super) struct Mark {
    /// Where the input goes on after this key, or after its line if it is the last.
    pub(super) resume_at: usize,
    /// Whether the reply tells the CAS id.
    pub(super) with_cas: bool,
    /// Whether this is the last key of its command.
    pub(super) last: bool,
}

/// How answering a batch ended.
pub(super) enum Answered {
    /// All keys are answered.
    Whole,
    /// The replies are full after the key with this mark; those behind it have to be gathered anew.
    Until(Mark),
    /// The lookup failed in a command that goes on beyond the batch: the rest of its line is void.
    Failed,
}

impl<'a> Batch<'a> {
    pub(super) fn new() -> Self {
        Batch { keys: [&[]; KEYS_MAX], marks: [Mark::default(); KEYS_MAX], len: 0 }
    }

    pub(super) fn is_full(&self) -> bool {
        self.len == KEYS_MAX
    }

    /// Adds a key.
    ///
    /// # Panics
    /// If the batch is full.
    pub(super) fn push(&mut self, key: &'a [u8], mark: Mark) {
        self.keys[self.len] = key;
        self.marks[self.len] = mark;
        self.len += 1;
    }

    /// Looks up the keys, appends the replies, and leaves the batch empty.
    pub(super) fn answer(&mut self, context: &Context<'_>, out: &mut Vec<u8>) -> Answered {
        let len = std::mem::take(&mut self.len);
        if len == 0 {
            return Answered::Whole;
        }
        let before = out.len();
        match self.look_up(0..len, context, out) {
            Ok(answered) => answered,
            Err(_) => {
                // Some key cannot be looked up. Let only the commands suffer that asked for such a one.
                out.truncate(before);
                self.answer_each_command(len, context, out)
            }
        }
    }

    /// Answers the first `len` keys command by command.
    #[cold]
    fn answer_each_command(
        &self,
        len: usize,
        context: &Context<'_>,
        out: &mut Vec<u8>,
    ) -> Answered {
        let mut start = 0;
        while start < len {
            let last = self.marks[start..len].iter().position(|mark| mark.last);
            let end = last.map_or(len, |last| start + last + 1);
            let before = out.len();
            match self.look_up(start..end, context, out) {
                Ok(Answered::Whole) => {}
                Ok(other) => return other,
                Err(error) => {
                    out.truncate(before);
                    reply::cache_error(&error, out);
                    if last.is_none() {
                        return Answered::Failed;
                    }
                }
            }
            start = end;
        }
        Answered::Whole
    }

    /// Answers the keys in `range` with one lookup. What `out` received before an error has to be undone.
    fn look_up(
        &self,
        range: Range<usize>,
        context: &Context<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Answered, CacheError> {
        let (mut hits, mut answered) = (0, range.start);
        let mut full = false;
        context.cache.get_many(&self.keys[range.clone()], &mut |i, item| {
            let at = range.start + i;
            self.end_commands(answered..at, out);
            reply::value(self.keys[at], &item, self.marks[at].with_cas, out);
            self.end_commands(at..at + 1, out);
            answered = at + 1;
            hits += 1;
            full = out.len() >= context.output_limit;
            !full
        })?;
        if !full {
            self.end_commands(answered..range.end, out);
            answered = range.end;
        }
        let keys = (answered - range.start) as u64;
        context.counters.add(Count::CmdGet, keys);
        context.counters.add(Count::GetHits, hits);
        context.counters.add(Count::GetMisses, keys - hits);
        Ok(if full { Answered::Until(self.marks[answered - 1]) } else { Answered::Whole })
    }

    /// Appends `END` for each command whose last key is in `range`.
    fn end_commands(&self, range: Range<usize>, out: &mut Vec<u8>) {
        for mark in &self.marks[range] {
            if mark.last {
                out.extend_from_slice(b"END\r\n");
            }
        }
    }
}
