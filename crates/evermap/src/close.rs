//! Closing a file, and the threads in the background, which end before.

use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;
use std::thread::JoinHandle;

use evermap_pm::Medium;
use evermap_pm::fork::ForkDetector;
use evermap_pm::medium::Mapped;
use evermap_pm::sync::{Mutex, Rank};

use crate::holder::{self, Holder};
use crate::log::StoreLog;
use crate::map::inner::MapState;
use crate::ordered;
use crate::{Evermap, Map, Result, mistakes, trace};

impl<M: Medium> Evermap<M> {
    /// Closes the file for all handles, those of its maps too: waits for running operations of
    /// other threads and for [readers](crate::Reader), and leaves everything in order, so that the
    /// next opening needs no sweep.
    ///
    /// Later operations on any map return [`Error::Closed`](crate::Error::Closed); closing again
    /// does nothing. What [dropped](Evermap::drop_map) maps occupied is reclaimed first. The file
    /// can be opened again as soon as the last handle of it and of its maps is dropped.
    ///
    /// # Errors
    /// [`Error::GuardHeld`](crate::Error::GuardHeld), and nothing is closed then.
    /// [`Error::Storage`](crate::Error::Storage) with `Io` if the system could not write,
    /// `Poisoned` or `Forked`; the next opening then finds an unclean shutdown.
    pub fn close(self) -> Result<()> {
        match &self.closer {
            Some(closer) => closer.close(),
            None => self.close_file(),
        }
    }

    fn close_file(&self) -> Result<()> {
        let file = &self.file;
        if !self.is_closed() {
            self.ensure_no_guard("close")?;
        }
        if file.closed.swap(true, SeqCst) {
            return Ok(());
        }
        file.default.set_state(MapState::Closed);
        file.pool.region().ensure_writable()?;
        file.maintenance.stop();
        let _sweeping = file.maintenance.sweeping();
        let uncounted = self.close_maps();
        fence(SeqCst);
        file.pool.epoch().synchronize().map_err(evermap_pm::Error::from)?;
        if file.read_only {
            return Ok(());
        }
        // No operation runs any more, so what is being written will not be finished.
        if !file.pool.medium().mutant(mistakes::UNFINISHED_KEPT) {
            file.partial.free_all(&file.pool);
        }
        // The blocks of dropped maps that are not reclaimed yet: saved as allocated, they would
        // stay so for ever. If the next opening sweeps, it finds out.
        if file.pool.is_swept() && !file.pool.medium().mutant(mistakes::DROPPED_KEPT) {
            self.reclaim_pending_drops();
        }
        file.cas_counter.close(file.pool.region());
        for map in self.open_maps() {
            map.save_order();
            map.inner.save_totals(&file.pool);
        }
        for header in uncounted {
            header.write_totals(&file.pool, None);
            ordered::clear_saved(&file.pool, header.saved(&file.pool));
        }
        trace::closed(file.origin.path.as_deref());
        let Some(log) = file.log.get() else { return Ok(file.pool.close()?) };
        // What was closed is trusted after a crash of the machine, so the log must have it before.
        log.prepare_close()?;
        file.pool.close()?;
        log.wait()
    }

    /// Returns `true` if the file was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.file.closed.load(SeqCst)
    }
}

/// The threads in the background. Dropping it closes the file.
pub(crate) struct CloseOnDrop<M: Medium> {
    /// Without a closer of its own.
    db: Evermap<M>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The socket at which one of the threads waits.
    socket: OnceLock<PathBuf>,
    fork: ForkDetector,
}

impl CloseOnDrop<Mapped> {
    /// Returns one for this handle, which has none of its own. No thread runs yet.
    pub(crate) fn new(db: Evermap) -> Result<Self> {
        let threads = Mutex::ranked(Rank::Leaf, Vec::new());
        Ok(CloseOnDrop { db, threads, socket: OnceLock::new(), fork: ForkDetector::new()? })
    }

    pub(crate) fn start_threads(&self) -> std::io::Result<()> {
        let read_only = self.db.file.read_only;
        if !read_only {
            self.db.file.maintenance.set_has_thread();
            self.start("evermap-maint", |map| map.db.run_maintenance())?;
            if self.db.evicts() {
                self.start("evermap-evict", |map| map.db.run_evictor())?;
            }
        }
        if let (true, Some(path)) = (self.db.file.options.offers_copies, &self.db.file.origin.path)
            && !read_only
        {
            // Where no socket can be made, as in a folder that is read-only, none are offered.
            if let Ok(holder) = Holder::listen(path) {
                let _ = self.socket.set(holder.socket().to_owned());
                self.start("evermap-copies", move |map| {
                    let file = &map.db.file;
                    holder.serve(
                        &|since, out| {
                            map.db.write_copy(since, out).map(|_| ()).map_err(io::Error::other)
                        },
                        &|| map.db.is_closed() || file.maintenance.is_stopping(),
                    );
                })?;
            }
        }
        if self.db.file.log.get().is_some() {
            self.start("evermap-log", |map| map.db.run_log(StoreLog::run_commits))?;
            self.start("evermap-image", |map| map.db.run_log(StoreLog::run_checkpoints))?;
        }
        let default = self.db.default_map();
        if default.wants_ordered_built() {
            self.start("evermap-order", |map| {
                // A failure is in `stat`, and every scan returns it.
                let _ = map.build_ordered(ordered::default_threads());
            })?;
        }
        // Without changes there are no notices.
        let workers = if read_only { 0 } else { default.notice_workers() };
        for number in 0..workers {
            self.start("evermap-notices", move |map| map.work_on_notices(number))?;
        }
        Ok(())
    }

    fn start(&self, name: &str, work: impl FnOnce(&Map) + Send + 'static) -> std::io::Result<()> {
        let map = self.db.default_map();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || work(&map))?;
        self.threads.lock().expect("no panics while held").push(thread);
        Ok(())
    }
}

impl<M: Medium> CloseOnDrop<M> {
    fn close(&self) -> Result<()> {
        // Before waiting for the threads, which may be waiting for the guard.
        if !self.db.is_closed() {
            self.db.ensure_no_guard("close")?;
        }
        self.stop_threads();
        self.db.close_file()
    }

    fn stop_threads(&self) {
        self.db.file.maintenance.stop();
        let threads = std::mem::take(&mut *self.threads.lock().expect("no panics while held"));
        if self.fork.is_child() {
            // The threads do not exist here, and waiting for them would never end.
            return;
        }
        if let Some(socket) = self.socket.get() {
            holder::wake(socket);
        }
        for thread in threads {
            thread.thread().unpark();
            // A panic in one has poisoned the store, which reports it.
            let _ = thread.join();
        }
    }
}

impl<M: Medium> Drop for CloseOnDrop<M> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // What the panic interrupted is unknown: the next opening recovers.
            self.stop_threads();
        } else if self.close().is_err() {
            // Because of a reader that was leaked, for example: the threads cannot be waited for,
            // but they end.
            self.db.file.maintenance.stop();
        }
    }
}
