//! Running the command.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The command, with nothing on standard input.
pub(crate) fn evermap<I: AsRef<OsStr>>(arguments: impl IntoIterator<Item = I>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evermap"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// What a command said, and how it ended.
#[derive(Debug, PartialEq)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl Said {
    #[track_caller]
    pub(crate) fn new(output: Output) -> Self {
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(!err.contains("panicked"), "{err}");
        let status = output.status;
        // A death by a signal is counted as shells do.
        let code = status.code().or_else(|| Some(128 + status.signal()?)).expect("it ended");
        Said { code, out: output.stdout, err }
    }

    /// Asserts success without complaints; answers the output.
    #[track_caller]
    pub(crate) fn well(self) -> Vec<u8> {
        assert_eq!(self.code, 0, "{}", self.err);
        self.out
    }

    /// Asserts a failure that says `why`, and nothing on standard output.
    #[track_caller]
    pub(crate) fn failed(self, why: &str) {
        assert_eq!(self.code, 2, "{self:?}");
        assert!(self.err.starts_with("evermap: ") && self.err.contains(why), "{}", self.err);
        assert_eq!(self.out, b"");
    }
}

/// Runs to the end.
#[track_caller]
pub(crate) fn run<I: AsRef<OsStr>>(arguments: impl IntoIterator<Item = I>) -> Said {
    Said::new(evermap(arguments).output().unwrap())
}

/// Runs a command on a store.
#[track_caller]
pub(crate) fn on(command: &str, store: &Path, rest: &[&str]) -> Said {
    let mut arguments = vec![OsStr::new(command), store.as_os_str()];
    arguments.extend(rest.iter().map(OsStr::new));
    run(arguments)
}

/// Runs a command on a store, with `input` on standard input.
#[track_caller]
pub(crate) fn feed(command: &str, store: &Path, rest: &[&str], input: &[u8]) -> Said {
    let mut child = evermap([command])
        .arg(store)
        .args(rest)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may end without having read everything.
    let _ = child.stdin.take().unwrap().write_all(input);
    Said::new(child.wait_with_output().unwrap())
}

/// What `stat` or `check` says in JSON.
#[track_caller]
pub(crate) fn json(said: Said) -> Value {
    serde_json::from_slice(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"))
}
