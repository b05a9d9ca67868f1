//! The log of a node: entries, vote, and what is known to be committed.
//!
//! Entries have consecutive indexes, so no order of keys is needed to find them: two ids say which
//! there are. Those behind `purged`, and up to `last`, are the log; whatever else a kill has left
//! in the map is unreachable, is removed at the next opening, and is next to that range, because
//! entries are added, and removed, from there on.
//!
//! A snapshot that is installed takes the place of the log before its end. openraft asks for that
//! purge while the snapshot is still being installed, and a kill in between would leave neither. So
//! the installation itself notes what is purged, in the batch that makes the new state the current
//! one; until then the purge is known in ordinary memory only, and what changes the log waits.
//!
//! Nothing but appended entries and votes is waited for. What becomes durable is always the state
//! of the file at one instant, and the log and the state are in one file: so a purge is durable
//! only with the state that makes it allowed, and a truncation at the latest with the entries that
//! take the place of those that it has removed.

use std::fmt::{self, Debug};
use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::{Arc, PoisonError, RwLock};

use evermap::Map;
use openraft::storage::{LogFlushed, LogState, RaftLogStorage};
use openraft::{
    LogId, NodeId, OptionalSend, RaftLogId, RaftLogReader, RaftTypeConfig, StorageError,
    StorageIOError, Vote,
};

use crate::error::During;
use crate::shared::{Shared, keys};
use crate::{Error, Result, codec};

/// How many bytes of entries a replication reads at once, but for the last one of them.
const READ_BYTES: usize = 1 << 20;

/// The log of a node, for [`openraft::Raft::new`].
pub struct LogStore<C: RaftTypeConfig> {
    reader: LogReader<C>,
    /// A purge that waits for a snapshot to be installed.
    waiting: Option<Waiting<C>>,
}

struct Waiting<C: RaftTypeConfig> {
    id: LogId<C::NodeId>,
    /// The entries to be removed then.
    entries: Range<u64>,
}

/// A handle that reads the log of a node.
pub struct LogReader<C: RaftTypeConfig> {
    shared: Arc<Shared>,
    ends: Arc<RwLock<Ends<C>>>,
}

/// Which entries there are.
struct Ends<C: RaftTypeConfig> {
    purged: Option<LogId<C::NodeId>>,
    /// The last entry; `None` if the log is empty.
    last: Option<LogId<C::NodeId>>,
    _config: PhantomData<C>,
}

impl<C: RaftTypeConfig> Ends<C> {
    /// The first index that is not purged.
    fn first(&self) -> u64 {
        self.purged.as_ref().map_or(0, |id| id.index + 1)
    }

    /// The index behind the last entry.
    fn end(&self) -> u64 {
        self.last.as_ref().map_or(self.first(), |id| id.index + 1)
    }
}

fn key(index: u64) -> [u8; 8] {
    index.to_be_bytes()
}

/// Removes the entries from `index` on, in the direction of `next`, up to the first one that is
/// missing.
fn remove_run(log: &Map, index: Option<u64>, next: impl Fn(u64) -> Option<u64>) -> Result<()> {
    for index in std::iter::successors(index, |index| next(*index)) {
        if !log.delete(key(index))? {
            break;
        }
    }
    Ok(())
}

/// Makes the node vote again before it leads again.
///
/// openraft lets a leader that was restarted go on in its term without an election, and takes for
/// committed what it has applied. After loss of power that may be less than what it has answered
/// before, because nobody waits until the state is durable, so its first reads would be stale. With
/// a vote for itself that is not known to have won it is elected in a new term, and reads wait
/// until everything before that is applied: that is how leaders are restarted in Raft as published.
fn resign<C: RaftTypeConfig>(meta: &Map) -> Result<()> {
    if let Some(mut vote) = codec::read::<Vote<C::NodeId>>(meta, keys::VOTE)?
        && vote.committed
    {
        vote.committed = false;
        meta.put(keys::VOTE, codec::encode(&vote)?)?;
    }
    Ok(())
}

impl<C: RaftTypeConfig> LogStore<C> {
    pub(crate) fn open(shared: Arc<Shared>) -> Result<Self> {
        resign::<C>(&shared.meta)?;
        let purged: Option<LogId<C::NodeId>> = codec::read(&shared.meta, keys::PURGED)?;
        let last = codec::read::<LogId<C::NodeId>>(&shared.meta, keys::LAST)?;
        let purged_end = purged.as_ref().map(|id| id.index);
        // Where a purge that was killed has left entries, if it was beyond the end.
        let stale = purged_end.map(|end| last.as_ref().map_or(end, |last| last.index.min(end)));
        // A purge beyond the end does not change what is stored of it.
        let last = last.filter(|last| purged_end.is_none_or(|end| end < last.index));
        let ends = Ends { purged, last, _config: PhantomData };
        remove_run(&shared.log, stale, |index| index.checked_sub(1))?;
        remove_run(&shared.log, Some(ends.end()), |index| index.checked_add(1))?;
        let ends = Arc::new(RwLock::new(ends));
        Ok(LogStore { reader: LogReader { shared, ends }, waiting: None })
    }

    /// Stores entries, visible for readers when it returns, and durable after the next sync.
    fn store(&self, entries: impl IntoIterator<Item = C::Entry>) -> Result<()> {
        let LogReader { shared, ends } = &self.reader;
        let mut ends = ends.write().unwrap_or_else(PoisonError::into_inner);
        let mut last = None;
        for entry in entries {
            let id = entry.get_log_id().clone();
            shared.log.put(key(id.index), codec::encode(&entry)?)?;
            last = Some(id);
        }
        // From here on they are the log.
        if let Some(last) = last {
            shared.meta.put(keys::LAST, codec::encode(&last)?)?;
            ends.last = Some(last);
        }
        Ok(())
    }

    /// Removes the entries from `index` on.
    fn truncate_from(&self, index: u64) -> Result<()> {
        let LogReader { shared, ends } = &self.reader;
        let mut ends = ends.write().unwrap_or_else(PoisonError::into_inner);
        let end = ends.end();
        let last = self.reader.last_before(index, ends.first())?;
        match &last {
            Some(last) => shared.meta.put(keys::LAST, codec::encode(last)?)?,
            None => _ = shared.meta.delete(keys::LAST)?,
        }
        ends.last = last;
        // From the end: what a kill leaves is next to what is left.
        for index in (index.max(ends.first())..end).rev() {
            shared.log.delete(key(index))?;
        }
        Ok(())
    }

    /// Removes the entries up to `id`, and that one.
    fn purge_to(&mut self, id: LogId<C::NodeId>) -> Result<()> {
        let waits = self.awaits_snapshot(&id)?;
        let LogReader { shared, ends } = &self.reader;
        let mut ends = ends.write().unwrap_or_else(PoisonError::into_inner);
        let entries = ends.first()..ends.end().min(id.index + 1);
        if id.index < entries.start && ends.purged.is_some() {
            return Ok(());
        }
        if !waits {
            shared.meta.put(keys::PURGED, codec::encode(&id)?)?;
        }
        if ends.last.as_ref().is_some_and(|last| last.index <= id.index) {
            ends.last = None;
        }
        ends.purged = Some(id.clone());
        if waits {
            self.waiting = Some(Waiting { id, entries });
            return Ok(());
        }
        remove(&shared.log, entries)
    }

    /// Returns whether a purge has to wait until a snapshot that goes as far is installed.
    fn awaits_snapshot(&self, id: &LogId<C::NodeId>) -> Result<bool> {
        // Looked at before the state: who installs changes that first.
        let installs = *self.reader.shared.installs.borrow();
        if self.is_applied(id)? {
            return Ok(false);
        }
        if installs.has_failed { Err(not_installed(id)) } else { Ok(installs.files > 0) }
    }

    fn is_applied(&self, id: &LogId<C::NodeId>) -> Result<bool> {
        let applied: Option<LogId<_>> = codec::read(&self.reader.shared.meta, keys::APPLIED)?;
        Ok(applied.as_ref() >= Some(id))
    }

    /// Ends a purge that waits for a snapshot.
    async fn settle(&mut self) -> Result<()> {
        let Some(Waiting { id, entries }) = &self.waiting else { return Ok(()) };
        let mut changes = self.reader.shared.installs.subscribe();
        loop {
            // As in `awaits_snapshot`.
            let installs = *changes.borrow_and_update();
            if self.is_applied(id)? {
                break;
            }
            if installs.has_failed || installs.files == 0 {
                return Err(not_installed(id));
            }
            changes.changed().await.expect("the sender is ours");
        }
        remove(&self.reader.shared.log, entries.clone())?;
        self.waiting = None;
        Ok(())
    }
}

fn not_installed<N: NodeId>(id: &LogId<N>) -> Error {
    Error::Damaged(format!("the snapshot up to {id} was not installed"))
}

fn remove(log: &Map, entries: Range<u64>) -> Result<()> {
    for index in entries {
        log.delete(key(index))?;
    }
    Ok(())
}

impl<C: RaftTypeConfig> LogReader<C> {
    /// Returns the id of the last entry in `first..end`.
    fn last_before(&self, end: u64, first: u64) -> Result<Option<LogId<C::NodeId>>> {
        for index in (first..end).rev() {
            if let Some(entry) = codec::read::<C::Entry>(&self.shared.log, key(index))? {
                return Ok(Some(entry.get_log_id().clone()));
            }
        }
        Ok(None)
    }

    /// Reads the entries from `start` to before `end`, and stops behind the one with which they
    /// have `most` bytes.
    fn entries(&self, start: u64, end: u64, most: usize) -> Result<Vec<C::Entry>> {
        // Held, so that the entries are of one moment.
        let ends = self.ends.read().unwrap_or_else(PoisonError::into_inner);
        let (start, end) = (start.max(ends.first()), end.min(ends.end()));
        let (mut entries, mut bytes, mut buffer) = (Vec::new(), 0, Vec::new());
        for index in start..end {
            if bytes >= most {
                break;
            }
            buffer.clear();
            if self.shared.log.get_into(key(index), &mut buffer)? {
                bytes += buffer.len();
                entries.push(codec::decode(&buffer)?);
            }
        }
        Ok(entries)
    }

    fn log_state(&self) -> LogState<C> {
        let ends = self.ends.read().unwrap_or_else(PoisonError::into_inner);
        LogState {
            last_purged_log_id: ends.purged.clone(),
            last_log_id: ends.last.clone().or(ends.purged.clone()),
        }
    }
}

impl<C: RaftTypeConfig> RaftLogReader<C> for LogReader<C> {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<C::Entry>, StorageError<C::NodeId>> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(end) => end.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        self.entries(start, end, usize::MAX).during(StorageIOError::read_logs)
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<C::Entry>, StorageError<C::NodeId>> {
        self.entries(start, end, READ_BYTES).during(StorageIOError::read_logs)
    }
}

impl<C: RaftTypeConfig> RaftLogReader<C> for LogStore<C> {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<C::Entry>, StorageError<C::NodeId>> {
        self.reader.try_get_log_entries(range).await
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<C::Entry>, StorageError<C::NodeId>> {
        self.reader.limited_get_log_entries(start, end).await
    }
}

impl<C: RaftTypeConfig> RaftLogStorage<C> for LogStore<C> {
    type LogReader = LogReader<C>;

    async fn get_log_state(&mut self) -> Result<LogState<C>, StorageError<C::NodeId>> {
        Ok(self.reader.log_state())
    }

    async fn get_log_reader(&mut self) -> LogReader<C> {
        self.reader.clone()
    }

    /// Returns when the vote is durable.
    async fn save_vote(&mut self, vote: &Vote<C::NodeId>) -> Result<(), StorageError<C::NodeId>> {
        let shared = &self.reader.shared;
        let put = || Ok(shared.meta.put(keys::VOTE, codec::encode(vote)?)?);
        put().during(StorageIOError::write_vote)?;
        shared.flusher.wait().await.during(StorageIOError::write_vote)
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<C::NodeId>>, StorageError<C::NodeId>> {
        codec::read(&self.reader.shared.meta, keys::VOTE).during(StorageIOError::read_vote)
    }

    async fn save_committed(
        &mut self,
        committed: Option<LogId<C::NodeId>>,
    ) -> Result<(), StorageError<C::NodeId>> {
        let put = || {
            let bytes = codec::encode(&committed)?;
            Ok(self.reader.shared.meta.put(keys::COMMITTED, bytes)?)
        };
        put().during(StorageIOError::write)
    }

    async fn read_committed(
        &mut self,
    ) -> Result<Option<LogId<C::NodeId>>, StorageError<C::NodeId>> {
        codec::read(&self.reader.shared.meta, keys::COMMITTED)
            .map(Option::flatten)
            .during(StorageIOError::read)
    }

    /// Stores the entries at once, and calls `callback` when they are durable.
    async fn append<I>(
        &mut self,
        entries: I,
        callback: LogFlushed<C>,
    ) -> Result<(), StorageError<C::NodeId>>
    where
        I: IntoIterator<Item = C::Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.settle().await.during(StorageIOError::write_logs)?;
        self.store(entries).during(StorageIOError::write_logs)?;
        self.reader.shared.flusher.then(move |result| callback.log_io_completed(result));
        Ok(())
    }

    async fn truncate(&mut self, id: LogId<C::NodeId>) -> Result<(), StorageError<C::NodeId>> {
        self.settle().await.during(StorageIOError::write_logs)?;
        self.truncate_from(id.index).during(StorageIOError::write_logs)
    }

    async fn purge(&mut self, id: LogId<C::NodeId>) -> Result<(), StorageError<C::NodeId>> {
        self.settle().await.during(StorageIOError::write_logs)?;
        self.purge_to(id).during(StorageIOError::write_logs)
    }
}

impl<C: RaftTypeConfig> Clone for LogReader<C> {
    fn clone(&self) -> Self {
        LogReader { shared: Arc::clone(&self.shared), ends: Arc::clone(&self.ends) }
    }
}

impl<C: RaftTypeConfig> Debug for LogReader<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LogState { last_purged_log_id, last_log_id } = self.log_state();
        f.debug_struct("LogReader")
            .field("purged", &last_purged_log_id)
            .field("last", &last_log_id)
            .finish_non_exhaustive()
    }
}

impl<C: RaftTypeConfig> Debug for LogStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogStore").field(&self.reader).finish()
    }
}
