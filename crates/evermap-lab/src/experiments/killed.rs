//! Tables in processes that are killed.
//!
//! A child process fills a table in a file, goes on inserting, and is killed in the middle of that; so nothing is
//! simulated: neither the death nor the state of the file. What it measures it says on its standard output.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Settings;
use crate::LabError;
use crate::driver::task::Task;
use crate::driver::workers::Workers;
use crate::machine;
use crate::registry::subject;
use crate::report::Record;
use crate::subject::unique_path;
use crate::subject::{Entry, File, MediumKind, Setup, Subject, Survives};
use crate::workload::{Act, KeyValueLengths, Lengths, Part, Phase, Speller, Workload, word};

/// What a child says when the table is filled, or open.
const FILLED: &str = "filled";
/// The word before the bytes on disk and in memory.
const SPACE: &str = "space";
/// The word before the seconds until the first answer, and until the first scan.
const ANSWERED: &str = "answered";

/// What a child process does before it goes on inserting until it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Fills a new table.
    Fill,
    /// The same, then binds every key to something else; says how much space that takes.
    Overwrite,
    /// Opens the table of a child that has done that, for so many times; says how soon it answers.
    Open(u64),
}

/// A table, and what is to be done with it in a process of its own.
#[derive(Clone, Debug)]
pub struct ChildJob {
    /// Its name.
    pub index: String,
    /// Where it is.
    pub medium: MediumKind,
    /// Lengths of keys and values, unless these are words.
    pub lengths: Option<KeyValueLengths>,
    /// Keys that it is filled with.
    pub keys: u64,
    /// What they follow from.
    pub seed: u64,
    /// Its file or directory.
    pub file: PathBuf,
    /// What to do.
    pub job: Job,
}

/// What a child has said.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ChildLine {
    /// Bytes on disk, and what the process has allocated since before there was a table.
    Space { disk: f64, dram: f64 },
    /// Seconds from before the opening to the first answer; to the end of the first scan, where there are scans.
    Answered { get: f64, scan: Option<f64> },
}

impl ChildLine {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let what = words.next()?;
        let first = words.next()?.parse().ok()?;
        let second: Option<f64> = words.next().and_then(|word| word.parse().ok());
        match what {
            SPACE => Some(ChildLine::Space { disk: first, dram: second? }),
            ANSWERED => Some(ChildLine::Answered { get: first, scan: second }),
            _ => None,
        }
    }
}

/// What to fill and kill.
pub(super) struct Plan {
    program: PathBuf,
    pub(super) medium: MediumKind,
    pub(super) location: PathBuf,
    pub(super) lengths: Option<KeyValueLengths>,
    pub(super) seed: u64,
}

impl Plan {
    pub(super) fn new(
        settings: &Settings,
        lengths: Option<KeyValueLengths>,
        keys: u64,
    ) -> Result<Self, LabError> {
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
        let location = settings.location.clone();
        let setup = Setup::new(medium, location, settings.pages(), keys, lengths)?;
        Ok(Plan {
            program,
            medium,
            location: setup.location,
            lengths,
            seed: settings.seed.unwrap_or(1),
        })
    }

    /// A place for a table that nobody else finds.
    pub(super) fn place(&self) -> Remains {
        Remains(unique_path(&self.location))
    }

    /// Fills a table in a process of its own, and kills that.
    pub(super) fn leave_behind(&self, entry: &Entry, keys: u64) -> Result<Remains, LabError> {
        let remains = self.place();
        self.send(entry, keys, &remains, Job::Fill)?;
        Ok(remains)
    }

    /// Has a process do `job`, and kills it while it goes on inserting. Answers what it has said.
    pub(super) fn send(
        &self,
        entry: &Entry,
        keys: u64,
        remains: &Remains,
        job: Job,
    ) -> Result<Vec<ChildLine>, LabError> {
        let mut command = Command::new(&self.program);
        command.args(["fill", "--index", entry.name, "--medium", self.medium.name()]);
        command.args(["--keys", &keys.to_string(), "--seed", &self.seed.to_string()]);
        command.arg("--file").arg(&remains.0);
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
        let mut said = Vec::new();
        for line in BufReader::new(child.0.stdout.take().expect("piped")).lines() {
            let line = line.map_err(failed("read what it says from"))?;
            if line == FILLED {
                // In the middle of some insertion.
                std::thread::sleep(Duration::from_millis(5));
                return Ok(said);
            }
            said.extend(ChildLine::parse(&line));
        }
        // What went wrong is on standard error already.
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
        remains: &Remains,
    ) -> Result<Box<dyn Subject>, LabError> {
        let location = Some(self.location.clone());
        let pages = evermap_pm::medium::Pages::Base;
        let setup = Setup::new(self.medium, location, pages, keys, self.lengths)?;
        entry.build(&Setup { file: File::Existing(remains.0.clone()), ..setup })
    }
}

/// A child that is killed at the end of its use, and waited for.
struct KilledChild(Child);

impl Drop for KilledChild {
    fn drop(&mut self) {
        // It may have ended by itself; either way it is gone afterwards.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The file or directory that a killed process left behind; removed at the end of its use.
pub(super) struct Remains(PathBuf);

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

/// What a child process does: its job, then it says so, and goes on inserting keys that nobody will ask for until it
/// is killed, or until its standard input ends.
///
/// # Errors
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
    let (table, stray) = match job {
        Job::Fill => {
            let table = build(File::New(file.clone()))?;
            all_keys(&workers, &table, Task::of(Phase::Insert, workload), workload)?;
            (table, !seed)
        }
        Job::Overwrite => {
            // The keys have their memory before the table's is measured.
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
                say(&format!("{SPACE} {disk} {dram}"))?;
            }
            (table, !seed)
        }
        Job::Open(times) => {
            let open = || build(File::Existing(file.clone()));
            let Answered { table, get, scan } =
                answer(&workers, workload, lengths, entry.name, open)?;
            let scan = scan.map_or(String::new(), |seconds| format!(" {seconds}"));
            say(&format!("{ANSWERED} {get}{scan}"))?;
            // Other keys than those of the children before.
            (table, (!seed).wrapping_sub(times << 32))
        }
    };
    say(FILLED)?;
    // If the parent dies first, nobody kills us.
    let parent = std::thread::spawn(|| std::io::stdin().read_line(&mut String::new()));
    // Keys that nobody will ask for, a few at a time, and not for ever.
    for nth in 0..64 {
        let workload = Workload { keys: 256, threads: 1, seed: stray.wrapping_sub(nth) };
        all_keys(&workers, &table, Task::of(Phase::Insert, workload), workload)?;
    }
    let _ = parent.join();
    Ok(())
}

/// Says a line to the parent.
fn say(line: &str) -> Result<(), LabError> {
    let mut out = std::io::stdout();
    let said = writeln!(out, "{line}").and_then(|()| out.flush());
    said.map_err(|source| LabError::Io { action: "write to standard output", path: None, source })
}

/// Inserts, updates or looks up all keys of `workload`, in batches where there are some.
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

/// A table that was opened, and the seconds from before that to the end of its first look-up and of its first scan.
struct Answered {
    table: Arc<dyn Subject>,
    get: f64,
    /// Where there are scans.
    scan: Option<f64>,
}

/// Opens a table with `open`, looks a key up, and scans where that is possible.
fn answer(
    workers: &Workers,
    workload: Workload,
    lengths: Option<KeyValueLengths>,
    index: &'static str,
    open: impl FnOnce() -> Result<Arc<dyn Subject>, LabError>,
) -> Result<Answered, LabError> {
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
    // It was overwritten.
    let right = Some(word(key, 1));
    if bound != right {
        let phase = "the first look-up after recovery";
        let (expected, found) = (right.into(), bound.into());
        return Err(LabError::WrongAnswer { index, phase, key, expected, found });
    }
    if !table.is_ordered() {
        return Ok(Answered { table, get, scan: None });
    }
    let scanned = table.clone();
    let task = Task::of(Phase::Mixed, workload).beside_updates();
    workers.each(move |thread, stream| scanned.run(task.on(stream, thread)))?;
    Ok(Answered { table, get, scan: Some(begin.elapsed().as_secs_f64()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_children_say_is_understood() {
        let space = ChildLine::Space { disk: 4096.0, dram: 12.0 };
        assert_eq!(ChildLine::parse("space 4096 12"), Some(space));
        let scans = ChildLine::Answered { get: 0.5, scan: Some(1.25) };
        assert_eq!(ChildLine::parse("answered 0.5 1.25"), Some(scans));
        assert_eq!(
            ChildLine::parse("answered 0.5"),
            Some(ChildLine::Answered { get: 0.5, scan: None })
        );
        for other in ["", "space 1", "space x y", "answered", "hello 1 2"] {
            assert_eq!(ChildLine::parse(other), None, "{other}");
        }
    }
}
