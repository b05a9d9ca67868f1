//! Backends: threads that take from the queues what has to be done to the tree.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use evermap_pm::sync::Backoff;

use super::balance::{Balance, Kind, Sample, WINDOW};
use super::hash::PARTITIONS;
use super::helpers::HelperThreads;
use super::queue::{Queue, Request, Reservation};
use crate::subject::store::Result;

/// The number of queues; each has the keys of some partitions.
const QUEUES: usize = 8;
/// The number of requests in all queues together, as in the paper.
const REQUESTS: usize = 4096;
const _: () = assert!(PARTITIONS.is_multiple_of(QUEUES) && REQUESTS.is_multiple_of(QUEUES));
/// The number of requests that a backend takes from one queue before it looks at the next.
const BATCH: u64 = 32;
/// The number of times that a backend looks at empty queues before it sleeps. It yields its
/// processor in between.
const LOOKS: u32 = 1000;
/// The longest sleep of a backend. Short enough that no queue fills in that time unless its sender
/// wakes a backend.
const NAP: Duration = Duration::from_millis(1);

/// The number of backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    /// This number, always.
    Fixed(usize),
    /// The number that the formula computes.
    Adaptive,
}

/// The queues and their backends.
pub(super) struct Backends {
    queues: Vec<Queue>,
    /// Backends with smaller numbers serve, the others sleep.
    active: AtomicUsize,
    most: usize,
    balance: Option<Balance>,
}

impl Backends {
    /// Creates empty queues.
    pub(super) fn new(number: Number) -> Self {
        // Adaptive: no more than there are processors, but at least two, so that there is something
        // to adapt.
        let (most, balance) = match number {
            Number::Fixed(most) => (most, None),
            Number::Adaptive => {
                let most = crate::machine::processors().len().max(2);
                (most, Some(Balance::new(most)))
            }
        };
        let active = AtomicUsize::new(if balance.is_some() { 1 } else { most });
        let queues = (0..QUEUES).map(|_| Queue::new(REQUESTS / QUEUES)).collect();
        Backends { queues, active, most, balance }
    }

    /// Returns the number of threads to start, each with [`run`](Self::run).
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Reserves a place for a request about a key of this partition. Waits while the queue is full,
    /// so the caller must hold no lock.
    ///
    /// # Errors
    ///
    /// If a backend has failed.
    #[inline]
    pub(super) fn reserve(
        &self,
        partition: usize,
        helpers: &HelperThreads,
    ) -> Result<Reservation<'_>> {
        let queue = &self.queues[partition % QUEUES];
        match queue.reserve() {
            Some(reservation) => Ok(reservation),
            None => wait_for(helpers, || queue.reserve()),
        }
    }

    /// Waits until the tree shows every change whose sender has returned. Senders continue; their
    /// new changes are not waited for.
    ///
    /// # Errors
    ///
    /// If a backend has failed.
    pub(super) fn settle(&self, helpers: &HelperThreads) -> Result<()> {
        let tickets: [u64; QUEUES] = std::array::from_fn(|at| self.queues[at].ticket());
        for (queue, ticket) in self.queues.iter().zip(tickets) {
            if !queue.is_past(ticket) {
                wait_for(helpers, || queue.is_past(ticket).then_some(()))?;
            }
        }
        Ok(())
    }

    /// Starts an operation of this kind: see [`Balance::begin`].
    #[inline]
    pub(super) fn sample(&self, kind: Kind) -> Option<Sample<'_>> {
        self.balance.as_ref()?.begin(kind)
    }

    /// Serves as the backend with this number until the helper threads stop. `act` carries out a
    /// request.
    ///
    /// # Errors
    ///
    /// The error of `act`.
    pub(super) fn run(
        &self,
        number: usize,
        helpers: &HelperThreads,
        mut act: impl FnMut(Request) -> Result<()>,
    ) -> Result<()> {
        let mut looks = 0;
        while !helpers.is_stopped() {
            if number == 0 {
                self.adapt(helpers);
            }
            if number >= self.active.load(Relaxed) {
                // It is woken up when it is needed, or to stop.
                helpers.sleep(WINDOW);
                continue;
            }
            if self.round(number, &mut act)? > 0 {
                looks = 0;
            } else if looks < LOOKS {
                looks += 1;
                std::thread::yield_now();
            } else {
                helpers.sleep(NAP);
            }
        }
        Ok(())
    }

    /// Takes a batch from each queue.
    fn round(&self, number: usize, act: &mut impl FnMut(Request) -> Result<()>) -> Result<u64> {
        let mut done = 0;
        for at in 0..QUEUES {
            // Each backend starts at a different queue, so that they seldom meet.
            let queue = &self.queues[(at + number * QUEUES / self.most) % QUEUES];
            if queue.is_empty() {
                continue;
            }
            let start = Instant::now();
            let count = queue.serve(BATCH, &mut *act)?;
            if let Some(balance) = &self.balance {
                balance.applied(count, start);
            }
            done += count;
        }
        Ok(done)
    }

    /// Changes the number of active backends, if it is time.
    fn adapt(&self, helpers: &HelperThreads) {
        let now = self.active.load(Relaxed);
        if let Some(next) = self.balance.as_ref().and_then(|balance| balance.decide(now)) {
            self.active.store(next, Relaxed);
            if next > now {
                helpers.wake_all();
            }
        }
    }

    /// Returns the size of the queues in bytes.
    pub(super) fn dram_bytes(&self) -> u64 {
        self.queues.iter().map(Queue::bytes).sum()
    }
}

/// Waits until `look` returns something, and keeps the threads awake that this depends on.
fn wait_for<R>(helpers: &HelperThreads, mut look: impl FnMut() -> Option<R>) -> Result<R> {
    let mut backoff = Backoff::new();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        helpers.check()?;
        helpers.wake_all();
        backoff.wait();
    }
}
