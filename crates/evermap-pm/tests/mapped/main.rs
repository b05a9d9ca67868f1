//! Tests of mapped files with real operations of the operating system: full disks, killed writers,
//! forked children.

mod common;
mod creation;
mod file;
mod fork;
mod read_only;
mod sigbus;
mod trust;
mod writer;
