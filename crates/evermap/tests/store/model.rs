//! Random operations on a store and on a model of it, with clean and unclean shutdowns in between.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::common::{self, Kept, Random, value_of};
use crate::ordered;
use evermap::cache::{CacheEdit, Marks, NewRecord};
use evermap::{Clock, Edit, Error, Map, MapOptions, Meta, Options, Outcome};
use evermap_index::testkit::tier;
use evermap_pm::sim::Sim;

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    value: Vec<u8>,
    flags: u32,
    expires_at: u64,
    marks: Marks,
    cas: u64,
}

/// The expected contents of the store.
#[derive(Default)]
struct Model {
    entries: BTreeMap<Vec<u8>, Entry>,
    flush_due: Option<u64>,
    now: u64,
    /// Every CAS id that was assigned.
    ids: std::collections::HashSet<u64>,
}

impl Model {
    /// Removes what has expired or is flushed by now.
    fn settle(&mut self) {
        if self.flush_due.is_some_and(|due| due <= self.now) {
            self.flush_due = None;
            self.entries.clear();
        }
        let now = self.now;
        self.entries.retain(|_, entry| entry.expires_at == 0 || entry.expires_at > now);
    }

    fn set(&mut self, key: &[u8], value: Vec<u8>, meta: Meta, cas: u64) {
        assert!(self.ids.insert(cas), "CAS id {cas} was assigned twice");
        let (flags, marks) = (meta.flags(), meta.marks());
        let expires_at = meta.expires_at().map_or(0, common::seconds);
        self.entries.insert(key.to_vec(), Entry { value, flags, expires_at, marks, cas });
    }

    /// Checks the outcome of storing `value` under a condition, which holds if `stores`.
    fn stored(&mut self, key: &[u8], value: Vec<u8>, meta: Meta, stores: bool, outcome: Outcome) {
        let before = self.entries.get(key).map(|entry| entry.cas);
        match (outcome, before) {
            (Outcome::Inserted { cas }, None) | (Outcome::Updated { cas }, Some(_)) if stores => {
                self.set(key, value, meta, cas);
            }
            (Outcome::Kept { cas }, Some(before)) if !stores => assert_eq!(cas, before),
            (Outcome::Absent, None) if !stores => {}
            _ => panic!("{outcome:?} with {before:?} before, stores: {stores}"),
        }
    }
}

fn key_of(random: &mut Random, keys: u64) -> Vec<u8> {
    let number = random.below(keys);
    let mut key = format!("k{number}").into_bytes();
    if number == 0 {
        key.clear();
    }
    if number % 50 == 7 {
        key.resize(300 + number as usize, b'x');
    }
    key
}

/// Asserts that every way of reading returns the contents of the model.
fn compare(store: &Map<Sim>, model: &mut Model, keys: u64) {
    model.settle();
    let mut shown = BTreeMap::new();
    store
        .for_each(|item| {
            let item = item.unwrap();
            let entry = Entry {
                value: item.value.to_vec(),
                flags: item.flags,
                expires_at: item.expires_at().map_or(0, common::seconds),
                marks: item.meta().marks(),
                cas: item.cas,
            };
            assert!(shown.insert(item.key.to_vec(), entry).is_none(), "shown twice");
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(shown, model.entries);
    assert_eq!(pages_of(store), model.entries);
    let pairs: BTreeMap<_, _> = store.iter().map(|pair| pair.unwrap()).collect();
    assert!(pairs.iter().eq(model.entries.iter().map(|(key, entry)| (key, &entry.value))));
    if store.stat().ordered.is_some() || store.stat().persistent_order.is_some() {
        let expected: Vec<_> =
            model.entries.iter().map(|(key, entry)| (key.clone(), entry.value.clone())).collect();
        ordered::assert_scans(store, &expected);
    }
    let mut random = Random::new(7);
    let asked: Vec<_> = (0..100).map(|_| key_of(&mut random, keys)).collect();
    let mut found = vec![None; asked.len()];
    store
        .get_many(&asked, |at, item| {
            found[at] = Some(item.unwrap().value.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
    for (key, found) in asked.iter().zip(found) {
        let expected = model.entries.get(key).map(|entry| entry.value.clone());
        assert_eq!(found, expected);
        assert_eq!(store.get(key).unwrap(), expected);
        assert_eq!(store.contains(key).unwrap(), expected.is_some());
        let reader = store.reader().unwrap();
        let value = reader.get(key).unwrap();
        assert_eq!(value.as_deref(), expected.as_deref());
        let value = store.get_ref(key).unwrap();
        assert_eq!(value.as_deref(), expected.as_deref());
    }
}

/// Returns what a walk through all pages shows.
fn pages_of(store: &Map<Sim>) -> BTreeMap<Vec<u8>, Entry> {
    let (mut shown, mut next) = (BTreeMap::new(), Some(0));
    while let Some(position) = next {
        next = store
            .cache()
            .find_page(position, |record| {
                let record = record.unwrap();
                let mut value = Vec::new();
                record.append_to(&mut value).unwrap();
                let entry = Entry {
                    value,
                    flags: record.flags(),
                    expires_at: record.expires_at().map_or(0, common::seconds),
                    marks: record.marks(),
                    cas: record.cas(),
                };
                assert!(shown.insert(record.key().to_vec(), entry).is_none(), "shown twice");
            })
            .unwrap();
    }
    shown
}

/// Stores several records in one call. Some keys come twice.
fn put_many(store: &Map<Sim>, model: &mut Model, random: &mut Random, keys: u64) {
    let pairs: Vec<_> = (0..random.below(80))
        .map(|_| {
            let key = key_of(random, keys);
            let len = if random.below(40) == 0 { 20_000 } else { random.below(200) as usize };
            let value = value_of(&key, random.next(), len);
            let expires_at = if random.below(4) == 0 { model.now + random.below(40) } else { 0 };
            (key, value, common::meta(random.next() as u32, expires_at))
        })
        .collect();
    let records: Vec<_> =
        pairs.iter().map(|(key, value, meta)| NewRecord { key, value, meta: *meta }).collect();
    let mut answers = 0;
    store.cache().set_many(&records, |at, stored| {
        assert_eq!(at, answers, "in their order");
        answers += 1;
        let (key, value, meta) = &pairs[at];
        model.set(key, value.clone(), *meta, stored.unwrap());
    });
    assert_eq!(answers, pairs.len());
    model.settle();
}

fn step(store: &Map<Sim>, model: &mut Model, random: &mut Random, clock: &Clock, keys: u64) {
    let key = &key_of(random, keys)[..];
    let len = if random.below(100) == 0 { 20_000 } else { random.below(200) as usize };
    let value = value_of(key, random.next(), len);
    let expires_at = if random.below(4) == 0 { model.now + random.below(40) } else { 0 };
    let marks = if random.below(3) == 0 { random.next() as u8 } else { 0 };
    let meta =
        common::meta(random.next() as u32, expires_at).with_marks(Marks::from_bits_truncate(marks));
    let expiry = meta.expires_at();
    model.settle();
    let before = model.entries.get(key).cloned();
    match random.below(16) {
        0..=2 => {
            let cas = store.set(key).meta(meta).put(&value).unwrap();
            model.set(key, value, meta, cas);
        }
        3 => {
            let old = store.set(key).meta(meta).insert(&value).unwrap();
            assert_eq!(old, before.map(|entry| entry.value));
            let cas = store.get_with(key, |item| item.cas).unwrap();
            match cas {
                Some(cas) => model.set(key, value, meta, cas),
                // It has expired already.
                None => drop(model.entries.remove(key)),
            }
        }
        4 => {
            let outcome = store.set(key).meta(meta).try_insert(&value).unwrap();
            model.stored(key, value, meta, before.is_none(), outcome);
        }
        5 => {
            let outcome = store.set(key).meta(meta).replace(&value).unwrap();
            model.stored(key, value, meta, before.is_some(), outcome);
        }
        6 => {
            let right = random.below(2) == 0;
            let cas = before.as_ref().map_or(99, |entry| entry.cas) + u64::from(!right);
            let refused = Marks::from_bits_truncate(random.below(3) as u8);
            let has = before.as_ref().map_or(Marks::NONE, |entry| entry.marks);
            let right = right && before.is_some() && !has.intersects(refused);
            let outcome = store.cache().compare_exchange(key, cas, refused, &value, meta).unwrap();
            model.stored(key, value, meta, right, outcome);
        }
        7 => {
            assert_eq!(store.delete(key).unwrap(), before.is_some());
            model.entries.remove(key);
        }
        8 => {
            let old = store.remove(key).unwrap();
            assert_eq!(old, model.entries.remove(key).map(|entry| entry.value));
        }
        9 => {
            let right = random.below(2) == 0;
            let cas = before.as_ref().map_or(99, |entry| entry.cas) + u64::from(!right);
            let expected = match &before {
                None => Outcome::Absent,
                Some(_) if right => Outcome::Removed,
                Some(entry) => Outcome::Kept { cas: entry.cas },
            };
            assert_eq!(store.remove_if(key, cas).unwrap(), expected);
            if expected == Outcome::Removed {
                model.entries.remove(key);
            }
        }
        10 | 11 => modify(store, model, key, value, meta, random.below(6)),
        12 => {
            let found =
                store.cache().get_and_touch(key, expiry, |item| item.value.to_vec()).unwrap();
            assert_eq!(found, before.as_ref().map(|entry| entry.value.clone()));
            model.entries.entry(key.to_vec()).and_modify(|entry| entry.expires_at = expires_at);
        }
        13 => {
            assert_eq!(store.touch(key, expiry).unwrap(), before.is_some());
            model.entries.entry(key.to_vec()).and_modify(|entry| entry.expires_at = expires_at);
        }
        14 if random.below(200) == 0 => {
            let at = (random.below(2) == 0).then(|| model.now + random.below(20));
            match at {
                None => store.clear().unwrap(),
                Some(at) => store.expire_all_at(common::at(at)).unwrap(),
            }
            model.flush_due = Some(at.unwrap_or(model.now));
        }
        15 if random.below(4) == 0 => put_many(store, model, random, keys),
        _ => {
            let found = store.get_with(key, |item| (item.value.to_vec(), item.flags, item.cas));
            let expected =
                before.as_ref().map(|entry| (entry.value.clone(), entry.flags, entry.cas));
            assert_eq!(found.unwrap(), expected);
        }
    }
    if random.below(10) == 0 {
        model.now += random.below(3);
        clock.set(common::at(model.now));
    }
}

fn modify(store: &Map<Sim>, model: &mut Model, key: &[u8], value: Vec<u8>, meta: Meta, how: u64) {
    let before = model.entries.get(key).cloned();
    let stored = store
        .cache()
        .modify(key, |item| {
            let item = item.map(|item| {
                let expires_at = item.expires_at().map_or(0, common::seconds);
                (item.key, item.value, item.flags, (expires_at, item.meta().marks()), item.cas)
            });
            let expected = before.as_ref().map(|entry| {
                let control = (entry.expires_at, entry.marks);
                (key, &entry.value[..], entry.flags, control, entry.cas)
            });
            assert_eq!(item, expected);
            match how {
                0 => Edit::Keep.into(),
                1 => Edit::Remove.into(),
                2 => {
                    Edit::Value([item.map_or(&b""[..], |item| item.1), &value[..]].concat()).into()
                }
                3 => CacheEdit::MarkedValue(value.clone(), meta.marks()),
                4 => CacheEdit::Mark { expiry: meta.expires_at().into(), marks: meta.marks() },
                _ => Edit::Record(value.clone(), meta).into(),
            }
        })
        .unwrap();
    match (how, before) {
        (0, Some(entry)) => assert_eq!(stored, Some(entry.cas)),
        (0 | 1 | 4, None) => assert_eq!(stored, None),
        (1, Some(_)) => {
            assert_eq!(stored, None);
            model.entries.remove(key);
        }
        (2 | 3, before) => {
            let (old, stays) = before.map_or((Vec::new(), Meta::new()), |entry| {
                let stays = common::meta(entry.flags, entry.expires_at).with_marks(entry.marks);
                (entry.value, stays)
            });
            match how {
                2 => model.set(key, [old, value].concat(), stays, stored.unwrap()),
                _ => model.set(key, value, stays.with_marks(meta.marks()), stored.unwrap()),
            }
        }
        // In place: it is the same version.
        (4, Some(mut entry)) => {
            assert_eq!(stored, Some(entry.cas));
            (entry.expires_at, entry.marks) =
                (meta.expires_at().map_or(0, common::seconds), meta.marks());
            model.entries.insert(key.to_vec(), entry);
        }
        (_, _) => model.set(key, value, meta, stored.unwrap()),
    }
}

/// How a store is shut down before it is opened again.
#[derive(Clone, Copy, PartialEq)]
enum Stop {
    Clean,
    Unclean,
    /// Unclean twice, the second time before the sweep has run.
    UncleanTwice,
}

/// The default map and this number of named ones, each with its model.
struct Maps {
    memory: Kept,
    options: Options,
    clock: Clock,
    stores: Vec<Map<Sim>>,
    models: Vec<Model>,
    keys: u64,
}

impl Maps {
    fn new(options: Options, clock: Clock, named: usize, keys: u64) -> Self {
        let model = || Model { now: 1000, ..Default::default() };
        let models = (0..=named).map(|_| model()).collect();
        let memory = Kept::new(64 << 20);
        let mut maps = Maps { memory, options, clock, stores: Vec::new(), models, keys };
        maps.open();
        maps
    }

    fn open(&mut self) {
        self.stores.clear();
        self.stores.push(self.memory.open(&self.options).unwrap());
        (1..self.models.len()).for_each(|at| self.open_map(at));
    }

    fn open_map(&mut self, at: usize) {
        let map = self.stores[0].db().map(&format!("map {at}"), MapOptions::new()).unwrap();
        self.stores.truncate(at);
        self.stores.push(map);
    }

    /// Returns the default map.
    fn first(&self) -> &Map<Sim> {
        &self.stores[0]
    }

    fn step(&mut self, random: &mut Random) {
        let at = random.below(self.stores.len() as u64) as usize;
        let model = &mut self.models[at];
        step(&self.stores[at], model, random, &self.clock, self.keys);
        let now = model.now;
        self.models.iter_mut().for_each(|model| model.now = now);
    }

    /// Drops a named map, if there are any, and creates it again.
    fn drop_one(&mut self, random: &mut Random) {
        if self.models.len() == 1 {
            return;
        }
        let at = 1 + random.below(self.models.len() as u64 - 1) as usize;
        assert!(self.first().db().drop_map(&format!("map {at}")).unwrap());
        assert!(matches!(self.stores[at].get(b"k1"), Err(Error::Dropped { .. })));
        self.models[at].entries.clear();
        self.models[at].flush_due = None;
        if random.below(2) == 0 {
            self.first().db().reclaim_dropped().unwrap();
        }
        (at..self.models.len()).for_each(|at| self.open_map(at));
    }

    fn compare(&mut self) {
        for (store, model) in self.stores.iter().zip(&mut self.models) {
            compare(store, model, self.keys);
        }
    }

    fn assert_sound(&self) {
        let report = self.first().db().check(true).unwrap();
        assert!(report.is_sound(), "{report}");
    }

    fn purge(&self) {
        self.first().db().purge().unwrap();
        for (store, model) in self.stores.iter().zip(&self.models) {
            assert_eq!(store.len(), model.entries.len() as u64);
            ordered::assert_keys_are_counted(store);
        }
    }
}

fn run(seed: u64, named: usize, keys: u64, steps: u64, rounds: u64) {
    let clock = Clock::manual(common::at(1000));
    let options =
        common::options().capacity(64 << 20).extent_size(64 << 10).seed(seed).clock(clock.clone());
    let options = ordered::in_some_way(options, seed);
    let mut random = Random::new(seed);
    let mut maps = Maps::new(options, clock, named, keys);
    for _ in 0..rounds {
        for _ in 0..random.below(steps) {
            maps.step(&mut random);
        }
        maps.compare();
        if random.below(3) == 0 {
            maps.drop_one(&mut random);
        }
        let stop = match random.below(3) {
            0 => Stop::Clean,
            1 => Stop::Unclean,
            _ => Stop::UncleanTwice,
        };
        if stop == Stop::Clean {
            // Whether or not the sweep after an earlier shutdown has run.
            maps.first().db().clone().close().unwrap();
        }
        maps.open();
        if stop == Stop::UncleanTwice {
            for _ in 0..20 {
                maps.step(&mut random);
            }
            maps.open();
        }
        if random.below(3) == 0 {
            maps.drop_one(&mut random);
        }
        if random.below(2) == 0 {
            maps.first().db().recover().unwrap();
            assert!(maps.stores.iter().all(|store| store.records().exact));
        }
        maps.compare();
        if random.below(3) == 0 {
            maps.assert_sound();
            maps.purge();
            maps.assert_sound();
        }
    }
    for (store, model) in maps.stores.iter().zip(&maps.models) {
        for key in model.entries.keys() {
            assert!(store.delete(key).unwrap());
        }
    }
    maps.first().db().purge().unwrap();
    maps.first().db().recover().unwrap();
    let report = maps.first().db().check(true).unwrap();
    assert!(report.is_sound(), "{report}");
    // The records of the catalogue.
    assert_eq!(report.records, named as u64);
    for store in &maps.stores {
        assert_eq!((store.len(), store.bytes().value), (0, 0));
    }
}

#[test]
fn few_keys_and_many_shutdowns() {
    for seed in 1..=tier().choose(4, 8) {
        run(seed, 0, 60, 400, 25);
    }
}

#[test]
fn named_maps_and_many_shutdowns() {
    for seed in 21..=tier().choose(23, 28) {
        run(seed, 3, 40, 600, 25);
    }
}

#[test]
fn many_keys_and_few_shutdowns() {
    for seed in 11..=tier().choose(11, 13) {
        run(seed, 0, tier().choose(8_000, 20_000), tier().choose(8_000, 40_000), 4);
    }
}
