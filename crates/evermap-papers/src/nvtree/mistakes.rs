//! Mistakes that can be planted, and that the crash campaign notices. See
//! [`Medium::mutant`](evermap_pm::Medium::mutant).

/// An entry is counted before it is durable.
pub const COUNT_FIRST: &str = "NV-1";

/// The block of a long key is not durable with its entry.
pub const LEAVE_KEY: &str = "NV-2";

/// The new leaf is used before it is durably in the list.
pub const COMMIT_LATE: &str = "NV-3";

/// A new leaf gets any binding of a key that the old one has, and not the last.
pub const KEEP_ANY: &str = "NV-4";

/// The number of entries that lookups read is trusted after a crash.
pub const TRUST_VISIBLE: &str = "NV-5";

/// A new leaf is in the list before what it has is durable.
pub const LINK_FIRST: &str = "NV-6";

/// All of them.
pub const MUTANTS: &[&str] =
    &[COUNT_FIRST, LEAVE_KEY, COMMIT_LATE, KEEP_ANY, TRUST_VISIBLE, LINK_FIRST];
