//! `evermap scan`

use std::ffi::OsString;
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use evermap::KeyRange;

use crate::dump::Output;
use crate::failure::Failure;
use crate::format::Format;
use crate::open::MapArguments;

/// Write the records of a range of keys to standard output, in key order
///
/// Keys are ordered byte by byte. The lines have the format of `evermap dump`. Unless the file has
/// the order, the ordered index is built first, which takes some hundred nanoseconds for each
/// record of the map. The exit code is 1 if something could not be read, as for `evermap dump`.
#[derive(clap::Args)]
pub(crate) struct Scan {
    #[command(flatten)]
    pub(crate) store: MapArguments,
    /// Only keys with this prefix
    #[arg(long, value_name = "P")]
    prefix: Option<OsString>,
    /// First key of the range
    #[arg(long, value_name = "K", conflicts_with = "prefix")]
    from: Option<OsString>,
    /// End of the range: only keys below this one
    #[arg(long, value_name = "K", conflicts_with = "prefix")]
    to: Option<OsString>,
    /// Write the records in descending order
    #[arg(long)]
    reverse: bool,
    /// Maximum number of records
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    limit: u64,
    /// Format of the lines
    #[arg(long, value_enum, default_value = "tsv")]
    format: Format,
}

impl Scan {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let map = self.store.open_ordered()?;
        let mut output = Output::new(self.format, self.store.path());
        let scanned = map.scan(self.range()).and_then(|scan| {
            let scan = if self.reverse { scan.reverse() } else { scan };
            scan.limit(self.limit).visit(|item| output.write(item))
        });
        let result = output.finish(&map);
        map.into_db().close()?;
        scanned?;
        result
    }

    fn range(&self) -> KeyRange {
        let key = |key: &OsString| key.as_bytes().to_vec();
        match &self.prefix {
            Some(prefix) => KeyRange::prefix(prefix.as_bytes()),
            None => KeyRange::new(
                self.from.as_ref().map_or(Bound::Unbounded, |from| Bound::Included(key(from))),
                self.to.as_ref().map_or(Bound::Unbounded, |to| Bound::Excluded(key(to))),
            ),
        }
    }
}
