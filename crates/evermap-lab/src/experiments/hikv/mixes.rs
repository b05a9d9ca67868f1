//! Figure 7: YCSB with one thread, with all, and with 32 in a model.

use super::bench::{ADAPTIVE, Bench, Cost, FPTREE, FPTREE_C, NVSTORE, Part, RIVALS, table};
use super::model::{Demand, Machine};
use crate::LabError;
use crate::driver::results::DriveReport;
use crate::driver::{Config, Plan};
use crate::experiments::definition::drive;
use crate::experiments::tables::{mark, notes_of_all};
use crate::report::{Figure, Marks, Output, Plot, Point, Record, Series, counted, significant};
use crate::workload::{Blend, Mix, Zipf};

/// The mixes, and by how much 32 threads do more than two in the paper: HiKV, NVStore, FPTree,
/// FPTree_C.
const MIXES: [(&str, [f64; 4]); 6] = [
    ("ycsb-a", [13.6, 5.5, 10.0, 7.9]),
    ("ycsb-b", [15.5, 7.6, 7.5, 8.2]),
    ("ycsb-c", [10.5, 8.2, 7.5, 8.8]),
    ("ycsb-d", [15.4, 8.2, 7.7, 7.8]),
    ("ycsb-e", [4.3, 4.6, 3.4, 3.5]),
    ("ycsb-f", [18.3, 5.5, 10.1, 8.8]),
];
const STORES: [&str; 4] = [ADAPTIVE, NVSTORE, FPTREE, FPTREE_C];
/// Numbers of threads of the model's curves.
const CURVE: [usize; 5] = [2, 4, 8, 16, 32];
/// What the model is fitted to.
const FITTED: [(&str, &str); 2] = [(NVSTORE, "ycsb-c"), (FPTREE, "ycsb-e")];

/// The drives of a mix: with one thread, counted; HiKV with one thread fewer than all, and the
/// rivals with all.
struct Mixed {
    name: &'static str,
    alone: DriveReport,
    all: [DriveReport; 2],
}

/// Measures the mixes with one serving thread.
pub(super) fn alone(
    bench: &Bench<'_>,
    mix: &str,
    stores: &[&str],
    out: &mut dyn Output,
) -> Result<DriveReport, LabError> {
    // The model needs lines.
    let plan = plan(mix, bench)?;
    drive(&Config { plan, counts: true, ..bench.stores(stores) }, out)
}

fn plan(mix: &str, bench: &Bench<'_>) -> Result<Plan, LabError> {
    let mix: Mix = mix.parse()?;
    let ops = if mix.scan > 0 { bench.config.keys / 10 } else { bench.config.keys }.max(1);
    Ok(Plan::Blend(Blend { mix, keys: mix.keys, theta: Zipf::YCSB, ops }))
}

/// Returns what an operation of a mix demands.
pub(super) fn demand(driven: &DriveReport, store: &str, mix: &str) -> Option<Demand> {
    let record = &driven.subject(store)?.phase(mix)?.summary;
    Some(Demand::of(Cost::in_record(record)?, record.lines_read_per_op?))
}

/// Measures YCSB.
pub(super) fn mixes(bench: &Bench<'_>, out: &mut dyn Output) -> Result<Part, LabError> {
    let threads = bench.threads();
    let mut mixed = Vec::new();
    for (name, _) in MIXES {
        let plan = plan(name, bench)?;
        let own = Config { threads: threads - 1, ..bench.stores(&[ADAPTIVE]) };
        let rivals = Config { threads, ..bench.stores(&RIVALS) };
        mixed.push(Mixed {
            name,
            alone: alone(bench, name, &STORES, out)?,
            all: [
                drive(&Config { plan: plan.clone(), ..own }, out)?,
                drive(&Config { plan, ..rivals }, out)?,
            ],
        });
    }
    let names = MIXES.map(|mix| mix.0.to_owned());
    let measured = |title: String, find: &dyn Fn(&Mixed, &str) -> Option<Record>| {
        table(title, &names, &STORES, |store, at| {
            let record = find(&mixed[at], store)?;
            Some(format!("{}{}", significant(record.mops?), mark(record.void)))
        })
    };
    let phase = |driven: &DriveReport, store: &str, mix: &str| {
        Some(driven.subject(store)?.phase(mix)?.summary.clone())
    };
    let mut part = Part {
        tables: vec![
            measured(
                "Figure 7: million operations a second, one serving thread".into(),
                &|mixed, store| phase(&mixed.alone, store, mixed.name),
            ),
            measured(
                format!("Figure 7: million operations a second, {}", counted(threads, "thread")),
                &|mixed, store| mixed.all.iter().find_map(|one| phase(one, store, mixed.name)),
            ),
        ],
        notes: notes_of_all(mixed.iter().flat_map(|one| one.all.iter().chain([&one.alone]))),
        ..Part::default()
    };
    if let Some(machine) = fitted(&mixed) {
        add_model(&mut part, &mixed, machine);
    }
    Ok(part)
}

fn fitted(mixed: &[Mixed]) -> Option<Machine> {
    let [processors, lines] = FITTED.map(|(store, name)| {
        let mixed = mixed.iter().find(|one| one.name == name)?;
        let paper = MIXES.iter().find(|mix| mix.0 == name)?.1;
        let at = STORES.iter().position(|other| *other == store)?;
        Some((demand(&mixed.alone, store, name)?.without_backends(), paper[at]))
    });
    Some(Machine::fitted(processors?, lines?))
}

/// Adds what the model says of the paper's machine.
fn add_model(part: &mut Part, mixed: &[Mixed], machine: Machine) {
    let mops = |mixed: &Mixed, store: &str, threads: usize| {
        Some(machine.store_mops(store, demand(&mixed.alone, store, mixed.name)?, threads))
    };
    let scaling =
        |mixed: &Mixed, store: &str| Some(mops(mixed, store, 32)? / mops(mixed, store, 2)?);
    let names = MIXES.map(|mix| mix.0.to_owned());
    let fitted = FITTED.map(|(store, mix)| format!("{store} in {mix}"));
    part.tables.push(table(
        format!(
            "A model of figure 7: 32 threads / 2, and the paper's; fitted to {}",
            fitted.join(" and ")
        ),
        &names,
        &STORES,
        |store, at| {
            let paper = MIXES[at].1[STORES.iter().position(|other| *other == store)?];
            Some(format!("{:.1} ({paper})", scaling(&mixed[at], store)?))
        },
    ));
    part.tables.push(table(
        "A model of figure 7: million operations a second with 32 threads",
        &names,
        &STORES,
        |store, at| Some(significant(mops(&mixed[at], store, 32)?)),
    ));
    for one in mixed {
        let series = STORES.map(|store| Series {
            name: store.to_owned(),
            points: CURVE
                .iter()
                .filter_map(|&threads| Some(Point::new(threads as f64, mops(one, store, threads)?)))
                .collect(),
        });
        part.plots.push(Plot {
            title: format!("A model of figure 7: {}", one.name),
            x: "threads".into(),
            y: "million operations/s".into(),
            log_x: false,
            marks: Marks::Lines,
            series: series.into(),
        });
    }
    let claims = [(NVSTORE, 1.7, 5.3), (FPTREE, 0.242, 6.3), (FPTREE_C, 0.241, 3.5)];
    part.figures.extend(claims.map(|(rival, least, most)| {
        let ratios: Vec<_> = mixed
            .iter()
            .filter_map(|one| Some(mops(one, ADAPTIVE, 32)? / mops(one, rival, 32)?))
            .collect();
        let ends = ratios
            .iter()
            .copied()
            .min_by(f64::total_cmp)
            .zip(ratios.iter().copied().max_by(f64::total_cmp));
        Figure {
            what: format!("YCSB, 32 threads: hikv / {rival}, least and most"),
            paper: format!("{:.2} and {:.1}", least + 1.0, most + 1.0),
            here: ends.map(|(least, most)| format!("model: {least:.2} and {most:.1}")),
        }
    }));
    part.notes.push(format!(
        "The model of figure 7: a second thread of a core adds {:.2} of one, and the memory serves \
         a line in {:.2} ns. HiKV's scans are not held up by the paper's barrier, which this HiKV \
         does not have.",
        machine.twin, machine.line_ns
    ));
}
