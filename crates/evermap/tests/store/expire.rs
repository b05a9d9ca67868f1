//! Purges: that they come when there is something to do, and never too far.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

use crate::common::{self, Kept, Random};
use evermap::{Clock, Evermap, IndexKind, Meta, Options};

fn until(expires_at: u32) -> Meta {
    Meta { flags: 0, expires_at }
}

/// Purging by the clock: only when something can have expired since.
#[test]
fn purges_come_when_something_can_have_expired() {
    let clock = Clock::manual(1000);
    let memory = Kept::new(16 << 20);
    let options = common::options().capacity(16 << 20).extent_size(64 << 10).clock(clock.clone());
    let store = memory.open(&options).unwrap();
    let stat = || store.stat().unwrap();
    for key in 0..100u64 {
        store.put(&key.to_le_bytes(), b"for ever").unwrap();
    }
    assert_eq!(stat().next_expiry, Some(0), "nobody has looked yet");
    assert_eq!((store.purge_if_due().unwrap(), stat().purges), (0, 1), "so somebody has to look");
    assert_eq!(stat().next_expiry, None);
    for (key, at) in [(0u64, 3000), (1, 2000), (2, 4000)] {
        let _ = store.put_with(&key.to_le_bytes(), b"mortal", until(at)).unwrap();
    }
    assert!(store.touch(&3u64.to_le_bytes(), 2500).unwrap());
    assert_eq!(stat().next_expiry, Some(2000));
    clock.set(1999);
    assert_eq!((store.purge_if_due().unwrap(), stat().purges), (0, 1), "there is nothing to do");
    clock.set(2000);
    assert_eq!((store.purge_if_due().unwrap(), stat().purges), (1, 2));
    assert_eq!(stat().next_expiry, Some(2500), "seen on the way");
    clock.set(3000);
    assert_eq!((store.purge_if_due().unwrap(), stat().purges), (2, 3));
    assert_eq!((stat().next_expiry, stat().purged, store.len().value), (Some(4000), 3, 97));
    let mut batch = evermap::Batch::new();
    batch.put_with(b"in a batch", b"mortal", until(3500)).put(b"another", b"for ever");
    assert!(store.apply(&batch).unwrap().is_done());
    assert_eq!(stat().next_expiry, Some(3500), "not that of a record that is not there yet");
    // What was touched to live on is not purged, but was worth a look.
    assert!(store.touch(b"in a batch", 0).unwrap());
    clock.set(3500);
    assert_eq!((store.purge_if_due().unwrap(), stat().purges), (0, 4));
    assert_eq!(stat().next_expiry, Some(4000));
    // What earlier openings have stored is not forgotten.
    store.close().unwrap();
    let store = memory.open(&options).unwrap();
    clock.set(4000);
    assert_eq!((store.purge_if_due().unwrap(), store.len().value), (1, 98));
    assert_eq!(store.stat().unwrap().next_expiry, None);
}

/// Keys that expire and are stored anew, beside purges: what was stored last is there.
#[test]
fn no_newer_record_is_purged() {
    const KEYS: u64 = 40;
    for &kind in IndexKind::ALL {
        let clock = Clock::manual(1000);
        let options = Options::volatile().index(kind).clock(clock.clone());
        let map = Evermap::open("", options).unwrap();
        let (done, purged) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|threads| {
            let (map, done, clock, purged) = (&map, &done, &clock, &purged);
            let writers: Vec<_> = (0..3u64)
                .map(|me| {
                    threads.spawn(move || {
                        let mut random = Random::new(me);
                        for round in 0..2_000_000u64 {
                            if round >= 8_000 && purged.load(SeqCst) > 100 {
                                break;
                            }
                            // Everybody has keys of his own, in the same buckets.
                            let key = (random.below(KEYS) * 3 + me).to_le_bytes();
                            let now = clock.now();
                            match random.below(4) {
                                0 => drop(map.put_with(&key, b"dead", until(now)).unwrap()),
                                1 => drop(map.put_with(&key, b"dying", until(now + 1)).unwrap()),
                                2 => drop(map.touch(&key, now).unwrap()),
                                _ => {}
                            }
                            if round % 8 == 0 {
                                thread::yield_now();
                            }
                            let value = round.to_le_bytes();
                            match random.below(3) {
                                0 => map.put(&key, &value).unwrap(),
                                1 => drop(
                                    map.put_with(&key, &value, until(now + 1_000_000_000)).unwrap(),
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
                    clock.set(clock.now() + 1);
                    purged.fetch_add(map.purge_if_due().unwrap(), SeqCst);
                }
            });
            let ends: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            done.store(true, SeqCst);
            ends.into_iter().for_each(|end| end.unwrap());
        });
        assert!(purged.load(SeqCst) > 100, "{kind}: hardly anything was purged in all that");
        let report = map.check(true).unwrap();
        assert!(report.is_sound(), "{report}");
    }
}
