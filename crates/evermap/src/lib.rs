//! An embedded key-value store whose maps outlive the process.
//!
//! ```
//! use evermap::{Evermap, Options};
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("map");
//! let db = Evermap::open(&path, Options::new())?;
//! let map = db.default_map();
//! map.put(b"apple", b"red")?;
//! assert_eq!(map.get(b"apple")?, Some(b"red".to_vec()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Evermap`] is a concurrent hash map from byte strings to byte strings that lives in a mapped file. It
//! runs at memory speed, every acknowledged write survives the death of the process at any instruction, and
//! it opens in milliseconds however it was stopped: about one, and 0.2 for each GiB of its file.
//!
//! # What is promised
//!
//! | event | what is there afterwards |
//! |---|---|
//! | [`close`](Evermap::close), or the last handle dropped | everything |
//! | death of the process (`kill -9`, a panic, `abort`) | every acknowledged write; each one wholly or not at all |
//! | crash of the operating system, power loss | nothing is promised after an unclean stop. The next opening says [`Suspect`](ErrorKind::Suspect), and [`Options::on_suspect`] decides |
//! | a damaged file | an answer may be lost, and most losses are reported as [`Error::Damaged`]; no wrong value, no crash, no hang. |
//!
//! # Many maps in one file
//!
//! [`Evermap::map`] opens or makes another map in the same file, with keys of its own, by its name;
//! [`drop_map`](Evermap::drop_map) drops one. Both are crash-safe.
//!
//! # What is safe Rust under which assumption
//!
//! Reading copies records out of the mapping with atomic loads, checks every offset and length before it uses it,
//! and verifies checksums (unless [`Options::verify_reads`] is off). That needs no assumption about what the file
//! contains. [`Map::get_ref`] and [`Reader`] lend bytes where they are, which is sound only while nobody else writes
//! the file and it is not damaged. So they do that for stores in memory, and for files only after a promise,
//! [`Options::assume_exclusive_file`], which is `unsafe`; without it they copy.
//!
//! One thing cannot be made safe: whoever cuts a mapped file off, or a disk that cannot be read, ends the
//! process by SIGBUS. [`explain_bus_errors`] makes it say which file it was and what to do, before it ends;
//! [`describe_address`](evermap_pm::medium::describe_address) does it for programs with a handler of their own.
//!
//! # Limits
//!
//! Keys up to [`KEY_MAX`] (64 KiB), values up to [`VALUE_MAX`] (1 GiB), as long as the file can still grow by one or
//! has neighbouring free space for it. A file up to its [`Options::capacity`].
//! 2^56 mutations. One process at a time.
//!
#![doc = include_str!("async.md")]

mod batch;
mod clock;
mod db;
mod error;
mod index;
mod item;
mod maintenance;
mod map;
mod ops;
mod options;
mod ordered;
mod record;
#[cfg(feature = "serde")]
mod typed;

pub use batch::{Applied, BATCH_MAX, Batch};
pub use clock::Clock;
pub use db::Evermap;
pub use error::{Error, ErrorKind, Result, StorageError};
pub use evermap_index::record::KEY_MAX;
pub use evermap_pm::epoch::{Backlog, EpochStats, Holder};
pub use evermap_pm::medium::explain_bus_errors;
pub use evermap_pm::region::OnSuspect;
pub use index::IndexKind;
pub use item::{Edit, Item, Meta, Outcome};
pub use maintenance::SweepState;
pub use maintenance::census::Count;
pub use maintenance::check::CheckReport;
pub use maintenance::stats::{SpaceStat, Stat};
pub use map::catalog::{MAP_NAME_MAX, MapOptions};
pub use map::handle::Map;
pub use ops::atomic::counter;
pub use ops::read::{Iter, Keys};
pub use ops::reader::{Reader, ValueRef};
pub use ops::scan::{KeyRange, Scan};
pub use ops::stream::{ValueReader, ValueWriter};
pub use options::{Durability, Options};
pub use ordered::{OrderedStat, OrderedState, OrderedUpdates};
pub use record::{EXPIRY_MAX, VALUE_MAX};
#[cfg(feature = "serde")]
pub use typed::{DecodeKey, EncodeKey, TypedIter, TypedMap};

/// The README's example has to work as it stands.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
