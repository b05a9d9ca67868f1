//! The ordered indexes as tables of words: keys are written in big-endian order, so that they sort
//! as the numbers do. And as stores of byte strings: the word of a key is its value, or names
//! that: see `valued`.

use std::ops::Bound;
use std::sync::Arc;

use evermap_index::ordered::art::Art;
use evermap_index::ordered::bplus::BPlus;
use evermap_index::ordered::{Cursor, Direction, OrderedIndex, PersistentOrdered};
use evermap_papers::bwtree::BwTree;
use evermap_papers::fast_fair::{FastFair, Paper};
use evermap_papers::fptree::{self, FpTree};
use evermap_papers::hot::Hot;
use evermap_papers::masstree::Masstree;
use evermap_papers::names;
use evermap_papers::nvtree::{self, NvTree};
use evermap_pm::medium::Note;
use evermap_pm::{Medium, Pool, Result};

use evermap_lab_core::LabError;
use evermap_lab_core::subject::store;
use evermap_lab_core::subject::{
    Counts, Entry, Found, Guards, Measured, Place, Setup, Size, Store, Stored, Subject, Table,
};
use evermap_lab_core::workload::bytes::{KeyValueLengths, mean_bytes};

use crate::builder::IndexBuilder;
use crate::cached::Cached;
use crate::family::ROOT;
use crate::media::{Memory, Watched};
use crate::valued::{Valued, measure, was};

/// The least and the greatest length of values that are words.
const WORD: (u32, u32) = (8, 8);

/// Builds an ordered index in persistent memory, on any medium.
macro_rules! persistent {
    ($tree:ident) => {
        |name, setup| {
            setup.word_values_only(name)?;
            build!($tree, name, setup, |builder, index, counts| on(&builder, index, counts))
        }
    };
}

/// As `persistent`, for trees that can be [`Valued`]; `within` makes the store that is measured.
macro_rules! with_values {
    ($tree:ident, $within:expr) => {
        |name, setup| match setup.lengths.filter(|lengths| lengths.values.bounds() != WORD) {
            None => {
                build!($tree, name, setup, |builder, index, counts| { on(&builder, index, counts) })
            }
            Some(lengths) => build!($tree, name, setup, |builder, index, counts| {
                valued(&builder, index, counts, lengths, $within)
            }),
        }
    };
}

/// Evaluates an expression for a tree on the medium of the setup, which is one of two types.
macro_rules! build {
    ($tree:ident, $name:expr, $setup:expr,
        |$builder:ident, $index:ident, $counts:ident| $build:expr) => {{
        let $builder = IndexBuilder { name: $name, guards: Guards::PerOperation, setup: $setup };
        let built = $builder.memory().and_then(|memory| match memory {
            Memory::Plain(medium) => {
                let ($index, $counts) = (opened::<_, $tree<_>>(&$builder, medium)?, no_counts);
                $build
            }
            Memory::Watched(medium) => {
                let ($index, $counts) =
                    (opened::<_, $tree<_>>(&$builder, medium)?, Watched::counts);
                $build
            }
        });
        built.map_err(|error| LabError::index($name, error))
    }};
}

/// What a medium has counted that does not count.
fn no_counts<M>(_: &M) -> Option<Counts> {
    None
}

/// FAST & FAIR with the nodes and the searches of its paper.
type FastFairPaper<M> = FastFair<M, Paper>;

/// NV-Tree as NVStore has it.
type NvTreePaper<M> = NvTree<M, nvtree::OneLeafPerParent>;

/// FPTree with the persists of its paper.
type FpTreePaper<M> = FpTree<M, fptree::Paper>;

/// The same with hardware transactions.
type FpTreeHtm<M> = FpTree<M, fptree::Transactions>;

/// Bytes of ordinary memory that HiKV's tree takes for a key of 16 bytes.
const HIKV_TREE_BYTES: u64 = 40;

/// Puts the cache that HiKV's paper calls FPTree_C in front of a tree.
fn behind_a_cache<M: Medium, T: OrderedIndex + 'static>(
    store: Valued<M, T>,
    setup: &Setup,
) -> Cached<Valued<M, T>> {
    let pair = setup.lengths.map_or(0, |lengths| mean_bytes(lengths) as u64);
    Cached::new(store, setup.keys * HIKV_TREE_BYTES, pair)
}

/// The entries of the registry.
pub static ENTRIES: [Entry; 13] = [
    Entry {
        name: "bplus",
        about: "the store's ordered side: a B+tree in ordinary memory, optimistic lock coupling",
        rival: false,
        factory: |name, setup| {
            setup.word_values_only(name)?;
            Ok(subject(name, Tree { tree: <BPlus>::new(), home: OrdinaryMemory }, setup))
        },
    },
    Entry {
        name: names::P_ART,
        about: "P-ART: a radix tree whose nodes have four sizes, lock-free lookups",
        rival: false,
        factory: persistent!(Art),
    },
    Entry {
        name: names::FAST_FAIR,
        about: "FAST & FAIR: a B+tree whose nodes are changed in place, lookups wait for writers",
        rival: true,
        factory: persistent!(FastFair),
    },
    Entry {
        name: "fast-fair-paper",
        about: "FAST & FAIR with nodes of 512 bytes and searches record by record, as published",
        rival: true,
        factory: persistent!(FastFairPaper),
    },
    Entry {
        name: names::NV_TREE,
        about: "NV-Tree: leaves that are only appended to, inner nodes rebuilt half full",
        rival: true,
        factory: with_values!(NvTree, |store, _| store),
    },
    Entry {
        name: "nv-tree-paper",
        about: "NV-Tree rebuilt with a parent for each leaf, as in NVStore",
        rival: true,
        factory: with_values!(NvTreePaper, |store, _| store),
    },
    Entry {
        name: names::FP_TREE,
        about: "FPTree: unsorted leaves with fingerprints, inner nodes in ordinary memory",
        rival: true,
        factory: with_values!(FpTree, |store, _| store),
    },
    Entry {
        name: "fp-tree-paper",
        about: "FPTree with three persists for a put or an update, as published",
        rival: true,
        factory: with_values!(FpTreePaper, |store, _| store),
    },
    Entry {
        name: "fp-tree-htm",
        about: "that with inner nodes used by hardware transactions, where there are any",
        rival: true,
        factory: with_values!(FpTreeHtm, |store, _| store),
    },
    Entry {
        name: "fp-tree-cache",
        about: "that with a cache of values, as large as the tree that HiKV has in ordinary memory",
        rival: true,
        factory: with_values!(FpTreePaper, behind_a_cache),
    },
    Entry {
        name: names::P_BWTREE,
        about: "P-BwTree: a B+tree whose nodes are changed by prepending to them, never locked",
        rival: false,
        factory: persistent!(BwTree),
    },
    Entry {
        name: names::P_MASSTREE,
        about: "P-Masstree: a trie of B+trees, one word orders a node, lookups wait for writers",
        rival: false,
        factory: persistent!(Masstree),
    },
    Entry {
        name: names::P_HOT,
        about: "P-HOT: a binary trie in nodes of 32 entries, lock-free lookups, copy on write",
        rival: false,
        factory: persistent!(Hot),
    },
];

/// Creates an ordered index in this medium, or opens the one in it.
fn opened<M: Medium, T: PersistentOrdered<M>>(
    builder: &IndexBuilder<'_>,
    medium: M,
) -> Result<(Arc<Pool<M>>, T)> {
    let (pool, is_new) = builder.pool_in(medium)?;
    let root = pool.root(ROOT);
    let tree = if is_new { T::create(pool.clone(), root) } else { T::open(pool.clone(), root) }?;
    Ok((pool, tree))
}

/// Returns an ordered index of a pool as a subject.
fn on<M: Medium, T: OrderedIndex + 'static>(
    builder: &IndexBuilder<'_>,
    (pool, tree): (Arc<Pool<M>>, T),
    counts: fn(&M) -> Option<Counts>,
) -> Result<Box<dyn Subject>> {
    let home = InPool { pool, counts, place: builder.place() };
    Ok(subject(builder.name, Tree { tree, home }, builder.setup))
}

/// Returns an ordered index with values of these lengths as a subject: what `within` makes of it.
fn valued<M: Medium, T: OrderedIndex + 'static, S: Store>(
    builder: &IndexBuilder<'_>,
    (pool, tree): (Arc<Pool<M>>, T),
    counts: fn(&M) -> Option<Counts>,
    lengths: KeyValueLengths,
    within: fn(Valued<M, T>, &Setup) -> S,
) -> Result<Box<dyn Subject>> {
    let store = Valued { pool, tree, counts, place: builder.place() };
    Ok(Box::new(Stored::new(builder.name, within(store, builder.setup), lengths)))
}

/// Returns a tree as a subject that takes the keys which the setup requests.
fn subject<T: OrderedIndex + 'static, H: Home>(
    name: &'static str,
    tree: Tree<T, H>,
    setup: &Setup,
) -> Box<dyn Subject> {
    match setup.lengths {
        None => Box::new(Measured { name, table: tree, guards: Guards::PerOperation }),
        Some(lengths) => Box::new(Stored::new(name, tree, lengths)),
    }
}

/// Where a tree is stored.
trait Home: Send + Sync + 'static {
    /// Announces an operation to a medium that counts.
    fn begin(&self) {}

    /// Announces the end of an operation.
    fn end(&self) {}

    fn counts(&self) -> Option<Counts> {
        None
    }

    fn place(&self) -> Place {
        Place::default()
    }
}

struct OrdinaryMemory;

impl Home for OrdinaryMemory {}

struct InPool<M: Medium> {
    pool: Arc<Pool<M>>,
    counts: fn(&M) -> Option<Counts>,
    place: Place,
}

impl<M: Medium> Home for InPool<M> {
    #[inline(always)]
    fn begin(&self) {
        self.pool.medium().note(Note::Begin(0));
    }

    #[inline(always)]
    fn end(&self) {
        self.pool.medium().note(Note::End(0));
    }

    fn counts(&self) -> Option<Counts> {
        (self.counts)(self.pool.medium())
    }

    fn place(&self) -> Place {
        self.place.clone()
    }
}

struct Tree<T, H> {
    tree: T,
    home: H,
}

impl<T: OrderedIndex, H: Home> Tree<T, H> {
    #[inline(always)]
    fn operate<R>(&self, operation: impl FnOnce(&T) -> R) -> R {
        self.home.begin();
        let result = operation(&self.tree);
        self.home.end();
        result
    }

    /// Calls `each` with up to `count` pairs from a key on.
    fn pairs(&self, from: &[u8], count: usize, mut each: impl FnMut(&[u8], u64)) -> Result<()> {
        self.operate(|tree| {
            let range = (Bound::Included(from), Bound::Unbounded);
            let mut cursor = Cursor::new(tree, range, Direction::Ascending);
            cursor.expect(count);
            for _ in 0..count {
                let Some((key, word)) = cursor.next()? else { break };
                each(key, word);
            }
            Ok(())
        })
    }
}

impl<T: OrderedIndex + 'static, H: Home> Table for Tree<T, H> {
    /// The tree pins what it reads.
    type Guard<'a> = ();

    fn guard(&self) {}

    #[inline(always)]
    fn insert(&self, key: u64, word: u64, (): &()) -> Result<Found> {
        Ok(self.operate(|tree| tree.insert(&key.to_be_bytes(), word))?.old.into())
    }

    #[inline(always)]
    fn get(&self, key: u64, (): &()) -> Result<Option<u64>> {
        self.operate(|tree| tree.get(&key.to_be_bytes()))
    }

    #[inline(always)]
    fn update(&self, key: u64, word: u64, (): &()) -> Result<Found> {
        Ok(self.operate(|tree| tree.update(&key.to_be_bytes(), word))?.old.into())
    }

    #[inline(always)]
    fn remove(&self, key: u64, (): &()) -> Result<Found> {
        Ok(self.operate(|tree| tree.remove(&key.to_be_bytes()))?.old.into())
    }

    fn scan(
        &self,
        from: u64,
        count: usize,
        (): &(),
        each: &mut dyn FnMut(u64, u64),
    ) -> Result<bool> {
        self.pairs(&from.to_be_bytes(), count, |key, word| {
            // Every key here is one that `insert` has written.
            if let Ok(key) = key.try_into() {
                each(u64::from_be_bytes(key), word);
            }
        })?;
        Ok(true)
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn size(&self) -> Result<Size> {
        Ok(measure(&self.tree))
    }

    fn counts(&self) -> Option<Counts> {
        self.home.counts()
    }

    fn place(&self) -> Place {
        self.home.place()
    }
}

impl<T: OrderedIndex + 'static, H: Home> Store for Tree<T, H> {
    /// The tree pins what it reads.
    type Reader<'a> = ();

    fn reader(&self) -> store::Result<()> {
        Ok(())
    }

    #[inline]
    fn get(&self, key: &[u8], (): &(), value: &mut Vec<u8>) -> store::Result<bool> {
        value.clear();
        let word = self.operate(|tree| tree.get(key))?;
        value.extend(word.into_iter().flat_map(u64::to_le_bytes));
        Ok(word.is_some())
    }

    fn put(&self, key: &[u8], value: &[u8]) -> store::Result<Found> {
        let word = u64::from_le_bytes(value.try_into()?);
        Ok(was(self.operate(|tree| tree.upsert(key, word))?.old))
    }

    fn remove(&self, key: &[u8]) -> store::Result<Found> {
        Ok(was(self.operate(|tree| tree.remove(key))?.old))
    }

    fn scan(
        &self,
        from: &[u8],
        count: usize,
        (): &(),
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> store::Result<()> {
        Ok(self.pairs(from, count, |key, word| each(key, &word.to_le_bytes()))?)
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn size(&self) -> store::Result<Size> {
        Ok(measure(&self.tree))
    }

    fn counts(&self) -> Option<Counts> {
        self.home.counts()
    }

    fn place(&self) -> Place {
        self.home.place()
    }
}
