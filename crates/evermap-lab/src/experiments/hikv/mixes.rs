//! Figure 7: YCSB with one thread, with all, and with 32 in a model.

use super::bench::{ADAPTIVE, Bench, FPTREE, FPTREE_C, NVSTORE, Part, RIVALS, YCSB, gain, table};
use super::model::{Demand, Machine};
use crate::LabError;
use crate::driver::results::DriveReport;
use crate::driver::{Config, Plan};
use crate::experiments::definition::drive;
use crate::experiments::tables::{mark, notes_of_all};
use crate::report::interval::median;
use crate::report::{Figure, Marks, Output, Plot, Point, Record, Series, counted, significant};
use crate::workload::{Blend, Mix, Zipf};

/// By how much 32 threads do more than two in the paper, in each of the [mixes](YCSB): HiKV,
/// NVStore, FPTree, FPTree_C.
const SCALING: [[f64; 4]; 6] = [
    [13.6, 5.5, 10.0, 7.9],
    [15.5, 7.6, 7.5, 8.2],
    [10.5, 8.2, 7.5, 8.8],
    [15.4, 8.2, 7.7, 7.8],
    [4.3, 4.6, 3.4, 3.5],
    [18.3, 5.5, 10.1, 8.8],
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

impl Mixed {
    fn record(&self, store: &str) -> Option<&Record> {
        Some(&self.alone.subject(store)?.phase(self.name)?.summary)
    }

    /// Returns what an operation of a store demands. `backend` is HiKV's.
    fn demand(&self, store: &str, backend: f64) -> Option<Demand> {
        let mix: Mix = self.name.parse().ok()?;
        let demand = Demand::of(self.record(store)?, mix.scan > 0)?;
        Some(Demand { backend: if store == ADAPTIVE { backend } else { 0.0 }, ..demand })
    }
}

fn plan(mix: &str, bench: &Bench<'_>) -> Result<Plan, LabError> {
    let mix: Mix = mix.parse()?;
    let ops = if mix.scan > 0 { bench.config.keys / 10 } else { bench.config.keys }.max(1);
    Ok(Plan::Blend(Blend { mix, keys: mix.keys, theta: Zipf::YCSB, ops }))
}

/// Measures YCSB.
pub(super) fn mixes(bench: &Bench<'_>, out: &mut dyn Output) -> Result<Part, LabError> {
    let threads = bench.threads();
    let mut mixed = Vec::new();
    for name in YCSB {
        let plan = plan(name, bench)?;
        // The model needs persists.
        let alone = Config { plan: plan.clone(), counts: true, ..bench.stores(&STORES) };
        let own = Config { threads: threads - 1, ..bench.stores(&[ADAPTIVE]) };
        let rivals = Config { threads, ..bench.stores(&RIVALS) };
        mixed.push(Mixed {
            name,
            alone: drive(&alone, out)?,
            all: [
                drive(&Config { plan: plan.clone(), ..own }, out)?,
                drive(&Config { plan, ..rivals }, out)?,
            ],
        });
    }
    let names = YCSB.map(str::to_owned);
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
                &|mixed, store| mixed.record(store).cloned(),
            ),
            measured(
                format!("Figure 7: million operations a second, {}", counted(threads, "thread")),
                &|mixed, store| mixed.all.iter().find_map(|one| phase(one, store, mixed.name)),
            ),
        ],
        notes: notes_of_all(mixed.iter().flat_map(|one| one.all.iter().chain([&one.alone]))),
        ..Part::default()
    };
    let backends: Vec<f64> = bench.alone(out)?.iter().map(|one| one.1.backend).collect();
    let demands = mixed.iter().zip(backends).map(|(mixed, backend)| {
        STORES.map(|store| mixed.demand(store, backend)).into_iter().collect::<Option<Vec<_>>>()
    });
    if let Some(demands) = demands.collect::<Option<Vec<_>>>() {
        add_model(&mut part, &Modelled::of(demands));
    }
    Ok(part)
}

/// The paper's machine, and what operations take, by mixes and stores.
struct Modelled {
    machine: Machine,
    demands: Vec<Vec<Demand>>,
}

impl Modelled {
    fn of(demands: Vec<Vec<Demand>>) -> Self {
        let [processors, scans] = FITTED.map(|(store, mix)| {
            let (mix, store) = (place(&YCSB, mix), place(&STORES, store));
            (demands[mix][store], SCALING[mix][store])
        });
        Modelled { machine: Machine::fitted(processors, scans), demands }
    }

    fn mops(&self, mix: usize, store: &str, threads: usize) -> f64 {
        let demand = self.demands[mix][place(&STORES, store)];
        self.machine.store_mops(store, demand, threads)
    }

    fn scaling(&self, mix: usize, store: &str) -> f64 {
        self.mops(mix, store, 32) / self.mops(mix, store, 2)
    }

    /// Returns by how many percent the model says more than the paper, unless it was fitted there.
    fn error(&self, mix: usize, store: &str) -> Option<f64> {
        let error = gain(self.scaling(mix, store), SCALING[mix][place(&STORES, store)]);
        (!FITTED.contains(&(store, YCSB[mix]))).then_some(error)
    }

    /// Returns a figure of the errors of a store.
    fn errors(&self, store: &str) -> Figure {
        let all: Vec<_> =
            (0..YCSB.len()).filter_map(|mix| self.error(mix, store)).map(f64::abs).collect();
        let most = all.iter().copied().fold(0.0, f64::max);
        Figure {
            what: format!("YCSB, 32 threads / 2, {store}: error of the model, median and most, %"),
            paper: "0".into(),
            here: median(&all).map(|middle| format!("{middle:.0} and {most:.0}")),
        }
    }
}

/// Returns the place of a name that is there.
fn place(names: &[&str], name: &str) -> usize {
    names.iter().position(|other| *other == name).expect("one of these")
}

/// Adds what the model says of the paper's machine.
fn add_model(part: &mut Part, model: &Modelled) {
    let names = YCSB.map(str::to_owned);
    let fitted = FITTED.map(|(store, mix)| format!("{store} in {mix}"));
    part.tables.push(table(
        format!(
            "A model of figure 7: 32 threads / 2 (the paper's, and the error); fitted to {}",
            fitted.join(" and ")
        ),
        &names,
        &STORES,
        |store, at| {
            let paper = SCALING[at][place(&STORES, store)];
            let error = model.error(at, store);
            let error = error.map_or("fitted".to_owned(), |error| format!("{error:+.0} %"));
            Some(format!("{:.1} ({paper}, {error})", model.scaling(at, store)))
        },
    ));
    part.tables.push(table(
        "A model of figure 7: million operations a second with 32 threads",
        &names,
        &STORES,
        |store, at| Some(significant(model.mops(at, store, 32))),
    ));
    part.plots.extend(curves(model));
    part.figures.extend(ratios(model));
    part.figures.extend(STORES.map(|store| model.errors(store)));
    part.notes.push(format!(
        "The model of figure 7: a second thread of a core adds {:.2} of one, waits for persists \
         are not slowed down by it, and {:.0} % of a scan excludes other scans. HiKV's scans are \
         not held up by the paper's barrier, which this HiKV does not have.",
        model.machine.twin,
        100.0 * model.machine.exclusive
    ));
}

/// Returns operations by threads, for each mix.
fn curves(model: &Modelled) -> Vec<Plot> {
    let points = |mix: usize, store: &str| {
        let point = |&threads: &usize| Point::new(threads as f64, model.mops(mix, store, threads));
        CURVE.iter().map(point).collect()
    };
    let plot = |(mix, name): (usize, &str)| Plot {
        title: format!("A model of figure 7: {name}"),
        x: "threads".into(),
        y: "million operations/s".into(),
        log_x: false,
        marks: Marks::Lines,
        series: STORES
            .map(|store| Series { name: store.to_owned(), points: points(mix, store) })
            .into(),
    };
    YCSB.into_iter().enumerate().map(plot).collect()
}

/// Returns how many times as much HiKV does as its rivals.
fn ratios(model: &Modelled) -> [Figure; 3] {
    let claims = [(NVSTORE, 1.7, 5.3), (FPTREE, 0.242, 6.3), (FPTREE_C, 0.241, 3.5)];
    claims.map(|(rival, least, most)| {
        let ratio = |mix| model.mops(mix, ADAPTIVE, 32) / model.mops(mix, rival, 32);
        let ratios = (0..YCSB.len()).map(ratio);
        let lowest = ratios.clone().fold(f64::INFINITY, f64::min);
        let highest = ratios.fold(0.0, f64::max);
        Figure {
            what: format!("YCSB, 32 threads: hikv / {rival}, least and most"),
            paper: format!("{:.2} and {:.1}", least + 1.0, most + 1.0),
            here: Some(format!("model: {lowest:.2} and {highest:.1}")),
        }
    })
}
