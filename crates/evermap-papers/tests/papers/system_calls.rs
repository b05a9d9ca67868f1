//! A process that the system ends at the first system call, for operations that make none.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Command;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// Set in the process in which the operations run.
const INSIDE: &str = "EVERMAP_TEST_WITHOUT_SYSTEM_CALLS";
/// What that process writes at the end.
const ENDED: &[u8] = b"no system call until here";

/// Returns whether `body` makes no system call. The caller is the test `name` of this program,
/// which is started again to run `prepare` and then `body` without.
pub(crate) fn makes_none<P>(
    name: &str,
    prepare: impl FnOnce() -> P,
    body: impl FnOnce(&P),
) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        let prepared = prepare();
        allow_writing_only();
        body(&prepared);
        // The system may end the process after this, which exits by system calls.
        std::io::stderr().write_all(ENDED).expect("allowed");
        std::process::exit(0);
    }
    let mut again = Command::new(std::env::current_exe().expect("the path of a test"));
    let output = again.args(["--exact", name, "--nocapture"]).env(INSIDE, "yes").output();
    let output = output.expect("another process");
    let ended = output.stderr.ends_with(ENDED);
    // A program that finds no test of this name is successful.
    assert!(ended || !output.status.success(), "{name} was not run");
    eprintln!("{}, {}", output.status, String::from_utf8_lossy(&output.stderr));
    ended
}

/// Makes every system call of this thread but `write` end the process.
fn allow_writing_only() {
    /// The number of the system call `write`.
    const WRITE: i64 = if cfg!(target_arch = "x86_64") { 1 } else { 64 };
    let rules = BTreeMap::from([(WRITE, Vec::new())]);
    let architecture = std::env::consts::ARCH.try_into().expect("a known processor");
    let (others, these) = (SeccompAction::KillProcess, SeccompAction::Allow);
    let filter = SeccompFilter::new(rules, others, these, architecture).expect("a filter");
    let program: BpfProgram = filter.try_into().expect("a program");
    seccompiler::apply_filter(&program).expect("a system that takes filters");
}

/// A process is ended by a system call, so the other tests can fail.
#[test]
fn a_system_call_is_noticed() {
    let exists = |_: &()| assert!(std::path::Path::new("/").exists());
    assert!(!makes_none("system_calls::a_system_call_is_noticed", || (), exists));
}
