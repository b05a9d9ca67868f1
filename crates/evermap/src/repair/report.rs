//! What a repair has found, and what it could not.

use std::fmt;
use std::ops::Range;

use crate::Error;
use crate::error::counted;

/// The number of lost parts and of notes that are described; the rest are counted.
const DESCRIBED: usize = 1000;

/// What a [`Repair`](super::Repair) has made, or would make, of a damaged store.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RepairReport {
    /// The default map, and the named ones in no particular order.
    pub maps: Vec<RepairedMap>,
    /// The parts of the file that could not be read, up to the first thousand.
    pub lost: Vec<LostPart>,
    /// The number of such parts, and of notes, beyond those.
    pub more_lost: u64,
    /// What else is lost, or is not certain, up to the first thousand.
    pub notes: Vec<String>,
}

/// What a [`Repair`](super::Repair) has found of one map.
///
/// Records that have expired, or were flushed, are none of these.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RepairedMap {
    /// Its name; `None` for the default map. A map whose name is lost has one made of the place of
    /// its descriptor.
    pub name: Option<String>,
    /// Records in the new store: all that the index of the map leads to and that verify.
    pub records: u64,
    /// Records that verify, but that may have been removed or replaced: nothing leads to them, or
    /// what decides about the whole map is lost. Of each key the newest, unless the new store has
    /// one that is as new.
    pub uncertain: u64,
    /// Records that the index leads to and that do not verify.
    pub unreadable: u64,
    /// Records that are none of these, and that were there at the last clean shutdown.
    pub missing: u64,
}

/// A part of a damaged file that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostPart {
    /// Where it is. Where its end is unknown, it ends after one word.
    pub bytes: Range<u64>,
    /// The map that it is a part of, if that is known and is not the default one.
    pub map: Option<String>,
    /// The key whose record it was, if that is known: up to 64 bytes, with unprintable ones
    /// escaped.
    pub key: Option<String>,
    /// What is wrong with it.
    pub why: String,
}

impl RepairedMap {
    fn is_complete(&self) -> bool {
        self.uncertain + self.unreadable + self.missing == 0
    }
}

impl RepairReport {
    /// Returns `true` if everything that was in the store is in the new one, as far as can be
    /// known.
    pub fn is_complete(&self) -> bool {
        self.lost.is_empty()
            && self.notes.is_empty()
            && self.maps.iter().all(RepairedMap::is_complete)
    }

    /// Returns the number of records in the new store.
    pub fn records(&self) -> u64 {
        self.maps.iter().map(|map| map.records).sum()
    }

    /// Adds something that concerns no single place.
    pub(super) fn note(&mut self, text: impl Into<String>) {
        match self.notes.len() {
            DESCRIBED.. => self.more_lost += 1,
            _ => self.notes.push(text.into()),
        }
    }

    pub(super) fn lose(&mut self, part: LostPart) {
        match self.lost.len() {
            DESCRIBED.. => self.more_lost += 1,
            _ => self.lost.push(part),
        }
    }

    /// Adds a block of which it is not known what it was a part of.
    pub(super) fn lose_block(&mut self, bytes: Range<u64>, why: &str) {
        self.lose(LostPart { bytes, map: None, key: None, why: why.into() });
    }

    /// Adds the part of a map that this error is about, if it is the default one or has a name.
    pub(super) fn lose_by(&mut self, map: Option<&str>, error: &Error) {
        let (at, why) = error.damage();
        self.lose(LostPart { bytes: at..at + 8, map: map.map(str::to_owned), key: None, why });
    }
}

impl fmt::Display for LostPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} to {:#x}: ", self.bytes.start, self.bytes.end)?;
        if let Some(map) = &self.map {
            write!(f, "map \"{}\": ", map.escape_debug())?;
        }
        if let Some(key) = &self.key {
            write!(f, "record of key \"{key}\": ")?;
        }
        f.write_str(&self.why)
    }
}

impl fmt::Display for RepairedMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            None => f.write_str("default map")?,
            Some(name) => write!(f, "map \"{}\"", name.escape_debug())?,
        }
        write!(f, ": {}", counted(self.records, "record"))?;
        let rest = [
            (self.uncertain, "uncertain"),
            (self.unreadable, "unreadable"),
            (self.missing, "missing"),
        ];
        for (count, what) in rest.iter().filter(|(count, _)| *count > 0) {
            write!(f, ", {count} {what}")?;
        }
        Ok(())
    }
}

impl fmt::Display for RepairReport {
    /// Writes a line for each lost part and each note, and then for each map.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.lost {
            writeln!(f, "{part}")?;
        }
        for note in &self.notes {
            writeln!(f, "{note}")?;
        }
        if self.more_lost > 0 {
            writeln!(f, "and {} more", self.more_lost)?;
        }
        for map in &self.maps {
            writeln!(f, "{map}")?;
        }
        let verdict = if self.is_complete() { "complete" } else { "not complete" };
        write!(f, "{verdict}: {}", counted(self.records(), "record"))
    }
}
