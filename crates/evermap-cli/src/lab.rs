//! `evermap lab`: runs the program `evermap-lab`, which is built separately.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use clap::Args;
use signal_hook::consts::SIGPIPE;

use crate::failure::Failure;

/// The name of the program. It is searched for in the directory of this program, then on the path.
const PROGRAM: &str = "evermap-lab";

/// Benchmark Evermap and other indexes and stores (runs the program `evermap-lab`)
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Lab {
    /// Arguments for `evermap-lab`; `evermap lab --help` lists them
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl Lab {
    /// Replaces this process by `evermap-lab`. Returns only if that fails.
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let beside = std::env::current_exe().ok().map(|own| own.with_file_name(PROGRAM));
        let program =
            beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(PROGRAM));
        let error = Command::new(&program).args(self.arguments).exec();
        // `exec` leaves SIGPIPE as other programs expect it, and it would end this one if standard
        // error is closed. A handler makes writing fail instead, which is ignored.
        let _ = signal_hook::flag::register(SIGPIPE, Arc::default());
        Err(match error.kind() {
            std::io::ErrorKind::NotFound => Failure::other(
                "cannot find the program `evermap-lab`, neither in the directory of this program \
                 nor on the path: build it with `cargo build --release -p evermap-lab`, or install \
                 it with `cargo install --path crates/evermap-lab`",
            ),
            _ => Failure::Io { what: program.display().to_string(), source: error },
        })
    }
}
