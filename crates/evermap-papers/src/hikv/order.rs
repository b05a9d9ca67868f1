//! The tree beside the hash index: how changes reach it, before and after it is complete.
//!
//! A store is opened without a tree. Until there is one, the last change of each key is kept in a
//! *backlog*, by the position of its new item, and the thread that makes the change retires the old
//! item itself: nothing else names that. The thread that builds the tree
//! [collects](super::rebuild) what the hash index holds meanwhile, sees some changes and misses
//! others, and then applies the backlogs, which have the last word on every key that has changed.
//! From then on, changes go through the queues. So only a thread that needs the tree waits for it.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

use evermap_pm::sync::{Mutex, MutexGuard, Rank};
use evermap_pm::{Error, ErrorKind, Result};

use super::backend::QUEUES;
use super::tree::Tree;

/// The changes of some partitions' keys that no tree knows.
struct Backlog {
    /// Whether changes go to the tree.
    passed: AtomicBool,
    /// The position of each key that has changed; 0 if it was removed.
    last: Mutex<BTreeMap<Vec<u8>, u64>>,
}

/// The tree, or what is there until it is built.
pub(super) struct Order {
    tree: OnceLock<Tree>,
    complete: AtomicBool,
    /// Whether the changes of a key have reached the tree in another order than they were made.
    is_broken: AtomicBool,
    /// Held by the thread that builds the tree.
    building: Mutex<()>,
    backlogs: [Backlog; QUEUES],
}

impl Order {
    /// Creates the order of a store that is empty, and whose tree is `tree`, or of one whose tree
    /// has to be built.
    pub(super) fn new(tree: Option<Tree>) -> Self {
        let complete = tree.is_some();
        let backlog = |_| Backlog {
            passed: AtomicBool::new(complete),
            last: Mutex::ranked(Rank::Queue, BTreeMap::new()),
        };
        Order {
            tree: tree.map_or_else(OnceLock::new, OnceLock::from),
            complete: AtomicBool::new(complete),
            is_broken: AtomicBool::new(false),
            building: Mutex::ranked(Rank::Filling, ()),
            backlogs: std::array::from_fn(backlog),
        }
    }

    /// Returns the tree if it has all changes that were not sent to a queue.
    #[inline]
    pub(super) fn complete(&self) -> Option<&Tree> {
        // Acquire: the backlogs were applied.
        if self.complete.load(Acquire) { self.tree.get() } else { None }
    }

    /// Makes the tree agree with a request that was sent: binds `key` to the position `new`, or
    /// removes it if that is 0.
    ///
    /// # Errors
    ///
    /// `Damaged` if the position before is not `old`: from then on always.
    pub(super) fn update(&self, key: &[u8], old: u64, new: u64) -> Result<()> {
        // No request is sent before there is a tree.
        let tree = self.tree.get().ok_or(ErrorKind::Interrupted)?;
        if self.is_broken.load(Acquire) || tree.set(key, new)? != old {
            self.is_broken.store(true, Release);
            let what = "the changes of a key reached the tree in another order";
            return Err(Error::damaged(new, what));
        }
        Ok(())
    }

    /// Keeps the last change of a key of this partition, if there is no tree for it yet. The key is
    /// locked. Returns whether it did.
    #[inline]
    pub(super) fn keep(&self, partition: usize, key: &[u8], position: u64) -> Result<bool> {
        let backlog = &self.backlogs[partition % QUEUES];
        // Acquire: whatever was kept is in the tree.
        if backlog.passed.load(Acquire) {
            return Ok(false);
        }
        let mut last = backlog.lock()?;
        // Set while the backlog is locked.
        let keeps = !backlog.passed.load(Acquire);
        if keeps {
            last.insert(key.to_vec(), position);
        }
        Ok(keeps)
    }

    /// Returns the tree, once it is complete: `build` builds it, unless another thread has.
    ///
    /// # Errors
    ///
    /// The error of `build`. The next call tries again.
    pub(super) fn finish(&self, build: impl FnOnce() -> Result<Tree>) -> Result<&Tree> {
        let _building = self.building.lock().map_err(|_| ErrorKind::Poisoned)?;
        if let Some(tree) = self.complete() {
            return Ok(tree);
        }
        let tree = match self.tree.get() {
            Some(tree) => tree,
            None => {
                let built = build()?;
                self.tree.get_or_init(|| built)
            }
        };
        for backlog in &self.backlogs {
            backlog.apply(tree)?;
        }
        self.complete.store(true, Release);
        Ok(tree)
    }

    /// Returns the number of keys in the backlogs.
    pub(super) fn kept(&self) -> Result<u64> {
        let lens = self.backlogs.iter().map(|backlog| Ok(backlog.lock()?.len() as u64));
        lens.sum()
    }
}

impl Backlog {
    fn lock(&self) -> Result<MutexGuard<'_, BTreeMap<Vec<u8>, u64>>> {
        self.last.lock().map_err(|_| ErrorKind::Poisoned.into())
    }

    /// Applies what was kept, in the meantime too, and lets changes pass from then on. Those who
    /// make changes wait only for a few others.
    fn apply(&self, tree: &Tree) -> Result<()> {
        loop {
            let mut last = self.lock()?;
            if last.is_empty() {
                self.passed.store(true, Release);
                return Ok(());
            }
            let mut taken = std::mem::take(&mut *last);
            drop(last);
            while let Some((key, position)) = taken.pop_first() {
                if let Err(error) = tree.set(&key, position) {
                    taken.insert(key, position);
                    let mut last = self.lock()?;
                    // What has changed since is newer.
                    taken.into_iter().for_each(|(key, position)| {
                        last.entry(key).or_insert(position);
                    });
                    return Err(error);
                }
            }
        }
    }
}
