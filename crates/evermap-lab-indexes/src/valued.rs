//! Trees in persistent memory as stores of values of any length: the word of a key names a block
//! with its value.
//!
//! ```text
//! byte 0  length of the value, bytes
//! byte 8  the value, padded with zeros to 8 bytes
//! ```

use std::ops::Bound;
use std::sync::Arc;

use evermap_index::ordered::{Cursor, Direction, OrderedIndex};
use evermap_pm::medium::Note;
use evermap_pm::{Error, Guard, Medium, PmU64, Pool};

use evermap_lab_core::subject::store::{Result, Store};
use evermap_lab_core::subject::{Counts, Found, Place, Size};

/// Bytes before the value.
const HEADER: u64 = 8;

/// A tree, with the blocks of its values.
///
/// A value is flushed and not fenced: the tree's first fence, which makes the new entry durable,
/// must come before anything refers to that entry. NV-Tree and FPTree are such trees.
pub(crate) struct Valued<M: Medium, T> {
    pub(crate) pool: Arc<Pool<M>>,
    pub(crate) tree: T,
    pub(crate) counts: fn(&M) -> Option<Counts>,
    pub(crate) place: Place,
}

impl<M: Medium, T: OrderedIndex> Valued<M, T> {
    /// Announces an operation to a medium that counts, so that it counts each line once.
    #[inline]
    fn operate<R>(&self, operation: impl FnOnce() -> R) -> R {
        self.pool.medium().note(Note::Begin(0));
        let result = operation();
        self.pool.medium().note(Note::End(0));
        result
    }

    /// Writes a value. Returns the offset of its block.
    fn write(&self, value: &[u8]) -> evermap_pm::Result<u64> {
        let (pool, m) = (&self.pool, self.pool.medium());
        let words = HEADER / 8 + (value.len() as u64).div_ceil(8);
        let offset = pool.allocate(words * 8)?;
        let cells = m.slice::<PmU64>(offset, words).expect("just allocated");
        m.store(&cells[0], value.len() as u64);
        m.write_bytes(&cells[1..], value);
        m.flush(cells);
        Ok(offset)
    }

    /// Returns the length of the value at `offset` and its words.
    fn value_at(&self, offset: u64) -> evermap_pm::Result<(u64, &[PmU64])> {
        let m = self.pool.medium();
        let find = || {
            let length = m.load(m.at::<PmU64>(offset)?);
            Some((length, m.slice::<PmU64>(offset + HEADER, length.div_ceil(8))?))
        };
        find().ok_or_else(|| Error::damaged(offset, "no value where a tree names one"))
    }

    /// Replaces the contents of `out` with the value at `offset`.
    fn read(&self, offset: u64, out: &mut Vec<u8>) -> evermap_pm::Result<()> {
        let (length, cells) = self.value_at(offset)?;
        out.resize(length as usize, 0);
        self.pool.medium().read_bytes(cells, out);
        Ok(())
    }

    /// Retires the value that a change has unlinked.
    fn retire(&self, old: Option<u64>, guard: &Guard<'_>) -> evermap_pm::Result<Found> {
        if let Some(offset) = old {
            self.pool.retire(offset, HEADER + self.value_at(offset)?.0, guard);
        }
        Ok(was(old))
    }

    fn put(&self, key: &[u8], value: &[u8]) -> evermap_pm::Result<Found> {
        let offset = self.write(value)?;
        let guard = self.pool.pin();
        let change = self.tree.upsert(key, offset);
        let change = change.inspect_err(|_| self.pool.free_unpublished(offset))?;
        self.retire(change.old, &guard)
    }

    fn remove(&self, key: &[u8]) -> evermap_pm::Result<Found> {
        let guard = self.pool.pin();
        let change = self.tree.remove(key)?;
        self.retire(change.old, &guard)
    }

    fn scan(
        &self,
        from: &[u8],
        count: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> evermap_pm::Result<()> {
        let range = (Bound::Included(from), Bound::Unbounded);
        let mut cursor = Cursor::new(&self.tree, range, Direction::Ascending);
        cursor.expect(count);
        let mut value = Vec::new();
        for _ in 0..count {
            let Some((key, offset)) = cursor.next()? else { break };
            self.read(offset, &mut value)?;
            each(key, &value);
        }
        Ok(())
    }
}

impl<M: Medium, T: OrderedIndex + 'static> Store for Valued<M, T> {
    /// Protects the values; the tree pins what it reads itself.
    type Reader<'a> = Guard<'a>;

    fn reader(&self) -> Result<Guard<'_>> {
        Ok(self.pool.pin())
    }

    #[inline]
    fn get(&self, key: &[u8], _: &Guard<'_>, value: &mut Vec<u8>) -> Result<bool> {
        self.operate(|| {
            let offset = self.tree.get(key)?;
            offset.map(|offset| self.read(offset, value)).transpose()?;
            Ok(offset.is_some())
        })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<Found> {
        Ok(self.operate(|| Valued::put(self, key, value))?)
    }

    fn remove(&self, key: &[u8]) -> Result<Found> {
        Ok(self.operate(|| Valued::remove(self, key))?)
    }

    fn scan(
        &self,
        from: &[u8],
        count: usize,
        _: &Guard<'_>,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        Ok(self.operate(|| Valued::scan(self, from, count, each))?)
    }

    fn is_ordered(&self) -> bool {
        true
    }

    /// Returns the size of the tree, and adds the values to the bytes.
    fn size(&self) -> Result<Size> {
        let pm_bytes = Some(self.pool.heap_stats().allocated_bytes);
        Ok(Size { pm_bytes, ..measure(&self.tree) })
    }

    fn counts(&self) -> Option<Counts> {
        (self.counts)(self.pool.medium())
    }

    fn place(&self) -> Place {
        self.place.clone()
    }
}

/// Returns the size of a tree, without what its words name.
pub(crate) fn measure(tree: &dyn OrderedIndex) -> Size {
    let stats = tree.stats();
    Size {
        len: Some(stats.len),
        load_factor: (stats.capacity > 0).then(|| stats.load_factor()),
        dram_bytes: Some(stats.dram_bytes),
        pm_bytes: Some(stats.pm_bytes),
        placement: None,
    }
}

/// Returns whether a key was bound.
pub(crate) fn was(old: Option<u64>) -> Found {
    if old.is_some() { Found::Present } else { Found::Absent }
}
