//! Nodes as one word of the mapping table describes them, and searching.

use std::cmp::Ordering;
use std::ops::Range;

use evermap_index::ordered::leaf::{LeafRef, prefix};
use evermap_index::recipe;
use evermap_pm::sync::Backoff;
use evermap_pm::{Error, Medium, PmU64, Result};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::copies::CopiesRef;
use super::layout::{Child, IDS, Intent, Link, Part, RECORD_HEADER, Record, TREE_MARK};
use super::node::{BaseRef, Entry, known_deltas};
use super::{BwTree, mistakes};

/// A search finds another node to be merged each time that it starts anew: more often than a few
/// times in a row only because of damage.
const RESTARTS_MAX: u32 = 200;

/// What to search for.
#[derive(Clone, Copy)]
pub(super) struct Search<'k> {
    key: &'k [u8],
    prefix: u64,
    target: Target,
    /// Whether to note where base nodes are, for later searches.
    notes: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    /// The node into which the key belongs.
    At,
    /// The node into which what is right before the key belongs.
    Before,
    /// The last node.
    Last,
}

impl<'k> Search<'k> {
    /// Returns a search for the node into which `key` belongs.
    #[inline(always)]
    pub(super) fn at(key: &'k [u8]) -> Self {
        Search { key, prefix: prefix(key), target: Target::At, notes: false }
    }

    /// Returns a search of a writer for the node into which `key` belongs.
    pub(super) fn to_change(key: &'k [u8]) -> Self {
        Search { notes: true, ..Self::at(key) }
    }

    /// Returns a search for the node with what is right before `key`.
    pub(super) fn before(key: &'k [u8]) -> Self {
        Search { target: Target::Before, ..Self::at(key) }
    }

    /// Returns a search for the last node.
    pub(super) fn last() -> Self {
        Search { target: Target::Last, ..Self::at(&[]) }
    }

    /// Returns `true` if a node whose least key compares to the key like this can have what is
    /// searched for.
    #[inline(always)]
    fn admits(&self, low: Ordering) -> bool {
        match self.target {
            Target::At => low != Ordering::Greater,
            Target::Before => low == Ordering::Less,
            Target::Last => true,
        }
    }
}

/// A node as it was when its word of the mapping table was loaded, which was durable then. What
/// belongs to it never changes, but for the words and the states of its records.
#[derive(Clone, Copy)]
pub(super) struct Node<'m> {
    pub(super) id: u64,
    /// Its place in the mapping table.
    pub(super) cell: &'m PmU64,
    /// The word that was found there, without its mark.
    pub(super) word: Link,
    pub(super) base: BaseRef<'m>,
    /// The offset of the intent, and the child that is to be merged into the one before it.
    pub(super) intent: Option<(u64, u64)>,
}

impl Node<'_> {
    /// Returns `true` if the node is being merged into its left neighbour.
    pub(super) fn is_frozen(&self) -> bool {
        self.word.is_frozen()
    }

    /// Returns the level.
    pub(super) fn level(&self) -> u8 {
        self.base.level
    }
}

/// What a lookup has found.
pub(super) enum Found<'m> {
    /// The key is absent.
    Nothing,
    /// The word that it is bound to.
    Copy(u64),
    /// Its record, which may be removed.
    Record(LeafRef<'m>),
}

/// Where a search ended.
pub(super) struct End<'m> {
    /// The node. It is frozen only if it was found from the level above, and got so since; then its
    /// keys were there at some moment during the search, but must not be changed there.
    pub(super) node: Node<'m>,
    /// The right neighbour of `node`, if the key belongs there and that is being merged into
    /// `node`. Its keys are changed by deltas of `node`.
    pub(super) frozen: Option<Node<'m>>,
    /// The level and the id of a node that was found from its left neighbour.
    pub(super) passed: Option<(u8, u64)>,
    /// The level and the id of a node one of whose children is to be merged.
    pub(super) unfinished: Option<(u8, u64)>,
}

impl<'m> End<'m> {
    /// Returns the node into whose range the key belongs.
    #[inline(always)]
    pub(super) fn target(&self) -> &Node<'m> {
        self.frozen.as_ref().unwrap_or(&self.node)
    }

    /// Returns the nodes whose deltas may have the key, those with the newest first.
    #[inline(always)]
    pub(super) fn parts(&self) -> impl Iterator<Item = &Node<'m>> {
        std::iter::once(&self.node).chain(&self.frozen)
    }
}

/// The records that are deltas of a node, the newest first.
pub(super) struct Inserts<'m, M: Medium, const ITEMS: usize> {
    tree: &'m BwTree<M, ITEMS>,
    base: BaseRef<'m>,
    link: Link,
}

impl<'m, M: Medium, const ITEMS: usize> Iterator for Inserts<'m, M, ITEMS> {
    type Item = Result<(u64, LeafRef<'m>)>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if self.link.part() != Part::Insert {
            return None;
        }
        let at = self.link.offset();
        let record = self.tree.before(self.link, &self.base).and_then(|next| {
            self.link = next;
            Ok((at, self.tree.record(at)?))
        });
        if record.is_err() {
            self.link = Link(0);
        }
        Some(record)
    }
}

impl<M: Medium, const ITEMS: usize> BwTree<M, ITEMS> {
    /// Returns the leaf of the record at an offset.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline(always)]
    pub(super) fn record(&self, at: u64) -> Result<LeafRef<'_>> {
        LeafRef::at(self.medium(), at.saturating_add(RECORD_HEADER))
    }

    /// Returns what a node was before its newest delta.
    #[inline(always)]
    pub(super) fn next_of(&self, link: Link) -> Result<Link> {
        let m = self.medium();
        let next = m.at::<PmU64>(link.offset()).map(|cell| Link(m.load(cell)));
        // Each has one delta less, so a walk ends.
        next.filter(|next| next.depth() + 1 == link.depth() && *next == next.plain())
            .ok_or_else(|| Error::damaged(link.offset(), "a delta of a tree follows nothing"))
    }

    /// Returns what a node was before its newest delta. Does not load that if the base node knows.
    #[inline(always)]
    fn before(&self, link: Link, base: &BaseRef<'_>) -> Result<Link> {
        let depth = link.depth().saturating_sub(1);
        if depth == 0 && !link.has_intent() {
            return Ok(Link::base(base.offset));
        }
        let known = depth.checked_sub(1).map(|n| base.record_of_delta(self.medium(), n as usize));
        match known {
            None | Some(0) => self.next_of(link),
            Some(record) => Ok(link.earlier(record, depth)),
        }
    }

    /// Returns the hash of a key.
    #[inline(always)]
    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, self.memory.pool.seed())
    }

    /// Returns a word that was loaded from `cell`, without its mark, once it is durable.
    #[inline(always)]
    pub(super) fn settled(&self, cell: &PmU64, word: u64, mark: u64) -> u64 {
        let m = self.medium();
        if m.mutant(mistakes::ACT_EARLY) && word & mark != 0 {
            let _ = m.cas_transient(cell, word, word & !mark);
            return word & !mark;
        }
        recipe::help(m, cell, word, mark)
    }

    /// Returns the word of a node in the mapping table, once it is durable.
    #[inline(always)]
    pub(super) fn word_in(&self, cell: &PmU64) -> Link {
        Link(self.settled(cell, self.medium().load(cell), Link::MARK))
    }

    /// Returns the node with an id.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline(always)]
    pub(super) fn node(&self, id: u64, level: Option<u8>) -> Result<Node<'_>> {
        let cell = self.cell(id)?;
        self.node_of(id, cell, self.word_in(cell), level)
    }

    /// Returns the node of a child. Its base node is read beside the word of the node and its
    /// newest part, which tell whether it is that one.
    #[inline(always)]
    fn node_of_child(&self, child: Child, level: u8) -> Result<Node<'_>> {
        let (m, id) = (self.medium(), child.id());
        if child.base() == 0 {
            return self.node(id, Some(level));
        }
        m.prefetch_bytes(child.base(), Self::PREFETCHED);
        let cell = self.cell(id)?;
        // Acquire: what the word leads to is read next, and so is the base node.
        let word = self.word_in(cell);
        let guess = BaseRef::find(m, child.base(), Some(level));
        self.node_with(id, cell, word, Some(level), guess)
    }

    /// Returns the node that a word of the mapping table describes.
    #[inline(always)]
    pub(super) fn node_of<'m>(
        &'m self,
        id: u64,
        cell: &'m PmU64,
        word: Link,
        level: Option<u8>,
    ) -> Result<Node<'m>> {
        self.node_with(id, cell, word, level, None)
    }

    /// Does the same, with a base node that it may have.
    #[inline(always)]
    fn node_with<'m>(
        &'m self,
        id: u64,
        cell: &'m PmU64,
        word: Link,
        level: Option<u8>,
        guess: Option<BaseRef<'m>>,
    ) -> Result<Node<'m>> {
        let m = self.medium();
        let damaged = || {
            let what = "there is no such node in the mapping table of a tree";
            Error::damaged(m.offset_of(cell), what)
        };
        if word.is_none() {
            return Err(damaged());
        }
        let offset = match word.part() {
            Part::Base if word.depth() == 0 => word.offset(),
            Part::Insert => {
                self.next_of(word)?;
                let record = m.at::<Record>(word.offset()).ok_or_else(damaged)?;
                m.load_relaxed(&record.base)
            }
            Part::Intent => self.next_of(word)?.offset(),
            _ => return Err(damaged()),
        };
        let base = match guess {
            Some(guess) if guess.offset == offset => guess,
            _ => BaseRef::at(m, offset, level)?,
        };
        let mut node = Node { id, cell, word, base, intent: None };
        if word.has_intent() {
            node.intent = Some(self.intent_of(&node)?);
        }
        Ok(node)
    }

    /// Returns the intent of a node that has one, and the child that is to be merged.
    #[cold]
    fn intent_of(&self, node: &Node<'_>) -> Result<(u64, u64)> {
        let m = self.medium();
        let mut link = node.word;
        while link.part() == Part::Insert {
            link = self.next_of(link)?;
        }
        let intent = m.at::<Intent>(link.offset()).filter(|_| link.part() == Part::Intent);
        let found = intent.map(|intent| (link.offset(), m.load_relaxed(&intent.child)));
        found.ok_or_else(|| Error::damaged(link.offset(), "a node of a tree has no intent"))
    }

    /// Returns the root node.
    #[inline(always)]
    pub(super) fn root_node(&self) -> Result<Node<'_>> {
        let cell = &self.root_block()?.tree;
        self.node(self.settled(cell, self.medium().load(cell), TREE_MARK), None)
    }

    /// Returns the records that are deltas of a node, the newest first.
    #[inline(always)]
    pub(super) fn inserts<'m>(&'m self, node: &Node<'m>) -> Inserts<'m, M, ITEMS> {
        Inserts { tree: self, base: node.base, link: node.word }
    }

    /// Returns the key of an entry.
    pub(super) fn key_of(&self, entry: &Entry) -> Result<Vec<u8>> {
        match entry.at {
            0 => Ok(Vec::new()),
            at => Ok(self.record(at)?.key(self.medium())),
        }
    }

    /// Compares the key of an entry with another one.
    #[inline(always)]
    pub(super) fn compare(&self, entry: &Entry, key: &[u8]) -> Result<Ordering> {
        Ok(match entry.at {
            0 => [].as_slice().cmp(key),
            at => self.record(at)?.compare(self.medium(), key),
        })
    }

    /// Returns `true` if what is searched for is in a node after this one.
    #[inline(always)]
    fn is_beyond(&self, node: &Node<'_>, search: &Search<'_>) -> bool {
        let m = self.medium();
        if node.base.sibling == 0 {
            return false;
        }
        search.admits(node.base.compare_high(m, search.key, search.prefix))
    }

    /// Returns the right neighbour of a node. It begins where that ends; otherwise damaged
    /// references could lead a search round and round.
    pub(super) fn next_node(&self, node: &Node<'_>) -> Result<Node<'_>> {
        let next = self.node(node.base.sibling, Some(node.level()))?;
        if next.base.follows(self.medium(), &node.base) {
            return Ok(next);
        }
        let what = "a node of a tree is not where the one before it ends";
        Err(Error::damaged(next.base.offset, what))
    }

    /// Returns the right neighbour of a node, if that is being merged into it.
    pub(super) fn frozen_sibling(&self, node: &Node<'_>) -> Result<Option<Node<'_>>> {
        let sibling = node.base.sibling;
        if sibling == 0 || !self.word_in(self.cell(sibling)?).is_frozen() {
            return Ok(None);
        }
        self.next_node(node).map(Some)
    }

    /// Searches from the root down to a level.
    #[inline(always)]
    pub(super) fn descend(&self, search: &Search<'_>, level: u8) -> Result<End<'_>> {
        let root = self.root_node()?;
        let (mut end, depth) =
            (End { node: root, frozen: None, passed: None, unfinished: None }, root.level());
        if depth < level {
            return Err(Error::damaged(root.base.offset, "a tree is too low"));
        }
        loop {
            self.go_right(&mut end, search)?;
            let here = end.node.level();
            if here <= level {
                return Ok(end);
            }
            if end.node.intent.is_some() {
                end.unfinished = Some((here, end.node.id));
            }
            let (child, position) = self.child(&end, search)?;
            let node = self.node_of_child(child, here - 1)?;
            let found = Child::new(node.id, node.base.offset);
            if let Some(position) = position.filter(|_| search.notes && found != child) {
                end.target().base.note_child(self.medium(), position, found);
            }
            (end.node, end.frozen) = (node, None);
        }
    }

    /// Goes on to the node of the level that has what is searched for.
    #[inline(always)]
    fn go_right<'m>(&'m self, end: &mut End<'m>, search: &Search<'_>) -> Result<()> {
        while self.is_beyond(end.target(), search) {
            let next = self.next_node(end.target())?;
            if next.is_frozen() && end.frozen.is_none() {
                end.frozen = Some(next);
            } else {
                end.passed = Some((next.level(), next.id));
                (end.node, end.frozen) = (next, None);
            }
        }
        Ok(())
    }

    /// Searches like [`descend`](Self::descend), for a node that can be changed.
    #[inline(always)]
    pub(super) fn arrive(&self, search: &Search<'_>, level: u8) -> Result<End<'_>> {
        let mut restarts = 0;
        loop {
            let end = self.descend(search, level)?;
            if !end.node.is_frozen() || self.medium().mutant(mistakes::CHANGE_FROZEN) {
                return Ok(end);
            }
            self.restart(&end.node, &mut restarts)?;
        }
    }

    /// Waits before a search starts anew because this node is being merged. The intent was stored
    /// before that began, so the search will come from the left neighbour.
    #[cold]
    fn restart(&self, node: &Node<'_>, restarts: &mut u32) -> Result<()> {
        self.memory.region.ensure_sound()?;
        Backoff::new().wait();
        *restarts += 1;
        if *restarts > RESTARTS_MAX {
            let what = "a node of a tree is being merged into no other";
            return Err(Error::damaged(self.medium().offset_of(node.cell), what));
        }
        Ok(())
    }

    /// Returns the newest record of a key in the leaf node where the search for it ended.
    #[inline]
    pub(super) fn find<'m>(&'m self, end: &End<'m>, key: &[u8]) -> Result<Option<LeafRef<'m>>> {
        match self.find_with(end, key, None)? {
            Found::Record(leaf) => Ok(Some(leaf)),
            Found::Nothing | Found::Copy(_) => Ok(None),
        }
    }

    /// Returns the same, or the word of the key if the node has a copy of that.
    #[inline]
    pub(super) fn find_to_read<'m>(&'m self, end: &End<'m>, key: &[u8]) -> Result<Found<'m>> {
        // A writer that finds a node frozen leaves its copies as they are.
        let is_usable = end.frozen.is_none() && !end.node.is_frozen();
        let copies = if is_usable { self.copies_of(&end.node.base) } else { None };
        self.find_with(end, key, copies)
    }

    #[inline(always)]
    fn find_with<'m>(
        &'m self,
        end: &End<'m>,
        key: &[u8],
        copies: Option<CopiesRef<'m>>,
    ) -> Result<Found<'m>> {
        let m = self.medium();
        for node in end.parts().filter(|node| node.word.depth() > 0) {
            if let Some(leaf) = self.find_delta(node, key)? {
                return Ok(Found::Record(leaf));
            }
        }
        let base = &end.target().base;
        // Few keys of a node have the same head.
        for position in base.with_head(m, base.head(key, 0)) {
            match copies.and_then(|copies| copies.get(m, position)) {
                Some((copied, word)) if key == copied.to_be_bytes() => {
                    return Ok(Found::Copy(word));
                }
                Some(_) => {}
                None => {
                    let leaf = self.record(base.entry(m, position).at)?;
                    if leaf.is_of(m, key) {
                        return Ok(Found::Record(leaf));
                    }
                }
            }
        }
        Ok(Found::Nothing)
    }

    /// Returns the newest record of a key among the deltas of a leaf node.
    #[inline(always)]
    fn find_delta<'m>(&'m self, node: &Node<'m>, key: &[u8]) -> Result<Option<LeafRef<'m>>> {
        let (m, hash) = (self.medium(), self.hash(key));
        let depth = node.word.depth() as usize;
        if depth > known_deltas(0) {
            return self.walk_to_delta(node, key);
        }
        for number in (0..depth).rev() {
            let delta = node.base.delta(m, number);
            if delta.record() == 0 {
                return self.walk_to_delta(node, key);
            }
            if delta.may_be_of(hash) {
                let leaf = self.record(delta.record())?;
                if leaf.is_of(m, key) {
                    return Ok(Some(leaf));
                }
            }
        }
        Ok(None)
    }

    /// Does the same where the base node does not know all of them.
    #[cold]
    fn walk_to_delta<'m>(&'m self, node: &Node<'m>, key: &[u8]) -> Result<Option<LeafRef<'m>>> {
        for insert in self.inserts(node) {
            let (_, leaf) = insert?;
            if leaf.is_of(self.medium(), key) {
                return Ok(Some(leaf));
            }
        }
        Ok(None)
    }

    /// Returns the number of entries that a search admits: they are the first ones.
    #[inline(always)]
    fn count_before(&self, base: &BaseRef<'_>, search: &Search<'_>) -> Result<usize> {
        let m = self.medium();
        if search.target == Target::Last {
            return Ok(base.len());
        }
        let Range { start: mut low, end: mut high } =
            base.with_head(m, base.head(search.key, search.prefix));
        while low < high {
            let middle = low.midpoint(high);
            let order = self.compare(&base.entry(m, middle), search.key)?;
            if search.admits(order) { low = middle + 1 } else { high = middle }
        }
        Ok(low)
    }

    /// Returns the child that has what is searched for, of a node where the search ended, and the
    /// position of its entry if that is in the base node.
    #[inline(always)]
    pub(super) fn child(
        &self,
        end: &End<'_>,
        search: &Search<'_>,
    ) -> Result<(Child, Option<usize>)> {
        let m = self.medium();
        let base = &end.target().base;
        // The first child has everything before the second one.
        let mut position = self.count_before(base, search)?.saturating_sub(1);
        if base.len() == 0 {
            return Err(Error::damaged(base.offset, "a node of a tree has no children"));
        }
        let merged = |entry: Entry| end.node.intent.is_some_and(|(_, child)| entry.child == child);
        if end.frozen.is_none() && position > 0 && merged(base.entry(m, position)) {
            position -= 1;
        }
        let entry = base.entry(m, position);
        let mut best = None;
        for node in end.parts().filter(|node| node.word.depth() > 0) {
            self.find_separator(node, search, &mut best)?;
        }
        let known = (Child::new(entry.child, entry.base), Some(position));
        let Some((nearest, at)) = best else { return Ok(known) };
        let best = self.record(at)?;
        let is_nearer = match entry.head.cmp(&nearest) {
            Ordering::Equal if entry.at != 0 => {
                self.record(entry.at)?.compare_leaf(m, &best).is_le()
            }
            order => order.is_le(),
        };
        if !is_nearer {
            return Ok(known);
        }
        let id = best.word(m);
        if id >= IDS {
            return Err(Error::damaged(best.offset, "there is no such id in a tree"));
        }
        Ok((Child::new(id, 0), None))
    }

    /// Finds the last key that a search admits among the deltas of a node that is not a leaf node:
    /// its prefix and its record. `best` has that of another node, if there is one.
    fn find_separator(
        &self,
        node: &Node<'_>,
        search: &Search<'_>,
        best: &mut Option<(u64, u64)>,
    ) -> Result<()> {
        let m = self.medium();
        let mut link = node.word;
        while link.part() == Part::Insert {
            // At least one, if nothing is damaged.
            let (number, at) = (link.depth().saturating_sub(1) as usize, link.offset());
            let known = number < known_deltas(1);
            let noted = if known { node.base.separator(m, number) } else { (0, 0) };
            let prefix = if noted.0 == at { noted.1 } else { self.record(at)?.prefix(m) };
            link = self.before(link, &node.base)?;
            let order = match prefix.cmp(&search.prefix) {
                Ordering::Equal => self.record(at)?.compare(m, search.key),
                order => order,
            };
            if !search.admits(order) {
                continue;
            }
            let is_better = match *best {
                None => true,
                Some((other, _)) if other != prefix => other < prefix,
                Some((_, other)) => self.record(at)?.compare_leaf(m, &self.record(other)?).is_gt(),
            };
            if is_better {
                *best = Some((prefix, at));
            }
        }
        Ok(())
    }
}
