//! An embedded key-value store for Rust programs: maps in a file, at the speed of memory, that
//! survive the death of the process at any instruction.
//!
//! ```
//! use evermap::{Evermap, Options};
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("fruit.map");
//! let db = Evermap::open(&path, Options::new())?;
//! let map = db.default_map();
//! map.put(b"apple", b"red")?;
//! assert_eq!(map.get(b"apple")?, Some(b"red".to_vec()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A file has maps from byte strings to byte strings, and is used through a memory mapping. There
//! is no log and no cache of pages: a `get` reads the record where it is stored, without a lock,
//! and a `put` is durable against the death of the process when it returns, about a microsecond
//! later. A file opens in about a millisecond, however it was stopped.
//!
//! # What survives what
//!
//! | event | what is there afterwards |
//! |---|---|
//! | [`close`](Evermap::close), or the last handle is dropped | everything |
//! | death of the process (`kill -9`, a panic, `abort`) | every acknowledged write; each one wholly or not at all |
//! | crash of the operating system, loss of power | nothing is promised after an unclean stop. The next opening fails with [`Suspect`](ErrorKind::Suspect), unless [`Options::on_suspect`] says what to do |
//! | damage to the file | values may be lost, and most losses are reported as [`Error::Damaged`]; no wrong value, no crash, no endless loop |
//!
//! # A tour
//!
//! | to do | use |
//! |---|---|
//! | open a file, or a store in memory | [`Evermap::open`], [`Evermap::in_memory`] |
//! | have one map, or many | [`Evermap::default_map`]; [`map`](Evermap::map), [`maps`](Evermap::maps), [`drop_map`](Evermap::drop_map) |
//! | read | [`get`](Map::get), [`get_into`](Map::get_into), [`get_with`](Map::get_with), [`get_many`](Map::get_many), [`contains`](Map::contains) |
//! | read without copying | [`reader`](Map::reader) |
//! | write | [`put`](Map::put), [`remove`](Map::remove), and with the old value returned [`insert`](Map::insert), [`take`](Map::take) |
//! | write under a condition | [`try_insert`](Map::try_insert), [`replace`](Map::replace), [`compare_exchange`](Map::compare_exchange), [`remove_if`](Map::remove_if) |
//! | compute a new value from the old one | [`modify`](Map::modify), [`fetch_add`](Map::fetch_add), [`append`](Map::append) |
//! | change several keys, of several maps, all or none | [`Batch`], [`apply`](Map::apply); read them so with [`get_together`](Map::get_together) |
//! | walk through all records, in no order | [`iter`](Map::iter), [`keys`](Map::keys), [`for_each`](Map::for_each) |
//! | walk in the order of the keys | [`Options::ordered`], [`scan`](Map::scan), [`scan_prefix`](Map::scan_prefix) |
//! | let records expire | [`Meta::expiring`], [`touch`](Map::touch) |
//! | look after a file | [`stat`](Map::stat), [`check`](Evermap::check), [`compact`](Evermap::compact) |
//!
//! ```
//! use std::time::Duration;
//! use evermap::{Batch, Evermap, MapOptions, Meta, Options, Outcome};
//! let db = Evermap::in_memory(Options::new().ordered(true))?;
//! let users = db.map("users", MapOptions::new())?;
//!
//! assert_eq!(users.insert(b"ann", b"1")?, None);
//! assert_eq!(users.insert(b"ann", b"2")?, Some(b"1".to_vec()));
//! assert!(matches!(users.try_insert(b"ann", b"3")?, Outcome::Kept { .. }));
//! users.put_with(b"bob", b"guest", Meta::expiring(Duration::from_secs(60)))?;
//!
//! let mut batch = Batch::new();
//! batch.in_map("users").remove(b"ann").put(b"eve", b"4");
//! assert!(db.apply(&batch)?.is_done());
//!
//! for pair in users.scan("a".."f")? {
//!     let (key, value) = pair?;
//!     println!("{} is {}", key.escape_ascii(), value.escape_ascii());
//! }
//! assert_eq!(users.keys().count(), 2);
//! db.close()?;
//! # Ok::<(), evermap::Error>(())
//! ```
//!
//! What there is a limit to is listed in [`limits`].
//!
//! # Threads
//!
//! Handles ([`Evermap`], [`Map`]) are cheap to clone and can be shared between threads. All
//! operations take `&self`. Reads take no locks; writes lock one bucket of the index. One process
//! has a file open at a time. How to use a store from asynchronous code is told
//! [below](#asynchronous-programs).
//!
//! # What is safe Rust under which assumption
//!
//! Everything except [`Entry::bytes`] copies what it reads out of the mapping with atomic loads,
//! checks every offset and length before it uses it, and verifies checksums (unless
//! [`Options::verify_reads`] is off). That needs no assumption about what the file contains.
//! [`Entry::bytes`] lends bytes where they are stored, which is sound only while no other program
//! writes to the file and it is not damaged; so it is `unsafe`.
//!
//! One thing cannot be made safe: a mapped file that another program cuts off, or a disk that
//! cannot be read, ends the process by SIGBUS. [`explain_bus_errors`] reports which file it was and
//! what to do, before the process ends; [`describe_address`] does so for programs with a handler of
//! their own.
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

pub use batch::{Applied, BATCH_MAX, Batch};
pub use clock::Clock;
pub use db::Evermap;
pub use error::{Error, ErrorKind, Result, StorageError};
pub use evermap_index::record::KEY_MAX;
pub use evermap_pm::epoch::{Backlog, EpochStats, Holder};
pub use evermap_pm::medium::{describe_address, explain_bus_errors};
pub use evermap_pm::region::OnSuspect;
pub use index::IndexKind;
pub use item::{Edit, Item, Meta, Outcome};
pub use maintenance::census::Count;
pub use maintenance::check::CheckReport;
pub use maintenance::stats::{SpaceStat, Stat};
pub use maintenance::sweep::SweepState;
pub use map::catalog::{MAP_NAME_MAX, MapOptions};
pub use map::handle::Map;
pub use ops::atomic::counter;
pub use ops::find_many::UnreadRecord;
pub use ops::read::{BATCH_KEYS, Entry, Iter, Keys, Reader};
pub use ops::scan::{KeyRange, Scan};
pub use options::{Durability, Options};
pub use ordered::{OrderedStat, OrderedState, OrderedUpdates};
pub use record::{EXPIRY_MAX, VALUE_MAX};

#[doc = include_str!("limits.md")]
pub mod limits {}

/// The README's example has to work as it stands.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
