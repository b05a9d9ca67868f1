//! Tracks which lines are stored to between two *instants*, and keeps what pages held before.
//!
//! The structures of a region recover from what a kill leaves, at any instruction. So the bytes of
//! a region at one instant are a valid store, if they are a *consistent cut*: whenever one store
//! happens before another one, and the second is in it, the first is in it too. An instant is a
//! crash that did not happen.
//!
//! Instants have numbers, and *interval* `n` begins with instant `n`. Before a thread stores, it
//! [marks](Tracker::begin_store) the lines with the number of the current interval. The first mark
//! of a page in an interval keeps what the page held at the instant for those who need it: each
//! [view](View) that is younger than the page's last change, and the recorder of the
//! [changes](Live::take_changes) of the interval before, if it has not come to this page yet.
//!
//! # Why the cut is consistent
//!
//! An instant raises the number; then it makes all threads of the process execute a fence; and only
//! then are pages kept or read for it: a thread that meets the new number earlier waits. Say that
//! store `y` is not in the cut, and `y` happens before `x`.
//! * If `y` was marked with the new number, so is `x`: its thread loads the number later. What the
//!   page of `x` held was kept before `x` was stored. So `x` is not in the cut.
//! * If `y` was marked with the old number, it reached memory after its page was kept, so after
//!   the fence. At the fence it was not executed, for the fence would have waited for it. All that
//!   happens after `y` loads the number after the fence, finds the new one, and so is not in the
//!   cut.
//!
//! A thread has at most one such late store. It may be in the cut or not, because nothing that it
//! depends on can be missing, and nothing that depends on it can be there. But it must not be lost
//! for who takes the changes later: a thread that finds the number raised after its store marks
//! the line [again](MarkedStore). What depends on the store can be marked before that, and then the
//! next cut would have it without the store. So before an instant begins, it
//! [waits](running::RunningStores::wait) for the stores that were late for the one before. Changes
//! are durable elsewhere only after such a wait, too: otherwise a store could be lost whose thread
//! was killed before it marked the line again.
//!
//! Only when tracking begins there may be stores that nobody has marked, until all operations that
//! were running then have ended.
//!
//! # States of a page
//!
//! ```text
//! word 0   number of the interval of the last mark; the topmost bit locks both words
//! word 1   the lines that were marked in that interval, one bit each
//! ```

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::mapping::Mapping;
use crate::Result;
use crate::explore::AtomicU64;

mod live;
mod marks;
mod mistakes;
#[cfg(test)]
mod orders;
mod page;
mod running;
#[cfg(test)]
mod tests;
mod view;

pub use live::PageChange;
pub(super) use live::{Live, ViewMapping};
pub use marks::Marks;
pub(super) use mistakes::{Mistake, planted};
pub(super) use page::PAGE;
pub(super) use view::View;

use page::lines_of;
use running::RunningStore;

/// Tracks the stores to a mapping. Until that begins, a store costs the load of one word more.
#[derive(Default)]
pub(crate) struct Tracker {
    /// The number of the current interval, or 0 while nothing is tracked.
    now: AtomicU64,
    tracks: OnceLock<Tracks>,
}

/// What tracking is for.
enum Tracks {
    /// The contents of the file, which views and the recorder of changes want to keep.
    Live(Box<Live>),
    /// The private pages of a view.
    View(View),
}

impl Tracker {
    /// Creates the tracker of a view's own stores.
    pub(super) fn of_view(view: View) -> Self {
        let tracks = OnceLock::new();
        let _ = tracks.set(Tracks::View(view));
        Tracker { now: AtomicU64::new(1), tracks }
    }

    /// Begins to track, unless it has begun. `create` is called at most once.
    pub(super) fn begin(&self, create: impl FnOnce() -> Result<Live>) -> Result<&Live> {
        if self.tracks.get().is_none() {
            // If two threads come here, one of the two states is dropped.
            let _ = self.tracks.set(Tracks::Live(Box::new(create()?)));
        }
        Ok(self.live().expect("a view has no views of its own"))
    }

    /// Returns what tracks the stores to the file, if that has begun.
    pub(super) fn live(&self) -> Option<&Live> {
        match self.tracks.get() {
            Some(Tracks::Live(live)) => Some(live),
            _ => None,
        }
    }

    pub(super) fn view(&self) -> Option<&View> {
        match self.tracks.get() {
            Some(Tracks::View(view)) => Some(view),
            _ => None,
        }
    }

    /// Begins an instant, of which nothing is kept.
    pub(super) fn begin_instant(&self, live: &Live) -> Result<()> {
        live.begin_empty_instant(&self.now)
    }

    /// Begins an instant with a view. See [`Live::take_view`].
    pub(super) fn take_view(
        &self,
        live: &Live,
        count: u64,
        map: impl FnOnce() -> Result<(Mapping, Mapping)>,
    ) -> Result<ViewMapping> {
        live.take_view(&self.now, count, map)
    }

    /// Begins an instant, and shows what has changed before it. See [`Live::take_changes`].
    pub(crate) fn take_changes(&self, show: &mut dyn FnMut(&PageChange<'_>)) -> Result<u64> {
        let live = self.live().expect("only a recorder takes changes");
        live.take_changes(&self.now, show)
    }

    /// Begins to record what is stored to the first `pages` pages of a mapping at `base`, where an
    /// earlier process has stopped. See [`Live::resume`].
    pub(crate) fn record(&self, base: usize, marks: Marks, pages: u64) -> Result<()> {
        self.begin(|| Ok(Live::new(base, marks)))?.resume(&self.now, pages);
        Ok(())
    }

    /// Returns the number of the current interval, or 0 while nothing is tracked.
    pub(super) fn now(&self) -> u64 {
        self.now.load(Acquire)
    }

    /// Returns whether nothing is tracked, so that a store may be executed as it is.
    #[inline(always)]
    pub(crate) fn is_off(&self) -> bool {
        self.now.load(Relaxed) == 0
    }

    /// Must be called before a store to the bytes from `offset` on, and what it returns must be
    /// dropped after that.
    pub(crate) fn begin_store(&self, offset: u64, bytes: u64) -> MarkedStore<'_> {
        // Acquire: a thread that finds a number finds what is tracked, and what it reads later is
        // at least as new as the number.
        let mut now = self.now.load(Acquire);
        let running = match self.live().filter(|_| now != 0) {
            Some(live) if !planted(Mistake::LateNotAwaited) => {
                let (store, number) = live.running().begin(now, &self.now);
                now = number;
                Some(store)
            }
            _ => None,
        };
        if now != 0 {
            self.mark(offset, bytes, now);
        }
        MarkedStore { tracker: self, before: now, offset, bytes, _running: running }
    }

    fn mark(&self, offset: u64, bytes: u64, now: u64) {
        #[cfg(test)]
        tests::reach(tests::Moment::Mark);
        let tracks = self.tracks.get().expect("there is a number only while something is tracked");
        let mut at = offset;
        while at < offset + bytes {
            let page = at / PAGE;
            let end = (offset + bytes).min((page + 1) * PAGE);
            let lines = lines_of(at % PAGE, end - at);
            match tracks {
                Tracks::Live(live) => live.mark(page, lines, now, &self.now),
                Tracks::View(view) => view.make_private(page),
            }
            at = end;
        }
        #[cfg(test)]
        tests::reach(tests::Moment::Store);
    }
}

/// A store that was [marked](Tracker::begin_store), until this is dropped.
pub(crate) struct MarkedStore<'a> {
    tracker: &'a Tracker,
    /// The number that it was marked with.
    before: u64,
    offset: u64,
    bytes: u64,
    /// Dropped last.
    _running: Option<RunningStore<'a>>,
}

impl Drop for MarkedStore<'_> {
    /// Marks the store again if it was late.
    fn drop(&mut self) {
        #[cfg(test)]
        tests::reach(tests::Moment::Stored);
        // If the load is executed before the store is, the fence of the next instant executes the
        // store before anything is kept for that.
        let now = self.tracker.now.load(Acquire);
        if now != self.before && !planted(Mistake::LateUnmarked) {
            self.tracker.mark(self.offset, self.bytes, now);
        }
    }
}
