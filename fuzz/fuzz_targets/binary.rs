//! A client of the binary protocol, whose packets are mostly well-formed.
//!
//! The input describes packets, so that mutations of it change keys, values and lengths, and not
//! only numbers of bytes that a header announces. Every reply has to be a complete packet.
//!
//! ```text
//! cargo +nightly fuzz run binary -- -max_total_time=60
//! ```

#![no_main]

mod pieces;

use libfuzzer_sys::fuzz_target;
use pieces::common::packet::{Packet, request};

/// Takes the packets that `input` describes: an opcode, a byte that says which key and which
/// deviations, one for the length of the value, then what those need.
fn packets(mut input: &[u8]) -> Vec<u8> {
    let mut sent = request(0x0a, "", "").bytes();
    while let Some((&[opcode, shape, len], rest)) = input.split_first_chunk() {
        let key = ["", "a", "b", "n"][usize::from(shape % 4)];
        let (value, rest) = rest.split_at(rest.len().min(usize::from(len)));
        let cas = if shape & 4 == 0 { 0 } else { u64::from(shape >> 5) };
        let mut packet = request(opcode, key, value).cas(cas).opaque(len.into());
        let mut rest = rest;
        if shape & 8 != 0 {
            // Other extras: the lengths are right for their number.
            let count = packet.extras.len().min(rest.len());
            packet.extras.splice(..count, rest[..count].iter().copied());
            rest = &rest[count..];
        }
        match rest.split_first_chunk() {
            // A header that lies about the rest.
            Some((&[key, extras, body], after)) if shape & 0x18 == 0x10 && len % 8 == 7 => {
                sent.extend(packet.with_lengths(key.into(), extras, body.into()));
                rest = after;
            }
            _ => sent.extend(packet.bytes()),
        }
        input = rest;
    }
    sent
}

fuzz_target!(|input: &[u8]| {
    if let Some((choice, described)) = pieces::split(input) {
        let sent = if choice[0] % 2 == 0 { packets(described) } else { raw(described) };
        Packet::replies(&pieces::check(choice, &sent, |_| {}));
    }
});

/// Returns the bytes as they are, behind the first byte of the protocol.
fn raw(bytes: &[u8]) -> Vec<u8> {
    [&[0x80], bytes].concat()
}
