//! Finds out from which revision the program is built, for the results that it writes.

use std::process::Command;

/// The revision of a build that is not for measurements.
const UNKNOWN: &str = "unknown";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Only programs that are optimised measure. To find it out for others too would compile this
    // package again after each commit.
    let measures = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let revision = if measures { revision() } else { None };
    println!("cargo::rustc-env=EVERMAP_REVISION={}", revision.as_deref().unwrap_or(UNKNOWN));
}

/// Returns the revision, marked if the source has been changed since. Runs again with the next
/// commit, and when the source of any crate changes.
fn revision() -> Option<String> {
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    println!("cargo::rerun-if-changed={log}");
    println!("cargo::rerun-if-changed=..");
    let revision = git(&["rev-parse", "--short=8", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no", "--", ".."])?;
    Some(if changed.is_empty() { revision } else { format!("{revision}, changed") })
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
