//! Indexes over byte strings as stores: each pair is a [record](evermap_index::record) in the heap,
//! which the word of the index names.

use std::marker::PhantomData;
use std::sync::Arc;

use evermap_index::key::BytesRef;
use evermap_index::record::{HEADER, Header, OFFSET_MASK, lengths};
use evermap_index::{Index, Key};
use evermap_pm::medium::Note;
use evermap_pm::{Error, Guard, Medium, PmU64, Pool};

use evermap_index::BATCH_KEYS;

use super::indexed::size_of;
use evermap_lab_core::subject::store::{Result, Store};
use evermap_lab_core::subject::{Counts, Found, Place, Size};

/// An index over byte strings, with the records that it names.
pub struct Recorded<M: Medium, I, K> {
    pool: Arc<Pool<M>>,
    index: I,
    counts: fn(&M) -> Option<Counts>,
    place: Place,
    keys: PhantomData<fn() -> K>,
}

impl<M: Medium, I: Index<K>, K: for<'k> Key<Ref<'k> = BytesRef<'k>>> Recorded<M, I, K> {
    /// Returns the store over an index of `pool`, which is at `place`. `counts` returns what its
    /// medium has counted.
    pub fn new(
        pool: Arc<Pool<M>>,
        index: I,
        counts: fn(&M) -> Option<Counts>,
        place: Place,
    ) -> Self {
        Recorded { pool, index, counts, place, keys: PhantomData }
    }

    /// Announces an operation to a medium that counts, so that it counts each line once.
    #[inline(always)]
    fn operate<R>(&self, operation: impl FnOnce() -> R) -> R {
        self.pool.medium().note(Note::Begin(0));
        let result = operation();
        self.pool.medium().note(Note::End(0));
        result
    }

    fn key<'k>(&self, key: &'k [u8]) -> BytesRef<'k> {
        BytesRef::new(key, self.pool.seed())
    }

    /// Writes a record and makes it durable. Returns its offset.
    fn write(&self, key: &[u8], value: &[u8]) -> evermap_pm::Result<u64> {
        let (pool, m) = (&self.pool, self.pool.medium());
        let body = [key, value].concat();
        let words = HEADER / 8 + (body.len() as u64).div_ceil(8);
        let offset = pool.allocate(words * 8)?;
        let cells = m.slice::<PmU64>(offset, words).expect("just allocated");
        let lengths = key.len() as u64 | (value.len() as u64) << 32;
        // Control word, CAS id and checksum belong to a store, which does not exist here.
        let header: Vec<_> =
            [0, 0, 0, lengths].iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        m.write_bytes(cells, &header);
        m.write_bytes(&cells[HEADER as usize / 8..], &body);
        m.persist(cells);
        Ok(offset)
    }

    /// Replaces the contents of `out` with the value of the record that `word` names.
    fn read(&self, word: u64, out: &mut Vec<u8>) -> evermap_pm::Result<()> {
        let (m, offset) = (self.pool.medium(), word & OFFSET_MASK);
        let no_record = || Error::damaged(offset, "no record where the index names one");
        let header = m.at::<Header>(offset).ok_or_else(no_record)?;
        read_value(m, offset + HEADER, m.load_relaxed(&header.lengths), out).ok_or_else(no_record)
    }

    /// Retires the record that a change has unlinked.
    fn retire(&self, old: Option<u64>, guard: &Guard<'_>) {
        let pool = &self.pool;
        if let Some(offset) = old.map(|word| word & OFFSET_MASK)
            && let Some(header) = pool.medium().at::<Header>(offset)
        {
            let (key, value) = lengths(pool.medium().load_relaxed(&header.lengths));
            pool.retire(offset, HEADER + key + value, guard);
        }
    }

    fn put(&self, key: &[u8], value: &[u8]) -> evermap_pm::Result<Found> {
        let (pool, index) = (&self.pool, &self.index);
        let offset = self.write(key, value)?;
        let guard = pool.pin();
        let change = index.upsert(self.key(key), offset, &guard);
        let change = change.inspect_err(|_| pool.free_unpublished(offset))?;
        self.retire(change.old, &guard);
        Ok(if change.old.is_some() { Found::Present } else { Found::Absent })
    }

    fn remove(&self, key: &[u8]) -> evermap_pm::Result<Found> {
        let guard = self.pool.pin();
        let change = self.index.remove(self.key(key), &guard)?;
        self.retire(change.old, &guard);
        Ok(if change.old.is_some() { Found::Present } else { Found::Absent })
    }
}

impl<M, I, K> Store for Recorded<M, I, K>
where
    M: Medium,
    I: Index<K> + 'static,
    K: for<'k> Key<Ref<'k> = BytesRef<'k>>,
{
    type Reader<'a> = Guard<'a>;

    fn reader(&self) -> Result<Guard<'_>> {
        Ok(self.pool.pin())
    }

    #[inline]
    fn get(&self, key: &[u8], guard: &Guard<'_>, value: &mut Vec<u8>) -> Result<bool> {
        self.operate(|| {
            let word = self.index.get(self.key(key), guard)?;
            let read = word.map(|word| self.read(word, value)).transpose();
            Ok(read?.is_some())
        })
    }

    fn get_many(
        &self,
        keys: &[&[u8]],
        guard: &Guard<'_>,
        each: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<()> {
        let mut value = Vec::new();
        for (chunk, keys) in keys.chunks(BATCH_KEYS).enumerate() {
            let refs: Vec<_> = keys.iter().map(|key| self.key(key)).collect();
            let mut words = [None; BATCH_KEYS];
            self.index.get_many(&refs, &mut words, guard)?;
            for (place, word) in words.iter().take(keys.len()).enumerate() {
                if let Some(word) = word {
                    self.read(*word, &mut value)?;
                    each(chunk * BATCH_KEYS + place, &value);
                }
            }
        }
        Ok(())
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<Found> {
        Ok(self.operate(|| Recorded::put(self, key, value))?)
    }

    fn remove(&self, key: &[u8]) -> Result<Found> {
        Ok(self.operate(|| Recorded::remove(self, key))?)
    }

    /// Returns the size of the index, and adds the records to the bytes.
    fn size(&self) -> Result<Size> {
        let size = size_of::<K, M>(&self.pool, &self.index)?;
        let pm_bytes = Some(self.pool.heap_stats().allocated_bytes);
        Ok(Size { pm_bytes, ..size })
    }

    fn counts(&self) -> Option<Counts> {
        (self.counts)(self.pool.medium())
    }

    fn place(&self) -> Place {
        self.place.clone()
    }
}

/// Replaces the contents of `out` with the value that follows the key in the bytes at `body`.
/// `both` holds the lengths of both, as a word of [lengths]. Returns `None` if they do not fit into
/// the medium.
pub fn read_value<M: Medium>(m: &M, body: u64, both: u64, out: &mut Vec<u8>) -> Option<()> {
    let (key, value) = lengths(both);
    // The word in which the key ends may start with the last bytes of the key.
    let (skipped, rest) = (key / 8, key % 8);
    let cells = m.slice::<PmU64>(body + skipped * 8, (rest + value).div_ceil(8))?;
    out.resize((rest + value) as usize, 0);
    m.read_bytes(cells, out);
    out.drain(..rest as usize);
    Some(())
}
