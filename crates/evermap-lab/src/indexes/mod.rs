//! Evermap's own indexes, and its store, as subjects.
//!
//! * [`entries`], [`family`]: every index, and how one of its family is created;
//! * [`ablated`]: Dash-EH without one of its ideas;
//! * [`ordered`]: the volatile ordered index;
//! * [`evermap`]: the store;
//! * [`builder`], [`media`]: the medium, the pool and the index of a subject;
//! * [`indexed`], [`records`]: an index over words as a table, one over byte strings as a store.

pub(crate) mod ablated;
pub(crate) mod builder;
pub(crate) mod entries;
pub(crate) mod evermap;
mod family;
mod indexed;
pub(crate) mod media;
pub(crate) mod ordered;
pub(crate) mod records;
#[cfg(test)]
mod tests;
