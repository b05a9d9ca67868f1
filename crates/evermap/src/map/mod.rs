//! The maps of a file: handles, where their words are stored, and the catalogue of their names.

pub(crate) mod catalog;
pub(crate) mod handle;
pub(crate) mod header;
pub(crate) mod inner;
