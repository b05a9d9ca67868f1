//! The medium that records.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::trace::{Event, LENGTH, Record, Site, Span, Trace, Word};
use crate::epoch::thread_ordinal;
use crate::medium::{Dram, LINE, Medium, Note, Pages};
use crate::{Error, ErrorKind, PmU64, Result};

/// Accesses that a thread may still make while it unwinds from having run out of its budget.
const GRACE: u64 = 100_000;

/// A deliberate mistake, made at one call site: what a good test must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Flushes called here do nothing.
    DropFlush(Site),
    /// Fences called here do nothing.
    DropFence(Site),
    /// Flushes called here happen only after the same thread's next store.
    DelayFlush(Site),
}

/// Memory that remembers every store, flush and fence, so that all crash states can be derived afterwards.
///
/// A handle: clones share the memory and the recording, so a structure can own one while its tester keeps
/// another. Stores happen under one lock, in the order in which they are recorded; loads take no lock. An
/// access outside the medium panics.
///
/// It records from the beginning; [`pause`](Sim::pause) and [`checkpoint`](Sim::checkpoint) leave out
/// what is not worth crashing.
#[derive(Clone)]
pub struct Sim {
    shared: Arc<Shared>,
}

struct Shared {
    /// All of it is usable from the start; `len` is what the structure under test may use.
    memory: Dram,
    len: AtomicU64,
    steps: AtomicU64,
    /// One bit a line: whether it was loaded from.
    read: Box<[AtomicU64]>,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    paused: bool,
    /// Whether undoing `words` would lead back to the contents that the medium began with.
    partial: bool,
    fail_sync: bool,
    records: Vec<Record>,
    words: Vec<Word>,
    /// Ordinals of the threads seen: the position is the number in the records.
    threads: Vec<usize>,
    mutation: Option<Mutation>,
    /// Flushes that wait for the next store of their thread.
    delayed: Vec<Record>,
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
        if !self.paused {
            let thread = self.thread();
            self.records.push(Record { event, thread, site });
        }
    }

    /// Adds the words to the recording.
    fn span(&mut self, words: impl IntoIterator<Item = Word>) -> Span {
        let first = self.words.len();
        // The iterator writes the words as it goes, so it must run even when they are not recorded.
        self.words.extend(words);
        if self.paused {
            self.words.truncate(first);
        }
        Span { first: first as u32, count: (self.words.len() - first) as u32 }
    }

    fn stored(&mut self, words: impl IntoIterator<Item = Word>, transient: bool, site: Site) {
        let words = self.span(words);
        self.push(Event::Store { words, transient }, site);
        if !self.delayed.is_empty() {
            let thread = self.thread();
            let due = self.delayed.extract_if(.., |flush| flush.thread == thread);
            self.records.extend(due);
        }
    }

    fn flushed(&mut self, event: Event, site: Site) {
        match self.mutation {
            Some(Mutation::DropFlush(at)) if at == site => {}
            Some(Mutation::DelayFlush(at)) if at == site && !self.paused => {
                let thread = self.thread();
                self.delayed.push(Record { event, thread, site });
            }
            _ => self.push(event, site),
        }
    }

    fn forget(&mut self) {
        self.records.clear();
        self.words.clear();
        self.delayed.clear();
    }
}

impl Sim {
    /// An empty medium that can [`grow`](Medium::grow) to `capacity` bytes. Keep it small, a few hundred
    /// KiB: images are of this size.
    ///
    /// # Errors
    /// Those of [`Dram::reserve`].
    pub fn new(capacity: u64) -> Result<Self> {
        let memory = Dram::reserve(capacity, Pages::Base)?;
        memory.grow(memory.capacity())?;
        let read = (0..memory.capacity().div_ceil(LINE * 64)).map(|_| AtomicU64::new(0)).collect();
        let shared = Shared {
            memory,
            len: AtomicU64::new(0),
            steps: AtomicU64::new(u64::MAX),
            read,
            log: Mutex::default(),
        };
        Ok(Sim { shared: Arc::new(shared) })
    }

    /// A medium that holds `image`, as after a crash, and records what recovery does with it.
    ///
    /// # Errors
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

    /// Makes a mistake at one call site from now on, or none.
    pub fn mutate(&self, mutation: Option<Mutation>) {
        self.log().mutation = mutation;
    }

    /// Stops recording and forgets what was recorded: for setting up a state that others crash.
    pub fn pause(&self) {
        let mut log = self.log();
        log.forget();
        (log.paused, log.partial) = (true, true);
    }

    /// Declares everything so far durable, forgets how it came about, and records from here.
    pub fn checkpoint(&self) {
        let mut log = self.log();
        log.forget();
        (log.paused, log.partial) = (false, true);
    }

    /// Lets the next [`sync`](Medium::sync) fail: what is then pending may or may not become durable, and
    /// pages that are not written again are never retried by a later sync, as kernels do it.
    pub fn fail_next_sync(&self) {
        self.log().fail_sync = true;
    }

    /// Panics with "stuck" after `steps` more accesses: for code that may hang in a loop.
    pub fn set_budget(&self, steps: u64) {
        self.shared.steps.store(steps, Relaxed);
    }

    /// A copy of the recording.
    ///
    /// # Panics
    /// If an operation began twice, or ended without having begun.
    pub fn trace(&self) -> Trace {
        let log = self.log();
        Trace::new(self.bytes(), log.records.clone(), log.words.clone())
    }

    /// Records so far.
    pub fn recorded(&self) -> usize {
        self.log().records.len()
    }

    /// What the memory holds now. Counts as reading all of it.
    pub fn contents(&self) -> Vec<u8> {
        self.shared.read.iter().for_each(|lines| lines.store(u64::MAX, Relaxed));
        self.bytes()
    }

    /// Whether anything in `range` was loaded since the medium was made. What lies outside always was.
    pub fn was_read(&self, range: Range<u64>) -> bool {
        range.end > self.capacity()
            || (range.start / LINE..range.end.div_ceil(LINE)).any(|line| {
                self.shared.read[(line / 64) as usize].load(Relaxed) >> (line % 64) & 1 != 0
            })
    }

    fn bytes(&self) -> Vec<u8> {
        let words = self.words(self.len()).iter();
        words.flat_map(|word| word.atomic().load(Relaxed).to_le_bytes()).collect()
    }

    /// Lets `visit` see the recording as it is.
    pub(crate) fn with_records<R>(&self, visit: impl FnOnce(&[Record]) -> R) -> R {
        visit(&self.log().records)
    }

    /// Turns the medium into the one that [`from_image`](Sim::from_image) would make of `image`, reusing
    /// its memory.
    /// `changed` lists every offset where `image` may differ from what this medium was made of; without
    /// it everything is copied. Returns whether that was possible: not while another handle lives.
    pub(crate) fn reload(&mut self, image: &[u8], changed: Option<&[u64]>) -> bool {
        // The promises of `Medium` bind until the last handle goes; with no other handle and no borrow of
        // this one, a life ends and another begins here.
        let Some(shared) = Arc::get_mut(&mut self.shared) else { return false };
        let log = shared.log.get_mut().unwrap_or_else(PoisonError::into_inner);
        match changed {
            Some(changed) if !log.partial && !changed.contains(&LENGTH) => {
                let cells = shared.memory.slice::<PmU64>(0, shared.memory.len() / 8);
                let cells = cells.expect("the whole memory is usable");
                for word in log.words.iter().rev().filter(|word| word.offset != LENGTH) {
                    cells[word.offset as usize / 8].atomic().store(word.old, Relaxed);
                }
                // What lies beyond a shorter file is lost, and reads as zero here already.
                for &offset in changed.iter().filter(|&&offset| offset < image.len() as u64) {
                    let value = super::trace::get(image, offset);
                    cells[offset as usize / 8].atomic().store(value, Relaxed);
                }
                *shared.len.get_mut() = image.len() as u64;
            }
            _ => self.fill(image),
        }
        let shared = Arc::get_mut(&mut self.shared).expect("still the only handle");
        let log = shared.log.get_mut().unwrap_or_else(PoisonError::into_inner);
        log.forget();
        (log.paused, log.partial, log.fail_sync) = (false, false, false);
        shared.read.iter_mut().for_each(|word| *word.get_mut() = 0);
        *shared.steps.get_mut() = u64::MAX;
        true
    }

    /// Makes `image` the contents, and zero what lies beyond.
    fn fill(&self, image: &[u8]) {
        let (words, _) = image.as_chunks::<8>();
        let values = words.iter().map(|word| u64::from_le_bytes(*word)).chain(std::iter::repeat(0));
        for (cell, value) in self.words(self.capacity()).iter().zip(values) {
            cell.atomic().store(value, Relaxed);
        }
        self.shared.len.store(image.len() as u64, Release);
    }

    /// The first `bytes` bytes.
    fn words(&self, bytes: u64) -> &[PmU64] {
        self.shared.memory.slice(0, bytes / 8).expect("the whole memory is usable")
    }

    /// A panic under the lock can only come from a failed allocation, so the log stays usable.
    fn log(&self) -> MutexGuard<'_, Log> {
        self.shared.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an access and returns its offset.
    #[track_caller]
    #[inline]
    fn access(&self, what: &str, addr: *const u8, bytes: usize) -> u64 {
        // Two threads may count one step together: the budget is a guard against hangs, not a measure.
        let steps = self.shared.steps.load(Relaxed);
        if steps == 0 {
            self.stuck();
        }
        self.shared.steps.store(steps - 1, Relaxed);
        let offset = addr.addr().wrapping_sub(self.base().addr().get()) as u64;
        let len = self.len();
        if offset > len || bytes as u64 > len - offset {
            outside(what, offset, bytes, len);
        }
        offset
    }

    #[cold]
    #[track_caller]
    fn stuck(&self) {
        // Destructors that run while this unwinds get some accesses; one that loops aborts the process.
        self.shared.steps.store(GRACE, Relaxed);
        panic!("stuck: the budget of accesses ran out at {}", Site::caller());
    }

    #[inline]
    fn mark_read(&self, offset: u64) {
        let line = offset / LINE;
        let (word, bit) = (&self.shared.read[(line / 64) as usize], 1 << (line % 64));
        if word.load(Relaxed) & bit == 0 {
            word.fetch_or(bit, Relaxed);
        }
    }

    #[track_caller]
    fn store_word(&self, cell: &PmU64, new: u64, transient: bool) {
        let offset = self.access("store", std::ptr::from_ref(cell).cast(), 8);
        let mut log = self.log();
        let old = cell.atomic().swap(new, Release);
        log.stored([Word { offset, old, new }], transient, Site::caller());
    }

    #[track_caller]
    fn cas_word(&self, cell: &PmU64, old: u64, new: u64, transient: bool) -> Result<u64, u64> {
        let offset = self.access("compare-and-swap", std::ptr::from_ref(cell).cast(), 8);
        self.mark_read(offset);
        let mut log = self.log();
        let found = cell.atomic().load(Acquire);
        if found != old {
            return Err(found);
        }
        cell.atomic().store(new, Release);
        log.stored([Word { offset, old, new }], transient, Site::caller());
        Ok(old)
    }
}

#[cold]
#[track_caller]
fn outside(what: &str, offset: u64, bytes: usize, len: u64) -> ! {
    let site = Site::caller();
    panic!(
        "{what} of {bytes} bytes at offset {offset:#x}, outside the medium of {len:#x} bytes, at {site}"
    );
}

// SAFETY: 1. the memory is a `Dram`, whose base is page-aligned and stays until the last handle goes.
// 2. all of it was made usable at creation, and `len` never exceeds it. 3. `len` only grows; `reload`, which
// may lower it, runs only when no other handle and no borrow of this one exists, and the memory stays mapped.
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

    fn grow(&self, len: u64) -> Result<()> {
        if len > self.capacity() {
            return Err(Error::no_space("capacity of the simulator", len - self.capacity()));
        }
        let mut log = self.log();
        let (old, new) = (self.len(), len.next_multiple_of(4096));
        if new > old {
            self.shared.len.store(new, Release);
            let words = log.span([Word { offset: LENGTH, old, new }]);
            log.push(Event::Grow { words }, Site::caller());
        }
        Ok(())
    }

    /// The pages read as zero afterwards, and that is durable at once.
    fn discard(&self, range: Range<u64>) {
        let (start, end) = (range.start.next_multiple_of(4096), range.end / 4096 * 4096);
        if start >= end || end > self.len() {
            return;
        }
        let mut log = self.log();
        let cells = &self.words(end)[start as usize / 8..];
        let words = (start..end).step_by(8).zip(cells).filter_map(|(offset, cell)| {
            let old = cell.atomic().swap(0, Release);
            (old != 0).then_some(Word { offset, old, new: 0 })
        });
        let words = log.span(words);
        log.push(Event::Discard { words }, Site::caller());
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

    fn flush_bytes(&self, addr: *const u8, len: usize) {
        let offset = self.access("flush", addr, len);
        if len > 0 {
            self.log().flushed(Event::Flush { offset, len: len as u64 }, Site::caller());
        }
    }

    fn fence(&self) {
        let site = Site::caller();
        let mut log = self.log();
        if log.mutation != Some(Mutation::DropFence(site)) {
            log.push(Event::Fence, site);
        }
    }

    fn note(&self, note: Note) {
        self.log().push(Event::Note(note), Site::caller());
    }

    #[inline]
    fn load(&self, cell: &PmU64) -> u64 {
        let offset = self.access("load", std::ptr::from_ref(cell).cast(), 8);
        self.mark_read(offset);
        cell.atomic().load(Acquire)
    }

    #[inline]
    fn load_relaxed(&self, cell: &PmU64) -> u64 {
        let offset = self.access("load", std::ptr::from_ref(cell).cast(), 8);
        self.mark_read(offset);
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
        let start = self.access("bulk write", cells.as_ptr().cast(), size_of_val(cells));
        if bytes.is_empty() {
            return;
        }
        let mut log = self.log();
        let words = cells.iter().zip(bytes.chunks(8)).zip((start..).step_by(8));
        let words = words.map(|((cell, bytes), offset)| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            let new = u64::from_le_bytes(word);
            Word { offset, old: cell.atomic().swap(new, Relaxed), new }
        });
        log.stored(words, false, Site::caller());
    }
}
