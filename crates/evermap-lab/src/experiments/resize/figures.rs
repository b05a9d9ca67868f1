//! Tables, plots and figures of what was measured, and of the model.

use std::time::Duration;

use super::bench::{Case, Cell, Measured, NAME, Plan, Results, describe};
use super::counts::Counts;
use super::model::{self, Line, Modelled, Transfer};
use super::tables::{Hash, Job, Protection};
use crate::LabError;
use crate::experiments::tables::{latency, mark, speed};
use crate::machine;
use crate::report::interval::{median, median_interval};
use crate::report::model::cell as number;
use crate::report::{
    Figure, Grid, Marks, Output, Plot, Point, Record, Series, counted, grouped, significant,
};

const LOOKUPS: Job = Job::Lookups(Protection::Quiescent);

/// By how much longer than here grace periods are in the model.
const GRACE_PERIODS: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_millis(1),
    Duration::from_millis(10),
    Duration::from_millis(30),
    Duration::from_millis(100),
    Duration::from_millis(300),
];

/// What was measured, counted and modelled.
pub(super) struct Everything<'a> {
    pub(super) plan: &'a Plan,
    pub(super) results: &'a Results,
    pub(super) counts: &'a [Counts],
    pub(super) transfer: Transfer,
}

/// A speed of the model.
struct Drawn {
    table: &'static str,
    case: Case,
    mops: Vec<f64>,
}

impl Everything<'_> {
    fn measured(
        &self,
        (table, hash): (&'static str, Hash),
        case: Case,
        job: Job,
        readers: usize,
    ) -> Option<&Measured> {
        self.results.find(Cell { table, hash, case, job, readers })
    }

    /// Returns lookups of the paper's benchmark.
    fn lookups(&self, table: &'static str, case: Case, readers: usize) -> Option<&Measured> {
        self.measured((table, Hash::Identity), case, LOOKUPS, readers)
    }

    fn fixed(&self) -> [Case; 2] {
        self.plan.sizes.map(Case::Fixed)
    }

    pub(super) fn tables(&self) -> Vec<Grid> {
        let mut grids = Vec::new();
        for hash in [Hash::Identity, Hash::Random] {
            let what = format!("{} hash, quiescent readers", hash.name());
            grids.extend(self.speeds(&what, hash, LOOKUPS));
        }
        let guards = Job::Lookups(Protection::Guards);
        grids.extend(self.speeds("identity hash, guards", Hash::Identity, guards));
        let mixed = "90 % lookups, 9 % insertions, 1 % removals, identity hash";
        grids.extend(self.speeds(mixed, Hash::Identity, Job::Mixed));
        grids.extend(self.speeds("replaced values, identity hash", Hash::Identity, Job::Updates));
        grids.extend([Hash::Identity, Hash::Random].into_iter().flat_map(|hash| self.costs(hash)));
        grids.extend([Hash::Identity, Hash::Random].into_iter().flat_map(|hash| self.gaps(hash)));
        grids.extend(self.resizes());
        grids.extend(self.counted());
        grids.extend(self.model_tables());
        grids
    }

    /// Returns the rows of a table: each table in each case.
    fn rows(
        &self,
        mut grid: Grid,
        cells: impl Fn(&'static str, Case) -> Vec<Option<String>>,
    ) -> Option<Grid> {
        for &table in &self.plan.tables {
            for case in self.plan.cases() {
                let cells = cells(table, case);
                if cells.iter().any(Option::is_some) {
                    let cells = cells.into_iter().map(|cell| cell.unwrap_or_else(|| "-".into()));
                    grid.push(format!("{table}, {}", case.name()), cells.collect());
                }
            }
        }
        (!grid.rows.is_empty()).then_some(grid)
    }

    /// Returns a grid with a column for every number of readers.
    fn by_readers(&self, title: String) -> Grid {
        let name = |readers: &usize| match readers > &processors() {
            true => format!("{readers} (more than processors)"),
            false => readers.to_string(),
        };
        Grid { title, columns: self.plan.readers.iter().map(name).collect(), rows: Vec::new() }
    }

    fn speeds(&self, what: &str, hash: Hash, job: Job) -> Option<Grid> {
        let grid = self.by_readers(format!("Million operations a second, by threads: {what}"));
        self.rows(grid, |table, case| {
            let cell = |&readers: &usize| {
                let measured = self.measured((table, hash), case, job, readers)?;
                speed(&measured.summary)
            };
            self.plan.readers.iter().map(cell).collect()
        })
    }

    /// Returns the processor time of a lookup. It is comparable even if readers and resizer share
    /// processors.
    fn costs(&self, hash: Hash) -> Option<Grid> {
        let title = "Processor time of a lookup in its own thread, ns, by threads";
        let grid = self.by_readers(format!("{title}: {} hash, quiescent readers", hash.name()));
        self.rows(grid, |table, case| {
            let cell = |&readers: &usize| {
                let record = &self.measured((table, hash), case, LOOKUPS, readers)?.summary;
                Some(format!("{}{}", number(record.cpu_ns_per_op, 1), mark(record.void)))
            };
            self.plan.readers.iter().map(cell).collect()
        })
    }

    fn gaps(&self, hash: Hash) -> Option<Grid> {
        let title = format!("One reader's lookups, each timed: {} hash", hash.name());
        let columns = ["p50", "p99", "p99.9", "p99.99", "longest gap"];
        self.rows(Grid::new(title, &columns), |table, case| {
            let found = self.measured((table, hash), case, Job::Latencies, 1);
            let Some(Measured { summary, .. }) = found else { return vec![None; columns.len()] };
            let all =
                [summary.p50_ns, summary.p99_ns, summary.p999_ns, summary.p9999_ns, summary.gap_ns];
            all.map(|ns| ns.map(|ns| latency(ns, summary.void))).to_vec()
        })
    }

    fn resizes(&self) -> Option<Grid> {
        let columns = [
            "grace periods",
            "the most",
            "to double, ms",
            "to halve, ms",
            "updates meanwhile, million/s",
            "beside updates, to double, ms",
        ];
        let mut grid = Grid::new("Resizes without a pause, beside one reader", &columns);
        for &table in &self.plan.tables {
            for hash in [Hash::Identity, Hash::Random] {
                let found = self.measured((table, hash), Case::Resizing, LOOKUPS, 1);
                let Some(Measured { summary: record, .. }) = found else { continue };
                let updates = self.measured((table, hash), Case::Resizing, Job::Updates, 1);
                let updates = updates.map(|updates| &updates.summary);
                let most = record.grace_periods_max;
                grid.push(
                    format!("{table}, {} hash", hash.name()),
                    vec![
                        number(record.grace_periods, 1),
                        most.map_or_else(|| "-".into(), |most| most.to_string()),
                        number(record.expansion_ms, 2),
                        number(record.shrink_ms, 2),
                        updates.and_then(speed).unwrap_or_else(|| "-".into()),
                        number(updates.and_then(|record| record.expansion_ms), 2),
                    ],
                );
            }
        }
        (!grid.rows.is_empty()).then_some(grid)
    }

    fn counted(&self) -> Option<Grid> {
        let title = "What a lookup does: counted instruction by instruction";
        let columns = [
            "stores to shared lines",
            "locked instructions",
            "stores off the stack",
            "lines read",
            "instructions",
        ];
        let mut grid = Grid::new(title, &columns);
        for counts in self.counts {
            let state = if counts.resizing { "resizing" } else { "fixed" };
            let all = [
                counts.shared_stores,
                counts.locked,
                counts.stores,
                counts.lines_read,
                counts.instructions,
            ];
            let name = format!("{}, {}, {state}", counts.table, counts.protection.words());
            grid.push(name, all.map(|count| format!("{count:.1}")).to_vec());
        }
        (!grid.rows.is_empty()).then_some(grid)
    }

    /// Returns the table in the model's terms, or `None` if it was not measured. Grace periods take
    /// `grace` longer than they do here.
    fn modelled(&self, table: &'static str, case: Case, grace: Duration) -> Option<Modelled> {
        let resizing = case == Case::Resizing;
        let record = &self.lookups(table, case, 1)?.summary;
        // Of the processor's time: other programs are no part of the model.
        let mut alone_ns = record.cpu_ns_per_op?;
        let counts = self.counts.iter().find(|counts| {
            counts.table == table
                && counts.resizing == resizing
                && counts.protection == Protection::Quiescent
        })?;
        let mut excluded = 0.0;
        let line = if counts.shared_stores > 0.0 {
            if resizing {
                // A reader that has the lock is as fast as in a table that is not resized.
                let mean = |figure: fn(&Record) -> Option<f64>| {
                    let one = |case| figure(&self.lookups(table, case, 1)?.summary);
                    let [small, large] = self.fixed().map(one);
                    Some((small? + large?) / 2.0)
                };
                excluded = (1.0 - record.mops? / mean(|record| record.mops)?).max(0.0);
                alone_ns = mean(|record| record.cpu_ns_per_op)?;
            }
            Line::Stored(counts.shared_stores)
        } else if resizing && table == "ddds" {
            // The sequence counter: each lookup reads it once, and each node that is moved changes
            // it twice.
            let waits = record.grace_periods.unwrap_or(0.0) * grace.as_secs_f64();
            let measured = self.resizing_seconds()? / record.resizes? as f64;
            let rate = |seconds: f64| 2.0 * record.keys as f64 / seconds;
            Line::Read { loads: 1.0, stores: rate(measured + waits), measured: rate(measured) }
        } else {
            Line::None
        };
        Some(Modelled { alone_ns, line, excluded })
    }

    /// Returns how long DDDS was resized beside one reader, in all rounds.
    fn resizing_seconds(&self) -> Option<f64> {
        let rounds = &self.lookups("ddds", Case::Resizing, 1)?.rounds;
        let used = rounds.iter().filter(|round| !round.void || rounds.iter().all(|one| one.void));
        let seconds = used.filter_map(|round| round.seconds).sum::<f64>();
        (seconds > 0.0).then_some(seconds)
    }

    /// Returns the speeds of the model.
    fn drawn(&self) -> Vec<Drawn> {
        let mut all = Vec::new();
        for &table in &self.plan.tables {
            for case in self.plan.cases() {
                let modelled = self.modelled(table, case, Duration::ZERO);
                let Some(modelled) = modelled else { continue };
                let mops = model::READERS.map(|readers| modelled.mops(readers, self.transfer.ns));
                all.push(Drawn { table, case, mops: mops.to_vec() });
            }
        }
        all
    }

    fn drawn_speed(&self, table: &str, case: Case, readers: usize) -> Option<f64> {
        let at = model::READERS.iter().position(|&one| one == readers)?;
        let drawn = self.drawn().into_iter().find(|one| one.table == table && one.case == case)?;
        drawn.mops.get(at).copied()
    }

    /// Writes the model's speeds as records of the phase `model`.
    pub(super) fn record_model(&self, out: &mut dyn Output) -> Result<(), LabError> {
        for drawn in self.drawn() {
            for (&readers, &mops) in model::READERS.iter().zip(&drawn.mops) {
                let cell = Cell {
                    table: drawn.table,
                    hash: Hash::Identity,
                    case: drawn.case,
                    job: LOOKUPS,
                    readers,
                };
                out.record(&Record {
                    experiment: NAME,
                    phase: "model".to_owned(),
                    medium: "model".to_owned(),
                    mops: Some(mops),
                    oversubscribed: None,
                    seed: self.plan.seed,
                    ..describe(cell, self.plan.keys)
                })?;
            }
        }
        Ok(())
    }

    fn drawn_table(&self) -> Option<Grid> {
        let columns: Vec<_> = model::READERS.iter().map(usize::to_string).collect();
        let columns: Vec<_> = columns.iter().map(String::as_str).collect();
        let title = "A model, not a measurement: million lookups a second by readers, a processor \
                     each";
        let mut grid = Grid::new(title, &columns);
        for Drawn { table, case, mops } in self.drawn() {
            let cells = mops.iter().map(|mops| significant(*mops)).collect();
            grid.push(format!("{table}, {}", case.name()), cells);
        }
        (!grid.rows.is_empty()).then_some(grid)
    }

    /// Returns what the model says of DDDS beside RP by the length of a grace period: while a
    /// resizer waits, it moves no nodes, and readers keep the line of the sequence counter.
    fn by_grace_period(&self) -> Option<Grid> {
        let columns: Vec<_> = GRACE_PERIODS.iter().map(|one| format!("{one:?}")).collect();
        let columns: Vec<_> = columns.iter().map(String::as_str).collect();
        let title = "A model, not a measurement: rp / ddds, resized without a pause, 16 readers, \
                     by how much longer than here a grace period is";
        let mops = |table, grace| {
            let modelled = self.modelled(table, Case::Resizing, grace)?;
            Some(modelled.mops(16, self.transfer.ns))
        };
        let cells = GRACE_PERIODS.map(|grace| Some(mops("rp", grace)? / mops("ddds", grace)?));
        let mut grid = Grid::new(title, &columns);
        grid.push("rp / ddds (the paper: 1.56)", cells.map(|ratio| number(ratio, 2)).to_vec());
        cells.iter().any(Option::is_some).then_some(grid)
    }

    /// Returns the model's tables.
    pub(super) fn model_tables(&self) -> Vec<Grid> {
        self.drawn_table().into_iter().chain(self.by_grace_period()).collect()
    }

    /// Returns the model's plots.
    pub(super) fn model_plots(&self) -> Vec<Plot> {
        let fixed = self.fixed()[0];
        let drawn = self.drawn();
        let model = |title: &str, keep: &dyn Fn(&Drawn) -> bool| {
            let series = drawn.iter().filter(|one| keep(one)).map(|one| Series {
                name: format!("{}, {}", one.table, one.case.name()),
                points: model::READERS
                    .iter()
                    .zip(&one.mops)
                    .map(|(&readers, &mops)| Point::new(readers as f64, mops))
                    .collect(),
            });
            Plot { title: title.to_owned(), series: series.collect(), ..axes() }
        };
        let resizing = |one: &Drawn| one.case == Case::Resizing;
        vec![
            model("A model: fixed size (figure 3)", &|one| one.case == fixed),
            model("A model: resized without a pause (figure 4)", &resizing),
        ]
    }

    /// Returns the numbers of the paper that the model has too.
    pub(super) fn model_figures(&self) -> Vec<Figure> {
        let figure = |to: &'static str, paper: &str| Figure {
            what: format!("rp / {to}, resizing, 16 readers"),
            paper: paper.to_owned(),
            here: both(None, self.drawn_ratio("rp", to, 16)),
        };
        vec![figure("rwlock", "125"), figure("ddds", "1.56")]
    }

    pub(super) fn plots(&self) -> Vec<Plot> {
        let fixed = self.fixed()[0];
        let mut plots = vec![
            self.plot("Measured: fixed size (figure 3)", &[fixed], &self.plan.tables),
            self.plot(
                "Measured: resized without a pause (figure 4)",
                &[Case::Resizing],
                &self.plan.tables,
            ),
        ];
        for table in &self.plan.tables {
            let title = format!("Measured: {table} (figures 5 to 7)");
            plots.push(self.plot(&title, &self.plan.cases(), &[table]));
        }
        plots.extend(self.model_plots());
        plots.retain(|plot| plot.series.iter().any(|series| !series.points.is_empty()));
        plots
    }

    fn plot(&self, title: &str, cases: &[Case], tables: &[&'static str]) -> Plot {
        let point = |table, case, readers: usize| {
            let record = &self.lookups(table, case, readers)?.summary;
            let range = record.mops_low.zip(record.mops_high);
            Some(Point { x: readers as f64, y: record.mops?, range, void: record.void })
        };
        let mut series = Vec::new();
        for &table in tables {
            for &case in cases {
                let points =
                    self.plan.readers.iter().filter_map(|&readers| point(table, case, readers));
                let name = format!("{table}, {}", case.name());
                series.push(Series { name, points: points.collect() });
            }
        }
        Plot { title: title.to_owned(), series, ..axes() }
    }

    /// Returns the claims of the paper, in its order, beside what was found.
    pub(super) fn figures(&self) -> Vec<Figure> {
        let most = self.most_readers();
        let times = |what: &str, paper: &str, to: &'static str| {
            let here = self.ratio(("rp", Case::Resizing), (to, Case::Resizing), most);
            let model = self.drawn_ratio("rp", to, 16);
            Figure {
                what: format!("{what}: 16 readers in the paper, {most} here, 16 in the model"),
                paper: paper.to_owned(),
                here: both(here, model),
            }
        };
        let mut figures = vec![
            times("rp / rwlock, resizing", "125", "rwlock"),
            times("rp / ddds, resizing", "1.56", "ddds"),
        ];
        figures.extend(self.between());
        figures.push(self.linear());
        figures.extend(self.below());
        figures.extend(self.collapse());
        figures.push(self.at_rest(most));
        figures.push(self.untestable());
        figures.push(self.no_misses());
        figures.push(self.mixed(most));
        figures
    }

    /// Returns the largest number of readers that have a processor each.
    fn most_readers(&self) -> usize {
        let few = self.plan.readers.iter().copied().filter(|&readers| readers <= processors());
        few.max().unwrap_or(1)
    }

    /// Returns the median over the rounds of the ratio of two speeds, with its range.
    fn ratio(
        &self,
        (of, of_case): (&'static str, Case),
        (to, to_case): (&'static str, Case),
        readers: usize,
    ) -> Option<String> {
        let of = &self.lookups(of, of_case, readers)?.rounds;
        let to = &self.lookups(to, to_case, readers)?.rounds;
        let ratios = |void| {
            let pairs =
                of.iter().zip(to).filter(move |(one, other)| void || !one.void && !other.void);
            pairs.filter_map(|(one, other)| Some(one.mops? / other.mops?)).collect::<Vec<_>>()
        };
        let (clean, all) = (ratios(false), ratios(true));
        let void = clean.is_empty();
        let used = if void { all } else { clean };
        let (middle, range) = (median(&used)?, median_interval(&used, 0.9)?);
        let range = match used.len() {
            1 => String::new(),
            _ => format!(" {:.2}-{:.2}", range.low, range.high),
        };
        Some(format!("{middle:.2}{range}{}", mark(void)))
    }

    fn drawn_ratio(&self, of: &str, to: &str, readers: usize) -> Option<String> {
        let of = self.drawn_speed(of, Case::Resizing, readers)?;
        Some(format!("{:.2}", of / self.drawn_speed(to, Case::Resizing, readers)?))
    }

    /// Row 3: with a resizer, RP is between its two sizes. Of the processor time of a lookup,
    /// because the resizer may use a reader's processor.
    fn between(&self) -> Vec<Figure> {
        let [small, large] = self.fixed();
        let figure = |&readers: &usize| Figure {
            what: format!(
                "rp, {}: ns of a lookup at the larger size, resizing, at the smaller size",
                counted(readers, "reader")
            ),
            paper: "in this order (figure 5)".to_owned(),
            here: self.three("rp", [large, Case::Resizing, small], readers),
        };
        self.plan.readers.iter().map(figure).collect()
    }

    fn three(&self, table: &'static str, cases: [Case; 3], readers: usize) -> Option<String> {
        let mut all = Vec::new();
        let mut void = false;
        for case in cases {
            let record = &self.lookups(table, case, readers)?.summary;
            void |= record.void;
            all.push(record.cpu_ns_per_op?);
        }
        let verdict = if all.is_sorted() { "in this order" } else { "in another order" };
        let numbers: Vec<_> = all.iter().map(|ns| format!("{ns:.1}")).collect();
        Some(format!("{}{}, {verdict}", numbers.join(" / "), mark(void)))
    }

    /// Row 4.
    fn linear(&self) -> Figure {
        let most = self.most_readers();
        let grows = |table| {
            let one = self.lookups(table, Case::Resizing, 1)?.summary.cpu_ns_per_op?;
            let all = self.lookups(table, Case::Resizing, most)?.summary.cpu_ns_per_op?;
            Some(format!("{table} {:.2}", one / all))
        };
        let here: Option<Vec<_>> = ["rp", "ddds"].into_iter().map(grows).collect();
        Figure {
            what: format!(
                "resizing: speed of a reader's processor time among {}, of one alone",
                counted(most, "reader")
            ),
            paper: "rp 1 (linear), ddds less (figure 4)".to_owned(),
            here: here.map(|here| here.join(", ")),
        }
    }

    /// Row 5.
    fn below(&self) -> Vec<Figure> {
        let [small, _] = self.fixed();
        let figure = |&readers: &usize| Figure {
            what: format!("ddds, {}: resizing / fixed smaller size", counted(readers, "reader")),
            paper: "below 1 (figure 6)".to_owned(),
            here: self.ratio(("ddds", Case::Resizing), ("ddds", small), readers),
        };
        self.plan.readers.iter().map(figure).collect()
    }

    /// Row 6.
    fn collapse(&self) -> Vec<Figure> {
        let [small, _] = self.fixed();
        let papers = [(1, "100"), (16, "10")];
        let figure = |&readers: &usize| Figure {
            what: format!("rwlock, {}: fixed smaller size / resizing", counted(readers, "reader")),
            paper: papers
                .iter()
                .find(|paper| paper.0 == readers)
                .map_or("10 to 100", |paper| paper.1)
                .to_owned(),
            here: self.ratio(("rwlock", small), ("rwlock", Case::Resizing), readers),
        };
        let mut all: Vec<_> = self.plan.readers.iter().map(figure).collect();
        all.push(Figure {
            what: "rp / rwlock, resizing, 1 reader".to_owned(),
            paper: "10 or more".to_owned(),
            here: self.ratio(("rp", Case::Resizing), ("rwlock", Case::Resizing), 1),
        });
        all
    }

    /// Row 7.
    fn at_rest(&self, most: usize) -> Figure {
        let [small, _] = self.fixed();
        let here = ["ddds", "rwlock"].map(|to| {
            let ratio = self.ratio(("rp", small), (to, small), most)?;
            Some(format!("{to}: {ratio}"))
        });
        let here: Option<Vec<_>> = here.into_iter().collect();
        Figure {
            what: format!("rp / the others, fixed smaller size, {}", counted(most, "reader")),
            paper: "ddds: slightly more than 1; rwlock is flat (figure 3)".to_owned(),
            here: here.map(|here| here.join("; ")),
        }
    }

    /// Row 8.
    fn untestable(&self) -> Figure {
        Figure {
            what: "rp: 16 readers / 8 readers".to_owned(),
            paper: "about 1.5, on 12 cores".to_owned(),
            here: (processors() >= 16)
                .then(|| {
                    let mops = |readers| self.lookups("rp", Case::Resizing, readers)?.summary.mops;
                    Some(format!("{:.2}", mops(16)? / mops(8)?))
                })
                .flatten(),
        }
    }

    /// Row 11.
    fn no_misses(&self) -> Figure {
        let count = |figure: fn(&Record) -> u64| {
            self.results.0.iter().flat_map(|one| &one.rounds).map(figure).sum::<u64>()
        };
        let (misses, ops) = (count(|one| one.misses.unwrap_or(0)), count(|one| one.ops));
        Figure {
            what: "wrong answers, of all operations".to_owned(),
            paper: "0".to_owned(),
            here: Some(format!("{} of {}", grouped(misses), grouped(ops))),
        }
    }

    /// Row 12.
    fn mixed(&self, most: usize) -> Figure {
        let speed = |table| {
            let found = self.measured((table, Hash::Identity), Case::Resizing, Job::Mixed, most);
            Some(format!("{table} {}", speed(&found?.summary)?))
        };
        let all: Option<Vec<_>> = self.plan.tables.iter().map(|&table| speed(table)).collect();
        Figure {
            what: format!(
                "90 % lookups, 9 % insertions, 1 % removals, resizing, {}",
                counted(most, "thread")
            ),
            paper: "the mix is cited, not measured".to_owned(),
            here: all.map(|all| all.join(", ")),
        }
    }
}

fn processors() -> usize {
    machine::processors().len().max(1)
}

/// Joins a figure of this machine and one of the model.
fn both(here: Option<String>, model: Option<String>) -> Option<String> {
    match (here, model) {
        (Some(here), Some(model)) => Some(format!("{here}; model: {model}")),
        (here, _) => here,
    }
}

fn axes() -> Plot {
    Plot {
        title: String::new(),
        x: "readers".into(),
        y: "million lookups/s".into(),
        log_x: true,
        marks: Marks::Lines,
        series: Vec::new(),
    }
}
