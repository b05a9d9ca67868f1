//! What is loaded: pairs in order, and pairs that were [dealt](Hand) out to parts small enough to be sorted in the cache.

use std::ops::Range;

use evermap_pm::sync::Mutex;
use evermap_pm::{Result, parallel};

use super::deal::{Division, Hand, Piece, check_length};
use crate::ordered::Run;
use crate::ordered::bplus::key::Probe;
use crate::ordered::bplus::node::shared;

/// Fewest pairs that are worth a stretch of their own.
const WORTHWHILE: usize = 1 << 12;

/// Pairs to be loaded, some after the others: of equal keys the last counts.
pub(super) struct Input<'r> {
    stretches: Vec<Stretch<'r>>,
}

impl<'r> Input<'r> {
    /// Cuts runs into stretches, and deals those that are not sorted out among the parts.
    ///
    /// # Errors
    /// `KeyTooLong`.
    pub(super) fn new(runs: &'r [Run], threads: usize) -> Result<(Self, Division)> {
        let places = cut(runs, threads);
        let division = Division::new(&places, runs.iter().map(Run::len).sum());
        let stretches = parallel(threads, places.len(), |at| {
            let (run, places) = places[at].clone();
            Stretch::new(run, places, &division)
        });
        Ok((Input { stretches: stretches.into_iter().collect::<Result<_>>()? }, division))
    }

    /// What was dealt out already.
    pub(super) fn dealt(hands: Vec<Hand<'_>>) -> Self {
        Input { stretches: hands.into_iter().map(Stretch::dealt).collect() }
    }

    /// The pairs of a part, whose keys are not below `low` and below `high`. To be asked for once.
    pub(super) fn take(&self, part: usize, low: &[u8], high: Option<&[u8]>) -> Vec<Source<'r>> {
        self.stretches.iter().map(|stretch| stretch.take(part, low, high)).collect()
    }
}

/// Cuts runs into stretches, about one for each thread.
fn cut(runs: &[Run], threads: usize) -> Vec<(&Run, Range<usize>)> {
    let total: usize = runs.iter().map(Run::len).sum();
    let most = total.div_ceil(threads).max(WORTHWHILE);
    let cut = |run| {
        let starts = (0..Run::len(run)).step_by(most);
        starts.map(move |start| (run, start..run.len().min(start + most)))
    };
    runs.iter().flat_map(cut).collect()
}

/// Some of the pairs.
enum Stretch<'r> {
    /// Places of a run, which are in order.
    Sorted(&'r Run, Range<usize>),
    /// What each part has of them.
    Dealt(Vec<Mutex<Piece>>),
}

impl<'r> Stretch<'r> {
    /// # Errors
    /// `KeyTooLong`.
    fn new(run: &'r Run, places: Range<usize>, division: &Division) -> Result<Self> {
        let keys = || places.clone().map(|place| run.key(place));
        if keys().is_sorted() {
            keys().try_for_each(check_length)?;
            return Ok(Stretch::Sorted(run, places));
        }
        let mut hand = division.hand(places.len());
        keys().zip(places.clone()).try_for_each(|(key, at)| hand.push(key, run.word(at)))?;
        Ok(Self::dealt(hand))
    }

    fn dealt(hand: Hand<'_>) -> Self {
        Stretch::Dealt(hand.pieces.into_iter().map(Mutex::new).collect())
    }

    fn take(&self, part: usize, low: &[u8], high: Option<&[u8]>) -> Source<'r> {
        match self {
            Stretch::Dealt(pieces) => {
                let piece = &mut *pieces[part].lock().expect("no panics while held");
                Source::sort(std::mem::take(piece))
            }
            Stretch::Sorted(run, places) => {
                let from = |bound| run.partition_point(places.clone(), |key| key < bound);
                Source::Sorted(run, from(low)..high.map_or(places.end, from))
            }
        }
    }
}

/// The pairs that a part has of one stretch, in order.
pub(super) enum Source<'r> {
    /// Places that are.
    Sorted(&'r Run, Range<usize>),
    /// A piece, and where its pairs begin, in the order of their keys.
    Ordered(Piece, Vec<usize>),
}

impl Source<'_> {
    /// Equal keys stay in the order in which they came.
    fn sort(piece: Piece) -> Self {
        let starts: Vec<usize> = piece.starts().collect();
        let key = |place: usize| piece.pair(starts[place]).0;
        let keys = || (0..starts.len()).map(key);
        // What all keys begin with decides nothing; what is behind it decides most.
        let first = keys().next().unwrap_or_default();
        let prefix = keys().fold(first, |common, key| &common[..shared(common, key)]).len();
        // One number for each, which compares without a branch: as much of the head as leaves room for the place.
        let mask = starts.len().next_power_of_two() as u64 - 1;
        let number = |(key, place): (&[u8], u64)| Probe::new(key).head(prefix) & !mask | place;
        let mut numbers: Vec<u64> = keys().zip(0..).map(number).collect();
        numbers.sort_unstable();
        let place = |number: &u64| (number & mask) as usize;
        for equal in numbers.chunk_by_mut(|one, other| one & !mask == other & !mask) {
            // A stable sort: they are in the order of their places.
            equal.sort_by(|one, other| key(place(one)).cmp(key(place(other))));
        }
        let order = numbers.iter().map(|number| starts[place(number)]).collect();
        Source::Ordered(piece, order)
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
        match self {
            Source::Sorted(run, places) => {
                (run.key(places.start + at), run.word(places.start + at))
            }
            Source::Ordered(piece, order) => piece.pair(order[at]),
        }
    }
}
