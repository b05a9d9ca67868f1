//! The input of a load: sorted pairs, and pairs that were [partitioned](PartitionBuffers) into
//! parts that can be sorted in the cache.

use std::ops::Range;

use evermap_pm::sync::{Mutex, Rank};
use evermap_pm::{Result, parallel};

use super::partition::{PairBuffer, PartitionBuffers, Partitioner, check_length};
use crate::ordered::Run;
use crate::ordered::bplus::key::Probe;
use crate::ordered::bplus::node::shared;

/// The smallest number of pairs that are worth a chunk.
const CHUNK_MIN: usize = 1 << 12;

/// Pairs to be loaded, in the order of their chunks: of equal keys, the last one counts.
pub(super) struct Input<'r> {
    chunks: Vec<Chunk<'r>>,
}

impl<'r> Input<'r> {
    /// Cuts runs into chunks, and partitions those that are not sorted.
    ///
    /// # Errors
    /// `KeyTooLong`.
    pub(super) fn new(runs: &'r [Run], threads: usize) -> Result<(Self, Partitioner)> {
        let places = chunks_of(runs, threads);
        let partitioner = Partitioner::new(&places, runs.iter().map(Run::len).sum());
        let chunks = parallel(threads, places.len(), |at| {
            let (run, places) = places[at].clone();
            Chunk::new(run, places, &partitioner)
        });
        Ok((Input { chunks: chunks.into_iter().collect::<Result<_>>()? }, partitioner))
    }

    /// Creates an input of pairs that are partitioned already.
    pub(super) fn partitioned(buffers: Vec<PartitionBuffers<'_>>) -> Self {
        Input { chunks: buffers.into_iter().map(Chunk::partitioned).collect() }
    }

    /// Takes the pairs of a part, whose keys are at least `low` and less than `high`. Called once
    /// for each part.
    pub(super) fn take(&self, part: usize, low: &[u8], high: Option<&[u8]>) -> Vec<Source<'r>> {
        self.chunks.iter().map(|chunk| chunk.take(part, low, high)).collect()
    }
}

/// Cuts runs into chunks, about one for each thread.
fn chunks_of(runs: &[Run], threads: usize) -> Vec<(&Run, Range<usize>)> {
    let total: usize = runs.iter().map(Run::len).sum();
    let most = total.div_ceil(threads).max(CHUNK_MIN);
    let of_run = |run| {
        let starts = (0..Run::len(run)).step_by(most);
        starts.map(move |start| (run, start..run.len().min(start + most)))
    };
    runs.iter().flat_map(of_run).collect()
}

/// A chunk of the pairs.
enum Chunk<'r> {
    /// A range of a run, whose pairs are sorted.
    Sorted(&'r Run, Range<usize>),
    /// The pairs of each part.
    Partitioned(Vec<Mutex<PairBuffer>>),
}

impl<'r> Chunk<'r> {
    /// Partitions the pairs of a range of a run, unless they are sorted.
    ///
    /// # Errors
    /// `KeyTooLong`.
    fn new(run: &'r Run, places: Range<usize>, partitioner: &Partitioner) -> Result<Self> {
        let keys = || places.clone().map(|place| run.key(place));
        if keys().is_sorted() {
            keys().try_for_each(check_length)?;
            return Ok(Chunk::Sorted(run, places));
        }
        let mut buffers = partitioner.buffers(places.len());
        keys().zip(places.clone()).try_for_each(|(key, at)| buffers.push(key, run.word(at)))?;
        Ok(Self::partitioned(buffers))
    }

    fn partitioned(buffers: PartitionBuffers<'_>) -> Self {
        Chunk::Partitioned(
            buffers.parts.into_iter().map(|part| Mutex::ranked(Rank::Part, part)).collect(),
        )
    }

    fn take(&self, part: usize, low: &[u8], high: Option<&[u8]>) -> Source<'r> {
        match self {
            Chunk::Partitioned(parts) => {
                let pairs = &mut *parts[part].lock().expect("no panics while held");
                Source::sort(std::mem::take(pairs))
            }
            Chunk::Sorted(run, places) => {
                let from = |bound| run.partition_point(places.clone(), |key| key < bound);
                Source::Sorted(run, from(low)..high.map_or(places.end, from))
            }
        }
    }
}

/// The pairs of one chunk that belong to one part, in order.
pub(super) enum Source<'r> {
    /// A sorted range of a run.
    Sorted(&'r Run, Range<usize>),
    /// A buffer, and the offsets of its pairs in the order of their keys.
    Buffer(PairBuffer, Vec<usize>),
}

impl Source<'_> {
    /// Sorts pairs by key. Equal keys keep the order in which they were added.
    fn sort(pairs: PairBuffer) -> Self {
        let starts: Vec<usize> = pairs.starts().collect();
        let key = |place: usize| pairs.pair(starts[place]).0;
        let keys = || (0..starts.len()).map(key);
        // The prefix that all keys share decides nothing; the bytes after it decide most.
        let first = keys().next().unwrap_or_default();
        let prefix = keys().fold(first, |common, key| &common[..shared(common, key)]).len();
        // One number for each pair, which compares without a branch: as much of the head as leaves
        // bits for the position.
        let mask = starts.len().next_power_of_two() as u64 - 1;
        let number = |(key, place): (&[u8], u64)| Probe::new(key).head(prefix) & !mask | place;
        let mut numbers: Vec<u64> = keys().zip(0..).map(number).collect();
        numbers.sort_unstable();
        let place = |number: &u64| (number & mask) as usize;
        for equal in numbers.chunk_by_mut(|one, other| one & !mask == other & !mask) {
            // `sort_by` is stable, and the numbers are in the order of their positions.
            equal.sort_by(|one, other| key(place(one)).cmp(key(place(other))));
        }
        let order = numbers.iter().map(|number| starts[place(number)]).collect();
        Source::Buffer(pairs, order)
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Source::Sorted(_, places) => places.len(),
            Source::Buffer(_, order) => order.len(),
        }
    }

    /// Returns the pair at position `at` of the order.
    #[inline]
    pub(super) fn pair(&self, at: usize) -> (&[u8], u64) {
        match self {
            Source::Sorted(run, places) => {
                (run.key(places.start + at), run.word(places.start + at))
            }
            Source::Buffer(pairs, order) => pairs.pair(order[at]),
        }
    }
}
