//! Indexes that are here to be studied and compared: of published papers, and some of our own.
//!
//! Each has a module, behind a cargo feature of the same name, and a page in `docs/`; the README of
//! this crate has a list. They implement the traits of [`evermap_index`], are made of what that
//! crate has for implementers, and pass its conformance kit.

#[cfg(feature = "bwtree")]
pub mod bwtree;
#[cfg(feature = "cceh")]
pub mod cceh;
#[cfg(feature = "dash_lh")]
pub mod dash_lh;
#[cfg(feature = "fast_fair")]
pub mod fast_fair;
#[cfg(feature = "fptree")]
pub mod fptree;
#[cfg(feature = "hikv")]
pub mod hikv;
#[cfg(feature = "hot")]
pub mod hot;
#[cfg(feature = "htm")]
pub mod htm;
#[cfg(feature = "level")]
pub mod level;
#[cfg(feature = "line")]
pub mod line;
#[cfg(feature = "masstree")]
pub mod masstree;
pub mod names;
#[cfg(feature = "nvtree")]
pub mod nvtree;
#[cfg(feature = "relativistic")]
pub mod relativistic;
#[cfg(any(feature = "fptree", feature = "nvtree"))]
mod search;
#[cfg(feature = "testkit")]
pub mod testkit;
#[cfg(feature = "tranche")]
pub mod tranche;

#[cfg(feature = "cceh")]
pub use cceh::Cceh;
#[cfg(feature = "dash_lh")]
pub use dash_lh::DashLh;
#[cfg(feature = "level")]
pub use level::Level;
#[cfg(feature = "line")]
pub use line::LineHash;
#[cfg(feature = "tranche")]
pub use tranche::{Tranche, TrancheMap};
