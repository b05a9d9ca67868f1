//! Hash indexes, and for implementers what several of them share: [`segmented`] (the engine of
//! indexes that are made of segments), [`directory`] (of extendible hashing), [`hash_prefix`]
//! (which hashes a segment serves), [`walk_order`] (in which order walks show records), [`probe`],
//! [`vacancy`], and the deliberate [`mistakes`].

mod changes;
pub mod clht;
pub mod dash;
pub mod directory;
pub mod hash_prefix;
pub mod mistakes;
pub mod probe;
pub mod segmented;
pub mod vacancy;
pub mod walk_order;
