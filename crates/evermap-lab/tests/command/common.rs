//! Running the command.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

/// The output of a command, and its exit code.
#[derive(Debug, PartialEq)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl Said {
    /// Asserts success without messages; returns the output.
    #[track_caller]
    pub(crate) fn well(self) -> Vec<u8> {
        assert_eq!(self.code, 0, "{}", self.err);
        self.out
    }

    /// Asserts a failure whose message contains `why`, and no output.
    #[track_caller]
    pub(crate) fn failed(self, why: &str) {
        assert_eq!(self.code, 2, "{self:?}");
        assert!(self.err.starts_with("evermap-lab: ") && self.err.contains(why), "{}", self.err);
        assert_eq!(self.out, b"");
    }
}

/// Runs to the end, with nothing on standard input.
#[track_caller]
pub(crate) fn run<I: AsRef<OsStr>>(arguments: impl IntoIterator<Item = I>) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evermap-lab"));
    let output = command.args(arguments).stdin(Stdio::null()).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(!err.contains("panicked"), "{err}");
    let code = output.status.code().unwrap_or_else(|| panic!("killed: {err}"));
    Said { code, out: output.stdout, err }
}
