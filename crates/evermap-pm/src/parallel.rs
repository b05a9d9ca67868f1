//! Distributes work among threads.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use crate::sync::{Mutex, Rank};

/// Calls `job` for each number below `count` on up to `threads` threads, including the calling one,
/// and returns the results in order. Each thread takes the next number when it has finished one, so
/// jobs may differ in size.
///
/// # Panics
///
/// If `job` does.
pub fn parallel<T: Send>(threads: usize, count: usize, job: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let results: Vec<Option<T>> = (0..count).map(|_| None).collect();
    let (next, results) = (AtomicUsize::new(0), Mutex::ranked(Rank::Leaf, results));
    let work = || {
        loop {
            // Relaxed: each number is handed out once.
            let at = next.fetch_add(1, Relaxed);
            if at >= count {
                return;
            }
            let result = job(at);
            results.lock().expect("no panics while held")[at] = Some(result);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(count) {
            // If the system refuses a thread, the others do its work.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let results = results.into_inner().expect("no panics while held");
    results.into_iter().map(|result| result.expect("every job was done")).collect()
}

#[cfg(test)]
mod tests {
    use super::parallel;

    #[test]
    fn results_are_in_order() {
        for threads in [0, 1, 2, 5] {
            for count in [0, 1, 2, 100] {
                let results = parallel(threads, count, |number| number * 2);
                assert!(results.into_iter().eq((0..count).map(|number| number * 2)));
            }
        }
    }

    #[test]
    #[should_panic = "a scoped thread panicked"]
    fn a_panic_is_passed_on() {
        let caller = std::thread::current().id();
        parallel(2, 1000, |_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            assert_eq!(std::thread::current().id(), caller, "the other thread");
        });
    }
}
