//! Bulk loading: pairs are divided into parts, sorted in parallel, and built into a tree from the
//! leaves up, without locks.
//!
//! 1. Runs are cut into chunks of about equal size. Samples of all chunks choose the keys at which
//!    the parts begin; there are enough parts that the pairs of one part fit into the cache. Each
//!    pair of a chunk that is not sorted is copied to its [part](partition). A caller that reads
//!    pairs in no order can partition them directly, by a sample of the first ones.
//! 2. A part sorts its pairs of each chunk, merges them, and builds leaves from them.
//! 3. Levels are built above the leaves until a single node is left.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use evermap_pm::{Result, parallel};

use super::arena::Arena;
use super::key::Probe;
use super::node::{Content, Node, shared};
use super::restructure::Draft;
use super::tally::Count;
use super::{BPlus, Config};
use crate::ordered::Run;

mod partition;
mod source;

pub use partition::{PartitionBuffers, Partitioner};
use source::{Input, Source};

/// Builds leaves from pairs that arrive in order.
struct Leaves<'b, 'r, const N: usize> {
    done: Vec<Draft<'static, N>>,
    /// The pairs of the leaf before `pairs`, which is full and begins at `low`.
    full: Vec<(&'r [u8], u64)>,
    low: Vec<u8>,
    pairs: Vec<(&'r [u8], u64)>,
    supplies: &'b Supplies<N>,
}

/// The memory that the threads of a load take nodes from.
struct Supplies<const N: usize> {
    nodes: Arc<Arena<Node<N>>>,
    /// Bytes taken so far, of at most `most`.
    taken: AtomicU64,
    most: u64,
}

impl<const N: usize> Supplies<N> {
    fn take(&self, bytes: usize) -> Result<()> {
        // Relaxed: only the sum matters.
        let taken = self.taken.fetch_add(bytes as u64, Relaxed) + bytes as u64;
        if taken > self.most {
            Err(super::tally::refusal(self.most, taken - self.most))
        } else {
            Ok(())
        }
    }
}

impl<'b, 'r, const N: usize> Leaves<'b, 'r, N> {
    fn new(low: &[u8], supplies: &'b Supplies<N>) -> Self {
        Leaves {
            done: Vec::new(),
            full: Vec::new(),
            low: low.to_vec(),
            pairs: Vec::new(),
            supplies,
        }
    }

    /// Adds a pair whose key is not less than those before it. Of equal keys, the last one counts.
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

    /// Builds a leaf from the full pairs, makes the current pairs the full ones, and continues with
    /// `next`.
    fn flush(&mut self, next: Vec<(&'r [u8], u64)>) -> Result<()> {
        let full = std::mem::replace(&mut self.full, std::mem::replace(&mut self.pairs, next));
        if !full.is_empty() {
            let high = separator(&full, &self.full);
            self.leaf(&full, Some(high))?;
        }
        Ok(())
    }

    fn leaf(&mut self, pairs: &[(&[u8], u64)], high: Option<Vec<u8>>) -> Result<()> {
        let mut leaf = Draft::new(&self.supplies.nodes, 0, &self.low, high.as_deref())?;
        pairs.iter().try_for_each(|&(key, word)| leaf.push(key, Content::Word(word)))?;
        self.supplies.take(leaf.size())?;
        self.done.push(leaf);
        self.low = high.unwrap_or_default();
        Ok(())
    }

    /// Builds evenly filled leaves from the remaining pairs, and returns all leaves.
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

/// Returns the shortest key that is greater than all keys of `pairs` and not greater than the first
/// of `next`.
fn separator(pairs: &[(&[u8], u64)], next: &[(&[u8], u64)]) -> Vec<u8> {
    match (pairs.last(), next.first()) {
        (Some((last, _)), Some((first, _))) => first[..shared(last, first) + 1].to_vec(),
        _ => unreachable!("there are pairs on both sides"),
    }
}

impl<const N: usize> BPlus<N> {
    /// The number of slots in use of a node that is loaded. The others are left for insertions. The
    /// last nodes of a level may have fewer.
    const FILL: usize = N * 9 / 10;

    /// Creates an index of the pairs of many runs, which may be in any order, with `threads`
    /// threads. Of equal keys, the last one counts: the one in a later run, or later in its run.
    ///
    /// O(n log n), or O(n) if the runs are sorted. If they are not, loading takes their size once
    /// more, in addition to them and the tree.
    ///
    /// # Errors
    /// `NoSpace`, `KeyTooLong`.
    pub fn load(config: Config, runs: &[Run], threads: usize) -> Result<Self> {
        let (input, partitioner) = Input::new(runs, threads.max(1))?;
        Self::load_parts(config, &input, &partitioner, threads)
    }

    /// Creates an index of pairs that were partitioned by `partitioner`, with `threads` threads. Of
    /// equal keys, the last one counts: the one in later buffers, or pushed later to the same
    /// buffers.
    ///
    /// O(n log n). The pairs take their size and 12 bytes each in addition to the tree.
    ///
    /// # Errors
    /// `NoSpace`.
    ///
    /// # Panics
    /// If one of the buffers belongs to another partitioner.
    pub fn load_partitioned(
        config: Config,
        partitioner: &Partitioner,
        buffers: Vec<PartitionBuffers<'_>>,
        threads: usize,
    ) -> Result<Self> {
        let matching = buffers.iter().all(|buffers| buffers.is_of(partitioner));
        assert!(matching, "buffers of another partitioner");
        Self::load_parts(config, &Input::partitioned(buffers), partitioner, threads)
    }

    fn load_parts(
        config: Config,
        input: &Input<'_>,
        partitioner: &Partitioner,
        threads: usize,
    ) -> Result<Self> {
        let starts = partitioner.starts();
        let tree = Self::bare(config)?;
        let (nodes, most) = (tree.nodes.clone(), config.bytes_max);
        let supplies = Supplies { nodes, taken: AtomicU64::new(0), most };
        let parts = parallel(threads, starts.len(), |part| {
            let high = starts.get(part + 1).map(Vec::as_slice);
            let sources = input.take(part, &starts[part], high);
            merge(&sources, &starts[part], high, &supplies)
        });
        let mut leaves = Vec::new();
        for part in parts {
            leaves.append(&mut part?);
        }
        tree.build(leaves, &supplies)?;
        let guard = tree.epoch.pin();
        // The only leaf of a part with few distinct keys is sparse.
        starts.iter().for_each(|start| tree.rebalance(&Probe::new(start), 0, &guard));
        drop(guard);
        Ok(tree)
    }

    /// Builds the levels above the leaves, and makes the topmost node the root of the tree.
    fn build(&self, leaves: Vec<Draft<'static, N>>, supplies: &Supplies<N>) -> Result<()> {
        let mut done: Vec<Draft<'static, N>> = Vec::new();
        let mut level = leaves;
        while level.len() > 1 {
            let above = above(&level, supplies)?;
            done.append(&mut level);
            level = above;
        }
        let guard = self.epoch.pin();
        for draft in done {
            self.publish(draft, &guard);
        }
        let root = level.pop().expect("there is a leaf at least");
        let root = self.publish(root, &guard);
        self.set_root(root);
        Ok(())
    }

    /// Publishes a node and counts its pairs.
    fn publish<'g>(
        &self,
        draft: Draft<'static, N>,
        guard: &'g evermap_pm::Guard<'_>,
    ) -> &'g Node<N> {
        if draft.node.is_leaf() {
            self.tally.add(Count::Pairs, draft.node.count());
        }
        draft.publish(self, &mut Vec::new(), guard)
    }
}

/// Builds the level above `nodes`, whose nodes have about equally many children.
fn above<const N: usize>(
    nodes: &[Draft<'static, N>],
    supplies: &Supplies<N>,
) -> Result<Vec<Draft<'static, N>>> {
    let count = nodes.len().div_ceil(BPlus::<N>::FILL);
    let start = |at: usize| nodes.len() * at / count;
    let mut above = Vec::with_capacity(count);
    for at in 0..count {
        let children = &nodes[start(at)..start(at + 1)];
        let high = nodes.get(start(at + 1)).map(|next| next.node.range().low());
        let (level, low) = (children[0].node.level + 1, children[0].node.range().low());
        let mut node = Draft::new(&supplies.nodes, level, low, high)?;
        for child in children {
            node.push(child.node.range().low(), Content::Child(&child.node))?;
        }
        supplies.take(node.size())?;
        above.push(node);
    }
    Ok(above)
}

/// Builds the leaves for the pairs of a part, whose keys are at least `low` and less than `high`.
fn merge<const N: usize>(
    sources: &[Source<'_>],
    low: &[u8],
    high: Option<&[u8]>,
    supplies: &Supplies<N>,
) -> Result<Vec<Draft<'static, N>>> {
    let mut leaves = Leaves::new(low, supplies);
    // The least key comes first; among equal keys that of the earlier source, so that the later one
    // is pushed last.
    let first = |(number, source): (usize, &'_ Source<'_>)| (source.len() > 0).then_some(number);
    let begin = |number: usize| Reverse((sources[number].pair(0).0, number, 0));
    let mut next: BinaryHeap<_> = sources.iter().enumerate().filter_map(first).map(begin).collect();
    while let Some(mut least) = next.peek_mut() {
        let Reverse((_, number, at)) = *least;
        let (source, after) = (&sources[number], at + 1);
        let (key, word) = source.pair(at);
        leaves.push(key, word)?;
        if after < source.len() {
            *least = Reverse((source.pair(after).0, number, after));
        } else {
            PeekMut::pop(least);
        }
    }
    leaves.finish(high)
}
