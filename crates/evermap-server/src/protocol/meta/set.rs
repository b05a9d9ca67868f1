//! ms: stores an item.

use super::reply::{append_number, append_repeated};
use super::request::Request;
use super::{Plan, WORDS_MAX};
use crate::cache::{
    CacheError, Item, Marks, Side, StoreMode, StoreOutcome, StoreRequest, Stored, Update,
};
use crate::latency::Command;
use crate::protocol::exptime::expiry;
use crate::protocol::line::{AfterReject, BAD_FORMAT, Rejected, Words, block};
use crate::protocol::{Context, ITEM_OVERHEAD};
use crate::stats::Count;
use crate::watch::{StoreCommand, StoreStatus};

const BAD_MODE: &[u8] = b"CLIENT_ERROR invalid mode for ms M token\r\n";

/// The line of ms.
#[derive(Clone, Debug)]
pub(in crate::protocol) struct Set<'a> {
    pub(in crate::protocol) request: Request<'a>,
    /// The length of the value, in bytes. The data block is two bytes longer.
    pub(in crate::protocol) len: usize,
    mode: Mode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Set,
    Add,
    Replace,
    Concat(Side),
}

impl<'a> Set<'a> {
    /// Parses the words after ms.
    ///
    /// # Errors
    /// The data block of a rejected command is read and dropped. If its length is not known, the
    /// connection has to be closed, because the block could be taken for commands.
    pub(in crate::protocol) fn parse(mut words: Words<'a>) -> Result<Self, Rejected> {
        let (Some(key), Some(block)) = (words.next(), words.next().and_then(block)) else {
            return Err(Rejected { reply: BAD_FORMAT, noreply: false, after: AfterReject::Close });
        };
        Set::parse_flags(key, block - 2, words).map_err(|reply| Rejected {
            reply,
            noreply: false,
            after: AfterReject::Skip(block),
        })
    }

    fn parse_flags(key: &'a [u8], len: usize, words: Words<'a>) -> Result<Self, &'static [u8]> {
        let request = Request::parse_flags(key, words, Some(WORDS_MAX - 3))?;
        let mode = match request.tokens.mode {
            None | Some(b'S') => Mode::Set,
            Some(b'E') => Mode::Add,
            Some(b'R') => Mode::Replace,
            Some(b'A') => Mode::Concat(Side::Append),
            Some(b'P') => Mode::Concat(Side::Prepend),
            Some(_) => return Err(BAD_MODE),
        };
        Ok(Set { request, len, mode })
    }

    /// Returns `true` if the client means to replace the item unconditionally.
    pub(in crate::protocol) fn is_set(&self) -> bool {
        self.mode == Mode::Set && self.request.tokens.compare.is_none()
    }

    /// Returns the name of the command in log streams.
    pub(in crate::protocol) fn command(&self) -> StoreCommand {
        match self.mode {
            Mode::Set | Mode::Replace if self.request.tokens.compare.is_some() => StoreCommand::Cas,
            Mode::Set => StoreCommand::Set,
            Mode::Add => StoreCommand::Add,
            Mode::Replace => StoreCommand::Replace,
            Mode::Concat(Side::Append) => StoreCommand::Append,
            Mode::Concat(Side::Prepend) => StoreCommand::Prepend,
        }
    }

    /// Stores the value that has arrived, and appends the reply.
    ///
    /// # Errors
    /// If the store fails. `out` is unchanged then.
    pub(in crate::protocol) fn execute(
        &self,
        value: &[u8],
        context: &Context<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), CacheError> {
        context.counters.add(Count::CmdMeta, 1);
        context.executed(Command::MetaSet, 1);
        let (stored, len) = self.store(value, context)?;
        let status = StoreStatus::from(stored.outcome);
        let expiry = self.request.ttl(context.now).unwrap_or(0);
        context.stored(&self.request.key, self.command(), status, expiry, len);
        if self.compares() {
            count_compared(stored.outcome, context);
        }
        self.reply(stored, len, out);
        Ok(())
    }

    /// Returns `true` if the CAS id is compared. An item that is only added has none.
    fn compares(&self) -> bool {
        self.request.tokens.compare.is_some() && self.mode != Mode::Add
    }

    /// Stores the value. Returns the result with the length that the value of the item has.
    fn store(&self, value: &[u8], context: &Context<'_>) -> Result<(Stored, usize), CacheError> {
        let Request { key, plan, tokens } = &self.request;
        let Context { cache, now, .. } = *context;
        let put = |mode| {
            let expiry = self.request.ttl(now).unwrap_or(0);
            let request = StoreRequest { flags: tokens.flags, expiry, mode, cas: tokens.new_cas };
            cache.store(key, value, &request).map(|stored| (stored, value.len()))
        };
        match (self.mode, tokens.compare) {
            (Mode::Add, _) => put(StoreMode::Add),
            (Mode::Set, None) => put(StoreMode::Set),
            (Mode::Replace, None) => put(StoreMode::Replace),
            // With `I`, an older CAS id is good enough to store a stale value.
            (Mode::Set | Mode::Replace, Some(cas)) if plan.has(b'I') => {
                let stored = self.store_or_invalidate(value, cas, context)?;
                Ok((stored, value.len()))
            }
            (Mode::Set | Mode::Replace, Some(cas)) => put(StoreMode::Cas(cas)),
            (Mode::Concat(side), _) if self.is_plain_concat() => {
                let stored = cache.concat(key, value, side, self.value_max(context))?;
                let status = StoreStatus::from(stored.outcome);
                Ok((stored, context.len_after_concat(key, value.len(), status)))
            }
            (Mode::Concat(side), _) => self.concat(value, side, context),
        }
    }

    /// Returns `true` if data is added to an item without any condition, and the client does not
    /// ask how long the item is then.
    fn is_plain_concat(&self) -> bool {
        ![b'C', b'E', b'N', b's'].iter().any(|&flag| self.request.plan.has(flag))
    }

    /// Returns the length that a value with this key may have.
    fn value_max(&self, context: &Context<'_>) -> usize {
        (context.item_size_max - ITEM_OVERHEAD).saturating_sub(self.request.key.len())
    }

    /// Stores the value if the CAS id of the item is `expected`. If it is greater, the item has
    /// been invalidated or replaced since the client read it: then the value is stored as a stale
    /// one, which another client will replace.
    fn store_or_invalidate(
        &self,
        value: &[u8],
        expected: u64,
        context: &Context<'_>,
    ) -> Result<Stored, CacheError> {
        let Request { key, tokens, .. } = &self.request;
        let ttl = self.request.ttl(context.now).unwrap_or(0);
        let mut outcome = StoreOutcome::NotFound;
        let cas = context.cache.update(key, &mut |item| {
            let (decided, expiry, marks) = match item {
                None => (StoreOutcome::NotFound, 0, Marks::default()),
                Some(item) if item.cas == expected => (StoreOutcome::Stored, ttl, Marks::default()),
                // The time to live is still that of the value that was invalidated.
                Some(item) if item.cas > expected => {
                    (StoreOutcome::Stored, item.expiry, Marks { stale: true, ..item.marks })
                }
                Some(_) => (StoreOutcome::Exists, 0, Marks::default()),
            };
            outcome = decided;
            if outcome != StoreOutcome::Stored {
                return Ok(Update::Keep);
            }
            let (value, flags, cas) = (value.to_vec(), tokens.flags, tokens.new_cas);
            Ok(Update::Put { value, flags, expiry, marks, cas })
        })?;
        Ok(stored(outcome, cas))
    }

    /// Adds data to an item under a condition, or creates it. Returns the length of the value too.
    fn concat(
        &self,
        data: &[u8],
        side: Side,
        context: &Context<'_>,
    ) -> Result<(Stored, usize), CacheError> {
        let Request { key, tokens, .. } = &self.request;
        let value_max = self.value_max(context);
        let (mut outcome, mut len) = (StoreOutcome::NotStored, data.len());
        let cas = context.cache.update(key, &mut |item| {
            (outcome, len) = (StoreOutcome::NotStored, data.len());
            let Some(item) = item else {
                // The item is created as if it were set, with the time to live of `N`.
                let Some(ttl) = tokens.vivify else { return Ok(Update::Keep) };
                outcome = StoreOutcome::Stored;
                return Ok(Update::Put {
                    value: data.to_vec(),
                    flags: tokens.flags,
                    expiry: expiry(ttl, context.now),
                    marks: Marks::default(),
                    cas: tokens.new_cas,
                });
            };
            if tokens.compare.is_some_and(|cas| cas != item.cas) {
                outcome = StoreOutcome::Exists;
                return Ok(Update::Keep);
            }
            let value = joined(item, data, side, value_max)?;
            (outcome, len) = (StoreOutcome::Stored, value.len());
            let Item { flags, expiry, marks, .. } = *item;
            Ok(Update::Put { value, flags, expiry, marks, cas: tokens.new_cas })
        })?;
        Ok((stored(outcome, cas), len))
    }

    /// Appends the reply. `len` is the length of the value.
    fn reply(&self, stored: Stored, len: usize, out: &mut Vec<u8>) {
        let plan: &Plan<'_> = &self.request.plan;
        let code: &[u8] = match stored.outcome {
            // Only success is not worth a reply in quiet mode.
            StoreOutcome::Stored if plan.has(b'q') => return,
            StoreOutcome::Stored => b"HD",
            StoreOutcome::NotStored => b"NS",
            StoreOutcome::Exists => b"EX",
            StoreOutcome::NotFound => b"NF",
        };
        out.extend_from_slice(code);
        for (flag, token) in plan.flags() {
            match flag {
                b'c' => append_number(b'c', stored.cas, out),
                b's' => append_number(b's', len as u64, out),
                _ => append_repeated(plan, flag, token, out),
            }
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// Returns a result with the CAS id that the item has if it is stored.
fn stored(outcome: StoreOutcome, cas: Option<u64>) -> Stored {
    let cas = cas.filter(|_| outcome == StoreOutcome::Stored).unwrap_or(0);
    Stored { outcome, cas }
}

/// Returns the value of `item` with `data` on one side of it.
fn joined(
    item: &Item<'_>,
    data: &[u8],
    side: Side,
    value_max: usize,
) -> Result<Vec<u8>, CacheError> {
    if item.value.len().saturating_add(data.len()) > value_max {
        return Err(CacheError::TooLarge);
    }
    let mut value = Vec::new();
    if side == Side::Prepend {
        value.extend_from_slice(data);
    }
    item.value.append_to(&mut value)?;
    if side == Side::Append {
        value.extend_from_slice(data);
    }
    Ok(value)
}

fn count_compared(outcome: StoreOutcome, context: &Context<'_>) {
    let count = match outcome {
        StoreOutcome::Stored => Count::CasHits,
        StoreOutcome::Exists => Count::CasBadval,
        StoreOutcome::NotFound => Count::CasMisses,
        StoreOutcome::NotStored => return,
    };
    context.counters.add(count, 1);
}
