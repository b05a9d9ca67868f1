//! The `evermap` command.

mod dump;
mod failure;
mod format;
mod inspect;
mod lab;
mod load;
mod maps;
mod open;
mod scan;
mod serve;
mod single;
mod watch;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use failure::Failure;

/// Everything is well.
const DONE: ExitCode = ExitCode::SUCCESS;
/// The answer is no: there is no such key, or something is wrong with the store or the input.
const NO: ExitCode = ExitCode::FAILURE;

/// A key-value store that is still there after the process is gone.
#[derive(Parser)]
#[command(name = "evermap", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(serve::Arguments),
    Get(single::Get),
    Put(single::Put),
    Del(single::Del),
    Load(load::Load),
    Dump(dump::Dump),
    Scan(scan::Scan),
    Maps(maps::Maps),
    Drop(maps::Drop),
    Stat(inspect::StatCommand),
    Check(inspect::Check),
    Lab(lab::Lab),
}

impl Command {
    fn run(self) -> Result<ExitCode, Failure> {
        match self {
            Command::Serve(arguments) => arguments.run().map(|()| DONE),
            Command::Get(arguments) => arguments.run(),
            Command::Put(arguments) => arguments.run(),
            Command::Del(arguments) => arguments.run(),
            Command::Load(arguments) => arguments.run(),
            Command::Dump(arguments) => arguments.run(),
            Command::Scan(arguments) => arguments.run(),
            Command::Maps(arguments) => arguments.run(),
            Command::Drop(arguments) => arguments.run(),
            Command::Stat(arguments) => arguments.run(),
            Command::Check(arguments) => arguments.run(),
            Command::Lab(arguments) => arguments.run(),
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // Where the system refuses, SIGBUS ends the process without a word.
    let _ = evermap::explain_bus_errors();
    arguments.command.run().unwrap_or_else(|failure| {
        if failure.is_closed_output() {
            // Whoever read our output has enough, as `head` does. That is no failure of ours.
            return DONE;
        }
        // If standard error is closed too, there is nobody left to tell.
        let _ = writeln!(std::io::stderr(), "evermap: {failure}");
        failure::EXIT_CODE.into()
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_arguments_do_not_contradict_each_other() {
        <super::Arguments as clap::CommandFactory>::command().debug_assert();
    }
}
