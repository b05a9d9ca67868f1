//! md: removes an item, its value, or only the trust in its value.

use super::reply::append_code;
use super::request::Request;
use crate::protocol::ops::{Delete, DeleteOutcome, Rest};
use crate::protocol::{Context, reply};

/// Executes md.
pub(super) fn execute(request: &Request<'_>, context: &Context<'_>, out: &mut Vec<u8>) {
    let Request { key, plan, tokens } = request;
    // With `x` only the key stays. With `I` the value stays until a client stores a new one; the
    // next that reads it wins. It gets a new CAS id, so that nothing that was read before can be
    // stored as current.
    let (stale, empty) = (plan.has(b'I'), plan.has(b'x'));
    let rest = match stale || empty {
        false => Rest::Nothing,
        true => Rest::Version {
            stale,
            emptied: empty.then_some(tokens.flags),
            expiry: request.ttl(context.now),
            new_cas: tokens.new_cas,
        },
    };
    let delete = Delete { key, compare: tokens.compare, rest, meta: true };
    match delete.execute(context) {
        // Only success is not worth a reply in quiet mode.
        Ok(DeleteOutcome::Done) if plan.has(b'q') => {}
        Ok(DeleteOutcome::Done) => append_code(b"HD", plan, out),
        Ok(DeleteOutcome::OtherVersion) => append_code(b"EX", plan, out),
        Ok(DeleteOutcome::NotFound) => append_code(b"NF", plan, out),
        Err(error) => reply::cache_error(&error, out),
    }
}
