//! Starting this program as a process that is killed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// xorshift64*: enough to choose moments.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed | 1)
    }

    /// Returns a number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }

    pub(crate) fn millis(&mut self, limit: u64) -> Duration {
        Duration::from_millis(self.below(limit))
    }
}

/// A process that is killed when this is dropped.
pub(crate) struct Victim {
    child: Child,
    said: File,
}

impl Victim {
    /// Starts this program with these arguments.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let said = tempfile::tempfile().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(arguments)
            // A file, which keeps every line whatever happens to the process.
            .stdout(Stdio::from(said.try_clone().unwrap()))
            .spawn()
            .unwrap();
        Victim { child, said }
    }

    /// Kills the process with SIGKILL, and returns what it has said. A process that has ended by
    /// itself has failed.
    pub(crate) fn kill(mut self) -> String {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "a process has ended by itself: {ended:?}\n{}", self.said());
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.said()
    }

    /// Waits until the process has said a word.
    pub(crate) fn wait_for(&mut self, word: &str) {
        for _ in 0..6000 {
            if self.said().contains(word) {
                return;
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "a process has ended by itself: {ended:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("a process has not said {word}: {}", self.said());
    }

    fn said(&self) -> String {
        let mut bytes = vec![0; self.said.metadata().unwrap().len() as usize];
        // The process writes at the position that both have.
        self.said.read_exact_at(&mut bytes, 0).unwrap();
        String::from_utf8(bytes).unwrap()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Removes a store's working copy, as loss of power does if it is in memory. What is left is what
/// the log has.
pub(crate) fn lose_power(file: &Path) {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{error}"),
        _ => {}
    }
}
