//! Traits, and methods that need no second thread.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

fn is_send_and_sync<T: Send + Sync>() {}

#[test]
fn a_map_can_be_shared() {
    is_send_and_sync::<VolatileMap<String, Vec<u8>>>();
}

#[test]
fn maps_are_built_cloned_compared_and_shown() {
    let map = VolatileMap::from([(1, "one"), (2, "two"), (1, "uno")]);
    assert_eq!((map.len(), map.pin().get(&1)), (2, Some(&"uno")));
    let clone = map.clone();
    assert_eq!(map, clone);
    clone.pin().insert(3, "three");
    assert_ne!(map, clone);
    map.pin().insert(3, "drei");
    assert_ne!(map, clone);
    let mut collected: VolatileMap<_, _> = clone.into_iter().collect();
    collected.extend([(4, "four")]);
    collected.extend([(&5, &"five")]);
    (&collected).extend([(5, "fünf")]);
    assert_eq!((collected.len(), collected.pin().get(&5)), (5, Some(&"fünf")));
    let one = VolatileMap::from([(1, 2)]);
    assert_eq!(format!("{one:?} {:?}", one.pin()), "{1: 2} {1: 2}");
    let pinned = one.pin();
    assert_eq!(pinned.keys().collect::<Vec<_>>(), [&1]);
    assert_eq!(pinned.values().collect::<Vec<_>>(), [&2]);
    assert_eq!((&pinned).into_iter().collect::<Vec<_>>(), [(&1, &2)]);
    assert_eq!(VolatileMap::<u8, u8>::default(), VolatileMap::new());
    assert!(!format!("{:?}{:?}", pinned.iter(), pinned.keys()).is_empty());
}

#[test]
fn who_owns_a_map_can_change_its_values() {
    let mut map = VolatileMap::<u64, u64>::with_capacity(10);
    (0..100).for_each(|key| ignore(map.pin().insert(key, key)));
    for key in 0..100 {
        *map.get_mut(&key).unwrap() += 1;
    }
    assert!(map.get_mut(&100).is_none());
    assert!((0..100).all(|key| map.pin().get(&key) == Some(&(key + 1))));
}

#[test]
fn a_guard_serves_all_maps_of_its_domain() {
    let (one, other) = (VolatileMap::from([(1, 1)]), VolatileMap::from([(1, 2)]));
    let guard = one.domain().pin();
    let (pinned, second) = (one.with_guard(&guard), other.with_guard(&guard));
    assert_eq!((pinned.get(&1), second.get(&1)), (Some(&1), Some(&2)));
    let foreign = VolatileMap::<u8, u8>::with_domain(
        RandomState::new(),
        Arc::new(Domain::new(Box::new(|_| ()))),
    );
    evermap_pm::sim::keep_panics_quiet();
    assert!(catch_unwind(AssertUnwindSafe(|| ignore(foreign.with_guard(&guard)))).is_err());
    // Readers that announce quiescent states need no guard for each operation.
    let mut reader = one.domain().register();
    assert_eq!(one.with_guard(reader.section()).get(&1), Some(&1));
    reader.quiescent();
}

#[test]
fn room_is_kept_until_it_is_not_wanted() {
    let map = tiny::<u64, u64, RandomState>();
    assert_eq!(map.stats().slots, 0);
    map.reserve(1000);
    let slots = map.stats().slots;
    assert!(slots >= 1000);
    (0..1000).for_each(|key| ignore(map.pin().insert(key, key)));
    assert_eq!(map.stats().resizes, 0);
    (0..1000).for_each(|key| ignore(map.pin().remove(&key)));
    assert!(map.stats().slots >= slots && map.stats().resizes == 0);
    map.shrink_to_fit();
    assert!(map.stats().slots <= 24);
    map.reserve(0);
    let with = VolatileMap::<u64, u64>::with_capacity(100_000);
    assert!(with.stats().slots >= 100_000);
}

#[test]
fn a_map_shrinks_and_grows_by_itself() {
    let map = tiny::<u64, u64, RandomState>();
    let mut most = 0;
    for round in 0..3 {
        (0..2000).for_each(|key| ignore(map.pin().insert(key, round)));
        most = map.stats().slots;
        (0..1990).for_each(|key| ignore(map.pin().remove(&key)));
        // Writes that change nothing help too.
        (0..300).for_each(|_| ignore(map.pin().remove(&0)));
        let stats = map.stats();
        assert!(stats.slots * 8 < most && stats.resizing == 0, "{stats:?}, {most} before");
        assert!((1990..2000).all(|key| map.pin().get(&key) == Some(&round)));
    }
    // A number of entries about a limit does not cause one resize after another.
    let resizes = map.stats().resizes;
    (0..1000).for_each(|key| ignore(map.pin().insert(key, key)));
    let grown = map.stats().resizes;
    assert!(grown - resizes < 12 && most > 0);
    for _ in 0..50 {
        (0..100).for_each(|key| ignore(map.pin().remove(&key)));
        (0..100).for_each(|key| ignore(map.pin().insert(key, key)));
    }
    assert!(map.stats().resizes - grown <= 1);
}

#[test]
fn maps_are_serialized() {
    let map: VolatileMap<String, u32> =
        (0..100).map(|number| (number.to_string(), number)).collect();
    let bytes = postcard::to_stdvec(&map).unwrap();
    assert_eq!(bytes.len(), postcard::to_stdvec(&map.pin()).unwrap().len());
    assert_eq!(postcard::from_bytes::<VolatileMap<String, u32>>(&bytes).unwrap(), map);
    let read: HashMap<String, u32> = postcard::from_bytes(&bytes).unwrap();
    assert_eq!(read.len(), 100);
    // The number of pairs that the input claims to have is not believed.
    let lie = [0xff, 0xff, 0xff, 0xff, 0x7f, 1, b'a', 1];
    assert!(postcard::from_bytes::<VolatileMap<String, u32>>(&lie).is_err());
}

/// Runs `call`, and fails if it does not end.
fn expect_to_end(call: impl FnOnce() + Send + 'static) {
    let (done, ended) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        call();
        ignore(done.send(()));
    });
    let waited = ended.recv_timeout(std::time::Duration::from_secs(60));
    assert_ne!(waited, Err(std::sync::mpsc::RecvTimeoutError::Timeout), "threads wait for ever");
    thread.join().unwrap();
}

/// Where what is lent holds a lock, each of these lines waits for its own thread.
#[test]
fn a_thread_that_was_lent_entries_can_do_anything() {
    expect_to_end(|| {
        let map = Arc::new(VolatileMap::from([(1, 10), (2, 20)]));
        let pinned = map.pin();
        let (one, mut pairs) = (pinned.get(&1).unwrap(), pinned.iter());
        let first = pairs.next().unwrap();
        map.pin().insert(1, 11);
        map.pin().remove(&2);
        map.pin().update_or_insert(2, |value| value + 1, 22);
        pinned.get_or_insert_with(3, || map.pin().len());
        pinned
            .compute(1, |_| Operation::<_, ()>::Insert(map.pin().insert(4, 4).map_or(12, |_| 13)));
        pinned.retain(|key, _| map.pin().insert(key + 10, 0).is_none());
        map.reserve(100_000);
        map.pin().clear();
        map.shrink_to_fit();
        assert!(map.is_empty());
        assert_eq!((*one, *first.1), (10, first.0 * 10));
    });
}

/// Two threads were lent an entry each, and change each other's.
#[test]
fn threads_that_were_lent_entries_do_not_wait_for_each_other() {
    expect_to_end(|| {
        // One shard, whose lock is everybody's.
        let map: VolatileMap<u64, u64, RandomState> = tiny();
        map.pin().insert(0, 0);
        map.pin().insert(1, 1);
        let both_are_lent = std::sync::Barrier::new(2);
        std::thread::scope(|threads| {
            for mine in [0, 1] {
                let (map, both_are_lent) = (&map, &both_are_lent);
                threads.spawn(move || {
                    let pinned = map.pin();
                    let lent = pinned.get(&mine).unwrap();
                    both_are_lent.wait();
                    (0..1000).for_each(|more| ignore(pinned.insert(1 - mine, 2 + more)));
                    assert_eq!(*lent, mine);
                });
            }
        });
    });
}
