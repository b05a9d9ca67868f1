//! An index that is obviously correct, for testing the kit itself.

use std::collections::HashMap;

use evermap_pm::sync::RwLock;
use evermap_pm::{Domain, Guard, Result};

use super::{Instance, Numbered, Subject};
use crate::{Action, Change, Index, Key, MutateMode, Stats};

/// A hash map of the standard library under one lock, for kinds whose keys are numbers.
#[derive(Default)]
pub struct Locked(RwLock<HashMap<u64, u64>>);

impl<K: for<'a> Key<Ref<'a> = u64>> Index<K> for Locked {
    fn get(&self, key: u64, _guard: &Guard<'_>) -> Result<Option<u64>> {
        Ok(self.0.read().expect("no panics while held").get(&key).copied())
    }

    fn mutate(
        &self,
        key: u64,
        mode: MutateMode,
        _guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let mut map = self.0.write().expect("no panics while held");
        let old = map.get(&key).copied();
        if old.is_none() && mode == MutateMode::ExistingOnly {
            return Ok(Change::default());
        }
        let new = match decide(old) {
            Action::Keep => old,
            Action::Put(word) => Some(word),
            Action::Remove => None,
        };
        match new {
            Some(word) => map.insert(key, word),
            None => map.remove(&key),
        };
        Ok(Change { old, new })
    }

    fn for_each(&self, _guard: &Guard<'_>, each: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        let map = self.0.read().expect("no panics while held");
        map.iter().all(|(&key, &word)| each(key, word));
        Ok(())
    }

    fn stats(&self, _guard: &Guard<'_>) -> Result<Stats> {
        let map = self.0.read().expect("no panics while held");
        let (len, capacity) = (map.len() as u64, map.capacity() as u64);
        Ok(Stats { len, capacity, dram_bytes: capacity * 16, ..Stats::default() })
    }
}

/// An index in ordinary memory, and the epoch domain that it needs.
pub struct Volatile<I> {
    index: I,
    domain: Domain,
}

impl<I> Volatile<I> {
    /// Wraps an index that retires nothing, or does so by itself.
    pub fn new(index: I) -> Self {
        Volatile { index, domain: Domain::new(Box::new(|_| ())) }
    }
}

impl<K: Key, I: Index<K>> Instance<K> for Volatile<I> {
    fn index(&self) -> &dyn Index<K> {
        &self.index
    }

    fn pin(&self) -> Guard<'_> {
        self.domain.pin()
    }
}

/// Creates [`Locked`] indexes.
pub struct MakeLocked;

impl<K: Numbered + for<'a> Key<Ref<'a> = u64>> Subject<K> for MakeLocked {
    type Instance = Volatile<Locked>;

    fn fresh(&self) -> Result<Self::Instance> {
        Ok(Volatile::new(Locked::default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::conformance!(volatile locked, MakeLocked);
}
