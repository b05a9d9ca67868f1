//! Values that are written and read piece by piece.

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom, Write};

use evermap_index::key::BytesRef;
use evermap_index::{Guard, MutateMode};
use evermap_pm::Medium;
use evermap_pm::medium::Mapped;

use crate::ops::commit::Verdict;
use crate::ops::read::MISMATCH;
use crate::ops::reader::Reader;
use crate::record::control::Control;
use crate::record::partial::PartialRecord;
use crate::record::{Record, VALUE_MAX, record_bytes};
use crate::{Error, Map, Meta, Result, mistakes};

/// How many bytes are taken from a source at a time.
const PIECE: usize = 64 << 10;

/// # Values in pieces
impl<M: Medium> Map<M> {
    /// Binds `key` to the next `len` bytes of `source`, whatever was there. The value is not held
    /// in memory. Expected O(len).
    ///
    /// The key is bound when all bytes have come, as by [`put`](Map::put); until then, and if that
    /// fails or the process dies, it keeps the value that it has, and no space is lost. What
    /// follows in `source` is left there.
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// let mut source = std::io::repeat(7);
    /// map.put_from(b"key", 1_000_000, &mut source)?;
    /// assert_eq!(map.get(b"key")?.unwrap().len(), 1_000_000);
    ///
    /// let error = map.put_from(b"key", 10, &b"short"[..]).unwrap_err();
    /// assert!(matches!(error, evermap::Error::ValueLength { written: 5, .. }));
    /// assert_eq!(map.get(b"key")?.unwrap().len(), 1_000_000);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Source`] if reading `source` fails, [`Error::ValueLength`] if it ends too early;
    /// and those of a mutation, see [`Map`]. Nothing has changed then.
    pub fn put_from(&self, key: impl AsRef<[u8]>, len: usize, source: impl Read) -> Result<()> {
        self.set(key).put_from(len, source).map(drop)
    }

    /// Begins to write a value of `len` bytes for `key`; see [`ValueWriter`]. Takes its space now.
    /// O(1).
    ///
    /// ```
    /// use std::io::Write;
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// let mut writer = map.value_writer("key", 11)?;
    /// write!(writer, "{}, ", "hello")?;
    /// write!(writer, "{}", "you!")?;
    /// assert_eq!(map.get(b"key")?, None);
    /// writer.finish()?;
    /// assert_eq!(map.get(b"key")?.as_deref(), Some(&b"hello, you!"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`].
    pub fn value_writer(&self, key: impl AsRef<[u8]>, len: usize) -> Result<ValueWriter<'_, M>> {
        self.set(key).value_writer(len)
    }

    /// Begins to read the value of `key` piece by piece, or returns `None` if the key is absent;
    /// see [`ValueReader`]. Expected O(1), and O(length) to verify its checksum, unless
    /// [`verify_reads`](crate::Options::verify_reads) is off.
    ///
    /// ```
    /// use std::io::{Read, Seek, SeekFrom};
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put(b"key", b"hello, you!")?;
    /// let mut reader = map.value_reader(b"key")?.unwrap();
    /// let mut text = String::new();
    /// reader.seek(SeekFrom::End(-4))?;
    /// reader.read_to_string(&mut text)?;
    /// assert_eq!(text, "you!");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`].
    pub fn value_reader(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueReader<'_, M>>> {
        let key = self.key(key.as_ref())?;
        let guard = self.enter()?;
        let Some(mut reader) = self.read_under(key, &guard)? else { return Ok(None) };
        reader.guard = Some(guard);
        Ok(Some(reader))
    }

    /// Returns a reader of the value of `key`, which is to be used as long as `guard` is held.
    fn read_under(
        &self,
        key: BytesRef<'_>,
        guard: &Guard<'_>,
    ) -> Result<Option<ValueReader<'_, M>>> {
        let Some((found, _)) = self.find(key, guard)? else { return Ok(None) };
        self.accessed(&found);
        if self.db.file.verify && !found.verify(self.inner.header.owner()) {
            return Err(self.met(Error::damaged(key.bytes, found.offset(), MISMATCH)));
        }
        // The same, but not borrowed from the guard, which moves into the reader.
        let record = Record::at(self.db.file.pool.medium(), found.word());
        let record = record.map_err(|what| Error::damaged(key.bytes, found.offset(), what))?;
        Ok(Some(ValueReader { record, at: 0, guard: None }))
    }
}

impl<M: Medium> Reader<'_, M> {
    /// Begins to read the value of `key` piece by piece, as [`value_reader`](Map::value_reader),
    /// under the guard of this reader.
    ///
    /// # Errors
    /// See [`Map`].
    pub fn stream(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueReader<'_, M>>> {
        self.store.read_under(self.store.key(key.as_ref())?, &self.guard)
    }
}

/// Writes a value piece by piece: see [`Map::value_writer`].
///
/// [`finish`](ValueWriter::finish) binds the key to the value; until then nobody sees it. Dropping
/// the writer discards what was written. So does closing the store, for which nobody has to wait:
/// writing fails afterwards.
///
/// It holds neither a lock nor a guard between two calls, so it may live as long as its source
/// needs.
#[must_use = "a value is stored by `finish` only"]
pub struct ValueWriter<'s, M: Medium = Mapped> {
    store: &'s Map<M>,
    key: Vec<u8>,
    /// Flags and control word.
    meta: (u32, u64),
    /// `None` once the record is published.
    record: Option<PartialRecord>,
}

impl<'s, M: Medium> ValueWriter<'s, M> {
    /// Takes the space of a value of `len` bytes.
    pub(crate) fn begin(store: &'s Map<M>, key: &[u8], len: usize, meta: Meta) -> Result<Self> {
        if len > VALUE_MAX {
            return Err(Error::ValueTooLong { len, max: VALUE_MAX });
        }
        let meta = (meta.flags(), Control::of(&meta)?.encode());
        let named = store.begin_change(key)?;
        let record = store.with_space(|| {
            let _guard = store.enter_writing()?;
            store.ensure_room(store.db.file.pool.block_size(record_bytes(key.len(), len)))?;
            PartialRecord::reserve(&store.db.file.pool, &store.db.file.partial, named.bytes, len)
        })?;
        Ok(ValueWriter { store, key: key.to_vec(), meta, record: Some(record) })
    }

    /// Writes what is still missing, as far as `source` has it.
    pub(crate) fn fill_from(&mut self, mut source: impl Read) -> Result<()> {
        let mut piece = vec![0; self.remaining().min(PIECE)];
        while self.remaining() > 0 {
            let wanted = self.remaining().min(PIECE);
            match source.read(&mut piece[..wanted]) {
                Ok(0) => break,
                Ok(read) => self.append(&piece[..read])?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::Source { read: self.written(), source }),
            }
        }
        Ok(())
    }

    /// Returns how many bytes have been written.
    pub fn written(&self) -> usize {
        self.record.as_ref().map_or(0, PartialRecord::written)
    }

    /// Returns how many bytes are still to be written.
    pub fn remaining(&self) -> usize {
        self.record.as_ref().map_or(0, |record| record.value_len() - record.written())
    }

    /// Binds the key to the value, whether or not it is present. Returns the CAS id of the new
    /// record. Expected O(1).
    ///
    /// # Errors
    /// [`Error::ValueLength`] if bytes are missing; and those of a mutation, see [`Map`]. What was
    /// written is discarded then.
    pub fn finish(mut self) -> Result<u64> {
        if self.remaining() > 0 {
            return Err(self.wrong_length(0));
        }
        let (store, key) = (self.store, std::mem::take(&mut self.key));
        let key = store.begin_change(&key)?;
        let cas = store.with_space(|| self.try_finish(key))?;
        store.db.settle()?;
        Ok(cas)
    }

    fn try_finish(&mut self, key: BytesRef<'_>) -> Result<u64> {
        let (store, file) = (self.store, &*self.store.db.file);
        let guard = store.enter_writing()?;
        let bytes = self.record.as_ref().map_or(0, |record| record.block_bytes(&file.pool));
        store.ensure_room(bytes)?;
        let cas = file.cas_counter.take(file.pool.region())?;
        // From here on the draft has the block.
        let record = self.record.take().expect("not published yet");
        let owner = store.inner.header.owner();
        let draft = record.draft(&file.pool, &file.partial, owner, key.bytes, self.meta, cas);
        draft.set_access(store.new_access());
        if file.pool.medium().mutant(mistakes::PIECES_UNFLUSHED) {
            draft.set_cas(cas)
        } else {
            draft.persist()
        }
        let done = store
            .commit(key, MutateMode::MayInsert, &guard, Some(&draft), &mut |_| Verdict::Publish);
        if record.take_back(&file.partial, &draft) {
            self.record = Some(record);
        }
        done?;
        Ok(draft.cas())
    }

    /// Writes all of these bytes.
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() > self.remaining() {
            return Err(self.wrong_length(bytes.len()));
        }
        // The guard keeps the store from being closed meanwhile.
        let _guard = self.store.enter_writing()?;
        let record = self.record.as_mut().expect("not published yet");
        record.append(self.store.db.file.pool.medium(), bytes);
        Ok(())
    }

    /// Returns the error for a value of another length than was announced, or that has another one
    /// with `more` bytes.
    fn wrong_length(&self, more: usize) -> Error {
        let written = self.written() + more;
        Error::value_length(&self.key, self.written() + self.remaining(), written)
    }
}

impl<M: Medium> Write for ValueWriter<'_, M> {
    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// `InvalidInput` with [`Error::ValueLength`] if the value would become longer than it is to
    /// be; otherwise `Other` with an [`Error`] of the store. Nothing is written then.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.append(bytes) {
            Ok(()) => Ok(bytes.len()),
            Err(error @ Error::ValueLength { .. }) => {
                Err(io::Error::new(io::ErrorKind::InvalidInput, error))
            }
            Err(error) => Err(io::Error::other(error)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<M: Medium> Drop for ValueWriter<'_, M> {
    fn drop(&mut self) {
        if let Some(record) = self.record.take() {
            record.free(&self.store.db.file.pool, &self.store.db.file.partial);
        }
    }
}

impl<M: Medium> fmt::Debug for ValueWriter<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueWriter")
            .field("written", &self.written())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// Reads a value piece by piece, from wherever one wants: see [`Map::value_reader`].
///
/// It reads the version of the value that was there when it was made, whatever happens to the key.
/// For that it holds a guard, or borrows one from a [`Reader`]: see there for what that means to
/// others. The value was verified when reading began; what is read is copied out of the store, and
/// is not verified again.
pub struct ValueReader<'s, M: Medium = Mapped> {
    record: Record<'s, M>,
    at: u64,
    /// What keeps the record, unless a [`Reader`] does.
    guard: Option<Guard<'s>>,
}

impl<M: Medium> ValueReader<'_, M> {
    /// Returns the length of the value, bytes.
    #[allow(clippy::len_without_is_empty)] // the length of a stream is not what is left of it
    pub fn len(&self) -> u64 {
        self.record.value_len() as u64
    }

    /// Returns the caller's own 32 bits.
    pub fn flags(&self) -> u32 {
        self.record.flags()
    }

    /// Returns what identifies this version of the record.
    pub fn cas(&self) -> u64 {
        self.record.cas()
    }
}

impl<M: Medium> Read for ValueReader<'_, M> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.len().saturating_sub(self.at).min(out.len() as u64) as usize;
        if read > 0 {
            self.record.read_value(self.at as usize, &mut out[..read]);
            self.at += read as u64;
        }
        Ok(read)
    }
}

impl<M: Medium> Seek for ValueReader<'_, M> {
    /// Moves to another position. Behind the end there is nothing to be read.
    ///
    /// # Errors
    /// `InvalidInput` if the position would be before the first byte.
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.len().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "the position is before the value's first byte",
            )
        })?;
        Ok(self.at)
    }
}

impl<M: Medium> fmt::Debug for ValueReader<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueReader").field("len", &self.len()).field("at", &self.at).finish()
    }
}
