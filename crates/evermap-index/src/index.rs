//! The traits that every index implements.

use std::sync::Arc;

use evermap_pm::pool::Pool;
use evermap_pm::{Guard, Medium, PmU64, Result};

use crate::Key;

/// The decision of a [`mutate`](Index::mutate) closure about a key, given its current word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Change nothing.
    Keep,
    /// Bind the key to this word, whether or not it was bound before.
    Put(u64),
    /// Unbind the key.
    Remove,
}

/// The actions that a [`mutate`](Index::mutate) closure may return, so that no space is reserved
/// needlessly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MutateMode {
    /// The closure may return [`Action::Put`] for an absent key.
    MayInsert,
    /// The closure is called only for a key that is present.
    ExistingOnly,
}

/// The word of a key before and after a mutation.
///
/// For one key these form a chain: the `old` of each change is the `new` of the one before it. So
/// if words name blocks, exactly one caller sees a block as `old` and not as `new`, and retires it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The word before, if the key was present.
    pub old: Option<u64>,
    /// The word after, if the key is present.
    pub new: Option<u64>,
}

impl Change {
    /// Returns the change that an action makes to a key with this word.
    #[inline]
    pub fn of(old: Option<u64>, action: Action) -> Self {
        let new = match action {
            Action::Keep => old,
            Action::Put(word) => Some(word),
            Action::Remove => None,
        };
        Change { old, new }
    }

    /// Returns `true` if the key was added.
    pub fn inserted(&self) -> bool {
        self.old.is_none() && self.new.is_some()
    }

    /// Returns `true` if the key was removed.
    pub fn removed(&self) -> bool {
        self.old.is_some() && self.new.is_none()
    }

    /// Returns `true` if anything changed.
    pub fn changed(&self) -> bool {
        self.old != self.new
    }
}

/// The number of keys for which [`Index::get_many`] and [`Index::mutate_many`] overlap cache
/// misses.
///
/// A batch that is longer is processed in chunks of this size, so callers that divide a longer list
/// of keys should use chunks of this size too. It is large enough to use all line-fill buffers of a
/// core, and small enough that the prefetched lines are still in the first-level cache when they
/// are read.
pub const BATCH_KEYS: usize = 32;

/// A concurrent map from keys to 8-byte words.
///
/// All operations are linearizable per key. Lookups need a [`Guard`]; the block that a word names
/// may be read while the guard lives. Mutations are durable when they return, as far as the medium
/// provides that.
///
/// # Errors
///
/// Every operation can return `Poisoned` (a thread panicked during a change) or `Damaged` (a word
/// in the region is impossible). Mutations can also return `Forked` and, if they may add a key,
/// `NoSpace`; then nothing has changed.
pub trait Index<K: Key>: Send + Sync {
    /// Returns the word bound to `key`, or `None` if the key is absent. Expected O(1) for hash
    /// indexes, without a lock or a store.
    fn get(&self, key: K::Ref<'_>, guard: &Guard<'_>) -> Result<Option<u64>>;

    /// Looks up many keys with overlapping cache misses: sets `out[i]` to the result for `keys[i]`.
    /// Keys are looked up [`BATCH_KEYS`] at a time.
    ///
    /// # Panics
    /// If `out` is shorter than `keys`.
    fn get_many(
        &self,
        keys: &[K::Ref<'_>],
        out: &mut [Option<u64>],
        guard: &Guard<'_>,
    ) -> Result<()> {
        let out = &mut out[..keys.len()];
        for (keys, out) in keys.chunks(BATCH_KEYS).zip(out.chunks_mut(BATCH_KEYS)) {
            self.lookup_batch(keys, out, guard)?;
        }
        Ok(())
    }

    /// Does for at most [`BATCH_KEYS`] keys what [`get_many`](Self::get_many), which calls this,
    /// does for any number. `out` is as long as `keys`.
    fn lookup_batch(
        &self,
        keys: &[K::Ref<'_>],
        out: &mut [Option<u64>],
        guard: &Guard<'_>,
    ) -> Result<()> {
        for (key, out) in keys.iter().zip(out) {
            *out = self.get(*key, guard)?;
        }
        Ok(())
    }

    /// Prefetches the bucket at which a search for `key` begins. A hint that an operation on this
    /// key follows, for a caller that has other work to do first.
    fn prefetch_bucket(&self, key: K::Ref<'_>) {
        let _ = key;
    }

    /// Prefetches `bytes` bytes of the record that is most likely the key's. A hint like
    /// [`prefetch_bucket`](Self::prefetch_bucket), a little later, when the bucket is in the cache.
    /// Does nothing if words are not records.
    fn prefetch_record(&self, key: K::Ref<'_>, bytes: u64) {
        let _ = (key, bytes);
    }

    /// The general read-modify-write operation: calls `decide` with the current word while the key
    /// is locked, and carries out the action that it returns. `decide` is called at most once, and
    /// only if its action can be carried out. It must neither panic nor use the index.
    ///
    /// The search is made under the key's lock even if the key is absent, whatever `mode` is, and a
    /// change is durable before the lock is released. So what a caller learns here about the key
    /// cannot be taken back by a crash. An error after `decide` was called means that its action
    /// was carried out, and that only the maintenance of the structure failed.
    fn mutate(
        &self,
        key: K::Ref<'_>,
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change>;

    /// Binds `key` to `word` if it is absent. `old` of the result is the word before.
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

    /// Does for many keys what [`mutate`](Self::mutate) does for each of them, and sets `out[i]` to
    /// the result for `keys[i]`. `decide` is also called with this `i`. Equivalent calls of
    /// `mutate` may be in any order, except that those for the same key are in the order of `keys`.
    ///
    /// An index can make the changes of [`BATCH_KEYS`] keys durable together, so that they wait for
    /// their cache misses and for persistence only once. No thread sees a change, and this does not
    /// return, before the change is durable; a crash meanwhile leaves any subset of them. Other
    /// threads wait for keys of the group longer than for a single change.
    ///
    /// # Panics
    /// If `out` is shorter than `keys`.
    fn mutate_many(
        &self,
        keys: &[K::Ref<'_>],
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(usize, Option<u64>) -> Action,
        out: &mut [Result<Change>],
    ) {
        let out = &mut out[..keys.len()];
        let groups = keys.chunks(BATCH_KEYS).zip(out.chunks_mut(BATCH_KEYS));
        for (first, (keys, out)) in (0..).step_by(BATCH_KEYS).zip(groups) {
            self.mutate_batch(keys, mode, guard, &mut |at, old| decide(first + at, old), out);
        }
    }

    /// Does for at most [`BATCH_KEYS`] keys what [`mutate_many`](Self::mutate_many), which calls
    /// this, does for any number. `out` is as long as `keys`.
    ///
    /// Makes one change after the other unless an index overrides it.
    fn mutate_batch(
        &self,
        keys: &[K::Ref<'_>],
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(usize, Option<u64>) -> Action,
        out: &mut [Result<Change>],
    ) {
        for (at, (&key, out)) in keys.iter().zip(out).enumerate() {
            *out = self.mutate(key, mode, guard, &mut |old| decide(at, old));
        }
    }

    /// Binds each of `keys` that is absent to its word: see [`insert`](Self::insert) and
    /// [`mutate_many`](Self::mutate_many).
    ///
    /// # Panics
    /// If `words` or `out` is shorter than `keys`.
    fn insert_many(
        &self,
        keys: &[K::Ref<'_>],
        words: &[u64],
        guard: &Guard<'_>,
        out: &mut [Result<Change>],
    ) {
        let words = &words[..keys.len()];
        let mut decide = |at: usize, old: Option<u64>| match old {
            None => Action::Put(words[at]),
            Some(_) => Action::Keep,
        };
        self.mutate_many(keys, MutateMode::MayInsert, guard, &mut decide, out);
    }

    /// Binds each of `keys` to its word: see [`mutate_many`](Self::mutate_many).
    ///
    /// # Panics
    /// If `words` or `out` is shorter than `keys`.
    fn upsert_many(
        &self,
        keys: &[K::Ref<'_>],
        words: &[u64],
        guard: &Guard<'_>,
        out: &mut [Result<Change>],
    ) {
        let words = &words[..keys.len()];
        let mut decide = |at: usize, _: Option<u64>| Action::Put(words[at]);
        self.mutate_many(keys, MutateMode::MayInsert, guard, &mut decide, out);
    }

    /// Unbinds each of `keys`: see [`mutate_many`](Self::mutate_many).
    ///
    /// # Panics
    /// If `out` is shorter than `keys`.
    fn remove_many(&self, keys: &[K::Ref<'_>], guard: &Guard<'_>, out: &mut [Result<Change>]) {
        let decide = &mut |_: usize, _: Option<u64>| Action::Remove;
        self.mutate_many(keys, MutateMode::ExistingOnly, guard, decide, out);
    }

    /// Calls `each` with the slot key and the word of every pair: the slot key is the key itself
    /// for `u64`, and its hash for [`Bytes`](crate::Bytes). A pair that is present throughout is
    /// shown exactly once; one that is inserted or removed meanwhile is shown at most once. `each`
    /// must not use the index. Stops when `each` returns `false`.
    ///
    /// Inserting the pairs in the order in which they are shown, into this index or another one
    /// with the same seed, costs about as much as in a random order.
    fn for_each(&self, guard: &Guard<'_>, each: &mut dyn FnMut(u64, u64) -> bool) -> Result<()>;

    /// Returns the current size and structure. Walks the whole index: O(n).
    fn stats(&self, guard: &Guard<'_>) -> Result<Stats>;
}

/// The size and structure of an index.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// The number of pairs.
    pub len: u64,
    /// The number of slots for pairs.
    pub capacity: u64,
    /// The number of segments, nodes or other units that the index allocates.
    pub segments: u64,
    /// Bytes in the region, including directories, without records.
    pub pm_bytes: u64,
    /// Bytes in ordinary memory.
    pub dram_bytes: u64,
    /// The global depth of a directory, or the height of a tree.
    pub depth: u32,
    /// Segment splits since opening.
    pub splits: u64,
    /// Segment merges since opening.
    pub merges: u64,
    /// Segments recovered since opening.
    pub recovered: u64,
}

impl Stats {
    /// Returns the number of pairs divided by the number of slots, 0 to 1.
    pub fn load_factor(&self) -> f64 {
        if self.capacity == 0 { 0.0 } else { self.len as f64 / self.capacity as f64 }
    }
}

/// Receives everything that an index keeps in the heap.
pub trait Visitor {
    /// Called with the offset of each block that the index allocated.
    fn block(&mut self, offset: u64);
    /// Called with the offset of a block to which the index refers, and that has nothing by which
    /// the index would recognise it. It has allocated the block, unless damage leads there.
    fn unrecognised_block(&mut self, offset: u64) {
        self.block(offset);
    }
    /// Called with the word of each pair. If words name records, these are blocks too.
    fn word(&mut self, word: u64);
    /// Returns `true` if the visitor needs nothing more. An index asks from time to time, and may
    /// then return without having shown the rest.
    fn is_done(&self) -> bool {
        false
    }
}

/// An index that is stored in persistent memory.
pub trait Persistent<M: Medium>: Sized {
    /// The configuration that is chosen at creation and stored with the index.
    type Config;

    /// Creates an empty index, and publishes it by storing the offset of its block in the root cell
    /// `root` of the pool's region, which must be 0.
    ///
    /// Crash-atomic: after a crash the root is either unchanged or names a complete index.
    ///
    /// # Errors
    /// `NoSpace`.
    fn create(pool: Arc<Pool<M>>, root: &PmU64, config: Self::Config) -> Result<Self>;

    /// Returns `true` if the root cell `root` names an index of this kind, with these keys and this
    /// geometry.
    fn is_at(pool: &Pool<M>, root: &PmU64) -> bool;

    /// Opens the index that the root cell `root` names. O(1): a segment is recovered when it is
    /// first used.
    ///
    /// # Errors
    /// `Damaged` if the root cell does not name such an index.
    fn open(pool: Arc<Pool<M>>, root: &PmU64) -> Result<Self>;

    /// Shows every block and every word to `visitor`, and recovers each segment on the way.
    /// Mutations may run concurrently: a pair that is present throughout is shown exactly once, any
    /// other at most once, and a block is shown if it is reachable throughout. A sweep frees what
    /// is not shown, so this holds without exception: for any number of concurrent walks and
    /// visits, however long `visitor` takes, and whatever changes of structure the index makes.
    ///
    /// # Errors
    /// `Damaged` if part of the index could not be read; the rest was visited.
    fn visit(&self, visitor: &mut dyn Visitor) -> Result<()>;

    /// Calls `each` with the slot key and the word of the pairs in one unit of the index (a segment
    /// or a range of buckets), the unit that `from` names. Returns the `from` of the next unit, or
    /// `None` after the last one.
    ///
    /// A loop that begins with 0 shows what [`for_each`](Index::for_each) shows, in the same order,
    /// but needs a guard for only one unit at a time, and `each` may use the index. Expected
    /// O(pairs of the unit), which are a few thousand at most.
    ///
    /// The state of a walk between two units is `from` and nothing else; the index stores nothing
    /// about it. So there can be any number of walks, a walk can pause for any time and be
    /// abandoned at any point, and no walk keeps the index from changing its structure. Whatever
    /// changes meanwhile, a walk misses no pair that is present throughout.
    ///
    /// # Errors
    /// `Damaged` if the unit cannot be read, in addition to the `from` of the next unit;
    /// `Poisoned`.
    fn scan(
        &self,
        from: u64,
        guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>);

    /// Walks the whole index and describes each violated invariant; returns an empty list if there
    /// is none. Must not run concurrently with mutations.
    fn check(&self) -> Vec<String>;

    /// Does what an index has postponed, and saves what makes the next opening faster. Called
    /// before the pool is closed, when other operations have ended. Most indexes have neither.
    ///
    /// # Errors
    /// The errors of an [`Index`].
    fn close(&self) -> Result<()> {
        Ok(())
    }
}
