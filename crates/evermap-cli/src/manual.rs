//! The manual page, and completions for shells: both are made from the command's own arguments.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::failure::Failure;

/// Write completions of commands, options and files for a shell to standard output
///
/// For bash: evermap completions bash > ~/.local/share/bash-completion/completions/evermap
#[derive(Args)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self, mut command: Command) -> Result<ExitCode, Failure> {
        let mut completions = Vec::new();
        clap_complete::generate(self.shell, &mut command, "evermap", &mut completions);
        print(&completions)
    }
}

/// Write the manual page to standard output
///
/// With --all, writes a page for the command and one for each of its commands into a folder.
#[derive(Args)]
pub(crate) struct Man {
    /// Write all pages into this folder, as evermap.1, evermap-serve.1 and so on
    #[arg(long, value_name = "FOLDER")]
    all: Option<PathBuf>,
}

impl Man {
    pub(crate) fn run(self, command: Command) -> Result<ExitCode, Failure> {
        match self.all {
            Some(folder) => {
                let what = || format!("writing pages into {}", folder.display());
                let failed = |source| Failure::Io { what: what(), source };
                std::fs::create_dir_all(&folder).map_err(failed)?;
                clap_mangen::generate_to(command, &folder).map_err(failed)?;
                Ok(ExitCode::SUCCESS)
            }
            None => {
                let mut page = Vec::new();
                clap_mangen::Man::new(command).render(&mut page).map_err(Failure::Output)?;
                print(&page)
            }
        }
    }
}

fn print(text: &[u8]) -> Result<ExitCode, Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text).and_then(|()| out.flush()).map_err(Failure::Output)?;
    Ok(ExitCode::SUCCESS)
}
