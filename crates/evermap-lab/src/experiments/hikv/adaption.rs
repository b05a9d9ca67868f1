//! Figure 11: how threads are divided into those that serve and those that update the tree.
//! Measured in a pool of threads that do either, and computed for the paper's 16.

use std::time::Duration;

use super::bench::{ADAPTIVE, Bench, Part, YCSB, gain, table};
use super::model::{CORES, Demand, Machine, backends};
use super::pool::{self, Window};
use crate::LabError;
use crate::driver::Config;
use crate::experiments::settings::Settings;
use crate::report::{Figure, Grid, Marks, Output, Plot, Point, Record, Series, significant};

/// How many of 16 threads serve in the paper in each of the [mixes](YCSB), if it says so.
const SERVING: [Option<usize>; 6] = [Some(8), Some(13), None, None, None, Some(9)];
/// The divisions: as the load needs, and fixed ones by their backends among 16 threads.
const DIVISIONS: [(&str, Option<usize>); 3] =
    [("hikv", None), ("hikv-8-8", Some(8)), ("hikv-12-4", Some(4))];

/// The least number of threads of a pool: with fewer there is nothing to divide.
const THREADS_MIN: usize = 4;
/// How long each mix runs.
const TIME: Duration = Duration::from_secs(1);
const QUICK_TIME: Duration = Duration::from_millis(150);

/// Measures a pool of threads, and computes what 16 threads do with each division.
pub(super) fn adaption(bench: &Bench<'_>, out: &mut dyn Output) -> Result<Part, LabError> {
    let mut part = modelled(bench, out)?;
    let measured = measured(bench, out)?;
    part.tables.extend(measured.tables);
    part.plots.extend(measured.plots);
    part.notes.extend(measured.notes);
    Ok(part)
}

/// Runs the mixes one after the other, with each division.
fn measured(bench: &Bench<'_>, out: &mut dyn Output) -> Result<Part, LabError> {
    let threads = Settings::processors().max(THREADS_MIN);
    let config = Config { threads, ..bench.stores(&[ADAPTIVE]) };
    let time = if bench.settings.quick { QUICK_TIME } else { TIME };
    out.begin(DIVISIONS.len() as u64);
    let mut all = Vec::new();
    for (name, fixed) in DIVISIONS {
        let fixed = fixed.map(|backends| (backends * threads / CORES).max(1));
        out.step(&format!("hikv: {name}, a pool of {threads} threads"));
        let windows = pool::run(&config, threads, fixed, (&YCSB, time))?;
        for window in &windows {
            out.record(&Record {
                experiment: "hikv",
                index: name.to_owned(),
                medium: config.medium.name().to_owned(),
                threads,
                keys: config.keys,
                phase: YCSB[window.mix].to_owned(),
                mops: Some(window.mops),
                at_seconds: Some(window.at),
                case: Some(format!("{}-{}", threads - window.backends, window.backends)),
                seed: config.seed,
                ..Record::default()
            })?;
        }
        all.push((name, windows));
    }
    Ok(Part {
        tables: pool_tables(&all, threads),
        plots: pool_plots(&all),
        notes: vec![format!(
            "Figure 11 is measured in a pool of {threads} threads on {} processors: half and a \
             quarter of them update the tree in `hikv-8-8` and `hikv-12-4`.",
            Settings::processors()
        )],
        ..Part::default()
    })
}

/// The windows of a division.
type Course = (&'static str, Vec<Window>);

fn pool_tables(all: &[Course], threads: usize) -> Vec<Grid> {
    let names = YCSB.map(str::to_owned);
    let stores = DIVISIONS.map(|one| one.0);
    // The division has adapted in the second half.
    let late = |store: &str, at: usize| {
        let windows = &all.iter().find(|one| one.0 == store)?.1;
        let of_mix: Vec<_> = windows.iter().filter(|window| window.mix == at).collect();
        Some(of_mix[of_mix.len() / 2..].to_vec())
    };
    let mean = |windows: &[&Window]| {
        windows.iter().map(|window| window.mops).sum::<f64>() / windows.len() as f64
    };
    vec![
        table(
            format!("Figure 11: million operations a second of a pool of {threads} threads"),
            &names,
            &stores,
            |store, at| Some(significant(mean(&late(store, at)?))),
        ),
        table(
            "Serving threads and backends of that pool, at the end of each mix",
            &names,
            &stores,
            |store, at| {
                let last = *late(store, at)?.last()?;
                Some(format!("{} and {}", threads - last.backends, last.backends))
            },
        ),
    ]
}

fn pool_plots(all: &[Course]) -> Vec<Plot> {
    let plot = |title: &str, y: &str, of: fn(&Window) -> f64| Plot {
        title: title.to_owned(),
        x: "seconds, YCSB A to F one after the other".into(),
        y: y.to_owned(),
        log_x: false,
        marks: Marks::Lines,
        series: all
            .iter()
            .map(|(name, windows)| Series {
                name: (*name).to_owned(),
                points: windows.iter().map(|one| Point::new(one.at, of(one))).collect(),
            })
            .collect(),
    };
    vec![
        plot("Figure 11", "million operations/s", |window| window.mops),
        plot("Figure 11: backends", "threads that update the tree", |window| {
            window.backends as f64
        }),
    ]
}

/// Computes what 16 threads do with each division, from what operations take with one.
fn modelled(bench: &Bench<'_>, out: &mut dyn Output) -> Result<Part, LabError> {
    let demands: Vec<_> = bench.alone(out)?.iter().map(|one| one.1).collect();
    // No more threads than cores, and nothing that excludes others.
    let machine = Machine::default();
    let mops = |at: usize, fixed: Option<usize>| {
        let backends = fixed.unwrap_or_else(|| backends(demands[at], CORES));
        machine.divided(demands[at], CORES, backends)
    };
    let names = YCSB.map(str::to_owned);
    let find = |name: &str| DIVISIONS.iter().find(|one| one.0 == name).and_then(|one| one.1);
    let stores = DIVISIONS.map(|one| one.0);
    let speeds = table(
        format!("A model of figure 11: million operations a second of {CORES} threads"),
        &names,
        &stores,
        |store, at| Some(significant(mops(at, find(store)))),
    );
    let split = table(
        format!("Serving threads and backends of {CORES} by the formula (the paper's)"),
        &names,
        &stores[..1],
        |_, at| {
            let backends = backends(demands[at], CORES);
            let paper = SERVING[at].map_or("not given".to_owned(), |serving| {
                format!("{serving} and {}", CORES - serving)
            });
            Some(format!("{} and {backends} ({paper})", CORES - backends))
        },
    );
    let gains = |fixed: usize| {
        let gains = (1..YCSB.len()).map(|at| gain(mops(at, None), mops(at, Some(fixed))));
        let least = gains.clone().fold(f64::INFINITY, f64::min);
        let most = gains.fold(f64::NEG_INFINITY, f64::max);
        format!("model: {least:+.1} to {most:+.1}")
    };
    let figures = [(8, "+10.5 to +100"), (4, "+10.4 to +37.5")]
        .map(|(backends, paper)| Figure {
            what: format!(
                "YCSB B to F, {CORES} threads: adaptive beside {} and {backends}, %",
                CORES - backends
            ),
            paper: paper.into(),
            here: Some(gains(backends)),
        })
        .into();
    Ok(Part { tables: vec![speeds, split, sides(&demands)], figures, ..Part::default() })
}

/// Returns the table of what both sides take.
fn sides(demands: &[Demand]) -> Grid {
    let names = YCSB.map(str::to_owned);
    table(
        "Processor time of an operation of HiKV, ns: serving thread + backend",
        &names,
        &[ADAPTIVE],
        |_, at| Some(format!("{:.0} + {:.0}", demands[at].serving, demands[at].backend)),
    )
}
