//! Reading values where they are, under a guard.
//!
//! A published record never changes, and as long as a guard is held that could see it, its block is
//! not used again. So its bytes can be lent instead of copied, if nothing but this store can change
//! them. That holds for memory of this process in which the store was created; for a file it takes
//! a promise of the program,
//! [`Options::assume_exclusive_file`](crate::Options::assume_exclusive_file).
//!
//! In detail, while a guard is held that was pinned before the record was found:
//!
//! * value bytes are stored by drafts only, before the record is published; a thread that finds it
//!   through the index has acquired them;
//! * what changes afterwards is the control word (expiry, tombstone), and in a cache the word with
//!   the lengths (how it was read), which are not part of the value;
//! * every operation that replaces or removes a record, moves it, or drops its map, retires the
//!   block, and it is freed, written, or given back to the system after all guards of that time
//!   have ended;
//! * closing waits for guards, and the mapping lives as long as a handle does;
//! * a forked child, whose guards are unknown to its parent, copies.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::time::SystemTime;

use evermap_index::Guard;
use evermap_index::key::BytesRef;
use evermap_pm::Medium;
use evermap_pm::medium::Mapped;

use crate::ops::read::MISMATCH;
use crate::record::control::Control;
use crate::{Error, Map, Meta, Result};

/// # Reading without copies
impl<M: Medium> Map<M> {
    /// Returns the value of `key` without copying it, where that is safe: in a store in memory, and
    /// in a file that was opened with
    /// [`assume_exclusive_file`](crate::Options::assume_exclusive_file). Elsewhere it is copied, as
    /// [`get`](Map::get) does. Returns `None` if the key is absent.
    ///
    /// Expected O(1), and O(length) to verify its checksum, unless
    /// [`verify_reads`](crate::Options::verify_reads) is off. A large value that is borrowed and
    /// not verified costs the same as a small one.
    ///
    /// A borrowed value holds a guard: see [`Reader`], which lends many values under one.
    ///
    /// If the length of the key is a multiple of 16, a borrowed value begins at an address that is
    /// one too, so that it can be read as a structure in place; the same for 8, 4 and 2.
    ///
    /// ```
    /// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
    /// map.put(b"key", &[7; 100_000])?;
    /// let value = map.get_ref(b"key")?.unwrap();
    /// assert!(value.is_borrowed());
    /// map.put(b"key", b"other")?;
    /// assert_eq!(value[..], [7; 100_000]);
    /// # drop(value);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Map`].
    pub fn get_ref(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueRef<'_>>> {
        let key = self.key(key.as_ref())?;
        let guard = self.enter()?;
        let Some(mut value) = self.value_ref(key, &guard)? else { return Ok(None) };
        if value.is_borrowed() {
            value.guard = Some(guard);
        }
        Ok(Some(value))
    }

    /// Begins to read many values under one guard; see [`Reader`].
    ///
    /// # Errors
    /// [`Error::Closed`] and [`Error::Dropped`].
    pub fn reader(&self) -> Result<Reader<'_, M>> {
        Ok(Reader { store: self, guard: self.enter()? })
    }

    /// Returns the value of `key`, verified. If it is borrowed, it may be used as long as `guard`
    /// is held.
    fn value_ref(&self, key: BytesRef<'_>, guard: &Guard<'_>) -> Result<Option<ValueRef<'_>>> {
        let Some((record, control)) = self.find_to_read(key, guard)? else { return Ok(None) };
        self.accessed(&record);
        let file = &*self.db.file;
        // In a forked child the guard means nothing to the threads of the parent.
        let bytes = if file.lends && file.pool.region().ensure_writable().is_ok() {
            // SAFETY: nothing writes these bytes while `guard` is held: see the head of this
            // module, and `FileInner::lends` for what is outside of this store. They are used no
            // longer than that.
            let value = unsafe { record.value_slice() };
            if file.verify && !record.verifies(self.inner.header.owner(), key.bytes, value) {
                return Err(self.met(Error::damaged(key.bytes, record.offset(), MISMATCH)));
            }
            Bytes::Lent(NonNull::from(value))
        } else {
            let mut copy = Vec::new();
            self.copy(key.bytes, &record, &mut copy)?;
            Bytes::Copied(copy)
        };
        let (flags, cas) = (record.flags(), record.cas());
        Ok(Some(ValueRef { bytes, flags, cas, control, guard: None, store: PhantomData }))
    }
}

/// Lends values under one guard. While it lives, nothing that it could see is used again, so it
/// should be short-lived: if [too much](crate::Options::reader_backlog) waits for it, mutations
/// fail with [`Error::HeldUp`]. It stays on the thread that made it, which cannot close, check,
/// sweep, purge or compact the store meanwhile: those return [`Error::GuardHeld`].
///
/// ```
/// # let map = evermap::Evermap::in_memory(evermap::Options::new())?.default_map();
/// map.put(b"a", b"1")?;
/// map.put(b"b", b"22")?;
/// let reader = map.reader()?;
/// let (a, b) = (reader.get(b"a")?.unwrap(), reader.get(b"b")?.unwrap());
/// assert_eq!((&a[..], b.len()), (&b"1"[..], 2));
/// # Ok::<(), evermap::Error>(())
/// ```
pub struct Reader<'s, M: Medium = Mapped> {
    pub(crate) store: &'s Map<M>,
    pub(crate) guard: Guard<'s>,
}

impl<M: Medium> Reader<'_, M> {
    /// Returns the value of `key`, borrowed as by [`get_ref`](Map::get_ref), or `None` if the key
    /// is absent. Expected O(1).
    ///
    /// # Errors
    /// See [`Map`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueRef<'_>>> {
        self.store.value_ref(self.store.key(key.as_ref())?, &self.guard)
    }
}

/// A value, borrowed from the store or copied out of it: see [`Map::get_ref`].
pub struct ValueRef<'s> {
    bytes: Bytes,
    flags: u32,
    cas: u64,
    control: Control,
    /// What keeps the bytes, unless a [`Reader`] does or they are a copy.
    guard: Option<Guard<'s>>,
    store: PhantomData<&'s [u8]>,
}

enum Bytes {
    /// Not a reference, because it would have to be valid until the value is gone, and the guard
    /// ends while it is dropped.
    Lent(NonNull<[u8]>),
    Copied(Vec<u8>),
}

impl ValueRef<'_> {
    /// Returns whether the bytes are those in the store, and not a copy.
    pub fn is_borrowed(&self) -> bool {
        matches!(self.bytes, Bytes::Lent(_))
    }

    /// Returns the caller's own 32 bits.
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Returns what identifies this version of the record.
    pub fn cas(&self) -> u64 {
        self.cas
    }

    /// Returns when the record expires, or `None` if it never does.
    pub fn expires_at(&self) -> Option<SystemTime> {
        self.control.expiry().time()
    }

    /// Returns what is stored beside the value: flags, expiry and marks.
    pub fn meta(&self) -> Meta {
        self.control.meta(self.flags)
    }

    /// Returns the bytes as a vector, and ends the guard. Copies them unless they are a copy
    /// already.
    pub fn into_vec(self) -> Vec<u8> {
        match self.bytes {
            Bytes::Lent(_) => self.to_vec(),
            Bytes::Copied(copy) => copy,
        }
    }
}

impl Deref for ValueRef<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            // SAFETY: valid and unchanged while the guard is held, which is in here, or in the
            // reader that `'s` borrows; the slice borrows `self`.
            Bytes::Lent(bytes) => unsafe { bytes.as_ref() },
            Bytes::Copied(copy) => copy,
        }
    }
}

impl AsRef<[u8]> for ValueRef<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for ValueRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueRef")
            .field("len", &self.len())
            .field("borrowed", &self.is_borrowed())
            .finish_non_exhaustive()
    }
}
