//! Nodes: finding, adding and removing children.

use std::ops::Range;

use evermap_pm::{Medium, PmU64};

use super::layout::{Child, Header, Kind, Meta, Node4, Node16, Node48, Node256, Prefix};
use crate::node_lock::Lock;
use crate::ordered::Direction;

/// A node of any kind.
#[derive(Clone, Copy)]
pub(super) struct Node<'m> {
    pub(super) header: &'m Header,
    pub(super) kind: Kind,
    pub(super) level: usize,
    /// The symbols of a [`Node16`], the positions of a [`Node48`]: not needed to recover the node.
    hints: &'m [PmU64],
    pub(super) children: &'m [PmU64],
}

/// The place of a symbol in the order of keys: a key that ends comes first.
#[inline(always)]
pub(super) fn rank(symbol: Option<u8>) -> u16 {
    symbol.map_or(0, |symbol| u16::from(symbol) + 1)
}

/// The symbol with this [`rank`].
fn symbol_at(rank: u16) -> Option<u8> {
    rank.checked_sub(1).map(|symbol| symbol as u8)
}

/// One more than the greatest [`rank`].
pub(super) const RANKS: u16 = 257;

/// The number of children of a [`Node256`] that are gathered together.
const GATHERED: usize = 16;

impl<'m> Node<'m> {
    /// Returns the node at this offset, or `None` if there is none of this kind.
    #[inline(always)]
    pub(super) fn at<M: Medium>(m: &'m M, offset: u64, kind: Kind) -> Option<Self> {
        let node = Self::laid_over(m, offset, kind)?;
        let meta = Meta(m.load_relaxed(&node.header.meta));
        meta.is_of(kind).then_some(Node { level: meta.level(), ..node })
    }

    /// Returns the node of this kind at this offset, whatever is there.
    #[inline(always)]
    fn laid_over<M: Medium>(m: &'m M, offset: u64, kind: Kind) -> Option<Self> {
        let (header, hints, children): (_, &[PmU64], &[PmU64]) = match kind {
            Kind::N4 => {
                let node = m.at::<Node4>(offset)?;
                (&node.header, &[], &node.children)
            }
            Kind::N16 => {
                let node = m.at::<Node16>(offset)?;
                (&node.header, &node.symbols, &node.children)
            }
            Kind::N48 => {
                let node = m.at::<Node48>(offset)?;
                (&node.header, &node.positions, &node.children)
            }
            Kind::N256 => {
                let node = m.at::<Node256>(offset)?;
                (&node.header, &[], &node.children)
            }
        };
        Some(Node { header, kind, level: 0, hints, children })
    }

    /// Writes a node to a new block at `offset`, where nobody can find it yet, and flushes it.
    /// `key` begins as all keys below the node do. The children need not be in order, and are no
    /// more than there is room for.
    ///
    /// # Panics
    /// If the block is not inside the medium.
    pub(super) fn write<M: Medium>(
        m: &'m M,
        offset: u64,
        (kind, level): (Kind, usize),
        key: &[u8],
        generation: u64,
        children: impl Iterator<Item = (Option<u8>, Child)>,
    ) {
        let node = Self::laid_over(m, offset, kind).expect("just allocated");
        node.clear_hints(m);
        node.children.iter().for_each(|cell| m.store(cell, 0));
        let header = node.header;
        m.store(&header.lock, Lock::fresh(generation).0);
        m.store(&header.meta, Meta::new(kind, level).0);
        m.store(&header.prefix, Prefix::of(key, level).0);
        m.store(&header.end, 0);
        let mut free = 0;
        for (symbol, child) in children {
            let cell = match symbol {
                None => &header.end,
                Some(symbol) if kind == Kind::N256 => &node.children[usize::from(symbol)],
                Some(symbol) => {
                    node.hint(m, free, symbol);
                    free += 1;
                    &node.children[free - 1]
                }
            };
            m.store(cell, child.with(symbol).0);
        }
        if kind == Kind::N48 {
            // The hints between them need not be durable.
            m.flush(header);
            m.flush(node.children);
        } else {
            m.flush(m.slice::<PmU64>(offset, kind.bytes() / 8).expect("just allocated"));
        }
    }

    /// Returns the bytes that all keys below the node have in common.
    pub(super) fn prefix<M: Medium>(&self, m: &M) -> Prefix {
        Prefix(m.load_relaxed(&self.header.prefix))
    }

    /// Returns the cell of the child for a symbol, and its word, if there is one or there was one
    /// whose removal may not be durable.
    #[inline(always)]
    pub(super) fn find<M: Medium>(&self, m: &M, symbol: Option<u8>) -> Option<(&'m PmU64, Child)> {
        let Some(symbol) = symbol else {
            let word = Child(m.load(&self.header.end));
            return word.occupies().then_some((&self.header.end, word));
        };
        // Symbols and children are loaded one after the other, and may be of different moments: a
        // slot may have been freed and filled for another symbol. Then the word says so, and the
        // key was absent in the meantime.
        let holds = |position: usize| {
            let cell = self.children.get(position)?;
            let word = Child(m.load(cell));
            (word.symbol() == symbol && word.occupies()).then_some((cell, word))
        };
        match self.kind {
            Kind::N4 => (0..self.children.len()).find_map(holds),
            Kind::N16 => self.matching(m, symbol).find_map(holds),
            Kind::N48 => holds(self.position(m, symbol)?),
            Kind::N256 => holds(usize::from(symbol)),
        }
    }

    /// Returns the positions in a [`Node16`] that have this symbol, as far as its hints say.
    #[inline(always)]
    fn matching<M: Medium>(&self, m: &M, symbol: u8) -> impl Iterator<Item = usize> + use<M> {
        const LOW: u64 = 0x0101_0101_0101_0101;
        const HIGH: u64 = 0x8080_8080_8080_8080;
        let equal = |cell: &PmU64| {
            let differ = m.load_relaxed(cell) ^ (LOW * u64::from(symbol));
            // The highest bit of each byte that is zero. Exact, unlike the shorter form with one
            // subtraction.
            !((differ & !HIGH).wrapping_add(!HIGH) | differ) & HIGH
        };
        let mut found = [equal(&self.hints[0]), equal(&self.hints[1])];
        std::iter::from_fn(move || {
            let half = usize::from(found[0] == 0);
            let byte = found[half].trailing_zeros() / 8;
            found[half] &= found[half].wrapping_sub(1);
            (byte < 8).then_some(half * 8 + byte as usize)
        })
    }

    /// Returns the position of a symbol in a [`Node48`], as far as its hints say.
    #[inline(always)]
    fn position<M: Medium>(&self, m: &M, symbol: u8) -> Option<usize> {
        let word = m.load_relaxed(&self.hints[usize::from(symbol) / 8]);
        usize::from(word.to_le_bytes()[usize::from(symbol) % 8]).checked_sub(1)
    }

    /// Records the symbol of the child at `position`. The caller holds the lock, or nobody else
    /// can find the node.
    pub(super) fn hint<M: Medium>(&self, m: &M, position: usize, symbol: u8) {
        let (at, byte) = match self.kind {
            Kind::N4 | Kind::N256 => return,
            Kind::N16 => (position, symbol),
            Kind::N48 => (usize::from(symbol), position as u8 + 1),
        };
        let cell = &self.hints[at / 8];
        let mut bytes = m.load_relaxed(cell).to_le_bytes();
        bytes[at % 8] = byte;
        m.store_transient(cell, u64::from_le_bytes(bytes));
    }

    /// Removes what the hints say. The caller holds the lock.
    pub(super) fn clear_hints<M: Medium>(&self, m: &M) {
        self.hints.iter().for_each(|cell| m.store_transient(cell, 0));
    }

    /// Returns a free cell for the child of a symbol that has none, and records the symbol there.
    /// The caller holds the lock.
    pub(super) fn claim<M: Medium>(&self, m: &M, symbol: Option<u8>) -> Option<&'m PmU64> {
        let Some(symbol) = symbol else { return Some(&self.header.end) };
        if self.kind == Kind::N256 {
            return self.children.get(usize::from(symbol));
        }
        let free = |cell: &PmU64| !Child(m.load_relaxed(cell)).occupies();
        let position = self.children.iter().position(free)?;
        self.hint(m, position, symbol);
        Some(&self.children[position])
    }

    /// Returns the children in any order, with the symbols that lead to them.
    pub(super) fn all<'a, M: Medium>(
        &self,
        m: &'a M,
    ) -> impl Iterator<Item = (Option<u8>, Child)> + use<'a, 'm, M> {
        self.cells(m).map(|(symbol, _, child)| (symbol, child))
    }

    /// Returns the children as [`all`](Node::all), with the words that refer to them.
    pub(super) fn cells<'a, M: Medium>(
        &self,
        m: &'a M,
    ) -> impl Iterator<Item = (Option<u8>, &'m PmU64, Child)> + use<'a, 'm, M> {
        let end = &self.header.end;
        let rest = self.children.iter().map(move |cell| (cell, Child(m.load(cell))));
        let rest = rest.map(|(cell, child)| (Some(child.symbol()), cell, child));
        let all = std::iter::once((None, end, Child(m.load(end)))).chain(rest);
        all.filter(|(_, _, child)| !child.is_none())
    }

    /// Returns up to `most` children of a [`Node256`] from the rank `edge` on, as they are.
    pub(super) fn next_children<M: Medium>(
        &self,
        m: &M,
        edge: usize,
        most: usize,
    ) -> impl Iterator<Item = Child> {
        let first = edge.saturating_sub(1);
        let cells = (self.kind == Kind::N256).then(|| self.children.get(first..)).flatten();
        let children = cells.unwrap_or_default().iter().map(|cell| Child(m.load_relaxed(cell)));
        children.filter(|child| !child.is_none()).take(most)
    }

    /// Returns the number of children.
    pub(super) fn len<M: Medium>(&self, m: &M) -> usize {
        self.all(m).count()
    }

    /// Appends the children from the rank `edge` on in the given direction to `out`, the first of
    /// them last, with the words that refer to them: all of them, but of a [`Node256`] no more than
    /// [`GATHERED`]. Returns the edge behind them. In ascending order an edge is the least rank
    /// that is wanted, in descending order the last that is not. O(symbols of the node).
    pub(super) fn gather<M: Medium>(
        &self,
        m: &M,
        edge: u16,
        direction: Direction,
        out: &mut Vec<(&'m PmU64, Child)>,
    ) -> u16 {
        let start = out.len();
        let edge = match (self.kind, direction) {
            (Kind::N256, Direction::Ascending) => {
                let last = self.gather_some(m, edge..RANKS, out);
                last.map_or(RANKS, |rank| rank + 1)
            }
            (Kind::N256, Direction::Descending) => {
                let last = self.gather_some(m, (0..edge).rev(), out);
                last.unwrap_or(0)
            }
            (_, Direction::Ascending) => {
                self.gather_all(m, edge..RANKS, out);
                RANKS
            }
            (_, Direction::Descending) => {
                self.gather_all(m, 0..edge, out);
                return 0;
            }
        };
        out[start..].reverse();
        edge
    }

    /// Appends the children of a [`Node256`] that have these ranks, until there are [`GATHERED`].
    /// Returns the rank of the last one then.
    fn gather_some<M: Medium>(
        &self,
        m: &M,
        ranks: impl Iterator<Item = u16>,
        out: &mut Vec<(&'m PmU64, Child)>,
    ) -> Option<u16> {
        let full = out.len() + GATHERED;
        for rank in ranks {
            let found = self.find(m, symbol_at(rank));
            out.extend(found.filter(|(_, child)| !child.is_none()));
            if out.len() == full {
                return Some(rank);
            }
        }
        None
    }

    /// Appends the children of a node of another kind that have these ranks, in their order.
    fn gather_all<M: Medium>(&self, m: &M, ranks: Range<u16>, out: &mut Vec<(&'m PmU64, Child)>) {
        let end = Child(m.load(&self.header.end));
        if !end.is_none() && ranks.contains(&0) {
            out.push((&self.header.end, end));
        }
        // Sorting by a table takes no branch that depends on the order of the children.
        let (mut present, mut positions) = ([0u64; 4], [0u8; 256]);
        let mut children = [Child(0); 48];
        for (position, (cell, place)) in self.children.iter().zip(&mut children).enumerate() {
            let child = Child(m.load(cell));
            // The free places are mostly behind the others.
            if child.is_none() {
                continue;
            }
            *place = child;
            let symbol = child.symbol();
            let wanted = ranks.contains(&rank(Some(symbol)));
            present[usize::from(symbol) / 64] |= u64::from(wanted) << (symbol % 64);
            if wanted {
                positions[usize::from(symbol)] = position as u8;
            }
        }
        for (symbols, mut present) in (0..).step_by(64).zip(present) {
            while present != 0 {
                let symbol = symbols + present.trailing_zeros() as usize;
                present &= present - 1;
                let position = usize::from(positions[symbol]);
                out.push((&self.children[position], children[position]));
            }
        }
    }
}
