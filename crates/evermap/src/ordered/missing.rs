//! Keys that the persistent ordered index lacks, after an unclean shutdown.
//!
//! No crash makes one: a key enters the tree before it is bound. But in a copy that was made
//! while a process was writing, the pages of the tree may be older than those of the hash index.
//!
//! The sweep visits both. It counts the keys in parts, by their hashes: first those of the tree,
//! and then those that the hash index binds to records of earlier openings. A key that is bound
//! all that time was in the tree, so if nothing is missing, no part of the hash index has more
//! keys than that part of the tree, whatever other threads do meanwhile (unless the walk meets a
//! record twice, because a segment was split). In a part that has, each key is looked up, for
//! which its record is read; in a file that is marked as damaged, all are. What is missing under
//! the lock of its key is missing.
//!
//! One key more in the tree than in the hash index, as a kill may leave it, can hide another one
//! that is missing in the same part.

use evermap_index::key::BytesRef;
use evermap_index::record::OFFSET_MASK;
use evermap_index::{Action, Guard, MutateMode};
use evermap_pm::Medium;
use evermap_pm::region::DamageMark;

use super::persistent::is_damage;
use super::{OrderVisit, PersistentOrder};
use crate::error::counted;
use crate::maintenance::sweep::mark_for;
use crate::ops::read::Walk;
use crate::{Error, Map, Result};

/// The number of bits of a hash that select the part.
const PART_BITS: u32 = 14;

/// For each part, how many keys the tree has more than the hash index.
pub(crate) struct KeyBalance(Box<[i32]>);

impl KeyBalance {
    fn new() -> Self {
        KeyBalance(vec![0; 1 << PART_BITS].into())
    }

    fn part(&mut self, hash: u64) -> &mut i32 {
        &mut self.0[(hash >> (u64::BITS - PART_BITS)) as usize]
    }
}

impl<M: Medium> Map<M> {
    /// Shows the blocks of the persistent ordered index to `mark`, for the sweep. Returns the
    /// number of its keys, by parts, if they are to be compared with those of the hash index. If it
    /// cannot be read, the next opening replaces it.
    ///
    /// # Errors
    /// `Damaged` if a part of it cannot be read.
    pub(crate) fn sweep_order(
        &self,
        mark: &mut dyn FnMut(u64),
    ) -> evermap_pm::Result<Option<KeyBalance>> {
        let (file, Some(order)) = (&self.db.file, &self.inner.order) else { return Ok(None) };
        // Until it is swept, old records can be told from new ones.
        let compares = order.is_complete() && !file.pool.is_swept() && !file.read_only;
        let mut balance = compares.then(KeyBalance::new);
        let visited = order.visit(&mut OrderVisit {
            block: mark,
            hash: &mut |hash| balance.iter_mut().for_each(|balance| *balance.part(hash) += 1),
            stops: &|| file.maintenance.is_stopping(),
        });
        if !file.read_only && visited.as_ref().is_err_and(is_damage) {
            order.give_up(&file.pool);
        }
        visited.map(|()| balance)
    }

    /// Returns the number of bound keys that the persistent ordered index lacks, of which
    /// `balance` has the keys. To be called before the sweep has ended.
    ///
    /// O(n). Reads no record if nothing is missing and the file is not marked as damaged.
    pub(crate) fn keys_missing_in_order(&self, mut balance: KeyBalance) -> u64 {
        let is_marked = self.db.file.pool.region().damage_mark() > DamageMark::None;
        // What cannot be walked through is reported by the visit to the index.
        let missing = self.count_bound(&mut balance).and_then(|()| {
            let is_doubted = |hash| is_marked || *balance.part(hash) < 0;
            self.count_missing(is_doubted)
        });
        missing.unwrap_or(0)
    }

    /// Takes the keys that the hash index binds to records of earlier openings off the balance.
    fn count_bound(&self, balance: &mut KeyBalance) -> Result<()> {
        let (mut walk, mut pairs) = (Walk::new(self), Vec::new());
        while let Some(_guard) = self.next_unless_stopping(&mut walk, &mut pairs)? {
            for &(hash, word) in &pairs {
                let is_old = self.db.file.pool.old_block_size(word & OFFSET_MASK).is_some();
                *balance.part(hash) -= i32::from(is_old);
            }
        }
        Ok(())
    }

    /// Counts the keys that are bound and missing in the order, of those whose hashes are in doubt.
    fn count_missing(&self, mut is_doubted: impl FnMut(u64) -> bool) -> Result<u64> {
        let Some(order) = &self.inner.order else { return Ok(0) };
        let (mut walk, mut pairs, mut key) = (Walk::new(self), Vec::new(), Vec::new());
        let mut missing = 0;
        while let Some(guard) = self.next_unless_stopping(&mut walk, &mut pairs)? {
            for &(hash, word) in &pairs {
                if is_doubted(hash) && self.has_key(hash, word, &mut key) {
                    let key = BytesRef { bytes: &key, hash };
                    missing += u64::from(self.is_missing(order, key, &guard)?);
                }
            }
        }
        Ok(missing)
    }

    fn is_missing(
        &self,
        order: &PersistentOrder<M>,
        key: BytesRef<'_>,
        guard: &Guard<'_>,
    ) -> Result<bool> {
        if order.has(key)? {
            return Ok(false);
        }
        // It may have been unbound meanwhile, but not while it is locked.
        let mut is_missing = Ok(false);
        self.inner.index.mutate(key, MutateMode::ExistingOnly, guard, &mut |word| {
            is_missing = order.has(key).map(|has| word.is_some() && !has);
            Action::Keep
        })?;
        Ok(is_missing?)
    }

    /// Marks the file as damaged and enters the keys that are missing in the order: `missing` of
    /// `keys`.
    #[cold]
    pub(crate) fn restore_order(&self, missing: u64, keys: u64) {
        let (pool, Some(order)) = (&self.db.file.pool, &self.inner.order) else { return };
        let name = self.name().map_or(String::new(), |name| format!("map \"{name}\": "));
        let what = format!("{name}the ordered index lacked {}", counted(missing, "key"));
        pool.region().mark_damage(mark_for(missing, keys), &what);
        order.set_incomplete(pool);
        // If there is no space for them, or the file is being closed, the next scan goes on.
        let _ = self.fill_order(order);
    }

    /// Shows the next segment to `pairs`, or ends the walk if the file is being closed.
    fn next_unless_stopping<'s>(
        &self,
        walk: &mut Walk<'s, M>,
        pairs: &mut Vec<(u64, u64)>,
    ) -> Result<Option<Guard<'s>>> {
        match self.db.file.maintenance.is_stopping() {
            true => Err(Error::Closed),
            false => walk.next(pairs),
        }
    }
}
