//! Figures 8, 9 and 12: by the time of a write, the number of keys, and the time of a read.

use super::bench::{
    ADAPTIVE, Bench, CHANGES, Cost, FPTREE, NVSTORE, ONE_BACKEND, Part, SCANS, gained, operation,
    reduction, scans, speed, table,
};
use crate::LabError;
use crate::driver::results::DriveReport;
use crate::driver::{Config, Plan};
use crate::experiments::definition::drive;
use crate::experiments::tables::{mark, notes_of_all};
use crate::report::{Figure, Grid, Marks, Output, Plot, Point, Series, grouped, significant};
use crate::subject::MediumKind;
use crate::workload::Phase;

/// Nanoseconds of a persist, as in the paper.
pub(super) const DELAYS: [u64; 7] = [50, 200, 400, 600, 800, 1000, 1400];
/// HiKV and those that the paper shows beside it.
const STORES: [&str; 3] = [ADAPTIVE, NVSTORE, FPTREE];
/// The numbers of keys, as shares of the greatest.
const SHARES: [u64; 3] = [25, 5, 1];
/// Nanoseconds that a read takes longer than one of ordinary memory.
const READS: [u64; 2] = [0, 60];

/// Drives of the same stores in several circumstances.
struct Sweep {
    /// What varies, in words, and as a number.
    columns: Vec<(String, f64)>,
    /// HiKV, which has backends besides its serving thread; and the rivals.
    drives: Vec<[DriveReport; 2]>,
}

impl Sweep {
    /// Measures changes: HiKV with one serving thread fewer than the rivals have, as it has a
    /// backend.
    fn of_changes(
        bench: &Bench<'_>,
        columns: Vec<(String, f64)>,
        config: impl Fn(usize) -> Config,
        out: &mut dyn Output,
    ) -> Result<Self, LabError> {
        let named = |names: &[&str]| bench.stores(names).indexes;
        let mut drives = Vec::new();
        for at in 0..columns.len() {
            let base = Config { plan: Plan::Phases(CHANGES.to_vec()), ..config(at) };
            let threads = bench.threads();
            let own = Config { indexes: named(&STORES[..1]), threads: threads - 1, ..base.clone() };
            let rivals = Config { indexes: named(&STORES[1..]), threads, ..base };
            drives.push([drive(&own, out)?, drive(&rivals, out)?]);
        }
        Ok(Sweep { columns, drives })
    }

    /// Returns million operations a second in one of the circumstances.
    fn mops(&self, store: &str, phase: &str, at: usize) -> Option<(f64, bool)> {
        let find = |driven: &DriveReport| {
            let record = &driven.subject(store)?.phase(phase)?.summary;
            Some((record.mops?, record.void))
        };
        self.drives[at].iter().find_map(find)
    }

    fn tables(&self, figure: &str) -> Vec<Grid> {
        let columns: Vec<_> = self.columns.iter().map(|column| column.0.clone()).collect();
        CHANGES
            .iter()
            .map(|phase| {
                let title = format!("{figure}: {}, million a second", operation(phase.name()));
                table(title, &columns, &STORES, |store, at| {
                    let (mops, void) = self.mops(store, phase.name(), at)?;
                    Some(format!("{}{}", significant(mops), mark(void)))
                })
            })
            .collect()
    }

    fn plots(&self, figure: &str, x: &str, log_x: bool) -> Vec<Plot> {
        let series = |phase: &Phase| {
            STORES.map(|store| {
                let points = self.columns.iter().enumerate().filter_map(|(at, column)| {
                    let (mops, void) = self.mops(store, phase.name(), at)?;
                    Some(Point { void, ..Point::new(column.1, mops) })
                });
                Series { name: store.to_owned(), points: points.collect() }
            })
        };
        let plot = |phase: &Phase| Plot {
            title: format!("{figure}: {}", operation(phase.name())),
            x: x.to_owned(),
            y: "million operations/s".into(),
            log_x,
            marks: Marks::Lines,
            series: series(phase).into(),
        };
        CHANGES.iter().map(plot).collect()
    }

    fn notes(&self) -> Vec<String> {
        notes_of_all(self.drives.iter().flatten())
    }
}

/// Figure 8.
pub(super) fn write_latency(bench: &Bench<'_>, out: &mut dyn Output) -> Result<Part, LabError> {
    let columns = DELAYS.map(|delay| (format!("{delay} ns"), delay as f64)).to_vec();
    let config = |at: usize| Config {
        medium: MediumKind::Emulated,
        speed: speed(&bench.config, DELAYS[at], bench.config.speed.read_ns),
        ..bench.stores(&[])
    };
    let sweep = Sweep::of_changes(bench, columns, config, out)?;
    let last = DELAYS.len() - 1;
    let claims = [("insert", 17.6, 32.9), ("update", 80.0, 38.4), ("delete", 39.9, 24.6)];
    let figures = claims.into_iter().flat_map(|(phase, nvstore, fptree)| {
        [(NVSTORE, nvstore), (FPTREE, fptree)].map(|(rival, paper)| {
            let both = sweep.mops(ADAPTIVE, phase, last).zip(sweep.mops(rival, phase, last));
            Figure {
                what: format!(
                    "{} at {} ns, operations a second beside {rival}, %",
                    operation(phase),
                    DELAYS[last]
                ),
                paper: format!("{paper:+} (16 threads)"),
                here: both.map(|(own, other)| gained(own, other)),
            }
        })
    });
    Ok(Part {
        figures: figures.collect(),
        tables: sweep.tables("Figure 8, by the time of a persist"),
        plots: sweep.plots("Figure 8", "ns a persist takes at least", false),
        notes: sweep.notes(),
    })
}

/// Figure 9.
pub(super) fn sizes(bench: &Bench<'_>, out: &mut dyn Output) -> Result<Part, LabError> {
    let sizes = SHARES.map(|share| (bench.config.keys / share).max(1));
    let columns = sizes.map(|keys| (format!("{} keys", grouped(keys)), keys as f64)).to_vec();
    let config = |at: usize| Config { keys: sizes[at], ..bench.stores(&[]) };
    let sweep = Sweep::of_changes(bench, columns, config, out)?;
    let claims = [
        ("update", ADAPTIVE, "0"),
        ("update", NVSTORE, "-19.3"),
        ("update", FPTREE, "-13.1"),
        ("insert", ADAPTIVE, "-14.6"),
        ("insert", NVSTORE, "out of memory"),
        ("insert", FPTREE, "-7.2"),
        ("delete", ADAPTIVE, "-22.4"),
        ("delete", NVSTORE, "-15.6"),
        ("delete", FPTREE, "-16.3"),
    ];
    let figures = claims.map(|(phase, store, paper)| {
        let both = sweep.mops(store, phase, SHARES.len() - 1).zip(sweep.mops(store, phase, 0));
        Figure {
            what: format!("{} with 25 times the keys, {store}, %", operation(phase)),
            paper: format!("{paper} (10 to 250 million)"),
            here: both.map(|(all, few)| gained(all, few)),
        }
    });
    Ok(Part {
        figures: figures.into(),
        tables: sweep.tables("Figure 9, by the number of keys"),
        plots: sweep.plots("Figure 9", "keys", true),
        notes: sweep.notes(),
    })
}

/// Figure 12.
pub(super) fn read_latency(bench: &Bench<'_>, out: &mut dyn Output) -> Result<Part, LabError> {
    let stores = [ONE_BACKEND, NVSTORE, FPTREE];
    let mut drives = Vec::new();
    for read_ns in READS {
        let config = Config {
            medium: MediumKind::Emulated,
            speed: speed(&bench.config, bench.config.speed.persist_ns, read_ns),
            plan: Plan::Phases(vec![Phase::Positive]),
            ..bench.stores(&stores)
        };
        let scans = Config { plan: Plan::Blend(scans(config.keys)), ..config.clone() };
        drives.push([drive(&config, out)?, drive(&scans, out)?]);
    }
    let cost = |store: &str, phase: &str, at: usize| {
        let drives: &[DriveReport; 2] = &drives[at];
        drives.iter().find_map(|driven| Cost::of(driven, store, phase))
    };
    let columns = READS.map(|read_ns| format!("{} ns", 60 + read_ns));
    let grids = [Phase::Positive.name(), SCANS.name].map(|phase| {
        let title = format!(
            "Figure 12: mean time of a {}, ns, by the time of a read (ordinary memory: 60 ns)",
            operation(phase)
        );
        table(title, &columns, &stores, |store, at| {
            let cost = cost(store, phase, at)?;
            Some(format!("{:.0}{}", cost.wall, mark(cost.void)))
        })
    });
    let claims = [("positive", 80.0, 82.3), ("scan", 61.8, 13.0)];
    let figures = claims.into_iter().flat_map(|(phase, nvstore, fptree)| {
        [(NVSTORE, nvstore), (FPTREE, fptree)].map(|(rival, paper)| Figure {
            what: format!("{} with reads of 120 ns, time beside {rival}, %", operation(phase)),
            paper: format!("-{paper}"),
            here: cost(ONE_BACKEND, phase, 1)
                .zip(cost(rival, phase, 1))
                .map(|(own, other)| own.with(other, |own, other| -reduction(own.wall, other.wall))),
        })
    });
    Ok(Part {
        figures: figures.collect(),
        tables: grids.into(),
        notes: notes_of_all(drives.iter().flatten()),
        ..Part::default()
    })
}
