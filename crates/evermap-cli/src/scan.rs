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

/// Write the records of a range of keys to standard output, in the order of their keys
///
/// Keys are ordered byte by byte. The lines are those of `evermap dump`. The store is put in order first, which takes
/// some hundred nanoseconds for each of all its records.
#[derive(clap::Args)]
pub(crate) struct Scan {
    #[command(flatten)]
    store: MapArguments,
    /// Only keys that begin so
    #[arg(long, value_name = "P")]
    prefix: Option<OsString>,
    /// Only from this key on
    #[arg(long, value_name = "K", conflicts_with = "prefix")]
    from: Option<OsString>,
    /// Only to this key, itself left out
    #[arg(long, value_name = "K", conflicts_with = "prefix")]
    to: Option<OsString>,
    /// From the last key down to the first
    #[arg(long)]
    reverse: bool,
    /// At most so many records
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    limit: u64,
    /// What the lines are
    #[arg(long, value_enum, default_value = "tsv")]
    format: Format,
}

impl Scan {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let map = self.store.open_ordered()?;
        let mut output = Output::new(self.format);
        let scanned = map.scan(self.range()).and_then(|scan| {
            let scan = if self.reverse { scan.reverse() } else { scan };
            scan.limit(self.limit).visit(|item| output.write(item))
        });
        let answer = output.finish();
        // In order too where nobody reads on.
        map.into_db().close()?;
        scanned?;
        answer
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
