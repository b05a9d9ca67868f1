//! A bounded queue of records from one thread to another.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A queue of records, each a few words. One thread pushes and one thread pops; neither waits.
///
/// It has no memory until [`allocate`](Ring::allocate) is called. Pushes from several threads at
/// once would mix up their records; [`pop`](Ring::pop) then returns wrong records, but nothing
/// worse.
#[derive(Default)]
pub(super) struct Ring {
    /// A power of two of them.
    words: OnceLock<Box<[AtomicU64]>>,
    /// The number of words pushed since the start. Only the pushing thread writes it.
    pushed: Position,
    /// The number of words popped since the start. Only the popping thread writes it.
    popped: Position,
    /// The number of records pushed.
    written: AtomicU64,
    /// The number of records that were dropped because the queue was full.
    dropped: AtomicU64,
}

/// A counter on cache lines of its own, because two threads write to neighbouring ones.
#[derive(Default)]
#[repr(align(128))]
struct Position(AtomicU64);

impl Ring {
    /// Allocates the memory, at least `bytes`, unless that was done before.
    pub(super) fn allocate(&self, bytes: usize) {
        self.words.get_or_init(|| {
            let len = (bytes / size_of::<u64>()).next_power_of_two();
            std::iter::repeat_with(|| AtomicU64::new(0)).take(len).collect()
        });
    }

    /// Appends a record: one word or more, and fewer than 2^16. Drops it if there is no space.
    pub(super) fn push(&self, record: &[u64]) {
        let Some(words) = self.words.get() else { return };
        // Only this thread writes `pushed`. Acquire: what is popped has been read before it is
        // overwritten below.
        let (pushed, popped) = (self.pushed.0.load(Relaxed), self.popped.0.load(Acquire));
        let space = words.len() as u64 - (pushed - popped);
        if record.len() as u64 >= space {
            increment(&self.dropped);
            return;
        }
        let header = [record.len() as u64];
        for (at, word) in (pushed..).zip(header.iter().chain(record)) {
            words[at as usize & (words.len() - 1)].store(*word, Relaxed);
        }
        // Release: the words are written before they are announced.
        self.pushed.0.store(pushed + 1 + record.len() as u64, Release);
        increment(&self.written);
    }

    /// Removes the oldest record and replaces the content of `record` by it. Returns `false` if
    /// there is none.
    pub(super) fn pop(&self, record: &mut Vec<u64>) -> bool {
        let Some(words) = self.words.get() else { return false };
        // Only this thread writes `popped`. Acquire pairs with the release in `push`.
        let (pushed, popped) = (self.pushed.0.load(Acquire), self.popped.0.load(Relaxed));
        if pushed == popped {
            return false;
        }
        let word = |at: u64| words[at as usize & (words.len() - 1)].load(Relaxed);
        let len = word(popped).min(pushed - popped - 1);
        record.clear();
        record.extend((0..len).map(|i| word(popped + 1 + i)));
        // Release: the words are read before their space is offered.
        self.popped.0.store(popped + 1 + len, Release);
        true
    }

    /// Returns the number of records that were pushed.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    /// Returns the number of records that were dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}

/// Increments a counter that only this thread writes.
fn increment(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed).wrapping_add(1), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_find_no_space_are_dropped_and_counted() {
        let ring = Ring::default();
        let mut record = vec![7];
        ring.push(&[1]);
        assert!(!ring.pop(&mut record), "a queue without memory takes nothing");
        assert_eq!((ring.written(), ring.dropped()), (0, 0));
        ring.allocate(64);
        for _ in 0..100 {
            // Eight words: two records of two words and one of one, each with its length.
            ring.push(&[1, 2]);
            ring.push(&[3, 4]);
            ring.push(&[5, 6]);
            ring.push(&[7]);
            for expected in [&[1, 2][..], &[3, 4], &[7]] {
                assert!(ring.pop(&mut record));
                assert_eq!(record, expected);
            }
            assert!(!ring.pop(&mut record));
        }
        assert_eq!((ring.written(), ring.dropped()), (300, 100));
    }

    #[test]
    fn records_arrive_whole_and_in_order() {
        const COUNT: u64 = 100_000;
        let ring = Ring::default();
        ring.allocate(1 << 10);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 1..=COUNT {
                    ring.push(&vec![i; 1 + (i % 9) as usize]);
                }
            });
            let (mut record, mut last, mut received) = (Vec::new(), 0, 0);
            while last < COUNT && received + ring.dropped() < COUNT {
                if ring.pop(&mut record) {
                    let first = record[0];
                    assert!(first > last, "{first} after {last}");
                    assert_eq!(record, vec![first; 1 + (first % 9) as usize]);
                    (last, received) = (first, received + 1);
                }
            }
        });
        assert_eq!(ring.written() + ring.dropped(), COUNT);
    }
}
