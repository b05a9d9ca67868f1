//! Ordered indexes, and how one walks over them.
//!
//! An ordered index maps byte strings to 8-byte words and knows which key comes next. Keys are ordered byte by byte,
//! a key before all longer keys that begin with it. Numbers are ordered as numbers when they are spelled by
//! [`u64::to_be_bytes`].

use std::ops::Bound;

use evermap_pm::Result;

use crate::{Action, Change, MutateMode, Stats};

pub mod bplus;
mod cursor;
mod run;

pub use cursor::{Cursor, Direction, prefix_end};
pub use run::{Page, Run};

/// A concurrent ordered map from byte strings to 8-byte words.
///
/// All operations on one key are linearizable. An index pins what it needs by itself; where words name blocks, the
/// caller holds a guard of the domain that reclaims those.
///
/// # Errors
///
/// Whatever may add a key can answer `NoSpace` or, for a key longer than [`KEY_MAX`](crate::record::KEY_MAX),
/// `KeyTooLong`; nothing has changed then. Other operations take such keys for absent. Indexes in persistent memory
/// may also answer as an [`Index`](crate::Index) does.
pub trait OrderedIndex: Send + Sync {
    /// The word bound to `key`. O(log n), no lock, no store to what is shared.
    fn get(&self, key: &[u8]) -> Result<Option<u64>>;

    /// The general read-modify-write: calls `decide` with the current word while the key is locked, and does
    /// what it says. `decide` is called at most once, only when its answer can be carried out, and must
    /// neither panic nor use the index. Amortised O(log n).
    fn mutate(
        &self,
        key: &[u8],
        mode: MutateMode,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change>;

    /// Copies neighbouring pairs into `page`, from the bound `from` on in this direction, and notes there where to go
    /// on. What a [`Cursor`] is made of.
    ///
    /// The pairs are in ascending order whatever the direction. They are all that the index held, at one moment during
    /// the call, between `from` and where to go on, which is beyond `from`; that may be none.
    fn page(&self, from: Bound<&[u8]>, direction: Direction, page: &mut Page) -> Result<()>;

    /// Pairs. Exact when nobody changes them.
    fn len(&self) -> u64;

    /// Whether there is no pair. See [`len`](Self::len).
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Size and shape now.
    fn stats(&self) -> Stats;

    /// Walks everything and describes each violated invariant. Empty means sound. Call without concurrent mutations.
    fn check(&self) -> Vec<String>;

    /// Binds `key` to `word` if it is absent. `old` tells what was there.
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
