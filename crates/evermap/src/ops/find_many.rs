//! Looking up several keys without copying the values.

use std::ops::ControlFlow;

use evermap_index::Guard;
use evermap_index::key::BytesRef;
use evermap_pm::Medium;
use evermap_pm::medium::Mapped;

use crate::ops::read::BATCH;
use crate::record::Record;
use crate::{Result, Store};

/// A record that a lookup has found, and whose value has not been read: see [`Store::find_many`].
pub struct UnreadRecord<'r, M: Medium = Mapped> {
    store: &'r Store<M>,
    key: &'r [u8],
    record: Record<'r, M>,
    expires_at: u32,
}

impl<M: Medium> UnreadRecord<'_, M> {
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

    /// Returns the time at which the record expires, in seconds since 1970, or 0 if it does not.
    pub fn expires_at(&self) -> u32 {
        self.expires_at
    }

    /// Appends the value to `out` and verifies the copy. O(length), with one copy.
    ///
    /// This also verifies the flags, the CAS id and the length, which the checksum covers.
    ///
    /// # Errors
    /// [`Error::Damaged`](crate::Error::Damaged) if the checksum does not match. `out` is unchanged
    /// then.
    pub fn append_to(&self, out: &mut Vec<u8>) -> Result<()> {
        self.store.copy(self.key, &self.record, out)
    }
}

impl<M: Medium> Store<M> {
    /// Looks up several keys with their cache misses overlapped, as [`get_many`](Store::get_many)
    /// does, and leaves it to `each` whether and where to copy the values.
    ///
    /// Calls `each` with the position in `keys` and the record for each key that is present, in the
    /// order of `keys`, or with the error if the record is damaged. Stops if `each` returns
    /// [`ControlFlow::Break`]. A guard is held meanwhile, so `each` should be quick.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// # let map = evermap::Evermap::open("", evermap::Options::volatile())?;
    /// map.put(b"a", b"1")?;
    /// map.put(b"c", b"3")?;
    /// let mut reply = Vec::new();
    /// map.find_many(&[b"a", b"b", b"c"], |at, record| {
    ///     let record = record.unwrap();
    ///     reply.extend_from_slice(format!("{at}:").as_bytes());
    ///     record.append_to(&mut reply).unwrap();
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert_eq!(reply, b"0:12:3");
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Store`]; damaged records are reported to `each` instead.
    pub fn find_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        mut each: impl FnMut(usize, Result<UnreadRecord<'_, M>>) -> ControlFlow<()>,
    ) -> Result<()> {
        let guard = self.enter()?;
        for (batch, keys) in keys.chunks(BATCH).enumerate() {
            let mut refs = [BytesRef { bytes: &[], hash: 0 }; BATCH];
            for (slot, key) in refs.iter_mut().zip(keys) {
                *slot = self.key(key.as_ref())?;
            }
            let each = |at, found: Result<UnreadRecord<'_, M>>| each(batch * BATCH + at, found);
            if self.find_batch(&refs[..keys.len()], &guard, each)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Looks up at most [`BATCH`] keys. Returns what `each` returned last.
    #[inline]
    pub(crate) fn find_batch(
        &self,
        keys: &[BytesRef<'_>],
        guard: &Guard<'_>,
        mut each: impl FnMut(usize, Result<UnreadRecord<'_, M>>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let mut words = [None; BATCH];
        self.map.index.get_many(keys, &mut words[..keys.len()], guard)?;
        for word in words.iter().flatten() {
            self.prefetch(*word);
        }
        for (at, (key, word)) in keys.iter().zip(words).enumerate() {
            let Some(word) = word else { continue };
            let found = self.readable(*key, word, guard).transpose();
            let found = found.map(|found| {
                let (record, expires_at) = found?;
                Ok(UnreadRecord { store: self, key: key.bytes, record, expires_at })
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
