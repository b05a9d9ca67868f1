//! Looking up several keys without copying the values.

use std::ops::ControlFlow;
use std::time::SystemTime;

use evermap_index::Guard;
use evermap_index::key::BytesRef;
use evermap_pm::Medium;
use evermap_pm::medium::Mapped;

use crate::item::{Access, Marks};
use crate::ops::read::{BATCH_KEYS, RECORDS_AHEAD, Walk};
use crate::record::Record;
use crate::record::control::Control;
use crate::{Item, Map, Result};

/// A record that a lookup has found, and whose value has not been read: see
/// [`CacheMap::find_many`](crate::cache::CacheMap::find_many).
pub struct UnreadRecord<'r, M: Medium = Mapped> {
    map: &'r Map<M>,
    key: &'r [u8],
    record: Record<'r, M>,
    control: Control,
    prior: Access,
}

impl<M: Medium> UnreadRecord<'_, M> {
    /// Returns the key.
    pub fn key(&self) -> &[u8] {
        self.key
    }

    /// Returns the length of the value, in bytes.
    pub fn value_len(&self) -> usize {
        self.record.value_len()
    }

    /// Returns 32 bits that the caller stored with the value.
    pub fn flags(&self) -> u32 {
        self.record.flags()
    }

    /// Returns the CAS id, which identifies this version of the record.
    pub fn cas(&self) -> u64 {
        self.record.cas()
    }

    /// Returns when the record expires, or `None` if it never does.
    pub fn expires_at(&self) -> Option<SystemTime> {
        self.control.expiry().time()
    }

    /// Returns the marks, as they were when the record was found.
    pub fn marks(&self) -> Marks {
        self.control.marks
    }

    /// Returns how it was accessed before.
    pub fn access(&self) -> Access {
        self.prior
    }

    /// Appends the value to `out` and verifies the copy. O(length), with one copy.
    ///
    /// This also verifies the flags, the CAS id and the length, which the checksum covers.
    ///
    /// # Errors
    /// [`Error::Damaged`](crate::Error::Damaged) if the checksum does not match. `out` is unchanged
    /// then.
    #[inline]
    pub fn append_to(&self, out: &mut Vec<u8>) -> Result<()> {
        self.map.copy(self.key, &self.record, out)
    }

    /// Copies the value to `out`, which has its [length](UnreadRecord::value_len), and verifies the
    /// copy as [`append_to`](UnreadRecord::append_to) does. O(length), with one copy.
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put(b"key", b"value")?;
    /// let copied = map.cache().find(b"key", |record| {
    ///     let mut out = vec![0; record.value_len()].into_boxed_slice();
    ///     record.copy_to(&mut out).map(|()| out)
    /// })?;
    /// assert_eq!(&*copied.unwrap()?, b"value");
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Damaged`](crate::Error::Damaged) if the checksum does not match. What is in `out`
    /// then is not the value.
    ///
    /// # Panics
    /// If `out` has another length.
    #[inline]
    pub fn copy_to(&self, out: &mut [u8]) -> Result<()> {
        assert_eq!(out.len(), self.value_len(), "the length of the value");
        self.map.copy_to(self.key, &self.record, out)
    }

    /// Copies the value to `value`, which is cleared first, and returns the record with it.
    #[inline]
    pub(crate) fn read<'v>(&'v self, value: &'v mut Vec<u8>) -> Result<Item<'v>> {
        value.clear();
        self.append_to(value)?;
        Ok(self.record.item(self.key, value, self.control).with_access(self.prior))
    }
}

impl<M: Medium> Map<M> {
    /// [`CacheMap::find`](crate::cache::CacheMap::find).
    #[inline]
    pub(crate) fn find_unread<R>(
        &self,
        key: &[u8],
        read: impl FnOnce(UnreadRecord<'_, M>) -> R,
    ) -> Result<Option<R>> {
        let key = self.key(key)?;
        let guard = self.enter()?;
        let Some((record, control)) = self.find_to_read(key, &guard)? else { return Ok(None) };
        let prior = self.accessed(&record);
        Ok(Some(read(UnreadRecord { map: self, key: key.bytes, record, control, prior })))
    }

    /// [`CacheMap::find_many`](crate::cache::CacheMap::find_many).
    pub(crate) fn find_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        mut each: impl FnMut(usize, Result<UnreadRecord<'_, M>>) -> ControlFlow<()>,
    ) -> Result<()> {
        let guard = self.enter()?;
        for (batch, keys) in keys.chunks(BATCH_KEYS).enumerate() {
            let mut refs = [BytesRef { bytes: &[], hash: 0 }; BATCH_KEYS];
            for (slot, key) in refs.iter_mut().zip(keys) {
                *slot = self.key(key.as_ref())?;
            }
            let each =
                |at, found: Result<UnreadRecord<'_, M>>| each(batch * BATCH_KEYS + at, found);
            let refs = &refs[..keys.len()];
            if self.find_batch(refs, &guard, Self::accessed, each)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// [`CacheMap::find_page`](crate::cache::CacheMap::find_page).
    pub(crate) fn find_page(
        &self,
        position: u64,
        mut each: impl FnMut(Result<UnreadRecord<'_, M>>),
    ) -> Result<Option<u64>> {
        let mut walk = Walk::at(self, position);
        let mut pairs = Vec::new();
        let Some(guard) = walk.next(&mut pairs)? else { return Ok(None) };
        if let Err(error) = walk.take_error() {
            each(Err(error));
        }
        let mut key = Vec::new();
        for (at, &(hash, word)) in pairs.iter().enumerate() {
            if let Some((_, ahead)) = pairs.get(at + RECORDS_AHEAD) {
                self.prefetch(*ahead);
            }
            key.clear();
            match walk.named(hash, word, &guard, &mut key) {
                Ok(None) => {}
                Ok(Some((record, control))) => {
                    let prior = self.prior_access(&record);
                    each(Ok(UnreadRecord { map: self, key: &key, record, control, prior }));
                }
                Err(error) => each(Err(error)),
            }
        }
        Ok(walk.position())
    }

    /// Looks up at most [`BATCH_KEYS`] keys. `prior` counts an access, or does not. Returns what
    /// `each` returned last.
    #[inline]
    pub(crate) fn find_batch(
        &self,
        keys: &[BytesRef<'_>],
        guard: &Guard<'_>,
        prior: impl Fn(&Self, &Record<'_, M>) -> Access,
        mut each: impl FnMut(usize, Result<UnreadRecord<'_, M>>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let mut words = [None; BATCH_KEYS];
        self.inner.index.get_many(keys, &mut words[..keys.len()], guard)?;
        for word in words.iter().flatten() {
            self.prefetch(*word);
        }
        for (at, (key, word)) in keys.iter().zip(words).enumerate() {
            let Some(word) = word else { continue };
            let found = self.readable(*key, word, guard).transpose();
            let found = found.map(|found| {
                let (record, control) = found?;
                let prior = prior(self, &record);
                Ok(UnreadRecord { map: self, key: key.bytes, record, control, prior })
            });
            if let Some(found) = found
                && each(at, found).is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}
