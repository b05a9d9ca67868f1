//! Mistakes that tests can plant in the store, and that they have to notice: see
//! [`Medium::mutant`](evermap_pm::Medium::mutant).

/// A change of marks is not durable when it is acknowledged.
pub(crate) const MARKS_UNFLUSHED: &str = "MK-1";
/// What the index still refers to has a tombstone for a moment.
pub(crate) const TOMBSTONE_TOO_EARLY: &str = "TO-1";
/// A change is made, and an error is returned. This one is of the tests' own making.
pub(crate) const ERROR_AFTER_CHANGE: &str = "ST-1";
/// Storing how a record was read leaves it without its lengths for a moment.
pub(crate) const LENGTHS_GONE: &str = "AC-1";

/// A value that is written in pieces is published before it is durable.
pub(crate) const PIECES_UNFLUSHED: &str = "VW-1";
/// A clean shutdown saves blocks of unfinished values as allocated.
pub(crate) const UNFINISHED_KEPT: &str = "VW-2";

/// An eviction removes whatever the key is bound to by then.
pub(crate) const NEWER_RECORD_EVICTED: &str = "EV-1";
/// An eviction gives the block up while it is still bound.
pub(crate) const EVICTED_TOO_EARLY: &str = "EV-2";
/// A record that is moved is published before its copy is durable.
pub(crate) const MOVED_UNFLUSHED: &str = "EV-3";

/// A dropped map is freed before its name is removed.
pub(crate) const DROPPED_TOO_EARLY: &str = "MA-1";
/// A clean shutdown saves blocks of a dropped map as allocated.
pub(crate) const DROPPED_KEPT: &str = "MA-2";
/// A sweep does not visit dropped maps that are freed later.
pub(crate) const DROPPED_UNVISITED: &str = "MA-3";

/// A key enters no persistent order.
pub(crate) const NO_ORDER: &str = "OR-1";
/// A key leaves the persistent order although it is bound again.
pub(crate) const ORDER_LEFT: &str = "OR-2";

/// The intent of a batch is not durable when it is decided.
pub(crate) const INTENT_UNFLUSHED: &str = "BA-1";
/// New keys of a batch are visible before it is decided.
pub(crate) const BATCH_VISIBLE: &str = "BA-2";
/// The intent of a batch is cleared before its changes are durable.
pub(crate) const BATCH_UNFLUSHED: &str = "BA-3";
/// A recovery clears the intent of a batch before it has carried it out.
pub(crate) const INTENT_CLEARED: &str = "BA-4";
