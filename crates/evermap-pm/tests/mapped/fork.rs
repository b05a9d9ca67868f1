//! What a forked child may do with inherited objects.

use std::time::Duration;

use crate::common::{creating, in_memory, other_part, spawn};
use evermap_pm::fork::ForkDetector;
use evermap_pm::medium::{Mapped, MappedOptions, Medium};

/// Runs a test of this module in a process that runs nothing else. A child has what other tests
/// have open, too, and would keep their files locked.
fn alone(name: &str, test: impl FnOnce()) {
    if other_part().is_some() {
        return test();
    }
    let directory = in_memory();
    let process = spawn(&format!("fork::{name}"), directory.path());
    assert_eq!(process.wait(), Some(0));
}

/// Runs `child` in a forked child and returns its result. A child that hangs is ended by an alarm.
///
/// Other threads of this program may hold locks at that moment, so `child` must not need any.
fn in_child(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: see above; the child ends without running anything of the test harness.
    unsafe {
        match libc::fork() {
            0 => {
                libc::alarm(20);
                libc::_exit(if child() { 1 } else { 0 })
            }
            pid => {
                let mut status = 0;
                assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
                assert!(libc::WIFEXITED(status), "the child hung or crashed");
                libc::WEXITSTATUS(status) == 1
            }
        }
    }
}

#[test]
fn a_child_is_detected() {
    alone("a_child_is_detected", detect_a_child);
}

fn detect_a_child() {
    let detector = ForkDetector::new().unwrap();
    assert!(!detector.is_child());
    assert!(in_child(|| detector.is_child()));
    assert!(in_child(|| in_child(|| detector.is_child())), "in the second generation too");
    assert!(!in_child(|| ForkDetector::new().is_ok_and(|own| own.is_child())), "its own is new");
    assert!(!detector.is_child());
}

#[test]
fn a_child_may_drop_inherited_objects_and_the_parent_keeps_its_lock() {
    alone(
        "a_child_may_drop_inherited_objects_and_the_parent_keeps_its_lock",
        drop_inherited_objects,
    );
}

fn drop_inherited_objects() {
    let directory = in_memory();
    let path = directory.path().join("file");
    let medium = Mapped::open(&path, &creating()).unwrap();
    medium.grow(1 << 20).unwrap();
    medium.prefault(0..1 << 20); // starts the helper thread, which the child does not have
    let mut inherited = Some(medium);
    assert!(in_child(|| {
        drop(inherited.take());
        true
    }));
    let error = Mapped::open(&path, &MappedOptions::default()).map(|_| ()).unwrap_err();
    assert!(matches!(error.kind(), evermap_pm::ErrorKind::OpenHere { .. }), "{error}");
    drop(inherited);
    Mapped::open(&path, &MappedOptions::default()).unwrap();
}

/// A child that outlives its parent holds what it inherited, and is not told to stop itself.
#[test]
fn a_child_that_opens_what_it_inherited_is_told_so() {
    alone("a_child_that_opens_what_it_inherited_is_told_so", open_what_was_inherited);
}

fn open_what_was_inherited() {
    let directory = in_memory();
    let path = directory.path().join("file");
    let medium = Mapped::open(&path, &creating()).unwrap();
    medium.grow(1 << 20).unwrap();
    let word = medium.at::<evermap_pm::PmU64>(evermap_pm::region::HOLDER_PID_OFFSET).unwrap();
    // The parent is gone.
    medium.store(word, (1 << 22) + 1);
    let options = MappedOptions { lock_wait: Duration::ZERO, ..MappedOptions::default() };
    assert!(in_child(|| {
        let refused = Mapped::open(&path, &options).map(|_| ()).unwrap_err();
        // This process lives, and may be found first.
        matches!(
            refused.kind(),
            evermap_pm::ErrorKind::OpenHere { place: None, .. }
                | evermap_pm::ErrorKind::InUse { is_ending: false, .. }
        )
    }));
}
