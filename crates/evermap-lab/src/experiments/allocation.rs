//! What the memory behind an allocation is worth: pages that come with the first access or were
//! there before, of 4 KiB and of 2 MiB.
//!
//! Dash-EH allocates one segment at a time, Dash-LH arrays of them. The paper compares an allocator
//! that has all its pages beforehand with one that has not, with huge pages and, in a version of
//! Linux that failed to provide these, with small ones.

use evermap_pm::medium::Pages;

use super::definition::{Experiment, drive};
use super::settings::{Scale, Setting, Settings, circumstances};
use crate::LabError;
use crate::driver::{Config, Plan};
use crate::report::interval::{median, median_interval};
use crate::report::model::cell;
use crate::report::{Figure, Grid, Output, Report};
use crate::workload::Phase;

const NAME: &str = "allocation";
/// The probability with which a range should hold the true median.
const CONFIDENCE: f64 = 0.9;

pub(super) const ALLOCATION: Experiment = Experiment {
    name: NAME,
    about: "insertions into memory that has its pages beforehand, or gets them: 4 KiB and 2 MiB",
    takes: &[Setting::INDEX, Setting::KEYS, Setting::THREADS, Setting::ROUNDS],
    run: allocation,
};

/// Where the pages come from: their size, and whether they are there beforehand.
const KINDS: [(&str, Pages, bool); 4] = [
    ("4 KiB, on demand", Pages::Base, false),
    ("4 KiB, beforehand", Pages::Base, true),
    ("2 MiB, on demand", Pages::Huge, false),
    ("2 MiB, beforehand", Pages::Huge, true),
];

/// Nanoseconds of processor time of an insertion, for each table, kind of pages and round.
type Times = Vec<[Vec<f64>; KINDS.len()]>;

fn allocation(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let scale = Scale { keys: 4_000_000, rounds: 7, quick_keys: 500_000, quick_rounds: 3 };
    let base = Config {
        plan: Plan::Phases(vec![Phase::Insert]),
        latency: false,
        counts: false,
        limits: false,
        ..settings.config(NAME, &["dash-eh", "dash-lh"], scale)
    };
    let mut times = vec![<[Vec<f64>; KINDS.len()]>::default(); base.indexes.len()];
    // The kinds take turns, because ratios between them are what matters.
    for _ in 0..base.rounds {
        for (kind, (_, pages, populate)) in KINDS.into_iter().enumerate() {
            let config = Config { rounds: 1, pages, populate, ..base.clone() };
            let driven = drive(&config, out)?;
            for (subject, times) in driven.subjects.iter().zip(&mut times) {
                let phase = subject.phases.first();
                times[kind].extend(phase.and_then(|phase| phase.summary.cpu_ns_per_op));
            }
        }
    }
    Ok(Report {
        experiment: NAME,
        title: "what pages cost an insertion".into(),
        about: circumstances(&base),
        figures: figures(&base.indexes, &times),
        tables: vec![table(&base.indexes, &times)],
        ..Report::default()
    })
}

fn table(indexes: &[String], times: &Times) -> Grid {
    let columns = KINDS.map(|kind| kind.0);
    let title = "Processor time of an insertion, ns: median, and how many times the first";
    let mut grid = Grid::new(title, &columns);
    for (index, times) in indexes.iter().zip(times) {
        let of_kind = |kind: usize| {
            format!("{}, {}", cell(median(&times[kind]), 0), ratio(&times[kind], &times[0]))
        };
        grid.push(index.clone(), (0..KINDS.len()).map(of_kind).collect());
    }
    grid
}

/// Returns how many times as long an insertion takes, by rounds, with the range of the median.
fn ratio(of: &[f64], to: &[f64]) -> String {
    let ratios: Vec<_> = of.iter().zip(to).map(|(of, to)| of / to).collect();
    let range = median_interval(&ratios, CONFIDENCE).filter(|_| ratios.len() > 1);
    let range = range.map(|range| format!(" {:.2}-{:.2}", range.low, range.high));
    format!("{}{}", cell(median(&ratios), 2), range.unwrap_or_default())
}

/// Figure 15 of the Dash paper.
fn figures(indexes: &[String], times: &Times) -> Vec<Figure> {
    let [small, huge] = [0, 2];
    let papers = [
        ("dash-eh", small, "hardly more: one segment of 16 KiB is allocated at a time"),
        ("dash-lh", small, "several times: an array of segments without huge pages"),
        ("dash-lh", huge, "about as long: huge pages"),
    ];
    let figure = |(index, kind, paper): (&str, usize, &str)| Figure {
        what: format!("{index}, {}: time / with pages beforehand", KINDS[kind].0),
        paper: paper.to_owned(),
        here: indexes
            .iter()
            .position(|name| name == index)
            .map(|at| ratio(&times[at][kind], &times[at][kind + 1])),
    };
    papers.map(figure).into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::experiments::experiment;
    use crate::testing::Kept;

    #[test]
    fn every_kind_is_measured() {
        let settings = Settings {
            keys: Some(2000),
            rounds: Some(2),
            retries: Some(0),
            patience: Some(Duration::ZERO),
            ..Settings::default()
        };
        let report = experiment(NAME).unwrap().run(&settings, &mut Kept::default()).unwrap();
        let [grid] = &report.tables[..] else { panic!("one table") };
        assert_eq!(grid.rows.len(), 2);
        for cell in grid.rows.iter().flat_map(|row| &row.1) {
            let ns = cell.split(',').next().and_then(|ns| ns.parse::<f64>().ok());
            assert!(ns.is_some_and(|ns| ns > 0.0), "{cell}");
        }
        assert!(report.figures.iter().all(|figure| figure.here.is_some()));
    }
}
