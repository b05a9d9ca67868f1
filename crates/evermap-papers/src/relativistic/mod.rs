//! Relativistic hash tables, and the tables that they were compared with: a reproduction.
//!
//! After "Resizable, Scalable, Concurrent Hash Tables via Relativistic Programming" (Triplett,
//! McKenney, Walpole; USENIX ATC 2011). A table is resized while lookups run, which neither wait
//! nor repeat, store nothing, and never miss a key that is present:
//!
//! | type | lookups | a resize |
//! |---|---|---|
//! | [`Rp`] | one chain, nothing else | moves no node: chains are *unzipped*, or linked together |
//! | [`RpSorted`] | the same | the same in sorted chains: one wait for readers to double |
//! | [`Ddds`] | while it is resized, both arrays, repeated if a node was moved | moves all nodes |
//! | [`RwLockTable`] | under a read lock | excludes all lookups |
//!
//! All of them are [`ResizableTable`]s over the same nodes, hash, allocator and locks of updaters,
//! so what they differ in is the algorithm. They are volatile: the index beside them that persists
//! is P-CLHT. [`Words`] makes an [`Index`](evermap_index::Index) of any of them.
//!
//! # Patents
//!
//! IBM holds US patents 8,788,543, 9,009,122 and 9,015,133, granted in 2014 and 2015, whose claims
//! read closely on resizing a linked hash table without copying, as [`Rp`] does. A grant that
//! covers this licence is not known, nor when they expire. So this module is for reproducing the
//! paper: it is behind the feature `relativistic`, which is off by default and which the server
//! does not enable. Tables that are split by a cut of a sorted list have older publications (Shalev
//! and Shavit, 2003); this is no legal advice about [`RpSorted`] either.
//!
//! # Limits
//!
//! No resize can change the hash function: nodes stay where they are in their chains. Against keys
//! that are chosen to collide, a table needs a hasher with a secret seed from the start. An array
//! is one allocation, whose pages the system provides and zeroes when it is first filled.
//!
//! # How a table grows
//!
//! The chain of a bucket contains all nodes that belong to it, and for a while also others: it is
//! *imprecise*. A lookup does not notice, because it compares whole keys. When the number of
//! buckets is doubled, both new buckets begin in the old chain, each at its first node, and the new
//! array is published:
//!
//! ```text
//! A ──▶ a1 ─▶ a2 ─▶ b1 ─▶ b2 ─▶ a3 ─▶ b3      zipped: both chains are complete
//! B ────────────────▲
//! ```
//!
//! When no reader uses the old array any more, the chains are unzipped. A pass changes one link in
//! each old chain: the last node of a run skips the run behind it.
//!
//! ```text
//! A ──▶ a1 ─▶ a2 ───────╮
//!                       ▼                     first pass: a2 skips b1 and b2
//! B ──▶ b1 ─▶ b2 ─────▶ a3 ─▶ b3
//!
//! A ──▶ a1 ─▶ a2 ─▶ a3 ─╮
//!                       ▼                     second pass: b2 skips a3
//! B ──▶ b1 ─▶ b2 ─────▶ b3
//!
//! A ──▶ a1 ─▶ a2 ─▶ a3                        third pass: a3 skips b3, which ends the chain
//! B ──▶ b1 ─▶ b2 ─▶ b3
//! ```
//!
//! A reader of `A` that came through the old link of `a2` may be among the nodes of `B`, and
//! depends on the link from `b2` back to `a3`. So a grace period separates the passes: each changes
//! only links that no reader of the other bucket can reach any more. The *auxiliary pointer* of the
//! old bucket says where its next pass begins. It is the old head itself, which no reader uses
//! then.
//!
//! A table shrinks by linking the end of one chain to the beginning of the other, which makes it
//! imprecise for good, and then publishing half of the array. That needs no wait but for the
//! memory. [In place](Place), the array stays where it is and only the mask changes, so that grace
//! periods order the stores: the links before the mask, and the mask before the upper half is gone.
//!
//! # Updates while a table grows
//!
//! Updaters lock a stripe of buckets that both new buckets share. One node of a zipped chain is
//! named by two links: the *convergence node*, where the two chains come together. Whatever is
//! removed or replaced is redirected in both chains, and at the auxiliary pointer. If that ends a
//! run, the other bucket's chain no longer begins behind the run at the auxiliary pointer: then the
//! next pass finds the convergence node from the heads, and makes the chain that is imprecise there
//! skip the run first (`rp/unzip.rs`). The paper only says that the auxiliary pointer has to be
//! updated; if it merely advances, nodes are lost.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use evermap_pm::epoch::WaitError;
use evermap_pm::{Domain, Error, Guard, Result};

mod bits;
mod chain;
mod ddds;
mod heads;
mod node;
mod order;
mod policy;
mod published;
mod resizing;
mod rp;
mod rwlock;
mod steps;
mod stripes;
#[cfg(test)]
mod tests;
mod words;

pub use ddds::Ddds;
pub use order::{Order, SplitOrder, Unordered};
pub use policy::Policy;
pub use rp::Rp;
pub use rwlock::RwLockTable;
pub use words::{KeyHash, KeyHasher, Words};

/// The table of the paper with sorted chains.
pub type RpSorted<K, V, S> = Rp<K, V, S, SplitOrder>;

/// Where the array of a resized table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a new array.
    New,
    /// In the same one, which has space for [`Config::buckets_max`] buckets, or is cut.
    Same,
}

/// The configuration of a table.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The number of buckets of an empty table: rounded up to a power of two.
    pub buckets: u64,
    /// The least number of buckets that a resize leaves: at most [`buckets`](Self::buckets).
    pub buckets_min: u64,
    /// The largest number of buckets. If a table grows in place, address space is reserved for it.
    pub buckets_max: u64,
    /// The number of locks of updaters, as far as there are buckets.
    pub stripes: u64,
    /// How [`Rp`] grows.
    pub grow: Place,
    /// How [`Rp`] shrinks.
    pub shrink: Place,
    /// When the table resizes itself, or `None` if only [`resize`](ResizableTable::resize) does it.
    pub policy: Option<Policy>,
}

impl Default for Config {
    /// 64 buckets and more, as pairs come, in a new array each time.
    fn default() -> Self {
        Config {
            buckets: 64,
            buckets_min: 64,
            buckets_max: 1 << 32,
            stripes: 64,
            grow: Place::New,
            shrink: Place::New,
            policy: Some(Policy::default()),
        }
    }
}

impl Config {
    /// The configuration of the paper's benchmark: in place to shrink and in a new array to grow,
    /// when [`resize`](ResizableTable::resize) is called and only then.
    pub fn paper(buckets: u64) -> Self {
        Config {
            buckets,
            buckets_min: buckets,
            shrink: Place::Same,
            policy: None,
            ..Self::default()
        }
    }

    /// Returns the configuration with all numbers in range.
    fn checked(self) -> Result<Self> {
        const MOST: u64 = 1 << 44;
        if self.policy.is_some_and(|policy| !policy.is_stable()) {
            let text = "a table that shrinks must not grow again at once: see Policy".into();
            return Err(evermap_pm::ErrorKind::Config(text).into());
        }
        let power = |number: u64| number.clamp(1, MOST).next_power_of_two();
        let (buckets, least) = (power(self.buckets), power(self.buckets_min));
        let buckets_min = least.min(buckets);
        Ok(Config {
            buckets,
            buckets_min,
            buckets_max: power(self.buckets_max).max(buckets),
            // Each stripe has at least one bucket, even if the table is as small as it gets.
            stripes: power(self.stripes).min(buckets_min).min(1 << 16),
            ..self
        })
    }
}

/// Why a table could not be resized.
#[derive(Debug)]
#[non_exhaustive]
pub enum ResizeError {
    /// The caller cannot wait for readers. The resize goes on with the next updates.
    Wait(WaitError),
    /// There is no memory for the new array. Nothing was changed.
    NoSpace(Error),
}

impl fmt::Display for ResizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResizeError::Wait(error) => error.fmt(f),
            ResizeError::NoSpace(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ResizeError {}

/// What a caller decides about a key, given its value: see [`ResizableTable::change`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision<V> {
    /// Change nothing.
    Keep,
    /// Bind the key to this value.
    Put(V),
    /// Remove the key.
    Remove,
}

/// What a caller may decide, so that no memory is allocated needlessly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Anything, whether or not the key is present.
    Anything,
    /// Anything, if the key is present. Otherwise the caller is not asked.
    Existing,
    /// To keep or to remove a key that is present. A value to put is ignored.
    Removal,
}

/// The size and the past of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableStats {
    /// The number of pairs. Approximate while there are updates.
    pub pairs: u64,
    /// The number of buckets.
    pub buckets: u64,
    /// Bytes of arrays and nodes, without what keys and values own.
    pub bytes: u64,
    /// The resize that is running.
    pub resizing: Option<Progress>,
    /// The number of times that the table has doubled.
    pub expansions: u64,
    /// The number of times that the table has halved.
    pub shrinks: u64,
    /// The number of grace periods that resizes have waited for, so that readers see their stores
    /// in order. Those after which memory is freed are not counted: no resize waits for them.
    pub grace_periods: u64,
    /// The last expansion.
    pub last_expansion: Effort,
    /// The last shrink.
    pub last_shrink: Effort,
    /// The largest number of grace periods of any expansion.
    pub grace_periods_max: u64,
}

/// What a resize took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effort {
    /// The number of grace periods that it waited for.
    pub grace_periods: u64,
    /// The number of passes over the chains that were not unzipped yet.
    pub passes: u64,
    /// The number of links that were changed to unzip chains, or of nodes that were moved.
    pub steps: u64,
}

/// How far a running resize is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The number of buckets before.
    pub from: u64,
    /// The number of buckets after.
    pub to: u64,
    /// What it is doing.
    pub stage: Stage,
    /// What it has taken so far.
    pub effort: Effort,
}

/// What a resize is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It fills the new heads, or links chains together.
    Linking {
        /// The buckets that it has processed.
        done: u64,
        /// The buckets that it has to process.
        of: u64,
    },
    /// It waits for readers.
    Waiting,
    /// It unzips chains, or moves nodes.
    Splitting {
        /// The bucket where it is.
        done: u64,
        /// The number of buckets.
        of: u64,
    },
}

/// A hash table in ordinary memory that can be resized while it is used.
///
/// Lookups and updates take a guard of the table's [domain](Self::domain): one of
/// [`Domain::pin`], or a section of a [registered](Domain::register) reader, which costs nothing.
///
/// Pairs that are removed or replaced are dropped a grace period later, by any thread that updates
/// a table of this domain. So dropping a key or a value must not use a table. An update cannot wait
/// for the readers that hold up the memory, because it holds a guard itself: a caller that wants to
/// limit what waits [asks](Domain::is_backed_up) the domain between two updates.
///
/// # Panics
///
/// All operations that take a guard panic if it is one of another domain.
pub trait ResizableTable<K, V>: Send + Sync {
    /// Returns the domain whose guards protect readers of the table.
    fn domain(&self) -> &Arc<Domain>;

    /// Calls `read` with the value of `key`, and returns its result, or `None` if the key is
    /// absent.
    ///
    /// `read` must not use the table: some tables hold a lock meanwhile.
    fn with<R>(&self, key: &K, guard: &Guard<'_>, read: impl FnOnce(&V) -> R) -> Option<R>;

    /// The general update: calls `decide` with the value of the key while it is locked, and carries
    /// out what it returns. `decide` is called at most once, and only if what it may decide can be
    /// carried out. It must neither panic nor use the table.
    ///
    /// # Errors
    /// `NoSpace`. Nothing was changed then, and `decide` was not called.
    fn change(
        &self,
        key: &K,
        allowed: Allowed,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<&V>) -> Decision<V>,
    ) -> Result<()>;

    /// Calls `each` with every pair, until it returns `false`. A pair that is present throughout is
    /// shown exactly once, and any other at most once. `each` must not use the table.
    ///
    /// The guard is held for the whole walk, so a resize does not get past its next wait meanwhile;
    /// that of [`Ddds`] stands still, and in [`RwLockTable`] everything but lookups does. See also
    /// [`scan`](RpSorted::scan).
    fn for_each(&self, guard: &Guard<'_>, each: &mut dyn FnMut(&K, &V) -> bool);

    /// Changes the number of buckets to `buckets`, rounded up to a power of two and within the
    /// limits of the [configuration](Config), by doubling or halving as often as necessary. Waits
    /// for readers. If another resize is running, takes part in it first.
    ///
    /// # Errors
    /// [`Wait`](ResizeError::Wait) if the calling thread holds a guard of the domain, or is an
    /// online reader of it; [`NoSpace`](ResizeError::NoSpace).
    fn resize(&self, buckets: u64) -> std::result::Result<(), ResizeError>;

    /// Takes part in the resize that is running, if there is one, without waiting: for event loops.
    /// Returns `true` if a resize is still running afterwards. Updates do the same by themselves.
    fn help(&self) -> bool;

    /// Returns the size and the past of the table. O(locks), and waits for the current step of a
    /// running resize.
    fn stats(&self) -> TableStats;

    /// Returns a copy of the value of `key`.
    fn get_copied(&self, key: &K, guard: &Guard<'_>) -> Option<V>
    where
        V: Copy,
    {
        self.with(key, guard, |value| *value)
    }

    /// Binds `key` to `value` if it is absent. Returns `true` if it was.
    ///
    /// # Errors
    /// `NoSpace`.
    fn insert(&self, key: &K, value: V, guard: &Guard<'_>) -> Result<bool> {
        let mut value = Some(value);
        let mut absent = false;
        self.change(key, Allowed::Anything, guard, &mut |old| match old {
            Some(_) => Decision::Keep,
            None => {
                absent = true;
                value.take().map_or(Decision::Keep, Decision::Put)
            }
        })?;
        Ok(absent)
    }

    /// Binds `key` to `value`. Returns `true` if it was absent.
    ///
    /// # Errors
    /// `NoSpace`.
    fn upsert(&self, key: &K, value: V, guard: &Guard<'_>) -> Result<bool> {
        let mut value = Some(value);
        let mut absent = false;
        self.change(key, Allowed::Anything, guard, &mut |old| {
            absent = old.is_none();
            value.take().map_or(Decision::Keep, Decision::Put)
        })?;
        Ok(absent)
    }

    /// Removes `key`. Returns `true` if it was present.
    ///
    /// # Errors
    /// None: removing needs no memory. The result is that of [`change`](Self::change).
    fn remove(&self, key: &K, guard: &Guard<'_>) -> Result<bool> {
        let mut present = false;
        self.change(key, Allowed::Removal, guard, &mut |old| {
            present = old.is_some();
            Decision::Remove
        })?;
        Ok(present)
    }
}

/// Uses integer keys as their own hashes, as the paper's benchmark does: consecutive keys then make
/// chains of equal length.
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity;

/// The hasher of [`Identity`].
#[derive(Clone, Copy, Debug, Default)]
pub struct IdentityHasher(u64);

impl BuildHasher for Identity {
    type Hasher = IdentityHasher;

    #[inline(always)]
    fn build_hasher(&self) -> IdentityHasher {
        IdentityHasher(0)
    }
}

impl Hasher for IdentityHasher {
    /// The last bytes, as a number.
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, &byte| hash << 8 | u64::from(byte));
    }

    #[inline(always)]
    fn write_u32(&mut self, number: u32) {
        self.0 = u64::from(number);
    }

    #[inline(always)]
    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }

    #[inline(always)]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// What keys and values have to be, so that readers can share them and any thread can drop them.
pub trait Shared: Send + Sync + 'static {}
impl<T: Send + Sync + 'static> Shared for T {}

/// What keys have to be. A key is copied when its value is replaced, because readers may be using
/// the old pair as a whole.
pub trait TableKey: Hash + Eq + Clone + Shared {}
impl<T: Hash + Eq + Clone + Shared> TableKey for T {}

/// Panics if the guard does not protect this table.
#[inline(always)]
fn check_guard(guard: &Guard<'_>, domain: &Arc<Domain>) {
    assert!(std::ptr::eq(guard.domain(), &**domain), "a guard of another domain");
}

#[inline(always)]
fn hash_of(hasher: &impl BuildHasher, key: &(impl Hash + ?Sized)) -> u64 {
    hasher.hash_one(key)
}
