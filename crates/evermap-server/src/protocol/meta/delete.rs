//! md: removes an item, its value, or only the trust in its value.

use super::reply::append_code;
use super::request::Request;
use crate::cache::{CacheError, Item, Marks, Update};
use crate::latency::Command;
use crate::protocol::{Context, reply};
use crate::stats::Count;
use crate::watch::DeleteCommand;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    OtherVersion,
    NotFound,
}

/// Executes md.
pub(super) fn execute(request: &Request<'_>, context: &Context<'_>, out: &mut Vec<u8>) {
    let plan = &request.plan;
    let len = context.len_before_delete(&request.key);
    context.executed(Command::MetaDelete, 1);
    let outcome = match delete(request, context) {
        Ok(outcome) => outcome,
        Err(error) => return reply::cache_error(&error, out),
    };
    match outcome {
        // An item that is marked as stale is not deleted.
        Outcome::Done if plan.has(b'I') => {}
        Outcome::Done => {
            context.deleted(&request.key, DeleteCommand::Meta, Some(len));
            context.counters.add(Count::DeleteHits, 1);
        }
        Outcome::OtherVersion | Outcome::NotFound => {
            context.deleted(&request.key, DeleteCommand::Meta, None);
            context.counters.add(Count::DeleteMisses, 1);
        }
    }
    match outcome {
        // Only success is not worth a reply in quiet mode.
        Outcome::Done if plan.has(b'q') => {}
        Outcome::Done => append_code(b"HD", plan, out),
        Outcome::OtherVersion => append_code(b"EX", plan, out),
        Outcome::NotFound => append_code(b"NF", plan, out),
    }
}

fn delete(request: &Request<'_>, context: &Context<'_>) -> Result<Outcome, CacheError> {
    let Request { key, plan, tokens } = request;
    if ![b'C', b'I', b'x'].iter().any(|&flag| plan.has(flag)) {
        let deleted = context.cache.delete(key)?;
        return Ok(if deleted { Outcome::Done } else { Outcome::NotFound });
    }
    let mut outcome = Outcome::NotFound;
    context.cache.update(key, &mut |item| {
        outcome = match item {
            None => Outcome::NotFound,
            Some(item) if tokens.compare.is_some_and(|cas| cas != item.cas) => {
                Outcome::OtherVersion
            }
            Some(_) => Outcome::Done,
        };
        match item {
            Some(item) if outcome == Outcome::Done => change(request, item, context.now),
            _ => Ok(Update::Keep),
        }
    })?;
    Ok(outcome)
}

/// Returns what becomes of the item.
fn change(request: &Request<'_>, item: &Item<'_>, now: u32) -> Result<Update, CacheError> {
    let Request { plan, tokens, .. } = request;
    let mut value = Vec::new();
    let (flags, marks) = match (plan.has(b'x'), plan.has(b'I')) {
        (false, false) => return Ok(Update::Remove),
        // The value stays until a client stores a new one; the next that reads it wins. It gets a
        // new CAS id, so that nothing that was read before can be stored as current.
        (false, true) => {
            item.value.append_to(&mut value)?;
            (item.flags, Marks { stale: true, won: false })
        }
        // Only the key stays.
        (true, stale) => (tokens.flags, Marks { stale, won: false }),
    };
    let expiry = request.ttl(now).unwrap_or(item.expiry);
    Ok(Update::Put { value, flags, expiry, marks, cas: tokens.new_cas })
}
