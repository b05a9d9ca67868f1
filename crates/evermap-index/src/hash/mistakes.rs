//! Mistakes of other implementations that tests can enable in Dash and in its directory: see
//! [`Medium::mutant`](evermap_pm::Medium::mutant). The codes are those of `docs/design/dash.md`,
//! which says who notices them. The first two are made by the region.

pub use evermap_pm::region::mistakes::{CLEAN_MARK_STAYS, GENERATION_UNFLUSHED};

/// Recovery does not finish a committed split.
pub const SPLIT_UNFINISHED: &str = "DA-3";
/// A merge redirects the left half of its range before the right one.
pub const MERGE_LEFT_FIRST: &str = "DA-4";
/// Recovery leaves entries of a merged range pointing to the segments that were merged.
pub const MERGE_UNFINISHED: &str = "DA-5";
/// The root names an index that is not complete.
pub const ROOT_TOO_EARLY: &str = "DA-6";
/// A split changes entries of a directory that may be replaced meanwhile.
pub const LATCH_RELEASED_EARLY: &str = "DA-7";
/// Readers read from a locked bucket.
pub const LOCKED_BUCKET_READ: &str = "DA-8";
/// Recovery keeps both copies of a displaced record.
pub const BOTH_COPIES_KEPT: &str = "DA-9";
/// Recovery does not announce records in the stash.
pub const STASH_UNANNOUNCED: &str = "DA-10";
/// A record's removal is not durable before its slot is used again.
pub const REMOVAL_UNFLUSHED: &str = "DA-11";
/// A miss is not verified.
pub const MISS_UNVERIFIED: &str = "DA-14";
/// Recovery makes the entries that a split had not reached point to the segment of the first one,
/// although parts of that half were split again since.
pub const FIRST_ENTRY_DECIDES: &str = "DA-15";
/// Recovery copies the left neighbour of such an entry, which can be another split's unfinished
/// work.
pub const NEIGHBOUR_DECIDES: &str = "DA-16";
/// A merge lowers the extent before the records are in the origin.
pub const EXTENT_TOO_EARLY: &str = "DA-17";
/// A merge stores the shorter prefix of the origin only after it has lowered the extent.
pub const PREFIX_TOO_LATE: &str = "DA-18";
/// An array of segments is freed while searches may still go by an earlier extent.
pub const ARRAY_FREED_EARLY: &str = "DA-19";
/// Segments are merged while searches may still go by what was true before they were split.
pub const MERGED_AT_ONCE: &str = "DA-20";
