//! Mistakes that can be planted, and that the crash campaign notices. See
//! [`Medium::mutant`](evermap_pm::Medium::mutant).

/// Readers act on references that are not durable.
pub const ACT_EARLY: &str = "AR-1";

/// A reference becomes durable before the leaf does (Witcher found that in the published code).
pub const PUBLISH_EARLY: &str = "AR-2";

/// Symbols and positions are not computed anew after a crash.
pub const KEEP_HINTS: &str = "AR-3";

/// A node is changed that is not part of the tree any more.
pub const CHANGE_OBSOLETE: &str = "AR-4";

/// All of them.
pub const MUTANTS: &[&str] = &[ACT_EARLY, PUBLISH_EARLY, KEEP_HINTS, CHANGE_OBSOLETE];
