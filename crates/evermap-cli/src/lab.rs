//! `evermap lab`: hands over to the program `evermap-lab`, which is built separately.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Args;

use crate::failure::Failure;

/// The program, looked for beside this one first and then on the path.
const PROGRAM: &str = "evermap-lab";

/// Measure indexes and stores, ours and others' (by the program `evermap-lab`)
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Lab {
    /// What `evermap-lab` is to do; `evermap lab --help` lists it
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl Lab {
    /// Becomes `evermap-lab`; returns only if it cannot be started.
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let beside = std::env::current_exe().ok().map(|own| own.with_file_name(PROGRAM));
        let program =
            beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(PROGRAM));
        let error = Command::new(&program).args(self.arguments).exec();
        Err(match error.kind() {
            std::io::ErrorKind::NotFound => Failure::other(
                "the laboratory is a program of its own, and `evermap-lab` is neither beside this \
                 one nor on the path: build it with `cargo build --release -p evermap-lab`, or \
                 install it with `cargo install --path crates/evermap-lab`",
            ),
            _ => Failure::Io { what: program.display().to_string(), source: error },
        })
    }
}
