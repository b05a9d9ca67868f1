//! What is loaded: stretches of runs, divided among parts that are small enough to be sorted in the cache.

use std::ops::Range;

use evermap_pm::sync::Mutex;
use evermap_pm::{ErrorKind, Result, parallel};

use crate::ordered::Run;
use crate::ordered::bplus::key::Probe;
use crate::ordered::bplus::node::shared;
use crate::record::KEY_MAX;

/// Fewest pairs that are worth a stretch of their own.
const WORTHWHILE: usize = 1 << 12;
/// Pairs of a part, about: with all that sorting them takes they are half a megabyte, if keys are short.
const PART: usize = 1 << 13;
/// Most parts: so many ends of runs can be written in turn before they drive each other out of the cache.
const PARTS_MAX: usize = 1 << 10;
/// Samples for each part.
const SAMPLES: usize = 32;

/// Pairs to be loaded, and the keys at which parts begin.
pub(super) struct Input<'r> {
    stretches: Vec<Stretch<'r>>,
    division: Division,
}

impl<'r> Input<'r> {
    /// Cuts runs into stretches, and deals those that are not sorted out among the parts.
    ///
    /// # Errors
    /// `KeyTooLong`.
    pub(super) fn new(runs: &'r [Run], threads: usize) -> Result<Self> {
        let places = cut(runs, threads);
        let surveyed = parallel(threads, places.len(), |at| {
            let (run, places) = places[at].clone();
            Stretch::survey(run, places)
        });
        let mut stretches = surveyed.into_iter().collect::<Result<Vec<_>>>()?;
        let division = Division::new(&stretches);
        let dealt = parallel(threads, stretches.len(), |at| stretches[at].deal(&division));
        for (stretch, pieces) in stretches.iter_mut().zip(dealt) {
            stretch.pieces = pieces;
        }
        Ok(Input { stretches, division })
    }

    /// The keys at which parts begin, of which the first is the empty one.
    pub(super) fn starts(&self) -> &[Vec<u8>] {
        &self.division.starts
    }

    /// The pairs of a part, those of later runs last. To be asked for once.
    pub(super) fn take(&self, part: usize) -> Vec<Source<'r>> {
        let (starts, stretches) = (self.starts(), self.stretches.iter());
        let high = starts.get(part + 1).map(Vec::as_slice);
        stretches.map(|stretch| stretch.take(part, &starts[part], high)).collect()
    }
}

/// Cuts runs into stretches of fewer than 2^32 pairs, about one for each thread.
fn cut(runs: &[Run], threads: usize) -> Vec<(&Run, Range<usize>)> {
    let total: usize = runs.iter().map(Run::len).sum();
    let most = total.div_ceil(threads).clamp(WORTHWHILE, u32::MAX as usize);
    let cut = |run| {
        let starts = (0..Run::len(run)).step_by(most);
        starts.map(move |start| (run, start..run.len().min(start + most)))
    };
    runs.iter().flat_map(cut).collect()
}

/// Neighbouring pairs of a run.
struct Stretch<'r> {
    run: &'r Run,
    places: Range<usize>,
    sorted: bool,
    /// Bytes that all keys begin with.
    prefix: usize,
    /// What each part has of them, unless they are sorted.
    pieces: Vec<Mutex<Run>>,
}

impl<'r> Stretch<'r> {
    /// # Errors
    /// `KeyTooLong`.
    fn survey(run: &'r Run, places: Range<usize>) -> Result<Self> {
        let mut last = run.key(places.start);
        let (mut sorted, mut common) = (true, last);
        for key in places.clone().map(|place| run.key(place)) {
            if key.len() > KEY_MAX {
                return Err(ErrorKind::KeyTooLong { len: key.len(), max: KEY_MAX }.into());
            }
            sorted = sorted && last <= key;
            common = &common[..shared(common, key)];
            last = key;
        }
        Ok(Stretch { run, places, sorted, prefix: common.len(), pieces: Vec::new() })
    }

    fn first(&self) -> &'r [u8] {
        self.run.key(self.places.start)
    }

    /// Some keys, `apart` pairs from each other on average, and not always at the same distance: what was written in turns
    /// would be met at the same turn each time.
    fn samples(&self, apart: usize) -> impl Iterator<Item = &'r [u8]> {
        let within = move |at: usize| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % apart;
        let places = self.places.clone().step_by(apart).map(move |at| at + within(at));
        places.filter(|&place| place < self.places.end).map(|place| self.run.key(place))
    }

    /// What each part has of a stretch that is not sorted.
    fn deal(&self, division: &Division) -> Vec<Mutex<Run>> {
        if self.sorted {
            return Vec::new();
        }
        let parts = division.starts.len();
        // Parts differ in size.
        let usual = self.places.len() / parts * 5 / 4;
        let mut pieces: Vec<Run> =
            std::iter::repeat_with(|| Run::with_room(usual)).take(parts).collect();
        for place in self.places.clone() {
            let key = self.run.key(place);
            pieces[division.part_of(key)].push(key, self.run.word(place));
        }
        pieces.into_iter().map(Mutex::new).collect()
    }

    /// What a part has of it, for the keys from `low` on to below `high`.
    fn take(&self, part: usize, low: &[u8], high: Option<&[u8]>) -> Source<'r> {
        if !self.sorted {
            let piece = &mut *self.pieces[part].lock().expect("no panics while held");
            return Source::sort(std::mem::take(piece));
        }
        let from = |bound| self.run.partition_point(self.places.clone(), |key| key < bound);
        Source::Sorted(self.run, from(low)..high.map_or(self.places.end, from))
    }
}

/// At which keys parts begin.
struct Division {
    /// Ascending; the first is the empty key.
    starts: Vec<Vec<u8>>,
    /// Bytes that all others, and all keys that are not sorted, begin with.
    prefix: usize,
    /// The 8 bytes behind those, as numbers: they decide most comparisons.
    heads: Vec<u64>,
}

impl Division {
    fn new(stretches: &[Stretch<'_>]) -> Self {
        let total: usize = stretches.iter().map(|stretch| stretch.places.len()).sum();
        let parts = (total / PART).clamp(1, PARTS_MAX);
        let apart = (total / (parts * SAMPLES)).max(1);
        let mut samples: Vec<&[u8]> =
            stretches.iter().flat_map(|stretch| stretch.samples(apart)).collect();
        samples.sort_unstable();
        let mut starts = vec![Vec::new()];
        starts.extend((1..parts).map(|part| samples[samples.len() * part / parts].to_vec()));
        starts.dedup();
        let mut unsorted = stretches.iter().filter(|stretch| !stretch.sorted);
        let Some(one) = unsorted.next() else {
            return Division { starts, prefix: 0, heads: Vec::new() };
        };
        let with_stretch = |common: usize, other: &Stretch<'_>| {
            common.min(other.prefix).min(shared(one.first(), other.first()))
        };
        let prefix = unsorted.fold(one.prefix, with_stretch);
        let with_start = |common: usize, start: &Vec<u8>| common.min(shared(one.first(), start));
        let prefix = starts[1..].iter().fold(prefix, with_start);
        let heads = starts[1..].iter().map(|start| Probe::new(start).head(prefix)).collect();
        Division { starts, prefix, heads }
    }

    /// The part of a key that is not sorted.
    #[inline]
    fn part_of(&self, key: &[u8]) -> usize {
        let head = Probe::new(key).head(self.prefix);
        let part = self.heads.partition_point(|&start| start < head);
        if self.heads.get(part) != Some(&head) {
            return part;
        }
        let equal = self.heads[part..].partition_point(|&start| start == head);
        let starts = &self.starts[part + 1..][..equal];
        part + starts.partition_point(|start| &start[..] <= key)
    }
}

/// The pairs that a part has of one stretch, in order.
pub(super) enum Source<'r> {
    /// Places that are.
    Sorted(&'r Run, Range<usize>),
    /// A run, and its places in the order of their keys.
    Ordered(Run, Vec<u32>),
}

impl Source<'_> {
    /// Equal keys stay in the order of their places.
    fn sort(run: Run) -> Self {
        let keys = || (0..run.len()).map(|place| run.key(place));
        // What all keys begin with decides nothing; the 8 bytes behind it decide most.
        let first = keys().next().unwrap_or_default();
        let prefix = keys().fold(first, |common, key| &common[..shared(common, key)]).len();
        // One number for each, which compares without a branch: the head, then the place.
        let number = |(key, place): (&[u8], u32)| {
            u128::from(Probe::new(key).head(prefix)) << 32 | u128::from(place)
        };
        let mut numbers: Vec<u128> = keys().zip(0..).map(number).collect();
        numbers.sort_unstable();
        let key = |number: &u128| run.key(*number as u32 as usize);
        for equal in numbers.chunk_by_mut(|one, other| one >> 32 == other >> 32) {
            // A stable sort: they are in the order of their places.
            equal.sort_by(|one, other| key(one).cmp(key(other)));
        }
        let order = numbers.into_iter().map(|number| number as u32).collect();
        Source::Ordered(run, order)
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Source::Sorted(_, places) => places.len(),
            Source::Ordered(_, order) => order.len(),
        }
    }

    /// The pair that is `at` in order.
    #[inline]
    pub(super) fn pair(&self, at: usize) -> (&[u8], u64) {
        let (run, place) = match self {
            Source::Sorted(run, places) => (*run, places.start + at),
            Source::Ordered(run, order) => (run, order[at] as usize),
        };
        (run.key(place), run.word(place))
    }
}
