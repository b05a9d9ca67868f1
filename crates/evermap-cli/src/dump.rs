//! `evermap dump`

use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

use evermap::{DamageMark, Item, Map};

use crate::failure::{Failure, describe, warn};
use crate::format::Format;
use crate::open::MapArguments;
use crate::{NEGATIVE, SUCCESS};

/// Write all records to standard output, one per line
///
/// The records are in no particular order, in a format that `evermap load` reads. Damaged records
/// are reported on standard error and left out; the exit code is 1 if there are any, or if the
/// store has more records than could be found.
#[derive(clap::Args)]
pub(crate) struct Dump {
    #[command(flatten)]
    pub(crate) store: MapArguments,
    /// Format of the lines
    #[arg(long, value_enum, default_value = "tsv")]
    format: Format,
}

impl Dump {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let map = self.store.open_to_read()?;
        let mut output = Output::new(self.format, self.store.path());
        let iterated = map.for_each(|item| output.write(item));
        let result = output.finish(&map);
        map.into_db().close()?;
        iterated?;
        result
    }
}

/// Writes records to standard output.
pub(crate) struct Output<'a> {
    format: Format,
    /// The file of the store.
    path: &'a Path,
    out: BufWriter<io::StdoutLock<'static>>,
    line: Vec<u8>,
    written: io::Result<()>,
    damaged: u64,
}

impl<'a> Output<'a> {
    pub(crate) fn new(format: Format, path: &'a Path) -> Self {
        let out = BufWriter::with_capacity(1 << 20, io::stdout().lock());
        Output { format, path, out, line: Vec::new(), written: Ok(()), damaged: 0 }
    }

    /// Writes a record as a line, or reports that it is damaged. Returns `Break` if the output
    /// cannot be written any more.
    pub(crate) fn write(&mut self, item: evermap::Result<Item<'_>>) -> ControlFlow<()> {
        match item {
            Ok(item) => {
                self.line.clear();
                self.format.append(&item, &mut self.line);
                self.written = self.out.write_all(&self.line);
            }
            Err(error) => {
                self.damaged += 1;
                warn(describe(&error, self.path));
            }
        }
        if self.written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    /// Writes what is left in the buffer. Returns the exit code for what was written: 1 if a record
    /// was damaged.
    pub(crate) fn finish(mut self, map: &Map) -> Result<ExitCode, Failure> {
        self.written.and_then(|()| self.out.flush()).map_err(Failure::Output)?;
        if self.damaged == 0 && map.stat().damage > DamageMark::None {
            // It is never closed as clean, so the number of records is unknown.
            let path = self.path.display();
            warn(format_args!(
                "{path}: the file is marked as damaged, and records may be missing; `evermap check \
                 --deep {path}` describes the damage"
            ));
        }
        Ok(if self.damaged == 0 { SUCCESS } else { NEGATIVE })
    }
}
