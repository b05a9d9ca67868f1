//! Times as clients write them.

/// Converts a client's `exptime` to an absolute expiry. 0 means never; a negative number, already
/// expired; up to 30 days, seconds from now; a larger number, seconds since 1970.
pub(super) fn expiry(exptime: i64, now: u32) -> u32 {
    const RELATIVE_MAX: i64 = 60 * 60 * 24 * 30;
    const LONG_AGO: u32 = 1;
    match exptime {
        0 => 0,
        ..0 => LONG_AGO,
        1..=RELATIVE_MAX => now.saturating_add(exptime as u32),
        _ => exptime.try_into().unwrap_or(u32::MAX),
    }
}
