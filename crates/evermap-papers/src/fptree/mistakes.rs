//! Mistakes that can be planted, and that the crash campaign notices. See
//! [`Medium::mutant`](evermap_pm::Medium::mutant).

/// The bitmap says that an entry is valid before the entry is durable.
pub const BITMAP_FIRST: &str = "FP-1";

/// The upper half stays in the leaf that is split.
pub const KEEP_UPPER_HALF: &str = "FP-2";

/// A split is not completed after a crash.
pub const LEAVE_SPLIT: &str = "FP-3";

/// An update makes the new entry valid, and then the old one invalid.
pub const UPDATE_IN_TWO_STEPS: &str = "FP-4";

/// A leaf is freed before it is durable that nothing refers to it.
pub const RETIRE_EARLY: &str = "FP-5";

/// A leaf that is split refers to the new one before that is durable.
pub const LINK_EARLY: &str = "FP-6";

/// A split uses the entry of a key that the new leaf has before it is durable that the old leaf
/// does not have it.
pub const REUSE_EARLY: &str = "FP-7";

/// All of them.
pub const MUTANTS: &[&str] = &[
    BITMAP_FIRST,
    KEEP_UPPER_HALF,
    LEAVE_SPLIT,
    UPDATE_IN_TWO_STEPS,
    RETIRE_EARLY,
    LINK_EARLY,
    REUSE_EARLY,
];
