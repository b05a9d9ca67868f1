//! Files that are only read: several readers at a time, no writer beside them, and nothing changed.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evermap_pm::ErrorKind;
use evermap_pm::medium::{Mapped, MappedOptions, Medium};
use tempfile::TempDir;

use crate::common::{
    creating, directory, in_memory, listen, mount, other_part, say, spawn, with_mount, word,
};

const MIB: u64 = 1 << 20;

fn reading() -> MappedOptions {
    MappedOptions { read_only: true, lock_wait: Duration::ZERO, ..MappedOptions::default() }
}

/// A file of one MiB in `directory` whose words at 0 and in the middle are not zero.
fn file_in(directory: &TempDir) -> PathBuf {
    let path = directory.path().join("file");
    let medium = Mapped::open(&path, &creating()).unwrap();
    medium.grow(MIB).unwrap();
    medium.store(word(&medium, 0), 7);
    medium.store(word(&medium, MIB / 2), 8);
    medium.sync().unwrap();
    path
}

#[test]
fn what_a_reader_stores_stays_in_its_own_memory() {
    for directory in [directory(), in_memory()] {
        let path = file_in(&directory);
        let before = std::fs::read(&path).unwrap();
        let [first, second] = [(); 2].map(|()| Mapped::open(&path, &reading()).unwrap());
        assert!(first.is_read_only() && second.is_read_only());
        assert_eq!(first.len(), MIB);
        first.store(word(&first, 0), 70);
        first.persist(word(&first, 0));
        first.claim(0..MIB).unwrap();
        first.discard(MIB / 2..MIB);
        first.prefault(0..MIB);
        first.sync().unwrap();
        assert_eq!([&first, &second].map(|medium| medium.load(word(medium, 0))), [70, 7]);
        assert_eq!([&first, &second].map(|medium| medium.load(word(medium, MIB / 2))), [8, 8]);
        assert!(std::fs::read(&path).unwrap() == before);
    }
}

#[test]
fn a_file_that_is_read_neither_grows_nor_begins() {
    let directory = directory();
    let path = file_in(&directory);
    let medium = Mapped::open(&path, &reading()).unwrap();
    for refused in [medium.grow(2 * MIB), medium.begin(1)] {
        let error = refused.unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::ReadOnly { path: named } if *named == path),
            "{error}"
        );
    }
    assert_eq!(medium.len(), MIB);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), MIB);
}

#[test]
fn a_file_that_may_not_be_written_can_be_read() {
    let directory = directory();
    let path = file_in(&directory);
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o444)).unwrap();
    let medium = Mapped::open(&path, &reading()).unwrap();
    assert_eq!(medium.load(word(&medium, 0)), 7);
}

#[test]
fn a_file_system_that_may_not_be_written_can_be_read() {
    // Unlike the permissions of a file, this binds the superuser too.
    with_mount("tmpfs", "size=4m", |directory| {
        let path = directory.join("file");
        let medium = Mapped::open(&path, &creating()).unwrap();
        medium.grow(MIB).unwrap();
        medium.store(word(&medium, 0), 7);
        drop(medium);
        assert!(mount("tmpfs", directory, libc::MS_REMOUNT | libc::MS_RDONLY, "size=4m"));
        assert!(Mapped::open(&path, &MappedOptions::default()).is_err());
        let medium = Mapped::open(&path, &reading()).unwrap();
        assert_eq!(medium.load(word(&medium, 0)), 7);
    });
}

#[test]
fn a_file_of_huge_pages_is_not_read_privately() {
    with_mount("hugetlbfs", "", |directory| {
        let path = directory.join("file");
        std::fs::File::create(&path).unwrap();
        let error = Mapped::open(&path, &reading()).map(|_| ()).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::FileSystem { name, .. } if name == "hugetlbfs"),
            "{error}"
        );
    });
}

#[test]
fn a_file_that_is_missing_is_not_made_to_be_read() {
    let directory = directory();
    let path = directory.path().join("none");
    let options = MappedOptions { create: true, ..reading() };
    assert!(Mapped::open(&path, &options).is_err());
    assert!(!path.exists());
}

fn assert_held_by_readers(path: &Path) {
    let error = Mapped::open(path, &MappedOptions::default()).map(|_| ()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::OpenHere { read_only: true, .. }), "{error}");
    assert!(error.to_string().contains("open read-only already"), "{error}");
}

#[test]
fn readers_keep_a_writer_out_and_a_writer_keeps_readers_out() {
    let directory = directory();
    let path = file_in(&directory);
    let [first, second] = [(); 2].map(|()| Mapped::open(&path, &reading()).unwrap());
    assert_held_by_readers(&path);
    drop(first);
    assert_held_by_readers(&path);
    drop(second);
    let writer = Mapped::open(&path, &MappedOptions::default()).unwrap();
    let error = Mapped::open(&path, &reading()).map(|_| ()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::OpenHere { read_only: false, .. }), "{error}");
    drop(writer);
    Mapped::open(&path, &reading()).unwrap();
}

#[test]
fn a_reader_in_another_process_keeps_a_writer_out_until_it_leaves() {
    if let Some(path) = other_part() {
        let _medium = Mapped::open(&path, &reading()).unwrap();
        say("reading", "");
        return listen();
    }
    let directory = directory();
    let path = file_in(&directory);
    let test = "read_only::a_reader_in_another_process_keeps_a_writer_out_until_it_leaves";
    let mut reader = spawn(test, &path);
    reader.hear("reading");
    drop(Mapped::open(&path, &reading()).unwrap());
    let error = Mapped::open(&path, &MappedOptions::default()).map(|_| ()).unwrap_err();
    let ErrorKind::OpenReadOnly { path: named, pid } = error.kind() else { panic!("{error}") };
    assert_eq!((named, *pid), (&path, reader.id()));
    assert_eq!(reader.wait(), Some(0));
    Mapped::open(&path, &MappedOptions::default()).unwrap();
}

/// The kernel needs a while to tear down the mapping of a killed reader.
#[test]
fn a_killed_reader_is_waited_for() {
    if let Some(path) = other_part() {
        let medium = Mapped::open(&path, &reading()).unwrap();
        let cells = medium.slice::<evermap_pm::PmU64>(0, medium.len() / 8).unwrap();
        cells.iter().step_by(512).for_each(|cell| medium.store(cell, 1));
        say("reading", "");
        return listen();
    }
    let directory = in_memory();
    let path = directory.path().join("file");
    Mapped::open(&path, &creating()).unwrap().grow(512 * MIB).unwrap();
    for _ in 0..3 {
        let mut reader = spawn("read_only::a_killed_reader_is_waited_for", &path);
        reader.hear("reading");
        reader.kill();
        Mapped::open(&path, &MappedOptions::default()).unwrap();
    }
}
