//! `evermap dump`

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use crate::failure::Failure;
use crate::format::Format;
use crate::open::StoreArguments;
use crate::{DONE, NO};

/// Write all records to standard output, one in each line
///
/// In no particular order, in a form that `evermap load` reads. Records that are damaged are told of and
/// left out, and the answer is 1 if there were any.
#[derive(clap::Args)]
pub(crate) struct Dump {
    #[command(flatten)]
    store: StoreArguments,
    /// What the lines are
    #[arg(long, value_enum, default_value = "tsv")]
    format: Format,
}

impl Dump {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let map = self.store.open()?;
        let mut out = BufWriter::with_capacity(1 << 20, io::stdout().lock());
        let (mut line, mut written, mut damaged) = (Vec::new(), Ok(()), 0u64);
        let walked = map.for_each(|item| {
            match item {
                Ok(item) => {
                    line.clear();
                    self.format.append(&item, &mut line);
                    written = out.write_all(&line);
                }
                Err(error) => {
                    damaged += 1;
                    let _ = writeln!(io::stderr(), "evermap: {error}");
                }
            }
            written.is_ok()
        });
        let written = written.and_then(|()| out.flush());
        // In order too where nobody reads on.
        map.close()?;
        walked?;
        written.map_err(Failure::Output)?;
        Ok(if damaged == 0 { DONE } else { NO })
    }
}
