//! The table of the paper.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;
use std::sync::Arc;

use evermap_pm::{Domain, Guard, Result};

use super::heads::Heads;
use super::node::{Link, Node, NodeRef, Vacant, free, retire};
use super::published::Published;
use super::resizing::{self, Base};
use super::steps::Mistake;
use super::{
    Allowed, Config, Decision, Order, Place, ResizableTable, ResizeError, Shared, TableKey,
    TableStats, Unordered,
};

mod resize;
mod unzip;
mod walk;

use resize::{Run, Work};

/// A relativistic hash table: lookups are not affected by a resize, neither in their result nor in
/// what they do. See the [module](super).
///
/// Keys and values are never moved, so a reference from [`get`](Rp::get) is valid as long as its
/// guard.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use evermap_papers::relativistic::{Config, ResizableTable, Rp};
/// use evermap_pm::Domain;
///
/// let domain = Arc::new(Domain::new(Box::new(|_| {})));
/// let hasher = std::hash::RandomState::new();
/// let table: Rp<String, u64, _> = Rp::new(domain.clone(), hasher, Config::default()).unwrap();
/// let guard = domain.pin();
/// table.insert(&"one".to_string(), 1, &guard).unwrap();
/// assert_eq!(table.get("one", &guard), Some(&1));
/// drop(guard);
///
/// // The section of a thread that announces quiescent states: it stores nothing at all.
/// let mut reader = domain.register();
/// assert_eq!(table.get("one", reader.section()), Some(&1));
/// reader.quiescent();
/// ```
pub struct Rp<K: Shared, V: Shared, S, O: Order = Unordered> {
    table: Published<Heads<K, V>>,
    /// What updaters have to know about a running resize.
    work: Published<Work<K, V>>,
    base: Base<S, Run>,
    order: PhantomData<O>,
}

/// Where a key is in its chain, or would be.
struct Position<'s, K, V> {
    /// The link to the node, or the one where a new node is inserted.
    link: &'s Link<K, V>,
    node: Option<NodeRef<'s, K, V>>,
}

impl<K, V, S, O> Rp<K, V, S, O>
where
    K: TableKey,
    V: Shared,
    S: BuildHasher + Send + Sync,
    O: Order,
{
    /// Creates an empty table, whose readers use guards of `domain`.
    ///
    /// # Errors
    /// `NoSpace`; `Config` if the limits of the [policy](Config::policy) are not stable.
    pub fn new(domain: Arc<Domain>, hasher: S, config: Config) -> Result<Self> {
        let base = Base::new(domain, hasher, config)?;
        let heads = Self::new_heads(&base.config, base.config.buckets)?;
        Ok(Rp {
            table: Published::new(Some(heads)),
            work: Published::new(None),
            base,
            order: PhantomData,
        })
    }
}

impl<K: Shared, V: Shared, S, O: Order> Rp<K, V, S, O> {
    /// Creates an array that can be resized as the configuration says.
    fn new_heads(config: &Config, buckets: u64) -> Result<Box<Heads<K, V>>> {
        match (config.grow, config.shrink) {
            (Place::Same, _) => Heads::reserve(buckets, config.buckets_max),
            (Place::New, Place::Same) => Heads::reserve(buckets, buckets),
            (Place::New, Place::New) => Heads::new(buckets),
        }
    }

    #[inline(always)]
    fn heads<'s>(&self, guard: &'s Guard<'_>) -> &'s Heads<K, V> {
        self.table.load(guard).expect("a table has an array")
    }
}

impl<K, V, S, O> Rp<K, V, S, O>
where
    K: TableKey,
    V: Shared,
    S: BuildHasher + Send + Sync,
    O: Order,
{
    /// Returns the value of `key`. Wait-free: it follows one chain, whatever resizes and updates
    /// run, and stores nothing. O(chain), expected O(1).
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
        if self.base.planted.has(Mistake::LoadsTableTwice) {
            let mask = self.heads(guard).mask();
            let entry = self.heads(guard).get(hash & mask)?;
            return Some(&self.search(entry, O::place(hash), key, guard)?.get().value);
        }
        // The array and its mask are reached through one load.
        let entry = self.heads(guard).entry(hash);
        Some(&self.search(entry, O::place(hash), key, guard)?.get().value)
    }

    /// Returns the node of `key` in a chain, which may contain nodes of other buckets.
    #[inline(always)]
    fn search<'s, Q>(
        &self,
        entry: &Link<K, V>,
        place: u64,
        key: &Q,
        guard: &'s Guard<'_>,
    ) -> Option<NodeRef<'s, K, V>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let mut next = entry.follow(guard);
        while let Some(node) = next {
            if node.place == place && node.key.borrow() == key {
                return Some(node);
            }
            if O::SORTED && node.place > place {
                return None;
            }
            next = node.next.follow(guard);
        }
        None
    }

    /// Returns where `key` is, or would be. The caller has locked its stripe.
    fn find<'s>(
        &self,
        heads: &'s Heads<K, V>,
        hash: u64,
        key: &K,
        guard: &'s Guard<'_>,
    ) -> Position<'s, K, V> {
        let (place, mask) = (O::place(hash), heads.mask());
        let mut link = heads.head(hash & mask);
        let mut insert_at = (!O::SORTED).then_some(link);
        while let Some(node) = link.follow(guard) {
            if node.place == place && node.key == *key {
                return Position { link, node: Some(node) };
            }
            if O::SORTED && node.place >= place {
                // Before the nodes with the same hash, so that a walk that is among them does not
                // see a pair that is removed and inserted again.
                insert_at = insert_at.or(Some(link));
                if node.place > place {
                    break;
                }
            }
            if self.base.planted.has(Mistake::UniqueInPreciseChainOnly)
                && O::place(node.place) & mask != hash & mask
            {
                break;
            }
            link = &node.get().next;
        }
        Position { link: insert_at.unwrap_or(link), node: None }
    }

    /// Makes the change that `decide` returned. Returns the node that was unlinked, and how the
    /// number of pairs changes. The caller has locked the stripe.
    fn apply<'s>(
        &self,
        (hash, key): (u64, &K),
        position: &Position<'s, K, V>,
        decision: Decision<V>,
        vacant: Option<Vacant<K, V>>,
        guard: &'s Guard<'_>,
    ) -> Option<(Option<NodeRef<'s, K, V>>, i8)> {
        let work = self.work.load(guard);
        let fill = |vacant: Vacant<K, V>, next, value| {
            vacant.fill(next, (O::place(hash), key.clone(), value), guard)
        };
        let change = match (position.node, decision, vacant) {
            (None, Decision::Put(value), Some(vacant)) => {
                let node = fill(vacant, position.link.follow(guard), value);
                position.link.point_to(Some(node));
                (None, 1)
            }
            (Some(old), Decision::Put(value), Some(vacant)) => {
                let node = fill(vacant, old.next.follow(guard), value);
                self.redirect(work, hash, position.link, old, Some(node), guard);
                (Some(old), 0)
            }
            (Some(old), Decision::Remove, _) => {
                self.redirect(work, hash, position.link, old, old.next.follow(guard), guard);
                (Some(old), -1)
            }
            _ => return None,
        };
        if let Some(work) = work {
            self.link_again(work, hash, guard);
        }
        Some(change)
    }

    /// Unlinks a node: its place is taken by `to`, a new node or its successor.
    fn redirect(
        &self,
        work: Option<&Work<K, V>>,
        hash: u64,
        link: &Link<K, V>,
        old: NodeRef<'_, K, V>,
        to: Option<NodeRef<'_, K, V>>,
        guard: &Guard<'_>,
    ) {
        link.point_to(to);
        if let Some(work) = work.filter(|work| work.is_unzipping()) {
            self.redirect_zipped(work, hash, old, to, guard);
        }
    }

    /// Frees a node that was unlinked, after a grace period.
    fn retire(&self, node: NodeRef<'_, K, V>) {
        let planted = self.base.planted;
        if planted.has(Mistake::NodeFreedAtOnce) {
            // SAFETY: the test that plants this keeps what is freed.
            unsafe { free(node, true) };
            return;
        }
        // SAFETY: 1. every link that named it was redirected, under the lock of its stripe; those
        // of an array that is not current are followed by readers only that began before.
        // 2. under that lock it was found, and is not found again.
        unsafe { retire(node, &self.base.domain, planted.keeps()) };
    }
}

impl<K, V, S, O> ResizableTable<K, V> for Rp<K, V, S, O>
where
    K: TableKey,
    V: Shared,
    S: BuildHasher + Send + Sync,
    O: Order,
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
        let heads = self.heads(guard);
        let position = self.find(heads, hash, key, guard);
        if position.node.is_none() && allowed != Allowed::Anything {
            return Ok(());
        }
        // Before the decision, which has to be carried out then.
        let vacant = Vacant::if_needed(allowed)?;
        let decision = decide(position.node.as_ref().map(|node| &node.value));
        let change = self.apply((hash, key), &position, decision, vacant, guard);
        let Some((unlinked, difference)) = change else { return Ok(()) };
        if difference != 0 {
            stripe.count(difference > 0);
        }
        let (buckets, pairs) = (heads.buckets(), stripe.pairs());
        // Values may be dropped below, by this thread too: without the lock.
        drop(stripe);
        if let Some(node) = unlinked {
            self.retire(node);
        }
        resizing::maintain(self, buckets, pairs, difference > 0);
        Ok(())
    }

    fn for_each(&self, guard: &Guard<'_>, each: &mut dyn FnMut(&K, &V) -> bool) {
        self.base.check(guard);
        self.walk(guard, each);
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

impl<K: Shared, V: Shared, S, O: Order> Drop for Rp<K, V, S, O> {
    fn drop(&mut self) {
        if self.base.planted.keeps() {
            // A planted mistake may have left anything in the chains.
            return;
        }
        self.finish_alone();
        let guard = self.base.domain.pin();
        let Some(heads) = self.table.load(&guard) else { return };
        for bucket in 0..heads.buckets() {
            let mut next = heads.head(bucket).follow(&guard);
            while let Some(node) = next {
                next = node.next.follow(&guard);
                // SAFETY: no resize is running, so each node is in one chain, and no other thread
                // uses the table. It is not retired, because it is linked.
                unsafe { free(node, false) };
            }
        }
    }
}
