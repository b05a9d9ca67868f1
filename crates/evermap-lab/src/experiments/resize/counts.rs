//! Counts of what a lookup does, which do not depend on the number of processors.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Barrier, Mutex, PoisonError};

use super::bench::{Case, Cell, NAME, Plan, describe};
use super::tables::{self, Hash, Job, Protection};
use super::trace::Trace;
use crate::LabError;
use crate::report::{Output, Record};

/// What one lookup does, on average.
#[derive(Clone, Debug)]
pub(super) struct Counts {
    pub(super) table: &'static str,
    pub(super) protection: Protection,
    pub(super) resizing: bool,
    pub(super) instructions: f64,
    /// Instructions that lock a line, and fences.
    pub(super) locked: f64,
    /// Stores to lines that other readers use too.
    pub(super) shared_stores: f64,
    /// Stores to all lines outside of the stack.
    pub(super) stores: f64,
    /// Distinct lines that are read, outside of the stack.
    pub(super) lines_read: f64,
}

impl Protection {
    pub(super) fn words(self) -> &'static str {
        match self {
            Protection::Quiescent => "quiescent readers",
            Protection::Guards => "guards",
        }
    }
}

/// Counts for all tables. Returns an empty list where instructions cannot be traced.
pub(super) fn count(plan: &Plan, out: &mut dyn Output) -> Result<Vec<Counts>, LabError> {
    let mut all = Vec::new();
    for &table in &plan.tables {
        for protection in [Protection::Quiescent, Protection::Guards] {
            for resizing in [false, true] {
                let Some(counts) = count_one(plan, table, protection, resizing)? else {
                    continue;
                };
                out.record(&record(plan, &counts))?;
                all.push(counts);
            }
        }
    }
    Ok(all)
}

fn count_one(
    plan: &Plan,
    table: &'static str,
    protection: Protection,
    resizing: bool,
) -> Result<Option<Counts>, LabError> {
    let failed = |error| LabError::index(table, error);
    let contender = tables::build(table, Hash::Identity, plan.sizes[0], plan.sizes, plan.keys)?;
    contender.fill(plan.keys).map_err(failed)?;
    let trace = || contender.trace(protection, plan.keys, plan.traced);
    let mut traces = Vec::new();
    let mut by_two = || traces = one_after_the_other(&trace);
    if resizing {
        contender.during_resize(plan.sizes[1], &mut by_two).map_err(failed)?;
    } else {
        by_two();
    }
    let traces: Vec<Option<Trace>> = traces.into_iter().collect::<Result<_, _>>()?;
    let [Some(one), Some(other)] = &traces[..] else { return Ok(None) };
    Ok(Some(Counts {
        table,
        protection,
        resizing,
        instructions: one.per_piece(one.instructions),
        locked: one.per_piece(one.locked),
        shared_stores: one.shared_stores(other),
        stores: one.stores(),
        lines_read: one.per_piece(one.lines_read),
    }))
}

/// Calls `trace` in two threads, one after the other: what both touch is shared. Both exist until
/// the end, because a thread may get what is one's own from a thread that has ended.
fn one_after_the_other<R: Send>(trace: &(impl Fn() -> R + Sync)) -> Vec<Result<R, LabError>> {
    let (turn, end) = (Mutex::new(()), Barrier::new(2));
    std::thread::scope(|threads| {
        let one = || {
            let result = {
                let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
                // The other thread must not wait forever for one that has panicked.
                catch_unwind(AssertUnwindSafe(trace))
            };
            end.wait();
            result.map_err(|_| LabError::Panicked)
        };
        let both = [threads.spawn(one), threads.spawn(one)];
        both.map(|thread| thread.join().unwrap_or(Err(LabError::Panicked))).into()
    })
}

fn record(plan: &Plan, counts: &Counts) -> Record {
    let cell = Cell {
        table: counts.table,
        hash: Hash::Identity,
        case: if counts.resizing { Case::Resizing } else { Case::Fixed(plan.sizes[0]) },
        job: Job::Lookups(counts.protection),
        readers: 1,
    };
    Record {
        experiment: NAME,
        phase: format!("counts-{}", cell.job.name()),
        ops: plan.traced,
        locked_per_op: Some(counts.locked),
        shared_stores_per_op: Some(counts.shared_stores),
        stores_per_op: Some(counts.stores),
        lines_read_per_op: Some(counts.lines_read),
        seed: plan.seed,
        ..describe(cell, plan.keys)
    }
}

#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::driver::Quiet;
    use crate::testing::Kept;

    /// What the paper claims about its readers, and about its rivals' readers, does not depend on
    /// how fast they are.
    #[test]
    fn relativistic_readers_share_nothing_and_lock_nothing() {
        let plan = Plan {
            tables: tables::NAMES.to_vec(),
            keys: 256,
            sizes: [32, 64],
            readers: vec![1],
            length: Duration::ZERO,
            rounds: 1,
            latencies: false,
            traced: 4,
            seed: 1,
            quiet: Quiet::NOT_NEEDED,
        };
        let mut kept = Kept::default();
        let all = count(&plan, &mut kept).unwrap();
        assert_eq!((all.len(), kept.records.len()), (20, 20));
        for counts in &all {
            let free = counts.table != "rwlock";
            // A guard is announced in the thread's own line.
            assert_eq!(counts.shared_stores == 0.0, free, "{counts:?}");
            assert_eq!(counts.locked == 0.0, free, "{counts:?}");
            let announces = counts.protection == Protection::Guards || !free;
            assert_eq!(counts.stores > 0.0, announces, "{counts:?}");
            assert!(counts.lines_read > 1.0 && counts.instructions > counts.lines_read);
        }
        let of = |table, resizing| {
            let is_it = |counts: &&Counts| {
                counts.table == table
                    && counts.resizing == resizing
                    && counts.protection == Protection::Quiescent
            };
            all.iter().find(is_it).unwrap().instructions
        };
        // Before the first wait, the new array is in use, and its chains are shorter.
        assert!(of("rp", true) <= of("rp", false), "{all:?}");
        // The sequence counter, and a second search.
        assert!(of("ddds", true) > of("ddds", false), "{all:?}");
    }
}
