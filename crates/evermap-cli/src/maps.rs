//! `evermap maps` and `drop`: the named maps of a store.

use std::process::ExitCode;

use crate::failure::Failure;
use crate::format::escape_line;
use crate::open::StoreArguments;
use crate::print::print_line;
use crate::{NEGATIVE, SUCCESS};

/// Print the names of the named maps of a store, one per line
///
/// Control characters and backslashes are escaped as in dumps: \t \n \r \\ \xNN.
#[derive(clap::Args)]
pub(crate) struct Maps {
    #[command(flatten)]
    pub(crate) store: StoreArguments,
}

impl Maps {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let store = self.store.open_to_read()?;
        let names = store.maps()?;
        store.close()?;
        names.iter().try_for_each(|name| print_line(&escape_line(name)))?;
        Ok(SUCCESS)
    }
}

/// Delete a named map and all its records
///
/// The exit code is 1 if there is no such map.
#[derive(clap::Args)]
pub(crate) struct Drop {
    #[command(flatten)]
    pub(crate) store: StoreArguments,
    /// Name of the map
    name: String,
}

impl Drop {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let store = self.store.open()?;
        let dropped = store.drop_map(&self.name)?;
        store.close()?;
        Ok(if dropped { SUCCESS } else { NEGATIVE })
    }
}
