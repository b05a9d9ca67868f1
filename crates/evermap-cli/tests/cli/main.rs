//! The `evermap` command, run as a user or a script runs it.

mod common;
mod lab;
mod memcached;
mod output;
mod records;
mod restart;
mod serve;
mod service;
mod top;
