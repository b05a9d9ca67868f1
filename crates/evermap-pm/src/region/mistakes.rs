//! Mistakes that tests can plant in the region, and that those of the indexes have to notice: see
//! [`Medium::mutant`](crate::Medium::mutant).

/// The mark of a clean shutdown is not durably removed when the file is opened.
pub const CLEAN_MARK_STAYS: &str = "DA-1";
/// The generation is not flushed.
pub const GENERATION_UNFLUSHED: &str = "DA-2";
