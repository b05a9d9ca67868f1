//! An index over words as a table.

use std::marker::PhantomData;
use std::sync::Arc;

use evermap_index::index::{BATCH_KEYS, Change};
use evermap_index::{Index, Key, Result};
use evermap_pm::medium::Note;
use evermap_pm::{Guard, Medium, Pool};

use evermap_lab_core::error::Found;
use evermap_lab_core::subject::facts::{Counts, Place, Placement, Size};
use evermap_lab_core::subject::table::Table;

/// An index with its pool.
///
/// Each operation is announced to the medium, so that a counting medium knows which lines belong
/// together. That costs nothing on media that ignore it.
pub(crate) struct Indexed<M: Medium, I, K> {
    pub pool: Arc<Pool<M>>,
    pub index: I,
    pub counts: fn(&M) -> Option<Counts>,
    /// Returns how the pairs are spread, if the index has tranches.
    pub placement: fn(&I) -> Result<Option<Placement>>,
    /// Does pieces of growth ahead, if the index grows like that.
    pub grow_ahead: fn(&I, u64) -> Result<Option<u64>>,
    pub place: Place,
    pub keys: PhantomData<fn() -> K>,
}

impl<M: Medium, I, K> Indexed<M, I, K> {
    /// Says that an operation begins, to media that count what each one does.
    #[inline(always)]
    pub(super) fn begin(&self) {
        self.pool.medium().note(Note::Begin(0));
    }

    /// Says that an operation has ended.
    #[inline(always)]
    pub(super) fn end<R>(&self, result: R) -> R {
        self.pool.medium().note(Note::End(0));
        result
    }
}

/// Returns size and load of an index. Walks it.
pub(crate) fn size_of<K: Key, M: Medium>(pool: &Pool<M>, index: &impl Index<K>) -> Result<Size> {
    let stats = index.stats(&pool.pin())?;
    Ok(Size {
        len: Some(stats.len),
        load_factor: Some(stats.load_factor()),
        dram_bytes: Some(stats.dram_bytes),
        pm_bytes: Some(stats.pm_bytes),
        placement: None,
    })
}

// No closures: the compiler would make each of them a separate function, which no user's loop
// calls.
impl<M: Medium, I: Index<K> + 'static, K: for<'k> Key<Ref<'k> = u64>> Table for Indexed<M, I, K> {
    type Guard<'a> = Guard<'a>;

    #[inline(always)]
    fn guard(&self) -> Guard<'_> {
        self.pool.pin()
    }

    #[inline(always)]
    fn insert(&self, key: u64, word: u64, guard: &Guard<'_>) -> Result<Found> {
        self.begin();
        Ok(self.end(self.index.insert(key, word, guard))?.old.into())
    }

    #[inline(always)]
    fn get(&self, key: u64, guard: &Guard<'_>) -> Result<Option<u64>> {
        self.begin();
        self.end(self.index.get(key, guard))
    }

    #[inline(always)]
    fn get_many(&self, keys: &[u64], out: &mut [Option<u64>], guard: &Guard<'_>) -> Result<()> {
        self.begin();
        self.end(self.index.get_many(keys, out, guard))
    }

    fn insert_many(
        &self,
        keys: &[u64],
        words: &[u64],
        out: &mut [Found],
        guard: &Guard<'_>,
    ) -> Result<()> {
        let groups = keys.chunks(BATCH_KEYS).zip(words.chunks(BATCH_KEYS));
        for ((keys, words), out) in groups.zip(out.chunks_mut(BATCH_KEYS)) {
            let mut changes: [Result<Change>; BATCH_KEYS] =
                std::array::from_fn(|_| Ok(Change::default()));
            self.begin();
            self.index.insert_many(keys, words, guard, &mut changes);
            self.end(());
            for (out, change) in out.iter_mut().zip(changes).take(keys.len()) {
                *out = change?.old.into();
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn update(&self, key: u64, word: u64, guard: &Guard<'_>) -> Result<Found> {
        self.begin();
        Ok(self.end(self.index.update(key, word, guard))?.old.into())
    }

    #[inline(always)]
    fn remove(&self, key: u64, guard: &Guard<'_>) -> Result<Found> {
        self.begin();
        Ok(self.end(self.index.remove(key, guard))?.old.into())
    }

    fn size(&self) -> Result<Size> {
        let placement = (self.placement)(&self.index)?;
        Ok(Size { placement, ..size_of::<K, M>(&self.pool, &self.index)? })
    }

    fn grow_ahead(&self, pieces: u64) -> Result<Option<u64>> {
        (self.grow_ahead)(&self.index, pieces)
    }

    fn counts(&self) -> Option<Counts> {
        (self.counts)(self.pool.medium())
    }

    fn place(&self) -> Place {
        self.place.clone()
    }
}
