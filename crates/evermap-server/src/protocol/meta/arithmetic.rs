//! ma: adds to a number, or subtracts from it.

use super::reply::{append_code, append_number, append_repeated, append_ttl};
use super::request::Request;
use crate::number;
use crate::protocol::line::Rejected;
use crate::protocol::ops::{Counter, Delta, DeltaOutcome};
use crate::protocol::{Context, reply};

const BAD_MODE: &[u8] = b"CLIENT_ERROR invalid mode for ma M token\r\n";
const NON_NUMERIC: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";

/// Rejects a mode that does not exist.
pub(super) fn check(request: &Request<'_>) -> Result<(), Rejected> {
    match request.tokens.mode {
        None | Some(b'I' | b'+' | b'D' | b'-') => Ok(()),
        Some(_) => Err(BAD_MODE.into()),
    }
}

/// Executes ma.
pub(super) fn execute(request: &Request<'_>, context: &Context<'_>, out: &mut Vec<u8>) {
    let (Request { key, plan, tokens }, now) = (request, context.now);
    let delta = Delta {
        key,
        delta: tokens.delta.unwrap_or(1),
        up: !matches!(tokens.mode, Some(b'D' | b'-')),
        compare: tokens.compare,
        new_cas: tokens.new_cas,
        create: plan.has(b'N').then(|| (tokens.initial, request.expiry_after(0, true, now))),
        expiry: request.ttl(now),
        wants_expiry: plan.has(b't'),
        meta: true,
    };
    match delta.execute(context) {
        // Only success is not worth a reply in quiet mode.
        Ok(DeltaOutcome::Changed(_)) if plan.has(b'q') => {}
        Ok(DeltaOutcome::Changed(counter)) => append_counter(request, counter, now, out),
        Ok(DeltaOutcome::OtherVersion) => append_code(b"EX", plan, out),
        Ok(DeltaOutcome::NotFound) => append_code(b"NF", plan, out),
        Ok(DeltaOutcome::NonNumeric) => out.extend_from_slice(NON_NUMERIC),
        Err(error) => reply::cache_error(&error, out),
    }
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
