//! Commands that read a store: they need no permission to write, and do not change the file.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::common::{CommandOutput, evermap, json, run_on, run_with_input};
use crate::serve::Server;

/// The commands that read, with what follows the path.
const READING: [(&str, &[&str]); 10] = [
    ("get", &["apple"]),
    ("get", &["1", "--map", "users"]),
    ("maps", &[]),
    ("stat", &[]),
    ("stat", &["--ordered", "--json"]),
    ("check", &[]),
    ("check", &["--deep"]),
    ("dump", &[]),
    ("dump", &["--map", "users"]),
    ("scan", &["--reverse"]),
];

/// Runs the command without the superuser's right to pass over permissions.
fn run_unprivileged(command: &str, store: &Path, rest: &[&str]) -> CommandOutput {
    const DAC_OVERRIDE: libc::c_ulong = 1;
    let mut process = evermap([command]);
    process.arg(store).args(rest);
    // SAFETY: calls only this function of the kernel. It fails for those who lack the right anyway.
    unsafe {
        process.pre_exec(|| {
            libc::prctl(libc::PR_CAPBSET_DROP, DAC_OVERRIDE, 0, 0, 0);
            Ok(())
        });
    }
    CommandOutput::new(process.output().unwrap())
}

/// A store in a directory where nothing may be written.
struct Protected {
    directory: TempDir,
    path: PathBuf,
}

impl Protected {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("map");
        run_on("put", &path, &["apple", "red"]).success();
        run_on("put", &path, &["1", "ann", "--map", "users"]).success();
        let protected = Protected { directory, path };
        protected.allow(false);
        protected
    }

    fn allow(&self, writes: bool) {
        let modes = if writes { [0o600, 0o700] } else { [0o444, 0o555] };
        for (path, mode) in [&*self.path, self.directory.path()].into_iter().zip(modes) {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        }
    }

    /// Runs all commands that read, and checks that the file stays as it is.
    fn read(&self, dumped: &str) {
        let before = std::fs::read(&self.path).unwrap();
        // A server that was killed has left its socket.
        let files = || std::fs::read_dir(self.directory.path()).unwrap().count();
        let files_before = files();
        let time = std::fs::metadata(&self.path).unwrap().modified().unwrap();
        for (command, rest) in READING {
            let output = run_unprivileged(command, &self.path, rest);
            assert_eq!(output.code, 0, "{command} {rest:?}: {output:?}");
            assert!(std::fs::read(&self.path).unwrap() == before, "{command} {rest:?}");
            assert_eq!(std::fs::metadata(&self.path).unwrap().modified().unwrap(), time);
        }
        let dump = run_unprivileged("dump", &self.path, &[]).success();
        let mut lines: Vec<_> = std::str::from_utf8(&dump).unwrap().lines().collect();
        lines.sort_unstable();
        assert_eq!(lines.join(" "), dumped);
        run_unprivileged("put", &self.path, &["pear", "green"]).failure("Permission denied");
        assert_eq!(files(), files_before, "a file was created");
    }
}

impl Drop for Protected {
    fn drop(&mut self) {
        self.allow(true);
    }
}

#[test]
fn nothing_needs_to_be_writable_and_nothing_changes() {
    let store = Protected::new();
    store.read("apple\tred");
    let stat = json(run_unprivileged("stat", &store.path, &["--json"]));
    assert!(stat["clean_open"] == true && stat["records"] == 1, "{stat}");
}

#[test]
fn a_store_that_was_killed_is_read_until_it_is_recovered() {
    let store = Protected::new();
    store.allow(true);
    let server = Server::start(&store.path, "127.0.0.1:0", &[]);
    server.connect().ask("set pear 0 0 5\r\ngreen\r\n", "STORED\r\n");
    server.signal(Signal::KILL);
    drop(server);
    store.allow(false);
    for _ in 0..2 {
        store.read("apple\tred pear\tgreen");
        let stat = json(run_unprivileged("stat", &store.path, &["--json"]));
        assert!(stat["clean_open"] == false && stat["records"] == 2, "{stat}");
        assert!(stat["counts_exact"] == true, "{stat}");
    }
    store.allow(true);
    run_on("recover", &store.path, &[]).success();
    store.allow(false);
    store.read("apple\tred pear\tgreen");
    let stat = json(run_unprivileged("stat", &store.path, &["--json"]));
    assert!(stat["clean_open"] == true && stat["records"] == 2, "{stat}");
}

#[test]
fn reading_commands_run_side_by_side_and_keep_writers_out() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    let line = |key| format!("key {key}\t{}\n", "x".repeat(1000));
    let text: String = (0..4000).map(line).collect();
    run_with_input("load", &path, &[], text.as_bytes()).success();
    // It holds the file until all that it writes is read.
    let mut dump = evermap(["dump"]).arg(&path).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = dump.stdout.take().unwrap();
    out.read_exact(&mut [0]).unwrap();
    assert_eq!(run_on("get", &path, &["key 7"]).success().len(), 1000);
    let scanned = run_on("scan", &path, &["--from", "key 39", "--limit", "5"]).success();
    assert!(scanned.starts_with(b"key 39\tx"));
    let holder = format!("opened read-only by others (process {})", dump.id());
    run_on("put", &path, &["a", "b"]).failure(&holder);
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.len() + 1, text.len());
    assert!(dump.wait().unwrap().success());
    run_on("put", &path, &["a", "b"]).success();
}

#[test]
fn a_missing_store_is_not_created() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    for (command, rest) in READING.into_iter().chain([("recover", &[][..])]) {
        run_on(command, &path, rest).failure("there is no store");
    }
    assert!(!path.exists());
}

#[test]
fn a_damaged_store_is_marked_until_nothing_is_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    run_on("put", &path, &["apple", "a red apple"]).success();
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(11).position(|window| window == b"a red apple").unwrap();
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let damage = || json(run_on("stat", &path, &["--json"]))["damage"].clone();

    // A command that only reads finds the damage, but does not change the file.
    assert_eq!(run_on("check", &path, &["--deep"]).code, 1);
    assert_eq!(damage(), "none");
    assert_eq!(run_on("recover", &path, &["--deep"]).code, 1);
    assert_eq!(damage(), "found");
    assert_eq!(run_on("recover", &path, &[]).code, 1, "the mark asks for a deep check");
    run_on("put", &path, &["apple", "a red apple"]).success();
    assert_eq!(damage(), "found");
    let report = run_on("recover", &path, &[]).success();
    assert!(report.starts_with(b"sound"), "{report:?}");
    assert_eq!(damage(), "none");
}
