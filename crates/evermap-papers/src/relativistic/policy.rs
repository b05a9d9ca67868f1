//! When a table is resized.

/// When a table changes its number of buckets by itself.
///
/// After either change the load is far from both limits, so that a table whose number of pairs
/// oscillates is not resized again and again: with the default, it takes half of the pairs to come
/// or to go. One resize runs at a time. Updaters take part in it, each for a few buckets, so a
/// table cannot fill faster than it grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The table doubles if there are more pairs than this, in percent of the buckets.
    pub grow_above_percent: u32,
    /// The table halves if there are fewer pairs than this, in percent of the buckets. Less than
    /// half of the other limit, or the two would alternate.
    pub shrink_below_percent: u32,
}

impl Default for Policy {
    /// 75 and 30 percent.
    fn default() -> Self {
        Policy { grow_above_percent: 75, shrink_below_percent: 30 }
    }
}

impl Policy {
    /// Returns `true` if the limits leave room for hysteresis.
    pub(super) fn is_stable(self) -> bool {
        self.grow_above_percent > 0
            && u64::from(self.shrink_below_percent) * 2 < u64::from(self.grow_above_percent)
    }

    /// Returns `true` if a table with this number of pairs should grow.
    #[inline]
    pub(super) fn wants_growth(self, pairs: u64, buckets: u64) -> bool {
        exceeds(pairs, buckets, self.grow_above_percent)
    }

    /// Returns `true` if a table with this number of pairs should shrink.
    #[inline]
    pub(super) fn wants_shrinkage(self, pairs: u64, buckets: u64) -> bool {
        u128::from(pairs) * 100 < u128::from(buckets) * u128::from(self.shrink_below_percent)
    }
}

fn exceeds(pairs: u64, buckets: u64, percent: u32) -> bool {
    u128::from(pairs) * 100 > u128::from(buckets) * u128::from(percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After a change of the size, half of the pairs have to come or go before the next.
    #[test]
    fn a_resize_is_not_undone_by_a_few_pairs() {
        let policy = Policy::default();
        for buckets in [64, 4096, 1 << 40] {
            let mut pairs = buckets / 4 * 3 + 1;
            assert!(policy.wants_growth(pairs, buckets));
            assert!(!policy.wants_growth(pairs - 1, buckets));
            let grown = buckets * 2;
            while !policy.wants_shrinkage(pairs, grown) {
                pairs -= pairs / 16;
            }
            assert!(pairs * 10 < buckets * 6 + 10, "{pairs} of {buckets}");
            assert!(!policy.wants_growth(pairs, buckets));
        }
    }

    #[test]
    fn limits_that_alternate_are_refused() {
        assert!(Policy::default().is_stable());
        for (grow, shrink) in [(100, 50), (100, 60), (0, 0)] {
            let policy = Policy { grow_above_percent: grow, shrink_below_percent: shrink };
            assert!(!policy.is_stable());
        }
    }
}
