//! Panics in the middle of a change, as caused by a bug, and errors after it, as caused by damage.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::{self, Kept, Random, value_of};
use evermap::{Clock, Edit, Error, ErrorKind, Map, OrderedUpdates};
use evermap_pm::sim::Sim;

type State = BTreeMap<Vec<u8>, Vec<u8>>;

/// A change, of a store or of a model of it.
struct Step {
    kind: u64,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Step {
    fn draw(random: &mut Random) -> Step {
        let key = random.below(3_000).to_le_bytes().to_vec();
        let value = value_of(&key, random.next(), random.below(400) as usize);
        Step { kind: random.below(12), key, value }
    }

    fn run(&self, store: &Map<Sim>) -> evermap::Result<()> {
        match self.kind {
            0 | 1 => store.delete(&self.key).map(drop),
            2 => store.modify(&self.key, |_| Edit::Value(self.value.clone())).map(drop),
            3 => store.touch(&self.key, common::at(1)).map(drop),
            4 if self.key[0] == 7 => store.clear(),
            _ => store.put(&self.key, &self.value),
        }
    }

    fn apply(&self, state: &mut State) {
        match self.kind {
            0 | 1 | 3 => drop(state.remove(&self.key)),
            4 if self.key[0] == 7 => state.clear(),
            _ => drop(state.insert(self.key.clone(), self.value.clone())),
        }
    }
}

fn contents(store: &Map<Sim>) -> State {
    store.iter().map(|pair| pair.unwrap()).collect()
}

/// After a panic the store reports that it is poisoned, or continues to work. When it is opened
/// again, it has all of the change or nothing.
#[test]
fn a_panic_in_the_middle_of_a_change_is_recovered_by_reopening() {
    let memory = Kept::new(64 << 20);
    let options = common::options().capacity(64 << 20).extent_size(64 << 10).seed(3);
    let mut random = Random::new(3);
    let mut state = State::new();
    let (mut poisoned, mut panics) = (0, 0);
    let mut store = memory.open(&options).unwrap();
    for round in 0..400 {
        for _ in 0..random.below(60) {
            let step = Step::draw(&mut random);
            step.run(&store).unwrap();
            step.apply(&mut state);
        }
        let step = Step::draw(&mut random);
        memory.panic_at_flush(random.below(8) as i64);
        let run = catch_unwind(AssertUnwindSafe(|| step.run(&store)));
        if !memory.cancel_panic() {
            run.unwrap().unwrap();
            step.apply(&mut state);
            continue;
        }
        panics += 1;
        assert!(run.is_err());
        // No operation waits for a lock that the panic has left.
        match store.put(&step.key, &step.value) {
            Err(error) => {
                assert!(error.kind() == ErrorKind::Poisoned, "{error}");
                assert!(store.db().clone().close().is_err(), "it must not be closed as clean");
                poisoned += 1;
            }
            Ok(()) => {
                let key = step.key.clone();
                Step { kind: 5, key, value: step.value.clone() }.apply(&mut state);
            }
        }
        let _ = store.get(&step.key);
        drop(store);
        store = memory.open(&options).unwrap();
        let found = contents(&store);
        if found != state {
            step.apply(&mut state);
            assert!(found == state, "round {round}: neither before nor after the change");
        }
        // Sometimes nothing is swept between two panics.
        if round % 4 != 0 {
            store.db().recover().unwrap();
        }
        if round % 4 == 1 {
            let report = store.db().check(true).unwrap();
            assert!(report.is_sound(), "{report}");
        }
    }
    assert!(panics > 60 && poisoned > 30, "{panics} panics, {poisoned} poisoned");
}

/// A process dies when it has stored an expiry, before it has flushed it. The next one flushes it
/// before it shows it, because a power loss could take it back otherwise.
#[test]
fn an_expiry_that_a_dead_process_has_not_flushed_is_flushed_before_it_is_shown() {
    const FAR: u64 = 4_000_000_000;
    let memory = Kept::new(16 << 20);
    let options = common::options().capacity(16 << 20).extent_size(64 << 10);
    let map = memory.open(&options).unwrap();
    map.put(b"key", b"value").unwrap();
    memory.panic_at_flush(0);
    assert!(catch_unwind(AssertUnwindSafe(|| map.touch(b"key", common::at(FAR)))).is_err());
    drop(map);
    let open = || {
        let map = memory.open(&options).unwrap();
        map.db().recover().unwrap();
        map
    };
    let expiry = |map: &Map<Sim>| {
        map.get_with(b"key", |item| item.expires_at().map(common::seconds)).unwrap()
    };
    let map = open();
    memory.panic_at_flush(0);
    let shown = catch_unwind(AssertUnwindSafe(|| expiry(&map)));
    assert!(memory.cancel_panic() && shown.is_err(), "shown without a flush");
    drop(map);
    let map = open();
    assert_eq!(expiry(&map), Some(Some(FAR)));
    // What is known to be durable is not flushed again.
    assert!(map.touch(b"key", common::at(FAR + 1)).unwrap());
    memory.panic_at_flush(0);
    assert_eq!(expiry(&map), Some(Some(FAR + 1)));
    assert!(!memory.cancel_panic());
}

/// If an index reports damage after a change, the change was made: it is counted, the old record is
/// freed, and the ordered index is updated.
#[test]
fn an_error_after_a_change_leaves_it_accounted_for() {
    let (clock, memory) = (Clock::manual(common::at(1000)), Kept::new(16 << 20));
    let options = common::options().capacity(16 << 20).extent_size(64 << 10).ordered(true);
    let options = options.ordered_updates(OrderedUpdates::Sync).clock(clock.clone());
    let store = memory.open(&options).unwrap();
    let meta = |expires_at| common::meta(0, expires_at);
    for key in [b"a", b"b", b"c"] {
        store.put(key, b"value").unwrap();
    }
    store.build_ordered(1).unwrap();
    let bytes = store.bytes().value;
    memory.fail_after_changes(true);
    let failed = |error: Option<Error>| assert!(error.is_some_and(|error| error.is_damaged()));
    failed(store.put(b"a", b"other").err());
    failed(store.set(b"d").meta(meta(2000)).put(b"new").err());
    failed(store.delete(b"b").err());
    assert!(store.touch(b"c", common::at(1)).unwrap());
    store.db().purge_if_due().unwrap();
    memory.fail_after_changes(false);
    let keys: Vec<_> = store.scan(..).unwrap().map(|pair| pair.unwrap().0).collect();
    assert_eq!(keys, [b"a", b"d"]);
    assert_eq!(store.get(b"a").unwrap().as_deref(), Some(&b"other"[..]));
    clock.set(common::at(2000));
    assert_eq!(store.db().purge_if_due().unwrap(), 1, "its expiry is known");
    assert_eq!((store.len(), store.records().exact), (1, true));
    assert_eq!(store.bytes().value, bytes / 3);
    store.put(b"b", b"value").unwrap();
    store.put(b"c", b"value").unwrap();
    let report = store.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
    store.into_db().close().unwrap();
    let store = memory.open(&options).unwrap();
    let report = store.db().check(true).unwrap();
    assert!(report.is_sound() && report.records == 3, "{report}");
}
