//! Mutations that compute the new value from the old one.

use std::collections::HashMap;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use crate::common::{self, Kept};
use evermap::cache::{CacheEdit, Marks};
use evermap::{Applied, Batch, Edit, Error, Item, Map, Meta, Outcome, counter};
use evermap_pm::sim::Sim;

#[test]
fn counters_count_and_say_what_is_none() {
    let map = common::in_memory(common::options()).unwrap();
    assert_eq!(map.fetch_add(b"c", 0).unwrap(), 0);
    assert_eq!(map.get(b"c").unwrap().unwrap(), [0; 8], "created by adding 0");
    assert_eq!(map.fetch_add(b"c", i64::MAX).unwrap(), 0);
    let cas = map.get_with(b"c", |item| item.cas).unwrap();
    let error = map.fetch_add(b"c", 1).unwrap_err();
    assert!(matches!(error, Error::Overflow { value: i64::MAX, delta: 1, .. }), "{error}");
    assert_eq!(map.get_with(b"c", |item| item.cas).unwrap(), cas, "nothing changed");
    assert_eq!(map.fetch_add(b"c", i64::MIN).unwrap(), i64::MAX);
    assert_eq!(map.fetch_add(b"c", i64::MIN + 1).unwrap(), -1);
    let error = map.fetch_add(b"c", -1).unwrap_err();
    assert!(error.to_string().contains("leaves the range"), "{error}");
    for value in [&b""[..], b"7", b"nine byte"] {
        map.put(b"text", value).unwrap();
        let error = map.fetch_add(b"text", 1).unwrap_err();
        assert!(matches!(error, Error::NotACounter { len, .. } if len == value.len()), "{error}");
        assert_eq!(map.get(b"text").unwrap().unwrap(), value);
    }
    let meta = common::meta(3, common::EXPIRY_MAX);
    map.set(b"d").meta(meta).put(&7i64.to_le_bytes()).unwrap();
    assert_eq!(map.fetch_add(b"d", 1).unwrap(), 7);
    let kept =
        map.get_with(b"d", |item| (item.flags, item.expires_at().map(common::seconds))).unwrap();
    assert_eq!(kept, Some((3, Some(common::EXPIRY_MAX))));
}

#[test]
fn appending_keeps_what_is_there() {
    let map = common::in_memory(common::options()).unwrap();
    assert!(map.append(b"a", b"").unwrap() > 0);
    assert_eq!(map.get(b"a").unwrap().unwrap(), b"");
    let cas = map.append(b"a", b"b").unwrap();
    assert_eq!(map.get_with(b"a", |item| item.cas).unwrap(), Some(cas));
    let cas = map.prepend(b"a", b"a").unwrap();
    assert_eq!(map.get_with(b"a", |item| item.cas).unwrap(), Some(cas));
    map.prepend(b"p", b"p").unwrap();
    assert_eq!(map.get(b"a").unwrap().unwrap(), b"ab");
    map.set(b"f").meta(common::meta(3, common::EXPIRY_MAX)).put(b"1").unwrap();
    map.append(b"f", b"2").unwrap();
    let shown = map.get_with(b"f", |item| {
        (item.value.to_vec(), item.flags, item.expires_at().map(common::seconds))
    });
    assert_eq!(shown.unwrap(), Some((b"12".to_vec(), 3, Some(common::EXPIRY_MAX))));
    let map = common::in_memory(common::options().max_bytes(1000)).unwrap();
    map.put(b"a", b"short").unwrap();
    assert!(map.append(b"a", &[0; 2000]).unwrap_err().is_no_space());
    assert_eq!(map.get(b"a").unwrap().unwrap(), b"short");
}

/// Threads that mark, touch and store the same key: none of their changes is lost.
#[test]
fn marks_are_changed_in_place_and_never_lost() {
    const ROUNDS: u64 = 20_000;
    const FIRST: u64 = common::EXPIRY_MAX - ROUNDS;
    let map = common::in_memory(common::options()).unwrap();
    map.set(b"key").expires(common::at(FIRST)).put(b"value").unwrap();
    let mark = |item: Option<Item<'_>>| {
        let item = item.expect("always there");
        let marks = Marks::from_bits_truncate(item.meta().marks().bits().wrapping_add(1));
        CacheEdit::Mark { expiry: item.expires_at().into(), marks }
    };
    let cas = map.get_with(b"key", |item| item.cas).unwrap();
    assert_eq!(map.cache().modify(b"key", mark).unwrap(), cas, "the same version");
    let absent =
        |_: Option<Item<'_>>| CacheEdit::Mark { expiry: evermap::Expiry::NEVER, marks: Marks::ALL };
    assert_eq!(map.cache().modify(b"absent", absent).unwrap(), None);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                map.cache().modify(b"key", mark).unwrap();
            }
        });
        scope.spawn(|| {
            (1..=ROUNDS).for_each(|at| assert!(map.touch(b"key", common::at(FIRST + at)).unwrap()));
        });
        // A new value has the marks and the expiry that are there when it is stored.
        scope.spawn(|| {
            for number in 0..ROUNDS {
                map.modify(b"key", |_| Edit::Value(number.to_le_bytes().to_vec())).unwrap();
            }
        });
    });
    let end = map.get_with(b"key", |item| {
        (item.value.to_vec(), item.expires_at().map(common::seconds), item.meta().marks())
    });
    let (value, expires_at, marks) = end.unwrap().unwrap();
    assert_eq!(value, (ROUNDS - 1).to_le_bytes());
    assert_eq!(expires_at, Some(FIRST + ROUNDS));
    assert_eq!(u64::from(marks.bits()), (ROUNDS + 1) % 8);
}

/// Only what is stored with marks has them, and a change of the value keeps them.
#[test]
fn marks_belong_to_a_version_unless_they_are_given_again() {
    let map = common::in_memory(common::options()).unwrap();
    let marks = Marks::from_bits_truncate(0b1_0101);
    assert_eq!(marks.bits(), 0b101);
    let shown = || map.get_with(b"key", |item| item.meta().marks()).unwrap().unwrap();
    map.set(b"key").meta(Meta::new().with_marks(marks)).put(&7i64.to_le_bytes()).unwrap();
    map.fetch_add(b"key", 1).unwrap();
    map.touch(b"key", common::at(common::EXPIRY_MAX)).unwrap();
    let applied = map.apply(Batch::new().add(b"key", 1)).unwrap();
    assert!(matches!(applied, Applied::Done(_)));
    assert_eq!(shown(), marks);
    assert_eq!(map.get_ref(b"key").unwrap().unwrap().meta().marks(), marks);
    map.modify(b"key", |item| Edit::Record(vec![1], item.unwrap().meta())).unwrap();
    assert_eq!(shown(), marks);
    map.cache().modify(b"key", |_| CacheEdit::MarkedValue(vec![1], Marks::ALL)).unwrap();
    assert_eq!(shown(), Marks::ALL);
    let written =
        map.set(b"key").meta(Meta::new().with_marks(marks)).value_writer(0).unwrap().finish();
    assert!(written.is_ok() && shown() == marks);
    let put = Batch::new().put_with(b"key", b"2", Meta::new().with_marks(Marks::ALL)).clone();
    assert!(matches!(map.apply(&put).unwrap(), Applied::Done(_)));
    assert_eq!(shown(), Marks::ALL);
    map.put(b"key", b"value").unwrap();
    assert_eq!(shown(), Marks::NONE);
}

/// No new value is computed from a flushed one, even if a thread reads it in the middle of the
/// flush, when the flush has chosen its mark but other threads do not see it yet.
#[test]
fn nothing_is_computed_from_what_is_flushed() {
    type Add = fn(&Map<Sim>);
    let additions: [Add; 3] = [
        |store| assert!(store.fetch_add(b"count", 1).is_ok()),
        |store| assert!(store.append(b"count", &1i64.to_le_bytes()).is_ok()),
        |store| assert!(store.apply(Batch::new().add(b"count", 1)).unwrap().is_done()),
    ];
    for add in additions {
        let memory = Kept::new(16 << 20);
        let options = common::options().capacity(16 << 20).extent_size(64 << 10);
        let store = Arc::new(memory.open(&options).unwrap());
        store.fetch_add(b"count", 100).unwrap();
        let (done, is_done) = mpsc::channel();
        let adder = store.clone();
        memory.at_next_fence(move || {
            thread::spawn(move || {
                add(&adder);
                // The receiver is gone if the thread had to wait for the flush.
                let _ = done.send(());
            });
            // Long enough for a thread that does not wait.
            let _ = is_done.recv_timeout(Duration::from_millis(200));
        });
        store.clear().unwrap();
        let value = loop {
            match store.get(b"count").unwrap() {
                Some(value) => break value,
                // It is still running.
                None => thread::yield_now(),
            }
        };
        assert_eq!(value, 1i64.to_le_bytes(), "computed from a flushed value");
    }
}

/// Every addition counts once, and every piece is appended once, in the order of its thread.
#[test]
fn nothing_is_lost_between_threads() {
    const ROUNDS: u32 = 3_000;
    let map = common::in_memory(common::options()).unwrap();
    thread::scope(|threads| {
        for me in 0..4u32 {
            let map = &map;
            threads.spawn(move || {
                let mut sum = 0;
                for round in 0..ROUNDS {
                    let before = map.fetch_add(b"count", 1).unwrap();
                    assert!(before >= sum, "a thread sees its own additions");
                    sum = before + 1;
                    if round % 10 == 0 {
                        let piece = (u64::from(me) << 32 | u64::from(round)).to_be_bytes();
                        let stored = match me % 2 {
                            0 => map.append(b"log", &piece),
                            _ => map.prepend(b"log", &piece),
                        };
                        assert!(stored.unwrap() > 0);
                    }
                }
            });
        }
    });
    let count = map.get(b"count").unwrap().unwrap();
    assert_eq!(counter(&count), Some(4 * i64::from(ROUNDS)));
    let log = map.get(b"log").unwrap().unwrap();
    let mut pieces: HashMap<u64, Vec<u64>> = HashMap::new();
    for piece in log.chunks(8) {
        let piece = u64::from_be_bytes(piece.try_into().unwrap());
        pieces.entry(piece >> 32).or_default().push(piece & 0xffff_ffff);
    }
    for me in 0..4u64 {
        let mut expected: Vec<_> = (0..u64::from(ROUNDS)).step_by(10).collect();
        if me % 2 == 1 {
            expected.reverse();
        }
        assert_eq!(pieces[&me], expected);
    }
}

/// A flush and a newer record come before `replace` stores its own, so it has to start again;
/// before it does, the key is removed. So nothing is replaced, whatever the first attempt has
/// found.
#[test]
fn a_replacement_that_begins_again_reports_what_it_finds_then() {
    let memory = Kept::new(16 << 20);
    let options = common::options().capacity(16 << 20).extent_size(64 << 10);
    let map = memory.open(&options).unwrap();
    map.put(b"key", b"old").unwrap();
    let (other, kept) = (map.clone(), memory.clone());
    memory.at_next_fence(move || {
        other.clear().unwrap();
        other.put(b"key", b"newer").unwrap();
        // The next fence makes the new CAS id of the replacement durable.
        kept.at_next_fence(move || assert!(other.delete(b"key").unwrap()));
    });
    assert_eq!(map.replace(b"key", b"replacement").unwrap(), Outcome::Absent);
    assert_eq!(map.get(b"key").unwrap(), None);
    assert_eq!(map.len(), 0);
}

#[test]
fn old_values_are_returned() {
    let map = common::in_memory(common::options()).unwrap();
    assert_eq!(map.insert(b"key", b"1").unwrap(), None);
    assert_eq!(map.set(b"key").meta(common::meta(7, 0)).insert(b"2").unwrap(), Some(b"1".to_vec()));
    assert_eq!(map.get_or_insert(b"key", b"3").unwrap(), b"2");
    assert_eq!(map.get_or_insert(b"other", b"3").unwrap(), b"3");
    let edit = |_: Option<Item<'_>>| Edit::Value(b"4".to_vec());
    assert_eq!(map.fetch_modify(b"key", edit).unwrap(), Some(b"2".to_vec()));
    assert_eq!(map.get_with(b"key", |item| item.flags).unwrap(), Some(7));
    assert_eq!(map.fetch_modify(b"none", |_| Edit::Keep).unwrap(), None);
    assert_eq!(map.remove(b"key").unwrap(), Some(b"4".to_vec()));
    assert_eq!(map.remove(b"key").unwrap(), None);
    assert_eq!(map.set(b"gone").meta(common::meta(0, 1)).insert(b"1").unwrap(), None);
    assert_eq!(map.insert(b"gone", b"2").unwrap(), None, "an expired record is absent");
}

/// Threads replace the value of a key: each old value is returned to exactly one of them.
#[test]
fn each_old_value_is_returned_once() {
    const ROUNDS: u32 = 20_000;
    let map = common::in_memory(common::options()).unwrap();
    let seen: Vec<Vec<Vec<u8>>> = thread::scope(|threads| {
        let exchange = |me: u32| {
            let map = &map;
            move || {
                let next = |round: u32| (u64::from(me) << 32 | u64::from(round)).to_le_bytes();
                let old = |round: u32| match round % 3 {
                    0 => map.remove(b"key").unwrap(),
                    _ => map.insert(b"key", &next(round)).unwrap(),
                };
                (0..ROUNDS).filter_map(old).collect()
            }
        };
        let workers: Vec<_> = (0..3).map(|me| threads.spawn(exchange(me))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let mut seen: Vec<Vec<u8>> = seen.into_iter().flatten().collect();
    seen.extend(map.remove(b"key").unwrap());
    let stored = (0..ROUNDS).filter(|round| round % 3 != 0).count() * 3;
    assert_eq!(seen.len(), stored);
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), stored, "a value was returned twice");
}
