//! A damaged file may cause errors and missing records, but no crash, hang or wrong value.
//!
//! Damages a store of 256 KiB in every way in a list, opens it, and uses it. By default a sample of
//! the list is tried; with `EVERMAP_DAMAGE=all` all of it (some hundred thousand files), and with
//! the beginning of the names of cases only those. The cases run in separate processes with limits
//! on memory and time, so that a crash or a hang is noticed and reported.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::common::{self, Random, child, is_value_of, value_of};
use evermap::{Batch, IndexKind, Item, Map, MapOptions, OnSuspect, Options, Order, Outcome};
use evermap_index::testkit::tier;
use evermap_pm::Medium;

const BYTES: u64 = 320 << 10;
const PAGE: usize = 4096;
const KEYS: u64 = 800;
/// A case takes milliseconds; this much means a hang, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The time of every store here, so that expiry is not mistaken for damage.
const NOW: u64 = 1000;

/// How the process ends, and whether the file has the order too.
pub(crate) fn options(index: IndexKind, stop: &str) -> Options {
    let order = match stop {
        "clean" => Order::Volatile,
        "clean, order in file" | "unclean" => Order::Persistent,
        _ => unreachable!("no such case: {stop}"),
    };
    Options::small(BYTES)
        .index(index)
        .seed(1)
        .clock(evermap::Clock::manual(common::at(NOW)))
        .ordered(order)
}

fn key_of(number: u64) -> Vec<u8> {
    let mut key = format!("key {number}").into_bytes();
    if number.is_multiple_of(97) {
        key.resize(500, b'-');
    }
    key
}

fn put(map: &Map, number: u64, version: u64) -> evermap::Result<()> {
    let key = key_of(number);
    // Most values are small; one in 300 takes several extents.
    let len = if number % 300 == 50 { 9_000 } else { 40 + version as usize % 150 };
    let expires_at = if version.is_multiple_of(3) { 5000 } else { 0 };
    let meta = common::meta(version as u32, expires_at);
    map.set(&key).meta(meta).put(&value_of(&key, version, len)).map(drop)
}

/// Returns the number of a key that [`key_of`] has returned.
fn number_of(key: &[u8]) -> u64 {
    let digits = key["key ".len()..].iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
}

/// Removes keys in all ways but `remove`, and makes changes that are refused: their records must
/// not be returned.
fn remove_in_other_ways(map: &Map, stage: u64) -> evermap::Result<()> {
    let gone = |number: u64| key_of(KEYS + 10 * stage + number);
    for number in 0..10 {
        put(map, KEYS + 10 * stage + number, 40_000 + stage)?;
    }
    let mut batch = Batch::new();
    for number in 0..5 {
        batch.remove(&gone(number));
    }
    assert!(map.apply(&batch)?.is_done());
    for number in 5..10 {
        map.touch(&gone(number), common::at(NOW))?;
    }
    map.db().purge()?;
    for number in (0..KEYS).step_by(40) {
        let key = key_of(number);
        if map.contains(&key)? {
            let refused = map.try_insert(&key, &value_of(&key, 50_000, 60))?;
            assert!(matches!(refused, Outcome::Kept { .. }));
        }
    }
    Ok(())
}

/// The name of the named map, which has the smallest kind of index.
pub(crate) const NAMED: &str = "named";
const NAMED_KEYS: u64 = 60;
/// The offset of the root slot of the catalogue.
pub(crate) const CATALOGUE: usize = ROOTS + 512 + 14 * 8;
/// The page of the roots, which include that.
pub(crate) const ROOTS: usize = 8192;

fn named(map: &Map) -> evermap::Result<Map> {
    map.db().map(NAMED, MapOptions::new().index(IndexKind::Clht))
}

/// Returns whether this was once stored: flags and value show the version.
pub(crate) fn was_stored(item: &Item<'_>) -> bool {
    is_value_of(item.key, item.value)
        && item.value[item.key.len()..].first_chunk().is_some_and(|version| {
            u64::from_le_bytes(*version) as u32 == item.flags
                && [None, Some(5000)].contains(&item.expires_at().map(common::seconds))
        })
}

/// The bytes of a store, and those at earlier times.
pub(crate) struct Template {
    pub(crate) now: Vec<u8>,
    pub(crate) older: Vec<Vec<u8>>,
}

/// One way to damage it.
#[derive(Clone, Debug)]
pub(crate) enum Damage {
    /// The word at this offset has this value.
    Word(usize, u64),
    /// The page at this offset is that of this earlier time.
    OldPage(usize, usize),
    /// The file ends here.
    End(usize),
    /// This bit of the byte at this offset is flipped.
    Flip(usize, u32),
    /// These words are exchanged.
    Swap(usize, usize),
    /// This page is all zeros.
    Zeroed(usize),
    /// The first page is a copy of the second.
    Duplicate(usize, usize),
    /// These pages are exchanged.
    Exchange(usize, usize),
    /// The first word refers to what the second refers to.
    Refer(usize, usize),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Word(at, word) => write!(f, "word {at:#x} = {word:#x}"),
            Damage::OldPage(page, age) => write!(f, "page {page:#x} of age {age}"),
            Damage::End(at) => write!(f, "ends at {at:#x}"),
            Damage::Flip(at, bit) => write!(f, "byte {at:#x} bit {bit} flipped"),
            Damage::Swap(a, b) => write!(f, "words {a:#x} and {b:#x} swapped"),
            Damage::Zeroed(page) => write!(f, "page {page:#x} zeroed"),
            Damage::Duplicate(page, from) => write!(f, "page {page:#x} like {from:#x}"),
            Damage::Exchange(a, b) => write!(f, "pages {a:#x} and {b:#x} exchanged"),
            Damage::Refer(a, b) => write!(f, "word {a:#x} refers to what {b:#x} refers to"),
        }
    }
}

impl Damage {
    pub(crate) fn apply(&self, template: &Template) -> Vec<u8> {
        let mut bytes = template.now.clone();
        match *self {
            Damage::Word(at, word) => bytes[at..at + 8].copy_from_slice(&word.to_le_bytes()),
            Damage::OldPage(at, age) => {
                let old = &template.older[age];
                bytes[at..at + PAGE].fill(0);
                if let Some(page) = old.get(at..at + PAGE) {
                    bytes[at..at + PAGE].copy_from_slice(page);
                }
            }
            Damage::End(at) => bytes.truncate(at),
            Damage::Flip(at, bit) => bytes[at] ^= 1 << bit,
            Damage::Swap(a, b) => (0..8).for_each(|i| bytes.swap(a + i, b + i)),
            Damage::Zeroed(page) => bytes[page..page + PAGE].fill(0),
            Damage::Duplicate(page, from) => bytes.copy_within(from..from + PAGE, page),
            Damage::Exchange(a, b) => (0..PAGE).for_each(|i| bytes.swap(a + i, b + i)),
            // An offset has 48 bits.
            Damage::Refer(a, b) => bytes.copy_within(b..b + 6, a),
        }
        bytes
    }
}

/// Keeps the damages whose names begin so, if any are wanted by name.
fn keep_wanted(list: &mut Vec<Damage>, wanted: &str) {
    if !["", "all"].contains(&wanted) {
        list.retain(|damage| damage.to_string().starts_with(wanted));
    }
}

/// Returns damages of pairs of words, of bits and of pages: some of each kind, or one.
pub(crate) fn mangle_list(template: &Template, wanted: &str) -> Vec<Damage> {
    let bytes = &template.now;
    let mut random = Random::new(7);
    let pages: Vec<_> = (0..bytes.len()).step_by(PAGE).collect();
    let word = |random: &mut Random| random.below(bytes.len() as u64 / 8) as usize * 8;
    let page = |random: &mut Random| pages[random.below(pages.len() as u64) as usize];
    let step = if wanted.is_empty() { tier().choose(16, 1) } else { 1 };
    // Without the roots an opening is refused, whatever the sample has besides.
    let zeroed = pages.iter().step_by(step).filter(|&&page| page != ROOTS).chain([&ROOTS]);
    let mut list: Vec<_> = zeroed.map(|&page| Damage::Zeroed(page)).collect();
    for _ in 0..if wanted.is_empty() { 15 / step } else { 1000 } {
        let (at, bit) = (word(&mut random) + random.below(8) as usize, random.below(8) as u32);
        list.push(Damage::Flip(at, bit));
        list.push(Damage::Swap(word(&mut random), word(&mut random)));
        list.push(Damage::Duplicate(page(&mut random), page(&mut random)));
        list.push(Damage::Exchange(page(&mut random), page(&mut random)));
    }
    // Only a few words lead to the named map, so one of them is always tried.
    list.push(Damage::Word(CATALOGUE, 1));
    list.retain(|damage| damage.apply(template) != *bytes);
    keep_wanted(&mut list, wanted);
    list
}

/// Returns damages to words that are not zero: to the smallest and the greatest number, to numbers
/// nearby, and in single bits; a sample or all of them, or one.
pub(crate) fn extreme_list(template: &Template, wanted: &str) -> Vec<Damage> {
    let bytes = &template.now;
    let word = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
    let mut random = Random::new(11);
    let mut list = Vec::new();
    for at in (0..bytes.len()).step_by(8).filter(|&at| word(at) != 0) {
        let before = word(at);
        let mut bit = |from: u64, to: u64| 1 << (from + random.below(to - from));
        let bits = [(0, 8), (8, 16), (16, 32), (32, 48), (48, 64)].map(|(from, to)| bit(from, to));
        let new = [0, u64::MAX, 1 << 63, before.wrapping_add(1), before.wrapping_sub(1)];
        let new = new.into_iter().chain(bits.map(|bit| before ^ bit));
        list.extend(new.filter(|&new| new != before).map(|new| Damage::Word(at, new)));
    }
    let step = match wanted {
        "" => tier().choose(1009, 61),
        "all" => 1,
        number => number.strip_prefix('/').map_or(1, |step| step.parse().unwrap()),
    };
    if !wanted.starts_with('/') {
        keep_wanted(&mut list, wanted);
    }
    list.into_iter().step_by(step).collect()
}

/// Returns damages after which a word refers to what another one refers to, which may be part of
/// another map: a sample, or one.
pub(crate) fn refer_list(template: &Template, wanted: &str) -> Vec<Damage> {
    let bytes = &template.now;
    let offset = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap()) << 16 >> 16;
    let inside = PAGE as u64 * 4..bytes.len() as u64;
    let words: Vec<_> =
        (0..bytes.len()).step_by(8).filter(|&at| inside.contains(&offset(at))).collect();
    let mut random = Random::new(13);
    let mut any = || words[random.below(words.len() as u64) as usize];
    let most = if wanted.is_empty() { tier().choose(40, 2000) } else { 100_000 };
    let mut list: Vec<_> = (0..most).map(|_| Damage::Refer(any(), any())).collect();
    list.retain(|damage| damage.apply(template) != *bytes);
    keep_wanted(&mut list, wanted);
    list
}

/// Returns damages to words, a sample of them or all, to pages and to the length, or one.
pub(crate) fn list(template: &Template, wanted: &str) -> Vec<Damage> {
    let bytes = &template.now;
    let mut random = Random::new(99);
    let word = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
    let mut list = Vec::new();
    for at in (0..bytes.len()).step_by(8) {
        let neighbour = word(if at + 8 < bytes.len() { at + 8 } else { at - 8 });
        for new in [0, u64::MAX, random.next(), neighbour] {
            if new != word(at) {
                list.push(Damage::Word(at, new));
            }
        }
    }
    let mut page_step = 1;
    if wanted.is_empty() {
        page_step = tier().choose(16, 1);
        list = list.into_iter().step_by(tier().choose(4001, 131)).collect();
        // Only a few words lead to the named map, so these are always tried.
        list.extend([1, u64::MAX].map(|new| Damage::Word(CATALOGUE, new)));
        // What the header says about the rest of the file must not be of another time.
        list.extend((0..template.older.len()).map(|age| Damage::OldPage(ROOTS, age)));
    }
    for at in (0..bytes.len()).step_by(page_step * PAGE) {
        list.extend((0..template.older.len()).map(|age| Damage::OldPage(at, age)));
        list.extend([at, at + 8, at + PAGE - 1].map(Damage::End));
    }
    keep_wanted(&mut list, wanted);
    list
}

/// Builds the store at `path` in steps; the file keeps its identity from then on.
pub(crate) fn build(path: &Path, stop: &str, index: IndexKind) -> Template {
    let mut older = Vec::new();
    for stage in 0..3u64 {
        let map = common::open_file(path, options(index, stop)).unwrap();
        for number in 0..KEYS * (stage + 1) / 3 {
            if number % (stage + 2) == 0 {
                put(&map, number, stage * 1000 + number).unwrap();
            }
        }
        for number in (0..KEYS).filter(|number| number % 7 == stage) {
            map.delete(&key_of(number)).unwrap();
        }
        remove_in_other_ways(&map, stage).unwrap();
        let named = named(&map).unwrap();
        (1..NAMED_KEYS).for_each(|number| put(&named, number, stage * 1000 + number).unwrap());
        drop(named);
        map.into_db().close().unwrap();
        older.push(std::fs::read(path).unwrap());
    }
    if stop == "unclean" {
        let mut process =
            child::start("damage::write_and_hang", format!("{}\n{index}", path.display()));
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line == "ready"));
        process.kill().unwrap();
        process.wait().unwrap();
    } else {
        older.pop();
    }
    Template { now: std::fs::read(path).unwrap(), older }
}

#[test]
fn write_and_hang() {
    let Some(argument) = child::asked_for("damage::write_and_hang") else { return };
    let (path, index) = argument.split_once('\n').unwrap();
    let map = common::open_file(path, options(index.parse().unwrap(), "unclean")).unwrap();
    (0..KEYS).step_by(9).for_each(|number| put(&map, number, 9000 + number).unwrap());
    println!("ready");
    loop {
        std::thread::park();
    }
}

/// The results of the damaged files.
#[derive(Default)]
struct Tally {
    cases: u64,
    refused: u64,
    answers: u64,
    missing: u64,
    errors: u64,
    problems: u64,
    /// Records that the named map returned, and times when it could not be opened.
    named: u64,
    unnamed: u64,
    /// Damaged files in which something is missing, and those of them that a check reported to be
    /// sound.
    lossy: u64,
    unnoticed: Vec<String>,
    /// What was shown that must not be.
    wrong: Vec<String>,
}

/// The contents of the undamaged store: the version of each key, in the default map and in the
/// named one.
#[derive(Default)]
struct Contents {
    default: BTreeMap<u64, u64>,
    named: BTreeMap<u64, u64>,
}

/// Asserts that this is the current version of its key, and not an older one, nor one that was
/// removed or refused.
fn assert_current(item: &Item<'_>, expected: &BTreeMap<u64, u64>) {
    assert!(was_stored(item), "wrong value: {item:?}");
    let current = expected.get(&number_of(item.key));
    assert_eq!(Some(&u64::from(item.flags)), current, "an earlier version has come back: {item:?}");
}

/// Looks for every key of a map in every way. Returns how many keys are missing without an error.
fn look_closely(map: &Map, keys: u64, expected: &BTreeMap<u64, u64>) -> u64 {
    let (mut missing, mut found_all) = (0, 0);
    for number in 0..keys {
        let key = key_of(number);
        match map.get_with(&key, |item| assert_current(&item, expected)) {
            Ok(found) => {
                missing += u64::from(found.is_none() && expected.contains_key(&number));
                found_all += u64::from(found.is_some());
            }
            Err(error) => assert!(error.is_damaged(), "{error}"),
        }
    }
    let keys: Vec<_> = (0..keys).map(key_of).collect();
    let mut current = |item: evermap::Result<Item<'_>>| {
        item.iter().for_each(|item| assert_current(item, expected));
        ControlFlow::Continue(())
    };
    let _ = map.get_many(&keys, |_, item| current(item));
    let _ = map.get_together(&keys, |_, item| current(item));
    map.for_each(&mut current).unwrap();
    if let Ok(mut scan) = map.scan(..) {
        let (mut shown, mut failed) = (0, 0);
        let scanned = scan.visit(|item| {
            *if item.is_ok() { &mut shown } else { &mut failed } += 1;
            current(item)
        });
        // An order in memory is built from what can be read; that in the file may be damaged alone.
        if scanned.is_ok() && failed == 0 && map.stat().persistent_order.is_some() {
            missing += found_all.saturating_sub(shown);
        }
    }
    for (key, value) in map.iter().flatten() {
        assert!(is_value_of(&key, &value) && expected.contains_key(&number_of(&key)));
    }
    missing
}

/// A key, and the kind of walk that shows it.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Shown {
    how: &'static str,
    key: Vec<u8>,
}

/// Returns what each kind of walk shows, with its version, and adds to `wrong` what is shown twice
/// or out of order.
fn everything_shown(map: &Map, wrong: &mut Vec<String>) -> BTreeMap<Shown, u32> {
    let mut shown = BTreeMap::new();
    let mut note = |how: &'static str, key: &[u8], flags: u32| {
        if shown.insert(Shown { how, key: key.to_vec() }, flags).is_some() {
            wrong.push(format!("{how} shows key {} twice", number_of(key)));
        }
    };
    map.for_each(|item| {
        item.iter().for_each(|item| note("for_each", item.key, item.flags));
        ControlFlow::Continue(())
    })
    .unwrap();
    let mut page = Some(0);
    while let Some(from) = page {
        page = map
            .cache()
            .find_page(from, |record| {
                record.iter().for_each(|record| note("find_page", record.key(), record.flags()));
            })
            .unwrap();
    }
    map.keys().flatten().for_each(|key| {
        let flags = map.get_with(&key, |item| item.flags).ok().flatten();
        note("keys", &key, flags.unwrap_or_default());
    });
    let mut before = None;
    let mut unordered = Vec::new();
    if let Ok(mut scan) = map.scan(..) {
        let _ = scan.visit(|item| {
            for item in item.iter() {
                note("scan", item.key, item.flags);
                if before.replace(item.key.to_vec()).is_some_and(|before| *before >= *item.key) {
                    unordered.push(format!("scan shows key {} late", number_of(item.key)));
                }
            }
            ControlFlow::Continue(())
        });
    }
    wrong.append(&mut unordered);
    shown
}

impl Tally {
    /// The same for the named map.
    fn look_named(&mut self, map: &Map) {
        let Ok(map) = named(map) else {
            self.unnamed += 1;
            return;
        };
        for number in 0..NAMED_KEYS {
            let shown = map.get_with(&key_of(number), |item| {
                assert!(was_stored(&item), "wrong value in the named map: {item:?}");
            });
            self.named += u64::from(matches!(shown, Ok(Some(()))));
        }
        map.for_each(|item| {
            if let Ok(item) = item {
                assert!(was_stored(&item), "wrong value in the named map: {item:?}");
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    }

    /// Reads everything; only what was once stored may be returned.
    fn look(&mut self, map: &Map, expected: &BTreeMap<u64, u64>) {
        self.look_named(map);
        for number in 0..KEYS + 100 {
            let key = key_of(number);
            match map.get_with(&key, |item| assert!(was_stored(&item), "wrong value: {item:?}")) {
                Ok(Some(())) => self.answers += 1,
                Ok(None) => self.missing += u64::from(expected.contains_key(&number)),
                Err(_) => self.errors += 1,
            }
        }
        let keys: Vec<_> = (0..KEYS).map(key_of).collect();
        let _ = map.get_many(&keys, |at, item| {
            if let Ok(item) = item {
                assert!(item.key == keys[at] && was_stored(&item), "wrong value: {item:?}");
            }
            ControlFlow::Continue(())
        });
        let mut all_were_stored = |item: evermap::Result<Item<'_>>| {
            if let Ok(item) = item {
                // Nor pairs of the catalogue, which a walk can reach if the file was cut off.
                assert!(was_stored(&item), "wrong value: {item:?}");
            }
            ControlFlow::Continue(())
        };
        map.for_each(&mut all_were_stored).unwrap();
        if let Ok(mut scan) = map.scan(..) {
            let _ = scan.visit(all_were_stored);
        }
    }

    /// Compares walks and scans with what `get` returns, and that with what was put since the
    /// damage: no key may be shown twice, none that `get` does not find, and none in a version that
    /// was replaced.
    fn compare(&mut self, map: &Map, put_since: &BTreeMap<u64, u64>, damage: &Damage) {
        let mut wrong = Vec::new();
        let version = |key: &[u8]| map.get_with(key, |item| item.flags);
        for (&number, &put) in put_since {
            match version(&key_of(number)) {
                Ok(Some(found)) if u64::from(found) != put => {
                    wrong.push(format!("get of key {number} returns {found} and not {put}"));
                }
                _ => {}
            }
        }
        let shown = everything_shown(map, &mut wrong);
        let get = |shown: &Shown| version(&shown.key).ok();
        let mut differing: Vec<_> = shown
            .iter()
            .filter_map(|(shown, flags)| Some((shown, flags, get(shown)?)))
            .filter(|(_, flags, found)| *found != Some(**flags))
            .collect();
        if !differing.is_empty() {
            // What two owners of damaged space have lost to each other is not shown again.
            let again = everything_shown(map, &mut Vec::new());
            differing.retain(|(shown, _, found)| found.is_some() || again.contains_key(shown));
        }
        wrong.extend(differing.into_iter().map(|(shown, flags, found)| {
            format!("{} shows {flags} of key {}, get {found:?}", shown.how, number_of(&shown.key))
        }));
        if let Some(first) = wrong.first() {
            self.wrong.push(format!("{damage}: {first}, and {} more", wrong.len() - 1));
        }
    }

    /// Reads a damaged file without changing it: only current versions may be returned, and missing
    /// records must be noticed.
    fn inspect(&mut self, path: &Path, options: &Options, expected: &Contents, damage: &Damage) {
        for round in 0..2 {
            let Ok(map) = common::open_file(path, options.clone()) else { return };
            let mut missing = look_closely(&map, KEYS + 100, &expected.default);
            let _ = map.db().maps();
            if let Ok(named) = named(&map) {
                missing += look_closely(&named, NAMED_KEYS, &expected.named);
            }
            let report = map.db().check(true).unwrap();
            let _ = map.space().map(|space| format!("{}{space}", map.stat()));
            if round == 0 && missing > 0 {
                self.lossy += 1;
                if report.is_sound() {
                    self.unnoticed.push(format!("{damage}: {missing} missing"));
                }
            }
            let _ = map.into_db().close();
        }
    }

    fn try_out(
        &mut self,
        path: &Path,
        options: Options,
        expected: &BTreeMap<u64, u64>,
        damage: &Damage,
    ) -> bool {
        let Ok(map) = common::open_file(path, options.clone()) else {
            self.refused += 1;
            return false;
        };
        self.look(&map, expected);
        self.compare(&map, &BTreeMap::new(), damage);
        let mut put_since = BTreeMap::new();
        for number in (0..KEYS + 100).step_by(5) {
            if put(&map, number, 20_000 + number).is_ok() {
                put_since.insert(number, 20_000 + number);
            }
        }
        let _ = map.delete(&key_of(11));
        let _ = map.touch(&key_of(12), common::at(5000));
        let _ = map.db().purge();
        let _ = map.db().compact();
        self.compare(&map, &put_since, damage);
        let report = map.db().check(true).unwrap();
        self.problems += u64::from(!report.is_sound());
        assert!(
            map.space()
                .map(|space| format!("{}{space}", map.stat()).len())
                .is_ok_and(|len| len > 100)
                || !report.is_sound()
        );
        self.look(&map, expected);
        if self.cases.is_multiple_of(2) {
            // The map is dropped, whatever is left of it, and created again.
            let _ = map.db().drop_map(NAMED);
            let _ = map.db().reclaim_dropped();
            if let Ok(named) = named(&map) {
                let _ = put(&named, 3, 30_000);
            }
            self.look(&map, expected);
        }
        let _ = map.into_db().close();
        // Opened once more: the damage must not have spread.
        if let Ok(map) = common::open_file(path, options) {
            self.look(&map, expected);
            self.compare(&map, &put_since, damage);
        }
        true
    }
}

/// Returns the contents of an undamaged store.
fn contents(path: &Path, stop: &str, index: IndexKind) -> Contents {
    let map = common::open_file(path, options(index, stop)).unwrap();
    let of = |map: &Map| {
        let version = |number: u64| map.get_with(&key_of(number), |item| item.flags).unwrap();
        let pair = |number| Some((number, u64::from(version(number)?)));
        (0..KEYS).filter_map(pair).collect()
    };
    let contents = Contents { default: of(&map), named: of(&named(&map).unwrap()) };
    map.into_db().close().unwrap();
    contents
}

pub(crate) fn rewrite(path: &Path, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    file.write_all_at(bytes, 0).unwrap();
}

/// Limits the memory of this process, so that a damaged length cannot exhaust that of the machine.
pub(crate) fn limit_memory() {
    let limit = libc::rlimit { rlim_cur: 4 << 30, rlim_max: 4 << 30 };
    // SAFETY: passes a structure that lives through the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
}

/// Tries every damage of a list.
#[test]
fn use_damaged_files() {
    static PANICKED: AtomicBool = AtomicBool::new(false);
    let Some(argument) = child::asked_for("damage::use_damaged_files") else { return };
    limit_memory();
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICKED.store(true, SeqCst);
        default(panic);
    }));
    let parts: Vec<_> = argument.split('\n').collect();
    let (path, stop, index) = (PathBuf::from(parts[0]), parts[1], parts[2].parse().unwrap());
    let template = build(&path, stop, index);
    assert!(template.now.len() as u64 <= BYTES && template.now.len() as u64 > BYTES / 2);
    let expected = contents(&path, stop, index);
    assert!(expected.default.len() > 200 && expected.named.len() > 50);
    let mut tally = Tally::default();
    let mut out = std::io::stdout().lock();
    let damages = match parts[3] {
        "mangled" => mangle_list(&template, parts[4]),
        "extreme" => extreme_list(&template, parts[4]),
        "refer" => refer_list(&template, parts[4]),
        _ => list(&template, parts[4]),
    };
    for damage in damages {
        writeln!(out, "case {damage}").unwrap();
        tally.cases += 1;
        let tried = catch_unwind(AssertUnwindSafe(|| {
            rewrite(&path, &damage.apply(&template));
            tally.inspect(&path, &options(index, stop), &expected, &damage);
            rewrite(&path, &damage.apply(&template));
            if !tally.try_out(&path, options(index, stop), &expected.default, &damage) {
                rewrite(&path, &damage.apply(&template));
                let salvage = options(index, stop).on_suspect(OnSuspect::Salvage);
                tally.try_out(&path, salvage, &expected.default, &damage);
            }
        }));
        // Also panics of the background thread.
        if tried.is_err() || PANICKED.swap(false, SeqCst) {
            tally.wrong.push(format!("{damage}: a panic"));
        }
    }
    writeln!(
        out,
        "tried {} damaged files: {} openings refused, {} answers, {} missing, \
         {} errors, {} checks found problems; \
         named map: {} answers, {} not opened; {} files with something missing, \
         of which a check called {} sound",
        tally.cases,
        tally.refused,
        tally.answers,
        tally.missing,
        tally.errors,
        tally.problems,
        tally.named,
        tally.unnamed,
        tally.lossy,
        tally.unnoticed.len(),
    )
    .unwrap();
    for case in &tally.unnoticed {
        writeln!(out, "unnoticed: {case}").unwrap();
    }
    for case in &tally.wrong {
        writeln!(out, "wrong: {case}").unwrap();
    }
    assert!(tally.wrong.is_empty(), "wrong records");
    if !["", "all"].contains(&parts[4]) {
        return; // What follows is about whole lists.
    }
    // A clean shutdown saves counts. They do not help if the file was cut off, if a page is of
    // another time, or if the words are damaged that record how the store was closed.
    let unnoticed = tally.unnoticed.len() as u64;
    assert!(unnoticed == 0 || stop != "clean" || parts[3] != "mangled", "losses are not noticed");
    assert!(unnoticed * 2 < tally.lossy, "most losses are not noticed");
    assert!(tally.answers > tally.cases * 100 && tally.problems > 0);
    assert!(tally.named > tally.cases * 20);
    // Only a few words concern the opening of the file, and of the named map.
    assert!(["extreme", "refer"].contains(&parts[3]) || tally.refused > 0 && tally.unnamed > 0);
}

fn supervise(stop: &str, index: IndexKind, list: &str) {
    supervise_part("damage::use_damaged_files", stop, index, list);
}

/// Runs a part that tries damaged files in a process of its own, and fails if that hangs or dies.
pub(crate) fn supervise_part(part: &str, stop: &str, index: IndexKind, list: &str) {
    let wanted = std::env::var("EVERMAP_DAMAGE").unwrap_or_default();
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let path = directory.path().join("map");
    let argument = format!("{}\n{stop}\n{index}\n{list}\n{wanted}", path.display());
    let mut process = child::start(part, argument);
    let (say, hear) = channel();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let reader = std::thread::spawn(move || {
        lines.map_while(Result::ok).for_each(|line| say.send(line).unwrap());
    });
    let mut last = String::from("nothing");
    let hangs = loop {
        match hear.recv_timeout(PATIENCE) {
            Ok(line) if line.starts_with("case ") => last = line,
            Ok(line) => println!("{stop}, {index}: {line}"),
            Err(RecvTimeoutError::Disconnected) => break false,
            Err(RecvTimeoutError::Timeout) => break true,
        }
    };
    if hangs {
        process.kill().unwrap();
    }
    let status = process.wait().unwrap();
    reader.join().unwrap();
    assert!(!hangs, "{stop}: hangs at: {last}");
    assert_eq!(status.signal(), None, "{stop}: died at: {last}");
    assert!(status.success(), "{stop}: failed at: {last}");
}

#[test]
fn damage_after_a_clean_shutdown() {
    supervise("clean", common::index(), "words");
}

#[test]
fn damage_after_an_unclean_shutdown() {
    supervise("unclean", common::index(), "words");
}

#[test]
fn mangled_after_a_clean_shutdown() {
    common::campaign_indexes().into_iter().for_each(|index| supervise("clean", index, "mangled"));
}

#[test]
fn mangled_after_an_unclean_shutdown() {
    common::campaign_indexes().into_iter().for_each(|index| supervise("unclean", index, "mangled"));
}

#[test]
fn extremes_after_a_clean_shutdown() {
    common::campaign_indexes().into_iter().for_each(|index| supervise("clean", index, "extreme"));
}

#[test]
fn extremes_after_a_clean_shutdown_with_an_order_in_the_file() {
    let stop = "clean, order in file";
    common::campaign_indexes().into_iter().for_each(|index| supervise(stop, index, "extreme"));
}

#[test]
fn references_to_something_else_with_an_order_in_the_file() {
    let stop = "clean, order in file";
    common::campaign_indexes().into_iter().for_each(|index| supervise(stop, index, "refer"));
}

#[test]
fn references_to_something_else_after_an_unclean_shutdown() {
    common::campaign_indexes().into_iter().for_each(|index| supervise("unclean", index, "refer"));
}

#[test]
fn extremes_after_an_unclean_shutdown() {
    common::campaign_indexes().into_iter().for_each(|index| supervise("unclean", index, "extreme"));
}

/// After an unclean shutdown there are no counts to compare with: what is left of the index must
/// show that something is missing.
#[test]
fn zeroed_pages_of_an_index_are_noticed() {
    const RECORDS: u64 = 3000;
    // Level hashing fills some buckets of a region before others, so a page without records shows
    // nothing.
    for index in common::campaign_indexes().into_iter().filter(|&index| index != IndexKind::Level) {
        let options = Options::small(2 << 20).index(index).seed(5);
        let memory = common::Kept::new(2 << 20);
        let store = memory.open(&options).unwrap();
        (0..RECORDS).for_each(|key| store.put(&key.to_le_bytes(), b"value").unwrap());
        drop(store);
        let (mut noticed, mut unnoticed) = (0, Vec::new());
        for page in (0..memory.len()).step_by(PAGE) {
            let damaged = memory.copy();
            (page..page + PAGE as u64).step_by(8).for_each(|at| damaged.set_word(at, 0));
            let Ok(store) = damaged.open(&options) else { continue };
            let is_lost = |key: &u64| matches!(store.get(&key.to_le_bytes()), Ok(None));
            let lost = (0..RECORDS).filter(is_lost).count();
            // A deep check, because pages of records are zeroed too.
            let report = store.db().check(true).unwrap();
            // A page that had fewer records could be empty by chance.
            match (lost >= 60, report.is_sound()) {
                (true, true) => unnoticed.push((page, lost)),
                (true, false) => noticed += 1,
                (false, _) => {}
            }
        }
        println!("{index}: {noticed} pages noticed, not noticed: {unnoticed:x?}");
        assert!(noticed >= 3 && unnoticed.is_empty(), "{index}");
    }
}

/// A store in memory, after a clean shutdown, whose keys below 20 were removed, and those from 20
/// to 39 replaced.
fn with_removed(options: &Options) -> common::Kept {
    let memory = common::Kept::new(1 << 20);
    let store = memory.open(options).unwrap();
    (0..100u64).for_each(|key| store.put(&key.to_le_bytes(), b"old").unwrap());
    (0..20u64).for_each(|key| assert!(store.delete(&key.to_le_bytes()).unwrap()));
    (20..40u64).for_each(|key| store.put(&key.to_le_bytes(), b"new").unwrap());
    store.into_db().close().unwrap();
    memory
}

/// A damaged word of a map can lead to a part of another one, which must not be freed when that map
/// is dropped.
#[test]
fn dropping_a_damaged_map_frees_nothing_of_another() {
    const RECORDS: u64 = 300;
    let mut random = Random::new(17);
    for index in common::every_index() {
        let options = Options::small(512 << 10).index(index).seed(6).ordered(Order::Persistent);
        let named = |map: &Map<_>| map.db().map(NAMED, MapOptions::new().index(index));
        let memory = common::Kept::new(512 << 10);
        let map = memory.open(&options).unwrap();
        let fill = |map: &Map<_>, keys: std::ops::Range<u64>, value: &str| {
            keys.filter(|&key| map.put(key_of(key), value).is_err()).count()
        };
        assert_eq!(fill(&map, 0..RECORDS, "kept"), 0);
        let before = memory.copy();
        assert_eq!(fill(&named(&map).unwrap(), 0..RECORDS, "dropped"), 0);
        map.into_db().close().unwrap();
        let refers =
            |at: &u64| (4 * PAGE as u64..memory.len()).contains(&(memory.word(*at) << 16 >> 16));
        let words = (4 * PAGE as u64..memory.len()).step_by(8).filter(refers);
        let is_old = |at: &u64| *at < before.len() && before.word(*at) == memory.word(*at);
        let (kept, dropped): (Vec<_>, Vec<_>) = words.partition(is_old);
        let (mut freed, mut lost) = (0, Vec::new());
        for _ in 0..tier().choose(60, 3000) {
            let any = |of: &[u64], random: &mut Random| of[random.below(of.len() as u64) as usize];
            let (at, like) = (any(&dropped, &mut random), any(&kept, &mut random));
            let damaged = memory.copy();
            let other = memory.word(like) << 16 >> 16;
            damaged.set_word(at, memory.word(at) >> 48 << 48 | other);
            let Ok(map) = damaged.open(&options) else { continue };
            let gone = || {
                let kept =
                    |key| map.get(key_of(key)).is_ok_and(|value| value == Some(b"kept".into()));
                (0..RECORDS).filter(|&key| !kept(key)).count()
            };
            // Some words that have changed are part of the other map.
            if gone() > 0 || !map.db().drop_map(NAMED).is_ok_and(|dropped| dropped) {
                continue;
            }
            let allocated = map.space().unwrap().allocated_bytes;
            let _ = map.db().reclaim_dropped();
            freed += u64::from(allocated > map.space().unwrap().allocated_bytes + 8192);
            let (refused, gone) = (fill(&map, RECORDS..RECORDS + 100, "more"), gone());
            if gone + refused > 0 {
                lost.push(format!("word {at:#x} like {like:#x}: {gone} lost, {refused} refused"));
            }
        }
        println!("{index}: {freed} freed, lost: {lost:#?}");
        assert!(lost.is_empty(), "{index}");
    }
}

/// One bit that flips in an index can make a freed slot valid again, or lead to another record.
#[test]
fn a_flipped_bit_brings_nothing_back() {
    for index in common::campaign_indexes() {
        let options = Options::small(1 << 20).index(index).seed(1);
        let memory = with_removed(&options);
        // Only bits of words that are not 0, because there are too many others. The fourth word of
        // a bucket of Dash records which slots are in use.
        let mut random = Random::new(3);
        let is_dash = matches!(index, IndexKind::DashEh | IndexKind::DashLh);
        let bits = (0..memory.len() * 8).filter(|bit| {
            let word = memory.word(bit / 64 * 8);
            let taken = bit / 8 % 256 == 24 || bit / 8 % 256 == 25;
            bit / 8 >= 0x4000 && word != 0 && (is_dash && taken || random.below(30) == 0)
        });
        let (mut tried, mut damaged) = (0, 0);
        for bit in bits {
            let copy = memory.copy();
            let at = bit / 64 * 8;
            copy.set_word(at, copy.word(at) ^ 1 << (bit % 64));
            let Ok(store) = copy.open(&options) else { continue };
            tried += 1;
            let current = |key: u64| if (20..40).contains(&key) { b"new" } else { b"old" };
            for key in 0..100u64 {
                match store.get(&key.to_le_bytes()) {
                    Ok(Some(value)) => {
                        assert!(key >= 20, "{index}: bit {bit:#x} brings back {key}");
                        assert_eq!(value, current(key), "{index}: bit {bit:#x}, {key}");
                    }
                    Ok(None) => {}
                    Err(_) => damaged += u64::from(key < 40),
                }
            }
            for (key, value) in store.iter().flatten() {
                let key = u64::from_le_bytes(key.try_into().unwrap());
                assert!(key >= 20 && value == current(key), "{index}: bit {bit:#x} shows {key}");
            }
        }
        println!("{index}: {tried} bits, {damaged} errors for keys that were removed or replaced");
        assert!(tried > 300, "{index}: {tried} bits");
        assert!(damaged > 0 || !is_dash, "{index}: no bit leads to a removed record");
    }
}
