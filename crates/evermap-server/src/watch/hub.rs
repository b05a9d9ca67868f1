//! The thread that sends log lines to the watchers.

use std::any::Any;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mio::{Events, Poll, Registry, Token, Waker};

use super::event::{CloseReason, Event, Kind, RECORD_MAX, Transport};
use super::ring::Ring;
use super::{PrefixCounts, Streams, Watch, hot, micros};

const WAKER: Token = Token(usize::MAX);
/// The number of queues for the events of threads that are no workers.
const OTHERS: usize = 4;
/// The number of records that are taken before the sockets are served again.
const ROUND: usize = 1 << 14;

/// The limits of the log streams.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The maximum number of watchers.
    pub watchers_max: usize,
    /// The maximum number of bytes that wait for one watcher.
    pub watcher_bytes: usize,
    /// The size of the queue of one worker, in bytes. It is allocated when the first watcher
    /// comes.
    pub worker_bytes: usize,
}

/// The connection of a watcher. Its methods do not wait, but fail with `WouldBlock`.
pub trait Sink: Send {
    /// Registers it for all events.
    ///
    /// # Errors
    /// If the system has no memory for it.
    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()>;

    /// Reads bytes. Returns their number, which is 0 at the end.
    ///
    /// # Errors
    /// `WouldBlock` if there are none now; otherwise the connection failed.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Takes bytes to send. Returns how many it took.
    ///
    /// # Errors
    /// `WouldBlock` if it takes none now; otherwise the connection failed.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Sends bytes that it took and has not sent, as far as possible now.
    ///
    /// # Errors
    /// If the connection failed.
    fn send_taken(&mut self) -> io::Result<()>;
}

/// Distributes the events of all workers to the watchers.
pub struct Hub {
    settings: Settings,
    workers: Box<[Watch]>,
    /// The queues of threads that are no workers. Such a thread pushes to one that no other thread
    /// is pushing to.
    others: [Mutex<Arc<Ring>>; OTHERS],
    /// The same queues, for the hub, which pops without the lock.
    other_rings: [Arc<Ring>; OTHERS],
    /// The streams that any watcher wants, for threads that are no workers.
    wanted: AtomicU32,
    /// Events that were dropped because all queues for other threads were being pushed to.
    busy: AtomicU64,
    /// Whether the thread of the hub has been woken and has not started to look for records.
    notified: AtomicBool,
    waker: Waker,
    /// Taken by the thread that runs the hub.
    poll: Mutex<Option<Poll>>,
    arrivals: Mutex<Vec<Watcher>>,
    /// The number of watchers, including those that are about to arrive.
    watchers: AtomicUsize,
    stopping: AtomicBool,
    sent: AtomicU64,
    skipped: AtomicU64,
    /// The memory of the buffers of all watchers, in bytes.
    buffered: AtomicUsize,
    /// Whether prefixes are counted.
    detail: AtomicBool,
}

/// What the hub counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HubStats {
    /// The number of watchers.
    pub watchers: usize,
    /// The number of events that the workers reported.
    pub written: u64,
    /// The number of events that were dropped because a queue was full.
    pub dropped: u64,
    /// The number of lines that were given to watchers.
    pub sent: u64,
    /// The number of lines that were not given to a watcher because its buffer was full.
    pub skipped: u64,
    /// The memory of the buffers of all watchers, in bytes.
    pub buffered: usize,
}

/// A key and the number of its samples.
pub type HotKey = (Box<[u8]>, u64);

/// A permit for one watcher. It is returned when dropped.
pub struct WatcherSlot(Arc<Hub>);

impl Drop for WatcherSlot {
    fn drop(&mut self) {
        self.0.watchers.fetch_sub(1, Relaxed);
    }
}

/// A connection that receives lines.
struct Watcher {
    sink: Box<dyn Sink>,
    streams: Streams,
    /// Bytes that the socket has not taken.
    unsent: VecDeque<u8>,
    /// The number of lines that found no space in `unsent` since the last one that did.
    skipped: u64,
    /// The number of bytes that the watcher has sent.
    received: usize,
    /// What is dropped with the connection.
    _slot: WatcherSlot,
    _held: Box<dyn Any + Send>,
}

impl Hub {
    /// Creates the hub of `workers` workers. Prefixes end at `delimiter`.
    ///
    /// # Errors
    /// If the system cannot create an event queue.
    pub fn new(workers: usize, delimiter: u8, settings: Settings) -> io::Result<Arc<Hub>> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let workers: Box<[Watch]> = (0..workers).map(|_| Watch::default()).collect();
        for worker in &workers {
            worker.delimiter.store(delimiter, Relaxed);
        }
        let other_rings: [Arc<Ring>; OTHERS] = Default::default();
        Ok(Arc::new(Hub {
            settings,
            workers,
            others: other_rings.each_ref().map(|ring| Mutex::new(ring.clone())),
            other_rings,
            wanted: AtomicU32::new(0),
            busy: AtomicU64::new(0),
            notified: AtomicBool::new(false),
            waker,
            poll: Mutex::new(Some(poll)),
            arrivals: Mutex::default(),
            watchers: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            buffered: AtomicUsize::new(0),
            detail: AtomicBool::new(false),
        }))
    }

    /// Returns where a worker reports events.
    pub fn worker(&self, index: usize) -> &Watch {
        &self.workers[index]
    }

    /// Reports that an item was evicted. `ttl` is the time that it had left to live, in seconds,
    /// if that was limited; `idle` the time since its last access; `fetched` whether it was ever
    /// looked up. Any thread may call this. It does not wait: the event is dropped and counted if
    /// there is no space for it.
    #[inline]
    pub fn evicted(
        &self,
        key: &[u8],
        value_len: usize,
        ttl: Option<u32>,
        idle: u32,
        fetched: bool,
    ) {
        // Relaxed: an eviction that happens while a watcher arrives may be reported or not.
        if self.wanted.load(Relaxed) & Streams::EVICTIONS.0 != 0 {
            let size = u32::try_from(value_len).unwrap_or(u32::MAX);
            let kind = Kind::Evicted { fetched, ttl, idle };
            self.push_other(&Event { time: micros(), connection: 0, key, size, kind });
        }
    }

    /// Reports that the connection of a watcher was closed. Any thread may call this.
    pub fn closed(&self, connection: u32, peer: &[u8], transport: Transport, port: u16) {
        if self.wanted.load(Relaxed) & Streams::CONNEVENTS.0 != 0 {
            let kind = Kind::Closed { transport, port, reason: CloseReason::Normal };
            self.push_other(&Event { time: micros(), connection, key: peer, size: 0, kind });
        }
    }

    #[cold]
    fn push_other(&self, event: &Event<'_>) {
        let mut record = [0; RECORD_MAX];
        let len = event.encode(&mut record);
        match self.others.iter().find_map(|ring| ring.try_lock().ok()) {
            Some(ring) => ring.push(&record[..len]),
            None => {
                self.busy.fetch_add(1, Relaxed);
            }
        }
        self.notify();
    }

    /// Wakes the thread of the hub, after records were pushed.
    pub fn notify(&self) {
        // A read-modify-write with release and acquire: either the hub's own exchange comes later
        // and it sees the records, or this returns `false` and wakes it.
        if !self.notified.swap(true, AcqRel) {
            // Waking fails only if the event queue is closed, and then the hub has ended.
            let _ = self.waker.wake();
        }
    }

    /// Returns a permit for one more watcher, or `None` if there are too many.
    pub fn reserve(self: &Arc<Self>) -> Option<WatcherSlot> {
        let max = self.settings.watchers_max;
        let reserved =
            self.watchers.fetch_update(Relaxed, Relaxed, |now| (now < max).then_some(now + 1));
        reserved.ok().map(|_| WatcherSlot(self.clone()))
    }

    /// Turns a connection into a watcher. The hub replies `OK`, and drops `held` when it closes
    /// the connection.
    pub fn adopt(
        &self,
        sink: Box<dyn Sink>,
        streams: Streams,
        slot: WatcherSlot,
        held: Box<dyn Any + Send>,
    ) {
        let watcher = Watcher {
            sink,
            streams,
            unsent: VecDeque::new(),
            skipped: 0,
            received: 0,
            _slot: slot,
            _held: held,
        };
        let mut arrivals = self.arrivals();
        // Once the hub has ended, the watcher is closed here. Acquire pairs with the release in
        // `run`, but the lock alone would do.
        if !self.stopping.load(Acquire) {
            arrivals.push(watcher);
            drop(arrivals);
            self.notify();
        }
    }

    fn arrivals(&self) -> MutexGuard<'_, Vec<Watcher>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes [`run`](Hub::run) return.
    pub fn stop(&self) {
        // Release pairs with the acquire in `run`.
        self.stopping.store(true, Release);
        let _ = self.waker.wake();
    }

    /// Serves the watchers until [`stop`](Hub::stop) is called. Returns at once if it is called a
    /// second time.
    pub fn run(&self) {
        let poll = self.poll.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(poll) = poll {
            Run { hub: self, poll, watchers: Vec::new(), next_gid: 1, leftover: false }.run();
        }
        // Closes the watchers that arrived too late, each of which has a reference to the hub.
        self.stopping.store(true, Release);
        let late = std::mem::take(&mut *self.arrivals());
        drop(late);
    }

    /// Makes all threads report the events of `streams` to watchers, and no others.
    fn set_wanted(&self, streams: u32) {
        if streams != 0 {
            let rings = self.workers.iter().map(|worker| &worker.ring);
            for ring in rings.chain(self.other_rings.iter().map(|ring| &**ring)) {
                ring.allocate(self.settings.worker_bytes);
            }
        }
        for worker in &self.workers {
            worker.change_wanted(Streams::ALL, streams);
        }
        self.wanted.store(streams, Relaxed);
    }

    /// Returns what the hub has counted.
    pub fn stats(&self) -> HubStats {
        let rings = || {
            let workers = self.workers.iter().map(|worker| &worker.ring);
            workers.chain(self.other_rings.iter().map(|ring| &**ring))
        };
        HubStats {
            watchers: self.watchers.load(Relaxed),
            written: rings().map(Ring::written).sum(),
            dropped: rings().map(Ring::dropped).sum::<u64>() + self.busy.load(Relaxed),
            sent: self.sent.load(Relaxed),
            skipped: self.skipped.load(Relaxed),
            buffered: self.buffered.load(Relaxed),
        }
    }

    /// Starts or ends counting by prefix.
    pub fn set_detail(&self, on: bool) {
        self.detail.store(on, Relaxed);
        for worker in &self.workers {
            worker.change_wanted(Streams::PREFIXES, if on { Streams::PREFIXES } else { 0 });
        }
    }

    /// Returns whether prefixes are counted.
    pub fn detail(&self) -> bool {
        self.detail.load(Relaxed)
    }

    /// Returns the counters of each prefix, and of all prefixes beyond the maximum together.
    pub fn prefixes(&self) -> (BTreeMap<Box<[u8]>, PrefixCounts>, PrefixCounts) {
        let (mut totals, mut others) = (BTreeMap::new(), PrefixCounts::default());
        for worker in &self.workers {
            others += worker.prefixes.add_to(&mut totals);
        }
        (totals, others)
    }

    /// Removes all prefixes.
    pub fn reset_prefixes(&self) {
        for worker in &self.workers {
            worker.prefixes.reset();
        }
    }

    /// Returns the number of sampled accesses and the keys that were sampled most, in descending
    /// order of their number, at most `max` of them. Samples are taken from the first call on,
    /// until there was no call for a minute.
    pub fn hot_keys(&self, max: usize) -> (u64, Vec<HotKey>) {
        let now = micros() / 1_000_000;
        let (mut samples, mut totals) = (0, HashMap::new());
        for worker in &self.workers {
            if now >= worker.hot_until.load(Relaxed) {
                // What was sampled before says nothing about the present.
                worker.hot_keys.reset();
            }
            worker.hot_until.store(now + hot::LEASE, Relaxed);
            worker.change_wanted(0, Streams::HOT_KEYS);
            samples += worker.hot_keys.add_to(&mut totals);
        }
        let mut keys: Vec<_> = totals.into_iter().collect();
        keys.sort_unstable_by(|(a, m), (b, n)| n.cmp(m).then_with(|| a.cmp(b)));
        keys.truncate(max);
        (samples, keys)
    }
}

/// The state of the thread that runs the hub.
struct Run<'h> {
    hub: &'h Hub,
    poll: Poll,
    /// The watchers, by token.
    watchers: Vec<Option<Watcher>>,
    next_gid: u64,
    /// Whether a round ended before all records were taken.
    leftover: bool,
}

impl Run<'_> {
    fn run(&mut self) {
        let mut events = Events::with_capacity(256);
        // Acquire pairs with the release in `stop`.
        while !self.hub.stopping.load(Acquire) {
            let timeout = self.leftover.then_some(Duration::ZERO);
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != ErrorKind::Interrupted
            {
                // The event queue failed and cannot be repaired.
                return;
            }
            // Before the records are taken: see `notify`.
            self.hub.notified.swap(false, AcqRel);
            self.welcome_arrivals();
            for event in &events {
                if event.is_readable() || event.is_read_closed() || event.is_error() {
                    self.drop_input(event.token());
                }
            }
            self.distribute();
            self.send();
        }
    }

    fn welcome_arrivals(&mut self) {
        let arrivals = std::mem::take(&mut *self.hub.arrivals());
        if arrivals.is_empty() {
            return;
        }
        for mut watcher in arrivals {
            let free = self.watchers.iter().position(Option::is_none);
            let token = free.unwrap_or_else(|| {
                self.watchers.push(None);
                self.watchers.len() - 1
            });
            if watcher.sink.register(self.poll.registry(), Token(token)).is_ok() {
                watcher.unsent.extend(b"OK\r\n");
                self.watchers[token] = Some(watcher);
            }
        }
        // Before the reply is sent, so that the watcher sees what happens after it.
        self.update_wanted();
    }

    fn update_wanted(&self) {
        let streams = self.watchers.iter().flatten().map(|watcher| watcher.streams.0);
        self.hub.set_wanted(streams.fold(0, |all, streams| all | streams));
    }

    /// Reads and drops what a watcher sends. Closes it if it ends its stream.
    fn drop_input(&mut self, token: Token) {
        let watcher = self.watchers.get_mut(token.0);
        if let Some(slot) = watcher
            && let Some(watcher) = slot
            && watcher.has_left()
        {
            *slot = None;
            self.update_wanted();
        }
    }

    /// Takes records from the queues, in the order of their times, and appends their lines to the
    /// buffers of the watchers.
    fn distribute(&mut self) {
        let hub = self.hub;
        let workers = hub.workers.iter().map(|worker| &worker.ring);
        let rings = workers.chain(hub.other_rings.iter().map(|ring| &**ring));
        // The oldest record of each queue.
        let mut oldest: Vec<(&Ring, Vec<u64>)> = rings
            .filter_map(|ring| {
                let mut record = Vec::new();
                ring.pop(&mut record).then_some((ring, record))
            })
            .collect();
        let (mut key, mut line) = (Vec::new(), Vec::new());
        let mut taken = 0;
        while let Some(next) = (0..oldest.len()).min_by_key(|&i| oldest[i].1.get(1)) {
            let (ring, record) = &mut oldest[next];
            if let Some(event) = Event::decode(record, &mut key) {
                line.clear();
                event.format(self.next_gid, &mut line);
                self.next_gid += 1;
                self.append(event.stream(), &line);
            }
            taken += 1;
            // At the end of a round, what was popped is still distributed.
            if taken >= ROUND || !ring.pop(record) {
                oldest.swap_remove(next);
            }
        }
        self.leftover = taken >= ROUND;
    }

    /// Appends a line to the buffers of the watchers of a stream.
    fn append(&mut self, stream: Streams, line: &[u8]) {
        let max = self.hub.settings.watcher_bytes;
        let (mut sent, mut skipped) = (0, 0);
        for watcher in self.watchers.iter_mut().flatten() {
            if watcher.streams.intersects(stream) {
                if watcher.append(line, max) {
                    sent += 1;
                } else {
                    skipped += 1;
                }
            }
        }
        self.hub.sent.fetch_add(sent, Relaxed);
        self.hub.skipped.fetch_add(skipped, Relaxed);
    }

    /// Sends the buffers as far as the sockets take them.
    fn send(&mut self) {
        let mut closed = false;
        for slot in &mut self.watchers {
            if slot.as_mut().is_some_and(|watcher| watcher.send().is_err()) {
                *slot = None;
                closed = true;
            }
        }
        if closed {
            self.update_wanted();
        }
        let buffers = self.watchers.iter().flatten().map(|watcher| watcher.unsent.capacity());
        self.hub.buffered.store(buffers.sum(), Relaxed);
    }
}

impl Watcher {
    /// Appends a line, unless the buffer would exceed `max` bytes.
    fn append(&mut self, line: &[u8], max: usize) -> bool {
        /// The maximum length of the line that tells the number of skipped lines.
        const NOTICE_MAX: usize = 32;
        if self.unsent.len() + line.len() + NOTICE_MAX > max {
            self.skipped += 1;
            return false;
        }
        self.reserve(line.len() + NOTICE_MAX, max);
        if self.skipped > 0 {
            self.unsent.extend(format!("skipped={}\n", self.skipped).as_bytes());
            self.skipped = 0;
        }
        self.unsent.extend(line);
        true
    }

    /// Makes space for `more` bytes. The capacity doubles, but never exceeds `max`.
    fn reserve(&mut self, more: usize, max: usize) {
        let needed = self.unsent.len() + more;
        if needed > self.unsent.capacity() {
            let capacity = needed.max(2 * self.unsent.capacity()).min(max);
            self.unsent.reserve_exact(capacity - self.unsent.len());
        }
    }

    fn send(&mut self) -> io::Result<()> {
        self.sink.send_taken()?;
        while !self.unsent.is_empty() {
            match self.sink.write(self.unsent.as_slices().0) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(len) => drop(self.unsent.drain(..len)),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Ok(()),
                    ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// Reads what the watcher sent. Returns `true` if it ended its stream, asked to quit, or sends
    /// so much that it takes the connection for something else.
    fn has_left(&mut self) -> bool {
        const RECEIVED_MAX: usize = 64 << 10;
        let mut buffer = [0; 4096];
        while self.received < RECEIVED_MAX {
            match self.sink.read(&mut buffer) {
                Ok(0) => return true,
                Ok(len) if buffer[..len].starts_with(b"quit") => return true,
                Ok(len) => self.received += len,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return false,
                    ErrorKind::Interrupted => {}
                    _ => return true,
                },
            }
        }
        true
    }
}
