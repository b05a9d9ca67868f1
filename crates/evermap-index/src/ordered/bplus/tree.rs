//! Lookups, and changes of one pair.
//!
//! A descent reads in each node which child serves the key, and validates the node's version before
//! it reads the child. A child serves the same range of keys until it becomes obsolete, so a
//! descent that reached it is right there, whatever has happened to its parent meanwhile. No node
//! is locked on the way down; a change locks its leaf.

use std::ops::Bound;

use evermap_pm::sync::Backoff;
use evermap_pm::{ErrorKind, Guard, Result};

use super::BPlus;
use super::key::Probe;
use super::node::{Content, Node, Target};
use super::reclaim::retire_block;
use super::tally::Count;
use super::version::{Restart, Seen};
use crate::ordered::{Direction, Page};
use crate::record::KEY_MAX;
use crate::{Action, Change, MutateMode};

/// The level of the anchor, which is above all others.
pub(super) const ANCHOR: u32 = u32::MAX;

/// The number of keys whose descents are interleaved.
pub(super) const SET_BATCH: usize = 16;

/// The number of attempts without a lock. After them, readers take the lock too.
const ATTEMPTS: u32 = 8;

/// The attempts of one operation.
pub(super) struct Attempts {
    backoff: Backoff,
    made: u32,
}

impl Attempts {
    pub(super) fn new() -> Self {
        Attempts { backoff: Backoff::new(), made: 0 }
    }

    /// Waits a little before the next attempt.
    #[cold]
    pub(super) fn retry(&mut self) {
        self.made = self.backoff.wait();
    }

    /// Returns `true` if other threads have interfered too often.
    #[inline(always)]
    fn exhausted(&self) -> bool {
        self.made >= ATTEMPTS
    }
}

/// The result of a descent.
pub(super) struct Path<'g, const N: usize> {
    pub(super) parent: &'g Node<N>,
    /// The slot of the parent that names the node.
    pub(super) at: usize,
    pub(super) node: &'g Node<N>,
    /// The version of the node before anything else in it was read.
    pub(super) seen: Seen,
}

/// The result of an attempt to change a pair.
enum Outcome {
    WriterDone(Change),
    /// A pair was removed, and the leaf has become sparse.
    Sparse(Change),
    /// The leaf has no free slot for another pair.
    Full,
}

/// The reason why an attempt has changed nothing.
enum ChangeError {
    Restart,
    Error(evermap_pm::Error),
}

impl From<Restart> for ChangeError {
    fn from(_: Restart) -> Self {
        ChangeError::Restart
    }
}

impl From<evermap_pm::Error> for ChangeError {
    fn from(error: evermap_pm::Error) -> Self {
        ChangeError::Error(error)
    }
}

impl<const N: usize> BPlus<N> {
    /// Descends to the node of a level that serves the target. Returns `None` if the tree is not
    /// that high.
    #[inline(always)]
    pub(super) fn descend<'g>(
        &'g self,
        target: Target<'_>,
        level: u32,
        guard: &'g Guard<'_>,
    ) -> Result<Option<Path<'g, N>>, Restart> {
        let mut parent: &Node<N> = &self.anchor;
        let mut node = self.root(guard);
        let mut at = 0;
        loop {
            let seen = node.version.read()?;
            if node.level <= level {
                return Ok((node.level == level).then_some(Path { parent, at, node, seen }));
            }
            at = node.child_at(target, guard);
            let child = node.child(at, guard);
            if let Some(child) = child {
                Node::prefetch_heads(child);
            }
            // Only the validation proves that the child serves the key, or is a child at all.
            node.version.validate(seen)?;
            parent = node;
            node = child.ok_or(Restart)?;
        }
    }

    #[inline(always)]
    pub(super) fn root<'g>(&'g self, guard: &'g Guard<'_>) -> &'g Node<N> {
        self.anchor.child(0, guard).expect("the anchor always names a root")
    }

    /// Implements [`set_many`](BPlus::set_many) for at most [`SET_BATCH`] keys.
    pub(super) fn set_batch(&self, pairs: &[(&[u8], Option<u64>)]) -> Result<()> {
        let guard = self.epoch.pin();
        let root = self.root(&guard);
        let probes: [Probe<'_>; SET_BATCH] =
            std::array::from_fn(|at| Probe::new(pairs.get(at).map_or(&[], |pair| pair.0)));
        // `None` if the descent was invalidated because a node on it was changed.
        let mut nodes = [Some(root); SET_BATCH];
        let nodes = &mut nodes[..pairs.len()];
        for _ in 0..root.level {
            for (node, probe) in nodes.iter_mut().zip(&probes) {
                *node = node.and_then(|node| self.next_child(node, probe, &guard).ok());
            }
        }
        nodes.iter().flatten().for_each(|leaf| leaf.prefetch_free());
        for ((&(key, word), probe), node) in pairs.iter().zip(&probes).zip(nodes) {
            self.set(key, word, probe, *node, &guard)?;
        }
        Ok(())
    }

    /// Performs one step of [`descend`](Self::descend).
    #[inline(always)]
    fn next_child<'g>(
        &self,
        node: &'g Node<N>,
        probe: &Probe<'_>,
        guard: &'g Guard<'_>,
    ) -> Result<&'g Node<N>, Restart> {
        let seen = node.version.read()?;
        let child = node.child(node.child_at(Target::At(probe), guard), guard);
        if let Some(child) = child {
            Node::prefetch_heads(child);
        }
        node.version.validate(seen)?;
        child.ok_or(Restart)
    }

    /// Binds or removes a key in the leaf that an interleaved descent has reached, or else by a new
    /// descent.
    #[inline(always)]
    fn set(
        &self,
        key: &[u8],
        word: Option<u64>,
        probe: &Probe<'_>,
        leaf: Option<&Node<N>>,
        guard: &Guard<'_>,
    ) -> Result<()> {
        let mode = if word.is_some() { MutateMode::MayInsert } else { MutateMode::ExistingOnly };
        let mut decide = |old: Option<u64>| match (old, word) {
            (Some(_), None) => Action::Remove,
            (None, Some(word)) => Action::Put(word),
            _ => Action::Keep,
        };
        // The leaf served the key during the descent, and still does unless it is obsolete, which
        // its version shows.
        let outcome = match leaf.map(|leaf| (leaf, leaf.version.read())) {
            Some((leaf, Ok(seen))) if key.len() <= KEY_MAX => {
                self.change_leaf(leaf, seen, probe, mode, &mut decide, false, guard)
            }
            _ => Err(ChangeError::Restart),
        };
        match outcome {
            Ok(Outcome::WriterDone(_)) => Ok(()),
            Ok(Outcome::Sparse(_)) => {
                self.rebalance(probe, 0, guard);
                Ok(())
            }
            Ok(Outcome::Full) => {
                self.split(probe, 0, guard)?;
                self.change(key, mode, &mut decide).map(drop)
            }
            Err(ChangeError::Restart) => self.change(key, mode, &mut decide).map(drop),
            Err(ChangeError::Error(error)) => Err(error),
        }
    }

    /// Implements [`OrderedIndex::get`](crate::ordered::OrderedIndex::get).
    #[inline]
    pub(super) fn get_word(&self, key: &[u8]) -> Option<u64> {
        let probe = Probe::new(key);
        let guard = self.epoch.pin();
        let mut attempts = Attempts::new();
        loop {
            match self.try_get(&probe, &attempts, &guard) {
                Ok(word) => return word,
                Err(Restart) => attempts.retry(),
            }
        }
    }

    #[inline(always)]
    fn try_get(
        &self,
        probe: &Probe<'_>,
        attempts: &Attempts,
        guard: &Guard<'_>,
    ) -> Result<Option<u64>, Restart> {
        let Path { node, seen, .. } = self.descend(Target::At(probe), 0, guard)?.ok_or(Restart)?;
        let locked = if attempts.exhausted() { Some(node.version.lock()?) } else { None };
        let position = node.search(probe, guard);
        let word = position.exists.then(|| node.word(position.at));
        if locked.is_none() {
            node.version.validate(seen)?;
        }
        Ok(word)
    }

    /// Implements [`floor`](BPlus::floor).
    #[inline]
    pub(super) fn floor_word(&self, to: Bound<&[u8]>) -> Option<u64> {
        let to = to.map(Probe::new);
        let target = match &to {
            Bound::Included(probe) => Target::At(probe),
            // No key is less than the empty key.
            Bound::Excluded(probe) if probe.key.is_empty() => return None,
            Bound::Excluded(probe) => Target::Below(probe),
            Bound::Unbounded => Target::Last,
        };
        let guard = self.epoch.pin();
        let mut attempts = Attempts::new();
        loop {
            match self.try_floor(target, &attempts, &guard) {
                Ok(word) => return word,
                Err(Restart) => attempts.retry(),
            }
        }
    }

    /// Returns the word of the last key that is up to the target.
    #[inline]
    fn try_floor(
        &self,
        target: Target<'_>,
        attempts: &Attempts,
        guard: &Guard<'_>,
    ) -> Result<Option<u64>, Restart> {
        let Path { node, mut seen, .. } = self.descend(target, 0, guard)?.ok_or(Restart)?;
        let mut locked = None;
        if attempts.exhausted() {
            seen = node.version.read()?;
            locked = Some(node.version.upgrade(seen)?);
        }
        let end = match target {
            Target::At(probe) => {
                let position = node.search(probe, guard);
                position.at + usize::from(position.exists)
            }
            Target::Below(probe) => node.search(probe, guard).at,
            Target::First | Target::Last => node.count(),
        };
        let word = end.checked_sub(1).map(|last| node.word(last));
        if locked.is_none() {
            node.version.validate(seen)?;
        }
        drop(locked);
        match word {
            Some(word) => Ok(Some(word)),
            None => self.floor_before(node, seen, attempts, guard),
        }
    }

    /// Returns the word of the last key before those that a leaf serves, none of which was up to
    /// the target at `seen`.
    #[cold]
    fn floor_before(
        &self,
        leaf: &Node<N>,
        seen: Seen,
        attempts: &Attempts,
        guard: &Guard<'_>,
    ) -> Result<Option<u64>, Restart> {
        let low = leaf.range().low();
        if low.is_empty() {
            return Ok(None);
        }
        let word = self.try_floor(Target::Below(&Probe::new(low)), attempts, guard)?;
        // There still was none when that word was read.
        leaf.version.validate(seen)?;
        Ok(word)
    }

    /// Implements [`OrderedIndex::mutate`](crate::ordered::OrderedIndex::mutate).
    pub(super) fn change(
        &self,
        key: &[u8],
        mode: MutateMode,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        if key.len() > KEY_MAX {
            return match mode {
                MutateMode::ExistingOnly => Ok(Change::default()),
                MutateMode::MayInsert => {
                    Err(ErrorKind::KeyTooLong { len: key.len(), max: KEY_MAX }.into())
                }
            };
        }
        let probe = Probe::new(key);
        let guard = self.epoch.pin();
        let mut attempts = Attempts::new();
        loop {
            match self.try_change(&probe, mode, decide, &attempts, &guard) {
                Ok(Outcome::WriterDone(change)) => return Ok(change),
                Ok(Outcome::Sparse(change)) => {
                    self.rebalance(&probe, 0, &guard);
                    return Ok(change);
                }
                Ok(Outcome::Full) => self.split(&probe, 0, &guard)?,
                Err(ChangeError::Restart) => attempts.retry(),
                Err(ChangeError::Error(error)) => return Err(error),
            }
        }
    }

    /// Makes one attempt. `decide` is called only if the attempt succeeds.
    fn try_change(
        &self,
        probe: &Probe<'_>,
        mode: MutateMode,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
        attempts: &Attempts,
        guard: &Guard<'_>,
    ) -> Result<Outcome, ChangeError> {
        let path = self.descend(Target::At(probe), 0, guard)?.ok_or(Restart)?;
        let (leaf, seen) = (path.node, path.seen);
        self.change_leaf(leaf, seen, probe, mode, decide, attempts.exhausted(), guard)
    }

    /// Changes a pair in a leaf that served the key at `seen` or before. If `lock_first` is set,
    /// the leaf is locked before it is searched.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)] // everything that a descent results in
    fn change_leaf(
        &self,
        leaf: &Node<N>,
        seen: Seen,
        probe: &Probe<'_>,
        mode: MutateMode,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
        lock_first: bool,
        guard: &Guard<'_>,
    ) -> Result<Outcome, ChangeError> {
        let early = if lock_first { Some(leaf.version.lock()?) } else { None };
        let position = leaf.search(probe, guard);
        let full = leaf.count() == N;
        if early.is_none() {
            leaf.version.validate(seen)?;
        }
        let new = match (position.exists, mode) {
            (true, _) => None,
            (false, MutateMode::ExistingOnly) => return Ok(Outcome::WriterDone(Change::default())),
            (false, MutateMode::MayInsert) if full => return Ok(Outcome::Full),
            // Everything that can fail is done before the decision.
            (false, MutateMode::MayInsert) => {
                let tail = probe.tail(leaf.prefix())?;
                self.tally.allow(tail.size())?;
                Some(tail)
            }
        };
        let mut locked = match early {
            Some(locked) => locked,
            // The position of the key was right at `seen`, and `upgrade` fails if it has changed.
            None => leaf.version.upgrade(seen)?,
        };
        let old = position.exists.then(|| leaf.word(position.at));
        let new_word = match (decide(old), new) {
            (Action::Keep, _) | (Action::Remove, Some(_)) => old,
            (Action::Put(word), None) => {
                locked.mark_changed();
                leaf.set_content(position.at, Content::Word(word));
                Some(word)
            }
            (Action::Put(word), Some(tail)) => {
                locked.mark_changed();
                let head = probe.head(leaf.prefix());
                leaf.insert(position.at, head, tail.get(), Content::Word(word));
                self.tally.add(Count::Pairs, 1);
                if tail.size() > 0 {
                    self.tally.add(Count::Bytes, tail.size());
                }
                tail.publish();
                Some(word)
            }
            (Action::Remove, None) => {
                locked.mark_changed();
                let block = leaf.tail(position.at, guard).block();
                leaf.remove(position.at);
                self.tally.subtract(Count::Pairs, 1);
                if let Some(block) = block {
                    self.tally.subtract(Count::Bytes, block.size());
                    // SAFETY: 1. blocks that slots name were published; one slot names each, and
                    // this one has just been removed. 2. so only replaced nodes name it. 3. the
                    // callers' guard is of this domain.
                    unsafe { retire_block(block, guard) };
                }
                None
            }
        };
        let change = Change { old, new: new_word };
        let sparse = change.removed() && leaf.is_sparse();
        Ok(if sparse { Outcome::Sparse(change) } else { Outcome::WriterDone(change) })
    }

    /// Implements [`OrderedIndex::page`](crate::ordered::OrderedIndex::page): reads one leaf.
    pub(super) fn read_page(&self, from: Bound<&[u8]>, direction: Direction, page: &mut Page) {
        if direction == Direction::Descending && from == Bound::Excluded(&[]) {
            // No key is less than the empty key.
            return page.clear();
        }
        let from = from.map(Probe::new);
        let guard = self.epoch.pin();
        let mut attempts = Attempts::new();
        while let Err(Restart) = self.try_page(from.as_ref(), direction, page, &attempts, &guard) {
            attempts.retry();
        }
    }

    fn try_page(
        &self,
        from: Bound<&Probe<'_>>,
        direction: Direction,
        page: &mut Page,
        attempts: &Attempts,
        guard: &Guard<'_>,
    ) -> Result<(), Restart> {
        page.clear();
        let target = match (direction, from) {
            (Direction::Ascending, Bound::Unbounded) => Target::First,
            (Direction::Descending, Bound::Unbounded) => Target::Last,
            (Direction::Descending, Bound::Excluded(probe)) => Target::Below(probe),
            (_, Bound::Included(probe) | Bound::Excluded(probe)) => Target::At(probe),
        };
        let path = self.descend(target, 0, guard)?.ok_or(Restart)?;
        let (leaf, seen) = (path.node, path.seen);
        Node::prefetch(leaf);
        // The neighbour is most likely the next page.
        Node::prefetch(path.parent.child_hint(match direction {
            Direction::Ascending => path.at + 1,
            Direction::Descending => path.at.wrapping_sub(1),
        }));
        let locked = if attempts.exhausted() { Some(leaf.version.lock()?) } else { None };
        let count = leaf.count();
        let at = |probe| leaf.search(probe, guard).at;
        let after = |probe| {
            let position = leaf.search(probe, guard);
            position.at + usize::from(position.exists)
        };
        let slots = match (direction, from) {
            (_, Bound::Unbounded) => 0..count,
            (Direction::Ascending, Bound::Included(probe)) => at(probe)..count,
            (Direction::Ascending, Bound::Excluded(probe)) => after(probe)..count,
            (Direction::Descending, Bound::Included(probe)) => 0..after(probe),
            (Direction::Descending, Bound::Excluded(probe)) => 0..at(probe),
        };
        page.pairs.reserve(slots.len());
        // Fetches all blocks together rather than one after the other.
        slots.clone().for_each(|at| leaf.tail(at, guard).prefetch());
        for at in slots {
            page.pairs.push_with(leaf.word(at), |bytes| leaf.append_key(at, bytes, guard));
        }
        if locked.is_none() {
            leaf.version.validate(seen)?;
        }
        let (low, high) = (leaf.range().low(), leaf.range().high());
        let edge = match direction {
            Direction::Ascending => high,
            // No key is less than the empty key.
            Direction::Descending => Some(low).filter(|low| !low.is_empty()),
        };
        if let Some(edge) = edge {
            page.continue_at(edge);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::ordered::OrderedIndex;
    use crate::testkit::concurrent::{WriterDone, threads};
    use crate::testkit::delays::Operation;

    const STABLE: [u64; 3] = [20, 40, 60];

    /// Returns the word of the greatest key up to a bound.
    fn floor_of(map: &BTreeMap<Vec<u8>, u64>, to: Bound<&[u8]>) -> Option<u64> {
        if to == Bound::Excluded(&[]) {
            return None;
        }
        map.range::<[u8], _>((Bound::Unbounded, to)).next_back().map(|(_, &word)| word)
    }

    /// Keys with common beginnings, so that leaves begin at keys that are not in the tree, are
    /// inserted and then removed.
    #[test]
    fn the_floor_is_that_of_a_map() {
        let tree = BPlus::<4>::new();
        let mut map = BTreeMap::new();
        let key = |number: u64| {
            let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            let mut key = vec![b'k'; mixed as usize % 3 * 9];
            key.extend((mixed as u16 % 500).to_be_bytes());
            key
        };
        for number in 0..2_000 {
            let (changed, asked) = (key(number), key(number * 7 + 1));
            if number < 1_000 {
                tree.upsert(&changed, number).unwrap();
                map.insert(changed, number);
            } else {
                tree.remove(&key(number - 1_000)).unwrap();
                map.remove(&key(number - 1_000));
            }
            let ends = [&asked[..], &asked[..1], &[], &[0xff]];
            let bounds =
                ends.into_iter().flat_map(|key| [Bound::Included(key), Bound::Excluded(key)]);
            for to in bounds.chain([Bound::Unbounded]) {
                assert_eq!(tree.floor(to), floor_of(&map, to), "{number}: {to:?}");
            }
        }
        assert!(map.is_empty() && tree.check().is_empty());
    }

    /// What is between two stable keys comes and goes, and leaves are split and merged there.
    #[test]
    fn the_floor_beside_writers_is_not_before_a_stable_key() {
        const APART: u64 = 64;
        const ENDS: u64 = 4 * APART;
        let tree = &BPlus::<4>::new();
        for key in (0..=ENDS).step_by(APART as usize) {
            assert!(tree.insert(&key.to_be_bytes(), key).unwrap().inserted());
        }
        let writing = AtomicUsize::new(1);
        threads(3, |thread| {
            if thread == 0 {
                let _done = WriterDone(&writing);
                for round in 0..20_000u64 {
                    let _operation = Operation::begin();
                    let key = round * 7 % ENDS;
                    let inserts = (round / ENDS).is_multiple_of(2);
                    if !key.is_multiple_of(APART) && inserts {
                        tree.upsert(&key.to_be_bytes(), key).map_err(|error| error.to_string())?;
                    } else if !key.is_multiple_of(APART) {
                        tree.remove(&key.to_be_bytes()).map_err(|error| error.to_string())?;
                    }
                }
                return Ok(());
            }
            let mut key = thread as u64;
            // Relaxed: the loop need only end at some time.
            while writing.load(std::sync::atomic::Ordering::Relaxed) > 0 {
                let _operation = Operation::begin();
                key = (key * 5 + 3) % ENDS;
                let found = tree.floor(Bound::Included(&key.to_be_bytes()));
                if !found.is_some_and(|found| (key / APART * APART..=key).contains(&found)) {
                    return Err(format!("the floor of {key} is {found:?}"));
                }
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(tree.floor(Bound::Unbounded), Some(ENDS));
    }

    /// Operations that have failed too often work under the lock of a leaf in which other threads
    /// insert and remove all the time.
    #[test]
    fn operations_with_too_many_attempts_take_the_lock() {
        let tree = &BPlus::<40>::new();
        for key in STABLE {
            assert!(tree.insert(&key.to_be_bytes(), key).unwrap().inserted());
        }
        let writing = AtomicUsize::new(2);
        threads(4, |thread| {
            if thread < 2 {
                let _done = WriterDone(&writing);
                return insert_and_remove(tree, thread as u64);
            }
            let exhausted = Attempts { backoff: Backoff::new(), made: ATTEMPTS };
            // Relaxed: the loop need only end at some time.
            while writing.load(std::sync::atomic::Ordering::Relaxed) > 0 {
                let _operation = Operation::begin();
                read_under_the_lock(tree, &exhausted)?;
            }
            Ok(())
        })
        .unwrap();
        assert_eq!((tree.len(), tree.stats().splits), (3, 0), "all of it was in one leaf");
        assert_eq!(tree.check(), Vec::<String>::new());
    }

    fn insert_and_remove(tree: &BPlus<40>, thread: u64) -> Result<(), String> {
        for round in 0..20_000 {
            let _operation = Operation::begin();
            let key = (round * 7 % 30 * 2 + thread + 1).to_be_bytes();
            if STABLE.contains(&u64::from_be_bytes(key)) {
                continue;
            }
            let inserted = tree.insert(&key, 0).map_err(|error| error.to_string())?.inserted();
            let removed = tree.remove(&key).map_err(|error| error.to_string())?.removed();
            if !inserted || !removed {
                return Err(format!("{key:?}: inserted {inserted}, removed {removed}"));
            }
        }
        Ok(())
    }

    fn read_under_the_lock(tree: &BPlus<40>, exhausted: &Attempts) -> Result<(), String> {
        let guard = tree.epoch.pin();
        for stable in STABLE {
            let key = stable.to_be_bytes();
            let probe = Probe::new(&key);
            let keep = &mut |_: Option<u64>| Action::Keep;
            match tree.try_get(&probe, exhausted, &guard) {
                Ok(found) if found != Some(stable) => return Err(format!("get found {found:?}")),
                _ => {}
            }
            match tree.try_change(&probe, MutateMode::MayInsert, keep, exhausted, &guard) {
                Ok(Outcome::WriterDone(change)) if change.old == Some(stable) => {}
                Err(ChangeError::Restart) => {}
                _ => return Err("a change found something else".into()),
            }
        }
        match tree.try_floor(Target::Last, exhausted, &guard) {
            Ok(found) if found != Some(60) => {
                return Err(format!("the last word is {found:?}"));
            }
            _ => {}
        }
        let mut page = Page::default();
        let from = Bound::Unbounded;
        if tree.try_page(from, Direction::Ascending, &mut page, exhausted, &guard) == Ok(()) {
            let words: Vec<u64> =
                page.pairs.iter().map(|(_, word)| word).filter(|&word| word > 0).collect();
            if words != STABLE {
                return Err(format!("a page shows {words:?}"));
            }
        }
        Ok(())
    }
}
