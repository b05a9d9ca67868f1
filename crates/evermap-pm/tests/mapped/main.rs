//! Mapped files as the operating system really treats them: full disks, killed writers, forked children.

mod common;
mod creation;
mod file;
mod fork;
mod read_only;
mod sigbus;
mod trust;
mod writer;
