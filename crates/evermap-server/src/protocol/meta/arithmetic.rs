//! ma: adds to a number, or subtracts from it.

use super::reply::{append_code, append_number, append_repeated, append_ttl};
use super::request::Request;
use crate::cache::{Arithmetic, CacheError, Item, Marks, Update, apply_delta};
use crate::latency::Command;
use crate::number;
use crate::protocol::line::Rejected;
use crate::protocol::{Context, reply};
use crate::stats::Count;

const BAD_MODE: &[u8] = b"CLIENT_ERROR invalid mode for ma M token\r\n";
const NON_NUMERIC: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The item has this number now.
    Changed(Counter),
    OtherVersion,
    NotFound,
    NonNumeric,
}

/// A number after a change.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Counter {
    number: u64,
    cas: u64,
    /// The expiry before the change.
    expiry: u32,
    created: bool,
}

/// Rejects a mode that does not exist.
pub(super) fn check(request: &Request<'_>) -> Result<(), Rejected> {
    match request.tokens.mode {
        None | Some(b'I' | b'+' | b'D' | b'-') => Ok(()),
        Some(_) => Err(BAD_MODE.into()),
    }
}

fn is_increment(request: &Request<'_>) -> bool {
    !matches!(request.tokens.mode, Some(b'D' | b'-'))
}

/// Executes ma.
pub(super) fn execute(request: &Request<'_>, context: &Context<'_>, out: &mut Vec<u8>) {
    let plan = &request.plan;
    context.executed(Command::MetaArithmetic, 1);
    let outcome = match apply(request, context) {
        Ok(outcome) => outcome,
        Err(error) => return reply::cache_error(&error, out),
    };
    count(request, outcome, context);
    if let Outcome::Changed(Counter { number, .. }) = outcome {
        context.counted(&request.key, number, is_increment(request));
    }
    match outcome {
        // Only success is not worth a reply in quiet mode.
        Outcome::Changed(_) if plan.has(b'q') => {}
        Outcome::Changed(counter) => append_counter(request, counter, context.now, out),
        Outcome::OtherVersion => append_code(b"EX", plan, out),
        Outcome::NotFound => append_code(b"NF", plan, out),
        Outcome::NonNumeric => out.extend_from_slice(NON_NUMERIC),
    }
}

fn count(request: &Request<'_>, outcome: Outcome, context: &Context<'_>) {
    let (hits, misses) = match is_increment(request) {
        true => (Count::IncrHits, Count::IncrMisses),
        false => (Count::DecrHits, Count::DecrMisses),
    };
    match outcome {
        Outcome::Changed(Counter { created: false, .. }) => context.counters.add(hits, 1),
        Outcome::NotFound => context.counters.add(misses, 1),
        Outcome::Changed(_) | Outcome::OtherVersion | Outcome::NonNumeric => {}
    }
}

fn apply(request: &Request<'_>, context: &Context<'_>) -> Result<Outcome, CacheError> {
    if [b'C', b'E', b'N', b'T', b't'].iter().any(|&flag| request.plan.has(flag)) {
        return update(request, context);
    }
    let delta = request.tokens.delta.unwrap_or(1);
    let up = is_increment(request);
    Ok(match context.cache.arithmetic(&request.key, delta, up)? {
        Arithmetic::Changed { number, cas } => {
            Outcome::Changed(Counter { number, cas, expiry: 0, created: false })
        }
        Arithmetic::NotFound => Outcome::NotFound,
        Arithmetic::NonNumeric => Outcome::NonNumeric,
    })
}

/// Changes the number under conditions, with a time to live, or creates it.
fn update(request: &Request<'_>, context: &Context<'_>) -> Result<Outcome, CacheError> {
    let now = context.now;
    let mut outcome = Outcome::NotFound;
    let cas = context.cache.update(&request.key, &mut |item| {
        let (decided, update) = match item {
            None => create(request, now),
            Some(item) => change(request, item, now)?,
        };
        outcome = decided;
        Ok(update)
    })?;
    Ok(match (outcome, cas) {
        (Outcome::Changed(counter), Some(cas)) => Outcome::Changed(Counter { cas, ..counter }),
        (outcome, _) => outcome,
    })
}

/// Returns what happens if there is no item. The CAS id is not known yet.
fn create(request: &Request<'_>, now: u32) -> (Outcome, Update) {
    if !request.plan.has(b'N') {
        return (Outcome::NotFound, Update::Keep);
    }
    let number = request.tokens.initial;
    let mut value = Vec::new();
    number::append(number, &mut value);
    let expiry = request.expiry_after(0, true, now);
    let (marks, cas) = (Marks::default(), request.tokens.new_cas);
    let counter = Counter { number, cas: 0, expiry: 0, created: true };
    (Outcome::Changed(counter), Update::Put { value, flags: 0, expiry, marks, cas })
}

/// Returns what happens to an item. The CAS id is not known yet.
fn change(
    request: &Request<'_>,
    item: &Item<'_>,
    now: u32,
) -> Result<(Outcome, Update), CacheError> {
    let tokens = &request.tokens;
    // memcached takes the id 0 for none.
    if tokens.compare.is_some_and(|cas| cas != 0 && cas != item.cas) {
        return Ok((Outcome::OtherVersion, Update::Keep));
    }
    let (mut old, mut value) = (Vec::new(), Vec::new());
    item.value.append_to(&mut old)?;
    let delta = tokens.delta.unwrap_or(1);
    let Some(number) = apply_delta(&old, delta, is_increment(request), &mut value) else {
        return Ok((Outcome::NonNumeric, Update::Keep));
    };
    let counter = Counter { number, cas: 0, expiry: item.expiry, created: false };
    let expiry = request.expiry_after(item.expiry, false, now);
    let Item { flags, marks, .. } = *item;
    let update = Update::Put { value, flags, expiry, marks, cas: tokens.new_cas };
    Ok((Outcome::Changed(counter), update))
}

/// Appends the reply after a change. A `t` before a `T` or an `N` returns what there was before.
fn append_counter(request: &Request<'_>, counter: Counter, now: u32, out: &mut Vec<u8>) {
    let plan = &request.plan;
    let mut digits = Vec::new();
    number::append(counter.number, &mut digits);
    if plan.has(b'v') {
        out.extend_from_slice(b"VA ");
        number::append(digits.len() as u64, out);
    } else {
        out.extend_from_slice(b"HD");
    }
    let mut expiry = counter.expiry;
    for (flag, token) in plan.flags() {
        match flag {
            b'T' => expiry = request.ttl(now).unwrap_or(expiry),
            b'N' if counter.created => expiry = request.vivify(now).unwrap_or(expiry),
            b't' => append_ttl(expiry, now, out),
            b'c' => append_number(b'c', counter.cas, out),
            _ => append_repeated(plan, flag, token, out),
        }
    }
    out.extend_from_slice(b"\r\n");
    if plan.has(b'v') {
        out.extend_from_slice(&digits);
        out.extend_from_slice(b"\r\n");
    }
}
