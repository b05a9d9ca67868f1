//! Snapshots: a store as it was at one instant, for reading.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;
use std::sync::{Arc, OnceLock, Weak};
use std::time::SystemTime;

use evermap_pm::GracePeriod;
use evermap_pm::medium::Mapped;

use crate::db::{FileInner, Origin};
use crate::file::open_view;
use crate::{Evermap, Options, Result};

/// A store as it was at one instant: all maps of it, for reading. See [`Evermap::snapshot`].
///
/// It is used like a store that was opened [read-only](Options::read_only); changes return
/// [`Error::ReadOnly`](crate::Error::ReadOnly). Records that expire later than the instant expire
/// in it too. The number of records is known when they were [counted](Evermap::recover), as in a
/// store whose process was killed.
///
/// The store's file stays locked as long as a snapshot of it lives, also after the store is closed.
#[derive(Debug)]
pub struct Snapshot {
    db: Evermap,
}

impl Snapshot {
    /// Returns how much memory it takes, bytes: that of the pages that were changed since it was
    /// taken, in the store or while the snapshot recovered what was in progress then.
    pub fn memory_bytes(&self) -> u64 {
        self.db.file.pool.medium().private_bytes()
    }
}

impl Deref for Snapshot {
    type Target = Evermap;

    fn deref(&self) -> &Evermap {
        &self.db
    }
}

/// # Snapshots and copies
impl Evermap {
    /// Returns the store as it is at one moment during the call, for reading while it is changed.
    ///
    /// All maps are of the same moment: what was acknowledged before the call is there, of a batch
    /// there is everything or nothing, and nothing that began after the call.
    ///
    /// ```
    /// # use evermap::{Evermap, Options};
    /// # let dir = tempfile::tempdir()?;
    /// let db = Evermap::open(dir.path().join("map"), Options::new())?;
    /// let map = db.default_map();
    /// map.put(b"a", b"1")?;
    /// let snapshot = db.snapshot()?;
    /// map.put(b"a", b"2")?;
    /// assert_eq!(snapshot.default_map().get(b"a")?.as_deref(), Some(&b"1"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Waits for operations of other threads that are running, and for guards that they hold.
    /// Copies nothing: until the snapshot is dropped, the first change of each page of 4 KiB costs
    /// about a microsecond and [the page's memory](Snapshot::memory_bytes), which can be
    /// [limited](Evermap::snapshot_within). There may be any number of snapshots. An [ordered
    /// index](crate::Order) in memory is built anew for each, when it is first used: O(n); a
    /// persistent one is there at once.
    ///
    /// # Errors
    /// [`Error::GuardHeld`](crate::Error::GuardHeld); [`Error::Closed`](crate::Error::Closed);
    /// [`Error::Storage`](crate::Error::Storage) with `Config` for a store in memory and for one
    /// that is read-only itself, `FileSystem` on hugetlbfs, `NoSpace` or `Io`.
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.snapshot_within(u64::MAX)
    }

    /// Returns a [snapshot](Evermap::snapshot) that may take about `limit` bytes of memory. When so
    /// much of the store was changed, its operations return
    /// [`Error::SnapshotTooOld`](crate::Error::SnapshotTooOld), and what it has taken stays until
    /// it is dropped; it takes no more once the operations that were running have ended.
    ///
    /// # Errors
    /// The same as [`snapshot`](Evermap::snapshot).
    pub fn snapshot_within(&self, limit: u64) -> Result<Snapshot> {
        self.ensure_no_guard("snapshot")?;
        self.ensure_not_closed()?;
        let file = &self.file;
        let medium = file.pool.medium().snapshot()?;
        let time = SystemTime::now();
        // A thread may be about to execute one more store that belongs to the instant. All stores
        // to records and indexes take place under guards.
        file.pool.epoch().synchronize().map_err(evermap_pm::Error::from)?;
        let options = Options { durability: crate::Durability::Process, ..file.options.clone() };
        let origin = Origin { durability: options.durability, ..file.origin.clone() };
        let db = open_view(medium, &options, origin, time)?;
        if limit < u64::MAX {
            let grace = Grace { file: Arc::downgrade(&db.file), limit, period: OnceLock::new() };
            let on_full = Box::new(move || grace.is_over());
            db.file.pool.medium().limit_private_bytes(limit, on_full);
        }
        Ok(Snapshot { db: Evermap::with_background(db)? })
    }

    /// Returns the time of the instant that is read, if the store is a [snapshot](Snapshot), or was
    /// opened [read-only](Options::read_only) while another process has it open.
    pub fn instant(&self) -> Option<SystemTime> {
        self.file.origin.instant
    }

    pub(super) fn ensure_not_closed(&self) -> Result<()> {
        if self.is_closed() { Err(crate::Error::Closed) } else { Ok(()) }
    }
}

/// Waits, without waiting, until nobody reads a snapshot that has reached its limit.
struct Grace {
    file: Weak<FileInner<Mapped>>,
    limit: u64,
    period: OnceLock<GracePeriod>,
}

impl Grace {
    /// Refuses further operations of the snapshot, and returns whether those that began before have
    /// ended, so that its pages need not be kept any more.
    fn is_over(&self) -> bool {
        let Some(file) = self.file.upgrade() else { return true };
        let is_over = self.is_over_in(&file);
        if let Some(last) = Arc::into_inner(file) {
            drop_elsewhere(last);
        }
        is_over
    }

    fn is_over_in(&self, file: &FileInner<Mapped>) -> bool {
        let period = match self.period.get() {
            Some(period) => *period,
            None => {
                file.default.set_too_old(self.limit);
                if !file.maps.try_each(|map| map.set_too_old(self.limit)) {
                    return false;
                }
                // An operation pins a guard and then looks at the state of the map.
                fence(SeqCst);
                *self.period.get_or_init(|| file.pool.epoch().start())
            }
        };
        file.pool.epoch().is_over(period)
    }
}

/// Drops what is left of a snapshot in another thread: the calling one uses its pages.
#[cold]
fn drop_elsewhere(file: FileInner<Mapped>) {
    let file = ManuallyDrop::new(file);
    // If there is no thread, it stays.
    let _ = std::thread::Builder::new().spawn(move || drop(ManuallyDrop::into_inner(file)));
}
