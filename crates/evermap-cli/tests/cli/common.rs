//! Running the command.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

pub(crate) use crate::output::CommandOutput;

/// The name of the program, with which its errors begin.
pub(crate) const PROGRAM: &str = "evermap";

/// Returns the command, with an empty standard input.
pub(crate) fn evermap<I: AsRef<OsStr>>(arguments: impl IntoIterator<Item = I>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evermap"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs the command to its end.
#[track_caller]
pub(crate) fn run<I: AsRef<OsStr>>(arguments: impl IntoIterator<Item = I>) -> CommandOutput {
    CommandOutput::new(evermap(arguments).output().unwrap())
}

/// Runs the command on a store.
#[track_caller]
pub(crate) fn run_on(command: &str, store: &Path, rest: &[&str]) -> CommandOutput {
    let mut arguments = vec![OsStr::new(command), store.as_os_str()];
    arguments.extend(rest.iter().map(OsStr::new));
    run(arguments)
}

/// Runs the command on a store, with `input` as its standard input.
#[track_caller]
pub(crate) fn run_with_input(
    command: &str,
    store: &Path,
    rest: &[&str],
    input: &[u8],
) -> CommandOutput {
    let mut child = evermap([command])
        .arg(store)
        .args(rest)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The command may end before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(input);
    CommandOutput::new(child.wait_with_output().unwrap())
}

/// Parses the JSON output of `stat` or `check`.
#[track_caller]
pub(crate) fn json(output: CommandOutput) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Opens a terminal of 100 columns and 30 rows. Returns the user's and the program's side.
pub(crate) fn open_terminal() -> (File, OwnedFd) {
    // In one step with the flag, because other tests start processes meanwhile.
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    let size = libc::winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
    let mut name = [0; 64];
    // SAFETY: the variables outlive the calls, and the descriptors are owned at once.
    unsafe {
        let user = File::from_raw_fd(libc::posix_openpt(flags));
        let fd = user.as_raw_fd();
        assert!(libc::grantpt(fd) == 0 && libc::unlockpt(fd) == 0);
        assert_eq!(libc::ptsname_r(fd, name.as_mut_ptr(), name.len()), 0);
        let program = OwnedFd::from_raw_fd(libc::open(name.as_ptr(), flags));
        assert_eq!(libc::ioctl(program.as_raw_fd(), libc::TIOCSWINSZ, &raw const size), 0);
        (user, program)
    }
}
