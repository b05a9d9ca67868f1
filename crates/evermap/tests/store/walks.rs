//! Walks through the index that must not miss anything: sweeps, building the ordered index, purges.
//! Each is interrupted in the middle, while iterators begin, pause and end, and the index grows.

use evermap::{Clock, IndexKind, Map, Options};
use evermap_index::testkit::tier;
use evermap_pm::sim::Sim;

use crate::common::{self, Kept};

/// The number of records that are present throughout, and of those that are added in the middle of
/// a walk, which makes the index grow more than once.
const THERE: u64 = 6_000;
const ADDED: u64 = 3 * THERE;
/// The same for building the ordered index, which reads the words of 65,536 records before it reads
/// a record.
const THERE_IN_ORDER: u64 = 150_000;
const ADDED_IN_ORDER: u64 = 2 * THERE_IN_ORDER;
/// The number of iterators: too many for an index to keep a list of them.
const ITERATORS: usize = 40;

fn key(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key
}

fn put(store: &Map<Sim>, numbers: std::ops::Range<u64>) {
    numbers.for_each(|number| store.put(&key(number), &[number as u8; 50]).unwrap());
}

fn options(kind: IndexKind) -> Options {
    Options::new().index(kind).seed(1).capacity(256 << 20)
}

/// A store with this number of records, whose process was killed.
fn killed(options: &Options, records: u64) -> (Kept, Map<Sim>) {
    let memory = Kept::new(256 << 20);
    put(&memory.open(options).unwrap(), 0..records);
    let store = memory.open(options).unwrap();
    (memory, store)
}

/// Returns what is to interrupt a walk: iterators begin, half of them end, and records are added;
/// then `then` is called.
fn disturbance(
    store: &Map<Sim>,
    added: std::ops::Range<u64>,
    then: impl FnOnce() + Send + 'static,
) -> impl FnOnce() + Send + 'static {
    let store = store.clone();
    move || {
        // In another thread, like all operations beside a walk.
        let others = std::thread::spawn(move || {
            let mut iterators: Vec<_> = (0..ITERATORS).map(|_| store.iter()).collect();
            iterators.iter_mut().for_each(|iterator| drop(iterator.next().unwrap().unwrap()));
            iterators.truncate(ITERATORS / 2);
            put(&store, added);
        });
        others.join().unwrap();
        then();
    }
}

#[test]
fn a_sweep_frees_no_live_record() {
    for kind in common::every_index() {
        let (memory, store) = killed(&options(kind), THERE);
        memory.at_next_read_ahead(disturbance(&store, THERE..THERE + ADDED, || ()));
        store.db().recover().unwrap();
        // All space that the sweep has freed is reused.
        put(&store, THERE + ADDED..3 * (THERE + ADDED));
        for number in 0..3 * (THERE + ADDED) {
            let value = store.get(&key(number)).unwrap();
            assert_eq!(value, Some(vec![number as u8; 50]), "{kind}: {number}");
        }
        assert_eq!(store.len().to_string(), (3 * (THERE + ADDED)).to_string(), "{kind}");
    }
}

/// A sweep, or a program that removes what a walk shows it, removes records bucket by bucket, and
/// can be stopped anywhere: pages of the index are empty then beside pages that are full.
#[test]
fn an_index_whose_records_were_removed_in_their_order_is_sound() {
    const STOPS: usize = 30;
    for kind in common::every_index() {
        let (_memory, store) = killed(&options(kind), THERE);
        let keys: Vec<_> = store.iter().map(|item| item.unwrap().0).collect();
        for some in keys.chunks(keys.len() / STOPS) {
            some.iter().for_each(|key| assert!(store.delete(key).unwrap()));
            let report = store.db().check(true).unwrap();
            assert!(report.is_sound(), "{kind}: {report}");
        }
    }
}

#[test]
fn an_ordered_index_has_every_key() {
    const ALL: u64 = THERE_IN_ORDER + ADDED_IN_ORDER;
    let kinds = [IndexKind::default(), IndexKind::Level];
    for &kind in &kinds[..tier().choose(1, 2)] {
        let (memory, store) = killed(&options(kind).ordered(true), THERE_IN_ORDER);
        store.db().recover().unwrap();
        memory.at_next_prefetch(disturbance(&store, THERE_IN_ORDER..ALL, || ()));
        store.build_ordered(1).unwrap();
        let shown = store.scan(..).unwrap().map(|pair| pair.unwrap().0);
        let mut due: Vec<_> = (0..ALL).map(|number| key(number).to_vec()).collect();
        due.sort_unstable();
        assert!(shown.eq(due), "{kind}");
    }
}

#[test]
fn a_purge_removes_all_that_has_expired() {
    for kind in common::every_index() {
        let clock = Clock::manual(common::at(1_000));
        let memory = Kept::new(256 << 20);
        let store = memory.open(&options(kind).clock(clock.clone())).unwrap();
        let meta = common::meta(0, 1_060);
        (0..THERE)
            .for_each(|number| store.set(&key(number)).meta(meta).put(b"").map(drop).unwrap());
        memory.at_next_prefetch(disturbance(&store, THERE..THERE + ADDED, move || {
            clock.set(common::at(1_060))
        }));
        assert_eq!(store.db().purge().unwrap(), THERE, "{kind}");
    }
}

#[test]
fn keys_are_those_of_the_records() {
    let map = common::in_memory(common::options()).unwrap();
    assert_eq!(map.keys().count(), 0);
    for number in 0..3_000u32 {
        map.put(&number.to_be_bytes(), &[0; 100]).unwrap();
    }
    map.set(b"expired").meta(common::meta(0, 1)).put(b"").unwrap();
    let mut keys: Vec<_> = map.keys().map(Result::unwrap).collect();
    keys.sort_unstable();
    let expected: Vec<_> = (0..3_000u32).map(|number| number.to_be_bytes().to_vec()).collect();
    assert!(keys == expected);
    let mut walk = map.keys();
    walk.next().unwrap().unwrap();
    map.db().clone().close().unwrap();
    assert!(matches!(walk.next(), Some(Err(evermap::Error::Closed))));
    assert!(walk.next().is_none());
}

/// A copy of a map with the same seed receives the records in the order in which its own hashes
/// would show them. It grows as in any other order. (Level hashing doubles, and CCEH splits, by
/// chance: the tests of their orders look at many sizes.)
#[test]
fn a_copy_in_the_order_of_a_walk_takes_hardly_more_space() {
    const RECORDS: u64 = 20_000;
    let others = ["level", "cceh"];
    for kind in common::every_index().into_iter().filter(|kind| !others.contains(&kind.name())) {
        let [original, copy] = [(); 2].map(|()| common::in_memory(options(kind)).unwrap());
        (0..RECORDS).for_each(|number| original.put(key(number), []).unwrap());
        for item in original.iter() {
            let (key, value) = item.unwrap();
            copy.put(key, value).unwrap();
        }
        let [before, after] = [&original, &copy].map(|map| map.cost().unwrap());
        assert_eq!((before.records, after.records), (RECORDS, RECORDS));
        let ratio = after.index_bytes / before.index_bytes;
        // Segments are few and large, and where a split is due is chance; but it would be several
        // times as much if they filled one after the other.
        assert!(ratio < 1.5, "{kind}: {ratio}");
    }
}
