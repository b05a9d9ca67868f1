//! Concurrent persistent indexes behind one trait.
//!
//! An index maps keys to opaque 8-byte words and lives in a [`Pool`](evermap_pm::pool::Pool). One folder
//! an index; each looks the same inside: `mod.rs` is the public type with its layout drawn, `layout.rs`
//! the on-media structures, and one file for each structural idea.
//!
//! Indexes that know which key comes next are in [`ordered`].
//!
//! What indexes share stands beside the folders, once: [`key`] (key representations and hashing),
//! [`record`] (variable-length keys in the heap), [`recipe`] (making changes durable before they are visible).

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
pub use index::{Action, Change, Index, MutateMode, Persistent, Stats, Visitor};
pub use key::{Bytes, Key, Quotient, Without};
pub use ordered::bplus::BPlus;
pub use ordered::{Cursor, Direction, OrderedIndex};
