//! Figure 11: how threads are divided into those that serve and those that update the tree.
//! Measured in a pool of threads that do either, and computed for the paper's 16.

use std::time::Duration;

use super::bench::{ADAPTIVE, Bench, Part, table};
use super::mixes::{alone, demand};
use super::model::{CORES, Machine, backends};
use super::pool::{self, Window};
use crate::LabError;
use crate::driver::Config;
use crate::experiments::settings::Settings;
use crate::experiments::tables::notes_of_all;
use crate::report::{Figure, Grid, Marks, Output, Plot, Point, Record, Series, significant};

/// The mixes, one after the other, and how many of 16 threads serve in the paper, if it says so.
const MIXES: [(&str, Option<usize>); 6] = [
    ("ycsb-a", Some(8)),
    ("ycsb-b", Some(13)),
    ("ycsb-c", None),
    ("ycsb-d", None),
    ("ycsb-e", None),
    ("ycsb-f", Some(9)),
];
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
    let mixes = MIXES.map(|mix| mix.0);
    out.begin(DIVISIONS.len() as u64);
    let mut all = Vec::new();
    for (name, fixed) in DIVISIONS {
        let fixed = fixed.map(|backends| (backends * threads / CORES).max(1));
        out.step(&format!("hikv: {name}, a pool of {threads} threads"));
        let windows = pool::run(&config, threads, fixed, (&mixes, time))?;
        for window in &windows {
            out.record(&Record {
                experiment: "hikv",
                index: name.to_owned(),
                medium: config.medium.name().to_owned(),
                threads,
                keys: config.keys,
                phase: mixes[window.mix].to_owned(),
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
    let names = MIXES.map(|mix| mix.0.to_owned());
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
    let mut drives = Vec::new();
    for (mix, _) in MIXES {
        drives.push(alone(bench, mix, &[ADAPTIVE], out)?);
    }
    // No more threads than cores, and no limit of the memory.
    let machine = Machine { twin: 0.0, line_ns: 0.0 };
    let demands: Vec<_> =
        drives.iter().zip(MIXES).map(|(driven, (mix, _))| demand(driven, ADAPTIVE, mix)).collect();
    let mops = |at: usize, fixed: Option<usize>| {
        let demand = demands[at]?;
        let backends = fixed.unwrap_or_else(|| backends(demand, CORES));
        Some(machine.divided(demand, CORES, backends))
    };
    let names = MIXES.map(|mix| mix.0.to_owned());
    let find = |name: &str| DIVISIONS.iter().find(|one| one.0 == name).and_then(|one| one.1);
    let stores = DIVISIONS.map(|one| one.0);
    let speeds = table(
        format!("A model of figure 11: million operations a second of {CORES} threads"),
        &names,
        &stores,
        |store, at| Some(significant(mops(at, find(store))?)),
    );
    let split = table(
        format!("Serving threads and backends of {CORES} by the formula (the paper's)"),
        &names,
        &stores[..1],
        |_, at| {
            let backends = backends(demands[at]?, CORES);
            let paper = MIXES[at].1.map_or("not given".to_owned(), |serving| {
                format!("{serving} and {}", CORES - serving)
            });
            Some(format!("{} and {backends} ({paper})", CORES - backends))
        },
    );
    let gains = |fixed: usize| {
        let ratio = |at: usize| Some(100.0 * (mops(at, None)? / mops(at, Some(fixed))? - 1.0));
        let ratios: Option<Vec<f64>> = (1..MIXES.len()).map(ratio).collect();
        let ends = |ratios: Vec<f64>| {
            let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
            let most = ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            format!("model: {least:+.1} to {most:+.1}")
        };
        ratios.map(ends)
    };
    let figures = [(8, "+10.5 to +100"), (4, "+10.4 to +37.5")]
        .map(|(backends, paper)| Figure {
            what: format!(
                "YCSB B to F, {CORES} threads: adaptive beside {} and {backends}, %",
                CORES - backends
            ),
            paper: paper.into(),
            here: gains(backends),
        })
        .into();
    Ok(Part {
        tables: vec![speeds, split],
        figures,
        notes: notes_of_all(drives.iter()),
        ..Part::default()
    })
}
