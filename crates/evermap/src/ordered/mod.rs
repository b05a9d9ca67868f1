//! The ordered index: a tree of keys in ordinary memory beside the hash index.
//!
//! The tree holds exactly the keys that the hash index binds, each with its hash, and nothing of
//! where the record is stored. So replacing a record never touches it. When a key is bound or
//! unbound, the writer posts a [notice](notices) once the hash index is changed and the key is
//! unlocked. The thread that applies the notice looks the key up in the hash index and makes the
//! tree agree. So it does not matter in which order notices are applied, nor whether twice: the
//! last lookup comes after the last change, and the tree is left as that lookup found the key. Only
//! if it is [certain](notices) that a key that was bound is not unbound by an earlier notice, no
//! lookup is made.
//!
//! That needs one thing: a lookup and the change of the tree that follows from it must not be
//! interleaved with another lookup of the same key. A [shard](notices) ensures that, with a lock
//! that is held around both. The holder of that lock never waits for the lock of a key, except as
//! every reader of the hash index may have to wait for a moment; and no thread posts or applies
//! notices while it holds the lock of a key.
//!
//! A scan sees every change that was acknowledged before it began: it reads the ticket of the last
//! notice of each shard, and waits until those are applied, or applies them itself. Writers go on
//! meanwhile.

use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

use evermap_index::key::BytesRef;
use evermap_index::{BPlus, Guard, OrderedIndex};
use evermap_pm::Medium;
use evermap_pm::fork::ForkDetector;
use evermap_pm::sync::{Condvar, Mutex, Rank};

use self::notices::{BATCH, NoticeBatch, NoticeShard, Posted};
use self::workers::WorkerPool;
use crate::{Error, Map, Result};

mod build;
mod bulk_read;
mod missing;
mod notices;
mod persistent;
mod saved;
mod stat;
mod workers;

pub(crate) use build::default_threads;
pub(crate) use notices::KeyEvent;
pub(crate) use persistent::{OrderVisit, PersistentOrder};
pub(crate) use saved::{Saved, clear as clear_saved};
pub use stat::{OrderedStat, OrderedState};

/// The number of shards of notices. The hash of a key determines its shard.
const SHARDS: usize = 16;
/// Keys that are looked up together.
const TOGETHER: usize = 32;
/// The number of full batches in a shard from which on writers apply them even if there are threads
/// in the background: large enough for bursts, and small enough that a scan does not wait long for
/// them.
const BACKLOG: usize = 16;

/// Whether maps have an index of their keys in order, and where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Order {
    /// None, unless a map has a persistent one already.
    #[default]
    None,
    /// In ordinary memory: about 40 bytes for a key, and its length beyond 15 bytes. A file can be
    /// opened with it and without. After opening it is built in the background, while everything
    /// but scans works already; that of a named map is built by its first scan. A clean shutdown
    /// saves the keys in order, so that the next opening reads no records for it.
    Volatile,
    /// In the file: scans work as soon as the file is open, whatever the end of the last process
    /// was. It takes a copy of each key, some 60 to 100 bytes of the file, and a new key costs more
    /// than with the volatile one. A map that was once opened with it keeps it, whatever the
    /// options of later openings are; that of a map which had keys before is filled in the
    /// background, or by the first scan.
    Persistent,
}

impl From<bool> for Order {
    fn from(ordered: bool) -> Self {
        if ordered { Order::Volatile } else { Order::None }
    }
}

/// Which threads update the ordered index when keys are bound and unbound.
///
/// All give the guarantees of [`scan`](Map::scan). What they cost is described in
/// `docs/design/ordered.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OrderedUpdates {
    /// Writers, before they return. Scans find nothing left to do; each new key costs a descent of
    /// the tree.
    Sync,
    /// Writers, 64 notices at a time, so that the cache misses of all of them overlap; scans, what
    /// they need of the rest.
    Batched,
    /// Threads in the background, as many as needed, up to half of the cores; writers and scans
    /// help if these do not keep up. They work for the default map of a file. Other maps, and
    /// stores on other media, do as with `Batched`.
    #[default]
    Background,
}

/// The ordered index of a store.
pub(crate) struct Ordered {
    /// Empty until it is built.
    tree: OnceLock<BPlus>,
    updates: OrderedUpdates,
    workers: WorkerPool,
    shards: Box<[NoticeShard]>,
    state: Mutex<OrderedState>,
    changed: Condvar,
    /// Whether the state is `Ready`.
    ready: AtomicBool,
    /// Keys that were read to build the tree.
    read: AtomicU64,
    /// Whether they were those that the last clean shutdown had saved.
    from_saved: AtomicBool,
    /// Records of which building could not read the key.
    unreadable: AtomicU64,
    fork: ForkDetector,
}

impl Drop for Ordered {
    fn drop(&mut self) {
        if self.fork.is_child() {
            // Other threads may have been changing it when the process was forked, and do not exist
            // here: which nodes it has is unknown.
            std::mem::forget(self.tree.take());
        }
    }
}

impl Ordered {
    /// For a new store, or for one that has yet to be walked.
    ///
    /// # Errors
    /// `NoSpace`, `Io`.
    pub(crate) fn new(updates: OrderedUpdates, is_new: bool) -> Result<Self> {
        let ordered = Ordered {
            tree: OnceLock::new(),
            updates,
            workers: WorkerPool::new(),
            shards: (0..SHARDS).map(|_| NoticeShard::default()).collect(),
            state: Mutex::ranked(Rank::Leaf, OrderedState::Pending),
            changed: Condvar::new(),
            ready: AtomicBool::new(false),
            read: AtomicU64::new(0),
            from_saved: AtomicBool::new(false),
            unreadable: AtomicU64::new(0),
            fork: ForkDetector::new()?,
        };
        if is_new {
            ordered.tree.get_or_init(BPlus::new);
            ordered.set_state(OrderedState::Ready(Duration::ZERO));
        }
        Ok(ordered)
    }

    pub(crate) fn state(&self) -> OrderedState {
        self.state.lock().expect("no panics while held").clone()
    }

    fn set_state(&self, state: OrderedState) {
        let mut current = self.state.lock().expect("no panics while held");
        // What has failed while the tree was being built stays so.
        if !matches!(*current, OrderedState::Failed(_)) {
            *current = state;
        }
        // Release: a thread that sees this sees the tree.
        self.ready.store(matches!(*current, OrderedState::Ready(_)), Release);
        self.changed.notify_all();
    }

    /// Returns `true` if everything acknowledged so far is in the tree or in notices.
    #[inline]
    fn is_ready(&self) -> bool {
        self.ready.load(Acquire)
    }

    #[inline]
    fn shard(&self, hash: u64) -> &NoticeShard {
        &self.shards[(hash >> 24) as usize % SHARDS]
    }

    /// Notes that the tree cannot be updated any more: there is no memory.
    #[cold]
    fn fail(&self, error: &evermap_pm::Error) {
        self.set_state(OrderedState::Failed(error.to_string()));
    }
}

impl<M: Medium> Map<M> {
    /// Returns the number of keys that were unbound so far in the shard of `key`: a change that may
    /// bind it reads this before it begins, for [`KeyEvent::Bound`].
    #[inline]
    pub(crate) fn unbindings(&self, key: BytesRef<'_>) -> u64 {
        self.inner.ordered.as_ref().map_or(0, |ordered| ordered.shard(key.hash).unbindings())
    }

    /// Notes that the index binds `key` now and did not before, or the other way round. Every
    /// writer calls this before its change is acknowledged, while it holds no lock.
    #[inline]
    pub(crate) fn notice(&self, key: BytesRef<'_>, event: KeyEvent, guard: &Guard<'_>) {
        if let Some(ordered) = &self.inner.ordered {
            self.post(ordered, key, event, guard);
        }
        if matches!(event, KeyEvent::Unbound) {
            self.leave_order(key, guard);
        }
    }

    fn post(&self, ordered: &Ordered, key: BytesRef<'_>, event: KeyEvent, guard: &Guard<'_>) {
        let (shard, at_once) = (ordered.shard(key.hash), ordered.updates == OrderedUpdates::Sync);
        if at_once && let Some(tree) = ordered.tree.get() {
            return self.apply_one(ordered, tree, shard, key, guard);
        }
        let posted = shard.post(key, event, at_once, || ordered.tree.get().is_some());
        match (posted, ordered.tree.get()) {
            (Posted::Refused, Some(tree)) => self.apply_one(ordered, tree, shard, key, guard),
            (Posted::Waiting { batches, completed: true }, Some(_))
                if batches < BACKLOG && ordered.workers.is_present() =>
            {
                ordered.workers.wake();
            }
            (Posted::Waiting { completed: true, .. }, Some(tree)) => {
                self.apply_batch(ordered, tree, shard, guard);
            }
            _ => {}
        }
    }

    fn apply_one(
        &self,
        ordered: &Ordered,
        tree: &BPlus,
        shard: &NoticeShard,
        key: BytesRef<'_>,
        guard: &Guard<'_>,
    ) {
        let _working = shard.work();
        let told = match self.inner.index.get(key, guard) {
            Ok(None) => tree.remove(key.bytes),
            _ => tree.insert(key.bytes, key.hash),
        };
        if let Err(error) = told {
            ordered.fail(&error);
        }
    }

    /// Applies the oldest batch of a shard. Returns `true` if there was one.
    fn apply_batch(
        &self,
        ordered: &Ordered,
        tree: &BPlus,
        shard: &NoticeShard,
        guard: &Guard<'_>,
    ) -> bool {
        let _working = shard.work();
        self.apply_next(ordered, tree, shard, guard)
    }

    /// Applies the oldest batch of a shard whose lock the caller holds.
    fn apply_next(
        &self,
        ordered: &Ordered,
        tree: &BPlus,
        shard: &NoticeShard,
        guard: &Guard<'_>,
    ) -> bool {
        let Some(batch) = shard.take() else { return false };
        let mut from = 0;
        let notices = batch.keys.len();
        while from < notices {
            let to = notices.min(from + TOGETHER);
            self.apply_together(ordered, tree, &batch, from..to, guard);
            from = to;
        }
        shard.applied(batch);
        true
    }

    fn apply_together(
        &self,
        ordered: &Ordered,
        tree: &BPlus,
        batch: &NoticeBatch,
        places: std::ops::Range<usize>,
        guard: &Guard<'_>,
    ) {
        let count = places.len();
        let key = |at| BytesRef { bytes: batch.keys.key(at), hash: batch.keys.word(at) };
        let mut pairs = [(&[][..], None); TOGETHER];
        let (mut refs, mut doubted) = ([BytesRef { bytes: &[], hash: 0 }; TOGETHER], [0; TOGETHER]);
        let mut doubts = 0;
        for (pair, at) in pairs.iter_mut().zip(places) {
            let key = key(at);
            *pair = (key.bytes, Some(key.hash));
            if batch.doubts >> at & 1 == 1 {
                (refs[doubts], doubted[doubts]) = (key, at % TOGETHER);
                doubts += 1;
            }
        }
        let mut words = [None; TOGETHER];
        // A key that cannot be looked up counts as present: a scan looks it up again.
        if doubts > 0
            && self.inner.index.get_many(&refs[..doubts], &mut words[..doubts], guard).is_ok()
        {
            let absent = doubted.iter().zip(words).take(doubts).filter(|(_, word)| word.is_none());
            absent.for_each(|(&place, _)| pairs[place].1 = None);
        }
        if let Err(error) = tree.set_many(&pairs[..count]) {
            ordered.fail(&error);
        }
    }

    /// Waits until everything that was acknowledged before is applied to the tree, or applies it.
    fn catch_up(&self, ordered: &Ordered, tree: &BPlus, guard: &Guard<'_>) {
        for shard in &ordered.shards {
            let ticket = shard.ticket();
            while !shard.has_passed(ticket) {
                // Waits for the thread that applies an older batch.
                self.apply_batch(ordered, tree, shard, guard);
            }
        }
    }

    /// Returns the tree with all changes applied, if it is complete. For a caller that has ended
    /// all operations.
    fn settled_tree(&self) -> Option<&BPlus> {
        let ordered = self.inner.ordered.as_ref().filter(|ordered| ordered.is_ready())?;
        let tree = ordered.tree.get()?;
        self.catch_up(ordered, tree, &self.db.file.pool.pin());
        // Unless there was no memory for that.
        ordered.is_ready().then_some(tree)
    }

    /// Returns the tree for a scan: with everything that was acknowledged before, unless `relaxed`.
    pub(crate) fn tree(&self, relaxed: bool) -> Result<&dyn OrderedIndex> {
        if let Some(order) = &self.inner.order {
            self.db.file.pool.region().ensure_writable()?;
            drop(self.enter()?);
            self.fill_order(order)?;
            return Ok(order.tree());
        }
        let ordered = self.inner.ordered.as_ref().ok_or(Error::NotOrdered)?;
        // Not in a forked child: other threads may have been changing the tree.
        self.db.file.pool.region().ensure_writable()?;
        if !ordered.is_ready() {
            self.build_ordered(default_threads())?;
        }
        let guard = self.enter()?;
        let tree = ordered.tree.get().expect("it is ready");
        if !relaxed {
            self.catch_up(ordered, tree, &guard);
        }
        Ok(tree)
    }
}

const _: () = assert!(BATCH.is_multiple_of(TOGETHER));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Evermap, Options};

    /// A writer binds a key and pauses; another one unbinds it and posts a notice; then the first
    /// posts its notice.
    #[test]
    fn a_removal_may_overtake_the_notice_of_an_insertion() {
        let options = Options::new().capacity(64 << 20).ordered(true);
        let db = Evermap::in_memory(options).unwrap();
        let map = db.default_map();
        let key = map.key(b"key").unwrap();
        let since = map.unbindings(key);
        map.put(key.bytes, b"").unwrap();
        assert!(map.delete(key.bytes).unwrap());
        map.notice(key, KeyEvent::Bound { since }, &map.enter().unwrap());
        assert_eq!(map.scan(..).unwrap().count(), 0);
        let mut problems = Vec::new();
        map.check_ordered(&mut |problem| problems.push(problem)).unwrap();
        assert_eq!(problems, Vec::<String>::new());
    }
}
