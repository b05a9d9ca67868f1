//! Watching a map: what is reported, in which order, and what a slow consumer and a later process
//! are told.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use crate::common::{self, Kept, Random};
use evermap::{
    Batch, ChangeKind, Clock, Edit, Error, Evermap, Map, MapOptions, Options, Order, Outcome,
    Watch, WatchEvent,
};
use evermap_index::testkit::tier;
use evermap_pm::Medium;

fn in_memory() -> Map {
    Evermap::in_memory(Options::new()).unwrap().default_map()
}

/// Returns what there is.
fn events<M: Medium>(watch: &mut Watch<M>) -> Vec<WatchEvent> {
    std::iter::from_fn(|| watch.try_recv().unwrap()).collect()
}

fn changed(key: &str, kind: ChangeKind, cas: u64) -> WatchEvent {
    WatchEvent::Changed { key: key.into(), kind, cas }
}

/// Returns the kinds and keys of changes.
fn shown(events: &[WatchEvent]) -> Vec<(ChangeKind, String)> {
    let key = |event: &WatchEvent| match event {
        WatchEvent::Changed { key, kind, .. } => (*kind, String::from_utf8(key.clone()).unwrap()),
        other => panic!("{other:?}"),
    };
    events.iter().map(key).collect()
}

#[test]
fn every_kind_of_change_is_reported() {
    use ChangeKind::{Expired, Removed, Stored, Touched};
    for order in [Order::None, Order::Volatile, Order::Persistent] {
        let clock = Clock::manual(common::at(1000));
        let memory = Kept::new(64 << 20);
        let options = common::options().capacity(64 << 20).clock(clock.clone()).ordered(order);
        let map = memory.open(&options).unwrap();
        let mut watch = map.watch("").unwrap();
        let cas = map.set("a").put("1").unwrap();
        assert_eq!(events(&mut watch), [changed("a", Stored, cas)]);
        let newer = map.set("a").put("2").unwrap();
        assert!(map.delete("a").unwrap());
        assert!(!map.delete("a").unwrap());
        assert_eq!(events(&mut watch), [changed("a", Stored, newer), changed("a", Removed, newer)]);

        assert!(matches!(map.try_insert("b", "1"), Ok(Outcome::Inserted { .. })));
        assert!(matches!(map.try_insert("b", "2"), Ok(Outcome::Kept { .. })));
        map.append("b", "3").unwrap();
        map.modify("b", |_| Edit::Keep).unwrap();
        map.modify("b", |_| Edit::Remove).unwrap();
        map.fetch_add("n", 7).unwrap();
        map.put_many(&[("x", "1"), ("y", "2")]).unwrap();
        assert!(map.touch("x", common::at(1050)).unwrap());
        assert!(!map.touch("z", None).unwrap());
        let kinds = [
            (Stored, "b"),
            (Stored, "b"),
            (Removed, "b"),
            (Stored, "n"),
            (Stored, "x"),
            (Stored, "y"),
            (Touched, "x"),
        ];
        let kinds = kinds.map(|(kind, key)| (kind, key.to_string()));
        assert_eq!(shown(&events(&mut watch)), kinds);

        let mut batch = Batch::new();
        batch.put(b"new", b"1").remove(b"y").add(b"n", 1).remove(b"absent");
        assert!(map.apply(&batch).unwrap().is_done());
        let kinds = [(Stored, "new"), (Removed, "y"), (Stored, "n")];
        let kinds = kinds.map(|(kind, key)| (kind, key.to_string()));
        assert_eq!(shown(&events(&mut watch)), kinds);
        let refused = map.apply(Batch::new().put(b"q", b"1").expect(b"new", Some(1)));
        assert!(!refused.unwrap().is_done());
        let mut writer = map.value_writer("big", 3).unwrap();
        writer.write_all(b"abc").unwrap();
        writer.finish().unwrap();
        assert_eq!(shown(&events(&mut watch)), [(Stored, "big".to_string())]);

        // What moves records changes nothing.
        map.db().compact().unwrap();
        assert_eq!(events(&mut watch), []);

        clock.set(common::at(1100));
        assert_eq!(map.get("x").unwrap(), None);
        assert_eq!(map.db().purge_if_due().unwrap(), 1);
        assert_eq!(shown(&events(&mut watch)), [(Expired, "x".to_string())]);
        map.clear().unwrap();
        let all = events(&mut watch);
        let [WatchEvent::Cleared { below }] = all[..] else { panic!("{all:?}") };
        let after = map.set("n").put("").unwrap();
        assert!(after >= below);
        assert_eq!(events(&mut watch), [changed("n", Stored, after)]);
        common::assert_sound(&map);
    }
}

/// Several watches get what has their prefix, each all of it; named maps have watches of their own.
#[test]
fn each_watch_has_its_prefix_and_its_map() {
    let map = in_memory();
    let other = map.db().map("other", MapOptions::new()).unwrap();
    let mut all = map.watch("").unwrap();
    let mut users = map.watch("user:").unwrap();
    let mut one = map.watch("user:1").unwrap();
    let mut elsewhere = other.watch("user:").unwrap();
    for key in ["user:1", "user:2", "user", "us", "visits", "user:11"] {
        map.put(key, "").unwrap();
    }
    let mut batch = Batch::new();
    batch.put(b"user:3", b"").in_map("other").put(b"user:4", b"");
    assert!(map.apply(&batch).unwrap().is_done());
    let keys = |watch: &mut Watch| -> Vec<_> {
        shown(&events(watch)).into_iter().map(|(_, key)| key).collect()
    };
    assert_eq!(keys(&mut all), ["user:1", "user:2", "user", "us", "visits", "user:11", "user:3"]);
    assert_eq!(keys(&mut users), ["user:1", "user:2", "user:11", "user:3"]);
    assert_eq!(keys(&mut one), ["user:1", "user:11"]);
    assert_eq!(keys(&mut elsewhere), ["user:4"]);
    drop(users);
    map.put("user:1", "").unwrap();
    assert_eq!((keys(&mut all), keys(&mut one)), (vec!["user:1".into()], vec!["user:1".into()]));
}

/// Every change that is acknowledged is seen by a watch that began before it, although threads
/// compete for keys, and the last that is seen of a key is what it has.
#[test]
fn no_change_of_any_thread_is_missed() {
    const KEYS: u64 = 24;
    const WRITERS: u64 = 4;
    let changes = tier().choose(1500, 20_000);
    for order in [Order::None, Order::Volatile] {
        let map = Evermap::in_memory(Options::new().ordered(order)).unwrap().default_map();
        let key = |number: u64| format!("{}:{number}", number % 2).into_bytes();
        let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
        let (stored, seen) = thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|seed| {
                    let (map, begun) = (&map, &begun);
                    scope.spawn(move || {
                        let mut random = Random::new(seed + 1);
                        let mut stored = Vec::new();
                        let mut left = changes;
                        while left > 0 {
                            // What begins before the watch has begun may be missed.
                            let counts = begun.load(SeqCst);
                            left -= u64::from(counts);
                            let key = key(random.below(KEYS));
                            let cas = match random.below(6) {
                                0 => {
                                    map.delete(&key).unwrap();
                                    continue;
                                }
                                1 => {
                                    let mut batch = Batch::new();
                                    batch.put(&key, b"1").put(b"1:batch", b"");
                                    match map.apply(&batch).unwrap() {
                                        evermap::Applied::Done(done) => done[0].cas(),
                                        refused => panic!("{refused:?}"),
                                    }
                                }
                                2 => map.modify(&key, |_| Edit::Value(b"2".to_vec())).unwrap(),
                                _ => Some(map.set(&key).put("3").unwrap()),
                            };
                            if counts {
                                stored.push((key, cas.unwrap()));
                            }
                        }
                        stored
                    })
                })
                .collect();
            let mut watch = map.watch("1:").unwrap();
            watch.set_limits(usize::MAX, usize::MAX);
            begun.store(true, SeqCst);
            let over = &over;
            let reader = scope.spawn(move || {
                let mut seen = Vec::new();
                loop {
                    let is_over = over.load(SeqCst);
                    match watch.recv_timeout(Duration::from_millis(5)).unwrap() {
                        Some(event) => seen.push(event),
                        None if is_over => return seen,
                        None => {}
                    }
                }
            });
            let stored: Vec<_> =
                writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
            over.store(true, SeqCst);
            (stored, reader.join().unwrap())
        });
        let mut last = BTreeMap::new();
        let mut reported = BTreeSet::new();
        for event in seen {
            let WatchEvent::Changed { key, kind, cas } = event else { panic!("{event:?}") };
            assert!(key.starts_with(b"1:"));
            if kind == ChangeKind::Stored {
                assert!(reported.insert((key.clone(), cas)), "reported once");
            } else {
                // It was the last that was stored: the order of each key is that of its changes.
                assert_eq!(kind, ChangeKind::Removed);
                if let Some(before) = last.get(&key) {
                    assert_eq!(*before, (ChangeKind::Stored, cas));
                }
            }
            last.insert(key, (kind, cas));
        }
        for change in stored.iter().filter(|(key, _)| key.starts_with(b"1:")) {
            assert!(reported.contains(change), "{change:?}");
        }
        for (key, (kind, cas)) in last {
            let found = map.get_with(&key, |item| item.cas).unwrap();
            assert_eq!(found, (kind == ChangeKind::Stored).then_some(cas), "{key:?}");
        }
    }
}

/// Changes by a read-modify-write get ids that rise, and are reported in that order.
#[test]
fn changes_of_a_key_are_in_order() {
    let map = in_memory();
    let mut watch = map.watch("").unwrap();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..500).for_each(|_| assert!(map.fetch_add("n", 1).is_ok())));
        }
    });
    let mut before = 0;
    let all = events(&mut watch);
    assert_eq!(all.len(), 1500);
    for event in all {
        let WatchEvent::Changed { cas, .. } = event else { panic!("{event:?}") };
        assert!(cas > before, "{cas} after {before}");
        before = cas;
    }
}

#[test]
fn a_slow_consumer_is_told_what_it_has_missed() {
    let map = in_memory();
    let mut watch = map.watch("").unwrap();
    watch.set_limits(10, 1000);
    let ids: Vec<_> =
        (0..100).map(|number| map.set(format!("{number:02}")).put("").unwrap()).collect();
    for number in 0..7 {
        assert!(map.delete(format!("{number:02}")).unwrap());
    }
    let all = events(&mut watch);
    assert_eq!(all.len(), 11);
    assert!(shown(&all[..10]).iter().enumerate().all(|(at, (_, key))| *key == format!("{at:02}")));
    let WatchEvent::Missed { from, removals } = all[10] else { panic!("{:?}", all[10]) };
    assert_eq!((from, removals), (Some(ids[10]), 7));
    // It goes on, and what it has missed can be shown.
    map.put("more", "").unwrap();
    assert_eq!(shown(&events(&mut watch)), [(ChangeKind::Stored, "more".to_string())]);
    let mut again = map.watch_since("", from.unwrap()).unwrap();
    let keys: BTreeSet<_> = shown(&events(&mut again)).into_iter().map(|(_, key)| key).collect();
    let expected = (10..100).map(|number| format!("{number:02}")).chain(["more".to_string()]);
    assert_eq!(keys, expected.collect());

    // Long keys count too.
    watch.set_limits(10, 1000);
    map.put([b'k'; 600], "").unwrap();
    map.put([b'l'; 600], "").unwrap();
    assert!(map.delete([b'l'; 600]).unwrap());
    let all = events(&mut watch);
    assert!(matches!(all[..], [_, WatchEvent::Missed { from: Some(_), removals: 1 }]), "{all:?}");
    map.put([b'm'; 1001], "").unwrap();
    let all = events(&mut watch);
    assert!(matches!(all[..], [WatchEvent::Missed { from: Some(_), removals: 0 }]), "{all:?}");
}

/// A later process is shown everything that was stored since, at least once, whether or not the
/// earlier one was killed.
#[test]
fn a_later_process_goes_on_at_a_position() {
    for is_killed in [false, true] {
        let memory = Kept::new(64 << 20);
        let options = common::options().capacity(64 << 20);
        let map = memory.open(&options).unwrap();
        (0..3000).for_each(|number| map.put(format!("old {number}"), "").unwrap());
        let mut watch = map.watch("").unwrap();
        let begin = watch.position().unwrap();
        map.put("between", "").unwrap();
        // What was not returned yet is not behind the position.
        assert_eq!(watch.position().unwrap(), begin);
        assert_eq!(events(&mut watch).len(), 1);
        let position = watch.position().unwrap();
        assert!(position > begin);
        map.put("old 7", "newer").unwrap();
        map.put("new", "").unwrap();
        assert!(map.delete("old 8").unwrap());
        drop(watch);
        match is_killed {
            true => drop(map),
            false => map.into_db().close().unwrap(),
        }
        let map = memory.open(&options).unwrap();
        for (since, expected) in
            [(position, vec!["new", "old 7"]), (begin, vec!["between", "new", "old 7"])]
        {
            let mut watch = map.watch_since("", since).unwrap();
            let mut keys: Vec<_> =
                shown(&events(&mut watch)).into_iter().map(|(_, key)| key).collect();
            keys.sort();
            assert_eq!(keys, expected);
        }
        assert_eq!(events(&mut map.watch_since("new", 0).unwrap()).len(), 1);
        assert_eq!(events(&mut map.watch_since("", 0).unwrap()).len(), 3001);
        // Ahead of the store: it is shown as a whole.
        assert_eq!(events(&mut map.watch_since("", u64::MAX).unwrap()).len(), 3001);
        map.clear().unwrap();
        map.put("after", "").unwrap();
        let all = events(&mut map.watch_since("", position).unwrap());
        assert!(matches!(all[0], WatchEvent::Cleared { .. }), "{all:?}");
        assert_eq!(shown(&all[1..]), [(ChangeKind::Stored, "after".to_string())]);
    }
}

/// While writers go on, a position never passes a change that was not returned.
#[test]
fn a_position_is_behind_what_was_not_returned() {
    let map = in_memory();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 0..3 {
            let (map, stop) = (&map, &stop);
            scope.spawn(move || {
                let mut random = Random::new(seed + 1);
                while !stop.load(SeqCst) {
                    map.put(random.below(500).to_le_bytes(), random.next().to_le_bytes()).unwrap();
                    // Slower than who reads, so that the position moves.
                    thread::sleep(Duration::from_micros(200));
                }
            });
        }
        let mut watch = map.watch("").unwrap();
        watch.set_limits(usize::MAX, usize::MAX);
        let mut positions = BTreeSet::new();
        let mut shown = 0;
        while shown < tier().choose(2000, 50_000) {
            while let Some(event) = watch.recv_timeout(Duration::from_millis(1)).unwrap() {
                let WatchEvent::Changed { cas, .. } = event else { panic!("{event:?}") };
                let behind = positions.last().is_some_and(|position| cas < *position);
                shown += 1;
                if behind {
                    stop.store(true, SeqCst);
                }
                assert!(!behind, "{cas} is below {positions:?}");
                if shown % 64 == 0 {
                    break;
                }
            }
            positions.insert(watch.position().unwrap());
        }
        stop.store(true, SeqCst);
        assert!(positions.len() > 2, "{positions:?}");
    });
}

#[test]
fn evictions_are_reported() {
    let options = Options::new().evict(true).memory_limit(4 << 20).capacity(64 << 20);
    let map = Evermap::in_memory(options).unwrap().default_map();
    let mut watch = map.watch("").unwrap();
    watch.set_limits(usize::MAX, usize::MAX);
    let keys = 0..6000u64;
    keys.clone().for_each(|number| map.put(number.to_le_bytes(), [0; 1000]).unwrap());
    let mut there = BTreeSet::new();
    for event in events(&mut watch) {
        let WatchEvent::Changed { key, kind, .. } = event else { panic!("{event:?}") };
        match kind {
            ChangeKind::Stored => assert!(there.insert(key)),
            ChangeKind::Evicted => assert!(there.remove(&key)),
            other => panic!("{other:?}"),
        }
    }
    // The thread in the background may go on.
    for event in events(&mut watch) {
        let WatchEvent::Changed { key, .. } = event else { panic!("{event:?}") };
        there.remove(&key);
    }
    assert!(there.len() < 5000, "{}", there.len());
    let left = keys.filter(|number| map.contains(number.to_le_bytes()).unwrap());
    assert!(left.count() <= there.len());
}

#[test]
fn a_consumer_that_waits_is_told_that_the_map_was_closed() {
    let map = in_memory();
    let named = map.db().map("named", MapOptions::new()).unwrap();
    let waiting = |map: &Map| {
        let mut watch = map.watch("").unwrap();
        thread::spawn(move || (watch.recv(), watch.recv(), watch.recv()))
    };
    let (of_named, of_default) = (waiting(&named), waiting(&map));
    named.put("last", "").unwrap();
    assert!(map.db().drop_map("named").unwrap());
    let (last, dropped, again) = of_named.join().unwrap();
    assert_eq!(shown(&[last.unwrap()]), [(ChangeKind::Stored, "last".to_string())]);
    assert!(matches!(dropped, Err(Error::Dropped { .. })), "{dropped:?}");
    assert!(matches!(again, Err(Error::Dropped { .. })), "{again:?}");
    map.put("last", "").unwrap();
    map.clone().into_db().close().unwrap();
    let (last, closed, _) = of_default.join().unwrap();
    assert!(last.is_ok());
    assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
    assert!(matches!(map.watch(""), Err(Error::Closed)));
}

/// It would wait for itself.
#[test]
fn nobody_begins_to_watch_under_a_guard() {
    let map = in_memory();
    map.put("key", "value").unwrap();
    let mut watch = map.watch("").unwrap();
    let reader = map.reader().unwrap();
    assert!(matches!(map.watch(""), Err(Error::GuardHeld { .. })));
    assert!(matches!(watch.position(), Err(Error::GuardHeld { .. })));
    drop(reader);
    assert!(watch.position().is_ok());
}
