//! Building the tree from the hash index, while everything else goes on.
//!
//! 1. If the last shutdown was clean, it has [saved](super::saved) the keys in order. Otherwise
//!    threads walk over the hash index and [read the keys](super::bulk_read). Meanwhile notices are
//!    kept.
//! 2. The keys are sorted and become the tree, which others see from now on.
//! 3. The kept notices are worked on like any others.
//!
//! A walk shows every key that is bound throughout. A key that comes or goes meanwhile leaves a
//! notice, and is looked up in step 3. If there were too many and they were dropped, the whole tree
//! is compared with the whole hash index.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use evermap_index::key::BytesRef;
use evermap_index::ordered::{Cursor, Direction, Run, bplus};
use evermap_index::{BPlus, Guard, OrderedIndex};
use evermap_pm::Medium;
use evermap_pm::sync::{Mutex, Rank};

use super::{NoticeShard, Ordered, OrderedState, TOGETHER};
use crate::ops::read::Walk;
use crate::{Error, Map, Result};

/// Returns the default number of threads to build with: half of the cores, because other threads
/// need some too.
pub(crate) fn default_threads() -> usize {
    cores().div_ceil(2)
}

/// Returns the number of cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Ends the waiting of other threads, however the building ends.
struct Building<'o> {
    ordered: &'o Ordered,
    end: Option<OrderedState>,
}

impl Drop for Building<'_> {
    fn drop(&mut self) {
        let panicked = || OrderedState::Failed("a thread that was building it has panicked".into());
        self.ordered.set_state(self.end.take().unwrap_or_else(panicked));
    }
}

impl<M: Medium> Map<M> {
    /// Returns `true` if the ordered index is wanted and no thread has begun to build it.
    pub(crate) fn wants_ordered_built(&self) -> bool {
        let pending = |ordered: &Ordered| ordered.state() == OrderedState::Pending;
        self.inner.ordered.as_ref().is_some_and(pending)
            || self.inner.order.as_ref().is_some_and(|order| !order.is_complete())
    }

    /// Builds the [ordered index](crate::Options::ordered) with this number of threads, including
    /// the calling one, unless it is built; waits if another thread is building it. Other
    /// operations may go on meanwhile.
    ///
    /// O(n log n); some hundred nanoseconds a key and thread. It needs about 70 bytes of ordinary
    /// memory for each key of 16 bytes while it builds, and leaves a tree of about 40.
    /// On a file, a thread in the background does this as soon as it is opened; for other maps, the
    /// first scan does.
    ///
    /// ```
    /// # use evermap::{Evermap, Options};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("map");
    /// # Evermap::open(&path, Options::new())?.default_map().put(b"key", b"value")?;
    /// let map = Evermap::open(&path, Options::new().ordered(true))?.default_map();
    /// map.build_ordered(2)?;
    /// assert_eq!(map.stat().ordered.unwrap().keys, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotOrdered`], [`Error::OrderedFailed`], [`Error::Closed`], and [`Error::Storage`]
    /// with `Forked` or `Poisoned`.
    pub fn build_ordered(&self, threads: usize) -> Result<()> {
        self.db.file.pool.region().ensure_writable()?;
        if let Some(order) = &self.inner.order {
            return self.fill_order(order);
        }
        let ordered = self.inner.ordered.as_ref().ok_or(Error::NotOrdered)?;
        {
            let state = ordered.state.lock().expect("no panics while held");
            let is_building = |state: &mut OrderedState| *state == OrderedState::Building;
            let state = ordered.changed.wait_while(state, is_building);
            let mut state = state.expect("no panics while held");
            match &*state {
                OrderedState::Ready(_) => return Ok(()),
                OrderedState::Failed(why) => {
                    return Err(Error::OrderedFailed { why: why.clone() });
                }
                _ => *state = OrderedState::Building,
            }
        }
        let mut building = Building { ordered, end: None };
        let began = Instant::now();
        let built = self.build(ordered, threads);
        building.end = Some(match &built {
            Ok(()) => OrderedState::Ready(began.elapsed()),
            // No thread goes on with it, but none needs it either.
            Err(Error::Closed) => OrderedState::Pending,
            Err(error) => OrderedState::Failed(error.to_string()),
        });
        built
    }

    fn build(&self, ordered: &Ordered, threads: usize) -> Result<()> {
        ordered.read.store(0, Relaxed);
        ordered.unreadable.store(0, Relaxed);
        let saved = self.read_saved(threads);
        ordered.from_saved.store(saved.is_some(), Relaxed);
        let tree = match saved {
            Some(runs) => {
                let keys: usize = runs.iter().map(Run::len).sum();
                ordered.read.store(keys as u64, Relaxed);
                BPlus::load(bplus::Config::default(), &runs, threads)?
            }
            None => self.tree_of_index(ordered, threads.max(1))?,
        };
        self.publish_tree(ordered, tree)?;
        // Not while another thread checks the file, and without waiting for one that sweeps, which
        // may be waiting for a reader of this thread: then the next stop frees it.
        if let Some(_sweeping) = self.db.file.maintenance.try_sweeping() {
            self.forget_saved();
        }
        Ok(())
    }

    /// Publishes a tree of the keys that were read, and brings it up to date.
    fn publish_tree(&self, ordered: &Ordered, tree: BPlus) -> Result<()> {
        let tree = ordered.tree.get_or_init(|| tree);
        let guard = self.enter()?;
        self.catch_up(ordered, tree, &guard);
        drop(guard);
        // No notice is dropped any more, now that there is a tree.
        if ordered.shards.iter().any(NoticeShard::has_dropped) {
            self.compare(ordered, tree, &mut |key, _, guard| {
                self.apply_one(ordered, tree, ordered.shard(key.hash), key, guard);
            })?;
        }
        Ok(())
    }

    /// Shows `differs` each key that only the hash index has, and each that only the tree has, and
    /// says whether it is the tree.
    fn compare(
        &self,
        ordered: &Ordered,
        tree: &BPlus,
        differs: &mut dyn FnMut(BytesRef<'_>, bool, &Guard<'_>),
    ) -> Result<()> {
        let walk = Mutex::ranked(Rank::Walk, Walk::new(self));
        let (mut pairs, mut key) = (Vec::new(), Vec::new());
        while let Some(guard) = self.next_segment(ordered, &walk, &mut pairs)? {
            for (hash, word) in pairs.drain(..) {
                if self.read_key(ordered, hash, word, &mut key) && tree.get(&key)?.is_none() {
                    differs(BytesRef { bytes: &key, hash }, false, &guard);
                }
            }
        }
        let mut run = Run::new();
        let mut cursor = Cursor::new(tree, .., Direction::Ascending);
        loop {
            let guard = self.enter()?;
            run.clear();
            while run.len() < TOGETHER
                && let Some((key, hash)) = cursor.next()?
            {
                run.push(key, hash);
            }
            if run.is_empty() {
                return Ok(());
            }
            for (key, hash) in run.iter() {
                let key = BytesRef { bytes: key, hash };
                if self.inner.index.get(key, &guard)?.is_none() {
                    differs(key, true, &guard);
                }
            }
        }
    }

    /// Reports what is wrong with the ordered index, if it is ready. No other thread may change the
    /// store meanwhile.
    pub(crate) fn check_ordered(&self, problem: &mut dyn FnMut(String)) -> Result<()> {
        if let Some(order) = &self.inner.order {
            return self.check_order(order, problem);
        }
        let Some(ordered) = self.inner.ordered.as_ref().filter(|ordered| ordered.is_ready()) else {
            return Ok(());
        };
        let Some(tree) = self.settled_tree() else { return Ok(()) };
        tree.check().into_iter().for_each(|what| problem(format!("ordered index: {what}")));
        self.compare(ordered, tree, &mut |key, in_tree, _| {
            let what = if in_tree { "has a key that is not there" } else { "lacks a key" };
            problem(format!("ordered index: it {what}: \"{}\"", key.bytes.escape_ascii()));
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use evermap_pm::medium::{FlushKind, Mapped, Pages};
    use evermap_pm::region::Identity;

    use super::*;
    use crate::{Evermap, Options, OrderedUpdates};

    fn key_of(number: u32) -> [u8; 4] {
        number.wrapping_mul(0x9e37_79b1).to_be_bytes()
    }

    /// Keys come and go between the walk and the tree: as many as are kept, and far more.
    #[test]
    fn what_changed_meanwhile_is_made_up_for() {
        for (updates, changes) in [
            (OrderedUpdates::Batched, 300),
            (OrderedUpdates::Sync, 300),
            (OrderedUpdates::Batched, 20_000),
            (OrderedUpdates::Sync, 20_000),
        ] {
            let options = Options::new().capacity(64 << 20).ordered(true).ordered_updates(updates);
            // Without the thread that maintains it, which would be another handle.
            let medium = Mapped::anonymous(64 << 20, Pages::Base, FlushKind::Process).unwrap();
            let db = Evermap::create_medium(medium, Identity::default(), options).unwrap();
            let map = db.default_map();
            for number in 0..10_000 {
                map.put(key_of(number), b"before").unwrap();
            }
            // As if it had been opened now.
            drop(map);
            let mut db = db;
            let file = Arc::get_mut(&mut db.file).expect("this is the only handle");
            let map = Arc::get_mut(&mut file.default).expect("this is the only handle");
            map.ordered = Some(Ordered::new(updates, false).unwrap());
            let map = db.default_map();
            let ordered = map.inner.ordered.as_ref().unwrap();
            let tree = map.tree_of_index(ordered, 2).unwrap();
            assert_eq!(ordered.stat().keys_read, 10_000);
            for number in 0..changes {
                match number % 2 {
                    0 => assert!(map.delete(key_of(number / 2)).unwrap()),
                    _ => map.put(key_of(10_000 + number), b"meanwhile").unwrap(),
                }
            }
            let dropped = ordered.shards.iter().any(NoticeShard::has_dropped);
            assert_eq!(dropped, changes > 300);
            map.publish_tree(ordered, tree).unwrap();
            ordered.set_state(OrderedState::Ready(Duration::ZERO));
            let mut problems = Vec::new();
            map.check_ordered(&mut |problem| problems.push(problem)).unwrap();
            assert_eq!(problems, Vec::<String>::new(), "{updates:?} {changes}");
            assert_eq!(map.scan(..).unwrap().count() as u64, map.len());
        }
    }
}
