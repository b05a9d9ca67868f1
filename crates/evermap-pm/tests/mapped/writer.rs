//! One writer at a time, however the previous one ended, and the contents that it leaves.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{
    creating, directory, in_memory, leave_pid, listen, mount, other_part, say, spawn, spawn_with,
    with_mount, word,
};
use evermap_pm::ErrorKind;
use evermap_pm::PmU64;
use evermap_pm::medium::{Mapped, MappedOptions, Medium};

const MIB: u64 = 1 << 20;

/// Returns the process id in the refusal to open `path`.
fn refused_by(path: &Path, lock_wait: Duration) -> u32 {
    let options = MappedOptions { lock_wait, ..MappedOptions::default() };
    match Mapped::open(path, &options).map(|_| ()).unwrap_err().kind() {
        ErrorKind::InUse { path: named, pid, .. } if named == path => *pid,
        other => panic!("{other}"),
    }
}

#[test]
fn a_file_opens_once_in_a_process() {
    let directory = directory();
    let path = directory.path().join("file");
    let medium = Mapped::open(&path, &creating()).unwrap();
    let line = line!() - 1;
    medium.grow(MIB).unwrap();
    for stored in [0, u64::from(std::process::id()), u64::MAX] {
        medium.store(word(&medium, evermap_pm::region::HOLDER_PID_OFFSET), stored);
        for lock_wait in [Duration::ZERO, Duration::from_secs(30)] {
            let options = MappedOptions { lock_wait, ..MappedOptions::default() };
            let error = Mapped::open(&path, &options).map(|_| ()).unwrap_err();
            let ErrorKind::OpenHere { path: named, place, read_only: false } = error.kind() else {
                panic!("{error}");
            };
            assert_eq!((named, place.unwrap().file()), (&path, file!()));
            assert_eq!(place.unwrap().line(), line);
            assert!(error.to_string().contains("this process has it open already"), "{error}");
            assert!(!error.to_string().contains("stop"), "{error}");
        }
    }
    drop(medium);
    Mapped::open(&path, &creating()).unwrap();
}

/// The id in the file can be that of a process that has never seen it: it was used again, or was
/// stored in another container.
#[test]
fn an_innocent_process_is_not_named() {
    if let Some(path) = other_part() {
        let medium = Mapped::open(&path, &creating()).unwrap();
        medium.grow(MIB).unwrap();
        let innocent: u64 = std::env::var("EVERMAP_TEST_INNOCENT").unwrap().parse().unwrap();
        medium.store(word(&medium, evermap_pm::region::HOLDER_PID_OFFSET), innocent);
        say("holding", "");
        return listen();
    }
    let directory = directory();
    let path = directory.path().join("file");
    let own = std::process::id().to_string();
    let test = "writer::an_innocent_process_is_not_named";
    let mut holder = spawn_with(test, &path, &[("EVERMAP_TEST_INNOCENT", &own)]);
    holder.hear("holding");
    assert_eq!(refused_by(&path, Duration::from_secs(30)), holder.id());
}

/// Acts as a writer that fills `bytes` bytes and holds the file until it is asked to end, or
/// killed.
fn hold(path: &Path, bytes: u64) {
    let medium = Mapped::open(path, &creating()).unwrap();
    medium.grow(bytes).unwrap();
    for cell in medium.slice::<PmU64>(0, bytes / 8).unwrap().iter().step_by(512) {
        medium.store(cell, 1);
    }
    leave_pid(&medium);
    say("holding", "");
    listen();
}

#[test]
fn another_process_holds_a_file_until_it_leaves() {
    if let Some(path) = other_part() {
        return hold(&path, MIB);
    }
    let directory = directory();
    let path = directory.path().join("file");
    let mut holder = spawn("writer::another_process_holds_a_file_until_it_leaves", &path);
    holder.hear("holding");
    assert_eq!(refused_by(&path, Duration::from_secs(30)), holder.id());
    assert_eq!(holder.wait(), Some(0));
    Mapped::open(&path, &MappedOptions::default()).unwrap();
}

#[test]
fn a_killed_holder_of_much_memory_is_waited_for() {
    if let Some(path) = other_part() {
        return hold(&path, 512 * MIB);
    }
    // On tmpfs with its small pages the kernel takes longest to tear down the mapping.
    let directory = in_memory();
    let path = directory.path().join("file");
    for _ in 0..3 {
        let mut holder = spawn("writer::a_killed_holder_of_much_memory_is_waited_for", &path);
        holder.hear("holding");
        holder.kill();
        let medium = Mapped::open(&path, &MappedOptions::default()).unwrap();
        assert_eq!(medium.len(), 512 * MIB);
    }
}

/// Acts as a writer that dies immediately, while its forked child lives on and keeps the lock.
fn die_but_leave_a_child(path: &Path) -> ! {
    let medium = Mapped::open(path, &creating()).unwrap();
    medium.grow(MIB).unwrap();
    leave_pid(&medium);
    // SAFETY: the child only calls these functions of the kernel.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above. The alarm ends a child that is not killed.
        unsafe {
            libc::alarm(60);
            libc::pause();
            libc::_exit(0);
        }
    }
    say("child", child);
    // SAFETY: ends the process without running anything else.
    unsafe { libc::_exit(0) }
}

/// Starts a writer that has died, and returns the child that keeps its lock.
fn child_of_the_dead(test: &str, path: &Path) -> (u32, i32) {
    let mut holder = spawn(test, path);
    let pid = holder.id();
    let child = holder.hear("child").parse().unwrap();
    holder.wait();
    (pid, child)
}

fn kill(child: i32) {
    // SAFETY: the process that the holder has left for the test.
    unsafe { libc::kill(child, libc::SIGKILL) };
}

#[test]
fn a_child_that_keeps_the_lock_of_a_dead_parent_is_named() {
    if let Some(path) = other_part() {
        die_but_leave_a_child(&path);
    }
    let directory = directory();
    let path = &directory.path().join("file");
    let test = "writer::a_child_that_keeps_the_lock_of_a_dead_parent_is_named";
    let (_, child) = child_of_the_dead(test, path);
    assert_eq!(refused_by(path, Duration::from_secs(30)), child as u32);
    kill(child);
    Mapped::open(path, &MappedOptions::default()).unwrap();
}

/// Runs `test` where no process can be seen, as in a container beside that of the holder.
fn without_processes(test: impl FnOnce() + Send) {
    with_mount("tmpfs", "", |_| {
        assert!(mount("tmpfs", Path::new("/proc"), 0, ""));
        test();
    });
}

#[test]
fn a_dead_holder_is_waited_for_as_long_as_allowed() {
    if let Some(path) = other_part() {
        die_but_leave_a_child(&path);
    }
    let directory = directory();
    let path = &directory.path().join("file");
    let test = "writer::a_dead_holder_is_waited_for_as_long_as_allowed";
    let (pid, child) = child_of_the_dead(test, path);
    without_processes(|| {
        let options =
            MappedOptions { lock_wait: Duration::from_millis(50), ..MappedOptions::default() };
        let error = Mapped::open(path, &options).map(|_| ()).unwrap_err();
        let ErrorKind::InUse { pid: named, is_ending, .. } = error.kind() else {
            panic!("{error}")
        };
        assert_eq!((*named, *is_ending), (pid, true));
        let killed = &AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(move || {
                // Longer than a living holder would be waited for.
                std::thread::sleep(Duration::from_millis(300));
                killed.store(true, Ordering::SeqCst);
                kill(child);
            });
            let medium = Mapped::open(path, &MappedOptions::default()).unwrap();
            assert!(killed.load(Ordering::SeqCst), "opened while the lock was held");
            assert_eq!(medium.len(), MIB);
        });
    });
    kill(child);
}

/// Returns `true` if this process has a descriptor of the file.
fn has_open(path: &Path) -> bool {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    descriptors.flatten().any(|entry| std::fs::read_link(entry.path()).is_ok_and(|to| to == path))
}

#[test]
fn a_file_replaced_while_waiting_is_detected() {
    if let Some(path) = other_part() {
        die_but_leave_a_child(&path);
    }
    let directory = directory();
    let path = &directory.path().join("file");
    let (_, child) = child_of_the_dead("writer::a_file_replaced_while_waiting_is_detected", path);
    std::thread::scope(|threads| {
        let opener = threads.spawn(|| {
            without_processes(|| {
                let error = Mapped::open(path, &MappedOptions::default()).map(|_| ()).unwrap_err();
                assert!(error.to_string().contains("replaced"), "{error}");
            });
        });
        while !has_open(path) && !opener.is_finished() {
            std::thread::yield_now();
        }
        std::fs::write(path.with_extension("new"), "").unwrap();
        std::fs::rename(path.with_extension("new"), path).unwrap();
        kill(child);
        opener.join().unwrap();
    });
    Mapped::open(path, &MappedOptions::default()).unwrap();
}

#[test]
fn acknowledged_stores_survive_a_kill_at_any_moment() {
    // A full pipe stops a writer after half a million words, long before the end of the file.
    const WORDS: u64 = 64 * MIB / 8;
    if let Some(path) = other_part() {
        let medium = Mapped::open(path, &creating()).unwrap();
        medium.grow(WORDS * 8).unwrap();
        let cells = medium.slice::<PmU64>(0, WORDS).unwrap();
        let start = cells.iter().take_while(|cell| medium.load(cell) != 0).count();
        for (cell, at) in cells.iter().zip(1..).skip(start) {
            medium.store(cell, at);
            medium.persist(cell);
            if at % 100 == 0 {
                say("stored", at);
            }
        }
        return listen();
    }
    for directory in [directory(), in_memory()] {
        let path = directory.path().join("file");
        let mut least = 0;
        for round in 1..=5 {
            let mut writer =
                spawn("writer::acknowledged_stores_survive_a_kill_at_any_moment", &path);
            for _ in 0..round * 3 {
                least = writer.hear("stored").parse().unwrap();
            }
            writer.kill();
            writer.wait();
            let medium = Mapped::open(&path, &MappedOptions::default()).unwrap();
            let cells = medium.slice::<PmU64>(0, WORDS).unwrap();
            let stored =
                cells.iter().zip(1..).take_while(|(cell, at)| medium.load(cell) == *at).count();
            assert!(stored as u64 >= least, "{least} acknowledged, {stored} found");
            assert!(
                cells[stored..].iter().all(|cell| medium.load(cell) == 0),
                "a hole in the order"
            );
        }
    }
}
