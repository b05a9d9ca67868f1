//! What a subject reports about itself: its size, its counters, and where it is stored.

use std::path::PathBuf;
use std::str::FromStr;

use crate::LabError;

/// The size and the load of a table. A field is `None` if the table does not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Size {
    /// The number of pairs.
    pub len: Option<u64>,
    /// The number of pairs divided by the number of slots, 0 to 1.
    pub load_factor: Option<f64>,
    /// Bytes in ordinary memory.
    pub dram_bytes: Option<u64>,
    /// Bytes in the medium.
    pub pm_bytes: Option<u64>,
    /// How pairs are spread, of tables that have tranches.
    pub placement: Option<Placement>,
}

/// How pairs are spread over the tranches of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Placement {
    /// The share of the pairs that are not in their home tranche.
    pub displaced: f64,
    /// Tranches that a lookup of a present key parses, on average.
    pub tranches_per_hit: f64,
    /// Tranches that a lookup of an absent key parses, on average.
    pub tranches_per_miss: f64,
}

/// The events that a counting medium has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Flushed lines.
    pub flushes: u64,
    /// Fences.
    pub fences: u64,
    /// Lines read, each counted once per operation.
    pub lines_read: u64,
    /// Lines written, each counted once per operation.
    pub lines_written: u64,
    /// Blocks of 256 bytes read, each counted once per operation: the unit in which some persistent
    /// memory reads.
    pub blocks_read: u64,
    /// Blocks of 256 bytes written, each counted once per operation.
    pub blocks_written: u64,
    /// Lookups that a cache in front of the store has answered.
    pub cache_hits: u64,
}

impl Counts {
    /// Returns the events counted after `earlier` was read.
    pub fn since(self, earlier: Counts) -> Counts {
        Counts {
            flushes: self.flushes - earlier.flushes,
            fences: self.fences - earlier.fences,
            lines_read: self.lines_read - earlier.lines_read,
            lines_written: self.lines_written - earlier.lines_written,
            blocks_read: self.blocks_read - earlier.blocks_read,
            blocks_written: self.blocks_written - earlier.blocks_written,
            cache_hits: self.cache_hits - earlier.cache_hits,
        }
    }
}

impl From<evermap_pm::medium::Counts> for Counts {
    fn from(counts: evermap_pm::medium::Counts) -> Self {
        Counts {
            flushes: counts.lines_flushed,
            fences: counts.fences,
            lines_read: counts.lines_read,
            lines_written: counts.lines_written,
            blocks_read: counts.blocks_read,
            blocks_written: counts.blocks_written,
            cache_hits: 0,
        }
    }
}

/// The strongest failure that an acknowledged change survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Survives {
    /// None.
    Nothing,
    /// The death of the process.
    Process,
    /// Power loss, if the disk carries out its flushes.
    Power,
}

impl Survives {
    /// Returns the name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Survives::Nothing => "nothing",
            Survives::Process => "process",
            Survives::Power => "power",
        }
    }
}

/// Where a table is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The name of the medium.
    pub medium: String,
    /// The instruction or call that flushes, if the medium flushes.
    pub flush_kind: Option<String>,
    /// The directory, if the medium is a file.
    pub location: Option<PathBuf>,
    /// What acknowledged changes survive there.
    pub survives: Survives,
}

impl Default for Place {
    /// Returns ordinary memory.
    fn default() -> Self {
        Place {
            medium: MediumKind::Dram.name().to_owned(),
            flush_kind: None,
            location: None,
            survives: Survives::Nothing,
        }
    }
}

/// Where persistent indexes are stored. Tables of ordinary memory are never stored anywhere else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediumKind {
    /// Anonymous memory.
    Dram,
    /// A mapped file that survives the process: nothing is flushed.
    Process,
    /// The same file with every flush and fence carried out.
    Forced,
    /// `Forced`, delayed to the speed of persistent memory.
    Emulated,
    /// A file in persistent memory, mapped so that what is flushed survives power loss.
    Adr,
    /// The same where caches survive power loss too: nothing is flushed.
    Eadr,
}

impl MediumKind {
    /// Every medium.
    pub const ALL: [MediumKind; 6] = [
        MediumKind::Dram,
        MediumKind::Process,
        MediumKind::Forced,
        MediumKind::Emulated,
        MediumKind::Adr,
        MediumKind::Eadr,
    ];

    /// Returns the name used in reports and on command lines.
    pub fn name(self) -> &'static str {
        match self {
            MediumKind::Dram => "dram",
            MediumKind::Process => "process",
            MediumKind::Forced => "forced",
            MediumKind::Emulated => "emulated",
            MediumKind::Adr => "adr",
            MediumKind::Eadr => "eadr",
        }
    }

    /// Returns `true` if flushes and fences are carried out.
    pub fn flushes(self) -> bool {
        matches!(self, MediumKind::Forced | MediumKind::Emulated | MediumKind::Adr)
    }

    /// Returns `true` if it needs persistent memory.
    pub fn needs_persistent_memory(self) -> bool {
        matches!(self, MediumKind::Adr | MediumKind::Eadr)
    }

    /// Returns what an acknowledged change survives on it.
    pub fn survives(self) -> Survives {
        match self {
            MediumKind::Dram => Survives::Nothing,
            MediumKind::Process | MediumKind::Forced | MediumKind::Emulated => Survives::Process,
            MediumKind::Adr | MediumKind::Eadr => Survives::Power,
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
