//! The changes of a batch, stored so that a crash in the middle cannot leave a part of them.
//!
//! ```text
//! 0    number of entries (lower 48 bits), 1 if they name maps or 0 (upper 16 bits)
//! 8    CRC32C of the word before and the entries
//! 16   entries of 24 or 32 bytes: index word before (0: absent), index word after (0: absent),
//!      control word after, and if they name maps, the offset of the descriptor of the map
//!      (0: the default map)
//! ```
//!
//! Entries name maps if not all of them concern the default map. So a batch on the default map is
//! stored as it was in formats before named maps.
//!
//! The batch is decided by the store of one word, the root slot that names the intent. It is the
//! only word outside the indexes that ever names records, and the only one that names the intent's
//! own block. Opening carries out the intent that it finds before anything else happens, the sweep
//! included, and empties the slot: the sweep need not know of it.

use std::collections::HashMap;
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::sync::Arc;

use evermap_index::key::BytesRef;
use evermap_index::record::{OFFSET_MASK, key_equals};
use evermap_index::{Action, Guard, MutateMode};
use evermap_pm::region::OnSuspect;
use evermap_pm::{Medium, PmU64, Pool};

use crate::batch::BATCH_MAX;
use crate::index::PrimaryIndex;
use crate::map::header::MapHeader;
use crate::record::checked_word::{WordKind, decode_checked, encode_checked};
use crate::record::{Owner, Record, tombstone_of};
use crate::{Error, Result, mistakes};

/// Root slot that names the intent of the batch that runs.
const ROOT: usize = 15;
/// The number of words before the entries.
const HEAD: usize = 2;
/// In the first word: the entries name maps.
const NAMES_MAPS: u64 = 1 << 48;

/// One change of a batch. Carrying it out needs no space, so it cannot fail for lack of it: a key
/// that was absent has been bound to its record before, which counts as expired until its control
/// word changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Descriptor of the map; 0: the default one.
    pub(crate) map: u64,
    /// Index word before; 0: absent.
    pub(crate) old: u64,
    /// Index word after; 0: absent.
    pub(crate) new: u64,
    /// Control word of the new record.
    pub(crate) control: u64,
}

impl Entry {
    /// Returns what makes the change of a key that was not absent before and is bound to `word`, or
    /// `None` if it was made already.
    pub(crate) fn action(&self, word: Option<u64>) -> Option<Action> {
        let action = if self.new == 0 { Action::Remove } else { Action::Put(self.new) };
        (word == Some(self.old)).then_some(action)
    }

    /// Makes the change, unless it was made already. Durable after the next fence. O(1).
    ///
    /// # Errors
    /// Any error of the index; nothing has changed then.
    pub(crate) fn carry_out<M: Medium>(
        &self,
        key: BytesRef<'_>,
        pool: &Pool<M>,
        index: &PrimaryIndex<M>,
        guard: &Guard<'_>,
    ) -> Result<()> {
        if self.old == 0 {
            if index.get(key, guard)? == Some(self.new)
                && let Ok(record) = Record::at(pool.medium(), self.new)
            {
                record.set_control_word(self.control);
            }
            return Ok(());
        }
        let mut acted = false;
        let change = index.mutate(key, MutateMode::ExistingOnly, guard, &mut |word| {
            let action = self.action(word);
            acted = action.is_some();
            action.unwrap_or(Action::Keep)
        });
        match change {
            // What failed afterwards was only tidying up.
            Err(_) if acted => Ok(()),
            change => Ok(change.map(drop)?),
        }
    }
}

/// An intent, which has no effect before it is [declared](Intent::declare). Dropping it frees its
/// block, unless it was declared and not fulfilled.
pub(crate) struct Intent<'p, M: Medium> {
    pool: &'p Pool<M>,
    offset: u64,
    stands: bool,
}

impl<'p, M: Medium> Intent<'p, M> {
    /// Stores `entries` and flushes them: durable after the next fence.
    ///
    /// # Errors
    /// `NoSpace`; nothing has changed then.
    pub(crate) fn flushed(pool: &'p Pool<M>, entries: &[Entry]) -> Result<Self> {
        let names_maps = entries.iter().any(|entry| entry.map != 0);
        let head = entries.len() as u64 | if names_maps { NAMES_MAPS } else { 0 };
        let words = words_of(head);
        let mut bytes = vec![0; (HEAD + words * entries.len()) * 8];
        let all = entries.iter().map(|entry| [entry.old, entry.new, entry.control, entry.map]);
        for (bytes, entry) in bytes[HEAD * 8..].chunks_exact_mut(8 * words).zip(all) {
            for (bytes, word) in bytes.chunks_exact_mut(8).zip(entry) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
        bytes[..8].copy_from_slice(&head.to_le_bytes());
        let check = u64::from(check_of(head, &bytes[HEAD * 8..]));
        bytes[8..16].copy_from_slice(&check.to_le_bytes());
        let offset = pool.allocate_fixed(bytes.len() as u64)?;
        let m = pool.medium();
        let cells = m.slice(offset, bytes.len() as u64 / 8).expect("just allocated");
        m.write_bytes(cells, &bytes);
        if !m.mutant(mistakes::INTENT_UNFLUSHED) {
            m.flush(cells);
        }
        Ok(Intent { pool, offset, stands: false })
    }

    /// Decides the batch: from here on it is carried out, if necessary by the next opening. Durable
    /// on return.
    pub(crate) fn declare(&mut self) {
        // From here on a panic must not free it.
        self.stands = true;
        store_root(self.pool, encode_checked(WordKind::Intent, self.offset));
    }

    /// Ends the intent of a batch that was carried out durably. Durable on return.
    pub(crate) fn fulfil(mut self) {
        store_root(self.pool, 0);
        self.stands = false;
    }
}

impl<M: Medium> Drop for Intent<'_, M> {
    fn drop(&mut self) {
        if !self.stands {
            self.pool.free_unpublished(self.offset);
        }
    }
}

fn store_root<M: Medium>(pool: &Pool<M>, word: u64) {
    let root = pool.root(ROOT);
    pool.medium().store(root, word);
    pool.medium().persist(root);
}

fn check_of(head: u64, entries: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&head.to_le_bytes()), entries)
}

/// Returns the number of words of an entry, given the first word of the intent.
fn words_of(head: u64) -> usize {
    if head & NAMES_MAPS == 0 { 3 } else { 4 }
}

/// Returns `true` if a crash has left an intent.
pub(crate) fn is_pending<M: Medium>(pool: &Pool<M>) -> bool {
    pool.medium().load(pool.root(ROOT)) != 0
}

/// Carries out the intent that a crash has left, if there is one. Each step may have been taken
/// before, so a crash in the middle of this is no different. O(entries).
///
/// Returns the number of entries that were skipped because their record or their part of the index
/// is damaged.
///
/// # Errors
/// `Damaged` if the intent does not verify; with [`OnSuspect::Salvage`] it is dropped instead.
pub(crate) fn resume<M: Medium>(
    pool: &Arc<Pool<M>>,
    index: &PrimaryIndex<M>,
    on_suspect: OnSuspect,
) -> Result<u64> {
    let m = pool.medium();
    let word = m.load(pool.root(ROOT));
    if word == 0 {
        return Ok(0);
    }
    let mut damaged = 0;
    match read(m, word) {
        None if on_suspect == OnSuspect::Salvage => damaged = 1,
        None => {
            let at = decode_checked(WordKind::Intent, word).unwrap_or(m.offset_of(pool.root(ROOT)));
            let what = "the intent of a batch cannot be read";
            return Err(evermap_pm::Error::salvageable(at, what).into());
        }
        Some(entries) => {
            if m.mutant(mistakes::INTENT_CLEARED) {
                store_root(pool, 0);
            }
            let guard = pool.pin();
            let mut named = HashMap::new();
            for entry in entries {
                let (index, seed) = match index_of(entry.map, pool, index, &mut named) {
                    Err(error) if error.is_damaged() => {
                        damaged += 1;
                        continue;
                    }
                    found => found?,
                };
                match resume_one(&entry, pool, index, seed, &guard) {
                    Err(error) if error.is_damaged() => damaged += 1,
                    done => done?,
                }
            }
            // The control words of new records.
            m.fence();
        }
    }
    store_root(pool, 0);
    Ok(damaged)
}

/// Returns the index of the map that an entry names, and the seed of its keys. A map cannot be
/// dropped while an intent names it, so its descriptor is valid.
fn index_of<'i, M: Medium>(
    map: u64,
    pool: &Arc<Pool<M>>,
    default: &'i PrimaryIndex<M>,
    named: &'i mut HashMap<u64, (PrimaryIndex<M>, u64)>,
) -> Result<(&'i PrimaryIndex<M>, u64)> {
    if map == 0 {
        return Ok((default, pool.seed()));
    }
    let (index, seed) = match named.entry(map) {
        Occupied(open) => open.into_mut(),
        Vacant(place) => {
            let header = MapHeader::at(pool, map)?;
            place.insert((PrimaryIndex::open(pool, header.root(pool))?, header.seed()))
        }
    };
    Ok((index, *seed))
}

fn resume_one<M: Medium>(
    entry: &Entry,
    pool: &Pool<M>,
    index: &PrimaryIndex<M>,
    seed: u64,
    guard: &Guard<'_>,
) -> Result<()> {
    let word = if entry.new == 0 { entry.old } else { entry.new };
    let record = Record::at(pool.medium(), word)
        .map_err(|what| Error::damaged(&[], word & OFFSET_MASK, what))?;
    let mut key = Vec::new();
    record.append_key(&mut key)?;
    let key = BytesRef::new(&key, seed);
    entry.carry_out(key, pool, index, guard)?;
    // A batch that is not interrupted does this when it is complete: the sweep frees the block, and
    // does not read it.
    if entry.old != 0
        && index.get(key, guard)? != Some(entry.old)
        && let Ok(old) = Record::at(pool.medium(), entry.old)
        && old.verify(Owner::of(entry.map))
        && key_equals(pool.medium(), entry.old, key.bytes)
    {
        old.set_tombstone(tombstone_of(pool.generation()));
    }
    Ok(())
}

/// Returns the entries of the intent that the root slot names, or `None` if it does not verify.
fn read<M: Medium>(m: &M, root: u64) -> Option<Vec<Entry>> {
    let offset = decode_checked(WordKind::Intent, root)?;
    let head = m.slice::<PmU64>(offset, HEAD as u64)?;
    let (head, check) = (m.load(&head[0]), m.load(&head[1]));
    let count = head & !NAMES_MAPS;
    if count > BATCH_MAX as u64 {
        return None;
    }
    let words = words_of(head);
    let cells = m.slice::<PmU64>(offset + HEAD as u64 * 8, count * words as u64)?;
    let mut bytes = vec![0; cells.len() * 8];
    m.read_bytes(cells, &mut bytes);
    if u64::from(check_of(head, &bytes)) != check {
        return None;
    }
    let entry = |cells: &[PmU64]| Entry {
        map: cells.get(3).map_or(0, |cell| m.load(cell)),
        old: m.load(&cells[0]),
        new: m.load(&cells[1]),
        control: m.load(&cells[2]),
    };
    Some(cells.chunks_exact(words).map(entry).collect())
}
