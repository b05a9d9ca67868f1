//! Checks the whole content of a table after its last step.

use super::config::Plan;
use super::run::Run;
use super::task::Task;
use crate::LabError;
use crate::workload::mix::Blend;
use crate::workload::part::{Act, Part};
use crate::workload::{Phase, Stream, Workload, version_of};

impl Run<'_> {
    /// Compares the whole content with what the steps should have left.
    pub(super) fn verify(&self) -> Result<(), LabError> {
        let added = match (
            self.driver.steps.iter().find_map(|step| step.blend),
            &self.driver.config.plan,
        ) {
            (Some(blend), _) => self.verify_blend(blend)?,
            (None, Plan::Parts(parts)) => self.verify_parts(parts)?,
            (None, _) => self.verify_phases()?,
        };
        let expected = added + if self.deleted { 0 } else { self.driver.workload.keys };
        match self.subject.size()?.len {
            Some(found) if found != expected => {
                Err(LabError::WrongLength { index: self.name, expected, found })
            }
            _ => Ok(()),
        }
    }

    /// After phases every key is bound to one word. Returns the number of keys that were added.
    fn verify_phases(&self) -> Result<u64, LabError> {
        let originals = if self.deleted { Phase::Negative } else { Phase::Positive };
        self.look_up(originals, |stream, workload, thread| {
            stream.fill(workload, Phase::Insert, thread);
        })?;
        if self.mixed {
            self.look_up(Phase::Positive, Stream::fill_added)?;
        }
        if self.grouped {
            self.look_up(Phase::Positive, |stream, workload, thread| {
                stream.fill(workload, Phase::InsertMany, thread);
            })?;
        }
        let workload = &self.driver.workload;
        let mixed = if self.mixed { workload.added() } else { 0 };
        Ok(mixed + if self.grouped { workload.keys } else { 0 })
    }

    /// After parts, keys that were written have their new words, and absent keys are still absent.
    /// Returns the number of keys that were added.
    fn verify_parts(&self, parts: &[Part]) -> Result<u64, LabError> {
        let mut added = 0;
        for &part in parts {
            let (phase, version) = match part.act {
                Act::Update => (Phase::Positive, self.version + 1),
                Act::Negative => (Phase::Negative, self.version),
                Act::Insert | Act::Positive | Act::Scan(_) => (Phase::Positive, self.version),
            };
            added += if part.act == Act::Insert { part.ops } else { 0 };
            let looked_up = Part { threads: self.driver.workload.threads, ..part };
            self.look_up_at(version, phase, move |stream, workload, thread| {
                stream.fill_part(workload, &looked_up, thread);
            })?;
        }
        Ok(added)
    }

    fn look_up(
        &self,
        phase: Phase,
        fill: impl Fn(&mut Stream, &Workload, usize) + Send + Sync + 'static,
    ) -> Result<(), LabError> {
        self.look_up_at(self.version, phase, fill)
    }

    fn look_up_at(
        &self,
        version: u64,
        phase: Phase,
        fill: impl Fn(&mut Stream, &Workload, usize) + Send + Sync + 'static,
    ) -> Result<(), LabError> {
        self.each(fill)?;
        let subject = self.subject.clone();
        let task = Task::of(phase, self.driver.workload).at(version);
        self.driver.workers.each(move |thread, stream| subject.run(task.on(stream, thread)))?;
        Ok(())
    }

    /// After a mix a key may be bound to the last write of any thread, and to nothing else. Returns
    /// the number of keys that were added.
    fn verify_blend(&self, blend: Blend) -> Result<u64, LabError> {
        let writes = self.each(move |stream, workload, thread| {
            stream.fill_mix(workload, &blend, thread);
            stream.last_versions(blend.writer(workload, thread))
        })?;
        let mut writes = writes.concat();
        writes.sort_unstable();
        let (subject, name, workload) = (self.subject.clone(), self.name, self.driver.workload);
        let added = self.driver.workers.each(move |thread, stream| {
            let mut added = stream.inserted();
            let count = added.len() as u64;
            stream.fill(&workload, Phase::Insert, thread);
            added.extend_from_slice(&stream.keys);
            for key in added {
                let bound = subject.get(key)?;
                let beyond = bound.map(|bound| version_of(key, bound));
                let first = writes.partition_point(|write| write.0 < key);
                let mut last = writes[first..].iter().take_while(|write| write.0 == key).peekable();
                let untouched = last.peek().is_none();
                let is_right = beyond.is_some_and(|beyond| {
                    untouched && beyond == 0 || last.any(|write| write.1 == beyond)
                });
                if !is_right {
                    let found = bound.into();
                    return Err(LabError::WrongEnd {
                        index: name,
                        phase: blend.mix.name,
                        key,
                        found,
                    });
                }
            }
            Ok(count)
        })?;
        Ok(added.iter().sum())
    }
}
