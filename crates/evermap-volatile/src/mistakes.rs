//! Mistakes that tests plant, to show that they would be noticed.

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// A lookup takes the number of the bucket from one table and the array from another.
    LoadsTheTableTwice,
    /// A lookup searches a bucket that was forwarded, and does not continue in the next table.
    ReadsForwardedBuckets,
    /// A bucket is marked as forwarded before its slots are in the next table.
    ForwardsBeforeCopying,
    /// The entry of a key is replaced by removing it and adding another one.
    ReplacesInTwoSteps,
    /// Buckets that become one are moved one after the other.
    ForwardsHalfOfAPair,
    /// A walk shows buckets that were forwarded as they were then.
    ShowsForwardedBuckets,
    /// A walk follows a forwarded bucket into a table with another order.
    WalksInTwoOrders,
    /// A walk that enters a larger bucket in the middle shows all of it.
    ShowsBucketsFromTheirBeginning,
    /// An entry is dropped as soon as it is removed or replaced.
    FreesWithoutGracePeriod,
}
