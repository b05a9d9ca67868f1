//! HiKV: a store with a hash index in persistent memory and a B+tree in ordinary memory.
//!
//! After "HiKV: A Hybrid Index Key-Value Store for DRAM-NVM Memory Systems" (Xia, Jiang, Xiong,
//! Sun; USENIX ATC 2017), with the variants that its evaluation compares.
//!
//! ```text
//! put, get, update, remove                         scan
//!        |                                           |
//!   hash index (medium)  --- queues, backends --->  tree (ordinary memory)
//!        |        signature -> position              |   key -> position
//!        +------------>  items (medium)  <-----------+
//! ```
//!
//! * **Changes.** A change is durable when the hash index names the new item: one persist for the
//!   item, one for the entry. The tree is updated later, through queues that backends serve. A tree
//!   holds positions, so every update reaches it too. The thread that has updated the tree retires
//!   the item that nothing names any more.
//! * **Readers** see what is durable: a position has a mark until it is, and a reader that meets
//!   the mark makes it durable: see [`recipe`](evermap_index::recipe).
//! * **Scans** wait for the changes that were sent before they started. A thread that waits for a
//!   queue serves it, so there need not be any backend.
//! * **Growth.** Partitions grow bucket by bucket, by linear hashing.
//! * **Recovery.** The hash index serves everything but scans as soon as the store is opened. The
//!   tree is built meanwhile, or by the first scan. What was allocated and never bound is not
//!   [visited](HiKv::visit), so a sweep frees it.
//! * **Normal shutdown** saves the tree as an image.
//! * **The log** of one variant is carried out again.
//!
//! `docs/design/hikv.md` explains why it is correct, and what differs from the paper.

use std::sync::Arc;
use std::thread::JoinHandle;

use evermap_index::fresh::Fresh;
use evermap_index::{Visitor, root};
use evermap_pm::sync::{Mutex, Rank};
use evermap_pm::{ErrorKind, Medium, PmU64, Pool, Result};

mod backend;
mod balance;
mod check;
mod core;
mod grow;
mod hash;
mod helpers;
mod image;
mod indexed;
mod item;
mod layout;
mod log;
pub mod mistakes;
mod order;
mod parts;
mod queue;
mod rebuild;
#[cfg(test)]
mod tests;
mod tree;

use self::core::Core;
pub use backend::Backends;
use backend::Service;
pub use hash::Census;
use hash::Hash;
use helpers::HelperThreads;
use image::Image;
pub use indexed::{Alone, Indexed, Settings, Tiny, Usual};
use layout::{KIND, PARTITION_BITS_MAX, Root};
use log::Log;
pub use mistakes::{LOG_MUTANTS, MUTANTS, NOTICED_ELSEWHERE};
use order::Order;
use tree::Tree;

/// Keys for each bucket that a store is created for: about one bucket in eight needs another one.
const KEYS_PER_BUCKET: u64 = 5;
/// The least number of keys that a store is created for.
const KEYS_MIN: u64 = 2048;

/// How the tree is built after an opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rebuild {
    /// All keys are collected and sorted, and the tree is built from its leaves up.
    Bulk,
    /// Each key is inserted, as in the paper.
    OneByOne,
}

/// The tree, or several, and how threads that use it are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trees {
    /// One tree whose readers take no lock.
    Optimistic,
    /// One tree that is used by hardware transactions, as in the paper, or under one lock where the
    /// processor has none of them: see [`htm`](crate::htm).
    Transactional,
    /// Several trees by ranges of keys, each with a lock, and a thread that evens them out
    /// (HiKV-par).
    Ranges,
}

/// How a store is created and opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The binary logarithm of the number of partitions, up to 10. Chosen at creation.
    pub partition_bits: u32,
    /// The number of buckets that each partition begins with, at least 1. Chosen at creation.
    pub base: u64,
    /// The number of chained buckets that are prepared together, at least 1: the more, the rarer is
    /// an additional persist.
    pub spares: u64,
    /// The threads that update the tree; `None` if the thread that changes a key does it itself
    /// (HiKV-sync).
    pub backends: Option<Backends>,
    /// The number of requests that all queues have space for.
    pub requests: usize,
    /// How threads that use the tree are kept apart.
    pub trees: Trees,
    /// The number of logs (HiKV-wal), or 0 for none. Chosen at creation.
    pub logs: u64,
    /// The size of a log in bytes: enough for the longest record. Chosen at creation.
    pub log_bytes: u64,
    /// How the tree is built.
    pub rebuild: Rebuild,
    /// The number of threads that build the tree when the store is opened; 0 if the first scan does
    /// it.
    pub rebuild_threads: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            partition_bits: 6,
            base: KEYS_MIN.div_ceil(KEYS_PER_BUCKET << 6),
            spares: 64,
            backends: Some(Backends::Adaptive),
            // As in the paper.
            requests: 4096,
            trees: Trees::Optimistic,
            logs: 0,
            log_bytes: 2 << 20,
            rebuild: Rebuild::Bulk,
            rebuild_threads: 1,
        }
    }
}

impl Config {
    /// Returns the same with buckets for about `keys` keys. The store grows beyond that.
    pub fn presized_for(self, keys: u64) -> Self {
        let base = keys.max(KEYS_MIN).div_ceil(KEYS_PER_BUCKET << self.partition_bits);
        Config { base, ..self }
    }

    fn check(&self) -> Result<()> {
        let is_possible = self.partition_bits <= PARTITION_BITS_MAX
            && (1..=u64::from(u32::MAX)).contains(&self.base);
        match is_possible {
            true => Ok(()),
            false => Err(ErrorKind::Config("partitions and buckets of HiKV".into()).into()),
        }
    }
}

/// The size of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// The contents of the hash index.
    pub census: Census,
    /// The number of keys in the tree; 0 as long as it is not complete.
    pub tree_keys: u64,
    /// Bytes in ordinary memory: the tree, the queues and the locks.
    pub dram_bytes: u64,
}

/// A store of byte strings in medium `M`, with its threads. See the [module](self).
pub struct HiKv<M: Medium> {
    core: Arc<Core<M>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl<M: Medium> HiKv<M> {
    /// Creates an empty store, and publishes it in the root cell `root` of the pool, which must be
    /// 0. Crash-atomic. O(buckets).
    ///
    /// # Errors
    ///
    /// `NoSpace`; `Config` if the configuration is impossible; `Io` if a thread cannot be started.
    pub fn create(pool: Arc<Pool<M>>, root: &PmU64, config: Config) -> Result<Self> {
        pool.region().ensure_writable()?;
        config.check()?;
        let m = pool.medium();
        // Nothing below is reachable until the root cell names it, so an error or a crash discards
        // it all.
        let mut fresh = Fresh::new(&pool);
        let block = fresh.allocate_fixed(size_of::<Root>() as u64)?;
        let words = m.slice::<PmU64>(block, size_of::<Root>() as u64 / 8).expect("just allocated");
        words.iter().for_each(|word| m.store(word, 0));
        let header = m.at::<Root>(block).expect("just allocated");
        m.store(&header.partition_bits, u64::from(config.partition_bits));
        m.store(&header.base, config.base);
        m.store(&header.partitions, Hash::write_empty(&pool, &config, &mut fresh)?);
        if config.logs > 0 {
            m.store(&header.log_count, config.logs);
            m.store(&header.logs, Log::write_empty(&pool, &config, &mut fresh)?);
        }
        m.flush(header);
        fresh.keep();
        root::publish(&pool, root, block, KIND);
        Self::assemble(pool, block, config, true)
    }

    /// Returns `true` if the root cell `root` names a store.
    pub fn is_at(pool: &Pool<M>, root: &PmU64) -> bool {
        root::is_of(pool, root, KIND)
    }

    /// Opens the store that the root cell `root` names. What was chosen at its creation counts, and
    /// not the configuration. O(partitions), whatever the number of keys.
    ///
    /// # Errors
    ///
    /// `Damaged` if there is no store; `Io` if a thread cannot be started.
    pub fn open(pool: Arc<Pool<M>>, root: &PmU64, config: Config) -> Result<Self> {
        let block = root::block_of(&pool, root, KIND)?;
        Self::assemble(pool, block, config, false)
    }

    fn assemble(pool: Arc<Pool<M>>, block: u64, config: Config, is_new: bool) -> Result<Self> {
        let m = pool.medium();
        let missing = || evermap_pm::Error::damaged(block, "there is no root of a store");
        let header = m.at::<Root>(block).ok_or_else(missing)?;
        let [bits, base, partitions, log_count, logs] = [
            &header.partition_bits,
            &header.base,
            &header.partitions,
            &header.log_count,
            &header.logs,
        ]
        .map(|cell| m.load(cell));
        let hash = Hash::open(pool.clone(), (bits, base, partitions), &config)?;
        let opened = (log_count > 0).then(|| Log::open(m, logs, log_count)).transpose()?;
        let (log, newest) = opened.map_or((None, Vec::new()), |(log, newest)| (Some(log), newest));
        let partitions = hash.partitions.len();
        let service = |backends| Service::new(backends, partitions, config.requests);
        let core = Arc::new(Core {
            root: block,
            hash,
            order: Order::new(is_new.then(|| Tree::new(config.trees))),
            log,
            service: config.backends.map(service),
            image: if is_new { Image::none() } else { Image::open(&pool, header) },
            helpers: HelperThreads::default(),
            config,
            pool: pool.clone(),
        });
        newest.iter().try_for_each(|record| core.redo(record))?;
        // The threads are started when there is a store that stops them.
        let store = HiKv { core, threads: Mutex::ranked(Rank::Leaf, Vec::new()) };
        store.start_threads(is_new)?;
        Ok(store)
    }

    fn start_threads(&self, is_new: bool) -> Result<()> {
        let config = &self.core.config;
        for number in 0..self.core.service.as_ref().map_or(0, Service::most) {
            self.start(format!("hikv-{number}"), move |core| core.serve(number))?;
        }
        if config.trees == Trees::Ranges {
            self.start("hikv-migration".into(), Core::migrate)?;
        }
        let threads = config.rebuild_threads;
        if threads > 0 && !is_new {
            let build = move |core: &Core<M>| core.complete_tree(threads).map(drop);
            self.start("hikv-rebuild".into(), build)?;
        }
        Ok(())
    }

    fn start(
        &self,
        name: String,
        work: impl FnOnce(&Core<M>) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let core = self.core.clone();
        let thread = std::thread::Builder::new().name(name);
        // A thread that waits for what this one has failed to do, does it, and meets the error.
        let started = thread.spawn(move || drop(work(&core)));
        let started = started.map_err(|error| {
            evermap_pm::Error::io("starting a thread", std::path::Path::new("hikv"), error)
        })?;
        self.threads.lock().map_err(|_| ErrorKind::Poisoned)?.push(started);
        Ok(())
    }

    /// Ends the threads.
    fn stop_threads(&self) {
        self.core.helpers.stop();
        let threads = self.threads.lock().map(|mut threads| std::mem::take(&mut *threads));
        for thread in threads.into_iter().flatten() {
            // Its error is met by those who need what it has not done.
            let _ = thread.join();
        }
        self.core.helpers.are_stopped();
    }

    /// Replaces the contents of `value` with the value of `key`. Returns whether the key is bound.
    /// Expected O(1); no lock.
    ///
    /// # Errors
    ///
    /// `Damaged`.
    #[inline]
    pub fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.core.get(key, value)
    }

    /// Binds `key` to `value`, durably. Returns whether it was bound before. Expected O(1), and two
    /// persists; with a log three.
    ///
    /// # Errors
    ///
    /// `NoSpace`, `KeyTooLong`: nothing has changed. `Damaged`, `Poisoned`, `Forked`.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.core.change(key, Some(value))
    }

    /// Removes `key`, durably. Returns whether it was bound. Expected O(1), and one persist; with a
    /// log two.
    ///
    /// # Errors
    ///
    /// `Damaged`, `Poisoned`, `Forked`.
    pub fn remove(&self, key: &[u8]) -> Result<bool> {
        self.core.change(key, None)
    }

    /// Calls `each` with up to `count` pairs, in ascending order of keys, from `from` on. All
    /// changes are shown that were acknowledged before the call. `each` must not use the store.
    ///
    /// O(log n + count), when the tree is complete: the first scan waits for that, or builds it.
    ///
    /// # Errors
    ///
    /// `Damaged`, `Poisoned`; `NoSpace` if there is no memory for the tree.
    pub fn scan(
        &self,
        from: &[u8],
        count: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        self.core.scan(from, count, each)
    }

    /// Returns when the tree is complete and shows all changes that were acknowledged before the
    /// call. `threads` threads build it, unless another thread does.
    ///
    /// # Errors
    ///
    /// Those of a scan.
    pub fn settle(&self, threads: usize) -> Result<()> {
        self.core.complete_tree(threads)?;
        self.core.settle()
    }

    /// Takes some changes from each queue and updates the tree, as a backend does that is number
    /// `number` of `of`. Returns how many it took. For programs whose own threads divide the work
    /// among themselves, with [`Backends::Fixed`] of none.
    ///
    /// # Errors
    ///
    /// Those of a scan.
    pub fn update_tree(&self, number: usize, of: usize) -> Result<u64> {
        self.core.serve_once(number, of)
    }

    /// Walks over the hash index, and returns the size of the store. O(n).
    ///
    /// # Errors
    ///
    /// `Damaged`, `Poisoned`.
    pub fn stats(&self) -> Result<StoreStats> {
        let core = &*self.core;
        let tree = core.order.complete();
        let tree_keys = tree.map_or(Ok(0), Tree::len)?;
        let tree = tree.map_or(Ok(0), Tree::dram_bytes)?;
        let queues = core.service.as_ref().map_or(0, Service::dram_bytes);
        let dram_bytes = tree + queues + core.hash.dram_bytes();
        Ok(StoreStats { census: core.hash.census()?, tree_keys, dram_bytes })
    }

    /// Shows every block to `visitor`. See [`Persistent::visit`](evermap_index::Persistent::visit).
    ///
    /// # Errors
    ///
    /// `Damaged` if part of the store could not be read; the rest was visited.
    pub fn visit(&self, visitor: &mut dyn Visitor) -> Result<()> {
        self.core.visit(visitor, false)
    }

    /// Walks over the whole store and describes each violated invariant; returns an empty list if
    /// there is none. Must not run concurrently with changes.
    pub fn check(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let checked = self.core.check(&mut problems);
        problems.extend(checked.err().map(|error| error.to_string()));
        problems
    }

    /// Shuts the store down: ends its threads, and saves the tree for the next opening, if there is
    /// space. Called before the pool is closed, without concurrent operations. Later changes
    /// outdate what was saved.
    ///
    /// O(n). If there have been changes, the tree is completed first; if there were none, the image
    /// that was not used stays.
    ///
    /// # Errors
    ///
    /// `Damaged`, `Poisoned`, `Forked`.
    pub fn close(&self) -> Result<()> {
        if !self.core.has_unused_image()? {
            // A store that is damaged is shut down without.
            let _ = self.core.complete_tree(1);
        }
        self.stop_threads();
        self.core.close()
    }
}

impl<M: Medium> Drop for HiKv<M> {
    fn drop(&mut self) {
        self.stop_threads();
    }
}
