//! Copies of a store that is in use.

use std::io::{Read, Write};
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::SystemTime;

use evermap_pm::region::copy::{Copied, CopyHeader, CopyId};

use crate::{Evermap, Result};

/// Which state of which store a backup has, so that a later one can add to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupId(pub(super) CopyId);

/// What a backup contains. See [`Evermap::backup`].
#[derive(Clone, Copy, Debug)]
pub struct Backup(pub(super) Copied);

impl Backup {
    /// Reads the beginning of a backup.
    ///
    /// # Errors
    /// `InvalidData` if it is none; otherwise what reading returned.
    pub fn read_id(from: &mut dyn Read) -> std::io::Result<BackupId> {
        Ok(BackupId(CopyHeader::read(from)?.id))
    }

    /// Returns which state it has.
    pub fn id(&self) -> BackupId {
        BackupId(self.0.header.id)
    }

    /// Returns whether it has only what was changed since another backup, which must be restored
    /// before it.
    pub fn is_incremental(&self) -> bool {
        self.0.header.base.is_some()
    }

    /// Returns the time of the instant that it was made at.
    pub fn time(&self) -> SystemTime {
        self.0.header.time
    }

    /// Returns the number of bytes of the store's pages that it contains.
    pub fn bytes(&self) -> u64 {
        self.0.page_bytes
    }

    /// Returns the length of the store, bytes.
    pub fn store_bytes(&self) -> u64 {
        self.0.header.region_bytes
    }
}

impl Evermap {
    /// Writes a copy of the store as it is at one moment during the call, while it is in use.
    /// [`restore`](crate::restore) makes a store of it, which opens like one whose process was
    /// killed at that moment.
    ///
    /// ```
    /// # use evermap::{Evermap, Options};
    /// # let dir = tempfile::tempdir()?;
    /// let db = Evermap::open(dir.path().join("map"), Options::new())?;
    /// db.default_map().put(b"a", b"1")?;
    /// let mut copy = Vec::new();
    /// db.backup(&mut copy)?;
    ///
    /// evermap::restore(&mut [&mut &copy[..]], dir.path().join("other"))?;
    /// let other = Evermap::open(dir.path().join("other"), Options::new())?;
    /// assert_eq!(other.default_map().get(b"a")?.as_deref(), Some(&b"1"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The first one waits for operations of other threads that are running. Until a backup has
    /// ended, the first change of each page costs about a microsecond, and memory for a page.
    /// O(length of the file); pages of zeros are left out.
    ///
    /// # Errors
    /// [`Error::GuardHeld`](crate::Error::GuardHeld); [`Error::Closed`](crate::Error::Closed);
    /// [`Error::Storage`](crate::Error::Storage) with `Io` if the copy cannot be written, and those
    /// of [`snapshot`](Evermap::snapshot).
    pub fn backup(&self, out: &mut dyn Write) -> Result<Backup> {
        self.backup_since(None, out)
    }

    /// Writes a copy with only what was changed since another backup, if the store was not closed
    /// since that was made; otherwise a whole one. [Which](Backup::is_incremental), it says.
    ///
    /// # Errors
    /// The same as [`backup`](Evermap::backup).
    pub fn backup_since(&self, since: Option<BackupId>, out: &mut dyn Write) -> Result<Backup> {
        self.ensure_no_guard("backup")?;
        self.ensure_not_closed()?;
        Ok(Backup(self.write_copy(since.map(|BackupId(id)| id), out)?))
    }

    pub(crate) fn write_copy(&self, since: Option<CopyId>, out: &mut dyn Write) -> Result<Copied> {
        let pool = &self.file.pool;
        if !self.file.is_tracked.load(Acquire) {
            pool.medium().begin_tracking()?;
            // What operations store that were running then may not be noted.
            pool.epoch().synchronize().map_err(evermap_pm::Error::from)?;
            self.file.is_tracked.store(true, Release);
        }
        Ok(pool.region().write_copy(since, out)?)
    }
}
