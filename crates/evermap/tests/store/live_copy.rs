//! A copy that was made while a process was writing to the file, restored over the same file: the
//! identity of the file says nothing then, and its pages are of different times.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin};

use crate::common::{self, Kept, child};
use evermap::{DamageMark, ErrorKind, IndexKind, Map, OnSuspect, Options, Order};
use evermap_pm::Medium;
use evermap_pm::sim::Sim;

/// The number of records that the process has stored when the copy begins, and of those that it
/// stores meanwhile.
const FIRST: u64 = 20_000;
const LATER: u64 = 60_000;
const PIECE: usize = 64 << 10;

fn options(index: IndexKind) -> Options {
    Options::new().index(index).capacity(64 << 20).seed(1)
}

fn value_of(key: u64) -> [u8; 100] {
    [key as u8; 100]
}

#[test]
fn write_without_end() {
    let Some(argument) = child::asked_for("live_copy::write_without_end") else { return };
    let (path, index) = argument.split_once('\n').unwrap();
    let map = common::open_file(path, options(index.parse().unwrap())).unwrap();
    for key in 0..FIRST {
        map.put(&key.to_le_bytes(), &value_of(key)).unwrap();
    }
    println!("ready");
    // In step with the copy.
    let mut turns = std::io::stdin().lines().map_while(Result::ok);
    for keys in (FIRST..FIRST + LATER).collect::<Vec<_>>().chunks(PIECE / 100) {
        if turns.next().is_none() {
            return;
        }
        for key in keys {
            map.put(&key.to_le_bytes(), &value_of(*key)).unwrap();
        }
        // Old records go too.
        map.delete(&(keys[0] % FIRST).to_le_bytes()).unwrap();
        println!("stored");
    }
    loop {
        std::thread::park();
    }
}

/// Starts the process. Returns its output and its input, when the first records are stored.
fn start(
    path: &Path,
    index: IndexKind,
) -> (Child, impl Iterator<Item = String> + use<>, ChildStdin) {
    let argument = format!("{}\n{index}", path.display());
    let mut process = child::start("live_copy::write_without_end", argument);
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "ready"));
    let turns = process.stdin.take().unwrap();
    (process, lines, turns)
}

/// Copies the file piece by piece while the process writes, kills that, and restores the copy.
fn restored(index: IndexKind) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let path = directory.path().join("map");
    let (mut process, mut lines, mut turns) = start(&path, index);
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let (mut copy, mut stored) = (Vec::new(), 0);
    loop {
        let mut piece = vec![0; PIECE];
        let read = file.read_at(&mut piece, copy.len() as u64).unwrap();
        copy.extend_from_slice(&piece[..read]);
        if read == 0 {
            break;
        }
        if stored < LATER {
            writeln!(turns).unwrap();
            assert!(lines.any(|line| line == "stored"));
            stored += (PIECE / 100) as u64;
        }
    }
    process.kill().unwrap();
    process.wait().unwrap();
    file.set_len(0).unwrap();
    file.write_all_at(&copy, 0).unwrap();
    (directory, path)
}

fn count(map: &Map) -> (u64, u64, u64) {
    let (mut found, mut missing, mut damaged) = (0, 0, 0);
    for key in 0..FIRST + LATER {
        match map.get(&key.to_le_bytes()) {
            Ok(Some(value)) => {
                assert_eq!(value, value_of(key));
                found += 1;
            }
            Ok(None) => missing += 1,
            Err(_) => damaged += 1,
        }
    }
    (found, missing, damaged)
}

/// The identity of the file is that of the process that was killed, so only the contents tell.
#[test]
fn a_restored_copy_of_a_file_in_use_is_refused() {
    for index in common::every_index() {
        let (_directory, path) = restored(index);
        let error = common::open_file(&path, options(index)).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Suspect, "{index}: {error}");
        assert!(error.to_string().contains("not closed"), "{index}: {error}");
        // It stays so.
        let error = common::open_file(&path, options(index)).map(drop).unwrap_err();
        assert!(error.to_string().contains("many places"), "{index}: {error}");
        let salvage = || options(index).on_suspect(OnSuspect::Salvage);
        let map = common::open_file(&path, salvage()).unwrap();
        let (found, missing, damaged) = count(&map);
        assert!(found < FIRST + LATER && missing + damaged > 0, "{index}: nothing is wrong");
        let stat = map.stat();
        assert!(stat.suspect && stat.damage == DamageMark::Widespread, "{index}: {stat}");
        // A check that finds problems does not leave it as closed in order.
        assert!(!map.db().check(true).unwrap().is_sound(), "{index}");
        map.into_db().close().unwrap();
        let error = common::open_file(&path, options(index)).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Suspect, "{index}: {error}");
    }
}

/// The sweep finds it too, for a program that asked for what is left.
#[test]
fn the_sweep_of_a_restored_copy_marks_it() {
    let (_directory, path) = restored(common::index());
    let salvage = options(common::index()).on_suspect(OnSuspect::Salvage);
    let map = common::open_file(&path, salvage).unwrap();
    let _ = map.db().recover();
    assert_eq!(map.stat().damage, DamageMark::Widespread, "{}", map.stat());
}

/// Nothing is wrong with a file that is as the process left it, whatever that was doing.
#[test]
fn a_file_whose_process_was_killed_is_not_refused() {
    for index in common::every_index() {
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let path = directory.path().join("map");
        let (mut process, _, _) = start(&path, index);
        process.kill().unwrap();
        process.wait().unwrap();
        let map = common::open_file(&path, options(index)).unwrap();
        assert!(!map.stat().clean_open);
        assert_eq!(count(&map), (FIRST, LATER, 0), "{index}");
        map.db().recover().unwrap();
        assert_eq!(map.stat().damage, DamageMark::None);
    }
}

/// Copies that were made between two moments, up to some place before and from there on after:
/// where the order lacks keys that the hash index has, the sweep enters them.
#[test]
fn the_sweep_of_a_restored_copy_enters_what_its_order_lacks() {
    let mut lacking = 0;
    for kind in common::every_index() {
        let memory = Kept::new(64 << 20);
        let options = options(kind).ordered(Order::Persistent);
        let store = memory.open(&options).unwrap();
        let put = |keys: Range<u64>| {
            keys.for_each(|key| store.put(&key.to_be_bytes(), b"value").unwrap());
        };
        put(0..FIRST);
        let before = memory.copy();
        put(FIRST..LAST);
        for percent in [56, 68, 80] {
            let mixed = memory.copy();
            mix(&mixed, &before, percent);
            lacking += u64::from(is_restored(&mixed, &options));
        }
    }
    // Of one kind there may be none.
    assert!(lacking > 3 || common::every_index().len() == 1, "{lacking}");
}

/// The end of the numbers of keys in copies in which the last ones are only in part.
const LAST: u64 = FIRST + 50;

/// Returns `true` if the order lacked keys, and has all that `get` finds after the sweep.
fn is_restored(memory: &Kept, options: &Options) -> bool {
    let Ok(store) = memory.open(options) else { return false };
    // Only of an index that can be read all is found.
    let found = |key: &u64| store.get(&key.to_be_bytes()).map(|value| value.is_some());
    if (0..LAST).any(|key| found(&key).is_err()) {
        return false;
    }
    let found: BTreeSet<_> =
        (0..LAST).filter(|key| found(key).unwrap()).map(|key| key.to_be_bytes().to_vec()).collect();
    let found = Some(found);
    let scanned = |store: &Map<Sim>| -> Option<BTreeSet<_>> {
        store.scan(..).ok()?.map(|pair| pair.ok().map(|(key, _)| key)).collect()
    };
    if scanned(&store) == found {
        return false;
    }
    let recovered = store.db().recover();
    let stat = store.stat();
    assert!(stat.damage > DamageMark::None, "{stat}");
    if recovered.is_err() || scanned(&store) != found {
        // A tree that cannot be read is replaced by the next opening.
        drop(store);
        let store = memory.open(&options.clone().on_suspect(OnSuspect::Salvage)).unwrap();
        let _ = store.db().recover();
        assert_eq!(scanned(&store), found);
    }
    true
}

/// Copies in which values were replaced meanwhile: the index of one moment leads to records of the
/// other. Whatever a check of every record finds, the sweep has found before.
#[test]
fn the_sweep_of_a_restored_copy_finds_records_of_another_time() {
    let mut damaged = 0;
    for kind in common::every_index() {
        let memory = Kept::new(64 << 20);
        let store = memory.open(&options(kind)).unwrap();
        let put = |key: u64, value: &[u8]| store.put(&key.to_be_bytes(), value).unwrap();
        (0..FIRST).for_each(|key| put(key, b"value"));
        let before = memory.copy();
        (0..FIRST).step_by(20).for_each(|key| put(key, &[0xab; 100]));
        for percent in [60, 76, 88] {
            let mixed = memory.copy();
            mix(&mixed, &before, percent);
            let Ok(store) = mixed.open(&options(kind)) else { continue };
            let (recovered, mark) = (store.db().recover(), store.stat().damage);
            let report = store.db().check(true).unwrap();
            damaged += u64::from(!report.is_sound());
            let is_noticed = recovered.is_err() || mark > DamageMark::None;
            assert!(is_noticed || report.is_sound(), "{kind} {percent}: {report}");
            // What was found stays noted.
            let is_sound = report.is_sound();
            if store.into_db().close().is_ok() && !is_sound {
                let opened = mixed.open(&options(kind).on_suspect(OnSuspect::Salvage)).unwrap();
                assert!(opened.stat().damage > DamageMark::None, "{kind} {percent}");
                assert!(!opened.stat().clean_open, "{kind} {percent}");
            }
        }
    }
    // Of one kind there may be none.
    assert!(damaged > 3 || common::every_index().len() == 1, "{damaged}");
}

/// Replaces what is before this part of the length of `before` by that.
fn mix(memory: &Kept, before: &Kept, percent: u64) {
    let cut = before.len() / 100 * percent / 4096 * 4096;
    (0..cut).step_by(8).for_each(|at| memory.set_word(at, before.word(at)));
}
