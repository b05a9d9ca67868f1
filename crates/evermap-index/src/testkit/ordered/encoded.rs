//! An ordered index as an index of numbers, so that the kit's parts for all indexes can use it.

use evermap_pm::{Domain, Guard, Result};

use crate::ordered::{Cursor, Direction, OrderedIndex};
use crate::testkit::erased::AnyOrderedSubject;
use crate::testkit::{Instance, Subject};
use crate::{Action, Change, Index, MutateMode, Stats};

/// The encoding of numbers as keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// 8 bytes, ordered like the numbers.
    Numbers,
    /// Words of 12 to 66 bytes, many of which have common prefixes.
    Words,
}

impl Encoding {
    /// Returns the key of a number.
    pub fn encode(self, number: u64) -> Vec<u8> {
        let mut key = Vec::new();
        if self == Encoding::Words {
            let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            key.extend(b"key/");
            key.resize(4 + (mixed % 7) as usize * 9, b'a' + (mixed / 7 % 2) as u8);
        }
        key.extend(number.to_be_bytes());
        key
    }

    /// Returns the number of a key.
    ///
    /// # Panics
    /// If the key is shorter than 8 bytes.
    pub fn number(self, key: &[u8]) -> u64 {
        u64::from_be_bytes(*key.last_chunk().expect("a encoded key ends in its number"))
    }
}

/// Creates [`EncodedIndex`]es.
pub struct MakeEncoded<'s> {
    /// Creates the ordered indexes.
    pub(super) subject: &'s dyn AnyOrderedSubject,
    /// The encoding of keys.
    pub(super) encoding: Encoding,
}

/// An ordered index with encoded keys.
pub struct EncodedIndex<'s> {
    index: Box<dyn OrderedIndex + 's>,
    encoding: Encoding,
    /// The domain of the guards, which the index does not need.
    domain: Domain,
}

impl<'s> Subject<u64> for MakeEncoded<'s> {
    type Instance = EncodedIndex<'s>;

    fn fresh(&self) -> Result<Self::Instance> {
        let domain = Domain::new(Box::new(|_| ()));
        Ok(EncodedIndex { index: self.subject.fresh()?, encoding: self.encoding, domain })
    }
}

impl Instance<u64> for EncodedIndex<'_> {
    fn index(&self) -> &dyn Index<u64> {
        self
    }

    fn pin(&self) -> Guard<'_> {
        self.domain.pin()
    }

    fn audit(&self) -> Vec<String> {
        self.index.check()
    }
}

impl Index<u64> for EncodedIndex<'_> {
    fn get(&self, key: u64, _guard: &Guard<'_>) -> Result<Option<u64>> {
        self.index.get(&self.encoding.encode(key))
    }

    fn mutate(
        &self,
        key: u64,
        mode: MutateMode,
        _guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        self.index.mutate(&self.encoding.encode(key), mode, decide)
    }

    fn insert(&self, key: u64, word: u64, _guard: &Guard<'_>) -> Result<Change> {
        self.index.insert(&self.encoding.encode(key), word)
    }

    fn update(&self, key: u64, word: u64, _guard: &Guard<'_>) -> Result<Change> {
        self.index.update(&self.encoding.encode(key), word)
    }

    fn upsert(&self, key: u64, word: u64, _guard: &Guard<'_>) -> Result<Change> {
        self.index.upsert(&self.encoding.encode(key), word)
    }

    fn compare_exchange(
        &self,
        key: u64,
        expected: u64,
        new: u64,
        _guard: &Guard<'_>,
    ) -> Result<Change> {
        self.index.compare_exchange(&self.encoding.encode(key), expected, new)
    }

    fn remove(&self, key: u64, _guard: &Guard<'_>) -> Result<Change> {
        self.index.remove(&self.encoding.encode(key))
    }

    fn remove_if(&self, key: u64, expected: u64, _guard: &Guard<'_>) -> Result<Change> {
        self.index.remove_if(&self.encoding.encode(key), expected)
    }

    fn for_each(&self, _guard: &Guard<'_>, each: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        let mut cursor = Cursor::new(&*self.index, .., Direction::Ascending);
        while let Some((key, word)) = cursor.next()? {
            if !each(self.encoding.number(key), word) {
                break;
            }
        }
        Ok(())
    }

    fn stats(&self, _guard: &Guard<'_>) -> Result<Stats> {
        Ok(self.index.stats())
    }
}
