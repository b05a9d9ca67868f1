//! Opening a store according to the command line.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use evermap::{ErrorKind, Evermap, IndexKind, Map, MapOptions, Options};

use crate::failure::{Failure, warn};

/// The store that a command uses.
#[derive(clap::Args)]
pub(crate) struct StoreArguments {
    /// File of the store
    #[arg(value_name = "STORE")]
    path: PathBuf,
    /// What the file survives
    #[arg(long, value_enum, default_value_t, value_name = "LEVEL")]
    durability: Durability,
    /// Folder of the log, if the store has one that is not in <STORE>.log
    #[arg(long, value_name = "FOLDER")]
    log_folder: Option<PathBuf>,
    #[command(flatten)]
    suspect: SuspectArguments,
}

/// What a store survives.
#[derive(Clone, Copy, Default, PartialEq, ValueEnum)]
pub(crate) enum Durability {
    /// The end of the process at any instruction
    #[default]
    Process,
    /// Nothing: it is in memory without a file
    Volatile,
    /// Loss of power too: the file is on persistent memory
    Adr,
    /// Loss of power, where the contents of the processors' caches survive it
    Eadr,
    /// Loss of power, on any disk: changes are in a log beside the file, <STORE>.log
    Log,
}

impl From<Durability> for evermap::Durability {
    fn from(durability: Durability) -> Self {
        match durability {
            Durability::Process => evermap::Durability::Process,
            Durability::Volatile => evermap::Durability::Volatile,
            Durability::Adr => evermap::Durability::Adr,
            Durability::Eadr => evermap::Durability::Eadr,
            Durability::Log => evermap::Durability::Log,
        }
    }
}

/// The store and the map that a command uses.
#[derive(clap::Args)]
pub(crate) struct MapArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Named map to use instead of the default map of the store
    #[arg(long, value_name = "NAME")]
    map: Option<String>,
}

/// What to do with a file whose contents cannot be trusted.
#[derive(clap::Args)]
struct SuspectArguments {
    /// What to do with a store whose contents cannot be trusted: because the machine was restarted
    /// or the file was copied while the store was open, or because the file was truncated or is
    /// damaged. A file that is not a store is never overwritten
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    on_suspect: OnSuspect,
}

#[derive(Clone, Copy, Default, PartialEq, ValueEnum)]
pub(crate) enum OnSuspect {
    /// Report an error and leave the file unchanged
    #[default]
    Refuse,
    /// Open it and keep all records that can be verified; these are all if the machine was shut
    /// down normally
    Salvage,
    /// Delete all records and start with an empty store. A store that can be trusted is kept
    Discard,
}

impl OnSuspect {
    /// Returns the setting of the library.
    pub(crate) fn setting(self) -> evermap::OnSuspect {
        match self {
            OnSuspect::Refuse => evermap::OnSuspect::Refuse,
            OnSuspect::Salvage => evermap::OnSuspect::Salvage,
            OnSuspect::Discard => evermap::OnSuspect::Discard,
        }
    }
}

impl StoreArguments {
    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a store that must exist, to change it.
    pub(crate) fn open(&self) -> Result<Evermap, Failure> {
        self.open_with(Options::new().create(false))
    }

    /// Opens a store that must exist, to read it: the file is not changed.
    pub(crate) fn open_to_read(&self) -> Result<Evermap, Failure> {
        self.open_to_read_with(Options::new())
    }

    /// Opens a store that must exist, to read it, unless another process has it open.
    pub(crate) fn open_unshared(&self) -> Result<Evermap, Failure> {
        self.open_with(Options::new().create(false).read_only(true).beside_writers(false))
    }

    fn open_to_read_with(&self, options: Options) -> Result<Evermap, Failure> {
        let options = options.create(false);
        // What is to be discarded has to be changed for that.
        if self.suspect.on_suspect == OnSuspect::Discard {
            return self.open_with(options);
        }
        match self.open_with(options.clone().read_only(true)) {
            Ok(db) => {
                say_which_instant(&db);
                Ok(db)
            }
            // On hugetlbfs a file can only be opened for writing. Nowhere else is it possible then.
            Err(Failure::Store(error)) if error.kind() == ErrorKind::FileSystem => {
                self.open_with(options)
            }
            refused => refused,
        }
    }

    fn open_with(&self, options: Options) -> Result<Evermap, Failure> {
        let options = options
            .durability(self.durability.into())
            .on_suspect(self.suspect.on_suspect.setting());
        let options = match &self.log_folder {
            Some(folder) => options.log_folder(folder),
            None => options,
        };
        Ok(Evermap::open(&self.path, options)?)
    }
}

/// Says that what is read is a copy of a store that another process has open.
fn say_which_instant(db: &Evermap) {
    if let Some(instant) = db.instant() {
        let since = instant.duration_since(UNIX_EPOCH).unwrap_or_default();
        warn(format_args!(
            "reading a copy of the store, as it was at {}.{:03} seconds since 1970",
            since.as_secs(),
            since.subsec_millis()
        ));
    }
}

impl MapArguments {
    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &Path {
        self.store.path()
    }

    /// Opens a map that must exist, to change it.
    pub(crate) fn open(&self) -> Result<Map, Failure> {
        self.map_of(self.store.open()?, false)
    }

    /// Opens a map that must exist, to read it: the file is not changed.
    pub(crate) fn open_to_read(&self) -> Result<Map, Failure> {
        self.map_of(self.store.open_to_read()?, false)
    }

    /// Opens a map that must exist, with an ordered index, to read it.
    pub(crate) fn open_ordered(&self) -> Result<Map, Failure> {
        self.map_of(self.store.open_to_read_with(Options::new().ordered(true))?, false)
    }

    /// Opens a map. Creates the map and the store, with this kind of index, if they do not exist.
    pub(crate) fn open_or_create(&self, index: IndexKind) -> Result<Map, Failure> {
        self.map_of(self.store.open_with(Options::new().index(index))?, true)
    }

    fn map_of(&self, db: Evermap, create: bool) -> Result<Map, Failure> {
        match &self.map {
            None => Ok(db.default_map()),
            Some(name) => Ok(db.map(name, MapOptions::new().create(create))?),
        }
    }
}

/// Parses a number of bytes, with an optional unit that is a power of 1024.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    const UNITS: [(char, u32); 4] = [('k', 10), ('m', 20), ('g', 30), ('t', 40)];
    let lower = text.to_ascii_lowercase();
    let number = lower.strip_suffix("ib").unwrap_or(&lower);
    let (number, shift) = UNITS
        .iter()
        .find_map(|&(unit, shift)| Some((number.strip_suffix(unit)?, shift)))
        .unwrap_or((&lower, 0));
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift))
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| {
            "a size is a number of bytes with an optional unit K, M, G or T, for example 512M"
                .to_owned()
        })
}

/// Returns a parser for the name of a kind of index. The help text lists the names.
pub(crate) fn index_kind() -> impl TypedValueParser<Value = IndexKind> {
    let names = IndexKind::ALL.iter().map(|kind| kind.name());
    PossibleValuesParser::new(names).try_map(|name| name.parse::<IndexKind>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_and_without_units() {
        for (text, bytes) in [
            ("1", 1),
            ("65536", 65536),
            ("64K", 64 << 10),
            ("512m", 512 << 20),
            ("4G", 4 << 30),
            ("4GiB", 4 << 30),
            ("2Tib", 2 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for bad in ["", "0", "G", "1.5G", "-1", "1 G", "4GB", "1iB", "99999999999T", "0x10"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
