//! Records in the heap: writing them, and reading them without trusting them.
//!
//! The layout is drawn in [`evermap_index::record`]. What the store adds:
//!
//! * `control` is a [checked word](crate::record::checked_word) with the expiry and the marks of
//!   the record: see [`control`]. It is changed by a single store under the key's lock. After the
//!   index has stopped naming the record, durably, the word becomes a [tombstone](tombstone_of):
//!   bit 32 is set, and the low 32 bits are the number of the opening that unbound the record. So
//!   damage to an index that leads to the record again does not bring it back;
//! * `cas` is the CAS id;
//! * the high 16 bits of the index word repeat the low 16 bits of the CAS id. A word and a record
//!   of different ages (a page that went back in time) seldom agree;
//! * the state in the word with the lengths says [how the record was read](access);
//! * the checksum begins with the [owner](Owner), so that a record verifies in its own map only.

pub(crate) mod access;
pub(crate) mod cas;
pub(crate) mod checked_word;
mod checksum;
pub(crate) mod control;
pub(crate) mod flush_mark;
pub(crate) mod partial;
pub(crate) mod size_hint;

use std::cell::Cell;
use std::ops::Range;

use evermap_index::record::{HEADER, Header, KEY_MAX, OFFSET_MASK, lengths, state, with_state};
use evermap_pm::{Medium, PmU64, Pool};

use crate::record::access::AccessState;
use crate::record::checked_word::{WordKind, decode_checked, encode_checked};
use crate::record::control::{Control, is_unflushed};
use crate::{Error, Item, Result, mistakes};

/// The maximum length of a value, bytes: 1 GiB. A large value takes neighbouring units of the file
/// for itself.
pub const VALUE_MAX: usize = 1 << 30;

const TAG_SHIFT: u32 = 48;
/// Bytes of a value that are copied and then verified: they fit in the first-level cache.
const PIECE: usize = 4096;

/// The damage if the index leads to a record that has a tombstone.
const REMOVED: &str = "it was removed or replaced, and the index leads to it again";

/// Refuses a value that is too long for a record.
pub(crate) fn ensure_length(value: &[u8]) -> Result<()> {
    match value.len() {
        len if len > VALUE_MAX => Err(Error::ValueTooLong { len, max: VALUE_MAX }),
        _ => Ok(()),
    }
}

/// Returns the length of a record with a key and a value of these lengths, bytes.
pub(crate) fn record_bytes(key: usize, value: usize) -> u64 {
    HEADER + ((key + value) as u64).next_multiple_of(8)
}

fn word_of(offset: u64, cas: u64) -> u64 {
    offset | cas << TAG_SHIFT
}

/// Returns the control word of a live record without marks.
pub(crate) fn control_of(expires_at: u32) -> u64 {
    encode_checked(WordKind::Control, u64::from(expires_at))
}

/// In a control word: the record is not bound to its key any more, or never was.
const UNBOUND: u64 = 1 << 32;

/// Returns the control word of a record that was unbound, or turned out not to be needed, in the
/// opening with this generation.
pub(crate) fn tombstone_of(generation: u64) -> u64 {
    encode_checked(WordKind::Control, UNBOUND | opening_of(generation))
}

/// Returns the part of a generation that a tombstone keeps. Two openings of one file that have it
/// in common are 2^32 openings apart.
fn opening_of(generation: u64) -> u64 {
    u64::from(generation as u32)
}

/// The map that a record belongs to: its checksum begins with this. A crash never leaves a word
/// that leads to a record of another map, but a file that was cut off and grew again has such
/// words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner(u32);

/// Appending this number of zeros to a message leaves its CRC32C as it is, but for the inversions:
/// the polynomial is that of x + 1 and a primitive one of degree 31.
const CRC_PERIOD: usize = (1 << 31) - 1;

impl Owner {
    /// Returns the owner for the map with this descriptor; 0: the default map, whose checksums
    /// begin with nothing.
    pub(crate) fn of(descriptor: u64) -> Self {
        Owner(if descriptor == 0 { 0 } else { crc32c::crc32c(&descriptor.to_le_bytes()) })
    }
}

/// Bytes of the header that the checksum covers.
const CHECKED_HEADER: usize = 20;

/// Returns the CRC32C of the owner and the header fields that it covers, to be continued with key
/// and value.
fn check_begin(owner: Owner, cas: u64, flags: u32, lengths: u64) -> u32 {
    let mut bytes = [0; CHECKED_HEADER];
    bytes[..8].copy_from_slice(&cas.to_le_bytes());
    bytes[8..12].copy_from_slice(&flags.to_le_bytes());
    bytes[12..].copy_from_slice(&lengths.to_le_bytes());
    crc32c::crc32c_append(owner.0, &bytes)
}

/// A record that is not published. Dropping it frees it.
pub(crate) struct Draft<'d, M: Medium> {
    pool: &'d Pool<M>,
    owner: Owner,
    offset: u64,
    key: &'d [u8],
    value: Value<'d>,
    flags: u32,
    cas: Cell<u64>,
    control: Cell<u64>,
    access: Cell<AccessState>,
    published: Cell<bool>,
}

/// The value of a draft.
#[derive(Clone, Copy)]
enum Value<'d> {
    /// To be written.
    Bytes(&'d [u8]),
    /// Written already, with the key: its length and its CRC32C.
    Written { len: usize, check: u32 },
}

impl Value<'_> {
    #[inline]
    fn len(&self) -> usize {
        match *self {
            Value::Bytes(bytes) => bytes.len(),
            Value::Written { len, .. } => len,
        }
    }
}

impl<'d, M: Medium> Draft<'d, M> {
    /// Writes a record and makes it durable: one ordered persist.
    ///
    /// # Errors
    /// `NoSpace`; nothing has changed then.
    #[cfg(test)]
    pub(crate) fn new(
        pool: &'d Pool<M>,
        owner: Owner,
        key: &'d [u8],
        value: &'d [u8],
        (flags, control): (u32, Control),
        cas: u64,
    ) -> Result<Self> {
        let draft = Self::reserve(pool, owner, key, value, flags, control.encode(), cas)?;
        draft.persist();
        Ok(draft)
    }

    /// Allocates the space of a record, which must be written before it is published.
    ///
    /// # Errors
    /// `NoSpace`; nothing has changed then.
    pub(crate) fn reserve(
        pool: &'d Pool<M>,
        owner: Owner,
        key: &'d [u8],
        value: &'d [u8],
        flags: u32,
        control: u64,
        cas: u64,
    ) -> Result<Self> {
        let offset = pool.allocate(record_bytes(key.len(), value.len()))?;
        Ok(Draft {
            pool,
            owner,
            offset,
            key,
            value: Value::Bytes(value),
            flags,
            cas: Cell::new(cas),
            control: Cell::new(control),
            access: Cell::default(),
            published: Cell::new(false),
        })
    }

    /// Sets how the record was read, before it is written.
    pub(crate) fn set_access(&self, access: AccessState) {
        self.access.set(access);
    }

    /// Writes the record and flushes it: durable after the next fence.
    ///
    /// Separate from [`reserve`](Self::reserve), after which the draft is moved: reading back what
    /// was just stored at another width defeats store forwarding, and would wait for the stores to
    /// the cold lines of the record.
    pub(crate) fn flush(&self) {
        self.write_header();
        self.write_body();
        self.pool.medium().flush(self.cells(0));
    }

    /// Writes the record, durably.
    pub(crate) fn persist(&self) {
        self.flush();
        self.pool.medium().fence();
    }

    /// Changes the CAS id, durably.
    pub(crate) fn set_cas(&self, cas: u64) {
        self.cas.set(cas);
        self.write_header();
        self.pool.medium().persist(&self.cells(0)[..HEADER as usize / 8]);
    }

    /// Changes the control word, durably.
    pub(crate) fn set_control(&self, control: u64) {
        if control != self.control.replace(control) {
            let m = self.pool.medium();
            let cell = &self.cells(0)[0];
            m.store(cell, control);
            m.persist(cell);
        }
    }

    /// Notes that the control word was changed to this without the draft.
    pub(crate) fn became(&self, control: u64) {
        self.control.set(control);
    }

    /// Returns when the record expires, or `None` if it never does.
    #[inline]
    pub(crate) fn expiry(&self) -> Option<u32> {
        // Most records never expire, which a comparison tells.
        match self.control.get() {
            control if control == control_of(0) => None,
            control => {
                Control::decode(control).map(|control| control.expires_at).filter(|&at| at != 0)
            }
        }
    }

    pub(crate) fn cas(&self) -> u64 {
        self.cas.get()
    }

    /// Returns the word that the index is to bind the key to.
    pub(crate) fn word(&self) -> u64 {
        word_of(self.offset, self.cas())
    }

    /// Returns the size of its block, bytes.
    pub(crate) fn block_bytes(&self) -> u64 {
        self.pool.block_size(record_bytes(self.key.len(), self.value.len()))
    }

    /// Notes that the index names the record: dropping the draft no longer frees it.
    pub(crate) fn set_published(&self) {
        self.published.set(true);
    }

    pub(crate) fn is_published(&self) -> bool {
        self.published.get()
    }

    fn cells(&self, from: u64) -> &'d [PmU64] {
        let words = (record_bytes(self.key.len(), self.value.len()) - from) / 8;
        self.pool.medium().slice(self.offset + from, words).expect("just allocated")
    }

    fn write_header(&self) {
        let lengths = self.key.len() as u64 | (self.value.len() as u64) << 32;
        let check = check_begin(self.owner, self.cas(), self.flags, lengths);
        let check = crc32c::crc32c_append(check, self.key);
        let check = match self.value {
            Value::Bytes(value) => checksum::append(check, value),
            Value::Written { len, check: value } => crc32c::crc32c_combine(check, value, len),
        };
        let words = [
            self.control.get(),
            self.cas(),
            u64::from(check) | u64::from(self.flags) << 32,
            with_state(lengths, self.access.get().bits()),
        ];
        let mut bytes = [0; HEADER as usize];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        self.pool.medium().write_bytes(self.cells(0), &bytes);
    }

    fn write_body(&self) {
        let Value::Bytes(value) = self.value else { return };
        let (m, cells) = (self.pool.medium(), self.cells(HEADER));
        let (whole, rest) = self.key.split_at(self.key.len() / 8 * 8);
        m.write_bytes(cells, whole);
        let cells = &cells[whole.len() / 8..];
        if rest.is_empty() {
            m.write_bytes(cells, value);
            return;
        }
        // The word in which the key ends and the value begins.
        let taken = value.len().min(8 - rest.len());
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        word[rest.len()..rest.len() + taken].copy_from_slice(&value[..taken]);
        m.write_bytes(cells, &word);
        m.write_bytes(&cells[1..], &value[taken..]);
    }
}

impl<M: Medium> Drop for Draft<'_, M> {
    fn drop(&mut self) {
        if !self.published.get() {
            free_unpublished(self.pool, self.offset);
        }
    }
}

/// Frees the block of a record that was not published.
fn free_unpublished<M: Medium>(pool: &Pool<M>, offset: u64) {
    // It may be complete, and was not acknowledged: it must not verify.
    let (m, tombstone) = (pool.medium(), tombstone_of(pool.generation()));
    let header = m.at::<Header>(offset).expect("allocated");
    m.store(&header.control, tombstone);
    m.flush(&header.control);
    pool.free_unpublished(offset);
}

/// A record that an index word names. All of it is inside the medium; whether it is what was once
/// written, only [`verify`](Record::verify) tells.
pub(crate) struct Record<'m, M: Medium> {
    medium: &'m M,
    header: &'m Header,
    /// Key and value.
    cells: &'m [PmU64],
    word: u64,
    cas: u64,
    key_len: usize,
    value_len: usize,
}

/// Reserves space. A damaged length must not end the process because there is not enough memory.
fn reserve(out: &mut Vec<u8>, len: usize) -> Result<()> {
    out.try_reserve(len)
        .map_err(|_| evermap_pm::Error::no_space("memory for a copy", len as u64).into())
}

impl<M: Medium> Clone for Record<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Medium> Copy for Record<'_, M> {}

impl<'m, M: Medium> Record<'m, M> {
    /// Returns the record that `word` names, or why there cannot be one.
    #[inline]
    pub(crate) fn at(medium: &'m M, word: u64) -> Result<Self, &'static str> {
        let offset = word & OFFSET_MASK;
        let header = medium.at::<Header>(offset).ok_or("it is outside the file")?;
        let cas = medium.load_relaxed(&header.cas);
        if cas << TAG_SHIFT != word & !OFFSET_MASK {
            return Err("index and record are of different ages");
        }
        let (key_len, value_len) = lengths(medium.load_relaxed(&header.lengths));
        if key_len > KEY_MAX as u64 || value_len > VALUE_MAX as u64 {
            return Err("impossible length");
        }
        let cells = medium
            .slice(offset + HEADER, (key_len + value_len).div_ceil(8))
            .ok_or("it ends outside the file")?;
        let (key_len, value_len) = (key_len as usize, value_len as usize);
        Ok(Record { medium, header, cells, word, cas, key_len, value_len })
    }

    /// Returns what could be the record in the block with these bytes, or why there cannot be one.
    /// What the index has about its key tells whether there is: the block may have what was written
    /// there before it was allocated. Nothing outside the block is part of the record.
    pub(crate) fn in_block(medium: &'m M, block: Range<u64>) -> Result<Self, &'static str> {
        let header = medium.at::<Header>(block.start).ok_or("it is outside the file")?;
        let record = Self::at(medium, word_of(block.start, medium.load_relaxed(&header.cas)))?;
        match record.bytes() <= block.end - block.start {
            true => Ok(record),
            false => Err("it is longer than its block"),
        }
    }

    /// Returns how the record was read.
    #[inline]
    pub(crate) fn access(&self) -> AccessState {
        AccessState::from_bits(state(self.medium.load_relaxed(&self.header.lengths)))
    }

    /// Changes how the record was read. The caller holds the guard under which the index named the
    /// record, so that the block has no other use.
    #[inline]
    pub(crate) fn set_access(&self, access: AccessState) {
        // The lengths are those of this record, which never change. Of threads that do this at the
        // same time, one wins: see the module of the state.
        let lengths = self.key_len as u64 | (self.value_len as u64) << 32;
        let word = with_state(lengths, access.bits());
        if self.medium.mutant(mistakes::LENGTHS_GONE) {
            self.medium.store_transient(&self.header.lengths, with_state(0, access.bits()));
        }
        self.medium.store_transient(&self.header.lengths, word);
    }

    pub(crate) fn offset(&self) -> u64 {
        self.word & OFFSET_MASK
    }

    pub(crate) fn word(&self) -> u64 {
        self.word
    }

    pub(crate) fn cas(&self) -> u64 {
        self.cas
    }

    pub(crate) fn value_len(&self) -> usize {
        self.value_len
    }

    /// Returns the length that was allocated for the record, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        record_bytes(self.key_len, self.value_len)
    }

    /// Returns the number of bytes before the key.
    pub(crate) fn header_bytes(&self) -> u64 {
        HEADER
    }

    /// Returns the number of bytes of key and value.
    pub(crate) fn content_bytes(&self) -> u64 {
        (self.key_len + self.value_len) as u64
    }

    /// Returns the control word, as it is now.
    pub(crate) fn control_word(&self) -> u64 {
        self.medium.load(&self.header.control)
    }

    /// Returns the expiry and the marks, or `None` if the record is not bound any more, or its
    /// control word is damaged.
    #[inline]
    pub(crate) fn control(&self) -> Option<Control> {
        let word = self.control_word();
        if is_unflushed(word) {
            self.persist_control_word();
        }
        Control::decode(word)
    }

    /// Makes a change of the control word durable that is under way, or that a process has left
    /// which died.
    #[cold]
    fn persist_control_word(&self) {
        self.medium.flush(&self.header.control);
        self.medium.fence();
    }

    /// Returns when the record expires, 0 for never, if [`control`](Record::control) can be read.
    #[inline]
    pub(crate) fn expires_at(&self) -> Option<u32> {
        self.control().map(|control| control.expires_at)
    }

    /// Returns `true` if the record has a tombstone, or a damaged control word that could have been
    /// one.
    #[inline]
    pub(crate) fn is_unbound(&self) -> bool {
        self.control_word() & UNBOUND != 0
    }

    /// Returns `true` if the record was unbound in the opening with this generation, so that the
    /// index can have led a reader to it shortly before.
    pub(crate) fn was_unbound_in(&self, generation: u64) -> bool {
        self.control_word() == tombstone_of(generation)
    }

    /// Returns `true` if the record has a tombstone, which is not damaged.
    pub(crate) fn has_tombstone(&self) -> bool {
        let value = decode_checked(WordKind::Control, self.control_word());
        value.is_some_and(|value| value & UNBOUND != 0)
    }

    /// Returns why [`control`](Record::control) returns `None`.
    pub(crate) fn why_unreadable(&self) -> &'static str {
        if self.has_tombstone() { REMOVED } else { "its expiry is unreadable" }
    }

    /// Makes the control word a [tombstone](tombstone_of), once nothing names the record any more
    /// and that is durable.
    ///
    /// Flushed and not fenced: nothing has to wait for it, because only damage leads to the record
    /// from now on.
    #[inline]
    pub(crate) fn set_tombstone(&self, tombstone: u64) {
        self.set_control_word(tombstone);
    }

    /// Changes the expiry and the marks, durably. The caller holds the key's lock.
    pub(crate) fn set_control(&self, control: Control) {
        self.set_control_word(control.encode_unflushed());
        self.medium.fence();
        // Either word means the same, so that it does not matter which one survives.
        self.medium.store_transient(&self.header.control, control.encode());
    }

    /// Changes the expiry and the marks, as [`set_control`](Record::set_control) does, but not
    /// durably.
    pub(crate) fn store_control(&self, control: Control) {
        self.medium.store(&self.header.control, control.encode());
    }

    /// Changes the control word, durably after the next fence. No other thread may change it
    /// meanwhile.
    pub(crate) fn set_control_word(&self, control: u64) {
        self.medium.store(&self.header.control, control);
        self.medium.flush(&self.header.control);
    }

    pub(crate) fn flags(&self) -> u32 {
        (self.medium.load_relaxed(&self.header.check) >> 32) as u32
    }

    fn check_begin(&self, owner: Owner) -> u32 {
        let lengths = self.key_len as u64 | (self.value_len as u64) << 32;
        check_begin(owner, self.cas, self.flags(), lengths)
    }

    fn check_is(&self, found: u32) -> bool {
        self.medium.load_relaxed(&self.header.check) as u32 == found
    }

    /// Copies bytes from `from` on, counted from the beginning of the key.
    fn read(&self, from: usize, out: &mut [u8]) {
        let (first, within) = (from / 8, from % 8);
        if within == 0 || out.is_empty() {
            return self.medium.read_bytes(&self.cells[first..], out);
        }
        let word = self.medium.load_relaxed(&self.cells[first]).to_le_bytes();
        let taken = out.len().min(8 - within);
        out[..taken].copy_from_slice(&word[within..within + taken]);
        self.medium.read_bytes(&self.cells[first + 1..], &mut out[taken..]);
    }

    /// Copies bytes of the value, from this one on.
    ///
    /// # Panics
    /// If the value ends before `out` does.
    pub(crate) fn read_value(&self, from: usize, out: &mut [u8]) {
        self.read(self.key_len + from, out);
    }

    /// Appends the value.
    ///
    /// # Errors
    /// `NoSpace` if there is no memory for it.
    pub(crate) fn append_value(&self, out: &mut Vec<u8>) -> Result<()> {
        self.append(self.key_len, self.value_len, out)
    }

    /// Appends the key.
    ///
    /// # Errors
    /// `NoSpace` if there is no memory for it.
    pub(crate) fn append_key(&self, out: &mut Vec<u8>) -> Result<()> {
        self.append(0, self.key_len, out)
    }

    fn append(&self, from: usize, len: usize, out: &mut Vec<u8>) -> Result<()> {
        reserve(out, len)?;
        self.append_reserved(from, len, out);
        Ok(())
    }

    /// Appends this many bytes of key and value, for which there is memory.
    fn append_reserved(&self, from: usize, len: usize, out: &mut Vec<u8>) {
        let (first, within) = (from / 8, from % 8);
        if within == 0 || len == 0 {
            return self.medium.append_bytes(&self.cells[first..], len, out);
        }
        let word = self.medium.load_relaxed(&self.cells[first]).to_le_bytes();
        let taken = len.min(8 - within);
        out.extend_from_slice(&word[within..within + taken]);
        self.medium.append_bytes(&self.cells[first + 1..], len - taken, out);
    }

    /// Appends the value, and returns whether what was appended is what was written under `key` in
    /// the map of `owner`. Each piece is verified while it is in the cache, and the next one on its
    /// way there.
    ///
    /// # Errors
    /// `NoSpace` if there is no memory for it.
    pub(crate) fn append_verified(
        &self,
        owner: Owner,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        reserve(out, self.value_len)?;
        let mut check = self.check_of_key(owner, key);
        for from in (0..self.value_len).step_by(PIECE) {
            let start = out.len();
            self.append_reserved(self.key_len + from, PIECE.min(self.value_len - from), out);
            self.prefetch_value(from + PIECE);
            check = checksum::append(check, &out[start..]);
        }
        Ok(self.check_is(check))
    }

    /// Copies the value to `out`, which has its length, as
    /// [`append_verified`](Record::append_verified) appends it.
    pub(crate) fn read_verified(&self, owner: Owner, key: &[u8], out: &mut [u8]) -> bool {
        let mut check = self.check_of_key(owner, key);
        for (piece, from) in out.chunks_mut(PIECE).zip((0..).step_by(PIECE)) {
            self.read_value(from, piece);
            self.prefetch_value(from + PIECE);
            check = checksum::append(check, piece);
        }
        self.check_is(check)
    }

    fn check_of_key(&self, owner: Owner, key: &[u8]) -> u32 {
        crc32c::crc32c_append(self.check_begin(owner), key)
    }

    /// Prefetches the piece of the value that begins at `from`, if there is one.
    #[inline]
    fn prefetch_value(&self, from: usize) {
        if from < self.value_len {
            let at = self.offset() + HEADER + (self.key_len + from) as u64;
            self.medium.prefetch_bytes(at, PIECE.min(self.value_len - from) as u64);
        }
    }

    /// Copies key and value.
    ///
    /// # Errors
    /// `NoSpace` if there is no memory for them.
    pub(crate) fn copy_to(&self, key: &mut Vec<u8>, value: &mut Vec<u8>) -> Result<()> {
        key.clear();
        value.clear();
        self.append_key(key)?;
        self.append_value(value)
    }

    /// Returns `true` if this copy of the value is what was written under `key` in the map of
    /// `owner`.
    pub(crate) fn verifies(&self, owner: Owner, key: &[u8], value: &[u8]) -> bool {
        let check = self.check_of_key(owner, key);
        self.check_is(checksum::append(check, value))
    }

    /// Returns `true` if the record is what was written in the map of `owner`. Reads all of it.
    pub(crate) fn verify(&self, owner: Owner) -> bool {
        let mut buffer = [0; 512];
        let mut check = self.check_begin(owner);
        let bytes = self.key_len + self.value_len;
        for from in (0..bytes).step_by(buffer.len()) {
            let part = &mut buffer[..(bytes - from).min(512)];
            self.read(from, part);
            check = checksum::append(check, part);
        }
        self.check_is(check)
    }

    /// Returns the owner with which this copy of key and value verifies: there is always exactly
    /// one, and if the record is damaged, any.
    pub(crate) fn owner_of(&self, key: &[u8], value: &[u8]) -> Owner {
        let own = crc32c::crc32c_append(self.check_begin(Owner(0)), key);
        let own = checksum::append(own, value);
        // What the owner has become by the bytes that follow it; the others undo that.
        let rest = self.medium.load_relaxed(&self.header.check) as u32 ^ own;
        let covered = CHECKED_HEADER + key.len() + value.len();
        Owner(crc32c::crc32c_combine(rest, 0, CRC_PERIOD - covered))
    }

    /// Returns the bytes of the value where they are stored.
    ///
    /// # Safety
    /// No program and no other thread writes them while the slice lives.
    pub(crate) unsafe fn value_slice(&self) -> &'m [u8] {
        let start = self.cells.as_ptr().cast::<u8>();
        // SAFETY: `cells` spans key and value and lives as long as the medium is borrowed; the
        // caller promises that nothing writes the bytes.
        unsafe { std::slice::from_raw_parts(start.add(self.key_len), self.value_len) }
    }

    /// Returns an item around copies of key and value.
    pub(crate) fn item<'a>(&self, key: &'a [u8], value: &'a [u8], control: Control) -> Item<'a> {
        Item::new(key, value, self.cas, control.meta(self.flags()))
    }

    /// Returns the error that reports that this record is damaged.
    #[cold]
    pub(crate) fn damaged(&self, what: &'static str) -> Error {
        let mut key = Vec::new();
        // If there is no memory for the key, the error names none.
        let _ = self.append_key(&mut key);
        Error::damaged(&key, self.offset(), what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evermap_pm::medium::{Dram, Pages};
    use evermap_pm::region::{Identity, RegionConfig};
    use std::sync::Arc;

    const OWNER: Owner = Owner(0);

    fn pool() -> Arc<Pool<Dram>> {
        let capacity = 1 << 20;
        let config = RegionConfig { extent_size: 16384, capacity, seed: Some(1) };
        Pool::create(Dram::reserve(capacity, Pages::Base).unwrap(), &config, Identity::default())
            .unwrap()
    }

    #[test]
    fn what_is_written_is_read_at_every_alignment() {
        let pool = pool();
        let bytes: Vec<u8> = (0..100).map(|i| (i * 7 + 1) as u8).collect();
        for key_len in 0..20 {
            for value_len in (0..20).chain([80]) {
                let (key, value) = (&bytes[..key_len], &bytes[20..20 + value_len]);
                let marks = crate::item::Marks::from_bits_truncate(5);
                let control = Control { expires_at: 77, marks };
                let meta = (0xdead_beef, control);
                let draft = Draft::new(&pool, OWNER, key, value, meta, 0x1_2345).unwrap();
                let record = Record::at(pool.medium(), draft.word()).unwrap();
                let (mut key_copy, mut value_copy) = (Vec::new(), b"before".to_vec());
                record.append_key(&mut key_copy).unwrap();
                record.append_value(&mut value_copy).unwrap();
                assert_eq!((&*key_copy, &value_copy[6..]), (key, value));
                assert!(record.verify(OWNER) && record.verifies(OWNER, key, value));
                assert_eq!((record.flags(), record.cas()), (0xdead_beef, 0x1_2345));
                assert_eq!(record.control(), Some(control));
                assert!(evermap_index::record::key_equals(pool.medium(), draft.word(), key));
                // SAFETY: nothing writes this pool.
                assert_eq!(unsafe { record.value_slice() }, value);
            }
        }
        assert_eq!(pool.heap_stats().allocated_blocks, 0, "drafts free themselves");
    }

    /// The checksum is part of the format: these values must never change.
    #[test]
    fn golden() {
        let pool = pool();
        let meta = (7, Control::default());
        let draft = Draft::new(&pool, Owner::of(0), b"key", b"value", meta, 42).unwrap();
        let record = Record::at(pool.medium(), draft.word()).unwrap();
        assert_eq!(pool.medium().load(&record.header.check), 7 << 32 | 0xb895_98cf);
        let expected = crc32c::crc32c(b"\x2a\0\0\0\0\0\0\0\x07\0\0\0\x03\0\0\0\x05\0\0\0keyvalue");
        assert_eq!(expected, 0xb895_98cf);
        let draft = Draft::new(&pool, Owner::of(64), b"key", b"value", meta, 42).unwrap();
        let record = Record::at(pool.medium(), draft.word()).unwrap();
        let of_map = b"\x40\0\0\0\0\0\0\0\x2a\0\0\0\0\0\0\0\x07\0\0\0\x03\0\0\0\x05\0\0\0keyvalue";
        assert_eq!(pool.medium().load(&record.header.check) as u32, crc32c::crc32c(of_map));
    }

    #[test]
    fn a_record_verifies_in_its_own_map_only() {
        let pool = pool();
        let owners = [0, 64, 128, 1 << 40].map(Owner::of);
        for owner in owners {
            let meta = (0, Control::default());
            let draft = Draft::new(&pool, owner, b"key", b"value", meta, 42).unwrap();
            let record = Record::at(pool.medium(), draft.word()).unwrap();
            for other in owners {
                assert_eq!(record.verify(other), other == owner);
                assert_eq!(record.verifies(other, b"key", b"value"), other == owner);
            }
            assert_eq!(record.owner_of(b"key", b"value"), owner);
        }
    }

    #[test]
    fn every_changed_bit_is_noticed() {
        let pool = pool();
        let value: Vec<u8> = (0..61).collect();
        let draft =
            Draft::new(&pool, OWNER, b"some key", &value, (0, Control::default()), 42).unwrap();
        let cells = draft.cells(0);
        for bit in 0..cells.len() * 64 {
            let (cell, flip) = (&cells[bit / 64], 1 << (bit % 64));
            let padding = bit / 8 >= 32 + 8 + 61;
            // How the record was read is not covered.
            let state = (24 * 8 + 17..24 * 8 + 32).contains(&bit);
            let before = pool.medium().load(cell);
            pool.medium().store(cell, before ^ flip);
            let sound = Record::at(pool.medium(), draft.word())
                .is_ok_and(|record| record.verify(OWNER) && record.expires_at() == Some(0));
            pool.medium().store(cell, before);
            assert_eq!(sound, padding || state, "bit {bit}");
        }
    }

    #[test]
    fn how_a_record_was_read_does_not_affect_what_it_is() {
        let pool = pool();
        let draft = Draft::reserve(&pool, OWNER, b"k", b"v", 0, control_of(0), 42).unwrap();
        draft.set_access(AccessState::new(800));
        draft.persist();
        let start = draft.word() & OFFSET_MASK;
        let block = start..start + record_bytes(1, 1);
        let record = Record::in_block(pool.medium(), block).unwrap();
        assert_eq!(record.access(), AccessState::new(800));
        for bits in [0, 1, 0x7fff] {
            record.set_access(AccessState::from_bits(bits));
            let again = Record::at(pool.medium(), draft.word()).unwrap();
            assert_eq!((again.access().bits(), again.value_len()), (bits, 1));
            assert!(again.verifies(OWNER, b"k", b"v"));
        }
    }

    #[test]
    fn a_record_with_a_tombstone_is_not_readable_and_hardly_becomes_so() {
        let pool = pool();
        let draft = Draft::new(&pool, OWNER, b"k", b"v", (0, Control::default()), 42).unwrap();
        let record = Record::at(pool.medium(), draft.word()).unwrap();
        assert!(!record.is_unbound() && record.expires_at() == Some(0));
        record.set_tombstone(tombstone_of(7));
        assert!(record.is_unbound() && record.expires_at().is_none());
        assert!(record.was_unbound_in(7) && !record.was_unbound_in(6) && !record.was_unbound_in(8));
        assert_eq!(record.why_unreadable(), REMOVED);
        for generation in (0..2000).chain((0..32).map(|bit| 1 << bit)) {
            let tombstone = tombstone_of(generation);
            for bit in 0..64 {
                pool.medium().store(&record.header.control, tombstone ^ 1 << bit);
                assert_eq!(record.expires_at(), None, "generation {generation}, bit {bit}");
            }
        }
    }

    #[test]
    fn a_draft_that_is_not_published_does_not_verify_later() {
        let pool = pool();
        let draft = Draft::new(&pool, OWNER, b"k", b"v", (0, Control::default()), 42).unwrap();
        let word = draft.word();
        assert_eq!(Record::at(pool.medium(), word).unwrap().expires_at(), Some(0));
        drop(draft);
        assert_eq!(Record::at(pool.medium(), word).unwrap().expires_at(), None);
    }

    #[test]
    fn a_word_that_names_no_record_is_refused() {
        let pool = pool();
        let draft = Draft::new(&pool, OWNER, b"k", b"v", (0, Control::default()), 42).unwrap();
        let word = draft.word();
        let m = pool.medium();
        assert!(Record::at(m, word).is_ok());
        for wrong in [word + 1, word + 4, word ^ 1 << 50, (42 << 48) | (m.len() - 8), u64::MAX] {
            assert!(Record::at(m, wrong).is_err(), "{wrong:#x}");
        }
    }

    /// A block that is allocated and not written yet has what was there before.
    #[test]
    fn nothing_outside_its_block_is_part_of_a_record() {
        let pool = pool();
        let draft = Draft::new(&pool, OWNER, &[1; 700], b"v", (0, Control::default()), 42).unwrap();
        let (start, m) = (draft.word() & OFFSET_MASK, pool.medium());
        let of_len = |len| Record::in_block(m, start..start + len).map(|record| record.word());
        assert_eq!(of_len(record_bytes(700, 1)), Ok(draft.word()));
        assert_eq!(of_len(record_bytes(700, 1) - 16), Err("it is longer than its block"));
    }
}
