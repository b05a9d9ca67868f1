//! Which decisions to make next where memory is undecided.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::image::Choice;
use super::rng::Rng;
use super::undecided::Decision;

/// Ways that were not gone yet, those first that deviate least from the first one.
pub(crate) struct Frontier {
    /// What is preferred where the script of a way ends. All ways are gone with the first preference; one way
    /// with each of the others.
    preferences: Vec<Vec<Choice>>,
    begun: usize,
    waiting: BinaryHeap<Reverse<Way>>,
}

/// The decisions to make first, and what to prefer then.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Way {
    /// Decisions that deviate from what is preferred.
    deviations: usize,
    /// Among equals any may come first.
    order: u64,
    preference: usize,
    pub(crate) script: Vec<u16>,
}

impl Frontier {
    pub(crate) fn new(preferences: Vec<Vec<Choice>>) -> Self {
        Frontier { preferences, begun: 0, waiting: BinaryHeap::new() }
    }

    /// The next way; nothing if all were gone.
    pub(crate) fn next(&mut self, rng: &mut Rng) -> Option<Way> {
        if self.begun < self.preferences.len() {
            let preference = self.begun;
            self.begun += 1;
            return Some(Way { deviations: 0, order: rng.draw(), preference, script: Vec::new() });
        }
        self.waiting.pop().map(|Reverse(way)| way)
    }

    pub(crate) fn preferred(&self, way: &Way) -> &[Choice] {
        &self.preferences[way.preference]
    }

    /// Notes which decisions came up on a way: every other answer to one of them is another way.
    pub(crate) fn ran(&mut self, way: &Way, made: &[Decision], rng: &mut Rng) {
        if way.preference > 0 {
            return;
        }
        if made.is_empty() {
            // Nothing had to be decided: the other preferences lead to the same.
            self.begun = self.preferences.len();
        }
        for (at, decision) in made.iter().enumerate().skip(way.script.len()) {
            for other in (0..decision.ways).filter(|&other| other != decision.taken) {
                let mut script: Vec<u16> = made[..at].iter().map(|made| made.taken).collect();
                script.push(other);
                let (deviations, order) = (way.deviations + 1, rng.draw());
                self.waiting.push(Reverse(Way { deviations, order, preference: 0, script }));
            }
        }
    }

    /// Whether all ways were gone.
    pub(crate) fn is_done(&self) -> bool {
        self.begun == self.preferences.len() && self.waiting.is_empty()
    }
}
