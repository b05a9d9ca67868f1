//! Mapped files as the operating system really treats them: full disks, killed writers, forked children.

mod common;
mod file;
mod fork;
mod writer;
