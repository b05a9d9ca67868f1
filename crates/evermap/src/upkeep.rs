//! Files on media of the caller, and the maintenance that threads in the background do elsewhere.

use evermap_pm::Medium;
use evermap_pm::region::Identity;

use crate::db::Origin;
use crate::{Evermap, Options, Result};

/// # Without threads in the background
///
/// For programs that have a [`Medium`] of their own. On a file and in memory, threads in the
/// background do all of this.
impl<M: Medium> Evermap<M> {
    /// Opens the store in `medium`, or creates one if there is none and [`Options::create`] allows
    /// it. O(1) in the number of records.
    ///
    /// Nothing runs in the background, and dropping the handles does not close the store: see
    /// [`Evermap`]. After an unclean shutdown, space from before is not reused until
    /// [`recover`](Evermap::recover) is called.
    ///
    /// # Errors
    /// [`Error::NotFound`](crate::Error::NotFound); [`Error::Storage`](crate::Error::Storage) with
    /// `NotAStore`, `NewerFormat`, `Damaged`, `Suspect`, `Config` or `NoSpace`.
    pub fn open_medium(medium: M, identity: Identity, options: Options) -> Result<Self> {
        Self::open_at(medium, identity, &options, Origin::medium())
    }

    /// Creates an empty store in `medium`, whatever it contained before; otherwise as
    /// [`open_medium`](Evermap::open_medium).
    ///
    /// # Errors
    /// [`Error::Storage`](crate::Error::Storage) with `Config` or `NoSpace`.
    pub fn create_medium(medium: M, identity: Identity, options: Options) -> Result<Self> {
        Self::create_at(medium, identity, &options, Origin::medium())
    }

    /// Recovers after an unclean shutdown: determines which space of the file is in use, so that
    /// the rest can be reused, repairs every part of the index of each map along the way, and
    /// counts records. Does nothing if that is done or not needed.
    ///
    /// Reads the indexes, and a sample of some thousand records, which it verifies. If the
    /// [persistent ordered index](crate::Order::Persistent) lacks keys, which no crash does, it
    /// reads those, enters the keys and marks the file as damaged. Other operations may go on
    /// meanwhile. O(n), 0.1 to 0.5 µs a record if the indexes are in memory. On a file, a thread
    /// in the background does this, unless it was opened [read-only](crate::Options::read_only):
    /// then all of it takes place in the memory of this process.
    ///
    /// # Errors
    /// [`Error::GuardHeld`](crate::Error::GuardHeld); [`Error::Closed`](crate::Error::Closed) if
    /// the store is closed meanwhile; [`Error::Storage`](crate::Error::Storage) with `Damaged` if a
    /// part of an index cannot be read, and [`Error::MapDamaged`](crate::Error::MapDamaged) if a
    /// map cannot be opened: space from before stays unused then.
    pub fn recover(&self) -> Result<()> {
        self.sweep_now()
    }

    /// Removes the records of all maps in the file that have expired, and, if a walk is owed, what
    /// it finds. Returns their number. Without a walk the cost is proportional to what has expired.
    /// On a file, a thread in the background does this about every second.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use evermap::{Clock, Evermap, Options};
    /// let clock = Clock::manual(SystemTime::now());
    /// let map = Evermap::in_memory(Options::new().clock(clock.clone()))?.default_map();
    /// map.set("session").expires(map.now() + Duration::from_secs(60)).put("alice")?;
    /// assert_eq!(map.db().purge_if_due()?, 0);
    /// clock.advance(Duration::from_secs(60));
    /// assert_eq!(map.db().purge_if_due()?, 1);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::GuardHeld`](crate::Error::GuardHeld), and see [`Map`](crate::Map).
    pub fn purge_if_due(&self) -> Result<u64> {
        self.purge_due()
    }

    /// Evicts records of a cache until some space is free again, if too little is. Returns their
    /// number. On a file, a thread in the background does this.
    ///
    /// ```
    /// let db = evermap::Evermap::in_memory(evermap::Options::new())?;
    /// assert_eq!(db.evict_if_due()?, 0, "it is no cache");
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::GuardHeld`](crate::Error::GuardHeld), and see [`Map`](crate::Map).
    pub fn evict_if_due(&self) -> Result<u64> {
        self.evict_due()
    }

    /// Reclaims the space of maps that were dropped. Returns the number of those maps. Waits for
    /// operations on them to end; a sweep, a purge or a check has to end first. O(records in them).
    /// On a file, a thread in the background does this.
    ///
    /// ```
    /// # use evermap::{Evermap, MapOptions, Options};
    /// let db = Evermap::in_memory(Options::new())?;
    /// db.map("users", MapOptions::new())?.put(b"1", b"ann")?;
    /// db.drop_map("users")?;
    /// db.reclaim_dropped()?;
    /// assert!(db.check(true)?.is_sound());
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::GuardHeld`](crate::Error::GuardHeld); [`Error::Storage`](crate::Error::Storage)
    /// with `Poisoned` or `Forked`.
    pub fn reclaim_dropped(&self) -> Result<u64> {
        self.reclaim_drops()
    }
}
