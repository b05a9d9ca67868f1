//! The tests of the structures, in one program: each of these would compile every structure again.

mod relativistic;
