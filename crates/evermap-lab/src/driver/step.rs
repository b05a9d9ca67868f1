//! A step of a plan.

use crate::workload::mix::Blend;
use crate::workload::part::Part;
use crate::workload::{Phase, Stream, Workload};

/// A step of a plan.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) phase: Phase,
    /// The mix that the operations come from, if they come from one.
    pub(super) blend: Option<Blend>,
    /// The part of the keys, if the step does not use all of them.
    pub(super) part: Option<Part>,
    /// Whether keys are looked up in the order of their insertion, and not in the phase's own.
    pub(super) in_order: bool,
    /// Whether the step is reported.
    pub(super) reported: bool,
    /// Whether a store may do the operations in batches.
    pub(super) bulk: bool,
}

impl Step {
    /// Returns `true` if the step uses all keys and may change the number of pairs.
    pub(super) fn resizes(&self) -> bool {
        let inserts = self.blend.is_none_or(|blend| blend.mix.insert > 0);
        self.phase.resizes() && self.part.is_none() && inserts
    }

    pub(super) fn ops(&self, keys: u64) -> u64 {
        let of_part = self.part.map(|part| part.ops);
        of_part.or(self.blend.map(|blend| blend.ops)).unwrap_or(keys)
    }

    /// Returns the workload for the threads of this step, which are not always all.
    pub(super) fn workload(&self, workload: Workload) -> Workload {
        self.part.map_or(workload, |part| part.workload(&workload))
    }

    /// Writes the operations of `thread`.
    pub(super) fn fill(&self, stream: &mut Stream, workload: &Workload, thread: usize) {
        match (&self.blend, &self.part) {
            (Some(blend), _) => stream.fill_mix(workload, blend, thread),
            (None, Some(part)) => stream.fill_part(workload, part, thread),
            (None, None) if self.in_order => stream.fill(workload, Phase::Insert, thread),
            (None, None) => stream.fill(workload, self.phase, thread),
        }
    }
}
