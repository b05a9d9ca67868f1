//! Transactions are serializable over the keys that they name, and all or nothing.

use std::cell::Cell;
use std::io::{BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use crate::common::{self, Random, child};
use evermap::{
    BATCH_MAX, Batch, Clock, Durability, Error, ErrorKind, Evermap, Map, MapOptions, Meta, Options,
    Transaction, TransactionOptions, counter,
};
use evermap_index::testkit::tier;

type Reads<T> = Result<T, Error>;

fn in_memory() -> (Evermap, [Map; 2]) {
    let db = Evermap::in_memory(common::options()).unwrap();
    let maps = maps_of(&db);
    (db, maps)
}

/// The maps that the accounts are in.
fn maps_of(db: &Evermap) -> [Map; 2] {
    let other = MapOptions::new().create(db.instant().is_none());
    [db.default_map(), db.map("other", other).unwrap()]
}

const ACCOUNTS: u64 = 12;
const EACH: i64 = 1000;

fn key_of(account: u64) -> [u8; 8] {
    account.to_be_bytes()
}

fn map_of(maps: &[Map; 2], account: u64) -> &Map {
    &maps[account as usize % 2]
}

fn fill(maps: &[Map; 2]) {
    for account in 0..ACCOUNTS {
        map_of(maps, account).put(key_of(account), EACH.to_le_bytes()).unwrap();
    }
}

fn amount(tx: &mut Transaction<'_>, maps: &[Map; 2], account: u64) -> Reads<i64> {
    let value = tx.get(map_of(maps, account), key_of(account))?;
    Ok(counter(&value.expect("an account")).expect("a counter"))
}

/// Why a transfer is not made.
#[derive(Debug)]
enum Refused {
    TooLittle,
    /// Shown when it is unwrapped.
    #[expect(dead_code, reason = "only printed")]
    Store(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Refused::Store(error)
    }
}

/// Moves money if there is enough, by reading and putting what is left.
fn transfer(
    tx: &mut Transaction<'_>,
    maps: &[Map; 2],
    (from, to): (u64, u64),
    sum: i64,
) -> Result<(), Refused> {
    let left = amount(tx, maps, from)? - sum;
    tx.put(map_of(maps, from), key_of(from), left.to_le_bytes())?;
    let more = amount(tx, maps, to)? + sum;
    tx.put(map_of(maps, to), key_of(to), more.to_le_bytes())?;
    // What was requested before does not take place.
    if left < 0 { Err(Refused::TooLittle) } else { Ok(()) }
}

fn total(tx: &mut Transaction<'_>, maps: &[Map; 2]) -> Reads<i64> {
    (0..ACCOUNTS).map(|account| amount(tx, maps, account)).sum()
}

#[test]
fn money_is_neither_made_nor_lost() {
    let (db, maps) = in_memory();
    fill(&maps);
    let refused = AtomicU64::new(0);
    thread::scope(|scope| {
        for seed in 0..4 {
            let (db, maps, refused) = (&db, &maps, &refused);
            scope.spawn(move || {
                let mut random = Random::new(seed);
                for round in 0..tier().choose(400, 10_000) {
                    let between = (random.below(ACCOUNTS), random.below(ACCOUNTS));
                    let sum = random.below(900) as i64;
                    match db.transaction(|tx| transfer(tx, maps, between, sum)) {
                        Err(Refused::TooLittle) => _ = refused.fetch_add(1, SeqCst),
                        other => other.unwrap(),
                    }
                    if round % 20 == 0 {
                        let seen = db.transaction(|tx| total(tx, maps)).unwrap();
                        assert_eq!(seen, EACH * ACCOUNTS as i64, "a transaction that only reads");
                    }
                }
            });
        }
    });
    assert_eq!(db.transaction(|tx| total(tx, &maps)).unwrap(), EACH * ACCOUNTS as i64);
    for account in 0..ACCOUNTS {
        let left = map_of(&maps, account).get(key_of(account)).unwrap().unwrap();
        assert!(counter(&left).unwrap() >= 0);
    }
    assert!(refused.load(SeqCst) > 0, "some had too little");
    assert!(db.check(true).unwrap().is_sound());
}

/// Of two that are on duty one may leave; each transaction reads both and changes one.
#[test]
fn write_skew_is_prevented() {
    let (db, maps) = in_memory();
    let leave = |who: usize| {
        db.transaction(|tx| {
            let on_duty = [tx.get(&maps[0], "a")?, tx.get(&maps[1], "b")?];
            if on_duty.iter().flatten().count() == 2 {
                tx.remove(&maps[who], ["a", "b"][who])?;
            }
            Ok::<_, Error>(())
        })
        .unwrap();
    };
    let (begin, end) = (Barrier::new(3), Barrier::new(3));
    let rounds = tier().choose(200, 5000);
    thread::scope(|scope| {
        for who in 0..2 {
            let (begin, end) = (&begin, &end);
            scope.spawn(move || {
                for _ in 0..rounds {
                    begin.wait();
                    leave(who);
                    end.wait();
                }
            });
        }
        for round in 0..rounds {
            maps[0].put("a", "on duty").unwrap();
            maps[1].put("b", "on duty").unwrap();
            begin.wait();
            end.wait();
            let left = [maps[0].contains("a").unwrap(), maps[1].contains("b").unwrap()];
            assert_eq!(left.iter().filter(|&&is_there| is_there).count(), 1, "round {round}");
        }
    });
}

/// The same, with the other transaction in the middle of the first one in every run.
#[test]
fn what_was_read_and_changed_is_read_again() {
    let (db, [one, other]) = in_memory();
    one.put("a", "1").unwrap();
    other.put("b", "1").unwrap();
    type Disturb<'d> = &'d dyn Fn();
    let disturbances: [Disturb<'_>; 6] = [
        &|| one.put("a", "2").unwrap(),
        &|| assert!(other.delete("b").unwrap()),
        &|| other.put("absent", "2").unwrap(),
        // The same value is another version.
        &|| one.put("a", "2").unwrap(),
        &|| db.transaction(|tx| tx.put(&other, "b", "3")).unwrap(),
        &|| other.clear().unwrap(),
    ];
    for (at, disturb) in disturbances.into_iter().enumerate() {
        let runs = Cell::new(0);
        db.transaction(|tx| {
            let read = (tx.get(&one, "a")?, tx.get(&other, "b")?, tx.get(&other, "absent")?);
            runs.set(runs.get() + 1);
            if runs.get() == 1 {
                disturb();
            }
            tx.put(&one, "seen", format!("{read:?}"))
        })
        .unwrap();
        assert_eq!(runs.get(), 2, "disturbance {at}");
        let now = (one.get("a").unwrap(), other.get("b").unwrap(), other.get("absent").unwrap());
        assert_eq!(one.get("seen").unwrap(), Some(format!("{now:?}").into_bytes()));
    }
    // Other keys do not matter, nor what was only written.
    let runs = Cell::new(0);
    db.transaction(|tx| {
        runs.set(runs.get() + 1);
        tx.get(&one, "a")?;
        tx.put(&other, "b", "4")?;
        tx.add(&one, "count", 1)?;
        other.put("b", "5")?;
        one.fetch_add("count", 1)?;
        one.put("unrelated", "1")
    })
    .unwrap();
    assert_eq!((runs.get(), other.get("b").unwrap()), (1, Some(b"4".to_vec())));
    assert_eq!(one.fetch_add("count", 0).unwrap(), 2);
}

/// A transaction that changes nothing, and one that returns an error, have read one state too.
#[test]
fn what_is_only_read_is_validated() {
    let (db, [map, _]) = in_memory();
    let set = |value: &str| {
        assert!(map.apply(Batch::new().put("a", value).put("b", value)).unwrap().is_done());
    };
    for fails in [false, true] {
        set("0");
        let runs = Cell::new(0);
        let read = db.transaction(|tx| {
            runs.set(runs.get() + 1);
            let a = tx.get(&map, "a")?;
            if runs.get() == 1 {
                set("1");
            }
            let b = tx.get(&map, "b")?;
            if fails && a != b {
                return Err(Error::NotOrdered);
            }
            Ok((a, b))
        });
        let (a, b) = read.unwrap();
        assert_eq!((a, runs.get()), (b, 2));
    }
    // The same key twice: the second read tells, and swallowing that does not help.
    let runs = Cell::new(0);
    db.transaction(|tx| {
        runs.set(runs.get() + 1);
        let first = tx.get(&map, "a")?;
        if runs.get() == 1 {
            map.put("a", "2")?;
            let error = tx.get(&map, "a").unwrap_err();
            assert!(matches!(error, Error::Conflict { .. }), "{error}");
        } else {
            assert_eq!(tx.get(&map, "a")?, first);
        }
        Ok::<_, Error>(())
    })
    .unwrap();
    assert_eq!(runs.get(), 2);
}

#[test]
fn only_one_inserts_if_both_are_absent() {
    let (db, maps) = in_memory();
    let begin = Barrier::new(3);
    thread::scope(|scope| {
        for who in 0..3_u64 {
            let (db, maps, begin) = (&db, &maps, &begin);
            scope.spawn(move || {
                for round in 0..tier().choose(200_u64, 5000) {
                    begin.wait();
                    db.transaction(|tx| {
                        let keys = maps.each_ref().map(|map| (map, round.to_le_bytes()));
                        if tx.get(keys[0].0, keys[0].1)?.or(tx.get(keys[1].0, keys[1].1)?).is_none()
                        {
                            // Two of them do not even change the same key.
                            tx.put(keys[who as usize % 2].0, round.to_le_bytes(), [who as u8])?;
                            tx.add(&maps[0], "inserted", 1)?;
                        }
                        Ok::<_, Error>(())
                    })
                    .unwrap();
                }
            });
        }
    });
    let rounds = tier().choose(200, 5000);
    assert_eq!(maps[0].fetch_add("inserted", 0).unwrap(), rounds);
    assert_eq!(maps[0].len() + maps[1].len(), rounds as u64 + 1);
}

#[test]
fn a_transaction_sees_its_own_changes_and_nobody_else_does() {
    let (db, [map, other]) = in_memory();
    map.fetch_add("count", 5).unwrap();
    map.put("gone", "1").unwrap();
    let meta = Meta::new().with_flags(7);
    let returned = db.transaction(|tx| {
        tx.put(&map, "a", "1")?;
        tx.put_with(&other, "a", "2", meta)?;
        tx.remove(&map, "gone")?;
        tx.add(&map, "count", 2)?;
        tx.add(&map, "count", 1)?;
        tx.add(&map, "new", -4)?;
        assert_eq!(tx.get(&map, "a")?, Some(b"1".to_vec()));
        assert_eq!(tx.get_with_meta(&other, "a")?, Some((b"2".to_vec(), meta)));
        assert_eq!(tx.get(&map, "gone")?, None);
        assert_eq!(tx.get(&map, "count")?.as_deref().and_then(counter), Some(8));
        assert_eq!(tx.get(&map, "new")?.as_deref().and_then(counter), Some(-4));
        tx.remove(&map, "new")?;
        tx.add(&map, "new", 1)?;
        assert_eq!(tx.get(&map, "new")?.as_deref().and_then(counter), Some(1));
        assert!(map.contains("gone")? && !map.contains("a")? && !other.contains("a")?);
        Ok::<_, Error>("returned")
    });
    assert_eq!(returned.unwrap(), "returned");
    assert_eq!(map.get("a").unwrap(), Some(b"1".to_vec()));
    assert_eq!(other.get_with("a", |item| item.flags).unwrap(), Some(7));
    assert!(!map.contains("gone").unwrap());
    assert_eq!([map.fetch_add("count", 0).unwrap(), map.fetch_add("new", 0).unwrap()], [8, 1]);
}

#[test]
fn what_fails_changes_nothing() {
    let (db, [map, other]) = in_memory();
    map.put("text", "five!").unwrap();
    let refused = db.transaction(|tx| {
        tx.put(&map, "a", "1")?;
        tx.put(&other, "a", "1")?;
        tx.remove(&map, "text")?;
        Err::<(), _>(Refused::TooLittle)
    });
    assert!(matches!(refused, Err(Refused::TooLittle)));
    let error = db.transaction(|tx| {
        tx.put(&map, "a", "1")?;
        tx.add(&map, "text", 1)
    });
    assert!(matches!(error, Err(Error::NotACounter { .. })));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        db.transaction(|tx| -> Reads<()> {
            tx.put(&map, "a", "1")?;
            panic!("on purpose")
        })
    }));
    assert!(panicked.is_err());
    let error = db.transaction(|tx| {
        tx.put(&map, "a", "1")?;
        tx.put(&map, vec![0; 70_000], "1")
    });
    assert!(matches!(error, Err(Error::KeyTooLong { .. })));
    assert!(!map.contains("a").unwrap() && !other.contains("a").unwrap());
    assert!(map.contains("text").unwrap());
}

#[test]
fn a_transaction_of_too_many_keys_is_refused() {
    let (db, [map, _]) = in_memory();
    let keys = Cell::new(0);
    let error = db.transaction(|tx| {
        tx.put(&map, "a", "1")?;
        for key in 0..BATCH_MAX as u64 {
            keys.set(key);
            tx.get(&map, key.to_le_bytes())?;
        }
        Ok::<_, Error>(())
    });
    assert!(matches!(error, Err(Error::BatchTooLarge { max: BATCH_MAX, .. })));
    assert_eq!(keys.get(), BATCH_MAX as u64 - 1, "noticed at the key that is one too many");
    // Also if that is swallowed.
    let error = db.transaction(|tx| {
        (0..=BATCH_MAX as u64).for_each(|key| _ = tx.put(&map, key.to_le_bytes(), "1"));
        Ok::<_, Error>(())
    });
    assert!(matches!(error, Err(Error::BatchTooLarge { .. })));
    assert_eq!(map.len(), 0);
    db.transaction(|tx| {
        (0..BATCH_MAX as u64).try_for_each(|key| tx.put(&map, key.to_le_bytes(), "1"))
    })
    .unwrap();
    assert_eq!(map.len(), BATCH_MAX as u64);
}

#[test]
fn attempts_are_bounded_if_wanted() {
    let (db, [map, other]) = in_memory();
    let options = TransactionOptions::new().attempts(5);
    let runs = Cell::new(0);
    let error = db
        .transaction_with(options, |tx| {
            runs.set(runs.get() + 1);
            tx.get(&other, "key")?;
            tx.put(&map, "a", "1")?;
            other.put("key", "changed by itself")
        })
        .unwrap_err();
    assert_eq!((runs.get(), error.kind()), (5, ErrorKind::Conflict));
    let text = error.to_string();
    assert!(text.contains("5 attempts") && text.contains("key \"key\" of map \"other\""), "{text}");
    assert!(!map.contains("a").unwrap());
    // One attempt that succeeds is enough.
    db.transaction_with(options.attempts(0), |tx| tx.put(&map, "a", "1")).unwrap();
    assert!(map.contains("a").unwrap());
}

#[test]
fn maps_that_are_not_there_are_refused() {
    let (db, [map, other]) = in_memory();
    let (_, [foreign, _]) = in_memory();
    let error = db.transaction(|tx| tx.get(&foreign, "a")).unwrap_err();
    assert!(matches!(error, Error::OtherStore { map: None }), "{error}");
    // Dropped, and made again: not the map that was meant.
    let runs = Cell::new(0);
    let error = db.transaction(|tx| {
        runs.set(runs.get() + 1);
        tx.put(&other, "a", "1")?;
        db.drop_map("other")?;
        let again = db.map("other", MapOptions::new())?;
        let error = tx.put(&again, "a", "2").unwrap_err();
        assert!(matches!(error, Error::Dropped { .. }), "{error}");
        tx.put(&map, "a", "1")
    });
    assert!(matches!(error, Err(Error::Dropped { .. })));
    assert!(runs.get() == 1 && !map.contains("a").unwrap());
    let error = db.transaction(|tx| tx.get(&other, "a")).unwrap_err();
    assert!(matches!(error, Error::Dropped { .. }), "{error}");
    db.clone().close().unwrap();
    assert!(matches!(db.transaction(|tx| tx.get(&map, "a")), Err(Error::Closed)));
}

#[test]
fn expiry_is_a_conflict_and_touching_is_none() {
    let clock = Clock::manual(common::at(1000));
    let db = Evermap::in_memory(common::options().clock(clock.clone())).unwrap();
    let map = db.default_map();
    let _ = map.set("session").expires(common::at(2000)).put("ann").unwrap();
    let runs = Cell::new(0);
    let who = db.transaction(|tx| {
        runs.set(runs.get() + 1);
        let who = tx.get(&map, "session")?;
        assert_eq!(runs.get(), 1, "the version is the same");
        assert!(map.touch("session", common::at(1500))?);
        tx.put(&map, "seen", "1")?;
        Ok::<_, Error>(who)
    });
    assert_eq!(who.unwrap(), Some(b"ann".to_vec()));
    let who = db.transaction(|tx| {
        let who = tx.get(&map, "session")?;
        clock.set(common::at(1500));
        tx.put(&map, "seen", "2")?;
        Ok::<_, Error>(who)
    });
    assert_eq!(who.unwrap(), None);
}

#[test]
fn reads_of_a_snapshot_are_of_one_moment() {
    let directory = tempfile::tempdir().unwrap();
    let db = Evermap::open(directory.path().join("store"), common::options()).unwrap();
    let maps = maps_of(&db);
    fill(&maps);
    let limited = TransactionOptions::new().attempts(2);
    // What changes meanwhile is not seen, and a transaction that only reads needs one attempt.
    let (first, last) = (0, ACCOUNTS - 1);
    let seen = db.snapshot_transaction(TransactionOptions::new().attempts(1), |tx, snapshot| {
        let before = amount(tx, &maps, first)?;
        db.transaction(|tx| transfer(tx, &maps, (first, last), 10)).unwrap();
        let late = db.map("late", MapOptions::new())?;
        late.put("a", "1")?;
        assert_eq!((tx.get(&late, "a")?, snapshot.maps()?.len()), (None, 1));
        assert!(matches!(tx.get(&snapshot.default_map(), "a"), Err(Error::OtherStore { .. })));
        Ok::<_, Error>((before, amount(tx, &maps, last)?))
    });
    assert_eq!(seen.unwrap(), (EACH, EACH));
    // One that changes something is run again, with what is there now.
    let runs = Cell::new(0);
    db.snapshot_transaction(limited, |tx, snapshot| {
        runs.set(runs.get() + 1);
        assert_eq!(snapshot.default_map().iter().count() as u64, ACCOUNTS / 2);
        if runs.get() == 1 {
            db.transaction(|tx| transfer(tx, &maps, (first, last), 10))?;
        }
        transfer(tx, &maps, (last, first), 20)
    })
    .unwrap();
    let now = [first, last].map(|account| map_of(&maps, account).get(key_of(account)).unwrap());
    assert_eq!((runs.get(), now), (2, [(); 2].map(|()| Some(EACH.to_le_bytes().to_vec()))));
    // A store that cannot be changed needs no validation, and refuses changes.
    let snapshot = db.snapshot().unwrap();
    let old = maps_of(&snapshot);
    assert_eq!(snapshot.transaction(|tx| total(tx, &old)).unwrap(), EACH * ACCOUNTS as i64);
    let error = snapshot.transaction(|tx| tx.put(&old[0], "a", "1")).unwrap_err();
    assert!(matches!(error, Error::ReadOnly), "{error}");
}

fn with_durability(durability: Durability) -> Options {
    let options = common::options().capacity(1 << 30).extent_size(64 << 10);
    options.durability(durability).log_in_memory(true)
}

fn level_of(name: &str) -> Durability {
    if name == "log" { Durability::Log } else { Durability::Process }
}

/// Transfers between accounts, and says what was acknowledged, until it is killed.
#[test]
fn killed() {
    let Some(argument) = child::asked_for("transactions::killed") else { return };
    let (level, path) = argument.split_once(' ').unwrap();
    let db = Evermap::open(Path::new(path), with_durability(level_of(level))).unwrap();
    let maps = &maps_of(&db);
    fill(maps);
    println!("ready");
    thread::scope(|scope| {
        for thread in 0..2_u64 {
            let db = &db;
            scope.spawn(move || {
                let mut random = Random::new(thread);
                for round in 1_u64.. {
                    let between = (random.below(ACCOUNTS), random.below(ACCOUNTS));
                    let done = db.transaction(|tx| {
                        tx.put(&maps[1], format!("round {thread}"), round.to_le_bytes())?;
                        transfer(tx, maps, between, 1)
                    });
                    if done.is_ok() {
                        println!("{thread} {round}");
                    }
                }
            });
        }
    });
}

/// Reads what a child acknowledges, kills it after some time, and returns the last rounds.
fn kill_after(mut child: std::process::Child, time: Duration) -> [u64; 2] {
    let output = BufReader::new(child.stdout.take().unwrap());
    let mut lines = output.lines();
    assert!(lines.any(|line| line.unwrap().contains("ready")));
    let killer = thread::spawn(move || {
        thread::sleep(time);
        child.kill().unwrap();
        child.wait().unwrap();
    });
    let mut rounds = [0; 2];
    // The last line may be cut off: a number that is shorter is smaller.
    for line in lines.map_while(Result::ok) {
        let Some((thread, round)) = line.split_once(' ') else { continue };
        let Ok(round) = round.parse::<u64>() else { continue };
        let last = &mut rounds[thread.parse::<usize>().unwrap()];
        *last = (*last).max(round);
    }
    killer.join().unwrap();
    rounds
}

#[test]
fn a_kill_leaves_each_transaction_whole_or_not_at_all() {
    for level in ["process", "log"] {
        for round in 0..tier().choose(3, 40) {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("store");
            let child = child::start("transactions::killed", format!("{level} {}", path.display()));
            let acknowledged = kill_after(child, Duration::from_millis(20 + 40 * round));
            if level == "log" {
                // Power has failed too.
                std::fs::remove_file(&path).unwrap();
            }
            let db = Evermap::open(&path, with_durability(level_of(level))).unwrap();
            let maps = maps_of(&db);
            let seen = db.transaction(|tx| total(tx, &maps)).unwrap();
            assert_eq!(seen, EACH * ACCOUNTS as i64, "{level} {round}");
            for (thread, acknowledged) in acknowledged.into_iter().enumerate() {
                let last = maps[1].get(format!("round {thread}")).unwrap();
                let last = last.map_or(0, |last| u64::from_le_bytes(last.try_into().unwrap()));
                assert!(last >= acknowledged, "{level}: {last} of {acknowledged}");
            }
            assert!(db.check(true).unwrap().is_sound());
        }
    }
}
