//! Handing over to the laboratory.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::common::Said;

/// A copy of the command in a directory of its own, with nothing on its path.
fn alone(dir: &Path) -> Command {
    let copy = dir.join("evermap");
    std::fs::copy(env!("CARGO_BIN_EXE_evermap"), &copy).unwrap();
    let mut command = Command::new(copy);
    command.env("PATH", dir.join("nothing")).arg("lab");
    command
}

#[test]
fn a_missing_laboratory_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let said = Said::new(alone(dir.path()).args(["run", "micro"]).output().unwrap());
    said.failed("build it with `cargo build --release -p evermap-lab`");
}

#[test]
fn all_arguments_and_the_exit_code_are_the_laboratorys() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("evermap-lab");
    std::fs::write(&program, "#!/bin/sh\nprintf '<%s>' \"$@\"\nexit 7\n").unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let said = alone(dir.path()).args(["run", "--help", "a b", "--", "-x"]).output().unwrap();
    let said = Said::new(said);
    assert_eq!((said.code, said.out), (7, b"<run><--help><a b><--><-x>".to_vec()), "{}", said.err);
}
