//! Building the tree from the hash index, while everything else goes on.
//!
//! 1. If the last stop was orderly, it has [saved](super::saved) the keys in order. Otherwise threads walk over the hash
//!    index, a segment each at a time, and note the keys. Meanwhile notices are kept.
//! 2. The keys are sorted and become the tree, which others see from now on.
//! 3. The kept notices are worked on like any others.
//!
//! A walk shows every key that is bound throughout. A key that comes or goes meanwhile leaves a notice, and is looked
//! up in step 3. Where so many came that they were dropped, the whole tree is compared with the whole hash index.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use evermap_index::key::BytesRef;
use evermap_index::ordered::{Cursor, Direction, Run, bplus};
use evermap_index::record::OFFSET_MASK;
use evermap_index::{BPlus, Guard, OrderedIndex};
use evermap_pm::sync::Mutex;
use evermap_pm::{Medium, parallel};

use super::{Lane, Ordered, OrderedState, TOGETHER};
use crate::read::Walk;
use crate::record::Record;
use crate::{Error, Result, Store};

/// Pairs, about, whose records one thread reads under one guard.
const READ_TOGETHER: usize = 1 << 17;
/// Stretches of the file by which they are put in order.
const PLACES: usize = 1 << 12;
/// Records that a reader of keys fetches ahead.
const AHEAD: usize = 24;
/// Bytes of a record in which most keys end: so much of it is fetched.
const KEY_BYTES: u64 = 64;

/// Threads to build with unless somebody says otherwise: half of the cores, for others have to do there too.
pub(crate) fn usual_threads() -> usize {
    cores().div_ceil(2)
}

/// Cores of this machine that we may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Pairs in about the order of their records: enough for neighbours to share pages, and for the price of two walks over them.
fn by_place(pairs: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let offset = |&(_, word): &(u64, u64)| word & OFFSET_MASK;
    let last = pairs.iter().map(offset).max().unwrap_or(0);
    let shift = (u64::BITS - last.leading_zeros()).saturating_sub(PLACES.ilog2());
    let place = |pair: &_| (offset(pair) >> shift) as usize;
    // Where the next pair of each place goes.
    let mut next = [0; PLACES];
    pairs
        .iter()
        .map(place)
        .filter(|place| place + 1 < PLACES)
        .for_each(|place| next[place + 1] += 1);
    (1..PLACES).for_each(|place| next[place] += next[place - 1]);
    let mut placed = vec![(0, 0); pairs.len()];
    for pair in pairs {
        let next = &mut next[place(pair)];
        placed[*next] = *pair;
        *next += 1;
    }
    placed
}

/// Ends the waiting of others, whatever becomes of the building.
struct Building<'o> {
    ordered: &'o Ordered,
    end: Option<OrderedState>,
}

impl Drop for Building<'_> {
    fn drop(&mut self) {
        let panicked = || OrderedState::Failed("a thread that was building it has panicked".into());
        self.ordered.set_state(self.end.take().unwrap_or_else(panicked));
    }
}

impl<M: Medium> Store<M> {
    /// Whether the ordered index is asked for and nobody has begun to build it.
    pub(crate) fn wants_ordered_built(&self) -> bool {
        self.map.ordered.as_ref().is_some_and(|ordered| ordered.state() == OrderedState::Pending)
    }

    /// Builds the [ordered index](crate::Options::ordered) with so many threads, the calling one among them, unless
    /// that is done; waits where others are at it. Other operations may go on meanwhile.
    ///
    /// O(n log n); some hundred nanoseconds a key and thread. It needs about 100 bytes of ordinary memory for each key
    /// of 16 bytes while it builds, and leaves a tree of about 40. [`Evermap`](crate::Evermap) calls it in the
    /// background as soon as it is opened; for a bare `Store`, the first scan does if nobody else has.
    ///
    /// ```
    /// # use evermap::{Evermap, Options};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("map");
    /// # Evermap::open(&path, Options::new())?.put(b"key", b"value")?;
    /// let map = Evermap::open(&path, Options::new().ordered(true))?;
    /// map.build_ordered(2)?;
    /// assert_eq!(map.summary().ordered.unwrap().keys, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotOrdered`], [`Error::OrderedFailed`], [`Error::Closed`], and [`Error::Pm`] with `Forked` or
    /// `Poisoned`.
    pub fn build_ordered(&self, threads: usize) -> Result<()> {
        let ordered = self.map.ordered.as_ref().ok_or(Error::NotOrdered)?;
        self.file.pool.region().ensure_writable()?;
        {
            let state = ordered.state.lock().expect("no panics while held");
            let is_building = |state: &mut OrderedState| *state == OrderedState::Building;
            let state = ordered.changed.wait_while(state, is_building);
            let mut state = state.expect("no panics while held");
            match &*state {
                OrderedState::Ready(_) => return Ok(()),
                OrderedState::Failed(why) => {
                    return Err(Error::OrderedFailed { why: why.clone() });
                }
                _ => *state = OrderedState::Building,
            }
        }
        let mut building = Building { ordered, end: None };
        let began = Instant::now();
        let built = self.build(ordered, threads);
        building.end = Some(match &built {
            Ok(()) => OrderedState::Ready(began.elapsed()),
            // Nobody will go on with it, but nobody will ask either.
            Err(Error::Closed) => OrderedState::Pending,
            Err(error) => OrderedState::Failed(error.to_string()),
        });
        built
    }

    fn build(&self, ordered: &Ordered, threads: usize) -> Result<()> {
        ordered.read.store(0, Relaxed);
        ordered.unreadable.store(0, Relaxed);
        let saved = self.read_saved(threads);
        ordered.from_saved.store(saved.is_some(), Relaxed);
        let runs = match saved {
            Some(runs) => {
                let keys: usize = runs.iter().map(Run::len).sum();
                ordered.read.store(keys as u64, Relaxed);
                runs
            }
            None => self.read_keys(ordered, threads.max(1))?,
        };
        self.plant(ordered, runs, threads)?;
        // Whoever checks the file must not see it go, and whoever sweeps may be waiting for a reader of this thread: then
        // the next stop frees it.
        if let Some(_sweeping) = self.file.upkeep.try_sweeping() {
            self.forget_saved();
        }
        Ok(())
    }

    /// Makes a tree of keys that were read, and brings it up to date.
    fn plant(&self, ordered: &Ordered, runs: Vec<Run>, threads: usize) -> Result<()> {
        let tree = BPlus::load(bplus::Config::default(), &runs, threads)?;
        drop(runs);
        let tree = ordered.tree.get_or_init(|| tree);
        let guard = self.enter()?;
        self.catch_up(ordered, tree, &guard);
        drop(guard);
        // No notice is dropped any more, now that there is a tree.
        if ordered.lanes.iter().any(Lane::has_dropped) {
            self.compare(ordered, tree, &mut |key, _, guard| {
                self.apply_one(ordered, tree, ordered.lane(key.hash), key, guard);
            })?;
        }
        Ok(())
    }

    /// The keys of all records, by so many threads.
    fn read_keys(&self, ordered: &Ordered, threads: usize) -> Result<Vec<Run>> {
        let walk = Mutex::new(Walk::new(self));
        let runs = parallel(threads, threads, |_| self.read_part(ordered, &walk));
        runs.into_iter().collect()
    }

    /// The keys of segments that no other thread reads, until there are none left.
    fn read_part(&self, ordered: &Ordered, walk: &Mutex<Walk<'_, M>>) -> Result<Run> {
        let mut run = Run::new();
        while let Some((pairs, _guard)) = self.next_segments(ordered, walk)? {
            let before = run.len();
            run.reserve(pairs.len());
            pairs.iter().take(AHEAD).for_each(|&(_, word)| self.prefetch_key(word));
            for (at, &(hash, word)) in pairs.iter().enumerate() {
                if let Some(&(_, ahead)) = pairs.get(at + AHEAD) {
                    self.prefetch_key(ahead);
                }
                self.read_key(ordered, hash, word, &mut run);
            }
            ordered.read.fetch_add((run.len() - before) as u64, Relaxed);
        }
        Ok(run)
    }

    /// Some segments that nobody has read yet, their pairs in the order of their records: so neighbours share pages, and
    /// with them what the processor has to know of pages.
    fn next_segments<'s>(
        &self,
        ordered: &Ordered,
        walk: &Mutex<Walk<'s, M>>,
    ) -> Result<Option<crate::read::Pairs<'s>>> {
        let Some((mut pairs, guard)) = self.next_segment(ordered, walk)? else { return Ok(None) };
        while pairs.len() < READ_TOGETHER
            && let Some((more, _)) = self.next_segment(ordered, walk)?
        {
            // The first guard protects all that was found under it.
            pairs.extend(more);
        }
        Ok(Some((by_place(&pairs), guard)))
    }

    /// The next segment that nobody has read yet.
    fn next_segment<'s>(
        &self,
        ordered: &Ordered,
        walk: &Mutex<Walk<'s, M>>,
    ) -> Result<Option<crate::read::Pairs<'s>>> {
        if self.file.upkeep.is_stopping() {
            return Err(Error::Closed);
        }
        let mut walk = walk.lock().unwrap_or_else(PoisonError::into_inner);
        let next = walk.next()?;
        if walk.take_error().is_err() {
            ordered.unreadable.fetch_add(1, Relaxed);
        }
        Ok(next)
    }

    #[inline]
    fn prefetch_key(&self, word: u64) {
        self.file.pool.medium().prefetch_bytes(word & OFFSET_MASK, KEY_BYTES);
    }

    /// Notes the key of a pair, if it can be read and belongs where it is. Dead records count too: the hash index
    /// binds their keys.
    #[inline]
    fn read_key(&self, ordered: &Ordered, hash: u64, word: u64, run: &mut Run) {
        let read = run.push_if(hash, |keys| {
            let start = keys.len();
            Record::at(self.file.pool.medium(), word).is_ok_and(|record| {
                record.append_key(keys).is_ok()
                    && BytesRef::new(&keys[start..], self.file.pool.seed()).hash == hash
            })
        });
        if !read {
            ordered.unreadable.fetch_add(1, Relaxed);
        }
    }

    /// Shows `differs` each key that only the hash index has, and each that only the tree has, and says whether it is
    /// the tree.
    fn compare(
        &self,
        ordered: &Ordered,
        tree: &BPlus,
        differs: &mut dyn FnMut(BytesRef<'_>, bool, &Guard<'_>),
    ) -> Result<()> {
        let walk = Mutex::new(Walk::new(self));
        let mut run = Run::new();
        while let Some((pairs, guard)) = self.next_segment(ordered, &walk)? {
            run.clear();
            for &(hash, word) in &pairs {
                self.read_key(ordered, hash, word, &mut run);
            }
            for (key, hash) in run.iter() {
                if tree.get(key)?.is_none() {
                    differs(BytesRef { bytes: key, hash }, false, &guard);
                }
            }
        }
        let mut cursor = Cursor::new(tree, .., Direction::Ascending);
        loop {
            let guard = self.enter()?;
            run.clear();
            while run.len() < TOGETHER
                && let Some((key, hash)) = cursor.next()?
            {
                run.push(key, hash);
            }
            if run.is_empty() {
                return Ok(());
            }
            for (key, hash) in run.iter() {
                let key = BytesRef { bytes: key, hash };
                if self.map.index.get(key, &guard)?.is_none() {
                    differs(key, true, &guard);
                }
            }
        }
    }

    /// What is wrong with the ordered index, if it is ready. While nobody changes the store.
    pub(crate) fn check_ordered(&self, problem: &mut dyn FnMut(String)) -> Result<()> {
        let Some(ordered) = self.map.ordered.as_ref().filter(|ordered| ordered.is_ready()) else {
            return Ok(());
        };
        let tree = self.tree(false)?;
        tree.check().into_iter().for_each(|what| problem(format!("ordered index: {what}")));
        self.compare(ordered, tree, &mut |key, in_tree, _| {
            let what = if in_tree { "has a key that is not there" } else { "lacks a key" };
            problem(format!("ordered index: it {what}: \"{}\"", key.bytes.escape_ascii()));
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use evermap_pm::medium::{Dram, Pages};
    use evermap_pm::region::Identity;

    use super::*;
    use crate::{Notices, Options};

    fn key_of(number: u32) -> [u8; 4] {
        number.wrapping_mul(0x9e37_79b1).to_be_bytes()
    }

    #[test]
    fn pairs_are_placed_by_their_records() {
        for last in [0u64, 1, 5000, OFFSET_MASK] {
            let word = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (last + 1);
            let pairs: Vec<_> = (0..3000).map(|number| (number, word(number) | 7 << 48)).collect();
            let mut placed = by_place(&pairs);
            let width = last / PLACES as u64 * 2 + 1;
            let near =
                |ab: &[(u64, u64)]| (ab[0].1 & OFFSET_MASK) < (ab[1].1 & OFFSET_MASK) + width;
            assert!(placed.windows(2).all(near), "{last}");
            placed.sort_unstable();
            assert_eq!(placed, pairs);
        }
        assert_eq!(by_place(&[]), []);
    }

    /// Keys come and go between the walk and the tree: as many as are kept, and far more.
    #[test]
    fn what_changed_meanwhile_is_made_up_for() {
        for (notices, changes) in [
            (Notices::InBatches, 300),
            (Notices::AtOnce, 300),
            (Notices::InBatches, 20_000),
            (Notices::AtOnce, 20_000),
        ] {
            let medium = Dram::reserve(64 << 20, Pages::Base).unwrap();
            let options = Options::new().capacity(64 << 20).ordered(true).notices(notices);
            let store = Store::create(medium, Identity::default(), &options).unwrap();
            for number in 0..10_000 {
                store.put(&key_of(number), b"before").unwrap();
            }
            // As if it had been opened now.
            let Store { file, map } = store;
            drop(map);
            let mut file = Arc::into_inner(file).expect("nobody else has it");
            let map = Arc::get_mut(&mut file.default).expect("nobody else has it");
            map.ordered = Some(Ordered::new(notices, false).unwrap());
            let map = file.default.clone();
            let store = Store { file: Arc::new(file), map };
            let ordered = store.map.ordered.as_ref().unwrap();
            let runs = store.read_keys(ordered, 2).unwrap();
            assert_eq!(ordered.stat().keys_read, 10_000);
            for number in 0..changes {
                match number % 2 {
                    0 => assert!(store.remove(&key_of(number / 2)).unwrap()),
                    _ => store.put(&key_of(10_000 + number), b"meanwhile").unwrap(),
                }
            }
            let dropped = ordered.lanes.iter().any(Lane::has_dropped);
            assert_eq!(dropped, changes > 300);
            store.plant(ordered, runs, 2).unwrap();
            ordered.set_state(OrderedState::Ready(Duration::ZERO));
            let mut problems = Vec::new();
            store.check_ordered(&mut |problem| problems.push(problem)).unwrap();
            assert_eq!(problems, Vec::<String>::new(), "{notices:?} {changes}");
            assert_eq!(store.scan(..).unwrap().count() as u64, store.len().value);
        }
    }
}
