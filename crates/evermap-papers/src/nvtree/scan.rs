//! Reading pages of pairs in the order of their keys.

use std::cmp::Ordering;
use std::ops::Bound;

use evermap_index::node_lock::{self, Seen};
use evermap_index::ordered::Page;
use evermap_pm::{Error, Medium, Result};

use super::leaf::{Item, Leaf};
use super::{Form, NvTree};
use crate::search::Search;

/// A page ends with the leaf in which it has this many pairs.
pub(super) const PAGE: usize = 64;

/// The most leaves of a page, however few pairs they have.
const LEAVES: usize = 32;

impl<M: Medium, F: Form> NvTree<M, F> {
    /// Reads a page of some leaves. Returns their locks.
    pub(super) fn try_ascending(
        &self,
        from: Bound<&[u8]>,
        most: usize,
        page: &mut Page,
    ) -> Result<Seen<'_>> {
        let m = self.medium();
        let (key, excluded) = match from {
            Bound::Unbounded => (&[][..], false),
            Bound::Included(key) => (key, false),
            Bound::Excluded(key) => (key, true),
        };
        let search = Search::at(key);
        let mut leaf = self.leaf_of(&search)?;
        let mut seen = Seen::default();
        page.clear();
        for number in 1.. {
            let items = self.read_seen(&leaf, &mut seen)?;
            // Those of all leaves but the first are behind the key.
            let is_within = |item: &Item<'_>| match number {
                1 => Ok(match search.compare(m, &item.key)? {
                    Ordering::Less => true,
                    Ordering::Equal => !excluded,
                    Ordering::Greater => false,
                }),
                _ => Ok::<_, Error>(true),
            };
            for item in items {
                if is_within(&item)? {
                    self.push(page, &item)?;
                }
            }
            let sibling = m.load(&leaf.header.sibling);
            if sibling == 0 {
                break;
            }
            let next = self.leaf(sibling)?;
            // Otherwise damaged references could lead a scan round and round.
            if leaf.low(m).compare(m, &next.low(m))? != Ordering::Less
                || search.compare(m, &next.low(m))? != Ordering::Less
            {
                let what = "a leaf of a tree is not behind the one before it";
                return Err(Error::damaged(sibling, what));
            }
            if page.pairs.len() >= most || number == LEAVES {
                page.continue_at(&next.low(m).key(m)?.unwrap_or_default());
                break;
            }
            leaf = next;
        }
        Ok(seen)
    }

    /// Reads a page of one leaf. Returns its lock.
    pub(super) fn try_descending(&self, from: Bound<&[u8]>, page: &mut Page) -> Result<Seen<'_>> {
        let m = self.medium();
        let search = match from {
            Bound::Unbounded => Search::last(),
            Bound::Included(key) => Search::at(key),
            Bound::Excluded(key) => Search::before(key),
        };
        let leaf = self.leaf_of(&search)?;
        let mut seen = Seen::default();
        page.clear();
        for item in self.read_seen(&leaf, &mut seen)? {
            if search.admits(m, &item.key)? {
                self.push(page, &item)?;
            }
        }
        if let Some(low) = leaf.low(m).key(m)? {
            page.continue_at(&low);
        }
        Ok(seen)
    }

    /// Returns the bound keys of a leaf as soon as no thread changes it, and adds its lock to those
    /// that were seen.
    fn read_seen<'m>(&'m self, leaf: &Leaf<'m>, seen: &mut Seen<'m>) -> Result<Vec<Item<'m>>> {
        let m = self.medium();
        let lock = &leaf.header.lock;
        seen.add(lock, node_lock::unlocked(&self.memory.region, lock)?);
        let mut items = leaf.items(m, leaf.visible(m)?.count())?;
        items.retain(|item| item.is_live);
        Ok(items)
    }

    fn push(&self, page: &mut Page, item: &Item<'_>) -> Result<()> {
        let (m, mut failed) = (self.medium(), None);
        page.pairs.push_with(item.word, |bytes| match item.block {
            Some(block) => block.append_key(m, bytes),
            None => failed = item.key.append(m, bytes).err(),
        });
        failed.map_or(Ok(()), Err)
    }
}
