//! Opening a store as the command line says.

use std::path::PathBuf;

use clap::ValueEnum;
use evermap::{Evermap, IndexKind, Map, MapOptions, Options};

use crate::failure::Failure;

/// Which store, for commands that use one and end.
#[derive(clap::Args)]
pub(crate) struct StoreArguments {
    /// File of the store
    pub(crate) path: PathBuf,
    #[command(flatten)]
    suspect: SuspectArguments,
}

/// Which map of it.
#[derive(clap::Args)]
pub(crate) struct MapArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// The named map to use, instead of the store's default one
    #[arg(long, value_name = "NAME")]
    map: Option<String>,
}

/// What to do about a file whose contents cannot be trusted.
#[derive(clap::Args)]
pub(crate) struct SuspectArguments {
    /// What to do with a store whose contents cannot be trusted: the machine was restarted, or the file was
    /// copied, while the store was open; or the file was cut off, or is damaged. A file that is not a store
    /// is never overwritten
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    on_suspect: OnSuspect,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum OnSuspect {
    /// Say so and leave the file alone
    #[default]
    Refuse,
    /// Open it, and do without what is lost; loses nothing if the machine was shut down in order
    Salvage,
    /// Start empty: everything that was in it is gone. A store that can be trusted is kept
    Discard,
}

impl SuspectArguments {
    pub(crate) fn apply(&self, options: Options) -> Options {
        options.on_suspect(match self.on_suspect {
            OnSuspect::Refuse => evermap::OnSuspect::Refuse,
            OnSuspect::Salvage => evermap::OnSuspect::Salvage,
            OnSuspect::Discard => evermap::OnSuspect::Discard,
        })
    }
}

impl StoreArguments {
    /// Opens a store that must be there.
    pub(crate) fn open(&self) -> Result<Evermap, Failure> {
        self.open_with(Options::new().create(false))
    }

    fn open_with(&self, options: Options) -> Result<Evermap, Failure> {
        Ok(Evermap::open(&self.path, self.suspect.apply(options))?)
    }
}

impl MapArguments {
    /// Opens a map that must be there.
    pub(crate) fn open(&self) -> Result<Map, Failure> {
        self.map_of(self.store.open()?, false)
    }

    /// Opens a map that must be there, with an ordered index.
    pub(crate) fn open_ordered(&self) -> Result<Map, Failure> {
        self.map_of(self.store.open_with(Options::new().create(false).ordered(true))?, false)
    }

    /// Opens a map, or makes it and the store with such an index.
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

/// A number of bytes, with a unit of 1024 if any.
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
        .ok_or_else(|| "a size is a number of bytes, or of K, M, G or T, as 512M".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
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
