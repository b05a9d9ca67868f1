//! Mistakes that can be planted, and that campaigns or tests notice. See
//! [`Medium::mutant`](evermap_pm::Medium::mutant).

/// An entry names its item before that is durable.
pub const ENTRY_BEFORE_ITEM: &str = "HK-1";

/// The image of the tree is trusted although another opener has saved it than the last one: the
/// flag of a normal shutdown is not cleared.
pub const FLAG_STAYS: &str = "HK-2";

/// The removals of a key have another queue than its updates.
pub const TWO_QUEUES: &str = "HK-3";

/// An item is retired before the tree is updated.
pub const ITEM_RETIRED_EARLY: &str = "HK-4";

/// A split counts the new bucket before that is durable.
pub const COUNT_BEFORE_BUCKET: &str = "HK-5";

/// A record of the log is carried out again without a search for its key.
pub const REDO_TWICE: &str = "HK-6";

/// Those that are noticed by a test of their own, which is named.
pub const NOTICED_ELSEWHERE: &[(&str, &str)] =
    &[(ITEM_RETIRED_EARLY, "an_item_that_is_retired_early_is_noticed")];

/// Those that need no log.
pub const MUTANTS: &[&str] =
    &[ENTRY_BEFORE_ITEM, FLAG_STAYS, TWO_QUEUES, ITEM_RETIRED_EARLY, COUNT_BEFORE_BUCKET];

/// Those that need one.
pub const LOG_MUTANTS: &[&str] = &[REDO_TWICE];
