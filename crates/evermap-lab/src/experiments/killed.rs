//! Tables in processes that are killed.
//!
//! A child process fills a table in a file, continues to insert, and is killed while it does. So
//! nothing is simulated, neither the death nor the state of the file. The child writes its
//! measurements to its standard output.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use evermap_pm::medium::Speed;

use super::settings::Settings;
use crate::LabError;
use crate::driver::task::Task;
use crate::driver::workers::Workers;
use crate::machine;
use crate::registry::subject;
use crate::report::Record;
use crate::subject::unique_path;
use crate::subject::{Entry, File, MediumKind, Setup, Subject, Survives};
use crate::workload::{Act, KeyValueLengths, Lengths, Part, Phase, Speller, Workload, word};

/// The line that a child writes when the table is filled or open.
const FILLED: &str = "filled";
/// The word before the bytes on disk and in memory.
const SPACE: &str = "space";
/// The word before the seconds until the first lookup, and until the first scan.
const ANSWERED: &str = "answered";

/// What a child process does before it inserts keys until it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Fills a new table.
    Fill,
    /// Fills a new table, then binds every key to something else, and reports the space that this
    /// takes.
    Overwrite,
    /// Opens the table of a child that has done that, for the given time, and reports how soon it
    /// answers.
    Open(u64),
}

/// A table, and what a child process does with it.
#[derive(Clone, Debug)]
pub struct ChildJob {
    /// The name of the table.
    pub index: String,
    /// The medium that it is stored on.
    pub medium: MediumKind,
    /// Lengths of keys and values; `None` for words.
    pub lengths: Option<KeyValueLengths>,
    /// The number of keys that it is filled with.
    pub keys: u64,
    /// The seed of the keys.
    pub seed: u64,
    /// Its file or directory.
    pub file: PathBuf,
    /// What to do.
    pub job: Job,
}

/// A measurement that a child has written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ChildLine {
    /// Bytes on disk, and bytes that the process has allocated since before the table was created.
    Space { disk: f64, dram: f64 },
    /// Seconds from before the opening to the first answer, and to the end of the first scan, if
    /// the table can scan.
    FirstAnswers { get: f64, scan: Option<f64> },
}

impl ChildLine {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let what = words.next()?;
        let first = words.next()?.parse().ok()?;
        let second: Option<f64> = words.next().and_then(|word| word.parse().ok());
        match what {
            SPACE => Some(ChildLine::Space { disk: first, dram: second? }),
            ANSWERED => Some(ChildLine::FirstAnswers { get: first, scan: second }),
            _ => None,
        }
    }
}

/// What to fill and kill.
pub(super) struct KillPlan {
    program: PathBuf,
    pub(super) medium: MediumKind,
    /// The speed at which what is left is opened, if the medium is the emulated one.
    speed: Speed,
    pub(super) location: PathBuf,
    pub(super) lengths: Option<KeyValueLengths>,
    pub(super) seed: u64,
}

impl KillPlan {
    pub(super) fn new(
        settings: &Settings,
        lengths: Option<KeyValueLengths>,
        keys: u64,
    ) -> Result<Self, LabError> {
        let program = settings.program.clone().ok_or_else(|| {
            LabError::Config(
                "this experiment kills a process, but no program to start is configured".into(),
            )
        })?;
        let medium = settings.medium(MediumKind::Process);
        if medium == MediumKind::Dram {
            return Err(LabError::Config(
                "anonymous memory does not survive its process; take another medium".into(),
            ));
        }
        let location = settings.location.clone();
        let setup = Setup::new(medium, location, settings.pages(), keys, lengths)?;
        Ok(KillPlan {
            program,
            medium,
            speed: settings.speed(),
            location: setup.location,
            lengths,
            seed: settings.seed.unwrap_or(1),
        })
    }

    /// Returns a new place for a table.
    pub(super) fn place(&self) -> LeftFile {
        LeftFile(unique_path(&self.location))
    }

    /// Fills a table in a child process, and kills that while it inserts.
    pub(super) fn fill_and_kill(&self, entry: &Entry, keys: u64) -> Result<LeftFile, LabError> {
        let left = self.place();
        self.run_and_kill(entry, keys, &left, Job::Fill)?;
        Ok(left)
    }

    /// Starts a child process that does `job`, and kills it while it inserts. Returns what it has
    /// measured.
    pub(super) fn run_and_kill(
        &self,
        entry: &Entry,
        keys: u64,
        left: &LeftFile,
        job: Job,
    ) -> Result<Vec<ChildLine>, LabError> {
        let mut command = Command::new(&self.program);
        command.args(["fill", "--index", entry.name, "--medium", self.medium.name()]);
        command.args(["--keys", &keys.to_string(), "--seed", &self.seed.to_string()]);
        command.arg("--file").arg(&left.0);
        if let Some(lengths) = self.lengths {
            command.args(["--key-bytes", &lengths.keys.to_string()]);
            command.args(["--value-bytes", &lengths.values.to_string()]);
        }
        match job {
            Job::Fill => {}
            Job::Overwrite => drop(command.arg("--overwrite")),
            Job::Open(times) => drop(command.args(["--open", &times.to_string()])),
        }
        let failed = |action| {
            let path = Some(self.program.clone());
            move |source| LabError::Io { action, path, source }
        };
        let mut child = KilledChild(
            command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .map_err(failed("start"))?,
        );
        let mut measured = Vec::new();
        for line in BufReader::new(child.0.stdout.take().expect("piped")).lines() {
            let line = line.map_err(failed("read the output of"))?;
            if line == FILLED {
                // So that it is killed in the middle of an insertion.
                std::thread::sleep(Duration::from_millis(5));
                return Ok(measured);
            }
            measured.extend(ChildLine::parse(&line));
        }
        // The child has written the reason to standard error.
        Err(LabError::NotFilled { index: entry.name })
    }

    pub(super) fn record(
        &self,
        experiment: &'static str,
        entry: &Entry,
        keys: u64,
        phase: &str,
    ) -> Record {
        let text = |of: fn(KeyValueLengths) -> Lengths| {
            self.lengths.map(|lengths| of(lengths).to_string())
        };
        Record {
            experiment,
            index: entry.name.to_owned(),
            medium: self.medium.name().to_owned(),
            location: Some(self.location.clone()),
            survives: Survives::Process.name(),
            threads: 1,
            keys,
            phase: phase.to_owned(),
            key_bytes: text(|lengths| lengths.keys),
            value_bytes: text(|lengths| lengths.values),
            seed: self.seed,
            ..Record::default()
        }
    }

    /// Opens what is left in this process.
    pub(super) fn open(
        &self,
        entry: &Entry,
        keys: u64,
        left: &LeftFile,
    ) -> Result<Box<dyn Subject>, LabError> {
        entry.build(&self.setup(keys, left)?)
    }

    /// Returns what opens what is left.
    pub(super) fn setup(&self, keys: u64, left: &LeftFile) -> Result<Setup, LabError> {
        let location = Some(self.location.clone());
        let pages = evermap_pm::medium::Pages::Base;
        let setup = Setup::new(self.medium, location, pages, keys, self.lengths)?;
        Ok(Setup { file: File::Existing(left.0.clone()), speed: self.speed, ..setup })
    }
}

/// A child process that is killed and waited for when this is dropped.
struct KilledChild(Child);

impl Drop for KilledChild {
    fn drop(&mut self) {
        // The child may have ended before; either way it is gone afterwards.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The file or directory that a killed process left behind, removed when this is dropped.
pub(super) struct LeftFile(PathBuf);

impl Drop for LeftFile {
    fn drop(&mut self) {
        // A file that cannot be removed is not an error.
        let _ = if self.0.is_dir() {
            std::fs::remove_dir_all(&self.0)
        } else {
            std::fs::remove_file(&self.0)
        };
    }
}

/// The main function of a child process: it does its job, reports that, and inserts keys that are
/// never looked up until it is killed or its standard input ends.
///
/// # Errors
///
/// `UnknownIndex`, `Config`, and those of the table.
pub fn run_child(child: &ChildJob) -> Result<(), LabError> {
    let ChildJob { medium, lengths, keys, seed, job, ref file, .. } = *child;
    let entry = subject(&child.index)?;
    let location = file.parent().map(Path::to_owned);
    let setup = Setup::new(medium, location, evermap_pm::medium::Pages::Base, keys, lengths)?;
    let workers = Workers::start(1)?;
    let workload = Workload { keys, threads: 1, seed };
    let build = |file: File| -> Result<Arc<dyn Subject>, LabError> {
        Ok(Arc::from(entry.build(&Setup { file, ..setup.clone() })?))
    };
    let (table, unused_seed) = match job {
        Job::Fill => {
            let table = build(File::New(file.clone()))?;
            all_keys(&workers, &table, Task::of(Phase::Insert, workload), workload)?;
            (table, !seed)
        }
        Job::Overwrite => {
            // The keys are allocated before the memory of the table is measured.
            let spelled = lengths.map(Speller::new);
            workers.each(move |thread, stream| {
                stream.fill(&workload, Phase::Insert, thread);
                spelled.iter().for_each(|speller| stream.spell(speller));
                Ok(())
            })?;
            let before = machine::anonymous().unwrap_or(0);
            let table = build(File::New(file.clone()))?;
            for phase in [Phase::Insert, Phase::Update] {
                all_keys(&workers, &table, Task::of(phase, workload), workload)?;
                let failed = |source| LabError::Io {
                    action: "look at the size of",
                    path: Some(file.clone()),
                    source,
                };
                let disk = machine::bytes_on_disk(file).map_err(failed)?;
                let dram = machine::anonymous().unwrap_or(0).saturating_sub(before);
                write_line(&format!("{SPACE} {disk} {dram}"))?;
            }
            (table, !seed)
        }
        Job::Open(times) => {
            let open = || build(File::Existing(file.clone()));
            let FirstAnswers { table, get, scan } =
                answer(&workers, workload, lengths, entry.name, open)?;
            let scan = scan.map_or(String::new(), |seconds| format!(" {seconds}"));
            write_line(&format!("{ANSWERED} {get}{scan}"))?;
            // Other keys than those of earlier children.
            (table, (!seed).wrapping_sub(times << 32))
        }
    };
    write_line(FILLED)?;
    // If the parent dies first, this process is not killed.
    let parent = std::thread::spawn(|| std::io::stdin().read_line(&mut String::new()));
    // Keys that are never looked up, a few at a time, and a bounded number.
    for nth in 0..64 {
        let workload = Workload { keys: 256, threads: 1, seed: unused_seed.wrapping_sub(nth) };
        all_keys(&workers, &table, Task::of(Phase::Insert, workload), workload)?;
    }
    let _ = parent.join();
    Ok(())
}

/// Writes a line to the parent.
fn write_line(line: &str) -> Result<(), LabError> {
    let mut out = std::io::stdout();
    let written = writeln!(out, "{line}").and_then(|()| out.flush());
    written.map_err(|source| LabError::Io {
        action: "write to standard output",
        path: None,
        source,
    })
}

/// Inserts, updates or looks up all keys of `workload`, in batches if the table has some.
pub(super) fn all_keys(
    workers: &Workers,
    table: &Arc<dyn Subject>,
    task: Task,
    workload: Workload,
) -> Result<(), LabError> {
    let (table, speller) = (table.clone(), table.speller());
    workers.each(move |thread, stream| {
        stream.fill(&workload, task.phase(), thread);
        speller.iter().for_each(|speller| stream.spell(speller));
        table.run(task.in_bulk().on(stream, thread))
    })?;
    Ok(())
}

/// A table that was opened, and the seconds from before that to the end of its first lookup and of
/// its first scan.
struct FirstAnswers {
    table: Arc<dyn Subject>,
    get: f64,
    /// `None` if the table cannot scan.
    scan: Option<f64>,
}

/// Opens a table with `open`, looks up a key, and scans if the table can.
fn answer(
    workers: &Workers,
    workload: Workload,
    lengths: Option<KeyValueLengths>,
    index: &'static str,
    open: impl FnOnce() -> Result<Arc<dyn Subject>, LabError>,
) -> Result<FirstAnswers, LabError> {
    let part = Part { name: "scan", act: Act::Scan(1), ops: 1, threads: 1, after: 0 };
    let speller = lengths.map(Speller::new);
    workers.each(move |thread, stream| {
        stream.fill_part(&workload, &part, thread);
        speller.iter().for_each(|speller| stream.spell(speller));
        Ok(())
    })?;
    let key = workload.key(workload.keys / 2);
    let begin = Instant::now();
    let table = open()?;
    let bound = table.get(key)?;
    let get = begin.elapsed().as_secs_f64();
    // The key was overwritten.
    let right = Some(word(key, 1));
    if bound != right {
        let phase = "the first lookup after recovery";
        let (expected, found) = (right.into(), bound.into());
        return Err(LabError::WrongAnswer { index, phase, key, expected, found });
    }
    if !table.is_ordered() {
        return Ok(FirstAnswers { table, get, scan: None });
    }
    let scanned = table.clone();
    let task = Task::of(Phase::Mixed, workload).beside_updates();
    workers.each(move |thread, stream| scanned.run(task.on(stream, thread)))?;
    Ok(FirstAnswers { table, get, scan: Some(begin.elapsed().as_secs_f64()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_children_are_parsed() {
        let space = ChildLine::Space { disk: 4096.0, dram: 12.0 };
        assert_eq!(ChildLine::parse("space 4096 12"), Some(space));
        let scans = ChildLine::FirstAnswers { get: 0.5, scan: Some(1.25) };
        assert_eq!(ChildLine::parse("answered 0.5 1.25"), Some(scans));
        assert_eq!(
            ChildLine::parse("answered 0.5"),
            Some(ChildLine::FirstAnswers { get: 0.5, scan: None })
        );
        for other in ["", "space 1", "space x y", "answered", "hello 1 2"] {
            assert_eq!(ChildLine::parse(other), None, "{other}");
        }
    }
}
