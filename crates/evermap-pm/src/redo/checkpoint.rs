//! Checkpoints: bringing the image to a later state.

use std::sync::atomic::Ordering;

use super::batch::Batch;
use super::control::Control;
use super::log::{Base, Failure, RedoLog, lock};
use super::mistakes::{Mistake, planted};
use super::scan::LogReader;
use crate::{Error, ErrorKind, Result};

/// Segments whose records are applied together, at most.
const SEGMENTS_AT_ONCE: u64 = 4;

impl RedoLog {
    /// Brings the image to the state of the newest durable record, and frees the segments before
    /// it. Appends go on meanwhile; another checkpoint waits.
    ///
    /// Reads the log since the last checkpoint, and reads and writes each page in it once for every
    /// four segments of log. Memory: four segments, 16 bytes for each page in each of their
    /// records, and 8 MiB.
    ///
    /// # Errors
    ///
    /// * `NoSpace`: the next checkpoint begins again. The log is kept, so nothing is lost.
    /// * `DamagedFile` if a page of the image or a record is damaged or lost.
    /// * `Io`. Later checkpoints fail too, until the log is opened again: what was not written may
    ///   look as if it was. Appends are not affected, but the log grows.
    pub fn checkpoint(&self) -> Result<()> {
        let mut base = lock(&self.base);
        if let Some(failure) = &base.failure {
            return Err(failure.again("checkpoint (it failed before; open the log again)"));
        }
        let result = self.apply_all(&mut base);
        if let Err(error) = &result
            && is_final(error)
        {
            base.fail(error);
        }
        result
    }

    fn apply_all(&self, base: &mut Base) -> Result<()> {
        let ahead = planted(Mistake::CheckpointAhead);
        let target = if ahead { u64::MAX } else { self.durable.load(Ordering::Acquire) };
        let limit = self.options.segment_bytes.saturating_mul(SEGMENTS_AT_ONCE) as usize;
        while base.control.now.applied < target {
            let Control { applied, applying, start, .. } = base.control.now;
            let mut reader = LogReader::new(&*self.storage, self.uuid, start, applied + 1)?;
            let batch = match applying > applied {
                // One that was interrupted: the same records again.
                true => Batch::read(&mut reader, applying, usize::MAX)?,
                false => Batch::read(&mut reader, target, limit)?,
            };
            if batch.is_empty() {
                break;
            }
            self.apply(base, &batch)?;
        }
        Ok(())
    }

    fn apply(&self, base: &mut Base, batch: &Batch) -> Result<()> {
        let before = base.control.now;
        if before.applying != batch.sequence {
            let durable = self.durable.load(Ordering::Acquire).max(before.durable);
            base.replace(Control { applying: batch.sequence, durable, ..before })?;
        }
        base.image.apply(batch)?;
        let after = Control {
            applied: batch.sequence,
            region_len: batch.region_len,
            start: batch.end,
            time: batch.time,
            ..base.control.now
        };
        if planted(Mistake::SegmentsFreedEarly) {
            self.free_segments(base, batch.end.segment)?;
        }
        base.replace(after)?;
        self.since_checkpoint.fetch_sub(batch.log_bytes, Ordering::Relaxed);
        // Not before the control is durable: the one before it needs them.
        self.free_segments(base, batch.end.segment)
    }
}

impl Base {
    /// Brings a control into effect, durably. If that fails, it is not known which is, so that no
    /// other may be written.
    fn replace(&mut self, control: Control) -> Result<()> {
        let replaced = self.control.replace(control);
        replaced.inspect_err(|error| self.fail(error))
    }

    /// Makes later checkpoints fail too.
    fn fail(&mut self, error: &Error) {
        self.failure = Some(Failure::of(error, self.control.path()));
    }
}

fn is_final(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io { .. })
}
