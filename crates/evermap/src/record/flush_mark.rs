//! The mark of a map below which everything is flushed.
//!
//! It is kept in the region so that it survives any crash: what was flushed does not come back. The persistent words are
//! [sealed](crate::record::checked_word).

use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

use evermap_pm::region::{OnSuspect, Region};
use evermap_pm::sync::Mutex;
use evermap_pm::{Medium, PmU64};

use crate::Result;
use crate::clock::Time;
use crate::record::cas::{CasCounter, lost};
use crate::record::checked_word::{WordKind, decode_checked, encode_checked};

/// The flushes of one map.
pub(crate) struct FlushMark {
    /// Where the persistent words are: the mark, and when a pending flush falls due.
    at: u64,
    /// Records with a smaller id are flushed.
    mark: AtomicU64,
    /// A flush has chosen its mark, but nobody sees it yet.
    flushing: AtomicBool,
    /// When the pending flush falls due; 0: none is pending.
    due: AtomicU64,
    /// Held while the persistent words change.
    changing: Mutex<()>,
}

impl FlushMark {
    /// Initial words for a new map, at `at`.
    pub(crate) fn create<M: Medium>(region: &Region<M>, at: u64) {
        store(region, at, 0, 0);
    }

    /// Reads what the previous opening left.
    ///
    /// # Errors
    /// `Damaged` if a word does not verify; never with [`OnSuspect::Salvage`], which does without.
    pub(crate) fn open<M: Medium>(
        region: &Region<M>,
        at: u64,
        cas_counter: &CasCounter,
        on_suspect: OnSuspect,
    ) -> Result<Self> {
        let (m, [mark, due]) = (region.medium(), words(region, at));
        let mark = decode_checked(WordKind::FlushMark, m.load(mark))
            .filter(|&mark| mark <= cas_counter.limit());
        let due = decode_checked(WordKind::FlushDue, m.load(due));
        let (mark, due) = match (mark, due) {
            (Some(mark), Some(due)) => (mark, due),
            _ if on_suspect == OnSuspect::Salvage => (0, 0),
            _ => return Err(lost(at, "the flush mark").into()),
        };
        store(region, at, mark, due);
        Ok(FlushMark {
            at,
            mark: AtomicU64::new(mark),
            flushing: AtomicBool::new(false),
            due: AtomicU64::new(due),
            changing: Mutex::new(()),
        })
    }

    /// Records with a smaller id are flushed.
    #[inline]
    pub(crate) fn mark(&self) -> u64 {
        self.mark.load(Acquire)
    }

    /// The same for those who are about to store something: nothing while a flush is on its way, since an id that it leaves
    /// alone must not go with what was seen before it.
    #[inline]
    pub(crate) fn settled_mark(&self) -> Option<u64> {
        // Acquire, and first: once the flush is over, its mark is seen.
        if self.flushing.load(Acquire) { None } else { Some(self.mark()) }
    }

    /// Waits until no flush is on its way.
    #[cold]
    pub(crate) fn wait_for_flush(&self) {
        drop(self.changing.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// When the pending flush falls due, if one is pending.
    pub(crate) fn due(&self) -> Option<u64> {
        Some(self.due.load(Relaxed)).filter(|&due| due != 0)
    }

    /// Flushes everything stored so far, now or at the first operation at or after `at`. Replaces a flush
    /// that is pending. Returns whether it happened now.
    pub(crate) fn flush<M: Medium>(
        &self,
        region: &Region<M>,
        cas_counter: &CasCounter,
        at: Option<u32>,
        now: u32,
    ) -> bool {
        self.change(region, || match at {
            Some(at) if at > now => {
                store(region, self.at, self.mark.load(Relaxed), u64::from(at));
                self.due.store(u64::from(at), Release);
                false
            }
            _ => {
                self.take_mark(region, cas_counter);
                true
            }
        })
    }

    /// Carries out a pending flush whose time has come. Returns whether it did.
    #[inline]
    pub(crate) fn flush_if_due<M: Medium>(
        &self,
        region: &Region<M>,
        cas_counter: &CasCounter,
        clock: &Time,
    ) -> bool {
        // Relaxed: whoever was told that a flush is pending learned of it after the store.
        self.due.load(Relaxed) != 0 && self.flush_pending(region, cas_counter, clock)
    }

    #[cold]
    fn flush_pending<M: Medium>(
        &self,
        region: &Region<M>,
        cas_counter: &CasCounter,
        clock: &Time,
    ) -> bool {
        if self.due.load(Relaxed) > u64::from(clock.now()) {
            return false;
        }
        // Whoever comes at the same time waits here, so nobody goes on before the mark is durable.
        self.change(region, || {
            let due = self.due.load(Relaxed);
            let is_due = due != 0 && due <= u64::from(clock.now());
            if is_due {
                self.take_mark(region, cas_counter);
            }
            is_due
        })
    }

    /// Runs `change` while nobody else changes the persistent words.
    fn change<M: Medium, R>(&self, region: &Region<M>, change: impl FnOnce() -> R) -> R {
        // A panic under the lock has poisoned the region, which every mutation asks first.
        let _held = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let poison = region.poison_on_panic();
        let changed = change();
        poison.disarm();
        changed
    }

    fn take_mark<M: Medium>(&self, region: &Region<M>, cas_counter: &CasCounter) {
        // Every record whose put has returned has a smaller id. One that is being put with a smaller id
        // notices under the key's lock that it would be born flushed, and takes a new one. One that is being put with
        // a greater id waits until the mark is there: it could have been computed from what is flushed.
        self.flushing.store(true, Relaxed);
        // A release that all greater ids come after.
        let mark = cas_counter.mark();
        // A forked child must not write; its own memory will do for its own reads.
        if region.ensure_writable().is_ok() {
            // The limit first: a mark above it would look damaged.
            cas_counter.cover(region, mark);
            store(region, self.at, mark, 0);
        }
        self.mark.store(mark, Release);
        self.due.store(0, Release);
        self.flushing.store(false, Release);
    }
}

fn words<M: Medium>(region: &Region<M>, at: u64) -> &[PmU64; 2] {
    region.medium().at(at).expect("checked when the map was opened")
}

/// Both words share a line. A crash between the two stores leaves the mark taken and the flush pending: it
/// is then carried out once more, before anything else happens.
fn store<M: Medium>(region: &Region<M>, at: u64, mark: u64, due: u64) {
    let (m, words) = (region.medium(), words(region, at));
    m.store(&words[0], encode_checked(WordKind::FlushMark, mark));
    m.store(&words[1], encode_checked(WordKind::FlushDue, due));
    m.persist(words);
}
