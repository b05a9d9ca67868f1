//! `evermap get`, `put` and `del`: one record at a time.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use evermap::IndexKind;

use crate::failure::Failure;
use crate::open::MapArguments;
use crate::{DONE, NO};

/// Write the value of a key to standard output
///
/// Exactly the bytes of the value, with a line end after them only on a terminal. Answers 1 if there is no
/// such key.
#[derive(clap::Args)]
pub(crate) struct Get {
    #[command(flatten)]
    store: MapArguments,
    /// Key, taken byte by byte
    key: OsString,
}

impl Get {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let map = self.store.open()?;
        let value = map.get(self.key.as_bytes())?;
        map.into_db().close()?;
        let Some(mut value) = value else { return Ok(NO) };
        let mut out = io::stdout();
        if out.is_terminal() {
            value.push(b'\n');
        }
        out.write_all(&value).and_then(|()| out.flush()).map_err(Failure::Output)?;
        Ok(DONE)
    }
}

/// Bind a key to a value
///
/// Makes the store if there is none.
#[derive(clap::Args)]
pub(crate) struct Put {
    #[command(flatten)]
    store: MapArguments,
    /// Key, taken byte by byte
    key: OsString,
    /// Value, taken byte by byte; from standard input if missing or `-`
    value: Option<OsString>,
}

impl Put {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        // Before the store is opened, so that nobody is locked out while we wait for the value.
        let value = match &self.value {
            Some(value) if value != "-" => value.as_bytes().to_vec(),
            _ => read_input()?,
        };
        let map = self.store.open_or_create(IndexKind::default())?;
        map.put(self.key.as_bytes(), &value)?;
        map.into_db().close()?;
        Ok(DONE)
    }
}

/// Standard input, as far as it may be a value.
fn read_input() -> Result<Vec<u8>, Failure> {
    let mut value = Vec::new();
    // One byte more, so that a value that is too long is refused rather than cut off.
    let most = evermap::VALUE_MAX as u64 + 1;
    io::stdin()
        .lock()
        .take(most)
        .read_to_end(&mut value)
        .map_err(|source| Failure::Io { what: "standard input".into(), source })?;
    Ok(value)
}

/// Remove a key
///
/// Answers 1 if there is no such key.
#[derive(clap::Args)]
pub(crate) struct Del {
    #[command(flatten)]
    store: MapArguments,
    /// Key, taken byte by byte
    key: OsString,
}

impl Del {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let map = self.store.open()?;
        let removed = map.remove(self.key.as_bytes())?;
        map.into_db().close()?;
        Ok(if removed { DONE } else { NO })
    }
}
