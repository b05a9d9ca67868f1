//! Changes of several keys that happen together or not at all.
//!
//! The steps of [`Map::apply`], and why each of them is right, are described in
//! `docs/design/batches.md`.

pub(crate) mod intent;
pub(crate) mod reservations;

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use evermap_index::key::BytesRef;
use evermap_index::{Action, Change as IndexChange, Guard, MutateMode};
use evermap_pm::Medium;
use evermap_pm::sync::Backoff;

use crate::batch::intent::{Entry, Intent};
use crate::ops::atomic::sum;
use crate::ops::read::LiveRecord;
use crate::ordered::KeyEvent;
use crate::record::control::Control;
use crate::record::{Draft, Record, control_of, ensure_length, record_bytes};
use crate::watch::ChangeKind;
use crate::watch::feed::Turn;
use crate::{Error, Evermap, Item, Map, MapOptions, Meta, Outcome, Result, mistakes};

/// The maximum number of keys in a [`Batch`].
pub const BATCH_MAX: usize = 1 << 16;
/// Format of a region in which a crash can leave an intent. Programs that know only the format
/// before it would ignore the intent.
const FORMAT: u32 = 6;
/// Expiry of a record that is not there yet: no clock shows less.
const NOT_YET: u32 = 1;
/// The number of attempts of [`Map::get_together`] before it keeps batches from running.
const ATTEMPTS: usize = 8;

/// Changes and conditions that are [applied](Map::apply) together. Keys and values are copied.
///
/// Changes of one key take effect in the order in which they were added, as if one operation after
/// the other had made them: a [`put`](Batch::put) or [`remove`](Batch::remove) replaces earlier
/// changes of the key, and an [`add`](Batch::add) counts from there. So an account that receives
/// what it gives keeps its balance, and two additions add both. Conditions are about the state
/// before the batch, whatever the batch itself does to the key.
///
/// Changes and conditions concern the map that the batch is applied to, until
/// [`in_map`](Batch::in_map) names another one of the same file.
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
    pub(crate) parts: Vec<Part>,
    /// The index in `parts` of each key of the map that the batch is applied to.
    places: Places,
    /// The names of other maps, and the indices in `parts` of their keys.
    named: Vec<(Box<str>, Places)>,
    /// The map that the next changes concern: 0 is the one that the batch is applied to, and 1 is
    /// the first in `named`.
    pub(crate) map: usize,
}

type Places = HashMap<Vec<u8>, usize>;

/// The changes and conditions of one key.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    map: usize,
    key: Vec<u8>,
    pub(crate) change: Change,
    /// The CAS ids that the key must have; `None`: it must be absent. With two that differ the
    /// batch is always refused.
    pub(crate) expected: Vec<Option<u64>>,
}

impl Part {
    /// Returns `true` if there are changes, and not only conditions.
    pub(crate) fn is_changed(&self) -> bool {
        !matches!(self.change, Change { base: Base::Keep, added: None })
    }
}

/// All changes of a key together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Change {
    pub(crate) base: Base,
    /// The sum of what is added to the counter that `base` leaves. No batch has enough additions to
    /// overflow it.
    pub(crate) added: Option<i128>,
}

/// What happens to a key before anything is added to it.
#[derive(Clone, Debug, Default)]
pub(crate) enum Base {
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
    /// Returns an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Binds `key` to `value`, whether or not it is present. Replaces earlier changes of the key in
    /// this batch.
    ///
    /// ```
    /// use evermap::Batch;
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.apply(Batch::new().put(b"a", b"1").put(b"b", b"2"))?;
    /// assert_eq!(map.get(b"b")?.as_deref(), Some(&b"2"[..]));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> &mut Self {
        self.put_with(key, value, Meta::default())
    }

    /// Binds `key` to `value` as [`put`](Batch::put) does, with flags and expiry.
    ///
    /// ```
    /// use evermap::{Batch, Meta};
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.apply(Batch::new().put_with(b"a", b"1", Meta::new().with_flags(7)))?;
    /// assert_eq!(map.get_with(b"a", |item| item.flags)?, Some(7));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn put_with(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        meta: Meta,
    ) -> &mut Self {
        self.part(key.as_ref()).change = Base::Put(value.as_ref().to_vec(), meta).into();
        self
    }

    /// Adds `delta` to the counter under `key`, as [`Map::fetch_add`] does. If it is no counter, or
    /// the sum does not fit, applying the batch returns that error, and nothing changes.
    ///
    /// Several additions to one key are made as a single one of their sum: only the final value
    /// must fit. After a [`put`](Batch::put) of the key in the same batch they count from that
    /// value, after a [`remove`](Batch::remove) from 0.
    ///
    /// ```
    /// use evermap::Batch;
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.apply(Batch::new().add(b"here", -1).add(b"there", 1).add(b"there", 1))?;
    /// assert_eq!(map.fetch_add(b"there", 0)?, 2);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn add(&mut self, key: impl AsRef<[u8]>, delta: i64) -> &mut Self {
        *self.part(key.as_ref()).change.added.get_or_insert(0) += i128::from(delta);
        self
    }

    /// Removes `key`, if it is present. Replaces earlier changes of the key in this batch.
    ///
    /// ```
    /// use evermap::Batch;
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put(b"old name", b"value")?;
    /// map.apply(Batch::new().remove(b"old name").put(b"new name", b"value"))?;
    /// assert!(!map.contains(b"old name")?);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    pub fn remove(&mut self, key: impl AsRef<[u8]>) -> &mut Self {
        self.part(key.as_ref()).change = Base::Remove.into();
        self
    }

    /// Adds the condition that the record of `key` has this CAS id, or with `None` that the key is
    /// absent, before any change of the batch: conditions do not see what the batch does. All
    /// conditions must hold, so a batch with two different ones for a key is always refused.
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
    pub fn expect(&mut self, key: impl AsRef<[u8]>, cas: Option<u64>) -> &mut Self {
        self.part(key.as_ref()).expected.push(cas);
        self
    }

    /// Makes the changes and conditions that are added next concern the map of this
    /// [name](Evermap::map), which must exist when the batch is applied; with `None`, again the map
    /// that the batch is applied to.
    ///
    /// ```
    /// use evermap::{Batch, MapOptions};
    /// # let db = evermap::Evermap::in_memory(evermap::Options::new())?;
    /// let orders = db.map("orders", MapOptions::new())?;
    /// let done = db.map("done", MapOptions::new())?;
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

    /// Returns the number of keys in the batch.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Returns `true` if there is no key in the batch.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns the keys in the batch, in the order in which they were first added.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(|part| &part.key[..])
    }

    /// Empties the batch and keeps its memory. What is added next concerns the map that the batch
    /// is applied to.
    pub fn clear(&mut self) {
        self.parts.clear();
        self.places.clear();
        self.named.clear();
        self.map = 0;
    }

    pub(crate) fn part(&mut self, key: &[u8]) -> &mut Part {
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

/// The result of applying a [`Batch`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a batch with conditions may have changed nothing"]
#[non_exhaustive]
pub enum Applied {
    /// All of it was done. The outcome for each key, in the order of [`Batch::keys`].
    Done(Vec<Outcome>),
    /// A condition did not hold; nothing was changed.
    Refused {
        /// The name of the map; `None` for the one that the batch is applied to.
        map: Option<String>,
        /// The first key whose condition did not hold.
        key: Vec<u8>,
        /// The CAS id of its record, if the key is present.
        found: Option<u64>,
    },
}

impl Applied {
    /// Returns `true` if the batch was applied.
    pub fn is_done(&self) -> bool {
        matches!(self, Applied::Done(_))
    }
}

/// A map that a batch concerns.
struct BatchMap<'s, M: Medium> {
    store: &'s Map<M>,
    /// The flush mark when its keys were read.
    mark: u64,
}

impl<'s, M: Medium> BatchMap<'s, M> {
    /// Returns `true` if no flush has come in between.
    fn is_settled(&self) -> bool {
        self.store.inner.flush.settled_mark() == Some(self.mark)
    }

    /// Reads what a reserved key is bound to. It stays so for as long as the key is reserved.
    fn read(&self, key: BytesRef<'s>, guard: &Guard<'_>) -> Result<KeyPlan<'s, M>> {
        let store = self.store;
        let mut word = None;
        // Under the key's lock, although nothing is to change: an earlier holder of the lock has
        // finished, durably.
        let found = store.inner.index.mutate(key, MutateMode::ExistingOnly, guard, &mut |found| {
            word = found;
            Action::Keep
        });
        found?;
        let found = word.and_then(|word| store.live(word, self.mark)).map(|record| record.cas());
        Ok(KeyPlan { store, key, word, found, value: None, removes: false })
    }
}

/// What is to be done to one key of a batch.
struct KeyPlan<'s, M: Medium> {
    store: &'s Map<M>,
    key: BytesRef<'s>,
    /// The word that the key is bound to, whether or not the record is live.
    word: Option<u64>,
    /// CAS id of the live record.
    found: Option<u64>,
    value: Option<(Cow<'s, [u8]>, Meta)>,
    removes: bool,
}

impl<'s, M: Medium> KeyPlan<'s, M> {
    /// Returns the size of the block of the new record.
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

    /// Returns the counter `value` after adding `delta`.
    fn added(&self, value: Option<&[u8]>, delta: i128) -> Result<Cow<'static, [u8]>> {
        let (_, sum) = sum(self.key.bytes, value, delta)?;
        Ok(Cow::Owned(sum.to_le_bytes().to_vec()))
    }

    /// Returns the counter in the store after adding `delta`, with its flags and expiry.
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
        if let Some((record, control)) = &live {
            self.store.copy(key, record, &mut value)?;
            meta = control.meta(record.flags());
        }
        Ok((self.added(live.is_some().then_some(&value[..]), delta)?, meta))
    }

    /// Returns the change of the index, with the new record flushed, or `None` if nothing changes.
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
        let control = Control::of(meta)?.encode();
        let draft = store.reserve(
            key,
            value,
            meta.flags(),
            match old {
                0 if !store.db.file.pool.medium().mutant(mistakes::BATCH_VISIBLE) => {
                    control_of(NOT_YET)
                }
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

/// A change of the index that is being made.
struct KeyStep<'d, M: Medium> {
    store: &'d Map<M>,
    key: BytesRef<'d>,
    /// The number of [`unbindings`](Map::unbindings) before it.
    since: u64,
    entry: Entry,
    /// Whether the key was bound to a record that no reader can see.
    was_hidden: bool,
    draft: Option<Draft<'d, M>>,
}

impl<M: Medium> KeyStep<'_, M> {
    /// Returns `true` if the key was absent from the index before.
    fn is_new(&self) -> bool {
        self.entry.old == 0
    }

    fn carry_out(&self, guard: &Guard<'_>) -> Result<()> {
        self.entry.carry_out(self.key, &self.store.db.file.pool, &self.store.inner.index, guard)
    }

    #[cold]
    fn report(&self, order: &Turn<'_>, old: Option<u64>) {
        let old = old.and_then(|word| Record::at(self.store.db.file.pool.medium(), word).ok());
        let old_cas = old.map_or(0, |record| record.cas());
        let (kind, cas) = match &self.draft {
            Some(draft) => (ChangeKind::Stored, draft.cas()),
            None if self.was_hidden => (ChangeKind::Expired, old_cas),
            None => (ChangeKind::Removed, old_cas),
        };
        order.report(self.key, kind, cas);
    }

    /// Reports the change, retires the old record, counts, and posts a notice, once the change was
    /// made.
    fn settle(&self, guard: &Guard<'_>) {
        let KeyStep { store, key, since, entry, was_hidden, draft } = self;
        let word = |word: u64| (word != 0).then_some(word);
        let old = word(entry.old);
        // New keys got it when the batch was carried out.
        draft.iter().for_each(|draft| draft.became(entry.control));
        // The keys are reserved, so no later change of them was made.
        if let Some(order) = store.inner.feed.order(*key) {
            self.report(&order, old);
        }
        store.account(*key, old, draft.as_ref(), guard);
        if let Some(event) = KeyEvent::of(old, word(entry.new), *was_hidden, *since) {
            store.notice(*key, event, guard);
        }
    }
}

/// How an attempt to apply a batch ended.
enum Progress {
    Done,
    /// A flush came between reading the keys and the decision: what was read is out of date.
    Overtaken,
}

impl<M: Medium> Evermap<M> {
    /// Applies `batch` with [`Map::apply`] to the maps that it [names](Batch::in_map), and to the
    /// default map where it names none.
    ///
    /// ```
    /// use evermap::{Batch, Evermap, MapOptions, Options};
    /// let db = Evermap::in_memory(Options::new())?;
    /// let orders = db.map("orders", MapOptions::new())?;
    /// let done = db.map("done", MapOptions::new())?;
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
    /// Makes all changes of `batch` or none of them: in this map, and in those of the same file
    /// that the batch [names](Batch::in_map).
    ///
    /// After a crash at any moment all changes are there or none; when this returns, all are.
    /// Conditions are checked, and counters read, atomically with the changes: no other mutation of
    /// any of the keys comes in between. A reader may see some keys before and others after the
    /// change while the batch is applied, but nothing that is taken back;
    /// [`get_together`](Map::get_together) sees all changes or none. Batches run one at a time;
    /// mutations of other keys and all reads run beside them.
    ///
    /// Expected O(keys). See [`Batch`] for an example.
    ///
    /// # Errors
    /// See [`Map`]; [`Error::BatchTooLarge`]; [`Error::NoSuchMap`] and the other errors of
    /// [`map`](Evermap::map) for a map that it names, and [`Error::BatchMap`] if that is this one;
    /// [`Error::NotACounter`], [`Error::Overflow`], and [`Error::Damaged`] if a counter cannot be
    /// read. Nothing has changed then. If the *index* turns out to be damaged in the middle, the
    /// store is poisoned, and the next opening completes the batch as far as it can.
    pub fn apply(&self, batch: &Batch) -> Result<Applied> {
        let applied = self.apply_unsettled(batch, || self.maps_of(batch))?;
        self.db.settle()?;
        Ok(applied)
    }

    /// [`apply`](Map::apply), which may not be durable. `named` returns the maps that the batch
    /// names, in its order.
    pub(crate) fn apply_unsettled(
        &self,
        batch: &Batch,
        named: impl Fn() -> Result<Vec<Self>>,
    ) -> Result<Applied> {
        if batch.len() > BATCH_MAX {
            return Err(Error::BatchTooLarge { len: batch.len(), max: BATCH_MAX });
        }
        for part in &batch.parts {
            if let Base::Put(value, meta) = &part.change.base {
                ensure_length(value)?;
                meta.expiry.encode()?;
            }
        }
        self.db.ensure_not_backed_up()?;
        let is_changed = |map: &Self| match map.name() {
            name if name == self.name() => true,
            name => batch.named.iter().any(|(named, _)| Some(&**named) == name),
        };
        self.db.with_space(&is_changed, || {
            loop {
                let named = named()?;
                let stores: Vec<_> = std::iter::once(self).chain(&named).collect();
                let mut keys = Vec::with_capacity(batch.len());
                for part in &batch.parts {
                    // Each map hashes the key with its own seed.
                    let key = stores[part.map].key(&part.key)?;
                    stores[part.map].ensure_not_edited(key)?;
                    keys.push(key);
                }
                if let Some(applied) = self.try_apply(batch, &keys, &stores)? {
                    return Ok(applied);
                }
            }
        })
    }

    /// Opens the maps that a batch names.
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

    /// Makes one attempt to apply `batch` to these maps. Returns `None` if a flush has overtaken
    /// it.
    fn try_apply(
        &self,
        batch: &Batch,
        keys: &[BytesRef<'_>],
        stores: &[&Self],
    ) -> Result<Option<Applied>> {
        let guards: Vec<_> =
            stores.iter().map(|store| store.enter_writing()).collect::<Result<_>>()?;
        let permit = self.db.file.reservations.permit();
        if let Some(gone) = stores.iter().find(|store| !store.inner.is_open()) {
            // It was dropped while this thread waited: nothing leads to it any more, and an intent
            // must not name it.
            return Err(gone.inner.refusal());
        }
        let _reservation = self.db.file.reservations.reserve(&permit, keys);
        let mut maps = Vec::with_capacity(stores.len());
        for &store in stores {
            let Some(mark) = store.inner.flush.settled_mark() else {
                store.inner.flush.wait_for_flush();
                return Ok(None);
            };
            maps.push(BatchMap { store, mark });
        }
        // All guards are of one domain: any of them protects the records of all maps.
        let guard = &guards[0];
        let mut plans = Vec::with_capacity(keys.len());
        for (part, &key) in batch.parts.iter().zip(keys) {
            let plan = maps[part.map].read(key, guard)?;
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

    /// Takes all steps or none. All keys are reserved, and were read.
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
        // Everything that the index and the root slot will name is durable from here on.
        m.fence();
        let poison = region.poison_on_panic();
        if let Err(error) = bind_new(steps, guard) {
            poison.disarm();
            return Err(error);
        }
        if !maps.iter().all(BatchMap::is_settled) {
            unbind_new(steps.iter().filter(|step| step.is_new()), guard);
            poison.disarm();
            return Ok(Progress::Overtaken);
        }
        steps.iter().filter_map(|step| step.draft.as_ref()).for_each(Draft::set_published);
        intent.declare();
        self.db.file.reservations.begin_changing();
        if let Err(error) = carry_out(steps, guard) {
            // The batch is decided, but cannot be completed: dropping the guard poisons the store,
            // and the next opening tries again.
            drop(poison);
            return Err(error);
        }
        if steps.iter().any(KeyStep::is_new) && !m.mutant(mistakes::BATCH_UNFLUSHED) {
            // The control words of new records.
            m.fence();
        }
        self.db.file.reservations.end_changing();
        intent.fulfil();
        poison.disarm();
        steps.iter().for_each(|step| step.settle(guard));
        Ok(Progress::Done)
    }

    /// Looks up several keys as they are between two batches: the changes of a batch are all seen
    /// or none. Each value by itself is current at some moment of the call; mutations other than
    /// batches may come in between.
    ///
    /// Calls `each` with the position in `keys` and the record for each key that is present, in
    /// order, or with the error if a record is damaged. Stops when `each` returns `Break`. Reads
    /// again if a batch came in between, and after a few attempts keeps batches from running. A
    /// guard is held while `each` is called, so it should be quick. Expected O(keys), with cache
    /// misses overlapped.
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
    /// See [`Map`]; damaged records are reported to `each` instead. [`Error::Storage`] with
    /// `Forked` in a forked child.
    pub fn get_together<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        mut each: impl FnMut(usize, Result<Item<'_>>) -> ControlFlow<()>,
    ) -> Result<()> {
        let keys: Vec<_> = keys.iter().map(|key| self.key(key.as_ref())).collect::<Result<_>>()?;
        // In a forked child it cannot be known whether a batch was making changes.
        self.db.file.pool.region().ensure_writable()?;
        let guard = self.enter()?;
        let found = self.find_together(&keys, &guard)?;
        let mut value = Vec::new();
        for (at, (key, found)) in keys.iter().zip(found).enumerate() {
            // Records do not change, and the guard keeps them: the copy is what was found.
            if let Some(shown) = self.shown(key.bytes, found, &mut value).transpose()
                && each(at, shown).is_break()
            {
                break;
            }
        }
        Ok(())
    }

    /// Returns the live records of `keys` at a moment at which no batch was making changes.
    fn find_together<'g>(
        &'g self,
        keys: &[BytesRef<'_>],
        guard: &'g Guard<'_>,
    ) -> Result<Vec<Result<Option<LiveRecord<'g, M>>>>> {
        let mut backoff = Backoff::new();
        for attempt in 0.. {
            let permit = (attempt >= ATTEMPTS).then(|| self.db.file.reservations.permit());
            let (version, mark) = (self.db.file.reservations.version(), self.inner.flush.mark());
            if permit.is_some() && version.is_none() {
                // The batch that was making changes could not go on.
                self.db.file.pool.region().ensure_sound()?;
            }
            let Some(version) = version else {
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
            if self.db.file.reservations.unchanged_since(version) && self.inner.flush.mark() == mark
            {
                return Ok(found);
            }
        }
        unreachable!("flushes end at some time")
    }
}

/// Binds keys that are absent to their records, which count as expired until their control words
/// change: so everything that needs space in the index is done before the batch is decided, and no
/// reader sees it.
///
/// # Errors
/// `NoSpace`, or any error of the index; nothing has changed then.
fn bind_new<M: Medium>(steps: &[KeyStep<'_, M>], guard: &Guard<'_>) -> Result<()> {
    let new: Vec<_> = steps.iter().filter(|step| step.is_new()).collect();
    let (mut acted, mut failed) = (vec![false; new.len()], None);
    let done = mutate(&new, MutateMode::MayInsert, guard, &mut |at, _| {
        let step = new[at];
        let Some(draft) = step.draft.as_ref().filter(|_| failed.is_none()) else {
            return Action::Keep;
        };
        if let Err(error) = step.store.enter_order(step.key, guard) {
            failed = Some(error);
            return Action::Keep;
        }
        acted[at] = true;
        draft.set_published();
        Action::Put(draft.word())
    });
    // What fails after a key was bound is only tidying up.
    let errors = done.into_iter().zip(&acted).filter(|(_, acted)| !**acted);
    match failed.or(errors.filter_map(|(done, _)| done.err()).next()) {
        None => Ok(()),
        Some(error) => {
            let bound = new.into_iter().zip(acted).filter(|(_, acted)| *acted);
            unbind_new(bound.map(|(step, _)| step), guard);
            Err(error.into())
        }
    }
}

/// Undoes what [`bind_new`] has done for these steps.
fn unbind_new<'s, 'd: 's, M: Medium>(
    steps: impl Iterator<Item = &'s KeyStep<'d, M>>,
    guard: &Guard<'_>,
) {
    for step in steps {
        let Some(draft) = &step.draft else { continue };
        let mut acted = false;
        let _ =
            step.store.inner.index.mutate(step.key, MutateMode::ExistingOnly, guard, &mut |word| {
                acted = word == Some(draft.word());
                if acted { Action::Remove } else { Action::Keep }
            });
        // No reader sees what cannot be undone, and a purge removes it: until then it counts as
        // other expired records do.
        step.store.account(step.key, None, Some(draft), guard);
        if acted {
            step.store.account(step.key, Some(draft.word()), None, guard);
        }
        // The ordered index may have seen it.
        step.store.notice(step.key, KeyEvent::Unbound, guard);
    }
}

/// Carries out a batch that was decided. Durable after the next fence.
///
/// # Errors
/// Any error of an index; a part of the changes was made then.
fn carry_out<M: Medium>(steps: &[KeyStep<'_, M>], guard: &Guard<'_>) -> Result<()> {
    let (new, others): (Vec<_>, Vec<_>) = steps.iter().partition(|step| step.is_new());
    for step in new {
        step.carry_out(guard)?;
    }
    let mut acted = vec![false; others.len()];
    let done = mutate(&others, MutateMode::ExistingOnly, guard, &mut |at, word| {
        let action = others[at].entry.action(word);
        acted[at] |= action.is_some();
        action.unwrap_or(Action::Keep)
    });
    // What fails after a change is only tidying up.
    let mut errors = done.into_iter().zip(acted).filter(|(_, acted)| !acted);
    errors.try_for_each(|(done, _)| Ok(done.map(drop)?))
}

/// Changes the keys of the steps together: their cache misses overlap, and where changes are
/// flushed they are flushed together. `decide` gets the place of the step.
fn mutate<M: Medium>(
    steps: &[&KeyStep<'_, M>],
    mode: MutateMode,
    guard: &Guard<'_>,
    decide: &mut dyn FnMut(usize, Option<u64>) -> Action,
) -> Vec<evermap_pm::Result<IndexChange>> {
    let mut done = Vec::with_capacity(steps.len());
    for of_map in steps.chunk_by(|one, other| std::ptr::eq(one.store, other.store)) {
        let (first, index) = (done.len(), &of_map[0].store.inner.index);
        let keys: Vec<_> = of_map.iter().map(|step| step.key).collect();
        done.resize_with(first + keys.len(), || Ok(IndexChange { old: None, new: None }));
        let decide = &mut |at, word| decide(first + at, word);
        index.mutate_many(&keys, mode, guard, decide, &mut done[first..]);
    }
    done
}
