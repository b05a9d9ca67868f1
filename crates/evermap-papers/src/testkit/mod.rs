//! The structures of this crate, and the other indexes, ready for the conformance kit and for
//! crashes.

mod crashable;
pub mod tiny;

pub use crashable::{CRASHABLE, Crashable};
