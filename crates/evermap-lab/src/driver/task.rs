//! A run of operations before the threads' keys are known.

use crate::subject::work::Work;
use crate::workload::mix::Blend;
use crate::workload::op::Writer;
use crate::workload::{Phase, Stream, Workload};

/// [`Work`] without the keys, which are in the stream of each thread.
#[derive(Clone, Copy)]
pub(crate) struct Task {
    pub(super) name: &'static str,
    pub(super) phase: Phase,
    pub(super) blend: Option<Blend>,
    pub(super) workload: Workload,
    pub(super) version: u64,
    pub(super) batch: usize,
    pub(super) bulk: bool,
    /// See [`Writer::most`].
    pub(super) most: u64,
}

impl Task {
    /// Creates a task of lookups or insertions, without a mix.
    pub(crate) fn of(phase: Phase, workload: Workload) -> Self {
        let name = phase.name();
        Task { name, phase, blend: None, workload, version: 0, batch: 1, bulk: false, most: 0 }
    }

    /// Allows batches whose operations are not durable one by one.
    pub(crate) fn in_bulk(self) -> Self {
        Task { bulk: true, ..self }
    }

    /// Expects that some of the keys are one version ahead.
    pub(crate) fn beside_updates(self) -> Self {
        Task { most: 1, ..self }
    }

    /// Expects the keys in this version.
    pub(crate) fn at(self, version: u64) -> Self {
        Task { version, ..self }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    pub(crate) fn on(self, stream: &Stream, thread: usize) -> Work<'_> {
        let Task { name, phase, version, batch, bulk, workload, most, .. } = self;
        let writer = match &self.blend {
            Some(blend) => blend.writer(&workload, thread),
            None => Writer { thread, threads: workload.threads, first: 0, most },
        };
        let (keys, ops, spelled) = (&stream.keys, &stream.ops, stream.spelled.all());
        Work { name, phase, keys, spelled, ops, version, batch, writer, bulk }
    }
}
