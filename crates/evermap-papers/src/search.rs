//! What to search for in a tree whose leaves have the first 16 bytes of keys as two numbers.

use std::cmp::Ordering;

use evermap_index::ordered::leaf::prefix;

/// A key, and where a search goes from it.
#[derive(Clone, Copy)]
pub(crate) struct Search<'k> {
    pub(crate) key: &'k [u8],
    /// Its first eight bytes, and the next eight, as numbers that are ordered as the bytes are,
    /// padded with zeros.
    pub(crate) head: [u64; 2],
    pub(crate) target: Target,
}

/// Which leaf is searched for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// The one into which the key belongs.
    At,
    /// The one into which what is right before the key belongs.
    Before,
    /// The last one.
    Last,
}

impl Target {
    /// Returns `true` if a leaf whose least key compares to the key like this can have what is
    /// searched for.
    #[inline]
    pub(crate) fn admits(self, low: Ordering) -> bool {
        match self {
            Target::At => low.is_le(),
            Target::Before => low.is_lt(),
            Target::Last => true,
        }
    }
}

impl<'k> Search<'k> {
    #[inline]
    fn new(key: &'k [u8], target: Target) -> Self {
        Search { key, head: [prefix(key), key.get(8..).map_or(0, prefix)], target }
    }

    /// Returns a search for the leaf into which `key` belongs.
    #[inline]
    pub(crate) fn at(key: &'k [u8]) -> Self {
        Self::new(key, Target::At)
    }

    /// Returns a search for the leaf into which what is right before `key` belongs.
    pub(crate) fn before(key: &'k [u8]) -> Self {
        Self::new(key, Target::Before)
    }

    /// Returns a search for the last leaf.
    pub(crate) fn last() -> Self {
        Search { head: [u64::MAX; 2], ..Self::new(&[], Target::Last) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_ordered_as_keys_are() {
        let keys = [&b""[..], b"\0", b"a", b"a\0", b"abcdefgh", b"abcdefghi", b"b"];
        for (one, next) in keys.iter().zip(&keys[1..]) {
            assert!(Search::at(one).head <= Search::at(next).head, "{one:?} {next:?}");
        }
        assert_eq!(Search::at(b"abcdefgh\x01").head[1], 1 << 56);
        assert!(keys.iter().all(|key| Search::at(key).head < Search::last().head));
    }

    #[test]
    fn a_leaf_is_admitted_by_its_least_key() {
        let admitted = |target: Target| {
            [Ordering::Less, Ordering::Equal, Ordering::Greater].map(|low| target.admits(low))
        };
        assert_eq!(admitted(Target::At), [true, true, false]);
        assert_eq!(admitted(Target::Before), [true, false, false]);
        assert_eq!(admitted(Target::Last), [true, true, true]);
    }
}
