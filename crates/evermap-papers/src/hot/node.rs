//! Nodes: searching in one, reading and writing it.

use std::ops::Range;

use evermap_index::node_lock::Lock;
use evermap_pm::{Error, Medium, PmU64, Result};

use super::bits::{Search, extract};
use super::contents::{Contents, Positions};
use super::layout::{BITS_MAX, Child, HEADER, INDEXES, Root, Shape};

/// A node, or the root block, which is treated as a node with one entry that no other entry has to
/// be told apart from.
#[derive(Clone, Copy)]
pub(super) struct Node<'m> {
    pub(super) offset: u64,
    pub(super) lock: &'m PmU64,
    /// One more than the height of the highest child. That of the root block is greater than that
    /// of any node.
    pub(super) height: u32,
    shape: Shape,
    /// The words of the node before the children. Empty in the root block.
    cells: &'m [PmU64],
    pub(super) children: &'m [PmU64],
}

impl<'m> Node<'m> {
    /// Returns the node at an offset, or `None` if there is none.
    #[inline(always)]
    pub(super) fn at<M: Medium>(m: &'m M, offset: u64) -> Option<Self> {
        let header: &[PmU64; HEADER] = m.at(offset).filter(|_| offset != 0)?;
        // Relaxed, as for all words that are immutable: the offset was loaded with acquire.
        let shape = Shape::from_word(m.load_relaxed(&header[1]))?;
        let all = m.slice(offset, shape.words() as u64)?;
        let (cells, children) = all.split_at(shape.children_at());
        Some(Node { offset, lock: &header[0], height: shape.height, shape, cells, children })
    }

    /// Returns the root block as a node.
    pub(super) fn root(offset: u64, root: &'m Root) -> Self {
        let shape = Shape { height: 0, entries: 1, parts: 0, width: 0, first: 0 };
        let children = std::slice::from_ref(&root.tree);
        Node { offset, lock: &root.lock, height: u32::MAX, shape, cells: &[], children }
    }

    pub(super) fn is_root(&self) -> bool {
        self.cells.is_empty()
    }

    /// Returns the size of the block in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.shape.bytes()
    }

    /// Returns the least bit that tells entries apart: that of the root of the node's trie. The
    /// root block has none.
    pub(super) fn first_bit<M: Medium>(&self, m: &M) -> Option<u32> {
        let mask = m.load_relaxed(self.cells.get(HEADER)?);
        Some(64 * self.shape.first as u32 + mask.leading_zeros())
    }

    /// Returns the index of the part's word of a key, and the mask of the bits in it.
    #[inline(always)]
    fn part<M: Medium>(&self, m: &M, at: usize) -> (usize, u64) {
        let mask = m.load_relaxed(&self.cells[HEADER + at]);
        let Some(later) = at.checked_sub(1) else { return (self.shape.first, mask) };
        let indexes = m.load_relaxed(&self.cells[self.shape.indexes_at() + later / INDEXES]);
        (usize::from((indexes >> (16 * (later % INDEXES))) as u16), mask)
    }

    /// Returns the position of the entry to which the bits of `search` lead.
    ///
    /// A partial key has the bits that are set in its entry and are on the way to it. The entry
    /// whose way the search takes has no other bits set than the search has there. Where an entry
    /// behind it branches off, that has a bit set which the search has not. So it is the last one
    /// whose bits are all set in the search.
    #[inline(always)]
    pub(super) fn search<M: Medium>(&self, m: &M, search: &Search<'_>) -> usize {
        if self.is_root() {
            return 0;
        }
        let (word, mask) = self.part(m, 0);
        let mut bits = extract(search.word(word), mask);
        for at in 1..self.shape.parts {
            let (word, mask) = self.part(m, at);
            // If the masks are damaged there may be more bits than fit.
            bits = bits.wrapping_shl(mask.count_ones()) | extract(search.word(word), mask);
        }
        let keys = &self.cells[self.shape.keys_at()..];
        let found = match self.shape.width {
            0 => last_subset_of_bytes(m, keys, bits),
            1 => last_subset::<16, M>(m, keys, bits),
            _ => last_subset::<32, M>(m, keys, bits),
        };
        // The last key is repeated up to the end of its word.
        found.min(self.children.len() - 1)
    }

    /// Returns the partial key of an entry.
    pub(super) fn partial_key<M: Medium>(&self, m: &M, at: usize) -> u32 {
        let (width, at_bit) = (self.shape.key_bits(), at * self.shape.key_bits());
        let word = m.load_relaxed(&self.cells[self.shape.keys_at() + at_bit / 64]);
        (word >> (at_bit % 64) & (u64::MAX >> (64 - width))) as u32
    }

    /// Returns the entries that differ from the one at `at` behind `bit` only: those below the
    /// place at which a node of the trie for this bit is to be put, on the way to that entry.
    pub(super) fn below<M: Medium>(&self, m: &M, at: usize, bit: u32) -> Range<usize> {
        if self.is_root() {
            return 0..1;
        }
        // A mask of the bits of partial keys before `bit`. On the way to the entries that are
        // sought these are the same bits, and all others are before a node that leads somewhere
        // else.
        let mut before = 0u32;
        for part in 0..self.shape.parts {
            let (word, mask) = self.part(m, part);
            let behind = (bit + 1).saturating_sub(64 * word as u32);
            let earlier = mask & !u64::MAX.checked_shr(behind).unwrap_or(0);
            before = before.wrapping_shl(mask.count_ones()) | (extract(earlier, mask) as u32);
        }
        let same =
            |other: usize| (self.partial_key(m, other) ^ self.partial_key(m, at)) & before == 0;
        let start = (0..at).rev().take_while(|&other| same(other)).last().unwrap_or(at);
        let last = (at..self.children.len()).take_while(|&other| same(other)).last();
        start..last.map_or(at, |last| last + 1)
    }

    /// Returns the bits that tell the entries apart.
    ///
    /// # Errors
    /// `Damaged`.
    pub(super) fn positions<M: Medium>(&self, m: &M) -> Result<Vec<u32>> {
        let mut list = Vec::with_capacity(BITS_MAX);
        for at in 0..self.shape.parts {
            let (word, mut mask) = self.part(m, at);
            while mask != 0 {
                list.push(64 * word as u32 + mask.leading_zeros());
                mask &= !(1 << mask.ilog2());
            }
        }
        let is_sound = list.is_sorted_by(|one, other| one < other)
            && Shape::width_of(list.len()) == self.shape.width
            && (1..=BITS_MAX).contains(&list.len());
        if is_sound { Ok(list) } else { Err(self.damaged()) }
    }

    /// Returns the contents of the node. Its children are those of one moment only if the node is
    /// locked.
    ///
    /// # Errors
    /// `Damaged`.
    pub(super) fn contents<M: Medium>(&self, m: &M) -> Result<Contents> {
        let child = |at: usize| Child(m.load(&self.children[at])).unmarked();
        let mut contents = Contents::of(child(0));
        if self.is_root() {
            return Ok(contents);
        }
        let positions = self.positions(m)?;
        let mut before = self.partial_key(m, 0);
        for at in 1..self.children.len() {
            let key = self.partial_key(m, at);
            // The highest bit that is set in this entry and not in the one before.
            let bit = (key & !before).checked_ilog2();
            let place = bit.and_then(|bit| positions.len().checked_sub(1 + bit as usize));
            contents.push(positions[place.ok_or_else(|| self.damaged())?], child(at));
            before = key;
        }
        Ok(contents)
    }

    pub(super) fn damaged(&self) -> Error {
        Error::damaged(self.offset, "the entries of a node of a tree are damaged")
    }
}

/// Returns the last position at which `keys`, of `BITS` bits each, has no other bits set than
/// `bits`. There is one: the key at 0 has no bits, unless it is damaged.
#[inline(always)]
fn last_subset<const BITS: u32, M: Medium>(m: &M, keys: &[PmU64], bits: u64) -> usize {
    let lanes = (64 / BITS) as usize;
    // A word with the lowest bit of each key, and one with the highest.
    let low = u64::MAX / (u64::MAX >> (64 - BITS));
    let high = low << (BITS - 1);
    let wanted = (bits & (u64::MAX >> (64 - BITS))).wrapping_mul(low);
    let mut found = 0;
    // All words, because which one is the last cannot be predicted.
    for (at, cell) in keys.iter().enumerate() {
        let others = m.load_relaxed(cell) & !wanted;
        // The highest bit of each key that has no others.
        let none = !((others & !high).wrapping_add(!high) | others) & high;
        let here = at * lanes + ((none | 1).ilog2() / BITS) as usize;
        found = if none != 0 { here } else { found };
    }
    found
}

/// Returns the same for keys of eight bits, in fewer instructions where there are some for it.
#[inline]
fn last_subset_of_bytes<M: Medium>(m: &M, keys: &[PmU64], bits: u64) -> usize {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    {
        use super::layout::ENTRIES_MAX;
        // Bit n is set if the key at n has no others.
        let mut subsets = 0;
        for (at, pair) in keys.chunks(2).enumerate().take(ENTRIES_MAX / 16) {
            // A word that is missing has all bits: no key there is a subset unless all are wanted.
            let load = |at: usize| pair.get(at).map_or(u64::MAX, |cell| m.load_relaxed(cell));
            // SAFETY: every processor that this is compiled for has the instructions.
            subsets |= unsafe { subsets_of(load(0), load(1), bits as u8) } << (16 * at);
        }
        (subsets | 1).ilog2() as usize
    }
    #[cfg(not(all(target_arch = "x86_64", target_feature = "sse2")))]
    last_subset::<8, M>(m, keys, bits)
}

/// Returns which bytes of two words have no other bits set than `bits`: one bit for each, from the
/// lowest on.
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
#[target_feature(enable = "sse2")]
#[inline]
fn subsets_of(first: u64, second: u64, bits: u8) -> u32 {
    use std::arch::x86_64::{
        _mm_andnot_si128, _mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8,
        _mm_setzero_si128,
    };
    let others =
        _mm_andnot_si128(_mm_set1_epi8(bits as i8), _mm_set_epi64x(second as i64, first as i64));
    _mm_movemask_epi8(_mm_cmpeq_epi8(others, _mm_setzero_si128())) as u32
}

/// What a node is to be, and where.
pub(super) struct Plan {
    pub(super) block: u64,
    pub(super) contents: Contents,
    positions: Positions,
    shape: Shape,
}

impl Plan {
    /// Plans a node of this height with two to [`ENTRIES_MAX`](super::layout::ENTRIES_MAX) entries.
    /// `allocate` returns a block of the number of bytes that it is passed.
    ///
    /// # Errors
    /// That of `allocate`.
    pub(super) fn new(
        contents: Contents,
        height: u32,
        allocate: impl FnOnce(u64) -> Result<u64>,
    ) -> Result<Self> {
        let positions = contents.positions();
        let mut parts = positions.parts();
        let first = parts.next().map_or(0, |(word, _)| word);
        let shape = Shape {
            height,
            entries: contents.len(),
            parts: 1 + parts.count(),
            width: Shape::width_of(positions.as_slice().len()),
            first,
        };
        Ok(Plan { block: allocate(shape.bytes())?, contents, positions, shape })
    }

    pub(super) fn height(&self) -> u32 {
        self.shape.height
    }

    /// Writes the node, where nobody can find it yet. Returns its words, which are not flushed.
    ///
    /// # Panics
    /// If the block is not inside the medium.
    pub(super) fn write<'m, M: Medium>(&self, m: &'m M, generation: u64) -> &'m [PmU64] {
        let shape = self.shape;
        let cells: &[PmU64] = m.slice(self.block, shape.words() as u64).expect("just allocated");
        m.store(&cells[0], Lock::fresh(generation).0);
        m.store(&cells[1], shape.word());
        for (cell, (_, mask)) in cells[HEADER..].iter().zip(self.positions.parts()) {
            m.store(cell, mask);
        }
        let indexes = self.positions.parts().skip(1).map(|(index, _)| index as u64);
        pack(m, &cells[shape.indexes_at()..shape.keys_at()], 16, indexes);
        let keys = self.contents.partial_keys(&self.positions).map(u64::from);
        pack(m, &cells[shape.keys_at()..shape.children_at()], shape.key_bits(), keys);
        for (cell, child) in cells[shape.children_at()..].iter().zip(self.contents.children()) {
            m.store(cell, child.0);
        }
        cells
    }
}

/// Stores values of `width` bits side by side. The last one is repeated up to the end.
fn pack<M: Medium>(m: &M, cells: &[PmU64], width: usize, values: impl Iterator<Item = u64>) {
    let (mut values, mut last) = (values, 0);
    for cell in cells {
        let mut word = 0;
        for shift in (0..64).step_by(width) {
            last = values.next().unwrap_or(last);
            word |= last << shift;
        }
        m.store(cell, word);
    }
}

#[cfg(test)]
mod tests {
    use evermap_pm::sim::Sim;
    use evermap_pm::sim::rng::Rng;

    use super::super::contents::tests::{below, draw_numbers, of_numbers, walk};
    use super::*;

    fn medium() -> Sim {
        let sim = Sim::in_memory(4096).unwrap();
        sim.grow(4096).unwrap();
        sim
    }

    /// Writes a node at the end of the medium.
    fn write<'m>(sim: &'m Sim, contents: &Contents) -> Node<'m> {
        let mut block = 0;
        let plan = Plan::new(contents.clone(), 3, |bytes| {
            block = 4096 - bytes;
            Ok(block)
        });
        let mut plan = plan.unwrap();
        plan.block = 4096 - 8 * plan.shape.words() as u64;
        plan.write(sim, 7);
        let node = Node::at(sim, plan.block).unwrap();
        assert!(node.bytes() == 4096 - block && node.height == 3);
        assert!(Lock(sim.load(node.lock)).is_of(7));
        node
    }

    /// The published code reads whole vectors, also where a short node has no more partial keys.
    /// Here nothing is read behind the end of a node, where this medium ends.
    #[test]
    fn a_node_is_what_was_written() {
        let (sim, random) = (medium(), &mut Rng::new(3));
        for _ in 0..3_000 {
            let numbers = draw_numbers(random, 32);
            if numbers.len() < 2 {
                continue;
            }
            let contents = of_numbers(&numbers);
            let node = write(&sim, &contents);
            assert_eq!(node.contents(&sim).unwrap(), contents);
            assert_eq!(node.first_bit(&sim), contents.bits().iter().min().copied());
            for number in numbers.iter().copied().chain((0..5).map(|_| random.draw())) {
                let (key, at) = (number.to_be_bytes(), walk(&contents, number));
                assert_eq!(node.search(&sim, &Search::new(&key)), at);
                if number != numbers[at] {
                    let bit = (number ^ numbers[at]).leading_zeros();
                    assert_eq!(node.below(&sim, at, bit), below(&contents, at, bit));
                }
            }
        }
    }

    #[test]
    fn both_ways_of_searching_bytes_agree() {
        let (sim, random) = (medium(), &mut Rng::new(5));
        for words in 1..=4 {
            let keys: &[PmU64] = sim.slice(0, words).unwrap();
            for _ in 0..2_000 {
                keys.iter().for_each(|cell| sim.store(cell, random.draw() & random.draw()));
                let bits = random.draw() | random.draw();
                let found = last_subset::<8, _>(&sim, keys, bits);
                let most = 8 * words as usize - 1;
                assert_eq!(last_subset_of_bytes(&sim, keys, bits).min(most), found);
            }
        }
    }

    /// The bits are in many words of the keys.
    #[test]
    fn a_node_has_up_to_31_masks() {
        let sim = medium();
        for masks in 1..=31u32 {
            let mut contents = Contents::of(Child::leaf(16));
            for at in (0..masks).rev() {
                contents.push(at * 640 + at, Child::leaf(1600 + u64::from(at) * 16));
            }
            let node = write(&sim, &contents);
            assert_eq!(node.contents(&sim).unwrap(), contents);
            for at in 0..masks {
                let mut key = vec![0; 80 * masks as usize];
                let bit = (at * 640 + at) as usize;
                key[bit / 8] |= 0x80 >> (bit % 8);
                // The first key with this bit is the entry after the boundary.
                assert_eq!(node.search(&sim, &Search::new(&key)), (masks - at) as usize);
            }
            assert_eq!(node.search(&sim, &Search::new(b"")), 0);
        }
    }

    #[test]
    fn damage_is_noticed() {
        let sim = medium();
        let numbers: Vec<u64> = (0..20).map(|number| number * 77).collect();
        let node = write(&sim, &of_numbers(&numbers));
        let before: Vec<u64> = node.cells.iter().map(|cell| sim.load(cell)).collect();
        for (at, cell) in node.cells.iter().enumerate().skip(HEADER) {
            for wrong in [0, u64::MAX, 1] {
                sim.store(cell, wrong);
                assert!(node.contents(&sim).is_err(), "word {at} set to {wrong}");
                numbers.iter().for_each(|number| {
                    assert!(node.search(&sim, &Search::new(&number.to_be_bytes())) < 20);
                });
                sim.store(cell, before[at]);
            }
        }
        assert!(node.contents(&sim).is_ok());
    }
}
