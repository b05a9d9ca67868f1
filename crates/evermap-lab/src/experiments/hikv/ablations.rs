//! Figure 10: HiKV without each of its ideas.

use super::bench::{
    ADAPTIVE, Bench, CHANGES, Cost, Part, fences_of_changes, operation, reduction, speed, table,
};
use super::sweeps::DELAYS;
use crate::LabError;
use crate::driver::results::DriveReport;
use crate::driver::{Config, Plan};
use crate::experiments::definition::drive;
use crate::experiments::tables::{mark, notes_of_all, persists};
use crate::report::{Figure, Grid, Marks, Output, Plot, Point, Series};
use crate::subject::MediumKind;
use crate::workload::Phase;

/// The design, and what each of its ideas is measured against.
pub(super) const VARIANTS: [&str; 4] = [ADAPTIVE, "hikv-sync", "hikv-par", "hikv-wal"];
/// By how much less time HiKV takes for a put.
const SAVED: [(&str, &str); 3] = [
    ("hikv-sync", "46.7 to 57.8"),
    ("hikv-par", "11.2 to 17.4"),
    ("hikv-wal", "up to 27.4, at 1400 ns"),
];

/// Measures puts of the variants on memory of several speeds, and counts what they persist.
pub(super) fn ablations(bench: &Bench<'_>, out: &mut dyn Output) -> Result<Part, LabError> {
    let changes = Config {
        counts: bench.config.counts,
        plan: Plan::Phases(CHANGES.to_vec()),
        ..bench.stores(&VARIANTS)
    };
    let changes = drive(&changes, out)?;
    let mut sweep = Vec::new();
    for delay in DELAYS {
        let config = Config {
            medium: MediumKind::Emulated,
            speed: speed(&bench.config, delay, bench.config.speed.read_ns),
            plan: Plan::Phases(vec![Phase::Insert]),
            ..bench.stores(&VARIANTS)
        };
        sweep.push(drive(&config, out)?);
    }
    let names = CHANGES.map(|phase| operation(phase.name()).to_owned());
    let persists = table(
        "Variants of HiKV: flushes / fences of an operation",
        &names,
        &VARIANTS,
        |store, at| persists(&changes.subject(store)?.phase(CHANGES[at].name())?.summary),
    );
    Ok(Part {
        tables: vec![times(&sweep), persists],
        plots: vec![plot(&sweep)],
        figures: figures(&changes, &sweep),
        notes: notes_of_all(sweep.iter().chain([&changes])),
    })
}

fn put(sweep: &[DriveReport], store: &str, at: usize) -> Option<Cost> {
    Cost::of(&sweep[at], store, Phase::Insert.name())
}

fn times(sweep: &[DriveReport]) -> Grid {
    let columns = DELAYS.map(|delay| format!("{delay} ns"));
    let title = "Figure 10: mean time of a Put, ns (processor time of the serving thread), by the \
                 time of a persist";
    table(title, &columns, &VARIANTS, |store, at| {
        let cost = put(sweep, store, at)?;
        Some(format!("{:.0} ({:.0}){}", cost.wall, cost.serving, mark(cost.void)))
    })
}

fn plot(sweep: &[DriveReport]) -> Plot {
    let series = VARIANTS.map(|store| {
        let points = DELAYS.iter().enumerate().filter_map(|(at, &delay)| {
            let cost = put(sweep, store, at)?;
            Some(Point { void: cost.void, ..Point::new(delay as f64, cost.serving) })
        });
        Series { name: store.to_owned(), points: points.collect() }
    });
    Plot {
        title: "Figure 10: Put".into(),
        x: "ns a persist takes at least".into(),
        y: "processor time of the serving thread, ns".into(),
        log_x: false,
        marks: Marks::Lines,
        series: series.into(),
    }
}

fn figures(changes: &DriveReport, sweep: &[DriveReport]) -> Vec<Figure> {
    let last = DELAYS.len() - 1;
    let saved = SAVED.map(|(other, paper)| {
        let at =
            |at: usize| {
                let both = put(sweep, ADAPTIVE, at)?;
                Some(both.with(put(sweep, other, at)?, |own, other| {
                    reduction(own.serving, other.serving)
                }))
            };
        Figure {
            what: format!(
                "Put: by how much less processor time the serving thread of {ADAPTIVE} takes than \
                 that of {other}, at {} and at {} ns, %",
                DELAYS[0], DELAYS[last]
            ),
            paper: paper.into(),
            here: at(0).zip(at(last)).map(|(first, last)| format!("{first} and {last}")),
        }
    });
    let logged = Figure {
        what: "persists of a Put / an Update / a Delete: hikv-wal".into(),
        paper: "3 for a Put".into(),
        here: fences_of_changes(|phase| Some(&changes.subject("hikv-wal")?.phase(phase)?.summary)),
    };
    saved.into_iter().chain([logged]).collect()
}
