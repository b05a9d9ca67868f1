//! Section 4.9: how soon a killed store can be used again.

use std::time::{Duration, Instant};

use evermap_index::ordered::PersistentOrdered;
use evermap_papers::fptree::{self, FpTree};
use evermap_papers::hikv::{Backends, Config, HiKv, Rebuild};
use evermap_papers::nvtree::{self, NvTree};
use evermap_pm::Medium;

use super::bench::{ADAPTIVE, Bench, FPTREE, NVSTORE, Part, table};
use crate::LabError;
use crate::experiments::killed::{ChildLine, Job, KillPlan};
use crate::experiments::settings::Settings;
use crate::indexes::builder::IndexBuilder;
use crate::indexes::media::Memory;
use crate::registry::subject;
use crate::report::interval::median;
use crate::report::{Figure, Grid, Output, Record, counted, grouped};
use crate::subject::{Guards, Setup};

/// HiKV, and those that the paper shows beside it; NV-Tree with parents that are half full too.
const STORES: [&str; 4] = [ADAPTIVE, NVSTORE, "nv-tree", FPTREE];
/// Recoveries of each file.
const OPENINGS: u64 = 3;

/// Ways to build HiKV's tree, by name.
const BUILDS: [(&str, Rebuild); 2] = [
    ("inserted one by one, as published", Rebuild::OneByOne),
    ("sorted, and loaded", Rebuild::Bulk),
];

/// A tree whose inner nodes an opening builds.
trait Rebuilds {
    /// Builds them anew. Returns the number of leaves, and how long it took.
    fn rebuild(&mut self, threads: usize) -> evermap_pm::Result<(u64, Duration)>;
}

impl<M: Medium, F: nvtree::Form> Rebuilds for NvTree<M, F> {
    fn rebuild(&mut self, threads: usize) -> evermap_pm::Result<(u64, Duration)> {
        let time = self.rebuild_by(threads)?;
        Ok((self.counters().upper.leaves, time))
    }
}

impl<M: Medium, F: fptree::Form> Rebuilds for FpTree<M, F> {
    fn rebuild(&mut self, threads: usize) -> evermap_pm::Result<(u64, Duration)> {
        let rebuilt = self.rebuild_by(threads)?;
        Ok((rebuilt.leaves, rebuilt.time))
    }
}

/// The leaves of a tree, and milliseconds in which each number of threads builds what is above
/// them.
struct Rebuilt {
    store: &'static str,
    leaves: u64,
    ms: Vec<f64>,
}

/// Returns the numbers of threads by which trees are built.
fn threads() -> Vec<usize> {
    let mut threads = vec![1, Settings::processors()];
    threads.dedup();
    threads
}

/// Opens a tree that is left, and builds what is above its leaves.
fn rebuilds(setup: &Setup, store: &'static str) -> Result<Rebuilt, LabError> {
    let builder = IndexBuilder { name: store, guards: Guards::PerOperation, setup };
    let built = builder.memory().and_then(|memory| match memory {
        Memory::Plain(medium) => rebuilds_in(&builder, medium, store),
        Memory::Watched(medium) => rebuilds_in(&builder, medium, store),
    });
    built.map_err(|error| LabError::index(store, error))
}

fn rebuilds_in<M: Medium>(
    builder: &IndexBuilder<'_>,
    medium: M,
    store: &'static str,
) -> evermap_pm::Result<Rebuilt> {
    let (pool, _) = builder.pool_in(medium)?;
    let root = pool.root(0);
    let mut tree: Box<dyn Rebuilds> = match store {
        NVSTORE => Box::new(NvTree::<M, nvtree::OneLeafPerParent>::open(pool.clone(), root)?),
        FPTREE => Box::new(FpTree::<M, fptree::Paper>::open(pool.clone(), root)?),
        _ => Box::new(NvTree::<M>::open(pool.clone(), root)?),
    };
    let mut rebuilt = Rebuilt { store, leaves: 0, ms: Vec::new() };
    for threads in threads() {
        let mut times = Vec::new();
        for _ in 0..OPENINGS {
            let (leaves, time) = tree.rebuild(threads)?;
            rebuilt.leaves = leaves;
            times.push(time.as_secs_f64() * 1e3);
        }
        rebuilt.ms.extend(median(&times));
    }
    Ok(rebuilt)
}

/// Returns the table of what was built above leaves.
fn rebuild_table(rebuilt: &[Rebuilt], keys: u64) -> Grid {
    let title = format!("Section 4.9: ms to build what is above the leaves of {keys} keys");
    let by = threads().into_iter().map(|threads| counted(threads, "thread"));
    let columns: Vec<_> = ["leaves".to_owned()].into_iter().chain(by).collect();
    let mut grid = Grid::new(title, &columns.iter().map(String::as_str).collect::<Vec<_>>());
    for Rebuilt { store, leaves, ms } in rebuilt {
        let times = ms.iter().map(|&ms| {
            let rate = keys as f64 / ms / 1e3;
            format!("{ms:.2} ({rate:.0} million keys a second)")
        });
        grid.push(*store, [leaves.to_string()].into_iter().chain(times).collect());
    }
    grid
}

/// Builds the tree of the store that is left. Returns milliseconds from before the opening until it
/// is complete, for each way and each number of threads.
fn builds(setup: &Setup) -> Result<Vec<(String, f64)>, LabError> {
    let mut times = Vec::new();
    for (name, rebuild) in BUILDS {
        for threads in threads() {
            let all: Result<Vec<_>, _> =
                (0..OPENINGS).map(|_| build_once(setup, rebuild, threads)).collect();
            let name = format!("{name}, {}", counted(threads, "thread"));
            times.extend(median(&all?).map(|ms| (name, ms)));
        }
    }
    Ok(times)
}

fn build_once(setup: &Setup, rebuild: Rebuild, threads: usize) -> Result<f64, LabError> {
    let builder = IndexBuilder { name: ADAPTIVE, guards: Guards::PerOperation, setup };
    let begin = Instant::now();
    let built = builder.memory().and_then(|memory| match memory {
        Memory::Plain(medium) => complete(&builder, medium, rebuild, threads),
        Memory::Watched(medium) => complete(&builder, medium, rebuild, threads),
    });
    built.map_err(|error| LabError::index(ADAPTIVE, error))?;
    Ok(begin.elapsed().as_secs_f64() * 1e3)
}

fn complete<M: Medium>(
    builder: &IndexBuilder<'_>,
    medium: M,
    rebuild: Rebuild,
    threads: usize,
) -> evermap_pm::Result<()> {
    let (pool, _) = builder.pool_in(medium)?;
    let backends = Some(Backends::Fixed(0));
    let config = Config { rebuild, rebuild_threads: 0, backends, ..Config::default() };
    HiKv::open(pool.clone(), pool.root(0), config)?.settle(threads)
}

/// Fills stores in processes that are killed, and opens them in others.
pub(super) fn reopening(bench: &Bench<'_>, out: &mut dyn Output) -> Result<Part, LabError> {
    let sizes = [bench.config.keys / 4, bench.config.keys].map(|keys| keys.max(1));
    let plan = KillPlan::new(bench.settings, bench.config.lengths, bench.config.keys)?;
    out.begin((STORES.len() * sizes.len()) as u64);
    let (mut times, mut built, mut rebuilt) = (Vec::new(), Vec::new(), Vec::new());
    for store in STORES {
        let entry = subject(store)?;
        for keys in sizes {
            out.step(&format!("hikv: {store}, {keys} keys, recovery"));
            let left = plan.place();
            plan.run_and_kill(&entry, keys, &left, Job::Overwrite)?;
            let (mut gets, mut scans) = (Vec::new(), Vec::new());
            for time in 1..=OPENINGS {
                for line in plan.run_and_kill(&entry, keys, &left, Job::Open(time))? {
                    if let ChildLine::FirstAnswers { get, scan } = line {
                        gets.push(get * 1e3);
                        scans.extend(scan.map(|seconds| seconds * 1e3));
                    }
                }
            }
            if keys == sizes[1] {
                let setup = plan.setup(keys, &left)?;
                match store {
                    ADAPTIVE => built = builds(&setup)?,
                    _ => rebuilt.push(rebuilds(&setup, store)?),
                }
            }
            let (get, scan) = (median(&gets), median(&scans));
            for (phase, ms) in [("first get", get), ("first scan", scan)] {
                out.record(&Record {
                    seconds: ms.map(|ms| ms / 1e3),
                    ops: 1,
                    ..plan.record("hikv", &entry, keys, phase)
                })?;
            }
            times.push((store, keys, get, scan));
        }
    }
    let of = |store: &str, keys: u64| {
        let found = times.iter().find(|one| one.0 == store && one.1 == keys)?;
        Some((found.2?, found.3?))
    };
    let columns = sizes.map(|keys| format!("{} keys", grouped(keys)));
    let grid = table(
        "Section 4.9: ms from opening a killed store to the first answer; and to the first scan",
        &columns,
        &STORES,
        |store, at| {
            let (get, scan) = of(store, sizes[at])?;
            Some(format!("{get:.2}; {scan:.1}"))
        },
    );
    let title = format!("Section 4.9: the tree of {ADAPTIVE} with {} keys", grouped(sizes[1]));
    let mut trees = Grid::new(title, &["ms", "million keys a second"]);
    for (name, ms) in &built {
        let rate = format!("{:.2}", sizes[1] as f64 / ms / 1e3);
        trees.push(name.clone(), vec![format!("{ms:.1}"), rate]);
    }
    let rate = |store: &str, paper: &str| Figure {
        what: format!("recovery up to the first scan, {store}, million keys a second"),
        paper: paper.into(),
        here: of(store, sizes[1]).map(|(_, scan)| format!("{:.2}", sizes[1] as f64 / scan / 1e3)),
    };
    let one_by_one = built.first().map(|(_, ms)| format!("{:.2}", sizes[1] as f64 / ms / 1e3));
    let figures = vec![
        Figure {
            what: "recovery by insertions, one thread, million keys a second".into(),
            paper: "0.57 (50 million keys)".into(),
            here: one_by_one,
        },
        rate(ADAPTIVE, "0.57 with one thread, 8.0 with 16"),
        rate(NVSTORE, "4.5"),
        rate(FPTREE, "28.7"),
    ];
    let above = rebuild_table(&rebuilt, sizes[1]);
    Ok(Part { tables: vec![grid, trees, above], figures, ..Part::default() })
}
