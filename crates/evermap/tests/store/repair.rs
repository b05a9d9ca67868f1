//! Repair of damaged files: never a wrong value, everything that is reachable and verifies, and
//! everything else in the list.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::common::{self, Random, child};
use crate::damage::{self, Damage, NAMED, Template};
use evermap::{
    Batch, Clock, ErrorKind, Evermap, IndexKind, Map, MapOptions, OnSuspect, Options, Order,
    Repair, RepairReport,
};
use evermap_index::testkit::tier;

/// The offsets of words of the header: part of the format.
const STATE: usize = 8192;
const FLUSH_MARK: usize = 8448;
const DEFAULT_ROOT: usize = 8704;
const SAVED_HEAP: usize = 8576;
const CLEAN: &[u8] = b"CLEAN\0\0\0";

/// What is known of a record beside its value, which shows its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    flags: u32,
    cas: u64,
    expires_at: Option<u64>,
}

/// Keys of maps, of which the default one has an empty name.
type Contents = BTreeMap<(String, Vec<u8>), Known>;

/// Returns all records that can be read.
fn contents(db: &Evermap) -> Contents {
    let mut contents = BTreeMap::new();
    let names = db.maps().unwrap_or_default();
    let named = names.iter().filter_map(|name| db.map(name, MapOptions::new()).ok());
    for map in std::iter::once(db.default_map()).chain(named) {
        let name = map.name().unwrap_or_default().to_owned();
        map.for_each(|item| {
            if let Ok(item) = item {
                assert!(damage::was_stored(&item), "wrong value: {item:?}");
                let (flags, cas) = (item.flags, item.cas);
                let expires_at = item.expires_at().map(common::seconds);
                contents
                    .insert((name.clone(), item.key.to_vec()), Known { flags, cas, expires_at });
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    }
    contents
}

/// The files of a repair.
struct Files {
    damaged: PathBuf,
    new: PathBuf,
    lost: PathBuf,
}

impl Files {
    fn beside(damaged: &Path) -> Self {
        let (new, lost) = (damaged.with_extension("new"), damaged.with_extension("lost"));
        Files { damaged: damaged.to_owned(), new, lost }
    }

    /// Repairs, and asserts that the damaged file is as it was, and that there is nothing else.
    fn repair(&self, options: &Options) -> evermap::Result<RepairReport> {
        let before = std::fs::read(&self.damaged).unwrap();
        let new = self.new.clone();
        let options = options.clone().on_progress(move |_, _| assert!(!new.exists()));
        let repair = Repair::of(&self.damaged, options).lost_and_found(&self.lost);
        let listed = repair.list();
        assert!(!self.new.exists() && !self.lost.exists(), "a list makes nothing");
        let made = repair.make(&self.new);
        assert_eq!(std::fs::read(&self.damaged).unwrap(), before, "the damaged file has changed");
        let files = std::fs::read_dir(self.damaged.parent().unwrap()).unwrap().count();
        assert_eq!(files, if made.is_ok() { 3 } else { 1 });
        let made = made?;
        assert_eq!(listed?.to_string(), made.to_string());
        Ok(made)
    }

    fn remove(&self) {
        std::fs::remove_file(&self.new).unwrap();
        std::fs::remove_file(&self.lost).unwrap();
    }
}

fn read_only(options: &Options) -> Options {
    options.clone().read_only(true).on_suspect(OnSuspect::Salvage)
}

/// Returns what is in a store that a repair has made, which must be sound.
fn made(path: &Path, options: &Options) -> Contents {
    let db = Evermap::open(path, options.clone().create(false)).unwrap();
    common::assert_sound(&db.default_map());
    let contents = contents(&db);
    db.close().unwrap();
    contents
}

/// The results of the damaged files.
#[derive(Default)]
struct Tally {
    cases: u64,
    refused: u64,
    complete: u64,
    /// Records that there were, that are in the new store, and that are in the other one.
    records: u64,
    back: u64,
    found: u64,
    /// Records in the other store that are not current.
    outdated: u64,
}

impl Tally {
    fn try_out(&mut self, files: &Files, options: &Options, expected: &Contents) {
        self.cases += 1;
        let salvaged = Evermap::open(&files.damaged, read_only(options));
        let reachable = salvaged.map(|db| contents(&db)).unwrap_or_default();
        let report = match files.repair(options) {
            Ok(report) => report,
            Err(error) => {
                // An empty file is none.
                let kinds = [ErrorKind::Damaged, ErrorKind::NotAStore, ErrorKind::NotFound];
                assert!(kinds.contains(&error.kind()), "{error}");
                self.refused += 1;
                return;
            }
        };
        let (back, found) = (made(&files.new, options), made(&files.lost, options));
        files.remove();
        for (key, known) in &back {
            assert_eq!(Some(known), expected.get(key), "wrong, or outdated: {key:?}");
        }
        for (key, known) in &found {
            self.outdated += u64::from(expected.get(key) != Some(known));
        }
        for (key, known) in &reachable {
            let is_there = back.contains_key(key) || found.get(key) == Some(known);
            // A salvaging opening may show what was replaced.
            assert!(is_there || expected.get(key) != Some(known), "{key:?} was lost");
        }
        let lost = expected.keys().filter(|key| !back.contains_key(*key)).count();
        assert!(lost == 0 || !report.is_complete(), "{lost} records are lost, and not in the list");
        assert_eq!(report.records(), back.len() as u64);
        let uncertain: u64 = report.maps.iter().map(|map| map.uncertain).sum();
        assert_eq!(uncertain, found.len() as u64);
        self.complete += u64::from(report.is_complete());
        self.records += expected.len() as u64;
        self.back += back.len() as u64;
        let is_found =
            |key: &&(_, _)| !back.contains_key(*key) && found.get(*key) == expected.get(*key);
        self.found += expected.keys().filter(is_found).count() as u64;
    }
}

/// Returns damages of all kinds: about as many as this, or those whose names begin so.
fn damages(template: &Template, most: usize, wanted: &str) -> Vec<Damage> {
    let lists = [damage::list, damage::mangle_list, damage::extreme_list, damage::refer_list];
    let sample = |list: Vec<Damage>| {
        let step = if wanted.is_empty() { list.len().div_ceil(most / 4) } else { 1 };
        list.into_iter().step_by(step.max(1))
    };
    let mut all: Vec<_> =
        lists.into_iter().flat_map(|list| sample(list(template, wanted))).collect();
    if wanted.is_empty() {
        all.extend([damage::CATALOGUE, DEFAULT_ROOT, FLUSH_MARK].map(|at| Damage::Word(at, 1)));
        all.push(Damage::Zeroed(damage::ROOTS));
        let ages = 0..template.older.len();
        all.extend(ages.map(|age| Damage::OldPage(damage::ROOTS, age)));
    }
    all
}

#[test]
fn repair_damaged_files() {
    let Some(argument) = child::asked_for("repair::repair_damaged_files") else { return };
    damage::limit_memory();
    let parts: Vec<_> = argument.split('\n').collect();
    let (path, stop, index) = (PathBuf::from(parts[0]), parts[1], parts[2].parse().unwrap());
    let (template, options) = (damage::build(&path, stop, index), damage::options(index, stop));
    let db = Evermap::open(&path, read_only(&options)).unwrap();
    let expected = contents(&db);
    db.close().unwrap();
    assert!(expected.len() > 250);
    let (files, mut tally) = (Files::beside(&path), Tally::default());
    let mut out = std::io::stdout().lock();
    for damage in damages(&template, parts[3].parse().unwrap(), parts[4]) {
        writeln!(out, "case {damage}").unwrap();
        damage::rewrite(&path, &damage.apply(&template));
        tally.try_out(&files, &options, &expected);
    }
    let percent = |part: u64| 100.0 * part as f64 / tally.records.max(1) as f64;
    writeln!(
        out,
        "{} damaged files: {} refused, {} complete; {:.2} % of the records are back, {:.2} % in \
         the other store, with {} that are not current",
        tally.cases,
        tally.refused,
        tally.complete,
        percent(tally.back),
        percent(tally.found),
        tally.outdated,
    )
    .unwrap();
    if parts[4].is_empty() {
        assert!((tally.back + tally.found) * 10 > tally.records * 9, "most records come back");
        assert!(tally.refused * 10 < tally.cases && tally.found > 0);
    }
}

fn supervise(stop: &str) {
    for index in common::campaign_indexes() {
        let most = if index == common::index() { tier().choose(16, 370) } else { 40 };
        damage::supervise_part("repair::repair_damaged_files", stop, index, &most.to_string());
    }
}

#[test]
fn repair_after_a_clean_shutdown() {
    supervise("clean");
}

#[test]
fn repair_after_a_clean_shutdown_with_an_order_in_the_file() {
    supervise("clean, order in file");
}

#[test]
fn repair_after_an_unclean_shutdown() {
    supervise("unclean");
}

/// A store with two maps in a folder of its own, and its bytes.
struct Whole {
    _directory: tempfile::TempDir,
    files: Files,
    options: Options,
    bytes: Vec<u8>,
    contents: Contents,
}

const KEYS: u64 = 300;

impl Whole {
    fn new(order: Order) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("map");
        let clock = Clock::manual(common::at(1000));
        let options = common::small(1 << 20).clock(clock).ordered(order);
        let db = Evermap::open(&path, options.clone()).unwrap();
        fill(&db.default_map());
        fill(&db.map(NAMED, MapOptions::new().index(IndexKind::Clht)).unwrap());
        db.map("empty", MapOptions::new()).unwrap();
        let contents = contents(&db);
        db.close().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let files = Files::beside(&path);
        Whole { _directory: directory, files, options, bytes, contents }
    }

    /// Damages the file, and repairs it.
    fn repair(&self, damage: impl FnOnce(&mut Vec<u8>)) -> (RepairReport, Contents, Contents) {
        let mut bytes = self.bytes.clone();
        damage(&mut bytes);
        damage::rewrite(&self.files.damaged, &bytes);
        let report = self.files.repair(&self.options).unwrap();
        let made = [&self.files.new, &self.files.lost].map(|path| made(path, &self.options));
        let [back, found] = made;
        (report, back, found)
    }

    fn of(&self, map: &str) -> Contents {
        self.contents.clone().into_iter().filter(|((name, _), _)| name == map).collect()
    }
}

fn fill(map: &Map) {
    for number in 0..KEYS {
        let key = format!("key {number}");
        let meta = common::meta(number as u32, if number % 3 == 0 { 5000 } else { 0 });
        map.set(&key).meta(meta).put(common::value_of(key.as_bytes(), number, 60)).unwrap();
    }
    let mut batch = Batch::new();
    for number in (0..KEYS).step_by(10) {
        batch.remove(format!("key {number}").as_bytes());
    }
    assert!(map.apply(&batch).unwrap().is_done());
}

#[test]
fn what_is_whole_stays_what_it_was() {
    for order in [Order::None, Order::Persistent] {
        let whole = Whole::new(order);
        let (report, back, found) = whole.repair(|_| {});
        assert!(report.is_complete(), "{report}");
        assert_eq!((&back, found.len()), (&whole.contents, 0));
        let db = Evermap::open(&whole.files.new, whole.options.clone()).unwrap();
        assert_eq!(db.maps().unwrap(), ["empty", NAMED]);
        let named = db.map(NAMED, MapOptions::new().index(IndexKind::Clht)).unwrap();
        assert_eq!(named.stat().persistent_order.is_some(), order == Order::Persistent);
        assert!(db.default_map().stat().index == common::index());
        let newest = whole.contents.values().map(|known| known.cas).max().unwrap();
        assert!(named.set("new").put("value").unwrap() > newest);
        drop(named);
        db.close().unwrap();
    }
}

#[test]
fn a_lost_root_of_the_default_map_is_found_again() {
    let whole = Whole::new(Order::None);
    let (report, back, _) = whole.repair(|bytes| bytes[DEFAULT_ROOT] ^= 8);
    assert!(!report.is_complete() && back == whole.contents, "{report}");
}

#[test]
fn without_the_catalogue_named_maps_are_uncertain() {
    let whole = Whole::new(Order::None);
    let (report, back, found) = whole.repair(|bytes| bytes[damage::CATALOGUE] ^= 8);
    assert_eq!((&back, &found), (&whole.of(""), &whole.of(NAMED)), "{report}");
}

#[test]
fn without_the_header_everything_is_uncertain() {
    let whole = Whole::new(Order::None);
    let zero = |bytes: &mut Vec<u8>| bytes[damage::ROOTS..][..4096].fill(0);
    let (report, back, found) = whole.repair(zero);
    assert_eq!((back.len(), &found), (0, &whole.contents), "{report}");
}

#[test]
fn what_was_flushed_does_not_come_back() {
    let whole = Whole::new(Order::None);
    let path = &whole.files.damaged;
    let flushed = |clock: &Clock| {
        let map = common::open_file(path, whole.options.clone().clock(clock.clone())).unwrap();
        map.set("late").flags(7).put(common::value_of(b"late", 7, 30)).unwrap();
        map.expire_all_at(common::at(2000)).unwrap();
        map.into_db().close().unwrap();
        std::fs::read(path).unwrap()
    };
    let bytes = flushed(&Clock::manual(common::at(1000)));
    let repair = |bytes: &[u8], seconds| {
        damage::rewrite(path, bytes);
        let options = whole.options.clone().clock(Clock::manual(common::at(seconds)));
        let report = whole.files.repair(&options).unwrap();
        let made = [&whole.files.new, &whole.files.lost].map(|path| made(path, &options));
        let late =
            common::open_file(&whole.files.new, options.clock(Clock::manual(common::at(2000))));
        assert!(!late.unwrap().contains("late").unwrap(), "the flush is still due");
        whole.files.remove();
        (report, made)
    };
    let named = whole.of(NAMED).len();
    let (_, [early, _]) = repair(&bytes, 1500);
    assert_eq!(early.len(), whole.contents.len() + 1);
    let (_, [late, found]) = repair(&bytes, 2500);
    assert_eq!((late.len(), found.len()), (named, 0));
    let mut damaged = bytes.clone();
    damaged[FLUSH_MARK] ^= 1;
    let (report, [back, found]) = repair(&damaged, 1500);
    assert_eq!((back.len(), found.len()), (named, whole.of("").len() + 1), "{report}");
}

/// The flush mark in a header of an earlier opening may be outdated.
#[test]
fn with_a_header_of_an_earlier_opening_the_default_map_is_uncertain() {
    let whole = Whole::new(Order::None);
    Evermap::open(&whole.files.damaged, whole.options.clone()).unwrap().close().unwrap();
    let mut later = std::fs::read(&whole.files.damaged).unwrap();
    later[damage::ROOTS..][..4096].copy_from_slice(&whole.bytes[damage::ROOTS..][..4096]);
    let (report, back, found) = whole.repair(|bytes| *bytes = later);
    assert_eq!((&back, &found), (&whole.of(NAMED), &whole.of("")), "{report}");
}

/// An index that is older than the file leads to a block that was free when the file was closed.
#[test]
fn what_was_removed_before_the_last_shutdown_does_not_come_back() {
    let whole = Whole::new(Order::None);
    let map = common::open_file(&whole.files.damaged, whole.options.clone()).unwrap();
    assert!(map.delete("key 1").unwrap());
    map.into_db().close().unwrap();
    let mut later = std::fs::read(&whole.files.damaged).unwrap();
    let word = |at: usize| u64::from_le_bytes(*later[at..].first_chunk().unwrap()) as usize;
    let saved = word(SAVED_HEAP)..word(SAVED_HEAP) + word(SAVED_HEAP + 8);
    for page in (0x4000..later.len().min(whole.bytes.len())).step_by(4096) {
        if page + 4096 <= saved.start || page >= saved.end {
            later[page..][..4096].copy_from_slice(&whole.bytes[page..][..4096]);
        }
    }
    let mut expected = whole.contents.clone();
    let key = (String::new(), b"key 1".to_vec());
    expected.remove(&key).unwrap();
    let (report, back, found) = whole.repair(|bytes| *bytes = later);
    assert_eq!((&back, found.len()), (&expected, 0), "{report}");
    assert!(report.lost.iter().any(|part| part.why.contains("was free")), "{report}");
}

/// The control word of a live record that never expires: part of the format.
const LIVE: u64 = 0xc66d_2b00_0000_0000;

/// A process that is killed may leave records without the tombstones that they were about to get.
#[test]
fn what_lacks_a_tombstone_is_uncertain_or_older() {
    let whole = Whole::new(Order::None);
    let map = common::open_file(&whole.files.damaged, whole.options.clone()).unwrap();
    map.set("replaced").flags(1).put(common::value_of(b"replaced", 1, 40)).unwrap();
    map.set("replaced").flags(2).put(common::value_of(b"replaced", 2, 40)).unwrap();
    map.set("removed").flags(3).put(common::value_of(b"removed", 3, 40)).unwrap();
    assert!(map.delete("removed").unwrap());
    let mut killed = std::fs::read(&whole.files.damaged).unwrap();
    map.into_db().close().unwrap();
    let mut revived = 0;
    for at in (0x4000..killed.len() - 64).step_by(16) {
        let begins = |key: &[u8], version: u8| {
            let value = &killed[at + 32 + key.len()..];
            killed[at + 32..].starts_with(key)
                && value.starts_with(key)
                && value[key.len()..][..8] == [version, 0, 0, 0, 0, 0, 0, 0]
        };
        if begins(b"replaced", 1) || begins(b"removed", 3) {
            killed[at..][..8].copy_from_slice(&LIVE.to_le_bytes());
            revived += 1;
        }
    }
    assert_eq!(revived, 2);
    let (report, mut back, found) = whole.repair(|bytes| *bytes = killed);
    let replaced = back.remove(&(String::new(), b"replaced".to_vec())).unwrap();
    assert_eq!((replaced.flags, &back), (2, &whole.contents));
    let found: Vec<_> = found.into_iter().map(|(key, known)| (key.1, known.flags)).collect();
    assert_eq!(found, [(b"removed".to_vec(), 3)], "{report}");
}

#[test]
fn refusals_leave_nothing_behind() {
    let whole = Whole::new(Order::None);
    let Files { damaged, new, lost } = &whole.files;
    let repair = Repair::of(damaged, whole.options.clone());
    let refused = |repair: &Repair, to: &Path, why: &str| {
        let error = repair.make(to).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        assert_eq!(std::fs::read(damaged).unwrap(), whole.bytes);
        assert!(!new.exists() && !lost.exists());
    };
    refused(&repair, damaged, "there is a file of this name");
    refused(&repair.clone().lost_and_found(damaged), new, "there is a file of this name");
    refused(&repair.clone().lost_and_found(new), new, "exists");
    let missing = Repair::of(damaged.with_extension("none"), Options::new());
    assert_eq!(missing.make(new).unwrap_err().kind(), ErrorKind::NotFound);
    let db = Evermap::open(damaged, whole.options.clone()).unwrap();
    let error = repair.make(new).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    db.close().unwrap();
    for bytes in [&b""[..], b"EVERMAP\0", &[0; 20_000]] {
        std::fs::write(damaged, bytes).unwrap();
        repair.make(new).unwrap_err();
        assert_eq!(std::fs::read(damaged).unwrap(), bytes);
    }
    assert_eq!(std::fs::read_dir(damaged.parent().unwrap()).unwrap().count(), 1);
}

/// A check that has found problems leaves no file that counts as closed without any.
#[test]
fn a_file_with_problems_is_not_closed_as_clean() {
    let whole = Whole::new(Order::None);
    let (mut random, mut found) = (Random::new(5), 0);
    for _ in 0..tier().choose(60, 1000) {
        let mut bytes = whole.bytes.clone();
        let at = random.below(bytes.len() as u64 / 8) as usize * 8;
        let len = [8, 64, 4096][random.below(3) as usize].min(bytes.len() - at);
        bytes[at..at + len].fill(0);
        damage::rewrite(&whole.files.damaged, &bytes);
        let salvage = whole.options.clone().on_suspect(OnSuspect::Salvage);
        let Ok(db) = Evermap::open(&whole.files.damaged, salvage) else { continue };
        let report = db.check(true).unwrap();
        db.close().unwrap();
        if report.is_sound() {
            continue;
        }
        found += 1;
        let bytes = std::fs::read(&whole.files.damaged).unwrap();
        let is_leak = |problem: &String| problem.contains("leaked");
        // Blocks that are only leaked are found again by the sweep of the next opening.
        let sweeps = report.problems.iter().all(is_leak) && bytes[SAVED_HEAP..][..8] == [0; 8];
        assert!(bytes[STATE..][..8] != *CLEAN || sweeps, "{len} bytes at {at:#x}: {report}");
    }
    assert!(found > 10, "{found} files with problems");
}
