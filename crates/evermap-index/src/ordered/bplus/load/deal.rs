//! Pairs in no order, dealt out to parts as they come: ranges of keys with so few pairs that a part can be sorted in the
//! cache.

use std::ops::Range;

use evermap_pm::{ErrorKind, Result};

use crate::ordered::Run;
use crate::ordered::bplus::key::Probe;
use crate::ordered::bplus::node::shared;
use crate::record::KEY_MAX;

/// Pairs of a part, about: with all that sorting them takes they are half a megabyte, if keys are short.
const PART: usize = 1 << 13;
/// Most parts: so many ends of pieces can be written in turn before they drive each other out of the cache.
const PARTS_MAX: usize = 1 << 10;
/// Samples for each part.
const SAMPLES: usize = 32;

/// # Errors
/// `KeyTooLong`.
pub(super) fn check_length(key: &[u8]) -> Result<()> {
    match key.len() {
        0..=KEY_MAX => Ok(()),
        len => Err(ErrorKind::KeyTooLong { len, max: KEY_MAX }.into()),
    }
}

/// At which keys the parts of a load begin.
///
/// ```
/// use evermap_index::BPlus;
/// use evermap_index::ordered::{OrderedIndex, Run, bplus::{Config, Division}};
///
/// let mut sample = Run::new();
/// sample.push(b"mouse", 1);
/// let division = Division::by_sample(&sample, 2);
/// let mut hand = division.hand(2);
/// hand.push(b"rat", 2)?;
/// hand.push(b"cat", 3)?;
/// let tree: BPlus = BPlus::load_dealt(Config::default(), &division, vec![hand], 1)?;
/// assert_eq!(tree.get(b"rat")?, Some(2));
/// # Ok::<(), evermap_pm::Error>(())
/// ```
#[derive(Debug)]
pub struct Division {
    /// Ascending; the first is the empty key.
    starts: Vec<Vec<u8>>,
    /// What all others begin with.
    prefix: Vec<u8>,
    /// Their 8 bytes behind that, as numbers: they decide most comparisons.
    heads: Vec<u64>,
}

impl Division {
    /// Divides about so many pairs, whose keys are distributed as those of the sample are. Where they are not, or where
    /// there are more, a part will be long to sort.
    pub fn by_sample(sample: &Run, pairs: usize) -> Self {
        Self::new(&[(sample, 0..sample.len())], pairs)
    }

    /// Divides so many pairs by samples from places of runs.
    pub(super) fn new(places: &[(&Run, Range<usize>)], pairs: usize) -> Self {
        let parts = (pairs / PART).clamp(1, PARTS_MAX);
        let total: usize = places.iter().map(|(_, places)| places.len()).sum();
        let apart = (total / (parts * SAMPLES)).max(1);
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
        Division { starts: starts.into_iter().map(<[u8]>::to_vec).collect(), prefix, heads }
    }

    /// The keys at which parts begin, of which the first is the empty one.
    pub(super) fn starts(&self) -> &[Vec<u8>] {
        &self.starts
    }

    /// An empty hand for about so many pairs. If there are more, or keys are longer than 16 bytes, it grows.
    pub fn hand(&self, pairs: usize) -> Hand<'_> {
        let parts = self.starts.len();
        // Parts differ in size; and a number that is far too high must not take memory for it.
        let room = (pairs / parts).min(PART) * 5 / 4 * (HEADER + 16);
        let piece = || Piece { bytes: Vec::with_capacity(room) };
        Hand { division: self, pieces: std::iter::repeat_with(piece).take(parts).collect() }
    }

    /// The part that a key belongs to.
    #[inline]
    fn part_of(&self, key: &[u8]) -> usize {
        // An empty vector has an address where nothing is. A processor that compares no bytes there, by loads that a mask
        // forbids, takes 100 ns to find that this is no fault.
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

/// Some keys, `apart` pairs from each other on average, and not always at the same distance: what was written in turns
/// would be met at the same turn each time.
fn sample(run: &Run, places: Range<usize>, apart: usize) -> impl Iterator<Item = &[u8]> {
    let within = move |at: usize| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % apart;
    let sampled = places.clone().step_by(apart).map(move |at| at + within(at));
    sampled.filter(move |&place| place < places.end).map(|place| run.key(place))
}

/// What one thread has dealt out to the parts of a [division](Division).
#[derive(Debug)]
pub struct Hand<'d> {
    division: &'d Division,
    pub(super) pieces: Vec<Piece>,
}

impl Hand<'_> {
    /// Deals a pair out. O(log parts).
    ///
    /// # Errors
    /// `KeyTooLong`.
    #[inline]
    pub fn push(&mut self, key: &[u8], word: u64) -> Result<()> {
        check_length(key)?;
        self.pieces[self.division.part_of(key)].push(key, word);
        Ok(())
    }

    /// Whether it was dealt out among these parts.
    pub(super) fn is_of(&self, division: &Division) -> bool {
        std::ptr::eq(self.division, division)
    }
}

/// Bytes before a key: its word and its length.
const HEADER: usize = 12;

/// Pairs of one part, in one stream of bytes: whoever deals out writes a single line, mostly.
#[derive(Debug, Default)]
pub(super) struct Piece {
    /// For each pair: the word, 8 bytes; the length of the key, 4; the key.
    bytes: Vec<u8>,
}

impl Piece {
    #[inline]
    fn push(&mut self, key: &[u8], word: u64) {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&word.to_le_bytes());
        header[8..].copy_from_slice(&(key.len() as u32).to_le_bytes());
        self.bytes.reserve(HEADER + key.len());
        self.bytes.extend_from_slice(&header);
        self.bytes.extend_from_slice(key);
    }

    /// The pair that begins at a byte.
    #[inline]
    pub(super) fn pair(&self, start: usize) -> (&[u8], u64) {
        let (header, rest) =
            self.bytes[start..].split_first_chunk::<HEADER>().expect("a pair begins here");
        let (word, length) = header.split_first_chunk().expect("12 bytes");
        let length = u32::from_le_bytes(length.try_into().expect("4 bytes"));
        (&rest[..length as usize], u64::from_le_bytes(*word))
    }

    /// Where pairs begin.
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
