//! The tests of the indexes, in one program: each of these would compile every index again.

mod allocator;
mod art;
mod bplus;
mod bwtree;
mod cceh;
mod clht;
mod conformance;
mod crash;
mod dash;
mod fast_fair;
mod hot;
mod level;
mod line;
mod masstree;
mod shards;
#[cfg(target_os = "linux")]
mod system_calls;
mod tranche;
mod trees;
