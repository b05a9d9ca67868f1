//! The contents of a node while they are being changed, in ordinary memory.
//!
//! The entries of a node are the leaves of a binary trie. What a trie needs to have is the first
//! bit at which each entry differs from the one after it. The least of these bits is that of the
//! trie's root, and those to the left and to the right of it are those of the root's children, and
//! so on:
//!
//! ```text
//! entries    a     b     c     d     e                  2
//! bits          7     2     4     5                  ┌──┴──┐
//!                                                    7     4
//!                                                   a b   c  5
//!                                                           d e
//! ```
//!
//! So inserting, removing and splitting are changes of two short lists.

use std::ops::Range;

use super::layout::{BITS_MAX, Child, ENTRIES_MAX};

/// The entries of a node, and up to one more.
#[derive(Clone, Debug)]
pub(super) struct Contents {
    len: usize,
    children: [Child; ENTRIES_MAX + 1],
    /// The first bit at which each entry differs from the next one.
    bits: [u32; BITS_MAX + 1],
}

impl Contents {
    /// Returns the contents with one entry.
    pub(super) fn of(child: Child) -> Self {
        let mut contents =
            Contents { len: 1, children: [Child::NONE; ENTRIES_MAX + 1], bits: [0; BITS_MAX + 1] };
        contents.children[0] = child;
        contents
    }

    /// Returns the contents with two entries, which differ at `bit`.
    pub(super) fn pair(left: Child, bit: u32, right: Child) -> Self {
        let mut contents = Self::of(left);
        contents.push(bit, right);
        contents
    }

    /// Appends an entry, which differs from the last one at `bit`.
    pub(super) fn push(&mut self, bit: u32, child: Child) {
        self.children[self.len] = child;
        self.bits[self.len - 1] = bit;
        self.len += 1;
    }

    pub(super) fn children(&self) -> &[Child] {
        &self.children[..self.len]
    }

    pub(super) fn bits(&self) -> &[u32] {
        &self.bits[..self.len - 1]
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Inserts an entry that differs from those in `below` at `bit`, after them or before them.
    pub(super) fn insert(&mut self, below: &Range<usize>, bit: u32, after: bool, child: Child) {
        let (at, bit_at) =
            if after { (below.end, below.end - 1) } else { (below.start, below.start) };
        self.insert_at(at, child, bit_at, bit);
    }

    /// Replaces an entry by two.
    pub(super) fn replace(&mut self, at: usize, (left, bit, right): (Child, u32, Child)) {
        self.children[at] = left;
        self.insert_at(at + 1, right, at, bit);
    }

    /// Replaces an entry by those of a node below.
    pub(super) fn replace_by_all(&mut self, at: usize, other: &Contents) {
        self.children[at] = other.children[0];
        let rest = other.bits().iter().zip(&other.children()[1..]);
        for (next, (&bit, &child)) in (at..).zip(rest) {
            self.insert_at(next + 1, child, next, bit);
        }
    }

    fn insert_at(&mut self, at: usize, child: Child, bit_at: usize, bit: u32) {
        self.children.copy_within(at..self.len, at + 1);
        self.bits.copy_within(bit_at..self.len - 1, bit_at + 1);
        (self.children[at], self.bits[bit_at]) = (child, bit);
        self.len += 1;
    }

    /// Returns `true` if an entry is the left child of its parent in the trie, which has the
    /// greater one of the bits beside the entry.
    fn is_left_child(&self, at: usize) -> bool {
        let bits = self.bits();
        bits.get(at) > at.checked_sub(1).map(|left| &bits[left])
    }

    /// Returns the entry that has the same parent in the trie. Returns `None` if that has more
    /// entries there.
    pub(super) fn sibling(&self, at: usize) -> Option<usize> {
        let other = if self.is_left_child(at) { at + 1 } else { at.checked_sub(1)? };
        // It is a child of the same node if it is one on the other side.
        (self.is_left_child(other) != self.is_left_child(at)).then_some(other)
    }

    /// Returns the position before `at`, and the bit at which the entries there differ.
    pub(super) fn before(&self, at: usize) -> (usize, u32) {
        (at - 1, self.bits()[at - 1])
    }

    /// Sets the child of an entry.
    pub(super) fn set(&mut self, at: usize, child: Child) {
        self.children[at] = child;
    }

    /// Returns the contents with all entries of two others, which differ at `bit`.
    pub(super) fn join(left: &Contents, bit: u32, right: &Contents) -> Self {
        let mut both = left.clone();
        both.push(bit, right.children[0]);
        for (&bit, &child) in right.bits().iter().zip(&right.children()[1..]) {
            both.push(bit, child);
        }
        both
    }

    /// Removes an entry, which is not the only one.
    pub(super) fn remove(&mut self, at: usize) {
        let bit_at = if self.is_left_child(at) { at } else { at - 1 };
        self.children.copy_within(at + 1..self.len, at);
        self.bits.copy_within(bit_at + 1..self.len - 1, bit_at);
        self.len -= 1;
    }

    /// Removes the leaves that are dead, unless one of them is the only entry. Returns them.
    pub(super) fn remove_dead(&mut self) -> Vec<Child> {
        let mut removed = Vec::new();
        while self.len > 1
            && let Some(at) = self.children().iter().position(|child| child.is_dead())
        {
            removed.push(self.children[at]);
            self.remove(at);
        }
        removed
    }

    /// Splits the trie at its root. Returns both parts, and the bit at which they differ. There are
    /// at least two entries.
    pub(super) fn split(&self) -> (Contents, u32, Contents) {
        let least = (0..self.len - 1).min_by_key(|&at| self.bits[at]).expect("two entries");
        let (left, right) = (self.part(0..least + 1), self.part(least + 1..self.len));
        (left, self.bits[least], right)
    }

    fn part(&self, entries: Range<usize>) -> Self {
        let mut part = Self::of(self.children[entries.start]);
        for at in entries.start + 1..entries.end {
            part.push(self.bits[at - 1], self.children[at]);
        }
        part
    }

    /// Returns the bits in ascending order, each once. There are at most [`ENTRIES_MAX`] entries.
    pub(super) fn positions(&self) -> Positions {
        let word = self.bits().first().map_or(0, |bit| bit / 64);
        if self.bits().iter().all(|bit| bit / 64 == word) {
            let mask = self.bits().iter().fold(0, |mask, &bit| mask | of_word(bit));
            return Positions::of_one_word(word, mask);
        }
        let mut list = [0; BITS_MAX + 1];
        let count = self.bits().len();
        list[..count].copy_from_slice(self.bits());
        list[..count].sort_unstable();
        let mut positions = Positions { list: [0; BITS_MAX], len: 0, only_word: None };
        for &bit in &list[..count] {
            if positions.as_slice().last() != Some(&bit) {
                positions.list[positions.len] = bit;
                positions.len += 1;
            }
        }
        positions
    }

    /// Returns the partial key of each entry: of the bits in `positions`, those that are on the way
    /// to the entry and are set in it. The first of the positions is the most significant one, so
    /// partial keys are in ascending order.
    pub(super) fn partial_keys(&self, positions: &Positions) -> impl Iterator<Item = u32> {
        let mut key = 0u32;
        let rest = self.bits().iter().map(move |&bit| {
            let bit = 1 << positions.behind(bit);
            // The bits above it lead to both entries, and it leads to this one.
            key = key & !(bit - 1) | bit;
            key
        });
        std::iter::once(0).chain(rest)
    }
}

/// The bits that tell the entries of a node apart, in ascending order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Positions {
    list: [u32; BITS_MAX],
    len: usize,
    /// The mask of all of them, if they are in one word of a key, as they mostly are.
    only_word: Option<u64>,
}

/// Returns the mask of a bit in its word of a key.
fn of_word(bit: u32) -> u64 {
    1 << (63 - bit % 64)
}

impl Positions {
    /// Returns the bits of `mask`, of the word of a key with this index.
    fn of_one_word(word: u32, mask: u64) -> Self {
        let mut positions = Positions { list: [0; BITS_MAX], len: 0, only_word: Some(mask) };
        let mut rest = mask;
        while rest != 0 {
            let bit = rest.leading_zeros();
            positions.list[positions.len] = 64 * word + bit;
            positions.len += 1;
            rest ^= of_word(bit);
        }
        positions
    }

    /// Returns the number of positions behind `bit`, which is one of them.
    fn behind(&self, bit: u32) -> u32 {
        match self.only_word {
            Some(mask) => (mask & (of_word(bit) - 1)).count_ones(),
            None => {
                let place = self.as_slice().binary_search(&bit).expect("one of the bits");
                (self.len - 1 - place) as u32
            }
        }
    }

    pub(super) fn as_slice(&self) -> &[u32] {
        &self.list[..self.len]
    }

    /// Returns for each word of a key that has some of the bits its index and a mask of them.
    pub(super) fn parts(&self) -> impl Iterator<Item = (usize, u64)> {
        let same_word = |one: &u32, other: &u32| one / 64 == other / 64;
        self.as_slice().chunk_by(same_word).map(|bits| {
            let mask = bits.iter().fold(0, |mask, &bit| mask | of_word(bit));
            (bits[0] as usize / 64, mask)
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use evermap_pm::sim::rng::Rng;

    impl PartialEq for Contents {
        fn eq(&self, other: &Self) -> bool {
            (self.children(), self.bits()) == (other.children(), other.bits())
        }
    }

    fn entry(number: u64) -> Child {
        Child::node(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20 << 4)
    }

    /// Returns the contents whose entries are these numbers, of one word, in ascending order.
    pub(in super::super) fn of_numbers(numbers: &[u64]) -> Contents {
        let mut contents = Contents::of(entry(numbers[0]));
        for pair in numbers.windows(2) {
            contents.push((pair[0] ^ pair[1]).leading_zeros(), entry(pair[1]));
        }
        contents
    }

    /// Returns up to `most` different numbers, in ascending order, which have any bits or few.
    pub(in super::super) fn draw_numbers(random: &mut Rng, most: usize) -> Vec<u64> {
        let mask = match random.draw() % 3 {
            0 => u64::MAX,
            1 => random.draw() & random.draw() & random.draw(),
            _ => (1 << (random.draw() % 10)) - 1,
        };
        let count = 1 + random.draw() as usize % most;
        let mut numbers: Vec<u64> = (0..count).map(|_| random.draw() & mask).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// Returns the entry to which the bits of a number lead: at each node of the trie from its
    /// root.
    pub(in super::super) fn walk(contents: &Contents, number: u64) -> usize {
        let mut entries = 0..contents.len();
        while entries.len() > 1 {
            let bits = &contents.bits()[entries.start..entries.end - 1];
            let (at, bit) = bits.iter().enumerate().min_by_key(|(_, bit)| **bit).unwrap();
            let middle = entries.start + at + 1;
            match number << bit >> 63 {
                0 => entries.end = middle,
                _ => entries.start = middle,
            }
        }
        entries.start
    }

    /// Returns the entries between which and the one at `at` there is no bit before `bit`.
    pub(in super::super) fn below(contents: &Contents, at: usize, bit: u32) -> Range<usize> {
        let bits = contents.bits();
        let start = bits[..at].iter().rposition(|&other| other <= bit).map_or(0, |it| it + 1);
        let after = bits[at..].iter().position(|&other| other <= bit);
        start..after.map_or(contents.len(), |it| at + it + 1)
    }

    /// Returns the number that has most bits in common with one, if there is only one such number.
    fn sibling_of(numbers: &[u64], at: usize) -> Option<usize> {
        let common = |other: usize| (numbers[at] ^ numbers[other]).leading_zeros();
        let others = || (0..numbers.len()).filter(|&other| other != at);
        let most = others().map(common).max()?;
        let mut nearest = others().filter(|&other| common(other) == most);
        nearest.next().filter(|_| nearest.next().is_none())
    }

    #[test]
    fn a_changed_trie_is_that_of_the_changed_keys() {
        let random = &mut Rng::new(1);
        for _ in 0..10_000 {
            let mut numbers = draw_numbers(random, ENTRIES_MAX);
            let mut contents = of_numbers(&numbers);
            let new = draw_numbers(random, 1)[0];
            if let Err(place) = numbers.binary_search(&new) {
                let at = walk(&contents, new);
                let bit = (new ^ numbers[at]).leading_zeros();
                let below = below(&contents, at, bit);
                contents.insert(&below, bit, new << bit >> 63 == 1, entry(new));
                numbers.insert(place, new);
                assert_eq!(contents, of_numbers(&numbers));
            }
            if numbers.len() > 1 {
                let (left, bit, right) = contents.split();
                let (first, rest) = numbers.split_at(left.len());
                assert_eq!((&left, &right), (&of_numbers(first), &of_numbers(rest)));
                assert_eq!(Contents::join(&left, bit, &right), contents);
                let mut both = Contents::pair(Child::NONE, bit, Child::NONE);
                both.replace_by_all(1, &right);
                both.replace_by_all(0, &left);
                assert_eq!(both, contents);
                let gone = random.draw() as usize % numbers.len();
                let sibling = contents.sibling(gone);
                assert_eq!(sibling, sibling_of(&numbers, gone));
                numbers.remove(gone);
                contents.remove(gone);
                assert_eq!(contents, of_numbers(&numbers));
            }
        }
    }

    #[test]
    fn partial_keys_are_in_order_and_lead_to_their_entries() {
        let random = &mut Rng::new(2);
        for _ in 0..3_000 {
            let numbers = draw_numbers(random, ENTRIES_MAX);
            let contents = of_numbers(&numbers);
            let positions = contents.positions();
            let keys: Vec<u32> = contents.partial_keys(&positions).collect();
            assert!(keys[0] == 0 && keys.is_sorted_by(|one, other| one < other));
            for number in numbers.iter().copied().chain((0..5).map(|_| random.draw())) {
                let bits = positions.as_slice().iter();
                let bits = bits.fold(0, |bits, bit| bits << 1 | (number << bit >> 63) as u32);
                let found = keys.iter().rposition(|key| bits & key == *key);
                assert_eq!(found, Some(walk(&contents, number)));
            }
        }
    }

    #[test]
    fn dead_leaves_are_removed_but_for_the_last() {
        let (live, dead) = (Child::leaf(16), [32, 48, 64].map(|at| Child::leaf(at).dead()));
        let mut contents = Contents::pair(dead[0], 3, live);
        contents.push(1, dead[1]);
        contents.push(7, dead[2]);
        assert_eq!(contents.remove_dead(), dead);
        assert_eq!((contents.children(), contents.bits()), (&[live][..], &[][..]));
        let mut contents = Contents::pair(dead[0], 3, dead[1]);
        assert_eq!(contents.remove_dead().len(), 1);
        assert_eq!((contents.remove_dead(), contents.len()), (vec![], 1));
    }
}
