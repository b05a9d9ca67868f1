//! A damaged file may cost an answer, never a crash, a hang or a wrong value.
//!
//! Damages a store of 256 KiB in every way of a list, opens it, and uses it. A sample of the list by default;
//! all of it (some hundred thousand files) where `EVERMAP_DAMAGE=all` is set, or one case by its name. The
//! cases run in processes of their own with limits on memory and time, so that a crash or a hang is noticed
//! and named.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::common::{self, Random, child, is_value_of, value_of};
use evermap::{Evermap, IndexKind, Item, MapOptions, Meta, OnSuspect, Options};

const BYTES: u64 = 256 << 10;
const PAGE: usize = 4096;
const KEYS: u64 = 800;
/// A case takes milliseconds; this much means a hang, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn options() -> Options {
    // Expired records and flushes are no damage, so time stands still.
    common::small(BYTES).seed(1).clock(evermap::Clock::manual(1000)).ordered(true)
}

fn key_of(number: u64) -> Vec<u8> {
    let mut key = format!("key {number}").into_bytes();
    if number.is_multiple_of(97) {
        key.resize(500, b'-');
    }
    key
}

fn put(map: &Evermap, number: u64, version: u64) -> evermap::Result<()> {
    let key = key_of(number);
    // Most are small, one in 300 takes several extents.
    let len = if number % 300 == 50 { 9_000 } else { 40 + version as usize % 150 };
    let meta = Meta {
        flags: version as u32,
        expires_at: if version.is_multiple_of(3) { 5000 } else { 0 },
    };
    map.put_with(&key, &value_of(&key, version, len), meta).map(drop)
}

/// The named map, of the kind that is smallest.
const NAMED: &str = "named";
const NAMED_KEYS: u64 = 60;
/// The root slot by which named maps are found.
const CATALOGUE: usize = 8192 + 512 + 14 * 8;

fn named(map: &Evermap) -> evermap::Result<Evermap> {
    map.map(NAMED, MapOptions::new().index(IndexKind::Clht))
}

/// Whether something was once stored: flags and value tell the version.
fn was_stored(item: &Item<'_>) -> bool {
    is_value_of(item.key, item.value)
        && item.value[item.key.len()..].first_chunk().is_some_and(|version| {
            u64::from_le_bytes(*version) as u32 == item.flags
                && [0, 5000].contains(&item.expires_at)
        })
}

/// The bytes of a store, and those it had before.
struct Template {
    now: Vec<u8>,
    older: Vec<Vec<u8>>,
}

/// One way to damage it.
#[derive(Clone, Debug)]
enum Damage {
    /// This word becomes that.
    Word(usize, u64),
    /// This page becomes what it was at that earlier time.
    OldPage(usize, usize),
    /// The file ends here.
    End(usize),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Word(at, word) => write!(f, "word {at:#x} = {word:#x}"),
            Damage::OldPage(page, age) => write!(f, "page {page:#x} of age {age}"),
            Damage::End(at) => write!(f, "ends at {at:#x}"),
        }
    }
}

impl Damage {
    fn apply(&self, template: &Template) -> Vec<u8> {
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
        }
        bytes
    }
}

/// Which damages to try: a sample of those to words, all, or one.
fn list(template: &Template, wanted: &str) -> Vec<Damage> {
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
    if wanted.is_empty() {
        list = list.into_iter().step_by(131).collect();
        // What leads to the named map is but a few words, and not to be missed.
        list.extend([1, u64::MAX].map(|new| Damage::Word(CATALOGUE, new)));
    }
    for at in (0..bytes.len()).step_by(PAGE) {
        list.extend((0..template.older.len()).map(|age| Damage::OldPage(at, age)));
        list.extend([at, at + 8, at + PAGE - 1].map(Damage::End));
    }
    if !["", "all"].contains(&wanted) {
        list.retain(|damage| damage.to_string() == wanted);
    }
    list
}

/// Builds the store at `path` in steps; the file keeps its identity from then on.
fn build(path: &Path, stop: &str) -> Template {
    let mut older = Vec::new();
    for stage in 0..3u64 {
        let map = Evermap::open(path, options()).unwrap();
        for number in 0..KEYS * (stage + 1) / 3 {
            if number % (stage + 2) == 0 {
                put(&map, number, stage * 1000 + number).unwrap();
            }
        }
        for number in (0..KEYS).filter(|number| number % 7 == stage) {
            map.remove(&key_of(number)).unwrap();
        }
        let named = named(&map).unwrap();
        (1..NAMED_KEYS).for_each(|number| put(&named, number, stage * 1000 + number).unwrap());
        drop(named);
        map.close().unwrap();
        older.push(std::fs::read(path).unwrap());
    }
    if stop == "unclean" {
        let mut process = child::start("damage::write_and_hang", path.display());
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
    let Some(path) = child::asked_for("damage::write_and_hang") else { return };
    let map = Evermap::open(path, options()).unwrap();
    (0..KEYS).step_by(9).for_each(|number| put(&map, number, 9000 + number).unwrap());
    println!("ready");
    loop {
        std::thread::park();
    }
}

/// What came of one damaged file.
#[derive(Default)]
struct Tally {
    cases: u64,
    refused: u64,
    answers: u64,
    missing: u64,
    errors: u64,
    problems: u64,
    /// Answers of the named map, and times when it could not be opened.
    named: u64,
    unnamed: u64,
}

impl Tally {
    /// The same for the named map.
    fn look_named(&mut self, map: &Evermap) {
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
            true
        })
        .unwrap();
    }

    /// Looks at everything; only what was once stored may be shown.
    fn look(&mut self, map: &Evermap, expected: &BTreeMap<u64, u64>) {
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
            true
        });
        let mut all_were_stored = |item: evermap::Result<Item<'_>>| {
            if let Ok(item) = item {
                // Not even what is in the catalogue, whose pairs a walk can meet where a file was cut off.
                assert!(was_stored(&item), "wrong value: {item:?}");
            }
            true
        };
        map.for_each(&mut all_were_stored).unwrap();
        if let Ok(mut scan) = map.scan(..) {
            let _ = scan.visit(all_were_stored);
        }
    }

    fn try_out(&mut self, path: &Path, options: Options, expected: &BTreeMap<u64, u64>) -> bool {
        let Ok(map) = Evermap::open(path, options.clone()) else {
            self.refused += 1;
            return false;
        };
        self.look(&map, expected);
        for number in (0..KEYS + 100).step_by(5) {
            let _ = put(&map, number, 20_000 + number);
        }
        let _ = map.remove(&key_of(11));
        let _ = map.touch(&key_of(12), 5000);
        let _ = map.purge();
        let report = map.check(true).unwrap();
        self.problems += u64::from(!report.is_sound());
        assert!(
            map.stat().map(|stat| stat.to_string().len()).is_ok_and(|len| len > 100)
                || !report.is_sound()
        );
        self.look(&map, expected);
        if self.cases.is_multiple_of(2) {
            // Whatever is left of it goes, and a new one comes.
            let _ = map.drop_map(NAMED);
            let _ = map.free_dropped();
            if let Ok(named) = named(&map) {
                let _ = put(&named, 3, 30_000);
            }
            self.look(&map, expected);
        }
        let _ = map.close();
        // And once more: what the damage led to must not be worse.
        if let Ok(map) = Evermap::open(path, options) {
            self.look(&map, expected);
        }
        true
    }
}

/// Contents of an undamaged store.
fn contents(path: &Path) -> BTreeMap<u64, u64> {
    let map = Evermap::open(path, options()).unwrap();
    let expected = (0..KEYS)
        .filter_map(|number| {
            let version = map.get_with(&key_of(number), |item| item.flags).unwrap()?;
            Some((number, u64::from(version)))
        })
        .collect();
    map.close().unwrap();
    expected
}

fn rewrite(path: &Path, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    file.write_all_at(bytes, 0).unwrap();
}

/// Limits this process, so that a damaged length cannot take the machine with it.
fn limit_memory() {
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
    let (path, stop) = (PathBuf::from(parts[0]), parts[1]);
    let template = build(&path, stop);
    assert!(template.now.len() as u64 <= BYTES && template.now.len() as u64 > BYTES / 2);
    let expected = contents(&path);
    assert!(expected.len() > 200, "only {} records", expected.len());
    let mut tally = Tally::default();
    let mut out = std::io::stdout().lock();
    for damage in list(&template, parts[2]) {
        writeln!(out, "case {damage}").unwrap();
        tally.cases += 1;
        rewrite(&path, &damage.apply(&template));
        if !tally.try_out(&path, options(), &expected) {
            rewrite(&path, &damage.apply(&template));
            tally.try_out(&path, options().on_suspect(OnSuspect::Salvage), &expected);
        }
        // Also one of the background thread.
        assert!(!PANICKED.load(SeqCst), "a panic");
    }
    writeln!(
        out,
        "tried {} damaged files: {} openings refused, {} answers, {} missing, {} errors, {} checks found problems; \
         named map: {} answers, {} not opened",
        tally.cases,
        tally.refused,
        tally.answers,
        tally.missing,
        tally.errors,
        tally.problems,
        tally.named,
        tally.unnamed
    )
    .unwrap();
    assert!(tally.answers > tally.cases * 100 && tally.problems > 0 && tally.refused > 0);
    assert!(tally.named > tally.cases * 20 && tally.unnamed > 0);
}

fn supervise(stop: &str) {
    let wanted = std::env::var("EVERMAP_DAMAGE").unwrap_or_default();
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let path = directory.path().join("map");
    let argument = format!("{}\n{stop}\n{wanted}", path.display());
    let mut process = child::start("damage::use_damaged_files", argument);
    let (say, hear) = channel();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let reader = std::thread::spawn(move || {
        lines.map_while(Result::ok).for_each(|line| say.send(line).unwrap());
    });
    let mut last = String::from("nothing");
    let hangs = loop {
        match hear.recv_timeout(PATIENCE) {
            Ok(line) if line.starts_with("case ") => last = line,
            Ok(line) => println!("{stop}: {line}"),
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
fn damage_after_an_orderly_stop() {
    supervise("orderly");
}

#[test]
fn damage_after_an_unclean_stop() {
    supervise("unclean");
}
