//! How soon a killed table can be used again, and how fast it is then.
//!
//! A child process is killed while it inserts; this process opens what is left. See
//! [`killed`](super::killed).

use std::sync::Arc;
use std::time::Instant;

use super::definition::Experiment;
use super::killed::{KillPlan, LeftFile, all_keys};
use super::settings::{Scale, Setting, Settings};
use super::words::sizes;
use crate::LabError;
use crate::driver::task::Task;
use crate::driver::workers::Workers;
use crate::registry::subject;
use crate::report::interval::median;
use crate::report::model::cell;
use crate::report::{Figure, Grid, Marks, Plot, Point, Report, Series};
use crate::report::{Output, Record, counted, grouped, significant};
use crate::subject::{Entry, Subject};
use crate::workload::{Phase, Speller, Workload, word};

/// The number of operations between two readings of the clock.
const CHUNK: usize = 256;
/// The number of points of a series over time.
const WINDOWS: f64 = 60.0;

pub(super) const RECOVERY: Experiment = Experiment {
    name: "recovery",
    about: "from opening a killed table's file to its first right answer, at several sizes",
    takes: &[
        Setting::INDEX,
        Setting::KEYS,
        Setting::ROUNDS,
        Setting::MEDIUM,
        Setting::PM,
        Setting::KEY_BYTES,
        Setting::VALUE_BYTES,
    ],
    run: recovery,
};

pub(super) const AFTER_RECOVERY: Experiment = Experiment {
    name: "after-recovery",
    about: "lookups a second in the first moments after opening a killed table",
    takes: &[
        Setting::INDEX,
        Setting::KEYS,
        Setting::THREADS,
        Setting::MEDIUM,
        Setting::PM,
        Setting::KEY_BYTES,
        Setting::VALUE_BYTES,
    ],
    run: after_recovery,
};

fn recovery(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let scale = Scale { keys: 16_000_000, rounds: 5, quick_keys: 2_000_000, quick_rounds: 2 };
    let usual = [
        "dash-eh",
        "dash-eh-paper",
        "dash-lh",
        "cceh",
        "cceh-paper",
        "level",
        "level-paper",
        "p-clht",
        "evermap",
    ];
    let config = settings.config("recovery", &usual, scale);
    config.check(config.indexes.len())?;
    let plan = KillPlan::new(settings, settings.lengths(), config.keys)?;
    let sizes: Vec<_> = sizes(config.keys).into_iter().rev().take(3).rev().collect();
    let columns: Vec<_> = sizes.iter().map(|keys| format!("{} keys", grouped(*keys))).collect();
    let columns: Vec<_> = columns.iter().map(String::as_str).collect();
    let title = "Milliseconds from opening to the first right answer, medians";
    let mut grid = Grid::new(title, &columns);
    let entries = config.indexes.iter().map(|name| subject(name)).collect::<Result<Vec<_>, _>>()?;
    let mut times = vec![vec![Vec::new(); sizes.len()]; entries.len()];
    out.begin((entries.len() * sizes.len() * config.rounds) as u64);
    for round in 0..config.rounds {
        for (entry, times) in entries.iter().zip(&mut times) {
            for (&keys, times) in sizes.iter().zip(times) {
                let name = entry.name;
                out.step(&format!("recovery: {name}, {keys} keys, round {}", round + 1));
                let left = plan.fill_and_kill(entry, keys)?;
                config.quiet.wait(out);
                let seconds = open_once(&plan, entry, keys, &left, round == 0)?;
                times.push(seconds * 1e3);
                out.record(&Record {
                    round: Some(round),
                    seconds: Some(seconds),
                    ops: 1,
                    ..plan.record("recovery", entry, keys, "open")
                })?;
            }
        }
    }
    let mut series = Vec::new();
    for (entry, times) in entries.iter().zip(times) {
        let points = sizes.iter().zip(times);
        let points =
            points.filter_map(|(&keys, times)| Some(Point::new(keys as f64, median(&times)?)));
        let points: Vec<_> = points.collect();
        grid.push(entry.name, points.iter().map(|point| cell(Some(point.y), 2)).collect());
        series.push(Series { name: entry.name.to_owned(), points });
    }
    let figure = |index: &str, paper: &str| Figure {
        what: format!("{index}, ms by size"),
        paper: paper.into(),
        here: grid.rows.iter().find(|row| row.0 == index).map(|row| row.1.join(", ")),
    };
    let figures = vec![
        figure("dash-eh-paper", "57 at any (40 to 1280 million)"),
        figure("dash-eh", "57 at any"),
        figure("dash-lh", "57 at any"),
        figure("cceh-paper", "113, 165, 262, 463, 870, 1673"),
        figure("cceh", "113, 165, 262, 463, 870, 1673"),
        figure("level-paper", "53 at any"),
        figure("level", "53 at any"),
    ];
    let plot = Plot {
        title: "From opening to the first right answer".into(),
        x: "keys".into(),
        y: "ms".into(),
        log_x: true,
        marks: Marks::Lines,
        series,
    };
    Ok(Report {
        experiment: "recovery",
        title: "how soon a killed table can be used again".into(),
        about: format!(
            "a process is killed while it inserts; {}, medium {}, in {}. After the first \
             round all keys are looked up: none may be missing",
            counted(config.rounds, "round"),
            plan.medium.name(),
            plan.location.display()
        ),
        figures,
        tables: vec![grid],
        plots: vec![plot],
        notes: vec![
            "The paper's figures contain about 50 ms in which its library opens a pool.".into(),
        ],
    })
}

/// Returns the seconds until the first right answer.
fn open_once(
    plan: &KillPlan,
    entry: &Entry,
    keys: u64,
    left: &LeftFile,
    verify: bool,
) -> Result<f64, LabError> {
    let workload = Workload { keys, threads: 1, seed: plan.seed };
    let key = workload.key(keys / 2);
    let begin = Instant::now();
    let table: Arc<dyn Subject> = Arc::from(plan.open(entry, keys, left)?);
    let bound = table.get(key)?;
    let seconds = begin.elapsed().as_secs_f64();
    if bound != Some(word(key, 0)) {
        return Err(LabError::WrongAnswer {
            index: entry.name,
            phase: "the first lookup after recovery",
            key,
            expected: Some(word(key, 0)).into(),
            found: bound.into(),
        });
    }
    if verify {
        all_keys(&Workers::start(1)?, &table, Task::of(Phase::Positive, workload), workload)?;
    }
    Ok(seconds)
}

fn after_recovery(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let scale = Scale { keys: 8_000_000, rounds: 1, quick_keys: 2_000_000, quick_rounds: 1 };
    let usual = ["dash-eh", "dash-lh", "evermap"];
    let config = settings.config("after-recovery", &usual, scale);
    config.check(config.indexes.len())?;
    let plan = KillPlan::new(settings, settings.lengths(), config.keys)?;
    let most = settings.threads.unwrap_or_else(Settings::processors);
    let mut crews = vec![1, most];
    crews.dedup();
    let columns = ["first answer, ms", "at first, Mops/s", "in the end, Mops/s", "90 % after, s"];
    let mut grid = Grid::new("Lookups of present keys after opening a killed table", &columns);
    let mut series = Vec::new();
    out.begin((config.indexes.len() * crews.len()) as u64);
    for name in &config.indexes {
        let entry = subject(name)?;
        for &threads in &crews {
            out.step(&format!("after-recovery: {name}, {}", counted(threads, "thread")));
            let left = plan.fill_and_kill(&entry, config.keys)?;
            config.quiet.wait(out);
            let workload = Workload { keys: config.keys, threads, seed: plan.seed };
            let course = look_up(&plan, &entry, &left, workload)?;
            let label = format!("{name}, {}", counted(threads, "thread"));
            for point in &course.points {
                out.record(&Record {
                    threads,
                    at_seconds: Some(point.x),
                    mops: Some(point.y),
                    ..plan.record("after-recovery", &entry, config.keys, Phase::Positive.name())
                })?;
            }
            grid.push(&label, course.cells());
            series.push(Series { name: label, points: course.points });
        }
    }
    let here = |index: &str, column: usize| {
        let rows = grid.rows.iter().filter(|row| row.0.starts_with(&format!("{index},")));
        let cells: Vec<_> = rows.map(|row| row.1[column].clone()).collect();
        (!cells.is_empty()).then(|| cells.join(" and "))
    };
    let figures = vec![
        Figure {
            what: "dash-eh at first, Mops/s, one thread and all (40 million keys in the paper)"
                .into(),
            paper: "0.1-0.3 and 0.6 (24 threads)".into(),
            here: here("dash-eh", 1),
        },
        Figure {
            what: "dash-eh: normal after, s".into(),
            paper: "0.9 and 0.2 (24 threads)".into(),
            here: here("dash-eh", 3),
        },
    ];
    let plot = Plot {
        title: "Lookups after opening".into(),
        x: "seconds since opening began".into(),
        y: "million operations/s".into(),
        log_x: false,
        marks: Marks::Lines,
        series,
    };
    Ok(Report {
        experiment: "after-recovery",
        title: "how fast a killed table is when it is back".into(),
        about: format!(
            "{} keys, medium {}, in {}; every key is looked up twice",
            grouped(config.keys),
            plan.medium.name(),
            plan.location.display()
        ),
        figures,
        tables: vec![grid],
        plots: vec![plot],
        notes: vec![
            "The first access to each page of the file costs a fault, besides the recovery.".into(),
        ],
    })
}

/// Throughput over time.
struct Course {
    first_answer: f64,
    points: Vec<Point>,
}

impl Course {
    /// Creates a course from the moments, in seconds since the start, at which `CHUNK` operations
    /// each were done.
    fn new(first_answer: f64, mut moments: Vec<f64>) -> Self {
        moments.sort_by(f64::total_cmp);
        let end = moments.last().copied().unwrap_or(0.0);
        let window = ((end - first_answer) / WINDOWS).max(1e-6);
        let mut points = Vec::new();
        let mut from = 0;
        // The last window is incomplete.
        for nth in 1..WINDOWS as usize {
            let until = moments.partition_point(|&at| at < first_answer + nth as f64 * window);
            let mops = ((until - from) * CHUNK) as f64 / window / 1e6;
            points.push(Point::new(first_answer + (nth as f64 - 0.5) * window, mops));
            from = until;
        }
        Course { first_answer, points }
    }

    /// Returns the mean of the last quarter.
    fn normal(&self) -> f64 {
        let last = &self.points[self.points.len() * 3 / 4..];
        last.iter().map(|point| point.y).sum::<f64>() / last.len().max(1) as f64
    }

    fn cells(&self) -> Vec<String> {
        let normal = self.normal();
        let reached = self.points.iter().find(|point| point.y >= 0.9 * normal);
        vec![
            cell(Some(self.first_answer * 1e3), 2),
            self.points.first().map_or("-".into(), |point| significant(point.y)),
            significant(normal),
            cell(reached.map(|point| point.x), 2),
        ]
    }
}

/// Opens what is left and looks up every key twice.
fn look_up(
    plan: &KillPlan,
    entry: &Entry,
    left: &LeftFile,
    workload: Workload,
) -> Result<Course, LabError> {
    let workers = Workers::start(workload.threads)?;
    let speller = plan.lengths.map(Speller::new);
    workers.each(move |thread, stream| {
        stream.fill(&workload, Phase::Positive, thread);
        speller.iter().for_each(|speller| stream.spell(speller));
        Ok(())
    })?;
    let begin = Instant::now();
    let table: Arc<dyn Subject> = Arc::from(plan.open(entry, workload.keys, left)?);
    let respell = table.speller().filter(|_| plan.lengths.is_none());
    table.get(workload.key(0))?;
    let first_answer = begin.elapsed().as_secs_f64();
    let race = workers.race(move |thread, stream| {
        // A store takes byte strings whatever was requested.
        respell.iter().for_each(|speller| stream.spell(speller));
        let work = Task::of(Phase::Positive, workload).on(stream, thread);
        let mut moments = Vec::new();
        for _ in 0..2 {
            for at in (0..work.keys.len()).step_by(CHUNK) {
                let end = (at + CHUNK).min(work.keys.len());
                table.run(work.part(at, end))?;
                moments.push(begin.elapsed().as_secs_f64());
            }
        }
        Ok(moments)
    })?;
    Ok(Course::new(first_answer, race.results.concat()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::experiment;
    use crate::subject::MediumKind;
    use crate::testing::Kept;

    #[test]
    fn a_course_shows_when_throughput_is_normal() {
        // A chunk every millisecond in the first second, then one every tenth of that.
        let slow = (0..1000).map(|ms| 0.01 + f64::from(ms) / 1e3);
        let fast = (0..20_000).map(|tenth| 1.01 + f64::from(tenth) / 1e4);
        let course = Course::new(0.01, slow.chain(fast).collect());
        assert!((course.points[0].y - 0.256).abs() < 0.03, "{:?}", course.points[0]);
        assert!((course.normal() - 2.56).abs() < 0.1, "{}", course.normal());
        let reached: f64 = course.cells()[3].parse().unwrap();
        assert!((0.95..1.15).contains(&reached), "{reached}");
    }

    #[test]
    fn impossible_recoveries_are_explained() {
        let recovery = experiment("recovery").unwrap();
        let error = |settings: &Settings| {
            recovery.run(settings, &mut Kept::default()).unwrap_err().to_string()
        };
        let settings = Settings { quick: true, ..Settings::default() };
        assert!(error(&settings).contains("no program to start is configured"));
        let program = Some("/bin/true".into());
        let dram = Settings { program, medium: Some(MediumKind::Dram), ..settings };
        assert!(error(&dram).contains("does not survive its process"));
        // A program that does something else is no child.
        let wrong = Settings { medium: None, ..dram };
        assert!(error(&wrong).contains("ended before it was done"), "{}", error(&wrong));
    }
}
