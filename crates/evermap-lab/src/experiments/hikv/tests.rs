//! Every figure has its table, and the counts, which do not depend on the machine, are the paper's.

use super::bench::{FPTREE, NVSTORE, ONE_BACKEND, gain, reduction};
use super::*;
use crate::experiments::experiment;
use crate::report::Grid;
use crate::testing::Kept;

fn settings(figures: &[&str]) -> Settings {
    Settings {
        quick: true,
        keys: Some(1000),
        figures: Some(figures.iter().map(|&figure| figure.to_owned()).collect()),
        no_latencies: true,
        ..Settings::default()
    }
}

fn run(settings: &Settings) -> Report {
    HIKV.run(settings, &mut Kept::default()).unwrap()
}

#[test]
fn reductions_and_gains_are_in_percent() {
    assert_eq!(reduction(50.0, 100.0), 50.0);
    assert_eq!(reduction(150.0, 100.0), -50.0);
    assert_eq!(gain(150.0, 100.0), 50.0);
}

#[test]
fn every_figure_of_the_paper_has_its_table() {
    let figures = ["1", "6", "7", "8", "9", "11", "12", "13"];
    let report = run(&settings(&figures));
    for figure in figures {
        let titled = |table: &&Grid| {
            table.title.contains(&format!("igure {figure}")) && table.rows.len() > 1
        };
        assert!(report.tables.iter().any(|table| titled(&table)), "{figure}");
    }
    assert!(report.figures.iter().all(|figure| figure.here.is_some()), "{:?}", report.figures);
}

/// Item and entry; value and entry, and the count; value and entry, fingerprint, bitmap.
#[test]
fn persists_are_those_of_the_paper() {
    let report = run(&settings(&["5", "10"]));
    let persists = |store: &str| {
        let what = format!("persists of a Put / an Update / a Delete: {store}");
        let figure = report.figures.iter().find(|figure| figure.what == what).unwrap();
        let here = figure.here.clone().unwrap();
        here.split(" / ").map(|each| each.parse::<f64>().unwrap().round()).collect::<Vec<_>>()
    };
    assert_eq!(persists(ONE_BACKEND), [2.0, 2.0, 1.0]);
    assert_eq!(persists(NVSTORE), [2.0, 2.0, 2.0]);
    assert_eq!(persists(FPTREE), [3.0, 3.0, 1.0]);
    assert_eq!(persists("hikv-wal"), [3.0, 3.0, 2.0]);
}

#[test]
fn unknown_figures_are_refused() {
    let error = HIKV.run(&settings(&["2"]), &mut Kept::default()).unwrap_err().to_string();
    assert!(error.contains("no figure `2`; known are: 1, 5, 6, 7"), "{error}");
    let without = experiment("micro").unwrap().run(&settings(&["1"]), &mut Kept::default());
    let error = without.unwrap_err().to_string();
    assert!(error.contains("`--figures` does not apply to micro"), "{error}");
}
