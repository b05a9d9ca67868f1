//! me: shows what is known of an item, and leaves no trace in it.

use std::io::Write;

use super::request::Request;
use crate::cache::Item;
use crate::cache::size_class::{class_of, item_bytes};
use crate::protocol::{Context, reply};

/// Executes me.
pub(super) fn execute(request: &Request<'_>, context: &Context<'_>, out: &mut Vec<u8>) {
    let before = out.len();
    let found = context.cache.peek(&request.key, &mut |item| {
        append(request, &item, context.now, out);
        Ok(())
    });
    match found {
        Ok(true) => {}
        Ok(false) => out.extend_from_slice(b"EN\r\n"),
        Err(error) => {
            out.truncate(before);
            reply::cache_error(&error, out);
        }
    }
}

fn append(request: &Request<'_>, item: &Item<'_>, now: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(b"ME ");
    out.extend_from_slice(request.plan.key_word);
    let ttl = match item.expiry {
        0 => -1,
        expiry => i64::from(expiry) - i64::from(now),
    };
    let fetched = if item.fetched { "yes" } else { "no" };
    let bytes = item_bytes(request.key.len(), item.value.len(), item.flags);
    let (idle, cas, class) = (item.idle, item.cas, class_of(bytes));
    write!(out, " exp={ttl} la={idle} cas={cas} fetch={fetched} cls={class} size={bytes}\r\n")
        .expect("writing to a vector cannot fail");
}
