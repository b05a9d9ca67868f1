//! `evermap dump`

use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;

use evermap::Item;

use crate::failure::Failure;
use crate::format::Format;
use crate::open::MapArguments;
use crate::{DONE, NO};

/// Write all records to standard output, one in each line
///
/// In no particular order, in a form that `evermap load` reads. Records that are damaged are told of and
/// left out, and the answer is 1 if there were any.
#[derive(clap::Args)]
pub(crate) struct Dump {
    #[command(flatten)]
    store: MapArguments,
    /// What the lines are
    #[arg(long, value_enum, default_value = "tsv")]
    format: Format,
}

impl Dump {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let map = self.store.open()?;
        let mut output = Output::new(self.format);
        let walked = map.for_each(|item| output.write(item));
        let answer = output.finish();
        // In order too where nobody reads on.
        map.into_db().close()?;
        walked?;
        answer
    }
}

/// Records on their way to standard output.
pub(crate) struct Output {
    format: Format,
    out: BufWriter<io::StdoutLock<'static>>,
    line: Vec<u8>,
    written: io::Result<()>,
    damaged: u64,
}

impl Output {
    pub(crate) fn new(format: Format) -> Self {
        let out = BufWriter::with_capacity(1 << 20, io::stdout().lock());
        Output { format, out, line: Vec::new(), written: Ok(()), damaged: 0 }
    }

    /// Writes a record as a line, or reports its damage. Breaks if the output takes no more.
    pub(crate) fn write(&mut self, item: evermap::Result<Item<'_>>) -> ControlFlow<()> {
        match item {
            Ok(item) => {
                self.line.clear();
                self.format.append(&item, &mut self.line);
                self.written = self.out.write_all(&self.line);
            }
            Err(error) => {
                self.damaged += 1;
                let _ = writeln!(io::stderr(), "evermap: {error}");
            }
        }
        if self.written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    /// Writes what is left, and answers whether all records were sound.
    pub(crate) fn finish(mut self) -> Result<ExitCode, Failure> {
        self.written.and_then(|()| self.out.flush()).map_err(Failure::Output)?;
        Ok(if self.damaged == 0 { DONE } else { NO })
    }
}
