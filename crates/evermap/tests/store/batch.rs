//! Batches are all or nothing, for other threads and whenever the process ends.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};
use std::thread;

use crate::common::{self, Kept, Random, assert_sound, is_value_of, value_of};
use crate::ordered::scan_agrees;
use evermap::{
    Applied, BATCH_MAX, Batch, Clock, Error, ErrorKind, Map, MapOptions, OnSuspect, Options,
    Outcome, counter,
};
use evermap_index::testkit::tier;
use evermap_pm::PmU64;
use evermap_pm::medium::Medium;

/// Root slot of a batch's intent, and where slots are: part of the format.
const INTENT_ROOT: u64 = 8192 + 8 * 64 + 15 * 8;

fn count<M: Medium>(store: &Map<M>, key: &[u8]) -> i64 {
    counter(&store.get(key).unwrap().expect("present")).expect("a counter")
}

fn sound<M: Medium>(store: &Map<M>) {
    assert_sound(store);
    assert!(store.records().exact);
}

#[test]
fn a_batch_does_what_it_says() {
    let map = common::in_memory(common::options()).unwrap();
    map.put(b"old", b"1").unwrap();
    map.put(b"gone", b"2").unwrap();
    let meta = common::meta(9, common::EXPIRY_MAX);
    map.set(b"count").meta(meta).put(&5i64.to_le_bytes()).unwrap();
    let kept = map.get_with(b"old", |item| item.cas).unwrap();
    let mut batch = Batch::new();
    batch.expect(b"old", kept).put(b"new", b"3").put(b"old", b"4").remove(b"gone");
    batch.remove(b"never").add(b"count", 2).add(b"fresh", -2).expect(b"other", None);
    assert_eq!((batch.len(), batch.is_empty()), (7, false));
    let Applied::Done(outcomes) = map.apply(&batch).unwrap() else { panic!("no condition fails") };
    let names: Vec<_> = batch.keys().collect();
    assert_eq!(names, [&b"old"[..], b"new", b"gone", b"never", b"count", b"fresh", b"other"]);
    let cas = |key: &[u8]| map.get_with(key, |item| item.cas).unwrap().unwrap();
    assert_eq!(
        outcomes,
        [
            Outcome::Updated { cas: cas(b"old") },
            Outcome::Inserted { cas: cas(b"new") },
            Outcome::Removed,
            Outcome::Absent,
            Outcome::Updated { cas: cas(b"count") },
            Outcome::Inserted { cas: cas(b"fresh") },
            Outcome::Absent,
        ]
    );
    assert_eq!(map.get(b"old").unwrap().unwrap(), b"4");
    assert_eq!(map.get(b"new").unwrap().unwrap(), b"3");
    assert!(!map.contains(b"gone").unwrap() && !map.contains(b"other").unwrap());
    assert_eq!((count(&map, b"count"), count(&map, b"fresh")), (7, -2));
    let meta_of = |key: &[u8]| {
        map.get_with(key, |item| (item.flags, item.expires_at().map(common::seconds))).unwrap()
    };
    assert_eq!(meta_of(b"count"), Some((9, Some(common::EXPIRY_MAX))), "as with fetch_add");
    assert_eq!(meta_of(b"fresh"), Some((0, None)));
    assert_eq!(map.len(), 4);
    sound(&map);
    // The CAS id has changed.
    let found = Some(cas(b"old"));
    let refused = Applied::Refused { map: None, key: b"old".to_vec(), found };
    assert_eq!(map.apply(&batch).unwrap(), refused);
    assert_eq!((count(&map, b"count"), map.len()), (7, 4), "nothing changed");
    batch.clear();
    assert!(batch.is_empty());
    assert_eq!(map.apply(&batch).unwrap(), Applied::Done(vec![]));
    let found = Some(cas(b"new"));
    let outcome = map.apply(Batch::new().expect(b"new", found).expect(b"never", None)).unwrap();
    assert_eq!(outcome, Applied::Done(vec![Outcome::Kept { cas: cas(b"new") }, Outcome::Absent]));
    // Of two changes of one key, the later one counts.
    let outcome = map.apply(Batch::new().put(b"new", b"5").remove(b"new")).unwrap();
    assert_eq!(outcome, Applied::Done(vec![Outcome::Removed]));
}

/// Several changes of one key have the effect of the same operations one after another.
#[test]
fn changes_of_one_key_take_effect_in_order() {
    let number = |n: i64| n.to_le_bytes();
    let meta = common::meta(5, common::EXPIRY_MAX);
    let mut random = Random::new(19);
    for round in 0..tier().choose(500, 2000) {
        let map = [(); 2].map(|()| common::in_memory(common::options()).unwrap());
        let mut batch = Batch::new();
        if round % 2 == 0 {
            for map in &map {
                map.set(b"a").meta(meta).put(&number(7)).unwrap();
            }
        }
        for _ in 0..1 + random.below(5) {
            let (key, n) =
                (if random.below(4) == 0 { b"b" } else { b"a" }, random.next() as i64 >> 8);
            match random.below(5) {
                0 => {
                    batch.put(key, &number(n));
                    map[0].put(key, &number(n)).unwrap();
                }
                1 => {
                    batch.put_with(key, &number(n), meta);
                    let _ = map[0].set(key).meta(meta).put(&number(n)).unwrap();
                }
                2 => {
                    batch.remove(key);
                    map[0].delete(key).unwrap();
                }
                _ => {
                    batch.add(key, n);
                    map[0].fetch_add(key, n).unwrap();
                }
            }
        }
        assert!(map[1].apply(&batch).unwrap().is_done());
        for key in [b"a", b"b"] {
            let of = |map: &Map| {
                map.get_with(key, |item| {
                    (item.value.to_vec(), item.flags, item.expires_at().map(common::seconds))
                })
                .unwrap()
            };
            assert_eq!(of(&map[0]), of(&map[1]), "round {round}: {batch:?}");
        }
    }
}

#[test]
fn a_transfer_to_the_same_key_changes_nothing() {
    let map = common::in_memory(common::options()).unwrap();
    let _ = map.fetch_add(b"a", 100).unwrap();
    assert!(map.apply(Batch::new().add(b"a", 1).add(b"a", 1)).unwrap().is_done());
    assert_eq!(count(&map, b"a"), 102);
    assert!(map.apply(Batch::new().add(b"a", -30).add(b"a", 30)).unwrap().is_done());
    assert_eq!(count(&map, b"a"), 102, "a transfer to itself");
    // Only the final sum has to fit.
    assert!(map.apply(Batch::new().add(b"a", i64::MAX).add(b"a", -i64::MAX)).unwrap().is_done());
    assert_eq!(count(&map, b"a"), 102);
    let mut batch = Batch::new();
    let error = map.apply(batch.add(b"a", i64::MAX).add(b"a", i64::MAX)).unwrap_err();
    assert!(matches!(error, Error::Overflow { value: 102, delta: i64::MAX, .. }), "{error}");
    let error = map.apply(Batch::new().put(b"t", b"text").add(b"t", 1)).unwrap_err();
    assert!(matches!(error, Error::NotACounter { len: 4, .. }), "{error}");
    assert_eq!((count(&map, b"a"), map.contains(b"t").unwrap()), (102, false), "nothing changed");
}

/// Conditions are about the state before the batch, and all of them must hold.
#[test]
fn conditions_do_not_see_what_the_batch_does() {
    let map = common::in_memory(common::options()).unwrap();
    map.put(b"a", b"1").unwrap();
    let there = map.get_with(b"a", |item| item.cas).unwrap();
    let mut batch = Batch::new();
    let refused = map.apply(batch.remove(b"a").expect(b"a", None)).unwrap();
    assert_eq!(refused, Applied::Refused { map: None, key: b"a".to_vec(), found: there });
    batch.clear();
    assert!(map.apply(batch.put(b"a", b"2").expect(b"a", there)).unwrap().is_done());
    let there = map.get_with(b"a", |item| item.cas).unwrap();
    for other in [None, Some(1 << 40)] {
        for (first, second) in [(there, other), (other, there)] {
            batch.clear();
            batch.expect(b"a", first).expect(b"a", second).put(b"a", b"3");
            assert!(!map.apply(&batch).unwrap().is_done(), "both cannot hold");
        }
    }
    assert!(map.apply(Batch::new().expect(b"a", there).expect(b"a", there)).unwrap().is_done());
    assert_eq!(map.get(b"a").unwrap().as_deref(), Some(&b"2"[..]));
}

#[test]
fn errors_change_nothing() {
    let map = common::in_memory(common::options().max_bytes(100_000)).unwrap();
    map.put(b"text", b"five").unwrap();
    let _ = map.fetch_add(b"high", i64::MAX).unwrap();
    let before = (map.records(), map.bytes());
    let error = map.apply(Batch::new().put(b"a", b"1").add(b"text", 1)).unwrap_err();
    assert!(matches!(error, Error::NotACounter { len: 4, .. }), "{error}");
    let error = map.apply(Batch::new().put(b"a", b"1").add(b"high", 1)).unwrap_err();
    assert!(matches!(error, Error::Overflow { value: i64::MAX, delta: 1, .. }), "{error}");
    let long = vec![0; 40_000];
    let mut batch = Batch::new();
    batch.put(b"a", &long).put(b"b", &long).put(b"c", &long);
    let error = map.apply(&batch).unwrap_err();
    assert!(matches!(error, Error::Full { limit: 100_000, .. }), "the batch is too large: {error}");
    let error = map.apply(Batch::new().put(b"a", b"1").remove(&vec![0; 70_000])).unwrap_err();
    assert!(matches!(error, Error::KeyTooLong { .. }), "{error}");
    let mut batch = Batch::new();
    for number in 0..=BATCH_MAX {
        batch.remove(&number.to_le_bytes());
    }
    let error = map.apply(&batch).unwrap_err();
    assert!(matches!(error, Error::BatchTooLarge { .. }), "{error}");
    assert_eq!((map.records(), map.bytes()), before);
    assert!(!map.contains(b"a").unwrap());
    sound(&map);
}

#[test]
fn a_batch_concerns_the_maps_that_it_names() {
    for kind in common::every_index() {
        let store = common::in_memory(common::options().index(kind)).unwrap();
        let [users, orders] =
            ["users", "orders"].map(|name| store.db().map(name, MapOptions::new()).unwrap());
        let mut batch = Batch::new();
        batch.put(b"a", b"0").in_map("users").put(b"a", b"1").add(b"count", 1);
        batch.in_map("orders").put(b"a", b"2").in_map("users").put(b"b", b"3").remove(b"a");
        assert_eq!(batch.keys().collect::<Vec<_>>(), [&b"a"[..], b"a", b"count", b"a", b"b"]);
        let Applied::Done(outcomes) = store.apply(&batch).unwrap() else { panic!("unconditional") };
        let absent: Vec<_> = outcomes.iter().map(|outcome| outcome.stored().is_none()).collect();
        assert_eq!(absent, [false, true, false, false, false]);
        let lens = || [&store, &users, &orders].map(|map| map.len());
        assert_eq!((lens(), count(&users, b"count")), ([1, 2, 1], 1));
        assert_eq!(store.get(b"a").unwrap().unwrap(), b"0");
        assert_eq!(orders.get(b"a").unwrap().unwrap(), b"2");
        // From another map, the names are the same.
        let mut batch = Batch::new();
        let found = orders.get_with(b"a", |item| item.cas).unwrap();
        batch.remove(b"a").in_map("users").expect(b"count", Some(1)).put(b"c", b"");
        let (map, key) = (Some("users".to_owned()), b"count".to_vec());
        let there = users.get_with(b"count", |item| item.cas).unwrap();
        let refused = Applied::Refused { map, key, found: there };
        assert_eq!(orders.apply(&batch).unwrap(), refused);
        assert_eq!(orders.get_with(b"a", |item| item.cas).unwrap(), found, "nothing changed");
        let error = users.apply(&batch).unwrap_err();
        assert!(matches!(&error, Error::BatchMap { name } if name == "users"), "{error}");
        assert!(store.db().drop_map("users").unwrap());
        let error = orders.apply(&batch).unwrap_err();
        assert!(matches!(&error, Error::NoSuchMap { name } if name == "users"), "{error}");
        let full = store.db().map("users", MapOptions::new().max_bytes(10_000)).unwrap();
        batch.clear();
        batch.put(b"b", b"").in_map("users").put(b"b", &[0; 20_000]);
        let error = orders.apply(&batch).unwrap_err();
        assert!(matches!(error, Error::Full { limit: 10_000, .. }), "{error}");
        assert_eq!((orders.len(), full.len()), (1, 0), "nothing changed");
        // The name applies only to the changes that were added with it.
        batch.clear();
        assert!(store.apply(batch.remove(b"a")).unwrap().is_done());
        assert_eq!(store.len(), 0);
        sound(&store);
    }
}

#[test]
fn the_largest_batch_on_every_index() {
    for kind in common::every_index() {
        let map = common::in_memory(Options::new().index(kind)).unwrap();
        let name = |number: usize| (number as u64).to_be_bytes();
        for number in (0..BATCH_MAX).step_by(3) {
            map.put(&name(number), b"old").unwrap();
        }
        let mut batch = Batch::new();
        for number in 0..BATCH_MAX {
            match number % 6 {
                0 | 1 => batch.put(&name(number), b"new"),
                _ => batch.remove(&name(number)),
            };
        }
        assert!(map.apply(&batch).unwrap().is_done());
        for number in 0..BATCH_MAX {
            let expected = (number % 6 < 2).then(|| b"new".to_vec());
            assert_eq!(map.get(&name(number)).unwrap(), expected, "{kind}");
        }
        sound(&map);
    }
}

/// Expired and flushed records count as absent, and a batch is never half on each side of a flush.
#[test]
fn what_is_dead_is_absent() {
    let clock = Clock::manual(common::at(1000));
    let memory = Kept::new(16 << 20);
    let options = common::options().capacity(16 << 20).extent_size(64 << 10).clock(clock.clone());
    let store = memory.open(&options).unwrap();
    let expiring = |at| common::meta(0, at);
    store.set(b"a").meta(expiring(1001)).put(b"old").unwrap();
    store.set(b"b").meta(expiring(1001)).put(b"old").unwrap();
    clock.set(common::at(1001));
    let mut batch = Batch::new();
    batch.expect(b"a", None).put_with(b"a", b"new", expiring(1002)).remove(b"b").add(b"c", 1);
    let Applied::Done(outcomes) = store.apply(&batch).unwrap() else { panic!("a is absent") };
    assert!(matches!(outcomes[..], [Outcome::Inserted { .. }, Outcome::Absent, _]));
    assert_eq!(store.get(b"a").unwrap().unwrap(), b"new");
    assert_eq!(store.len(), 2, "the dead one was removed meanwhile");
    clock.set(common::at(1002));
    assert_eq!(store.get(b"a").unwrap(), None);
    store.clear().unwrap();
    assert!(store.apply(Batch::new().add(b"c", 1)).unwrap().is_done());
    assert_eq!(count(&store, b"c"), 1, "started from 0");
    assert_eq!(store.db().purge().unwrap(), 1);
    sound(&store);
}

/// There can be no space for any allocation of a batch: the records, the intent, the index.
#[test]
fn without_space_nothing_is_changed_or_visible() {
    for kind in common::every_index() {
        let (mut refused, mut done) = (0, 0);
        for round in (0..12u64).step_by(tier().choose(3, 1)) {
            let memory = Kept::new((180 << 10) + round * 9_000);
            let options = Options::small(1 << 20).seed(round).index(kind).ordered(true);
            let store = memory.open(&options).unwrap();
            let (mut number, mut random) = (0u64, Random::new(round));
            let mut model = BTreeMap::new();
            for _ in 0..60 {
                let mut batch = Batch::new();
                let mut next = model.clone();
                for _ in 0..random.below(40) {
                    number += 1;
                    let key = number.to_be_bytes().to_vec();
                    batch.put(&key, &value_of(&key, number, random.below(60) as usize));
                    next.insert(key, number);
                }
                for (key, version) in next.iter_mut().step_by(5) {
                    *version += 1;
                    batch.put(key, &value_of(key, *version, random.below(300) as usize));
                }
                match store.apply(&batch) {
                    Ok(applied) => {
                        assert!(applied.is_done());
                        model = next;
                        done += 1;
                    }
                    Err(error) => {
                        assert!(error.is_no_space(), "{error}");
                        refused += 1;
                    }
                }
                for number in number.saturating_sub(40)..=number {
                    let key = number.to_be_bytes();
                    let found = store.get(&key).unwrap();
                    assert_eq!(found.is_some(), model.contains_key(&key[..]));
                }
            }
            for (key, version) in &model {
                let value = store.get(key).unwrap().unwrap();
                assert!(is_value_of(key, &value));
                assert_eq!(value[8..16], version.to_le_bytes());
            }
            assert_eq!(store.len(), model.len() as u64);
            sound(&store);
            scan_agrees(&store).unwrap();
        }
        assert!(refused > 20 && done > 20, "{kind}: {refused} refused, {done} done");
    }
}

/// Transfers keep the sum of all accounts, whatever changes single keys at the same time, and a
/// reader of all accounts together sees that sum.
#[test]
fn transfers_conserve() {
    const ACCOUNTS: usize = 6;
    const ROUNDS: u64 = 4_000;
    for kind in common::every_index() {
        let options =
            Options::new().index(kind).ordered(true).capacity(256 << 20).extent_size(64 << 10);
        let map = common::in_memory(options).unwrap();
        let name = |account: usize| format!("account {account}").into_bytes();
        let names: Vec<_> = (0..ACCOUNTS).map(name).collect();
        let added = AtomicI64::new(0);
        let busy = AtomicU64::new(0);
        let done = AtomicBool::new(false);
        thread::scope(|threads| {
            let mut workers = Vec::new();
            for me in 0..4u64 {
                let (map, names, added, busy) = (&map, &names, &added, &busy);
                workers.push(threads.spawn(move || {
                    let mut random = Random::new(me);
                    for round in 0..ROUNDS {
                        let from = random.below(ACCOUNTS as u64) as usize;
                        let to = (from + 1 + random.below(ACCOUNTS as u64 - 1) as usize) % ACCOUNTS;
                        let amount = random.below(100) as i64;
                        match (me, round % 4) {
                            (0 | 1, _) => {
                                let mut batch = Batch::new();
                                batch.add(&names[from], -amount).add(&names[to], amount);
                                // A key that is inserted and removed, so that the structure of the
                                // index changes too.
                                let key = random.below(500).to_le_bytes();
                                match random.below(2) {
                                    0 => batch.put(&key, &value_of(&key, round, 60)),
                                    _ => batch.remove(&key),
                                };
                                assert!(map.apply(&batch).unwrap().is_done());
                            }
                            // The same by a batch with conditions.
                            (2, _) => loop {
                                let see = |name: &[u8]| {
                                    map.get_with(name, |i| (i.cas, counter(i.value).unwrap()))
                                };
                                let (here, there) =
                                    (see(&names[from]).unwrap(), see(&names[to]).unwrap());
                                let value = |seen: Option<(u64, i64)>, delta: i64| {
                                    (seen.map_or(0, |(_, value)| value) + delta).to_le_bytes()
                                };
                                let mut batch = Batch::new();
                                batch.expect(&names[from], here.map(|(cas, _)| cas));
                                batch.expect(&names[to], there.map(|(cas, _)| cas));
                                batch.put(&names[from], &value(here, -amount));
                                batch.put(&names[to], &value(there, amount));
                                if map.apply(&batch).unwrap().is_done() {
                                    break;
                                }
                                busy.fetch_add(1, SeqCst);
                            },
                            (_, 0) => {
                                let _ = map.touch(&names[from], None).unwrap();
                            }
                            _ => {
                                map.fetch_add(&names[from], amount).unwrap();
                                added.fetch_add(amount, SeqCst);
                            }
                        }
                    }
                }));
            }
            let (map, names, done, added) = (&map, &names, &done, &added);
            threads.spawn(move || {
                while !done.load(SeqCst) {
                    map.db().purge().unwrap();
                    map.db().compact().unwrap();
                }
            });
            threads.spawn(move || {
                while !done.load(SeqCst) {
                    // The sum that single additions have certainly added before, and at most after
                    // it.
                    let least = added.load(SeqCst);
                    let mut sum = 0;
                    map.get_together(names, |_, item| {
                        sum += counter(item.unwrap().value).unwrap();
                        ControlFlow::Continue(())
                    })
                    .unwrap();
                    let most = added.load(SeqCst) + 100;
                    assert!((least..=most).contains(&sum), "{least} <= {sum} <= {most}");
                }
            });
            let ends: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
            done.store(true, SeqCst);
            ends.into_iter().for_each(|end| end.unwrap());
        });
        let sum: i64 = names.iter().map(|name| count(&map, name)).sum();
        assert_eq!(sum, added.load(SeqCst), "{kind}");
        sound(&map);
        scan_agrees(&map).unwrap();
    }
}

/// After a panic anywhere in a batch, the store has all of it or nothing when it is opened again.
#[test]
fn a_panic_at_any_flush_leaves_all_or_nothing() {
    for kind in common::every_index() {
        let memory = Kept::new(32 << 20);
        let options = Options::new().capacity(32 << 20).extent_size(64 << 10).index(kind).seed(5);
        let mut store = memory.open(&options).unwrap();
        let mut random = Random::new(5);
        let mut state: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        let (mut nothing, mut all) = (0, 0);
        for version in 1..240u64 {
            let mut next = state.clone();
            let mut batch = Batch::new();
            for _ in 0..1 + random.below(8) {
                let key = random.below(30).to_le_bytes().to_vec();
                if random.below(3) == 0 {
                    batch.remove(&key);
                    next.remove(&key);
                } else {
                    batch.put(&key, &value_of(&key, version, random.below(200) as usize));
                    next.insert(key, version);
                }
            }
            memory.panic_at_flush(random.below(40) as i64);
            let run = catch_unwind(AssertUnwindSafe(|| store.apply(&batch)));
            let has_panicked = memory.cancel_panic();
            if has_panicked {
                assert!(run.is_err());
                drop(store);
                store = memory.open(&options).unwrap();
            } else {
                assert!(run.unwrap().unwrap().is_done());
                state = next.clone();
            }
            let version_of = |(key, value): (Vec<u8>, Vec<u8>)| {
                assert!(is_value_of(&key, &value));
                let version = u64::from_le_bytes(*value[8..].first_chunk().unwrap());
                (key, version)
            };
            let found: BTreeMap<_, _> =
                store.iter().map(|pair| version_of(pair.unwrap())).collect();
            if has_panicked && found == next && next != state {
                all += 1;
            } else {
                assert!(found == state, "{kind}: only a part of batch {version} was made");
                nothing += usize::from(has_panicked);
            }
            state = found;
            if version % 3 == 0 {
                sound(&store);
            }
        }
        assert!(all > 10 && nothing > 10, "{kind}: {all} completed, {nothing} forgotten");
    }
}

/// One fence for all records and the intent, one for the decision, one for each change, one for the
/// end.
#[test]
fn what_a_batch_waits_for() {
    let memory = Kept::new(64 << 20);
    let store = memory.open(&Options::new().capacity(64 << 20).seed(11)).unwrap();
    let batch = |keys: std::ops::Range<u64>| {
        let mut batch = Batch::new();
        for key in keys {
            batch.put(&key.to_le_bytes(), b"value");
        }
        batch
    };
    let fences = |batch: &Batch| {
        let before = memory.fences();
        assert!(store.apply(batch).unwrap().is_done());
        memory.fences() - before
    };
    fences(&batch(0..2000));
    // In groups of 32, and one by one those of a group that are in the same bucket.
    for (keys, most) in [(1, 4), (2, 4), (10, 4 + 2), (100, 3 + 4 + 20)] {
        let updates: Vec<_> = (0..20).map(|_| fences(&batch(0..keys))).collect();
        println!("{keys} updates: {updates:?}");
        // Sometimes a new extent or range of CAS ids is needed.
        let least = *updates.iter().min().unwrap();
        assert!((3 + keys.div_ceil(32)..=most).contains(&least), "{keys} updates: {updates:?}");
    }
    let mut removal = Batch::new();
    for key in 0..10u64 {
        removal.remove(&key.to_le_bytes());
    }
    let (mut removals, mut inserts) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        removals.push(fences(&removal));
        inserts.push(fences(&batch(0..10)));
    }
    println!("10 removals: {removals:?}, 10 inserts: {inserts:?}");
    let removals = *removals.iter().min().unwrap();
    assert!((4..=4 + 2).contains(&removals), "{removals}");
    let inserts = *inserts.iter().min().unwrap();
    assert!((1 + 4..=10 + 4).contains(&inserts), "{inserts}");
    assert_eq!(fences(Batch::new().expect(b"absent", None)), 0);
}

fn word(memory: &Kept, at: u64) -> &PmU64 {
    memory.at(at).unwrap()
}

/// Returns memory in which a batch was stopped after its decision and before its first change.
fn stopped_in_the_middle() -> (Kept, Options) {
    let options = common::options().capacity(16 << 20).extent_size(64 << 10).seed(11);
    for flushes in 0.. {
        let memory = Kept::new(16 << 20);
        let store = memory.open(&options).unwrap();
        assert!(store.apply(Batch::new().put(b"a", b"1").put(b"b", b"1")).unwrap().is_done());
        let mut batch = Batch::new();
        batch.put(b"a", b"2").put(b"c", b"2").remove(b"b");
        memory.panic_at_flush(flushes);
        let run = catch_unwind(AssertUnwindSafe(|| store.apply(&batch)));
        assert!(memory.cancel_panic() && run.is_err(), "it ends before the decision");
        if memory.load(word(&memory, INTENT_ROOT)) != 0 {
            return (memory, options);
        }
    }
    unreachable!("it reaches its decision")
}

#[test]
fn a_decided_batch_is_completed_once() {
    let (memory, options) = stopped_in_the_middle();
    for _ in 0..2 {
        let store = memory.open(&options).unwrap();
        assert_eq!(memory.load(word(&memory, INTENT_ROOT)), 0);
        assert_eq!(store.get(b"a").unwrap().unwrap(), b"2");
        assert_eq!(store.get(b"c").unwrap().unwrap(), b"2");
        assert_eq!(store.get(b"b").unwrap(), None);
        store.db().recover().unwrap();
        sound(&store);
        assert_eq!(store.len(), 2);
    }
}

#[test]
fn an_intent_that_cannot_be_read_is_an_error_or_dropped() {
    let intent_at = |memory: &Kept| memory.load(word(memory, INTENT_ROOT)) & 0xffff_ffff_ffff;
    type Damage = fn(&Kept, u64);
    let damages: [(&str, Damage); 4] = [
        ("root", |memory, _| {
            let root = word(memory, INTENT_ROOT);
            memory.store(root, memory.load(root) ^ 1 << 20);
        }),
        ("count", |memory, at| memory.store(word(memory, at), u64::MAX)),
        ("check", |memory, at| {
            let check = word(memory, at + 8);
            memory.store(check, memory.load(check) ^ 1);
        }),
        ("entry", |memory, at| memory.store(word(memory, at + 24), 4096)),
    ];
    for (what, damage) in damages {
        let (memory, options) = stopped_in_the_middle();
        damage(&memory, intent_at(&memory));
        let error = memory.open(&options).map(drop).unwrap_err();
        assert!(error.is_damaged() && error.to_string().contains("batch"), "{what}: {error}");
        let store = memory.open(&options.clone().on_suspect(OnSuspect::Salvage)).unwrap();
        assert_eq!(store.get(b"a").unwrap().unwrap(), b"1");
        assert_eq!(store.get(b"c").unwrap(), None);
        assert_eq!(store.stat().damage_met, 1);
        sound(&store);
    }
}

/// Programs that only know the format without batches are refused from the first batch on, and not
/// before.
#[test]
fn the_first_batch_raises_the_format() {
    let memory = Kept::new(16 << 20);
    let options = common::options().capacity(16 << 20).extent_size(64 << 10);
    let format = || [0, 4096].map(|copy| memory.load(word(&memory, copy + 8)) as u32);
    let store = memory.open(&options).unwrap();
    store.put(b"a", b"1").unwrap();
    assert!(!store.apply(Batch::new().expect(b"a", None).put(b"a", b"2")).unwrap().is_done());
    assert_eq!(format(), [5, 5]);
    assert!(store.apply(Batch::new().put(b"a", b"2")).unwrap().is_done());
    assert_eq!(format(), [6, 6]);
    store.db().clone().close().unwrap();
    drop(store);
    assert_eq!(memory.open(&options).unwrap().get(b"a").unwrap().unwrap(), b"2");
    assert_eq!(format(), [6, 6]);
}

/// A poisoned store reports that, also to threads that wait for a batch that will never end.
#[test]
fn no_thread_waits_for_a_batch_that_panicked() {
    let (memory, options) = (Kept::new(16 << 20), common::options().capacity(16 << 20));
    let options = options.extent_size(64 << 10);
    let store = memory.open(&options).unwrap();
    let mut batch = Batch::new();
    for key in 0..50u64 {
        batch.put(&key.to_le_bytes(), b"1");
    }
    assert!(store.apply(&batch).unwrap().is_done());
    // 50 records, the intent, the decision, then one for each change.
    memory.panic_at_flush(75);
    assert!(catch_unwind(AssertUnwindSafe(|| store.apply(&batch))).is_err());
    assert!(memory.cancel_panic());
    let poisoned = |error: Error| error.kind() == ErrorKind::Poisoned;
    assert!(poisoned(store.apply(&batch).unwrap_err()));
    assert!(poisoned(store.put(&49u64.to_le_bytes(), b"2").unwrap_err()));
    assert!(poisoned(
        store.get_together(&[b"a", b"b"], |_, _| ControlFlow::Continue(())).unwrap_err()
    ));
}
