//! Records that cannot be read stay until their keys are put or removed, and are counted and named.

use crate::common::{self, Kept};
use evermap::{Batch, Clock, DamageMark, Edit, Error, Map, OnSuspect, Options};
use evermap_pm::Medium;
use evermap_pm::sim::Sim;

const CAPACITY: u64 = 4 << 20;
const KEYS: u32 = 400;
const NOW: u64 = 1000;

fn key_of(number: u32) -> [u8; 12] {
    *format!("key {number:08}").as_bytes().first_chunk().unwrap()
}

/// Returns the offset of the record of a key: the words before the key are its header.
fn record_at(memory: &Kept, key: &[u8; 12]) -> u64 {
    let word = u64::from_le_bytes(*key.first_chunk().unwrap());
    let rest = u32::from_le_bytes(*key.last_chunk().unwrap());
    let found = (16 << 10..memory.len())
        .step_by(8)
        .filter(|&at| memory.word(at) == word && memory.word(at + 8) as u32 == rest);
    found.map(|at| at - 32).last().expect("it is stored")
}

/// A store whose records are expired or not, in extents of which most is free.
fn sparse(options: &Options, expires_at: u64) -> (Kept, Map<Sim>) {
    let memory = Kept::new(CAPACITY);
    let store = memory.open(options).unwrap();
    for number in 0..KEYS {
        let meta = common::meta(0, expires_at);
        store.set(&key_of(number)).meta(meta).put(&[7; 200]).unwrap();
    }
    for number in (0..KEYS).filter(|number| number % 20 != 0) {
        store.delete(&key_of(number)).unwrap();
    }
    (memory, store)
}

fn assert_kept(store: &Map<Sim>, number: u32) {
    let error = store.get(&key_of(number)).unwrap_err();
    assert!(error.is_damaged(), "{error}");
    let report = store.db().check(true).unwrap();
    let name = String::from_utf8(key_of(number).to_vec()).unwrap();
    assert!(report.problems.iter().any(|problem| problem.contains(&name)), "{report}");
    let stat = store.stat();
    assert_eq!(stat.damage, DamageMark::Found);
    assert!(stat.damaged_places > 0 && stat.damage_found.iter().any(|what| what.contains(&name)));
    assert!(stat.to_string().contains(&name), "{stat}");
}

/// Of every word of the control word's kind: a bit of the expiry, of the marks, of the check.
#[test]
fn maintenance_keeps_what_it_cannot_read() {
    for bit in [0, 31, 32, 34, 36, 50] {
        for expires_at in [0, NOW + 50] {
            let clock = Clock::manual(common::at(NOW));
            let options = common::small(CAPACITY).clock(clock.clone());
            let (memory, store) = sparse(&options, expires_at);
            let at = record_at(&memory, &key_of(40));
            memory.set_word(at, memory.word(at) ^ 1 << bit);
            assert!(store.get(&key_of(40)).unwrap_err().is_damaged());
            store.db().compact().unwrap();
            clock.set(common::at(NOW + 100));
            store.db().purge().unwrap();
            store.db().purge_if_due().unwrap();
            store.db().compact().unwrap();
            assert_kept(&store, 40);
            // Not even after it was closed and swept.
            store.into_db().close().unwrap();
            let store = memory.open(&options).unwrap();
            assert!(!store.stat().clean_open, "bit {bit}: damage was found");
            store.db().recover().unwrap();
            store.db().purge().unwrap();
            assert_kept(&store, 40);
        }
    }
}

#[test]
fn eviction_keeps_what_it_cannot_read() {
    let options = common::small(CAPACITY).clock(Clock::manual(common::at(NOW)));
    let options = options.memory_limit(1 << 20).evict(true);
    let memory = Kept::new(CAPACITY);
    let store = memory.open(&options).unwrap();
    store.put(&key_of(40), &[7; 200]).unwrap();
    let at = record_at(&memory, &key_of(40));
    memory.set_word(at, memory.word(at) ^ 1);
    for number in 100..20_000 {
        store.put(&key_of(number), &[7; 200]).unwrap();
    }
    assert!(store.stat().evictions > 10_000);
    assert_kept(&store, 40);
}

#[test]
fn operations_that_change_nothing_report_what_they_cannot_read() {
    let options = common::small(CAPACITY).clock(Clock::manual(common::at(NOW)));
    let (memory, store) = sparse(&options, 0);
    let key = key_of(40);
    let at = record_at(&memory, &key);
    let sound = memory.word(at);
    memory.set_word(at, sound ^ 1);
    let refused: [(&str, &dyn Fn() -> Option<Error>); 5] = [
        ("touch", &|| store.touch(&key, common::at(5000)).err()),
        ("replace", &|| store.replace(&key, b"new").err()),
        ("remove_if", &|| store.remove_if(&key, 1).err()),
        ("modify", &|| store.modify(&key, |_| Edit::Keep).err()),
        ("add to a counter", &|| store.apply(Batch::new().add(&key, 1)).err()),
    ];
    for (what, refused) in refused {
        let error = refused().unwrap_or_else(|| panic!("{what} reports nothing"));
        assert!(error.is_damaged(), "{what}: {error}");
        assert_kept(&store, 40);
    }
    // What was wrong was only the control word.
    memory.set_word(at, sound);
    assert_eq!(store.get(&key).unwrap().as_deref(), Some(&[7; 200][..]));
}

#[test]
fn putting_or_removing_the_key_repairs_it() {
    type Repair = fn(&Map<Sim>, &[u8]);
    let repairs: [Repair; 4] = [
        |store, key| store.put(key, b"new").unwrap(),
        |store, key| assert!(!store.delete(key).unwrap()),
        |store, key| assert!(store.remove(key).unwrap().is_none()),
        |store, key| assert!(store.apply(Batch::new().put(key, b"new")).unwrap().is_done()),
    ];
    for repair in repairs {
        let options = common::small(CAPACITY).clock(Clock::manual(common::at(NOW)));
        let (memory, store) = sparse(&options, 0);
        let at = record_at(&memory, &key_of(40));
        memory.set_word(at, memory.word(at) ^ 1);
        assert_kept(&store, 40);
        repair(&store, &key_of(40));
        assert!(store.get(&key_of(40)).is_ok());
        let report = store.db().check(true).unwrap();
        assert!(report.is_sound(), "{report}");
        assert_eq!(store.stat().damage, DamageMark::None, "everything was verified");
        store.into_db().close().unwrap();
        assert!(memory.open(&options).unwrap().stat().clean_open);
    }
}

/// Each is a record of its own: as in a file that was copied while it changed.
#[test]
fn damage_in_many_places_makes_a_file_suspect() {
    let options = common::small(CAPACITY).clock(Clock::manual(common::at(NOW)));
    let memory = Kept::new(CAPACITY);
    let store = memory.open(&options).unwrap();
    (0..1000).for_each(|number| store.put(&key_of(number), &[7; 200]).unwrap());
    let raised = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let listener = raised.clone();
    store.db().on_damage(move |mark, what| listener.lock().unwrap().push((mark, what.to_owned())));
    (0..300).for_each(|number| {
        let at = record_at(&memory, &key_of(number));
        memory.set_word(at + 48, 0);
    });
    for number in 0..1000 {
        assert_eq!(store.get(&key_of(number)).is_err(), number < 300);
    }
    assert_eq!(store.stat().damage, DamageMark::Widespread);
    let marks: Vec<_> = raised.lock().unwrap().iter().map(|(mark, _)| *mark).collect();
    assert_eq!(marks, [DamageMark::Found, DamageMark::Widespread]);
    store.into_db().close().unwrap();
    let error = memory.open(&options).map(drop).unwrap_err();
    assert_eq!(error.kind(), evermap::ErrorKind::Suspect, "{error}");
    assert!(error.to_string().contains("damage was found in many places"), "{error}");
    let salvage = options.clone().on_suspect(OnSuspect::Salvage);
    let store = memory.open(&salvage).unwrap();
    assert!(store.stat().suspect);
    // Not before it is repaired.
    assert!(!store.db().check(true).unwrap().is_sound());
    (0..300).for_each(|number| assert!(store.delete(&key_of(number)).is_ok()));
    store.db().recover().unwrap();
    let report = store.db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
    store.into_db().close().unwrap();
    assert!(memory.open(&options).unwrap().stat().clean_open);
}
