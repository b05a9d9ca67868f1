//! The state machine of a node: a map that the entries of the log are applied to.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use evermap::{Batch, Map, MapOptions};
use openraft::storage::{RaftStateMachine, Snapshot};
use openraft::{
    Entry, EntryPayload, LogId, OptionalSend, RaftSnapshotBuilder, RaftTypeConfig, StorageError,
    StorageIOError, StoredMembership,
};
use tokio::io::AsyncWriteExt;

use crate::error::During;
use crate::flush::blocking;
use crate::shared::{META, Shared, keys, state_name};
use crate::snapshot::{Folder, Meta, SnapshotReader, SnapshotWriter};
use crate::{Changes, Command, Error, Result, SnapshotFile, codec};

/// How many bytes of an installed snapshot become durable at once.
const INSTALL_BYTES: usize = 32 << 20;

type Membership<C> = StoredMembership<<C as RaftTypeConfig>::NodeId, <C as RaftTypeConfig>::Node>;
type Applied<C> = (Option<LogId<<C as RaftTypeConfig>::NodeId>>, Membership<C>);

/// A snapshot that is kept, and where.
type CurrentSnapshot<C> = Option<(Meta<C>, PathBuf)>;

/// What the entries of the log are applied to, for [`openraft::Raft::new`].
pub struct StateMachine<C: RaftTypeConfig> {
    parts: Parts<C>,
}

/// Writes snapshots of a state machine while that goes on.
pub struct SnapshotBuilder<C: RaftTypeConfig> {
    parts: Parts<C>,
}

/// A handle of a node's state, for reading.
///
/// What it shows is what this node has applied, which may be older than what others have. For a
/// read that is linearizable, call [`openraft::Raft::ensure_linearizable`] before.
#[derive(Clone)]
pub struct State {
    shared: Arc<Shared>,
    current: Arc<RwLock<Current>>,
}

/// The state that entries are applied to now.
struct Current {
    number: u64,
    map: Map,
}

/// What a state machine, its builders and its handles share.
struct Parts<C: RaftTypeConfig> {
    state: State,
    folder: Arc<Folder>,
    snapshot: Arc<Mutex<CurrentSnapshot<C>>>,
}

impl State {
    /// Returns the value under `key`.
    ///
    /// # Errors
    /// Those of [`Map::get`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> evermap::Result<Option<Vec<u8>>> {
        // Held, so that the map is not dropped meanwhile.
        self.current.read().unwrap_or_else(PoisonError::into_inner).map.get(key)
    }

    /// Returns the map of the state, for everything else that can be read of it: walks, scans,
    /// borrowed values. A change of it would not be replicated.
    ///
    /// When this node installs a snapshot, another map takes its place, and operations of this one
    /// return [`evermap::Error::Dropped`]: call this again then.
    pub fn map(&self) -> Map {
        self.current.read().unwrap_or_else(PoisonError::into_inner).map.clone()
    }
}

impl<C> StateMachine<C>
where
    C: RaftTypeConfig<Entry = Entry<C>, SnapshotData = SnapshotFile>,
    C::D: Command<Reply = C::R>,
{
    pub(crate) fn open(shared: Arc<Shared>, folder: Arc<Folder>) -> Result<Self> {
        let number = codec::read(&shared.meta, keys::STATE)?.unwrap_or(0);
        shared.drop_other_states(number)?;
        let (applied, _) = read_applied::<C>(&shared.meta)?;
        // What is newer than the state belongs to an installation that was killed, or was made of
        // changes that were not durable when power was lost.
        let snapshot = folder.newest::<C>(|meta| meta.last_log_id <= applied)?;
        let current = Arc::new(RwLock::new(Current { number, map: shared.state(number)? }));
        let state = State { shared, current };
        Ok(StateMachine {
            parts: Parts { state, folder, snapshot: Arc::new(Mutex::new(snapshot)) },
        })
    }

    /// Returns a handle for reading the state.
    pub fn state(&self) -> State {
        self.parts.state.clone()
    }
}

/// The answer to an entry without a command.
fn no_reply<D: Command>() -> D::Reply {
    D::Reply::default()
}

fn read_applied<C: RaftTypeConfig>(meta: &Map) -> Result<Applied<C>> {
    let membership = codec::read(meta, keys::MEMBERSHIP)?.unwrap_or_default();
    Ok((codec::read(meta, keys::APPLIED)?, membership))
}

/// Adds to a batch what is noted with each change of the state.
fn note<C: RaftTypeConfig>(
    batch: &mut Batch,
    applied: &Option<LogId<C::NodeId>>,
    membership: Option<&Membership<C>>,
) -> Result<()> {
    batch.in_map(META);
    match applied {
        Some(applied) => batch.put(keys::APPLIED, codec::encode(applied)?),
        None => batch.remove(keys::APPLIED),
    };
    if let Some(membership) = membership {
        batch.put(keys::MEMBERSHIP, codec::encode(membership)?);
    }
    Ok(())
}

impl<C> Parts<C>
where
    C: RaftTypeConfig<Entry = Entry<C>, SnapshotData = SnapshotFile>,
    C::D: Command<Reply = C::R>,
{
    /// Applies entries. A kill leaves a state that the first ones of them were applied to.
    fn apply(&self, entries: impl IntoIterator<Item = Entry<C>>) -> Result<Vec<C::R>> {
        let current = self.state.current.read().unwrap_or_else(PoisonError::into_inner);
        let mut changes = Changes::new(&current.map);
        let (mut applied, mut membership, mut replies) = (None, None, Vec::new());
        for entry in entries {
            if changes.is_many() {
                self.commit(current.number, &mut changes, &applied, membership.take())?;
            }
            replies.push(match entry.payload {
                EntryPayload::Blank => no_reply::<C::D>(),
                EntryPayload::Normal(command) => command.apply(&mut changes)?,
                EntryPayload::Membership(new) => {
                    membership = Some(StoredMembership::new(Some(entry.log_id.clone()), new));
                    no_reply::<C::D>()
                }
            });
            applied = Some(entry.log_id);
        }
        if applied.is_some() {
            self.commit(current.number, &mut changes, &applied, membership)?;
        }
        Ok(replies)
    }

    /// Makes changes and what is noted with them in one batch. Nobody waits until that is durable:
    /// the log is.
    fn commit(
        &self,
        number: u64,
        changes: &mut Changes<'_>,
        applied: &Option<LogId<C::NodeId>>,
        membership: Option<Membership<C>>,
    ) -> Result<()> {
        let mut batch = Batch::new();
        note::<C>(&mut batch, applied, membership.as_ref())?;
        changes.drain_to(batch.in_map(&*state_name(number)));
        // There are no conditions that could be refused.
        let _ = self.state.shared.db.apply(&batch)?;
        Ok(())
    }

    /// Makes a snapshot of an instant, while entries are applied.
    fn build(&self) -> Result<Snapshot<C>> {
        let part = self.folder.unfinished();
        let built = self.write_instant(&part).and_then(|meta| self.keep(meta, &part));
        if built.is_err() {
            let _ = std::fs::remove_file(&part);
        }
        built
    }

    /// Writes the state at one instant to a file.
    fn write_instant(&self, path: &Path) -> Result<Meta<C>> {
        let instant = self.state.shared.db.snapshot()?;
        let meta_map = instant.map(META, MapOptions::new().create(false))?;
        let (last_log_id, last_membership) = read_applied::<C>(&meta_map)?;
        let number = codec::read(&meta_map, keys::STATE)?.unwrap_or(0);
        let index = last_log_id.as_ref().map_or(0, |id| id.index);
        let snapshot_id = format!("{index}-{}", self.folder.unique());
        let meta = Meta::<C> { last_log_id, last_membership, snapshot_id };
        let mut writer = SnapshotWriter::create::<C>(path, &meta)?;
        let map = instant.map(&state_name(number), MapOptions::new().create(false))?;
        for pair in map.iter() {
            let (key, value) = pair?;
            writer.record(&key, &value)?;
        }
        writer.finish()?;
        Ok(meta)
    }

    /// Makes a complete file the current snapshot, unless there is a newer one.
    fn keep(&self, meta: Meta<C>, part: &Path) -> Result<Snapshot<C>> {
        let mut current = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|(current, _)| current.last_log_id > meta.last_log_id) {
            let file = SnapshotFile::open_temporary(part.to_owned())?;
            return Ok(Snapshot { meta, snapshot: Box::new(file) });
        }
        let path = self.folder.complete(part)?;
        let file = SnapshotFile::open(path.clone())?;
        if let Some((_, old)) = current.replace((meta.clone(), path)) {
            // Who reads it has it open.
            std::fs::remove_file(old)?;
        }
        Ok(Snapshot { meta, snapshot: Box::new(file) })
    }

    /// Puts the state of a snapshot in the place of the current one: a new map is filled beside it,
    /// and one batch makes that the current one. A kill before that leaves the old state, a later
    /// one the new state.
    fn install(&self, meta: &Meta<C>, file: SnapshotFile) -> Result<()> {
        self.switch(meta, &file).inspect_err(|_| {
            let installs = &self.state.shared.installs;
            installs.send_modify(|installs| installs.has_failed = true);
        })?;
        self.keep(meta.clone(), &file.into_part(&self.folder)?)?;
        Ok(())
    }

    fn switch(&self, meta: &Meta<C>, file: &SnapshotFile) -> Result<()> {
        let shared = &self.state.shared;
        let old = self.state.current.read().unwrap_or_else(PoisonError::into_inner).number;
        let number = old + 1;
        shared.drop_other_states(old)?;
        let map = self.fill(meta, file, number).inspect_err(|_| {
            // Otherwise the next installation does it.
            let _ = shared.drop_other_states(old);
        })?;
        let mut batch = Batch::new();
        note::<C>(&mut batch, &meta.last_log_id, Some(&meta.last_membership))?;
        batch.put(keys::STATE, codec::encode(&number)?);
        // The log before it is purged, and must not be gone sooner.
        let purged: Option<LogId<C::NodeId>> = codec::read(&shared.meta, keys::PURGED)?;
        if let Some(last) = meta.last_log_id.as_ref().filter(|last| purged.as_ref() < Some(last)) {
            batch.put(keys::PURGED, codec::encode(last)?);
        }
        // There are no conditions that could be refused.
        let _ = shared.db.apply(&batch)?;
        let current = Current { number, map };
        *self.state.current.write().unwrap_or_else(PoisonError::into_inner) = current;
        // The leader is told that this node has it all.
        shared.db.sync()?;
        shared.drop_other_states(number)
    }

    /// Makes a map with the records of a snapshot.
    fn fill(&self, meta: &Meta<C>, file: &SnapshotFile, number: u64) -> Result<Map> {
        let (found, records) = SnapshotReader::open::<C>(file.path())?;
        if found != *meta {
            let what = format!("the snapshot is {found}, and not {meta}");
            return Err(Error::Damaged(what));
        }
        let shared = &self.state.shared;
        let map = shared.state(number)?;
        let mut bytes = 0;
        records.records(|key, value| {
            map.put(key, value)?;
            bytes += key.len() + value.len();
            if bytes >= INSTALL_BYTES {
                bytes = 0;
                shared.db.sync()?;
            }
            Ok(())
        })?;
        Ok(map)
    }

    fn current_snapshot(&self) -> Result<Option<Snapshot<C>>> {
        let current = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((meta, path)) = &*current else { return Ok(None) };
        let file = SnapshotFile::open(path.clone())?;
        Ok(Some(Snapshot { meta: meta.clone(), snapshot: Box::new(file) }))
    }
}

impl<C> RaftStateMachine<C> for StateMachine<C>
where
    C: RaftTypeConfig<Entry = Entry<C>, SnapshotData = SnapshotFile>,
    C::D: Command<Reply = C::R>,
{
    type SnapshotBuilder = SnapshotBuilder<C>;

    async fn applied_state(&mut self) -> Result<Applied<C>, StorageError<C::NodeId>> {
        let meta = &self.parts.state.shared.meta;
        read_applied::<C>(meta).during(StorageIOError::read_state_machine)
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<C::R>, StorageError<C::NodeId>>
    where
        I: IntoIterator<Item = Entry<C>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.parts.apply(entries).during(StorageIOError::write_state_machine)
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder<C> {
        SnapshotBuilder { parts: self.parts.clone() }
    }

    async fn begin_receiving_snapshot(
        &mut self,
    ) -> Result<Box<SnapshotFile>, StorageError<C::NodeId>> {
        let Parts { folder, state, .. } = &self.parts;
        SnapshotFile::create(folder.unfinished(), &state.shared.installs)
            .map(Box::new)
            .during(|error| StorageIOError::write_snapshot(None, error))
    }

    async fn install_snapshot(
        &mut self,
        meta: &Meta<C>,
        mut snapshot: Box<SnapshotFile>,
    ) -> Result<(), StorageError<C::NodeId>> {
        let failed = |error| StorageIOError::write_snapshot(Some(meta.signature()), error);
        snapshot.flush().await.map_err(Error::Io).during(failed)?;
        let (parts, of) = (self.parts.clone(), meta.clone());
        blocking(move || parts.install(&of, *snapshot)).await.during(failed)
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> Result<Option<Snapshot<C>>, StorageError<C::NodeId>> {
        self.parts.current_snapshot().during(|error| StorageIOError::read_snapshot(None, error))
    }
}

impl<C> RaftSnapshotBuilder<C> for SnapshotBuilder<C>
where
    C: RaftTypeConfig<Entry = Entry<C>, SnapshotData = SnapshotFile>,
    C::D: Command<Reply = C::R>,
{
    async fn build_snapshot(&mut self) -> Result<Snapshot<C>, StorageError<C::NodeId>> {
        let parts = self.parts.clone();
        blocking(move || parts.build())
            .await
            .during(|error| StorageIOError::write_snapshot(None, error))
    }
}

impl<C: RaftTypeConfig> Clone for Parts<C> {
    fn clone(&self) -> Self {
        Parts {
            state: self.state.clone(),
            folder: Arc::clone(&self.folder),
            snapshot: Arc::clone(&self.snapshot),
        }
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("map", &self.map().name()).finish_non_exhaustive()
    }
}

impl<C: RaftTypeConfig> fmt::Debug for StateMachine<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StateMachine").field(&self.parts.state).finish()
    }
}

impl<C: RaftTypeConfig> fmt::Debug for SnapshotBuilder<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SnapshotBuilder").field(&self.parts.state).finish()
    }
}
