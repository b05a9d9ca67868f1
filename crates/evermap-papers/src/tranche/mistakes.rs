//! Deliberate mistakes that tests can enable: see [`Medium::mutant`](evermap_pm::Medium::mutant).
//! The codes are those of `docs/design/two-misses.md`.

/// A search stops at a tranche with free space.
pub(super) const FREE_SPACE_ENDS_SEARCH: &str = "TM-1";
/// A reader trusts the group that it computed before a move.
pub(super) const GROUP_NOT_CHECKED: &str = "TM-2";
/// Recovery leaves records that have moved.
pub(super) const STRAYS_KEPT: &str = "TM-3";
/// Recovery leaves one of two equal records.
pub(super) const DUPLICATES_KEPT: &str = "TM-4";
/// A page of a walk is trusted although records have moved.
pub(super) const PAGE_NOT_CHECKED: &str = "TM-5";
/// A move does not announce which homes it changes.
pub(super) const MOVE_UNANNOUNCED: &str = "TM-6";
