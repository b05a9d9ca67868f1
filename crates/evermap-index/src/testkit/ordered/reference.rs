//! An ordered index that is obviously correct, for testing the kit itself.

use std::collections::BTreeMap;
use std::ops::Bound;

use evermap_pm::sync::RwLock;
use evermap_pm::{ErrorKind, Result};

use super::OrderedSubject;
use crate::ordered::{Direction, OrderedIndex, Page};
use crate::record::KEY_MAX;
use crate::{Action, Change, MutateMode, Stats};

/// An ordered map of the standard library under one lock.
#[derive(Default)]
pub struct LockedTree(pub(super) RwLock<BTreeMap<Vec<u8>, u64>>);

/// The number of pairs in a page: small, so that pages end in many places.
pub(super) const PAGE: usize = 3;

impl OrderedIndex for LockedTree {
    fn get(&self, key: &[u8]) -> Result<Option<u64>> {
        Ok(self.0.read().expect("no panics while held").get(key).copied())
    }

    fn mutate(
        &self,
        key: &[u8],
        mode: MutateMode,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let mut map = self.0.write().expect("no panics while held");
        let old = map.get(key).copied();
        if old.is_none() && mode == MutateMode::ExistingOnly {
            return Ok(Change::default());
        }
        if key.len() > KEY_MAX {
            return Err(ErrorKind::KeyTooLong { len: key.len(), max: KEY_MAX }.into());
        }
        let new = match decide(old) {
            Action::Keep => old,
            Action::Put(word) => Some(word),
            Action::Remove => None,
        };
        match new {
            Some(word) => map.insert(key.to_vec(), word),
            None => map.remove(key),
        };
        Ok(Change { old, new })
    }

    fn page(&self, from: Bound<&[u8]>, direction: Direction, page: &mut Page) -> Result<()> {
        page.clear();
        let map = self.0.read().expect("no panics while held");
        match direction {
            Direction::Ascending => {
                let mut rest = map.range::<[u8], _>((from, Bound::Unbounded));
                rest.by_ref().take(PAGE).for_each(|(key, &word)| page.pairs.push(key, word));
                if let Some((next, _)) = rest.next() {
                    page.continue_at(next);
                }
            }
            Direction::Descending => {
                let mut rest = map.range::<[u8], _>((Bound::Unbounded, from)).rev();
                let mut pairs: Vec<_> = rest.by_ref().take(PAGE).collect();
                pairs.reverse();
                pairs.iter().for_each(|(key, word)| page.pairs.push(key, **word));
                if rest.next().is_some() {
                    page.continue_at(pairs[0].0);
                }
            }
        }
        Ok(())
    }

    fn len(&self) -> u64 {
        self.0.read().expect("no panics while held").len() as u64
    }

    fn stats(&self) -> Stats {
        Stats { len: self.len(), ..Stats::default() }
    }

    fn check(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Creates [`LockedTree`]s.
pub struct MakeLockedTree;

impl OrderedSubject for MakeLockedTree {
    type Index = LockedTree;

    fn fresh(&self) -> Result<LockedTree> {
        Ok(LockedTree::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::ordered_conformance!(locked_tree, MakeLockedTree);
}
