//! The message of a process that dies because its file was truncated.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use crate::common::{creating, directory, listen, other_part, say, word};
use evermap_pm::medium::{Mapped, Medium, explain_bus_errors};

const MIB: u64 = 1 << 20;
const NEW_LENGTH: u64 = MIB / 2;

extern "C" fn leave(_: libc::c_int) {
    // SAFETY: ends the process without running anything else.
    unsafe { libc::_exit(42) }
}

/// Acts as a program whose file is truncated.
fn touch_truncated_page(path: &Path) {
    let medium = Mapped::open(path, &creating()).unwrap();
    medium.grow(MIB).unwrap();
    say("ready", "");
    listen();
    medium.load(word(&medium, NEW_LENGTH));
}

/// Starts a test of this program, truncates its file, and lets it continue. Returns its exit status
/// and its messages.
fn end_of(test: &str) -> (ExitStatus, String) {
    let directory = directory();
    let path = directory.path().join("file");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env("EVERMAP_TEST_PATH", &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut out, mut output) = (child.stdout.take().unwrap(), Vec::new());
    let mut byte = [0];
    while !output.ends_with(b"#ready ") {
        assert_eq!(out.read(&mut byte).unwrap(), 1, "it ended: {}", output.escape_ascii());
        output.push(byte[0]);
    }
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(NEW_LENGTH).unwrap();
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    let named = text.contains(&format!("evermap: {}: cannot be read", path.display()));
    assert!(named && text.contains(" 0x80000: another program truncated it"), "{text}");
    (child.wait().unwrap(), text)
}

#[test]
fn a_truncated_file_is_named_and_the_signal_ends_the_process() {
    if let Some(path) = other_part() {
        explain_bus_errors().unwrap();
        explain_bus_errors().unwrap();
        return touch_truncated_page(&path);
    }
    let (status, text) =
        end_of("sigbus::a_truncated_file_is_named_and_the_signal_ends_the_process");
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
    assert_eq!(text.matches("truncated").count(), 1, "{text}");
}

#[test]
fn a_previous_handler_is_called() {
    if let Some(path) = other_part() {
        // SAFETY: the handler is async-signal-safe.
        unsafe { libc::signal(libc::SIGBUS, leave as *const () as usize) };
        explain_bus_errors().unwrap();
        return touch_truncated_page(&path);
    }
    let (status, _) = end_of("sigbus::a_previous_handler_is_called");
    assert_eq!(status.code(), Some(42), "{status}");
}
