//! The meta protocol: commands of two letters whose flags say what is changed and what is returned.
//!
//! Its lines and data blocks mix freely with those of the text protocol, whose state machine reads
//! both. Here is what is particular to it: the grammar of the flags ([`request`]) and the execution
//! of the commands, one module each. The flags that are returned have the order of the request, so
//! a reply is written by going through the request once more.
//!
//! Two marks of an item ([`Marks`](crate::cache::Marks)) let clients agree which of them stores a
//! new value: mg tells one client that it has *won*, and the others that another client has, until
//! the value is stored. An item that md has marked as *stale* is still returned meanwhile.

mod arithmetic;
mod debug;
mod delete;
mod get;
mod reply;
mod request;
mod set;

use crate::protocol::Context;
use crate::protocol::line::{Rejected, Words};
use crate::stats::Count;

pub(super) use get::{hit, miss, wins};
pub(super) use reply::append_key;
pub(super) use request::{Plan, Request};
pub(super) use set::Set;

/// A parsed line without a data block.
#[derive(Debug)]
pub(super) enum Command<'a> {
    Get(Request<'a>),
    Delete(Request<'a>),
    Arithmetic(Request<'a>),
    Debug(Request<'a>),
    Noop,
}

/// The reply to any mistake in the flags of ma, which memcached does not tell apart there.
const BAD_FLAGS: &[u8] = b"CLIENT_ERROR invalid or duplicate flag\r\n";
/// The maximum number of words of a line of mg, ms, md and ma.
const WORDS_MAX: usize = 20;

impl<'a> Command<'a> {
    /// Parses the words after mg.
    pub(super) fn get(words: Words<'a>) -> Result<Self, Rejected> {
        Ok(Command::Get(Request::parse(words, Some(WORDS_MAX - 1))?))
    }

    /// Parses the words after md.
    pub(super) fn delete(words: Words<'a>) -> Result<Self, Rejected> {
        Ok(Command::Delete(Request::parse(words, Some(WORDS_MAX - 1))?))
    }

    /// Parses the words after ma.
    pub(super) fn arithmetic(words: Words<'a>) -> Result<Self, Rejected> {
        let key_is_valid = words.clone().next().is_some_and(|key| words.allow_key(key));
        let request = Request::parse(words, Some(WORDS_MAX - 1))
            .map_err(|rejected| if key_is_valid { BAD_FLAGS.into() } else { rejected })?;
        arithmetic::check(&request)?;
        Ok(Command::Arithmetic(request))
    }

    /// Parses the words after me.
    pub(super) fn debug(words: Words<'a>) -> Result<Self, Rejected> {
        Ok(Command::Debug(Request::parse_key(words)?))
    }

    /// Executes the command and appends the reply.
    pub(super) fn execute(&self, context: &Context<'_>, out: &mut Vec<u8>) {
        if let Command::Get(request) = self {
            return get(request, context, out);
        }
        context.counters.add(Count::CmdMeta, 1);
        match self {
            Command::Get(_) => {}
            Command::Delete(request) => delete::execute(request, context, out),
            Command::Arithmetic(request) => arithmetic::execute(request, context, out),
            Command::Debug(request) => debug::execute(request, context, out),
            Command::Noop => out.extend_from_slice(b"MN\r\n"),
        }
    }
}

/// Executes mg on its own, and appends the reply.
pub(super) fn get(request: &Request<'_>, context: &Context<'_>, out: &mut Vec<u8>) {
    context.counters.add(Count::CmdMeta, 1);
    get::execute(request, context, out);
}
