//! A table under one reader-writer lock: what lookups and resizes were synchronised with before.

use std::hash::BuildHasher;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use evermap_pm::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use evermap_pm::{Domain, Guard, Result};

use super::chain;
use super::heads::Heads;
use super::node::{Node, Vacant, free};
use super::steps::Planted;
use super::{
    Allowed, Config, Decision, Effort, ResizableTable, ResizeError, Shared, TableKey, TableStats,
    check_guard, hash_of,
};

/// A table whose lookups take a lock for reading, and whose updates and resizes take it for
/// writing.
///
/// A resize moves all nodes at once, and a grace period is never needed: a writer is alone. A
/// lookup cannot run beside it, and two lookups, which could, still both write to the lock. Section
/// 5 of the paper calls it the best known method based on mutual exclusion.
pub struct RwLockTable<K: Shared, V: Shared, S> {
    heads: RwLock<Box<Heads<K, V>>>,
    domain: Arc<Domain>,
    hasher: S,
    config: Config,
    planted: Planted,
    counters: Box<Counters>,
}

/// In memory of their own, because they change.
#[derive(Default)]
struct Counters {
    pairs: AtomicU64,
    expansions: AtomicU64,
    shrinks: AtomicU64,
    /// The nodes that were moved by the last shrink, and by the last expansion.
    moved: [AtomicU64; 2],
}

impl<K: TableKey, V: Shared, S: BuildHasher + Send + Sync> RwLockTable<K, V, S> {
    /// Creates an empty table. It does not need the guards of `domain`, but wants them as the other
    /// tables do. [`Config::grow`], [`Config::shrink`] and [`Config::stripes`] do not matter.
    ///
    /// # Errors
    /// `NoSpace`; `Config` if the limits of the [policy](Config::policy) are not stable.
    pub fn new(domain: Arc<Domain>, hasher: S, config: Config) -> Result<Self> {
        let config = config.checked()?;
        Ok(RwLockTable {
            heads: RwLock::new(Heads::new(config.buckets)?),
            domain,
            hasher,
            config,
            planted: Planted::current(),
            counters: Box::default(),
        })
    }

    // A panic of a closure or a comparison leaves the chains as they should be.

    fn read(&self) -> RwLockReadGuard<'_, Box<Heads<K, V>>> {
        self.heads.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Box<Heads<K, V>>> {
        self.heads.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves all nodes to an array of another size.
    ///
    /// # Errors
    /// `NoSpace`.
    fn move_all(&self, heads: &mut Box<Heads<K, V>>, to: u64, guard: &Guard<'_>) -> Result<()> {
        let from = heads.buckets();
        let new = Heads::new(to)?;
        let mut moved = 0;
        chain::each_node(heads, guard, |node| {
            let head = new.entry(node.place);
            node.next.point_to(head.follow(guard));
            head.point_to(Some(node));
            moved += 1;
        });
        **heads = *new;
        // Relaxed, here and below: numbers for statistics, and changed under the lock.
        let counters = &self.counters;
        let resizes = if to > from { &counters.expansions } else { &counters.shrinks };
        resizes.fetch_add(1, Relaxed);
        counters.moved[usize::from(to > from)].store(moved, Relaxed);
        Ok(())
    }

    /// Resizes the table if the policy wants it.
    fn maintain(&self, heads: &mut Box<Heads<K, V>>, added: bool, guard: &Guard<'_>) {
        let Some(policy) = self.config.policy else { return };
        let (pairs, buckets) = (self.counters.pairs.load(Relaxed), heads.buckets());
        let grows = added && policy.wants_growth(pairs, buckets);
        let shrinks = !added && policy.wants_shrinkage(pairs, buckets);
        let to = match (grows, shrinks) {
            (true, _) if buckets < self.config.buckets_max => buckets * 2,
            (_, true) if buckets > self.config.buckets_min => buckets / 2,
            _ => return,
        };
        // If there is no memory, the table stays as it is, and a later update tries again.
        let _ = self.move_all(heads, to, guard);
    }
}

impl<K, V, S> ResizableTable<K, V> for RwLockTable<K, V, S>
where
    K: TableKey,
    V: Shared,
    S: BuildHasher + Send + Sync,
{
    fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    #[inline]
    fn with<R>(&self, key: &K, guard: &Guard<'_>, read: impl FnOnce(&V) -> R) -> Option<R> {
        check_guard(guard, &self.domain);
        let hash = hash_of(&self.hasher, key);
        let heads = self.read();
        let node = chain::search(heads.entry(hash), hash, key, guard)?;
        Some(read(&node.value))
    }

    fn change(
        &self,
        key: &K,
        allowed: Allowed,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<&V>) -> Decision<V>,
    ) -> Result<()> {
        check_guard(guard, &self.domain);
        let hash = hash_of(&self.hasher, key);
        let mut heads = self.write();
        let position = chain::find(heads.entry(hash), hash, key, guard);
        if position.node.is_none() && allowed != Allowed::Anything {
            return Ok(());
        }
        let vacant = Vacant::if_needed(allowed)?;
        let decision = decide(position.node.as_ref().map(|node| &node.value));
        let applied = position.apply(decision, vacant, |value| (hash, key.clone(), value), guard);
        let Some(applied) = applied else { return Ok(()) };
        let chain::Applied { unlinked, difference } = applied;
        if let Some(node) = unlinked {
            // SAFETY: the only link that named it was redirected, and no other thread is in the
            // table, nor has a reference from it: those end with the lock.
            unsafe { free(node, self.planted.keeps()) };
        }
        if difference != 0 {
            let pairs = self.counters.pairs.load(Relaxed);
            let pairs = pairs.wrapping_add_signed(i64::from(difference));
            self.counters.pairs.store(pairs, Relaxed);
            self.maintain(&mut heads, difference > 0, guard);
        }
        Ok(())
    }

    fn for_each(&self, guard: &Guard<'_>, each: &mut dyn FnMut(&K, &V) -> bool) {
        check_guard(guard, &self.domain);
        chain::for_each(&self.read(), guard, each);
    }

    fn resize(&self, buckets: u64) -> std::result::Result<(), ResizeError> {
        let Config { buckets_min, buckets_max, .. } = self.config;
        let target = buckets.clamp(buckets_min, buckets_max).next_power_of_two();
        let guard = self.domain.pin();
        loop {
            let mut heads = self.write();
            let now = heads.buckets();
            if now == target {
                return Ok(());
            }
            let to = if now < target { now * 2 } else { now / 2 };
            self.move_all(&mut heads, to, &guard).map_err(ResizeError::NoSpace)?;
        }
    }

    /// A resize is done when it returns, so there is none to help with.
    fn help(&self) -> bool {
        false
    }

    fn stats(&self) -> TableStats {
        let heads = self.read();
        let (counters, pairs) = (&self.counters, self.counters.pairs.load(Relaxed));
        let effort = |grew: bool| {
            let steps = counters.moved[usize::from(grew)].load(Relaxed);
            Effort { steps, passes: 1, ..Effort::default() }
        };
        TableStats {
            pairs,
            buckets: heads.buckets(),
            bytes: heads.bytes() as u64 + pairs * size_of::<Node<K, V>>() as u64,
            expansions: counters.expansions.load(Relaxed),
            shrinks: counters.shrinks.load(Relaxed),
            last_expansion: effort(true),
            last_shrink: effort(false),
            ..TableStats::default()
        }
    }
}

impl<K: Shared, V: Shared, S> Drop for RwLockTable<K, V, S> {
    fn drop(&mut self) {
        let guard = self.domain.pin();
        let heads = self.heads.read().unwrap_or_else(PoisonError::into_inner);
        chain::each_node(&heads, &guard, |node| {
            // SAFETY: each node is in one chain, and no other thread uses the table.
            unsafe { free(node, false) };
        });
    }
}
