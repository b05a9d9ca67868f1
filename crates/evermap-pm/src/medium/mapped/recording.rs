//! Recording what changes in a mapped file, for a redo log.

use super::Mapped;
use super::tracker::{Live, Marks, PAGE, PageChange};
use crate::medium::Medium;
use crate::{ErrorKind, Result};

impl Mapped {
    /// Begins to record which lines are stored to, in `marks`. If those are not new, what an
    /// earlier process had marked, and is not [durable](Mapped::set_changes_durable), counts as
    /// changed.
    ///
    /// Must be called before anything is stored, once. Afterwards a store costs a few nanoseconds
    /// more, and the first one to a page after an instant about fifty. O(pages of the file).
    ///
    /// # Errors
    ///
    /// `Config` if stores are tracked already; `NoSpace`.
    pub fn record_changes(&self, marks: Marks) -> Result<()> {
        if self.tracker.live().is_some() {
            let why = "changes are recorded from the opening of a file on, or not at all";
            return Err(ErrorKind::Config(why.into()).into());
        }
        marks.allocate(self.len())?;
        self.tracker.record(self.base_address(), marks, self.len() / PAGE)
    }

    /// Begins an instant, and shows what was stored since the one of the last call, as it was at
    /// this instant: a consistent cut, as with [`snapshot`](Mapped::snapshot). Of lines that are
    /// shown twice, the later one counts. `show` runs while threads may wait for it.
    ///
    /// Returns the interval that has ended, for
    /// [`set_changes_durable`](Mapped::set_changes_durable), and the length of the medium.
    ///
    /// # Errors
    ///
    /// `Io` if the system has no fence of all threads. Changes may be lost then.
    ///
    /// # Panics
    ///
    /// If [`record_changes`](Mapped::record_changes) was not called.
    pub fn take_changes(&self, show: &mut dyn FnMut(&PageChange<'_>)) -> Result<(u64, u64)> {
        let interval = self.tracker.take_changes(show)?;
        // Read after the instant: what is in the cut refers to nothing beyond.
        Ok((interval, self.len()))
    }

    /// Returns whether anything was stored that [`take_changes`](Mapped::take_changes) would show.
    pub fn has_changes(&self) -> bool {
        self.tracker.live().is_some_and(Live::has_changes)
    }

    /// Returns the number of the current interval: what this thread has stored so far belongs to it
    /// or to an earlier one. 0 if nothing is tracked.
    pub fn interval(&self) -> u64 {
        self.tracker.now()
    }

    /// Notes that changes up to the end of an interval are durable elsewhere, so that they need not
    /// be shown again to the next process; and where they are, in words that mean nothing here.
    pub fn set_changes_durable(&self, interval: u64, place: [u64; 5]) {
        if let Some(live) = self.tracker.live() {
            live.set_durable(interval, place);
        }
    }

    /// Returns where the changes are that are durable, as this or an earlier process has noted.
    pub fn durable_place(&self) -> Option<[u64; 5]> {
        self.tracker.live().and_then(|live| live.marks().found_place())
    }

    /// Says which opening of the region the marks belong to from now on.
    pub fn set_marks_opening(&self, opening: u64) {
        if let Some(live) = self.tracker.live() {
            live.marks().set_opening(opening);
        }
    }

    /// Makes the marks durable, for a file that is closed.
    ///
    /// # Errors
    ///
    /// `Io`.
    pub fn sync_marks(&self) -> Result<()> {
        self.tracker.live().map_or(Ok(()), |live| live.marks().sync())
    }
}
