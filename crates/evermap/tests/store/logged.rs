//! Stores with a log: what is acknowledged survives the loss of the working copy.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use evermap::{Acknowledge, Batch, Durability, ErrorKind, Evermap, MapOptions, Options, Order};
use evermap_index::testkit::{Tier, tier};

use crate::common::{self, Random, child};

fn options() -> Options {
    common::options()
        .capacity(1 << 30)
        .extent_size(64 << 10)
        .durability(Durability::Log)
        .log_in_memory(true)
        .ordered(Order::Persistent)
}

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Place { directory: tempfile::tempdir().unwrap() }
    }

    fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    /// Does to the working copy what loss of power may do.
    fn lose_power(&self, how: u64) {
        let store = self.store();
        match how % 3 {
            0 => std::fs::remove_file(&store).unwrap(),
            1 => {
                // Another file, as after a reboot on tmpfs, with some old pages.
                let bytes = std::fs::read(&store).unwrap();
                std::fs::remove_file(&store).unwrap();
                std::fs::write(&store, bytes).unwrap();
            }
            _ => std::fs::write(&store, []).unwrap(),
        }
    }
}

fn open(path: &Path) -> Evermap {
    Evermap::open(path, options()).unwrap()
}

fn assert_sound(db: &Evermap) {
    let report = db.check(true).unwrap();
    assert!(report.is_sound(), "{report:?}");
}

#[test]
fn everything_survives_the_loss_of_the_file() {
    let place = Place::new();
    let db = open(&place.store());
    let (map, users) = (db.default_map(), db.map("users", MapOptions::new()).unwrap());
    db.map("dropped", MapOptions::new()).unwrap().put("a", "b").unwrap();
    (0..500_u64).for_each(|key| map.put(key.to_le_bytes(), [7; 100]).unwrap());
    users.put("ann", "1").unwrap();
    let cas = map.set("lease").expires(Duration::from_secs(3600)).put("mine").unwrap();
    map.fetch_add("count", 5).unwrap();
    map.remove(3_u64.to_le_bytes()).unwrap();
    let mut batch = Batch::new();
    batch.put("both", "1").in_map("users").put("both", "1");
    assert!(map.apply(&batch).unwrap().is_done());
    assert!(db.drop_map("dropped").unwrap());
    drop((map, users));
    // As after a kill: not closed.
    std::mem::forget(db.clone());
    std::mem::forget(db);
    for how in 0..3 {
        // Another process opens it, whose predecessor holds no lock any more.
        let copy = Place::new();
        copy_folder(&place.store(), &copy.store());
        copy.lose_power(how);
        let db = open(&copy.store());
        let map = db.default_map();
        assert_eq!(map.iter().count(), 502, "{how}");
        assert_eq!(map.get("count").unwrap(), Some(5_i64.to_le_bytes().to_vec()));
        assert_eq!(map.get_with("lease", |item| item.cas).unwrap(), Some(cas));
        assert_eq!(map.scan(..).unwrap().count(), 502);
        assert_eq!(db.maps().unwrap(), ["users"]);
        let users = db.map("users", MapOptions::new()).unwrap();
        assert_eq!(users.iter().count(), 2);
        assert_sound(&db);
        // It goes on, is closed, and is whole after another loss.
        map.put("later", "1").unwrap();
        drop((map, users));
        db.close().unwrap();
        copy.lose_power(how + 1);
        assert_eq!(open(&copy.store()).default_map().get("later").unwrap(), Some(b"1".to_vec()));
    }
}

/// Copies the log of a store that is open, and what a kernel may have written of the store.
fn copy_folder(from: &Path, to: &Path) {
    let log = |path: &Path| PathBuf::from(format!("{}.log", path.display()));
    std::fs::create_dir(log(to)).unwrap();
    for entry in std::fs::read_dir(log(from)).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), log(to).join(entry.file_name())).unwrap();
    }
    std::fs::copy(from, to).unwrap();
}

#[test]
fn a_store_that_was_killed_opens_from_its_file_and_logs_the_rest() {
    let place = Place::new();
    let mut killed = child::start("logged::killed", place.store().display());
    wait_for_line(&mut killed);
    std::thread::sleep(Duration::from_millis(100));
    killed.kill().unwrap();
    killed.wait().unwrap();
    let db = open(&place.store());
    let map = db.default_map();
    let unsynced = map.iter().count();
    assert!(unsynced > 0);
    // What only the file had is in the log with the next change.
    map.put("next", "1").unwrap();
    drop(map);
    std::mem::forget(db);
    let copy = Place::new();
    copy_folder(&place.store(), &copy.store());
    copy.lose_power(0);
    let db = open(&copy.store());
    assert_eq!(db.default_map().iter().count(), unsynced + 1);
    assert_sound(&db);
}

fn wait_for_line(child: &mut std::process::Child) {
    use std::io::{BufRead, BufReader};
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("ready")));
}

/// Changes a store without waiting, until it is killed.
#[test]
fn killed() {
    let Some(path) = child::asked_for("logged::killed") else { return };
    let db = open(Path::new(&path)).without_waiting();
    let map = db.default_map();
    println!("ready");
    for key in 0_u64.. {
        map.put(key.to_le_bytes(), [1; 60]).unwrap();
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// Threads change a store with every kind of acknowledgement, and the folder of its log is copied
/// again and again: what was acknowledged before is in every copy, and no batch in part.
#[test]
fn acknowledged_is_durable_whenever_power_fails() {
    let rounds = match tier() {
        Tier::Default => 6,
        Tier::Full => 200,
    };
    let place = Place::new();
    let checkpoints = options().checkpoint_bytes(1 << 20);
    let db = Evermap::open(place.store(), checkpoints).unwrap();
    let stop = &AtomicBool::new(false);
    let acknowledged = &[const { std::sync::atomic::AtomicU64::new(0) }; 3];
    std::thread::scope(|scope| {
        let _stops = common::StopOnDrop(stop);
        for (thread, acknowledged) in acknowledged.iter().enumerate() {
            let map = db.default_map();
            scope.spawn(move || {
                let mut random = Random::new(thread as u64);
                for round in 1_u64.. {
                    if stop.load(Relaxed) {
                        return;
                    }
                    let mut batch = Batch::new();
                    for part in 0..3 {
                        batch.put(format!("thread {thread} part {part}"), round.to_le_bytes());
                    }
                    assert!(map.apply(&batch).unwrap().is_done());
                    let filler = format!("filler {thread} {}", random.below(300));
                    map.put(filler, vec![1; random.below(400) as usize]).unwrap();
                    acknowledged.store(round, Relaxed);
                }
            });
        }
        for round in 0..rounds {
            std::thread::sleep(Duration::from_millis(30));
            let before: Vec<u64> = acknowledged.iter().map(|a| a.load(Relaxed)).collect();
            let copy = Place::new();
            // A reader of the log, as another process has it: image and log of one moment.
            let reading = options().read_only(true).lock_wait(Duration::ZERO);
            let db = Evermap::open(place.store(), reading).unwrap();
            let of = |thread: usize, part: u64| {
                let value = db.default_map().get(format!("thread {thread} part {part}")).unwrap();
                value.map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()))
            };
            for (thread, &before) in before.iter().enumerate() {
                assert!(of(thread, 0) >= before, "round {round}: lost");
                assert!((1..3).all(|part| of(thread, part) == of(thread, 0)), "a part of a batch");
            }
            assert_sound(&db);
            drop(copy);
        }
    });
    let stat = db.log_stat().unwrap();
    assert!(stat.commits > 0 && !stat.is_full, "{stat:?}");
}

#[test]
fn async_operations_become_durable_soon() {
    let place = Place::new();
    let period = Duration::from_millis(5);
    let options = || options().acknowledge(Acknowledge::Async(period));
    let db = Evermap::open(place.store(), options()).unwrap();
    db.default_map().put("a", "1").unwrap();
    let until = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        let reading = options().read_only(true).lock_wait(Duration::ZERO);
        let reader = Evermap::open(place.store(), reading).unwrap();
        if reader.default_map().get("a").unwrap().is_some() {
            break;
        }
        assert!(std::time::Instant::now() < until, "it never becomes durable");
    }
}

#[test]
fn a_store_and_its_log_belong_together() {
    let (one, other) = (Place::new(), Place::new());
    open(&one.store()).close().unwrap();
    open(&other.store()).close().unwrap();
    // Without its log it is not opened for writing.
    let plain = options().durability(Durability::Process);
    let error = Evermap::open(one.store(), plain.clone()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("has a log"), "{error}");
    // For reading it is.
    Evermap::open(one.store(), plain.clone().read_only(true)).unwrap();
    // The log of another store is refused.
    let foreign = options().log_folder(format!("{}.log", other.store().display()));
    let error = Evermap::open(one.store(), foreign).unwrap_err();
    assert!(error.to_string().contains("another store"), "{error}");
    // Without the folder, it is a store like any other, and gets a new log.
    std::fs::remove_dir_all(format!("{}.log", one.store().display())).unwrap();
    let db = Evermap::open(one.store(), plain).unwrap();
    db.default_map().put("a", "1").unwrap();
    db.close().unwrap();
    drop(open(&one.store()));
    one.lose_power(0);
    assert!(open(&one.store()).default_map().get("a").unwrap().is_some());
    // A second opener is refused, also while there is no file.
    let db = open(&other.store());
    let second = options().lock_wait(Duration::ZERO);
    assert_eq!(Evermap::open(other.store(), second).unwrap_err().kind(), ErrorKind::InUse);
    drop(db);
    assert_eq!(Evermap::in_memory(options()).unwrap_err().kind(), ErrorKind::Config);
}

/// After loss of power the marks may be older than the header of the file: that is no reason to
/// believe the file.
#[test]
fn marks_that_are_older_than_a_torn_file_do_not_count() {
    let place = Place::new();
    let db = open(&place.store());
    db.default_map().put("a", "1").unwrap();
    std::mem::forget(db);
    let copy = Place::new();
    copy_folder(&place.store(), &copy.store());
    let marks = format!("{}.log/marks", copy.store().display());
    let mut bytes = std::fs::read(&marks).unwrap();
    let opening = u64::from_le_bytes(bytes[24..32].try_into().unwrap());
    bytes[24..32].copy_from_slice(&(opening - 1).to_le_bytes());
    std::fs::write(&marks, bytes).unwrap();
    let reading = options().read_only(true).lock_wait(Duration::ZERO);
    let reader = Evermap::open(copy.store(), reading).unwrap();
    // What was read of the log can be copied.
    assert!(reader.backup(&mut std::io::sink()).unwrap().bytes() > 0);
    drop(reader);
    assert_eq!(open(&copy.store()).default_map().get("a").unwrap(), Some(b"1".to_vec()));
}

/// A store that was changed without its log gets a new one, which has everything.
#[test]
fn a_store_that_was_changed_without_its_log_gets_a_new_one() {
    let place = Place::new();
    open(&place.store()).close().unwrap();
    let folder = PathBuf::from(format!("{}.log", place.store().display()));
    let aside = place.directory.path().join("aside");
    std::fs::rename(&folder, &aside).unwrap();
    let plain = options().durability(Durability::Process);
    let db = Evermap::open(place.store(), plain).unwrap();
    db.default_map().put("a", "1").unwrap();
    db.close().unwrap();
    std::fs::rename(&aside, &folder).unwrap();
    drop(open(&place.store()));
    place.lose_power(0);
    assert!(open(&place.store()).default_map().get("a").unwrap().is_some());
    // Interrupted between the two renames of a replacement, it has another name.
    std::fs::rename(&folder, folder.with_extension("log.new")).unwrap();
    place.lose_power(0);
    assert!(open(&place.store()).default_map().get("a").unwrap().is_some());
}

/// A file that is not a store is not lost when the log takes its place.
#[test]
fn a_file_that_cannot_be_read_is_set_aside() {
    let place = Place::new();
    let db = open(&place.store());
    db.default_map().put("a", "1").unwrap();
    db.close().unwrap();
    let text = "of another program ".repeat(1000);
    std::fs::write(place.store(), &text).unwrap();
    assert!(open(&place.store()).default_map().get("a").unwrap().is_some());
    let aside = format!("{}.replaced", place.store().display());
    assert_eq!(std::fs::read_to_string(aside).unwrap(), text);
}

/// An older file under the same name is not mistaken for the working copy.
#[test]
fn an_older_file_is_replaced_by_what_the_log_has() {
    let place = Place::new();
    open(&place.store()).close().unwrap();
    let old = std::fs::read(place.store()).unwrap();
    let db = open(&place.store());
    db.default_map().put("a", "1").unwrap();
    db.close().unwrap();
    // The same inode, with what it had before.
    std::fs::write(place.store(), old).unwrap();
    assert_eq!(open(&place.store()).default_map().get("a").unwrap(), Some(b"1".to_vec()));
}

#[test]
fn what_a_moment_had_is_restored() {
    let place = Place::new();
    let folder = format!("{}.log", place.store().display());
    let db = Evermap::open(place.store(), options().keep_log(true)).unwrap();
    let map = db.default_map();
    let mut moments = Vec::new();
    for round in 0_u64..5 {
        map.put("round", round.to_le_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(2));
        moments.push(std::time::SystemTime::now());
        std::thread::sleep(Duration::from_millis(2));
    }
    for (round, &moment) in (0_u64..).zip(&moments) {
        let path = place.directory.path().join(format!("restored {round}"));
        let time = evermap::restore_log(&folder, &path, Some(moment)).unwrap();
        assert!(time <= moment);
        let other = Evermap::open(&path, options()).unwrap();
        let seen = other.default_map().get("round").unwrap();
        assert_eq!(seen, Some(round.to_le_bytes().to_vec()));
        assert_sound(&other);
    }
    let (path, early) = (place.directory.path().join("early"), std::time::UNIX_EPOCH);
    let error = evermap::restore_log(&folder, &path, Some(early)).unwrap_err();
    assert!(error.to_string().contains("later than asked for"), "{error}");
    assert!(!path.exists());
}

/// A log in memory would not survive what it is for. With one that is elsewhere the store may be
/// in memory.
#[test]
fn a_log_in_memory_is_refused() {
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        return println!("skipped: /dev/shm cannot be used");
    };
    let (disk, store) = (tempfile::tempdir().unwrap(), memory.path().join("store"));
    let options = || options().log_in_memory(false);
    let error = Evermap::open(&store, options()).unwrap_err().to_string();
    assert!(error.contains("store.log would be in memory"), "{error}");
    assert_eq!(std::fs::read_dir(memory.path()).unwrap().count(), 0, "nothing was created");
    // Also if there is one already.
    Evermap::open(&store, options().log_in_memory(true)).unwrap().close().unwrap();
    assert!(Evermap::open(&store, options()).is_err());
    let (other, log) = (memory.path().join("other"), disk.path().join("log"));
    // Where temporary files are may be in memory too.
    let db = Evermap::open(&other, options().log_folder(log).log_in_memory(true)).unwrap();
    db.default_map().put(b"key", b"value").unwrap();
    db.close().unwrap();
}
