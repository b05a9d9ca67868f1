//! Mistakes that can be planted, and that tests notice. See
//! [`Medium::mutant`](evermap_pm::Medium::mutant).

/// Readers and writers act on words that are not durable.
pub const ACT_EARLY: &str = "BW-1";

/// A node is split before the word of the new node is durable.
pub const SPLIT_EARLY: &str = "BW-2";

/// A delta becomes durable after the word that names it.
pub const PUBLISH_EARLY: &str = "BW-3";

/// A merge is taken for complete before the left node has the keys.
pub const MERGE_EARLY: &str = "BW-4";

/// A frozen node is changed.
pub const CHANGE_FROZEN: &str = "BW-5";

/// The level above is told of a node that was merged meanwhile.
pub const TELL_OF_MERGED: &str = "BW-6";

/// All of them.
pub const MUTANTS: &[&str] =
    &[ACT_EARLY, SPLIT_EARLY, PUBLISH_EARLY, MERGE_EARLY, CHANGE_FROZEN, TELL_OF_MERGED];

/// Mistakes that the workloads of the campaigns detect only by chance, and the tests that detect
/// them.
///
/// BW-1 shows in few of all orders of threads: a thread that changes the same node stores the same
/// word, and so makes durable what it has built on. Only a lookup of the same key, or a change in a
/// node that was just split off, shows it, if it begins and ends while another thread is between
/// its exchange of a word and the fence that follows.
pub const NOTICED_ELSEWHERE: &[(&str, &str)] = &[
    (ACT_EARLY, "noticed by `what_is_not_durable_and_acted_on_is_lost`"),
    (CHANGE_FROZEN, "noticed by `a_frozen_node_is_not_changed`"),
    (TELL_OF_MERGED, "noticed by `a_node_that_was_merged_is_not_added_to_the_level_above`"),
];
