//! The flush mark of a map: everything with a smaller CAS id is flushed, that is absent, as after
//! memcached's `flush_all`.
//!
//! It is stored in the region so that it survives any crash: what was flushed does not come back.
//! The persistent words are [checked words](crate::record::checked_word).

use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

use evermap_pm::region::{OnSuspect, Region};
use evermap_pm::sync::{Mutex, Rank};
use evermap_pm::{Medium, PmU64};

use crate::Result;
use crate::clock::Time;
use crate::record::cas::{CasCounter, lost};
use crate::record::checked_word::{WordKind, decode_checked, encode_checked};

/// The flushes of one map.
pub(crate) struct FlushMark {
    /// The offset of the persistent words: the mark, and when a pending flush falls due.
    at: u64,
    /// Records with a smaller id are flushed.
    mark: AtomicU64,
    /// Whether a flush has chosen its mark, but not made it visible yet.
    flushing: AtomicBool,
    /// When the pending flush falls due; 0: none is pending.
    due: AtomicU64,
    /// Held while the persistent words change.
    changing: Mutex<()>,
}

impl FlushMark {
    /// Stores the initial words of a new map, at `at`.
    pub(crate) fn create<M: Medium>(region: &Region<M>, at: u64) {
        store(region, at, 0, 0);
    }

    /// Reads the mark that the previous opening has left.
    ///
    /// # Errors
    /// `Damaged` if a word does not verify; never with [`OnSuspect::Salvage`], which goes on
    /// without it.
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
            changing: Mutex::ranked(Rank::Flush, ()),
        })
    }

    /// Returns the mark: records with a smaller id are flushed.
    #[inline]
    pub(crate) fn mark(&self) -> u64 {
        self.mark.load(Acquire)
    }

    /// Returns the mark, for a caller that is about to store something; `None` while a flush is
    /// being made, because an id that the flush leaves alone must not be used for a value that was
    /// computed from what it removes.
    #[inline]
    pub(crate) fn settled_mark(&self) -> Option<u64> {
        // Acquire, and first: once the flush is over, its mark is seen.
        if self.flushing.load(Acquire) { None } else { Some(self.mark()) }
    }

    /// Waits until no flush is being made.
    #[cold]
    pub(crate) fn wait_for_flush(&self) {
        drop(self.changing.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns when the pending flush falls due, if one is pending.
    pub(crate) fn due(&self) -> Option<u64> {
        Some(self.due.load(Relaxed)).filter(|&due| due != 0)
    }

    /// Flushes everything stored so far, now or at the first operation at or after `at`. Replaces a
    /// flush that is pending. Returns `true` if it was made now.
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

    /// Makes a pending flush that is due. Returns `true` if it did.
    #[inline]
    pub(crate) fn flush_if_due<M: Medium>(
        &self,
        region: &Region<M>,
        cas_counter: &CasCounter,
        clock: &Time,
    ) -> bool {
        // Relaxed: a thread that knows of a pending flush learned of it after the store.
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
        // Threads that come at the same time wait here, so that none goes on before the mark is
        // durable.
        self.change(region, || {
            let due = self.due.load(Relaxed);
            let is_due = due != 0 && due <= u64::from(clock.now());
            if is_due {
                self.take_mark(region, cas_counter);
            }
            is_due
        })
    }

    /// Runs `change` while no other thread changes the persistent words.
    fn change<M: Medium, R>(&self, region: &Region<M>, change: impl FnOnce() -> R) -> R {
        // A panic under the lock has poisoned the region, which every mutation checks first.
        let _held = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let poison = region.poison_on_panic();
        let changed = change();
        poison.disarm();
        changed
    }

    fn take_mark<M: Medium>(&self, region: &Region<M>, cas_counter: &CasCounter) {
        // Every record whose put has returned has a smaller id. A put that is running with a
        // smaller id finds under the key's lock that its record would be flushed from the
        // beginning, and takes a new id. A put that is running with a greater id waits until the
        // mark is visible: its value could have been computed from what is flushed.
        self.flushing.store(true, Relaxed);
        // A release, which all greater ids come after.
        let mark = cas_counter.mark();
        // A forked child must not write; its own memory suffices for its own reads.
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

/// Both words share a cache line. A crash between the two stores leaves the mark taken and the
/// flush pending: it is then made once more, before anything else happens.
fn store<M: Medium>(region: &Region<M>, at: u64, mark: u64, due: u64) {
    let (m, words) = (region.medium(), words(region, at));
    m.store(&words[0], encode_checked(WordKind::FlushMark, mark));
    m.store(&words[1], encode_checked(WordKind::FlushDue, due));
    m.persist(words);
}
