//! P-BwTree: a B+tree in persistent memory whose nodes are changed by prepending to them.
//!
//! After "The Bw-Tree: A B-tree for New Hardware Platforms" (Levandoski, Lomet, Sengupta; ICDE
//! 2013), "Building a Bw-Tree Takes More Than Just Buzz Words" (Wang and others; SIGMOD 2018) and
//! "RECIPE" (Lee, Mohan, Kashyap, Kim, Chidambaram; SOSP 2019). The layout is in [`layout`].
//!
//! A node has an id, by which other nodes refer to it, and a word in the *mapping table*, which
//! names its newest part. A key is added by a *delta* in front of the node; the word is then
//! replaced by compare-and-swap. When there are some deltas, the node is *consolidated*: its
//! contents are written to a new *base node*, which never changes.
//!
//! ```text
//! mapping table
//! 1 ──▶ base  level 1  ┌ "" : 2 ─ "kiwi" : 3 ┐
//! 2 ──▶ delta "date" ──▶ delta "cherry" ──▶ base  level 0  ┌ "apple" ─ "fig" ┐  sibling 3
//! 3 ──▶ base  level 0  ┌ "kiwi" ─ "pear" ┐
//! ```
//!
//! Lookups and scans wait for no thread, and take no lock but those of keys that nobody changes, to
//! copy their words to the node that is scanned first (`copies`). Changes of one key are made one
//! after the other; of changes of different keys that meet, one tries again. Only ids of new nodes
//! are handed out under a lock, in ordinary memory.
//!
//! | change | the stores that commit it |
//! |---|---|
//! | a key is added | the word of its node |
//! | a key is bound to another word, or removed | the state of its leaf |
//! | a node is consolidated | the word of the node |
//! | a node is split | the words of the new node, of the old one, and of the node above |
//! | the root is split | the words of the new node, of the old one, of the root, and of the tree |
//! | a node is merged | the words of the node above, of both nodes, and of the node above again |
//!
//! The first three meet the first condition of [`recipe`](evermap_index::recipe), splits and merges
//! the second: after each store, every key is found, and any writer that meets a change that is not
//! complete completes it. It never has to, so it needs no space for its own change.
//!
//! What is different from the published code, and why:
//!
//! * **A key is bound to another word, and removed, in its record**, so that needs no space. Deltas
//!   only add keys. A removed record is dropped when its node is consolidated, and not used again.
//! * **`decide` is called once**, so two changes of one key cannot both go on: a lock in ordinary
//!   memory keeps them apart.
//! * **A node is split when it is consolidated**, by one store for both: there is no delta for a
//!   split, and none for a merge, which is the consolidation of the left node with what the right
//!   one had.
//! * **A node that is to be merged is *frozen*** by a bit of its word. Keys that belong there are
//!   added to its left neighbour from then on, so no writer needs the merge to be completed. The
//!   published code marks the node above by a delta that makes all changes there fail, and that a
//!   crash leaves for ever.
//! * **Readers see what is durable**: words have a mark until they are. The published code flushes
//!   the word of the leaf in each lookup.
//! * **The mapping table grows**, and ids are used again.
//! * **Deltas have blocks of their own**. The published code takes them from a block in front of
//!   the base node, by a counter that a crash takes back.
//! * **Searches do not walk the deltas.** A base node knows its deltas, a delta its base node, and
//!   the node above where the base node probably is: see `docs/design/p-bwtree.md`.
//! * **A scan does not copy a node to read it.** The first one gives the node copies of keys of
//!   eight bytes and their words, in order.
//! * **Any byte string is a key.** Entries of leaf nodes have twenty bits of it that tell it apart,
//!   others the first eight bytes.

use std::ops::Bound;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use evermap_index::fresh::Fresh;
use evermap_index::index::{Action, Change, MutateMode, Stats};
use evermap_index::node_lock::Seen;
use evermap_index::ordered::memory::TreeMemory;
use evermap_index::ordered::tree::{PersistentTree, Show};
use evermap_index::ordered::{Direction, Page};
use evermap_pm::sync::{Mutex, Rank};
use evermap_pm::{Medium, PmU64, Result};

mod access;
mod ascend;
mod change;
mod check;
mod consolidate;
mod copies;
mod grow;
pub mod layout;
mod merge;
pub mod mistakes;
mod node;
mod scan;
mod table;
#[cfg(test)]
mod tests;
mod walk;

use access::{Found, Search};
use change::KeyLocks;
use layout::{Base, INNER_ENTRY, KEY_SPACE, Link, Root};
pub use mistakes::{MUTANTS, NOTICED_ELSEWHERE};
use node::{BaseRef, Bounds};
use table::Ids;

/// P-BwTree in medium `M`, with up to `ITEMS` keys in a leaf node, which is an even number from 8
/// to 254. See the [module](self).
pub struct BwTree<M: Medium, const ITEMS: usize = 192> {
    memory: TreeMemory<M>,
    /// Which ids are free, once that is known.
    ids: OnceLock<Mutex<Ids>>,
    /// Held by the thread that finds out which ids are free.
    finding: Mutex<()>,
    locks: KeyLocks,
    /// Whether copies can be made: the generation tells which ones this opener has made.
    copies: bool,
    events: Events,
}

/// A tree whose nodes are so small that a few dozen keys cause every change of structure.
pub type Tiny<M> = BwTree<M, 8>;

/// Counters of events since opening.
#[derive(Default)]
struct Events {
    splits: AtomicU64,
    merges: AtomicU64,
}

impl<M: Medium, const ITEMS: usize> BwTree<M, ITEMS> {
    /// The bytes of the usual block of a base node.
    const NODE_BYTES: u64 = {
        let inner = INNER_ENTRY * Self::capacity(1);
        let words = if ITEMS > inner { ITEMS } else { inner };
        (size_of::<Base>() + 8 * words) as u64 + KEY_SPACE
    };

    /// Returns the number of deltas at which a node is consolidated.
    const fn chain(level: u8) -> u64 {
        match level {
            _ if ITEMS < 16 => ITEMS as u64 / 2,
            0 => 16,
            _ => 4,
        }
    }

    /// The bytes of a base node that are prefetched: as many as the usual one has.
    const PREFETCHED: u64 = (size_of::<Base>() + 8 * (ITEMS * 3 / 4)) as u64;

    /// The least number of pairs without copies in a leaf node for which a page makes these.
    const WORTH: usize = if ITEMS < 16 { 1 } else { ITEMS / 12 };

    /// Returns the most entries of a node after a split: as many as the usual block has space for.
    const fn capacity(level: u8) -> usize {
        match level {
            0 => ITEMS,
            _ if ITEMS < 16 => 5,
            _ => ITEMS / INNER_ENTRY,
        }
    }

    /// Returns the number of entries at which a node is merged into its left neighbour.
    const fn is_small(level: u8, entries: usize) -> bool {
        entries <= Self::capacity(level) / 4
    }

    #[inline(always)]
    fn medium(&self) -> &M {
        self.memory.medium()
    }

    #[inline(always)]
    fn root_block(&self) -> Result<&Root> {
        self.memory.root_block()
    }
}

impl<M: Medium, const ITEMS: usize> PersistentTree for BwTree<M, ITEMS> {
    type Medium = M;
    type Root = Root;

    /// Its seventh byte is the number of keys of a leaf node.
    const KIND: u64 = {
        assert!(8 <= ITEMS && ITEMS <= 254 && ITEMS.is_multiple_of(2));
        u64::from_le_bytes(*b"BWTREE\0\x02") | (ITEMS as u64) << 48
    };
    const PAGE: usize = 2 * ITEMS;

    fn memory(&self) -> &TreeMemory<M> {
        &self.memory
    }

    fn assemble(memory: TreeMemory<M>) -> Result<Self> {
        Ok(BwTree {
            copies: !memory.region.must_recover_all() && !memory.medium().is_read_only(),
            memory,
            ids: OnceLock::new(),
            finding: Mutex::ranked(Rank::TreeIds, ()),
            locks: KeyLocks::new(),
            events: Events::default(),
        })
    }

    fn write_empty(memory: TreeMemory<M>, root: &Root, fresh: &mut Fresh<'_, M>) -> Result<Self> {
        let m = memory.medium();
        let node = fresh.allocate_fixed(Self::NODE_BYTES)?;
        let reserve = fresh.allocate_fixed(Self::NODE_BYTES)?;
        let segment = fresh.allocate_fixed(8 * table::segment_words(0))?;
        let bounds = Bounds { low: Vec::new(), high: Vec::new(), sibling: 0, skip: 0 };
        BaseRef::write(m, node, 0, (&bounds, false), &[]);
        table::write_segment(m, segment, 0);
        const FIRST: u64 = 1;
        let words: &[PmU64] = m.slice(segment, FIRST + 1).expect("just allocated");
        m.store(&words[FIRST as usize], Link::base(node).0);
        m.flush(&words[FIRST as usize]);
        m.store(&root.tree, FIRST);
        m.store(&root.reserve, reserve);
        for (number, cell) in root.segments.iter().enumerate() {
            m.store(cell, if number == 0 { segment } else { 0 });
        }
        Self::assemble(memory)
    }

    /// There is nothing to recover. The first split or merge looks at the mapping table to find
    /// free ids.
    fn recover_root(&self) -> Result<()> {
        self.root_node().map(drop)
    }

    /// Stores only to remove the mark of a word that it finds, and that is not durable yet.
    fn lookup(&self, key: &[u8]) -> Result<Option<u64>> {
        let end = self.descend(&Search::at(key), 0)?;
        Ok(match self.find_to_read(&end, key)? {
            Found::Nothing => None,
            Found::Copy(word) => Some(word),
            Found::Record(leaf) => self.binding(&leaf),
        })
    }

    fn change(
        &self,
        key: &[u8],
        mode: MutateMode,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let lock = self.lock_key(key)?;
        let guard = self.memory.pool.pin();
        let (change, todo) = self.change_locked(key, mode, decide)?;
        // Other changes of the key need not wait for the maintenance of the structure.
        drop(lock);
        let done = self.work(todo, &guard);
        drop(guard);
        if !done {
            // Space that was freed may be used for the next attempt.
            self.memory.pool.epoch().flush();
        }
        Ok(change)
    }

    fn try_page(
        &self,
        from: Bound<&[u8]>,
        direction: Direction,
        most: usize,
        page: &mut Page,
    ) -> Result<Option<Seen<'_>>> {
        // What it has read is not locked, but it sees itself whether that has changed.
        Ok(self.read_page(from, direction, most, page)?.then(Seen::default))
    }

    fn show(&self, each: &mut Show<'_>) -> Result<()> {
        self.show_parts(each)
    }

    fn check_all(&self, problems: &mut Vec<String>) -> Result<()> {
        self.check_parts(problems)
    }

    fn add_stats(&self, stats: &mut Stats) {
        stats.dram_bytes += self.locks.bytes() as u64;
        stats.splits = self.events.splits.load(Ordering::Relaxed);
        stats.merges = self.events.merges.load(Ordering::Relaxed);
    }
}
