//! The tests of the indexes, in one program: each of these would compile every index again.

mod allocator;
mod art;
mod bplus;
mod cceh;
mod clht;
mod conformance;
mod crash;
mod dash;
mod level;
mod line;
mod shards;
#[cfg(target_os = "linux")]
mod system_calls;
mod tranche;
