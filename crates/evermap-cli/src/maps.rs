//! `evermap maps` and `drop`: the named maps of a store.

use std::process::ExitCode;

use crate::failure::Failure;
use crate::format::in_one_line;
use crate::inspect::say;
use crate::open::StoreArguments;
use crate::{DONE, NO};

/// Write the names of the named maps in a store to standard output, one in each line
///
/// Tabs, line ends and the like are written as in dumps: \t \n \r \\ \xNN.
#[derive(clap::Args)]
pub(crate) struct Maps {
    #[command(flatten)]
    store: StoreArguments,
}

impl Maps {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let store = self.store.open()?;
        let names = store.maps()?;
        store.close()?;
        names.iter().try_for_each(|name| say(&in_one_line(name)))?;
        Ok(DONE)
    }
}

/// Drop a named map with everything in it
///
/// Answers 1 if there is no such map.
#[derive(clap::Args)]
pub(crate) struct Drop {
    #[command(flatten)]
    store: StoreArguments,
    /// Name of the map
    name: String,
}

impl Drop {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let store = self.store.open()?;
        let dropped = store.drop_map(&self.name)?;
        store.close()?;
        Ok(if dropped { DONE } else { NO })
    }
}
