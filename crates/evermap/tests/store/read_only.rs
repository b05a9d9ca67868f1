//! Stores that are opened read-only.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use crate::common::{self, Random, value_of};
use evermap::{
    Batch, Clock, Error, ErrorKind, Evermap, Map, MapOptions, OnSuspect, Options, Order,
};
use tempfile::TempDir;

const RECORDS: u64 = 3000;
/// The time at which the clock of the tests starts.
const NOW: u64 = 1000;

fn options() -> Options {
    common::options().capacity(1 << 30).extent_size(64 << 10).clock(Clock::manual(common::at(NOW)))
}

fn reading() -> Options {
    options().read_only(true)
}

fn key_of(key: u64) -> Vec<u8> {
    format!("key {key:05}").into_bytes()
}

fn value(key: u64) -> Vec<u8> {
    value_of(&key_of(key), key, (key % 300) as usize)
}

/// Writes and closes a store with a named map and a record that has expired.
fn closed(options: Options) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    let map = common::open_file(&path, options).unwrap();
    (0..RECORDS).for_each(|key| map.put(&key_of(key), &value(key)).unwrap());
    map.set(b"expired").meta(common::meta(0, NOW + 5)).put(b"1").unwrap();
    map.db().map("users", MapOptions::new()).unwrap().put(b"1", b"ann").unwrap();
    map.into_db().close().unwrap();
    (directory, path)
}

fn refusal(path: &Path, options: Options) -> Error {
    Evermap::open(path, options).expect_err("must be refused")
}

fn assert_reads_all(map: &Map) {
    for key in 0..RECORDS {
        assert!(map.get(&key_of(key)).unwrap() == Some(value(key)));
    }
    assert_eq!(map.iter().filter(Result::is_ok).count() as u64, RECORDS + 1);
    assert!(map.get(b"none").unwrap().is_none());
    assert_eq!(
        map.db().map("users", MapOptions::new()).unwrap().get(b"1").unwrap(),
        Some(b"ann".into())
    );
}

/// Every index repairs, marks and locks parts of itself while it is read. None of that may be
/// stored in the file.
#[test]
fn reading_changes_no_byte_of_the_file() {
    for index in common::every_index() {
        let (_directory, path) = closed(options().index(index));
        let before = std::fs::read(&path).unwrap();
        let time = std::fs::metadata(&path).unwrap().modified().unwrap();
        let clock = Clock::manual(common::at(NOW));
        let map = common::open_file(&path, reading().ordered(true).clock(clock.clone())).unwrap();
        assert_reads_all(&map);
        let scanned: Vec<_> = map.scan_prefix("key").unwrap().map(|pair| pair.unwrap().0).collect();
        assert!(scanned.iter().eq((0..RECORDS).map(key_of).collect::<Vec<_>>().iter()));
        clock.set(common::at(NOW + 5));
        assert!(map.get(b"expired").unwrap().is_none());
        assert!(map.get_ref(&key_of(7)).unwrap().unwrap()[..] == value(7)[..]);
        let report = map.db().check(true).unwrap();
        assert!(report.is_sound(), "{index}: {report}");
        assert!(map.records().exact && map.stat().clean_open);
        map.into_db().close().unwrap();
        assert!(std::fs::read(&path).unwrap() == before, "{index}");
        assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), time);
    }
}

#[test]
fn several_readers_at_once_keep_a_writer_out() {
    let (_directory, path) = closed(options());
    let [first, second] = [(); 2].map(|()| common::open_file(&path, reading()).unwrap());
    thread::scope(|threads| {
        for map in [&first, &second] {
            threads.spawn(|| assert_reads_all(map));
        }
    });
    let error = refusal(&path, options());
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().contains("this process has it open read-only already"), "{error}");
    drop(first);
    assert_eq!(refusal(&path, options()).kind(), ErrorKind::InUse);
    assert_reads_all(&second);
    second.into_db().close().unwrap();
    let writer = common::open_file(&path, options()).unwrap();
    assert_eq!(refusal(&path, reading()).kind(), ErrorKind::InUse);
    writer.put(b"new", b"1").unwrap();
    assert_reads_all_and(&writer, 1);
}

fn assert_reads_all_and(map: &Map, more: u64) {
    assert_eq!(map.iter().count() as u64, RECORDS + 1 + more);
}

#[test]
fn whatever_would_change_something_is_refused() {
    let (_directory, path) = closed(options());
    let map = common::open_file(&path, reading().ordered(true)).unwrap();
    let users = map.db().map("users", MapOptions::new()).unwrap();
    let key = &key_of(1)[..];
    type Change<'a> = Box<dyn Fn() -> evermap::Result<()> + 'a>;
    let changes: [(&str, Change<'_>); 16] = [
        ("put", Box::new(|| map.put(key, b"x"))),
        ("remove", Box::new(|| map.delete(key).map(drop))),
        ("remove of nothing", Box::new(|| map.delete(b"none").map(drop))),
        ("touch", Box::new(|| map.touch(key, None).map(drop))),
        ("append", Box::new(|| map.append(key, b"x").map(drop))),
        ("modify", Box::new(|| map.modify(key, |_| evermap::Edit::Remove).map(drop))),
        ("batch", Box::new(|| map.apply(Batch::new().put(key, b"x")).map(drop))),
        ("clear", Box::new(|| map.clear())),
        ("put_from", Box::new(|| map.put_from(key, 1, &b"x"[..]))),
        ("value_writer", Box::new(|| map.value_writer(key, 1).map(drop))),
        ("purge", Box::new(|| map.db().purge().map(drop))),
        ("compact", Box::new(|| map.db().compact().map(drop))),
        ("put in a named map", Box::new(|| users.put(b"1", b"x"))),
        ("drop_map", Box::new(|| map.db().drop_map("users").map(drop))),
        ("new map", Box::new(|| map.db().map("new", MapOptions::new()).map(drop))),
        ("get_and_touch", Box::new(|| map.cache().get_and_touch(key, None, |_| ()).map(drop))),
    ];
    for (name, change) in changes {
        let error = change().unwrap_err();
        assert!(matches!(error, Error::ReadOnly), "{name}: {error}");
        assert_eq!(error.kind(), ErrorKind::ReadOnly);
    }
    assert_reads_all(&map);
    let report = map.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
}

/// Writes until the process is killed: named maps, batches, large values, splits, merges.
fn write_until_killed(path: &str) -> ! {
    let (index, path) = path.split_once(' ').unwrap();
    let options = options().index(index.parse().unwrap()).ordered(Order::Persistent);
    let map = common::open_file(path, options).unwrap();
    let users = map.db().map("users", MapOptions::new()).unwrap();
    let mut out = std::io::stdout();
    for round in 0u64.. {
        let key = key_of(round * 7919 % (4 * RECORDS));
        match round % 11 {
            0 => drop(map.delete(&key).unwrap()),
            1 => drop(map.apply(Batch::new().put(&key, b"1").put(b"both", &key)).unwrap()),
            2 => users.put(&key, &[7; 3000]).unwrap(),
            _ => map.put(&key, &value_of(&key, round, 200)).unwrap(),
        }
        map.put(b"round", &round.to_le_bytes()).unwrap();
        if round % 64 == 0 {
            writeln!(out, "{round}").unwrap();
        }
    }
    unreachable!()
}

fn u64_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

/// What a kill has left is recovered in the memory of each reader, and stays in the file for the
/// next one.
#[test]
fn a_store_that_was_killed_is_read_and_left_as_it_is() {
    let part = "read_only::a_store_that_was_killed_is_read_and_left_as_it_is";
    if let Some(path) = common::child::asked_for(part) {
        write_until_killed(&path);
    }
    for index in common::every_index() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("map");
        let mut child = common::child::start(part, format!("{index} {}", path.display()));
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // The first lines are those of the test harness.
        let said = lines.by_ref().filter_map(|line| line.unwrap().parse::<u64>().ok());
        let acknowledged = said.take(60).last().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let before = std::fs::read(&path).unwrap();
        let time = std::fs::metadata(&path).unwrap().modified().unwrap();
        let open = || common::open_file(&path, reading().ordered(true)).unwrap();
        for recovers in [false, true] {
            let (map, other) = (open(), open());
            assert!(!map.stat().clean_open);
            let round = u64_of(&map.get(b"round").unwrap().unwrap());
            assert!(round >= acknowledged, "{index}: {round} of {acknowledged}");
            if recovers {
                map.db().recover().unwrap();
                assert!(map.records().exact);
            }
            let found: Vec<_> = map.iter().map(|pair| pair.unwrap().0).collect();
            let scanned = map.scan(..).unwrap().filter(Result::is_ok).count();
            assert_eq!((found.len(), scanned), (other.iter().count(), found.len()), "{index}");
            assert!(matches!(map.put(b"key", b"1"), Err(Error::ReadOnly)));
            let report = map.db().check(true).unwrap();
            assert!(report.is_sound(), "{index}: {report}");
            // A batch that was killed before it was decided leaves records that nobody is shown.
            if recovers {
                assert_eq!(map.len(), found.len() as u64 + report.dead, "{index}: {report}");
            }
            map.into_db().close().unwrap();
        }
        assert!(std::fs::read(&path).unwrap() == before, "{index}");
        assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), time);
        let map = common::open_file(&path, options()).unwrap();
        assert!(!map.stat().clean_open);
        assert!(map.db().check(true).unwrap().is_sound(), "{index}");
    }
}

#[test]
fn a_file_that_may_not_be_written_can_be_read() {
    let (_directory, path) = closed(options());
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o444)).unwrap();
    assert_reads_all(&common::open_file(&path, reading()).unwrap());
    // The superuser may write anyway.
    let is_root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    assert_eq!(Evermap::open(&path, options()).is_ok(), is_root);
}

#[test]
fn what_cannot_be_read_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    let error = refusal(&path, reading());
    assert!(matches!(&error, Error::NotFound { path: Some(named) } if *named == path), "{error}");
    assert!(!path.exists());
    for text in ["", "some text"] {
        std::fs::write(&path, text).unwrap();
        assert!(Evermap::open(&path, reading()).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), text.as_bytes());
    }
    let contradiction = reading().on_suspect(OnSuspect::Discard);
    assert_eq!(refusal(&path, contradiction).kind(), ErrorKind::Config);
}

/// The keys that a writer has saved in order are available to every reader after it.
#[test]
fn keys_that_were_saved_in_order_are_used_and_kept() {
    let (_directory, path) = closed(options().ordered(true));
    for _ in 0..2 {
        let map = common::open_file(&path, reading().ordered(true)).unwrap();
        let count = map.scan(..).unwrap().filter(Result::is_ok).count() as u64;
        assert_eq!(count, RECORDS + 1);
        map.into_db().close().unwrap();
    }
    let map = common::open_file(&path, options().ordered(true)).unwrap();
    assert_eq!(map.scan(..).unwrap().count() as u64, RECORDS + 1);
    let report = map.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
}

/// Readers report damage as writers do, and do not store anything in the file.
#[test]
fn damaged_files_are_read_as_far_as_they_go() {
    let (_directory, path) = closed(options());
    let whole = std::fs::read(&path).unwrap();
    let mut random = Random::new(3);
    for _ in 0..20 {
        let mut damaged = whole.clone();
        for _ in 0..30 {
            let at = random.below(damaged.len() as u64 - 16_384) as usize + 16_384;
            damaged[at] ^= 1 << random.below(8);
        }
        std::fs::write(&path, &damaged).unwrap();
        if let Ok(map) = common::open_file(&path, reading()) {
            for key in 0..RECORDS {
                if let Ok(Some(found)) = map.get(&key_of(key)) {
                    assert!(found == value(key));
                }
            }
            let _ = map.db().check(true).unwrap().to_string();
        }
        assert!(std::fs::read(&path).unwrap() == damaged);
    }
}
