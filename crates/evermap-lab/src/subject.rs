//! What the driver measures, behind one object-safe view, and the registry of everything that has it: tables of
//! words ([`table`](crate::table)) and stores of byte strings ([`store`](crate::store)).

use std::path::PathBuf;
use std::str::FromStr;

use evermap_pm::medium::Pages;

pub use crate::error::Found;
pub use crate::table::{Measured, Table};
use crate::workload::bytes::{SpelledPart, mean_bytes};
use crate::workload::{Op, Phase, Shape, Speller, Writer, version_of, word};
use crate::{LabError, machine};

/// How long a guard is kept. Tables differ in what a guard costs them, so figures compare only at equal policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guards {
    /// Every operation takes its own; a batch of `get_many` is one operation.
    PerOperation,
    /// One for this many operations. Memory freed by others waits as long.
    PerBatch(usize),
}

impl Guards {
    /// Operations under one guard, at least one.
    pub(crate) fn operations(self) -> usize {
        match self {
            Guards::PerOperation => 1,
            Guards::PerBatch(operations) => operations.max(1),
        }
    }
}

/// What all keys of a run of operations are bound to before it.
#[derive(Clone, Copy)]
pub(crate) enum Truth {
    /// Nothing.
    Absent,
    /// Each to its word of this version.
    Bound(u64),
}

impl Truth {
    /// What `key` is bound to.
    #[inline(always)]
    pub(crate) fn of(self, key: u64) -> Option<u64> {
        match self {
            Truth::Absent => None,
            Truth::Bound(version) => Some(word(key, version)),
        }
    }
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

/// What an acknowledged change survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Survives {
    /// Nothing.
    Nothing,
    /// The death of the process.
    Process,
    /// Power loss, as far as the disk is honest.
    Power,
}

impl Survives {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Survives::Nothing => "nothing",
            Survives::Process => "process",
            Survives::Power => "power",
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
    /// What changes survive there.
    pub survives: Survives,
}

impl Default for Place {
    /// Ordinary memory.
    fn default() -> Self {
        Place {
            medium: MediumKind::Dram.name().to_owned(),
            flush_kind: None,
            location: None,
            survives: Survives::Nothing,
        }
    }
}

/// A run of operations.
#[derive(Clone, Copy)]
pub struct Work<'a> {
    /// The name in errors.
    pub name: &'static str,
    /// What to do.
    pub phase: Phase,
    /// With which keys.
    pub keys: &'a [u64],
    /// The same keys as byte strings, for stores.
    pub spelled: SpelledPart<'a>,
    /// In `Mixed`: what to do with each. Empty in other phases.
    pub ops: &'a [Op],
    /// Which words the keys are bound to, before this work: see [`word`].
    pub version: u64,
    /// Keys in one call of `get_many`.
    pub batch: usize,
    /// Whose work it is.
    pub writer: Writer,
    /// In `Insert` and `Update`: whether a store may take the keys in batches, and need not make each durable.
    pub bulk: bool,
}

impl Work<'_> {
    /// The operations `from..to` of this work.
    pub fn part(&self, from: usize, to: usize) -> Self {
        let ops = if self.ops.is_empty() { self.ops } else { &self.ops[from..to] };
        let writer = Writer { first: self.writer.first + from, ..self.writer };
        Work { keys: &self.keys[from..to], spelled: self.spelled.after(from), ops, writer, ..*self }
    }

    /// How far beyond [`version`](Work::version) the one is that the `place`-th operation writes, counted from 1.
    #[inline(always)]
    pub(crate) fn writes(&self, place: usize) -> u64 {
        self.writer.version((self.writer.first + place) as u64)
    }

    /// Whether `op` may find its key in this version.
    #[inline(always)]
    pub(crate) fn may_find(&self, version: u64, op: Op) -> bool {
        self.writer.may_find(version.wrapping_sub(self.version), op.own)
    }

    #[cold]
    pub(crate) fn wrong(
        &self,
        index: &'static str,
        key: u64,
        expected: Found,
        found: Found,
    ) -> LabError {
        LabError::WrongAnswer { index, phase: self.name, key, expected, found }
    }
}

/// What a scan has shown so far: ascending keys, each with a word of its own.
pub(crate) struct Sight<'w> {
    work: &'w Work<'w>,
    last: Option<u64>,
    from: u64,
    seen: usize,
    wrong: Option<(u64, Found)>,
}

impl<'w> Sight<'w> {
    pub(crate) fn new(from: u64, work: &'w Work<'w>) -> Self {
        Sight { work, last: None, from, seen: 0, wrong: None }
    }

    /// The scan shows `key`, with a word that may be no word of any key.
    pub(crate) fn see(&mut self, key: u64, bound: Option<u64>) {
        let in_order = self.last.map_or(key >= self.from, |last| key > last);
        let is_own = bound.is_some_and(|bound| {
            version_of(key, bound).wrapping_sub(self.work.version) <= self.work.writer.most
        });
        if !(in_order && is_own) && self.wrong.is_none() {
            self.wrong = Some((key, bound.into()));
        }
        self.last = Some(key);
        self.seen += 1;
    }

    /// The scan is over; it was to show up to `count` pairs. The first key is never removed, so it was there.
    pub(crate) fn judge(self, index: &'static str, count: usize) -> Result<(), LabError> {
        match self.wrong {
            Some((key, found)) => Err(self.work.wrong(index, key, Found::Present, found)),
            None if self.seen == 0 || self.seen > count => {
                Err(self.work.wrong(index, self.from, Found::Present, Found::Absent))
            }
            None => Ok(()),
        }
    }
}

/// The object-safe view of a table or store.
pub trait Subject: Send + Sync {
    /// The word that `key` is bound to.
    ///
    /// # Errors
    /// `Index`, `WrongAnswer` for a value that stands for no word.
    fn get(&self, key: u64) -> Result<Option<u64>, LabError>;

    /// Does all of `work` under the subject's guard policy and checks every answer.
    ///
    /// # Errors
    /// `WrongAnswer` at the first answer that is not right, `Index` where an operation failed.
    fn run(&self, work: Work<'_>) -> Result<(), LabError>;

    /// What writes its keys out as byte strings, if it wants those.
    fn speller(&self) -> Option<Speller> {
        None
    }

    /// Whether it can scan.
    fn is_ordered(&self) -> bool;

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
    /// Nothing for keys and values of one word; otherwise how long they are.
    pub shape: Option<Shape>,
    /// Which file it is put in, on media that are files.
    pub file: File,
}

/// The file of a table, or the directory of a store that has many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum File {
    /// One that nobody else finds, and that is gone when the table or the process is.
    #[default]
    Nameless,
    /// This one, which must not exist yet, and which stays.
    New(PathBuf),
    /// This one, which a table like this has left behind.
    Existing(PathBuf),
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
        shape: Option<Shape>,
    ) -> Result<Self, LabError> {
        if keys == 0 {
            return Err(LabError::Config("there must be at least one key".into()));
        }
        let each = BYTES_PER_KEY + shape.map_or(0, |shape| 3 * mean_bytes(shape) as u64);
        let needed = keys.saturating_mul(each);
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
        Ok(Setup {
            medium,
            location,
            pages,
            keys,
            presize: false,
            counted: false,
            persist_ns: 600,
            read_ns: 0,
            shape,
            file: File::Nameless,
        })
    }

    /// The same without counting.
    pub(crate) fn uncounted(&self) -> Self {
        Setup { counted: false, ..self.clone() }
    }

    /// For tables that are there on these media only.
    ///
    /// # Errors
    /// `Config` if another is asked for.
    pub(crate) fn media_only(&self, index: &str, media: &[MediumKind]) -> Result<(), LabError> {
        if media.contains(&self.medium) {
            return Ok(());
        }
        let known: Vec<_> = media.iter().map(|medium| medium.name()).collect();
        Err(LabError::Config(format!(
            "{index} cannot be put on medium `{}` like this; take {}",
            self.medium.name(),
            known.join(" or ")
        )))
    }

    /// For tables that take nothing but words.
    ///
    /// # Errors
    /// `Config` if byte strings are asked for.
    pub(crate) fn words_only(&self, index: &str) -> Result<(), LabError> {
        match self.shape {
            None => Ok(()),
            Some(_) => Err(LabError::Config(format!(
                "{index} takes keys and values of 8 bytes and no others; leave out the lengths"
            ))),
        }
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

#[cfg(feature = "stores")]
const STORES: &[Entry] = &crate::stores::ENTRIES;
#[cfg(not(feature = "stores"))]
const STORES: &[Entry] = &[];

/// Every table that can be measured.
pub fn subjects() -> Vec<Entry> {
    let indexes =
        [&crate::indexed::ENTRIES[..], &crate::ablated::ENTRIES, &crate::indexed::SEGMENTS];
    let ours = [indexes.concat(), crate::evermap::ENTRIES.to_vec(), vec![crate::ordered::ENTRY]];
    let theirs = [&crate::hikv::ENTRIES[..], &crate::reference::ENTRIES, RIVALS, STORES];
    [ours.concat(), theirs.concat(), crate::plugin::entries()].concat()
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

    #[test]
    fn answers_are_compared_as_far_as_they_say_something() {
        assert!(Found::Absent.agrees(None) && !Found::Absent.agrees(Some(1)));
        assert!(Found::Present.agrees(Some(1)) && !Found::Present.agrees(None));
        assert!(Found::Word(1).agrees(Some(1)));
        assert!(!Found::Word(1).agrees(Some(2)) && !Found::Word(1).agrees(None));
        assert!(Found::Unsaid.agrees(None) && !Found::Garbled.agrees(Some(1)));
    }
}
