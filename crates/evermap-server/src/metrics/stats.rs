//! Statistics, from which the metrics are taken.

use std::collections::BTreeMap;

/// The values of statistics, by name.
pub(super) type Stats = BTreeMap<String, String>;

/// Returns a statistic if it is a number.
pub(super) fn number<'s>(stats: &'s Stats, name: &str) -> Option<&'s str> {
    let value = stats.get(name)?;
    value.parse::<f64>().is_ok_and(f64::is_finite).then_some(value.as_str())
}
