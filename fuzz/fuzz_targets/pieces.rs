//! What every session must fulfil, whatever its client sends.

#[expect(dead_code, reason = "shared with tests that use more of it")]
#[path = "../../crates/evermap-server/tests/server/common/mod.rs"]
pub(crate) mod common;

pub(crate) use common::TestSession;

/// Small, so that inputs of a few thousand bytes meet every limit.
pub(crate) const ITEM_SIZE_MAX: usize = 300;

/// Splits an input into three bytes, which choose the limits and the sizes of pieces, and what the
/// client sends.
pub(crate) fn split(input: &[u8]) -> Option<([u8; 3], &[u8])> {
    input.split_first_chunk().map(|(&choice, sent)| (choice, sent))
}

/// Sends the same bytes at once and in pieces, to sessions that `prepare` has changed, and returns
/// the replies. The sessions must not panic and must respect their bounds (which `TestSession`
/// checks), and the replies must not depend on the sizes of the pieces.
pub(crate) fn check(
    [limit, first, second]: [u8; 3],
    sent: &[u8],
    prepare: impl Fn(&mut TestSession),
) -> Vec<u8> {
    let mut whole = TestSession::new(ITEM_SIZE_MAX, usize::MAX / 2);
    prepare(&mut whole);
    let expected = whole.send(sent);

    let mut cut = TestSession::new(ITEM_SIZE_MAX, 1 + usize::from(limit));
    prepare(&mut cut);
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
    expected
}
