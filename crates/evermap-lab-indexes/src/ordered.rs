//! The ordered indexes as tables of words: keys are written in big-endian order, so that they sort
//! as the numbers do.

use std::ops::Bound;
use std::sync::Arc;

use evermap_index::ordered::art::Art;
use evermap_index::ordered::bplus::BPlus;
use evermap_index::ordered::bwtree::BwTree;
use evermap_index::ordered::fast_fair::FastFair;
use evermap_index::ordered::hot::Hot;
use evermap_index::ordered::masstree::Masstree;
use evermap_index::ordered::{Cursor, Direction, OrderedIndex, PersistentOrdered};
use evermap_pm::medium::Note;
use evermap_pm::{Medium, Pool, Result};

use evermap_lab_core::LabError;
use evermap_lab_core::subject::{
    Counts, Entry, Found, Guards, Measured, Place, Size, Subject, Table,
};

use crate::builder::IndexBuilder;
use crate::family::ROOT;
use crate::media::{Memory, Watched};

/// Builds an ordered index in persistent memory, on any medium.
macro_rules! persistent {
    ($tree:ident) => {
        |name, setup| {
            setup.words_only(name)?;
            let builder = IndexBuilder { name, guards: Guards::PerOperation, setup };
            let built = builder.memory().and_then(|memory| match memory {
                Memory::Plain(medium) => on::<_, $tree<_>>(&builder, medium, |_| None),
                Memory::Watched(medium) => on::<_, $tree<_>>(&builder, medium, Watched::counts),
            });
            built.map_err(|error| LabError::index(name, error))
        }
    };
}

/// The entries of the registry.
pub static ENTRIES: [Entry; 6] = [
    Entry {
        name: "bplus",
        about: "the store's ordered side: a B+tree in ordinary memory, optimistic lock coupling",
        rival: false,
        factory: |name, setup| {
            setup.words_only(name)?;
            let table = Tree { tree: <BPlus>::new(), home: OrdinaryMemory };
            Ok(Box::new(Measured { name, table, guards: Guards::PerOperation }))
        },
    },
    Entry {
        name: "p-art",
        about: "P-ART: a radix tree whose nodes have four sizes, lock-free lookups",
        rival: false,
        factory: persistent!(Art),
    },
    Entry {
        name: "fast-fair",
        about: "FAST & FAIR: a B+tree whose nodes are changed in place, lookups wait for writers",
        rival: true,
        factory: persistent!(FastFair),
    },
    Entry {
        name: "p-bwtree",
        about: "P-BwTree: a B+tree whose nodes are changed by prepending to them, never locked",
        rival: false,
        factory: persistent!(BwTree),
    },
    Entry {
        name: "p-masstree",
        about: "P-Masstree: a trie of B+trees, one word orders a node, lookups wait for writers",
        rival: false,
        factory: persistent!(Masstree),
    },
    Entry {
        name: "p-hot",
        about: "P-HOT: a binary trie in nodes of 32 entries, lock-free lookups, copy on write",
        rival: false,
        factory: persistent!(Hot),
    },
];

/// Creates an ordered index in this medium, or opens the one in it.
fn on<M: Medium, T: PersistentOrdered<M> + 'static>(
    builder: &IndexBuilder<'_>,
    medium: M,
    counts: fn(&M) -> Option<Counts>,
) -> Result<Box<dyn Subject>> {
    let (pool, is_new) = builder.pool_in(medium)?;
    let root = pool.root(ROOT);
    let tree = if is_new { T::create(pool.clone(), root) } else { T::open(pool.clone(), root) }?;
    let home = InPool { pool, counts, place: builder.place() };
    let (name, guards) = (builder.name, builder.guards);
    Ok(Box::new(Measured { name, table: Tree { tree, home }, guards }))
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

impl<T, H: Home> Tree<T, H> {
    #[inline(always)]
    fn operate<R>(&self, operation: impl FnOnce(&T) -> R) -> R {
        self.home.begin();
        let result = operation(&self.tree);
        self.home.end();
        result
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
        let from = from.to_be_bytes();
        let range = (Bound::Included(&from[..]), Bound::Unbounded);
        let mut cursor = Cursor::new(&self.tree, range, Direction::Ascending);
        for _ in 0..count {
            let Some((key, word)) = cursor.next()? else { break };
            // Every key here is one that `insert` has written.
            if let Ok(key) = key.try_into() {
                each(u64::from_be_bytes(key), word);
            }
        }
        Ok(true)
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn size(&self) -> Result<Size> {
        let stats = self.tree.stats();
        Ok(Size {
            len: Some(stats.len),
            load_factor: (stats.capacity > 0).then(|| stats.load_factor()),
            dram_bytes: Some(stats.dram_bytes),
            pm_bytes: Some(stats.pm_bytes),
            placement: None,
        })
    }

    fn counts(&self) -> Option<Counts> {
        self.home.counts()
    }

    fn place(&self) -> Place {
        self.home.place()
    }
}
