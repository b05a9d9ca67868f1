//! An ordered index as an index of other keys, so that the kit's parts for all indexes can use it.

use std::marker::PhantomData;
use std::ops::Bound;
use std::sync::Arc;

use evermap_pm::{Domain, Error, Guard, Medium, PmU64, Pool, Result};

use crate::ordered::{Direction, OrderedIndex, Page, PersistentOrdered};
use crate::testkit::erased::AnyOrderedSubject;
use crate::testkit::keys::Numbered;
use crate::testkit::{Instance, Subject};
use crate::{Action, Change, Index, MutateMode, Persistent, Stats, Visitor};

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

    /// Returns the number of a key. Of a key without number, which a damaged index may have,
    /// returns any.
    pub fn number(self, key: &[u8]) -> u64 {
        key.last_chunk().map_or(u64::MAX, |number| u64::from_be_bytes(*number))
    }
}

/// An ordered index of keys `K`: their [spelling](Numbered::spell) is what it holds.
pub struct InOrder<K, I: ?Sized> {
    keys: PhantomData<fn(K) -> K>,
    /// The ordered index.
    pub index: Box<I>,
}

impl<K, I: ?Sized> InOrder<K, I> {
    fn new(index: Box<I>) -> Self {
        InOrder { keys: PhantomData, index }
    }
}

impl<K: Numbered, I: OrderedIndex + ?Sized> Index<K> for InOrder<K, I> {
    fn get(&self, key: K::Ref<'_>, _guard: &Guard<'_>) -> Result<Option<u64>> {
        self.index.get(&K::spell(key))
    }

    fn mutate(
        &self,
        key: K::Ref<'_>,
        mode: MutateMode,
        _guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        self.index.mutate(&K::spell(key), mode, decide)
    }

    fn insert(&self, key: K::Ref<'_>, word: u64, _guard: &Guard<'_>) -> Result<Change> {
        self.index.insert(&K::spell(key), word)
    }

    fn update(&self, key: K::Ref<'_>, word: u64, _guard: &Guard<'_>) -> Result<Change> {
        self.index.update(&K::spell(key), word)
    }

    fn upsert(&self, key: K::Ref<'_>, word: u64, _guard: &Guard<'_>) -> Result<Change> {
        self.index.upsert(&K::spell(key), word)
    }

    fn compare_exchange(
        &self,
        key: K::Ref<'_>,
        expected: u64,
        new: u64,
        _guard: &Guard<'_>,
    ) -> Result<Change> {
        self.index.compare_exchange(&K::spell(key), expected, new)
    }

    fn remove(&self, key: K::Ref<'_>, _guard: &Guard<'_>) -> Result<Change> {
        self.index.remove(&K::spell(key))
    }

    fn remove_if(&self, key: K::Ref<'_>, expected: u64, _guard: &Guard<'_>) -> Result<Change> {
        self.index.remove_if(&K::spell(key), expected)
    }

    fn for_each(&self, _guard: &Guard<'_>, each: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        let mut page = Page::default();
        let mut from: Option<Vec<u8>> = None;
        loop {
            let bound = from.as_deref().map_or(Bound::Unbounded, Bound::Included);
            self.index.page(bound, Direction::Ascending, &mut page)?;
            if !page.pairs.iter().all(|(key, word)| each(K::spelled(key), word)) {
                return Ok(());
            }
            let Some(Bound::Included(next)) = page.next(Direction::Ascending) else {
                return Ok(());
            };
            if from.as_deref().is_some_and(|from| from >= next) {
                return Err(Error::damaged(0, "a scan of an ordered index does not advance"));
            }
            from = Some(next.to_vec());
        }
    }

    fn stats(&self, _guard: &Guard<'_>) -> Result<Stats> {
        Ok(self.index.stats())
    }
}

impl<K: Numbered, M: Medium, I: PersistentOrdered<M>> Persistent<M> for InOrder<K, I> {
    type Config = ();

    fn create(pool: Arc<Pool<M>>, root: &PmU64, (): ()) -> Result<Self> {
        Ok(InOrder::new(Box::new(I::create(pool, root)?)))
    }

    fn is_at(pool: &Pool<M>, root: &PmU64) -> bool {
        I::is_at(pool, root)
    }

    fn open(pool: Arc<Pool<M>>, root: &PmU64) -> Result<Self> {
        Ok(InOrder::new(Box::new(I::open(pool, root)?)))
    }

    fn visit(&self, visitor: &mut dyn Visitor) -> Result<()> {
        self.index.visit(visitor)
    }

    /// All of the index is one unit: walks over parts of it are what [`scans`](super::scans) tests.
    fn scan(
        &self,
        _from: u64,
        guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>) {
        let mut show = |key, word| {
            each(key, word);
            true
        };
        (self.for_each(guard, &mut show), None)
    }

    fn check(&self) -> Vec<String> {
        self.index.check()
    }

    fn close(&self) -> Result<()> {
        self.index.close()
    }
}

/// Creates ordered indexes as indexes of other keys.
pub struct MakeEncoded<'s>(pub(super) &'s dyn AnyOrderedSubject);

/// An ordered index as an index of keys `K`.
pub struct EncodedIndex<'s, K> {
    index: InOrder<K, dyn OrderedIndex + 's>,
    /// The domain of the guards, which the index does not need.
    domain: Domain,
}

impl<'s, K: Numbered> Subject<K> for MakeEncoded<'s> {
    type Instance = EncodedIndex<'s, K>;

    fn fresh(&self) -> Result<Self::Instance> {
        let domain = Domain::new(Box::new(|_| ()));
        Ok(EncodedIndex { index: InOrder::new(self.0.fresh()?), domain })
    }
}

impl<K: Numbered> Instance<K> for EncodedIndex<'_, K> {
    fn index(&self) -> &dyn Index<K> {
        &self.index
    }

    fn pin(&self) -> Guard<'_> {
        self.domain.pin()
    }

    fn audit(&self) -> Vec<String> {
        self.index.index.check()
    }
}
