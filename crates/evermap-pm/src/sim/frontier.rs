//! Which decisions to make next when memory is undecided.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::choice::Choice;
use super::rng::Rng;
use super::undecided::Decision;

/// Paths that were not tried yet. Those that deviate least from the first one come first.
pub(crate) struct Frontier {
    /// The preferred choices after the script of a path. All paths are tried with the first
    /// preference, and one path with each of the others.
    preferences: Vec<Vec<Choice>>,
    begun: usize,
    waiting: BinaryHeap<Reverse<Path>>,
}

/// The decisions to make first, and the preference for the rest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Path {
    /// Number of decisions that deviate from the preference.
    deviations: usize,
    /// Random, so that the order among equals is random.
    order: u64,
    preference: usize,
    pub(crate) script: Vec<u16>,
}

impl Frontier {
    pub(crate) fn new(preferences: Vec<Vec<Choice>>) -> Self {
        Frontier { preferences, begun: 0, waiting: BinaryHeap::new() }
    }

    /// Returns the next path, or `None` if all were tried.
    pub(crate) fn next(&mut self, rng: &mut Rng) -> Option<Path> {
        if self.begun < self.preferences.len() {
            let preference = self.begun;
            self.begun += 1;
            return Some(Path { deviations: 0, order: rng.draw(), preference, script: Vec::new() });
        }
        self.waiting.pop().map(|Reverse(path)| path)
    }

    pub(crate) fn preferred(&self, path: &Path) -> &[Choice] {
        &self.preferences[path.preference]
    }

    /// Records which decisions arose on a path: every other alternative of one of them is another
    /// path.
    pub(crate) fn ran(&mut self, path: &Path, made: &[Decision], rng: &mut Rng) {
        if path.preference > 0 {
            return;
        }
        if made.is_empty() {
            // Nothing had to be decided, so the other preferences lead to the same.
            self.begun = self.preferences.len();
        }
        for (at, decision) in made.iter().enumerate().skip(path.script.len()) {
            for other in (0..decision.ways).filter(|&other| other != decision.taken) {
                let mut script: Vec<u16> = made[..at].iter().map(|made| made.taken).collect();
                script.push(other);
                let (deviations, order) = (path.deviations + 1, rng.draw());
                self.waiting.push(Reverse(Path { deviations, order, preference: 0, script }));
            }
        }
    }

    /// Returns `true` if all paths were tried.
    pub(crate) fn is_done(&self) -> bool {
        self.begun == self.preferences.len() && self.waiting.is_empty()
    }
}
