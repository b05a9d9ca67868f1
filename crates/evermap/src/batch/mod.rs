//! Changes of several keys that happen together or not at all.
//!
//! How [`Map::apply`] goes, and why each step is right, is told in `docs/batches.md`.

pub(crate) mod intent;
pub(crate) mod reservations;

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use evermap_index::key::BytesRef;
use evermap_index::{Action, Guard, MutateMode};
use evermap_pm::Medium;
use evermap_pm::sync::Backoff;

use crate::batch::intent::{Entry, Intent};
use crate::map::handle::ensure_length;
use crate::ops::atomic::sum;
use crate::ops::read::LiveRecord;
use crate::ordered::KeyEvent;
use crate::record::{Draft, control_of, decode_expiry, encode_expiry, record_bytes};
use crate::{Error, Evermap, Item, Map, MapOptions, Meta, Outcome, Result};

/// Most keys that a [`Batch`] can name.
pub const BATCH_MAX: usize = 1 << 16;
/// Format of a region in which a crash can leave an intent: programs that only know the one before would ignore it.
const FORMAT: u32 = 6;
/// Expiry of a record that is not there yet: no clock shows less.
const NOT_YET: u32 = 1;
/// How often [`Map::get_together`] looks again before it holds batches off.
const LOOKS: usize = 8;

/// Changes and conditions, to be [applied](Map::apply) together. Keys and values are copied.
///
/// Changes of one key take effect in the order in which they were added, as if one operation after the other had made
/// them: a [`put`](Batch::put) or [`remove`](Batch::remove) replaces what was said before, and an [`add`](Batch::add)
/// counts from there. So an account that receives what it gives keeps its balance, and two additions add both. Conditions
/// are about what is there before the batch, whatever the batch itself does to the key.
///
/// They concern the map that the batch is applied to, until [`in_map`](Batch::in_map) names another of the same file.
///
/// ```
/// use evermap::{Applied, Batch};
/// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
/// map.fetch_add(b"alice", 100)?;
/// let mut transfer = Batch::new();
/// transfer.add(b"alice", -30).add(b"bob", 30).put(b"last", b"alice to bob");
/// assert!(map.apply(&transfer)?.is_done());
/// assert_eq!(map.fetch_add(b"bob", 0)?, 30);
/// # Ok::<(), evermap::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Batch {
    parts: Vec<Part>,
    /// Where each key of the map that the batch is applied to is in `parts`.
    places: Places,
    /// The same for the maps that it names.
    named: Vec<(Box<str>, Places)>,
    /// Which map the next changes concern: 0 the one that the batch is applied to, and from 1 up those that it names.
    map: usize,
}

type Places = HashMap<Vec<u8>, usize>;

/// What a batch says about one key.
#[derive(Clone, Debug)]
struct Part {
    map: usize,
    key: Vec<u8>,
    change: Change,
    /// The CAS ids that have to be there, or that there must be none. With two that differ the batch is always refused.
    expected: Vec<Option<u64>>,
}

/// All changes of a key together.
#[derive(Clone, Debug, Default)]
struct Change {
    base: Base,
    /// The sum of what is added to the counter that `base` leaves. No batch holds enough additions to overflow it.
    added: Option<i128>,
}

/// What becomes of a key before anything is added to it.
#[derive(Clone, Debug, Default)]
enum Base {
    #[default]
    Keep,
    Put(Vec<u8>, Meta),
    Remove,
}

impl From<Base> for Change {
    fn from(base: Base) -> Self {
        Change { base, added: None }
    }
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Binds `key` to `value`, whatever was there. Replaces what the batch says about the key so far, except conditions.
    ///
    /// ```
    /// use evermap::Batch;
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.apply(Batch::new().put(b"a", b"1").put(b"b", b"2"))?;
    /// assert_eq!(map.get(b"b")?.as_deref(), Some(&b"2"[..]));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> &mut Self {
        self.put_with(key, value, Meta::default())
    }

    /// [`put`](Batch::put) with flags and expiry.
    ///
    /// ```
    /// use evermap::{Batch, Meta};
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.apply(Batch::new().put_with(b"a", b"1", Meta::new().with_flags(7)))?;
    /// assert_eq!(map.get_with(b"a", |item| item.flags)?, Some(7));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn put_with(&mut self, key: &[u8], value: &[u8], meta: Meta) -> &mut Self {
        self.part(key).change = Base::Put(value.to_vec(), meta).into();
        self
    }

    /// Adds `delta` to the counter under `key`, as [`Map::fetch_add`] does. If it is no counter, or the sum does not fit,
    /// applying the batch returns that error, and nothing changes.
    ///
    /// Additions to one key are made as one, of their sum: only the final value must fit. After a [`put`](Batch::put) of the
    /// key in the same batch they count from that value, after a [`remove`](Batch::remove) from 0.
    ///
    /// ```
    /// use evermap::Batch;
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.apply(Batch::new().add(b"here", -1).add(b"there", 1).add(b"there", 1))?;
    /// assert_eq!(map.fetch_add(b"there", 0)?, 2);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn add(&mut self, key: &[u8], delta: i64) -> &mut Self {
        *self.part(key).change.added.get_or_insert(0) += i128::from(delta);
        self
    }

    /// Removes `key`, if it is present. Replaces what the batch says about the key so far, except conditions.
    ///
    /// ```
    /// use evermap::Batch;
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put(b"old name", b"value")?;
    /// map.apply(Batch::new().remove(b"old name").put(b"new name", b"value"))?;
    /// assert!(!map.contains(b"old name")?);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn remove(&mut self, key: &[u8]) -> &mut Self {
        self.part(key).change = Base::Remove.into();
        self
    }

    /// Makes it a condition that the record of `key` has this CAS id, or with `None` that the key is absent, before any
    /// change of the batch: conditions do not see what the batch does. All conditions have to hold, so a batch with two
    /// different ones for a key is always refused.
    ///
    /// ```
    /// use evermap::{Applied, Batch};
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put(b"config", b"1")?;
    /// let cas = map.get_with(b"config", |item| item.cas)?;
    /// let mut batch = Batch::new();
    /// batch.expect(b"config", cas).expect(b"lock", None).put(b"lock", b"mine");
    /// assert!(map.apply(&batch)?.is_done());
    /// assert!(matches!(map.apply(&batch)?, Applied::Refused { key, .. } if key == b"lock"));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn expect(&mut self, key: &[u8], cas: Option<u64>) -> &mut Self {
        self.part(key).expected.push(cas);
        self
    }

    /// From here on, what is said concerns the map of this [name](Evermap::map), which has to exist when the batch is applied;
    /// with `None`, again the map that the batch is applied to.
    ///
    /// ```
    /// use evermap::{Batch, MapOptions};
    /// # let db = evermap::Evermap::in_memory(evermap::Options::new())?;
    /// let (orders, done) = (db.map("orders", MapOptions::new())?, db.map("done", MapOptions::new())?);
    /// orders.put(b"17", b"a book")?;
    /// let mut batch = Batch::new();
    /// batch.add(b"open orders", -1);
    /// batch.in_map("orders").remove(b"17");
    /// batch.in_map("done").put(b"17", b"a book");
    /// assert!(db.apply(&batch)?.is_done());
    /// assert!(done.contains(b"17")? && !orders.contains(b"17")?);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn in_map<'n>(&mut self, name: impl Into<Option<&'n str>>) -> &mut Self {
        let Some(name) = name.into() else {
            self.map = 0;
            return self;
        };
        let known = self.named.iter().position(|(known, _)| **known == *name);
        self.map = 1 + known.unwrap_or_else(|| {
            self.named.push((name.into(), Places::new()));
            self.named.len() - 1
        });
        self
    }

    /// How many keys it names.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether it names no key.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The keys that it names, in the order in which it first named them.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(|part| &part.key[..])
    }

    /// Empties it, so that its memory can be used again. What is said next concerns the map that it is applied to.
    pub fn clear(&mut self) {
        self.parts.clear();
        self.places.clear();
        self.named.clear();
        self.map = 0;
    }

    fn part(&mut self, key: &[u8]) -> &mut Part {
        let map = self.map;
        let places = match map {
            0 => &mut self.places,
            _ => &mut self.named[map - 1].1,
        };
        let at = *places.entry(key.to_vec()).or_insert_with(|| {
            self.parts.push(Part {
                map,
                key: key.to_vec(),
                change: Change::default(),
                expected: Vec::new(),
            });
            self.parts.len() - 1
        });
        &mut self.parts[at]
    }
}

/// How applying a [`Batch`] ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a batch with conditions may have changed nothing"]
#[non_exhaustive]
pub enum Applied {
    /// All of it happened. The outcome for each key, in the order in which the batch first named them.
    Done(Vec<Outcome>),
    /// A condition did not hold; nothing was changed.
    Refused {
        /// The map that the batch names for it; nothing for the one that it is applied to.
        map: Option<String>,
        /// Its key: the first of those whose conditions did not hold.
        key: Vec<u8>,
        /// The CAS id that is there, if the key is present.
        found: Option<u64>,
    },
}

impl Applied {
    /// Whether it happened.
    pub fn is_done(&self) -> bool {
        matches!(self, Applied::Done(_))
    }
}

/// A map that a batch concerns.
struct BatchMap<'s, M: Medium> {
    store: &'s Map<M>,
    /// The flush that its keys were looked at after.
    mark: u64,
}

impl<'s, M: Medium> BatchMap<'s, M> {
    /// Whether no flush has come in between.
    fn is_settled(&self) -> bool {
        self.store.inner.flush.settled_mark() == Some(self.mark)
    }

    /// What a claimed key is bound to: for as long as it is claimed.
    fn look(&self, key: BytesRef<'s>, guard: &Guard<'_>) -> Result<KeyPlan<'s, M>> {
        let store = self.store;
        let mut word = None;
        // Under the key's lock, even though nothing is to change: who held it before has finished, durably.
        let found = store.inner.index.mutate(key, MutateMode::ExistingOnly, guard, &mut |found| {
            word = found;
            Action::Keep
        });
        found?;
        let found = word.and_then(|word| store.live(word, self.mark)).map(|record| record.cas());
        Ok(KeyPlan { store, key, word, found, value: None, removes: false })
    }
}

/// What is to become of one key of a batch.
struct KeyPlan<'s, M: Medium> {
    store: &'s Map<M>,
    key: BytesRef<'s>,
    /// The word that the index has, whether or not the record is alive.
    word: Option<u64>,
    /// CAS id of the live record.
    found: Option<u64>,
    value: Option<(Cow<'s, [u8]>, Meta)>,
    removes: bool,
}

impl<'s, M: Medium> KeyPlan<'s, M> {
    /// Bytes of the block that the new record is to take.
    fn block_bytes(&self) -> u64 {
        self.value.as_ref().map_or(0, |(value, _)| {
            self.store.db.file.pool.block_size(record_bytes(self.key.bytes.len(), value.len()))
        })
    }

    /// Plans what `change` says.
    fn set(&mut self, change: &'s Change, guard: &Guard<'_>) -> Result<()> {
        self.removes = matches!(change.base, Base::Remove);
        self.value = match (&change.base, change.added) {
            (Base::Keep, None) | (Base::Remove, None) => None,
            (Base::Put(value, meta), None) => Some((Cow::Borrowed(value), *meta)),
            (Base::Keep, Some(delta)) => Some(self.added_to_current(delta, guard)?),
            (Base::Put(value, meta), Some(delta)) => Some((self.added(Some(value), delta)?, *meta)),
            (Base::Remove, Some(delta)) => Some((self.added(None, delta)?, Meta::default())),
        };
        Ok(())
    }

    /// The counter that is `value` after adding `delta`.
    fn added(&self, value: Option<&[u8]>, delta: i128) -> Result<Cow<'static, [u8]>> {
        let (_, sum) = sum(self.key.bytes, value, delta)?;
        Ok(Cow::Owned(sum.to_le_bytes().to_vec()))
    }

    /// The same for the counter in the store, with its flags and expiry.
    fn added_to_current(
        &self,
        delta: i128,
        guard: &Guard<'_>,
    ) -> Result<(Cow<'static, [u8]>, Meta)> {
        let key = self.key.bytes;
        let mut value = Vec::new();
        let live = match self.word {
            Some(word) => self.store.readable(self.key, word, guard)?,
            None => None,
        };
        let mut meta = Meta::default();
        if let Some((record, expires_at)) = &live {
            self.store.copy(key, record, &mut value)?;
            meta = Meta::new().with_flags(record.flags()).with_expiry(decode_expiry(*expires_at));
        }
        Ok((self.added(live.is_some().then_some(&value[..]), delta)?, meta))
    }

    /// What it changes, with its new record flushed; nothing if it changes nothing.
    fn step(&self) -> Result<Option<KeyStep<'_, M>>> {
        let (store, key) = (self.store, self.key);
        let (map, old) = (store.inner.header.descriptor(), self.word.unwrap_or(0));
        let since = store.unbindings(key);
        let was_hidden = self.word.is_some() && self.found.is_none();
        let Some((value, meta)) = &self.value else {
            let removes = self.removes && old != 0;
            let entry = Entry { map, old, new: 0, control: 0 };
            return Ok(removes.then_some(KeyStep {
                store,
                key,
                since,
                entry,
                was_hidden,
                draft: None,
            }));
        };
        let control = control_of(encode_expiry(meta.expires_at)?);
        let draft = store.reserve(
            key,
            value,
            meta.flags,
            match old {
                0 if !store.db.file.pool.medium().mutant("BA-2") => control_of(NOT_YET),
                _ => control,
            },
        )?;
        draft.flush();
        let entry = Entry { map, old, new: draft.word(), control };
        Ok(Some(KeyStep { store, key, since, entry, was_hidden, draft: Some(draft) }))
    }

    fn outcome(&self, cas: Option<u64>) -> Outcome {
        match (self.found, cas) {
            (None, Some(cas)) => Outcome::Inserted { cas },
            (Some(_), Some(cas)) => Outcome::Updated { cas },
            (Some(_), None) if self.removes => Outcome::Removed,
            (Some(cas), None) => Outcome::Kept { cas },
            (None, None) => Outcome::Absent,
        }
    }
}

/// A change of the index that is on its way.
struct KeyStep<'d, M: Medium> {
    store: &'d Map<M>,
    key: BytesRef<'d>,
    /// [`unbindings`](Map::unbindings) before it.
    since: u64,
    entry: Entry,
    /// Whether the index has a record for the key that nobody can see.
    was_hidden: bool,
    draft: Option<Draft<'d, M>>,
}

impl<M: Medium> KeyStep<'_, M> {
    /// Whether the key is absent from the index until now.
    fn is_new(&self) -> bool {
        self.entry.old == 0
    }

    fn carry_out(&self, guard: &Guard<'_>) -> Result<()> {
        self.entry.carry_out(self.key, &self.store.db.file.pool, &self.store.inner.index, guard)
    }

    /// Retires, counts and notes, once it has happened.
    fn settle(&self, guard: &Guard<'_>) {
        let KeyStep { store, key, since, entry, was_hidden, draft } = self;
        let word = |word: u64| (word != 0).then_some(word);
        let old = word(entry.old);
        // New keys got it when the batch was carried out.
        draft.iter().for_each(|draft| draft.became(entry.control));
        store.account(*key, old, draft.as_ref(), guard);
        if let Some(event) = KeyEvent::of(old, word(entry.new), *was_hidden, *since) {
            store.notice(*key, event, guard);
        }
    }
}

/// How far a batch came.
enum Progress {
    Done,
    /// A flush came between the looks and the decision: the looks no longer mean anything.
    Overtaken,
}

impl<M: Medium> Evermap<M> {
    /// Applies `batch` with [`Map::apply`] to the maps that it [names](Batch::in_map), and to the default map where it
    /// names none.
    ///
    /// ```
    /// use evermap::{Batch, Evermap, MapOptions, Options};
    /// let db = Evermap::in_memory(Options::new())?;
    /// let (orders, done) = (db.map("orders", MapOptions::new())?, db.map("done", MapOptions::new())?);
    /// orders.put(b"17", b"a book")?;
    /// let mut batch = Batch::new();
    /// batch.in_map("orders").remove(b"17");
    /// batch.in_map("done").put(b"17", b"a book");
    /// assert!(db.apply(&batch)?.is_done());
    /// assert!(done.contains(b"17")? && !orders.contains(b"17")?);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map::apply`].
    pub fn apply(&self, batch: &Batch) -> Result<Applied> {
        self.default_map().apply(batch)
    }
}

impl<M: Medium> Map<M> {
    /// Does everything that `batch` says, or nothing: in this map, and in those of the same file that it
    /// [names](Batch::in_map).
    ///
    /// After a crash at any moment all of it is there or none; when this returns, all of it is. Conditions are checked,
    /// and counters read, at the same moment at which the changes happen, as far as all mutations are concerned:
    /// no other mutation of any of its keys comes in between. Readers that look while it happens may see some
    /// keys as they were and others as they are to be, but nothing that is taken back;
    /// [`get_together`](Map::get_together) sees all or nothing. Batches run one at a time, mutations of other keys and
    /// all reads beside them.
    ///
    /// Expected O(keys). See [`Batch`] for an example.
    ///
    /// # Errors
    /// See [`Map`]; [`Error::BatchTooLarge`]; [`Error::NoSuchMap`] and what else [`map`](Evermap::map) answers for a map that it
    /// names, and [`Error::BatchMap`] if that is this one; [`Error::NotACounter`], [`Error::Overflow`] and [`Error::Damaged`] where
    /// a counter cannot be read. Nothing has changed then. If the *index* turns out to be damaged in the middle, the
    /// store is poisoned, and the next opening completes the batch as far as it can.
    pub fn apply(&self, batch: &Batch) -> Result<Applied> {
        if batch.len() > BATCH_MAX {
            return Err(Error::BatchTooLarge { len: batch.len(), max: BATCH_MAX });
        }
        let keys: Vec<_> = batch.keys().map(|key| self.key(key)).collect::<Result<_>>()?;
        for part in &batch.parts {
            if let Base::Put(value, meta) = &part.change.base {
                ensure_length(value)?;
                encode_expiry(meta.expires_at)?;
            }
        }
        self.db.ensure_not_backed_up()?;
        self.db.with_space(|| {
            loop {
                let named = self.maps_of(batch)?;
                let stores: Vec<_> = std::iter::once(self).chain(&named).collect();
                for (part, &key) in batch.parts.iter().zip(&keys) {
                    stores[part.map].ensure_not_edited(key)?;
                }
                if let Some(applied) = self.try_apply(batch, &keys, &stores)? {
                    return Ok(applied);
                }
            }
        })
    }

    /// The maps that a batch names.
    fn maps_of(&self, batch: &Batch) -> Result<Vec<Self>> {
        let open = |(name, _): &(Box<str>, Places)| {
            let map = self.db.map(name, MapOptions::new().create(false))?;
            match Arc::ptr_eq(&map.inner, &self.inner) {
                false => Ok(map),
                true => Err(Error::BatchMap { name: name.to_string() }),
            }
        };
        batch.named.iter().map(open).collect()
    }

    /// One round of [`apply`](Map::apply) to these maps; nothing if a flush has overtaken it.
    fn try_apply(
        &self,
        batch: &Batch,
        keys: &[BytesRef<'_>],
        stores: &[&Self],
    ) -> Result<Option<Applied>> {
        let guards: Vec<_> =
            stores.iter().map(|store| store.enter_writing()).collect::<Result<_>>()?;
        let turn = self.db.file.reservations.permit();
        if let Some(gone) = stores.iter().find(|store| !store.inner.is_open()) {
            // It was dropped while we waited: what leads to it is gone, and an intent must not name it.
            return Err(gone.inner.refusal());
        }
        let _claim = self.db.file.reservations.reserve(&turn, keys);
        let mut maps = Vec::with_capacity(stores.len());
        for &store in stores {
            let Some(mark) = store.inner.flush.settled_mark() else {
                store.inner.flush.wait_for_flush();
                return Ok(None);
            };
            maps.push(BatchMap { store, mark });
        }
        // They are all of one domain: any of them protects what any map leads to.
        let guard = &guards[0];
        let mut plans = Vec::with_capacity(keys.len());
        for (part, &key) in batch.parts.iter().zip(keys) {
            let plan = maps[part.map].look(key, guard)?;
            if part.expected.iter().any(|expected| *expected != plan.found) {
                let map = plan.store.inner.name.as_deref().filter(|_| part.map > 0).map(Into::into);
                let (key, found) = (part.key.clone(), plan.found);
                return Ok(Some(Applied::Refused { map, key, found }));
            }
            plans.push(plan);
        }
        for (plan, part) in plans.iter_mut().zip(&batch.parts) {
            plan.set(&part.change, guard)?;
        }
        let mut room = vec![0; stores.len()];
        for (plan, part) in plans.iter().zip(&batch.parts) {
            room[part.map] += plan.block_bytes();
        }
        for (store, bytes) in stores.iter().zip(room) {
            store.ensure_room(bytes)?;
        }
        let mut steps = Vec::with_capacity(plans.len());
        let mut outcomes = Vec::with_capacity(plans.len());
        for plan in &plans {
            let step = plan.step()?;
            let draft = step.as_ref().and_then(|step| step.draft.as_ref());
            outcomes.push(plan.outcome(draft.map(Draft::cas)));
            steps.extend(step);
        }
        match self.carry_through(&steps, &maps, guard)? {
            Progress::Done => Ok(Some(Applied::Done(outcomes))),
            Progress::Overtaken => Ok(None),
        }
    }

    /// Makes all steps happen, or none. All keys are claimed, and everything looked at.
    fn carry_through(
        &self,
        steps: &[KeyStep<'_, M>],
        maps: &[BatchMap<'_, M>],
        guard: &Guard<'_>,
    ) -> Result<Progress> {
        if steps.is_empty() {
            return Ok(Progress::Done);
        }
        let (region, m) = (self.db.file.pool.region(), self.db.file.pool.medium());
        region.raise_format(FORMAT)?;
        let entries: Vec<_> = steps.iter().map(|step| step.entry).collect();
        let mut intent = Intent::flushed(&self.db.file.pool, &entries)?;
        // Everything that the index and the root slot are going to name is durable.
        m.fence();
        let poison = region.poison_on_panic();
        if let Err(error) = bind_new(steps, guard) {
            poison.disarm();
            return Err(error);
        }
        if !maps.iter().all(BatchMap::is_settled) {
            unbind_new(steps, guard);
            poison.disarm();
            return Ok(Progress::Overtaken);
        }
        steps.iter().filter_map(|step| step.draft.as_ref()).for_each(Draft::set_published);
        intent.declare();
        self.db.file.reservations.begin_changing();
        for step in steps {
            if let Err(error) = step.carry_out(guard) {
                // Decided, but not to be done: dropping the guard poisons the store, and the next opening tries again.
                drop(poison);
                return Err(error);
            }
        }
        if steps.iter().any(KeyStep::is_new) && !m.mutant("BA-3") {
            // The control words of new records.
            m.fence();
        }
        self.db.file.reservations.end_changing();
        intent.fulfil();
        poison.disarm();
        steps.iter().for_each(|step| step.settle(guard));
        Ok(Progress::Done)
    }

    /// Looks up several keys as they are between two batches: whatever one batch changes is seen wholly or not at all.
    /// Each value by itself is current at some moment of the call; mutations that are no batches may come in between.
    ///
    /// Calls `each` with the position in `keys` and the record for each key that is present, in order, or with the error
    /// where a record is damaged. Stops when `each` returns `Break`. Looks again where a batch came in between, and
    /// after a few times in vain holds batches off while it looks. A guard is held meanwhile, so `each` should be quick.
    /// Expected O(keys), with cache misses overlapped.
    ///
    /// ```
    /// use evermap::{Batch, counter};
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.apply(Batch::new().add(b"here", -5).add(b"there", 5))?;
    /// use std::ops::ControlFlow;
    /// let mut total = 0;
    /// map.get_together(&["here", "there"], |_, item| {
    ///     total += item.ok().and_then(|item| counter(item.value)).unwrap_or(0);
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert_eq!(total, 0, "whatever other threads transfer meanwhile");
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`]; damaged records are reported to `each` instead. [`Error::Storage`] with `Forked` in a forked child.
    pub fn get_together<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        mut each: impl FnMut(usize, Result<Item<'_>>) -> ControlFlow<()>,
    ) -> Result<()> {
        let keys: Vec<_> = keys.iter().map(|key| self.key(key.as_ref())).collect::<Result<_>>()?;
        // In a forked child nobody tells whether a batch changes things.
        self.db.file.pool.region().ensure_writable()?;
        let guard = self.enter()?;
        let found = self.look_together(&keys, &guard)?;
        let mut value = Vec::new();
        for (at, (key, found)) in keys.iter().zip(found).enumerate() {
            // Records do not change, and the guard keeps them: the copy is of the moment of the look.
            if let Some(shown) = self.shown(key.bytes, found, &mut value).transpose()
                && each(at, shown).is_break()
            {
                break;
            }
        }
        Ok(())
    }

    /// The live records of `keys` at a moment at which no batch was changing anything.
    fn look_together<'g>(
        &'g self,
        keys: &[BytesRef<'_>],
        guard: &'g Guard<'_>,
    ) -> Result<Vec<Result<Option<LiveRecord<'g, M>>>>> {
        let mut backoff = Backoff::new();
        for looks in 0.. {
            let turn = (looks >= LOOKS).then(|| self.db.file.reservations.permit());
            let (settled, mark) = (self.db.file.reservations.version(), self.inner.flush.mark());
            if turn.is_some() && settled.is_none() {
                // The one that was changing things could not go on.
                self.db.file.pool.region().ensure_sound()?;
            }
            let Some(settled) = settled else {
                backoff.wait();
                continue;
            };
            let mut words = vec![None; keys.len()];
            self.inner.index.get_many(keys, &mut words, guard)?;
            words.iter().flatten().for_each(|&word| self.prefetch(word));
            let found = keys.iter().zip(words);
            let found: Vec<_> = found
                .map(|(key, word)| word.map_or(Ok(None), |word| self.readable(*key, word, guard)))
                .collect();
            // A flush must not come in between either.
            if self.db.file.reservations.unchanged_since(settled) && self.inner.flush.mark() == mark
            {
                return Ok(found);
            }
        }
        unreachable!("flushes end at some time")
    }
}

/// Binds keys that are absent to their records, which count as expired until their control words change: so
/// that all that needs space in the index is done before the batch is decided, and nobody sees it.
///
/// # Errors
/// `NoSpace`, or whatever the index answers; nothing has changed then.
fn bind_new<M: Medium>(steps: &[KeyStep<'_, M>], guard: &Guard<'_>) -> Result<()> {
    for (at, step) in steps.iter().enumerate() {
        let Some(draft) = step.draft.as_ref().filter(|_| step.is_new()) else { continue };
        let mut acted = false;
        let change =
            step.store.inner.index.mutate(step.key, MutateMode::MayInsert, guard, &mut |_| {
                acted = true;
                draft.set_published();
                Action::Put(draft.word())
            });
        match change {
            // What failed afterwards was tidying up.
            Err(error) if !acted => {
                unbind_new(&steps[..at], guard);
                return Err(error.into());
            }
            _ => {}
        }
    }
    Ok(())
}

/// Takes back what [`bind_new`] has done.
fn unbind_new<M: Medium>(steps: &[KeyStep<'_, M>], guard: &Guard<'_>) {
    for step in steps.iter().filter(|step| step.is_new()) {
        let Some(draft) = &step.draft else { continue };
        let mut acted = false;
        let _ =
            step.store.inner.index.mutate(step.key, MutateMode::ExistingOnly, guard, &mut |word| {
                acted = word == Some(draft.word());
                if acted { Action::Remove } else { Action::Keep }
            });
        // What cannot be taken back nobody sees, and a purge removes it: until then it counts like all that are
        // expired.
        step.store.account(step.key, None, Some(draft), guard);
        if acted {
            step.store.account(step.key, Some(draft.word()), None, guard);
        }
        // The ordered index may have met it.
        step.store.notice(step.key, KeyEvent::Unbound, guard);
    }
}
