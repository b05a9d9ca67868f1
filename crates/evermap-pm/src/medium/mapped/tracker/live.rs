//! Tracking the stores to the file: instants, and what changes between them.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, PoisonError};

use super::marks::Marks;
use super::mistakes::{Mistake, planted};
use super::page::{LOCKED, PAGE, PageState};
use super::running::RunningStores;
use super::view::{View, Views};
use crate::PmU64;
use crate::epoch::{fence_all_threads, register_process_fence};
use crate::explore::{AtomicBool, AtomicU64, Mutex, MutexGuard};
use crate::medium::LINE;
use crate::medium::mapped::mapping::Mapping;
use crate::sync::Backoff;
use crate::{Error, Result};

/// Number of lists of changed pages, so that threads seldom share one.
const LISTS: usize = if cfg!(test) { 2 } else { 16 };

/// The states of all pages of a file, and who wants to know what they held.
pub(crate) struct Live {
    /// The address of the file's mapping, which outlives this.
    base: usize,
    marks: Marks,
    /// The last instant before which all threads have executed a fence.
    ready: AtomicU64,
    /// Whether changes are taken, so that they must be listed.
    recording: AtomicBool,
    /// The last interval whose changes were taken.
    taken: AtomicU64,
    lists: [Mutex<ChangedPages>; LISTS],
    /// Pages that were stored to in intervals that are over, and were not shown since.
    untaken: Mutex<Vec<u64>>,
    /// Lines that were kept because they were about to change before they were shown, in the order
    /// of their intervals for each page.
    kept: Mutex<Vec<KeptLines>>,
    views: Arc<Views>,
    running: RunningStores,
    /// Held while an instant begins, and while the changes before it are taken.
    instants: Mutex<()>,
}

/// Pages that were stored to in an interval.
#[derive(Default)]
struct ChangedPages {
    /// The interval.
    number: u64,
    pages: Vec<u64>,
}

/// Lines of a page, as they were at the end of the interval in which they were marked.
struct KeptLines {
    page: u64,
    lines: u64,
    bytes: Vec<[u8; LINE as usize]>,
}

/// A registered view, and its mapping. They are dropped in this order, because threads store to the
/// mapping as long as the view is registered.
pub(crate) struct ViewMapping {
    pub(crate) view: View,
    pub(crate) mapping: Mapping,
}

/// A page that was stored to, as [`Mapped::take_changes`](super::super::Mapped::take_changes) shows
/// it.
pub struct PageChange<'a> {
    /// The number of the page in the file: its offset is 4096 times that.
    pub page: u64,
    /// The lines of 64 bytes that may have changed, one bit each.
    pub lines: u64,
    source: Source<'a>,
}

enum Source<'a> {
    /// The address of the page.
    Live(usize),
    Kept(&'a KeptLines),
}

impl PageChange<'_> {
    /// Reads a line that may have changed.
    pub fn read_line(&self, line: u32, out: &mut [u8; LINE as usize]) {
        debug_assert!(self.lines >> line & 1 != 0);
        match self.source {
            Source::Live(page) => *out = read_line(page, line),
            Source::Kept(kept) => {
                let before = kept.lines & ((1 << line) - 1);
                *out = kept.bytes[before.count_ones() as usize];
            }
        }
    }
}

/// Reads a line of the page at an address, word by word.
fn read_line(page: usize, line: u32) -> [u8; LINE as usize] {
    let words = std::ptr::with_exposed_provenance::<[PmU64; 8]>(page + line as usize * 64);
    // SAFETY: the callers have the address of a page of the file, which is mapped as long as the
    // tracker exists and holds nothing but words.
    let words = unsafe { &*words };
    let mut bytes = [0; LINE as usize];
    for (out, word) in bytes.chunks_exact_mut(8).zip(words) {
        out.copy_from_slice(&word.atomic().load(Relaxed).to_le_bytes());
    }
    bytes
}

impl Live {
    /// Creates the state for the file that is mapped at `base`.
    pub(crate) fn new(base: usize, marks: Marks) -> Self {
        Live {
            base,
            marks,
            ready: AtomicU64::new(0),
            recording: AtomicBool::new(false),
            taken: AtomicU64::new(0),
            lists: Default::default(),
            untaken: Mutex::default(),
            kept: Mutex::default(),
            views: Arc::default(),
            running: RunningStores::default(),
            instants: Mutex::default(),
        }
    }

    /// Returns the stores that threads are executing.
    pub(super) fn running(&self) -> &RunningStores {
        &self.running
    }

    /// Returns where the states are stored.
    pub(crate) fn marks(&self) -> &Marks {
        &self.marks
    }

    /// Notes that changes up to the end of an interval are durable elsewhere, and where.
    pub(crate) fn set_durable(&self, interval: u64, place: [u64; 5]) {
        // A store that was late for the end of the interval is marked again before.
        self.wait_for_stores_before(interval + 1);
        self.marks.set_place(place);
        self.marks.set_durable(interval);
    }

    /// Waits until no thread executes a store that it has marked with a number below `number`.
    fn wait_for_stores_before(&self, number: u64) {
        if !planted(Mistake::LateNotAwaited) {
            self.running.wait(number);
        }
    }

    fn state(&self, page: u64) -> &PageState {
        self.marks.state(page)
    }

    /// Marks lines of a page before they are stored to. `now` is the number of the interval that
    /// the caller has found in `current`.
    pub(super) fn mark(&self, page: u64, lines: u64, mut now: u64, current: &AtomicU64) {
        let (state, mut backoff) = (self.state(page), Backoff::new());
        loop {
            let number = state.number();
            if number == now {
                return state.add_lines(lines);
            }
            if self.begin_page(page, state, number, lines, now) {
                return;
            }
            backoff.wait();
            now = current.load(Acquire);
        }
    }

    /// Makes interval `now` the one of the page's last change, after what the page holds was kept
    /// for those that need it. Returns `false` if that is not possible now.
    fn begin_page(&self, page: u64, state: &PageState, last: u64, lines: u64, now: u64) -> bool {
        let is_ready = self.ready.load(Acquire) >= now || planted(Mistake::NoWait);
        if last & LOCKED != 0 || last > now || !is_ready || !state.try_lock(last) {
            return false;
        }
        if planted(Mistake::MarkedEarly) {
            state.lines.store(lines, Relaxed);
            state.unlock(now);
        }
        if self.recording.load(Acquire) {
            if !self.list_page(page, now) {
                state.unlock(last);
                return false;
            }
            if last > self.taken.load(Acquire) {
                self.keep_lines(page, state.lines.load(Acquire));
            }
        }
        self.views.keep(page, last, now);
        if !planted(Mistake::MarkedEarly) {
            state.lines.store(lines, Relaxed);
            state.unlock(now);
        }
        true
    }

    /// Adds a page to those that change in interval `now`. Returns `false` if that interval is over
    /// and its list was taken.
    fn list_page(&self, page: u64, now: u64) -> bool {
        let mut list = lock(&self.lists[page as usize % LISTS]);
        if list.number != now {
            return false;
        }
        list.pages.push(page);
        true
    }

    fn keep_lines(&self, page: u64, lines: u64) {
        let at = self.address(page);
        let bytes = each_line(lines).map(|line| read_line(at, line)).collect();
        lock(&self.kept).push(KeptLines { page, lines, bytes });
    }

    fn address(&self, page: u64) -> usize {
        self.base + (page * PAGE) as usize
    }

    /// Begins an instant: raises `current`, and makes all threads execute a fence. `prepare` is
    /// called first, with the number that the instant will have. Returns both.
    ///
    /// # Errors
    ///
    /// Those of `prepare`; `Io` if the system has no fence of all threads.
    fn begin_instant<T>(
        &self,
        current: &AtomicU64,
        prepare: impl FnOnce(u64) -> Result<T>,
    ) -> Result<(u64, T)> {
        // Tried before the number is raised, because afterwards it is too late to give up.
        if !(register_process_fence() && fence_all_threads()) {
            return Err(no_fence());
        }
        let number = current.load(Relaxed) + 1;
        self.wait_for_stores_before(number - 1);
        let prepared = prepare(number)?;
        if planted(Mistake::ListedEarly) {
            let lists = self.lists.iter().map(|list| std::mem::take(&mut lock(list).pages));
            let listed: Vec<u64> = lists.flatten().collect();
            lock(&self.untaken).extend(listed);
        }
        #[cfg(test)]
        super::tests::reach(super::tests::Moment::Raise);
        if !planted(Mistake::RaisedLate) {
            current.store(number, Release);
        }
        #[cfg(test)]
        super::tests::reach(super::tests::Moment::Fence);
        let fenced = planted(Mistake::NoFence) || fence_at_instant();
        let mut untaken = lock(&self.untaken);
        for list in &self.lists {
            let mut list = lock(list);
            list.number = number;
            if !planted(Mistake::ListedEarly) {
                untaken.append(&mut list.pages);
            }
        }
        // Threads that wait go on in any case: their stores are right, the instant is not.
        self.ready.store(number, Release);
        match fenced {
            true => Ok((number, prepared)),
            false => Err(no_fence()),
        }
    }

    /// Begins an instant, of which nothing is kept.
    ///
    /// # Errors
    ///
    /// `Io` if the system has no fence of all threads.
    pub(super) fn begin_empty_instant(&self, current: &AtomicU64) -> Result<()> {
        let _one_at_a_time = lock(&self.instants);
        self.begin_instant(current, |_| Ok(())).map(|_| ())
    }

    /// Registers a view at a new instant of the first `count` pages. `map` maps them privately, and
    /// returns the mapping and a zeroed byte for each page.
    ///
    /// # Errors
    ///
    /// Those of `map`; `Io` if the system has no fence of all threads.
    pub(super) fn take_view(
        &self,
        current: &AtomicU64,
        count: u64,
        map: impl FnOnce() -> Result<(Mapping, Mapping)>,
    ) -> Result<ViewMapping> {
        let _one_at_a_time = lock(&self.instants);
        self.begin_instant(current, |number| {
            let (mapping, states) = map()?;
            let base = mapping.base().as_ptr().expose_provenance();
            #[cfg(test)]
            crate::explore::copies_pages(base, mapping.bytes() as usize, self.base);
            let view = View::register(&self.views, number, base, count, states);
            Ok(ViewMapping { view, mapping })
        })
        .map(|(_, view)| view)
    }

    /// Begins to record: changes since the next instant are listed for
    /// [`take_changes`](Live::take_changes).
    pub(crate) fn record(&self) {
        self.recording.store(true, Release);
    }

    /// Begins an instant, and shows what has changed since the one at which changes were taken
    /// last, as it was at this instant. Of lines that are shown twice, the later one counts.
    ///
    /// Returns the number of the interval that the instant has ended.
    ///
    /// # Errors
    ///
    /// `Io` if the system has no fence of all threads. Changes may be lost then.
    pub(crate) fn take_changes(
        &self,
        current: &AtomicU64,
        show: &mut dyn FnMut(&PageChange<'_>),
    ) -> Result<u64> {
        let _one_at_a_time = lock(&self.instants);
        let (number, ()) = self.begin_instant(current, |_| Ok(()))?;
        let ended = number - 1;
        let mut pages = std::mem::take(&mut *lock(&self.untaken));
        // Pages are here once for each interval in which they changed.
        pages.sort_unstable();
        pages.dedup();
        // In this order, the lines of a page are shown from the oldest to the newest: what was kept
        // of intervals before the last one, what the page holds, or what was kept of that when it
        // changed while this runs.
        self.show_kept(show);
        pages.iter().for_each(|&page| self.show_page(page, ended, show));
        if planted(Mistake::RaisedLate) {
            current.store(number, Release);
        }
        if !planted(Mistake::NoSecondLook) {
            self.show_kept(show);
        }
        self.taken.store(ended, Release);
        Ok(ended)
    }

    /// Shows the marked lines of a page, unless it has changed after interval `ended`.
    fn show_page(&self, page: u64, ended: u64, show: &mut dyn FnMut(&PageChange<'_>)) {
        let (state, mut backoff) = (self.state(page), Backoff::new());
        let number = loop {
            let number = state.number();
            if number & !LOCKED > ended {
                return;
            }
            if number & LOCKED == 0 && state.try_lock(number) {
                break number;
            }
            backoff.wait();
        };
        // They stay marked: if this process dies before they are durable, the next one needs them.
        let lines = state.lines.load(Acquire);
        show(&PageChange { page, lines, source: Source::Live(self.address(page)) });
        state.unlock(number);
    }

    /// Shows the lines that were kept.
    fn show_kept(&self, show: &mut dyn FnMut(&PageChange<'_>)) {
        let kept = std::mem::take(&mut *lock(&self.kept));
        for kept in &kept {
            let (page, lines) = (kept.page, kept.lines);
            show(&PageChange { page, lines, source: Source::Kept(kept) });
        }
    }

    /// Begins to record where an earlier process has stopped: what it had marked in the first
    /// `count` pages, and is not durable elsewhere, counts as changed in the interval that begins
    /// now. Must be called before anything else is done. O(pages).
    pub(super) fn resume(&self, current: &AtomicU64, count: u64) {
        let taken = self.marks.durable();
        let now = taken + 1;
        for page in 0..count {
            let state = self.state(page);
            let number = state.number();
            if number <= taken {
                continue;
            }
            // Lines that were marked in one interval are forgotten when the page is marked in
            // another one, so only those of the first one that was not taken are known.
            let lines = if number == now { state.lines.load(Relaxed) } else { u64::MAX };
            state.lines.store(lines, Relaxed);
            state.unlock(now);
            lock(&self.lists[page as usize % LISTS]).pages.push(page);
        }
        self.lists.iter().for_each(|list| lock(list).number = now);
        self.taken.store(taken, Relaxed);
        self.ready.store(now, Release);
        self.record();
        current.store(now, Release);
    }

    /// Returns whether `page` may have been stored to after an instant.
    pub(crate) fn is_changed_since(&self, page: u64, instant: u64) -> bool {
        // Locked, it is about to change, so its number counts as very large.
        self.state(page).number() >= instant
    }

    /// Returns whether anything was marked since changes were taken last.
    pub(crate) fn has_changes(&self) -> bool {
        !lock(&self.untaken).is_empty()
            || self.lists.iter().any(|list| !lock(list).pages.is_empty())
    }
}

fn fence_at_instant() -> bool {
    #[cfg(test)]
    if crate::explore::fence_all_threads() {
        return true;
    }
    fence_all_threads()
}

fn no_fence() -> Error {
    let why = std::io::Error::other("membarrier is refused, so no instant can begin");
    Error::io("beginning an instant", "memory".as_ref(), why)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the numbers of the lines in a mask.
fn each_line(mut lines: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let line = (lines != 0).then(|| lines.trailing_zeros())?;
        lines &= lines - 1;
        Some(line)
    })
}
