//! A concurrent hash table in ordinary memory: chains of nodes, which lookups follow without locks.
//!
//! Each change is one store: to the link that leads to a new node, to the word of a node, or to the
//! link that leads past a removed one.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::{Arc, Mutex};

use evermap_index::{Action, Change, Index, MutateMode, Stats};
use evermap_pm::sync::Backoff;
use evermap_pm::{Domain, Error, Guard, Result};

/// The number of chains.
const CHAINS: u64 = 64;
/// The number of nodes that there is space for.
const NODES: u64 = 1 << 16;

/// A pair, and the number of the next node of its chain, or 0.
#[derive(Default)]
struct Node {
    key: AtomicU64,
    word: AtomicU64,
    next: AtomicU64,
}

/// The number of the first node of a chain, or 0, and a lock for those who change the chain.
#[derive(Default)]
struct Chain {
    first: AtomicU64,
    lock: AtomicU64,
}

/// A node, and the link that leads to it.
struct Found<'t> {
    link: &'t AtomicU64,
    node: &'t Node,
    number: u64,
}

/// A hash table of pairs of words.
pub(super) struct Chains {
    chains: Box<[Chain]>,
    nodes: Box<[Node]>,
    free: Arc<Mutex<Vec<u64>>>,
    pub(super) domain: Domain,
}

impl Chains {
    /// Creates an empty table.
    pub(super) fn new() -> Self {
        let free = Arc::new(Mutex::new((1..=NODES).rev().collect::<Vec<_>>()));
        let freed = free.clone();
        let reclaim = move |number| freed.lock().expect("no panics while held").push(number);
        Chains {
            chains: (0..CHAINS).map(|_| Chain::default()).collect(),
            nodes: (0..NODES).map(|_| Node::default()).collect(),
            free,
            domain: Domain::new(Box::new(reclaim)),
        }
    }

    fn allocate(&self) -> Result<u64> {
        let number = self.free.lock().expect("no panics while held").pop();
        number.ok_or_else(|| Error::no_space("nodes", 1))
    }

    fn free(&self, number: u64) {
        self.free.lock().expect("no panics while held").push(number);
    }

    fn retire(&self, number: u64, _guard: &Guard<'_>) {
        self.domain.retire(number, size_of::<Node>());
    }

    fn node(&self, number: u64) -> &Node {
        &self.nodes[number as usize - 1]
    }

    fn load(&self, cell: &AtomicU64) -> u64 {
        cell.load(Acquire)
    }

    fn store(&self, cell: &AtomicU64, value: u64) {
        cell.store(value, Release);
    }

    fn chain(&self, key: u64) -> &Chain {
        &self.chains[chain_of(key) as usize]
    }

    fn lock(&self, chain: &Chain) {
        let mut wait = Backoff::default();
        while chain.lock.compare_exchange(0, 1, AcqRel, Acquire).is_err() {
            wait.wait();
        }
    }

    fn unlock(&self, chain: &Chain) {
        self.store(&chain.lock, 0);
    }

    fn search<'t>(&'t self, chain: &'t Chain, key: u64) -> Result<Option<Found<'t>>> {
        let mut link = &chain.first;
        let mut number = self.load(link);
        while number != 0 {
            let node = self.node(number);
            if self.load(&node.key) == key {
                return Ok(Some(Found { link, node, number }));
            }
            link = &node.next;
            number = self.load(link);
        }
        Ok(None)
    }

    /// Carries out what `decide` returns for a key whose chain is locked. Takes the new node if it
    /// is needed.
    fn change(
        &self,
        chain: &Chain,
        key: u64,
        new: &mut Option<u64>,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let found = self.search(chain, key)?;
        let old = found.as_ref().map(|found| self.load(&found.node.word));
        let may_change = old.is_some() || new.is_some();
        let action = if may_change { decide(old) } else { Action::Keep };
        match (action, found) {
            (Action::Put(word), Some(found)) => {
                self.store(&found.node.word, word);
            }
            (Action::Put(word), None) => {
                let number = new.take().expect("a key may be added");
                let node = self.node(number);
                self.store(&node.key, key);
                self.store(&node.word, word);
                self.store(&node.next, self.load(&chain.first));
                self.store(&chain.first, number);
            }
            (Action::Remove, Some(found)) => {
                let next = self.load(&found.node.next);
                self.store(found.link, next);
                self.retire(found.number, guard);
            }
            (Action::Remove, None) | (Action::Keep, _) => {}
        }
        Ok(Change::of(old, action))
    }

    /// Shows the nodes of a chain until `each` returns `false`.
    fn nodes(&self, chain: &Chain, mut each: impl FnMut(&Node) -> bool) -> Result<bool> {
        let mut number = self.load(&chain.first);
        while number != 0 {
            let node = self.node(number);
            if !each(node) {
                return Ok(false);
            }
            number = self.load(&node.next);
        }
        Ok(true)
    }

    /// Shows the pairs of a chain until `each` returns `false`.
    fn show(&self, chain: &Chain, each: &mut dyn FnMut(u64, u64) -> bool) -> Result<bool> {
        self.nodes(chain, |node| each(self.load(&node.key), self.load(&node.word)))
    }
}

/// Returns the number of the chain of a key.
fn chain_of(key: u64) -> u64 {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % CHAINS
}

impl Index<u64> for Chains {
    fn get(&self, key: u64, _guard: &Guard<'_>) -> Result<Option<u64>> {
        let chain = self.chain(key);
        let found = self.search(chain, key)?;
        let word = found.map(|found| self.load(&found.node.word));
        Ok(word)
    }

    fn mutate(
        &self,
        key: u64,
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let mut new = match mode {
            MutateMode::MayInsert => Some(self.allocate()?),
            MutateMode::ExistingOnly => None,
        };
        let chain = self.chain(key);
        self.lock(chain);
        let change = self.change(chain, key, &mut new, guard, decide);
        self.unlock(chain);
        new.into_iter().for_each(|number| self.free(number));
        change
    }

    fn for_each(&self, _guard: &Guard<'_>, each: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        for chain in &self.chains {
            if !self.show(chain, each)? {
                break;
            }
        }
        Ok(())
    }

    fn stats(&self, guard: &Guard<'_>) -> Result<Stats> {
        let mut len = 0;
        self.for_each(guard, &mut |_, _| {
            len += 1;
            true
        })?;
        Ok(Stats { len, capacity: NODES, ..Stats::default() })
    }
}
