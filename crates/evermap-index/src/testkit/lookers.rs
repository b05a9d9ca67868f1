//! Threads that look all the time while something changes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Ends the loops of other threads, also if its owner panics.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Calls `change` with 0 to `rounds`, while two threads call `look` all the time, at least once in each round.
///
/// # Panics
/// If `look` or `change` does.
pub fn beside_lookers(rounds: u64, mut change: impl FnMut(u64), look: impl Fn() + Sync) {
    let (done, looks) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|threads| {
        let lookers = [(); 2].map(|()| {
            threads.spawn(|| {
                while !done.load(Relaxed) {
                    look();
                    looks.fetch_add(1, Relaxed);
                }
            })
        });
        let end = SetOnDrop(&done);
        for round in 0..rounds {
            let before = looks.load(Relaxed);
            change(round);
            // On a busy machine all rounds could else be over before anybody has looked.
            while looks.load(Relaxed) == before
                && !lookers.iter().any(|looker| looker.is_finished())
            {
                std::thread::yield_now();
            }
        }
        drop(end);
        lookers.into_iter().for_each(|looker| looker.join().unwrap());
    });
}
