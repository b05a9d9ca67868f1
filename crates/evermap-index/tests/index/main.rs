//! The tests of the indexes, in one program: each of these would compile every index again.

mod allocator;
mod art;
mod bplus;
mod clht;
mod conformance;
mod crash;
mod dash;
