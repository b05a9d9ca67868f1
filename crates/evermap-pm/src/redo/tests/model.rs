//! A region whose every state is remembered.

use std::sync::Arc;

use super::super::{RecordBuilder, RedoOptions};
use crate::sim::rng::Rng;

pub(super) const PAGE: usize = 4096;
const LINE: usize = 64;
pub(super) const UUID: [u64; 2] = [0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321];

/// Small files, so that a few records fill several.
pub(super) fn options() -> RedoOptions {
    RedoOptions { segment_bytes: 16 << 10, checkpoint_bytes: 48 << 10, keep_log: false }
}

/// The states of a region: with sequence number N after N changes.
pub(super) struct Model {
    pub(super) states: Vec<Arc<Vec<u8>>>,
    rng: Rng,
}

impl Model {
    /// Creates one of `pages` pages, some of which are zero.
    pub(super) fn new(seed: u64, pages: usize) -> Self {
        let mut rng = Rng::new(seed);
        let mut first = vec![0; pages * PAGE];
        for page in first.chunks_exact_mut(PAGE) {
            if !rng.one_in(3) {
                fill(&mut rng, page);
            }
        }
        Model { states: vec![Arc::new(first)], rng }
    }

    /// Creates one that continues after these states.
    pub(super) fn after(states: &[Arc<Vec<u8>>], seed: u64) -> Self {
        Model { states: states.to_vec(), rng: Rng::new(seed) }
    }

    /// Returns the sequence number of the last state.
    pub(super) fn sequence(&self) -> u64 {
        self.states.len() as u64 - 1
    }

    pub(super) fn last(&self) -> &Arc<Vec<u8>> {
        self.states.last().expect("there is always a state")
    }

    /// Changes some lines, and stores them in `record`. Returns the new length.
    pub(super) fn change(&mut self, record: &mut RecordBuilder) -> u64 {
        record.clear();
        let mut state = self.last().as_ref().clone();
        let rng = &mut self.rng;
        if rng.one_in(12) {
            state.resize(state.len() + PAGE, 0);
        }
        let all = state.len() / PAGE;
        // Now and then a record that is longer than a segment.
        let pages = if rng.one_in(16) { all } else { rng.below(4) as usize };
        for _ in 0..pages {
            let page = rng.below(all as u64) as usize;
            let lines = match rng.below(4) {
                0 => u64::MAX,
                1 => rng.draw() & rng.draw(),
                _ => 1 << rng.below(64),
            };
            change_page(rng, &mut state[page * PAGE..][..PAGE], lines);
            add(record, &state, page, lines);
        }
        let bytes = state.len() as u64;
        self.states.push(Arc::new(state));
        bytes
    }

    /// Forgets the states after the one with this sequence number: a crash has taken them.
    pub(super) fn truncate(&mut self, sequence: u64) {
        self.states.truncate(sequence as usize + 1);
    }

    pub(super) fn state(&self, sequence: u64) -> Option<&[u8]> {
        self.states.get(sequence as usize).map(|state| state.as_slice())
    }
}

fn change_page(rng: &mut Rng, page: &mut [u8], lines: u64) {
    let zero = rng.one_in(4);
    for (index, line) in page.chunks_exact_mut(LINE).enumerate() {
        if lines >> index & 1 == 1 {
            match zero || rng.one_in(4) {
                true => line.fill(0),
                false => fill(rng, line),
            }
        }
    }
}

fn fill(rng: &mut Rng, bytes: &mut [u8]) {
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&rng.draw().to_le_bytes());
    }
}

/// Adds lines of a page of `state` to a record.
pub(super) fn add(record: &mut RecordBuilder, state: &[u8], page: usize, lines: u64) {
    record.page(page as u64, lines, &mut |line, bytes| {
        let at = page * PAGE + line as usize * LINE;
        bytes.copy_from_slice(&state[at..at + LINE]);
    });
}
