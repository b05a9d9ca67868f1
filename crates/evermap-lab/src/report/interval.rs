//! Medians, quantiles, and confidence intervals.

/// Returns the middle of `values`, or the mean of the middle two if their number is even. Returns
/// `None` if there are none.
pub fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// Returns the value that a `share` of `values`, 0 to 1, does not exceed. Returns `None` if there
/// are none.
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let sorted = sorted(values);
    let last = sorted.len().checked_sub(1)?;
    Some(sorted[(share * last as f64) as usize])
}

/// A range that holds the true median with a known probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// The probability that the true median is between the two, 0 to 1.
    pub coverage: f64,
}

/// Returns the interval between two order statistics of `values` that holds the true median with a
/// probability of at least `wanted`, or, if there are too few values for that, the interval from
/// the least to the greatest, with its `coverage`.
///
/// No distribution is assumed. Each value is below the true median with probability one half, so
/// the median misses the range from the `k`-th to the `k`-th last of `n` values with the
/// probability that fewer than `k` of `n` coins show heads, twice. Five values are the fewest that
/// give 90 %.
pub fn median_interval(values: &[f64], wanted: f64) -> Option<Interval> {
    let sorted = sorted(values);
    let n = sorted.len();
    let mut best = None;
    let mut coverage = 1.0;
    // The probability that exactly `k` of `n` coins show heads.
    let mut exactly = 0.5f64.powi(n as i32);
    for k in 0..n.div_ceil(2) {
        coverage -= 2.0 * exactly;
        if best.is_some() && coverage < wanted {
            break;
        }
        best =
            Some(Interval { low: sorted[k], high: sorted[n - 1 - k], coverage: coverage.max(0.0) });
        exactly *= (n - k) as f64 / (k + 1) as f64;
    }
    best
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 4.0]), Some(4.0));
        assert_eq!(median(&[8.0, 1.0, 4.0, 2.0]), Some(3.0));
    }

    #[test]
    fn quantiles() {
        assert_eq!(quantile(&[], 0.5), None);
        let values: Vec<_> = (1..=101).rev().map(f64::from).collect();
        assert_eq!(quantile(&values, 0.0), Some(1.0));
        assert_eq!(quantile(&values, 0.05), Some(6.0));
        assert_eq!(quantile(&values, 1.0), Some(101.0));
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 0.05), Some(1.0), "of few, the least");
    }

    #[test]
    fn intervals_have_their_exact_coverage() {
        let count = |n: u32| (1..=n).rev().map(f64::from).collect::<Vec<_>>();
        let exact = |n, low, high, coverage| {
            assert_eq!(
                median_interval(&count(n), 0.9),
                Some(Interval { low, high, coverage }),
                "{n}"
            );
        };
        assert_eq!(median_interval(&[], 0.9), None);
        // One value tells nothing about the median; 1 - 2/2^n is all that n < 5 values can give.
        exact(1, 1.0, 1.0, 0.0);
        exact(2, 1.0, 2.0, 0.5);
        exact(3, 1.0, 3.0, 0.75);
        exact(4, 1.0, 4.0, 0.875);
        // 1 - 2/32.
        exact(5, 1.0, 5.0, 0.9375);
        // The second and second last of seven: 1 - 2 (1 + 7) / 128 = 0.875 is too little, so least
        // to greatest.
        exact(7, 1.0, 7.0, 1.0 - 2.0 / 128.0);
        // 1 - 2 (1 + 8) / 256.
        exact(8, 2.0, 7.0, 1.0 - 18.0 / 256.0);
        // 1 - 2 (1 + 10) / 1024; a third step would give 1 - 2 (1 + 10 + 45) / 1024 = 0.89.
        exact(10, 2.0, 9.0, 1.0 - 22.0 / 1024.0);
        // 1 - 2 (1 + 20 + 190 + 1140 + 4845) / 2^20 = 0.988; with 15504 more 0.959; with 38760 more
        // 0.885.
        let twenty = median_interval(&count(20), 0.9).unwrap();
        assert_eq!((twenty.low, twenty.high), (6.0, 15.0));
        assert!((twenty.coverage - (1.0 - 43_400.0 / 1_048_576.0)).abs() < 1e-12);
    }
}
