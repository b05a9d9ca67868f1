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
