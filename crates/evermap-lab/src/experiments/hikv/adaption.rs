//! Figure 11: how threads are divided into those that serve and those that update the tree.

use super::mixes::{alone, demand};
use super::model::{CORES, Machine, backends};
use super::{ADAPTIVE, Bench, Part, table};
use crate::LabError;
use crate::experiments::tables::notes_of_all;
use crate::report::{Figure, Output, significant};

/// The mixes, one after the other, and how many of 16 threads serve in the paper, if it says so.
const MIXES: [(&str, Option<usize>); 6] = [
    ("ycsb-a", Some(8)),
    ("ycsb-b", Some(13)),
    ("ycsb-c", None),
    ("ycsb-d", None),
    ("ycsb-e", None),
    ("ycsb-f", Some(9)),
];
/// The divisions: as the load needs, and fixed ones by their backends.
const DIVISIONS: [(&str, Option<usize>); 3] =
    [("hikv", None), ("hikv-8-8", Some(8)), ("hikv-12-4", Some(4))];

/// Computes what 16 threads do with each division, from what operations take with one.
pub(super) fn adaption(bench: &Bench<'_>, out: &mut dyn Output) -> Result<Part, LabError> {
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
