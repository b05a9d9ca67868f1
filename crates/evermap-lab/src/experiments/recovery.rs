//! How soon a killed table answers again, and how fast it is then.
//!
//! A child process fills a table in a file, goes on inserting, and is killed in the middle of that. This process opens
//! what is left. So nothing is simulated: neither the death nor the state of the file.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::settings::Scale;
use super::words::sizes;
use super::{Experiment, Setting, Settings};
use crate::LabError;
use crate::drive::Task;
use crate::indexed::nameless;
use crate::interval::median;
use crate::machine;
use crate::output::{Output, Record};
use crate::report::{Figure, Grid, Marks, Plot, Point, Report, Series, cell};
use crate::subject::{Entry, File, MediumKind, Setup, Subject, Survives, subject};
use crate::workers::Workers;
use crate::workload::{Lengths, Phase, Shape, Speller, Workload, word};

/// What a child says when the table is filled.
const FILLED: &str = "filled";
/// Operations between two looks at the clock.
const CHUNK: usize = 256;
/// Points of a series over time.
const WINDOWS: f64 = 60.0;

pub(super) const RECOVERY: Experiment = Experiment {
    name: "recovery",
    about: "from opening a killed table's file to its first right answer, at several sizes",
    takes: &[
        Setting::INDEX,
        Setting::KEYS,
        Setting::ROUNDS,
        Setting::MEDIUM,
        Setting::KEY_BYTES,
        Setting::VALUE_BYTES,
    ],
    run: recovery,
};

pub(super) const AFTER_RECOVERY: Experiment = Experiment {
    name: "after-recovery",
    about: "look-ups a second in the first moments after opening a killed table",
    takes: &[
        Setting::INDEX,
        Setting::KEYS,
        Setting::THREADS,
        Setting::MEDIUM,
        Setting::KEY_BYTES,
        Setting::VALUE_BYTES,
    ],
    run: after_recovery,
};

/// What to fill and kill.
struct Plan {
    program: PathBuf,
    medium: MediumKind,
    location: PathBuf,
    shape: Option<Shape>,
    seed: u64,
}

impl Plan {
    fn new(settings: &Settings, keys: u64) -> Result<Self, LabError> {
        let program = settings.program.clone().ok_or_else(|| {
            LabError::Config(
                "this experiment kills a process, and was not told which program to start".into(),
            )
        })?;
        let medium = settings.medium.unwrap_or(MediumKind::Process);
        if medium == MediumKind::Dram {
            return Err(LabError::Config(
                "what is in anonymous memory is gone with its process; take another medium".into(),
            ));
        }
        let shape = settings.shape();
        let location = settings.location.clone();
        let setup = Setup::new(medium, location, settings.pages(), keys, shape)?;
        Ok(Plan {
            program,
            medium,
            location: setup.location,
            shape,
            seed: settings.seed.unwrap_or(1),
        })
    }

    fn setup(&self, keys: u64, file: File) -> Result<Setup, LabError> {
        let location = Some(self.location.clone());
        let pages = evermap_pm::medium::Pages::Base;
        let setup = Setup::new(self.medium, location, pages, keys, self.shape)?;
        Ok(Setup { file, ..setup })
    }

    /// Fills a table in a process of its own, and kills that.
    fn leave_behind(&self, entry: &Entry, keys: u64) -> Result<Remains, LabError> {
        let path = nameless(&self.location);
        let remains = Remains(path.clone());
        let mut command = Command::new(&self.program);
        command.args(["lab", "fill", "--index", entry.name, "--medium", self.medium.name()]);
        command.args(["--keys", &keys.to_string(), "--seed", &self.seed.to_string()]);
        command.arg("--file").arg(&path);
        if let Some(shape) = self.shape {
            command.args(["--key-bytes", &shape.keys.to_string()]);
            command.args(["--value-bytes", &shape.values.to_string()]);
        }
        let failed = |action| {
            let path = Some(self.program.clone());
            move |source| LabError::Io { action, path, source }
        };
        let mut child = Dying(
            command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .map_err(failed("start"))?,
        );
        let said = child.0.stdout.take().expect("piped");
        let mut lines = BufReader::new(said).lines();
        match lines.next().transpose().map_err(failed("read what it says from"))? {
            Some(line) if line == FILLED => {}
            // What went wrong is on standard error already.
            _ => return Err(LabError::NotFilled { index: entry.name }),
        }
        // In the middle of some insertion.
        std::thread::sleep(Duration::from_millis(5));
        drop(child);
        Ok(remains)
    }

    fn record(&self, experiment: &'static str, entry: &Entry, keys: u64, phase: &str) -> Record {
        let lengths = |of: fn(Shape) -> Lengths| self.shape.map(|shape| of(shape).to_string());
        Record {
            experiment,
            index: entry.name.to_owned(),
            medium: self.medium.name().to_owned(),
            location: Some(self.location.clone()),
            survives: Survives::Process.name(),
            threads: 1,
            keys,
            phase: phase.to_owned(),
            key_bytes: lengths(|shape| shape.keys),
            value_bytes: lengths(|shape| shape.values),
            seed: self.seed,
            ..Record::default()
        }
    }

    fn open(
        &self,
        entry: &Entry,
        keys: u64,
        remains: &Remains,
    ) -> Result<Box<dyn Subject>, LabError> {
        (entry.build)(&self.setup(keys, File::Existing(remains.0.clone()))?)
    }
}

/// A child that is killed at the end of its use, and waited for.
struct Dying(Child);

impl Drop for Dying {
    fn drop(&mut self) {
        // It may have ended by itself; either way it is gone afterwards.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The file or directory that a killed process left behind; removed at the end of its use.
struct Remains(PathBuf);

impl Drop for Remains {
    fn drop(&mut self) {
        // Nothing more can be done about what cannot be removed.
        let _ = if self.0.is_dir() {
            std::fs::remove_dir_all(&self.0)
        } else {
            std::fs::remove_file(&self.0)
        };
    }
}

/// What a child process of this experiment does: fills a table with `keys` keys in `file`, says so, and goes on
/// inserting others until it is killed, or until its standard input ends.
///
/// # Errors
/// `UnknownIndex`, `Config`, and those of the table.
pub fn fill(
    name: &str,
    medium: MediumKind,
    shape: Option<Shape>,
    keys: u64,
    seed: u64,
    file: &Path,
) -> Result<(), LabError> {
    let entry = subject(name)?;
    let location = file.parent().map(Path::to_owned);
    let setup = Setup::new(medium, location, evermap_pm::medium::Pages::Base, keys, shape)?;
    let table = (entry.build)(&Setup { file: File::New(file.to_owned()), ..setup })?;
    let workload = Workload { keys, threads: 1, seed };
    let workers = Workers::start(1)?;
    let table: Arc<dyn Subject> = Arc::from(table);
    put(&workers, &table, workload, Phase::Insert, 0)?;
    let said = |source| LabError::Io { action: "write to standard output", path: None, source };
    writeln!(std::io::stdout(), "{FILLED}").map_err(said)?;
    std::io::stdout().flush().map_err(said)?;
    // If the parent dies first, nobody kills us.
    let parent = std::thread::spawn(|| std::io::stdin().read_line(&mut String::new()));
    // Keys that nobody will ask for, a few at a time, and not for ever.
    for nth in 0..64 {
        put(&workers, &table, Workload { keys: 256, threads: 1, seed: !seed }, Phase::Insert, nth)?;
    }
    let _ = parent.join();
    Ok(())
}

/// Inserts or looks up all keys of `workload`, the seed of which is moved on by `nth`.
fn put(
    workers: &Workers,
    table: &Arc<dyn Subject>,
    workload: Workload,
    phase: Phase,
    nth: u64,
) -> Result<(), LabError> {
    let workload = Workload { seed: workload.seed.wrapping_sub(nth), ..workload };
    let (table, speller) = (table.clone(), table.speller());
    workers.each(move |thread, stream| {
        stream.fill(&workload, phase, thread);
        speller.iter().for_each(|speller| stream.spell(speller));
        table.run(Task::of(phase, workload).in_bulk().on(stream, thread))
    })?;
    Ok(())
}

fn recovery(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let scale = Scale { keys: 16_000_000, rounds: 5, quick_keys: 2_000_000, quick_rounds: 2 };
    let usual = ["dash-eh", "dash-lh", "cceh", "level", "p-clht", "evermap"];
    let config = settings.config("recovery", &usual, scale);
    config.check(config.indexes.len())?;
    let plan = Plan::new(settings, config.keys)?;
    let sizes: Vec<_> = sizes(config.keys).into_iter().rev().take(3).rev().collect();
    let columns: Vec<_> = sizes.iter().map(|keys| format!("{keys} keys")).collect();
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
                let remains = plan.leave_behind(entry, keys)?;
                machine::wait_for_quiet(config.foreign_limit, config.patience);
                let seconds = open_once(&plan, entry, keys, &remains, round == 0)?;
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
    let figure = |what: &str, paper: &str, index: &str| Figure {
        what: what.into(),
        paper: paper.into(),
        here: grid.rows.iter().find(|row| row.0 == index).map(|row| row.1.join(", ")),
    };
    let figures = vec![
        figure("dash-eh, ms by size", "57 at any (40 to 1280 million)", "dash-eh"),
        figure("dash-lh, ms by size", "57 at any", "dash-lh"),
        figure("cceh, ms by size", "113, 165, 262, 463, 870, 1673", "cceh"),
        figure("level, ms by size", "53 at any", "level"),
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
        title: "how soon a killed table answers".into(),
        about: format!(
            "a process is killed while it inserts; {} rounds, medium {}, in {}. At the first round all keys are \
             looked up afterwards: none may be missing",
            config.rounds,
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

/// Seconds until the first right answer.
fn open_once(
    plan: &Plan,
    entry: &Entry,
    keys: u64,
    remains: &Remains,
    verify: bool,
) -> Result<f64, LabError> {
    let workload = Workload { keys, threads: 1, seed: plan.seed };
    let key = workload.key(keys / 2);
    let begin = Instant::now();
    let table: Arc<dyn Subject> = Arc::from(plan.open(entry, keys, remains)?);
    let bound = table.get(key)?;
    let seconds = begin.elapsed().as_secs_f64();
    if bound != Some(word(key, 0)) {
        return Err(LabError::WrongAnswer {
            index: entry.name,
            phase: "the first look-up after recovery",
            key,
            expected: Some(word(key, 0)).into(),
            found: bound.into(),
        });
    }
    if verify {
        put(&Workers::start(1)?, &table, workload, Phase::Positive, 0)?;
    }
    Ok(seconds)
}

fn after_recovery(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let scale = Scale { keys: 8_000_000, rounds: 1, quick_keys: 2_000_000, quick_rounds: 1 };
    let usual = ["dash-eh", "dash-lh", "evermap"];
    let config = settings.config("after-recovery", &usual, scale);
    config.check(config.indexes.len())?;
    let plan = Plan::new(settings, config.keys)?;
    let most = settings.threads.unwrap_or_else(Settings::processors);
    let mut crews = vec![1, most];
    crews.dedup();
    let columns = ["first answer, ms", "at first, Mops/s", "in the end, Mops/s", "90 % after, s"];
    let mut grid = Grid::new("Look-ups of present keys after opening a killed table", &columns);
    let mut series = Vec::new();
    out.begin((config.indexes.len() * crews.len()) as u64);
    for name in &config.indexes {
        let entry = subject(name)?;
        for &threads in &crews {
            out.step(&format!("after-recovery: {name}, {threads} threads"));
            let remains = plan.leave_behind(&entry, config.keys)?;
            machine::wait_for_quiet(config.foreign_limit, config.patience);
            let workload = Workload { keys: config.keys, threads, seed: plan.seed };
            let course = look_up(&plan, &entry, &remains, workload)?;
            let label = format!("{name}, {threads} threads");
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
        title: "Look-ups after opening".into(),
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
            config.keys,
            plan.medium.name(),
            plan.location.display()
        ),
        figures,
        tables: vec![grid],
        plots: vec![plot],
        notes: vec![
            "The first access to each page of the file costs a fault, besides what the table recovers.".into(),
        ],
    })
}

/// Throughput over time.
struct Course {
    first_answer: f64,
    points: Vec<Point>,
}

impl Course {
    /// From the moments, in seconds since the beginning, at which so many operations each were through.
    fn new(first_answer: f64, mut moments: Vec<f64>) -> Self {
        moments.sort_by(f64::total_cmp);
        let end = moments.last().copied().unwrap_or(0.0);
        let window = ((end - first_answer) / WINDOWS).max(1e-6);
        let mut points = Vec::new();
        let mut from = 0;
        // The last window is not whole.
        for nth in 1..WINDOWS as usize {
            let until = moments.partition_point(|&at| at < first_answer + nth as f64 * window);
            let mops = ((until - from) * CHUNK) as f64 / window / 1e6;
            points.push(Point::new(first_answer + (nth as f64 - 0.5) * window, mops));
            from = until;
        }
        Course { first_answer, points }
    }

    /// Mean of the last quarter.
    fn normal(&self) -> f64 {
        let last = &self.points[self.points.len() * 3 / 4..];
        last.iter().map(|point| point.y).sum::<f64>() / last.len().max(1) as f64
    }

    fn cells(&self) -> Vec<String> {
        let normal = self.normal();
        let reached = self.points.iter().find(|point| point.y >= 0.9 * normal);
        vec![
            cell(Some(self.first_answer * 1e3), 2),
            cell(self.points.first().map(|point| point.y), 2),
            cell(Some(normal), 2),
            cell(reached.map(|point| point.x), 2),
        ]
    }
}

/// Opens what is left and looks every key up, twice.
fn look_up(
    plan: &Plan,
    entry: &Entry,
    remains: &Remains,
    workload: Workload,
) -> Result<Course, LabError> {
    let workers = Workers::start(workload.threads)?;
    let speller = plan.shape.map(Speller::new);
    workers.each(move |thread, stream| {
        stream.fill(&workload, Phase::Positive, thread);
        speller.iter().for_each(|speller| stream.spell(speller));
        Ok(())
    })?;
    let begin = Instant::now();
    let table: Arc<dyn Subject> = Arc::from(plan.open(entry, workload.keys, remains)?);
    let respell = table.speller().filter(|_| plan.shape.is_none());
    table.get(workload.key(0))?;
    let first_answer = begin.elapsed().as_secs_f64();
    let race = workers.race(move |thread, stream| {
        // A store spells its keys whatever was asked for.
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
    use crate::testing::Kept;

    #[test]
    fn a_course_by_hand() {
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
    fn what_cannot_be_killed_is_said() {
        let recovery = experiment("recovery").unwrap();
        let error = |settings: &Settings| {
            recovery.run(settings, &mut Kept::default()).unwrap_err().to_string()
        };
        let settings = Settings { quick: true, ..Settings::default() };
        assert!(error(&settings).contains("was not told which program"));
        let program = Some("/bin/true".into());
        let dram = Settings { program, medium: Some(MediumKind::Dram), ..settings };
        assert!(error(&dram).contains("gone with its process"));
        // A program that does something else is no child of ours.
        let wrong = Settings { medium: None, ..dram };
        assert!(error(&wrong).contains("ended before it had filled"), "{}", error(&wrong));
    }
}
