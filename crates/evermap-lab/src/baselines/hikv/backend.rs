//! Backends: threads that take from the queues what the tree is to do.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use evermap_pm::sync::Backoff;

use super::balance::{Balance, Kind, Sample, WINDOW};
use super::crew::Crew;
use super::hash::PARTITIONS;
use super::queue::{Queue, Request, Room};
use crate::subject::store::Result;

/// Queues; each has the keys of some partitions.
const QUEUES: usize = 8;
/// Requests in all queues together, as in the paper.
const REQUESTS: usize = 4096;
const _: () = assert!(PARTITIONS.is_multiple_of(QUEUES) && REQUESTS.is_multiple_of(QUEUES));
/// Requests that a backend takes from one queue before it looks at the next.
const BATCH: u64 = 32;
/// Times that a backend looks at empty queues before it sleeps. It gives its processor away in between.
const LOOKS: u32 = 1000;
/// How long it sleeps at most. Short enough that no queue fills meanwhile unless its sender wakes somebody.
const NAP: Duration = Duration::from_millis(1);

/// How many backends there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    /// This many, always.
    Fixed(usize),
    /// As the formula has it.
    Adaptive,
}

/// The queues, and who serves them.
pub(super) struct Backends {
    queues: Vec<Queue>,
    /// Backends with smaller numbers serve, the others rest.
    active: AtomicUsize,
    most: usize,
    balance: Option<Balance>,
}

impl Backends {
    /// Empty queues.
    pub(super) fn new(number: Number) -> Self {
        // Adaptive: no more than there are processors, but two anywhere, so that there is something to adapt.
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

    /// Threads to start, each with [`run`](Self::run).
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Room for a request about a key of this partition. Waits while the queue is full, so nobody asks under a lock.
    ///
    /// # Errors
    /// If a backend has failed.
    #[inline]
    pub(super) fn room(&self, partition: usize, crew: &Crew) -> Result<Room<'_>> {
        let queue = &self.queues[partition % QUEUES];
        match queue.room() {
            Some(room) => Ok(room),
            None => wait_for(crew, || queue.room()),
        }
    }

    /// Waits until the tree shows every change whose sender has returned. Senders go on meanwhile; what they send now is
    /// not waited for.
    ///
    /// # Errors
    /// If a backend has failed.
    pub(super) fn settle(&self, crew: &Crew) -> Result<()> {
        let tickets: [u64; QUEUES] = std::array::from_fn(|at| self.queues[at].ticket());
        for (queue, ticket) in self.queues.iter().zip(tickets) {
            if !queue.is_past(ticket) {
                wait_for(crew, || queue.is_past(ticket).then_some(()))?;
            }
        }
        Ok(())
    }

    /// An operation of this kind begins: see [`Balance::begin`].
    #[inline]
    pub(super) fn sample(&self, kind: Kind) -> Option<Sample<'_>> {
        self.balance.as_ref()?.begin(kind)
    }

    /// What the backend of this number does until the crew's work is over; `act` does a request.
    ///
    /// # Errors
    /// What `act` answers.
    pub(super) fn run(
        &self,
        number: usize,
        crew: &Crew,
        mut act: impl FnMut(Request) -> Result<()>,
    ) -> Result<()> {
        let mut looks = 0;
        while !crew.is_over() {
            if number == 0 {
                self.adapt(crew);
            }
            if number >= self.active.load(Relaxed) {
                // Woken up when it is needed, or when all is over.
                crew.sleep(WINDOW);
                continue;
            }
            if self.round(number, &mut act)? > 0 {
                looks = 0;
            } else if looks < LOOKS {
                looks += 1;
                std::thread::yield_now();
            } else {
                crew.sleep(NAP);
            }
        }
        Ok(())
    }

    /// Takes a batch from each queue.
    fn round(&self, number: usize, act: &mut impl FnMut(Request) -> Result<()>) -> Result<u64> {
        let mut done = 0;
        for at in 0..QUEUES {
            // Each begins elsewhere, so that they seldom find one another at a queue.
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

    /// Changes the number of those who serve, if it is time.
    fn adapt(&self, crew: &Crew) {
        let now = self.active.load(Relaxed);
        if let Some(next) = self.balance.as_ref().and_then(|balance| balance.decide(now)) {
            self.active.store(next, Relaxed);
            if next > now {
                crew.rouse();
            }
        }
    }

    /// Bytes of the queues.
    pub(super) fn dram_bytes(&self) -> u64 {
        self.queues.iter().map(Queue::bytes).sum()
    }
}

/// Waits until `look` finds something, and keeps those awake on whom that depends.
fn wait_for<R>(crew: &Crew, mut look: impl FnMut() -> Option<R>) -> Result<R> {
    let mut backoff = Backoff::new();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        crew.ensure()?;
        crew.rouse();
        backoff.wait();
    }
}
