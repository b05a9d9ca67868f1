//! Mistakes that tests plant, to show that they would be noticed.

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mistake {
    /// A lookup takes the number of the bucket from one table and the array from another.
    LoadsTheTableTwice,
    /// A lookup searches a bucket that was forwarded, and does not continue in the next table.
    ReadsForwardedBuckets,
    /// A walk shows buckets that were forwarded as they were then.
    ShowsForwardedBuckets,
    /// An entry is dropped as soon as it is removed or replaced.
    FreesWithoutGracePeriod,
}
