//! Processes that are killed while their threads put, update, remove and scan: nothing that was
//! acknowledged is lost, and lookups, scans and counts agree afterwards.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use evermap_index::Visitor;
use evermap_index::ordered::{Cursor, Direction, OrderedIndex, PersistentOrdered};
use evermap_index::testkit::tier;
use evermap_papers::fptree::FpTree;
use evermap_papers::hikv::{Indexed, Tiny, Usual};
use evermap_papers::nvtree::NvTree;
use evermap_pm::Pool;
use evermap_pm::medium::{FlushKind, Mapped, MappedOptions};
use evermap_pm::region::{Identity, OnSuspect, Region, RegionConfig};
use evermap_pm::sim::rng::Rng;

/// Set in the process that is killed: its file, and the seed of its operations.
const FILE: &str = "EVERMAP_TEST_KILLED_FILE";
const SEED: &str = "EVERMAP_TEST_KILLED_SEED";
/// Threads that write; each has keys of its own.
const WRITERS: u64 = 2;
const KEYS: u64 = 2_000;
/// The longest time before a process is killed, in milliseconds.
const LIFE_MS: u64 = 60;
/// Bytes of address space.
const CAPACITY: u64 = 1 << 28;

/// An operation: a key, and the word that it is bound to afterwards, if it is.
type Operation = (u64, Option<u64>);

/// The operations of a writer, which follow from a seed.
fn operations(seed: u64, writer: u64) -> impl Iterator<Item = Operation> {
    let mut rng = Rng::new(seed * WRITERS + writer);
    (0..).map(move |number| {
        let key = rng.below(KEYS / WRITERS) * WRITERS + writer;
        (key, (!rng.one_in(3)).then_some(seed << 32 | number))
    })
}

/// Returns the key of a number: short ones, and ones that need more space than a short one has.
fn key_of(number: u64) -> Vec<u8> {
    let mut key = number.to_be_bytes().to_vec();
    key.resize(8 + (number % 5) as usize * 6, b'k');
    key
}

/// Opens the index in a file, or creates it. After a kill everything is swept.
fn open<T: PersistentOrdered<Mapped>>(file: &Path) -> T {
    let options = MappedOptions {
        flush: FlushKind::Process,
        create: true,
        capacity: CAPACITY,
        ..Default::default()
    };
    let medium = Mapped::open(file, &options).unwrap();
    let pool: Arc<Pool<Mapped>> = if Region::is_blank(&medium) {
        let config = RegionConfig { capacity: CAPACITY, seed: Some(1), ..Default::default() };
        Pool::create(medium, &config, Identity::default()).unwrap()
    } else {
        Pool::open(medium, Identity::default(), OnSuspect::Refuse).unwrap().0
    };
    let root = pool.root(0);
    let tree = match T::is_at(&pool, root) {
        true => T::open(pool.clone(), root).unwrap(),
        false => T::create(pool.clone(), root).unwrap(),
    };
    if !pool.is_swept() {
        pool.sweep(|mark| tree.visit(&mut Blocks(mark))).unwrap();
    }
    tree
}

struct Blocks<'m>(&'m mut dyn FnMut(u64));

impl Visitor for Blocks<'_> {
    fn block(&mut self, offset: u64) {
        (self.0)(offset);
    }

    fn word(&mut self, _word: u64) {}
}

/// Writes until it is killed: for each change that was acknowledged, one byte with the writer.
fn live<T: PersistentOrdered<Mapped>>(file: &Path, seed: u64) {
    let tree: T = open(file);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let tree = &tree;
            scope.spawn(move || {
                for (key, word) in operations(seed, writer) {
                    match word {
                        Some(word) => tree.upsert(&key_of(key), word),
                        None => tree.remove(&key_of(key)),
                    }
                    .unwrap();
                    std::io::stderr().write_all(&[writer as u8]).unwrap();
                }
            });
        }
        loop {
            let mut cursor = Cursor::new(&tree, .., Direction::Ascending);
            while cursor.next().unwrap().is_some() {}
        }
    });
}

/// Kills a process of the test `name`, which calls this too, again and again.
fn survives<T: PersistentOrdered<Mapped>>(name: &str) {
    if let (Some(file), Ok(seed)) = (std::env::var_os(FILE), std::env::var(SEED)) {
        live::<T>(Path::new(&file), seed.parse().unwrap());
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("index");
    let mut known: BTreeMap<u64, u64> = BTreeMap::new();
    let mut changes = 0;
    for seed in 1..=tier().choose(6, 100) {
        let acknowledged = kill(name, &file, seed);
        changes += acknowledged.len();
        let mut open_ends = Vec::new();
        for writer in 0..WRITERS {
            let done = acknowledged.iter().filter(|&&byte| u64::from(byte) == writer).count();
            let mut operations = operations(seed, writer);
            for (key, word) in operations.by_ref().take(done) {
                match word {
                    Some(word) => drop(known.insert(key, word)),
                    None => drop(known.remove(&key)),
                }
            }
            open_ends.extend(operations.next());
        }
        verify::<T>(&open(&file), &mut known, &open_ends);
    }
    println!("{changes} changes were acknowledged before a kill");
    assert!(changes > 100);
}

/// Starts a process and kills it. Returns what it has acknowledged.
fn kill(name: &str, file: &Path, seed: u64) -> Vec<u8> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads", "1"]);
    command.env(FILE, file).env(SEED, seed.to_string());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stderr.take().unwrap();
    // Its life begins with its first change.
    let mut acknowledged = vec![0];
    pipe.read_exact(&mut acknowledged).unwrap();
    let reader = std::thread::spawn(move || {
        pipe.read_to_end(&mut acknowledged).unwrap();
        acknowledged
    });
    std::thread::sleep(Duration::from_millis(Rng::new(seed).below(LIFE_MS)));
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap()
}

/// Compares a tree with what is known, in which the operations at `open_ends` may or may not be.
fn verify<T: OrderedIndex>(tree: &T, known: &mut BTreeMap<u64, u64>, open_ends: &[Operation]) {
    for &(key, word) in open_ends {
        let found = tree.get(&key_of(key)).unwrap();
        assert!(found == word || found == known.get(&key).copied(), "{key}: {found:?}");
        match found {
            Some(word) => drop(known.insert(key, word)),
            None => drop(known.remove(&key)),
        }
    }
    for key in 0..KEYS {
        assert_eq!(tree.get(&key_of(key)).unwrap(), known.get(&key).copied(), "{key}");
    }
    let mut expected: Vec<_> = known.iter().map(|(&key, &word)| (key_of(key), word)).collect();
    expected.sort();
    let mut cursor = Cursor::new(tree, .., Direction::Ascending);
    for (key, word) in &expected {
        assert_eq!(cursor.next().unwrap(), Some((key.as_slice(), *word)));
    }
    assert_eq!(cursor.next().unwrap(), None);
    assert_eq!(tree.len(), expected.len() as u64);
    let problems = tree.check();
    assert!(problems.is_empty(), "{problems:?}");
}

#[test]
fn nv_tree() {
    survives::<NvTree<Mapped>>("killed::nv_tree");
}

#[test]
fn fp_tree() {
    survives::<FpTree<Mapped>>("killed::fp_tree");
}

#[test]
fn hikv() {
    survives::<Indexed<Mapped, Usual>>("killed::hikv");
}

/// Without backends, and with a log and queues of few requests.
#[test]
fn hikv_with_a_log() {
    survives::<Indexed<Mapped, Tiny<true>>>("killed::hikv_with_a_log");
}
