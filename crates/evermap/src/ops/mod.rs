//! The operations on a map.

// The documentation of `Map` shows them in this order: first what most programs use.
pub(crate) mod basics;

pub(crate) mod read;

pub(crate) mod reader;

pub(crate) mod set;

pub(crate) mod write;

pub(crate) mod put_many;

pub(crate) mod atomic;

pub(crate) mod scan;

pub(crate) mod ends;

pub(crate) mod stream;

pub(crate) mod watch;

pub(crate) mod begin;
pub(crate) mod commit;
pub(crate) mod find_many;
pub(crate) mod losses;
pub(crate) mod pages;
pub(crate) mod reentry;
pub(crate) mod space;
