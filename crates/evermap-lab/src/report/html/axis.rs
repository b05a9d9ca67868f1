//! The axes of a plot: where a value is, and which values have labels.

/// Mantissas of the labels of a logarithmic axis, from the densest.
const MANTISSAS: [&[f64]; 4] =
    [&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], &[1.0, 2.0, 5.0], &[1.0, 3.0], &[1.0]];
/// Fewer labels than this do not show that an axis is logarithmic.
const FEW: usize = 3;

/// A range of values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    pub(super) from: f64,
    pub(super) to: f64,
    /// Whether equal distances are equal ratios.
    pub(super) log: bool,
}

impl Axis {
    /// Returns where `value` is: 0 at the beginning, 1 at the end.
    pub(super) fn share(&self, value: f64) -> f64 {
        let value = value.clamp(self.from, self.to);
        if self.log {
            (value.ln() - self.from.ln()) / (self.to.ln() - self.from.ln())
        } else {
            (value - self.from) / (self.to - self.from)
        }
    }

    /// Returns the values that have labels, at most `most`.
    pub(super) fn ticks(&self, most: usize) -> Vec<f64> {
        let linear = || self.linear(most);
        if self.log { self.logarithmic(most).unwrap_or_else(linear) } else { linear() }
    }

    /// Returns round values at equal distances.
    fn linear(&self, most: usize) -> Vec<f64> {
        let least = (self.to - self.from) / most as f64;
        let power = 10f64.powf(least.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
        let step = step.into_iter().find(|&step| step >= least).unwrap_or(10.0 * power);
        let first = (self.from / step).ceil();
        let count = ((self.to / step).floor() - first) as usize + 1;
        (0..count.min(most + 1)).map(|nth| (first + nth as f64) * step).collect()
    }

    /// Returns round values at about equal ratios, or `None` if the axis has too few.
    fn logarithmic(&self, most: usize) -> Option<Vec<f64>> {
        let decades = self.from.log10().floor() as i32..=self.to.log10().floor() as i32;
        let all = |mantissas: &[f64]| -> Vec<f64> {
            let of = |decade: i32| mantissas.iter().map(move |one| one * 10f64.powi(decade));
            let inside = |tick: &f64| (self.from..=self.to).contains(tick);
            decades.clone().flat_map(of).filter(inside).collect()
        };
        let fits = MANTISSAS.iter().map(|mantissas| all(mantissas)).find(|all| all.len() <= most);
        let ticks = fits.unwrap_or_else(|| {
            let powers = all(&[1.0]);
            let step = powers.len().div_ceil(most);
            powers.into_iter().step_by(step).collect()
        });
        (ticks.len() >= FEW).then_some(ticks)
    }
}

/// Returns the label of a number.
pub(super) fn label(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        size if size > 0.0 && size < 1e-4 => return format!("{value:e}"),
        _ => (value, ""),
    };
    let digits = format!("{scaled:.4}");
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{digits}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_on_axes_are_short() {
        let all = [(0.0, "0"), (0.25, "0.25"), (12.0, "12"), (4000.0, "4000"), (20_000.0, "20k")];
        for (value, text) in all {
            assert_eq!(label(value), text);
        }
        assert_eq!((label(12_500_000.0), label(0.00002)), ("12.5M".into(), "2e-5".into()));
    }

    #[test]
    fn labels_are_round_and_few() {
        let linear = Axis { from: 0.0, to: 17.3, log: false };
        assert_eq!(linear.ticks(6), [0.0, 5.0, 10.0, 15.0]);
        assert_eq!([0.0, 8.65, 17.3, 40.0].map(|value| linear.share(value)), [0.0, 0.5, 1.0, 1.0]);
        let log = |from, to| Axis { from, to, log: true }.ticks(6);
        assert_eq!(log(1.0, 16.0), [1.0, 2.0, 5.0, 10.0]);
        assert_eq!(log(100_000.0, 400_000.0), [1e5, 2e5, 3e5, 4e5]);
        assert_eq!(log(0.5, 5000.0), [1.0, 10.0, 100.0, 1000.0]);
        // Too narrow for that.
        assert_eq!(log(5.0, 5.6).len(), 6);
        assert!((3..=6).contains(&log(f64::MIN_POSITIVE, 1.0).len()));
    }
}
