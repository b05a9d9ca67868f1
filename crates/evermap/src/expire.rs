//! Removing what is expired or flushed.
//!
//! Such records count as absent at once, whoever looks; what remains to be done is to give their space back. A purge
//! walks through all records and asks, under the lock of each key that seemed dead, whether what is there *then* is dead:
//! so it cannot remove a newer record. Since a walk costs something, the store remembers when the next record can
//! expire: before that time there is nothing to walk for.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use evermap_index::record::OFFSET_MASK;
use evermap_index::{Guard, Intent};
use evermap_pm::Medium;

use crate::read::Walk;
use crate::record::Record;
use crate::store::Verdict;
use crate::{Clock, Error, Result, Store};

/// No record expires.
const NEVER: u32 = u32::MAX;

/// What is known about records that will expire.
pub(crate) struct Expiry {
    /// No record that is not purged yet expires before this time. 0: nobody knows.
    earliest: AtomicU32,
    pub(crate) purges: AtomicU64,
    pub(crate) purged: AtomicU64,
}

impl Expiry {
    pub(crate) fn new() -> Self {
        // Nobody knows what earlier openings stored.
        Expiry { earliest: AtomicU32::new(0), purges: AtomicU64::new(0), purged: AtomicU64::new(0) }
    }

    /// A record that expires at this time is there, or is going to be.
    #[inline]
    pub(crate) fn expect(&self, expires_at: u32) {
        // Relaxed: a hint. A purge that does not see it yet is followed by another.
        if expires_at < self.earliest.load(Relaxed) {
            self.earliest.fetch_min(expires_at, Relaxed);
        }
    }

    /// Whether some record may be expired.
    pub(crate) fn is_due(&self, clock: &Clock) -> bool {
        let earliest = self.earliest.load(Relaxed);
        earliest != NEVER && earliest <= clock.now()
    }

    /// When the next record can expire; nothing if none does. 0: it is not known yet.
    pub(crate) fn next(&self) -> Option<u32> {
        Some(self.earliest.load(Relaxed)).filter(|&at| at != NEVER)
    }
}

impl<M: Medium> Store<M> {
    /// Removes the records of all maps in the file that are expired or flushed; answers how many.
    /// Other operations may go on meanwhile; a sweep, a compaction or a check has to end first.
    /// O(n). [`Evermap`](crate::Evermap) calls it in the background.
    ///
    /// ```
    /// # let map = evermap::Evermap::open("", evermap::Options::volatile())?;
    /// map.put(b"key", b"value")?;
    /// map.touch(b"key", 1)?;
    /// map.purge()?;
    /// assert_eq!(map.len().value, 0);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::GuardHeld`], and see [`Store`].
    pub fn purge(&self) -> Result<u64> {
        self.ensure_no_guard("purge")?;
        self.file.pool.region().ensure_writable()?;
        let _sweeping = self.file.upkeep.sweeping();
        let expiry = &self.file.upkeep.expiry;
        // From here on whoever stores a record that expires says so again; this pass may miss it.
        expiry.earliest.store(NEVER, Relaxed);
        expiry.purges.fetch_add(1, Relaxed);
        let walked = self.purge_maps();
        if !matches!(walked, Ok((_, true))) {
            // It has not seen all there is.
            expiry.expect(0);
        }
        let (purged, _) = walked?;
        expiry.purged.fetch_add(purged, Relaxed);
        Ok(purged)
    }

    /// The walks of a purge: how many records they removed, and whether they came to the end.
    fn purge_maps(&self) -> Result<(u64, bool)> {
        let mut all = (0, true);
        // In a map that cannot be opened there is nothing that could be removed.
        for store in self.all_maps()?.0 {
            match store.purge_all() {
                Ok((purged, whole)) => all = (all.0 + purged, all.1 && whole),
                Err(Error::Dropped { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    /// The walk through one map: how many records it removed, and whether it came to the end.
    fn purge_all(&self) -> Result<(u64, bool)> {
        let (mut purged, mut whole) = (0, true);
        let mut walk = Walk::new(self);
        let mut pairs = Vec::new();
        while let Some(guard) = walk.next(&mut pairs)? {
            // A segment that cannot be read has nothing that could be removed.
            let _ = walk.take_error();
            pairs.iter().for_each(|(_, word)| self.file.pool.medium().prefetch(word & OFFSET_MASK));
            let mark = self.map.flush.mark();
            for &(_, word) in &pairs {
                let Ok(record) = Record::at(self.file.pool.medium(), word) else { continue };
                match self.is_dead(&record, mark) {
                    Some(true) => purged += u64::from(self.purge_one(&record, &guard)?),
                    Some(false) => match record.expires_at() {
                        None | Some(0) => {}
                        Some(expires_at) => self.file.upkeep.expect_expiry(expires_at),
                    },
                    None => {}
                }
            }
            if self.file.upkeep.is_stopping() {
                whole = false;
                break;
            }
        }
        Ok((purged, whole))
    }

    /// [`purge`](Store::purge) if some record may be expired; answers how many it removed. O(1) otherwise.
    /// [`Evermap`](crate::Evermap) calls it in the background: an expired record goes within a minute, or a hundred times
    /// as long as a purge takes if that is longer.
    ///
    /// ```
    /// use evermap::{Clock, Evermap, Meta, Options};
    /// let clock = Clock::manual(1_000);
    /// let map = Evermap::open("", Options::volatile().clock(clock.clone()))?;
    /// map.put_with(b"session", b"alice", Meta { expires_at: 1_060, ..Meta::default() })?;
    /// map.purge()?;
    /// assert_eq!(map.purge_if_due()?, 0);
    /// clock.set(1_060);
    /// assert_eq!(map.purge_if_due()?, 1);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Store`].
    pub fn purge_if_due(&self) -> Result<u64> {
        if self.file.upkeep.expiry.is_due(&self.file.clock) { self.purge() } else { Ok(0) }
    }

    /// Removes what the key of `record` is bound to, if it is dead.
    fn purge_one(&self, record: &Record<'_, M>, guard: &Guard<'_>) -> Result<bool> {
        let mut key = Vec::new();
        record.append_key(&mut key)?;
        let key = self.key(&key)?;
        let keep = &mut |_: Option<Record<'_, M>>| Verdict::Keep;
        Ok(self.commit(key, Intent::ExistingOnly, guard, None, keep)?.removed())
    }
}
