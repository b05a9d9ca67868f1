//! The server that is watched, and what it takes to talk to it.

use std::io;
use std::path::{Path, PathBuf};

use super::connection::Connection;
#[cfg(feature = "tls")]
use super::tls::{Tls, TlsArguments};
use crate::failure::Failure;

/// The maximum length of the name and the password together, in bytes; the server accepts no more.
const CREDENTIALS_MAX: usize = 2046;

/// The server that a command talks to.
#[derive(clap::Args)]
pub(super) struct TargetArguments {
    /// Host and port of the server, or the path of its unix socket (with a slash)
    #[arg(value_name = "ADDRESS", default_value = "127.0.0.1:11211")]
    address: String,
    /// File with a line `user:password`, of which the first is used to authenticate
    #[arg(long, value_name = "FILE")]
    auth_file: Option<PathBuf>,
    #[cfg(feature = "tls")]
    #[command(flatten)]
    tls: TlsArguments,
}

/// A server, with all that was read from files.
pub(super) struct Target {
    address: String,
    /// The name and the password, with a space between them.
    credentials: Option<String>,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

impl TargetArguments {
    /// Reads the files.
    pub(super) fn read(&self) -> Result<Target, Failure> {
        Ok(Target {
            address: self.address.clone(),
            credentials: self.auth_file.as_deref().map(read_credentials).transpose()?,
            #[cfg(feature = "tls")]
            tls: self.tls.read(&self.address)?,
        })
    }
}

impl Target {
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Connects and authenticates.
    pub(super) fn connect(&self) -> io::Result<Connection> {
        #[cfg(feature = "tls")]
        let opened = match &self.tls {
            Some(tls) => Connection::open_with(&self.address, |stream| tls.connect(stream)),
            None => Connection::open(&self.address),
        };
        #[cfg(not(feature = "tls"))]
        let opened = Connection::open(&self.address);
        let mut connection = opened?;
        if let Some(credentials) = &self.credentials {
            connection.authenticate(credentials)?;
        }
        Ok(connection)
    }
}

/// Reads the first name and password of a file.
fn read_credentials(path: &Path) -> Result<String, Failure> {
    let what = || path.display().to_string();
    let text =
        std::fs::read_to_string(path).map_err(|source| Failure::Io { what: what(), source })?;
    let pair = text.lines().find_map(|line| line.split_once(':'));
    let credentials = pair.map(|(user, password)| format!("{user} {password}"));
    credentials.filter(|credentials| credentials.len() <= CREDENTIALS_MAX).ok_or_else(|| {
        Failure::other(format!("{}: has no line user:password that a server accepts", what()))
    })
}
