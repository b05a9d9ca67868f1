//! Giving out CAS ids.
//!
//! Their limit is stored in the region, so that no id is ever given out twice, whatever stops the
//! process. The persistent words are [checked words](crate::record::checked_word).

use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use evermap_pm::region::{OnSuspect, Region};
use evermap_pm::sync::{Mutex, Rank};
use evermap_pm::{Error, Medium};

use crate::Result;
use crate::record::checked_word::{WordKind, decode_checked, encode_checked};

/// The number of ids by which the persistent limit is raised at a time.
const STEP: u64 = 1 << 20;
/// All ids are smaller.
const LIMIT: u64 = WordKind::CasLimit.limit();
/// The first id. 0 means "none" to callers.
const FIRST: u64 = 1;
/// The next id if no copy of the limit can be read: beyond all that were given out before.
const AFTER_LOSS: u64 = LIMIT / 2;

/// On cache lines of its own, because every mutation changes it.
#[repr(align(128))]
struct Next(AtomicU64);

/// The ids of all maps in a file.
pub(crate) struct CasCounter {
    next: Next,
    /// Before an id from here on is given out, the persistent limit must be raised.
    limit: AtomicU64,
    /// The first id of this opening: smaller ones were given out before.
    first: u64,
    /// Held while the persistent limit changes.
    changing: Mutex<()>,
}

impl CasCounter {
    /// Stores the initial words of a new file.
    pub(crate) fn create<M: Medium>(region: &Region<M>) {
        store_limit(region, FIRST);
    }

    /// Returns `true` if no id was ever given out, so that there cannot be any record.
    pub(crate) fn is_unused<M: Medium>(region: &Region<M>) -> bool {
        let words = region.header();
        [&words.cas_limit, &words.counters[3]].iter().all(|cell| {
            let word = region.medium().load(cell);
            word == 0 || word == encode_checked(WordKind::CasLimit, FIRST)
        })
    }

    /// Reads the limit that the previous opening has left.
    ///
    /// # Errors
    /// `Damaged` if no copy of the limit verifies; never with [`OnSuspect::Salvage`], which goes on
    /// without it.
    pub(crate) fn open<M: Medium>(region: &Region<M>, on_suspect: OnSuspect) -> Result<Self> {
        let (m, words) = (region.medium(), region.header());
        // Two copies on different lines: if they differ, a crash came between the two stores, and
        // the greater one is newer.
        let copies = [&words.cas_limit, &words.counters[3]];
        let read = |cell: &&_| decode_checked(WordKind::CasLimit, m.load(cell));
        let limit = match copies.iter().filter_map(read).max() {
            Some(limit) => limit,
            None if on_suspect == OnSuspect::Salvage => AFTER_LOSS,
            None => return Err(lost(m.offset_of(copies[0]), "the limit of the CAS ids").into()),
        };
        store_limit(region, limit);
        Ok(CasCounter {
            next: Next(AtomicU64::new(limit)),
            limit: AtomicU64::new(limit),
            first: limit,
            changing: Mutex::ranked(Rank::CasLimit, ()),
        })
    }

    /// Returns an id that was never given out before, not even by a process that was killed.
    ///
    /// # Errors
    /// `NoSpace` after 2^56 of them.
    #[inline]
    pub(crate) fn take<M: Medium>(&self, region: &Region<M>) -> Result<u64> {
        // Acquire: a thread that takes an id that a flush leaves alone sees that flush: see `mark`.
        let cas = self.next.0.fetch_add(1, Acquire);
        if cas >= self.limit.load(Acquire) {
            self.raise_limit(region, cas)?;
        }
        Ok(cas)
    }

    #[cold]
    fn raise_limit<M: Medium>(&self, region: &Region<M>, cas: u64) -> Result<()> {
        let limit = cas + STEP;
        if limit >= LIMIT {
            return Err(Error::no_space("CAS ids are used up", 1).into());
        }
        self.change_limit(region, |current| (cas >= current).then_some(limit));
        Ok(())
    }

    /// Stores the limit that `decide` returns, given the current one, while no other thread changes
    /// it. Durable on return, and so before any id below it is given out.
    fn change_limit<M: Medium>(&self, region: &Region<M>, decide: impl FnOnce(u64) -> Option<u64>) {
        // A panic under the lock has poisoned the region, which every mutation checks first.
        let _held = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let poison = region.poison_on_panic();
        if let Some(limit) = decide(self.limit.load(Relaxed)) {
            store_limit(region, limit);
            self.limit.store(limit, Release);
        }
        poison.disarm();
    }

    /// Returns an id that separates the ids of everything stored so far from greater ones, which
    /// are given out after all that the caller did before. It is given out itself later.
    pub(crate) fn mark(&self) -> u64 {
        self.next.0.fetch_add(0, Release)
    }

    /// Makes sure that the persistent limit is not below `mark`.
    pub(crate) fn cover<M: Medium>(&self, region: &Region<M>, mark: u64) {
        self.change_limit(region, |limit| (mark > limit).then_some(mark));
    }

    /// Makes `next` the next id, unless that is behind.
    pub(crate) fn skip_to<M: Medium>(&self, region: &Region<M>, next: u64) {
        let next = next.min(LIMIT - 1);
        self.cover(region, next);
        self.next.0.fetch_max(next, Release);
    }

    /// Returns the limit in the file: no id at or above it was given out yet.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Acquire)
    }

    /// Returns the first id of this opening: smaller ones were given out before.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Returns the id that will be given out next.
    pub(crate) fn next(&self) -> u64 {
        self.next.0.load(Relaxed)
    }

    /// Makes the persistent limit exact, so that a clean shutdown leaves no gap in the ids.
    pub(crate) fn close<M: Medium>(&self, region: &Region<M>) {
        self.change_limit(region, |_| Some(self.next().min(LIMIT - 1)));
    }
}

fn store_limit<M: Medium>(region: &Region<M>, limit: u64) {
    let (m, words) = (region.medium(), region.header());
    for cell in [&words.cas_limit, &words.counters[3]] {
        m.store(cell, encode_checked(WordKind::CasLimit, limit));
        m.flush(cell);
    }
    m.fence();
}

/// Returns the error of a word that does not verify and that the store cannot do without.
pub(crate) fn lost(offset: u64, what: &str) -> Error {
    Error::salvageable(offset, format!("{what} cannot be read"))
}
