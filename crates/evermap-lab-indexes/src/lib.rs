//! Evermap's own indexes, and its store, as subjects of the laboratory.
//!
//! Every index is compiled here, over each kind of keys and on each medium, which takes most of the
//! laboratory's compile time. As a crate of its own it is compiled beside the rest.
//!
//! * [`entries`], `family`: every index, and how one of its family is created;
//! * [`ablated`]: Dash-EH without one of its ideas;
//! * [`ordered`], `valued`: the ordered indexes, and those in persistent memory with values of any
//!   length; `cached`: a cache in front of one;
//! * [`evermap`]: the store;
//! * [`builder`], [`media`]: the medium, the pool and the index of a subject;
//! * `indexed`, [`records`]: an index over words as a table, one over byte strings as a store;
//! * `heterogeneous`: the table that stores byte strings itself.

pub mod ablated;
pub mod builder;
mod cached;
pub mod entries;
pub mod evermap;
mod family;
mod heterogeneous;
mod indexed;
pub mod media;
pub mod ordered;
pub mod records;
mod valued;
