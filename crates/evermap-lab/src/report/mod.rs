//! What experiments produce, and how it is written.
//!
//! * [`model`]: a report: tables, plots, and a paper's figures beside those measured here;
//! * [`record`]: one measurement, which becomes a line of JSON;
//! * [`output`]: where reports and records go: terminal, JSON lines;
//! * [`html`]: a page;
//! * [`interval`]: medians, quantiles and confidence intervals;
//! * [`changes`]: the comparison of two runs.

pub mod changes;
pub mod html;
pub mod interval;
pub mod model;
pub mod output;
pub mod record;

pub use model::{Figure, Grid, Marks, Plot, Point, Report, Row, Series};
pub use output::{JsonLines, Output, Terminal};
pub use record::Record;

/// Formats a number of things.
pub(crate) fn counted(count: usize, thing: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{ending}")
}
