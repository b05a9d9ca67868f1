//! ms: stores an item.

use super::reply::{append_number, append_repeated};
use super::request::Request;
use super::{Plan, WORDS_MAX};
use crate::cache::{Side, StoreOutcome, Stored};
use crate::protocol::line::{AfterReject, BAD_FORMAT, Rejected, Words, block};
use crate::protocol::ops::{Store, Verb};

const BAD_MODE: &[u8] = b"CLIENT_ERROR invalid mode for ms M token\r\n";

/// The line of ms.
#[derive(Clone, Debug)]
pub(in crate::protocol) struct Set<'a> {
    pub(in crate::protocol) request: Request<'a>,
    /// The length of the value, in bytes. The data block is two bytes longer.
    pub(in crate::protocol) len: usize,
    verb: Verb,
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
        let verb = match request.tokens.mode {
            None | Some(b'S') => Verb::Set,
            Some(b'E') => Verb::Add,
            Some(b'R') => Verb::Replace,
            Some(b'A') => Verb::Concat(Side::Append),
            Some(b'P') => Verb::Concat(Side::Prepend),
            Some(_) => return Err(BAD_MODE),
        };
        Ok(Set { request, len, verb })
    }

    /// Returns what is to be done.
    pub(in crate::protocol) fn store(&self, now: u32) -> Store<'_> {
        let Request { key, plan, tokens } = &self.request;
        Store {
            key,
            verb: self.verb,
            // An item that is only added has no CAS id to compare.
            compare: tokens.compare.filter(|_| self.verb != Verb::Add),
            new_cas: tokens.new_cas,
            flags: tokens.flags,
            expiry: self.request.ttl(now).unwrap_or(0),
            or_stale: plan.has(b'I'),
            create: self.request.vivify(now),
            wants_len: plan.has(b's'),
            meta: true,
        }
    }

    /// Appends the reply. `len` is the length of the value.
    pub(in crate::protocol) fn reply(&self, stored: Stored, len: usize, out: &mut Vec<u8>) {
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
