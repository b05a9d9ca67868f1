//! The threads of a store of its own: how they sleep, are woken, fail and stop.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use evermap_pm::sync::{Condvar, Mutex};

use crate::subject::store::Result;

/// What those threads share with each other and with threads that wait for them.
#[derive(Default)]
pub(super) struct Crew {
    stop: AtomicBool,
    failure: OnceLock<String>,
    bed: Mutex<()>,
    bell: Condvar,
    sleeping: AtomicUsize,
}

impl Crew {
    /// Whether threads are to end.
    pub(super) fn is_over(&self) -> bool {
        self.stop.load(Acquire) || self.failure.get().is_some()
    }

    /// Makes threads end soon.
    pub(super) fn stop(&self) {
        self.stop.store(true, Release);
        self.rouse();
    }

    /// Sleeps until somebody rouses, and no longer than this. A call that is just too late is missed; hence the limit.
    pub(super) fn sleep(&self, most: Duration) {
        let Ok(bed) = self.bed.lock() else { return };
        // SeqCst: whoever rouses after this sees us asleep. What was sent between our last look and here waits for the
        // limit.
        self.sleeping.fetch_add(1, SeqCst);
        let _ = self.bell.wait_timeout(bed, most);
        self.sleeping.fetch_sub(1, Relaxed);
    }

    /// Wakes threads that sleep.
    pub(super) fn rouse(&self) {
        if self.sleeping.load(SeqCst) > 0 {
            self.bell.notify_all();
        }
    }

    /// Does a thread's work. If that fails, whoever waits for it learns why and the other threads end.
    pub(super) fn work(&self, work: impl FnOnce() -> Result<()>) {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        let failure = match result {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it panicked; its message went to standard error".to_owned(),
        };
        // The first failure explains the others.
        let _ = self.failure.set(failure);
    }

    /// For those who wait for the threads.
    ///
    /// # Errors
    /// If one of them has failed.
    pub(super) fn ensure(&self) -> Result<()> {
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
        let crew = Crew::default();
        crew.work(|| Ok(()));
        assert!(crew.ensure().is_ok() && !crew.is_over());
        crew.work(|| Err("no memory".into()));
        crew.work(|| Err("later".into()));
        assert!(crew.is_over());
        let error = crew.ensure().unwrap_err().to_string();
        assert_eq!(error, "a thread that updates the tree has failed: no memory");
        let crew = Crew::default();
        crew.work(|| panic!("for the test"));
        assert!(crew.ensure().unwrap_err().to_string().contains("panicked"));
    }

    #[test]
    fn sleepers_are_woken_to_stop() {
        let crew = Crew::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !crew.is_over() {
                    crew.sleep(Duration::from_millis(5));
                }
            });
            crew.stop();
        });
    }
}
