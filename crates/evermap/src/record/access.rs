//! How a record was read: what eviction goes by.
//!
//! The state is in 15 bits of the word with the record's lengths, which every lookup loads anyway:
//!
//! ```text
//! bit  0..2    frequency: reads since eviction last passed, up to 3
//! bit  2       fetched: whether the record was ever read
//! bit  3..15   time of the last access, in units of 8 seconds: 0 is unknown, 4095 long ago,
//!              others are 1 plus the number of the unit modulo 4094
//! ```
//!
//! It is stored only if it changes: a record that is read often is stored to once in 8 seconds.
//! Threads that read it at the same time may lose one of their counts. It is neither flushed nor
//! covered by the checksum: whatever a crash leaves is a state, and a record whose state is lost is
//! only evicted at another time. When the process dies, it stays, because it is in the file.
//!
//! Times repeat after 9 hours and 5 minutes. Eviction marks what it passes as accessed long ago
//! when that is more than 7 hours, and a store without eviction goes by no times. So a record that
//! nothing has accessed or passed for longer seems to have been accessed more recently, which is
//! shown to a caller that asks, and changes nothing else.

use std::time::Duration;

use crate::item::Access;

/// The largest frequency.
const FREQUENCY_MAX: u16 = 3;
const FETCHED: u16 = 1 << 2;
const TIME_SHIFT: u32 = 3;
/// The time of an access long ago.
const LONG_AGO: u16 = 4095;
/// The number of units after which times repeat.
const PERIOD: u32 = 4094;
/// The unit of times, in seconds.
const UNIT: u32 = 8;
/// From this number of seconds on, an access was long ago.
const LONG: u32 = 7 * 3600;

/// How a record was read: see the [module](self).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccessState(u16);

fn time_code(now: u32) -> u16 {
    (1 + now / UNIT % PERIOD) as u16
}

impl AccessState {
    /// Returns the state of a record that is stored now, and was never read.
    pub(crate) fn new(now: u32) -> Self {
        AccessState(time_code(now) << TIME_SHIFT)
    }

    pub(crate) fn from_bits(bits: u16) -> Self {
        AccessState(bits)
    }

    pub(crate) fn bits(self) -> u16 {
        self.0
    }

    /// Returns the number of reads since eviction last passed, up to 3.
    pub(crate) fn frequency(self) -> u16 {
        self.0 & FREQUENCY_MAX
    }

    /// Returns `true` if the record was ever read.
    pub(crate) fn is_fetched(self) -> bool {
        self.0 & FETCHED != 0
    }

    fn time(self) -> u16 {
        self.0 >> TIME_SHIFT
    }

    /// Returns the number of seconds since the last access, at most 8 too few or too many; 0 if it
    /// is not known.
    pub(crate) fn idle(self, now: u32) -> u32 {
        match self.time() {
            0 => 0,
            LONG_AGO => PERIOD * UNIT,
            time => {
                let since = u32::from(time_code(now)) + PERIOD - u32::from(time);
                since % PERIOD * UNIT
            }
        }
    }

    /// Returns what a caller sees of it.
    pub(crate) fn prior(self, now: u32) -> Access {
        let idle = Duration::from_secs(self.idle(now).into());
        Access { fetched: self.is_fetched(), idle }
    }

    /// Returns the state after a read.
    pub(crate) fn after_read(self, now: u32) -> Self {
        let frequency = (self.frequency() + 1).min(FREQUENCY_MAX);
        AccessState(frequency | FETCHED | time_code(now) << TIME_SHIFT)
    }

    /// Returns the state after eviction has passed this number of times.
    pub(crate) fn after_passes(self, times: u16, now: u32) -> Self {
        let frequency = self.frequency().saturating_sub(times);
        let time = if self.idle(now) >= LONG { LONG_AGO } else { self.time() };
        AccessState(frequency | self.0 & FETCHED | time << TIME_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_count_up_to_three_and_passes_count_down() {
        let mut state = AccessState::new(1_000);
        assert_eq!((state.frequency(), state.is_fetched()), (0, false));
        for wanted in [1, 2, 3, 3] {
            state = state.after_read(1_000);
            assert_eq!((state.frequency(), state.is_fetched()), (wanted, true));
        }
        assert_eq!(state.after_read(1_000), state, "nothing to store");
        for wanted in [2, 1, 0, 0] {
            state = state.after_passes(1, 1_000);
            assert_eq!((state.frequency(), state.is_fetched()), (wanted, true));
        }
        assert!(state.bits() < 1 << 15);
    }

    #[test]
    fn idle_times_are_right_until_they_repeat() {
        let period = PERIOD * UNIT;
        for start in [1, 7, 8, period - 8, period - 1, period, 1_800_000_000, u32::MAX - period] {
            for passed in [0, 1, 8, 100, 3_600, period - 16] {
                let idle = AccessState::new(start).idle(start + passed);
                assert!(idle.abs_diff(passed) < UNIT, "{idle} instead of {passed} after {start}");
            }
            assert_eq!(AccessState::new(start).idle(start + period), 0);
        }
        assert_eq!(AccessState::default().idle(1_800_000_000), 0, "not known");
    }

    #[test]
    fn what_eviction_passes_in_time_does_not_seem_recent_later() {
        let state = AccessState::new(1_000).after_passes(1, 1_000 + LONG);
        for later in [1_000 + LONG, 1_000 + PERIOD * UNIT, 1_000_000] {
            assert!(state.idle(later) >= LONG);
            assert!(state.after_passes(1, later).idle(later) >= LONG);
        }
        assert_eq!(state.after_read(5_000).idle(5_000), 0);
        // Not known is not long ago.
        assert_eq!(AccessState::default().after_passes(1, 1_000).bits(), 0);
    }
}
