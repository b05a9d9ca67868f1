//! Evermap for C and C++: what `evermap.h` declares.
//!
//! The documentation is for readers of that header, which is generated from it. Every function is
//! [`call`](status::call)ed so that no panic leaves it, and looks at each pointer before it is used
//! ([`pointers`]).

// The names are those of the header, and its functions have the arguments that C needs.
#![allow(non_camel_case_types, clippy::too_many_arguments)]

pub mod batch;
pub mod cursor;
pub mod map;
pub mod options;
mod pointers;
pub mod status;
pub mod store;
#[cfg(test)]
mod tests;
pub mod value;
