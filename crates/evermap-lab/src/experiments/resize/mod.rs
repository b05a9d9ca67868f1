//! The benchmark of "Resizable, Scalable, Concurrent Hash Tables via Relativistic Programming":
//! lookups of keys that are present, in tables that keep their size or are resized without a pause.
//!
//! As in the paper, each reader counts for itself, and a lookup that does not find its key is a
//! failure of the run. Hash, allocator and nodes are the same for all tables.
//!
//! * [`tables`]: the tables, and the loops of threads;
//! * [`bench`]: what is measured, in turns;
//! * [`trace`], [`counts`]: what a lookup stores and locks, instruction by instruction;
//! * [`model`]: more processors than there are;
//! * [`figures`]: tables and plots, beside the paper's claims.

use std::time::Duration;

use super::definition::Experiment;
use super::settings::{Scale, Setting, Settings};
use crate::LabError;
use crate::report::{Output, Report, counted};

mod bench;
mod counts;
mod figures;
mod model;
mod tables;
mod trace;

use bench::{NAME, Plan};
use figures::Everything;

/// The numbers of readers of the paper.
const READERS: [usize; 5] = [1, 2, 4, 8, 16];

pub(super) const RESIZE: Experiment = Experiment {
    name: NAME,
    about: "lookups in tables that are resized without a pause, as in the paper on such tables",
    takes: &[
        Setting::INDEX,
        Setting::KEYS,
        Setting::THREADS,
        Setting::ROUNDS,
        Setting::NO_COUNTS,
        Setting::NO_LATENCIES,
    ],
    run: resize,
};

/// Returns what to measure.
fn plan(settings: &Settings) -> Result<Plan, LabError> {
    let scale = Scale { keys: 65_536, rounds: 5, quick_keys: 65_536, quick_rounds: 1 };
    let config = settings.config(NAME, &tables::NAMES, scale);
    let wanted = settings.indexes.clone();
    let mut names = Vec::new();
    for name in wanted.iter().flatten() {
        let known = tables::NAMES.iter().find(|known| *known == name);
        names.push(*known.ok_or_else(|| LabError::UnknownIndex {
            name: name.clone(),
            known: tables::NAMES.to_vec(),
        })?);
    }
    if wanted.is_none() {
        names = tables::NAMES.to_vec();
    }
    let most = settings.threads.unwrap_or(if settings.quick { 2 } else { READERS[4] });
    let keys = config.keys.max(16);
    if names.is_empty() || config.rounds == 0 || most == 0 {
        let why = "there must be at least one table, one round and one thread";
        return Err(LabError::Config(why.into()));
    }
    if most > 256 || keys > 1 << 32 {
        return Err(LabError::Config("at most 256 threads and 2^32 keys are supported".into()));
    }
    let mut readers: Vec<_> = READERS.into_iter().filter(|&readers| readers < most).collect();
    readers.push(most);
    let buckets = (keys / 8).next_power_of_two();
    Ok(Plan {
        tables: names,
        keys,
        sizes: [buckets, buckets * 2],
        readers,
        length: Duration::from_millis(if settings.quick { 3 } else { 300 }),
        rounds: config.rounds,
        latencies: config.latency,
        traced: if settings.quick { 2 } else { 256 },
        seed: config.seed,
        quiet: config.quiet,
    })
}

fn resize(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let plan = plan(settings)?;
    let results = bench::measure(&plan, out)?;
    let counts = if settings.no_counts { Vec::new() } else { counts::count(&plan, out)? };
    let transfer = model::transfer(plan.length)?;
    let everything = Everything { plan: &plan, results: &results, counts: &counts, transfer };
    everything.record_model(out)?;
    Ok(Report {
        experiment: NAME,
        title: "lookups while a table is resized".into(),
        about: format!(
            "{} keys and values of 8 bytes, {} and {} buckets, {} ms each, {}, seed {}",
            plan.keys,
            plan.sizes[0],
            plan.sizes[1],
            plan.length.as_millis(),
            counted(plan.rounds, "round"),
            plan.seed
        ),
        figures: everything.figures(),
        tables: everything.tables(),
        plots: everything.plots(),
        notes: notes(&everything),
    })
}

/// Measures what the model needs, and returns what it says.
pub(super) fn modelled(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let settings = Settings { threads: Some(1), keys: None, ..settings.clone() };
    let plan = plan(&settings)?;
    let results = bench::measure(&plan, out)?;
    let counts = counts::count(&plan, out)?;
    let transfer = model::transfer(plan.length)?;
    let everything = Everything { plan: &plan, results: &results, counts: &counts, transfer };
    everything.record_model(out)?;
    Ok(Report {
        experiment: NAME,
        figures: everything.model_figures(),
        tables: everything.model_tables(),
        plots: everything.model_plots(),
        notes: notes(&everything),
        ..Report::default()
    })
}

/// Returns how far the figures can be trusted.
fn notes(everything: &Everything<'_>) -> Vec<String> {
    let processors = Settings::processors();
    let measured = if everything.transfer.measured { "measured here" } else { "assumed" };
    let mut notes = vec![
        format!(
            "{processors} processors. The resizer is one thread more, so from {processors} readers \
             on they share processors, and the processor time of a lookup says more than speed."
        ),
        format!(
            "The model knows cache lines only: a line takes {:.0} ns from one processor to another \
             ({measured}), what all readers store to has one queue, and each curve starts at the \
             measured speed of one reader.",
            everything.transfer.ns
        ),
    ];
    if everything.counts.is_empty() {
        notes.push("Instructions were not counted, so the model draws nothing.".into());
    }
    let mut cells = everything.results.0.iter();
    if cells.any(|one| one.summary.void) {
        notes.push(
            "* other programs used the processors in every attempt: do not trust this figure"
                .into(),
        );
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::experiment;
    use crate::testing::Kept;

    fn brief() -> Settings {
        Settings {
            quick: true,
            keys: Some(2000),
            rounds: Some(2),
            retries: Some(0),
            patience: Some(Duration::ZERO),
            ..Settings::default()
        }
    }

    #[test]
    fn everything_is_measured_and_reported() {
        let mut kept = Kept::default();
        let report = experiment("resize").unwrap().run(&brief(), &mut kept).unwrap();
        for index in tables::NAMES {
            for case in ["fixed-256", "fixed-512", "resizing"] {
                for (phase, hash, readers) in [
                    ("lookups", "identity", 1),
                    ("lookups", "random", 2),
                    ("lookups-guards", "identity", 1),
                    ("mixed-90-9-1", "identity", 1),
                    ("latencies", "random", 1),
                    ("updates", "identity", 1),
                ] {
                    let is_it = |record: &&crate::report::Record| {
                        record.index == index
                            && record.case.as_deref() == Some(case)
                            && record.phase == phase
                            && record.hash == Some(hash)
                            && record.readers == Some(readers)
                    };
                    let found: Vec<_> = kept.records.iter().filter(is_it).collect();
                    // Two rounds and their summary.
                    assert_eq!(found.len(), 3, "{index}, {case}, {phase}, {hash}, {readers}");
                    for record in found {
                        assert_eq!(record.misses, Some(0));
                        assert!(record.mops.is_some_and(|mops| mops > 0.0));
                        assert_eq!(record.p9999_ns.is_some(), phase == "latencies");
                        assert_eq!(record.gap_ns, record.max_ns);
                        assert_eq!(record.resizes.is_some(), case == "resizing");
                        let waits =
                            case == "resizing" && !["rwlock", "volatile-map"].contains(&index);
                        assert_eq!(record.grace_periods.is_some_and(|most| most > 0.0), waits);
                    }
                }
            }
        }
        // All claims but those that need more processors.
        let missing = report.figures.iter().filter(|figure| figure.here.is_none());
        assert!(missing.count() <= 1, "{:?}", report.figures);
        let wrong = report.figures.iter().find(|one| one.what.starts_with("wrong answers"));
        assert!(wrong.unwrap().here.as_ref().unwrap().starts_with("0 of "));
        let modelled = kept.records.iter().filter(|record| record.phase == "model");
        let drawn = if cfg!(target_arch = "x86_64") { 5 * 3 * model::READERS.len() } else { 0 };
        assert_eq!(modelled.count(), drawn);
        assert_eq!(kept.steps as usize, kept.stepped.len());
        let titles: Vec<_> = report.plots.iter().map(|plot| plot.title.as_str()).collect();
        assert!(titles.contains(&"Measured: rp (figures 5 to 7)"), "{titles:?}");
    }

    #[test]
    fn other_tables_and_numbers_are_refused() {
        let refused = |settings: Settings| plan(&settings).unwrap_err().to_string();
        let indexes = Some(vec!["dash-eh".to_owned()]);
        let text = refused(Settings { indexes, ..brief() });
        assert!(text.contains("unknown index `dash-eh`; known are: rp, rp-sorted"), "{text}");
        assert!(refused(Settings { threads: Some(0), ..brief() }).contains("at least one"));
        assert!(refused(Settings { threads: Some(999), ..brief() }).contains("at most 256"));
        let paper = plan(&Settings::default()).unwrap();
        assert_eq!((paper.keys, paper.sizes), (65_536, [8192, 16_384]));
        assert_eq!(paper.readers, READERS);
        let some = plan(&Settings { threads: Some(6), ..Settings::default() }).unwrap();
        assert_eq!(some.readers, [1, 2, 4, 6]);
    }

    /// A run with a wrong answer has no report.
    #[test]
    fn a_miss_is_a_failure() {
        let cell = bench::Cell {
            table: "ddds",
            hash: tables::Hash::Identity,
            case: bench::Case::Resizing,
            job: tables::Job::Mixed,
            readers: 1,
        };
        let record = crate::report::Record { misses: Some(3), ops: 64, ..bench::describe(cell, 9) };
        let error = bench::refuse_misses(cell, &record).unwrap_err().to_string();
        assert_eq!(error, "ddds gave 3 wrong answers of 64 in mixed-90-9-1, resizing");
    }
}
