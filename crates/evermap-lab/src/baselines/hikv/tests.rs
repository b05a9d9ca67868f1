//! Every variant beside a model, with concurrent threads, on every medium, and counted.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use evermap_pm::medium::{Counted, FlushKind, Mapped, Pages, Speed};
use evermap_pm::sim::rng::Rng;

use super::*;
use crate::driver::{Config, Plan, Quiet};
use crate::experiments::drive;
use crate::subject::MediumKind;
use crate::testing::{Kept, media_everywhere, mixes};
use crate::workload::{Blend, KeyValueLengths, Phase, Zipf};

const VARIANTS: [Variant; 5] = [HIKV, FIXED, SYNC, PAR, WAL];

fn memory() -> Mapped {
    Mapped::anonymous(1 << 30, Pages::Base, FlushKind::Process).unwrap()
}

fn store(variant: Variant) -> HiKv<Mapped> {
    HiKv::create(variant, memory(), 10_000, Place::default(), |_| None).unwrap()
}

/// Returns a key of 8 to 23 bytes; keys sort as their numbers.
fn key(number: u64) -> Vec<u8> {
    let mut key = number.to_be_bytes().to_vec();
    key.extend(std::iter::repeat_n(b'k', number as usize % 16));
    key
}

/// Returns a value of which a part, or another key's value, is no value of this key.
fn value(number: u64, version: u64) -> Vec<u8> {
    let words = 2 + (number ^ version) % 30;
    (0..words)
        .flat_map(|at| (number << 32 | version).wrapping_add(at << 56).to_le_bytes())
        .collect()
}

/// Returns the version in a value of this key.
fn version(number: u64, bytes: &[u8]) -> u64 {
    let first = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(first >> 32, number, "another key's value");
    let version = first & 0xffff_ffff;
    assert_eq!(bytes, value(number, version), "torn, or not there any more");
    version
}

fn number(key: &[u8]) -> u64 {
    let number = u64::from_be_bytes(key[..8].try_into().unwrap());
    assert_eq!(key, self::key(number));
    number
}

fn scanned(store: &HiKv<Mapped>, from: &[u8], count: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut seen = Vec::new();
    let reader = store.reader().unwrap();
    store
        .scan(from, count, &reader, &mut |key, value| seen.push((key.to_vec(), value.to_vec())))
        .unwrap();
    seen
}

fn got(store: &HiKv<Mapped>, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    store.get(key, &store.reader().unwrap(), &mut value).unwrap().then_some(value)
}

/// One thread: every answer and every scan immediately equals that of a standard map.
#[test]
fn every_variant_is_a_sorted_map() {
    for variant in VARIANTS {
        let store = store(variant);
        let (mut model, mut rng) = (BTreeMap::new(), Rng::new(7));
        for round in 0..10_000u64 {
            let chosen = rng.below(1000);
            let (key, value) = (key(chosen), value(chosen, round));
            match rng.below(10) {
                0..5 => {
                    let found = store.put(&key, &value).unwrap();
                    assert_eq!(found, presence(model.insert(key, value).is_some()));
                }
                5..7 => {
                    let found = store.remove(&key).unwrap();
                    assert_eq!(found, presence(model.remove(&key).is_some()));
                }
                7..9 => assert_eq!(got(&store, &key).as_ref(), model.get(&key)),
                _ => {
                    let count = rng.below(50) as usize;
                    let right: Vec<_> = model.range(key.clone()..).take(count).collect();
                    let seen = scanned(&store, &key, count);
                    assert!(seen.iter().map(|(key, value)| (key, value)).eq(right));
                }
            }
        }
        assert!(scanned(&store, b"", usize::MAX).into_iter().eq(model.clone()), "{variant:?}");
        assert_eq!(store.size().unwrap().len, Some(model.len() as u64));
    }
}

/// A thread finds what it has put in its next scan, whatever the others do. Keys that stay are
/// shown exactly once and in order, and no retired item is shown. Writers share their keys, and the
/// queues are tiny beside what they send.
#[test]
fn scans_beside_writers_show_what_was_acknowledged() {
    const KEYS: u64 = 600;
    for variant in VARIANTS {
        let store = store(variant);
        // Every third key stays; the others are written and removed by all threads.
        for number in (0..KEYS).step_by(3) {
            store.put(&key(number), &value(number, 0)).unwrap();
        }
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (1..=3u64)
                .map(|writer| {
                    let store = &store;
                    scope.spawn(move || {
                        let mut rng = Rng::new(writer);
                        // Only this writer puts versions that are its number modulo 4.
                        for round in 0..1500 {
                            let number = rng.below(KEYS);
                            let written = 4 * round + writer;
                            let stays = number.is_multiple_of(3);
                            if stays || rng.below(3) > 0 {
                                store.put(&key(number), &value(number, written)).unwrap();
                            } else {
                                store.remove(&key(number)).unwrap();
                            }
                            if round % 8 == 0 && stays {
                                let (found, value) = scanned(store, &key(number), 1).remove(0);
                                assert_eq!(self::number(&found), number);
                                let found = version(number, &value);
                                assert!(found == written || found % 4 != writer, "stale");
                            }
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    let seen = scanned(&store, b"", usize::MAX);
                    assert!(seen.windows(2).all(|two| two[0].0 < two[1].0));
                    for (key, value) in &seen {
                        version(number(key), value);
                    }
                    let stay = seen.iter().map(|(key, _)| number(key)).filter(|n| n % 3 == 0);
                    assert!(stay.eq((0..KEYS).step_by(3)), "{variant:?}");
                }
            });
            let ended = writers.into_iter().map(|writer| writer.join());
            let ended: Vec<_> = ended.collect();
            over.store(true, Relaxed);
            ended.into_iter().for_each(|writer| writer.unwrap());
        });
        let all = scanned(&store, b"", usize::MAX);
        let looked_up =
            (0..KEYS).filter_map(|number| Some((key(number), got(&store, &key(number))?)));
        assert!(looked_up.eq(all.iter().cloned()), "{variant:?}: hash and tree differ");
        assert_eq!(store.size().unwrap().len, Some(all.len() as u64));
    }
}

/// All items that were replaced or removed are freed, whichever thread has updated the tree.
#[test]
fn space_of_replaced_items_is_used_again() {
    for variant in VARIANTS {
        let store = store(variant);
        let allocated = || {
            store.core.settle().unwrap();
            store.core.pool.epoch().drain();
            store.size().unwrap().pm_bytes.unwrap()
        };
        let write_all = |version| {
            for number in 0..2000 {
                store.put(&key(number), &[version; 200]).unwrap();
            }
        };
        write_all(0);
        let full = allocated();
        (1..10).for_each(write_all);
        assert!(allocated() < full + full / 4, "{variant:?}");
        for number in 0..2000 {
            store.remove(&key(number)).unwrap();
        }
        // What remains are the hash index and the logs.
        assert!(allocated() + 2000 * 200 <= full, "{variant:?}: {} of {full}", allocated());
    }
}

/// The persists of the paper: two for a Put or an Update, one for a Delete; with a log one more
/// each.
#[test]
fn persists_are_those_of_the_paper() {
    const KEYS: u64 = 4000;
    for variant in VARIANTS {
        let counts = Watched::counts;
        let medium = Watched::Counted(Counted::new(memory()));
        let store = HiKv::create(variant, medium, KEYS, Place::default(), counts).unwrap();
        let fences = |change: &dyn Fn(u64)| {
            let before = store.counts().unwrap().fences;
            (0..KEYS).for_each(change);
            store.counts().unwrap().fences - before
        };
        let put = |number| {
            store.put(&key(number), &[7; 256]).unwrap();
        };
        let logged = if variant.log { KEYS } else { 0 };
        // The heap persists when it opens an extent, and 64 chained buckets are zeroed with one
        // persist.
        let rarely = KEYS / 100;
        let inserting = fences(&put) - logged;
        assert!((2 * KEYS..2 * KEYS + rarely).contains(&inserting), "{variant:?} {inserting}");
        let updating = fences(&put) - logged;
        assert!((2 * KEYS..2 * KEYS + rarely).contains(&updating), "{variant:?} {updating}");
        let deleting = fences(&|number| {
            store.remove(&key(number)).unwrap();
        }) - logged;
        assert_eq!(deleting, KEYS, "{variant:?}");
        let looking = fences(&|number| {
            let reader = store.reader().unwrap();
            assert!(!store.get(&key(number), &reader, &mut Vec::new()).unwrap());
            store.scan(&key(number), 10, &reader, &mut |_, _| {}).unwrap();
        });
        assert_eq!(looking, 0);
    }
}

#[test]
fn what_cannot_be_is_explained_and_changes_nothing() {
    let setup = Setup::new(MediumKind::Process, None, Pages::Base, 10, None).unwrap();
    let kept = Setup { file: File::New("/tmp/nowhere".into()), ..setup };
    for entry in ENTRIES {
        let error = entry.build(&kept).err().unwrap().to_string();
        assert!(error.contains("does not recover"), "{error}");
    }
    for variant in VARIANTS {
        let store = store(variant);
        let long = vec![b'x'; KEY_MAX + 1];
        let error = store.put(&long, b"value").unwrap_err().to_string();
        assert!(error.contains("too long"), "{error}");
        assert_eq!(got(&store, &long), None);
        // An unused reservation is released: removing absent keys never fills a queue.
        for number in 0..10_000 {
            assert_eq!(store.remove(&key(number)).unwrap(), Found::Absent);
        }
        store.put(&long[1..], b"value").unwrap();
        assert_eq!(scanned(&store, b"", 2), [(long[1..].to_vec(), b"value".to_vec())]);
    }
}

/// If no thread updates the tree any more, threads that wait get the reason.
#[test]
fn a_failed_backend_fails_those_who_wait_for_it() {
    let store = store(FIXED);
    let core = &store.core;
    // A change from a position that the tree never had.
    let position = item::write(&core.pool, b"key", b"value").unwrap();
    let reservation = core.backends.as_ref().unwrap().reserve(0, &core.helpers).unwrap();
    reservation.send(Request { old: position, new: position });
    let error = core.settle().unwrap_err().to_string();
    assert!(error.contains("in another order"), "{error}");
    let full = (0..).find_map(|number| store.put(&key(number), b"value").err());
    assert!(full.unwrap().to_string().contains("in another order"));
}

fn config(medium: MediumKind, plan: Plan) -> Config {
    Config {
        indexes: ENTRIES.map(|entry| entry.name.to_owned()).to_vec(),
        keys: 800,
        threads: 2,
        rounds: 1,
        medium,
        speed: Speed { persist_ns: 50, ..Speed::CUSTOMARY },
        quiet: Quiet::NOT_NEEDED,
        limits: false,
        latency: false,
        counts: false,
        plan,
        lengths: Some(KeyValueLengths {
            keys: "8-40".parse().unwrap(),
            values: "8-300".parse().unwrap(),
        }),
        ..Config::default()
    }
}

#[test]
fn variants_pass_all_phases_on_every_medium_and_leave_no_file() {
    let location = std::env::temp_dir().join(format!("lab-hikv-{}", std::process::id()));
    std::fs::create_dir(&location).unwrap();
    for medium in media_everywhere() {
        let phases = config(medium, Plan::Phases(Phase::ALL.to_vec()));
        let speed = Speed { read_ns: 20, ..phases.speed };
        let config = Config { location: Some(location.clone()), speed, ..phases };
        let driven = drive(&config, &mut Kept::default()).unwrap();
        assert_eq!(driven.subjects.len(), ENTRIES.len());
        for subject in &driven.subjects {
            let record = &subject.phases[0].summary;
            assert_eq!(record.medium, medium.name());
            assert!(record.load_factor.unwrap() > 0.05 && record.pm_bytes.unwrap() > 0);
            assert!(record.dram_bytes.unwrap() > 0);
        }
    }
    assert_eq!(std::fs::read_dir(&location).unwrap().count(), 0);
    std::fs::remove_dir(&location).unwrap();
}

#[test]
fn variants_pass_every_mix() {
    for mix in mixes() {
        let blend = Blend { mix, keys: mix.keys, theta: Zipf::YCSB, ops: 1500 };
        drive(&config(MediumKind::Dram, Plan::Blend(blend)), &mut Kept::default()).unwrap();
    }
}
