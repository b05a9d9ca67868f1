//! Running in the background.

use std::fs::File;
use std::io::{self, PipeWriter, Read, Write};

use rustix::process::{Pid, WaitOptions, waitpid};

use crate::failure::{self, Failure};

/// A process in the background, whose parent waits until it is ready.
pub(super) struct Daemon(PipeWriter);

impl Daemon {
    /// Continues in a new process without a terminal. The old one ends when the new one is ready or
    /// has failed, with an exit code that says which.
    ///
    /// Must be called before the process has a second thread.
    pub(super) fn detach() -> Result<Daemon, Failure> {
        let failed = |source| Failure::Io { what: "cannot run in the background".into(), source };
        let (reader, writer) = io::pipe().map_err(failed)?;
        // SAFETY: the process has one thread, so that no lock is held by a thread that does not
        // exist in the child.
        match unsafe { libc::fork() } {
            -1 => Err(failed(io::Error::last_os_error())),
            0 => {
                drop(reader);
                // Fails only for the leader of a group of processes, which a child is not.
                let _ = rustix::process::setsid();
                Ok(Daemon(writer))
            }
            child => {
                drop(writer);
                std::process::exit(wait(reader, child));
            }
        }
    }

    /// Lets the parent end. Closes the standard streams, unless `keep_streams` is set, and leaves
    /// the current directory.
    pub(super) fn ready(mut self, keep_streams: bool) {
        if !keep_streams && let Ok(null) = File::options().read(true).write(true).open("/dev/null")
        {
            // A stream that cannot be replaced stays open, which does no harm.
            let _ = rustix::stdio::dup2_stdin(&null);
            let _ = rustix::stdio::dup2_stdout(&null);
            let _ = rustix::stdio::dup2_stderr(&null);
        }
        let _ = std::env::set_current_dir("/");
        // If the parent was killed, there is nothing to tell it.
        let _ = self.0.write_all(&[1]);
    }
}

/// Waits until the child is ready or has ended. Returns the exit code for this process.
fn wait(mut reader: io::PipeReader, child: libc::pid_t) -> i32 {
    if matches!(reader.read(&mut [0]), Ok(1)) {
        return 0;
    }
    // The child has ended and has said why on standard error.
    let status = waitpid(Pid::from_raw(child), WaitOptions::empty());
    let code = status.ok().flatten().and_then(|(_, status)| status.exit_status());
    code.filter(|&code| code != 0).unwrap_or(i32::from(failure::EXIT_CODE))
}
