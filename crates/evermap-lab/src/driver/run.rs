//! Runs the steps of a plan on one table.

use std::sync::Arc;

use super::context::Driver;
use super::step::Step;
use super::task::Task;
use crate::LabError;
use crate::machine::{self, Resident};
use crate::report::record::Record;
use crate::subject::facts::Size;
use crate::subject::setup::Setup;
use crate::subject::view::{Entry, Subject};
use crate::workload::bytes::Speller;
use crate::workload::part::Act;
use crate::workload::{Phase, Stream, Workload};

/// One table on its way through the steps.
pub(super) struct Run<'a> {
    pub(super) driver: &'a Driver<'a>,
    pub(super) name: &'static str,
    pub(super) subject: Arc<dyn Subject>,
    pub(super) speller: Option<Arc<Speller>>,
    /// The resident memory before the table was built.
    pub(super) before: Option<Resident>,
    /// The bytes that were allocated then.
    pub(super) allocated: Option<u64>,
    /// The version of the words that the keys are bound to.
    pub(super) version: u64,
    pub(super) mixed: bool,
    pub(super) deleted: bool,
    /// Whether new keys were inserted a batch at a time.
    pub(super) grouped: bool,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        driver: &'a Driver<'a>,
        entry: &Entry,
        counted: bool,
    ) -> Result<Self, LabError> {
        let setup = Setup { counted, ..driver.setup.clone() };
        // The threads' streams must be allocated before the memory of the table is measured.
        let (workload, first) = (driver.workload, driver.steps[0]);
        let spelled = setup.lengths.map(Speller::new);
        driver.workers.each(move |thread, stream| {
            first.fill(stream, &workload, thread);
            spelled.iter().for_each(|speller| stream.spell(speller));
            Ok(())
        })?;
        let (before, allocated) = (machine::resident(), machine::allocated());
        let subject: Arc<dyn Subject> = Arc::from(entry.build(&setup)?);
        let name = entry.name;
        let (version, mixed, deleted, grouped) = (0, false, false, false);
        let speller = subject.speller().map(Arc::new);
        Ok(Run {
            driver,
            name,
            subject,
            speller,
            before,
            allocated,
            version,
            mixed,
            deleted,
            grouped,
        })
    }

    /// Calls `each` with every step, whose keys are written beforehand.
    pub(super) fn steps(
        &mut self,
        mut each: impl FnMut(&Self, &Step) -> Result<(), LabError>,
    ) -> Result<(), LabError> {
        for step in &self.driver.steps {
            let filled = *step;
            self.each(move |stream, workload, thread| {
                filled.fill(stream, workload, thread);
            })?;
            each(self, step)?;
            match step.phase {
                // Parts are verified without this.
                _ if step.part.is_some() => {}
                Phase::Update => self.version += 1,
                Phase::Mixed => self.mixed = true,
                Phase::Delete => self.deleted = true,
                Phase::InsertMany => self.grouped = true,
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns `true` if the table supports the step: tables without an order cannot scan.
    pub(super) fn can(&self, step: &Step) -> bool {
        let scans = step.part.is_some_and(|part| matches!(part.act, Act::Scan(_)));
        !scans || self.subject.is_ordered()
    }

    pub(super) fn task(&self, step: &Step) -> Task {
        Task {
            name: step.name,
            phase: step.phase,
            blend: step.blend,
            workload: step.workload(self.driver.workload),
            version: self.version,
            batch: self.driver.config.batch,
            bulk: step.bulk,
            // Scans meet keys that earlier parts have updated.
            most: u64::from(step.part.is_some()),
        }
    }

    /// Makes every thread write its keys, also as byte strings if the table takes those.
    pub(super) fn each<R: Send + 'static>(
        &self,
        fill: impl Fn(&mut Stream, &Workload, usize) -> R + Send + Sync + 'static,
    ) -> Result<Vec<R>, LabError> {
        let (workload, speller) = (self.driver.workload, self.speller.clone());
        self.driver.workers.each(move |thread, stream| {
            let result = fill(stream, &workload, thread);
            speller.iter().for_each(|speller| stream.spell(speller));
            Ok(result)
        })
    }
}

/// The space that a table takes.
#[derive(Clone, Copy, Default)]
pub(super) struct Footprint {
    size: Size,
    page_size: Option<u64>,
}

impl Footprint {
    /// Measures a table. If it does not report its memory, what was allocated since it was built is
    /// used, or the growth of the process.
    pub(super) fn of(run: &Run<'_>) -> Result<Self, LabError> {
        let mut size = run.subject.size()?;
        let growth = machine::growth(run.before);
        if size.dram_bytes.is_none() && size.pm_bytes.is_none() {
            let allocated = machine::allocated().zip(run.allocated);
            let allocated = allocated.map(|(now, before)| now.saturating_sub(before));
            size.dram_bytes = allocated.or(growth.map(|growth| growth.bytes));
        }
        let page_size = growth.map(machine::page_size);
        Ok(Footprint { size, page_size })
    }

    pub(super) fn write(&self, record: &mut Record) {
        record.size(self.size);
        record.page_size = self.page_size;
    }
}
