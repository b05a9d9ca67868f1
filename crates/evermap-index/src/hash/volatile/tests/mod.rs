//! Tests of the map.

pub(super) fn step() {}
