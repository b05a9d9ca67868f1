//! Processes that are killed at chosen moments, and images of what a kernel may leave.
//!
//! A few by default, and many with `EVERMAP_TEST_TIER=full`.

use std::fs::File;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

const SIGKILL: i32 = 9;
/// Enough that the chosen moment comes, and an end if it does not.
const CHANGES: &str = "3000";

/// Returns how often something is done.
fn times(few: u64, many: u64) -> u64 {
    match std::env::var("EVERMAP_TEST_TIER").as_deref() {
        Ok("full") => many,
        _ => few,
    }
}

/// Runs the program, and returns what it has said.
fn power(arguments: &[&Path], variables: &[(&str, &str)]) -> (ExitStatus, String) {
    let mut said = tempfile::tempfile().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_evermap-power"));
    command.args(arguments).envs(variables.iter().copied());
    // A file, which keeps every line whatever happens to the process.
    let status = command.stdout(Stdio::from(said.try_clone().unwrap())).status().unwrap();
    let mut text = String::new();
    std::io::Seek::rewind(&mut said).unwrap();
    said.read_to_string(&mut text).unwrap();
    assert!(!text.contains("WRONG"), "{arguments:?} {variables:?}: {text}");
    (status, text)
}

/// A store that is killed again and again.
struct Victim {
    folder: tempfile::TempDir,
    /// How many changes of each thread were acknowledged.
    acknowledged: [u64; 2],
}

impl Victim {
    fn new() -> Self {
        Victim { folder: tempfile::tempdir().unwrap(), acknowledged: [0; 2] }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Removes the working copy, as loss of power does if it is in memory. A rebuild that was
    /// killed has left none.
    fn lose_power(&self) {
        match std::fs::remove_file(self.path("store")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{error}"),
            _ => {}
        }
    }

    /// Takes the last counts in lines that begin with `word`.
    fn counts(word: &str, said: &str) -> [u64; 2] {
        let mut counts = [0; 2];
        for line in said.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            if let [first, thread, count] = words[..]
                && first == word
            {
                counts[thread.parse::<usize>().unwrap()] = count.parse().unwrap();
            }
        }
        counts
    }

    /// Opens, checks and changes the store until it ends as `die` says. Returns whether it was
    /// killed.
    fn work(&mut self, die: &str, changes: &str) -> bool {
        let (copy, log) = (self.path("store"), self.path("store.log"));
        let variables = [("DIE", die), ("CHANGES", changes)];
        let (status, said) = power(&[Path::new("work"), &copy, &log], &variables);
        let found = Self::counts("CHECKED", &said);
        if said.contains("CHECKED") {
            for (thread, (found, before)) in found.iter().zip(self.acknowledged).enumerate() {
                assert!(*found >= before, "thread {thread}: {before} acknowledged, {found} found");
            }
        }
        let now = Self::counts("ACK", &said);
        for (before, now) in self.acknowledged.iter_mut().zip(now) {
            *before = now.max(*before);
        }
        let is_killed = status.signal() == Some(SIGKILL);
        assert!(is_killed || status.success(), "{die}: {status}: {said}");
        is_killed
    }
}

/// Kills `kills` processes at a moment, at steps up to `most`, and checks what each has left. Power
/// is lost for every second one: then only the log is left.
fn kill_in(moment: &str, kills: u64, most: u64, changes: &str, loses_power: impl Fn(u64) -> bool) {
    let mut victim = Victim::new();
    victim.work("commit:1000000", "300");
    let mut killed = 0;
    for round in 0..kills {
        if loses_power(round) {
            victim.lose_power();
        }
        let step = round * 0x9e37_79b9 % most + 1;
        killed += u64::from(victim.work(&format!("{moment}:{step}"), changes));
    }
    victim.lose_power();
    victim.work("commit:1000000", "1");
    println!("{moment}: {killed} of {kills} processes were killed");
    assert!(killed * 2 >= kills, "{moment}: only {killed} of {kills} were killed there");
}

#[test]
fn processes_are_killed_in_commits() {
    kill_in("commit", times(3, 50), 200, CHANGES, |round| round % 2 == 1);
}

#[test]
fn processes_are_killed_in_checkpoints() {
    kill_in("checkpoint", times(3, 50), 30, CHANGES, |round| round % 2 == 1);
}

#[test]
fn processes_are_killed_in_rebuilds() {
    kill_in("rebuild", times(3, 50), 2, CHANGES, |_| true);
}

#[test]
fn processes_are_killed_in_closing() {
    kill_in("close", times(3, 50), 10, "40", |round| round % 2 == 1);
}

/// What is restored is there completely, or not at all; and a restore that was killed is in the
/// way of no other.
#[test]
fn processes_are_killed_in_restores() {
    let mut victim = Victim::new();
    victim.work("commit:1000000", "400");
    let (copy, log, backup) =
        (victim.path("store"), victim.path("store.log"), victim.path("backup"));
    power(&[Path::new("backup"), &copy, &log, &backup], &[]);
    let kills = times(3, 50);
    let mut killed = 0;
    for round in 0..kills {
        let from = if round % 2 == 0 { &log } else { &backup };
        let to = victim.path(&format!("restored {round}"));
        let die = format!("restore:{}", round / 2 % 3 + 1);
        let (status, _) = power(&[Path::new("restore"), from, &to], &[("DIE", &die)]);
        killed += u64::from(status.signal() == Some(SIGKILL));
        if !to.exists() {
            let (status, said) = power(&[Path::new("restore"), from, &to], &[]);
            assert!(status.success(), "{said}");
        }
        let mut restored = Victim::new();
        std::fs::rename(&to, restored.path("store")).unwrap();
        restored.acknowledged = victim.acknowledged;
        restored.work("commit:1000000", "1");
    }
    println!("restore: {killed} of {kills} processes were killed");
    assert!(killed * 2 >= kills, "only {killed} of {kills} were killed while they restored");
}

#[test]
fn snapshots_and_backups_beside_writers_are_of_one_moment() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let (status, said) = power(&[Path::new("copies"), &store, Path::new("process")], &[]);
    assert!(status.success() && said.contains("COPIED process"), "{said}");
}

/// Of a store whose log is on a file system that records every write and sync.
#[test]
fn images_of_what_a_kernel_may_leave_are_sound() {
    let images = times(100, 10_000).to_string();
    // Mounting is for root, and containers may have no such device.
    if File::options().read(true).write(true).open("/dev/fuse").is_err() {
        println!("there is no /dev/fuse that can be opened: no images");
        return;
    }
    let (status, said) = power(&[Path::new("record"), Path::new(&images)], &[]);
    println!("{said}");
    assert!(status.success(), "{status}: {said}");
    assert!(said.contains(&format!("{images} images opened")));
}
