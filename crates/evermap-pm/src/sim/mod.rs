//! A crash simulator for persistent structures: record once, crash everywhere.

pub mod campaign;
pub mod detect;
mod durable;
mod image;
#[cfg(test)]
mod litmus;
mod medium;
pub mod oracle;
mod report;
pub mod rng;
mod trace;

pub use campaign::{Config, Nested, Subject};
pub use durable::{Length, Model};
pub use image::{CrashPoint, Image, ImageConfig, ImageStats, for_each_image};
pub use medium::{Mutation, Sim};
pub use report::{Replay, Report, Violation};
pub use trace::{Event, Op, Record, Site, Span, Trace, Word};
