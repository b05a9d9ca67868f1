//! Leaves, and reading them.

use std::cmp::Ordering;

use evermap_index::node_lock::{self, Lock};
use evermap_index::ordered::leaf::LeafRef;
use evermap_pm::{Error, Medium, Result};

use super::key::Brief;
use super::layout::{self, Entry, Header, Rest, State, Visible};
use crate::search::Search;

/// A leaf.
#[derive(Clone, Copy)]
pub(super) struct Leaf<'m> {
    pub(super) offset: u64,
    pub(super) header: &'m Header,
    pub(super) entries: &'m [Entry],
}

/// A leaf that this thread has locked.
pub(super) type Locked<'m> = node_lock::Locked<'m, Leaf<'m>>;

/// The last entry of a key.
#[derive(Clone, Copy)]
pub(super) struct Found {
    /// Its number.
    pub(super) at: usize,
    pub(super) state: State,
    /// The word of the entry, whether or not the key is bound.
    pub(super) word: u64,
}

impl Found {
    /// Returns the word that the key is bound to.
    pub(super) fn bound(&self) -> Option<u64> {
        self.state.is_live().then_some(self.word)
    }
}

/// What a leaf says about a key.
#[derive(Clone, Copy)]
pub(super) struct Item<'m> {
    pub(super) key: Brief,
    /// The block with the key, if that is long.
    pub(super) block: Option<LeafRef<'m>>,
    pub(super) is_live: bool,
    pub(super) word: u64,
    /// The number of the entry.
    pub(super) at: usize,
}

impl Item<'_> {
    /// Compares the keys of two items.
    fn compare<M: Medium>(&self, m: &M, other: &Self) -> Ordering {
        self.key.head.cmp(&other.key.head).then_with(|| match (self.block, other.block) {
            (Some(one), Some(other)) if one.offset != other.offset => one.compare_leaf(m, &other),
            // Shorter keys have smaller words: see `Brief::compare`.
            _ => self.key.rest.0.cmp(&other.key.rest.0),
        })
    }
}

impl<'m> Leaf<'m> {
    /// Returns the leaf at an offset, which has this capacity.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub(super) fn at<M: Medium>(m: &'m M, offset: u64, capacity: usize) -> Result<Self> {
        let entries = offset.wrapping_add(size_of::<Header>() as u64);
        m.at::<Header>(offset)
            .filter(|header| offset != 0 && m.load(&header.meta) == layout::meta(capacity))
            .and_then(|header| {
                let entries = m.slice(entries, capacity as u64)?;
                Some(Leaf { offset, header, entries })
            })
            .ok_or_else(|| Error::damaged(offset, "there is no such leaf of a tree"))
    }

    /// Returns the least key that belongs into the leaf.
    pub(super) fn low<M: Medium>(&self, m: &M) -> Brief {
        let [first, second] = &self.header.low;
        let rest = Rest(m.load(&self.header.low_rest));
        Brief { head: [m.load(first), m.load(second)], rest }
    }

    /// Returns the number of entries of a leaf that this thread has locked.
    ///
    /// # Errors
    /// `Damaged`.
    pub(super) fn count<M: Medium>(&self, m: &M) -> Result<usize> {
        self.within(m.load(&self.header.count) as usize)
    }

    /// Returns what lookups read of the leaf.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub(super) fn visible<M: Medium>(&self, m: &M) -> Result<Visible> {
        let visible = Visible(m.load(&self.header.visible));
        self.within(visible.count())?;
        Ok(visible)
    }

    fn within(&self, count: usize) -> Result<usize> {
        if count <= self.entries.len() {
            return Ok(count);
        }
        Err(Error::damaged(self.offset, "a leaf of a tree has too many entries"))
    }

    /// Returns `true` if what was read since `visible` was loaded is what the leaf had then, and if
    /// the leaf was in the tree.
    #[inline]
    pub(super) fn is_unchanged<M: Medium>(&self, m: &M, visible: Visible) -> bool {
        // Acquire: all words of the leaf have been loaded before.
        let now = Visible(m.load(&self.header.visible));
        !visible.is_changing()
            && now.version() == visible.version()
            && !Lock(m.load(&self.header.lock)).is_obsolete()
    }

    /// Returns the key of an entry.
    fn key_of<M: Medium>(&self, m: &M, at: usize) -> Brief {
        let entry = &self.entries[at];
        let [first, second] = &entry.key;
        let rest = State(m.load(&entry.state)).rest();
        Brief { head: [m.load(first), m.load(second)], rest }
    }

    /// Returns the last of the first `count` entries that has the key of a search. O(count): looks
    /// at one entry after the other, the newest first.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub(super) fn newest<M: Medium>(
        &self,
        m: &M,
        count: usize,
        search: &Search<'_>,
    ) -> Result<Option<Found>> {
        for (at, entry) in self.entries[..count].iter().enumerate().rev() {
            let [first, second] = &entry.key;
            if m.load(first) != search.head[0] || m.load(second) != search.head[1] {
                continue;
            }
            let state = State(m.load(&entry.state));
            if search.is_rest(m, state.rest())? {
                return Ok(Some(Found { at, state, word: m.load(&entry.word) }));
            }
        }
        Ok(None)
    }

    /// Returns the last entry of each key among the first `count` entries, in the order of the
    /// keys. O(count log count).
    ///
    /// # Errors
    /// `Damaged`.
    pub(super) fn items<M: Medium>(&self, m: &'m M, count: usize) -> Result<Vec<Item<'m>>> {
        self.items_by(m, count, |one, other| other.cmp(one))
    }

    /// Returns the entry of each key that comes first in the order `by` of the numbers of entries.
    ///
    /// # Errors
    /// `Damaged`.
    pub(super) fn items_by<M: Medium>(
        &self,
        m: &'m M,
        count: usize,
        by: fn(&usize, &usize) -> Ordering,
    ) -> Result<Vec<Item<'m>>> {
        let item = |at| {
            let entry = &self.entries[at];
            let key = self.key_of(m, at);
            let block = key.rest.block().map(|block| LeafRef::at(m, block)).transpose()?;
            let is_live = State(m.load(&entry.state)).is_live();
            Ok(Item { key, block, is_live, word: m.load(&entry.word), at })
        };
        let is_void = |&at: &usize| m.load(&self.entries[at].state) == State::VOID.0;
        let numbers = (0..count).filter(|at| !is_void(at));
        let mut items: Vec<Item<'_>> = numbers.map(item).collect::<Result<_>>()?;
        items.sort_unstable_by(|one, other| {
            one.compare(m, other).then_with(|| by(&one.at, &other.at))
        });
        items.dedup_by(|later, kept| later.compare(m, kept).is_eq());
        Ok(items)
    }

    /// Stores an entry that does not exist yet. Does not flush it.
    pub(super) fn write<M: Medium>(&self, m: &M, at: usize, key: &Brief, bound: Option<u64>) {
        let entry = &self.entries[at];
        m.store(&entry.key[0], key.head[0]);
        m.store(&entry.key[1], key.head[1]);
        m.store(&entry.word, bound.unwrap_or_default());
        m.store(&entry.state, State::new(key.rest, bound.is_some()).0);
    }
}
