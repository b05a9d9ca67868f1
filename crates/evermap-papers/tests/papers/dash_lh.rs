//! Dash-LH against a model.

use evermap_papers::dash_lh::{DashLh, TinyLh};

use crate::model::{model, pool};

#[test]
fn tiny_agrees_with_a_model() {
    model::<TinyLh<u64, _>>(pool(4096, 1 << 22), 600, 60_000);
}

#[test]
fn standard_agrees_with_a_model() {
    model::<DashLh<u64, _>>(pool(2 << 20, 1 << 28), 60_000, 600_000);
}
