//! The output of a program that a test has run. Also used by the tests of `evermap-lab`.

use std::os::unix::process::ExitStatusExt;
use std::process::Output;

use crate::common::PROGRAM;

/// The exit code and the output of a program.
#[derive(Debug, PartialEq)]
pub(crate) struct CommandOutput {
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl CommandOutput {
    /// Converts the output of a process. If a signal ended it, the code is 128 and the number of
    /// the signal, as in shells.
    ///
    /// # Panics
    /// If the program panicked.
    #[track_caller]
    pub(crate) fn new(output: Output) -> Self {
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(!stderr.contains("panicked"), "{stderr}");
        let status = output.status;
        let code = status.code().or_else(|| Some(128 + status.signal()?)).expect("it has ended");
        CommandOutput { code, stdout: output.stdout, stderr }
    }

    /// Checks that the program succeeded, and returns its standard output.
    #[track_caller]
    pub(crate) fn success(self) -> Vec<u8> {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self.stdout
    }

    /// Checks that the program failed with an error that contains `reason`, and without output.
    #[track_caller]
    pub(crate) fn failure(self, reason: &str) {
        assert_eq!(self.code, 2, "{self:?}");
        let error = self.stderr.strip_prefix(PROGRAM).and_then(|rest| rest.strip_prefix(": "));
        assert!(error.is_some_and(|error| error.contains(reason)), "{}", self.stderr);
        assert_eq!(self.stdout, b"");
    }
}
