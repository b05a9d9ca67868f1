//! The helper threads of a store: how they sleep, are woken, fail and stop.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use evermap_pm::sync::{Condvar, Mutex};

use crate::subject::store::Result;

/// The state that these threads share with each other and with threads that wait for them.
#[derive(Default)]
pub(super) struct HelperThreads {
    stop: AtomicBool,
    failure: OnceLock<String>,
    mutex: Mutex<()>,
    condvar: Condvar,
    sleeping: AtomicUsize,
}

impl HelperThreads {
    /// Returns `true` if the threads have to end.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Acquire) || self.failure.get().is_some()
    }

    /// Makes the threads end soon.
    pub(super) fn stop(&self) {
        self.stop.store(true, Release);
        self.wake_all();
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

    /// Does the work of a thread. If it fails, threads that wait for it learn why, and the other
    /// threads end.
    pub(super) fn run(&self, work: impl FnOnce() -> Result<()>) {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        let failure = match result {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it panicked; its message went to standard error".to_owned(),
        };
        // The first failure explains the others.
        let _ = self.failure.set(failure);
    }

    /// Checks that no thread has failed, for callers that wait for one.
    ///
    /// # Errors
    ///
    /// If one of them has failed.
    pub(super) fn check(&self) -> Result<()> {
        match self.failure.get() {
            None => Ok(()),
            Some(why) => Err(format!("a thread that updates the tree has failed: {why}").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_and_panics_reach_those_who_wait() {
        let helpers = HelperThreads::default();
        helpers.run(|| Ok(()));
        assert!(helpers.check().is_ok() && !helpers.is_stopped());
        helpers.run(|| Err("no memory".into()));
        helpers.run(|| Err("later".into()));
        assert!(helpers.is_stopped());
        let error = helpers.check().unwrap_err().to_string();
        assert_eq!(error, "a thread that updates the tree has failed: no memory");
        let helpers = HelperThreads::default();
        helpers.run(|| panic!("for the test"));
        assert!(helpers.check().unwrap_err().to_string().contains("panicked"));
    }

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
