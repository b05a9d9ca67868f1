//! `evermap get`, `put` and `del`: commands on one key.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use evermap::IndexKind;

use crate::failure::Failure;
use crate::open::MapArguments;
use crate::{NEGATIVE, SUCCESS};

/// Write the value of a key to standard output
///
/// Writes exactly the bytes of the value, followed by a line end only on a terminal. The exit code
/// is 1 if there is no such key.
#[derive(clap::Args)]
pub(crate) struct Get {
    #[command(flatten)]
    pub(crate) store: MapArguments,
    /// Key, taken byte by byte
    key: OsString,
}

impl Get {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let map = self.store.open_to_read()?;
        let value = map.get(self.key.as_bytes())?;
        map.into_db().close()?;
        let Some(mut value) = value else { return Ok(NEGATIVE) };
        let mut out = io::stdout();
        if out.is_terminal() {
            value.push(b'\n');
        }
        out.write_all(&value).and_then(|()| out.flush()).map_err(Failure::Output)?;
        Ok(SUCCESS)
    }
}

/// Store a value under a key
///
/// Creates the store if there is none. Replaces the value if the key exists.
#[derive(clap::Args)]
pub(crate) struct Put {
    #[command(flatten)]
    pub(crate) store: MapArguments,
    /// Key, taken byte by byte
    key: OsString,
    /// Value, taken byte by byte; read from standard input if missing or `-`
    value: Option<OsString>,
}

impl Put {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        // Read the value before opening the store, so that other processes can use the store while
        // this one waits for input.
        let value = match &self.value {
            Some(value) if value != "-" => value.as_bytes().to_vec(),
            _ => read_input()?,
        };
        let map = self.store.open_or_create(IndexKind::default())?;
        map.put(self.key.as_bytes(), &value)?;
        map.into_db().close()?;
        Ok(SUCCESS)
    }
}

/// Reads a value from standard input.
fn read_input() -> Result<Vec<u8>, Failure> {
    let mut value = Vec::new();
    // One byte more than the maximum, so that a longer value is rejected and not truncated.
    let limit = evermap::VALUE_MAX as u64 + 1;
    io::stdin()
        .lock()
        .take(limit)
        .read_to_end(&mut value)
        .map_err(|source| Failure::Io { what: "standard input".into(), source })?;
    Ok(value)
}

/// Remove a key and its value
///
/// The exit code is 1 if there is no such key.
#[derive(clap::Args)]
pub(crate) struct Del {
    #[command(flatten)]
    pub(crate) store: MapArguments,
    /// Key, taken byte by byte
    key: OsString,
}

impl Del {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let map = self.store.open()?;
        let removed = map.delete(self.key.as_bytes())?;
        map.into_db().close()?;
        Ok(if removed { SUCCESS } else { NEGATIVE })
    }
}
