//! Indexes that are here to be studied and compared: of published papers, and some of our own.
//!
//! Each has a module, behind a cargo feature of the same name, and a page in `docs/`; the README of
//! this crate has a list. They implement the traits of [`evermap_index`], are made of what that
//! crate has for implementers, and pass its conformance kit.

#[cfg(feature = "bwtree")]
pub mod bwtree;
#[cfg(feature = "fast_fair")]
pub mod fast_fair;
#[cfg(feature = "hot")]
pub mod hot;
#[cfg(feature = "masstree")]
pub mod masstree;
#[cfg(feature = "relativistic")]
pub mod relativistic;
#[cfg(feature = "testkit")]
pub mod testkit;
#[cfg(feature = "volatile")]
pub mod volatile;

#[cfg(feature = "volatile")]
pub use volatile::VolatileMap;
