//! One writer at a time, however the previous one ended, and the contents that it leaves.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{
    creating, directory, in_memory, leave_pid, listen, other_part, say, spawn, word,
};
use evermap_pm::ErrorKind;
use evermap_pm::PmU64;
use evermap_pm::medium::{Mapped, MappedOptions, Medium};

const MIB: u64 = 1 << 20;

/// Returns the process id in the refusal to open `path`.
fn refused_by(path: &Path, lock_wait: Duration) -> u32 {
    let options = MappedOptions { lock_wait, ..MappedOptions::default() };
    match Mapped::open(path, &options).map(|_| ()).unwrap_err().kind() {
        ErrorKind::InUse { path: named, pid } if named == path => *pid,
        other => panic!("{other}"),
    }
}

#[test]
fn a_file_opens_once_in_a_process() {
    let directory = directory();
    let path = directory.path().join("file");
    let medium = Mapped::open(&path, &creating()).unwrap();
    assert_eq!(refused_by(&path, Duration::ZERO), 0, "no id is stored yet");
    medium.grow(MIB).unwrap();
    leave_pid(&medium);
    assert_eq!(refused_by(&path, Duration::from_secs(30)), std::process::id());
    medium.store(word(&medium, evermap_pm::region::HOLDER_PID_OFFSET), u64::MAX);
    assert_eq!(refused_by(&path, Duration::ZERO), 0, "no process has such an id");
    drop(medium);
    Mapped::open(&path, &creating()).unwrap();
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

#[test]
fn a_dead_holder_is_waited_for_as_long_as_allowed() {
    if let Some(path) = other_part() {
        die_but_leave_a_child(&path);
    }
    let directory = directory();
    let path = &directory.path().join("file");
    let mut holder = spawn("writer::a_dead_holder_is_waited_for_as_long_as_allowed", path);
    let pid = holder.id();
    let child: i32 = holder.hear("child").parse().unwrap();
    holder.wait();
    assert_eq!(refused_by(path, Duration::from_millis(50)), pid);
    let killed = &AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(move || {
            // Longer than a living holder would be waited for.
            std::thread::sleep(Duration::from_millis(300));
            killed.store(true, Ordering::SeqCst);
            // SAFETY: the process that the holder has left for this test.
            unsafe { libc::kill(child, libc::SIGKILL) };
        });
        let medium = Mapped::open(path, &MappedOptions::default()).unwrap();
        assert!(killed.load(Ordering::SeqCst), "opened while the lock was held");
        assert_eq!(medium.len(), MIB);
    });
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
    let mut holder = spawn("writer::a_file_replaced_while_waiting_is_detected", path);
    let child: i32 = holder.hear("child").parse().unwrap();
    holder.wait();
    std::thread::scope(|threads| {
        let opener = threads.spawn(|| Mapped::open(path, &MappedOptions::default()).map(|_| ()));
        while !has_open(path) {
            std::thread::yield_now();
        }
        std::fs::write(path.with_extension("new"), "").unwrap();
        std::fs::rename(path.with_extension("new"), path).unwrap();
        // SAFETY: the process that the holder has left for this test.
        unsafe { libc::kill(child, libc::SIGKILL) };
        let error = opener.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("replaced"), "{error}");
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
