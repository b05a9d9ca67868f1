//! What every index can do.

use std::sync::Arc;

use evermap_pm::pool::Pool;
use evermap_pm::{Guard, Medium, PmU64, Result};

use crate::Key;

/// What a [`mutate`](Index::mutate) closure decides to do with the key, given its current word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Leave things as they are.
    Keep,
    /// Bind the key to this word, whether or not it was bound before.
    Put(u64),
    /// Unbind the key.
    Remove,
}

/// What may come out of a [`mutate`](Index::mutate), so that no room is made in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MutateMode {
    /// The closure may answer [`Action::Put`] for an absent key.
    MayInsert,
    /// The closure answers [`Action::Put`] only where the key is present; an absent key is not even shown to it.
    ExistingOnly,
}

/// The word of a key before and after a mutation.
///
/// For one key these chain: the `old` of each change is the `new` of the one before it. So where words
/// name blocks, exactly one caller sees a block as `old` and not `new`, and retires it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The word before, if the key was present.
    pub old: Option<u64>,
    /// The word after, if the key is present.
    pub new: Option<u64>,
}

impl Change {
    /// Whether the key was added.
    pub fn inserted(&self) -> bool {
        self.old.is_none() && self.new.is_some()
    }

    /// Whether the key was removed.
    pub fn removed(&self) -> bool {
        self.old.is_some() && self.new.is_none()
    }

    /// Whether anything changed.
    pub fn changed(&self) -> bool {
        self.old != self.new
    }
}

/// A concurrent map from keys to 8-byte words.
///
/// All operations are linearizable per key. Reading needs a [`Guard`]; what a word names may be followed
/// while the guard lives. Mutations are durable, as far as the medium goes, when they return.
///
/// # Errors
///
/// Every operation can answer `Poisoned` (a thread panicked in the middle of a change) or `Damaged` (a
/// word in the region is impossible). Mutations can also answer `Forked` and, where they may add a key,
/// `NoSpace`; nothing has changed then.
pub trait Index<K: Key>: Send + Sync {
    /// The word bound to `key`. Expected O(1) for hash indexes, no lock, no store.
    fn get(&self, key: K::Ref<'_>, guard: &Guard<'_>) -> Result<Option<u64>>;

    /// Looks up many keys with their cache misses overlapped: `out[i]` becomes the answer for `keys[i]`.
    ///
    /// # Panics
    /// If `out` is shorter than `keys`.
    fn get_many(
        &self,
        keys: &[K::Ref<'_>],
        out: &mut [Option<u64>],
        guard: &Guard<'_>,
    ) -> Result<()> {
        for (key, out) in keys.iter().zip(&mut out[..keys.len()]) {
            *out = self.get(*key, guard)?;
        }
        Ok(())
    }

    /// A hint that an operation on this key follows, for a caller that has something else to do first: fetches the bucket
    /// where a search begins.
    fn prefetch_bucket(&self, key: K::Ref<'_>) {
        let _ = key;
    }

    /// The same a little later, when the bucket has come: fetches so many bytes of the record that is most likely the
    /// key's. Nothing where words are no records.
    fn prefetch_record(&self, key: K::Ref<'_>, bytes: u64) {
        let _ = (key, bytes);
    }

    /// The general read-modify-write: calls `decide` with the current word while the key is locked, and does
    /// what it says. `decide` is called at most once, only when its answer can be carried out, and must
    /// neither panic nor use the index.
    ///
    /// An absent key is looked for under its lock too, whatever `mode` says, and a change is durable before the lock is
    /// given back: so whoever learns a word here, or that there is none, learns what a crash cannot take back. An error
    /// after `decide` was called means that what it said was done, and that only tidying up failed.
    fn mutate(
        &self,
        key: K::Ref<'_>,
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change>;

    /// Binds `key` to `word` if it is absent. `old` tells what was there.
    fn insert(&self, key: K::Ref<'_>, word: u64, guard: &Guard<'_>) -> Result<Change> {
        self.mutate(key, MutateMode::MayInsert, guard, &mut |old| match old {
            None => Action::Put(word),
            Some(_) => Action::Keep,
        })
    }

    /// Binds `key` to `word` if it is present.
    fn update(&self, key: K::Ref<'_>, word: u64, guard: &Guard<'_>) -> Result<Change> {
        self.mutate(key, MutateMode::ExistingOnly, guard, &mut |_| Action::Put(word))
    }

    /// Binds `key` to `word`.
    fn upsert(&self, key: K::Ref<'_>, word: u64, guard: &Guard<'_>) -> Result<Change> {
        self.mutate(key, MutateMode::MayInsert, guard, &mut |_| Action::Put(word))
    }

    /// Binds `key` to `new` if it is bound to `expected`.
    fn compare_exchange(
        &self,
        key: K::Ref<'_>,
        expected: u64,
        new: u64,
        guard: &Guard<'_>,
    ) -> Result<Change> {
        self.mutate(key, MutateMode::ExistingOnly, guard, &mut |old| match old {
            Some(word) if word == expected => Action::Put(new),
            _ => Action::Keep,
        })
    }

    /// Unbinds `key`.
    fn remove(&self, key: K::Ref<'_>, guard: &Guard<'_>) -> Result<Change> {
        self.mutate(key, MutateMode::ExistingOnly, guard, &mut |_| Action::Remove)
    }

    /// Unbinds `key` if it is bound to `expected`.
    fn remove_if(&self, key: K::Ref<'_>, expected: u64, guard: &Guard<'_>) -> Result<Change> {
        self.mutate(key, MutateMode::ExistingOnly, guard, &mut |old| match old {
            Some(word) if word == expected => Action::Remove,
            _ => Action::Keep,
        })
    }

    /// Calls `each` with the slot key and word of every pair: the key itself for `u64`, its hash for
    /// [`Bytes`](crate::Bytes). A pair that is present throughout is shown exactly once; one that comes or goes
    /// meanwhile is shown at most once. `each` must not use the index. Stops when `each` answers `false`.
    fn for_each(&self, guard: &Guard<'_>, each: &mut dyn FnMut(u64, u64) -> bool) -> Result<()>;

    /// Size and shape now. Walks the whole index: O(n).
    fn stats(&self, guard: &Guard<'_>) -> Result<Stats>;
}

/// Size and shape of an index.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Pairs.
    pub len: u64,
    /// Places for pairs.
    pub capacity: u64,
    /// Segments, nodes or whatever the index allocates as a unit.
    pub segments: u64,
    /// Bytes in the region, directories included, records not.
    pub pm_bytes: u64,
    /// Bytes in ordinary memory.
    pub dram_bytes: u64,
    /// Global depth of a directory, height of a tree.
    pub depth: u32,
    /// Segment splits since opening.
    pub splits: u64,
    /// Segment merges since opening.
    pub merges: u64,
    /// Segments recovered since opening.
    pub recovered: u64,
}

impl Stats {
    /// Pairs divided by places, 0 to 1.
    pub fn load_factor(&self) -> f64 {
        if self.capacity == 0 { 0.0 } else { self.len as f64 / self.capacity as f64 }
    }
}

/// Receives everything that an index keeps in the heap.
pub trait Visitor {
    /// A block that the index allocated: its first byte.
    fn block(&mut self, offset: u64);
    /// The word of a pair. Where words name records, these are blocks too.
    fn word(&mut self, word: u64);
}

/// An index that outlives the process.
pub trait Persistent<M: Medium>: Sized {
    /// Shape, chosen at creation and stored with the index.
    type Config;

    /// Builds an empty index and publishes it in the root cell `root` of the pool's region: its block's offset, 0 before.
    ///
    /// Crash-atomic: afterwards the root is either untouched or names a complete index.
    ///
    /// # Errors
    /// `NoSpace`.
    fn create(pool: Arc<Pool<M>>, root: &PmU64, config: Self::Config) -> Result<Self>;

    /// Whether the root cell `root` names an index of this kind, with these keys and this geometry.
    fn is_at(pool: &Pool<M>, root: &PmU64) -> bool;

    /// Opens the index that the root cell `root` names. O(1): segments are recovered when first touched.
    ///
    /// # Errors
    /// `Damaged` if the root does not name such an index.
    fn open(pool: Arc<Pool<M>>, root: &PmU64) -> Result<Self>;

    /// Shows `visitor` every block and every word, recovering each segment on the way. Mutations may run
    /// meanwhile: a pair that was present throughout is shown exactly once, another one at most once, and a block is shown
    /// if it was reachable throughout. What is not shown is given away by a sweep, so this holds without exception: for any
    /// number of walks and visits at the same time, however long `visitor` takes, and whatever the index does to its
    /// structure meanwhile.
    ///
    /// # Errors
    /// `Damaged` where part of the index could not be read; the rest was still visited.
    fn visit(&self, visitor: &mut dyn Visitor) -> Result<()>;

    /// Calls `each` with slot key and word of the pairs in one unit of the index (a segment, a stretch of buckets),
    /// the one that `from` names; answers the `from` to go on with, `None` after the last unit.
    ///
    /// A loop that begins with 0 shows what [`for_each`](Index::for_each) shows, but needs a guard for one unit at a
    /// time, and `each` may use the index. Expected O(pairs of the unit), which are a few thousand at most.
    ///
    /// Between two units the walk is `from` and nothing else: the index remembers nothing about it. So there can be any
    /// number of walks, each can rest as long as it likes and be dropped anywhere, and none keeps the index from changing
    /// its structure. Whatever changes meanwhile, a walk that goes on misses no pair that was present throughout.
    ///
    /// # Errors
    /// `Damaged` if the unit cannot be read, beside the `from` to go on with; `Poisoned`.
    fn scan(
        &self,
        from: u64,
        guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>);

    /// Walks everything and describes each violated invariant. Empty means sound. Call without concurrent mutations.
    fn check(&self) -> Vec<String>;
}
