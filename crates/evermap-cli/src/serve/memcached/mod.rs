//! The server under the name memcached, with the options of memcached 1.6.
//!
//! What a script, a unit file or a Dockerfile passes to memcached means the same here, or is
//! refused with one line that says why.

mod addresses;
mod help;
mod options;
mod service;
mod tuning;
mod wrong;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use options::Action;

use crate::failure::Failure;

/// The name with which the program behaves as memcached, and with which its messages begin.
const NAME: &str = "memcached";

/// The exit code for wrong options, from sysexits.h.
const EXIT_USAGE: u8 = 64;
/// The exit code if the system refuses something, such as a port.
const EXIT_SYSTEM: u8 = 71;

/// Returns `true` if the program was called by this path, and is to behave as memcached.
pub(crate) fn is_called(program: &OsString) -> bool {
    std::path::Path::new(program).file_name().is_some_and(|name| name == NAME)
}

/// Runs the server with arguments of memcached.
pub(crate) fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let failed = |code: u8, message: String| {
        say(&message);
        ExitCode::from(code)
    };
    match options::parse(arguments) {
        Err(wrong) => failed(EXIT_USAGE, wrong.to_string()),
        Ok(Action::Print(text)) => match print(&text) {
            Err(failure) if !failure.is_closed_output() => failed(EXIT_SYSTEM, failure.to_string()),
            _ => ExitCode::SUCCESS,
        },
        Ok(Action::Serve(options)) => {
            // They are said once, while the standard streams are open.
            options.notes().iter().for_each(|note| say(note));
            match serve(*options) {
                Ok(()) => ExitCode::SUCCESS,
                Err((code, failure)) => failed(code, failure.to_string()),
            }
        }
    }
}

/// Serves until a signal asks for the end. An error has the exit code.
fn serve(options: options::Options) -> Result<(), (u8, Failure)> {
    let service = service::service(options).map_err(|failure| (EXIT_USAGE, failure))?;
    service.run().map_err(|failure| (EXIT_SYSTEM, failure))
}

fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::Output)
}

/// Writes a line to standard error. If that is closed, the line is lost.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{NAME}: {line}");
}
