//! Backends: threads that take from the queues what has to be done to the tree. A thread that waits
//! for a queue serves it itself, so there may be no backend at all.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use evermap_pm::Result;
use evermap_pm::sync::Backoff;

use super::balance::{Balance, Kind, Sample, WINDOW};
use super::helpers::HelperThreads;
use super::queue::{Queue, Request, Reservation};

/// The greatest number of queues; each has the keys of some partitions.
pub(super) const QUEUES: usize = 8;
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
pub enum Backends {
    /// This number, always. With none, the threads that need the tree update it.
    Fixed(usize),
    /// The number that the formula of the paper computes.
    Adaptive,
}

/// The queues and those who serve them.
pub(super) struct Service {
    queues: Vec<Queue>,
    /// Backends with smaller numbers serve, the others sleep.
    active: AtomicUsize,
    most: usize,
    balance: Option<Balance>,
}

impl Service {
    /// Creates empty queues for the keys of this number of partitions, which have space for this
    /// number of requests in all.
    pub(super) fn new(number: Backends, partitions: usize, requests: usize) -> Self {
        // Adaptive: no more than there are processors, but at least two, so that there is something
        // to adapt.
        let (most, balance) = match number {
            Backends::Fixed(most) => (most, None),
            Backends::Adaptive => {
                let most = std::thread::available_parallelism().map_or(2, usize::from).max(2);
                (most, Some(Balance::new(most)))
            }
        };
        let active = AtomicUsize::new(if balance.is_some() { 1 } else { most });
        let queues = partitions.min(QUEUES);
        let slots = requests.div_ceil(queues).max(1);
        let queues = (0..queues).map(|_| Queue::new(slots)).collect();
        Service { queues, active, most, balance }
    }

    /// Returns the number of threads to start, each with [`run`](Self::run).
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Reserves a place for a request about a key of this partition. While the queue is full, it
    /// serves that, so the caller must hold no lock.
    ///
    /// # Errors
    ///
    /// The error of `act`.
    #[inline]
    pub(super) fn reserve(
        &self,
        partition: usize,
        helpers: &HelperThreads,
        act: impl FnMut(Request) -> Result<()>,
    ) -> Result<Reservation<'_>> {
        let queue = &self.queues[partition % self.queues.len()];
        match queue.reserve() {
            Some(reservation) => Ok(reservation),
            None => help_until(queue, helpers, act, || queue.reserve()),
        }
    }

    /// Returns when the tree shows every change whose sender has returned. Senders continue; their
    /// new changes are not waited for.
    ///
    /// # Errors
    ///
    /// The error of `act`.
    pub(super) fn settle(
        &self,
        helpers: &HelperThreads,
        mut act: impl FnMut(Request) -> Result<()>,
    ) -> Result<()> {
        let tickets: Vec<u64> = self.queues.iter().map(Queue::ticket).collect();
        for (queue, ticket) in self.queues.iter().zip(tickets) {
            if !queue.is_past(ticket) {
                let is_past = || queue.is_past(ticket).then_some(());
                help_until(queue, helpers, &mut act, is_past)?;
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
            if self.round(number, self.most, &mut act)? > 0 {
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

    /// Takes a batch from each queue, as backend `number` of `of`.
    pub(super) fn round(
        &self,
        number: usize,
        of: usize,
        act: &mut impl FnMut(Request) -> Result<()>,
    ) -> Result<u64> {
        let (mut done, queues) = (0, self.queues.len());
        for at in 0..queues {
            // Each backend starts at a different queue, so that they seldom meet.
            let queue = &self.queues[(at + number * queues / of.max(1)) % queues];
            if queue.is_empty() {
                continue;
            }
            let start = self.balance.as_ref().map(|balance| (balance, Instant::now()));
            let count = queue.serve(BATCH, &mut *act)?;
            if let Some((balance, start)) = start {
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

/// Serves a queue until `look` returns something, unless another thread is serving it.
fn help_until<R>(
    queue: &Queue,
    helpers: &HelperThreads,
    mut act: impl FnMut(Request) -> Result<()>,
    mut look: impl FnMut() -> Option<R>,
) -> Result<R> {
    let mut backoff = Backoff::new();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if queue.serve(BATCH, &mut act)? == 0 {
            // Another thread is at it, or is about to fill the slot of the next request.
            helpers.wake_all();
            backoff.wait();
        }
    }
}
