//! Ordered indexes, and cursors over them.
//!
//! An ordered index maps byte strings to 8-byte words and supports scans in key order. Keys are
//! ordered byte by byte; a key comes before all longer keys that begin with it. Numbers that are
//! encoded by [`u64::to_be_bytes`] are ordered as numbers.

use std::ops::Bound;
use std::sync::Arc;

use evermap_pm::{ErrorKind, Medium, PmU64, Pool, Result};

use crate::record::KEY_MAX;
use crate::{Action, Change, MutateMode, Stats, Visitor};

pub mod art;
pub mod bplus;
mod cursor;
pub mod leaf;
pub mod memory;
mod run;
pub mod tree;

pub use cursor::{Cursor, Direction, prefix_end};
pub use run::{Page, Run};

/// A concurrent ordered map from byte strings to 8-byte words.
///
/// All operations on one key are linearizable. An index pins its own memory. If words name blocks,
/// the caller holds a guard of the domain that reclaims those blocks.
///
/// # Errors
///
/// Operations that may add a key return `NoSpace` or, for a key longer than
/// [`KEY_MAX`], `KeyTooLong`; then nothing has changed. Other operations
/// treat such keys as absent. Indexes in persistent memory may also return the errors of an
/// [`Index`](crate::Index).
pub trait OrderedIndex: Send + Sync {
    /// Returns the word bound to `key`. O(log n); takes no lock and stores to no shared memory.
    fn get(&self, key: &[u8]) -> Result<Option<u64>>;

    /// The general read-modify-write operation: calls `decide` with the current word while the key
    /// is locked, and carries out the action that it returns. `decide` is called at most once, and
    /// only if its action can be carried out. It must neither panic nor use the index. Amortised
    /// O(log n).
    fn mutate(
        &self,
        key: &[u8],
        mode: MutateMode,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change>;

    /// Copies neighbouring pairs into `page`, from the bound `from` on in the given direction, and
    /// records there where the next page begins. [`Cursor`] is built on this.
    ///
    /// The pairs are in ascending order whatever the direction is. They are all pairs that the
    /// index held, at one moment during the call, between `from` and the beginning of the next
    /// page, which is beyond `from`. There may be none. An index may have regard to
    /// [what the caller expects](Page::expect).
    fn page(&self, from: Bound<&[u8]>, direction: Direction, page: &mut Page) -> Result<()>;

    /// Returns the number of pairs. Exact if there are no concurrent mutations.
    fn len(&self) -> u64;

    /// Returns `true` if there are no pairs. See [`len`](Self::len).
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the current size and structure.
    fn stats(&self) -> Stats;

    /// Walks the whole index and describes each violated invariant; returns an empty list if there
    /// is none. Must not run concurrently with mutations.
    fn check(&self) -> Vec<String>;

    /// Binds `key` to `word` if it is absent. `old` of the result is the word before.
    fn insert(&self, key: &[u8], word: u64) -> Result<Change> {
        self.mutate(key, MutateMode::MayInsert, &mut |old| match old {
            None => Action::Put(word),
            Some(_) => Action::Keep,
        })
    }

    /// Binds `key` to `word` if it is present.
    fn update(&self, key: &[u8], word: u64) -> Result<Change> {
        self.mutate(key, MutateMode::ExistingOnly, &mut |_| Action::Put(word))
    }

    /// Binds `key` to `word`.
    fn upsert(&self, key: &[u8], word: u64) -> Result<Change> {
        self.mutate(key, MutateMode::MayInsert, &mut |_| Action::Put(word))
    }

    /// Binds `key` to `new` if it is bound to `expected`.
    fn compare_exchange(&self, key: &[u8], expected: u64, new: u64) -> Result<Change> {
        self.mutate(key, MutateMode::ExistingOnly, &mut |old| match old {
            Some(word) if word == expected => Action::Put(new),
            _ => Action::Keep,
        })
    }

    /// Unbinds `key`.
    fn remove(&self, key: &[u8]) -> Result<Change> {
        self.mutate(key, MutateMode::ExistingOnly, &mut |_| Action::Remove)
    }

    /// Unbinds `key` if it is bound to `expected`.
    fn remove_if(&self, key: &[u8], expected: u64) -> Result<Change> {
        self.mutate(key, MutateMode::ExistingOnly, &mut |old| match old {
            Some(word) if word == expected => Action::Remove,
            _ => Action::Keep,
        })
    }
}

/// Returns the result of a change of a key that is longer than [`KEY_MAX`], which is absent and
/// cannot be added. Returns `None` for other keys.
fn refuse_too_long(key: &[u8], mode: MutateMode) -> Option<Result<Change>> {
    (key.len() > KEY_MAX).then(|| match mode {
        MutateMode::ExistingOnly => Ok(Change::default()),
        MutateMode::MayInsert => Err(ErrorKind::KeyTooLong { len: key.len(), max: KEY_MAX }.into()),
    })
}

/// An ordered index that is stored in persistent memory.
pub trait PersistentOrdered<M: Medium>: OrderedIndex + Sized {
    /// Creates an empty index. See [`Persistent::create`](crate::Persistent::create).
    ///
    /// # Errors
    /// `NoSpace`.
    fn create(pool: Arc<Pool<M>>, root: &PmU64) -> Result<Self>;

    /// Returns `true` if the root cell `root` names an index of this kind.
    fn is_at(pool: &Pool<M>, root: &PmU64) -> bool;

    /// Opens the index that the root cell `root` names. O(1): a node is recovered when it is first
    /// used. An index whose inner nodes are in ordinary memory makes these again: O(leaves).
    ///
    /// # Errors
    /// `Damaged` if the root cell does not name such an index.
    fn open(pool: Arc<Pool<M>>, root: &PmU64) -> Result<Self>;

    /// Shows every block and every word to `visitor`. See
    /// [`Persistent::visit`](crate::Persistent::visit).
    ///
    /// # Errors
    /// `Damaged` if part of the index could not be read.
    fn visit(&self, visitor: &mut dyn Visitor) -> Result<()>;

    /// Does what an index has postponed. See [`Persistent::close`](crate::Persistent::close).
    ///
    /// # Errors
    /// The errors of an [`Index`](crate::Index).
    fn close(&self) -> Result<()> {
        Ok(())
    }
}
