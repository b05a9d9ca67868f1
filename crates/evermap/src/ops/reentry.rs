//! Refusing what a thread cannot do while it holds something of the store itself, because it would
//! wait for itself.
//!
//! A thread can hold two things while code of the caller runs:
//!
//! * a guard, as long as a [`Reader`](crate::Reader) lives, and in the closures of
//!   [`get_many`](Map::get_many), [`get_together`](Map::get_together),
//!   [`modify`](Map::modify) and [`Scan::visit`](crate::Scan::visit). Other closures run without
//!   one, and iterators and scans hold none between two calls;
//! * the record that a closure of [`modify`](Map::modify) was shown. It is not locked, but
//!   `modify` begins again if it was changed meanwhile.
//!
//! No code of the caller ever runs under a lock. So this is everything that must be refused:
//!
//! * Under a guard, and so also in a closure of `modify`: `close`, `check`, `recover`,
//!   `reclaim_dropped`, `purge` and `purge_if_due`, which wait for guards or for a thread that
//!   does; and `compact`, which could reclaim nothing that it moves.
//! * In a closure of `modify`: changes of the key that is being modified, alone or in a batch,
//!   which would make it repeat without end.
//! * Under a guard for which too much memory [waits](evermap_pm::Domain::is_backed_up): changes of
//!   any key.
//!
//! Everything else is done, `drop_map`, `flush_all` and scans included.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use evermap_index::key::BytesRef;
use evermap_pm::Medium;

use crate::{Error, Evermap, Map, Result};

/// How long a mutation waits for guards of other threads if too much memory waits for them.
const PATIENCE: Duration = Duration::from_secs(1);

thread_local! {
    /// The number of closures of `modify` that are running in this thread.
    static EDITS: Cell<usize> = const { Cell::new(0) };
    /// The map and the hash of the key of each.
    static EDITED: RefCell<Vec<(usize, u64)>> = const { RefCell::new(Vec::new()) };
}

/// Lives while a closure of [`modify`](Map::modify) runs.
pub(crate) struct Edit(());

impl Drop for Edit {
    fn drop(&mut self) {
        EDITS.set(EDITS.get() - 1);
        // If the thread is ending, the list does not exist any more, and is not needed.
        let _ = EDITED.try_with(|edited| edited.borrow_mut().pop());
    }
}

impl<M: Medium> Evermap<M> {
    /// Refuses `operation` if the calling thread holds a guard.
    pub(crate) fn ensure_no_guard(&self, operation: &'static str) -> Result<()> {
        match self.file.pool.epoch().is_held_here() {
            true => Err(Error::GuardHeld { operation }),
            false => Ok(()),
        }
    }

    /// Waits for a while for guards to end if more memory waits for them than is allowed.
    #[inline]
    pub(crate) fn ensure_not_backed_up(&self) -> Result<()> {
        if self.file.pool.epoch().is_backed_up() { self.wait_for_readers() } else { Ok(()) }
    }

    #[cold]
    fn wait_for_readers(&self) -> Result<()> {
        // In a forked child, guards of threads that do not exist there never end.
        self.file.pool.region().ensure_writable()?;
        self.file.pool.epoch().relieve(PATIENCE).map_err(Error::held_up)
    }
}

impl<M: Medium> Map<M> {
    /// Notes that a closure is about to decide about the record of `key`, until the returned value
    /// is dropped.
    pub(crate) fn begin_edit(&self, key: BytesRef<'_>) -> Edit {
        let edit = (self.identity(), key.hash);
        let _ = EDITED.try_with(|edited| edited.borrow_mut().push(edit));
        EDITS.set(EDITS.get() + 1);
        Edit(())
    }

    /// Begins a change of one key, before anything is locked or pinned; returns the key with its
    /// hash.
    #[inline]
    pub(crate) fn begin_change<'k>(&self, key: &'k [u8]) -> Result<BytesRef<'k>> {
        let key = self.key(key)?;
        self.ensure_not_edited(key)?;
        self.db.ensure_not_backed_up()?;
        Ok(key)
    }

    /// Refuses to change a key whose record a closure of this thread is deciding about.
    #[inline]
    pub(crate) fn ensure_not_edited(&self, key: BytesRef<'_>) -> Result<()> {
        if EDITS.get() == 0 { Ok(()) } else { self.ensure_other_key(key) }
    }

    #[cold]
    fn ensure_other_key(&self, key: BytesRef<'_>) -> Result<()> {
        let edit = (self.identity(), key.hash);
        match EDITED.try_with(|edited| edited.borrow().contains(&edit)) {
            Ok(true) => Err(Error::being_modified(key.bytes)),
            _ => Ok(()),
        }
    }

    /// Returns a number that no other open map has.
    fn identity(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }
}
