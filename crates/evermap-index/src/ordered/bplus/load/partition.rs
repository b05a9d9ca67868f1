//! Partitioning of unsorted pairs as they arrive, into ranges of keys that are small enough to be
//! sorted in the cache.

use std::ops::Range;

use evermap_pm::{ErrorKind, Result};

use crate::ordered::Run;
use crate::ordered::bplus::key::Probe;
use crate::ordered::bplus::node::shared;
use crate::record::KEY_MAX;

/// The approximate number of pairs in a part. With short keys, they take half a megabyte including
/// what sorting needs.
const PAIRS_PER_PART: usize = 1 << 13;
/// The largest number of parts. The ends of this many buffers can be written alternately before
/// they evict each other from the cache.
const PARTS_MAX: usize = 1 << 10;
/// The number of samples for each part.
const SAMPLES_PER_PART: usize = 32;

/// Checks that a key is not too long.
///
/// # Errors
/// `KeyTooLong`.
pub(super) fn check_length(key: &[u8]) -> Result<()> {
    match key.len() {
        0..=KEY_MAX => Ok(()),
        len => Err(ErrorKind::KeyTooLong { len, max: KEY_MAX }.into()),
    }
}

/// The keys at which the parts of a load begin.
///
/// ```
/// use evermap_index::BPlus;
/// use evermap_index::ordered::{OrderedIndex, Run, bplus::{Config, Partitioner}};
///
/// let mut sample = Run::new();
/// sample.push(b"mouse", 1);
/// let partitioner = Partitioner::from_sample(&sample, 2);
/// let mut buffers = partitioner.buffers(2);
/// buffers.push(b"rat", 2)?;
/// buffers.push(b"cat", 3)?;
/// let tree: BPlus = BPlus::load_partitioned(Config::default(), &partitioner, vec![buffers], 1)?;
/// assert_eq!(tree.get(b"rat")?, Some(2));
/// # Ok::<(), evermap_pm::Error>(())
/// ```
#[derive(Debug)]
pub struct Partitioner {
    /// The keys in ascending order. The first is the empty key.
    starts: Vec<Vec<u8>>,
    /// The bytes that all other keys begin with.
    prefix: Vec<u8>,
    /// The 8 bytes of each of those keys after the prefix, as numbers. They decide most
    /// comparisons.
    heads: Vec<u64>,
}

impl Partitioner {
    /// Creates a partition of about `pairs` pairs whose keys are distributed like those of the
    /// sample. If they are not, or if there are more pairs, some parts take longer to sort.
    pub fn from_sample(sample: &Run, pairs: usize) -> Self {
        Self::new(&[(sample, 0..sample.len())], pairs)
    }

    /// Creates a partition of `pairs` pairs, by samples from the given ranges of runs.
    pub(super) fn new(places: &[(&Run, Range<usize>)], pairs: usize) -> Self {
        let parts = (pairs / PAIRS_PER_PART).clamp(1, PARTS_MAX);
        let total: usize = places.iter().map(|(_, places)| places.len()).sum();
        let apart = (total / (parts * SAMPLES_PER_PART)).max(1);
        let mut samples: Vec<&[u8]> = Vec::new();
        for (run, places) in places {
            samples.extend(sample(run, places.clone(), apart));
        }
        samples.sort_unstable();
        let mut starts: Vec<&[u8]> = vec![b""];
        if !samples.is_empty() {
            starts.extend((1..parts).map(|part| samples[samples.len() * part / parts]));
        }
        starts.dedup();
        let first = starts.get(1).copied().unwrap_or_default();
        let prefix = starts[1..].iter().map(|start| shared(first, start)).min().unwrap_or(0);
        let heads = starts[1..].iter().map(|start| Probe::new(start).head(prefix)).collect();
        let prefix = first[..prefix].to_vec();
        Partitioner { starts: starts.into_iter().map(<[u8]>::to_vec).collect(), prefix, heads }
    }

    /// Returns the keys at which the parts begin. The first is the empty key.
    pub(super) fn starts(&self) -> &[Vec<u8>] {
        &self.starts
    }

    /// Creates empty buffers for about `pairs` pairs. They grow if there are more pairs, or if keys
    /// are longer than 16 bytes.
    pub fn buffers(&self, pairs: usize) -> PartitionBuffers<'_> {
        let parts = self.starts.len();
        // Parts differ in size, and a number that is far too high must not reserve memory for it.
        let bytes = (pairs / parts).min(PAIRS_PER_PART) * 5 / 4 * (HEADER + 16);
        let buffer = || PairBuffer { bytes: Vec::with_capacity(bytes) };
        PartitionBuffers {
            partitioner: self,
            parts: std::iter::repeat_with(buffer).take(parts).collect(),
        }
    }

    /// Returns the part that a key belongs to.
    #[inline]
    fn part_of(&self, key: &[u8]) -> usize {
        // The pointer of an empty vector dangles. Some processors take 100 ns for a comparison of
        // no bytes there: a load with an empty mask looks like a fault at first.
        if !self.prefix.is_empty() && !key.starts_with(&self.prefix) {
            return if key < &self.prefix[..] { 0 } else { self.heads.len() };
        }
        let head = Probe::new(key).head(self.prefix.len());
        let part = self.heads.partition_point(|&start| start < head);
        if self.heads.get(part) != Some(&head) {
            return part;
        }
        let equal = self.heads[part..].partition_point(|&start| start == head);
        let starts = &self.starts[part + 1..][..equal];
        part + starts.partition_point(|start| &start[..] <= key)
    }
}

/// Returns keys that are `apart` pairs from each other on average. The distances vary, because a
/// fixed distance could fall in step with a pattern in the order of the pairs.
fn sample(run: &Run, places: Range<usize>, apart: usize) -> impl Iterator<Item = &[u8]> {
    let within = move |at: usize| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % apart;
    let sampled = places.clone().step_by(apart).map(move |at| at + within(at));
    sampled.filter(move |&place| place < places.end).map(|place| run.key(place))
}

/// The pairs that one thread has assigned to the parts of a [`Partitioner`].
#[derive(Debug)]
pub struct PartitionBuffers<'d> {
    partitioner: &'d Partitioner,
    pub(super) parts: Vec<PairBuffer>,
}

impl PartitionBuffers<'_> {
    /// Adds a pair to the buffer of its part. O(log parts).
    ///
    /// # Errors
    /// `KeyTooLong`.
    #[inline]
    pub fn push(&mut self, key: &[u8], word: u64) -> Result<()> {
        check_length(key)?;
        self.parts[self.partitioner.part_of(key)].push(key, word);
        Ok(())
    }

    /// Returns `true` if these buffers belong to `partitioner`.
    pub(super) fn is_of(&self, partitioner: &Partitioner) -> bool {
        std::ptr::eq(self.partitioner, partitioner)
    }
}

/// Bytes before a key: the word and the length of the key.
const HEADER: usize = 12;

/// The pairs of one part, in one stream of bytes, so that adding a pair mostly writes a single
/// cache line.
#[derive(Debug, Default)]
pub(super) struct PairBuffer {
    /// For each pair: the word, 8 bytes; the length of the key, 4 bytes; the key.
    bytes: Vec<u8>,
}

impl PairBuffer {
    #[inline]
    fn push(&mut self, key: &[u8], word: u64) {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&word.to_le_bytes());
        header[8..].copy_from_slice(&(key.len() as u32).to_le_bytes());
        self.bytes.reserve(HEADER + key.len());
        self.bytes.extend_from_slice(&header);
        self.bytes.extend_from_slice(key);
    }

    /// Returns the pair that begins at byte `start`.
    #[inline]
    pub(super) fn pair(&self, start: usize) -> (&[u8], u64) {
        let (header, rest) =
            self.bytes[start..].split_first_chunk::<HEADER>().expect("a pair begins here");
        let (word, length) = header.split_first_chunk().expect("12 bytes");
        let length = u32::from_le_bytes(length.try_into().expect("4 bytes"));
        (&rest[..length as usize], u64::from_le_bytes(*word))
    }

    /// Returns the bytes at which pairs begin.
    pub(super) fn starts(&self) -> impl Iterator<Item = usize> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let start = next;
            (start < self.bytes.len()).then(|| {
                next = start + HEADER + self.pair(start).0.len();
                start
            })
        })
    }
}
