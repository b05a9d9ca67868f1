//! Mistakes that can be planted, and that the crash campaign notices. See
//! [`Medium::mutant`](evermap_pm::Medium::mutant).

/// An insertion changes the next line before the last one is durable.
pub const INSERT_OUT_OF_ORDER: &str = "FF-1";

/// A removal changes the next line before the last one is durable (Witcher found that in the
/// published code: it flushes the other end).
pub const REMOVE_OUT_OF_ORDER: &str = "FF-2";

/// The upper half stays in the node that is split.
pub const KEEP_UPPER_HALF: &str = "FF-3";

/// A record that was being inserted or removed at a crash stays (Witcher found that too).
pub const LEAVE_SHIFT: &str = "FF-4";

/// A split is not completed after a crash.
pub const LEAVE_SPLIT: &str = "FF-5";

/// Copies of words are trusted after a crash.
pub const TRUST_COPIES: &str = "FF-6";

/// All of them.
pub const MUTANTS: &[&str] = &[
    INSERT_OUT_OF_ORDER,
    REMOVE_OUT_OF_ORDER,
    KEEP_UPPER_HALF,
    LEAVE_SHIFT,
    LEAVE_SPLIT,
    TRUST_COPIES,
];
