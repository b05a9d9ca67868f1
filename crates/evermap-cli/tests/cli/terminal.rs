//! `evermap top` on a terminal, which may go away.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{evermap, open_terminal};

/// Longer than any of this takes.
const TIMEOUT: Duration = Duration::from_secs(20);
/// What makes a terminal show again what it showed before.
const LEAVE_ALTERNATE_SCREEN: &str = "\x1b[?1049l";

/// A terminal, and `evermap top` on it.
struct Terminal {
    /// The side on which a user would be.
    user: File,
    program: OwnedFd,
    child: Child,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Its end is reported by a signal.
    Controlling,
    Other,
}

impl Terminal {
    /// Starts the command, and waits until it shows something.
    fn start(kind: Kind) -> Self {
        let (user, program) = open_terminal();
        let side = || Stdio::from(program.try_clone().unwrap());
        // Nothing listens there, which is shown.
        let mut command = evermap(["top", "127.0.0.1:1"]);
        command.stdin(side()).stdout(side()).stderr(side());
        // SAFETY: calls only these two functions of the kernel.
        unsafe {
            command.pre_exec(move || {
                libc::setsid();
                if kind == Kind::Controlling {
                    libc::ioctl(0, libc::TIOCSCTTY, 0);
                }
                Ok(())
            });
        }
        let mut terminal = Terminal { user, program, child: command.spawn().unwrap() };
        terminal.read_until("trying again");
        terminal
    }

    /// Reads what is shown, until it contains `text`.
    fn read_until(&mut self, text: &str) {
        let (mut shown, mut buffer) = (String::new(), [0; 4096]);
        while !shown.contains(text) {
            let len = self.user.read(&mut buffer).unwrap_or(0);
            assert!(len > 0, "{text:?} is missing in {shown:?}");
            shown += &String::from_utf8_lossy(&buffer[..len]);
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Returns whether keys are read one by one, without being shown.
    fn is_raw(&self) -> bool {
        // SAFETY: all fields are integers, for which zero is a value; the call fills them in.
        unsafe {
            let mut settings: libc::termios = std::mem::zeroed();
            assert_eq!(libc::tcgetattr(self.user.as_raw_fd(), &raw mut settings), 0);
            settings.c_lflag & libc::ICANON == 0
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for the end of a process; kills it if it does not end.
fn wait(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    while start.elapsed() < TIMEOUT {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    panic!("the process did not end");
}

#[test]
fn the_view_ends_with_its_terminal() {
    for kind in [Kind::Controlling, Kind::Other] {
        let mut terminal = Terminal::start(kind);
        terminal.user = File::open("/dev/null").unwrap();
        // Standard error has gone away too: a message there would be a panic.
        assert!(wait(&mut terminal.child).success());
    }
}

#[test]
fn signals_end_the_view_and_restore_the_terminal() {
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let mut terminal = Terminal::start(Kind::Controlling);
        assert!(terminal.is_raw());
        terminal.signal(signal);
        terminal.read_until(LEAVE_ALTERNATE_SCREEN);
        assert!(wait(&mut terminal.child).success());
        assert!(!terminal.is_raw());
    }
}

#[test]
fn a_terminal_that_shows_nothing_does_not_keep_the_view() {
    let mut terminal = Terminal::start(Kind::Controlling);
    // As Control-S does, or a connection that is interrupted.
    // SAFETY: changes only this terminal.
    assert_eq!(unsafe { libc::tcflow(terminal.program.as_raw_fd(), libc::TCOOFF) }, 0);
    std::thread::sleep(Duration::from_millis(300));
    terminal.signal(Signal::TERM);
    assert!(wait(&mut terminal.child).success());
    assert!(!terminal.is_raw());
}
