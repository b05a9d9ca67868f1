//! What a subject is built from.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use evermap_pm::medium::{Pages, Speed};

use super::facts::MediumKind;
use crate::workload::bytes::{KeyValueLengths, mean_bytes};
use crate::{LabError, machine};

/// The parameters of a new subject.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Where persistent indexes are stored.
    pub medium: MediumKind,
    /// The directory for their files.
    pub location: PathBuf,
    /// The requested page size.
    pub pages: Pages,
    /// The largest number of keys that the table will hold.
    pub keys: u64,
    /// Whether the table starts at its final size, if it can.
    pub presize: bool,
    /// Whether anonymous memory has its pages before the table uses them.
    pub populate: bool,
    /// Whether the medium counts; see [`Subject::counts`](super::view::Subject::counts).
    pub counted: bool,
    /// The speed of the emulated medium.
    pub speed: Speed,
    /// Lengths of keys and values; `None` for keys and values of one word.
    pub lengths: Option<KeyValueLengths>,
    /// The file of the table, on media that are files.
    pub file: File,
}

/// The file of a table, or the directory of a store that has several files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum File {
    /// A file that is removed from its directory immediately, and freed with the table.
    #[default]
    Nameless,
    /// The file at this path, which must not exist yet, and which is kept.
    New(PathBuf),
    /// The file at this path, which an equal table has left behind.
    Existing(PathBuf),
}

/// Bytes of memory that the largest table and the driver take for one key.
const BYTES_PER_KEY: u64 = 128;

impl Setup {
    /// Creates the setup of a table for `keys` keys that starts small and counts nothing. The
    /// emulated medium is as fast as most of the literature assumes.
    ///
    /// The location defaults to `/dev/shm` if that is a directory, otherwise to the system's
    /// temporary directory.
    ///
    /// # Errors
    ///
    /// `Config` if there are no keys, if they would not fit into memory, or if the location is
    /// needed and is not a directory.
    pub fn new(
        medium: MediumKind,
        location: Option<PathBuf>,
        pages: Pages,
        keys: u64,
        lengths: Option<KeyValueLengths>,
    ) -> Result<Self, LabError> {
        if keys == 0 {
            return Err(LabError::Config("there must be at least one key".into()));
        }
        let each = BYTES_PER_KEY + lengths.map_or(0, |lengths| 3 * mean_bytes(lengths) as u64);
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
            populate: false,
            counted: false,
            speed: Speed::CUSTOMARY,
            lengths,
            file: File::Nameless,
        })
    }

    /// Checks that the medium is one of `media`, for subjects that support no others.
    ///
    /// # Errors
    ///
    /// `Config` if it is not.
    pub fn media_only(&self, index: &str, media: &[MediumKind]) -> Result<(), LabError> {
        if media.contains(&self.medium) {
            return Ok(());
        }
        let known: Vec<_> = media.iter().map(|medium| medium.name()).collect();
        Err(LabError::Config(format!(
            "{index} does not support medium `{}` here; take {}",
            self.medium.name(),
            known.join(" or ")
        )))
    }

    /// Checks that keys and values are words, for subjects that support nothing else.
    ///
    /// # Errors
    ///
    /// `Config` if they are byte strings.
    pub fn words_only(&self, index: &str) -> Result<(), LabError> {
        match self.lengths {
            None => Ok(()),
            Some(_) => Err(LabError::Config(format!(
                "{index} only takes keys and values of 8 bytes; leave out the lengths"
            ))),
        }
    }

    /// Checks that values are words, or byte strings of that length, for subjects that take keys of
    /// any length.
    ///
    /// # Errors
    ///
    /// `Config` if they are not.
    pub fn word_values_only(&self, index: &str) -> Result<(), LabError> {
        match self.lengths {
            Some(lengths) if lengths.values.bounds() != (8, 8) => {
                Err(LabError::Config(format!("{index} only takes values of 8 bytes")))
            }
            _ => Ok(()),
        }
    }
}

/// Returns a path in `directory` that does not exist.
pub fn unique_path(directory: &Path) -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Relaxed);
    directory.join(format!("evermap-lab-{}-{number}", std::process::id()))
}
