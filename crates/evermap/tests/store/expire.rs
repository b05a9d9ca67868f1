//! Purges happen when there is something to remove, and remove nothing else.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

use crate::common::{self, Kept, Random};
use evermap::{Clock, Meta, Options};
use evermap_index::testkit::tier;
use evermap_pm::sim::Sim;

fn until(expires_at: u64) -> Meta {
    common::meta(0, expires_at)
}

/// A purge that is due by the clock runs only when something can have expired.
#[test]
fn purges_come_when_something_can_have_expired() {
    let clock = Clock::manual(common::at(1000));
    let memory = Kept::new(16 << 20);
    let options = common::options().capacity(16 << 20).extent_size(64 << 10).clock(clock.clone());
    let store = memory.open(&options).unwrap();
    let stat = || store.stat();
    for key in 0..100u64 {
        store.put(&key.to_le_bytes(), b"for ever").unwrap();
    }
    assert_eq!(stat().next_expiry, None, "the file was empty before");
    assert_eq!((store.db().purge_if_due().unwrap(), stat().purges), (0, 0));
    for (key, at) in [(0u64, 3000), (1, 2000), (2, 4000)] {
        store.set(&key.to_le_bytes()).meta(until(at)).put(b"mortal").unwrap();
    }
    assert!(store.touch(&3u64.to_le_bytes(), common::at(2500)).unwrap());
    assert_eq!(stat().next_expiry, Some(2000));
    clock.set(common::at(1999));
    assert_eq!(
        (store.db().purge_if_due().unwrap(), stat().purges),
        (0, 0),
        "there is nothing to do"
    );
    clock.set(common::at(2000));
    assert_eq!((store.db().purge_if_due().unwrap(), stat().purges), (1, 0), "without a walk");
    assert_eq!(stat().next_expiry, Some(2500));
    clock.set(common::at(3000));
    assert_eq!((store.db().purge_if_due().unwrap(), stat().purges), (2, 0));
    assert_eq!((stat().next_expiry, stat().purged, store.len()), (Some(4000), 3, 97));
    let mut batch = evermap::Batch::new();
    batch.put_with(b"in a batch", b"mortal", until(3500)).put(b"another", b"for ever");
    assert!(store.apply(&batch).unwrap().is_done());
    assert_eq!(stat().next_expiry, Some(3500), "that of the earliest record");
    // A record that was touched to live longer is examined, and not removed.
    assert!(store.touch(b"in a batch", None).unwrap());
    clock.set(common::at(3500));
    assert_eq!((store.db().purge_if_due().unwrap(), stat().purges), (0, 0));
    assert_eq!(stat().next_expiry, Some(4000));
    // Records of earlier openings are found too.
    store.into_db().close().unwrap();
    let store = memory.open(&options).unwrap();
    clock.set(common::at(4000));
    assert_eq!(store.stat().next_expiry, Some(0), "no walk has happened yet");
    assert_eq!((store.db().purge_if_due().unwrap(), store.len()), (1, 98));
    let stat = store.stat();
    assert_eq!((stat.next_expiry, stat.purges), (None, 1), "by a walk");
}

/// Records that expire take the space of those that have expired, without an explicit purge, and
/// without a walk.
#[test]
fn what_has_expired_makes_room() {
    let value = [1; 1000];
    for by_limit in [true, false] {
        for kind in common::every_index() {
            let clock = Clock::manual(common::at(1000));
            let memory = Kept::new(if by_limit { 64 << 20 } else { 2 << 20 });
            let options = Options::new().extent_size(64 << 10).index(kind).clock(clock.clone());
            let options = match by_limit {
                true => options.capacity(64 << 20).max_bytes(1 << 20),
                false => options.capacity(2 << 20),
            };
            let store = memory.open(&options).unwrap();
            for second in 0..60u64 {
                clock.set(common::at(1000 + second));
                for i in 0..150u32 {
                    let key = (second as u32 * 1000 + i).to_le_bytes();
                    let stored = store.set(&key).meta(until(1002 + second)).put(&value);
                    assert!(stored.is_ok(), "{kind}, second {second}, {i}: {stored:?}");
                }
                let key = (second as u32 * 1000).to_le_bytes();
                assert!(store.contains(&key).unwrap(), "{kind}: no live record is removed");
            }
            assert_eq!(store.stat().purges, 0, "{kind}");
            // Live records are not removed, however much space is needed.
            let refused = (0..4000u32).find_map(|i| store.put(&i.to_be_bytes(), &value).err());
            assert!(refused.expect("it ends").is_no_space(), "{kind}");
            assert!(store.contains(&59_000u32.to_le_bytes()).unwrap(), "{kind}");
            let report = store.db().check(true).unwrap();
            assert!(report.is_sound(), "{kind}: {report}");
        }
    }
}

/// Directly after a flush there is as much space as before the records were stored, whether or not
/// a background thread purges.
#[test]
fn what_was_flushed_makes_room() {
    let options = common::options().max_bytes(4 << 20);
    let memory = Kept::new(64 << 20);
    let bare = memory.open(&common::options().capacity(64 << 20).max_bytes(4 << 20)).unwrap();
    let kept = common::in_memory(options).unwrap();
    fn fill<M: evermap_pm::Medium>(store: &evermap::Map<M>) -> u32 {
        (0..).find(|i: &u32| store.put(&i.to_le_bytes(), &[1; 1000]).is_err()).unwrap()
    }
    let fit = [fill(&bare), fill(&kept)];
    for round in 0..3 {
        bare.clear().unwrap();
        assert_eq!(fill(&bare), fit[0], "round {round}");
        kept.clear().unwrap();
        assert_eq!(fill(&kept), fit[1], "round {round}");
    }
}

/// Expired records of earlier openings are found when their space is needed.
#[test]
fn what_has_expired_since_an_earlier_opening_makes_room() {
    let clock = Clock::manual(common::at(1000));
    let memory = Kept::new(16 << 20);
    let options = common::options().capacity(16 << 20).extent_size(64 << 10).clock(clock.clone());
    let store = memory.open(&options).unwrap();
    let users = store.db().map("users", evermap::MapOptions::new()).unwrap();
    for i in 0..1000u32 {
        store.set(&i.to_le_bytes()).meta(until(2000)).put(&[1; 1000]).unwrap();
        users.set(&i.to_le_bytes()).meta(until(2000)).put(&[1; 1000]).unwrap();
    }
    let bytes = store.bytes().value;
    store.into_db().close().unwrap();
    clock.set(common::at(2000));
    let store = memory.open(&options.max_bytes(bytes)).unwrap();
    let users = store.db().map("users", evermap::MapOptions::new().max_bytes(bytes)).unwrap();
    for i in 1000..2000u32 {
        store.put(&i.to_le_bytes(), &[1; 1000]).unwrap();
        users.put(&i.to_le_bytes(), &[1; 1000]).unwrap();
    }
    assert_eq!((store.len(), users.len(), store.bytes().value), (1000, 1000, bytes));
}

/// A purge in the middle of a change does not make the store forget when the record expires.
#[test]
fn a_purge_in_the_middle_of_a_change_forgets_nothing() {
    type Change = fn(&evermap::Map<Sim>);
    let changes: [(&str, Change); 4] = [
        ("put", |store| {
            store.set(b"session").meta(until(2000)).put(b"new").unwrap();
        }),
        ("insert", |store| {
            let _ = store.set(b"other").meta(until(2000)).try_insert(b"new").unwrap();
        }),
        ("modify", |store| {
            let new = || evermap::Edit::Record(b"new".to_vec(), until(2000));
            store.modify(b"session", |_| new()).unwrap();
        }),
        ("batch", |store| {
            let mut batch = evermap::Batch::new();
            batch.put_with(b"session", b"new", until(2000)).put_with(b"b", b"", until(2000));
            assert!(store.apply(&batch).unwrap().is_done());
        }),
    ];
    for (name, change) in changes {
        for full in [true, false] {
            let clock = Clock::manual(common::at(1000));
            let memory = Kept::new(16 << 20);
            let options = Options::new().capacity(16 << 20).clock(clock.clone());
            let store = memory.open(&options).unwrap();
            store.put(b"session", b"old").unwrap();
            store.db().purge().unwrap();
            let (other, before) = (store.clone(), store.stat().purges);
            // By another thread, because the one that changes the key holds a guard.
            let purge = move || match full {
                true => assert_eq!(other.db().purge().unwrap(), 0),
                false => assert_eq!(other.db().purge_if_due().unwrap(), 0),
            };
            memory.at_next_fence(move || std::thread::spawn(purge).join().unwrap());
            change(&store);
            assert_eq!(store.stat().purges, before + u64::from(full), "{name}: held up");
            assert_eq!(store.stat().next_expiry, Some(2000), "{name}");
            clock.set(common::at(2000));
            let there = store.len();
            let expired = there - store.iter().count() as u64;
            assert!(expired > 0, "{name}");
            assert_eq!(store.db().purge_if_due().unwrap(), expired, "{name}");
            assert_eq!(store.len(), there - expired, "{name}");
        }
    }
}

/// A record and the one that replaces it are both found, whichever expires first.
#[test]
fn whatever_replaces_a_record_is_found_when_it_expires() {
    for (first, second) in [(1500, 2000), (2000, 1500), (0, 2000), (2000, 2000)] {
        for touch in [false, true] {
            let clock = Clock::manual(common::at(1000));
            let map = common::in_memory(common::options().clock(clock.clone())).unwrap();
            map.set(b"key").meta(until(first)).put(b"1").unwrap();
            match touch {
                true => assert!(map.touch(b"key", common::at(second)).unwrap()),
                false => drop(map.set(b"key").meta(until(second)).put(b"2").unwrap()),
            }
            clock.set(common::at(second - 1));
            assert_eq!(map.db().purge_if_due().unwrap(), 0);
            assert!(map.contains(b"key").unwrap());
            clock.set(common::at(second));
            map.db().purge_if_due().unwrap();
            assert_eq!(map.len(), 0, "{first}, then {second}; touched: {touch}");
        }
    }
}

/// When the clock goes back, expired records stay absent. Once they are removed, the store follows
/// the clock again.
#[test]
fn a_clock_that_goes_back_brings_nothing_back() {
    let clock = Clock::manual(common::at(1000));
    let memory = Kept::new(16 << 20);
    let options = common::options().capacity(16 << 20).extent_size(64 << 10).clock(clock.clone());
    let store = memory.open(&options).unwrap();
    store.set(b"a").meta(until(2000)).put(b"1").unwrap();
    store.set(b"b").meta(until(5000)).put(b"2").unwrap();
    clock.set(common::at(2000));
    assert_eq!(store.get(b"a").unwrap(), None);
    clock.set(common::at(1500));
    assert_eq!(store.get(b"a").unwrap(), None, "it has expired before");
    assert!(store.set(b"a").meta(until(1800)).try_insert(b"3").unwrap().stored().is_some());
    assert_eq!(store.get(b"a").unwrap(), None, "the latest time counts");
    assert_eq!(store.db().purge_if_due().unwrap(), 1);
    // From here on the store follows the clock.
    assert!(store.set(b"a").meta(until(1800)).try_insert(b"4").unwrap().stored().is_some());
    assert_eq!(store.get(b"a").unwrap().as_deref(), Some(&b"4"[..]));
    clock.set(common::at(1800));
    assert_eq!((store.get(b"a").unwrap(), store.db().purge_if_due().unwrap()), (None, 1));
    // A clock that was wrong for a moment removes what had expired by its time, but nothing that is
    // stored later.
    clock.set(common::at(common::EXPIRY_MAX));
    assert_eq!(store.get(b"b").unwrap(), None);
    clock.set(common::at(1801));
    store.db().purge_if_due().unwrap();
    store.set(b"b").meta(until(1900)).put(b"5").unwrap();
    assert_eq!(store.get(b"b").unwrap().as_deref(), Some(&b"5"[..]));
}

/// An expiry that the file cannot hold is refused, and is not taken for another one.
#[test]
fn an_expiry_that_is_too_late_is_an_error() {
    let map = common::in_memory(common::options()).unwrap();
    let late = Meta::expiring(std::time::Duration::MAX);
    let is_late = |error: evermap::Error| matches!(error, evermap::Error::ExpiryTooLate { .. });
    assert!(is_late(map.set(b"key").meta(late).put(b"value").unwrap_err()));
    assert_eq!(map.get(b"key").unwrap(), None);
    map.put(b"key", b"value").unwrap();
    assert!(is_late(map.touch(b"key", common::at(common::EXPIRY_MAX + 1)).unwrap_err()));
    assert!(is_late(map.expire_all_at(common::at(u64::from(u32::MAX) + 1)).unwrap_err()));
    let mut batch = evermap::Batch::new();
    batch.put(b"other", b"").put_with(b"key", b"late", late);
    assert!(is_late(map.apply(&batch).unwrap_err()));
    let edit = |_: Option<evermap::Item<'_>>| evermap::Edit::Record(b"late".to_vec(), late);
    assert!(is_late(map.modify(b"key", edit).unwrap_err()));
    let shown = map
        .get_with(b"key", |item| (item.value.to_vec(), item.expires_at().map(common::seconds)))
        .unwrap();
    assert_eq!(shown, Some((b"value".to_vec(), None)));
    assert_eq!(map.get(b"other").unwrap(), None);
}

#[test]
fn the_latest_expiry_is_kept() {
    let meta = until(common::EXPIRY_MAX);
    let clock = Clock::manual(common::at(1000));
    let map = common::in_memory(common::options().clock(clock.clone())).unwrap();
    map.set(b"key").meta(meta).put(b"value").unwrap();
    clock.set(common::at(common::EXPIRY_MAX - 1));
    assert_eq!(map.db().purge_if_due().unwrap(), 0);
    assert!(map.contains(b"key").unwrap());
    clock.set(common::at(common::EXPIRY_MAX));
    // The thread in the background may remove the record first. This waits for it.
    map.db().purge().unwrap();
    assert_eq!(map.len(), 0);
}

/// Keys expire and are stored again, beside purges: the record that was stored last is present.
#[test]
fn no_newer_record_is_purged() {
    const KEYS: u64 = 40;
    let rounds = tier().choose(3_000, 8_000);
    for kind in common::every_index() {
        let clock = Clock::manual(common::at(1000));
        let options = common::options().index(kind).clock(clock.clone());
        let map = common::in_memory(options).unwrap();
        let (done, purged) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|threads| {
            let (map, done, clock, purged) = (&map, &done, &clock, &purged);
            let writers: Vec<_> = (0..3u64)
                .map(|me| {
                    threads.spawn(move || {
                        let mut random = Random::new(me);
                        for round in 0..2_000_000u64 {
                            if round >= rounds && purged.load(SeqCst) > 100 {
                                break;
                            }
                            // Each thread has its own keys, in the same buckets.
                            let key = (random.below(KEYS) * 3 + me).to_le_bytes();
                            let now = common::seconds(clock.now());
                            match random.below(4) {
                                0 => drop(map.set(&key).meta(until(now)).put(b"dead").unwrap()),
                                1 => {
                                    map.set(&key).meta(until(now + 1)).put(b"dying").unwrap();
                                }
                                2 => drop(map.touch(&key, common::at(now)).unwrap()),
                                _ => {}
                            }
                            if round % 8 == 0 {
                                thread::yield_now();
                            }
                            let value = round.to_le_bytes();
                            match random.below(3) {
                                0 => map.put(&key, &value).unwrap(),
                                1 => drop(
                                    map.set(&key)
                                        .meta(until(now + 1_000_000_000))
                                        .put(&value)
                                        .unwrap(),
                                ),
                                _ => {
                                    let mut batch = evermap::Batch::new();
                                    assert!(map.apply(batch.put(&key, &value)).unwrap().is_done());
                                }
                            }
                            for _ in 0..random.below(3) {
                                let found = map.get(&key).unwrap();
                                assert_eq!(found.as_deref(), Some(&value[..]), "{kind}");
                            }
                        }
                    })
                })
                .collect();
            threads.spawn(move || {
                while !done.load(SeqCst) {
                    clock.set(clock.now() + std::time::Duration::from_secs(1));
                    purged.fetch_add(map.db().purge_if_due().unwrap(), SeqCst);
                }
            });
            let ends: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            done.store(true, SeqCst);
            ends.into_iter().for_each(|end| end.unwrap());
        });
        assert!(purged.load(SeqCst) > 100, "{kind}: hardly anything was purged");
        let report = map.db().check(true).unwrap();
        assert!(report.is_sound(), "{report}");
        // None was forgotten: everything that has expired by now is removed without a walk.
        clock.set(common::at(common::EXPIRY_MAX));
        let (walks, live) = (map.stat().purges, map.iter().count() as u64);
        map.db().purge_if_due().unwrap();
        assert_eq!((map.len(), map.stat().purges), (live, walks), "{kind}");
    }
}
