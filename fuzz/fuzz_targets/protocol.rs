//! A client that sends any bytes, in pieces of any size.
//!
//! The first bytes choose the limits and the sizes of the pieces, the rest is what the client
//! sends. The session must not panic and must respect its bounds (which `TestSession` checks), and
//! the replies must not depend on the sizes of the pieces.
//!
//! ```text
//! cargo +nightly fuzz run protocol -- -max_total_time=60 -dict=fuzz/protocol.dict
//! ```

#![no_main]

#[path = "../../crates/evermap-server/tests/common/mod.rs"]
mod common;

use common::TestSession;
use libfuzzer_sys::fuzz_target;

/// Small, so that inputs of a few thousand bytes meet every limit.
const ITEM_SIZE_MAX: usize = 300;

fuzz_target!(|input: &[u8]| {
    let Some((&[limit, first, second], sent)) = input.split_first_chunk::<3>() else {
        return;
    };
    let mut whole = TestSession::new(ITEM_SIZE_MAX, usize::MAX / 2);
    let expected = whole.send(sent);

    let mut cut = TestSession::new(ITEM_SIZE_MAX, 1 + usize::from(limit));
    let (mut left, mut replies) = (sent, Vec::new());
    for size in [first, second].into_iter().cycle() {
        let (piece, rest) = left.split_at(left.len().min(1 + usize::from(size)));
        replies.append(&mut cut.send(piece));
        left = rest;
        if left.is_empty() {
            break;
        }
    }
    assert!(replies == expected, "{}\n{}", replies.escape_ascii(), expected.escape_ascii());
    assert_eq!(cut.is_closed(), whole.is_closed());
    assert_eq!(cut.held_bytes() == 0, whole.held_bytes() == 0);
});
