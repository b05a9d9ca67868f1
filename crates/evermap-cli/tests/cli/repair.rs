//! `evermap repair`: a new store of what is left of a damaged one.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::common::{CommandOutput, evermap, json, run_on, run_with_input};
use crate::serve::Server;

const RECORDS: usize = 2000;
const PAGE: usize = 4096;

/// A closed store with two maps, in a folder of its own.
struct Files {
    directory: TempDir,
    store: PathBuf,
    new: PathBuf,
    lost: PathBuf,
    bytes: Vec<u8>,
}

impl Files {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let [store, new, lost] = ["map", "new", "lost"].map(|name| directory.path().join(name));
        let lines: String = (0..RECORDS).map(|number| format!("key{number:05}\tvalue\n")).collect();
        run_with_input("load", &store, &[], lines.as_bytes()).success();
        run_with_input("load", &store, &["--map", "users"], b"1\tann\t7\n").success();
        let bytes = std::fs::read(&store).unwrap();
        Files { directory, store, new, lost, bytes }
    }

    /// Overwrites a page with zeros.
    fn zero_page(&self, page: usize) {
        let mut bytes = self.bytes.clone();
        bytes[page * PAGE..][..PAGE].fill(0);
        std::fs::write(&self.store, bytes).unwrap();
    }

    fn repair(&self, rest: &[&str]) -> CommandOutput {
        let mut arguments = vec![self.new.to_str().unwrap()];
        arguments.extend(rest);
        run_on("repair", &self.store, &arguments)
    }

    /// Returns the number of files in the folder.
    fn count(&self) -> usize {
        std::fs::read_dir(self.directory.path()).unwrap().count()
    }
}

fn dumped(path: &Path) -> usize {
    run_on("dump", path, &[]).success().iter().filter(|byte| **byte == b'\n').count()
}

#[test]
fn a_whole_store_is_copied_as_it_is() {
    let files = Files::new();
    let output = files.repair(&[]).success();
    let expected = format!(
        "default map: {RECORDS} records\nmap \"users\": 1 record\ncomplete: {} records\n",
        RECORDS + 1
    );
    assert_eq!(String::from_utf8(output).unwrap(), expected);
    assert_eq!(std::fs::read(&files.store).unwrap(), files.bytes);
    run_on("check", &files.new, &["--deep"]).success();
    assert_eq!(dumped(&files.new), RECORDS);
    assert_eq!(run_on("dump", &files.new, &["--map", "users"]).success(), b"1\tann\t7\n");
}

#[test]
fn every_lost_page_is_reported_and_everything_else_comes_back() {
    let files = Files::new();
    let (mut lossy, mut pointed) = (0, 0);
    for page in (0..files.bytes.len() / PAGE).step_by(3) {
        files.zero_page(page);
        let check = run_on("check", &files.store, &["--deep"]);
        let advice = format!("`evermap repair {} NEW`", files.store.display());
        assert_eq!(check.stderr.contains(&advice), check.code != 0, "page {page}: {check:?}");
        pointed += u32::from(check.code != 0);
        let listed = run_on("repair", &files.store, &["--dry-run", "--json"]);
        assert_eq!(files.count(), 1, "a dry run makes nothing");
        let lost = files.lost.to_str().unwrap();
        let made = files.repair(&["--json", "--lost-and-found", lost]);
        assert_eq!(made, listed, "page {page}");
        let code = made.code;
        let report = json(made);
        assert_eq!((code == 0, report["complete"].as_bool()), (code == 0, Some(code == 0)));
        run_on("check", &files.new, &["--deep"]).success();
        run_on("check", &files.lost, &["--deep"]).success();
        let (back, found) = (dumped(&files.new), dumped(&files.lost));
        let of_default = |what: &str| report["maps"][0][what].as_u64().unwrap() as usize;
        assert_eq!((back, found), (of_default("records"), of_default("uncertain")));
        let gone = of_default("unreadable") + of_default("missing");
        assert_eq!(back + found + gone, RECORDS, "page {page}: {report}");
        lossy += u32::from(code == 1);
        std::fs::remove_file(&files.new).unwrap();
        std::fs::remove_file(&files.lost).unwrap();
    }
    assert!(lossy > 10 && pointed > 10, "{lossy} {pointed}");
}

#[test]
fn what_cannot_be_repaired_is_refused() {
    let files = Files::new();
    let mut bytes = files.bytes.clone();
    bytes[..2 * PAGE].fill(1);
    std::fs::write(&files.store, bytes).unwrap();
    files.repair(&[]).failure("it has no superblock");
    std::fs::write(&files.store, b"no store, but a text").unwrap();
    files.repair(&[]).failure("not an Evermap store");
    std::fs::remove_file(&files.store).unwrap();
    files.repair(&[]).failure("there is no store");
    assert_eq!(files.count(), 0);
}

#[test]
fn a_store_in_use_is_not_repaired() {
    let files = Files::new();
    let server = Server::start(&files.store, "127.0.0.1:0", &[]);
    files.repair(&[]).failure("in use by process");
    drop(server);
    run_on("repair", &files.store, &[files.store.to_str().unwrap()])
        .failure("there is a file of this name");
    assert!(!files.new.exists());
}

/// Runs the command where files may not become longer than a few pages.
#[test]
fn a_repair_without_space_leaves_no_file() {
    let files = Files::new();
    let mut shell = Command::new("sh");
    shell.arg("-c").arg("ulimit -f 100; exec \"$0\" repair \"$1\" \"$2\"");
    shell.arg(env!("CARGO_BIN_EXE_evermap")).arg(&files.store).arg(&files.new);
    CommandOutput::new(shell.output().unwrap()).failure("no space");
    assert_eq!(files.count(), 1);
}

/// A repair that is killed leaves no file of the name that was asked for.
#[test]
fn a_killed_repair_leaves_no_new_store() {
    let files = Files::new();
    for micros in (0..20_000).step_by(1000) {
        let mut process = evermap(["repair"]).arg(&files.store).arg(&files.new).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_micros(micros));
        process.kill().unwrap();
        process.wait().unwrap();
        if files.new.exists() {
            assert_eq!(dumped(&files.new), RECORDS);
            std::fs::remove_file(&files.new).unwrap();
        }
    }
    files.repair(&[]).success();
}
