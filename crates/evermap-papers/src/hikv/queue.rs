//! Queues of changes that the hash index has made and the trees have to make.
//!
//! All changes of a key go through one queue, in the order in which they were committed, because
//! they are [sent](Reservation::send) while the key's stripe is locked. One thread at a time
//! [serves](Queue::serve) a queue, so trees see the changes of a key in that order too.
//!
//! A queue is bounded. A place in it is reserved *before* the stripe is locked: a thread that waits
//! for a place holds nothing that a server of the queue, or a thread with a reservation, might wait
//! for.

use std::sync::TryLockError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use evermap_pm::sync::{Mutex, Rank};
use evermap_pm::{ErrorKind, Result};

/// A change of a key, by the positions of its items; 0 for none. The key is that of either item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// The position before.
    pub(super) old: u64,
    /// The position now.
    pub(super) new: u64,
}

/// A place in a queue.
#[derive(Default)]
struct Slot {
    /// One more than the ticket of the request in it; written after the request.
    filled: AtomicU64,
    old: AtomicU64,
    new: AtomicU64,
}

/// A counter in its own line.
#[derive(Default)]
#[repr(align(128))]
struct Counter(AtomicU64);

/// A bounded queue of requests, numbered by tickets from 0 on.
pub(super) struct Queue {
    slots: Box<[Slot]>,
    /// Requests that were sent or may yet be sent; at most as many as there are slots ahead of
    /// `done`.
    reserved: Counter,
    /// The next ticket.
    next: Counter,
    /// Requests with smaller tickets are done, and their slots free.
    done: Counter,
    /// Held by the thread that serves.
    server: Mutex<()>,
}

/// The right to send one request. It is released if it is not used.
pub(super) struct Reservation<'q>(&'q Queue);

impl Queue {
    /// Creates a queue with this many slots.
    pub(super) fn new(slots: usize) -> Self {
        Queue {
            slots: (0..slots).map(|_| Slot::default()).collect(),
            reserved: Counter::default(),
            next: Counter::default(),
            done: Counter::default(),
            server: Mutex::ranked(Rank::Notices, ()),
        }
    }

    /// Reserves a place for a request. Returns `None` if the queue is full.
    #[inline]
    pub(super) fn reserve(&self) -> Option<Reservation<'_>> {
        let take = |reserved: u64| {
            // Acquire: the slots of requests that are done have been read before they are written
            // again.
            let waiting = reserved.saturating_sub(self.done.0.load(Acquire));
            (waiting < self.slots.len() as u64).then_some(reserved + 1)
        };
        // AcqRel: inherits what the thread that released a reservation has seen of `done`.
        self.reserved.0.fetch_update(AcqRel, Acquire, take).ok().map(|_| Reservation(self))
    }

    /// Returns the ticket that the next request will have: all that were sent before have smaller
    /// ones.
    #[inline]
    pub(super) fn ticket(&self) -> u64 {
        self.next.0.load(Acquire)
    }

    /// Returns `true` if all requests with smaller tickets are done.
    #[inline]
    pub(super) fn is_past(&self, ticket: u64) -> bool {
        // Acquire: the changes made by serving them are visible.
        self.done.0.load(Acquire) >= ticket
    }

    /// Returns `true` if there is nothing to do.
    pub(super) fn is_empty(&self) -> bool {
        self.is_past(self.ticket())
    }

    /// Returns the size of the slots in bytes.
    pub(super) fn bytes(&self) -> u64 {
        size_of_val(&*self.slots) as u64
    }

    /// Serves up to `most` requests in order, unless another thread is serving. Returns the number
    /// of requests that were done.
    ///
    /// # Errors
    ///
    /// The error of `act`. The request at which it failed stays the first. `Poisoned`.
    pub(super) fn serve(
        &self,
        most: u64,
        mut act: impl FnMut(Request) -> Result<()>,
    ) -> Result<u64> {
        let _server = match self.server.try_lock() {
            Ok(server) => server,
            Err(TryLockError::WouldBlock) => return Ok(0),
            Err(TryLockError::Poisoned(_)) => return Err(ErrorKind::Poisoned.into()),
        };
        // Only the server writes it, and it has the lock.
        let first = self.done.0.load(Relaxed);
        let mut count = 0;
        while count < most {
            let ticket = first + count;
            let slot = &self.slots[(ticket % self.slots.len() as u64) as usize];
            // Acquire: the request was written before.
            if slot.filled.load(Acquire) != ticket + 1 {
                break;
            }
            act(Request { old: slot.old.load(Relaxed), new: slot.new.load(Relaxed) })?;
            count += 1;
        }
        if count > 0 {
            // Release: a thread that sees that they are done sees their effects, and may write to
            // their slots.
            self.done.0.store(first + count, Release);
        }
        Ok(count)
    }
}

impl Reservation<'_> {
    /// Sends a request. Never waits. Requests about one key are sent under that key's lock.
    #[inline]
    pub(super) fn send(self, request: Request) {
        let queue = self.0;
        // Release: the ticket covers what its sender did before. Every ticket was preceded by a
        // reservation, so no more tickets than slots are ahead of `done`, and the slot of this one
        // is free.
        let ticket = queue.next.0.fetch_add(1, AcqRel);
        let slot = &queue.slots[(ticket % queue.slots.len() as u64) as usize];
        slot.old.store(request.old, Relaxed);
        slot.new.store(request.new, Relaxed);
        // Release: the request is written.
        slot.filled.store(ticket + 1, Release);
        // The reservation has become a ticket, which `done` will pass.
        std::mem::forget(self);
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.0.reserved.0.fetch_sub(1, AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evermap_pm::Error;

    fn request(number: u64) -> Request {
        Request { old: number, new: number + 1 }
    }

    fn served(queue: &Queue, most: u64) -> Vec<u64> {
        let mut seen = Vec::new();
        let done = queue.serve(most, |request| {
            assert_eq!(request.new, request.old + 1);
            seen.push(request.old);
            Ok(())
        });
        assert_eq!(done.unwrap() as usize, seen.len());
        seen
    }

    #[test]
    fn requests_come_out_in_order_and_room_is_bounded() {
        let queue = Queue::new(4);
        for lap in 0..5 {
            let first = lap * 4;
            let reservations: Vec<_> = (0..4).map(|_| queue.reserve().unwrap()).collect();
            assert!(queue.reserve().is_none());
            reservations
                .into_iter()
                .zip(first..)
                .for_each(|(reservation, number)| reservation.send(request(number)));
            assert!(queue.reserve().is_none() && !queue.is_empty());
            assert_eq!(queue.ticket(), first + 4);
            assert_eq!(served(&queue, 3), [first, first + 1, first + 2]);
            assert!(queue.is_past(first + 3) && !queue.is_past(first + 4));
            assert_eq!(served(&queue, 3), [first + 3]);
            assert!(served(&queue, 3).is_empty() && queue.is_empty());
        }
    }

    #[test]
    fn room_that_is_not_used_is_given_back() {
        let queue = Queue::new(2);
        for _ in 0..10 {
            drop(queue.reserve().unwrap());
        }
        let (first, second) = (queue.reserve().unwrap(), queue.reserve().unwrap());
        drop(first);
        second.send(request(7));
        assert_eq!(served(&queue, 9), [7]);
        let reservations = [queue.reserve(), queue.reserve(), queue.reserve()];
        assert_eq!(reservations.map(|reservation| reservation.is_some()), [true, true, false]);
    }

    #[test]
    fn one_thread_serves_at_a_time_and_a_failure_keeps_its_request() {
        let queue = Queue::new(4);
        queue.reserve().unwrap().send(request(1));
        queue.reserve().unwrap().send(request(2));
        queue
            .serve(9, |request| {
                assert!(served(&queue, 9).is_empty(), "another is at it");
                assert!(!queue.is_past(request.old), "not done before it is");
                Ok(())
            })
            .unwrap();
        queue.reserve().unwrap().send(request(3));
        assert!(queue.serve(9, |_| Err(Error::damaged(0, "no"))).is_err());
        assert_eq!(served(&queue, 9), [3]);
    }

    /// Requests of each sender arrive once and in order, in all laps.
    #[test]
    fn senders_and_servers_at_once() {
        const SENDERS: u64 = 3;
        const EACH: u64 = 20_000;
        let queue = Queue::new(8);
        let seen = Mutex::new(Vec::new());
        let left = AtomicU64::new(SENDERS * EACH);
        std::thread::scope(|scope| {
            for sender in 0..SENDERS {
                let queue = &queue;
                scope.spawn(move || {
                    for number in 0..EACH {
                        let reservation = loop {
                            match queue.reserve() {
                                Some(reservation) => break reservation,
                                None => std::thread::yield_now(),
                            }
                        };
                        reservation.send(Request { old: sender, new: number });
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    while left.load(Relaxed) > 0 {
                        let done = queue.serve(5, |request| {
                            seen.lock().unwrap().push(request);
                            Ok(())
                        });
                        left.fetch_sub(done.unwrap(), Relaxed);
                        std::thread::yield_now();
                    }
                });
            }
        });
        let seen = seen.into_inner().unwrap();
        for sender in 0..SENDERS {
            let numbers: Vec<_> =
                seen.iter().filter(|one| one.old == sender).map(|one| one.new).collect();
            assert!(numbers == (0..EACH).collect::<Vec<_>>(), "sender {sender}");
        }
    }
}
