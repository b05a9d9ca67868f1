//! Mistakes that can be planted, and that the crash campaign notices. See
//! [`Medium::mutant`](evermap_pm::Medium::mutant).

/// An entry is not durable when the permutation that counts it is.
pub const COUNT_EARLY: &str = "MT-1";

/// The upper half stays in the node that is split.
pub const KEEP_UPPER_HALF: &str = "MT-2";

/// A split is not completed after a crash.
pub const LEAVE_SPLIT: &str = "MT-3";

/// The new node of a split is not durable when the old one refers to it.
pub const SPLIT_EARLY: &str = "MT-4";

/// A new layer is not durable when an entry refers to it.
pub const ENTER_LAYER_EARLY: &str = "MT-5";

/// All of them.
pub const MUTANTS: &[&str] =
    &[COUNT_EARLY, KEEP_UPPER_HALF, LEAVE_SPLIT, SPLIT_EARLY, ENTER_LAYER_EARLY];
