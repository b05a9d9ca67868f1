//! Mistakes that can be planted, and that tests notice. See
//! [`Medium::mutant`](evermap_pm::Medium::mutant).

/// Readers act on references that are not durable.
pub const ACT_EARLY: &str = "HO-1";

/// A reference becomes durable before the node does (Witcher found that in the published code).
pub const PUBLISH_EARLY: &str = "HO-2";

/// A reference is not flushed (Witcher found that too: the address of a variable is flushed).
pub const LEAVE_REFERENCE_UNFLUSHED: &str = "HO-3";

/// A new node with references to others is not flushed after they were stored (as published).
pub const LEAVE_NODE_UNFLUSHED: &str = "HO-4";

/// A node is changed that is not part of the tree any more.
pub const CHANGE_OBSOLETE: &str = "HO-5";

/// A change does not notice that references have changed since its search.
pub const OVERLOOK_CHANGES: &str = "HO-6";

/// All of them.
pub const MUTANTS: &[&str] = &[
    ACT_EARLY,
    PUBLISH_EARLY,
    LEAVE_REFERENCE_UNFLUSHED,
    LEAVE_NODE_UNFLUSHED,
    CHANGE_OBSOLETE,
    OVERLOOK_CHANGES,
];

/// Mistakes that the workloads of the campaigns detect only by chance, and the tests that detect
/// them.
pub const NOTICED_ELSEWHERE: &[(&str, &str)] =
    &[(ACT_EARLY, "noticed by `what_is_not_durable_and_acted_on_is_noticed`")];
