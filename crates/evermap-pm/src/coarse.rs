//! The time for what need not be exact.

/// Returns the seconds since 1970 by the clock of the system, as they were at the last tick of its
/// timer, which is a few milliseconds ago. Takes about 5 ns, a fifth of what the exact time takes.
#[inline]
pub fn coarse_seconds() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is stored to a variable of our own. If the call fails, it stays 0.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &raw mut now) };
    now.tv_sec.max(0) as u64
}
