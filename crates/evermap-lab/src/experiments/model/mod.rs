//! Many processors and real persistent memory, neither of which this machine may have: a model.
//!
//! * [`measured`]: the time of an operation alone on emulated memory, and the blocks that it reads
//!   and writes;
//! * [`cost`]: what more threads do with memory that they share;
//! * [`claims`]: the papers' numbers beside the model's.
//!
//! It is fitted to one number of the Dash paper, and predicts the others. Lines that several
//! processors write have a model of their own, in [`resize`](super::resize).

use evermap_pm::medium::{BLOCK, Speed};

use super::definition::Experiment;
use super::settings::{Scale, Setting, Settings};
use crate::LabError;
use crate::experiments::resize;
use crate::report::model::cell;
use crate::report::{Figure, Grid, Marks, Plot, Point, Record, Report, Series};
use crate::report::{Output, grouped};

mod claims;
mod cost;
mod measured;

use claims::{FITTED, Model, Prediction, THREADS};
use cost::Memory;
use measured::Measured;

const NAME: &str = "model";
/// The numbers of threads of the curves.
const CURVE: [usize; 7] = [1, 2, 4, 8, 12, 16, 24];

pub(super) const MODEL: Experiment = Experiment {
    name: NAME,
    about: "a model of 24 processors and their memory's bandwidth, beside the papers' numbers",
    takes: &[Setting::KEYS, Setting::ROUNDS, Setting::PM],
    run: model,
};

fn model(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let scale = Scale { keys: 1_000_000, rounds: 5, quick_keys: 50_000, quick_rounds: 1 };
    let optane = Settings { pm: settings.pm.or(Some(Speed::OPTANE)), ..settings.clone() };
    let base = optane.config(NAME, &[], scale);
    let measured = Measured::take(&base, out)?;
    let fitted = measured.cost(FITTED.0, "delete");
    let fitted = fitted.ok_or_else(|| LabError::Config("nothing was counted".into()))?;
    let read_ns = match base.speed.read_mb_s {
        0 => 0.0,
        mb_s => BLOCK as f64 * 1e3 / mb_s as f64,
    };
    let memory = Memory::fitted(fitted, THREADS, FITTED.1, read_ns);
    let model = Model { measured: &measured, memory };
    let predictions = model.predictions();
    record(&measured, memory, base.seed, out)?;
    let resizes = resize::modelled(settings, out)?;
    let curves = curves(&measured, memory);
    let mut tables = vec![claims::table(&predictions), costs(&measured)];
    tables.extend(curves.iter().map(as_table));
    tables.extend(resizes.tables);
    Ok(Report {
        experiment: NAME,
        title: "a model of many processors and of their memory".into(),
        about: format!(
            "time alone: {}; then resized tables",
            super::settings::circumstances(&base)
        ),
        figures: figures(&predictions).into_iter().chain(resizes.figures).collect(),
        tables,
        plots: curves.into_iter().chain(resizes.plots).collect(),
        notes: notes(memory).into_iter().chain(resizes.notes).collect(),
    })
}

fn figures(predictions: &[Prediction]) -> Vec<Figure> {
    let figure = |one: &Prediction| Figure {
        what: one.what.clone(),
        paper: one.paper.map_or("drawn".into(), |paper| paper.to_string()),
        here: one.model.map(|model| format!("model: {model:.2}")),
    };
    predictions.iter().filter(|one| one.paper.is_some()).map(figure).collect()
}

/// Returns what the model is made from.
fn costs(measured: &Measured) -> Grid {
    let title = "What an operation costs alone";
    let columns = ["ns", "of which exclusive", "blocks read", "blocks written"];
    let mut grid = Grid::new(title, &columns);
    for (index, phase, cost) in measured.all() {
        let cells = vec![
            cell(Some(cost.alone_ns), 0),
            cell(Some(cost.exclusive_ns), 0),
            cell(Some(cost.blocks_read), 2),
            cell(Some(cost.blocks_written), 2),
        ];
        grid.push(format!("{index}, {phase}"), cells);
    }
    grid
}

/// Returns the speed of every table by threads, one plot for each phase or mix.
fn curves(measured: &Measured, memory: Memory) -> Vec<Plot> {
    let all = measured.all();
    let mut phases: Vec<_> = all.iter().map(|one| one.1).collect();
    phases.sort_unstable();
    phases.dedup();
    let of_phase = |phase: &str| Plot {
        title: format!("A model: {phase}"),
        x: "threads".into(),
        y: "million operations/s".into(),
        log_x: false,
        marks: Marks::Lines,
        series: all
            .iter()
            .filter(|one| one.1 == phase)
            .map(|(index, _, cost)| Series {
                name: (*index).to_owned(),
                points: CURVE
                    .map(|threads| Point::new(threads as f64, cost.mops(threads, memory)))
                    .to_vec(),
            })
            .collect(),
    };
    phases.into_iter().map(of_phase).collect()
}

fn as_table(plot: &Plot) -> Grid {
    let columns = CURVE.map(|threads| grouped(threads as u64));
    let columns: Vec<_> = columns.iter().map(String::as_str).collect();
    let mut grid =
        Grid::new(format!("{}: million operations a second, by threads", plot.title), &columns);
    for series in &plot.series {
        let cells = series.points.iter().map(|point| cell(Some(point.y), 2)).collect();
        grid.push(series.name.clone(), cells);
    }
    grid
}

/// Writes the curves as records of the medium `model`.
fn record(
    measured: &Measured,
    memory: Memory,
    seed: u64,
    out: &mut dyn Output,
) -> Result<(), LabError> {
    for (index, phase, cost) in measured.all() {
        for threads in CURVE {
            out.record(&Record {
                experiment: NAME,
                index: index.to_owned(),
                medium: "model".into(),
                phase: phase.to_owned(),
                threads,
                mops: Some(cost.mops(threads, memory)),
                seed,
                ..Record::default()
            })?;
        }
    }
    Ok(())
}

fn notes(memory: Memory) -> Vec<String> {
    let gb_s = |ns: f64| if ns > 0.0 { BLOCK as f64 / ns } else { f64::INFINITY };
    let (index, speedup) = FITTED;
    vec![
        format!(
            "A block of {BLOCK} bytes is written in {:.0} ns ({:.2} GB/s), fitted to one number of \
             the Dash paper: {THREADS} threads remove {speedup} times as much from {index} as one. \
             It is read in {:.1} ns ({:.1} GB/s), the bandwidth of the memory that was emulated.",
            memory.write_ns,
            gb_s(memory.write_ns),
            memory.read_ns,
            gb_s(memory.read_ns),
        ),
        "Blocks are counted without a cache, so upper levels of trees count in full.".into(),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::experiments::experiment;
    use crate::testing::Kept;

    #[test]
    fn every_number_of_the_papers_is_predicted() {
        let settings = Settings {
            quick: true,
            keys: Some(3000),
            retries: Some(0),
            patience: Some(Duration::ZERO),
            ..Settings::default()
        };
        let mut kept = Kept::default();
        let report = experiment(NAME).unwrap().run(&settings, &mut kept).unwrap();
        let of_threads = report.figures.iter().filter(|one| one.what.contains("24 threads"));
        assert_eq!(of_threads.clone().count(), 15);
        assert!(of_threads.clone().all(|one| one.here.is_some()), "{:?}", report.figures);
        let modelled = |record: &&Record| record.experiment == NAME && record.medium == "model";
        // Seven tables in four phases, and three trees in four mixes.
        let curves = 7 * 4 + 3 * 4;
        assert_eq!(kept.records.iter().filter(modelled).count(), curves * CURVE.len());
    }
}
