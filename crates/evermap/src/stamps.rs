//! CAS ids, and the mark below which everything is flushed.
//!
//! Both are kept in the region so that they survive any crash: no id is ever given out twice, and what was
//! flushed does not come back. All persistent words here are [sealed](crate::sealed).

use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

use evermap_pm::region::{OnSuspect, Region};
use evermap_pm::sync::Mutex;
use evermap_pm::{Error, Medium, PmU64};

use crate::sealed::{Place, seal, unseal};
use crate::{Clock, Result};

/// By how much the persistent limit is raised at a time.
const STEP: u64 = 1 << 20;
/// No id reaches this one.
const LIMIT: u64 = Place::StampLimit.limit();
/// First id ever. 0 means "none" to callers.
const FIRST: u64 = 1;
/// Where ids go on if no copy of the limit can be read: beyond all that were given out before.
const AFTER_LOSS: u64 = LIMIT / 2;

/// On a line of its own, since every mutation changes it.
#[repr(align(128))]
struct Next(AtomicU64);

pub(crate) struct Stamps {
    next: Next,
    /// Ids from here on need the persistent limit raised first.
    limit: AtomicU64,
    /// Records with a smaller id are flushed.
    mark: AtomicU64,
    /// A flush has chosen its mark, but nobody sees it yet.
    flushing: AtomicBool,
    /// When the pending flush falls due; 0: none is pending.
    due: AtomicU64,
    /// First id of this opening: smaller ones were given out before.
    first: u64,
    /// Held while one of the persistent words changes.
    changing: Mutex<()>,
}

impl Stamps {
    /// Initial words for a new store.
    pub(crate) fn create<M: Medium>(region: &Region<M>) {
        store_limit(region, FIRST);
        store_flush(region, 0, 0);
    }

    /// Whether no id was ever given out, so that there cannot be any record.
    pub(crate) fn is_unused<M: Medium>(region: &Region<M>) -> bool {
        let words = region.words();
        [&words.stamp_limit, &words.counters[3]].iter().all(|cell| {
            let word = region.medium().load(cell);
            word == 0 || word == seal(Place::StampLimit, FIRST)
        })
    }

    /// Reads what the previous opening left.
    ///
    /// # Errors
    /// `Damaged` if a word does not verify; never with [`OnSuspect::Salvage`], which does without.
    pub(crate) fn open<M: Medium>(region: &Region<M>, on_suspect: OnSuspect) -> Result<Self> {
        let m = region.medium();
        let words = region.words();
        let read = |place, cell: &PmU64| unseal(place, m.load(cell));
        let lost = |what: &str, cell: &PmU64| {
            let advice = format!("{what} cannot be read; on_suspect = salvage goes on without it");
            Error::damaged(m.offset_of(cell), advice)
        };
        // Two copies on different lines: the greater one is newer, or a crash came between the two.
        let copies = [&words.stamp_limit, &words.counters[3]];
        let limit = copies.iter().filter_map(|cell| read(Place::StampLimit, cell)).max();
        let limit = match limit {
            Some(limit) => limit,
            None if on_suspect == OnSuspect::Salvage => AFTER_LOSS,
            None => return Err(lost("the limit of the CAS ids", copies[0]).into()),
        };
        let mark = read(Place::FlushMark, &words.flush[0]).filter(|&mark| mark <= limit);
        let due = read(Place::FlushDue, &words.flush[1]);
        let (mark, due) = match (mark, due) {
            (Some(mark), Some(due)) => (mark, due),
            _ if on_suspect == OnSuspect::Salvage => (0, 0),
            _ => return Err(lost("the flush mark", &words.flush[0]).into()),
        };
        store_limit(region, limit);
        store_flush(region, mark, due);
        Ok(Stamps {
            next: Next(AtomicU64::new(limit)),
            limit: AtomicU64::new(limit),
            mark: AtomicU64::new(mark),
            flushing: AtomicBool::new(false),
            due: AtomicU64::new(due),
            first: limit,
            changing: Mutex::new(()),
        })
    }

    /// An id that was never given out before, not even by a process that was killed.
    ///
    /// # Errors
    /// `NoSpace` after 2^56 of them.
    #[inline]
    pub(crate) fn take<M: Medium>(&self, region: &Region<M>) -> Result<u64> {
        // Acquire: whoever takes an id that a flush is to leave alone knows of that flush: see `take_mark`.
        let stamp = self.next.0.fetch_add(1, Acquire);
        if stamp >= self.limit.load(Acquire) {
            self.raise_limit(region, stamp)?;
        }
        Ok(stamp)
    }

    #[cold]
    fn raise_limit<M: Medium>(&self, region: &Region<M>, stamp: u64) -> Result<()> {
        self.change(region, || {
            if stamp >= self.limit.load(Relaxed) {
                let limit = stamp + STEP;
                if limit >= LIMIT {
                    return Err(Error::no_space("CAS ids are used up", 1).into());
                }
                // Durable before any id below it is given out.
                store_limit(region, limit);
                self.limit.store(limit, Release);
            }
            Ok(())
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

    /// Ids below this one were given out before this opening.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// The id that will be given out next.
    pub(crate) fn next(&self) -> u64 {
        self.next.0.load(Relaxed)
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
    pub(crate) fn flush<M: Medium>(&self, region: &Region<M>, at: Option<u32>, now: u32) -> bool {
        self.change(region, || match at {
            Some(at) if at > now => {
                store_flush(region, self.mark.load(Relaxed), u64::from(at));
                self.due.store(u64::from(at), Release);
                false
            }
            _ => {
                self.take_mark(region);
                true
            }
        })
    }

    /// Carries out a pending flush whose time has come. Returns whether it did.
    #[inline]
    pub(crate) fn flush_if_due<M: Medium>(&self, region: &Region<M>, clock: &Clock) -> bool {
        // Relaxed: whoever was told that a flush is pending learned of it after the store.
        self.due.load(Relaxed) != 0 && self.flush_pending(region, clock)
    }

    #[cold]
    fn flush_pending<M: Medium>(&self, region: &Region<M>, clock: &Clock) -> bool {
        if self.due.load(Relaxed) > u64::from(clock.now()) {
            return false;
        }
        // Whoever comes at the same time waits here, so nobody goes on before the mark is durable.
        self.change(region, || {
            let due = self.due.load(Relaxed);
            let is_due = due != 0 && due <= u64::from(clock.now());
            if is_due {
                self.take_mark(region);
            }
            is_due
        })
    }

    fn take_mark<M: Medium>(&self, region: &Region<M>) {
        // Every record whose put has returned has a smaller id. One that is being put with a smaller id
        // notices under the key's lock that it would be born flushed, and takes a new one. One that is being put with
        // a greater id waits until the mark is there: it could have been computed from what is flushed.
        self.flushing.store(true, Relaxed);
        // A release that all greater ids come after.
        let mark = self.next.0.fetch_add(0, Release);
        // A forked child must not write; its own memory will do for its own reads.
        if region.ensure_writable().is_ok() {
            // The limit first: a mark above it would look damaged.
            if mark > self.limit.load(Relaxed) {
                store_limit(region, mark);
                self.limit.store(mark, Release);
            }
            store_flush(region, mark, 0);
        }
        self.mark.store(mark, Release);
        self.due.store(0, Release);
        self.flushing.store(false, Release);
    }

    /// Makes the persistent limit exact, so that an orderly stop leaves no gap in the ids.
    pub(crate) fn close<M: Medium>(&self, region: &Region<M>) {
        self.change(region, || store_limit(region, self.next().min(LIMIT - 1)));
    }
}

fn store_limit<M: Medium>(region: &Region<M>, limit: u64) {
    let (m, words) = (region.medium(), region.words());
    for cell in [&words.stamp_limit, &words.counters[3]] {
        m.store(cell, seal(Place::StampLimit, limit));
        m.flush(cell);
    }
    m.fence();
}

/// Both words share a line. A crash between the two stores leaves the mark taken and the flush pending: it
/// is then carried out once more, before anything else happens.
fn store_flush<M: Medium>(region: &Region<M>, mark: u64, due: u64) {
    let (m, words) = (region.medium(), region.words());
    m.store(&words.flush[0], seal(Place::FlushMark, mark));
    m.store(&words.flush[1], seal(Place::FlushDue, due));
    m.persist(&words.flush);
}
