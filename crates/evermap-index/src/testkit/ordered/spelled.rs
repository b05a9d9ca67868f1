//! An ordered index as an index of numbers, so that what is asked of all indexes can be asked of it.

use evermap_pm::{Domain, Guard, Result};

use super::OrderedSubject;
use crate::ordered::{Cursor, Direction, OrderedIndex};
use crate::testkit::{Instance, Subject};
use crate::{Action, Change, Index, MutateMode, Stats};

/// How a number becomes a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// As 8 bytes, in the order of numbers.
    Numbers,
    /// As words of 12 to 66 bytes, many of which begin alike.
    Words,
}

impl Spelling {
    /// The key of a number.
    pub fn spell(self, number: u64) -> Vec<u8> {
        let mut key = Vec::new();
        if self == Spelling::Words {
            let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            key.extend(b"key/");
            key.resize(4 + (mixed % 7) as usize * 9, b'a' + (mixed / 7 % 2) as u8);
        }
        key.extend(number.to_be_bytes());
        key
    }

    /// The number of a key.
    ///
    /// # Panics
    /// If the key was not spelled.
    pub fn number(self, key: &[u8]) -> u64 {
        u64::from_be_bytes(*key.last_chunk().expect("a spelled key ends in its number"))
    }
}

/// Makes [`Spelled`] indexes.
pub struct MakeSpelled<'s, S> {
    /// What makes the ordered indexes.
    pub subject: &'s S,
    /// How keys are spelled.
    pub spelling: Spelling,
}

/// An ordered index whose keys are spelled.
pub struct Spelled<I> {
    index: I,
    spelling: Spelling,
    /// For the guards that are asked for and not needed.
    domain: Domain,
}

impl<S: OrderedSubject> Subject<u64> for MakeSpelled<'_, S> {
    type Instance = Spelled<S::Index>;

    fn fresh(&self) -> Result<Self::Instance> {
        let domain = Domain::new(Box::new(|_| ()));
        Ok(Spelled { index: self.subject.fresh()?, spelling: self.spelling, domain })
    }
}

impl<I: OrderedIndex> Instance<u64> for Spelled<I> {
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

impl<I: OrderedIndex> Index<u64> for Spelled<I> {
    fn get(&self, key: u64, _guard: &Guard<'_>) -> Result<Option<u64>> {
        self.index.get(&self.spelling.spell(key))
    }

    fn mutate(
        &self,
        key: u64,
        mode: MutateMode,
        _guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        self.index.mutate(&self.spelling.spell(key), mode, decide)
    }

    fn insert(&self, key: u64, word: u64, _guard: &Guard<'_>) -> Result<Change> {
        self.index.insert(&self.spelling.spell(key), word)
    }

    fn update(&self, key: u64, word: u64, _guard: &Guard<'_>) -> Result<Change> {
        self.index.update(&self.spelling.spell(key), word)
    }

    fn upsert(&self, key: u64, word: u64, _guard: &Guard<'_>) -> Result<Change> {
        self.index.upsert(&self.spelling.spell(key), word)
    }

    fn compare_exchange(
        &self,
        key: u64,
        expected: u64,
        new: u64,
        _guard: &Guard<'_>,
    ) -> Result<Change> {
        self.index.compare_exchange(&self.spelling.spell(key), expected, new)
    }

    fn remove(&self, key: u64, _guard: &Guard<'_>) -> Result<Change> {
        self.index.remove(&self.spelling.spell(key))
    }

    fn remove_if(&self, key: u64, expected: u64, _guard: &Guard<'_>) -> Result<Change> {
        self.index.remove_if(&self.spelling.spell(key), expected)
    }

    fn for_each(&self, _guard: &Guard<'_>, each: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        let mut cursor = Cursor::new(&self.index, .., Direction::Ascending);
        while let Some((key, word)) = cursor.next()? {
            if !each(self.spelling.number(key), word) {
                break;
            }
        }
        Ok(())
    }

    fn stats(&self, _guard: &Guard<'_>) -> Result<Stats> {
        Ok(self.index.stats())
    }
}
