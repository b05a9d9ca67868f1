//! The volatile ordered index as a table of words: keys are written in big-endian order, so that
//! they sort as the numbers do.

use std::ops::Bound;

use evermap_index::ordered::bplus::BPlus;
use evermap_index::ordered::{Cursor, Direction, OrderedIndex};
use evermap_pm::Result;

use evermap_lab_core::subject::{Entry, Found, Guards, Measured, Size, Table};

/// The entry of the registry.
pub static ENTRY: Entry = Entry {
    name: "bplus",
    about: "the store's ordered side: a B+tree in ordinary memory, optimistic lock coupling",
    rival: false,
    factory: |name, setup| {
        setup.words_only(name)?;
        let table = Tree(BPlus::new());
        Ok(Box::new(Measured { name, table, guards: Guards::PerOperation }))
    },
};

struct Tree(BPlus);

impl Table for Tree {
    /// The tree pins what it reads.
    type Guard<'a> = ();

    fn guard(&self) {}

    #[inline(always)]
    fn insert(&self, key: u64, word: u64, (): &()) -> Result<Found> {
        Ok(self.0.insert(&key.to_be_bytes(), word)?.old.into())
    }

    #[inline(always)]
    fn get(&self, key: u64, (): &()) -> Result<Option<u64>> {
        self.0.get(&key.to_be_bytes())
    }

    #[inline(always)]
    fn update(&self, key: u64, word: u64, (): &()) -> Result<Found> {
        Ok(self.0.update(&key.to_be_bytes(), word)?.old.into())
    }

    #[inline(always)]
    fn remove(&self, key: u64, (): &()) -> Result<Found> {
        Ok(self.0.remove(&key.to_be_bytes())?.old.into())
    }

    fn scan(
        &self,
        from: u64,
        count: usize,
        (): &(),
        each: &mut dyn FnMut(u64, u64),
    ) -> Result<bool> {
        let from = from.to_be_bytes();
        let range = (Bound::Included(&from[..]), Bound::Unbounded);
        let mut cursor = Cursor::new(&self.0, range, Direction::Ascending);
        for _ in 0..count {
            let Some((key, word)) = cursor.next()? else { break };
            // Every key here is one that `insert` has written.
            if let Ok(key) = key.try_into() {
                each(u64::from_be_bytes(key), word);
            }
        }
        Ok(true)
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn size(&self) -> Result<Size> {
        let stats = self.0.stats();
        Ok(Size {
            len: Some(stats.len),
            load_factor: Some(stats.len as f64 / stats.capacity.max(1) as f64),
            dram_bytes: Some(stats.dram_bytes),
            pm_bytes: Some(0),
        })
    }
}
