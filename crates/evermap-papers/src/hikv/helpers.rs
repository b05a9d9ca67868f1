//! The helper threads of a store: how they sleep, are woken and stop.
//!
//! No thread depends on them: a thread that waits for their work does it itself. So they need not
//! report an error: a thread that needs the work meets it too.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use evermap_pm::sync::{Condvar, Mutex, Rank};

/// The state that these threads share with each other and with threads that wait for them.
pub(super) struct HelperThreads {
    stop: AtomicBool,
    mutex: Mutex<()>,
    condvar: Condvar,
    sleeping: AtomicUsize,
}

impl Default for HelperThreads {
    fn default() -> Self {
        HelperThreads {
            stop: AtomicBool::new(false),
            mutex: Mutex::ranked(Rank::Leaf, ()),
            condvar: Condvar::new(),
            sleeping: AtomicUsize::new(0),
        }
    }
}

impl HelperThreads {
    /// Returns `true` if the threads have to end.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Acquire)
    }

    /// Makes the threads end soon.
    pub(super) fn stop(&self) {
        self.stop.store(true, Release);
        self.wake_all();
    }

    /// Notes that all threads have ended.
    pub(super) fn are_stopped(&self) {
        self.stop.store(false, Release);
    }

    /// Sleeps until another thread calls [`wake_all`](Self::wake_all), up to `most`. A call that
    /// comes just before the wait is missed, therefore the limit.
    pub(super) fn sleep(&self, most: Duration) {
        let Ok(mutex) = self.mutex.lock() else { return };
        // SeqCst: a thread that wakes others after this sees this one asleep. A request sent
        // between the last look and here waits for the limit.
        self.sleeping.fetch_add(1, SeqCst);
        let _ = self.condvar.wait_timeout(mutex, most);
        self.sleeping.fetch_sub(1, Relaxed);
    }

    /// Wakes all threads that sleep.
    pub(super) fn wake_all(&self) {
        if self.sleeping.load(SeqCst) > 0 {
            self.condvar.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleepers_are_woken_to_stop() {
        let helpers = HelperThreads::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !helpers.is_stopped() {
                    helpers.sleep(Duration::from_millis(5));
                }
            });
            helpers.stop();
        });
    }
}
