//! Concurrent persistent indexes behind one trait.
//!
//! An index maps keys to opaque 8-byte words and lives in a [`Pool`](evermap_pm::pool::Pool). Each
//! index has a folder: `mod.rs` has the public type and a drawing of its layout, `layout.rs` the
//! persistent structures, and each other file one part of the algorithm.
//!
//! Ordered indexes are in [`ordered`].
//!
//! Modules beside the folders are shared by several indexes: [`key`] (representations of keys and
//! hashing), [`record`] (variable-length keys in the heap), [`recipe`] (making changes durable
//! before they become visible).

pub mod fingerprint;
pub mod hash;
pub mod index;
pub mod key;
pub mod ordered;
pub mod recipe;
pub mod record;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;

pub use evermap_pm::{Error, Guard, Result};
pub use hash::cceh::Cceh;
pub use hash::clht::Clht;
pub use hash::dash::{DashEh, DashLh};
pub use hash::level::Level;
pub use hash::line::LineHash;
pub use index::{Action, BATCH_KEYS, Change, Index, MutateMode, Persistent, Stats, Visitor};
pub use key::{Bytes, Key, Quotient, Without};
pub use ordered::bplus::BPlus;
pub use ordered::{Cursor, Direction, OrderedIndex};
