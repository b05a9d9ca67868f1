//! Operations that make no system call: in a process that the system ends at the first one.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Command;
use std::sync::Arc;

use evermap_index::hash::tranche::Config;
use evermap_index::{Index, Persistent, Tranche, TrancheMap};
use evermap_pm::Pool;
use evermap_pm::medium::{Dram, Pages};
use evermap_pm::region::{Identity, RegionConfig};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// Set in the process in which the operations run.
const INSIDE: &str = "EVERMAP_TEST_WITHOUT_SYSTEM_CALLS";
/// What that process writes at the end.
const ENDED: &[u8] = b"no system call until here";

/// Returns whether `body` makes no system call. The caller is the test `name` of this program,
/// which is started again to run `prepare` and then `body` without.
fn makes_none<P>(name: &str, prepare: impl FnOnce() -> P, body: impl FnOnce(&P)) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        let prepared = prepare();
        allow_writing_only();
        body(&prepared);
        // The system may end the process after this, which exits by system calls.
        std::io::stderr().write_all(ENDED).expect("allowed");
        std::process::exit(0);
    }
    let mut again = Command::new(std::env::current_exe().expect("the path of a test"));
    let output = again.args(["--exact", name, "--nocapture"]).env(INSIDE, "yes").output();
    let output = output.expect("another process");
    let ended = output.stderr.ends_with(ENDED);
    // A program that finds no test of this name is successful.
    assert!(ended || !output.status.success(), "{name} was not run");
    eprintln!("{}, {}", output.status, String::from_utf8_lossy(&output.stderr));
    ended
}

/// Makes every system call of this thread but `write` end the process.
fn allow_writing_only() {
    /// The number of the system call `write`.
    const WRITE: i64 = if cfg!(target_arch = "x86_64") { 1 } else { 64 };
    let rules = BTreeMap::from([(WRITE, Vec::new())]);
    let architecture = std::env::consts::ARCH.try_into().expect("a known processor");
    let (others, these) = (SeccompAction::KillProcess, SeccompAction::Allow);
    let filter = SeccompFilter::new(rules, others, these, architecture).expect("a filter");
    let program: BpfProgram = filter.try_into().expect("a program");
    seccompiler::apply_filter(&program).expect("a system that takes filters");
}

const KEYS: u64 = 4000;
const CAPACITY: u64 = 8 << 20;

fn pool() -> Arc<Pool<Dram>> {
    let config = RegionConfig { extent_size: 2 << 20, capacity: CAPACITY, seed: Some(1) };
    let medium = Dram::reserve(CAPACITY, Pages::Base).unwrap();
    Pool::create(medium, &config, Identity::default()).unwrap()
}

/// A process is ended by a system call, so the other tests can fail.
#[test]
fn a_system_call_is_noticed() {
    let exists = |_: &()| assert!(std::path::Path::new("/").exists());
    assert!(!makes_none("system_calls::a_system_call_is_noticed", || (), exists));
}

/// Pairs in a table with space for twice as many.
#[test]
fn operations_on_pairs_make_none() {
    let prepare = || {
        let pool = pool();
        let config = Config { initial_depth: 6 };
        let table = Tranche::<u64, Dram>::create(pool.clone(), pool.root(0), config).unwrap();
        // What a thread does once is done here.
        table.insert(u64::MAX, 0, &pool.pin()).unwrap();
        (pool, table)
    };
    let operations = |(pool, table): &(Arc<Pool<Dram>>, Tranche<u64, Dram>)| {
        for key in 0..KEYS {
            assert!(table.insert(key, key, &pool.pin()).unwrap().inserted());
            assert_eq!(table.upsert(key, !key, &pool.pin()).unwrap().old, Some(key));
            assert_eq!(table.get(key, &pool.pin()).unwrap(), Some(!key));
            assert_eq!(table.get(KEYS + key, &pool.pin()).unwrap(), None);
            let mut found = [None; 32];
            let keys = [key; 32];
            table.get_many(&keys, &mut found, &pool.pin()).unwrap();
            assert_eq!(found, [Some(!key); 32]);
        }
        (0..KEYS / 2).for_each(|key| {
            assert!(table.remove(key, &pool.pin()).unwrap().removed());
        });
    };
    assert!(makes_none("system_calls::operations_on_pairs_make_none", prepare, operations));
}

/// Byte strings in a table with space for them.
#[test]
fn operations_on_short_records_make_none() {
    let prepare = || {
        let pool = pool();
        let config = Config { initial_depth: 6 };
        let map = TrancheMap::<Dram>::create(pool.clone(), pool.root(0), config).unwrap();
        map.insert(b"a thread's first operation", b"").unwrap();
        map
    };
    let operations = |map: &TrancheMap<Dram>| {
        for number in 0..KEYS / 2 {
            let (key, value) = ([number.to_le_bytes(); 2], [number.to_be_bytes(); 3]);
            let (key, value) = (key.as_flattened(), value.as_flattened());
            assert!(map.insert(key, value).unwrap());
            assert!(map.upsert(key, value).unwrap());
            assert!(map.contains(key).unwrap());
            assert_eq!(&*map.get_ref(key).unwrap().unwrap(), value);
            map.get_many(&[key, value], |at, found| found.is_some() == (at == 0)).unwrap();
        }
    };
    let name = "system_calls::operations_on_short_records_make_none";
    assert!(makes_none(name, prepare, operations));
}
