//! A tree from many pairs at once: sorted in parallel, cut into parts, and built from the leaves up without a lock.
//!
//! 1. Runs are cut into sources of about equal size, and each source is sorted, unless it is.
//! 2. Samples of all sources give the keys at which parts begin. A part's pairs are merged from all sources and
//!    become leaves.
//! 3. Level upon level is built above the leaves, until one node is left.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use evermap_pm::sync::Mutex;
use evermap_pm::{ErrorKind, Result};

use super::key::Probe;
use super::node::{Content, shared};
use super::restructure::Draft;
use super::tally::Count;
use super::{BPlus, Config};
use crate::ordered::Run;
use crate::record::KEY_MAX;

/// Fewest pairs that are worth a source or a part of their own.
const WORTHWHILE: usize = 1 << 12;
/// Parts for each thread: they differ in size, so that one thread may do more of them than another.
const PARTS: usize = 4;
/// Samples for each part.
const SAMPLES: usize = 32;

/// How far ahead of a merge the places of pairs are asked for, and then the bytes of their keys.
const PLACES_AHEAD: usize = 32;
const KEYS_AHEAD: usize = 16;

/// A sorted stretch of a run.
struct Source<'r> {
    run: &'r Run,
    places: Range<usize>,
    /// Places from the beginning of the stretch, in the order of their keys; nothing where they are in order.
    order: Option<Vec<u32>>,
}

impl<'r> Source<'r> {
    /// Sorts a stretch of fewer than 2^32 pairs. Equal keys stay in the order of their places.
    ///
    /// # Errors
    /// `KeyTooLong`.
    fn sorted(run: &'r Run, places: Range<usize>) -> Result<Self> {
        let keys = || places.clone().map(|place| run.key(place));
        if let Some(key) = keys().find(|key| key.len() > KEY_MAX) {
            return Err(ErrorKind::KeyTooLong { len: key.len(), max: KEY_MAX }.into());
        }
        if keys().is_sorted() {
            return Ok(Source { run, places, order: None });
        }
        let first = run.key(places.start);
        // What all keys begin with decides nothing; the 8 bytes behind it decide most.
        let prefix = keys().map(|key| shared(key, first)).min().unwrap_or(0);
        let head = |key| Probe::new(key).head(prefix);
        let mut heads: Vec<(u64, u32)> = keys().map(head).zip(0..).collect();
        let key = |place: u32| run.key(places.start + place as usize);
        heads.sort_unstable_by(|one, other| {
            let keys = || key(one.1).cmp(key(other.1));
            one.0.cmp(&other.0).then_with(keys).then(one.1.cmp(&other.1))
        });
        let order = heads.into_iter().map(|(_, place)| place).collect();
        Ok(Source { run, places, order: Some(order) })
    }

    fn len(&self) -> usize {
        self.places.len()
    }

    /// Place in the run of the pair that is `at` in order.
    #[inline]
    fn place(&self, at: usize) -> usize {
        self.places.start + self.order.as_ref().map_or(at, |order| order[at] as usize)
    }

    #[inline]
    fn key(&self, at: usize) -> &'r [u8] {
        self.run.key(self.place(at))
    }

    /// Asks for what comes some pairs after this one, if it is anywhere.
    #[inline]
    fn prefetch_behind(&self, at: usize) {
        let Some(order) = &self.order else { return };
        let place = |ahead: usize| order.get(at + ahead).map(|&at| self.places.start + at as usize);
        if let Some(place) = place(PLACES_AHEAD) {
            self.run.prefetch_place(place);
        }
        if let Some(place) = place(KEYS_AHEAD) {
            self.run.prefetch_key(place);
        }
    }

    /// Where the keys from `bound` on begin.
    fn lower_bound(&self, bound: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.key(middle) < bound { low = middle + 1 } else { high = middle }
        }
        low
    }
}

/// Takes pairs in order and makes leaves of them.
struct Leaves<'b, 'r, const N: usize> {
    done: Vec<Draft<'static, N>>,
    /// The leaf before `pairs`, which is full, and where it begins.
    full: Vec<(&'r [u8], u64)>,
    low: Vec<u8>,
    pairs: Vec<(&'r [u8], u64)>,
    budget: &'b Budget,
}

/// Bytes that the threads of a load have taken.
struct Budget {
    taken: AtomicU64,
    most: u64,
}

impl Budget {
    fn take(&self, bytes: usize) -> Result<()> {
        // Relaxed: a number.
        let taken = self.taken.fetch_add(bytes as u64, Relaxed) + bytes as u64;
        if taken > self.most {
            Err(super::tally::refusal(self.most, taken - self.most))
        } else {
            Ok(())
        }
    }
}

impl<'b, 'r, const N: usize> Leaves<'b, 'r, N> {
    fn new(low: &[u8], budget: &'b Budget) -> Self {
        Leaves { done: Vec::new(), full: Vec::new(), low: low.to_vec(), pairs: Vec::new(), budget }
    }

    /// Adds a pair whose key is not less than those before. Of equal keys the last counts.
    fn push(&mut self, key: &'r [u8], word: u64) -> Result<()> {
        match self.pairs.last_mut().or(self.full.last_mut()) {
            Some((last, old)) if *last == key => {
                *old = word;
                return Ok(());
            }
            _ => self.pairs.push((key, word)),
        }
        if self.pairs.len() > BPlus::<N>::FILL {
            let next = self.pairs.split_off(BPlus::<N>::FILL);
            self.flush(next)?;
        }
        Ok(())
    }

    /// Makes a leaf of the full pairs, and the current ones the full; goes on with `next`.
    fn flush(&mut self, next: Vec<(&'r [u8], u64)>) -> Result<()> {
        let full = std::mem::replace(&mut self.full, std::mem::replace(&mut self.pairs, next));
        if !full.is_empty() {
            let high = separator(&full, &self.full);
            self.leaf(&full, Some(high))?;
        }
        Ok(())
    }

    fn leaf(&mut self, pairs: &[(&[u8], u64)], high: Option<Vec<u8>>) -> Result<()> {
        let mut leaf = Draft::new(0, &self.low, high.as_deref())?;
        pairs.iter().try_for_each(|&(key, word)| leaf.push(key, Content::Word(word)))?;
        self.budget.take(leaf.size())?;
        self.done.push(leaf);
        self.low = high.unwrap_or_default();
        Ok(())
    }

    /// Makes leaves of what is left, evenly filled, and answers all.
    fn finish(mut self, high: Option<&[u8]>) -> Result<Vec<Draft<'static, N>>> {
        let mut rest = std::mem::take(&mut self.full);
        rest.append(&mut self.pairs);
        if rest.len() > BPlus::<N>::FILL {
            let last = rest.split_off(rest.len().div_ceil(2));
            let between = separator(&rest, &last);
            self.leaf(&rest, Some(between))?;
            rest = last;
        }
        self.leaf(&rest, high.map(<[u8]>::to_vec))?;
        Ok(self.done)
    }
}

/// The shortest key that is above all of some pairs and not above the next.
fn separator(pairs: &[(&[u8], u64)], next: &[(&[u8], u64)]) -> Vec<u8> {
    match (pairs.last(), next.first()) {
        (Some((last, _)), Some((first, _))) => first[..shared(last, first) + 1].to_vec(),
        _ => unreachable!("there are pairs on both sides"),
    }
}

impl<const N: usize> BPlus<N> {
    /// Slots in use of a node that is loaded, but for the last ones: insertions shall find room.
    const FILL: usize = N * 9 / 10;

    /// An index of the pairs of many runs, in any order, built by so many threads. Of equal keys the last counts: that
    /// in a later run, or later in its run.
    ///
    /// O(n log n), O(n) where runs are sorted; beside the runs and the tree it takes 4 bytes a pair, and 20 where they
    /// are not.
    ///
    /// # Errors
    /// `NoSpace`, `KeyTooLong`.
    pub fn load(config: Config, runs: &[Run], threads: usize) -> Result<Self> {
        let threads = threads.max(1);
        let sources = sources(runs, threads)?;
        let starts = starts(&sources, threads);
        let budget = Budget { taken: AtomicU64::new(0), most: config.bytes_max };
        let parts = parallel(threads, starts.len(), |part| {
            merge(&sources, &starts[part], starts.get(part + 1).map(Vec::as_slice), &budget)
        });
        let mut leaves = Vec::new();
        for part in parts {
            leaves.append(&mut part?);
        }
        drop(sources);
        let tree = Self::bare(config)?;
        tree.build(leaves, &budget)?;
        let guard = tree.epoch.pin();
        // Parts of few different keys have one leaf that is sparse.
        starts.iter().for_each(|start| tree.mend(&Probe::new(start), 0, &guard));
        drop(guard);
        Ok(tree)
    }

    /// Builds the levels above the leaves, and makes it all the tree.
    fn build(&self, leaves: Vec<Draft<'static, N>>, budget: &Budget) -> Result<()> {
        let mut done: Vec<Draft<'static, N>> = Vec::new();
        let mut level = leaves;
        while level.len() > 1 {
            let above = above(&level, budget)?;
            done.append(&mut level);
            level = above;
        }
        let guard = self.epoch.pin();
        for draft in done {
            self.settle(draft, &guard);
        }
        let root = level.pop().expect("there is a leaf at least");
        let root = self.settle(root, &guard);
        self.plant(root);
        Ok(())
    }

    /// Publishes a node, and counts its pairs.
    fn settle<'g>(
        &self,
        draft: Draft<'static, N>,
        guard: &'g evermap_pm::Guard<'_>,
    ) -> &'g super::node::Node<N> {
        if draft.node.is_leaf() {
            self.tally.add(Count::Pairs, draft.node.count());
        }
        draft.publish(self, &mut Vec::new(), guard)
    }
}

/// The nodes above some, each with about as many children.
fn above<const N: usize>(
    nodes: &[Draft<'static, N>],
    budget: &Budget,
) -> Result<Vec<Draft<'static, N>>> {
    let count = nodes.len().div_ceil(BPlus::<N>::FILL);
    let start = |at: usize| nodes.len() * at / count;
    let mut above = Vec::with_capacity(count);
    for at in 0..count {
        let children = &nodes[start(at)..start(at + 1)];
        let high = nodes.get(start(at + 1)).map(|next| next.node.range().low());
        let (level, low) = (children[0].node.level + 1, children[0].node.range().low());
        let mut node = Draft::new(level, low, high)?;
        for child in children {
            node.push(child.node.range().low(), Content::Child(&child.node))?;
        }
        budget.take(node.size())?;
        above.push(node);
    }
    Ok(above)
}

/// Cuts runs into sorted sources, about one for each thread.
fn sources(runs: &[Run], threads: usize) -> Result<Vec<Source<'_>>> {
    let total: usize = runs.iter().map(Run::len).sum();
    let most = total.div_ceil(threads).clamp(WORTHWHILE, u32::MAX as usize);
    let stretches: Vec<(&Run, Range<usize>)> = runs
        .iter()
        .flat_map(|run| {
            let starts = (0..run.len()).step_by(most);
            starts.map(move |start| (run, start..run.len().min(start + most)))
        })
        .collect();
    let sorted = parallel(threads, stretches.len(), |at| {
        let (run, places) = stretches[at].clone();
        Source::sorted(run, places)
    });
    sorted.into_iter().collect()
}

/// The keys at which parts begin, of which the first is the empty one.
fn starts(sources: &[Source<'_>], threads: usize) -> Vec<Vec<u8>> {
    let total: usize = sources.iter().map(Source::len).sum();
    let parts = (total / WORTHWHILE).clamp(1, threads * PARTS);
    let apart = (total / (parts * SAMPLES)).max(1);
    let mut samples: Vec<&[u8]> = sources
        .iter()
        .flat_map(|source| (0..source.len()).step_by(apart).map(|at| source.key(at)))
        .collect();
    samples.sort_unstable();
    let mut starts = vec![Vec::new()];
    starts.extend((1..parts).map(|part| samples[samples.len() * part / parts].to_vec()));
    starts.dedup();
    starts
}

/// The leaves for the keys from `low` on to below `high`.
fn merge<const N: usize>(
    sources: &[Source<'_>],
    low: &[u8],
    high: Option<&[u8]>,
    budget: &Budget,
) -> Result<Vec<Draft<'static, N>>> {
    let mut leaves = Leaves::new(low, budget);
    let end = |source: &Source<'_>| high.map_or(source.len(), |high| source.lower_bound(high));
    let stretches = sources.iter().map(|source| source.lower_bound(low)..end(source));
    let stretches: Vec<Range<usize>> = stretches.collect();
    // The least key first; of equal ones that of the earlier source, so that the later is the last to be pushed.
    let first = |(number, at): (usize, &Range<usize>)| {
        (!at.is_empty()).then(|| Reverse((sources[number].key(at.start), number, at.start)))
    };
    let mut next: BinaryHeap<_> = stretches.iter().enumerate().filter_map(first).collect();
    while let Some(mut least) = next.peek_mut() {
        let Reverse((key, number, at)) = *least;
        let (source, after) = (&sources[number], at + 1);
        source.prefetch_behind(at);
        leaves.push(key, source.run.word(source.place(at)))?;
        if after < stretches[number].end {
            *least = Reverse((source.key(after), number, after));
        } else {
            PeekMut::pop(least);
        }
    }
    leaves.finish(high)
}

/// What `job` answers for each number below `count`, worked out by so many threads, this one among them.
fn parallel<T: Send>(threads: usize, count: usize, job: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(count)));
    let work = || {
        loop {
            // Relaxed: each number is given out once.
            let at = next.fetch_add(1, Relaxed);
            if at >= count {
                return;
            }
            let result = job(at);
            results.lock().expect("no panics while held").push((at, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(count) {
            // A thread that the system does not give is done without.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let mut results = results.into_inner().expect("no panics while held");
    results.sort_unstable_by_key(|&(at, _)| at);
    results.into_iter().map(|(_, result)| result).collect()
}
