//! Leaves, and finding the one into which a key belongs.

use std::cmp::Ordering;
use std::ops::Bound;

use evermap_index::fingerprint;
use evermap_index::node_lock::{self, LastObsolete, Lock};
use evermap_pm::{Error, Medium, Result};

use super::inner::Inner;
use super::key::Stored;
use super::layout::{Entry, FINGERPRINT_WORDS, Header, LeafBlock, Line, Link};
use super::{Form, FpTree};
use crate::search::{Search, Target};

/// A leaf.
pub(super) struct Node<'m, F: Form> {
    pub(super) offset: u64,
    pub(super) leaf: &'m F::Leaf,
}

impl<F: Form> Clone for Node<'_, F> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<F: Form> Copy for Node<'_, F> {}

/// The numbers of the bits that are set.
#[derive(Clone, Copy)]
pub(super) struct Slots(pub(super) u64);

impl Iterator for Slots {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let slot = (self.0 != 0).then(|| self.0.trailing_zeros() as usize);
        self.0 &= self.0.wrapping_sub(1);
        slot
    }
}

impl<'m, F: Form> Node<'m, F> {
    #[inline]
    pub(super) fn header(&self) -> &'m Header {
        self.leaf.header()
    }

    #[inline]
    pub(super) fn line(&self) -> &'m Line {
        self.leaf.line()
    }

    #[inline]
    pub(super) fn entry(&self, slot: usize) -> &'m Entry {
        &self.leaf.entries()[slot]
    }

    /// Returns which entries are valid.
    #[inline]
    pub(super) fn bitmap<M: Medium>(&self, m: &M) -> u64 {
        m.load(&self.line().bitmap) & F::Leaf::FULL
    }

    /// Returns the reference to the next leaf.
    #[inline]
    pub(super) fn next<M: Medium>(&self, m: &M) -> Link {
        Link(m.load(&self.header().next))
    }

    /// Returns the valid entries with this fingerprint.
    #[inline]
    pub(super) fn candidates<M: Medium>(&self, m: &M, byte: u8) -> Slots {
        let (words, bitmap) = (&self.line().fingerprints, self.bitmap(m));
        let mut found = 0;
        for pair in 0..F::Leaf::SLOTS.div_ceil(16) {
            let word = |at: usize| if at < FINGERPRINT_WORDS { m.load(&words[at]) } else { 0 };
            let pair_words = [word(2 * pair), word(2 * pair + 1)];
            found |= u64::from(fingerprint::matches(pair_words, byte)) << (16 * pair);
        }
        Slots(found & bitmap)
    }

    /// Returns the least key that belongs into the leaf.
    ///
    /// # Errors
    /// `Damaged`.
    pub(super) fn low<'a, M: Medium>(&self, m: &'a M) -> Result<Stored<'a>> {
        Stored::read(m, &self.header().low)
    }

    /// Returns the key of an entry.
    ///
    /// # Errors
    /// `Damaged`.
    pub(super) fn key<'a, M: Medium>(&self, m: &'a M, slot: usize) -> Result<Stored<'a>> {
        Stored::read(m, &self.entry(slot).key)
    }
}

/// A leaf that this thread has locked.
pub(super) type Locked<'m, F> = node_lock::Locked<'m, Node<'m, F>>;

impl<M: Medium, F: Form> FpTree<M, F> {
    /// The number of bytes that a search reads first.
    const HEAD: u64 = (size_of::<Line>() + size_of::<Header>()) as u64;

    /// Returns the leaf at an offset. Recovers it if no thread has used it since the index was
    /// opened.
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`.
    #[inline]
    pub(super) fn node(&self, offset: u64) -> Result<Node<'_, F>> {
        let node = self.node_as_it_is(offset)?;
        if !Lock(self.medium().load(&node.header().lock)).is_of(self.memory.generation) {
            self.recover(&node)?;
        }
        Ok(node)
    }

    /// Returns the same without recovering it. Its least key can be read.
    #[inline]
    pub(super) fn node_as_it_is(&self, offset: u64) -> Result<Node<'_, F>> {
        let m = self.medium();
        let leaf = m.at::<F::Leaf>(offset).filter(|_| offset != 0);
        leaf.filter(|leaf| m.load(&leaf.header().magic) == F::Leaf::MAGIC)
            .map(|leaf| Node { offset, leaf })
            .ok_or_else(|| Error::damaged(offset, "there is no such leaf of a tree"))
    }

    /// Returns the lock word of a leaf as soon as it is not locked.
    #[inline]
    pub(super) fn version(&self, node: &Node<'_, F>) -> Result<Lock> {
        let lock = Lock(self.medium().load(&node.header().lock));
        if lock.is_free_of(self.memory.generation) {
            return Ok(lock);
        }
        node_lock::unlocked(&self.memory.region, &node.header().lock)
    }

    /// Returns the leaf from which a search goes on: what is searched for is there, or in one that
    /// it reaches from there.
    #[inline]
    fn start(&self, search: &Search<'_>) -> Result<Node<'_, F>> {
        let to = match search.target {
            Target::At => Bound::Included(search.key),
            Target::Before => Bound::Excluded(search.key),
            Target::Last => Bound::Unbounded,
        };
        let offset = match self.inner.floor(to)? {
            Some(offset) => offset,
            // Nothing is before the empty key.
            None => self.medium().load(&self.root_block()?.first),
        };
        self.medium().prefetch_bytes(offset, Self::HEAD);
        self.node(offset)
    }

    /// Returns the next leaf if what is searched for belongs there or beyond. The leaf is locked,
    /// or the caller sees afterwards whether it has changed.
    #[inline]
    pub(super) fn next_admits(
        &self,
        node: &Node<'_, F>,
        search: &Search<'_>,
    ) -> Result<Option<u64>> {
        if search.head[0] < self.medium().load(&node.header().next_prefix) {
            return Ok(None);
        }
        self.next_is_reached(node, search)
    }

    #[cold]
    fn next_is_reached(&self, node: &Node<'_, F>, search: &Search<'_>) -> Result<Option<u64>> {
        let m = self.medium();
        let Some(offset) = node.next(m).offset() else { return Ok(None) };
        let low = self.node_as_it_is(offset)?.low(m)?;
        Ok(search.target.admits(low.compare(m, search)).then_some(offset))
    }

    /// Follows a reference to the next leaf.
    pub(super) fn next_node(&self, node: &Node<'_, F>, offset: u64) -> Result<Node<'_, F>> {
        let next = self.node(offset)?;
        self.ensure_after(node, &next)?;
        Ok(next)
    }

    /// Returns an error unless `next` has a greater least key than `node`. Otherwise damaged
    /// references could lead a search round and round.
    pub(super) fn ensure_after(&self, node: &Node<'_, F>, next: &Node<'_, F>) -> Result<()> {
        let m = self.medium();
        match node.low(m)?.compare_stored(m, &next.low(m)?) {
            Ordering::Less => Ok(()),
            _ => {
                let what = "a leaf of a tree is not after the one before it";
                Err(Error::damaged(next.offset, what))
            }
        }
    }

    /// Reads the leaf into which what is searched for belongs, by `read`, which returns `None` if
    /// the leaf does not have it. Also returns the leaf, and its lock word when it was read.
    ///
    /// # Errors
    /// Those of `read`; `Damaged`, `Poisoned`.
    #[inline]
    pub(super) fn read_at<T>(
        &self,
        search: &Search<'_>,
        read: impl Fn(&Node<'_, F>) -> Result<Option<T>>,
    ) -> Result<(Option<T>, Node<'_, F>, Lock)> {
        let (m, mut obsolete) = (self.medium(), LastObsolete::default());
        let mut node = self.start(search)?;
        loop {
            let version = self.version(&node)?;
            if version.is_obsolete() {
                obsolete.meet(m, [&node.header().lock])?;
                node = self.start(search)?;
                continue;
            }
            let found = read(&node);
            // What is found is where it belongs.
            let right = match found {
                Ok(Some(_)) => Ok(None),
                _ => self.next_admits(&node, search),
            };
            // Acquire: all words of the leaf have been loaded before.
            if m.load(&node.header().lock) != version.0 {
                continue;
            }
            match right? {
                Some(offset) => node = self.next_node(&node, offset)?,
                None => return Ok((found?, node, version)),
            }
        }
    }

    /// Returns the leaf into which what is searched for belongs, and its lock word at that time.
    pub(super) fn reach(&self, search: &Search<'_>) -> Result<(Node<'_, F>, Lock)> {
        let (_, node, version) = self.read_at(search, |_| Ok(None::<()>))?;
        Ok((node, version))
    }

    /// Locks the leaf into which what is searched for belongs.
    pub(super) fn lock(&self, search: &Search<'_>) -> Result<Locked<'_, F>> {
        let (m, mut obsolete) = (self.medium(), LastObsolete::default());
        let mut node = self.start(search)?;
        loop {
            let cell = &node.header().lock;
            let Some(locked) = Locked::acquire(&self.memory.region, node, cell, false)? else {
                obsolete.meet(m, [cell])?;
                node = self.start(search)?;
                continue;
            };
            match self.next_admits(&node, search) {
                Ok(None) => return Ok(locked),
                Ok(Some(offset)) => {
                    locked.release(m);
                    node = self.next_node(&node, offset)?;
                }
                Err(error) => {
                    locked.release(m);
                    return Err(error);
                }
            }
        }
    }

    /// Returns the entry of a key in a leaf, and its word.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub(super) fn find_in(
        &self,
        node: &Node<'_, F>,
        search: &Search<'_>,
        fingerprint: u8,
    ) -> Result<Option<(usize, u64)>> {
        let m = self.medium();
        for slot in node.candidates(m, fingerprint) {
            let entry = node.entry(slot);
            if entry.key.is_of(m, search)? {
                return Ok(Some((slot, m.load(&entry.word))));
            }
        }
        Ok(None)
    }

    /// Returns the word that a key is bound to. The caller has a guard.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Result<Option<u64>> {
        let search = Search::at(key);
        let fingerprint = search.fingerprint(self.seed);
        let (found, ..) = self.read_at(&search, |node| self.find_in(node, &search, fingerprint))?;
        Ok(found.map(|(_, word)| word))
    }

    /// Returns how many keys of a leaf a lookup of `key` compares it with: those that are valid and
    /// have the same fingerprint, up to the right one.
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`.
    pub fn compared(&self, key: &[u8]) -> Result<usize> {
        let _guard = self.memory.pool.pin();
        let (m, search) = (self.medium(), Search::at(key));
        let fingerprint = search.fingerprint(self.seed);
        let compared = |node: &Node<'_, F>| {
            let mut compared = 0;
            for slot in node.candidates(m, fingerprint) {
                compared += 1;
                if node.entry(slot).key.is_of(m, &search)? {
                    return Ok(Some(compared));
                }
            }
            Ok(None)
        };
        let (found, node, _) = self.read_at(&search, compared)?;
        Ok(found.unwrap_or_else(|| node.candidates(m, fingerprint).count()))
    }
}
