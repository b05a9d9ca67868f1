//! Changes that are collected in memory until they are written.

use std::collections::BTreeMap;

use super::page::{ELSEWHERE_BYTES, Hash, Page, STRIP_BYTES};

/// Where a key is among the collected changes.
///
/// Keys are ordered by the group that they were in when the table was created, and then by the
/// bits of their hashes in the order in which growth looks at them. So the keys of a group are
/// neighbours however many groups there are, and growth changes nothing here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order {
    base: u64,
    rest: u64,
}

impl Order {
    /// Returns where the keys with this hash are, in a table that began with `base` groups.
    pub(super) fn of(hash: Hash, base: u64) -> Self {
        Order { base: hash.first % base, rest: (hash.first / base).reverse_bits() }
    }

    /// Returns a key of the map, before all others that are here.
    fn first(self) -> Placed {
        (self, Box::default())
    }
}

/// A key with its place.
type Placed = (Order, Box<[u8]>);

/// The new values of keys, or `None` for those that were removed.
#[derive(Default)]
pub(super) struct Changes<const T: usize> {
    of: BTreeMap<Placed, Option<Box<[u8]>>>,
    /// Bytes of memory that they take, about.
    bytes: usize,
    /// Bytes that the new values will take in tranches.
    payloads: u64,
    /// Where the next portion begins: each takes what follows on the one before, so that every
    /// change waits about as long as any other for those that meet it in its tranche.
    hand: Order,
}

impl<const T: usize> Changes<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn payloads(&self) -> u64 {
        self.payloads
    }

    /// Adds a change, in the place of an earlier one of the key. O(log n).
    pub(super) fn insert(&mut self, order: Order, key: &[u8], value: Option<Box<[u8]>>) {
        self.bytes += memory_of(key, value.as_deref());
        self.payloads += Self::payload_of(key, value.as_deref());
        if let Some(old) = self.of.insert((order, key.into()), value) {
            self.uncount(key, old.as_deref());
        }
    }

    /// Returns what a key was changed to, if it is here. O(log n).
    pub(super) fn get(&self, order: Order, key: &[u8]) -> Option<Option<&[u8]>> {
        let mut here = self.of.range(order.first()..).take_while(|((other, _), _)| *other == order);
        let found = here.find(|((_, other), _)| **other == *key);
        found.map(|(_, value)| value.as_deref())
    }

    /// Returns the changes that are to be written next, up to the last one in the order.
    pub(super) fn next(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        let next = self.of.range(self.hand.first()..);
        next.map(|((_, key), value)| (&**key, value.as_deref()))
    }

    /// Begins again with the first ones.
    pub(super) fn rewind(&mut self) {
        self.hand = Order::default();
    }

    /// Removes the next `count` changes, which are written.
    pub(super) fn written(&mut self, count: usize) {
        let all = self.of.extract_if(self.hand.first().., |_, _| true);
        let gone: Vec<_> = all.take(count).collect();
        for ((order, key), value) in gone {
            self.uncount(&key, value.as_deref());
            self.hand = order;
        }
    }

    fn uncount(&mut self, key: &[u8], value: Option<&[u8]>) {
        self.bytes -= memory_of(key, value);
        self.payloads -= Self::payload_of(key, value);
    }

    /// Returns how many bytes a record will take in a tranche.
    fn payload_of(key: &[u8], value: Option<&[u8]>) -> u64 {
        let Some(value) = value else { return 0 };
        let bytes = key.len() + value.len();
        let payload = if bytes <= Page::<T>::RECORD_MAX { bytes + 1 } else { ELSEWHERE_BYTES };
        payload as u64 + STRIP_BYTES
    }
}

/// Returns how many bytes of memory a change takes.
fn memory_of(key: &[u8], value: Option<&[u8]>) -> usize {
    /// What it takes beside its key and value, about: two allocations, and a place in the map,
    /// whose nodes are two thirds full.
    const ENTRY: usize = 128;
    ENTRY + key.len() + value.map_or(0, <[u8]>::len)
}

#[cfg(test)]
mod tests {
    use super::super::header::Groups;
    use super::*;

    type Small = Changes<4096>;

    fn hash(first: u64) -> Hash {
        Hash { first, second: 0 }
    }

    /// However many groups there are, the keys of each are neighbours.
    #[test]
    fn keys_of_a_group_are_neighbours() {
        for base in [1, 3, 8, 100] {
            let mut hashes: Vec<u64> =
                (1..3000u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
            hashes.sort_by_key(|&first| Order::of(hash(first), base));
            for count in [base, base + 1, 2 * base, 3 * base + base / 2, 4 * base, 9 * base] {
                let mut groups: Vec<u64> =
                    hashes.iter().map(|&hash| Groups { base, count }.of(hash)).collect();
                groups.dedup();
                let runs = groups.len();
                groups.sort_unstable();
                groups.dedup();
                assert_eq!(runs, groups.len(), "{base} {count}");
            }
        }
    }

    /// Changes are found until they are written, each in its turn; and what they take is counted.
    #[test]
    fn changes_are_written_in_turns() {
        let mut changes = Small::default();
        let order = |number: u64| Order { base: 0, rest: number / 2 };
        let key = |number: u64| number.to_le_bytes();
        for number in (0..10).rev() {
            changes.insert(order(number), &key(number), Some(Box::new([1; 500])));
            changes.insert(order(number), &key(number), (number != 4).then(|| Box::from([7])));
        }
        assert_eq!(changes.bytes(), 10 * 136 + 9);
        assert_eq!(changes.payloads(), 9 * (8 + 1 + 1 + 3));
        assert_eq!(changes.get(order(4), &key(4)), Some(None));
        assert_eq!(changes.get(order(5), &key(5)), Some(Some(&[7][..])));
        assert_eq!(changes.get(order(5), &key(7)), None);
        changes.written(3);
        assert_eq!(changes.get(order(2), &key(2)), None);
        assert_eq!(changes.next().count(), 7);
        // An earlier one waits for its turn.
        changes.insert(order(0), &key(0), None);
        assert_eq!(changes.next().count(), 7);
        changes.written(7);
        assert_eq!((changes.next().count(), changes.is_empty()), (0, false));
        changes.rewind();
        assert_eq!(changes.next().count(), 1);
        changes.written(1);
        assert!(changes.is_empty());
        assert_eq!((changes.bytes(), changes.payloads()), (0, 0));
    }
}
