//! Snapshots, backups, and readers in other processes, while the store is changed.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use crate::common::{self, Random};
use evermap::{
    Batch, Error, ErrorKind, Evermap, IndexKind, Map, MapOptions, Options, Order, restore,
};
use evermap_index::testkit::instants::Capture;
use evermap_index::testkit::linearizability::Clock;
use evermap_index::testkit::{Tier, tier};
use evermap_pm::medium::{Identity, Mapped, MappedOptions};
use evermap_pm::region::Region;
use evermap_pm::sim::Sim;

const ACCOUNTS: u64 = 40;
const TOTAL: i64 = ACCOUNTS as i64 * 1000;

fn key_of(account: u64) -> Vec<u8> {
    format!("account {account:03}").into_bytes()
}

/// Accounts are in two maps, between which money is transferred: the second one has a name.
const OTHER: &str = "other";

fn map_name(account: u64) -> Option<&'static str> {
    (account % 2 == 1).then_some(OTHER)
}

fn maps_of(db: &Evermap) -> [Map; 2] {
    let other = MapOptions::new().create(db.instant().is_none());
    [db.default_map(), db.map(OTHER, other).unwrap()]
}

fn options() -> Options {
    common::options().capacity(1 << 30).extent_size(64 << 10).ordered(Order::Persistent)
}

/// Opens a new store with accounts.
fn bank(path: &Path, options: Options) -> Evermap {
    let db = Evermap::open(path, options).unwrap();
    let maps = maps_of(&db);
    for account in 0..ACCOUNTS {
        let map = &maps[account as usize % 2];
        map.put(key_of(account), 1000_i64.to_le_bytes()).unwrap();
    }
    db
}

/// Transfers money between accounts until `stop` is set, and stores other records, so that pages
/// and indexes change.
fn transfer(db: &Evermap, seed: u64, stop: &AtomicBool) {
    let (mut random, map) = (Random::new(seed), db.default_map());
    while !stop.load(Relaxed) {
        let (from, to) = (random.below(ACCOUNTS), random.below(ACCOUNTS));
        let mut batch = Batch::new();
        batch.in_map(map_name(from)).add(key_of(from), -1);
        batch.in_map(map_name(to)).add(key_of(to), 1);
        if from != to {
            assert!(map.apply(&batch).unwrap().is_done());
        }
        let filler = format!("filler {:04}", random.below(2000));
        match random.below(3) {
            0 => _ = map.remove(&filler).unwrap(),
            _ => map.put(&filler, vec![7; random.below(300) as usize]).unwrap(),
        }
    }
}

/// Checks that no money is missing, by gets, by a walk and by a scan.
fn assert_conserved(db: &Evermap) {
    let maps = maps_of(db);
    let of = |value: &[u8]| i64::from_le_bytes(value.try_into().unwrap());
    let gets = |account: u64| maps[account as usize % 2].get(key_of(account)).unwrap().unwrap();
    let by_get: i64 = (0..ACCOUNTS).map(|account| of(&gets(account))).sum();
    assert_eq!(by_get, TOTAL, "by gets");
    let is_account = |key: &[u8]| key.starts_with(b"account");
    let mut by_walk = 0;
    for map in &maps {
        let accounts = map.iter().map(Result::unwrap).filter(|(key, _)| is_account(key));
        accounts.for_each(|(_, value)| by_walk += of(&value));
    }
    assert_eq!(by_walk, TOTAL, "by walks");
    let scanned = maps[0].scan_prefix("account").unwrap().map(Result::unwrap).count() as u64;
    assert_eq!(scanned, ACCOUNTS / 2);
    let report = db.check(true).unwrap();
    assert!(report.is_sound(), "{report:?}");
}

/// Runs `each` while two threads transfer money.
fn while_transferring(db: &Evermap, each: impl FnOnce()) {
    let stop = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stops = common::StopOnDrop(stop);
        for seed in 0..2 {
            scope.spawn(move || transfer(db, seed, stop));
        }
        each();
    });
}

/// Returns how often something is tried.
/// Returns whether another boot of the machine would trust the file, which nothing has open.
fn survives_restarts(path: &Path) -> bool {
    let medium = Mapped::open(path, &MappedOptions::default()).unwrap();
    let later = Identity { boot: Identity::unknown_boot(), ..medium.identity() };
    Region::peek(&medium, later).unwrap().is_whole
}

fn scaled(times: u64) -> u64 {
    match tier() {
        Tier::Default => times,
        Tier::Full => times * 20,
    }
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn snapshots_are_of_one_moment_and_stay_as_they_are() {
    for index in [IndexKind::DashEh, IndexKind::Clht] {
        let directory = directory();
        let db = bank(&directory.path().join("store"), options().index(index));
        while_transferring(&db, || {
            let early = db.snapshot().unwrap();
            let before: Vec<_> = maps_of(&early).map(|map| map.iter().count()).into();
            for _ in 0..scaled(10) {
                let (one, two) = (db.snapshot().unwrap(), db.snapshot().unwrap());
                assert_conserved(&one);
                assert_conserved(&two);
                assert_conserved(&one);
            }
            assert_conserved(&early);
            let after: Vec<_> = maps_of(&early).map(|map| map.iter().count()).into();
            assert_eq!(before, after);
            assert!(early.memory_bytes() > 0 && early.instant().is_some());
        });
        assert_conserved(&db);
        db.close().unwrap();
    }
}

#[test]
fn snapshots_contain_what_was_acknowledged_and_refuse_changes() {
    let directory = directory();
    let path = directory.path().join("store");
    let db = Evermap::open(&path, options()).unwrap();
    let map = db.default_map();
    for round in 0_u64..50 {
        map.put(b"round", round.to_le_bytes()).unwrap();
        let snapshot = db.snapshot().unwrap();
        let other = snapshot.default_map();
        assert_eq!(other.get(b"round").unwrap(), Some(round.to_le_bytes().to_vec()));
        assert!(matches!(other.put(b"round", b"x"), Err(Error::ReadOnly)));
        assert!(snapshot.snapshot().is_err(), "a snapshot has none itself");
    }
    // With a guard, a thread would wait for itself.
    let reader = map.reader().unwrap();
    assert!(matches!(db.snapshot(), Err(Error::GuardHeld { .. })));
    drop(reader);
    // It outlives the store, and keeps the file locked.
    let snapshot = db.snapshot().unwrap();
    drop(map);
    db.close().unwrap();
    assert_eq!(snapshot.default_map().iter().count(), 1);
    let second = Evermap::open(&path, options().lock_wait(Duration::ZERO));
    assert_eq!(second.unwrap_err().kind(), ErrorKind::InUse);
    drop(snapshot);
    Evermap::open(&path, options()).unwrap();
    // Without a file there are none.
    let memory = Evermap::in_memory(Options::new()).unwrap();
    assert_eq!(memory.snapshot().unwrap_err().kind(), ErrorKind::Config);
}

#[test]
fn a_snapshot_with_a_limit_is_refused_when_it_has_taken_that_much() {
    let directory = directory();
    let db = Evermap::open(directory.path().join("store"), options()).unwrap();
    let map = db.default_map();
    (0..5000_u64).for_each(|key| map.put(key.to_le_bytes(), [1; 200]).unwrap());
    let named = db.map("other", MapOptions::new()).unwrap();
    named.put("a", "1").unwrap();
    let snapshot = db.snapshot_within(400 << 10).unwrap();
    let (old, old_named) =
        (snapshot.default_map(), snapshot.map("other", MapOptions::new()).unwrap());
    // A reader that is there holds it up: what it reads stays as it was.
    let reader = old.reader().unwrap();
    let before = reader.get(7_u64.to_le_bytes()).unwrap().unwrap().to_vec();
    (0..5000_u64).for_each(|key| map.put(key.to_le_bytes(), [2; 200]).unwrap());
    assert_eq!(reader.get(9_u64.to_le_bytes()).unwrap().unwrap().to_vec(), before);
    for old in [&old, &old_named] {
        let error = old.get("a").unwrap_err();
        assert!(matches!(error, Error::SnapshotTooOld { limit: 409_600 }), "{error}");
    }
    let while_read = snapshot.memory_bytes();
    assert!(while_read > 400 << 10);
    drop(reader);
    (0..5000_u64).for_each(|key| map.put(key.to_le_bytes(), [3; 3000]).unwrap());
    let after = snapshot.memory_bytes();
    assert!(after - while_read < 200 << 10, "it takes no more: {while_read}, {after}");
    assert_eq!(db.snapshot_within(1 << 30).unwrap().default_map().iter().count(), 5000);
}

#[test]
fn backups_of_a_store_in_use_are_of_one_moment() {
    let directory = directory();
    let path = |name: &str| directory.path().join(name);
    let db = bank(&path("store"), options());
    while_transferring(&db, || {
        let mut whole = Vec::new();
        let backup = db.backup(&mut whole).unwrap();
        assert!(!backup.is_incremental());
        let (mut next, mut last) = (Vec::new(), Vec::new());
        let second = db.backup_since(Some(backup.id()), &mut next).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let third = db.backup_since(Some(second.id()), &mut last).unwrap();
        assert!(second.is_incremental() && third.is_incremental());
        restore(&mut [&mut &whole[..]], path("first")).unwrap();
        restore(&mut [&mut &whole[..], &mut &next[..], &mut &last[..]], path("third")).unwrap();
        for name in ["first", "third"] {
            assert!(survives_restarts(&path(name)));
            let other = Evermap::open(path(name), options()).unwrap();
            assert_conserved(&other);
            // It is a store of its own, and goes on.
            other.default_map().put(b"new", b"1").unwrap();
            other.close().unwrap();
            let again = Evermap::open(path(name), options()).unwrap();
            assert!(again.stat().clean_open && again.default_map().get(b"new").unwrap().is_some());
        }
        // Not in the order in which they were made, or without the first one.
        for copies in [
            &mut [&mut &next[..] as &mut dyn std::io::Read][..],
            &mut [&mut &whole[..], &mut &last[..]],
        ] {
            let error = restore(copies, path("none")).unwrap_err();
            assert!(error.to_string().contains("add"), "{error}");
        }
        assert!(!path("none").exists());
    });
    drop(db);
    // After another opening the marks are gone, and the backup is a whole one.
    let db = Evermap::open(path("store"), options()).unwrap();
    let first = db.backup(&mut Vec::new()).unwrap();
    drop(db);
    let db = Evermap::open(path("store"), options()).unwrap();
    assert!(!db.backup_since(Some(first.id()), &mut Vec::new()).unwrap().is_incremental());
}

/// An incremental backup of one change in a hundred writes about that.
#[test]
fn incremental_backups_are_small() {
    let directory = directory();
    let db = Evermap::open(directory.path().join("store"), options()).unwrap();
    let map = db.default_map();
    (0..20_000_u64).for_each(|key| map.put(key.to_le_bytes(), [1; 200]).unwrap());
    let whole = db.backup(&mut Vec::new()).unwrap();
    let none = db.backup_since(Some(whole.id()), &mut Vec::new()).unwrap();
    assert!(none.bytes() < whole.bytes() / 50, "{none:?}");
    map.put(7_u64.to_le_bytes(), [2; 200]).unwrap();
    let one = db.backup_since(Some(none.id()), &mut Vec::new()).unwrap();
    assert!(one.bytes() > 0 && one.bytes() < whole.bytes() / 50, "{one:?}");
}

#[test]
fn damaged_backups_leave_nothing() {
    let directory = directory();
    let path = |name: &str| directory.path().join(name);
    let db = bank(&path("store"), options());
    let mut copy = Vec::new();
    db.backup(&mut copy).unwrap();
    let mut random = Random::new(3);
    for round in 0..scaled(40) {
        let mut damaged = copy.clone();
        let at = random.below(copy.len() as u64) as usize;
        match round % 2 {
            0 => damaged.truncate(at),
            _ => damaged[at] ^= 1 << random.below(8),
        }
        let error = restore(&mut [&mut &damaged[..]], path("other")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "{error}");
    }
    restore(&mut [&mut &copy[..]], path("other")).unwrap();
    let twice = restore(&mut [&mut &copy[..]], path("other")).unwrap_err();
    assert!(twice.to_string().contains("remove it first"), "{twice}");
    assert_conserved(&Evermap::open(path("other"), options()).unwrap());
}

/// Who opens a store read-only while another process writes sees its newest instant. Here the two
/// are one process, which makes no difference.
#[test]
fn a_reader_beside_a_writer_gets_a_copy() {
    let directory = directory();
    let path = directory.path().join("store");
    let reading = || options().read_only(true).lock_wait(Duration::ZERO);
    let db = bank(&path, options());
    assert_eq!(Evermap::open(&path, reading()).unwrap_err().kind(), ErrorKind::InUse);
    drop(db);
    let db = Evermap::open(&path, options().offers_copies(true)).unwrap();
    while_transferring(&db, || {
        for round in 0_u64..5 {
            db.default_map().put(b"round", round.to_le_bytes()).unwrap();
            let reader = Evermap::open(&path, reading()).unwrap();
            assert_conserved(&reader);
            let seen = reader.default_map().get(b"round").unwrap();
            assert_eq!(seen, Some(round.to_le_bytes().to_vec()));
            assert!(reader.instant().is_some());
        }
        let mut copy = Vec::new();
        let whole = evermap::fetch_backup(&path, None, &mut copy).unwrap();
        let mut more = Vec::new();
        let next = evermap::fetch_backup(&path, Some(whole.id()), &mut more).unwrap();
        assert!(next.is_incremental());
        let restored = directory.path().join("restored");
        restore(&mut [&mut &copy[..], &mut &more[..]], &restored).unwrap();
        assert_conserved(&Evermap::open(&restored, options()).unwrap());
    });
    db.close().unwrap();
    assert!(!directory.path().join("store.sock").exists());
}

/// What one thread has done to two keys: when it began and ended, and the number that it has put.
type Done = (u64, u64, Option<u64>);

/// Puts numbers under two keys together, again and again, or removes both.
fn change_pair(map: &Map<Sim>, thread: u64, clock: &Clock) -> Vec<Done> {
    let mut random = Random::new(thread);
    let keys = [format!("left {thread}"), format!("right {thread}")];
    let mut done = vec![(0, 0, None)];
    for number in 0..300_u64 {
        let filler = format!("filler {thread} {}", random.below(60));
        match random.below(3) {
            0 => _ = map.remove(&filler).unwrap(),
            _ => map.put(&filler, vec![7; random.below(200) as usize]).unwrap(),
        }
        let put = (random.below(4) > 0).then_some(number);
        let mut batch = Batch::new();
        for key in &keys {
            match put {
                Some(number) => batch.put(key, number.to_le_bytes()),
                None => batch.remove(key),
            };
        }
        let begin = clock.tick();
        assert!(map.apply(&batch).unwrap().is_done());
        done.push((begin, clock.tick(), put));
    }
    done
}

/// What is captured at an instant is what a kill at that moment leaves: a store that has what was
/// acknowledged before, nothing that began later, and batches wholly or not at all.
#[test]
fn an_instant_is_what_a_kill_leaves() {
    const CAPACITY: u64 = 16 << 20;
    const THREADS: u64 = 3;
    for index in common::every_index() {
        let options = common::options().index(index).capacity(CAPACITY).extent_size(16 << 10);
        let memory = Sim::in_memory(CAPACITY).unwrap();
        let mut capture = Capture::of(&memory).unwrap();
        let map = common::create_medium(memory, Identity::default(), &options).unwrap();
        let (clock, running) = (Clock::default(), AtomicU64::new(THREADS));
        let (done, taken) = std::thread::scope(|scope| {
            let (map, clock, running) = (&map, &clock, &running);
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    scope.spawn(move || {
                        let done = change_pair(map, thread, clock);
                        running.fetch_sub(1, Relaxed);
                        done
                    })
                })
                .collect();
            let mut taken = Vec::new();
            while running.load(Relaxed) > 0 && taken.len() < scaled(6) as usize {
                taken.push(capture.take(clock).unwrap());
                std::thread::sleep(Duration::from_millis(2));
            }
            taken.push(capture.take(clock).unwrap());
            let done: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            (done, taken)
        });
        for captured in &taken {
            let medium = Sim::in_memory(CAPACITY).unwrap();
            captured.restore(&medium).unwrap();
            let map = common::open_medium(medium, Identity::default(), &options).unwrap();
            for (thread, done) in done.iter().enumerate() {
                let get = |side: &str| map.get(format!("{side} {thread}")).unwrap();
                let found = get("left");
                assert_eq!(found, get("right"), "half a batch");
                let found = found.map(|value| u64::from_le_bytes(value[..].try_into().unwrap()));
                let may_be_last = |at: usize| {
                    done[at].0 < captured.end
                        && done.get(at + 1).is_none_or(|next| next.1 > captured.begin)
                };
                let is_right = (0..done.len()).any(|at| may_be_last(at) && done[at].2 == found);
                assert!(is_right, "{index}: thread {thread} has not put {found:?} last");
            }
            common::assert_sound(&map);
        }
    }
}
