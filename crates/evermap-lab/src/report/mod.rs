//! What experiments produce, and how it is written.
//!
//! * [`model`]: a report: tables, plots, and a paper's figures beside those measured here;
//! * [`record`]: one measurement, which becomes a line of JSON or CSV;
//! * [`output`]: where reports and records go: terminal, lines;
//! * [`html`]: a page;
//! * [`interval`]: medians, quantiles and confidence intervals;
//! * [`changes`]: the comparison of two runs;
//! * `number`: numbers as people read them.

pub mod changes;
pub mod html;
pub mod interval;
pub mod model;
mod number;
pub mod output;
pub mod record;

pub use model::{Figure, Grid, Marks, Plot, Point, Report, Row, Series};
pub(crate) use number::{counted, duration, grouped, significant};
pub use output::{Format, Lines, Markdown, Output, Terminal};
pub use record::{Origin, Record};
