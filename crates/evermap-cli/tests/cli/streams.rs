//! Standard streams that cannot be written: closed by their reader, full, or terminals that have
//! gone away.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;

use crate::common::{CommandOutput, evermap, open_terminal, run_on};
use crate::serve::Server;

/// What cannot be written to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sink {
    ClosedPipe,
    Full,
    GoneTerminal,
}

const SINKS: [Sink; 3] = [Sink::ClosedPipe, Sink::Full, Sink::GoneTerminal];

impl Sink {
    fn open(self) -> OwnedFd {
        let fd = match self {
            Sink::ClosedPipe => std::io::pipe().unwrap().1.into(),
            Sink::Full => File::options().write(true).open("/dev/full").unwrap().into(),
            Sink::GoneTerminal => open_terminal().1,
        };
        // A process that another test starts at this time may still have the other side.
        while rustix::io::write(&fd, b"\n").is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
        fd
    }
}

/// Runs a command with these standard streams. The streams that are not given are read.
#[track_caller]
fn run(name: &str, arguments: &[&str], out: Option<Sink>, error: Option<Sink>) -> CommandOutput {
    let stream = |sink: Option<Sink>| sink.map_or_else(Stdio::piped, |sink| sink.open().into());
    let mut command = evermap(arguments);
    command.arg0(name).stdout(stream(out)).stderr(stream(error));
    CommandOutput::new(command.spawn().unwrap().wait_with_output().unwrap())
}

/// Creates a store with a named map. Returns its directory and its path.
fn create() -> (TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    run_on("put", &path, &["a", "b"]).success();
    run_on("put", &path, &["--map", "m", "a", "b"]).success();
    (directory, path.into_os_string().into_string().unwrap())
}

#[test]
fn output_that_cannot_be_written_is_an_error_unless_its_reader_has_gone() {
    let (directory, store) = create();
    let store = store.as_str();
    let server = Server::start(&directory.path().join("served"), "127.0.0.1:0", &[]);
    let address = server.address.to_string();
    let commands: [(&str, &[&str]); 12] = [
        ("evermap", &["get", store, "a"]),
        ("evermap", &["dump", store]),
        ("evermap", &["scan", store]),
        ("evermap", &["maps", store]),
        ("evermap", &["stat", store]),
        ("evermap", &["check", store]),
        ("evermap", &["recover", "--deep", store]),
        ("evermap", &["top", &address, "--once", "--interval", "0.1"]),
        ("evermap", &["--help"]),
        ("evermap", &["help", "serve"]),
        ("evermap", &["--version"]),
        ("memcached", &["-h"]),
    ];
    for (name, arguments) in commands {
        for sink in SINKS {
            let output = run(name, arguments, Some(sink), None);
            let failure = if name == "memcached" { 71 } else { 2 };
            let (code, reason) = match sink {
                Sink::ClosedPipe => (0, ""),
                Sink::Full => (failure, "cannot write to standard output: No space left"),
                Sink::GoneTerminal => (failure, "cannot write to standard output: Input/output"),
            };
            assert_eq!(output.code, code, "{sink:?} {arguments:?}: {output:?}");
            assert!(output.stderr.contains(reason), "{sink:?} {arguments:?}: {output:?}");
            assert_eq!(output.stderr.is_empty(), code == 0, "{arguments:?}: {output:?}");
            let silent = run(name, arguments, Some(sink), Some(sink));
            assert_eq!(silent.code, code, "{sink:?} {arguments:?}: {silent:?}");
        }
    }
}

#[test]
fn messages_that_cannot_be_written_are_lost() {
    let (directory, store) = create();
    let store = store.as_str();
    let input = directory.path().join("input");
    std::fs::write(&input, "no tab\na\tb\n").unwrap();
    let input = input.to_str().unwrap();
    let commands: [(&str, &[&str], i32); 8] = [
        ("evermap", &["load", "--skip-bad", store, input], 1),
        ("evermap", &["load", store, input], 2),
        ("evermap", &["get", "/nonexistent/map", "a"], 2),
        ("evermap", &["top", "127.0.0.1:1", "--once"], 2),
        ("evermap", &["serve", "--listen", "nonsense"], 2),
        ("evermap", &["nonsense"], 2),
        ("evermap", &[], 2),
        ("memcached", &["--nonsense"], 64),
    ];
    for (name, arguments, code) in commands {
        for sink in SINKS {
            let output = run(name, arguments, Some(sink), Some(sink));
            assert_eq!(output.code, code, "{sink:?} {arguments:?}");
        }
    }
}

/// The manual page and the completions know every command and every option.
#[test]
fn the_manual_and_completions_are_made_from_the_command() {
    let text =
        |arguments: &[&str]| String::from_utf8(crate::common::run(arguments).success()).unwrap();
    let page = text(&["man"]);
    assert!(page.contains(".TH evermap 1"), "{page}");
    let commands = ["serve", "get", "load", "backup", "restore", "repair", "completions"];
    for shell in ["bash", "zsh", "fish"] {
        let completions = text(&["completions", shell]);
        for word in commands.iter().chain(&["durability", "log-folder", "on-suspect"]) {
            assert!(completions.contains(word), "{word} for {shell}");
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("man1");
    assert!(text(&["man", "--all", folder.to_str().unwrap()]).is_empty());
    for command in commands {
        assert!(page.contains(&format!("evermap\\-{command}(1)")), "{command} in {page}");
        let page = std::fs::read_to_string(folder.join(format!("evermap-{command}.1"))).unwrap();
        assert!(page.contains(".SH OPTIONS"), "{page}");
    }
    let script = dir.path().join("completions");
    std::fs::write(&script, text(&["completions", "bash"])).unwrap();
    let checked = std::process::Command::new("bash").arg("-n").arg(&script).status();
    assert!(checked.is_err() || checked.unwrap().success());
}
