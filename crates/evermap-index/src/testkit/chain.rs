//! A very simple persistent index, for testing the kit itself.

use std::marker::PhantomData;
use std::sync::Arc;

use evermap_pm::pool::Pool;
use evermap_pm::sim::Sim;
use evermap_pm::sync::RwLock;
use evermap_pm::{Error, Guard, Medium, PmU64, Result, pod};

use super::{Numbered, PoolSubject};
use crate::{Action, Change, Index, Key, MutateMode, Persistent, Stats, Visitor};

/// The number of pairs in a node.
const SLOTS: usize = 14;
const NODE_BYTES: u64 = 256;
const ROOT_BYTES: u64 = 64;

pod! {
    struct Root: 64 {
        /// The [`mark`] of its own offset and the format of its keys.
        own: PmU64,
        first: PmU64,
        reserved: [PmU64; 6],
    }
}

pod! {
    struct Pair: 16 {
        slot_key: PmU64,
        word: PmU64,
    }
}

pod! {
    struct Node: 256 {
        /// The [`mark`] of its own offset and the format of its keys.
        own: PmU64,
        next: PmU64,
        /// One bit for each pair that is valid.
        used: PmU64,
        reserved: PmU64,
        pairs: [Pair; 14],
    }
}

/// Returns the first word of a block of this index, so that a damaged offset is detected before the
/// block is changed.
fn mark<K: Key>(offset: u64) -> u64 {
    !offset ^ u64::from(K::FORMAT) << 48
}

/// An unordered chain of nodes under one lock. Every operation is O(n).
///
/// ```text
/// root cell -> root -> node -> node -> ... -> 0
/// ```
///
/// A pair is valid if its bit in `used` is set; this is the one word that commits an insert or a
/// removal. A node is part of the chain when it is linked. Nothing needs recovery.
pub struct Chain<K, M: Medium> {
    pool: Arc<Pool<M>>,
    root: u64,
    lock: RwLock<()>,
    kind: PhantomData<fn() -> K>,
}

/// A node, its offset, and the word that links it.
struct Linked<'m> {
    node: &'m Node,
    offset: u64,
    link: &'m PmU64,
}

/// A pair with the key, or a free slot for it.
#[derive(Default)]
struct SearchResult<'m> {
    pair: Option<(Linked<'m>, usize, u64)>,
    free: Option<(&'m Node, usize)>,
}

impl<K: Key, M: Medium> Chain<K, M> {
    fn root(&self) -> Result<&Root> {
        Self::root_at(&self.pool, self.root)
    }

    fn root_at(pool: &Pool<M>, offset: u64) -> Result<&Root> {
        let root = pool.medium().at::<Root>(offset);
        root.filter(|root| pool.medium().load(&root.own) == mark::<K>(offset))
            .ok_or_else(|| Error::damaged(offset, "no root of a chain"))
    }

    /// Returns every node. Bounded: a chain longer than the medium is a cycle.
    fn nodes(&self) -> Result<Vec<Linked<'_>>> {
        let m = self.pool.medium();
        let mut nodes = Vec::new();
        let mut link = &self.root()?.first;
        loop {
            let offset = m.load(link);
            if offset == 0 {
                return Ok(nodes);
            }
            let node = m.at::<Node>(offset).filter(|node| {
                m.load(&node.own) == mark::<K>(offset) && m.load(&node.used) >> SLOTS == 0
            });
            let node = node.ok_or_else(|| Error::damaged(offset, "no node of a chain"))?;
            if nodes.len() as u64 > m.len() / NODE_BYTES {
                return Err(Error::damaged(offset, "the chain is a cycle"));
            }
            nodes.push(Linked { node, offset, link });
            link = &node.next;
        }
    }

    fn find(&self, key: K::Ref<'_>) -> Result<SearchResult<'_>> {
        let m = self.pool.medium();
        let slot_key = K::slot_key(key, K::hash(key, self.pool.seed()));
        let mut found = SearchResult::default();
        for linked in self.nodes()? {
            let used = m.load(&linked.node.used);
            for (slot, pair) in linked.node.pairs.iter().enumerate() {
                let word = m.load(&pair.word);
                if used >> slot & 1 == 0 {
                    found.free = found.free.or(Some((linked.node, slot)));
                } else if m.load(&pair.slot_key) == slot_key && K::matches(m, word, key) {
                    found.pair = Some((linked, slot, word));
                    return Ok(found);
                }
            }
        }
        Ok(found)
    }

    fn insert_at(&self, node: &Node, slot: usize, slot_key: u64, word: u64) {
        let m = self.pool.medium();
        let pair = &node.pairs[slot];
        m.store(&pair.slot_key, slot_key);
        m.store(&pair.word, word);
        m.persist(pair);
        // The pair is durable before it is valid.
        m.store(&node.used, m.load(&node.used) | 1 << slot);
        m.persist(&node.used);
    }

    /// Links a new node at `offset`, with one pair in it.
    fn link(&self, offset: u64, slot_key: u64, word: u64) -> Result<()> {
        let m = self.pool.medium();
        let root = self.root()?;
        let node = m.at::<Node>(offset).expect("just allocated");
        m.store(&node.own, mark::<K>(offset));
        m.store(&node.next, m.load(&root.first));
        m.store(&node.used, 0);
        m.flush(node);
        self.insert_at(node, 0, slot_key, word);
        m.store(&root.first, offset);
        m.persist(&root.first);
        Ok(())
    }

    fn remove_at(&self, linked: &Linked<'_>, slot: usize, guard: &Guard<'_>) {
        let m = self.pool.medium();
        let used = m.load(&linked.node.used) & !(1 << slot);
        m.store(&linked.node.used, used);
        m.persist(&linked.node.used);
        if used == 0 {
            m.store(linked.link, m.load(&linked.node.next));
            m.persist(linked.link);
            self.pool.retire(linked.offset, NODE_BYTES, guard);
        }
    }

    /// Acquires the right to read while the result lives.
    fn share(&self) -> Result<impl Sized> {
        self.pool.region().ensure_sound()?;
        Ok(self.lock.read().expect("panics poison the region"))
    }

    /// Acquires the right to write while the result lives.
    fn own(&self) -> Result<impl Sized> {
        self.pool.region().ensure_writable()?;
        Ok(self.lock.write().expect("panics poison the region"))
    }

    /// Returns the valid pairs of all nodes.
    fn pairs(&self) -> Result<Vec<(u64, u64)>> {
        let m = self.pool.medium();
        let mut pairs = Vec::new();
        for linked in self.nodes()? {
            let used = m.load(&linked.node.used);
            let counting = (0..SLOTS).filter(|slot| used >> slot & 1 == 1);
            pairs.extend(counting.map(|slot| {
                let pair = &linked.node.pairs[slot];
                (m.load(&pair.slot_key), m.load(&pair.word))
            }));
        }
        Ok(pairs)
    }
}

impl<K: Key, M: Medium> Index<K> for Chain<K, M> {
    fn get(&self, key: K::Ref<'_>, _guard: &Guard<'_>) -> Result<Option<u64>> {
        let _shared = self.share()?;
        Ok(self.find(key)?.pair.map(|(.., word)| word))
    }

    fn mutate(
        &self,
        key: K::Ref<'_>,
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let _owned = self.own()?;
        let slot_key = K::slot_key(key, K::hash(key, self.pool.seed()));
        let found = self.find(key)?;
        if let Some((linked, slot, old)) = found.pair {
            let new = match decide(Some(old)) {
                Action::Keep => Some(old),
                Action::Put(word) => {
                    let cell = &linked.node.pairs[slot].word;
                    self.pool.medium().store(cell, word);
                    self.pool.medium().persist(cell);
                    Some(word)
                }
                Action::Remove => {
                    self.remove_at(&linked, slot, guard);
                    None
                }
            };
            return Ok(Change { old: Some(old), new });
        }
        if mode == MutateMode::ExistingOnly {
            return Ok(Change::default());
        }
        // Space first: the action of the closure must be possible.
        let fresh = match found.free {
            Some(_) => None,
            None => Some(self.pool.allocate(NODE_BYTES)?),
        };
        match (decide(None), found.free, fresh) {
            (Action::Put(word), Some((node, slot)), _) => {
                self.insert_at(node, slot, slot_key, word);
                Ok(Change { old: None, new: Some(word) })
            }
            (Action::Put(word), None, Some(offset)) => {
                self.link(offset, slot_key, word)?;
                Ok(Change { old: None, new: Some(word) })
            }
            (_, _, fresh) => {
                fresh.into_iter().for_each(|offset| self.pool.free_unpublished(offset));
                Ok(Change::default())
            }
        }
    }

    fn for_each(&self, _guard: &Guard<'_>, each: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        let _shared = self.share()?;
        self.pairs()?.into_iter().all(|(slot_key, word)| each(slot_key, word));
        Ok(())
    }

    fn stats(&self, _guard: &Guard<'_>) -> Result<Stats> {
        let _shared = self.share()?;
        let (len, segments) = (self.pairs()?.len() as u64, self.nodes()?.len() as u64);
        let (capacity, pm_bytes) = (segments * SLOTS as u64, ROOT_BYTES + segments * NODE_BYTES);
        Ok(Stats { len, capacity, segments, pm_bytes, ..Stats::default() })
    }
}

impl<K: Key, M: Medium> Persistent<M> for Chain<K, M> {
    type Config = ();

    fn create(pool: Arc<Pool<M>>, root: &PmU64, (): ()) -> Result<Self> {
        let offset = pool.allocate(ROOT_BYTES)?;
        let m = pool.medium();
        let block = m.at::<Root>(offset).expect("just allocated");
        m.store(&block.own, mark::<K>(offset));
        m.store(&block.first, 0);
        m.persist(block);
        m.store(root, offset);
        m.persist(root);
        Self::open(pool, root)
    }

    fn is_at(pool: &Pool<M>, root: &PmU64) -> bool {
        Self::root_at(pool, pool.medium().load(root)).is_ok()
    }

    fn open(pool: Arc<Pool<M>>, root: &PmU64) -> Result<Self> {
        let offset = pool.medium().load(root);
        Self::root_at(&pool, offset)?;
        Ok(Chain { pool, root: offset, lock: RwLock::new(()), kind: PhantomData })
    }

    fn visit(&self, visitor: &mut dyn Visitor) -> Result<()> {
        let _shared = self.share()?;
        visitor.block(self.root);
        self.nodes()?.iter().for_each(|linked| visitor.block(linked.offset));
        self.pairs()?.into_iter().for_each(|(_, word)| visitor.word(word));
        Ok(())
    }

    /// A unit is the whole chain.
    fn scan(
        &self,
        _from: u64,
        _guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>) {
        let pairs = self.pairs();
        let shown = pairs.map(|pairs| pairs.into_iter().for_each(|(key, word)| each(key, word)));
        (shown, None)
    }

    fn check(&self) -> Vec<String> {
        let pairs = match self.pairs() {
            Ok(pairs) => pairs,
            Err(error) => return vec![error.to_string()],
        };
        let mut keys: Vec<u64> = pairs.iter().map(|&(slot_key, _)| slot_key).collect();
        keys.sort_unstable();
        let twice = keys.windows(2).filter(|pair| pair[0] == pair[1] && !K::WORDS_ARE_RECORDS);
        twice.map(|pair| format!("slot key {} is valid twice", pair[0])).collect()
    }
}

/// Creates [`Chain`] indexes.
pub struct MakeChain;

impl<K: Numbered> PoolSubject<K> for MakeChain {
    type Index = Chain<K, Sim>;

    fn config(&self) {}

    /// Small, because filling a pool takes quadratic time.
    fn extent_size(&self) -> u64 {
        4096
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::counters::{Cost, OperationKind, Promise, counters};
    use super::super::{Config, Failure, Tier};
    use super::*;
    use crate::Bytes;

    crate::conformance!(chain, MakeChain, [u64, Bytes]);

    /// The promises of [`Chain`] about its costs.
    pub(crate) fn promises() -> Vec<Promise> {
        let most = |lines_written, lines_flushed, fences| {
            let lines_read = u64::MAX;
            Cost { lines_read, lines_written, lines_flushed, fences }
        };
        vec![
            Promise { kind: OperationKind::Hit, most: most(0, 0, 0), percent: 100 },
            Promise { kind: OperationKind::Miss, most: most(0, 0, 0), percent: 100 },
            // One in fourteen creates a new node.
            Promise { kind: OperationKind::Insert, most: most(2, 2, 2), percent: 90 },
            // Sometimes an old record is the last one in its extent, which changes the heap's
            // table.
            Promise { kind: OperationKind::Update, most: most(1, 1, 1), percent: 99 },
            Promise { kind: OperationKind::Remove, most: most(1, 1, 1), percent: 90 },
        ]
    }

    #[test]
    fn costs() -> std::result::Result<(), Failure> {
        let config = &Config::from_env();
        counters::<u64, _>(&MakeChain, config, 300, &promises())?;
        match config.tier {
            Tier::Default => Ok(()),
            Tier::Full => counters::<Bytes, _>(&MakeChain, config, 300, &promises()),
        }
    }
}
