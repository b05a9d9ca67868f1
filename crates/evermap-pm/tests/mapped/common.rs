//! Shared code of the tests of mapped files: directories for them, and processes that can be
//! killed.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use evermap_pm::medium::{Mapped, MappedOptions, Medium};
use evermap_pm::region::HOLDER_PID_OFFSET;
use evermap_pm::{ErrorKind, PmU64};
use tempfile::TempDir;

/// Returns options that create a missing file.
pub(crate) fn creating() -> MappedOptions {
    MappedOptions { create: true, ..MappedOptions::default() }
}

/// Creates a directory on a disk, or on tmpfs if the disk's file system does not support stores.
pub(crate) fn directory() -> TempDir {
    let on_disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    match Mapped::open(on_disk.path().join("probe"), &creating()) {
        Err(error) if matches!(error.kind(), ErrorKind::FileSystem { .. }) => in_memory(),
        _ => on_disk,
    }
}

/// Creates a directory on tmpfs.
pub(crate) fn in_memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

/// Returns the word at `offset`, which must be usable.
pub(crate) fn word(medium: &impl Medium, offset: u64) -> &PmU64 {
    medium.at(offset).expect("usable")
}

/// Stores the id of this process where openers look for the holder's.
pub(crate) fn leave_pid(medium: &impl Medium) {
    medium.store(word(medium, HOLDER_PID_OFFSET), u64::from(std::process::id()));
}

const PATH: &str = "EVERMAP_TEST_PATH";

/// Returns the file to work on, if this process was started by [`spawn`] for the other part of a
/// test.
pub(crate) fn other_part() -> Option<PathBuf> {
    std::env::var_os(PATH).map(PathBuf::from)
}

/// Runs `test` with a mounted file system that only it can see. If that is not permitted, prints a
/// message instead.
pub(crate) fn with_mount(kind: &str, options: &str, test: impl FnOnce(&Path) + Send) {
    let directory = in_memory();
    let directory = directory.path();
    // A mount namespace belongs to a thread; the mount disappears with it.
    let thread = move || {
        // SAFETY: affects only what this thread sees.
        if unsafe { libc::unshare(libc::CLONE_NEWNS) } == 0
            && mount("", Path::new("/"), libc::MS_REC | libc::MS_PRIVATE, "")
            && mount(kind, directory, 0, options)
        {
            test(directory);
        } else {
            let why = std::io::Error::last_os_error();
            println!("skipped: mounting {kind:?} is not possible here ({why})");
        }
    };
    std::thread::scope(|threads| threads.spawn(thread).join().unwrap());
}

/// Mounts a file system of this kind. Returns `false` if that was not possible.
pub(crate) fn mount(kind: &str, target: &Path, flags: libc::c_ulong, options: &str) -> bool {
    let c_string = |text: &str| std::ffi::CString::new(text).unwrap();
    let (kind, target) = (c_string(kind), c_string(target.to_str().unwrap()));
    let options = c_string(options);
    // SAFETY: all strings outlive the call, which reads nothing else.
    unsafe {
        let data = options.as_ptr().cast();
        libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data) == 0
    }
}

/// Unmounts the file system mounted there.
pub(crate) fn unmount(target: &Path) {
    let target = std::ffi::CString::new(target.to_str().unwrap()).unwrap();
    // SAFETY: the string outlives the call.
    assert_eq!(unsafe { libc::umount(target.as_ptr()) }, 0, "{}", std::io::Error::last_os_error());
}

/// Runs one test of this program in another process, where [`other_part`] returns `path`.
pub(crate) fn spawn(test: &str, path: &Path) -> Other {
    spawn_with(test, path, &[])
}

/// Does the same with more variables in its environment.
pub(crate) fn spawn_with(test: &str, path: &Path, variables: &[(&str, &str)]) -> Other {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(PATH, path)
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    Other { child, lines }
}

/// A process that runs the other part of a test. It is killed when dropped.
pub(crate) struct Other {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Other {
    /// Waits until it [`say`]s `what`, and returns the rest of that line.
    pub(crate) fn hear(&mut self, what: &str) -> String {
        let mut line = String::new();
        while self.lines.read_line(&mut line).unwrap() > 0 {
            if let Some((_, rest)) = line.split_once(&format!("#{what} ")) {
                return rest.trim_end().to_owned();
            }
            line.clear();
        }
        panic!("the other process ended without saying {what:?}");
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGKILL and returns without waiting, while the process is exiting.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Waits for its end. Returns its exit code, if it was not killed.
    pub(crate) fn wait(mut self) -> Option<i32> {
        // This closes its standard input, which `listen` waits for.
        drop(self.child.stdin.take());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a message to the process that spawned this one. The test harness prints to the same
/// stream.
pub(crate) fn say(what: &str, rest: impl std::fmt::Display) {
    println!("#{what} {rest}");
}

/// Waits until the process that spawned this one closes its end, or dies.
pub(crate) fn listen() {
    let _ = std::io::stdin().read_line(&mut String::new());
}
