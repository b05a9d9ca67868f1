//! Decimal numbers, as the text protocol writes them.

/// The number that `digits` spells, if that is all it does and the number is below 2^64.
pub(crate) fn parse_u64(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    let mut number = 0u64;
    for &digit in digits {
        let value = digit.wrapping_sub(b'0');
        if value > 9 {
            return None;
        }
        number = number.checked_mul(10)?.checked_add(u64::from(value))?;
    }
    Some(number)
}

/// [`parse_u64`] for numbers below 2^32.
pub(crate) fn parse_u32(digits: &[u8]) -> Option<u32> {
    parse_u64(digits)?.try_into().ok()
}

/// The number that an optional minus sign and digits spell, if it fits.
pub(crate) fn parse_i64(text: &[u8]) -> Option<i64> {
    match text.strip_prefix(b"-") {
        None => parse_u64(text)?.try_into().ok(),
        Some(digits) => 0i64.checked_sub_unsigned(parse_u64(digits)?),
    }
}

/// Appends the digits of `number`.
pub(crate) fn append(mut number: u64, out: &mut Vec<u8>) {
    const LONGEST: usize = 20;
    // Flags are mostly 0.
    if number < 10 {
        return out.push(b'0' + number as u8);
    }
    let mut digits = [0; LONGEST];
    let mut at = LONGEST;
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn edges() {
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u64(b"18446744073709551616"), None);
        assert_eq!(parse_u64(b"99999999999999999999999"), None);
        assert_eq!(parse_u64(b"007"), Some(7));
        assert_eq!(parse_u32(b"4294967295"), Some(u32::MAX));
        assert_eq!(parse_u32(b"4294967296"), None);
        assert_eq!(parse_i64(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse_i64(b"-9223372036854775809"), None);
        assert_eq!(parse_i64(b"9223372036854775808"), None);
        for bad in [&b""[..], b"-", b"+1", b"1 ", b" 1", b"--1", b"\x00", b"1\xb2"] {
            assert_eq!(parse_u64(bad), None);
            assert_eq!(parse_i64(bad), None);
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_standard_library(number: u64, signed: i64) {
            let mut text = Vec::new();
            append(number, &mut text);
            prop_assert_eq!(std::str::from_utf8(&text).unwrap(), number.to_string());
            prop_assert_eq!(parse_u64(&text), Some(number));
            prop_assert_eq!(parse_i64(signed.to_string().as_bytes()), Some(signed));
        }
    }
}
