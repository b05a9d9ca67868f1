//! Experiments in which tables go through the phases: alone, with more threads, more keys, longer
//! keys, and without one of the ideas of Dash.

use super::definition::{Experiment, drive};
use super::settings::{DRIVEN, Scale, Settings, circumstances};
use crate::LabError;
use crate::driver::results::DriveReport;
use crate::driver::{Config, Plan};
use crate::experiments::tables::{
    bars, grids, mark, notes, notes_of_all, point, ratio_figure, speed,
};
use crate::report::{Figure, Grid, Marks, Plot, Report, Series};
use crate::report::{Output, Record, grouped};
use crate::workload::{KeyValueLengths, Phase};

/// Evermap's indexes, and other tables in memory, with the same keys.
const USUAL: &[&str] =
    &["dash-eh", "dash-lh", "cceh", "level", "p-clht", "papaya", "dashmap", "scc-hashmap"];
/// The three of them for which the Dash paper has figures, each in the form that it measured.
const PAPERS: &[&str] = &["dash-eh-paper", "cceh-paper", "level-paper"];
/// Whose figures are set beside the paper's: the forms of the papers, ours beside the form of
/// another's paper, and what is built here.
const CCEHS: [(&str, &str); 3] =
    [("dash-eh-paper", "cceh-paper"), ("dash-eh", "cceh-paper"), ("dash-eh", "cceh")];
const LEVELS: [(&str, &str); 3] =
    [("dash-eh-paper", "level-paper"), ("dash-eh", "level-paper"), ("dash-eh", "level")];

pub(super) const MICRO: Experiment = Experiment {
    name: "micro",
    about: "insert, lookup, update and delete of random keys, one table beside the other",
    takes: DRIVEN,
    run: micro,
};

fn micro(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let scale = Scale { keys: 10_000_000, rounds: 5, quick_keys: 500_000, quick_rounds: 3 };
    let usual = [USUAL, PAPERS].concat();
    let config = settings.config("micro", &usual, scale);
    let driven = drive(&config, out)?;
    // Figure 7 of the paper, one thread, keys and values of 8 bytes.
    let claims = [
        ("insert", "about 1", "2.5"),
        ("positive", "1.9", "2.6"),
        ("negative", "2.4", "4.4"),
        ("delete", "1.2", "1.9"),
    ];
    let figures = against_rivals(&driven, &claims);
    Ok(Report {
        figures,
        ..report(&config, &driven, "one operation after the other, or one batch")
    })
}

/// Returns what the paper reports about Dash-EH beside CCEH and Level hashing, for each phase.
fn against_rivals(driven: &DriveReport, claims: &[(&str, &str, &str)]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (phase, cceh, level) in claims {
        let pairs = CCEHS.map(|pair| (pair, cceh)).into_iter();
        for ((of, to), paper) in pairs.chain(LEVELS.map(|pair| (pair, level))) {
            figures.push(ratio_figure(driven, of, to, phase, paper));
        }
    }
    figures
}

/// Returns tables, bars and notes of a drive.
fn report(config: &Config, driven: &DriveReport, title: &str) -> Report {
    Report {
        experiment: config.experiment,
        title: title.to_owned(),
        about: circumstances(config),
        tables: grids(driven),
        plots: vec![bars(driven, "Throughput by phase")],
        notes: notes(driven),
        figures: Vec::new(),
    }
}

pub(super) const VARIABLE_KEYS: Experiment = Experiment {
    name: "variable-keys",
    about: "the same with keys that are byte strings: 16 bytes, values of 8",
    takes: DRIVEN,
    run: variable_keys,
};

fn variable_keys(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let scale = Scale { keys: 5_000_000, rounds: 5, quick_keys: 250_000, quick_rounds: 3 };
    let ours = ["dash-eh", "dash-lh", "cceh", "level", "p-clht", "evermap"];
    let usual = [&ours[..], PAPERS].concat();
    let mut config = settings.config("variable-keys", &usual, scale);
    config.lengths = config.lengths.or(Some(KeyValueLengths::default()));
    let driven = drive(&config, out)?;
    let claims = [
        ("insert", "2.0", "3.7"),
        ("positive", "2", "5"),
        ("negative", "5", "15"),
        ("delete", "1.2", "2.9"),
    ];
    let figures = against_rivals(&driven, &claims);
    let report = report(&config, &driven, "keys that are byte strings");
    let mut notes = report.notes.clone();
    notes.push(
        "An insertion allocates a record for key and value and makes it durable; in the paper the \
         caller has done that before."
            .into(),
    );
    Ok(Report { figures, notes, ..report })
}

/// The drives of a sweep, each with the value that was varied.
struct Sweep {
    name: &'static str,
    log: bool,
    drives: Vec<(f64, DriveReport)>,
}

impl Sweep {
    /// Returns one plot for each phase: throughput of every table over the value that was varied.
    fn plots(&self) -> Vec<Plot> {
        let Some((_, first)) = self.drives.first() else { return Vec::new() };
        let phases = first.subjects.first().map(|subject| &subject.phases[..]).unwrap_or(&[]);
        let series = |phase: &str| {
            let line = |name: &str| Series {
                name: name.to_owned(),
                points: self
                    .points(name, phase)
                    .filter_map(|(x, record)| point(x, record))
                    .collect(),
            };
            first.subjects.iter().map(|subject| line(subject.name)).collect()
        };
        let plot = |phase: &str| Plot {
            title: phase.to_owned(),
            x: self.name.to_owned(),
            y: "million operations/s".into(),
            log_x: self.log,
            marks: Marks::Lines,
            series: series(phase),
        };
        phases.iter().map(|phase| plot(phase.name)).collect()
    }

    fn points<'s>(
        &'s self,
        subject: &'s str,
        phase: &'s str,
    ) -> impl Iterator<Item = (f64, &'s Record)> + 's {
        self.drives.iter().filter_map(move |(x, driven)| {
            Some((*x, &driven.subject(subject)?.phase(phase)?.summary))
        })
    }

    /// Returns the plots as tables: a row for each table, a column for each value.
    fn tables(&self) -> Vec<Grid> {
        let columns: Vec<_> = self.drives.iter().map(|(x, _)| grouped(*x as u64)).collect();
        let columns: Vec<_> = columns.iter().map(String::as_str).collect();
        let table = |plot: Plot| {
            let title = format!("{}: million operations a second, by {}", plot.title, self.name);
            let mut grid = Grid::new(title, &columns);
            for series in plot.series {
                let cells = self.points(&series.name, &plot.title);
                let cells = cells.map(|(_, record)| speed(record).unwrap_or_else(|| "-".into()));
                grid.push(series.name.clone(), cells.collect());
            }
            grid
        };
        self.plots().into_iter().map(table).collect()
    }

    fn notes(&self) -> Vec<String> {
        notes_of_all(self.drives.iter().map(|(_, driven)| driven))
    }
}

pub(super) const SCALE: Experiment = Experiment {
    name: "scale",
    about: "the phases with 1, 2, 4, ... threads, up to the processors there are",
    takes: DRIVEN,
    run: scale,
};

fn scale(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let scale = Scale { keys: 5_000_000, rounds: 5, quick_keys: 500_000, quick_rounds: 3 };
    let most = settings.threads.unwrap_or_else(Settings::processors);
    let mut counts: Vec<_> = std::iter::successors(Some(1), |count| Some(count * 2))
        .take_while(|&one| one < most)
        .collect();
    counts.push(most);
    let all = [Phase::Insert, Phase::Positive, Phase::Negative, Phase::Mixed, Phase::Delete];
    let phases = settings.phases.clone().unwrap_or_else(|| all.to_vec());
    let base = Config {
        plan: Plan::Phases(phases),
        latency: false,
        counts: false,
        limits: false,
        ..settings.config("scale", &[USUAL, PAPERS].concat(), scale)
    };
    let mut sweep = Sweep { name: "threads", log: false, drives: Vec::new() };
    for threads in counts {
        let config = Config { threads, ..base.clone() };
        sweep.drives.push((threads as f64, drive(&config, out)?));
    }
    let last = &sweep.drives.last().expect("at least one thread").1;
    let speedup = |index: &str, paper: &str| {
        let records: Vec<_> = sweep.points(index, "delete").map(|(_, record)| record).collect();
        let ends = records.first().zip(records.last());
        Figure {
            what: format!(
                "delete: {index}, all threads / one (24 threads in the paper, {most} here)"
            ),
            paper: paper.to_owned(),
            here: ends.and_then(|(one, all)| speedup_of(one, all)),
        }
    };
    let claims = [("insert", "up to 1.3", "up to 8.9"), ("mixed", "2.7", "9.0")];
    let mut figures = against_rivals(last, &claims);
    let speedups = [
        ("dash-eh-paper", "8.4"),
        ("dash-eh", "8.4"),
        ("dash-lh", "9.8"),
        ("cceh-paper", "6.1"),
        ("cceh", "6.1"),
        ("level-paper", "14.7"),
        ("level", "14.7"),
    ];
    figures.extend(speedups.map(|(index, paper)| speedup(index, paper)));
    Ok(Report {
        experiment: "scale",
        title: match most {
            1 => "one thread".to_owned(),
            _ => format!("1 to {most} threads"),
        },
        about: format!("{}, and fewer", circumstances(&Config { threads: most, ..base })),
        figures,
        tables: sweep.tables(),
        plots: sweep.plots(),
        notes: sweep.notes(),
    })
}

/// Returns how many times as fast `all` is as `one`, with the range that follows from theirs, and
/// marked if one of them was disturbed.
fn speedup_of(one: &Record, all: &Record) -> Option<String> {
    let bounds = (all.mops_low.zip(one.mops_high), all.mops_high.zip(one.mops_low));
    let range = match bounds {
        (Some((low, high_of_one)), Some((high, low_of_one))) if low < high => {
            format!(" {:.2}-{:.2}", low / high_of_one, high / low_of_one)
        }
        _ => String::new(),
    };
    let star = mark(one.void || all.void);
    Some(format!("{:.2}{range}{star}", all.mops? / one.mops?))
}

pub(super) const DATASET_SIZE: Experiment = Experiment {
    name: "dataset-size",
    about: "the phases at sizes from the cache's to --keys",
    takes: DRIVEN,
    run: dataset_size,
};

fn dataset_size(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let scale = Scale { keys: 20_000_000, rounds: 3, quick_keys: 2_000_000, quick_rounds: 1 };
    let all = [Phase::Insert, Phase::Positive, Phase::Negative, Phase::GetMany];
    let phases = settings.phases.clone().unwrap_or_else(|| all.to_vec());
    let usual = ["dash-eh", "dash-lh", "cceh", "level", "papaya", "dashmap"];
    let base = Config {
        plan: Plan::Phases(phases),
        latency: false,
        counts: false,
        limits: false,
        ..settings.config("dataset-size", &usual, scale)
    };
    let mut sweep = Sweep { name: "keys", log: true, drives: Vec::new() };
    for keys in sizes(base.keys) {
        sweep.drives.push((keys as f64, drive(&Config { keys, ..base.clone() }, out)?));
    }
    Ok(Report {
        experiment: "dataset-size",
        title: format!("up to {} keys", grouped(base.keys)),
        about: format!("{}, at several sizes", circumstances(&base)),
        figures: Vec::new(),
        tables: sweep.tables(),
        plots: sweep.plots(),
        notes: sweep.notes(),
    })
}

/// Returns up to five sizes that end at `most`, each a third of the next. With powers of two,
/// tables that double would be equally full at all of them.
pub(super) fn sizes(most: u64) -> Vec<u64> {
    let thirds = (0..5).map(|step| most / 3u64.pow(step));
    let mut sizes: Vec<_> = thirds.filter(|&size| size > 0).collect();
    sizes.reverse();
    if sizes.is_empty() { vec![most] } else { sizes }
}

/// An idea of Dash, and tables with and without it.
struct Ablation {
    name: &'static str,
    title: &'static str,
    /// With the idea, and without.
    pairs: &'static [(&'static str, &'static str)],
    /// What the paper reports for the first pair, by phase.
    fixed: [&'static str; 4],
    variable: Option<[&'static str; 4]>,
}

const PHASES: [Phase; 4] = [Phase::Insert, Phase::Positive, Phase::Negative, Phase::Delete];

fn ablate(
    ablation: &Ablation,
    settings: &Settings,
    out: &mut dyn Output,
) -> Result<Report, LabError> {
    let scale = Scale { keys: 4_000_000, rounds: 5, quick_keys: 500_000, quick_rounds: 3 };
    let usual: Vec<_> =
        ablation.pairs.iter().flat_map(|&(with, without)| [with, without]).collect();
    let phases = settings.phases.clone().unwrap_or_else(|| PHASES.to_vec());
    let fixed = Config {
        plan: Plan::Phases(phases),
        limits: false,
        latency: false,
        threads: settings.threads.unwrap_or_else(Settings::processors),
        ..settings.config(ablation.name, &usual, scale)
    };
    let mut report = Report {
        experiment: ablation.name,
        title: ablation.title.to_owned(),
        about: circumstances(&fixed),
        ..Report::default()
    };
    let mut one = |config: &Config, what: &str, paper: Option<[&str; 4]>| -> Result<(), LabError> {
        let driven = drive(config, out)?;
        for grid in grids(&driven) {
            let title = format!("{} ({what})", grid.title);
            report.tables.push(Grid { title, ..grid });
        }
        report.plots.push(bars(&driven, what));
        report.notes.extend(notes(&driven));
        for (nth, (with, without)) in ablation.pairs.iter().enumerate() {
            let paper = paper.filter(|_| nth == 0).unwrap_or(["-"; 4]);
            for (phase, paper) in PHASES.iter().zip(paper) {
                let figure = ratio_figure(&driven, with, without, phase.name(), paper);
                let what = format!("{what}, {}", figure.what);
                report.figures.push(Figure { what, ..figure });
            }
        }
        Ok(())
    };
    one(&fixed, "keys of 8 bytes", Some(ablation.fixed))?;
    let variable = Config {
        lengths: settings.lengths().or(Some(KeyValueLengths::default())),
        keys: fixed.keys / 2,
        ..fixed.clone()
    };
    if ablation.variable.is_some() && variable.keys > 0 {
        one(&variable, "keys of 16 bytes", ablation.variable)?;
    }
    report.notes.sort();
    report.notes.dedup();
    Ok(report)
}

pub(super) const FINGERPRINTS: Experiment = Experiment {
    name: "fingerprints",
    about: "Dash-EH with and without fingerprints, keys of 8 and of 16 bytes",
    takes: DRIVEN,
    run: |settings, out| {
        let ablation = Ablation {
            name: "fingerprints",
            title: "what a byte of each key's hash beside the bucket's lock is worth",
            pairs: &[("dash-eh", "dash-eh-no-fingerprints")],
            fixed: ["1.04", "1.19", "1.72", "1.02"],
            variable: Some(["1.88", "3.13", "7.04", "1.52"]),
        };
        ablate(&ablation, settings, out)
    },
};

pub(super) const OVERFLOW_METADATA: Experiment = Experiment {
    name: "overflow-metadata",
    about: "Dash-EH with and without knowing what is in the stash, two and four stash buckets",
    takes: DRIVEN,
    run: |settings, out| {
        let ablation = Ablation {
            name: "overflow-metadata",
            title: "what knowing about the stash in the home bucket is worth",
            pairs: &[
                ("dash-eh", "dash-eh-no-metadata"),
                ("dash-eh-4-stash", "dash-eh-4-stash-no-metadata"),
            ],
            fixed: ["1.07", "1.29", "1.70", "1.16"],
            variable: None,
        };
        ablate(&ablation, settings, out)
    },
};

pub(super) const LOCKING: Experiment = Experiment {
    name: "locking",
    about: "Dash-EH with optimistic lookups, and with lookups that take the bucket's lock",
    takes: DRIVEN,
    run: |settings, out| {
        let ablation = Ablation {
            name: "locking",
            title: "what lookups that store nothing are worth",
            pairs: &[("dash-eh", "dash-eh-locked-reads")],
            fixed: ["-", "locks do not scale on PM", "locks do not scale on PM", "-"],
            variable: None,
        };
        ablate(&ablation, settings, out)
    },
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_end_at_the_greatest() {
        assert_eq!(sizes(810_000), [10_000, 30_000, 90_000, 270_000, 810_000]);
        assert_eq!(sizes(5), [1, 5]);
        assert_eq!(sizes(0), [0]);
    }
}
