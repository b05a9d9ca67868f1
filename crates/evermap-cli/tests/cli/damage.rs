//! What commands say of damaged files, and of those that could not be created.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{CommandOutput, run_on, run_with_input};

const PAGE: usize = 4096;
const RECORDS: usize = 3000;

/// Creates a closed store, and returns its bytes.
fn create(path: &Path, records: usize) -> Vec<u8> {
    let lines: String = (0..records).map(|number| format!("key{number:05}\tvalue\n")).collect();
    run_with_input("load", path, &[], lines.as_bytes()).success();
    std::fs::read(path).unwrap()
}

/// Calls `each` with a file for each page, of which that is overwritten with zeros.
fn each_page(bytes: &[u8], damaged: &Path, mut each: impl FnMut(usize)) {
    for page in 0..bytes.len() / PAGE {
        let mut bytes = bytes.to_vec();
        bytes[page * PAGE..][..PAGE].fill(0);
        std::fs::write(damaged, bytes).unwrap();
        each(page);
    }
}

fn lines(output: &CommandOutput) -> usize {
    output.stdout.iter().filter(|byte| **byte == b'\n').count()
}

/// Each line on standard error names the file, and the advice does too.
#[track_caller]
fn assert_names(output: &CommandOutput, path: &Path) {
    let path = path.display();
    for line in output.stderr.lines() {
        assert!(line.starts_with(&format!("evermap: {path}: ")), "{line}");
        assert!(!line.contains("on the file"), "{line}");
    }
}

#[test]
fn dump_and_scan_say_what_they_lack() {
    let directory = tempfile::tempdir().unwrap();
    let bytes = create(&directory.path().join("map"), RECORDS);
    let damaged = directory.path().join("damaged");
    let mut counted = 0;
    each_page(&bytes, &damaged, |page| {
        let dump = run_on("dump", &damaged, &[]);
        assert_names(&dump, &damaged);
        if dump.code == 2 || lines(&dump) == RECORDS {
            return;
        }
        let sum = format!(
            "evermap: {path}: {} of 3000 records could be read; run `evermap check {path}`\n",
            lines(&dump),
            path = damaged.display()
        );
        // Unless each of them was named.
        let named = dump.stderr.lines().count() == RECORDS - lines(&dump);
        assert_eq!(
            (dump.code, dump.stderr.ends_with(&sum)),
            (1, !named),
            "{page}: {}",
            dump.stderr
        );
        let scan = run_on("scan", &damaged, &[]);
        assert_names(&scan, &damaged);
        assert!(scan.code == 1 && !scan.stderr.is_empty(), "page {page}: {}", scan.stderr);
        assert_eq!(lines(&scan), lines(&dump), "page {page}");
        counted += u32::from(!named);
        // From then on the number is unknown, but there is a mark.
        if page < 16 {
            assert_eq!(run_on("recover", &damaged, &["--deep"]).code, 1);
            let dump = run_on("dump", &damaged, &[]);
            assert!(dump.code != 0 || dump.stderr.contains("marked as damaged"), "{page}");
        }
    });
    assert!(counted > 10, "{counted} pages");
}

#[test]
fn errors_name_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let (path, damaged) = (directory.path().join("map"), directory.path().join("damaged"));
    let bytes = create(&path, RECORDS);
    let (mut errors, mut checked) = (0, 0);
    each_page(&bytes, &damaged, |page| {
        // Some of the pages, to be done soon.
        if page > 16 {
            return;
        }
        for (command, rest) in [
            ("get", &["key00001"][..]),
            ("put", &["key00001", "value"]),
            ("del", &["key00002"]),
            ("stat", &[]),
            ("maps", &[]),
            ("recover", &["--deep"]),
        ] {
            let output = run_on(command, &damaged, rest);
            assert_names(&output, &damaged);
            errors += u32::from(!output.stderr.is_empty());
            let advised = String::from_utf8_lossy(&output.stdout).contains("on the file");
            assert!(!advised, "{command}, page {page}");
        }
        let check = run_on("check", &damaged, &[]);
        let report = String::from_utf8(check.stdout).unwrap();
        assert!(!report.contains("evermap check"), "{report}");
        checked += u32::from(check.code == 1);
    });
    assert!(errors > 0 && checked > 0);
    let text = format!("{}: there is no map \"users\"; `evermap put --map`", path.display());
    run_on("get", &path, &["key", "--map", "users"]).failure(&text);
}

#[test]
fn one_record_is_counted_in_the_singular() {
    let directory = tempfile::tempdir().unwrap();
    let bytes = create(&directory.path().join("map"), 1);
    let damaged = directory.path().join("damaged");
    let mut found = 0;
    each_page(&bytes, &damaged, |_| {
        let report = run_on("check", &damaged, &[]);
        let report = String::from_utf8(report.stdout).unwrap();
        assert!(!report.contains("1 records"), "{report}");
        found += u32::from(report.contains("1 record was counted but 0 found"));
    });
    assert!(found > 0);
}

#[test]
fn a_file_of_zeros_has_the_length_that_it_has() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("zeros");
    std::fs::write(&path, vec![0; 100_000]).unwrap();
    run_on("get", &path, &["key"]).failure("in a file of 100000 bytes");
}

/// Runs `put` where files may not become longer than a few pages.
fn put_limited(path: &Path) -> CommandOutput {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg("ulimit -f 24; exec \"$0\" put \"$1\" key value");
    CommandOutput::new(shell.arg(env!("CARGO_BIN_EXE_evermap")).arg(path).output().unwrap())
}

#[test]
fn a_creation_that_fails_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    put_limited(&path).failure("no space");
    assert!(!path.exists());
    // Those that were there before stay, even if they are empty or not the file itself.
    std::fs::write(&path, b"").unwrap();
    put_limited(&path).failure("no space");
    assert!(path.exists());
    let link: PathBuf = directory.path().join("link");
    std::os::unix::fs::symlink("target", &link).unwrap();
    put_limited(&link).failure("no space");
    assert!(link.symlink_metadata().unwrap().is_symlink());
    // A store that is whole is not touched.
    let whole = create(&directory.path().join("whole"), 1);
    put_limited(&directory.path().join("whole"));
    assert_eq!(std::fs::read(directory.path().join("whole")).unwrap().len(), whole.len());
}
