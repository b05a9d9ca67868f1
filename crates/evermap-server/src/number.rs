//! Decimal numbers, as the text protocol writes them.
//!
//! Parsing is as lenient as memcached's, which uses C's `strtoull`: white space and a plus sign may
//! precede the digits, and the number ends at white space or a zero byte, whatever follows.
//! memcached also accepts a few numbers with a minus sign as unsigned ones; these functions accept
//! none.

/// Parses the unsigned number at the start of `text`. Returns `None` if there is none below 2^64.
#[inline]
pub(crate) fn parse_u64(text: &[u8]) -> Option<u64> {
    let text = skip_space(text);
    digits(text.strip_prefix(b"+").unwrap_or(text))
}

/// Parses the digits at the start of `text`.
#[inline]
fn digits(text: &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for (at, &byte) in text.iter().enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            let ended = at > 0 && (byte == 0 || is_space(byte));
            return ended.then_some(number);
        }
        number = number.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    (!text.is_empty()).then_some(number)
}

/// Returns `true` for the ASCII characters for which C's `isspace` does.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

fn skip_space(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|&byte| !is_space(byte)).unwrap_or(text.len());
    &text[start..]
}

/// Parses a number below 2^32, as [`parse_u64`] does.
pub(crate) fn parse_u32(digits: &[u8]) -> Option<u32> {
    parse_u64(digits)?.try_into().ok()
}

/// Parses the signed number at the start of `text`. Returns `None` if there is none that fits.
pub(crate) fn parse_i64(text: &[u8]) -> Option<i64> {
    match skip_space(text).strip_prefix(b"-") {
        None => parse_u64(text)?.try_into().ok(),
        Some(magnitude) => 0i64.checked_sub_unsigned(digits(magnitude)?),
    }
}

/// Appends the decimal digits of `number` to `out`.
pub(crate) fn append(mut number: u64, out: &mut Vec<u8>) {
    const LONGEST: usize = 20;
    // A shortcut, because most flags are 0.
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
    fn the_limits_of_each_type_and_malformed_numbers() {
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u64(b"18446744073709551616"), None);
        assert_eq!(parse_u64(b"99999999999999999999999"), None);
        assert_eq!(parse_u64(b"007"), Some(7));
        assert_eq!(parse_u32(b"4294967295"), Some(u32::MAX));
        assert_eq!(parse_u32(b"4294967296"), None);
        assert_eq!(parse_i64(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse_i64(b"-9223372036854775809"), None);
        assert_eq!(parse_i64(b"9223372036854775808"), None);
        for bad in [
            &b""[..],
            b" ",
            b"-",
            b"+",
            b"+-1",
            b"-+1",
            b"--1",
            b"++1",
            b"+ 1",
            b"\x00",
            b"1x",
            b"1\xb2",
        ] {
            assert_eq!(parse_u64(bad), None, "{}", bad.escape_ascii());
            assert_eq!(parse_i64(bad), None, "{}", bad.escape_ascii());
        }
        for one in
            [&b"+1"[..], b" 1", b"\t\n\x0b\x0c\r +1", b"1 ", b"1\x0bx", b"1 2", b"1\x00x", b"01"]
        {
            assert_eq!(parse_u64(one), Some(1), "{}", one.escape_ascii());
            assert_eq!(parse_i64(one), Some(1), "{}", one.escape_ascii());
        }
        assert_eq!(parse_i64(b" -1\tx"), Some(-1));
        assert_eq!(parse_u64(b"-1"), None);
    }

    proptest! {
        #[test]
        fn numbers_are_written_and_parsed_as_the_standard_library_does(number: u64, signed: i64) {
            let mut text = Vec::new();
            append(number, &mut text);
            prop_assert_eq!(std::str::from_utf8(&text).unwrap(), number.to_string());
            prop_assert_eq!(parse_u64(&text), Some(number));
            prop_assert_eq!(parse_i64(signed.to_string().as_bytes()), Some(signed));
        }
    }
}
