//! The tests of the structures, in one program: each of these would compile every structure again.

mod allocator;
mod bwtree;
mod cceh;
mod conformance;
mod crash;
mod dash_lh;
mod fast_fair;
mod fptree;
mod hikv;
mod hot;
mod killed;
mod level;
mod line;
mod masstree;
mod model;
mod nvtree;
mod relativistic;
#[cfg(target_os = "linux")]
mod system_calls;
mod tranche;
