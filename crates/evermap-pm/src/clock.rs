//! The time of the process.
//!
//! The wall clock can be set while a process runs, by hand or because it was wrong when the machine
//! started. What is to happen after a while must not happen earlier or later for that. So the wall
//! clock is read once, and from then on the time passes as the clock says that nobody sets and that
//! runs on while the machine is suspended (`CLOCK_BOOTTIME`).

use std::sync::OnceLock;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;

/// Returns the seconds since 1970 by the time of the process: those of the wall clock at the first
/// call of this module in this process, and what has passed since, with the time for which the
/// machine was suspended. They never go back. Takes about 25 ns.
#[inline]
pub fn seconds() -> u64 {
    PROCESS.seconds()
}

/// Returns what [`seconds`] returns, or returned a few milliseconds ago, for what need not be
/// exact. Time for which the machine was suspended since the last call of [`follow_suspension`] is
/// missing. Takes about 5 ns.
#[inline]
pub fn coarse_seconds() -> u64 {
    PROCESS.coarse_seconds()
}

/// Makes [`coarse_seconds`] include the time for which the machine was suspended. To be called
/// about once a second.
#[cold]
pub fn follow_suspension() {
    PROCESS.follow_suspension();
}

static PROCESS: ProcessTime<SystemClocks> = ProcessTime::new(SystemClocks);

const NANOS: i64 = 1_000_000_000;

/// The clocks of the system, in nanoseconds.
trait Clocks {
    /// Since 1970. Can be set.
    fn wall(&self) -> i64;
    /// Since the machine was started. Cannot be set.
    fn running(&self) -> i64;
    /// The same without the time for which the machine was suspended.
    fn awake(&self) -> i64;
    /// The same as it was at the last tick of the timer, a few milliseconds ago.
    fn awake_coarse(&self) -> i64;
}

struct ProcessTime<C> {
    clocks: C,
    /// What the wall clock was ahead of the running one at first.
    ahead: OnceLock<i64>,
    /// For how long the machine was suspended, as far as it has been noticed.
    suspended: AtomicI64,
}

impl<C: Clocks> ProcessTime<C> {
    const fn new(clocks: C) -> Self {
        ProcessTime { clocks, ahead: OnceLock::new(), suspended: AtomicI64::new(0) }
    }

    fn ahead(&self) -> i64 {
        *self.ahead.get_or_init(|| {
            self.follow_suspension();
            self.clocks.wall().saturating_sub(self.clocks.running())
        })
    }

    #[inline]
    fn seconds(&self) -> u64 {
        since_1970(self.ahead(), self.clocks.running())
    }

    #[inline]
    fn coarse_seconds(&self) -> u64 {
        // Relaxed: the number stands for itself.
        let ahead = self.ahead().saturating_add(self.suspended.load(Relaxed));
        since_1970(ahead, self.clocks.awake_coarse())
    }

    fn follow_suspension(&self) {
        /// Less is the time between two readings, and not worth a store to shared memory.
        const NOTABLE: i64 = NANOS / 10;
        let suspended = self.clocks.running().saturating_sub(self.clocks.awake());
        if suspended.abs_diff(self.suspended.load(Relaxed)) > NOTABLE as u64 {
            self.suspended.store(suspended, Relaxed);
        }
    }
}

fn since_1970(ahead: i64, running: i64) -> u64 {
    // 0 while the clocks say that it is before 1970.
    (running.saturating_add(ahead) / NANOS).max(0) as u64
}

struct SystemClocks;

impl Clocks for SystemClocks {
    fn wall(&self) -> i64 {
        read(libc::CLOCK_REALTIME)
    }

    fn running(&self) -> i64 {
        read(libc::CLOCK_BOOTTIME)
    }

    fn awake(&self) -> i64 {
        read(libc::CLOCK_MONOTONIC)
    }

    fn awake_coarse(&self) -> i64 {
        read(libc::CLOCK_MONOTONIC_COARSE)
    }
}

/// Returns what a clock shows, in nanoseconds, or 0 if the system does not have it.
#[inline]
fn read(clock: libc::clockid_t) -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is stored to a variable of our own. If the call fails, it stays 0.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now.tv_sec.saturating_mul(NANOS).saturating_add(now.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clocks whose hands are moved by hand.
    #[derive(Default)]
    struct Hands {
        wall: AtomicI64,
        running: AtomicI64,
        awake: AtomicI64,
    }

    impl Hands {
        fn at(wall: i64, up: i64) -> Self {
            let hands = Hands::default();
            hands.wall.store(wall * NANOS, Relaxed);
            hands.pass(up);
            hands.wall.store(wall * NANOS, Relaxed);
            hands
        }

        fn pass(&self, seconds: i64) {
            self.suspend(seconds);
            self.awake.fetch_add(seconds * NANOS, Relaxed);
        }

        fn suspend(&self, seconds: i64) {
            self.wall.fetch_add(seconds * NANOS, Relaxed);
            self.running.fetch_add(seconds * NANOS, Relaxed);
        }

        fn set(&self, seconds: i64) {
            self.wall.store(seconds * NANOS, Relaxed);
        }
    }

    impl Clocks for Hands {
        fn wall(&self) -> i64 {
            self.wall.load(Relaxed)
        }

        fn running(&self) -> i64 {
            self.running.load(Relaxed)
        }

        fn awake(&self) -> i64 {
            self.awake.load(Relaxed)
        }

        fn awake_coarse(&self) -> i64 {
            self.awake()
        }
    }

    #[test]
    fn a_wall_clock_that_is_set_does_not_move_the_time() {
        let time = ProcessTime::new(Hands::at(1_000_000, 500));
        assert_eq!((time.seconds(), time.coarse_seconds()), (1_000_000, 1_000_000));
        for wall in [1_003_600, 5, 0, 4_000_000_000] {
            let before = time.seconds();
            time.clocks.set(wall);
            assert_eq!((time.seconds(), time.coarse_seconds()), (before, before));
            time.clocks.pass(2);
            assert_eq!((time.seconds(), time.coarse_seconds()), (before + 2, before + 2));
        }
    }

    #[test]
    fn time_passes_while_the_machine_is_suspended() {
        let time = ProcessTime::new(Hands::at(1_000, 10));
        // It was suspended before the process began, too.
        time.clocks.suspend(50);
        assert_eq!((time.seconds(), time.coarse_seconds()), (1_050, 1_050));
        time.clocks.suspend(3_600);
        assert_eq!((time.seconds(), time.coarse_seconds()), (4_650, 1_050));
        time.follow_suspension();
        assert_eq!(time.coarse_seconds(), 4_650);
    }

    #[test]
    fn a_machine_that_believes_that_it_is_1970() {
        let time = ProcessTime::new(Hands::at(3, 100));
        assert_eq!(time.seconds(), 3);
        time.clocks.set(1_800_000_000);
        time.clocks.pass(60);
        assert_eq!(time.seconds(), 63);
    }

    #[test]
    fn the_clocks_of_the_system_are_there() {
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        assert!(seconds().abs_diff(wall.as_secs()) <= 2);
        assert!(seconds().abs_diff(coarse_seconds()) <= 1);
        follow_suspension();
        assert!(seconds().abs_diff(coarse_seconds()) <= 1);
    }
}
