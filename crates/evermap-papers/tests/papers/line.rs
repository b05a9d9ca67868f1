//! The line hash against a model.

use evermap_papers::line::{LineHash, SmallLineHash, Tiny};

use crate::model::{model, pool};

#[test]
fn tiny_agrees_with_a_model() {
    model::<Tiny<u64, _>>(pool(4096, 1 << 22), 600, 60_000);
}

#[test]
fn standard_agrees_with_a_model() {
    model::<LineHash<u64, _>>(pool(2 << 20, 1 << 28), 60_000, 600_000);
}

/// It begins with one segment, and again and again has more than sixteen and fewer.
#[test]
fn small_agrees_with_a_model() {
    model::<SmallLineHash<u64, _>>(pool(16 << 10, 1 << 28), 30_000, 400_000);
}
