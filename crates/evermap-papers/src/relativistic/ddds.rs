//! Dynamic dynamic data structures: Piggin's way to resize a table whose lookups take no lock.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use evermap_pm::epoch::GracePeriod;
use evermap_pm::sync::Backoff;
use evermap_pm::{Domain, Guard, Result};

use super::chain;
use super::heads::Heads;
use super::node::{Node, NodeRef, Vacant, free, retire};
use super::published::{Alias, Published};
use super::resizing::{self, Base, Outcome, Resizes};
use super::steps::{Mistake, load_step, store_step};
use super::{
    Allowed, Config, Decision, Effort, Progress, ResizableTable, ResizeError, Shared, Stage,
    TableKey, TableStats,
};

/// A table whose nodes are moved one by one when it is resized.
///
/// A lookup asks first whether there is an old array. If not, it searches one chain. Otherwise it
/// searches the new array and then the old one, and repeats both if it finds nothing and a node was
/// moved meanwhile, which a sequence counter tells. So lookups are not wait-free, and each miss,
/// and each hit in the old array, costs two searches while the table is resized. After "Dynamic
/// Dynamic Data Structures" (Piggin, 2008) as section 5 of the paper describes it.
pub struct Ddds<K: Shared, V: Shared, S> {
    table: Published<Heads<K, V>>,
    /// The array from which nodes are being moved, from a grace period before the first one is
    /// moved until the last one is.
    old: Alias<Heads<K, V>>,
    /// Odd while a node is being moved. On a line of its own, because it changes with each.
    sequence: Box<Sequence>,
    base: Base<S, Run<K, V>>,
}

#[repr(align(128))]
#[derive(Default)]
struct Sequence(AtomicU64);

/// A running resize.
pub(super) struct Run<K, V> {
    from: u64,
    to: u64,
    at: At,
    effort: Effort,
    /// The new array, before it is published, and the old one, after that.
    side: Published<Heads<K, V>>,
    /// No other thread uses the table.
    alone: bool,
}

/// What a running resize does next.
#[derive(Clone, Copy)]
enum At {
    /// Publish the new array, when every lookup knows that there is an old one.
    Announced(GracePeriod),
    /// Move the nodes of this bucket of the old array.
    Move(u64),
}

/// Where a key was found, or would be inserted.
struct Found<'s, K, V> {
    position: chain::Position<'s, K, V>,
    /// The buckets of the current array.
    buckets: u64,
}

impl Sequence {
    /// Returns the number before an attempt to look up. Waits while a node is being moved.
    fn begin_read(&self) -> u64 {
        let mut backoff = Backoff::new();
        loop {
            load_step();
            // Acquire: loads of the attempt happen later.
            let number = self.0.load(Acquire);
            if number.is_multiple_of(2) {
                return number;
            }
            backoff.wait();
        }
    }

    /// Returns `true` if no node was moved since `number` was read.
    fn is_unchanged(&self, number: u64) -> bool {
        // The loads of the attempt happen before the next one.
        fence(Acquire);
        load_step();
        self.0.load(Relaxed) == number
    }

    /// Calls `step` such that attempts to look up that overlap with it are noticed. One thread at a
    /// time.
    fn write(&self, step: impl FnOnce()) {
        let number = self.0.load(Relaxed);
        self.0.store(number + 1, Relaxed);
        store_step();
        // A reader that sees what `step` stores also sees the odd number.
        fence(Release);
        step();
        // Release: a reader that sees this number sees what `step` stored.
        self.0.store(number + 2, Release);
        store_step();
    }
}

impl<K: TableKey, V: Shared, S: BuildHasher + Send + Sync> Ddds<K, V, S> {
    /// Creates an empty table, whose readers use guards of `domain`. [`Config::grow`] and
    /// [`Config::shrink`] do not matter: it is always resized to a new array.
    ///
    /// # Errors
    /// `NoSpace`; `Config` if the limits of the [policy](Config::policy) are not stable.
    pub fn new(domain: Arc<Domain>, hasher: S, config: Config) -> Result<Self> {
        let base = Base::new(domain, hasher, config)?;
        let heads = Heads::new(base.config.buckets)?;
        Ok(Ddds {
            table: Published::new(Some(heads)),
            old: Alias::new(),
            sequence: Box::default(),
            base,
        })
    }

    /// Returns the value of `key`. O(chain), expected O(1), but repeats without a bound while a
    /// resize moves nodes.
    ///
    /// # Panics
    /// If the guard is one of another domain.
    #[inline]
    pub fn get<'s, Q>(&self, key: &Q, guard: &'s Guard<'_>) -> Option<&'s V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.base.check(guard);
        let hash = self.base.hash(key);
        let found = match self.old.load(guard) {
            None => chain::search(self.heads(guard).entry(hash), hash, key, guard),
            Some(_) => self.search_both(hash, key, guard),
        };
        found.map(|node| &node.get().value)
    }

    /// Looks up a key while the table is resized.
    #[cold]
    #[inline(never)]
    fn search_both<'s, Q>(
        &self,
        hash: u64,
        key: &Q,
        guard: &'s Guard<'_>,
    ) -> Option<NodeRef<'s, K, V>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        loop {
            let number = self.sequence.begin_read();
            let new = self.heads(guard);
            if let Some(node) = chain::search(new.entry(hash), hash, key, guard) {
                return Some(node);
            }
            if let Some(old) = self.old.load(guard)
                && let Some(node) = chain::search(old.entry(hash), hash, key, guard)
            {
                return Some(node);
            }
            // If none was moved, the key was in neither array, or a chain led astray only after it
            // had been searched.
            if self.sequence.is_unchanged(number) || self.base.planted.has(Mistake::NoRetry) {
                return None;
            }
        }
    }

    /// Returns where a key is. The caller has locked its stripe.
    fn find<'s>(&self, hash: u64, key: &K, guard: &'s Guard<'_>) -> Found<'s, K, V> {
        let heads = self.heads(guard);
        let buckets = heads.buckets();
        let position = chain::find(heads.entry(hash), hash, key, guard);
        if position.node.is_none()
            && let Some(old) = self.old.load(guard)
        {
            let in_old = chain::find(old.entry(hash), hash, key, guard);
            if in_old.node.is_some() {
                return Found { position: in_old, buckets };
            }
        }
        // What is new goes to the new array.
        Found { position, buckets }
    }
}

impl<K: Shared, V: Shared, S> Ddds<K, V, S> {
    #[inline(always)]
    fn heads<'s>(&self, guard: &'s Guard<'_>) -> &'s Heads<K, V> {
        self.table.load(guard).expect("a table has an array")
    }

    /// Publishes the new array. Nothing is moved yet, so lookups find everything in the old one.
    fn publish(&self, run: &mut Run<K, V>) {
        // Updates that search both arrays see either both or one.
        let _all = self.base.stripes.lock_all();
        self.table.exchange(&run.side);
    }

    /// Moves all nodes of one bucket of the old array.
    fn move_bucket(&self, run: &Run<K, V>, bucket: u64, guard: &Guard<'_>) -> u64 {
        let _lock = self.base.stripes.lock(bucket);
        let (Some(old), new) = (run.side.load(guard), self.heads(guard)) else { return 0 };
        let (from, mut moved) = (old.head(bucket), 0);
        while let Some(node) = from.follow(guard) {
            let to = new.entry(node.place);
            self.sequence.write(|| {
                from.point_to(node.next.follow(guard));
                node.next.point_to(to.follow(guard));
                to.point_to(Some(node));
            });
            moved += 1;
        }
        moved
    }

    /// Ends a resize: no node is in the old array any more.
    fn finish(&self, run: &Run<K, V>) {
        self.old.clear();
        if let Some(old) = run.side.replace(None) {
            old.after_grace_period(&self.base.domain, run.from as usize * size_of::<usize>());
        }
    }
}

impl<K: Shared, V: Shared, S> Resizes for Ddds<K, V, S> {
    type Hasher = S;
    type Run = Run<K, V>;

    fn base(&self) -> &Base<S, Run<K, V>> {
        &self.base
    }

    fn buckets(&self) -> u64 {
        self.heads(&self.base.domain.pin()).buckets()
    }

    fn begin(&self, to: u64) -> Result<Run<K, V>> {
        let side = Published::new(Some(Heads::new(to)?));
        let from = self.buckets();
        // SAFETY: the array is retired by `finish`, which clears this first.
        unsafe { self.old.set(&self.table) };
        let mut effort = Effort::default();
        let at = At::Announced(self.base.start(&mut effort));
        Ok(Run { from, to, at, effort, side, alone: false })
    }

    fn advance(&self, run: &mut Run<K, V>, budget: &mut u64) -> Outcome {
        if let At::Announced(period) = run.at {
            if !run.alone && !self.base.is_over(period, Mistake::NotAnnounced) {
                return Outcome::Waiting;
            }
            self.publish(run);
            run.at = At::Move(0);
        }
        let guard = self.base.domain.pin();
        while let At::Move(bucket) = run.at {
            if bucket == run.from {
                break;
            }
            if *budget == 0 {
                return Outcome::Unfinished;
            }
            *budget -= 1;
            run.effort.steps += self.move_bucket(run, bucket, &guard);
            run.at = At::Move(bucket + 1);
        }
        run.effort.passes = 1;
        self.finish(run);
        Outcome::Done
    }

    fn progress(run: &Run<K, V>) -> Progress {
        let stage = match run.at {
            At::Announced(_) => Stage::Waiting,
            At::Move(done) => Stage::Splitting { done, of: run.from },
        };
        Progress { from: run.from, to: run.to, stage, effort: run.effort }
    }
}

impl<K, V, S> ResizableTable<K, V> for Ddds<K, V, S>
where
    K: TableKey,
    V: Shared,
    S: BuildHasher + Send + Sync,
{
    fn domain(&self) -> &Arc<Domain> {
        &self.base.domain
    }

    #[inline]
    fn with<R>(&self, key: &K, guard: &Guard<'_>, read: impl FnOnce(&V) -> R) -> Option<R> {
        self.get(key, guard).map(read)
    }

    fn change(
        &self,
        key: &K,
        allowed: Allowed,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<&V>) -> Decision<V>,
    ) -> Result<()> {
        self.base.check(guard);
        let hash = self.base.hash(key);
        let stripe = self.base.stripes.lock(hash);
        let Found { position, buckets } = self.find(hash, key, guard);
        if position.node.is_none() && allowed != Allowed::Anything {
            return Ok(());
        }
        // Before the decision, which has to be carried out then.
        let vacant = Vacant::if_needed(allowed)?;
        let decision = decide(position.node.as_ref().map(|node| &node.value));
        let applied = position.apply(decision, vacant, |value| (hash, key.clone(), value), guard);
        let Some(applied) = applied else { return Ok(()) };
        if applied.difference != 0 {
            stripe.count(applied.difference > 0);
        }
        let pairs = stripe.pairs();
        drop(stripe);
        if let Some(node) = applied.unlinked {
            // SAFETY: 1. the only link that named it was redirected under the lock of its stripe,
            // which moving nodes takes too. 2. it was found there, and is not found again.
            unsafe { retire(node, &self.base.domain, self.base.planted.keeps()) };
        }
        resizing::maintain(self, buckets, pairs, applied.difference > 0);
        Ok(())
    }

    fn for_each(&self, guard: &Guard<'_>, each: &mut dyn FnMut(&K, &V) -> bool) {
        self.base.check(guard);
        // While a resize stands still, a pair that stays is in one array. What is inserted comes
        // into the new array, before what the walk has passed there.
        let stopped = self.base.stop_resizing();
        let moving = stopped.as_ref().filter(|run| matches!(run.at, At::Move(_)));
        let old = moving.and_then(|run| run.side.load(guard));
        for heads in [Some(self.heads(guard)), old].into_iter().flatten() {
            if !chain::for_each(heads, guard, each) {
                return;
            }
        }
    }

    fn resize(&self, buckets: u64) -> std::result::Result<(), ResizeError> {
        resizing::resize(self, buckets)
    }

    fn help(&self) -> bool {
        resizing::help(self)
    }

    fn stats(&self) -> TableStats {
        let stats = resizing::stats(self);
        let arrays = self.heads(&self.base.domain.pin()).bytes() as u64;
        let bytes = arrays + stats.pairs * size_of::<Node<K, V>>() as u64;
        TableStats { bytes, ..stats }
    }
}

impl<K: Shared, V: Shared, S> Drop for Ddds<K, V, S> {
    fn drop(&mut self) {
        if self.base.planted.keeps() {
            // A planted mistake may have left anything in the chains.
            return;
        }
        if let Some(mut run) = self.base.take_run() {
            run.alone = true;
            while self.advance(&mut run, &mut { u64::MAX }) != Outcome::Done {}
        }
        let guard = self.base.domain.pin();
        let Some(heads) = self.table.load(&guard) else { return };
        chain::each_node(heads, &guard, |node| {
            // SAFETY: no resize is running, so each node is in one chain, and no other thread uses
            // the table. It is not retired, because it is linked.
            unsafe { free(node, false) };
        });
    }
}
