//! Waiting until changes are durable.

use std::cell::Cell;

use evermap_pm::Medium;

use crate::log::{LogStat, StoreLog};
use crate::{Evermap, Result};

/// # Durability
impl<M: Medium> Evermap<M> {
    /// Waits until everything that this thread has changed is durable, if the store has a log. At
    /// the other [levels](crate::Durability) an operation that returns has kept its promise.
    ///
    /// ```
    /// use evermap::{Durability, Evermap, Options};
    /// # let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("map");
    /// let options = Options::new().durability(Durability::Log);
    /// # let options = options.log_in_memory(true);
    /// let db = Evermap::open(path, options)?;
    /// let fast = db.without_waiting().default_map();
    /// for key in 0_u32..1000 {
    ///     fast.put(key.to_le_bytes(), b"value")?;
    /// }
    /// db.sync()?; // One sync for all.
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Storage`](crate::Error::Storage) with `Io` if a sync has failed: then what was not
    /// durable before is lost if power fails, and nothing becomes durable until the store is opened
    /// again; with `NoSpace` if there is no space for the log.
    pub fn sync(&self) -> Result<()> {
        // Also if that fails: the caller knows then.
        IS_OWED.set(false);
        self.file.log.get().map_or(Ok(()), |log| log.wait())
    }

    /// Returns whether the calling thread has changed a store by a handle that [does not
    /// wait](Evermap::without_waiting), and has not called [`sync`](Evermap::sync) since.
    pub fn owes_sync(&self) -> bool {
        IS_OWED.get()
    }

    /// Returns a handle whose operations, and those of its maps, return before they are durable:
    /// [`sync`](Evermap::sync) waits for them.
    pub fn without_waiting(&self) -> Self {
        Evermap { waits: false, ..self.clone() }
    }

    /// Returns what is known of the log, if the store has one.
    pub fn log_stat(&self) -> Option<LogStat> {
        self.file.log.get().map(|log| log.stat())
    }

    /// Does work of the log in the background, until the store is closed.
    pub(crate) fn run_log(&self, work: fn(&StoreLog, &dyn Fn() -> bool)) {
        if let Some(log) = self.file.log.get() {
            work(log, &|| self.file.maintenance.is_stopping());
        }
    }

    /// Ends an operation that may have changed something.
    #[inline]
    pub(crate) fn settle(&self) -> Result<()> {
        match self.file.log.get() {
            None => Ok(()),
            Some(log) if self.waits => log.settle(),
            Some(_) => {
                IS_OWED.set(true);
                Ok(())
            }
        }
    }
}

thread_local! {
    /// Whether the thread has changed something without waiting until it is durable.
    static IS_OWED: Cell<bool> = const { Cell::new(false) };
}
