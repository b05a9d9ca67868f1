//! Mutations.

use evermap_index::MutateMode;
use evermap_index::key::BytesRef;
use evermap_index::record::HEAD;
use evermap_pm::Medium;

use crate::map::handle::Verdict;
use crate::record::{Draft, Record};
use crate::{Edit, Item, Meta, Outcome, Result, Store};

impl<M: Medium> Store<M> {
    /// Binds `key` to `value`, whatever was there. Expected O(1).
    ///
    /// ```
    /// # let map = evermap::Evermap::open("", evermap::Options::volatile())?;
    /// map.put(b"key", b"value")?;
    /// assert_eq!(map.get(b"key")?.as_deref(), Some(&b"value"[..]));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Store`].
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let _ = self.put_with(key, value, Meta::default())?;
        Ok(())
    }

    /// [`put`](Store::put) with flags and expiry. Answers `Inserted` or `Updated`.
    ///
    /// ```
    /// use evermap::{Meta, Outcome};
    /// # let map = evermap::Evermap::open("", evermap::Options::volatile())?;
    /// let meta = Meta { flags: 7, expires_at: 0 };
    /// assert!(matches!(map.put_with(b"key", b"value", meta)?, Outcome::Inserted { .. }));
    /// assert!(matches!(map.put_with(b"key", b"other", meta)?, Outcome::Updated { .. }));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Store`].
    pub fn put_with(&self, key: &[u8], value: &[u8], meta: Meta) -> Result<Outcome> {
        self.store(key, value, meta, MutateMode::MayInsert, |_| true)
    }

    /// Binds `key` to `value` if it is absent. Answers `Inserted` or `Kept`. Expected O(1).
    ///
    /// ```
    /// use evermap::{Meta, Outcome};
    /// # let map = evermap::Evermap::open("", evermap::Options::volatile())?;
    /// assert!(matches!(map.insert(b"key", b"value", Meta::default())?, Outcome::Inserted { .. }));
    /// assert!(matches!(map.insert(b"key", b"other", Meta::default())?, Outcome::Kept { .. }));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Store`].
    pub fn insert(&self, key: &[u8], value: &[u8], meta: Meta) -> Result<Outcome> {
        self.store(key, value, meta, MutateMode::MayInsert, |cas| cas.is_none())
    }

    /// Binds `key` to `value` if it is present. Answers `Updated` or `Absent`. Expected O(1).
    ///
    /// ```
    /// use evermap::{Meta, Outcome};
    /// # let map = evermap::Evermap::open("", evermap::Options::volatile())?;
    /// assert_eq!(map.update(b"key", b"value", Meta::default())?, Outcome::Absent);
    /// map.put(b"key", b"value")?;
    /// assert!(map.update(b"key", b"other", Meta::default())?.stored().is_some());
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Store`].
    pub fn update(&self, key: &[u8], value: &[u8], meta: Meta) -> Result<Outcome> {
        self.store(key, value, meta, MutateMode::ExistingOnly, |cas| cas.is_some())
    }

    /// Binds `key` to `value` if its record has this CAS id. Answers `Updated`, `Kept` with the CAS id that is
    /// there, or `Absent`. Expected O(1).
    ///
    /// ```
    /// use evermap::Meta;
    /// # let map = evermap::Evermap::open("", evermap::Options::volatile())?;
    /// let cas = map.put_with(b"key", b"value", Meta::default())?.stored().unwrap();
    /// assert!(map.compare_exchange(b"key", cas, b"next", Meta::default())?.stored().is_some());
    /// assert!(map.compare_exchange(b"key", cas, b"late", Meta::default())?.stored().is_none());
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Store`].
    pub fn compare_exchange(
        &self,
        key: &[u8],
        cas: u64,
        value: &[u8],
        meta: Meta,
    ) -> Result<Outcome> {
        self.store(key, value, meta, MutateMode::ExistingOnly, |found| found == Some(cas))
    }

    /// Stores a record if `allowed`, given the CAS id of the live one.
    fn store(
        &self,
        key: &[u8],
        value: &[u8],
        meta: Meta,
        mode: MutateMode,
        allowed: impl Fn(Option<u64>) -> bool,
    ) -> Result<Outcome> {
        let key = self.begin_change(key)?;
        self.with_space(|| self.try_store(key, value, meta, mode, &allowed))
    }

    pub(crate) fn try_store(
        &self,
        key: BytesRef<'_>,
        value: &[u8],
        meta: Meta,
        mode: MutateMode,
        allowed: &impl Fn(Option<u64>) -> bool,
    ) -> Result<Outcome> {
        let guard = self.enter_writing()?;
        // What the index has about the key comes while the record is written.
        self.map.index.prefetch_bucket(key);
        let draft = self.draft(key, value, meta)?;
        draft.persist();
        self.map.index.prefetch_record(key, HEAD);
        let mut found = None;
        let mut stored = false;
        self.commit(key, mode, &guard, Some(&draft), &mut |live| {
            found = live.map(|record| record.cas());
            stored = allowed(found);
            if stored { Verdict::Publish } else { Verdict::Keep }
        })?;
        let cas = draft.cas();
        Ok(match (found, stored) {
            (None, true) => Outcome::Inserted { cas },
            (Some(_), true) => Outcome::Updated { cas },
            (Some(cas), false) => Outcome::Kept { cas },
            (None, false) => Outcome::Absent,
        })
    }

    /// Removes `key`; answers whether it was present. Expected O(1).
    ///
    /// ```
    /// # let map = evermap::Evermap::open("", evermap::Options::volatile())?;
    /// map.put(b"key", b"value")?;
    /// assert!(map.remove(b"key")?);
    /// assert!(!map.remove(b"key")?);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Store`]. A damaged record is removed too.
    pub fn remove(&self, key: &[u8]) -> Result<bool> {
        Ok(self.take_away(key, |_| true)? == Outcome::Removed)
    }

    /// Removes `key` if its record has this CAS id. Answers `Removed`, `Kept` with the CAS id that is there, or
    /// `Absent`. Expected O(1).
    ///
    /// ```
    /// use evermap::{Meta, Outcome};
    /// # let map = evermap::Evermap::open("", evermap::Options::volatile())?;
    /// let cas = map.put_with(b"key", b"value", Meta::default())?.stored().unwrap();
    /// assert_eq!(map.remove_if(b"key", cas + 1)?, Outcome::Kept { cas });
    /// assert_eq!(map.remove_if(b"key", cas)?, Outcome::Removed);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Store`].
    pub fn remove_if(&self, key: &[u8], cas: u64) -> Result<Outcome> {
        self.take_away(key, |found| found == cas)
    }

    fn take_away(&self, key: &[u8], allowed: impl Fn(u64) -> bool) -> Result<Outcome> {
        self.unbind(self.begin_change(key)?, allowed)
    }

    /// Removes the live record of `key` if `allowed`, given its CAS id.
    pub(crate) fn unbind(
        &self,
        key: BytesRef<'_>,
        allowed: impl Fn(u64) -> bool,
    ) -> Result<Outcome> {
        let guard = self.enter_writing()?;
        let mut outcome = Outcome::Absent;
        self.commit(key, MutateMode::ExistingOnly, &guard, None, &mut |live| match live {
            Some(record) if allowed(record.cas()) => {
                outcome = Outcome::Removed;
                Verdict::Remove
            }
            Some(record) => {
                outcome = Outcome::Kept { cas: record.cas() };
                Verdict::Keep
            }
            None => Verdict::Keep,
        })?;
        Ok(outcome)
    }

    /// Changes the expiry of `key` (seconds since 1970; 0: never) and nothing else; answers whether it is
    /// present. The CAS id stays. Expected O(1).
    ///
    /// ```
    /// # let map = evermap::Evermap::open("", evermap::Options::volatile())?;
    /// map.put(b"key", b"value")?;
    /// assert!(map.touch(b"key", 1)?);
    /// assert_eq!(map.get(b"key")?, None, "1970 is over");
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Store`].
    pub fn touch(&self, key: &[u8], expires_at: u32) -> Result<bool> {
        let key = self.begin_change(key)?;
        let guard = self.enter_writing()?;
        Ok(self.touch_under(key, expires_at, &guard)?.is_some())
    }

    /// [`touch`](Store::touch), and `read` of the record whose expiry was changed.
    ///
    /// ```
    /// # let map = evermap::Evermap::open("", evermap::Options::volatile())?;
    /// map.put(b"key", b"value")?;
    /// let length = map.get_and_touch(b"key", 0, |item| item.value.len())?;
    /// assert_eq!(length, Some(5));
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Store`].
    pub fn get_and_touch<R>(
        &self,
        key: &[u8],
        expires_at: u32,
        read: impl FnOnce(Item<'_>) -> R,
    ) -> Result<Option<R>> {
        let key = self.begin_change(key)?;
        let guard = self.enter_writing()?;
        let Some(record) = self.touch_under(key, expires_at, &guard)? else { return Ok(None) };
        let mut value = Vec::new();
        self.copy(key.bytes, &record, &mut value)?;
        let item = record.item(key.bytes, &value, expires_at);
        drop(guard);
        Ok(Some(read(item)))
    }

    fn touch_under<'g>(
        &'g self,
        key: BytesRef<'_>,
        expires_at: u32,
        guard: &'g evermap_pm::Guard<'_>,
    ) -> Result<Option<Record<'g, M>>> {
        let (mut word, mut before) = (None, None);
        let touched = self.commit(key, MutateMode::ExistingOnly, guard, None, &mut |live| {
            if let Some(record) = live {
                before = record.expires_at();
                record.set_expires_at(expires_at);
                word = Some(record.word());
            }
            Verdict::Keep
        });
        // Whatever else went wrong, if it was touched.
        if word.is_some() && expires_at != 0 {
            self.expect_instead(key.hash, before, Some(expires_at));
        }
        touched?;
        Ok(word.and_then(|word| Record::at(self.file.pool.medium(), word).ok()))
    }

    /// The general atomic read-modify-write: shows `edit` the current record and does what it decides.
    ///
    /// `edit` runs without any lock, and again with the newer record where another thread was faster, so it
    /// should be short and without effects of its own. Answers any [`Outcome`]. Expected O(1) while threads do
    /// not compete for the key; some thread always succeeds.
    ///
    /// `edit` may use the store, but not change the same key, and not call what waits for guards:
    /// it runs under one.
    ///
    /// ```
    /// use evermap::Edit;
    /// # let map = evermap::Evermap::open("", evermap::Options::volatile())?;
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
    /// See [`Store`].
    pub fn modify(
        &self,
        key: &[u8],
        mut edit: impl FnMut(Option<Item<'_>>) -> Edit,
    ) -> Result<Outcome> {
        let key = self.begin_change(key)?;
        self.modify_by(key, |item| {
            let _edit = self.begin_edit(key);
            edit(item)
        })
    }

    /// [`modify`](Store::modify) by an `edit` that does not use the store.
    pub(crate) fn modify_by(
        &self,
        key: BytesRef<'_>,
        mut edit: impl FnMut(Option<Item<'_>>) -> Edit,
    ) -> Result<Outcome> {
        self.with_space(|| {
            loop {
                if let Some(outcome) = self.try_modify(key, &mut edit)? {
                    return Ok(outcome);
                }
            }
        })
    }

    /// One round of [`modify`](Store::modify); nothing if another thread was faster.
    fn try_modify(
        &self,
        key: BytesRef<'_>,
        edit: &mut impl FnMut(Option<Item<'_>>) -> Edit,
    ) -> Result<Option<Outcome>> {
        // The guard keeps the record that was seen from being reused, so that its word means the same
        // record as long as it is compared.
        let guard = self.enter_writing()?;
        let mut value = Vec::new();
        let seen = match self.find(key, &guard)? {
            None => None,
            Some((record, expires_at)) => {
                self.copy(key.bytes, &record, &mut value)?;
                Some((record.word(), record.item(key.bytes, &value, expires_at)))
            }
        };
        let cas = seen.map(|(_, item)| item.cas);
        let edit = edit(seen.map(|(_, item)| item));
        let flags = seen.map_or(0, |(_, item)| item.flags);
        let (new, meta, keeps_expiry) = match &edit {
            Edit::Keep => {
                return Ok(Some(cas.map_or(Outcome::Absent, |cas| Outcome::Kept { cas })));
            }
            Edit::Remove if cas.is_none() => return Ok(Some(Outcome::Absent)),
            Edit::Remove => (None, Meta::default(), false),
            Edit::Value(new) => (Some(new), Meta { flags, expires_at: 0 }, true),
            Edit::Record(new, meta) => (Some(new), *meta, false),
        };
        let draft = new.map(|new| self.draft(key, new, meta)).transpose()?;
        draft.iter().for_each(Draft::persist);
        let mut done = false;
        self.commit(key, MutateMode::MayInsert, &guard, draft.as_ref(), &mut |live| {
            done = live.map(|record| record.word()) == seen.map(|(word, _)| word);
            match (done, live) {
                (false, _) => Verdict::Keep,
                (true, _) if draft.is_none() => Verdict::Remove,
                // The expiry may have been touched since it was seen: what is there now counts.
                (true, Some(record)) if keeps_expiry => Verdict::PublishWith(record.control()),
                (true, _) => Verdict::Publish,
            }
        })?;
        Ok(done.then(|| match (cas, draft) {
            (_, None) => Outcome::Removed,
            (None, Some(draft)) => Outcome::Inserted { cas: draft.cas() },
            (Some(_), Some(draft)) => Outcome::Updated { cas: draft.cas() },
        }))
    }

    /// Makes everything absent that was stored so far: at once, or at the first operation at or after `at`
    /// (seconds since 1970). A later call replaces one that is pending. Survives a crash like any other
    /// mutation. O(1); the space comes back in the background.
    ///
    /// ```
    /// # let map = evermap::Evermap::open("", evermap::Options::volatile())?;
    /// map.put(b"key", b"value")?;
    /// map.flush_all(None)?;
    /// assert_eq!(map.get(b"key")?, None);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Store`].
    pub fn flush_all(&self, at: Option<u32>) -> Result<()> {
        let (file, _guard) = (&self.file, self.enter_writing()?);
        if self.map.flush.flush(file.pool.region(), &file.cas_counter, at, file.clock.now()) {
            self.has_flushed();
        }
        Ok(())
    }
}
