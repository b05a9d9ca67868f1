//! Tests of the table in a file: what it contains, what it reads, and what a crash leaves.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use evermap_pm::sim::rng::Rng;
use evermap_pm::sim::{Tier, tier};
use evermap_pm::{Error, Result};

use super::queue::{Event, Target};
use super::{GROUP, Options, TrancheFile, long_path};

/// Small tranches, so that a few records cause every structural change.
type Small = TrancheFile<4096>;

/// A directory that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        Self::below(&std::env::temp_dir(), name)
    }

    /// In memory if the system has a place for such files: for tests that synchronise very often.
    fn in_memory(name: &str) -> Self {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Self::below(memory, name) } else { Self::new(name) }
    }

    fn below(parent: &Path, name: &str) -> Self {
        let path = parent.join(format!("tranches-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Returns the key and the value with this number. Some records are long.
fn record(number: u64, version: u64) -> (Vec<u8>, Vec<u8>) {
    let random = &mut Rng::new(number * 1000 + version + 1);
    let long = number.is_multiple_of(31);
    let bytes = if long { 100 + random.draw() % 9000 } else { random.draw() % 60 };
    let key = [number.to_le_bytes().to_vec(), vec![1; number as usize % 20]].concat();
    (key, (0..bytes).map(|at| (at + number + version) as u8).collect())
}

/// Compares everything in a table with what should be there.
fn assert_equal<const T: usize>(file: &mut TrancheFile<T>, model: &Model, absent: &[Vec<u8>]) {
    assert_eq!(file.verify(), Vec::<String>::new());
    let mut found = Model::new();
    file.for_each(|key, value| found.insert(key.to_vec(), value.to_vec()).is_none()).unwrap();
    assert!(found == *model, "{} records, and {} were expected", found.len(), model.len());
    assert_eq!(file.written_records(), model.len() as u64);
    let keys: Vec<&[u8]> = model.keys().chain(absent).map(Vec::as_slice).collect();
    let mut answers = vec![None; keys.len()];
    file.get_many(&keys, |at, value| {
        assert!(answers[at].replace(value.map(<[u8]>::to_vec)).is_none(), "answered twice");
    })
    .unwrap();
    for (key, answer) in keys.iter().zip(answers) {
        assert_eq!(answer.unwrap().as_ref(), model.get(*key), "{key:?}");
    }
}

/// Random changes and lookups agree with a map, across flushes, growth, and openings, with and
/// without `io_uring`.
#[test]
fn agrees_with_a_map() {
    let folder = Folder::new("model");
    for io_uring in [true, false] {
        let path = folder.file(if io_uring { "ring" } else { "plain" });
        let options = || {
            let options = Options::new().buffer_bytes(100_000).cache_bytes(20 << 12);
            options.queue_depth(7).io_uring(io_uring)
        };
        let mut file = Small::create(&path, options()).unwrap();
        assert!(!file.uses_io_uring() || io_uring);
        let (mut model, random) = (Model::new(), &mut Rng::new(3));
        for round in 0..4 {
            for step in 0..1500 {
                let number = random.draw() % 3000;
                let (key, value) = record(number, random.draw() % 3);
                if random.draw().is_multiple_of(4) {
                    file.remove(&key).unwrap();
                    model.remove(&key);
                } else {
                    file.put(&key, &value).unwrap();
                    model.insert(key, value);
                }
                if step % 8 > 0 {
                    continue;
                }
                let (key, _) = record(random.draw() % 3000, 0);
                assert_eq!(file.get(&key).unwrap().as_ref(), model.get(&key));
            }
            if round % 2 == 1 {
                file.sync().unwrap();
                drop(file);
                file = Small::open(&path, options()).unwrap();
            }
            let absent: Vec<_> = (5000..5100).map(|number| record(number, 0).0).collect();
            assert_equal(&mut file, &model, &absent);
        }
        assert!(file.header.groups >= 4, "{:?}", file.header);
    }
}

/// Keys and values may be empty, and of any length.
#[test]
fn lengths_do_not_matter() {
    let folder = Folder::new("lengths");
    let mut file = TrancheFile::<{ 32 << 10 }>::create(&folder.file("t"), Options::new()).unwrap();
    let mut model = Model::new();
    for key in [0, 1, 14, 15, 127, 128, 1000, 40_000] {
        for value in [0, 1, 13, 14, 1023, 1024, 70_000] {
            let (key, value) = (vec![value as u8; key], vec![7; value]);
            file.put(&key, &value).unwrap();
            model.insert(key, value);
        }
    }
    file.sync().unwrap();
    assert_equal(&mut file, &model, &[vec![200; 3]]);
    // Longer, shorter, elsewhere and back.
    for value in [5, 5000, 10, 0, 2000] {
        for (number, (key, old)) in model.iter_mut().enumerate() {
            *old = vec![number as u8; value];
            file.put(key, old).unwrap();
        }
        file.sync().unwrap();
        assert_equal(&mut file, &model, &[]);
    }
}

/// A hit reads one tranche, a long record one more, a miss hardly ever more than one; and nothing
/// but the cache spares a read.
#[test]
fn reads_are_counted() {
    let folder = Folder::new("reads");
    let records = 40_000;
    let options = Options::new().expected(records, 16 * records).cache_bytes(0).queue_depth(64);
    let mut file = TrancheFile::<4096>::create(&folder.file("t"), options).unwrap();
    for number in 0..records {
        file.put(&number.to_le_bytes(), &(!number).to_le_bytes()).unwrap();
    }
    file.put(b"long", &[9; 5000]).unwrap();
    file.sync().unwrap();
    assert!((0.7..0.91).contains(&file.fill()), "{}", file.fill());
    assert_eq!(file.counters().splits, 0);
    // One at a time: keys in one batch share reads.
    let reads = |file: &mut TrancheFile<4096>, keys: std::ops::Range<u64>| {
        let (before, count) = (file.counters().tranche_reads, keys.end - keys.start);
        for number in keys {
            let found = file.get(&number.to_le_bytes()).unwrap();
            let expected = (number < records).then(|| (!number).to_le_bytes().to_vec());
            assert_eq!(found, expected);
        }
        (file.counters().tranche_reads - before) as f64 / count as f64
    };
    let (hit, miss) = (reads(&mut file, 0..4000), reads(&mut file, records..records + 4000));
    assert!((1.0..1.02).contains(&hit) && (1.0..1.3).contains(&miss), "{hit} {miss}");
    let before = file.counters();
    assert_eq!(file.get(b"long").unwrap(), Some(vec![9; 5000]));
    let after = file.counters();
    assert_eq!(after.long_reads - before.long_reads, 1);
    assert!(after.tranche_reads - before.tranche_reads <= 2);
    // The same key many times in a batch.
    let key = 7u64.to_le_bytes();
    let mut answers = 0;
    file.get_many(&[&key[..]; 500], |_, value| answers += u64::from(value.is_some())).unwrap();
    assert_eq!((answers, file.counters().tranche_reads - after.tranche_reads), (500, 1));
}

#[test]
fn what_is_no_table_is_refused() {
    let folder = Folder::new("refused");
    let message = |path: &Path| Small::open(path, Options::new()).err().unwrap().to_string();
    let other = folder.file("other");
    for content in [&b""[..], b"text", &[0; 20_000]] {
        std::fs::write(&other, content).unwrap();
        assert!(message(&other).contains("not an Evermap store"), "{}", message(&other));
    }
    assert!(message(&folder.file("none")).contains("opening"));
    let path = folder.file("table");
    let mut file = Small::create(&path, Options::new()).unwrap();
    file.put(b"key", b"value").unwrap();
    let busy = message(&path);
    assert!(busy.contains("in use") || busy.contains("never synchronised"), "{busy}");
    drop(file);
    assert!(message(&path).contains("never synchronised"), "{}", message(&path));
    assert!(Small::create(&path, Options::new()).is_err());
    let path = folder.file("another");
    let mut file = Small::create(&path, Options::new()).unwrap();
    file.sync().unwrap();
    assert!(message(&path).contains("in use"));
    drop(file);
    let larger = TrancheFile::<8192>::open(&path, Options::new()).err().unwrap().to_string();
    assert!(larger.contains("its tranches have 4096 bytes"), "{larger}");
    let none = Small::open(&path, Options::new().queue_depth(0)).err().unwrap().to_string();
    assert!(none.contains("it must be 1 to 4096"), "{none}");
    // Written by a later version.
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[4096 + 8] = 9;
    bytes[8] = 9;
    std::fs::write(&path, &bytes).unwrap();
    assert!(message(&path).contains("format 9 is newer"), "{}", message(&path));
}

/// The command `evermap check` does not know such files.
fn assert_advice(error: &Error) {
    assert!(!error.to_string().contains("evermap check"), "{error}");
}

/// Each part of the files, damaged: an error, or nothing that matters, but never a wrong answer.
#[test]
fn damage_is_noticed() {
    let folder = Folder::new("damage");
    let path = folder.file("t");
    let mut file = Small::create(&path, Options::new()).unwrap();
    let mut model = Model::new();
    for number in 0..600 {
        let (key, value) = record(number, 0);
        file.put(&key, &value).unwrap();
        model.insert(key, value);
    }
    file.sync().unwrap();
    drop(file);
    let (table, long) = (std::fs::read(&path).unwrap(), std::fs::read(long_path(&path)).unwrap());
    let random = &mut Rng::new(8);
    let mut noticed = 0;
    for round in 0..60 {
        let (mut bytes, mut other) = (table.clone(), long.clone());
        let damaged = if round % 3 == 0 { &mut other } else { &mut bytes };
        let at = (random.draw() % damaged.len() as u64) as usize & !511;
        let end = (at + 512).min(damaged.len());
        match round % 4 {
            0 => damaged[at..end].fill(0),
            1 => damaged[at..end].fill(0xff),
            2 => damaged[at] ^= 1 << (random.draw() % 8),
            _ => damaged.truncate(at),
        }
        std::fs::write(&path, &bytes).unwrap();
        std::fs::write(long_path(&path), &other).unwrap();
        let mut file = match Small::open(&path, Options::new()) {
            Ok(file) => file,
            Err(error) => {
                assert_advice(&error);
                noticed += 1;
                continue;
            }
        };
        let mut errors = 0;
        for (key, value) in &model {
            match file.get(key) {
                Ok(found) => assert_eq!(found.as_ref(), Some(value), "round {round}"),
                Err(error) => {
                    assert_advice(&error);
                    errors += 1;
                }
            }
        }
        assert_eq!(errors > 0, !file.verify().is_empty(), "round {round}, {errors}");
        noticed += u64::from(errors > 0);
    }
    assert!(noticed > 10, "{noticed}");
}

/// The contents of both files, as a crash left them.
#[derive(Clone, Default)]
struct Image {
    table: Vec<u8>,
    long: Vec<u8>,
}

impl Image {
    fn of(&mut self, target: Target) -> &mut Vec<u8> {
        match target {
            Target::Table => &mut self.table,
            Target::Long => &mut self.long,
        }
    }

    /// Applies a part of a write: the sectors for which `lost` returns `false`.
    fn write(&mut self, event: &Event, mut lost: impl FnMut() -> bool) {
        const SECTOR: usize = 512;
        match event {
            Event::Write(target, offset, bytes) => {
                let (file, offset) = (self.of(*target), *offset as usize);
                file.resize(file.len().max(offset + bytes.len()), 0);
                for (number, sector) in bytes.chunks(SECTOR).enumerate() {
                    if !lost() {
                        let at = offset + number * SECTOR;
                        file[at..at + sector.len()].copy_from_slice(sector);
                    }
                }
            }
            Event::Length(target, len) => {
                if !lost() {
                    self.of(*target).resize(*len as usize, 0);
                }
            }
            Event::Sync(_) => {}
        }
    }
}

fn target_of(event: &Event) -> Target {
    match event {
        Event::Write(target, ..) | Event::Length(target, _) | Event::Sync(target) => *target,
    }
}

/// Returns what a crash behind the first `count` events can leave: everything that was synchronised
/// before, and of the rest any sectors.
fn crash(start: &Image, events: &[Event], count: usize, random: &mut Rng) -> Image {
    let mut image = start.clone();
    // In some crashes nearly everything is lost, in others nearly nothing.
    let share = random.draw() % 5;
    for (at, event) in events[..count].iter().enumerate() {
        let is_sync =
            |later: &Event| matches!(later, Event::Sync(target) if *target == target_of(event));
        let durable = events[at..count].iter().any(is_sync);
        let whole = random.draw().is_multiple_of(2);
        let all = random.draw() % 4 < share;
        image.write(event, || !durable && if whole { all } else { random.draw() % 4 < share });
    }
    image
}

/// What is written while a table is changed.
struct Story {
    start: Image,
    events: Vec<Event>,
    chapters: Vec<Chapter>,
}

/// What happens from one synchronisation to the next.
struct Chapter {
    /// The number of events before.
    begin: usize,
    /// The content at the beginning.
    content: Model,
    /// What each key was bound to afterwards, one after the other.
    changes: BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>,
}

impl Chapter {
    /// Returns whether a crash may leave a key with this value.
    fn permits(&self, key: &[u8], found: Option<&Vec<u8>>) -> bool {
        let later = self.changes.get(key).into_iter().flatten();
        found == self.content.get(key) || later.into_iter().any(|value| found == value.as_ref())
    }
}

/// Changes a table after its first synchronisation, and records what is written.
fn story(folder: &Folder) -> Story {
    let path = folder.file("recorded");
    let options = || Options::new().buffer_bytes(30_000).io_uring(false);
    let mut file = Small::create(&path, options()).unwrap();
    let mut model = Model::new();
    for number in 0..900 {
        let (key, value) = record(number, 0);
        file.put(&key, &value).unwrap();
        model.insert(key, value);
    }
    file.sync().unwrap();
    let read = |path: &Path| std::fs::read(path).unwrap();
    let start = Image { table: read(&path), long: read(&long_path(&path)) };
    file.queue.events = Some(Vec::new());
    let (mut chapters, groups) = (Vec::new(), file.header.groups);
    let random = &mut Rng::new(5);
    for version in 1..4 {
        let begin = file.queue.events.as_ref().unwrap().len();
        let mut chapter = Chapter { begin, content: model.clone(), changes: BTreeMap::new() };
        for _ in 0..700 {
            let number = random.draw() % 2500;
            let (key, value) = record(number, version);
            let value = (number % 5 != version).then_some(value);
            match &value {
                Some(value) => {
                    file.put(&key, value).unwrap();
                    model.insert(key.clone(), value.clone());
                }
                None => {
                    file.remove(&key).unwrap();
                    model.remove(&key);
                }
            }
            chapter.changes.entry(key).or_default().push(value);
        }
        file.sync().unwrap();
        chapters.push(chapter);
    }
    assert!(file.header.groups > groups, "the table should grow in between");
    let events = file.queue.events.take().unwrap();
    chapters.push(Chapter { begin: events.len(), content: model, changes: BTreeMap::new() });
    Story { start, events, chapters }
}

/// A crash at any moment leaves every key with what it had when the table was last synchronised, or
/// with what was stored later; and the table can be opened, and changed, and is whole.
#[test]
fn every_crash_leaves_what_was_synchronised() {
    let folder = Folder::new("crash");
    let story = story(&folder);
    let random = &mut Rng::new(11);
    let (mut old, mut new, mut repaired) = (0u64, 0u64, 0);
    let rounds = if tier() == Tier::Full { 1000 } else { 60 };
    for round in 0..rounds {
        let count = random.draw() as usize % (story.events.len() + 1);
        let image = crash(&story.start, &story.events, count, random);
        let path = folder.file("crashed");
        std::fs::write(&path, &image.table).unwrap();
        std::fs::write(long_path(&path), &image.long).unwrap();
        let opened = Small::open(&path, Options::new().io_uring(false));
        let mut file = opened.unwrap_or_else(|error| panic!("round {round}: {error}"));
        repaired += file.counters().tranche_writes;
        assert_eq!(file.verify(), Vec::<String>::new(), "round {round}");
        let chapter = story.chapters.iter().rfind(|chapter| chapter.begin <= count).unwrap();
        for key in chapter.content.keys().chain(chapter.changes.keys()) {
            let found = file.get(key).unwrap();
            assert!(chapter.permits(key, found.as_ref()), "round {round}: {key:?}");
            let is_old = found.as_ref() == chapter.content.get(key);
            *if is_old { &mut old } else { &mut new } += 1;
        }
        file.put(b"after", b"the crash").unwrap();
        file.sync().unwrap();
        assert_eq!(file.get(b"after").unwrap().as_deref(), Some(&b"the crash"[..]));
    }
    assert!(old > new && new > 300 && repaired > 20, "{old} {new} {repaired}");
}

/// Compares the answers for all keys of a model, without writing what was collected.
fn assert_answers(file: &mut Small, model: &Model) {
    let keys: Vec<&[u8]> = model.keys().map(Vec::as_slice).collect();
    let mut found = vec![None; keys.len()];
    file.get_many(&keys, |at, value| found[at] = value.map(<[u8]>::to_vec)).unwrap();
    for ((key, value), found) in model.iter().zip(found) {
        assert_eq!(found.as_ref(), Some(value), "{key:?}");
    }
}

fn is_in_round(file: &Small) -> bool {
    file.header.groups > file.groups().before()
}

/// Returns the pair with this number.
fn pair(number: u64) -> (Vec<u8>, Vec<u8>) {
    (number.to_le_bytes().to_vec(), (!number).to_le_bytes().to_vec())
}

/// Puts pairs, and checks for each that no more tranches were read and written than a portion can
/// have, and that no more changes wait than should. Returns the most splits of one of them.
fn put_all(file: &mut Small, model: &mut Model, numbers: impl IntoIterator<Item = u64>) -> u64 {
    let (mut answers, mut splits) = (0, 0);
    for number in numbers {
        let (key, value) = pair(number);
        let before = file.counters();
        file.put(&key, &value).unwrap();
        let after = file.counters();
        model.insert(key, value);
        assert!(after.tranche_reads - before.tranche_reads < 2 * file.portion);
        assert!(after.tranche_writes - before.tranche_writes <= file.portion);
        assert!(after.journal_writes - before.journal_writes <= file.portion + 1);
        splits = splits.max(after.splits - before.splits);
        // A group that is full before its turn waits for others, one portion a change.
        assert!(file.changes.bytes() < file.buffer_bytes + 200 * 40, "{}", file.changes.bytes());
        if after.splits > before.splits && is_in_round(file) && answers < 20 {
            assert_answers(file, model);
            answers += 1;
        }
    }
    splits
}

/// While a table grows from nothing, whatever the order of the keys, each change does a bounded
/// part of the work, and every answer is right between any two of them.
#[test]
fn no_change_does_more_than_a_portion() {
    let folder = Folder::in_memory("pause");
    // Keys are multiples of these: ascending, descending, far apart, and random.
    let steps = [1, u64::MAX, 1 << 40, 0x9e37_79b9_7f4a_7c15];
    for (step, portion) in steps.into_iter().zip([16, 40, 128, 100_000]) {
        let order = |at: u64| at.wrapping_mul(step);
        let name = step.to_string();
        let options = Options::new().buffer_bytes(30_000).portion_bytes(portion << 12);
        let options = options.io_uring(portion == 40);
        let mut file = Small::create(&folder.file(&name), options).unwrap();
        let mut model = Model::new();
        put_all(&mut file, &mut model, (0..1000).map(&order));
        file.sync().unwrap();
        let splits = put_all(&mut file, &mut model, (1000..20_000).map(&order));
        assert!((1..=file.portion / 16).contains(&splits), "{name}: {splits}");
        assert!(file.header.groups > 12, "{name}: {} groups", file.header.groups);
        let absent: Vec<_> = (40_000..40_100).map(|at| pair(order(at)).0).collect();
        assert_equal(&mut file, &model, &absent);
    }
}

/// Returns numbers whose keys have such hashes.
fn numbers_with(file: &Small, wanted: impl Fn(u64) -> bool) -> impl Iterator<Item = u64> {
    let seed = file.header.seed;
    (1 << 50..)
        .filter(move |number: &u64| wanted(super::Hash::of(&number.to_le_bytes(), seed).first))
}

/// The last group of a round is full before its turn: it is split all the same, and no change pays
/// for the whole round.
#[test]
fn a_group_that_is_full_before_its_turn_waits_for_its_split() {
    let folder = Folder::in_memory("full");
    let options = Options::new().buffer_bytes(30_000).portion_bytes(16 << 12).io_uring(false);
    let mut file = Small::create(&folder.file("t"), options.expected(20_000, 320_000)).unwrap();
    let (base, mut model) = (file.header.base, Model::new());
    put_all(&mut file, &mut model, 0..12_000);
    file.sync().unwrap();
    assert_eq!(file.header.groups, base);
    let full: Vec<u64> = numbers_with(&file, |hash| hash % base == base - 1).take(1500).collect();
    let splits = put_all(&mut file, &mut model, full.iter().copied());
    assert_eq!(splits, 1);
    file.sync().unwrap();
    assert_eq!(file.header.groups, 2 * base, "{}", file.fill());
    assert_equal(&mut file, &model, &[]);
    // And one that was split in this round already: it waits for the next one.
    let again: Vec<u64> = numbers_with(&file, |hash| hash % (2 * base) == base - 1)
        .filter(|number| !full.contains(number))
        .take(1500)
        .collect();
    put_all(&mut file, &mut model, again);
    file.sync().unwrap();
    assert_eq!(file.header.groups, 3 * base);
    assert_equal(&mut file, &model, &[]);
}

/// Keys that no split separates do not make the table grow without limit.
#[test]
fn keys_that_cannot_be_separated_are_refused() {
    let folder = Folder::new("adversary");
    let mut file = Small::create(&folder.file("t"), Options::new().buffer_bytes(30_000)).unwrap();
    let numbers: Vec<u64> =
        numbers_with(&file, |hash| hash.is_multiple_of(256)).take(2000).collect();
    let put = |&number: &u64| {
        let (key, value) = pair(number);
        file.put(&key, &value)
    };
    let error = numbers.iter().try_for_each(put).unwrap_err().to_string();
    assert!(error.contains("a group of tranches"), "{error}");
    assert!(file.header.groups <= 8, "{}", file.header.groups);
    assert!(file.put(b"key", b"value").is_err());
}

/// More changes than the table has room for are collected, and written group after group.
#[test]
fn a_small_table_takes_many_changes_at_once() {
    let folder = Folder::new("bulk");
    let mut file = Small::create(&folder.file("t"), Options::new()).unwrap();
    let mut model = Model::new();
    put_all(&mut file, &mut model, 0..30_000);
    assert_eq!(file.written_records(), 0);
    file.sync().unwrap();
    assert_equal(&mut file, &model, &[]);
}

/// A table that is closed in the middle of a round has the same content afterwards, and goes on.
#[test]
fn a_round_goes_on_after_an_opening() {
    let folder = Folder::in_memory("halfway");
    let path = folder.file("t");
    let options = || Options::new().buffer_bytes(20_000).portion_bytes(16 << 12).io_uring(false);
    let mut file = Small::create(&path, options().expected(40_000, 640_000)).unwrap();
    let (mut model, mut openings, mut at) = (Model::new(), 0, 0);
    let base = file.header.base;
    while file.header.groups < 2 * base {
        put_all(&mut file, &mut model, at..at + 100);
        at += 100;
        if is_in_round(&file) {
            file.sync().unwrap();
            let groups = file.header.groups;
            drop(file);
            file = Small::open(&path, options()).unwrap();
            assert_eq!(file.header.groups, groups);
            assert_answers(&mut file, &model);
            openings += u64::from(is_in_round(&file));
        }
    }
    assert!(openings > 1, "{openings}");
    assert!(file.fill() < 0.5, "{}", file.fill());
    assert_equal(&mut file, &model, &[]);
}

/// A crash at each write of changes that grow a table loses nothing that was synchronised, and the
/// table goes on growing.
#[test]
fn every_write_of_a_change_that_grows_is_crashed() {
    let folder = Folder::in_memory("growing");
    let path = folder.file("recorded");
    let options = || Options::new().buffer_bytes(8_000).portion_bytes(16 << 12).io_uring(false);
    let mut file = Small::create(&path, options().expected(3_000, 48_000)).unwrap();
    let mut content = Model::new();
    put_all(&mut file, &mut content, 0..4_300);
    file.sync().unwrap();
    let read = |path: &Path| std::fs::read(path).unwrap();
    let start = Image { table: read(&path), long: read(&long_path(&path)) };
    file.queue.events = Some(Vec::new());
    let mut chapter = Chapter { begin: 0, content, changes: BTreeMap::new() };
    let mut growing = Vec::new();
    for number in 4_300..5_200 {
        let (key, value) = pair(number);
        let (begin, splits) = (file.queue.events.as_ref().unwrap().len(), file.counters().splits);
        file.put(&key, &value).unwrap();
        chapter.changes.insert(key, vec![Some(value)]);
        let end = file.queue.events.as_ref().unwrap().len();
        if file.counters().splits > splits {
            growing.push(begin..end);
        }
    }
    let events = file.queue.events.take().unwrap();
    assert!(growing.len() > 2, "{} changes grow the table", growing.len());
    let changes = if tier() == Tier::Full { growing.len() } else { 3 };
    let (random, crashed) = (&mut Rng::new(31), folder.file("crashed"));
    let mut in_round = 0;
    for count in growing.into_iter().take(changes).flatten() {
        let image = crash(&start, &events, count + 1, random);
        std::fs::write(&crashed, &image.table).unwrap();
        std::fs::write(long_path(&crashed), &image.long).unwrap();
        let mut file = Small::open(&crashed, options()).unwrap();
        in_round += u64::from(is_in_round(&file));
        assert_eq!(file.verify(), Vec::<String>::new(), "{count}");
        let mut model = Model::new();
        file.for_each(|key, value| model.insert(key.to_vec(), value.to_vec()).is_none()).unwrap();
        for key in chapter.content.keys().chain(chapter.changes.keys()) {
            assert!(chapter.permits(key, model.get(key)), "{count}: {key:?}");
        }
        if count.is_multiple_of(10) {
            let groups = file.header.groups;
            put_all(&mut file, &mut model, 20_000..25_000);
            file.sync().unwrap();
            assert!(file.header.groups > groups);
            assert_equal(&mut file, &model, &[]);
        }
    }
    assert!(in_round > 20, "{in_round}");
}

/// A crash before the first synchronisation leaves a file that says so.
#[test]
fn an_incomplete_table_is_refused() -> Result<()> {
    let folder = Folder::new("incomplete");
    let path = folder.file("t");
    let mut file = Small::create(&path, Options::new().buffer_bytes(1000))?;
    for number in 0..500 {
        let (key, value) = record(number, 0);
        file.put(&key, &value)?;
    }
    assert!(file.written_records() > 0);
    drop(file);
    let error = Small::open(&path, Options::new()).err().unwrap().to_string();
    assert!(error.contains("never synchronised"), "{error}");
    Ok(())
}

/// A crash in the middle of completing a portion is completed by the next opening.
#[test]
fn repairs_can_be_interrupted() {
    let folder = Folder::new("repair");
    let story = story(&folder);
    let random = &mut Rng::new(21);
    let path = folder.file("crashed");
    let mut interrupted = 0;
    for _ in 0..400 {
        let count = random.draw() as usize % (story.events.len() + 1);
        let image = crash(&story.start, &story.events, count, random);
        std::fs::write(&path, &image.table).unwrap();
        std::fs::write(long_path(&path), &image.long).unwrap();
        // The repair, recorded.
        let header = super::read_header::<4096>(&std::fs::File::open(&path).unwrap(), &path);
        let Ok(header) = header else { panic!("a header is always there") };
        if header.journal.is_none_or(|pages| pages == 0) {
            continue;
        }
        let (table, long) = (super::open(&path, false), super::open(&long_path(&path), false));
        let options = Options::new().io_uring(false);
        let mut file =
            Small::assemble(&path, table.unwrap(), long.unwrap(), header, options).unwrap();
        file.queue.events = Some(Vec::new());
        file.finish_portion().unwrap();
        let events = file.queue.events.take().unwrap();
        drop(file);
        let count = random.draw() as usize % (events.len() + 1);
        let again = crash(&image, &events, count, random);
        std::fs::write(&path, &again.table).unwrap();
        let mut file = Small::open(&path, Options::new().io_uring(false)).unwrap();
        assert_eq!(file.verify(), Vec::<String>::new());
        interrupted += 1;
        if interrupted == 10 {
            return;
        }
    }
    panic!("only {interrupted} repairs were interrupted");
}

/// Groups are of the same tranches in memory and in the file.
#[test]
fn the_layout_does_not_change() {
    assert_eq!(GROUP, 8);
    assert_eq!((Small::JOURNAL, TrancheFile::<{ 32 << 10 }>::JOURNAL), (509, 1024));
    assert_eq!((Small::FIRST, TrancheFile::<{ 32 << 10 }>::FIRST), (512, 1027));
}
