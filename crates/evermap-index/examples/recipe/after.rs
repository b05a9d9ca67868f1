//! The table of `before.rs`, converted: it is in a pool, and survives every crash.
//!
//! Each change is one store of that table, and so meets the first condition of RECIPE.

use std::sync::Arc;

use evermap_index::fresh::Fresh;
use evermap_index::lock_wait::LockWait;
use evermap_index::node_lock::Lock;
use evermap_index::recipe::{Preparation, commit, resume};
use evermap_index::{Action, Change, Index, MutateMode, Persistent, Stats, Visitor, root};
use evermap_pm::{Error, Guard, Medium, PmU64, Pool, Result, pod};

/// The number of chains.
const CHAINS: u64 = 64;
/// The first word of the table.
const KIND: u64 = u64::from_le_bytes(*b"CHAINS\0\0");

pod! {
    /// A pair, and the number of the next node of its chain, or 0.
    struct Node: 64 {
        key: PmU64,
        word: PmU64,
        next: PmU64,
        unused: [PmU64; 5],
    }
}

pod! {
    /// The number of the first node of a chain, or 0, and a lock for those who change the chain.
    struct Chain: 16 {
        first: PmU64,
        lock: PmU64,
    }
}

/// A node, and the link that leads to it.
struct Found<'t> {
    link: &'t PmU64,
    node: &'t Node,
    number: u64,
}

/// A hash table of pairs of words.
pub(super) struct Chains<M: Medium> {
    pool: Arc<Pool<M>>,
    root: u64,
}

impl<M: Medium> Chains<M> {
    fn allocate(&self) -> Result<u64> {
        self.pool.allocate_fixed(size_of::<Node>() as u64)
    }

    fn free(&self, number: u64) {
        self.pool.free_unpublished(number);
    }

    fn retire(&self, number: u64, guard: &Guard<'_>) {
        self.pool.retire(number, size_of::<Node>() as u64, guard);
    }

    fn node(&self, number: u64) -> Result<&Node> {
        self.medium().at(number).ok_or_else(|| Error::damaged(number, "there is no such node"))
    }

    fn medium(&self) -> &M {
        self.pool.medium()
    }

    fn load(&self, cell: &PmU64) -> u64 {
        self.medium().load(cell)
    }

    fn chains(&self) -> &[Chain] {
        self.medium().slice(self.root + 64, CHAINS).expect("checked when opened")
    }

    fn chain(&self, key: u64) -> Result<&Chain> {
        let chain = &self.chains()[chain_of(key) as usize];
        self.recover(chain)?;
        Ok(chain)
    }

    /// What a process that died has stored may not be durable, and its lock is held by nobody.
    fn recover(&self, chain: &Chain) -> Result<()> {
        let mut flushed = Ok(());
        resume(self.pool.region(), &chain.lock, self.pool.generation(), || {
            flushed = self.persist(chain);
        })?;
        flushed
    }

    /// Makes everything durable that a search can see.
    fn persist(&self, chain: &Chain) -> Result<()> {
        self.medium().flush(&chain.first);
        let flushed = self.nodes(chain, |node| {
            self.medium().flush(node);
            true
        });
        self.medium().fence();
        flushed.map(|_| ())
    }

    fn lock(&self, chain: &Chain) -> Result<()> {
        let mut wait = LockWait::default();
        let free = Lock::fresh(self.pool.generation());
        while self.medium().cas_transient(&chain.lock, free.0, free.locked().0).is_err() {
            wait.wait_at(self.pool.region(), self.medium().offset_of(&chain.lock))?;
        }
        Ok(())
    }

    fn unlock(&self, chain: &Chain) {
        self.medium().store_transient(&chain.lock, Lock::fresh(self.pool.generation()).0);
    }

    fn search<'t>(&'t self, chain: &'t Chain, key: u64) -> Result<Option<Found<'t>>> {
        let mut link = &chain.first;
        let mut number = self.load(link);
        let mut steps = 0;
        while number != 0 {
            let node = self.node(number)?;
            if self.load(&node.key) == key {
                return Ok(Some(Found { link, node, number }));
            }
            link = &node.next;
            number = self.load(link);
            self.bound(&mut steps, number)?;
        }
        Ok(None)
    }

    /// Counts a step, of which there are no more than nodes unless a chain leads back to itself.
    fn bound(&self, steps: &mut u64, number: u64) -> Result<()> {
        *steps += 1;
        if *steps > self.medium().len() / size_of::<Node>() as u64 {
            return Err(Error::damaged(number, "a chain has no end"));
        }
        Ok(())
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
                commit(self.medium(), &found.node.word, word);
            }
            (Action::Put(word), None) => {
                let number = new.take().expect("a key may be added");
                let node = self.node(number)?;
                let mut change = Preparation::new(self.medium(), &chain.first);
                change.store(&node.key, key);
                change.store(&node.word, word);
                change.store(&node.next, self.load(&chain.first));
                change.commit(number);
            }
            (Action::Remove, Some(found)) => {
                let next = self.load(&found.node.next);
                commit(self.medium(), found.link, next);
                self.retire(found.number, guard);
            }
            (Action::Remove, None) | (Action::Keep, _) => {}
        }
        Ok(Change::of(old, action))
    }

    /// Shows the nodes of a chain until `each` returns `false`.
    fn nodes(&self, chain: &Chain, mut each: impl FnMut(&Node) -> bool) -> Result<bool> {
        let mut number = self.load(&chain.first);
        let mut steps = 0;
        while number != 0 {
            let node = self.node(number)?;
            if !each(node) {
                return Ok(false);
            }
            number = self.load(&node.next);
            self.bound(&mut steps, number)?;
        }
        Ok(true)
    }

    /// Shows the pairs of a chain until `each` returns `false`.
    fn show(&self, chain: &Chain, each: &mut dyn FnMut(u64, u64) -> bool) -> Result<bool> {
        self.recover(chain)?;
        self.nodes(chain, |node| each(self.load(&node.key), self.load(&node.word)))
    }
}

/// Returns the number of the chain of a key.
fn chain_of(key: u64) -> u64 {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % CHAINS
}

impl<M: Medium> Index<u64> for Chains<M> {
    fn get(&self, key: u64, _guard: &Guard<'_>) -> Result<Option<u64>> {
        let chain = self.chain(key)?;
        let found = self.search(chain, key)?;
        let word = found.map(|found| self.load(&found.node.word));
        if Lock(self.load(&chain.lock)).is_locked() {
            // What was found may be of the change under way.
            self.persist(chain)?;
        }
        Ok(word)
    }

    fn mutate(
        &self,
        key: u64,
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        self.pool.region().ensure_writable()?;
        let mut new = match mode {
            MutateMode::MayInsert => Some(self.allocate()?),
            MutateMode::ExistingOnly => None,
        };
        let chain = self.chain(key)?;
        self.lock(chain)?;
        let change = self.change(chain, key, &mut new, guard, decide);
        self.unlock(chain);
        new.into_iter().for_each(|number| self.free(number));
        change
    }

    fn for_each(&self, _guard: &Guard<'_>, each: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        for chain in self.chains() {
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
        Ok(Stats { len, capacity: self.medium().len() / 64, ..Stats::default() })
    }
}

impl<M: Medium> Persistent<M> for Chains<M> {
    type Config = ();

    fn create(pool: Arc<Pool<M>>, cell: &PmU64, (): ()) -> Result<Self> {
        let mut blocks = Fresh::new(&pool);
        let block = blocks.allocate_fixed(64 + CHAINS * 16)?;
        let words = pool.medium().slice::<PmU64>(block, 8 + CHAINS * 2).expect("just allocated");
        words.iter().for_each(|word| pool.medium().store(word, 0));
        pool.medium().flush(words);
        blocks.keep();
        root::publish(&pool, cell, block, KIND);
        Ok(Chains { pool, root: block })
    }

    fn is_at(pool: &Pool<M>, cell: &PmU64) -> bool {
        root::is_of(pool, cell, KIND)
    }

    fn open(pool: Arc<Pool<M>>, cell: &PmU64) -> Result<Self> {
        let block = root::block_of(&pool, cell, KIND)?;
        let chains = pool.medium().slice::<Chain>(block + 64, CHAINS);
        chains.ok_or_else(|| Error::damaged(block, "the table ends outside"))?;
        Ok(Chains { pool, root: block })
    }

    fn visit(&self, visitor: &mut dyn Visitor) -> Result<()> {
        visitor.block(self.root);
        let mut result = Ok(());
        for (number, chain) in (0..).zip(self.chains()) {
            let _guard = self.pool.pin();
            let read = self.recover(chain).and_then(|()| {
                self.nodes(chain, |node| {
                    let offset = self.medium().offset_of(node);
                    match chain_of(self.load(&node.key)) == number {
                        true => visitor.block(offset),
                        false => visitor.unrecognised_block(offset),
                    }
                    visitor.word(self.load(&node.word));
                    !visitor.is_done()
                })
            });
            result = result.and(read.map(|_| ()));
        }
        result
    }

    fn scan(
        &self,
        from: u64,
        _guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>) {
        let Some(chain) = self.chains().get(from as usize) else { return (Ok(()), None) };
        let shown = self.show(chain, &mut |key, word| {
            each(key, word);
            true
        });
        (shown.map(|_| ()), (from + 1 < CHAINS).then_some(from + 1))
    }

    fn check(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (number, chain) in (0..).zip(self.chains()) {
            let mut keys = Vec::new();
            let read = self.show(chain, &mut |key, _| {
                keys.push(key);
                true
            });
            problems.extend(read.err().map(|error| error.to_string()));
            if keys.iter().any(|&key| chain_of(key) != number) {
                problems.push(format!("chain {number}: a key of another chain"));
            }
            keys.sort_unstable();
            if keys.windows(2).any(|two| two[0] == two[1]) {
                problems.push(format!("chain {number}: a key twice"));
            }
        }
        problems
    }
}
