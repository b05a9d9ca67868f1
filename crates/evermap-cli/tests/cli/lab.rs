//! `evermap lab` runs the program `evermap-lab`.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::common::CommandOutput;

/// Returns `evermap lab` as the only program of a new directory, with an empty path.
fn isolated_command() -> (TempDir, Command) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = directory.path().join("evermap");
    // A link and not a copy, because a file that is open for writing cannot be executed, and a
    // child that another test has just forked may have inherited the descriptor of the copy.
    std::fs::hard_link(env!("CARGO_BIN_EXE_evermap"), &program).unwrap();
    let mut command = Command::new(program);
    command.env("PATH", directory.path().join("nothing")).arg("lab");
    (directory, command)
}

#[test]
fn a_missing_lab_program_is_explained() {
    let (_directory, mut command) = isolated_command();
    let output = CommandOutput::new(command.args(["run", "micro"]).output().unwrap());
    output.failure("build it with `cargo build --release -p evermap-lab`");
}

#[test]
fn a_missing_lab_program_is_a_failure_though_nobody_reads_why() {
    let (_directory, mut command) = isolated_command();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(CommandOutput::new(command.stderr(writer).output().unwrap()).code, 2);
}

#[test]
fn the_lab_program_gets_all_arguments_and_determines_the_exit_code() {
    let (directory, mut command) = isolated_command();
    let lab: &Path = &directory.path().join("evermap-lab");
    std::os::unix::fs::symlink("/bin/sh", lab).unwrap();
    let script = "printf '<%s>' \"$@\"; exit 7";
    let arguments = ["-c", script, "sh", "run", "--help", "a b", "--", "-x"];
    let output = CommandOutput::new(command.args(arguments).output().unwrap());
    assert_eq!(
        (output.code, output.stdout),
        (7, b"<run><--help><a b><--><-x>".to_vec()),
        "{}",
        output.stderr
    );
}
