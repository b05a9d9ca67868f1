//! The tests of the structures, in one program: each of these would compile every structure again.

mod bwtree;
mod crash;
mod fast_fair;
mod hot;
mod masstree;
mod relativistic;
