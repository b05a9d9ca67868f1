//! Memory whose contents are decided only when they are read.
//!
//! After a crash each granule holds one of several contents. Recovery reads few of them, and of
//! those only some words. So instead of building every image, recovery runs on memory that is
//! undecided: when it loads a word with several possible values, one is chosen, and the choices
//! that contradict it become impossible. The decisions made in a run show which alternatives exist:
//! following all of them shows recovery every image that it can distinguish from the others, and no
//! image twice.
//!
//! Granules in which nothing needs to persist, such as lines of locks that are never flushed, are
//! not worth trying all alternatives: they get their preferred contents.

use super::choice::Choice;
use super::durable::Entry;
use super::trace::Trace;
use crate::medium::LINE;

/// The undecided granules of a medium, and the decisions so far.
#[derive(Default)]
pub(crate) struct Undecided {
    granules: Vec<Granule>,
    /// Decisions to make first, in the order in which they arise.
    script: Vec<u16>,
    made: Vec<Decision>,
    /// The values that decisions have overwritten, for [`overwritten`](Self::overwritten).
    overwritten: Vec<(u64, u64)>,
}

/// A decision: the number of alternatives, and the one that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) ways: u16,
    pub(crate) taken: u16,
}

/// A granule, as far as it is undecided.
struct Granule {
    range: std::ops::Range<u64>,
    /// The choices that are still possible. Never empty.
    choices: Vec<Choice>,
    /// The choice to make when the script has ended.
    preferred: Choice,
    /// Whether to make the preferred choice always, because nothing in it needs to persist.
    idle: bool,
    /// Undecided words, by offset.
    words: Vec<Word>,
}

struct Word {
    offset: u64,
    /// The values stored, oldest first: position of the entry, bit in its mask, value.
    values: Vec<(u32, u8, u64)>,
}

impl Word {
    /// Returns the value of this word under `choice`, if it was `before` without any of the stores.
    fn under(&self, choice: Choice, before: u64) -> u64 {
        let survives = |&&(at, bit, _): &&(u32, u8, u64)| {
            at < choice.taken || at == choice.taken && choice.partial >> bit & 1 != 0
        };
        self.values.iter().rev().find(survives).map_or(before, |&(_, _, value)| value)
    }
}

/// Returns the bits of an entry's words.
fn bits(entry: &Entry) -> impl Iterator<Item = u8> + use<> {
    let mask = entry.mask;
    (0..8).filter(move |bit| mask >> bit & 1 != 0)
}

impl Undecided {
    pub(crate) fn new(script: Vec<u16>) -> Self {
        Undecided { script, ..Self::default() }
    }

    /// Adds a granule with these entries. Granules must be added in ascending order.
    pub(crate) fn add(
        &mut self,
        trace: &Trace,
        range: std::ops::Range<u64>,
        entries: &[Entry],
        preferred: Choice,
    ) {
        let idle = entries.iter().all(|entry| entry.transient);
        let mut words: Vec<Word> = Vec::new();
        for (at, entry) in (0..).zip(entries) {
            for bit in bits(entry) {
                let stored = trace.word(entry.first + u32::from(bit));
                let value = (at, bit, stored.new);
                match words.iter_mut().find(|word| word.offset == stored.offset) {
                    Some(word) => word.values.push(value),
                    None => words.push(Word { offset: stored.offset, values: vec![value] }),
                }
            }
        }
        words.sort_by_key(|word| word.offset);
        let choices = Choice::every(entries);
        self.granules.push(Granule { range, choices, preferred, idle, words });
    }

    /// Returns the lines that hold undecided words.
    pub(crate) fn lines(&self) -> impl Iterator<Item = u64> + '_ {
        self.granules.iter().flat_map(|granule| &granule.words).map(|word| word.offset / LINE)
    }

    /// Decides the word at `offset`, which holds `before`, the value without any of the stores.
    /// Returns the new value, if it differs.
    pub(crate) fn load(&mut self, offset: u64, before: u64) -> Option<u64> {
        let (granule, at) = self.find(offset)?;
        let granule = &mut self.granules[granule];
        let word = granule.words.remove(at);
        let mut values: Vec<u64> = Vec::new();
        for &choice in &granule.choices {
            let value = word.under(choice, before);
            if !values.contains(&value) {
                values.push(value);
            }
        }
        let value = if let [only] = values[..] {
            only
        } else {
            let preferred = || {
                let possible = granule.choices.contains(&granule.preferred);
                let last = *granule.choices.last().expect("never empty");
                let choice = if possible { granule.preferred } else { last };
                let value = word.under(choice, before);
                values.iter().position(|&other| other == value).expect("it is possible")
            };
            if granule.idle {
                values[preferred()]
            } else {
                let scripted = self.script.get(self.made.len()).map(|&taken| usize::from(taken));
                let taken = scripted.unwrap_or_else(preferred);
                self.made.push(Decision { ways: values.len() as u16, taken: taken as u16 });
                values[taken]
            }
        };
        granule.choices.retain(|&choice| word.under(choice, before) == value);
        (value != before).then(|| {
            self.overwritten.push((offset, before));
            value
        })
    }

    /// Removes the word at `offset`, which is being overwritten.
    pub(crate) fn store(&mut self, offset: u64) {
        if let Some((granule, at)) = self.find(offset) {
            self.granules[granule].words.remove(at);
        }
    }

    /// Returns `true` if nothing in this line is undecided.
    pub(crate) fn is_decided(&self, line: u64) -> bool {
        let range = line * LINE..(line + 1) * LINE;
        self.granule_at(range.start).is_none_or(|granule| {
            !self.granules[granule].words.iter().any(|word| range.contains(&word.offset))
        })
    }

    fn find(&self, offset: u64) -> Option<(usize, usize)> {
        let granule = self.granule_at(offset)?;
        let words = &self.granules[granule].words;
        words.binary_search_by_key(&offset, |word| word.offset).ok().map(|at| (granule, at))
    }

    fn granule_at(&self, offset: u64) -> Option<usize> {
        let at = self.granules.partition_point(|granule| granule.range.end <= offset);
        (self.granules.get(at)?.range.contains(&offset)).then_some(at)
    }

    /// Returns offsets and previous values of the words that decisions have changed, in the order
    /// in which they must be restored.
    pub(crate) fn overwritten(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.overwritten.iter().rev().copied()
    }

    /// Returns the decisions, and for each granule the first and the last choice that is still
    /// possible.
    pub(crate) fn into_outcome(self) -> Outcome {
        let ends = |granule: Granule| {
            let (first, last) = (granule.choices.first(), granule.choices.last());
            (*first.expect("never empty"), *last.expect("never empty"))
        };
        Outcome { made: self.made, left: self.granules.into_iter().map(ends).collect() }
    }
}

/// The decisions of a run on an undecided medium.
pub(crate) struct Outcome {
    pub(crate) made: Vec<Decision>,
    /// For each granule the choices that lose most and least, of those that the run cannot
    /// distinguish.
    pub(crate) left: Vec<(Choice, Choice)>,
}
