//! Mutations of one key.

use std::time::SystemTime;

use evermap_index::key::BytesRef;
use evermap_index::record::HEAD;
use evermap_index::{Guard, MutateMode};
use evermap_pm::Medium;

use crate::item::{Access, CacheEdit, Marks};
use crate::ops::commit::Verdict;
use crate::ops::read::LiveRecord;
use crate::record::Record;
use crate::record::control::Control;
use crate::{Edit, Expiry, Item, Map, Meta, Outcome, Result, mistakes};

/// # Writing under conditions, and computing new values
impl<M: Medium> Map<M> {
    /// Binds `key` to `value` if it is absent. Returns [`Outcome::Inserted`], or [`Outcome::Kept`]
    /// with the CAS id of the record that is there. Expected O(1).
    ///
    /// ```
    /// use evermap::Outcome;
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// assert!(matches!(map.try_insert("key", "value")?, Outcome::Inserted { .. }));
    /// assert!(matches!(map.try_insert("key", "other")?, Outcome::Kept { .. }));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`].
    pub fn try_insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Outcome> {
        self.set(key).try_insert(value)
    }

    /// Returns the value of `key`; if it is absent, binds it to `value` first. Expected O(1).
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// assert_eq!(map.get_or_insert("key", "value")?, b"value");
    /// assert_eq!(map.get_or_insert("key", "other")?, b"value");
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`].
    pub fn get_or_insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.set(key).get_or_insert(value)
    }

    /// Binds `key` to `value` if it is present. Returns [`Outcome::Updated`] or
    /// [`Outcome::Absent`]. Expected O(1).
    ///
    /// ```
    /// use evermap::Outcome;
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// assert_eq!(map.replace("key", "value")?, Outcome::Absent);
    /// map.put("key", "value")?;
    /// assert!(map.replace("key", "other")?.stored().is_some());
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`].
    pub fn replace(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Outcome> {
        self.set(key).replace(value)
    }

    /// Binds `key` to `value` if its record has this CAS id. Returns [`Outcome::Updated`],
    /// [`Outcome::Kept`] with the CAS id that is there, or [`Outcome::Absent`]. Expected O(1).
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// let cas = map.set("key").put("value")?;
    /// assert!(map.compare_exchange("key", cas, "next")?.stored().is_some());
    /// assert!(map.compare_exchange("key", cas, "late")?.stored().is_none());
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`].
    pub fn compare_exchange(
        &self,
        key: impl AsRef<[u8]>,
        cas: u64,
        value: impl AsRef<[u8]>,
    ) -> Result<Outcome> {
        self.set(key).compare_exchange(cas, value)
    }

    /// Stores a record under this condition. Copies the value of the one that is there to `old`.
    pub(crate) fn store(
        &self,
        key: &[u8],
        value: &[u8],
        meta: Meta,
        condition: Condition,
        mut old: Option<&mut Vec<u8>>,
    ) -> Result<Outcome> {
        let key = self.begin_change(key)?;
        let stored =
            self.with_space(|| self.try_store(key, value, meta, condition, old.as_deref_mut()))?;
        self.db.settle()?;
        Ok(stored)
    }

    /// [`store`](Map::store) without waiting for space.
    pub(crate) fn try_store(
        &self,
        key: BytesRef<'_>,
        value: &[u8],
        meta: Meta,
        condition: Condition,
        old: Option<&mut Vec<u8>>,
    ) -> Result<Outcome> {
        let guard = self.enter_writing()?;
        // What the index has about the key arrives while the record is written.
        self.inner.index.prefetch_bucket(key);
        let draft = self.draft(key, value, meta)?;
        draft.persist();
        self.inner.index.prefetch_record(key, HEAD);
        let (mut found, mut stored) = (None, false);
        self.commit(key, condition.mode(), &guard, Some(&draft), &mut |live| {
            found = live.map(|record| (record.cas(), record.word()));
            stored = condition.allows(live);
            if stored { Verdict::Publish } else { Verdict::Keep }
        })?;
        if let (Some(old), Some((_, word))) = (old, found) {
            self.copy_old(key, word, old)?;
        }
        let cas = draft.cas();
        Ok(match (found, stored) {
            (None, true) => Outcome::Inserted { cas },
            (Some(_), true) => Outcome::Updated { cas },
            (Some((cas, _)), false) => Outcome::Kept { cas },
            (None, false) => Outcome::Absent,
        })
    }

    /// Copies the value of a record that was live when its key was locked. The caller has held a
    /// guard since before, so that the record is still in its place even if it was replaced or
    /// removed.
    fn copy_old(&self, key: BytesRef<'_>, word: u64, old: &mut Vec<u8>) -> Result<()> {
        let record = Record::at(self.db.file.pool.medium(), word)
            .map_err(|what| self.damaged_at(key, word, what))?;
        old.clear();
        self.copy(key.bytes, &record, old)
    }

    /// Removes `key` if its record has this CAS id. Returns [`Outcome::Removed`], [`Outcome::Kept`]
    /// with the CAS id that is there, or [`Outcome::Absent`]. Expected O(1).
    ///
    /// ```
    /// use evermap::Outcome;
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// let cas = map.set("key").put("value")?;
    /// assert_eq!(map.remove_if(b"key", cas + 1)?, Outcome::Kept { cas });
    /// assert_eq!(map.remove_if(b"key", cas)?, Outcome::Removed);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`].
    pub fn remove_if(&self, key: impl AsRef<[u8]>, cas: u64) -> Result<Outcome> {
        self.unbind(self.begin_change(key.as_ref())?, None, Some(cas))
    }

    /// Removes the record of `key`, if it is `expected` to have a CAS id only the one with that.
    /// Copies its value to `old`. An unreadable record is removed only if none is expected.
    pub(crate) fn unbind(
        &self,
        key: BytesRef<'_>,
        old: Option<&mut Vec<u8>>,
        expected: Option<u64>,
    ) -> Result<Outcome> {
        let outcome = self.try_unbind(key, old, expected)?;
        self.db.settle()?;
        Ok(outcome)
    }

    /// [`unbind`](Map::unbind), which may not be durable.
    fn try_unbind(
        &self,
        key: BytesRef<'_>,
        old: Option<&mut Vec<u8>>,
        expected: Option<u64>,
    ) -> Result<Outcome> {
        let guard = self.enter_writing()?;
        let (mut outcome, mut word) = (Outcome::Absent, None);
        self.commit(key, MutateMode::ExistingOnly, &guard, None, &mut |live| {
            word = live.map(|record| record.word());
            match live {
                Some(record) if expected.is_none_or(|cas| cas == record.cas()) => {
                    outcome = Outcome::Removed;
                    Verdict::Remove
                }
                Some(record) => {
                    outcome = Outcome::Kept { cas: record.cas() };
                    Verdict::Keep
                }
                None => {
                    outcome = Outcome::Absent;
                    if expected.is_none() { Verdict::Remove } else { Verdict::Keep }
                }
            }
        })?;
        if let (Some(old), Some(word)) = (old, word) {
            self.copy_old(key, word, old)?;
        }
        Ok(outcome)
    }

    /// Changes when `key` expires, and nothing else. Returns `true` if it is present. The CAS id
    /// stays. Expected O(1).
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put("key", "value")?;
    /// assert!(map.touch("key", Duration::from_secs(60))?);
    /// assert!(map.touch("key", SystemTime::now() - Duration::from_secs(60))?);
    /// assert_eq!(map.get("key")?, None, "it has expired");
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`].
    pub fn touch(&self, key: impl AsRef<[u8]>, expiry: impl Into<Expiry>) -> Result<bool> {
        let expires_at = expiry.into().encode()?;
        let (key, guard) = (self.begin_change(key.as_ref())?, self.enter_writing()?);
        let is_touched = self.touch_under(key, expires_at, &guard)?.is_some();
        drop(guard);
        self.db.settle()?;
        Ok(is_touched)
    }

    /// [`CacheMap::get_and_touch`](crate::cache::CacheMap::get_and_touch).
    pub(crate) fn touch_and_read<R>(
        &self,
        key: &[u8],
        expiry: Expiry,
        read: impl FnOnce(Item<'_>) -> R,
    ) -> Result<Option<R>> {
        let expires_at = expiry.encode()?;
        let (key, guard) = (self.begin_change(key)?, self.enter_writing()?);
        let touched = self.touch_under(key, expires_at, &guard)?;
        let Some(((record, control), prior)) = touched else { return Ok(None) };
        let mut value = Vec::new();
        self.copy(key.bytes, &record, &mut value)?;
        let item = record.item(key.bytes, &value, control).with_access(prior);
        drop(guard);
        self.db.settle()?;
        Ok(Some(read(item)))
    }

    fn touch_under<'g>(
        &'g self,
        key: BytesRef<'_>,
        expires_at: u32,
        guard: &'g Guard<'_>,
    ) -> Result<Option<(LiveRecord<'g, M>, Access)>> {
        let mut touched = None;
        let done = self.commit(key, MutateMode::ExistingOnly, guard, None, &mut |live| {
            if let Some(record) = live
                && let Some(before) = record.control()
            {
                let now = Control { expires_at, ..before };
                record.set_control(now);
                touched = Some((record.word(), before, now));
                return Verdict::KeepTouched;
            }
            Verdict::Keep
        });
        // If it was touched, whatever else went wrong.
        if let Some((_, before, now)) = touched {
            self.expect_after(key, before, now);
        }
        done?;
        let Some((word, _, now)) = touched else { return Ok(None) };
        let record = Record::at(self.db.file.pool.medium(), word).ok();
        Ok(record.map(|record| ((record, now), self.accessed(&record))))
    }

    /// Makes a key due whose record was changed in place.
    fn expect_after(&self, key: BytesRef<'_>, before: Control, now: Control) {
        if now.expires_at != 0 {
            self.expect_replacement(key.hash, Some(before.expires_at), Some(now.expires_at));
        }
    }

    /// Changes `key` by an atomic read-modify-write: calls `edit` with the current record and does
    /// what it decides. Returns the CAS id of the record that the key has then, or `None` if it is
    /// absent.
    ///
    /// `edit` runs without any lock, and again with the newer record if another thread was faster,
    /// so it should be short and have no effects of its own. Expected O(1) while threads do not
    /// compete for the key; some thread always succeeds.
    ///
    /// `edit` may use the store, but not change the same key, and not call what waits for guards:
    /// it runs under one.
    ///
    /// ```
    /// use evermap::Edit;
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// for _ in 0..3 {
    ///     map.modify(b"visits", |current| {
    ///         let count = current.map_or(0, |item| item.value[0]);
    ///         Edit::Value(vec![count + 1])
    ///     })?;
    /// }
    /// assert_eq!(map.get(b"visits")?, Some(vec![3]));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`].
    pub fn modify(
        &self,
        key: impl AsRef<[u8]>,
        mut edit: impl FnMut(Option<Item<'_>>) -> Edit,
    ) -> Result<Option<u64>> {
        self.modify_guarded(key.as_ref(), |item| edit(item).into())
    }

    /// [`modify`](Map::modify) by any edit.
    pub(crate) fn modify_guarded(
        &self,
        key: &[u8],
        mut edit: impl FnMut(Option<Item<'_>>) -> CacheEdit,
    ) -> Result<Option<u64>> {
        let key = self.begin_change(key)?;
        let outcome = self.modify_by(key, |item| {
            let _edit = self.begin_edit(key);
            edit(item)
        })?;
        Ok(outcome.cas())
    }

    /// Changes `key` as [`modify`](Map::modify) does, and returns the value that it had before, or
    /// `None` if it was absent.
    ///
    /// ```
    /// use evermap::Edit;
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put(b"state", b"ready")?;
    /// let before = map.fetch_modify(b"state", |_| Edit::Value(b"running".to_vec()))?;
    /// assert_eq!(before, Some(b"ready".to_vec()));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`].
    pub fn fetch_modify(
        &self,
        key: impl AsRef<[u8]>,
        mut edit: impl FnMut(Option<Item<'_>>) -> Edit,
    ) -> Result<Option<Vec<u8>>> {
        let mut before = None;
        self.modify(key, |item| {
            before = item.map(|item| item.value.to_vec());
            edit(item)
        })?;
        Ok(before)
    }

    /// [`modify`](Map::modify) by an `edit` that does not use the store.
    pub(crate) fn modify_by(
        &self,
        key: BytesRef<'_>,
        mut edit: impl FnMut(Option<Item<'_>>) -> CacheEdit,
    ) -> Result<Outcome> {
        let outcome = self.with_space(|| {
            loop {
                if let Some(outcome) = self.try_modify(key, &mut edit)? {
                    return Ok(outcome);
                }
            }
        })?;
        self.db.settle()?;
        Ok(outcome)
    }

    /// Does one round of [`modify`](Map::modify). Returns `None` if another thread was faster.
    fn try_modify(
        &self,
        key: BytesRef<'_>,
        edit: &mut impl FnMut(Option<Item<'_>>) -> CacheEdit,
    ) -> Result<Option<Outcome>> {
        // The guard keeps the record that was seen from being reused, so that its word means the
        // same record as long as it is compared.
        let guard = self.enter_writing()?;
        let (mut value, mut access) = (Vec::new(), self.new_access());
        let seen = match self.find(key, &guard)? {
            None => None,
            Some((record, control)) => {
                self.copy(key.bytes, &record, &mut value)?;
                let prior = self.accessed(&record);
                access = record.access();
                let item = record.item(key.bytes, &value, control).with_access(prior);
                Some((Version { word: record.word(), control }, item))
            }
        };
        let (version, item) = seen.unzip();
        let meta = item.map_or_else(Meta::default, |item| item.meta());
        let (new, meta, then) = match edit(item) {
            CacheEdit::Edit(Edit::Keep) => {
                let kept = item.map_or(Outcome::Absent, |item| Outcome::Kept { cas: item.cas });
                return Ok(Some(kept));
            }
            CacheEdit::Edit(Edit::Remove) | CacheEdit::Mark { .. } if item.is_none() => {
                return Ok(Some(Outcome::Absent));
            }
            CacheEdit::Edit(Edit::Remove) => (None, meta, Then::Remove),
            CacheEdit::Mark { expiry, marks } => {
                let control = Control { expires_at: expiry.encode()?, marks };
                return self.try_mark(key, version, control, &guard);
            }
            CacheEdit::Edit(Edit::Value(new)) => (Some(new), meta, Then::PublishTouched),
            CacheEdit::MarkedValue(new, marks) => {
                (Some(new), meta.with_marks(marks), Then::PublishMarked(marks))
            }
            CacheEdit::Edit(Edit::Record(new, meta)) => (Some(new), meta, Then::Publish),
        };
        let draft = new.as_ref().map(|new| self.draft(key, new, meta)).transpose()?;
        // A change of what is there is an access, and not a new record.
        draft.iter().for_each(|draft| {
            draft.set_access(access);
            draft.persist();
        });
        let mut done = false;
        self.commit(key, MutateMode::MayInsert, &guard, draft.as_ref(), &mut |live| {
            let verdict = then.verdict(version, live.as_ref().map(Version::of));
            done = verdict.is_some();
            verdict.unwrap_or(Verdict::Keep)
        })?;
        Ok(done.then(|| match (item, draft) {
            (_, None) => Outcome::Removed,
            (None, Some(draft)) => Outcome::Inserted { cas: draft.cas() },
            (Some(_), Some(draft)) => Outcome::Updated { cas: draft.cas() },
        }))
    }

    /// Changes expiry and marks of a record in place if it is still as it was `seen`. Returns
    /// `None` if another thread was faster.
    fn try_mark(
        &self,
        key: BytesRef<'_>,
        seen: Option<Version>,
        now: Control,
        guard: &Guard<'_>,
    ) -> Result<Option<Outcome>> {
        let mut marked = None;
        let done = self.commit(key, MutateMode::ExistingOnly, guard, None, &mut |live| {
            // Compared under the lock, under which every change of a control word is made: neither
            // this one nor one by another thread is lost.
            if let Some(record) = live
                && let Some(seen) = seen.filter(|&seen| seen == Version::of(&record))
            {
                if self.db.file.pool.medium().mutant(mistakes::MARKS_UNFLUSHED) {
                    record.store_control(now);
                } else {
                    record.set_control(now);
                }
                marked = Some((seen.control, record.cas()));
                return Verdict::KeepTouched;
            }
            Verdict::Keep
        });
        // If it was marked, whatever else went wrong.
        if let Some((before, _)) = marked {
            self.expect_after(key, before, now);
        }
        done?;
        Ok(marked.map(|(_, cas)| Outcome::Kept { cas }))
    }

    /// Makes all records expire at a time that will have been stored before it: the first operation
    /// at or after it finds the map empty. A later call replaces one that is pending, as
    /// [`clear`](Map::clear) does. Survives a crash like any other mutation. O(1).
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use evermap::{Clock, Evermap, Options};
    /// let clock = Clock::manual(SystemTime::now());
    /// let map = Evermap::in_memory(Options::new().clock(clock.clone()))?.default_map();
    /// map.put("key", "value")?;
    /// map.expire_all_at(map.now() + Duration::from_secs(60))?;
    /// assert!(map.contains("key")?);
    /// clock.advance(Duration::from_secs(60));
    /// assert!(!map.contains("key")?);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`].
    pub fn expire_all_at(&self, time: SystemTime) -> Result<()> {
        self.flush(Some(Expiry::from(time).encode()?))
    }

    /// Removes all records at this time, or now.
    pub(crate) fn flush(&self, at: Option<u32>) -> Result<()> {
        let (file, guard) = (&self.db.file, self.enter_writing()?);
        if self.inner.flush.flush(file.pool.region(), &file.cas_counter, at, file.clock.now()) {
            self.flushed();
        }
        drop(guard);
        self.db.settle()
    }
}

/// What has to be there for a record to be stored.
#[derive(Clone, Copy)]
pub(crate) enum Condition {
    /// Whatever is there.
    Any,
    Absent,
    Present,
    /// A record with this CAS id and none of these marks.
    Version {
        cas: u64,
        unmarked: Marks,
    },
}

impl Condition {
    fn mode(self) -> MutateMode {
        match self {
            Condition::Any | Condition::Absent => MutateMode::MayInsert,
            Condition::Present | Condition::Version { .. } => MutateMode::ExistingOnly,
        }
    }

    /// Returns `true` if it holds, given the live record.
    fn allows<M: Medium>(self, found: Option<Record<'_, M>>) -> bool {
        match self {
            Condition::Any => true,
            Condition::Absent => found.is_none(),
            Condition::Present => found.is_some(),
            Condition::Version { cas, unmarked } => found.is_some_and(|record| {
                let has = || record.control().unwrap_or_default().marks;
                record.cas() == cas && !has().intersects(unmarked)
            }),
        }
    }
}

/// A version of a record: which record it is, and what can change in place.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Version {
    word: u64,
    control: Control,
}

impl Version {
    /// Returns the version that a live record has now.
    fn of<M: Medium>(record: &Record<'_, M>) -> Self {
        // A live record has a control word that can be read.
        Version { word: record.word(), control: record.control().unwrap_or_default() }
    }
}

/// What follows an edit if no other thread was faster.
#[derive(Clone, Copy)]
enum Then {
    Remove,
    /// Publish the draft as it is.
    Publish,
    /// Publish the draft with the expiry and the marks that the record has by then.
    PublishTouched,
    /// Publish the draft with these marks and the expiry that the record has by then.
    PublishMarked(Marks),
}

impl Then {
    /// Returns what is to be done if the version that the edit has `seen` still counts, given the
    /// one that is there `now`.
    fn verdict(self, seen: Option<Version>, now: Option<Version>) -> Option<Verdict> {
        let (same, control) = match (seen, now) {
            (None, None) => (true, None),
            (Some(seen), Some(now)) if seen.word == now.word => (seen == now, Some(now.control)),
            _ => return None,
        };
        match (self, control) {
            // The edit has not decided about the expiry, nor about the marks.
            (Then::PublishTouched, Some(control)) => Some(Verdict::PublishWith(control.encode())),
            // The edit has not decided about the expiry.
            (Then::PublishMarked(marks), Some(control))
                if seen.is_some_and(|seen| seen.control.marks == control.marks) =>
            {
                Some(Verdict::PublishWith(Control { marks, ..control }.encode()))
            }
            _ if !same => None,
            (Then::Remove, _) => Some(Verdict::Remove),
            (Then::Publish | Then::PublishTouched | Then::PublishMarked(_), _) => {
                Some(Verdict::Publish)
            }
        }
    }
}
