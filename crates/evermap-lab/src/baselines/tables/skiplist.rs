//! The crate `crossbeam-skiplist`: a lock-free skip list in ordinary memory.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use crossbeam_skiplist::SkipMap;
use evermap_pm::Result;

use crate::LabError;
use crate::subject::{Found, Guards, Measured, Setup, Size, Subject, Table};

/// Words are replaced where they are: the crate's own replacement removes the key for a moment.
struct SkipList(SkipMap<u64, AtomicU64>);

pub(super) fn build(name: &'static str, setup: &Setup) -> Result<Box<dyn Subject>, LabError> {
    setup.words_only(name)?;
    let table = SkipList(SkipMap::new());
    Ok(Box::new(Measured { name, table, guards: Guards::PerOperation }))
}

impl Table for SkipList {
    /// The list pins what it reads.
    type Guard<'a> = ();

    fn guard(&self) {}

    #[inline]
    fn insert(&self, key: u64, word: u64, (): &()) -> Result<Found> {
        self.0.get_or_insert(key, AtomicU64::new(word));
        Ok(Found::Unsaid)
    }

    #[inline]
    fn get(&self, key: u64, (): &()) -> Result<Option<u64>> {
        Ok(self.0.get(&key).map(|entry| entry.value().load(Acquire)))
    }

    #[inline]
    fn update(&self, key: u64, word: u64, (): &()) -> Result<Found> {
        let entry = self.0.get(&key);
        Ok(match entry {
            None => Found::Absent,
            Some(entry) => {
                entry.value().store(word, Release);
                Found::Present
            }
        })
    }

    #[inline]
    fn remove(&self, key: u64, (): &()) -> Result<Found> {
        Ok(self.0.remove(&key).map(|entry| entry.value().load(Acquire)).into())
    }

    fn scan(
        &self,
        from: u64,
        count: usize,
        (): &(),
        each: &mut dyn FnMut(u64, u64),
    ) -> Result<bool> {
        for entry in self.0.range(from..).take(count) {
            each(*entry.key(), entry.value().load(Acquire));
        }
        Ok(true)
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn size(&self) -> Result<Size> {
        Ok(Size { len: Some(self.0.len() as u64), ..Size::default() })
    }
}
