//! mg: looks an item up, and perhaps creates it, touches it or wins it.

use std::ops::ControlFlow;

use super::reply::{append_code, append_number, append_repeated, append_ttl};
use super::request::{Plan, Request};
use crate::cache::{CacheError, Item, Marks};
use crate::latency::Command;
use crate::number;
use crate::protocol::exptime::expiry;
use crate::protocol::ops::Get;
use crate::protocol::{Context, reply};

/// Returns `true` if a request for an item with these marks wins it: it is stale, and no client was
/// told to store a new value.
pub(in crate::protocol) fn wins(marks: Marks) -> bool {
    marks.stale && !marks.won
}

impl Request<'_> {
    /// Returns `true` if mg only looks an item up, so that it can be looked up together with
    /// others, unless it turns out that the request [wins](wins) it.
    pub(in crate::protocol) fn only_looks_up(&self) -> bool {
        ![b'N', b'R', b'T', b'C', b'u'].iter().any(|&flag| self.plan.has(flag))
    }
}

/// Appends the reply for an item that the request does not change.
///
/// # Errors
/// If the value is damaged, or there is no memory for the reply. `out` may have a part of the reply
/// then, which the caller removes.
pub(in crate::protocol) fn hit(
    plan: &Plan<'_>,
    item: &Item<'_>,
    now: u32,
    out: &mut Vec<u8>,
) -> Result<(), CacheError> {
    let request = Request { key: (&[][..]).into(), plan: *plan, tokens: Default::default() };
    answer(&request, item, false, now, out).map(drop)
}

/// Appends the reply if there is no item.
pub(in crate::protocol) fn miss(plan: &Plan<'_>, out: &mut Vec<u8>) {
    if !plan.has(b'q') {
        append_code(b"EN", plan, out);
    }
}

/// Executes mg on its own.
pub(super) fn execute(request: &Request<'_>, context: &Context<'_>, out: &mut Vec<u8>) {
    let before = out.len();
    let outcome = match [b'N', b'R', b'T'].iter().any(|&flag| request.plan.has(flag)) {
        true => update(request, context, out),
        false => look_up(request, context, out),
    };
    match outcome {
        Ok(found) => count(request, found, context),
        Err(error) => {
            out.truncate(before);
            reply::cache_error(&error, out);
        }
    }
}

/// Counts a command that has found an item or not. memcached counts one that touches as a touch.
fn count(request: &Request<'_>, found: bool, context: &Context<'_>) {
    context.executed(Command::MetaGet, 1);
    match request.plan.has(b'T') {
        true => context.touched(found),
        false => context.looked_up(1, found.into()),
    }
}

/// Looks the item up, and changes nothing unless the request wins it. Returns whether there is one.
fn look_up(
    request: &Request<'_>,
    context: &Context<'_>,
    out: &mut Vec<u8>,
) -> Result<bool, CacheError> {
    let (mut found, mut won) = (false, false);
    let mut each = |item: Item<'_>| {
        found = true;
        won = wins(item.marks);
        if won {
            return Ok(());
        }
        context.fetched(&request.key, Some(&item));
        answer(request, &item, false, context.now, out).map(drop)
    };
    if request.plan.has(b'u') {
        context.cache.peek(&request.key, &mut each)?;
    } else {
        context.cache.get_many(&[&request.key], &mut |_, item| {
            each(item).map(|()| ControlFlow::Continue(()))
        })?;
    }
    match (found, won) {
        (_, true) => update(request, context, out),
        (true, false) => Ok(true),
        (false, false) => {
            context.fetched(&request.key, None);
            miss(&request.plan, out);
            Ok(false)
        }
    }
}

/// Looks the item up and changes it as the request and the state of the item demand. Returns
/// whether there is one now.
fn update(
    request: &Request<'_>,
    context: &Context<'_>,
    out: &mut Vec<u8>,
) -> Result<bool, CacheError> {
    let (before, now) = (out.len(), context.now);
    let create = request.plan.has(b'N').then(|| request.expiry_after(0, true, now));
    let get = Get { key: &request.key, create, new_cas: request.tokens.new_cas };
    let mut found = |item: &Item<'_>, created: bool| {
        out.truncate(before);
        answer(request, item, created, now, out)
    };
    let found = get.execute(&mut found, context)?;
    if !found {
        out.truncate(before);
        miss(&request.plan, out);
    }
    Ok(found)
}

/// Appends the reply for an item, which was `created` for this request or was there before. Returns
/// the expiry and the marks that it has after the request.
///
/// What the reply says of the time to live is the state at that flag: a `t` before a `T` returns
/// what there was before.
fn answer(
    request: &Request<'_>,
    item: &Item<'_>,
    created: bool,
    now: u32,
    out: &mut Vec<u8>,
) -> Result<(u32, Marks), CacheError> {
    // An upper bound of the length of the flags that are returned: 20 with numbers, a key and an
    // opaque token.
    const FRAME_MAX: usize = 1024;
    let Request { plan, tokens, .. } = request;
    let len = item.value.len();
    // With `C`, a client that has this version already gets no value.
    let with_value = plan.has(b'v') && tokens.compare != Some(item.cas);
    // The length is not verified yet, so this must not end the process if there is no memory.
    out.try_reserve(FRAME_MAX + if with_value { len } else { 0 })
        .map_err(|_| CacheError::Other("out of memory for a reply".into()))?;
    if with_value {
        out.extend_from_slice(b"VA ");
        number::append(len as u64, out);
    } else {
        out.extend_from_slice(b"HD");
    }
    let (mut expires_at, mut win) = (item.expiry, created);
    for (flag, token) in plan.flags() {
        match flag {
            b'T' => expires_at = request.ttl(now).unwrap_or(expires_at),
            b'N' if created => expires_at = request.vivify(now).unwrap_or(expires_at),
            b'R' => {
                // It expires soon, and no client was told to store a new value.
                let soon = tokens.recache.map_or(0, |ttl| expiry(ttl, now));
                win |= !item.marks.won && expires_at != 0 && expires_at < soon;
            }
            b'c' => append_number(b'c', item.cas, out),
            b'f' => append_number(b'f', u64::from(item.flags), out),
            b'h' => append_number(b'h', u64::from(item.fetched), out),
            b'l' => append_number(b'l', u64::from(item.idle), out),
            b's' => append_number(b's', len as u64, out),
            b't' => append_ttl(expires_at, now, out),
            _ => append_repeated(plan, flag, token, out),
        }
    }
    let Marks { stale, won } = item.marks;
    if won {
        out.extend_from_slice(b" Z");
    }
    if stale {
        out.extend_from_slice(b" X");
    }
    win |= wins(item.marks);
    if win {
        out.extend_from_slice(b" W");
    }
    out.extend_from_slice(b"\r\n");
    if with_value {
        let end = out.len() + len;
        item.value.append_to(out)?;
        debug_assert_eq!(out.len(), end, "`append_to` appends `len` bytes");
        out.extend_from_slice(b"\r\n");
    }
    Ok((expires_at, Marks { stale, won: won || win }))
}
