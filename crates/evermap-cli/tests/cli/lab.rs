//! Handing over to the laboratory.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::common::Said;

/// The command in a directory of its own, with nothing on its path.
fn alone() -> (TempDir, Command) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = directory.path().join("evermap");
    // No copy: a file that is still open for writing, in a child that another test has just forked,
    // cannot be executed.
    std::fs::hard_link(env!("CARGO_BIN_EXE_evermap"), &program).unwrap();
    let mut command = Command::new(program);
    command.env("PATH", directory.path().join("nothing")).arg("lab");
    (directory, command)
}

#[test]
fn a_missing_laboratory_is_explained() {
    let (_directory, mut command) = alone();
    let said = Said::new(command.args(["run", "micro"]).output().unwrap());
    said.failed("build it with `cargo build --release -p evermap-lab`");
}

#[test]
fn all_arguments_and_the_exit_code_are_the_laboratorys() {
    let (directory, mut command) = alone();
    let laboratory: &Path = &directory.path().join("evermap-lab");
    std::os::unix::fs::symlink("/bin/sh", laboratory).unwrap();
    let script = "printf '<%s>' \"$@\"; exit 7";
    let arguments = ["-c", script, "sh", "run", "--help", "a b", "--", "-x"];
    let said = Said::new(command.args(arguments).output().unwrap());
    assert_eq!((said.code, said.out), (7, b"<run><--help><a b><--><-x>".to_vec()), "{}", said.err);
}
