//! The log of a store: making what was stored durable.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use evermap_pm::Pool;
use evermap_pm::medium::Mapped;
use evermap_pm::redo::{RecordBuilder, RedoLog};
use evermap_pm::sync::{Condvar, Mutex, MutexGuard};

use crate::Result;

/// How long the threads in the background sleep if nothing is to be done.
const ROUND: Duration = Duration::from_millis(100);

/// When an operation of a store with a log is acknowledged. See
/// [`Options::acknowledge`](crate::Options::acknowledge).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Acknowledge {
    /// When it is durable. Operations that wait at the same time share one sync.
    #[default]
    Each,
    /// When it is durable; a sync begins at the earliest this long after the one before, so that
    /// more operations share one.
    Group(Duration),
    /// At once. A sync begins at the latest this long after the operation, or when the one before
    /// has ended: what was acknowledged in that time is lost if power fails.
    Async(Duration),
}

/// What is known of the log of a store. See [`Evermap::log_stat`](crate::Evermap::log_stat).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct LogStat {
    /// Commits so far in this opening: each is one write and one sync.
    pub commits: u64,
    /// Bytes that were written to the log.
    pub log_bytes: u64,
    /// Checkpoints so far.
    pub checkpoints: u64,
    /// Whether there is no space for more of the log, so that changes are refused.
    pub is_full: bool,
}

/// The log of a store, and who waits for it.
pub(crate) struct StoreLog {
    pool: Arc<Pool<Mapped>>,
    log: RedoLog,
    acknowledge: Acknowledge,
    /// The last interval whose changes are durable.
    durable: AtomicU64,
    /// Whether no more space could be reserved for the log.
    is_full: AtomicBool,
    commits: AtomicU64,
    log_bytes: AtomicU64,
    checkpoints: AtomicU64,
    turn: Mutex<Turn>,
    /// A commit has ended.
    committed: Condvar,
}

/// Whose turn it is to commit.
struct Turn {
    is_taken: bool,
    /// When the last commit began.
    began: Instant,
    /// The record that is written next. `None` while a thread has it.
    record: Option<Pending>,
    /// Why nothing becomes durable any more.
    failure: Option<String>,
}

#[derive(Default)]
struct Pending {
    record: RecordBuilder,
    /// The last interval in it, and the length of the region then, if it could not be appended.
    unwritten: Option<(u64, u64)>,
}

impl StoreLog {
    pub(crate) fn new(pool: Arc<Pool<Mapped>>, log: RedoLog, acknowledge: Acknowledge) -> Self {
        StoreLog {
            // What the working copy has, and the log has not, is in the first commit.
            durable: AtomicU64::new(0),
            pool,
            log,
            acknowledge,
            is_full: AtomicBool::new(false),
            commits: AtomicU64::new(0),
            log_bytes: AtomicU64::new(0),
            checkpoints: AtomicU64::new(0),
            turn: Mutex::new(Turn {
                is_taken: false,
                began: Instant::now(),
                record: Some(Pending::default()),
                failure: None,
            }),
            committed: Condvar::new(),
        }
    }

    /// Refuses a change that could not become durable.
    #[inline]
    pub(crate) fn ensure_room(&self) -> Result<()> {
        if self.is_full.load(Relaxed) { Err(self.no_room()) } else { Ok(()) }
    }

    #[cold]
    fn no_room(&self) -> crate::Error {
        match self.log.reserve() {
            Err(error) => error.into(),
            Ok(()) => {
                self.is_full.store(false, Relaxed);
                let text = "the log had no space until now; try again".to_owned();
                evermap_pm::Error::no_space(text, 0).into()
            }
        }
    }

    /// Ends an operation of the calling thread: waits until it is durable, if it is to.
    pub(crate) fn settle(&self) -> Result<()> {
        match self.acknowledge {
            Acknowledge::Each | Acknowledge::Group(_) => self.wait(),
            Acknowledge::Async(period) => self.keep_up(period),
        }
    }

    /// Waits until all that the calling thread has stored is durable.
    pub(crate) fn wait(&self) -> Result<()> {
        self.wait_for(self.pool.medium().interval())
    }

    fn wait_for(&self, interval: u64) -> Result<()> {
        let mut turn = self.lock();
        loop {
            // Acquire: the log is durable before this is.
            if self.durable.load(Acquire) >= interval {
                return Ok(());
            }
            if let Some(failure) = &turn.failure {
                return Err(failed(failure));
            }
            if turn.is_taken {
                let waits =
                    |turn: &mut Turn| turn.is_taken && self.durable.load(Acquire) < interval;
                turn = self.committed.wait_while(turn, waits).expect(NO_PANICS);
                continue;
            }
            if !self.pool.medium().has_changes()
                && turn.record.as_ref().is_some_and(|pending| pending.unwritten.is_none())
            {
                return Ok(());
            }
            turn.is_taken = true;
            drop(turn);
            let result = self.commit();
            turn = self.lock();
            turn.is_taken = false;
            self.committed.notify_all();
            result?;
        }
    }

    /// Makes everything durable that was stored before. Called by one thread at a time.
    fn commit(&self) -> Result<()> {
        if let Acknowledge::Group(least) = self.acknowledge {
            let next = self.lock().began + least;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        let mut pending = {
            let mut turn = self.lock();
            turn.began = Instant::now();
            turn.record.take().unwrap_or_default()
        };
        let result = self.append_changes(&mut pending);
        let mut turn = self.lock();
        turn.record = Some(pending);
        match result {
            // There may be space again later.
            Err(error) if error.is_no_space() => {
                self.is_full.store(true, Relaxed);
                Err(error.into())
            }
            Err(error) => {
                turn.failure = Some(error.to_string());
                Err(error.into())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Appends what was not written the last time, and then what has changed.
    fn append_changes(&self, pending: &mut Pending) -> evermap_pm::Result<()> {
        let medium = self.pool.medium();
        loop {
            let was_unwritten = pending.unwritten.is_some();
            let (interval, bytes) = match pending.unwritten {
                Some(unwritten) => unwritten,
                None => {
                    let record = &mut pending.record;
                    record.clear();
                    let taken = medium.take_changes(&mut |change| {
                        record.page(change.page, change.lines, &mut |line, out| {
                            change.read_line(line, out);
                        });
                    })?;
                    // Kept from here on, until it is written.
                    pending.unwritten = Some(taken);
                    taken
                }
            };
            self.log.append(&pending.record, bytes)?;
            self.log_bytes.fetch_add(pending.record.log_bytes(), Relaxed);
            self.commits.fetch_add(1, Relaxed);
            pending.unwritten = None;
            medium.set_changes_durable(interval, self.log.position().words());
            self.durable.store(interval, Release);
            if !was_unwritten {
                return Ok(());
            }
        }
    }

    /// Waits if commits in the background are late, so that no more is at risk than was promised.
    fn keep_up(&self, period: Duration) -> Result<()> {
        let turn = self.lock();
        if let Some(failure) = &turn.failure {
            return Err(failed(failure));
        }
        let is_late = turn.began.elapsed() > 2 * period + ROUND;
        drop(turn);
        if is_late { self.wait() } else { Ok(()) }
    }

    /// Commits and reserves space until `stops`; one thread does this.
    pub(crate) fn run_commits(&self, stops: &dyn Fn() -> bool) {
        let round = match self.acknowledge {
            Acknowledge::Async(period) => period.clamp(Duration::from_micros(100), ROUND),
            _ => ROUND,
        };
        while !stops() {
            std::thread::park_timeout(round);
            if matches!(self.acknowledge, Acknowledge::Async(_)) {
                // Operations return the error.
                let _ = self.wait();
            }
            let reserved = self.log.reserve();
            self.is_full.store(reserved.is_err_and(|error| error.is_no_space()), Relaxed);
        }
    }

    /// Makes checkpoints when they are due, until `stops`; one thread does this.
    pub(crate) fn run_checkpoints(&self, stops: &dyn Fn() -> bool) {
        while !stops() {
            std::thread::park_timeout(ROUND);
            if !self.log.checkpoint_due() {
                continue;
            }
            match self.log.checkpoint() {
                Ok(()) => _ = self.checkpoints.fetch_add(1, Relaxed),
                // The log is whole, and grows. Tried again when it has grown.
                Err(error) if error.is_no_space() => std::thread::park_timeout(10 * ROUND),
                Err(error) => {
                    self.lock().failure = Some(error.to_string());
                    return;
                }
            }
        }
    }

    /// Makes everything durable, and the marks too, for a store that is about to be closed.
    pub(crate) fn prepare_close(&self) -> Result<()> {
        self.wait()?;
        Ok(self.pool.medium().sync_marks()?)
    }

    pub(crate) fn stat(&self) -> LogStat {
        LogStat {
            commits: self.commits.load(Relaxed),
            log_bytes: self.log_bytes.load(Relaxed),
            checkpoints: self.checkpoints.load(Relaxed),
            is_full: self.is_full.load(Relaxed),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const NO_PANICS: &str = "no panics while held";

#[cold]
fn failed(why: &str) -> crate::Error {
    let source = std::io::Error::other(format!(
        "{why}; since then nothing is durable; open the store again"
    ));
    evermap_pm::Error::io("committing", "log".as_ref(), source).into()
}
