//! The `evermap` command.

mod backup;
mod counters;
mod dump;
mod failure;
mod format;
mod get_put_del;
mod inspect;
mod lab;
mod load;
mod manual;
mod maps;
mod monitor;
mod open;
mod print;
mod rejoin;
mod repair;
mod scan;
mod serve;
mod top;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use failure::Failure;

/// The exit code of a command that succeeded.
const SUCCESS: ExitCode = ExitCode::SUCCESS;
/// The exit code of a negative result: there is no such key, or the store or the input has
/// problems.
const NEGATIVE: ExitCode = ExitCode::FAILURE;

/// A key-value store whose contents survive the end of the process at any time.
#[derive(Parser)]
#[command(name = "evermap", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(Box<serve::Arguments>),
    Get(get_put_del::Get),
    Put(get_put_del::Put),
    Del(get_put_del::Del),
    Load(load::Load),
    Dump(dump::Dump),
    Scan(scan::Scan),
    Maps(maps::Maps),
    Drop(maps::Drop),
    Stat(inspect::StatCommand),
    Check(inspect::Check),
    Recover(inspect::Recover),
    Repair(repair::Repair),
    Backup(backup::Backup),
    Restore(backup::Restore),
    Top(top::Arguments),
    Lab(lab::Lab),
    Completions(manual::Completions),
    Man(manual::Man),
}

impl Command {
    fn run(self) -> Result<ExitCode, Failure> {
        match self {
            Command::Serve(arguments) => arguments.run().map(|()| SUCCESS),
            Command::Get(arguments) => at(arguments.store.path(), arguments.run()),
            Command::Put(arguments) => at(arguments.store.path(), arguments.run()),
            Command::Del(arguments) => at(arguments.store.path(), arguments.run()),
            Command::Load(arguments) => at(arguments.store.path(), arguments.run()),
            Command::Dump(arguments) => at(arguments.store.path(), arguments.run()),
            Command::Scan(arguments) => at(arguments.store.path(), arguments.run()),
            Command::Maps(arguments) => at(arguments.store.path(), arguments.run()),
            Command::Drop(arguments) => at(arguments.store.path(), arguments.run()),
            Command::Stat(arguments) => at(arguments.store.path(), arguments.run()),
            Command::Check(arguments) => at(arguments.store.path(), arguments.run()),
            Command::Recover(arguments) => at(arguments.store.path(), arguments.run()),
            Command::Repair(arguments) => at(arguments.path(), arguments.run()),
            Command::Backup(arguments) => at(arguments.store.path(), arguments.run()),
            Command::Restore(arguments) => arguments.run(),
            Command::Top(arguments) => arguments.run().map(|()| SUCCESS),
            Command::Lab(arguments) => arguments.run(),
            Command::Completions(arguments) => arguments.run(Arguments::command()),
            Command::Man(arguments) => arguments.run(Arguments::command()),
        }
    }
}

/// Returns the result of a command that used the store at `path`.
fn at(path: &Path, ended: Result<ExitCode, Failure>) -> Result<ExitCode, Failure> {
    ended.map_err(|failure| failure.at(path))
}

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    if words.next().is_some_and(|program| serve::memcached::is_called(&program)) {
        let _ = evermap::explain_bus_errors();
        return serve::memcached::main(words);
    }
    let run = |arguments: Arguments| {
        // If this fails, SIGBUS ends the process without a message.
        let _ = evermap::explain_bus_errors();
        arguments.command.run()
    };
    Arguments::try_parse().map_or_else(explain, run).unwrap_or_else(|failure| {
        if failure.is_closed_output() {
            // The reader closed its end early, as `head` does. That is not an error.
            return SUCCESS;
        }
        // If standard error is closed too, the message is lost.
        let _ = writeln!(std::io::stderr(), "evermap: {failure}");
        failure::EXIT_CODE.into()
    })
}

/// Prints the help or the version that was asked for, or what is wrong with the arguments.
fn explain(error: clap::Error) -> Result<ExitCode, Failure> {
    let printed = error.print();
    if error.use_stderr() {
        // If standard error is closed, the message is lost.
        return Ok(failure::EXIT_CODE.into());
    }
    printed.map_err(Failure::Output)?;
    Ok(SUCCESS)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_definitions_of_the_arguments_are_consistent() {
        <super::Arguments as clap::CommandFactory>::command().debug_assert();
    }
}
