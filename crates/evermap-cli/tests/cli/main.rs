//! The `evermap` command, run as a user or a script runs it.

mod common;
mod damage;
mod instants;
mod lab;
mod limits;
mod memcached;
mod output;
#[path = "../../../evermap/tests/fixtures/packed.rs"]
mod packed;
mod reading;
mod records;
mod repair;
mod restart;
mod serve;
mod service;
mod streams;
#[cfg(feature = "top")]
mod terminal;
mod top;
