//! The storage of a node: openraft's own tests, and what kills leave.

mod suite;
