//! The store: a map in a file, and the one way in which it changes.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;
use std::time::{Duration, Instant};

use evermap_index::key::BytesRef;
use evermap_index::record::KEY_MAX;
use evermap_index::{Action, Change, Guard, MutateMode};
use evermap_pm::medium::Mapped;
use evermap_pm::region::{Identity, Opened, Region, RegionConfig};
use evermap_pm::{ErrorKind, Medium, Pool};

use crate::batch::intent;
use crate::batch::reservations::KeyReservations;
use crate::clock::Time;
use crate::error::storage;
use crate::file::{File, Origin};
use crate::index::PrimaryIndex;
use crate::maintenance::Maintenance;
use crate::maintenance::census::Count;
use crate::map::catalog::Maps;
use crate::map::header::{Map, MapHeader, MapState, OpenContext};
use crate::ordered::{KeyEvent, clear_saved};
use crate::record::cas::CasCounter;
use crate::record::partial::PartialBlocks;
use crate::record::{Draft, Record, VALUE_MAX, control_of, record_bytes, tombstone_of};
use crate::{Error, IndexKind, Meta, Options, Result};

/// Smallest capacity of a new store: below it, there is no room for records beside the index.
const fn least_capacity(index: IndexKind) -> u64 {
    match index {
        IndexKind::DashEh => 64 << 10,
        // Those begin with more buckets.
        _ => 128 << 10,
    }
}

/// How long a mutation that lacks space waits for readers that hold up the reuse of some.
const READER_WAIT: Duration = Duration::from_millis(500);
/// How many dead records a mutation removes at a time, so that those after it find room as well: where a limit is reached, and
/// where space for blocks is short.
const FOR_ROOM: u64 = 64;
const FOR_SPACE: u64 = 4096;

/// A map from keys to values that outlives the process.
///
/// All operations take `&self` and may be called from any number of threads; each is atomic, and all that
/// concern one key happen in some one order. A mutation is durable when it returns. Keys have up to
/// [`KEY_MAX`] bytes, values up to [`VALUE_MAX`].
///
/// Programs use it through [`Evermap`](crate::Evermap), which opens a file and keeps it in order in the
/// background. A bare `Store` runs on any [`Medium`], for instance on a simulator that crashes it, and
/// leaves the maintenance to its caller: [`recover`](Store::recover), [`purge`](Store::purge).
///
/// # Errors
///
/// Every operation can answer:
/// * [`Error::KeyTooLong`];
/// * [`Error::Damaged`] where the record of the key does not verify: other keys are not affected;
/// * [`Error::Closed`] after [`close`](Store::close), and [`Error::Dropped`] after [`drop_map`](Store::drop_map);
/// * [`Error::Storage`] with `Poisoned` after a thread panicked in the middle of a change, or `Damaged` where
///   the index is damaged. Mutations can return the latter although they have made their change, where the damage was met
///   afterwards.
///
/// Mutations can also answer [`Error::ValueTooLong`]; [`Error::Full`], [`Error::HeldUp`] or
/// [`Error::Storage`] with `NoSpace`, and nothing has changed then; [`Error::BeingModified`] inside
/// [`modify`](Store::modify); and [`Error::Storage`] with `Forked` in a forked child.
///
/// A file has a default map, which is what [`open`](Store::open) answers, and any number of [named](Store::map) ones. A
/// `Store` is a handle of one of them, to be cloned and shared. What concerns the file as a whole can be done
/// through any handle.
pub struct Store<M: Medium = Mapped> {
    pub(crate) file: Arc<File<M>>,
    pub(crate) map: Arc<Map<M>>,
}

impl<M: Medium> Clone for Store<M> {
    fn clone(&self) -> Self {
        Store { file: self.file.clone(), map: self.map.clone() }
    }
}

/// What a mutation decides about a key.
pub(crate) enum Verdict {
    /// Leave things as they are.
    Keep,
    /// Bind the key to the draft.
    Publish,
    /// Bind the key to the draft, with this control word.
    PublishWith(u64),
    /// Remove the key.
    Remove,
}

impl<M: Medium> Store<M> {
    /// Opens the store in `medium`, or makes one where there is none and [`Options::create`] allows it.
    ///
    /// O(1) in the number of records. After an unclean stop call [`recover`](Store::recover) at some time:
    /// space from before is not reused until then.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Storage`] with `NotAStore`, `NewerFormat`, `Damaged`, `Suspect`, `Config` or
    /// `NoSpace`.
    pub fn open(medium: M, identity: Identity, options: &Options) -> Result<Self> {
        if !Region::is_blank(&medium) {
            let (pool, opened) = Pool::open(medium, identity, options.on_suspect)?;
            return Self::assemble(pool, Some(opened), options);
        }
        if !options.create {
            return Err(Error::NotFound { path: PathBuf::new() });
        }
        Self::create(medium, identity, options)
    }

    /// Makes an empty store in `medium`, whatever was there before.
    ///
    /// # Errors
    /// [`Error::Storage`] with `Config` or `NoSpace`.
    pub fn create(medium: M, identity: Identity, options: &Options) -> Result<Self> {
        let least = least_capacity(options.index);
        if options.capacity < least {
            let text = format!(
                "a store with the index {} needs a capacity of at least {least} bytes, not {}",
                options.index, options.capacity
            );
            return Err(storage(ErrorKind::Config(text)));
        }
        let config = RegionConfig {
            extent_size: options.extent_size,
            capacity: options.capacity,
            seed: options.seed,
        };
        Self::assemble(Pool::create(medium, &config, identity)?, None, options)
    }

    /// `opened` is nothing for a new pool.
    fn assemble(pool: Arc<Pool<M>>, opened: Option<Opened>, options: &Options) -> Result<Self> {
        let (region, header) = (pool.region(), MapHeader::of_default(&pool));
        let root = header.root(&pool);
        let is_new = pool.medium().load(root) == 0;
        let index = if is_new {
            // Either a new region, or its creation was interrupted before the root was stored: everything
            // that the root is to vouch for is written first.
            // A page of zeros has no root either. But whoever interrupted the creation was opener 1.
            let is_zeroed = opened.is_some() && region.generation() < 2;
            if !CasCounter::is_unused(region) || is_zeroed {
                let at = pool.medium().offset_of(root);
                return Err(evermap_pm::Error::damaged(at, "the root of the index is lost").into());
            }
            CasCounter::create(region);
            header.create_flush(region);
            PrimaryIndex::create(options.index, false, &pool, root)?
        } else {
            PrimaryIndex::open(&pool, root)?
        };
        let cas_counter = CasCounter::open(region, options.on_suspect)?;
        pool.epoch().bound(options.reader_backlog);
        // Before anything else is done to any index, and before the sweep asks what they name.
        let damage_met = intent::resume(&pool, &index, options.on_suspect)?;
        let was_created = opened.is_none();
        let clean = opened.is_none_or(|opened| opened.clean);
        let suspect = opened.is_some_and(|opened| opened.suspect);
        let open_context = OpenContext { pool: &pool, cas_counter: &cas_counter, options, clean };
        let map = Arc::new(open_context.assemble(header, index, None, is_new)?);
        map.damage_met.store(damage_met, Relaxed);
        map.max_bytes.store(options.max_bytes, Relaxed);
        let file = File {
            maintenance: Maintenance::new(!pool.is_swept() || map.counters.is_counting(), is_new),
            cas_counter,
            reservations: KeyReservations::new(),
            clock: Time::new(options.clock.clone()),
            read_only: pool.medium().is_read_only(),
            verify: options.verify_reads || suspect,
            // What was created here is what this process has stored. For everything else there has to be a
            // promise, which cannot be meant for pages that may be of different ages.
            lends: !suspect
                && (options.assumes_exclusive_file || was_created && pool.medium().is_exclusive()),
            tombstone: tombstone_of(pool.generation()),
            partial: PartialBlocks::default(),
            origin: Origin {
                durability: options.durability,
                file_system: "memory".into(),
                clean,
                suspect,
                path: None,
            },
            options: options.clone(),
            closed: AtomicBool::new(false),
            default: map.clone(),
            maps: Maps::new(),
            pool,
        };
        Ok(Store { file: Arc::new(file), map })
    }

    /// Closes the file: waits for running operations of other threads and for guards of
    /// [readers](crate::Reader), and leaves everything in order, so that the next opening needs no sweep.
    /// Later operations on any of its maps answer [`Error::Closed`]; closing again does nothing. What
    /// [dropped](Store::drop_map) maps had and the background has not freed yet is freed first.
    ///
    /// # Errors
    /// [`Error::GuardHeld`], and nothing is closed then. [`Error::Storage`] with `Io` where the system
    /// could not write, `Poisoned` or `Forked`; the next opening then finds an unclean stop.
    pub fn close(&self) -> Result<()> {
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
        file.pool.epoch().synchronize();
        if file.read_only {
            return Ok(());
        }
        // Nobody writes any more, and no record will come of them.
        if !file.pool.medium().mutant("VW-2") {
            file.partial.free_all(&file.pool);
        }
        // What dropped maps had, and nobody has freed yet: saved as taken, it would be so for ever. Where the next opening
        // sweeps, it finds out.
        if file.pool.is_swept() && !file.pool.medium().mutant("MA-2") {
            self.reclaim_pending_drops();
        }
        file.cas_counter.close(file.pool.region());
        for store in self.open_maps() {
            store.save_order();
            store.map.save_totals(&file.pool);
        }
        for header in uncounted {
            header.write_totals(&file.pool, None);
            clear_saved(&file.pool, header.saved(&file.pool));
        }
        Ok(file.pool.close()?)
    }

    /// How many records are stored: exact whenever no mutation is running, unless the store was opened after
    /// an unclean stop and has not been swept yet. Counts records that expired or were flushed until the
    /// background maintenance has removed them. O(1).
    ///
    /// ```
    /// # let map = evermap::Evermap::open("", evermap::Options::volatile())?;
    /// map.put(b"key", b"value")?;
    /// assert_eq!(map.len().value, 1);
    /// assert_eq!(map.len().to_string(), "1");
    /// # Ok::<(), evermap::Error>(())
    /// ```
    #[allow(clippy::len_without_is_empty)] // "empty" would not say whether it is sure
    pub fn len(&self) -> Count {
        let (totals, exact) = self.map.counters.totals();
        Count { value: totals.records, exact }
    }

    /// How many bytes the blocks of all records take. Exact when [`len`](Store::len) is. O(1).
    ///
    /// ```
    /// # let map = evermap::Evermap::open("", evermap::Options::volatile())?;
    /// map.put(b"key", &[0; 1000])?;
    /// assert!(map.bytes().value >= 1003);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn bytes(&self) -> Count {
        let (totals, exact) = self.map.counters.totals();
        Count { value: totals.bytes, exact }
    }

    /// The key with its hash.
    #[inline]
    pub(crate) fn key<'k>(&self, key: &'k [u8]) -> Result<BytesRef<'k>> {
        if key.len() > KEY_MAX {
            return Err(Error::KeyTooLong { len: key.len(), max: KEY_MAX });
        }
        Ok(BytesRef::new(key, self.file.pool.seed()))
    }

    /// Begins an operation.
    #[inline]
    pub(crate) fn enter(&self) -> Result<Guard<'_>> {
        let (file, map) = (&*self.file, &*self.map);
        let guard = file.pool.pin();
        if !map.is_open() {
            return Err(map.refusal());
        }
        if map.flush.flush_if_due(file.pool.region(), &file.cas_counter, &file.clock) {
            self.has_flushed();
        }
        Ok(guard)
    }

    /// A flush has left something to remove.
    pub(crate) fn has_flushed(&self) {
        self.map.expiries.owe_walk();
        self.file.maintenance.want_purge();
    }

    /// Begins a mutation.
    #[inline]
    pub(crate) fn enter_writing(&self) -> Result<Guard<'_>> {
        // Before anything is allocated: in a forked child even a block is not ours to write.
        self.file.ensure_writable()?;
        self.enter()
    }

    /// Takes the space of a record, if the map has room for it; to be written before it is published.
    pub(crate) fn draft<'d>(
        &'d self,
        key: BytesRef<'d>,
        value: &'d [u8],
        meta: Meta,
    ) -> Result<Draft<'d, M>> {
        ensure_length(value)?;
        if self.map.max_bytes.load(Relaxed) != u64::MAX {
            let bytes = record_bytes(key.bytes.len(), value.len());
            self.ensure_room(self.file.pool.block_size(bytes))?;
        }
        self.reserve(key, value, meta, control_of(meta.expires_at))
    }

    /// The same whether or not there is room for it, and with a control word that may differ from what it is to be.
    pub(crate) fn reserve<'d>(
        &'d self,
        key: BytesRef<'d>,
        value: &'d [u8],
        meta: Meta,
        control: u64,
    ) -> Result<Draft<'d, M>> {
        ensure_length(value)?;
        let cas = self.file.cas_counter.take(self.file.pool.region())?;
        let (pool, owner) = (&self.file.pool, self.map.header.owner());
        Draft::reserve(pool, owner, key.bytes, value, meta.flags, control, cas)
    }

    /// Tries again where space was short but some can be had: what dead records take, or saved keys, or waits for readers to
    /// end, or for the sweep, or lies scattered in blocks of other sizes.
    ///
    /// `attempt` must not hold a guard when it returns.
    pub(crate) fn with_space<R>(&self, mut attempt: impl FnMut() -> Result<R>) -> Result<R> {
        let is_short = |answer: &Result<R>| matches!(answer, Err(Error::Storage(error)) if error.is_no_space());
        let mut answer = attempt();
        while let Err(Error::Full { needed, .. }) = answer {
            let made = self.open_maps().iter().any(|store| store.make_room(needed));
            // Even if not: others may have made some before we looked.
            answer = attempt();
            if !made {
                break;
            }
        }
        let mut drained = true;
        if is_short(&answer) {
            // Keys that were saved for opening have no claim to space that records need.
            self.open_maps().iter().for_each(Self::forget_saved);
            self.remove_some_dead();
            if self.file.maintenance.wait_for_space() && self.is_walk_due() {
                self.walk_for_space(|| !self.is_walk_due());
            }
            drained = self.drain();
            answer = attempt();
        }
        // More of what has expired, until enough of one size is free; unless a reader keeps all of it from being reused.
        while is_short(&answer) && drained && self.remove_some_dead() {
            drained = self.drain();
            answer = attempt();
        }
        if is_short(&answer) && self.move_together(1, Duration::ZERO).is_ok_and(|moved| moved > 0) {
            self.drain();
            answer = attempt();
        }
        answer
    }

    /// Waits for readers that hold up the reuse of space, but not for long; returns whether they were gone in time.
    fn drain(&self) -> bool {
        let began = Instant::now();
        self.file.pool.epoch().drain_within(READER_WAIT);
        began.elapsed() < READER_WAIT
    }

    /// If this map is full: removes dead records, or waits until others have, or until it is known how much there is. Returns
    /// whether there is room for `bytes` now, as far as that can be told, where there was none before.
    #[cold]
    fn make_room(&self, bytes: u64) -> bool {
        let has_room = || self.ensure_room(bytes).is_ok();
        if has_room() {
            return false;
        }
        // A failure to remove leaves things as they are.
        let _ = self.remove_expired(FOR_ROOM);
        let (maintenance, expiries) = (&self.file.maintenance, &self.map.expiries);
        let is_counted = has_room() || self.bytes().exact || maintenance.wait_for_space();
        if !has_room() && is_counted && expiries.is_walk_due() {
            self.walk_for_space(|| has_room() || !expiries.is_walk_due());
        }
        has_room()
    }

    /// Removes some of what has expired in each map; returns whether there was anything.
    fn remove_some_dead(&self) -> bool {
        let removed = |store: &Self| store.remove_expired(FOR_SPACE).unwrap_or(0);
        self.open_maps().iter().map(removed).sum::<u64>() > 0
    }

    /// Waits until a walk in the background has found `enough` dead records, or walks if nobody else does.
    fn walk_for_space(&self, enough: impl Fn() -> bool) {
        if self.file.maintenance.wait_for_walk(enough) {
            return;
        }
        // Not waiting: whoever holds this may himself wait for a reader of the calling thread.
        if let Some(sweeping) = self.file.maintenance.try_sweeping() {
            let _ = self.walk_maps(&sweeping);
        }
    }

    /// Whether blocks of this many bytes may be added.
    pub(crate) fn ensure_room(&self, bytes: u64) -> Result<()> {
        let limit = self.map.max_bytes.load(Relaxed);
        if limit != u64::MAX && self.map.counters.most_bytes() + bytes > limit {
            return Err(Error::Full { limit, needed: bytes });
        }
        Ok(())
    }

    /// Whether a record is flushed or expired; `None` if its control word is damaged or a tombstone.
    #[inline]
    pub(crate) fn is_dead(&self, record: &Record<'_, M>, mark: u64) -> Option<bool> {
        if record.cas() < mark {
            return Some(true);
        }
        let expires_at = record.expires_at()?;
        Some(expires_at != 0 && expires_at <= self.file.clock.now())
    }

    /// The record that `word` names, unless it is unreadable, flushed or expired.
    pub(crate) fn live(&self, word: u64, mark: u64) -> Option<Record<'_, M>> {
        let record = Record::at(self.file.pool.medium(), word).ok()?;
        (self.is_dead(&record, mark) == Some(false)).then_some(record)
    }

    /// The way in which everything but [batches](Store::apply) changes: asks `decide` what to do about the live record of `key`, if
    /// there is one, while the key is locked, and does it.
    ///
    /// A record that is dead or unreadable is not shown to `decide`, and goes away on the way. `decide` may
    /// be called more than once, must not panic, and must not use the store. With
    /// [`MutateMode::ExistingOnly`] it may not be called at all.
    pub(crate) fn commit(
        &self,
        key: BytesRef<'_>,
        mode: MutateMode,
        guard: &Guard<'_>,
        draft: Option<&Draft<'_, M>>,
        decide: &mut dyn FnMut(Option<Record<'_, M>>) -> Verdict,
    ) -> Result<Change> {
        let mut turn = None;
        loop {
            let since = self.unbindings(key);
            let (mut born_flushed, mut claimed, mut flushing) = (false, false, false);
            // Whether a record was there that nobody can see.
            let mut was_hidden = false;
            // What `decide` has said is done, even if tidying up afterwards fails.
            let mut decided = None;
            let mut decide_once = |word: Option<u64>| {
                // Whoever has the turn need not ask: no batch runs.
                claimed = turn.is_none() && self.file.reservations.is_reserved(key.hash);
                if claimed {
                    return Action::Keep;
                }
                let Some(mark) = self.map.flush.settled_mark() else {
                    flushing = true;
                    return Action::Keep;
                };
                let live = word.and_then(|word| self.live(word, mark));
                was_hidden = word.is_some() && live.is_none();
                let action = match (decide(live), draft) {
                    (Verdict::Publish | Verdict::PublishWith(_), Some(draft))
                        if draft.cas() < mark =>
                    {
                        // A flush came between the draft and now. What we replace may be absent because of
                        // it, so we come after it, and must not be flushed ourselves.
                        born_flushed = true;
                        Action::Keep
                    }
                    (Verdict::Publish, Some(draft)) => publish(draft),
                    (Verdict::PublishWith(control), Some(draft)) => {
                        draft.set_control(control);
                        publish(draft)
                    }
                    (Verdict::Remove, _) => Action::Remove,
                    _ if word.is_some() && live.is_none() => Action::Remove,
                    _ => Action::Keep,
                };
                // A mistake, which tests have to notice: what is still bound has a tombstone for a moment.
                if self.file.pool.medium().mutant("TO-1") && action != Action::Keep {
                    live.inspect(|record| record.set_tombstone(self.file.tombstone));
                }
                action
            };
            let done = self.map.index.mutate(key, mode, guard, &mut |word| {
                let action = decide_once(word);
                decided = Some(change_of(word, action));
                action
            });
            let (change, failed) = settled(self.injected_failure(done), decided)?;
            if claimed {
                turn = Some(self.file.reservations.permit());
                continue;
            }
            if flushing {
                self.map.flush.wait_for_flush();
                continue;
            }
            if let (true, Some(draft)) = (born_flushed, draft) {
                draft.set_cas(self.file.cas_counter.take(self.file.pool.region())?);
                continue;
            }
            if change.changed() {
                self.account(key, change.old, draft.filter(|_| change.new.is_some()), guard);
                if let Some(event) = KeyEvent::of(change.old, change.new, was_hidden, since) {
                    self.notice(key, event, guard);
                }
            }
            return failed.map_or(Ok(change), |error| Err(error.into()));
        }
    }

    /// In tests, an error after the change was made instead of what the index answers.
    #[inline(always)]
    fn injected_failure(&self, done: evermap_pm::Result<Change>) -> evermap_pm::Result<Change> {
        if self.file.pool.medium().mutant("ST-1") && done.as_ref().is_ok_and(Change::changed) {
            return Err(evermap_pm::Error::damaged(0, "injected_failure"));
        }
        done
    }

    /// Retires what was replaced, counts, and sees to it that the key is looked at when the new record expires.
    pub(crate) fn account(
        &self,
        key: BytesRef<'_>,
        old: Option<u64>,
        new: Option<&Draft<'_, M>>,
        guard: &Guard<'_>,
    ) {
        if let Some(expiry) = new.and_then(Draft::expiry) {
            // Nobody changes it any more, now that it is unlinked, and the guard keeps it.
            let old = old.and_then(|word| Record::at(self.file.pool.medium(), word).ok());
            let before = old.and_then(|record| record.expires_at());
            self.expect_instead(key.hash, before, Some(expiry));
        }
        let (mut records, mut bytes) = (0, 0);
        if let Some(word) = old
            && let Some(gone) = self.retire(word, guard)
        {
            (records, bytes) = (-1, -(gone as i64));
        }
        if let Some(draft) = new {
            records += 1;
            bytes += draft.block_bytes() as i64;
            self.map.size_hint.written(draft.cas(), draft.block_bytes());
        }
        if self.map.counters.change(records, bytes) {
            self.map.set_bound(&self.file.pool);
        }
    }

    /// Retires a record that was unlinked durably, and sees to it that it is not readable any more; returns the bytes that it
    /// was counted with. `None` if this happened to it before: it was not counted then, and its block is not ours.
    fn retire(&self, word: u64, guard: &Guard<'_>) -> Option<u64> {
        let Ok(record) = Record::at(self.file.pool.medium(), word) else {
            // Damage: its block may be part of something else by now. Better to lose it than to free that.
            return Some(0);
        };
        // Damage has led the index to it again. Its block is free, or is the next one that some thread writes.
        if record.is_unbound() {
            self.met_damage();
            return None;
        }
        record.set_tombstone(self.file.tombstone);
        let (offset, bytes) = (record.offset(), self.file.pool.block_size(record.bytes()));
        if self.map.counters.is_counting() && record.cas() < self.file.cas_counter.first() {
            self.map.counters.departed(offset, bytes);
        }
        self.file.pool.retire(offset, bytes, guard);
        Some(bytes)
    }

    /// Notes that a read met damage.
    #[cold]
    pub(crate) fn met_damage(&self) {
        self.map.damage_met.fetch_add(1, Relaxed);
    }

    /// How often damage was met since opening, in records and in the index.
    pub(crate) fn damage_met(&self) -> u64 {
        self.map.damage_met.load(Relaxed) + self.map.index.damage_met()
    }

    /// Whether the file was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.file.closed.load(SeqCst)
    }
}

/// Whether a value is short enough.
pub(crate) fn ensure_length(value: &[u8]) -> Result<()> {
    match value.len() {
        len if len > VALUE_MAX => Err(Error::ValueTooLong { len, max: VALUE_MAX }),
        _ => Ok(()),
    }
}

/// What a key is bound to before and after an action.
fn change_of(old: Option<u64>, action: Action) -> Change {
    let new = match action {
        Action::Keep => old,
        Action::Put(word) => Some(word),
        Action::Remove => None,
    };
    Change { old, new }
}

/// What a mutation has changed, and what failed afterwards, given what the index answers and what was decided.
///
/// # Errors
/// What the index answers, if nothing has changed.
fn settled(
    done: evermap_pm::Result<Change>,
    decided: Option<Change>,
) -> evermap_pm::Result<(Change, Option<evermap_pm::Error>)> {
    match (done, decided.filter(Change::changed)) {
        (Ok(change), _) => Ok((change, None)),
        // It was done, and whoever lacks space would try again: that what could have come after it lacked some is not his concern.
        (Err(error), Some(change)) if error.is_no_space() => Ok((change, None)),
        (Err(error), Some(change)) => Ok((change, Some(error))),
        (Err(error), None) => Err(error),
    }
}

fn publish<M: Medium>(draft: &Draft<'_, M>) -> Action {
    // From here on a panic must not free it: it may be reachable.
    draft.set_published();
    Action::Put(draft.word())
}
