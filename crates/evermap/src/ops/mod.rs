//! The operations on a map.

pub(crate) mod atomic;
pub(crate) mod commit;
pub(crate) mod ends;
pub(crate) mod find_many;
pub(crate) mod losses;
pub(crate) mod pages;
pub(crate) mod read;
pub(crate) mod reader;
pub(crate) mod reentry;
pub(crate) mod scan;
pub(crate) mod set;
pub(crate) mod space;
pub(crate) mod stream;
pub(crate) mod write;
