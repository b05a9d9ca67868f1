//! Numbers as people read them.

/// Formats a number of things.
pub(crate) fn counted(count: usize, thing: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{} {thing}{ending}", grouped(count as u64))
}

/// Formats a whole number with commas between thousands.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number with three significant digits, or with all digits before its point if those are
/// more.
pub(crate) fn significant(value: f64) -> String {
    if !value.is_finite() {
        return value.to_string();
    }
    let size = value.abs();
    if size >= 999.5 {
        let sign = if value < 0.0 { "-" } else { "" };
        return format!("{sign}{}", grouped(size.round() as u64));
    }
    // What would be shown with too many digits is nothing that anyone measures.
    let digits = if size < 1e-9 { 0 } else { 2 - size.log10().floor() as i32 };
    // Rounding may add a digit, as from 9.999 to 10.
    let digits = if size > 0.0 && size * 10f64.powi(digits) >= 999.5 { digits - 1 } else { digits };
    format!("{value:.0$}", digits.max(0) as usize)
}

/// Formats a duration with three significant digits and the unit that suits it.
pub(crate) fn duration(ns: f64) -> String {
    const UNITS: [(f64, &str); 3] = [(1e9, "s"), (1e6, "ms"), (1e3, "µs")];
    let unit = UNITS.iter().find(|(unit, _)| ns >= 0.9995 * unit);
    let (unit, name) = unit.copied().unwrap_or((1.0, "ns"));
    format!("{} {name}", significant(ns / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_grouped() {
        let all =
            [(0, "0"), (999, "999"), (1000, "1,000"), (20_000, "20,000"), (1_234_567, "1,234,567")];
        for (number, text) in all {
            assert_eq!(grouped(number), text);
        }
        assert_eq!(
            [0, 1, 2000].map(|count| counted(count, "key")),
            ["0 keys", "1 key", "2,000 keys"]
        );
    }

    #[test]
    fn no_figure_is_shown_as_nothing() {
        let all = [
            (0.0, "0"),
            (0.000_123_4, "0.000123"),
            (0.0456, "0.0456"),
            (0.9999, "1.00"),
            (1.0, "1.00"),
            (9.999, "10.0"),
            (-12.34, "-12.3"),
            (99.96, "100"),
            (999.4, "999"),
            (999.6, "1,000"),
            (-20_000.4, "-20,000"),
        ];
        for (value, text) in all {
            assert_eq!(significant(value), text, "{value}");
        }
    }

    #[test]
    fn durations_have_the_unit_that_suits_them() {
        let all = [
            (85.0, "85.0 ns"),
            (999.0, "999 ns"),
            (999.9, "1.00 µs"),
            (12_345.0, "12.3 µs"),
            (32_112_639.0, "32.1 ms"),
            (1.5e9, "1.50 s"),
            (4e12, "4,000 s"),
        ];
        for (ns, text) in all {
            assert_eq!(duration(ns), text, "{ns}");
        }
    }
}
