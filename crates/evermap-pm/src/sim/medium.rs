//! The medium that records accesses.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::mutation::Mutation;
use super::rng::fold;
use super::schedule::{self, Progress, Schedule};
use super::trace::{Event, LENGTH, Site, Span, Trace, TraceRecord, Word};
use super::undecided::{Outcome, Undecided};
use crate::epoch::thread_ordinal;
use crate::medium::{
    Counter, Dram, LINE, MarkedStore, Marks, Medium, Note, PageChange, Pages, Tracker,
};
use crate::{Error, ErrorKind, PmU64, Result};

/// Number of accesses that a thread may still make while it unwinds after its budget ran out.
const GRACE: u64 = 100_000;

/// Memory that records every store, flush and fence, so that all crash states can be derived
/// afterwards.
///
/// This is a handle: clones share the memory and the recording, so a structure can own one while
/// its test keeps another. Stores happen under one lock, in the order in which they are recorded;
/// loads take no lock. An access outside the medium panics.
///
/// It records from the beginning; [`pause`](Sim::pause) and [`checkpoint`](Sim::checkpoint) exclude
/// parts that are not worth crashing. [`in_memory`](Sim::in_memory) creates it without a recording,
/// for tests without crashes: a structure is compiled once for each type of medium, so tests should
/// not need another one.
#[derive(Clone)]
pub struct Sim {
    shared: Arc<Shared>,
    /// Whether this handle reports that the memory belongs to it alone.
    exclusive: bool,
}

/// An access to a [`Sim`] that is [observed](Sim::observed_by). Offsets are in bytes.
#[derive(Clone, Copy, Debug)]
pub enum Access {
    /// Before a word is loaded.
    Load(u64),
    /// Before words are stored that must persist.
    Store(u64, u64),
    /// Before a word is stored that need not persist.
    StoreTransient(u64),
    /// Before a word is compared and swapped.
    Swap(u64),
    /// After a word was compared and swapped successfully.
    Swapped(u64),
    /// Before this many bytes from the offset on are flushed.
    Flush(u64, u64),
    /// Before a fence.
    Fence,
    /// Before bytes are prefetched.
    Prefetch(u64),
    /// Before a part is read ahead.
    ReadAhead,
    /// A note of the structure.
    Note(Note),
}

/// Is called at every access to a [`Sim`] by the thread that makes it, which may wait or panic.
pub trait Observer: Send + Sync {
    /// Called for each access, without any lock.
    fn observe(&self, access: Access);
}

impl Observer for Counter {
    fn observe(&self, access: Access) {
        match access {
            Access::Load(place) => self.load(place as usize, 1),
            Access::Store(place, bytes) => self.store(place as usize, bytes as usize / 8),
            Access::StoreTransient(place) => self.store_transient(place as usize),
            Access::Swap(place) => self.cas(place as usize),
            Access::Swapped(place) => self.swapped(place as usize),
            Access::Flush(place, bytes) => self.flush(place as usize, bytes as usize),
            Access::Fence => self.fence(),
            Access::Note(note) => self.note(note),
            Access::Prefetch(_) | Access::ReadAhead => {}
        }
    }
}

struct Shared {
    /// Whether it is plain memory, without a recording.
    plain: bool,
    /// Whether the structure is made to execute a mistake, so that the log must be asked which.
    mutated: AtomicBool,
    observer: OnceLock<Arc<dyn Observer>>,
    /// All of it is usable from the start. The structure under test may use `len` bytes.
    memory: Dram,
    /// Of the stores to `memory`, as of those to a mapped file.
    tracker: Tracker,
    len: AtomicU64,
    steps: AtomicU64,
    /// Lines that were loaded from.
    read: Lines,
    /// Lines with undecided contents.
    undecided: Lines,
    /// Lines whose loads need no further tracking: they were read before, and nothing in them is
    /// undecided.
    quiet: Lines,
    log: Mutex<Log>,
}

/// Mistakes that tests of instants can plant: see [`Medium::mutant`].
pub mod unmarked {
    /// Words are stored without marks.
    pub const STORE: &str = "unmarked store";
    /// Words are compared and swapped without marks.
    pub const CAS: &str = "unmarked cas";
    /// Bytes are filled in without marks.
    pub const FILL: &str = "unmarked fill";
    /// Pages are discarded without marks.
    pub const DISCARD: &str = "unmarked discard";
}

/// A set of lines, with one bit for each.
struct Lines(Box<[AtomicU64]>);

impl Lines {
    fn new(capacity: u64) -> Self {
        Lines((0..capacity.div_ceil(LINE * 64)).map(|_| AtomicU64::new(0)).collect())
    }

    #[inline(always)]
    fn has(&self, line: u64) -> bool {
        self.0[(line / 64) as usize].load(Relaxed) >> (line % 64) & 1 != 0
    }

    fn add(&self, line: u64) {
        self.0[(line / 64) as usize].fetch_or(1 << (line % 64), Relaxed);
    }

    fn remove(&self, line: u64) {
        self.0[(line / 64) as usize].fetch_and(!(1 << (line % 64)), Relaxed);
    }

    fn fill(&self) {
        self.0.iter().for_each(|lines| lines.store(u64::MAX, Relaxed));
    }

    fn clear(&mut self) {
        self.0.iter_mut().for_each(|lines| *lines.get_mut() = 0);
    }
}

#[derive(Default)]
struct Log {
    paused: bool,
    /// Whether undoing `words` does not restore the initial contents of the medium.
    partial: bool,
    fail_sync: bool,
    records: Vec<TraceRecord>,
    words: Vec<Word>,
    /// Ordinals of the threads seen. The position is the number in the records.
    threads: Vec<usize>,
    undecided: Option<Undecided>,
    /// The values that decisions have overwritten, last first.
    overwritten: Vec<(u64, u64)>,
    mutation: Option<Mutation>,
    /// A mutation that will be applied to the recording later.
    expected: Option<Mutation>,
    schedule: Schedule,
    /// A number that depends on the order in which threads ran under the schedule.
    order: u64,
}

impl Log {
    fn thread(&mut self) -> u16 {
        let ordinal = thread_ordinal();
        let known = self.threads.iter().position(|&seen| seen == ordinal);
        let number = known.unwrap_or_else(|| {
            self.threads.push(ordinal);
            self.threads.len() - 1
        });
        number as u16
    }

    fn push(&mut self, event: Event, site: Site) {
        let omits = |mutation: Mutation| {
            mutation.omits(event, site) && !matches!(mutation, Mutation::DelayFlush(_))
        };
        let event = if self.mutation.is_some_and(omits) { Event::Omitted } else { event };
        if !self.paused {
            let thread = self.thread();
            self.records.push(TraceRecord { event, thread, site });
        }
    }

    /// Adds the words to the recording.
    fn span(&mut self, words: impl IntoIterator<Item = Word>) -> Span {
        let first = self.words.len();
        // The iterator writes the words as it advances, so it must run even if they are not
        // recorded.
        self.words.extend(words);
        if self.paused {
            self.words.truncate(first);
        }
        Span { first: first as u32, count: (self.words.len() - first) as u32 }
    }

    fn stored(&mut self, words: impl IntoIterator<Item = Word>, transient: bool, site: Site) {
        let words = self.span(words);
        self.push(Event::Store { words, transient }, site);
    }

    fn discard_records(&mut self) {
        self.records.clear();
        self.words.clear();
    }
}

impl Sim {
    /// Creates an empty medium that can [`grow`](Medium::grow) to `capacity` bytes. The capacity
    /// should be small, a few hundred KiB, because images have this size.
    ///
    /// # Errors
    ///
    /// Those of [`Dram::reserve`].
    pub fn new(capacity: u64) -> Result<Self> {
        Sim::with(capacity, false)
    }

    /// Creates ordinary memory of any size, without a recording. Accesses of several threads are
    /// concurrent, and are not checked.
    ///
    /// # Errors
    ///
    /// Those of [`Dram::reserve`].
    pub fn in_memory(capacity: u64) -> Result<Self> {
        Sim::with(capacity, true)
    }

    /// Sets the observer of this medium.
    ///
    /// # Panics
    ///
    /// If it has one.
    pub fn observed_by(self, observer: Arc<dyn Observer>) -> Self {
        assert!(self.shared.observer.set(observer).is_ok(), "a second observer");
        self
    }

    /// Returns a handle that reports that the memory is [exclusive](Medium::is_exclusive).
    ///
    /// # Safety
    ///
    /// While a structure uses the handle, nothing is stored through another one.
    pub unsafe fn into_exclusive(self) -> Self {
        Sim { exclusive: true, ..self }
    }

    fn with(capacity: u64, plain: bool) -> Result<Self> {
        let memory = Dram::reserve(capacity, Pages::Base)?;
        memory.grow(memory.capacity())?;
        let lines = || Lines::new(if plain { 0 } else { memory.capacity() });
        Ok(Sim {
            exclusive: false,
            shared: Arc::new(Shared {
                plain,
                mutated: AtomicBool::new(false),
                observer: OnceLock::new(),
                len: AtomicU64::new(0),
                steps: AtomicU64::new(u64::MAX),
                read: lines(),
                undecided: lines(),
                quiet: lines(),
                tracker: Tracker::default(),
                log: Mutex::new(Log { paused: plain, ..Log::default() }),
                memory,
            }),
        })
    }

    /// Creates a medium that holds `image`, as after a crash, and records what recovery does with
    /// it.
    ///
    /// # Errors
    ///
    /// `Config` if the image is longer than `capacity` or not a multiple of 4096 bytes; those of
    /// [`Dram::reserve`].
    pub fn from_image(image: &[u8], capacity: u64) -> Result<Self> {
        if image.len() as u64 > capacity || !image.len().is_multiple_of(4096) {
            let what = format!("an image of {} bytes for a capacity of {capacity}", image.len());
            return Err(ErrorKind::Config(what).into());
        }
        let sim = Sim::new(capacity)?;
        sim.fill(image);
        Ok(sim)
    }

    /// Applies a mutation from now on: omits flushes or fences, or makes the structure execute a
    /// planted mistake. Other mutations apply to whole recordings: see [`Mutation::apply`].
    pub fn mutate(&self, mutation: Option<Mutation>) {
        self.log().mutation = mutation;
        self.shared.mutated.store(mutation.is_some(), Release);
    }

    /// Makes threads that run [in parallel](Sim::in_parallel) pause where this mutation will have
    /// an effect.
    pub(crate) fn expect(&self, mutation: Mutation) {
        self.log().expected = Some(mutation);
    }

    /// Sets the order in which threads run that are started [in parallel](Sim::in_parallel) from
    /// now on.
    pub fn set_schedule(&self, schedule: Schedule) {
        self.log().schedule = schedule;
    }

    /// Runs `bodies` as threads that take turns at every access to this medium, in an order that
    /// follows from the schedule: the same in every run, if they share nothing else. Returns their
    /// results.
    ///
    /// # Panics
    ///
    /// If one of them does, or if they wait for each other forever.
    pub fn in_parallel<'env, R: Send>(
        &self,
        bodies: Vec<Box<dyn FnOnce() -> R + Send + 'env>>,
    ) -> Vec<R> {
        let schedule = self.log().schedule;
        let (results, order) = schedule::run(schedule, bodies);
        let mut log = self.log();
        log.order = fold(log.order, order);
        // The next threads that run in parallel need not run in the same order.
        log.schedule.seed = fold(schedule.seed, 1);
        results
    }

    /// Returns a number that depends on the order in which threads ran that were started [in
    /// parallel](Sim::in_parallel).
    pub fn order(&self) -> u64 {
        self.log().order
    }

    /// Stops recording and discards the recording, to set up the state of a test.
    pub fn pause(&self) {
        let mut log = self.log();
        log.discard_records();
        (log.paused, log.partial) = (true, true);
    }

    /// Makes everything so far durable, discards the recording, and starts a new one.
    pub fn checkpoint(&self) {
        let mut log = self.log();
        log.discard_records();
        (log.paused, log.partial) = (false, true);
    }

    /// Makes the next [`sync`](Medium::sync) fail: pending stores may or may not become durable,
    /// and pages that are not written again are not retried by a later sync, as in the kernel.
    pub fn fail_next_sync(&self) {
        self.log().fail_sync = true;
    }

    /// Makes accesses panic with "stuck" after `steps` more of them, for code that may loop
    /// forever.
    pub fn set_budget(&self, steps: u64) {
        self.shared.steps.store(steps, Relaxed);
    }

    /// Returns a copy of the recording.
    ///
    /// # Panics
    ///
    /// If an operation began twice, or ended without having begun.
    pub fn trace(&self) -> Trace {
        let log = self.log();
        Trace::new(self.bytes(), log.records.clone(), log.words.clone())
    }

    /// Returns the number of records so far.
    pub fn recorded(&self) -> usize {
        self.log().records.len()
    }

    /// Returns the contents of the memory. Counts as reading all of it.
    pub fn contents(&self) -> Vec<u8> {
        self.shared.read.fill();
        self.bytes()
    }

    /// Returns `true` if anything in `range` was loaded since the medium was created, or `range` is
    /// partly outside the medium.
    pub fn was_read(&self, range: Range<u64>) -> bool {
        range.end > self.capacity()
            || (range.start / LINE..range.end.div_ceil(LINE)).any(|line| self.shared.read.has(line))
    }

    /// Makes the contents of some places undecided until they are read.
    pub(crate) fn leave_undecided(&self, undecided: Undecided) {
        undecided.lines().for_each(|line| self.shared.undecided.add(line));
        self.log().undecided = Some(undecided);
    }

    /// Ends the undecided state and returns the decisions made since
    /// [`leave_undecided`](Self::leave_undecided). Places that were not decided have no valid
    /// contents.
    pub(crate) fn decisions(&self) -> Outcome {
        let undecided = self.log().undecided.take().unwrap_or_default();
        // Later loads see one of the possible contents, and a reload restores them all.
        self.log().overwritten.extend(undecided.overwritten());
        undecided.into_outcome()
    }

    /// Begins to record which lines are stored to, as [`Mapped`](crate::medium::Mapped) does with
    /// the same code, so that instants can be captured. Must be called before anything is stored,
    /// once.
    ///
    /// # Errors
    ///
    /// `NoSpace` if there is not enough address space.
    pub fn record_changes(&self) -> Result<()> {
        let base = self.base().as_ptr().expose_provenance();
        self.shared.tracker.record(base, Marks::in_memory(self.capacity())?, 0)
    }

    /// Captures an instant: see [`Mapped::take_changes`](crate::medium::Mapped::take_changes).
    ///
    /// # Errors
    ///
    /// `Io` if the system has no fence of all threads.
    ///
    /// # Panics
    ///
    /// If [`record_changes`](Sim::record_changes) was not called.
    pub fn take_changes(&self, show: &mut dyn FnMut(&PageChange<'_>)) -> Result<(u64, u64)> {
        let interval = self.shared.tracker.take_changes(show)?;
        Ok((interval, self.len()))
    }

    /// Marks the lines of some bytes that will be stored to while the result lives. Other threads
    /// may run before that.
    fn mark(&self, mistake: &'static str, place: u64, bytes: u64) -> Option<MarkedStore<'_>> {
        let tracker = &self.shared.tracker;
        if tracker.is_off() || place >= self.len() || bytes == 0 || self.mutant(mistake) {
            return None;
        }
        let marked = tracker.begin_store(place, bytes);
        schedule::after(Progress::Load);
        Some(marked)
    }

    fn bytes(&self) -> Vec<u8> {
        let words = self.words(self.len()).iter();
        words.flat_map(|word| word.atomic().load(Relaxed).to_le_bytes()).collect()
    }

    /// Calls `visit` with the recording.
    pub(crate) fn with_records<R>(&self, visit: impl FnOnce(&[TraceRecord]) -> R) -> R {
        visit(&self.log().records)
    }

    /// Turns the medium into the one that [`from_image`](Sim::from_image) would create from
    /// `image`, reusing its memory. `changed` lists every offset where `image` may differ from the
    /// image that this medium was created from; without it everything is copied. Returns `false`
    /// and does nothing if another handle exists.
    pub(crate) fn reload(&mut self, image: &[u8], changed: Option<&[u64]>) -> bool {
        // The guarantees of `Medium` hold until the last handle is dropped; with no other handle
        // and no borrow of this one, a new lifetime begins here.
        let Some(shared) = Arc::get_mut(&mut self.shared) else { return false };
        let log = shared.log.get_mut().unwrap_or_else(PoisonError::into_inner);
        match changed {
            Some(changed) if !log.partial && !changed.contains(&LENGTH) => {
                let cells = shared.memory.slice::<PmU64>(0, shared.memory.len() / 8);
                let cells = cells.expect("the whole memory is usable");
                for word in log.words.iter().rev().filter(|word| word.offset != LENGTH) {
                    cells[word.offset as usize / 8].atomic().store(word.old, Relaxed);
                }
                // Decisions are made before anything is stored in their place.
                for &(offset, before) in &log.overwritten {
                    cells[offset as usize / 8].atomic().store(before, Relaxed);
                }
                // Bytes beyond the end of a shorter file are lost, and are already zero here.
                for &offset in changed.iter().filter(|&&offset| offset < image.len() as u64) {
                    let value = super::trace::get(image, offset);
                    cells[offset as usize / 8].atomic().store(value, Relaxed);
                }
                *shared.len.get_mut() = image.len() as u64;
            }
            _ => self.fill(image),
        }
        let shared = Arc::get_mut(&mut self.shared).expect("no other handle exists");
        let log = shared.log.get_mut().unwrap_or_else(PoisonError::into_inner);
        log.discard_records();
        (log.paused, log.partial, log.fail_sync) = (false, false, false);
        (log.undecided, log.expected, log.order) = (None, None, 0);
        log.overwritten.clear();
        log.threads.clear();
        shared.observer.take();
        for lines in [&mut shared.read, &mut shared.undecided, &mut shared.quiet] {
            lines.clear();
        }
        *shared.steps.get_mut() = u64::MAX;
        true
    }

    /// Makes `image` the contents, and zeroes the rest.
    fn fill(&self, image: &[u8]) {
        let (words, _) = image.as_chunks::<8>();
        let values = words.iter().map(|word| u64::from_le_bytes(*word)).chain(std::iter::repeat(0));
        for (cell, value) in self.words(self.capacity()).iter().zip(values) {
            cell.atomic().store(value, Relaxed);
        }
        self.shared.len.store(image.len() as u64, Release);
    }

    /// Returns the words of the first `bytes` bytes.
    fn words(&self, bytes: u64) -> &[PmU64] {
        self.shared.memory.slice(0, bytes / 8).expect("the whole memory is usable")
    }

    /// Locks the log. A panic under the lock can only come from a failed allocation, so the log
    /// stays usable.
    fn log(&self) -> MutexGuard<'_, Log> {
        self.shared.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the observer of an access. Returns whether this is plain memory.
    #[inline]
    fn is_plain(&self, access: Access) -> bool {
        if let Some(observer) = self.shared.observer.get() {
            observer.observe(access);
        }
        self.shared.plain
    }

    /// Returns the distance of `addr` from the beginning, which may be outside.
    #[inline]
    fn distance(&self, addr: *const u8) -> u64 {
        addr.addr().wrapping_sub(self.base().addr().get()) as u64
    }

    #[inline]
    fn distance_of(&self, cell: &PmU64) -> u64 {
        self.distance(std::ptr::from_ref(cell).cast())
    }

    /// Counts an access and returns its offset.
    #[track_caller]
    #[inline]
    fn access(&self, what: &str, addr: *const u8, bytes: usize) -> u64 {
        // Two threads may count one step together: the budget only prevents hangs, and need not be
        // exact.
        let steps = self.shared.steps.load(Relaxed);
        if steps == 0 {
            self.stuck();
        }
        self.shared.steps.store(steps - 1, Relaxed);
        let (offset, len) = (self.distance(addr), self.len());
        if offset > len || bytes as u64 > len - offset {
            outside(what, offset, bytes, len);
        }
        offset
    }

    #[cold]
    #[track_caller]
    fn stuck(&self) {
        // Destructors that run during the unwinding get some accesses; one that loops aborts the
        // process.
        self.shared.steps.store(GRACE, Relaxed);
        panic!("stuck: the budget of accesses ran out at {}", Site::caller());
    }

    /// Tracks a load, and decides the contents if they are undecided.
    #[inline]
    fn track_load(&self, offset: u64) {
        let line = offset / LINE;
        if !self.shared.quiet.has(line) {
            self.track_first_load(line, offset);
        }
        schedule::after(Progress::Load);
    }

    #[cold]
    fn track_first_load(&self, line: u64, offset: u64) {
        let shared = &self.shared;
        shared.read.add(line);
        if shared.undecided.has(line) {
            let mut log = self.log();
            let Some(undecided) = &mut log.undecided else { return };
            let cell = &self.words(offset + 8)[offset as usize / 8];
            if let Some(value) = undecided.load(offset, cell.atomic().load(Relaxed)) {
                cell.atomic().store(value, Release);
            }
            if !undecided.is_decided(line) {
                return;
            }
            shared.undecided.remove(line);
        }
        shared.quiet.add(line);
    }

    /// Tracks a store: it makes undecided contents irrelevant.
    #[inline]
    fn track_store(&self, offset: u64, log: &mut Log) {
        if self.shared.undecided.has(offset / LINE)
            && let Some(undecided) = &mut log.undecided
        {
            undecided.store(offset);
        }
    }

    #[track_caller]
    fn store_word(&self, cell: &PmU64, new: u64, transient: bool) {
        let place = self.distance_of(cell);
        let _marked = self.mark(unmarked::STORE, place, 8);
        let access =
            if transient { Access::StoreTransient(place) } else { Access::Store(place, 8) };
        if self.is_plain(access) {
            return cell.atomic().store(new, Release);
        }
        let offset = self.access("store", std::ptr::from_ref(cell).cast(), 8);
        {
            let mut log = self.log();
            self.track_store(offset, &mut log);
            let old = cell.atomic().swap(new, Release);
            log.stored([Word { offset, old, new }], transient, Site::caller());
        }
        schedule::after(if transient { Progress::Transient } else { Progress::Store });
    }

    #[track_caller]
    fn cas_word(&self, cell: &PmU64, old: u64, new: u64, transient: bool) -> Result<u64, u64> {
        let _marked = self.mark(unmarked::CAS, self.distance_of(cell), 8);
        if self.is_plain(Access::Swap(self.distance_of(cell))) {
            let swapped = self.shared.memory.cas(cell, old, new);
            if swapped.is_ok() {
                self.is_plain(Access::Swapped(self.distance_of(cell)));
            }
            return swapped;
        }
        let offset = self.access("compare-and-swap", std::ptr::from_ref(cell).cast(), 8);
        self.track_load(offset);
        {
            let mut log = self.log();
            let found = cell.atomic().load(Acquire);
            if found != old {
                return Err(found);
            }
            cell.atomic().store(new, Release);
            log.stored([Word { offset, old, new }], transient, Site::caller());
        }
        schedule::after(if transient { Progress::Transient } else { Progress::Store });
        Ok(old)
    }
}

#[cold]
#[track_caller]
fn outside(what: &str, offset: u64, bytes: usize, len: u64) -> ! {
    let site = Site::caller();
    panic!(
        "{what} of {bytes} bytes at offset {offset:#x}, outside the medium of {len:#x} bytes, \
         at {site}"
    );
}

// SAFETY: 1. The memory is a `Dram`, whose base is page-aligned and exists until the last handle is
// dropped. 2. All of it was made usable at creation, and `len` never exceeds it. 3. `len` only
// grows; `reload`, which may lower it, runs only when no other handle and no borrow of this one
// exists, and the memory stays mapped.
unsafe impl Medium for Sim {
    #[inline(always)]
    fn base(&self) -> NonNull<u8> {
        self.shared.memory.base()
    }

    #[inline(always)]
    fn len(&self) -> u64 {
        self.shared.len.load(Relaxed)
    }

    fn capacity(&self) -> u64 {
        self.shared.memory.capacity()
    }

    fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    fn grow(&self, len: u64) -> Result<()> {
        if len > self.capacity() {
            return Err(Error::no_space("capacity of the simulator", len - self.capacity()));
        }
        let new = len.next_multiple_of(4096);
        if self.shared.plain {
            self.shared.len.fetch_max(new, Release);
            return Ok(());
        }
        let mut log = self.log();
        let old = self.len();
        if new > old {
            self.shared.len.store(new, Release);
            let words = log.span([Word { offset: LENGTH, old, new }]);
            log.push(Event::Grow { words }, Site::caller());
        }
        Ok(())
    }

    /// Discards pages. They are zero afterwards, and that is durable immediately.
    fn discard(&self, range: Range<u64>) {
        let (start, end) = (range.start.next_multiple_of(4096), range.end / 4096 * 4096);
        if start >= end || end > self.len() {
            return;
        }
        let _marked = self.mark(unmarked::DISCARD, start, end - start);
        if self.shared.plain {
            return self.shared.memory.discard(start..end);
        }
        let mut log = self.log();
        (start..end).step_by(8).for_each(|offset| self.track_store(offset, &mut log));
        let cells = &self.words(end)[start as usize / 8..];
        let words = (start..end).step_by(8).zip(cells).filter_map(|(offset, cell)| {
            let old = cell.atomic().swap(0, Release);
            (old != 0).then_some(Word { offset, old, new: 0 })
        });
        let words = log.span(words);
        log.push(Event::Discard { words }, Site::caller());
    }

    fn read_ahead(&self, _range: Range<u64>) {
        self.is_plain(Access::ReadAhead);
    }

    fn sync(&self) -> Result<()> {
        let mut log = self.log();
        if std::mem::take(&mut log.fail_sync) {
            log.push(Event::FailedSync, Site::caller());
            let source = std::io::Error::other("injected by the simulator");
            return Err(Error::io("sync", "simulator".as_ref(), source));
        }
        log.push(Event::Sync, Site::caller());
        Ok(())
    }

    fn name(&self) -> &'static str {
        "sim"
    }

    fn prefetch(&self, offset: u64) {
        self.is_plain(Access::Prefetch(offset));
    }

    fn flush_bytes(&self, addr: *const u8, len: usize) {
        if self.is_plain(Access::Flush(self.distance(addr), len as u64)) {
            return;
        }
        let offset = self.access("flush", addr, len);
        if len > 0 {
            self.log().push(Event::Flush { offset, len: len as u64 }, Site::caller());
        }
    }

    fn fence(&self) {
        if self.is_plain(Access::Fence) {
            return self.shared.memory.fence();
        }
        let site = Site::caller();
        let omitted = {
            let mut log = self.log();
            log.push(Event::Fence, site);
            log.expected.or(log.mutation).is_some_and(|mutation| mutation.omits(Event::Fence, site))
        };
        if !omitted {
            schedule::after(Progress::Fence);
        }
    }

    fn note(&self, note: Note) {
        if self.is_plain(Access::Note(note)) {
            return;
        }
        self.log().push(Event::Note(note), Site::caller());
        match note {
            Note::Begin(_) => schedule::after(Progress::Begin),
            Note::Scope(_) => schedule::after(Progress::Scope),
            Note::End(_) => schedule::after(Progress::End),
            Note::Harmless(_) => {}
        }
    }

    fn mutant(&self, name: &'static str) -> bool {
        self.shared.mutated.load(Acquire) && self.log().mutation == Some(Mutation::Planted(name))
    }

    // Not inlined: tests have a hundred thousand loads, and each would be compiled.
    fn load(&self, cell: &PmU64) -> u64 {
        if self.is_plain(Access::Load(self.distance_of(cell))) {
            return cell.atomic().load(Acquire);
        }
        let offset = self.access("load", std::ptr::from_ref(cell).cast(), 8);
        self.track_load(offset);
        cell.atomic().load(Acquire)
    }

    fn load_relaxed(&self, cell: &PmU64) -> u64 {
        if self.is_plain(Access::Load(self.distance_of(cell))) {
            return cell.atomic().load(Relaxed);
        }
        let offset = self.access("load", std::ptr::from_ref(cell).cast(), 8);
        self.track_load(offset);
        cell.atomic().load(Relaxed)
    }

    fn store(&self, cell: &PmU64, value: u64) {
        self.store_word(cell, value, false);
    }

    fn store_transient(&self, cell: &PmU64, value: u64) {
        self.store_word(cell, value, true);
    }

    fn cas(&self, cell: &PmU64, old: u64, new: u64) -> Result<u64, u64> {
        self.cas_word(cell, old, new, false)
    }

    fn cas_transient(&self, cell: &PmU64, old: u64, new: u64) -> Result<u64, u64> {
        self.cas_word(cell, old, new, true)
    }

    fn write_bytes(&self, cells: &[PmU64], bytes: &[u8]) {
        let cells = &cells[..bytes.len().div_ceil(8)];
        let place = self.distance(cells.as_ptr().cast());
        let _marked = self.mark(unmarked::FILL, place, size_of_val(cells) as u64);
        if self.is_plain(Access::Store(place, size_of_val(cells) as u64)) {
            return self.shared.memory.write_bytes(cells, bytes);
        }
        let start = self.access("bulk write", cells.as_ptr().cast(), size_of_val(cells));
        if bytes.is_empty() {
            return;
        }
        let mut log = self.log();
        (start..)
            .step_by(8)
            .take(cells.len())
            .for_each(|offset| self.track_store(offset, &mut log));
        let words = cells.iter().zip(bytes.chunks(8)).zip((start..).step_by(8));
        let words = words.map(|((cell, bytes), offset)| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            let new = u64::from_le_bytes(word);
            Word { offset, old: cell.atomic().swap(new, Relaxed), new }
        });
        log.stored(words, false, Site::caller());
        drop(log);
        schedule::after(Progress::Store);
    }
}
