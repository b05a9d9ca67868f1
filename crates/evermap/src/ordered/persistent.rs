//! The persistent ordered index: a tree of keys in the file.
//!
//! The tree holds every key that the hash index binds, with its hash, so scans need nothing to be
//! built, whatever the end of the last process was. It may hold other keys too: a scan looks each
//! key up, and does not show what is not there.
//!
//! Two rules keep that true:
//!
//! * **A key enters the tree before it is bound**, durably, and while the hash index has it locked:
//!   in the function that decides what the key is to be bound to. So it is in the tree when the
//!   binding is stored, and no crash can take it back.
//! * **A key leaves the tree after it was unbound**, durably: in a second visit, which locks the
//!   key too, and does nothing if it is bound again by then.
//!
//! Both happen under the lock of the key, so neither can come between the two steps of the other. A
//! crash between unbinding a key and its leaving the tree leaves a key too many. Replacing a record
//! touches nothing here. The lock of a key is acquired before those of the tree, and no holder of a
//! lock of the tree waits for that of a key.
//!
//! # Media
//!
//! A word of the map's [header](crate::map::header) names a block. Of an older file, the tree is
//! filled by a walk over the hash index, beside all other operations: they keep the two rules from
//! the beginning. Until the walk has ended, the block says that keys may be missing. So it does
//! where damage has been found, while the keys that were missing are [entered](super::missing); a
//! tree that cannot be read is replaced by a new one at the next opening.
//!
//! ```text
//! byte 0  complete  whether keys may be missing, or the tree is given up
//! byte 8  tree      names the tree
//! ```

use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

use evermap_index::key::BytesRef;
use evermap_index::ordered::art::Art;
use evermap_index::ordered::{Cursor, Direction, PersistentOrdered};
use evermap_index::{Action, Guard, MutateMode, OrderedIndex, Visitor};
use evermap_pm::sync::{Mutex, Rank};
use evermap_pm::{ErrorKind, Medium, PmU64, Pool, pod};

use super::OrderedState;
use crate::ops::read::Walk;
use crate::record::checked_word::{WordKind, decode_checked, encode_checked};
use crate::{Error, Map, Result, mistakes};

/// The format of a region with such a tree. Programs that know only the formats before it would
/// bind keys that do not enter the tree.
const FORMAT: u32 = 10;

/// A word of the block whose tree has every key.
const COMPLETE: u64 = u64::from_le_bytes(*b"complete");
/// One whose tree may lack keys.
const INCOMPLETE: u64 = 0;
/// One whose tree cannot be read. Any other word but the first means `INCOMPLETE` too.
const GIVEN_UP: u64 = u64::from_le_bytes(*b"given up");

pod! {
    struct OrderBlock: 64 {
        complete: PmU64,
        tree: PmU64,
        unused: [PmU64; 6],
    }
}

/// The persistent ordered index of a map.
pub(crate) struct PersistentOrder<M: Medium> {
    tree: Art<M>,
    block: u64,
    complete: AtomicBool,
    /// Held by the thread that fills the tree.
    filling: Mutex<()>,
}

/// What a visit to every part of the tree calls.
pub(crate) struct OrderVisit<'v> {
    /// With the offset of every block.
    pub(crate) block: &'v mut dyn FnMut(u64),
    /// With the hash of every key.
    pub(crate) hash: &'v mut dyn FnMut(u64),
    /// Now and then: if it returns `true`, the visit ends.
    pub(crate) stops: &'v dyn Fn() -> bool,
}

impl Visitor for OrderVisit<'_> {
    fn block(&mut self, offset: u64) {
        (self.block)(offset);
    }

    fn word(&mut self, hash: u64) {
        (self.hash)(hash);
    }

    fn is_done(&self) -> bool {
        (self.stops)()
    }
}

/// Returns `true` if the tree cannot be read.
pub(super) fn is_damage(error: &evermap_pm::Error) -> bool {
    matches!(error.kind(), ErrorKind::Damaged { .. })
}

impl<M: Medium> PersistentOrder<M> {
    /// Creates a tree for `cell` to name, durably. `complete`: the map has no keys yet.
    ///
    /// # Errors
    /// `NoSpace`: then the cell names nothing.
    pub(crate) fn create(pool: &Arc<Pool<M>>, cell: &PmU64, complete: bool) -> Result<Self> {
        let m = pool.medium();
        pool.region().raise_format(FORMAT)?;
        let block = pool.allocate_fixed(size_of::<OrderBlock>() as u64)?;
        let words = m.at::<OrderBlock>(block).expect("just allocated");
        m.store(&words.complete, if complete { COMPLETE } else { INCOMPLETE });
        m.store(&words.tree, 0);
        m.flush(words);
        let tree = Art::create(pool.clone(), &words.tree);
        let tree = tree.inspect_err(|_| pool.free_unpublished(block))?;
        // The block and the tree are durable: creating the tree has ended with a fence.
        m.store(cell, encode_checked(WordKind::Order, block));
        m.persist(cell);
        Ok(Self::of(tree, block, complete))
    }

    /// Opens the tree that `cell` names, if it names one. O(1).
    ///
    /// # Errors
    /// `Damaged`.
    pub(crate) fn open(pool: &Arc<Pool<M>>, cell: &PmU64) -> Result<Option<Self>> {
        let (m, at) = (pool.medium(), pool.medium().offset_of(cell));
        let word = m.load(cell);
        if word == 0 {
            return Ok(None);
        }
        let (block, words) = Self::named(m, word)
            .ok_or_else(|| evermap_pm::Error::damaged(at, "it does not name an ordered index"))?;
        if m.load(&words.complete) == GIVEN_UP {
            let what = "this ordered index was given up, because it could not be read";
            return Err(evermap_pm::Error::damaged(block, what).into());
        }
        let tree = Art::open(pool.clone(), &words.tree)?;
        let complete = m.load(&words.complete) == COMPLETE;
        Ok(Some(Self::of(tree, block, complete)))
    }

    /// Returns the block that the word of a map names.
    fn named(m: &M, word: u64) -> Option<(u64, &OrderBlock)> {
        let block = decode_checked(WordKind::Order, word)?;
        Some((block, m.at(block)?))
    }

    /// Returns `true` if `cell` names the block of a tree, whether or not that can be read.
    pub(crate) fn is_named_by(m: &M, cell: &PmU64) -> bool {
        Self::named(m, m.load(cell)).is_some()
    }

    /// Replaces the tree that `cell` names, and that cannot be read, by an empty one, which is to
    /// be filled. `cell` names the one or the other at every moment. Returns `None` if `cell` names
    /// none, or if there is no space: then keys enter no tree until the next opening replaces it.
    pub(crate) fn replace(pool: &Arc<Pool<M>>, cell: &PmU64) -> Result<Option<Self>> {
        let m = pool.medium();
        let Some((_, words)) = Self::named(m, m.load(cell)) else { return Ok(None) };
        // The sweep finds what the old one leaves behind.
        pool.require_sweep();
        match Self::create(pool, cell, false) {
            Err(error) if error.is_no_space() => {
                if m.load(&words.complete) == COMPLETE {
                    m.store(&words.complete, GIVEN_UP);
                    m.persist(&words.complete);
                }
                Ok(None)
            }
            created => created.map(Some),
        }
    }

    fn of(tree: Art<M>, block: u64, complete: bool) -> Self {
        let filling = Mutex::ranked(Rank::Filling, ());
        PersistentOrder { tree, block, complete: complete.into(), filling }
    }

    /// Returns `true` if every bound key is in the tree.
    pub(crate) fn is_complete(&self) -> bool {
        // Acquire: what was entered before is found.
        self.complete.load(Acquire)
    }

    fn words<'p>(&self, pool: &'p Pool<M>) -> &'p OrderBlock {
        pool.medium().at::<OrderBlock>(self.block).expect("checked at opening")
    }

    fn store_complete(&self, pool: &Pool<M>, word: u64) {
        let (m, cell) = (pool.medium(), &self.words(pool).complete);
        m.store(cell, word);
        m.persist(cell);
    }

    /// Notes, durably, that every bound key is in the tree.
    fn set_complete(&self, pool: &Pool<M>) {
        if !self.is_given_up(pool) {
            self.store_complete(pool, COMPLETE);
        }
        self.complete.store(true, Release);
    }

    /// Notes, durably, that the tree lacks bound keys, so that it is filled before the next scan.
    pub(super) fn set_incomplete(&self, pool: &Pool<M>) {
        let _filling = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_given_up(pool) {
            self.store_complete(pool, INCOMPLETE);
        }
        self.complete.store(false, Release);
    }

    /// Notes, durably, that the tree cannot be read, so that the next opening replaces it.
    pub(crate) fn give_up(&self, pool: &Pool<M>) {
        let _filling = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        self.give_up_filling(pool);
    }

    /// The same for the thread that fills it.
    fn give_up_filling(&self, pool: &Pool<M>) {
        if !self.is_given_up(pool) {
            self.store_complete(pool, GIVEN_UP);
        }
    }

    /// Returns `true` if the tree cannot be read.
    fn is_given_up(&self, pool: &Pool<M>) -> bool {
        pool.medium().load(&self.words(pool).complete) == GIVEN_UP
    }

    pub(crate) fn state(&self) -> OrderedState {
        match self.is_complete() {
            true => OrderedState::Ready(std::time::Duration::ZERO),
            false if self.filling.try_lock().is_err() => OrderedState::Building,
            false => OrderedState::Pending,
        }
    }

    /// Shows every block and the hash of every key.
    ///
    /// # Errors
    /// `Damaged` if a part of the tree cannot be read.
    pub(crate) fn visit(&self, visit: &mut OrderVisit<'_>) -> evermap_pm::Result<()> {
        (visit.block)(self.block);
        self.tree.visit(visit)
    }

    /// Frees an order without keys that nothing leads to and no thread uses.
    pub(crate) fn discard(self, pool: &Pool<M>) {
        let mut blocks = Vec::new();
        // If it cannot be read, its blocks are found by the next sweep.
        let mut visit = OrderVisit {
            block: &mut |block| blocks.push(block),
            hash: &mut |_| {},
            stops: &|| false,
        };
        if self.visit(&mut visit).is_err() {
            pool.require_sweep();
        }
        blocks.into_iter().for_each(|block| pool.free_unpublished(block));
    }

    /// Returns `true` if nothing is wrong with the tree, and all of its keys are of a map with this
    /// seed. O(n).
    pub(crate) fn is_all_of(&self, seed: u64) -> bool {
        let mut cursor = Cursor::new(&self.tree, .., Direction::Ascending);
        loop {
            match cursor.next() {
                Ok(Some((key, hash))) if BytesRef::new(key, seed).hash == hash => {}
                Ok(None) => break,
                _ => return false,
            }
        }
        cursor.misplaced() == 0 && cursor.unreadable().is_none() && self.tree.check().is_empty()
    }

    /// Returns `true` if the tree has this key, and scans can look it up.
    ///
    /// # Errors
    /// `Damaged`.
    pub(super) fn has(&self, key: BytesRef<'_>) -> evermap_pm::Result<bool> {
        Ok(self.tree.get(key.bytes)? == Some(key.hash))
    }

    /// Adds a key, durably, unless it is there.
    fn enter(&self, key: BytesRef<'_>, guard: &Guard<'_>) -> evermap_pm::Result<()> {
        let insert = &mut |word: Option<u64>| match word {
            Some(hash) if hash == key.hash => Action::Keep,
            // Another hash is damage.
            _ => Action::Put(key.hash),
        };
        self.tree.mutate_under(key.bytes, MutateMode::MayInsert, guard, insert).map(drop)
    }

    /// Removes a key. If that fails, there is a key too many.
    fn leave(&self, key: BytesRef<'_>, guard: &Guard<'_>) {
        let mode = MutateMode::ExistingOnly;
        let _ = self.tree.mutate_under(key.bytes, mode, guard, &mut |_| Action::Remove);
    }

    pub(crate) fn tree(&self) -> &dyn OrderedIndex {
        &self.tree
    }
}

impl<M: Medium> Map<M> {
    /// Makes `key` part of the persistent ordered index, if there is one. The caller binds the key
    /// right after, in the function that decides about it.
    ///
    /// # Errors
    /// `NoSpace`, or any error of the tree: then the key must not be bound.
    #[inline]
    pub(crate) fn enter_order(
        &self,
        key: BytesRef<'_>,
        guard: &Guard<'_>,
    ) -> evermap_pm::Result<()> {
        match &self.inner.order {
            Some(order) if !self.db.file.pool.medium().mutant(mistakes::NO_ORDER) => {
                order.enter(key, guard)
            }
            _ => Ok(()),
        }
    }

    /// Removes `key`, which was unbound, from the persistent ordered index, unless it is bound
    /// again.
    #[inline]
    pub(crate) fn leave_order(&self, key: BytesRef<'_>, guard: &Guard<'_>) {
        let Some(order) = &self.inner.order else { return };
        if self.db.file.pool.medium().mutant(mistakes::ORDER_LEFT) {
            return order.leave(key, guard);
        }
        // If the index cannot be read, there is a key too many.
        let _ = self.inner.index.mutate(key, MutateMode::MayInsert, guard, &mut |word| {
            if word.is_none() {
                order.leave(key, guard);
            }
            Action::Keep
        });
    }

    /// Fills the tree with the keys that were bound before it was created, unless that is done.
    /// Other operations go on meanwhile.
    pub(super) fn fill_order(&self, order: &PersistentOrder<M>) -> Result<()> {
        if order.is_complete() {
            return Ok(());
        }
        let _filling = order.filling.lock().unwrap_or_else(PoisonError::into_inner);
        if order.is_complete() {
            return Ok(());
        }
        let (mut walk, mut pairs, mut key) = (Walk::new(self), Vec::new(), Vec::new());
        while let Some(guard) = walk.next(&mut pairs)? {
            if self.db.file.maintenance.is_stopping() {
                return Err(Error::Closed);
            }
            walk.take_error()?;
            for &(hash, word) in &pairs {
                // What cannot be read is in no scan, and replacing it unbinds it.
                if self.has_key(hash, word, &mut key) {
                    self.enter_if_bound(order, BytesRef { bytes: &key, hash }, &guard)?;
                }
            }
        }
        order.set_complete(&self.db.file.pool);
        Ok(())
    }

    fn enter_if_bound(
        &self,
        order: &PersistentOrder<M>,
        key: BytesRef<'_>,
        guard: &Guard<'_>,
    ) -> Result<()> {
        let mut entered = Ok(());
        self.inner.index.mutate(key, MutateMode::ExistingOnly, guard, &mut |word| {
            if word.is_some() {
                entered = order.enter(key, guard);
            }
            Action::Keep
        })?;
        if entered.as_ref().is_err_and(is_damage) {
            order.give_up_filling(&self.db.file.pool);
        }
        Ok(entered?)
    }

    /// Reports what is wrong with the persistent ordered index, if it is complete.
    pub(super) fn check_order(
        &self,
        order: &PersistentOrder<M>,
        problem: &mut dyn FnMut(String),
    ) -> Result<()> {
        order.tree.check().into_iter().for_each(|what| problem(format!("ordered index: {what}")));
        let (mut walk, mut pairs, mut key) = (Walk::new(self), Vec::new(), Vec::new());
        while order.is_complete()
            && let Some(_guard) = walk.next(&mut pairs)?
        {
            for &(hash, word) in &pairs {
                if self.has_key(hash, word, &mut key)
                    && !order.has(BytesRef { bytes: &key, hash })?
                {
                    let key = key.escape_ascii();
                    problem(format!("ordered index: it lacks a key: \"{key}\""));
                }
            }
        }
        Ok(())
    }
}
