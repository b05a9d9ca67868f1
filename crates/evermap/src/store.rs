//! The store: what is in a pool, and the one way in which it changes.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, fence};
use std::time::Duration;

use evermap_index::key::BytesRef;
use evermap_index::record::KEY_MAX;
use evermap_index::{Action, Change, Guard, Intent};
use evermap_pm::medium::Mapped;
use evermap_pm::region::{Identity, Opened, Region, RegionConfig};
use evermap_pm::{Medium, Pool};

use crate::census::{Count, Counters, Totals};
use crate::claims::Claims;
use crate::intent;
use crate::ordered::Ordered;
use crate::primary::Primary;
use crate::record::{Draft, Record, VALUE_MAX, control_of, record_bytes};
use crate::sealed::{Place, seal, unseal};
use crate::stamps::Stamps;
use crate::upkeep::Upkeep;
use crate::{Clock, Durability, Error, Meta, Options, Result};

/// Root slot of the primary index.
const PRIMARY: usize = 0;

/// A map from keys to values that outlives the process.
///
/// All operations take `&self` and may be called from any number of threads; each is atomic, and all that
/// concern one key happen in some one order. A mutation is durable when it returns. Keys have up to
/// [`KEY_MAX`] bytes, values up to [`VALUE_MAX`].
///
/// Programs use it through [`Evermap`](crate::Evermap), which opens a file and keeps it in order in the
/// background. A bare `Store` runs on any [`Medium`], for instance on a simulator that crashes it, and
/// leaves the upkeep to its caller: [`recover`](Store::recover), [`purge`](Store::purge).
///
/// # Errors
///
/// Every operation can answer:
/// * [`Error::KeyTooLong`];
/// * [`Error::Damaged`] where the record of the key does not verify: other keys are not affected;
/// * [`Error::Closed`] after [`close`](Store::close);
/// * [`Error::Pm`] with `Poisoned` after a thread panicked in the middle of a change, or `Damaged` where
///   the index is damaged.
///
/// Mutations can also answer [`Error::ValueTooLong`]; [`Error::Full`] or [`Error::Pm`] with `NoSpace`, and
/// nothing has changed then; and [`Error::Pm`] with `Forked` in a forked child.
pub struct Store<M: Medium = Mapped> {
    pub(crate) pool: Arc<Pool<M>>,
    pub(crate) index: Primary<M>,
    pub(crate) stamps: Stamps,
    pub(crate) counters: Counters,
    pub(crate) clock: Clock,
    pub(crate) verify: bool,
    pub(crate) max_bytes: u64,
    pub(crate) claims: Claims,
    closed: AtomicBool,
    /// Reads that met a damaged record since opening.
    pub(crate) damage_met: AtomicU64,
    pub(crate) upkeep: Upkeep,
    /// Nothing unless [`Options::ordered`] asks for it.
    pub(crate) ordered: Option<Ordered>,
    pub(crate) origin: Origin,
}

/// What the store was opened from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    pub(crate) path: Option<PathBuf>,
    pub(crate) file_system: String,
    pub(crate) durability: Durability,
    pub(crate) clean: bool,
    pub(crate) suspect: bool,
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
    /// [`Error::NotFound`]; [`Error::Pm`] with `NotAStore`, `NewerFormat`, `Damaged`, `Suspect`, `Config` or
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
    /// [`Error::Pm`] with `Config` or `NoSpace`.
    pub fn create(medium: M, identity: Identity, options: &Options) -> Result<Self> {
        let config = RegionConfig {
            extent_size: options.extent_size,
            capacity: options.capacity,
            seed: options.seed,
        };
        Self::assemble(Pool::create(medium, &config, identity)?, None, options)
    }

    /// `opened` is nothing for a new pool.
    fn assemble(pool: Arc<Pool<M>>, opened: Option<Opened>, options: &Options) -> Result<Self> {
        let region = pool.region();
        let is_new = pool.medium().load(pool.root(PRIMARY)) == 0;
        let index = if is_new {
            // Either a new region, or its creation was interrupted before the root was stored: everything
            // that the root is to vouch for is written first.
            if !Stamps::is_unused(region) {
                let at = pool.medium().offset_of(pool.root(PRIMARY));
                return Err(evermap_pm::Error::damaged(at, "the root of the index is lost").into());
            }
            Stamps::create(region);
            Primary::create(options.index, &pool, PRIMARY)?
        } else {
            Primary::open(&pool, PRIMARY)?
        };
        let stamps = Stamps::open(region, options.on_suspect)?;
        // Before anything else is done to the index, and before the sweep asks what it names.
        let damage_met = intent::resume(&pool, &index, options.on_suspect)?;
        let clean = opened.is_none_or(|opened| opened.clean);
        let suspect = opened.is_some_and(|opened| opened.suspect);
        let known = match is_new {
            true => Some(Totals::default()),
            false if clean => read_totals(region),
            false => None,
        };
        Ok(Store {
            upkeep: Upkeep::new(!pool.is_swept() || known.is_none()),
            ordered: options.ordered.then(|| Ordered::new(options.notices, is_new)).transpose()?,
            index,
            stamps,
            counters: Counters::new(known),
            clock: options.clock.clone(),
            verify: options.verify_reads || suspect,
            max_bytes: options.max_bytes,
            claims: Claims::new(),
            closed: AtomicBool::new(false),
            damage_met: AtomicU64::new(damage_met),
            origin: Origin {
                durability: options.durability,
                file_system: "memory".into(),
                clean,
                suspect,
                path: None,
            },
            pool,
        })
    }

    /// Closes the store: waits for running operations of other threads and for guards of
    /// [readers](crate::Reader), and leaves everything in order, so that the next opening needs no sweep.
    /// Later operations answer [`Error::Closed`]; closing again does nothing.
    ///
    /// The calling thread must not hold a [`Reader`](crate::Reader): it would wait for itself.
    ///
    /// # Errors
    /// [`Error::Pm`] with `Io` where the system could not write, `Poisoned` or `Forked`; the next opening then
    /// finds an unclean stop.
    pub fn close(&self) -> Result<()> {
        // SeqCst: an operation pins a guard and then reads this; we store it and then look for guards. One
        // of the two sees the other.
        if self.closed.swap(true, SeqCst) {
            return Ok(());
        }
        self.pool.region().ensure_writable()?;
        self.upkeep.stop();
        let _sweeping = self.upkeep.sweeping();
        fence(SeqCst);
        self.pool.epoch().synchronize();
        self.stamps.close(self.pool.region());
        self.write_totals();
        Ok(self.pool.close()?)
    }

    fn write_totals(&self) {
        let (totals, exact) = self.counters.totals();
        let m = self.pool.medium();
        let cells = &self.pool.region().words().counters;
        let words = [(Place::Records, totals.records), (Place::Bytes, totals.bytes)];
        for (cell, (place, value)) in cells.iter().zip(words) {
            // 0 does not verify: the next opening counts.
            m.store(cell, if exact { seal(place, value) } else { 0 });
        }
        m.persist(cells);
    }

    /// How many records are stored: exact whenever no mutation is running, unless the store was opened after
    /// an unclean stop and has not been swept yet. Counts records that expired or were flushed until the
    /// background upkeep has removed them. O(1).
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
        let (totals, exact) = self.counters.totals();
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
        let (totals, exact) = self.counters.totals();
        Count { value: totals.bytes, exact }
    }

    /// The key with its hash.
    #[inline]
    pub(crate) fn key<'k>(&self, key: &'k [u8]) -> Result<BytesRef<'k>> {
        if key.len() > KEY_MAX {
            return Err(Error::KeyTooLong { len: key.len(), max: KEY_MAX });
        }
        Ok(BytesRef::new(key, self.pool.seed()))
    }

    /// Begins an operation.
    #[inline]
    pub(crate) fn enter(&self) -> Result<Guard<'_>> {
        let guard = self.pool.pin();
        // SeqCst: see `close`.
        if self.closed.load(SeqCst) {
            return Err(Error::Closed);
        }
        if self.stamps.flush_if_due(self.pool.region(), &self.clock) {
            self.upkeep.want_purge();
        }
        Ok(guard)
    }

    /// Begins a mutation.
    #[inline]
    pub(crate) fn enter_writing(&self) -> Result<Guard<'_>> {
        // Before anything is allocated: in a forked child even a block is not ours to write.
        self.pool.region().ensure_writable()?;
        self.enter()
    }

    /// Writes a record that can be published.
    pub(crate) fn draft<'d>(
        &'d self,
        key: BytesRef<'d>,
        value: &'d [u8],
        meta: Meta,
    ) -> Result<Draft<'d, M>> {
        ensure_length(value)?;
        if self.max_bytes != u64::MAX {
            let bytes = record_bytes(key.bytes.len(), value.len());
            self.ensure_room(self.pool.block_size(bytes))?;
        }
        let draft = self.draft_flushed(key, value, meta, control_of(meta.expires_at))?;
        self.pool.medium().fence();
        Ok(draft)
    }

    /// Writes a record that can be published after the next fence, whether or not there is room for it, with a control
    /// word that may differ from what it is to be.
    pub(crate) fn draft_flushed<'d>(
        &'d self,
        key: BytesRef<'d>,
        value: &'d [u8],
        meta: Meta,
        control: u64,
    ) -> Result<Draft<'d, M>> {
        ensure_length(value)?;
        if meta.expires_at != 0 {
            self.upkeep.expect_expiry(meta.expires_at);
        }
        let stamp = self.stamps.take(self.pool.region())?;
        Draft::flushed(&self.pool, key.bytes, value, meta.flags, control, stamp)
    }

    /// Tries again where space was short but some can be had: what waits for its reuse, or for the sweep, or lies
    /// scattered in blocks of other sizes.
    ///
    /// `attempt` must not hold a guard when it returns.
    pub(crate) fn with_space<R>(&self, mut attempt: impl FnMut() -> Result<R>) -> Result<R> {
        let is_short =
            |answer: &Result<R>| matches!(answer, Err(Error::Pm(error)) if error.is_no_space());
        let mut answer = attempt();
        if is_short(&answer) {
            self.pool.epoch().try_drain();
            self.upkeep.wait_for_sweep();
            answer = attempt();
        }
        if is_short(&answer) && self.move_together(1, Duration::ZERO).is_ok_and(|moved| moved > 0) {
            answer = attempt();
        }
        answer
    }

    /// Whether blocks of this many bytes may be added.
    pub(crate) fn ensure_room(&self, bytes: u64) -> Result<()> {
        if self.max_bytes != u64::MAX && self.bytes().value + bytes > self.max_bytes {
            return Err(Error::Full { limit: self.max_bytes, needed: bytes });
        }
        Ok(())
    }

    /// Whether a record is flushed or expired; nothing if its control word is damaged.
    #[inline]
    pub(crate) fn is_dead(&self, record: &Record<'_, M>, mark: u64) -> Option<bool> {
        if record.stamp() < mark {
            return Some(true);
        }
        let expires_at = record.expires_at()?;
        Some(expires_at != 0 && expires_at <= self.clock.now())
    }

    /// The record that `word` names, unless it is unreadable, flushed or expired.
    pub(crate) fn live(&self, word: u64, mark: u64) -> Option<Record<'_, M>> {
        let record = Record::at(self.pool.medium(), word).ok()?;
        (self.is_dead(&record, mark) == Some(false)).then_some(record)
    }

    /// The way in which everything but [batches](Store::apply) changes: asks `decide` what to do about the live record of `key`, if
    /// there is one, while the key is locked, and does it.
    ///
    /// A record that is dead or unreadable is not shown to `decide`, and goes away on the way. `decide` may
    /// be called more than once, must not panic, and must not use the store. With
    /// [`Intent::ExistingOnly`] it may not be called at all.
    pub(crate) fn commit(
        &self,
        key: BytesRef<'_>,
        intent: Intent,
        guard: &Guard<'_>,
        draft: Option<&Draft<'_, M>>,
        decide: &mut dyn FnMut(Option<Record<'_, M>>) -> Verdict,
    ) -> Result<Change> {
        let mut turn = None;
        loop {
            let (mut born_flushed, mut claimed, mut flushing) = (false, false, false);
            // Whether a record was there that nobody can see.
            let mut buried = false;
            let change = self.index.mutate(key, intent, guard, &mut |word| {
                // Whoever has the turn need not ask: no batch runs.
                claimed = turn.is_none() && self.claims.covers(key.hash);
                if claimed {
                    return Action::Keep;
                }
                let Some(mark) = self.stamps.settled_mark() else {
                    flushing = true;
                    return Action::Keep;
                };
                let live = word.and_then(|word| self.live(word, mark));
                buried = word.is_some() && live.is_none();
                match (decide(live), draft) {
                    (Verdict::Publish | Verdict::PublishWith(_), Some(draft))
                        if draft.stamp() < mark =>
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
                }
            })?;
            if claimed {
                turn = Some(self.claims.turn());
                continue;
            }
            if flushing {
                self.stamps.wait_for_flush();
                continue;
            }
            if let (true, Some(draft)) = (born_flushed, draft) {
                draft.restamp(self.stamps.take(self.pool.region())?);
                continue;
            }
            if change.changed() {
                self.account(change.old, draft.filter(|_| change.new.is_some()), guard);
                // Of a record that cannot be read, whoever built the ordered index may not know the key.
                if change.old.is_none() || change.new.is_none() || buried {
                    self.notice(key, guard);
                }
            }
            return Ok(change);
        }
    }

    /// Retires what was replaced, and counts.
    pub(crate) fn account(&self, old: Option<u64>, new: Option<&Draft<'_, M>>, guard: &Guard<'_>) {
        let (mut records, mut bytes) = (0, 0);
        if let Some(word) = old {
            let gone = self.retire(word, guard);
            (records, bytes) = (-1, -(gone as i64));
        }
        if let Some(draft) = new {
            records += 1;
            bytes += draft.block_bytes() as i64;
        }
        self.counters.change(records, bytes);
    }

    /// Retires a record that was unlinked; returns the bytes that it was counted with.
    fn retire(&self, word: u64, guard: &Guard<'_>) -> u64 {
        let Ok(record) = Record::at(self.pool.medium(), word) else {
            // Damage: its block may be part of something else by now. Better to lose it than to free that.
            return 0;
        };
        let (offset, bytes) = (record.offset(), self.pool.block_size(record.bytes()));
        if self.counters.is_counting() && record.stamp() < self.stamps.first() {
            self.counters.departed(offset, bytes);
        }
        self.pool.retire(offset, bytes, guard);
        bytes
    }

    /// Notes that a read met damage.
    #[cold]
    pub(crate) fn met_damage(&self) {
        self.damage_met.fetch_add(1, Relaxed);
    }

    /// Whether the store was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Acquire)
    }
}

/// Whether a value is short enough.
pub(crate) fn ensure_length(value: &[u8]) -> Result<()> {
    match value.len() {
        len if len > VALUE_MAX => Err(Error::ValueTooLong { len, max: VALUE_MAX }),
        _ => Ok(()),
    }
}

fn publish<M: Medium>(draft: &Draft<'_, M>) -> Action {
    // From here on a panic must not free it: it may be reachable.
    draft.set_published();
    Action::Put(draft.word())
}

/// What an orderly close saved; nothing if that does not verify.
fn read_totals<M: Medium>(region: &Region<M>) -> Option<Totals> {
    let (m, cells) = (region.medium(), &region.words().counters);
    let records = unseal(Place::Records, m.load(&cells[0]))?;
    let bytes = unseal(Place::Bytes, m.load(&cells[1]))?;
    Some(Totals { records, bytes })
}
