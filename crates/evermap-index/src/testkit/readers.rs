//! Threads that read all the time while something changes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Ends the loops of other threads when dropped, even if its owner panics.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Calls `change` with 0 to `rounds`, while two threads call `read` all the time, at least once in
/// each round.
///
/// # Panics
/// If `read` or `change` does.
pub fn beside_readers(rounds: u64, mut change: impl FnMut(u64), read: impl Fn() + Sync) {
    let (done, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|threads| {
        let readers = [(); 2].map(|()| {
            threads.spawn(|| {
                while !done.load(Relaxed) {
                    read();
                    reads.fetch_add(1, Relaxed);
                }
            })
        });
        let end = SetOnDrop(&done);
        for round in 0..rounds {
            let before = reads.load(Relaxed);
            change(round);
            // On a busy machine all rounds could otherwise be over before the first read.
            while reads.load(Relaxed) == before
                && !readers.iter().any(|reader| reader.is_finished())
            {
                std::thread::yield_now();
            }
        }
        drop(end);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}
