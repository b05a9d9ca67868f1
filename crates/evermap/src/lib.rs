#![doc = include_str!("front.md")]
//!
#![doc = include_str!("async.md")]

// The documentation of `Map` and of `Evermap` shows their methods in the order of these modules:
// first what most programs use.
mod ops;

mod db;

mod file;

mod open;

mod map;

mod close;

mod durable;

mod instants;

mod batch;
#[cfg(feature = "serde")]
mod typed;

mod maintenance;

pub mod cache;

mod ordered;

mod upkeep;

mod watch;

mod clock;
mod error;
mod holder;
mod index;
mod item;
mod log;
mod mistakes;
mod new_file;
mod options;
mod record;
mod repair;
mod trace;
mod transaction;

pub use batch::{Applied, BATCH_MAX, Batch};
pub use clock::Clock;
pub use db::Evermap;
pub use durable::restore_log;
pub use error::{Error, ErrorKind, Result, StorageError};
pub use evermap_index::record::KEY_MAX;
pub use evermap_pm::Medium;
pub use evermap_pm::epoch::{Backlog, EpochStats, Holder};
pub use evermap_pm::medium::{Mapped, describe_address, explain_bus_errors};
pub use evermap_pm::region::{DamageMark, Identity, OnSuspect};
pub use index::IndexKind;
pub use instants::{Backup, BackupId, Snapshot, fetch_backup, restore};
pub use item::{Edit, Expiry, Item, Meta, Outcome};
pub use log::{Acknowledge, LogStat};
pub use maintenance::census::Count;
pub use maintenance::check::CheckReport;
pub use maintenance::cost::CostStat;
pub use maintenance::evict::{Evicted, EvictionListener};
pub use maintenance::stats::{SpaceStat, Stat};
pub use maintenance::sweep::SweepState;
pub use map::catalog::{MAP_NAME_MAX, MapOptions};
pub use map::handle::Map;
pub use ops::atomic::counter;
pub use ops::read::{Iter, Keys};
pub use ops::reader::{Reader, ValueRef};
pub use ops::scan::{KeyRange, Scan};
pub use ops::set::Set;
pub use ops::stream::{ValueReader, ValueWriter};
pub use ops::watch::Watch;
pub use options::{Durability, Options};
pub use ordered::{Order, OrderedStat, OrderedState, OrderedUpdates};
pub use record::VALUE_MAX;
pub use repair::{LostPart, Repair, RepairReport, RepairedMap};
pub use transaction::{Transaction, TransactionOptions};
#[cfg(feature = "serde")]
pub use typed::{DecodeKey, EncodeKey, TypedIter, TypedMap, TypedSet};
pub use watch::{ChangeKind, WatchEvent};

#[doc = include_str!("limits.md")]
pub mod limits {}

/// The examples of the README and of the guides have to work as they stand.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../README.md")]
    struct Package;
    #[doc = include_str!("../../../docs/use/maps.md")]
    struct Maps;
    #[doc = include_str!("../../../docs/use/batches.md")]
    struct Batches;
    #[doc = include_str!("../../../docs/use/transactions.md")]
    struct Transactions;
    #[doc = include_str!("../../../docs/use/ordered.md")]
    struct Ordered;
    #[doc = include_str!("../../../docs/use/watch.md")]
    struct Watching;
    #[doc = include_str!("../../../docs/use/eviction.md")]
    struct Eviction;
    #[doc = include_str!("../../../docs/use/patterns.md")]
    struct Patterns;
    #[doc = include_str!("../../../docs/use/snapshots.md")]
    struct Snapshots;
    #[cfg(feature = "serde")]
    #[doc = include_str!("../../../docs/use/typed.md")]
    struct Typed;
}
