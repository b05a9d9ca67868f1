//! Stores in files: opening them again after every kind of shutdown, and what is refused.

use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use crate::common::{self, Random, child, is_value_of, value_of};
use evermap::{
    Clock, Count, Error, ErrorKind, IndexKind, KEY_MAX, Map, OnSuspect, Options, SweepState,
    VALUE_MAX,
};

fn options() -> Options {
    common::options().capacity(1 << 30).extent_size(64 << 10).lock_wait(Duration::from_secs(60))
}

fn open(path: &Path) -> Map {
    common::open_file(path, options()).unwrap()
}

/// Returns the error of an opening that must fail.
fn refusal(path: &Path, options: Options) -> Error {
    common::open_file(path, options).expect_err("must be refused")
}

#[test]
fn a_clean_shutdown_leaves_everything_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    let mut expected = Count { value: 0, exact: true };
    let mut bytes = expected;
    let mut cas = 0;
    for round in 0..4u64 {
        let map = open(&path);
        let stat = map.stat();
        assert!(stat.clean_open && !stat.suspect);
        assert_eq!((stat.records, stat.record_bytes), (expected, bytes));
        assert_eq!(stat.sweep, SweepState::NotNeeded);
        assert_eq!(map.space().unwrap().closed_bytes, 0);
        assert_eq!(stat.generation, round + 1);
        assert_eq!(stat.path.as_deref(), Some(&*path));
        assert!(stat.next_cas >= cas && stat.next_cas <= cas + 1, "a clean shutdown leaves no gap");
        for key in 0..500 * (round + 1) {
            let key = format!("{key}").into_bytes();
            map.put(&key, &value_of(&key, round, 100)).unwrap();
        }
        (expected, bytes, cas) = (map.records(), map.bytes(), map.stat().next_cas);
        assert_eq!(expected.value, 500 * (round + 1));
        if round % 2 == 0 {
            map.into_db().close().unwrap();
        } // Otherwise dropping the last handle closes.
    }
    let report = open(&path).db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
}

#[test]
fn handles_know_that_another_closed_the_store() {
    let map = common::in_memory(common::options()).unwrap();
    let other = map.clone();
    map.into_db().close().unwrap();
    assert!(matches!(other.get(b"key"), Err(Error::Closed)));
    assert!(matches!(other.put(b"key", b"value"), Err(Error::Closed)));
    assert!(matches!(other.for_each(|_| ControlFlow::Continue(())), Err(Error::Closed)));
    assert!(matches!(other.iter().next(), Some(Err(Error::Closed))));
    assert!(matches!(other.db().purge(), Err(Error::Closed)));
    assert!(matches!(other.db().check(true), Err(Error::Closed)));
    other.into_db().close().unwrap();
}

/// Writes until it is killed, and prints what it is about to do and what was acknowledged.
#[test]
fn write_until_killed() {
    let Some(argument) = child::asked_for("files::write_until_killed") else { return };
    let (path, round) = argument.split_once('\n').unwrap();
    let map = open(path.as_ref());
    let mut random = Random::new(round.parse().unwrap());
    // Line by line, so that each line is written before the next step.
    let mut out = std::io::stdout().lock();
    for version in 0u64.. {
        let name = random.below(300).to_string();
        let key = name.as_bytes();
        let cas = match random.below(8) {
            0 => {
                writeln!(out, "try {name} -").unwrap();
                map.delete(key).unwrap();
                None
            }
            1 if version % 50 == 0 => {
                writeln!(out, "try * -").unwrap();
                map.clear().unwrap();
                None
            }
            _ => {
                writeln!(out, "try {name} {version}").unwrap();
                let value = value_of(key, version, random.below(1500) as usize);
                Some(map.set(key).put(&value).unwrap())
            }
        };
        writeln!(out, "did {}", cas.unwrap_or(0)).unwrap();
    }
}

/// The version stored under each key.
type State = BTreeMap<String, u64>;

/// A change: the key, or `*` for all, and the new version.
type Step = (String, Option<u64>);

fn apply(state: &mut State, (name, version): Step) {
    match version {
        _ if name == "*" => state.clear(),
        Some(version) => drop(state.insert(name, version)),
        None => drop(state.remove(&name)),
    }
}

fn contents(map: &Map) -> State {
    let version = |pair: evermap::Result<(Vec<u8>, Vec<u8>)>| {
        let (key, value) = pair.unwrap();
        assert!(is_value_of(&key, &value));
        let version = u64::from_le_bytes(*value[key.len()..].first_chunk().unwrap());
        (String::from_utf8(key).unwrap(), version)
    };
    map.iter().map(version).collect()
}

#[test]
fn a_kill_loses_nothing_and_repeats_no_id() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    let mut ids = HashSet::new();
    let mut state = State::new();
    for round in 0..12usize {
        let mut process =
            child::start("files::write_until_killed", format!("{}\n{round}", path.display()));
        let mut trying = None;
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        for (heard, line) in lines.map_while(Result::ok).enumerate() {
            // What was printed before the kill is still in the pipe.
            if heard == 300 * (round % 4 + 1) + round {
                process.kill().unwrap();
            }
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["try", name, version] => trying = Some((name.into(), version.parse().ok())),
                ["did", cas] => {
                    let cas: u64 = cas.parse().unwrap();
                    assert!(cas == 0 || ids.insert(cas), "a CAS id was assigned twice");
                    apply(&mut state, trying.take().expect("announced"));
                }
                _ => {} // Output of the test harness.
            }
        }
        process.wait().unwrap();
        // Opened immediately, without waiting for the killed process.
        let map = open(&path);
        assert!(!map.stat().clean_open);
        let found = contents(&map);
        if found != state {
            apply(&mut state, trying.expect("only a change that was being made may be present"));
            assert_eq!(found, state);
        }
        if round % 3 == 2 {
            let report = map.db().check(true).unwrap();
            assert!(report.is_sound(), "{report}");
            assert!(map.records().exact);
        }
        map.into_db().close().unwrap();
    }
}

/// Flushes that are pending, and those that happened, survive an unclean shutdown, and happen only
/// once.
#[test]
fn a_pending_flush_survives_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    let mut process = child::start("files::set_a_flush_and_hang", path.display());
    let mut line = String::new();
    let mut out = BufReader::new(process.stdout.take().unwrap());
    while line.trim() != "ready" {
        line.clear();
        assert_ne!(out.read_line(&mut line).unwrap(), 0, "the child ended");
    }
    process.kill().unwrap();
    process.wait().unwrap();
    let clock = Clock::manual(common::at(1999));
    let map = common::open_file(&path, options().clock(clock.clone())).unwrap();
    assert_eq!(map.stat().flush_due, Some(2000));
    assert_eq!(map.get(b"flushed").unwrap(), None, "the first flush came back");
    assert_eq!(map.get(b"early").unwrap().as_deref(), Some(&b"value"[..]));
    clock.set(common::at(2000));
    assert_eq!(map.get(b"early").unwrap(), None);
    map.put(b"late", b"value").unwrap();
    assert_eq!(map.stat().flush_due, None);
    map.into_db().close().unwrap();
    let map = common::open_file(&path, options().clock(Clock::manual(common::at(3000)))).unwrap();
    assert_eq!(map.get(b"late").unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(map.get(b"early").unwrap(), None);
    map.db().recover().unwrap();
    map.db().purge().unwrap();
    assert_eq!(map.records(), Count { value: 1, exact: true });
}

#[test]
fn set_a_flush_and_hang() {
    let Some(path) = child::asked_for("files::set_a_flush_and_hang") else { return };
    let map = common::open_file(path, options().clock(Clock::manual(common::at(1000)))).unwrap();
    map.put(b"flushed", b"value").unwrap();
    map.clear().unwrap();
    map.put(b"early", b"value").unwrap();
    map.expire_all_at(common::at(2000)).unwrap();
    println!("ready");
    loop {
        std::thread::park();
    }
}

#[test]
fn there_is_one_writer_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    let map = evermap::Evermap::open(&path, options()).unwrap().default_map();
    let line = line!() - 1;
    let error = refusal(&path, options().lock_wait(Duration::ZERO));
    let own = std::process::id();
    let (place, text) = (format!("(opened at {}:{line}:", file!()), error.to_string());
    assert!(
        error.kind() == ErrorKind::InUse
            && text.contains(&format!("{}: this process has it open already", path.display()))
            && text.contains(&place),
        "{error}"
    );
    let mut process = child::start("files::open_what_is_in_use", path.display());
    let mut said = String::new();
    std::io::Read::read_to_string(&mut process.stdout.take().unwrap(), &mut said).unwrap();
    assert!(process.wait().unwrap().success());
    assert!(said.contains(&format!("in use by process {own}")), "{said}");
    drop(map);
    drop(open(&path));
}

#[test]
fn open_what_is_in_use() {
    let Some(path) = child::asked_for("files::open_what_is_in_use") else { return };
    println!("{}", refusal(path.as_ref(), options().lock_wait(Duration::ZERO)));
}

/// Whether an error is of this kind, and its message begins with the path of this file, once.
fn names(error: &Error, kind: ErrorKind, path: &Path) -> bool {
    let path = format!("{}: ", path.display());
    let text = error.to_string();
    error.kind() == kind && text.starts_with(&path) && text.matches(&path).count() == 1
}

#[test]
fn what_is_no_store_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    let error = refusal(&path, options().create(false));
    assert!(matches!(&error, Error::NotFound { path: p } if p.as_ref() == Some(&path)), "{error}");
    assert!(!path.exists());
    for text in [&b"some text\n"[..], &[b'x'; 100_000]] {
        std::fs::write(&path, text).unwrap();
        let error = refusal(&path, options());
        assert!(names(&error, ErrorKind::NotAStore, &path), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), text);
    }
    std::fs::write(&path, b"").unwrap();
    let error = refusal(&path, options().create(false));
    assert!(matches!(&error, Error::NotFound { path: p } if p.as_ref() == Some(&path)), "{error}");
    drop(open(&path));
    let error = refusal(directory.path(), options());
    assert!(error.kind() == ErrorKind::NotAStore, "{error}");
    let error = refusal(&directory.path().join("none").join("map"), options());
    assert!(error.kind() == ErrorKind::Io, "{error}");
    let error = refusal(&directory.path().join("new"), options().extent_size(5000));
    assert!(error.kind() == ErrorKind::Config, "{error}");
}

/// A copy of the file of an open store may have pages of different ages.
#[test]
fn suspect_files_are_opened_only_as_told() {
    let directory = tempfile::tempdir().unwrap();
    let (path, copy) = (directory.path().join("map"), directory.path().join("copy"));
    let map = open(&path);
    (0..1000u32).for_each(|key| map.put(&key.to_le_bytes(), b"value").unwrap());
    let fresh_copy = || assert!(std::fs::copy(&path, &copy).unwrap() > 0);
    fresh_copy();
    let error = refusal(&copy, options());
    assert!(names(&error, ErrorKind::Suspect, &copy), "{error}");
    let salvaged = options().on_suspect(OnSuspect::Salvage).verify_reads(false);
    let salvaged = common::open_file(&copy, salvaged).unwrap();
    assert!(salvaged.stat().suspect);
    assert!((0..1000u32).all(|key| salvaged.get(&key.to_le_bytes()).unwrap().is_some()));
    let report = salvaged.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
    salvaged.into_db().close().unwrap();
    assert!(!open(&copy).stat().suspect, "a clean shutdown ends the suspicion");
    fresh_copy();
    // A file that is not suspect is kept, although discarding was requested.
    let discarding = options().on_suspect(OnSuspect::Discard);
    assert_eq!(common::open_file(&copy, discarding.clone()).unwrap().iter().count(), 0);
    open(&copy).put(b"new", b"value").unwrap();
    assert_eq!(common::open_file(&copy, discarding).unwrap().iter().count(), 1);
}

#[test]
fn limits_are_enforced_by_errors() {
    let map = common::in_memory(common::options()).unwrap();
    let long = vec![b'k'; KEY_MAX + 1];
    let limits = (KEY_MAX + 1, KEY_MAX);
    let too_long = |result: evermap::Result<bool>| match result {
        Err(Error::KeyTooLong { len, max }) => (len, max) == limits,
        _ => false,
    };
    assert!(too_long(map.put(&long, b"").map(|()| true)));
    assert!(too_long(map.get(&long).map(|value| value.is_some())));
    assert!(too_long(map.delete(&long)));
    assert!(too_long(map.touch(&long, None)));
    assert!(too_long(map.get_many(&[&long], |_, _| ControlFlow::Continue(())).map(|()| true)));
    assert!(too_long(map.modify(&long, |_| evermap::Edit::Keep).map(|cas| cas.is_some())));
    map.put(&long[..KEY_MAX], b"longest key").unwrap();
    assert_eq!(map.get(&long[..KEY_MAX]).unwrap().as_deref(), Some(&b"longest key"[..]));
    // Never accessed, so it takes no memory.
    let huge = vec![0; VALUE_MAX + 1];
    let error = map.put(b"key", &huge).unwrap_err();
    assert!(
        matches!(error, Error::ValueTooLong { len, max } if (len, max) == (huge.len(), VALUE_MAX)),
        "{error}"
    );
    map.put(b"", b"empty key").unwrap();
    map.put(b"empty value", b"").unwrap();
    assert_eq!(map.get(b"").unwrap().as_deref(), Some(&b"empty key"[..]));
    assert_eq!(map.get(b"empty value").unwrap().as_deref(), Some(&b""[..]));
    let big = value_of(b"big", 1, 65 << 20);
    map.put(b"big", &big).unwrap();
    assert!(map.get(b"big").unwrap().is_some_and(|value| value == big));
    assert_eq!(map.len(), 4);
    assert!(map.db().check(true).unwrap().is_sound());
}

/// At the memory limit nothing is changed, and removals make space again.
#[test]
fn the_memory_limit_holds() {
    const LIMIT: u64 = 1 << 20;
    let map = common::in_memory(common::options().max_bytes(LIMIT)).unwrap();
    let fill = || {
        for key in 0u32.. {
            match map.try_insert(&key.to_le_bytes(), &[7; 1000]) {
                Ok(_) => assert!(map.bytes().value <= LIMIT),
                Err(error) => {
                    assert!(matches!(error, Error::Full { limit: LIMIT, .. }), "{error}");
                    assert_eq!(map.get(&key.to_le_bytes()).unwrap(), None);
                    return key;
                }
            }
        }
        unreachable!()
    };
    let count = fill();
    assert!(count > 900);
    assert!(map.put(&0u32.to_le_bytes(), &[8; 1000]).unwrap_err().is_no_space());
    assert_eq!(map.get(&0u32.to_le_bytes()).unwrap(), Some(vec![7; 1000]));
    (0..count).for_each(|key| assert!(map.delete(&key.to_le_bytes()).unwrap()));
    assert_eq!(map.bytes().value, 0);
    assert_eq!(fill(), count);
    map.clear().unwrap();
    map.db().purge().unwrap();
    assert_eq!(fill(), count);
    assert!(map.db().check(true).unwrap().is_sound());
}

#[test]
fn a_quarter_of_a_mebibyte_is_enough() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    let small = || common::small(256 << 10);
    let map = common::open_file(&path, small()).unwrap();
    let mut count = 0u32;
    let error = loop {
        match map.put(&count.to_le_bytes(), &[count as u8; 100]) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(error.is_no_space(), "{error}");
    assert!(count > 800, "only {count} records");
    assert!(std::fs::metadata(&path).unwrap().len() <= 256 << 10);
    map.into_db().close().unwrap();
    let map = common::open_file(&path, small()).unwrap();
    let whole = |map: &Map| {
        (0..count).all(|key| map.get(&key.to_le_bytes()).unwrap() == Some(vec![key as u8; 100]))
    };
    assert!(whole(&map));
    let report = map.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
    // A full store can be emptied and filled again.
    (0..count).for_each(|key| assert!(map.delete(&key.to_le_bytes()).unwrap()));
    (0..count).for_each(|key| map.put(&key.to_le_bytes(), &[key as u8; 100]).unwrap());
    assert!(whole(&map));
}

/// Forks, and looks at the inherited store in the child.
#[test]
fn fork_and_look() {
    let Some(path) = child::asked_for("files::fork_and_look") else { return };
    // SAFETY: nothing else writes to the file.
    let options = unsafe { options().ordered(true).assume_exclusive_file() };
    let map = common::open_file(&path, options).unwrap();
    map.put(b"key", b"value").unwrap();
    let mut scan = map.scan(..).unwrap();
    let mut writer = map.value_writer(b"parts", 10).unwrap();
    writer.write_all(&[1; 5]).unwrap();
    let is_borrowed = || map.get_ref(b"key").unwrap().unwrap().is_borrowed();
    assert!(is_borrowed());
    let (mut until_finished, finished) = std::io::pipe().unwrap();
    // SAFETY: the child below uses the store and ends; other threads of this process hold no lock
    // that it needs: the store is idle.
    let process = unsafe { libc::fork() };
    if process == 0 {
        // A panic would end the only thread, and with it the child, successfully.
        std::panic::set_hook(Box::new(|panic| {
            eprintln!("{panic}");
            // SAFETY: ends the child without running destructors or handlers of the parent.
            unsafe { libc::_exit(2) };
        }));
        let forked = |result: evermap::Result<bool>| {
            result.is_err_and(|error| error.kind() == ErrorKind::Forked)
        };
        let mut fine = map.get(b"key").unwrap().as_deref() == Some(b"value");
        fine &= !is_borrowed();
        fine &= writer.write_all(&[2; 5]).is_err();
        fine &= forked(map.put(b"key", b"child").map(|()| true));
        fine &= forked(map.delete(b"key"));
        fine &= forked(map.touch(b"key", common::at(1)));
        fine &= forked(map.modify(b"key", |_| evermap::Edit::Remove).map(|_| true));
        fine &= forked(map.clear().map(|()| true));
        fine &= forked(map.db().purge().map(|_| true));
        fine &= forked(map.scan(..).map(|_| true));
        fine &= forked(scan.next().unwrap().map(|_| true));
        // Walks through these take locks, which a child does not share.
        if matches!(common::index(), IndexKind::Cceh | IndexKind::Level | IndexKind::Tranche) {
            fine &= forked(map.iter().next().unwrap().map(|_| true));
        }
        fine &= forked(map.db().clone().close().map(|()| true));
        drop(scan);
        // Must neither hang nor write, whatever the parent has done with the block.
        drop(finished);
        let _ = until_finished.read(&mut [0]);
        drop(writer);
        drop(map);
        // SAFETY: ends the child without running destructors or handlers of the parent.
        unsafe { libc::_exit(if fine { 0 } else { 1 }) };
    }
    assert!(process > 0);
    writer.write_all(&[3; 5]).unwrap();
    writer.finish().unwrap();
    drop(finished);
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(process, &mut status, 0) }, process);
    assert_eq!(status, 0, "the child found something wrong");
    assert_eq!(map.get(b"parts").unwrap(), Some([[1; 5], [3; 5]].concat()));
    assert_eq!(map.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    map.put(b"key", b"parent").unwrap();
    map.into_db().close().unwrap();
}

#[test]
fn forked_children_cannot_write() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    let status =
        child::start("files::fork_and_look", path.display()).wait_with_output().unwrap().status;
    assert!(status.success());
    let map = open(&path);
    assert!(map.stat().clean_open);
    assert_eq!(map.get(b"key").unwrap().as_deref(), Some(&b"parent"[..]));
    assert!(map.db().check(true).unwrap().is_sound());
}

#[test]
fn volatile_stores_have_no_file() {
    let map = common::in_memory(common::options()).unwrap();
    map.put(b"key", b"value").unwrap();
    let stat = map.stat();
    assert_eq!((stat.path, &stat.file_system[..], &stat.medium[..]), (None, "memory", "volatile"));
    assert_eq!(stat.durability, evermap::Durability::Volatile);
    map.into_db().close().unwrap();
}

#[test]
fn figures_say_how_a_file_was_opened_and_count_one_as_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map");
    let opened = |map: &Map| {
        let stat = map.stat().to_string();
        let line = stat.lines().find(|line| line.starts_with("opened ")).unwrap();
        line.trim_start_matches("opened").trim().to_owned()
    };
    let map = open(&path);
    assert_eq!(opened(&map), "created, generation 1");
    map.put(b"key", b"1").unwrap();
    let report = map.db().check(true).unwrap().to_string();
    assert!(report.starts_with("sound: 1 record (0 dead) in "), "{report}");
    let error = map.fetch_add(b"key", 1).unwrap_err().to_string();
    assert!(error.contains("it has 1 byte instead of 8"), "{error}");
    map.into_db().close().unwrap();
    assert_eq!(opened(&open(&path)), "after a clean shutdown, generation 2");
}
