//! What the driver measures: any table from `u64` to `u64`, behind one object-safe view.
//!
//! A table implements [`Table`], with its own kind of guard. [`Measured`] turns it into a [`Subject`]: it
//! says how long a guard is kept, runs whole slices of operations in a loop that the compiler sees as a
//! whole (a call through a pointer for each operation would cost as much as part of a look-up), and checks
//! every answer in that loop.

use std::path::PathBuf;
use std::str::FromStr;

use evermap_pm::Result;
use evermap_pm::medium::Pages;

pub use crate::error::Found;
use crate::workload::{Phase, word};
use crate::{LabError, machine};

/// A concurrent table from `u64` to `u64`, as its author would have it called.
pub trait Table: Send + Sync + 'static {
    /// What an operation needs to hold while it reads. `()` for tables that lock.
    type Guard<'a>;

    /// Takes a guard.
    fn guard(&self) -> Self::Guard<'_>;

    /// Binds `key` to `word` if it is absent. Answers what the key was bound to before.
    ///
    /// # Errors
    /// The table's own.
    fn insert(&self, key: u64, word: u64, guard: &Self::Guard<'_>) -> Result<Found>;

    /// The word bound to `key`.
    ///
    /// # Errors
    /// The table's own.
    fn get(&self, key: u64, guard: &Self::Guard<'_>) -> Result<Option<u64>>;

    /// Looks up many keys; `out[i]` becomes the answer for `keys[i]`. One by one, unless the table knows better.
    ///
    /// # Errors
    /// The table's own.
    ///
    /// # Panics
    /// If `out` is shorter than `keys`.
    fn get_many(
        &self,
        keys: &[u64],
        out: &mut [Option<u64>],
        guard: &Self::Guard<'_>,
    ) -> Result<()> {
        for (key, out) in keys.iter().zip(&mut out[..keys.len()]) {
            *out = self.get(*key, guard)?;
        }
        Ok(())
    }

    /// Binds `key` to `word` if it is present. Answers what the key was bound to before.
    ///
    /// # Errors
    /// The table's own.
    fn update(&self, key: u64, word: u64, guard: &Self::Guard<'_>) -> Result<Found>;

    /// Unbinds `key`. Answers what it was bound to before.
    ///
    /// # Errors
    /// The table's own.
    fn remove(&self, key: u64, guard: &Self::Guard<'_>) -> Result<Found>;

    /// Size and shape, as far as the table knows them. May walk the whole table.
    ///
    /// # Errors
    /// The table's own.
    fn size(&self) -> Result<Size>;

    /// What the medium has counted since it was made, if it counts.
    fn counts(&self) -> Option<Counts> {
        None
    }

    /// Where the table lives.
    fn place(&self) -> Place {
        Place::default()
    }
}

/// How long a guard is kept. Tables differ in what a guard costs them, so figures compare only at equal policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guards {
    /// Every operation takes its own; a batch of `get_many` is one operation.
    PerOperation,
    /// One for this many operations. Memory freed by others waits as long.
    PerBatch(usize),
}

/// Size and shape of a table; nothing where the table cannot tell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Size {
    /// Pairs.
    pub len: Option<u64>,
    /// Pairs divided by places for pairs, 0 to 1.
    pub load_factor: Option<f64>,
    /// Bytes in ordinary memory.
    pub dram_bytes: Option<u64>,
    /// Bytes in the medium.
    pub pm_bytes: Option<u64>,
}

/// What a counting medium has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Flushes of a line.
    pub flushes: u64,
    /// Fences.
    pub fences: u64,
    /// Lines read, each once an operation.
    pub lines_read: u64,
    /// Lines written, each once an operation.
    pub lines_written: u64,
}

impl Counts {
    /// What was counted between `earlier` and now.
    pub fn since(self, earlier: Counts) -> Counts {
        Counts {
            flushes: self.flushes - earlier.flushes,
            fences: self.fences - earlier.fences,
            lines_read: self.lines_read - earlier.lines_read,
            lines_written: self.lines_written - earlier.lines_written,
        }
    }
}

/// Where a table lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name of the medium.
    pub medium: String,
    /// What a flush is, where the medium flushes.
    pub flush_kind: Option<String>,
    /// The directory, where the medium is a file.
    pub location: Option<PathBuf>,
}

impl Default for Place {
    /// Ordinary memory.
    fn default() -> Self {
        Place { medium: MediumKind::Dram.name().to_owned(), flush_kind: None, location: None }
    }
}

/// A run of operations of one phase.
#[derive(Clone, Copy)]
pub struct Work<'a> {
    /// What to do.
    pub phase: Phase,
    /// With which keys.
    pub keys: &'a [u64],
    /// In `Mixed`: which operations insert. Empty in other phases.
    pub inserts: &'a [bool],
    /// Which words the keys are bound to, before this work: see [`word`].
    pub version: u64,
    /// Keys in one call of `get_many`.
    pub batch: usize,
}

impl Work<'_> {
    /// The operations `from..to` of this work.
    pub fn part(&self, from: usize, to: usize) -> Self {
        let inserts = if self.inserts.is_empty() { self.inserts } else { &self.inserts[from..to] };
        Work { keys: &self.keys[from..to], inserts, ..*self }
    }
}

/// The object-safe view of a table. The single operations take a guard for each call.
pub trait Subject: Send + Sync {
    /// See [`Table::insert`].
    ///
    /// # Errors
    /// `Index`.
    fn insert(&self, key: u64, word: u64) -> Result<Found, LabError>;

    /// See [`Table::get`].
    ///
    /// # Errors
    /// `Index`.
    fn get(&self, key: u64) -> Result<Option<u64>, LabError>;

    /// See [`Table::get_many`].
    ///
    /// # Errors
    /// `Index`.
    ///
    /// # Panics
    /// If `out` is shorter than `keys`.
    fn get_many(&self, keys: &[u64], out: &mut [Option<u64>]) -> Result<(), LabError>;

    /// See [`Table::update`].
    ///
    /// # Errors
    /// `Index`.
    fn update(&self, key: u64, word: u64) -> Result<Found, LabError>;

    /// See [`Table::remove`].
    ///
    /// # Errors
    /// `Index`.
    fn remove(&self, key: u64) -> Result<Found, LabError>;

    /// Does all of `work` under the subject's guard policy and checks every answer.
    ///
    /// # Errors
    /// `WrongAnswer` at the first answer that is not right, `Index` where an operation failed.
    fn run(&self, work: Work<'_>) -> Result<(), LabError>;

    /// See [`Table::size`].
    ///
    /// # Errors
    /// `Index`.
    fn size(&self) -> Result<Size, LabError>;

    /// See [`Table::counts`].
    fn counts(&self) -> Option<Counts>;

    /// See [`Table::place`].
    fn place(&self) -> Place;
}

/// A table with a name and a guard policy.
pub struct Measured<T> {
    /// The name in errors and reports.
    pub name: &'static str,
    /// The table.
    pub table: T,
    /// How long guards are kept in [`run`](Subject::run).
    pub guards: Guards,
}

impl<T: Table> Measured<T> {
    #[cold]
    fn failed(&self, source: evermap_pm::Error) -> LabError {
        LabError::Index { index: self.name, source }
    }

    #[cold]
    fn wrong(&self, work: &Work<'_>, key: u64, truth: Option<u64>, found: Found) -> LabError {
        let expected = truth.into();
        LabError::WrongAnswer { index: self.name, phase: work.phase, key, expected, found }
    }

    /// Does `op` with each key and compares its answer with `truth` for that key.
    #[inline(always)]
    fn each(
        &self,
        work: &Work<'_>,
        truth: impl Fn(u64) -> Option<u64>,
        op: impl Fn(u64, &T::Guard<'_>) -> Result<Found>,
    ) -> Result<(), LabError> {
        let one = |key: u64, guard: &T::Guard<'_>| {
            let found = op(key, guard).map_err(|error| self.failed(error))?;
            if found.agrees(truth(key)) {
                return Ok(());
            }
            Err(self.wrong(work, key, truth(key), found))
        };
        match self.guards {
            Guards::PerOperation => {
                for &key in work.keys {
                    one(key, &self.table.guard())?;
                }
            }
            Guards::PerBatch(operations) => {
                for keys in work.keys.chunks(operations.max(1)) {
                    let guard = self.table.guard();
                    for &key in keys {
                        one(key, &guard)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn get_in_batches(&self, work: &Work<'_>) -> Result<(), LabError> {
        let batch = work.batch.max(1);
        let mut out = vec![None; batch];
        let calls_per_guard = match self.guards {
            Guards::PerOperation => 1,
            Guards::PerBatch(operations) => operations.div_ceil(batch),
        };
        for calls in work.keys.chunks(batch.saturating_mul(calls_per_guard)) {
            let guard = self.table.guard();
            for keys in calls.chunks(batch) {
                self.table.get_many(keys, &mut out, &guard).map_err(|error| self.failed(error))?;
                for (&key, &found) in keys.iter().zip(&out) {
                    let truth = Some(word(key, work.version));
                    if found != truth {
                        return Err(self.wrong(work, key, truth, found.into()));
                    }
                }
            }
        }
        Ok(())
    }

    fn mix(&self, work: &Work<'_>) -> Result<(), LabError> {
        let operations = match self.guards {
            Guards::PerOperation => 1,
            Guards::PerBatch(operations) => operations.max(1),
        };
        let all = work.keys.chunks(operations).zip(work.inserts.chunks(operations));
        for (keys, inserts) in all {
            let guard = self.table.guard();
            for (&key, &insert) in keys.iter().zip(inserts) {
                let now = word(key, work.version);
                let (found, truth) = if insert {
                    (self.table.insert(key, now, &guard), None)
                } else {
                    (self.table.get(key, &guard).map(Found::from), Some(now))
                };
                let found = found.map_err(|error| self.failed(error))?;
                if !found.agrees(truth) {
                    return Err(self.wrong(work, key, truth, found));
                }
            }
        }
        Ok(())
    }
}

impl<T: Table> Subject for Measured<T> {
    fn insert(&self, key: u64, word: u64) -> Result<Found, LabError> {
        self.table.insert(key, word, &self.table.guard()).map_err(|error| self.failed(error))
    }

    fn get(&self, key: u64) -> Result<Option<u64>, LabError> {
        self.table.get(key, &self.table.guard()).map_err(|error| self.failed(error))
    }

    fn get_many(&self, keys: &[u64], out: &mut [Option<u64>]) -> Result<(), LabError> {
        self.table.get_many(keys, out, &self.table.guard()).map_err(|error| self.failed(error))
    }

    fn update(&self, key: u64, word: u64) -> Result<Found, LabError> {
        self.table.update(key, word, &self.table.guard()).map_err(|error| self.failed(error))
    }

    fn remove(&self, key: u64) -> Result<Found, LabError> {
        self.table.remove(key, &self.table.guard()).map_err(|error| self.failed(error))
    }

    fn run(&self, work: Work<'_>) -> Result<(), LabError> {
        let (table, version) = (&self.table, work.version);
        let absent = |_| None;
        let bound = |key| Some(word(key, version));
        match work.phase {
            Phase::Insert => {
                self.each(&work, absent, |key, guard| table.insert(key, word(key, version), guard))
            }
            Phase::Positive => {
                self.each(&work, bound, |key, guard| Ok(table.get(key, guard)?.into()))
            }
            Phase::Negative => {
                self.each(&work, absent, |key, guard| Ok(table.get(key, guard)?.into()))
            }
            Phase::GetMany => self.get_in_batches(&work),
            Phase::Update => self
                .each(&work, bound, |key, guard| table.update(key, word(key, version + 1), guard)),
            Phase::Mixed => self.mix(&work),
            Phase::Delete => self.each(&work, bound, |key, guard| table.remove(key, guard)),
        }
    }

    fn size(&self) -> Result<Size, LabError> {
        self.table.size().map_err(|error| self.failed(error))
    }

    fn counts(&self) -> Option<Counts> {
        self.table.counts()
    }

    fn place(&self) -> Place {
        self.table.place()
    }
}

/// Where indexes that can persist are put. Tables of ordinary memory stay there whatever is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediumKind {
    /// Anonymous memory.
    Dram,
    /// A mapped file that survives the process: nothing is flushed.
    Process,
    /// The same file with every flush and fence carried out.
    Forced,
    /// `Forced`, slowed down as persistent memory would be.
    Emulated,
}

impl MediumKind {
    /// Every medium.
    pub const ALL: [MediumKind; 4] =
        [MediumKind::Dram, MediumKind::Process, MediumKind::Forced, MediumKind::Emulated];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            MediumKind::Dram => "dram",
            MediumKind::Process => "process",
            MediumKind::Forced => "forced",
            MediumKind::Emulated => "emulated",
        }
    }
}

impl FromStr for MediumKind {
    type Err = LabError;

    fn from_str(name: &str) -> Result<Self, LabError> {
        MediumKind::ALL.into_iter().find(|medium| medium.name() == name).ok_or_else(|| {
            let known = MediumKind::ALL.map(MediumKind::name).join(", ");
            LabError::Config(format!("unknown medium `{name}`; known are: {known}"))
        })
    }
}

/// What a factory is asked to build.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Where indexes that can persist live.
    pub medium: MediumKind,
    /// The directory for their files.
    pub location: PathBuf,
    /// Page size to ask for.
    pub pages: Pages,
    /// Most keys that the table will hold.
    pub keys: u64,
    /// Whether to begin at the final size, where the table can.
    pub presize: bool,
    /// Whether the medium should count; see [`Subject::counts`].
    pub counted: bool,
    /// On the emulated medium, nanoseconds that a fence after a flush takes at least.
    pub persist_ns: u64,
    /// On the emulated medium, nanoseconds that a line from outside a small cache takes. 0: as it is.
    pub read_ns: u64,
}

/// Memory that the hungriest table and the driver take for a key, bytes.
const BYTES_PER_KEY: u64 = 128;

impl Setup {
    /// A table for `keys` keys; its size is not known to it beforehand, and nothing is counted. The emulated
    /// medium takes 600 ns for a persist and has no delay for reads, as most of the literature.
    ///
    /// The location defaults to `/dev/shm` where there is one, else to the system's temporary directory.
    ///
    /// # Errors
    /// `Config` if there are no keys, if they would not fit into memory, or if the location is needed and
    /// is no directory.
    pub fn new(
        medium: MediumKind,
        location: Option<PathBuf>,
        pages: Pages,
        keys: u64,
    ) -> Result<Self, LabError> {
        if keys == 0 {
            return Err(LabError::Config("there must be at least one key".into()));
        }
        let needed = keys.saturating_mul(BYTES_PER_KEY);
        if let Some(available) = machine::available()
            && needed > available
        {
            return Err(LabError::Config(format!(
                "{keys} keys may take {} MiB of memory, but only {} MiB are free; take fewer keys",
                needed >> 20,
                available >> 20,
            )));
        }
        let location = location.unwrap_or_else(|| {
            let shared = PathBuf::from("/dev/shm");
            if shared.is_dir() { shared } else { std::env::temp_dir() }
        });
        if medium != MediumKind::Dram && !location.is_dir() {
            return Err(LabError::Config(format!(
                "{} is no directory; medium `{}` needs one for its file",
                location.display(),
                medium.name(),
            )));
        }
        let (presize, counted) = (false, false);
        Ok(Setup { medium, location, pages, keys, presize, counted, persist_ns: 600, read_ns: 0 })
    }
}

/// Builds an empty table.
pub type Factory = fn(&Setup) -> Result<Box<dyn Subject>, LabError>;

/// A table that can be measured, by name.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The name on command lines and in reports.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// Whether it is somebody else's, measured for comparison.
    pub rival: bool,
    /// Builds one.
    pub build: Factory,
}

#[cfg(feature = "rivals")]
const RIVALS: &[Entry] = &crate::rivals::ENTRIES;
#[cfg(not(feature = "rivals"))]
const RIVALS: &[Entry] = &[];

/// Every table that can be measured.
pub fn subjects() -> Vec<Entry> {
    [&crate::indexed::ENTRIES[..], &[crate::reference::ENTRY], RIVALS].concat()
}

/// The table of that name.
///
/// # Errors
/// `UnknownIndex`, with the names there are.
pub fn subject(name: &str) -> Result<Entry, LabError> {
    let all = subjects();
    all.iter().find(|entry| entry.name == name).copied().ok_or_else(|| LabError::UnknownIndex {
        name: name.to_owned(),
        known: all.iter().map(|entry| entry.name).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fault, Faulty};
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn guards_are_kept_as_long_as_the_policy_says() {
        let inserts = vec![true; 1000];
        let keys: Vec<_> = (0..1000).collect();
        let guards = |guards, phase, batch| {
            let subject = Measured { name: "faulty", table: Faulty::new(Fault::None), guards };
            let work = Work { phase, keys: &keys, inserts: &[], version: 0, batch };
            if phase == Phase::Mixed {
                subject.run(Work { inserts: &inserts, ..work }).unwrap();
                return subject.table.guards.load(Relaxed);
            }
            subject.run(Work { phase: Phase::Insert, ..work }).unwrap();
            let before = subject.table.guards.load(Relaxed);
            if phase == Phase::Insert {
                return before;
            }
            subject.run(work).unwrap();
            subject.table.guards.load(Relaxed) - before
        };
        for phase in [Phase::Insert, Phase::Positive, Phase::Update, Phase::Mixed, Phase::Delete] {
            assert_eq!(guards(Guards::PerOperation, phase, 1), 1000, "{phase}");
            assert_eq!(guards(Guards::PerBatch(64), phase, 1), 16, "{phase}");
        }
        // Batches of 30 are 34 calls; three calls reach the 64 operations of a guard.
        assert_eq!(guards(Guards::PerOperation, Phase::GetMany, 30), 34);
        assert_eq!(guards(Guards::PerBatch(64), Phase::GetMany, 30), 12);
    }

    /// What the crash checker and other callers of single operations see.
    #[test]
    fn single_operations_answer_what_was_there_before() {
        for entry in subjects() {
            let setup = Setup::new(MediumKind::Dram, None, Pages::Base, 10).unwrap();
            let table = (entry.build)(&setup).unwrap();
            let is = |found: Found, truth| assert!(found.agrees(truth), "{}: {found}", entry.name);
            is(table.update(1, 10).unwrap(), None);
            is(table.remove(1).unwrap(), None);
            is(table.insert(1, 10).unwrap(), None);
            is(table.insert(1, 11).unwrap(), Some(10));
            assert_eq!(table.get(1).unwrap(), Some(10), "{}", entry.name);
            is(table.update(1, 12).unwrap(), Some(10));
            is(table.insert(3, 30).unwrap(), None);
            let mut out = [Some(9); 4];
            table.get_many(&[1, 2, 3], &mut out).unwrap();
            assert_eq!(out, [Some(12), None, Some(30), Some(9)], "{}", entry.name);
            assert_eq!(table.size().unwrap().len, Some(2), "{}", entry.name);
            is(table.remove(1).unwrap(), Some(12));
            assert_eq!(table.get(1).unwrap(), None, "{}", entry.name);
            assert_eq!(table.size().unwrap().len, Some(1), "{}", entry.name);
        }
    }

    #[test]
    fn answers_are_compared_as_far_as_they_say_something() {
        assert!(Found::Absent.agrees(None) && !Found::Absent.agrees(Some(1)));
        assert!(Found::Present.agrees(Some(1)) && !Found::Present.agrees(None));
        assert!(Found::Word(1).agrees(Some(1)));
        assert!(!Found::Word(1).agrees(Some(2)) && !Found::Word(1).agrees(None));
    }
}
