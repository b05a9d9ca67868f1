//! Other projects' tables and stores, to measure Evermap's beside them.

pub(crate) mod hikv;
pub(crate) mod library;
pub(crate) mod plugin;
#[cfg(feature = "stores")]
pub(crate) mod stores;
pub(crate) mod tables;
