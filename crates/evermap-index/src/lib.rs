//! Concurrent persistent indexes behind one trait.
//!
//! An index maps keys to opaque 8-byte words and lives in a [`Pool`](evermap_pm::pool::Pool). Each
//! index has a folder, with the public type and its lookups in `mod.rs` and the structures on the
//! media in `layout.rs`. Dash and others share one engine, `hash/segmented`; their folders look
//! alike: `segment` (where a record can be), `bucket` or `lock`, `recover` and `check` (what these
//! do inside a segment), and `eh`, `structure` or `split` (what splits and merges do there).
//!
//! Ordered indexes are in [`ordered`]. The crate `evermap-papers` has more indexes of both kinds,
//! to be studied and compared.
//!
//! Modules beside the folders are shared by several indexes: [`key`] (representations of keys and
//! hashing) and [`record`] (variable-length keys in the heap). Others are for implementers of
//! indexes, and of no use to programs that use one: [`fresh`] (blocks of an index that is being
//! created), [`root`] (the block that a root cell refers to), [`lock_wait`] (waiting for a lock),
//! [`node_lock`] (locks of the nodes of trees), [`recipe`] (making changes durable before they
//! become visible), most modules of [`hash`], and [`ordered::tree`], [`ordered::leaf`] and
//! [`ordered::memory`].

pub mod fingerprint;
pub mod fresh;
pub mod hash;
pub mod index;
pub mod key;
pub mod lock_wait;
pub mod node_lock;
pub mod ordered;
pub mod recipe;
pub mod record;
pub mod root;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;

pub use evermap_pm::{Error, Guard, Result};
pub use hash::clht::Clht;
pub use hash::dash::DashEh;
pub use index::{Action, BATCH_KEYS, Change, Index, MutateMode, Persistent, Stats, Visitor};
pub use key::{Bytes, Key, Quotient, Without};
pub use ordered::bplus::BPlus;
pub use ordered::{Cursor, Direction, OrderedIndex};

/// Why crash campaigns need not detect that data which recovery found becomes durable later than it
/// should.
pub const FOUND_LATE: &str =
    "late, it matters to other threads: `what_recovery_finds_is_durable_before_it_is_used`";
